//! The worked tables of docs/algorithms/decay.md.

use std::sync::Arc;

use model::{Amount, Identity, JobId, KeyValue, Nid, OpKind, PathSet, Rate, Scope, Time};
use rules::RuleSet;
use sluice_plan::{DecayAccounts, DecayEvent, DecayLevel, UsageMinute};

const MB: u64 = 1_000_000;

/// Seconds from a whole day in 2026.
const fn secs(count: u64) -> Time {
    Time::from_nanos((20_500 * 86_400 + count) * 1_000_000_000)
}

fn rules(text: &str) -> Arc<RuleSet> {
    Arc::new(RuleSet::parse(text).unwrap_or_else(|error| panic!("{error}")))
}

/// The step of the source: a period of ten minutes, 70 MB/s, then 10 MB/s.
fn step() -> Arc<RuleSet> {
    rules(
        "[[decay]]\nname = \"writers\"\nper = [\"uid\"]\nexempt = \"uid={0}\"\nresource = \"write\"\n\
         entitlement = \"70MB/s\"\nfloor = \"10MB/s\"\nmode = \"period\"\nperiod = \"10min\"\nupdate_interval = \"5s\"\n",
    )
}

fn half_life(more: &str) -> Arc<RuleSet> {
    rules(&format!(
        "[[decay]]\nname = \"writers\"\nper = [\"uid\"]\nresource = \"write\"\nentitlement = \"10MB/s\"\n\
         max = \"100MB/s\"\nfloor = \"1MB/s\"\nmode = \"decay\"\nhalf_life = \"1h\"\n{more}"
    ))
}

fn user(uid: u32) -> Identity {
    let job = JobId::new("dd").expect("a valid name");
    Identity { job, uid, gid: 100, projid: Some(7), nid: Nid::local() }
}

fn scope(uid: u32) -> Scope {
    Scope::decay("writers", &[KeyValue::Uid(uid)])
}

/// A user who writes as fast as he may, up to `full` bytes a second.
struct Writer {
    uid: u32,
    full: u64,
    limit: Option<u64>,
    /// Bytes written in each second.
    wrote: Vec<u64>,
}

impl Writer {
    fn new(uid: u32, full: u64) -> Writer {
        Writer { uid, full, limit: None, wrote: Vec::new() }
    }

    fn mean(&self, from: usize, to: usize) -> u64 {
        self.wrote[from..to].iter().sum::<u64>() / (to - from) as u64
    }
}

/// Lets users write for some seconds. Gives the events.
fn write(decays: &mut DecayAccounts, users: &mut [Writer], from: u64, to: u64) -> Vec<DecayEvent> {
    let mut events = Vec::new();
    for second in from..to {
        while let Some((scope, rate)) = decays.poll_rate(secs(second)) {
            let whose = |user: &&mut Writer| scope.key[..] == [KeyValue::Uid(user.uid)];
            if let Some(user) = users.iter_mut().find(whose) {
                user.limit = rate.map(Rate::per_sec);
            }
        }
        events.extend(std::iter::from_fn(|| decays.poll_event(secs(second))));
        for user in users.iter_mut() {
            let bytes = user.full.min(user.limit.unwrap_or(u64::MAX));
            user.wrote.push(bytes);
            let amount = Amount::new(bytes, 1);
            decays.record(
                &self::user(user.uid),
                PathSet::default(),
                OpKind::Write,
                amount,
                secs(second),
            );
        }
    }
    events
}

#[test]
fn the_sawtooth_of_a_single_writer_is_that_of_the_formula() {
    for full in [700, 350, 140] {
        let mut decays = DecayAccounts::new(step(), secs(0));
        let mut users = [Writer::new(1, full * MB)];
        let events = write(&mut decays, &mut users, 0, 3 * 600 + 30);
        let writer = &users[0];
        // X = 70 MB/s · 600 s; t1 = X/B + t_detect with up to 5 s of detection and a second to act.
        let (quota, period) = (70 * 600, 600);
        let begins = quota / full;
        for start in [0, 600, 1200usize] {
            let throttled = (start..start + 600).find(|at| writer.wrote[*at] == 10 * MB);
            let after = throttled.expect("it is held back") as u64 - start as u64;
            assert!((begins..=begins + 6).contains(&after), "{full}: after {after} s");
            let detect = after - begins;
            let formula = (quota + full * detect + 10 * (period - after)) / period;
            let mean = writer.mean(start, start + 600) / MB;
            assert!(mean.abs_diff(formula) * 20 <= formula, "{full}: {mean}, not {formula}");
            assert_eq!(writer.wrote[start + 599], 10 * MB, "the floor until the period ends");
            assert_eq!(writer.wrote[start + 600], full * MB, "full speed right at the boundary");
        }
        let stages: Vec<DecayLevel> = events.iter().map(|event| event.stage).collect();
        let once = [DecayLevel::Warned, DecayLevel::Floor, DecayLevel::Free];
        assert_eq!(stages[..3], once, "{full}");
        assert_eq!(stages.len(), 9, "once for each change: {stages:?}");
        assert!(events[2].is_release() && events[2].at == secs(600));
        assert_eq!(events[1].release, Some(secs(600)));
    }
}

#[test]
fn others_and_the_exempt_are_not_touched() {
    let mut decays = DecayAccounts::new(step(), secs(0));
    let mut users = [Writer::new(1, 700 * MB), Writer::new(2, 60 * MB), Writer::new(0, 900 * MB)];
    let events = write(&mut decays, &mut users, 0, 600);
    assert!(events.iter().all(|event| event.scope != scope(0)));
    assert_eq!(users[1].mean(0, 600), 60 * MB);
    assert_eq!(users[2].mean(0, 600), 900 * MB);
    assert!(decays.reports().all(|report| report.scope != scope(0)), "root has no account");
    // Near is all that 60 of 70 come to.
    let second = events.iter().filter(|event| event.scope == scope(2));
    assert_eq!(second.map(|event| event.stage).collect::<Vec<_>>(), [DecayLevel::Warned]);
}

#[test]
fn who_always_asks_for_more_settles_where_his_limit_is_his_use() {
    // ρ = 10 · 2^(−κ(ρ−1)): 2.82, 2.12, 1.82 and 1.65 times the entitlement.
    for (steepness, settles) in [(1, 282), (2, 212), (3, 182), (4, 165)] {
        let more = format!("steepness = \"{steepness}\"\nhysteresis = \"1%\"\n");
        let mut decays = DecayAccounts::new(half_life(&more), secs(0));
        let mut users = [Writer::new(1, 1_000 * MB)];
        write(&mut decays, &mut users, 0, 40_000);
        let mean = users[0].mean(36_000, 40_000) * 100 / (10 * MB);
        assert!(mean.abs_diff(settles) <= 3, "κ = {steepness}: {mean}, not {settles}");
    }
}

#[test]
fn a_limit_falls_without_a_cliff_and_moves_only_by_more_than_the_hysteresis() {
    let mut decays = DecayAccounts::new(half_life(""), secs(0));
    let mut users = [Writer::new(1, 100 * MB)];
    let mut limits = Vec::new();
    for second in 0..3_000 {
        write(&mut decays, &mut users, second, second + 1);
        if limits.last() != Some(&users[0].limit) {
            limits.push(users[0].limit);
        }
    }
    let limits: Vec<u64> = limits.into_iter().flatten().collect();
    assert!(limits[0] > 85 * MB, "it begins at the top: {limits:?}");
    for pair in limits.windows(2) {
        assert!(pair[0].abs_diff(pair[1]) * 20 > pair[0], "less than 5 %: {pair:?}");
        assert!(pair[1] * 10 > pair[0] * 8, "a cliff: {pair:?}");
    }
}

#[test]
fn who_pauses_is_released_when_he_has_no_more_than_his_entitlement() {
    let mut decays = DecayAccounts::new(half_life(""), secs(0));
    let mut users = [Writer::new(1, 100 * MB)];
    let events = write(&mut decays, &mut users, 0, 2_000);
    let held =
        events.iter().rfind(|event| event.stage == DecayLevel::Throttled).expect("it is held back");
    assert!(held.to_string().contains("decay writers of uid=1: 1"), "{held}");
    users[0].full = 0;
    let mut events = Vec::new();
    let mut second = 2_000;
    while !events.iter().any(DecayEvent::is_release) {
        second += 1;
        assert!(second < 20_000, "it is never released");
        events.extend(write(&mut decays, &mut users, second, second + 1));
    }
    let last = decays.reports().next().expect("one account");
    assert!(last.used <= last.entitlement && last.used * 100 > last.entitlement * 99, "{last:?}");
    events.extend(write(&mut decays, &mut users, second + 1, 20_000));
    let left: Vec<DecayLevel> = events.iter().map(|event| event.stage).collect();
    assert_eq!(left, [DecayLevel::Warned, DecayLevel::Free], "once each");
}

#[test]
fn thresholds_may_have_factors() {
    let mut decays = DecayAccounts::new(
        rules(
            "[[decay]]\nname = \"writers\"\nper = [\"gid\"]\nresource = \"metadata\"\n\
             entitlement = \"100ops/s\"\nmax = \"1kops/s\"\nfloor = \"10ops/s\"\nmode = \"period\"\n\
             period = \"10min\"\n\
             steps = { \"50%\" = \"100%\", \"75%\" = \"50%\", \"100%\" = \"25%\", \"150%\" = \"floor\" }\n",
        ),
        secs(0),
    );
    let mut limits = Vec::new();
    for part in 1..=16u64 {
        // A tenth of 60,000 operations in each ten seconds.
        let at = secs(10 * part);
        let ops = Amount::new(0, 6_000);
        decays.record(&user(1), PathSet::default(), OpKind::Create, ops, at);
        decays.record(&user(1), PathSet::default(), OpKind::Read, Amount::new(1 << 40, 1), at);
        let at = secs(10 * part + 10);
        limits.extend(decays.poll_rate(at).map(|(_, rate)| (part, rate.map(Rate::per_sec))));
    }
    assert_eq!(limits, [(8, Some(500)), (10, Some(250)), (15, Some(10))]);
}

#[test]
fn nobody_is_held_back_for_nothing_where_contention_is_asked_for() {
    let text = step().to_toml() + "contention = true\n";
    let mut decays = DecayAccounts::new(rules(&text), secs(0));
    decays.set_contention(false, secs(0));
    let mut users = [Writer::new(1, 700 * MB)];
    let events = write(&mut decays, &mut users, 0, 300);
    assert_eq!(events.iter().map(|event| event.stage).collect::<Vec<_>>(), [DecayLevel::Warned]);
    assert_eq!(users[0].mean(0, 300), 700 * MB);
    decays.set_contention(true, secs(300));
    write(&mut decays, &mut users, 300, 310);
    assert_eq!(users[0].limit, Some(10 * MB), "what was recorded counts");
    decays.set_contention(false, secs(310));
    assert_eq!(decays.poll_rate(secs(310)), Some((scope(1), None)));
}

#[test]
fn a_behaviour_makes_the_entitlement_another_and_is_forgotten() {
    let mut decays = DecayAccounts::new(step(), secs(0));
    let known = decays.set_pattern_factor(&scope(1), 250_000, "small random reads", secs(0));
    assert!(!known, "nobody is judged without an account");
    let mut users = [Writer::new(1, 25 * MB)];
    write(&mut decays, &mut users, 0, 60);
    assert!(decays.set_pattern_factor(&scope(1), 100_000, "metadata storm", secs(60)));
    let events = write(&mut decays, &mut users, 60, 600);
    // A quarter of 42 GB is 10.5 GB, and rising: at 25 MB/s it is used up in about nine minutes.
    let floor =
        events.iter().find(|event| event.stage == DecayLevel::Floor).expect("it is held back");
    let (pattern, factor) = floor.pattern_factor.as_ref().expect("it says why");
    assert_eq!(&**pattern, "metadata storm");
    assert!((250_000..500_000).contains(factor), "{factor}");
    assert!(floor.to_string().ends_with(" for metadata storm"), "{floor}");
    write(&mut decays, &mut users, 600, 20_000);
    let entitlement = decays.reports().next().expect("one account").entitlement;
    assert!(entitlement > 40_000 * MB, "{entitlement}");
}

#[test]
fn accounts_made_again_from_the_ledger_decide_the_same() {
    let sliding =
        step().to_toml().replace("period = \"10min\"", "period = \"10min\"\nwindow = \"sliding\"");
    for set in [step(), half_life(""), rules(&sliding)] {
        let mut decays = DecayAccounts::new(set.clone(), secs(0));
        let mut users = [Writer::new(1, 300 * MB), Writer::new(2, 90 * MB)];
        write(&mut decays, &mut users, 0, 900);
        let rows: Vec<UsageMinute> = std::iter::from_fn(|| decays.poll_ledger(secs(900))).collect();
        assert!(rows.len() >= 28, "a row for each user and minute: {}", rows.len());
        let mut again = DecayAccounts::new(set, secs(900));
        again.restore(rows, secs(900));
        let both = |decays: &DecayAccounts| -> Vec<_> {
            decays.reports().map(|report| (report.scope, report.used, report.entitlement)).collect()
        };
        assert_eq!(both(&again), both(&decays));
        let mut others = [Writer::new(1, 300 * MB), Writer::new(2, 90 * MB)];
        // The limit in force is within the hysteresis of what is computed anew.
        write(&mut decays, &mut users, 900, 1_000);
        write(&mut again, &mut others, 900, 1_000);
        for (user, other) in users.iter().zip(&others) {
            let (kept, anew) = (user.limit.unwrap_or(0), other.limit.unwrap_or(0));
            assert!(kept.abs_diff(anew) * 10 <= kept, "{kept} {anew}");
        }
    }
}

#[test]
fn who_goes_on_with_accounts_lets_nobody_go_before_all_is_known_and_tells_nothing_twice() {
    let floor = Rate::bytes_per_sec(10 * MB);
    let resumed = || {
        let mut decays = DecayAccounts::new(step(), secs(100));
        decays.resume([(scope(1), DecayLevel::Floor, floor)], secs(108), secs(100));
        // A minute before the other one died it had not written that he had used up all.
        let row = UsageMinute { scope: scope(1), minute: 20_500 * 1_440, used: 41_000 * MB };
        decays.restore([row], secs(100));
        assert_eq!(decays.poll_rate(secs(100)), Some((scope(1), floor)));
        decays
    };
    let mut known = resumed();
    known.charge(&scope(1), 2_000 * MB, secs(103));
    let mut unknown = resumed();
    for second in 100..108 {
        for decays in [&mut known, &mut unknown] {
            assert_eq!(decays.poll_rate(secs(second)), None);
            assert_eq!(decays.poll_event(secs(second)), None);
        }
    }
    assert_eq!((known.poll_rate(secs(110)), known.poll_event(secs(110))), (None, None));
    assert_eq!(unknown.poll_rate(secs(110)), Some((scope(1), None)));
    assert!(unknown.poll_event(secs(110)).is_some_and(|event| event.is_release()));
    let release = known.reports().next().expect("he is known").release;
    assert_eq!(release, Some(secs(600)));
}

#[test]
fn another_rule_file_keeps_accounts_that_count_the_same() {
    let mut decays = DecayAccounts::new(step(), secs(0));
    let mut users = [Writer::new(1, 700 * MB)];
    write(&mut decays, &mut users, 0, 120);
    assert_eq!(users[0].limit, Some(10 * MB));
    let faster = step().to_toml().replace("floor = \"10MB/s\"", "floor = \"20MB/s\"");
    decays.set_rules(rules(&faster), secs(120));
    assert_eq!(decays.poll_rate(secs(120)), Some((scope(1), Rate::bytes_per_sec(20 * MB))));
    decays.set_rules(half_life(""), secs(121));
    assert_eq!(decays.poll_rate(secs(121)), Some((scope(1), None)));
    assert_eq!(decays.reports().count(), 0, "it counts otherwise: it is to be restored");
}

#[test]
fn an_account_that_is_empty_costs_nothing() {
    let mut decays = DecayAccounts::new(step(), secs(0));
    for uid in 1..1_000 {
        decays.record(&user(uid), PathSet::default(), OpKind::Write, Amount::new(MB, 1), secs(5));
    }
    assert_eq!(decays.reports().count(), 999);
    decays.poll_rate(secs(601));
    assert_eq!(decays.reports().count(), 0);
}
