//! A session by itself: leases, spans of rows, and when it reports.

use model::{KindSet, Rate};
use rules::{EntitlementScope, Grantable};

use super::*;

fn secs(count: u64) -> Time {
    Time::ZERO + Nanos::from_secs(count)
}

fn scope() -> Scope {
    Scope::rule("jobs", &[])
}

fn order(standing: &ControllerSession, base: u64, revision: u64, parts: (u64, u64)) -> Assignment {
    let part = |percent| Share::ratio(percent, 100);
    Assignment {
        to: standing.name.clone(),
        epoch: 1,
        term: Membership { controller: 1, joined: 1 },
        number: revision + 1,
        in_reply_to: standing.sequence,
        learning: false,
        base,
        revision,
        proxies: 2,
        unlisted: part(parts.0),
        fallback: part(50),
        grants: vec![(scope(), Some(part(parts.1)))],
        all_rows: false,
        rows: vec![],
        remote_service: vec![],
        parents: vec![],
    }
}

/// A proxy that is granted 50 % of everything and a share of one scope.
fn ordered(percent: u64, settings: SessionSettings) -> ControllerSession {
    let mut standing = ControllerSession::new("a", 1, settings, Time::ZERO);
    standing.report(Some(vec![]), Time::ZERO);
    standing.receive(&order(&standing, 0, 0, (0, 0)), Time::ZERO);
    standing.report(Some(vec![]), Time::ZERO);
    assert!(standing.receive(&order(&standing, 0, 1, (50, percent)), Time::ZERO));
    standing
}

#[test]
fn a_new_member_gives_nothing_until_it_is_ordered_and_all_when_there_is_no_controller() {
    let mut standing = ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO);
    assert_eq!(standing.poll_grants(Time::ZERO).unwrap().unlisted, Share::ZERO);
    for second in 1..10 {
        assert_eq!(standing.poll_grants(secs(second)), None);
    }
    let grants = (10..13).find_map(|second| standing.poll_grants(secs(second)));
    assert_eq!(grants.unwrap().unlisted, Share::WHOLE);
}

#[test]
fn a_new_member_that_only_heard_of_others_gives_an_equal_share_when_the_controller_is_gone() {
    let mut standing = ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO);
    standing.report(Some(vec![]), Time::ZERO);
    let learning =
        Assignment { learning: true, revision: 0, proxies: 4, ..order(&standing, 0, 0, (0, 0)) };
    standing.receive(&learning, Time::ZERO);
    assert_eq!(standing.poll_grants(Time::ZERO).unwrap().unlisted, Share::ZERO);
    let grants = (1..13).find_map(|second| standing.poll_grants(secs(second)));
    assert_eq!(grants.unwrap().unlisted, Share::ratio(1, 4));
}

/// A row of that source for a span in milliseconds.
fn row(source: EntitlementSource, from: u64, until: Option<u64>) -> Entitlement {
    let rate = Rate::ops_per_sec(5).unwrap();
    let (scope, grants) = (EntitlementScope::default(), Grantable::Limit(rate, None));
    let row = Entitlement::new(scope, grants, KindSet::ALL, source).unwrap();
    row.during(Nanos::from_millis(from), until.map(Nanos::from_millis)).unwrap()
}

/// A session with rows 1 of a decay, 2 of an operator; the last assignment was at 0 s.
fn with_rows(lease_expiry: LeaseExpiry) -> ControllerSession {
    let settings = SessionSettings { lease_expiry, ..SessionSettings::default() };
    let mut session = ordered(30, settings);
    let rows = vec![
        (EntitlementId(1), Some(row(EntitlementSource::Decay, 0, None))),
        (EntitlementId(2), Some(row(EntitlementSource::Operator, 0, None))),
    ];
    let order = Assignment { all_rows: true, rows, ..order(&session, 1, 2, (50, 30)) };
    assert!(session.receive(&order, Time::ZERO));
    assert_eq!(in_force(&mut session, Time::ZERO), [(1, true), (2, true)]);
    session
}

fn in_force(session: &mut ControllerSession, now: Time) -> Vec<(u64, bool)> {
    let rows = session.poll_rows(now).unwrap_or_default();
    rows.into_iter().map(|(id, row)| (id.0, row.is_some())).collect()
}

#[test]
fn a_row_has_its_span_from_the_report_that_was_answered() {
    let mut session = ordered(30, SessionSettings::default());
    session.report(Some(vec![]), secs(2));
    let later = row(EntitlementSource::Reservation, 500, Some(3_000));
    let rows = vec![(EntitlementId(1), Some(later))];
    let order = Assignment { rows, ..order(&session, 1, 2, (50, 30)) };
    session.receive(&order, secs(4));
    let rows = session.poll_rows(secs(4)).unwrap();
    let here = rows[0].1.as_ref().unwrap();
    let ms = Nanos::from_millis;
    assert_eq!((here.from(), here.until()), (ms(2_500), Some(ms(5_000))));
    assert_eq!(session.poll_rows(secs(4)), None);
    assert_eq!(session.end(), [(EntitlementId(1), None)]);
}

#[test]
fn after_the_lease_decays_limit_and_other_rows_end_unless_all_is_kept_or_lifted() {
    let quiet = |lease_expiry| {
        let mut session = with_rows(lease_expiry);
        let changes = in_force(&mut session, secs(10));
        (session, changes)
    };
    assert_eq!(quiet(LeaseExpiry::KeepLast).1, []);
    let (mut lifted, changes) = quiet(LeaseExpiry::Full);
    assert_eq!(changes, [(1, false), (2, false)]);
    lifted.report(Some(vec![]), secs(11));
    let answer = order(&lifted, 2, 2, (50, 30));
    lifted.receive(&answer, secs(11));
    assert_eq!(in_force(&mut lifted, secs(11)), [(1, true), (2, true)]);
    let (mut lowered, changes) = quiet(LeaseExpiry::Equal);
    assert_eq!(changes, [(1, true), (2, false)]);
    // It is registered again, and keeps what is in force until it has all rows.
    let term = Membership { controller: 1, joined: 2 };
    lowered.receive(&Assignment { term, ..order(&lowered, 0, 0, (0, 0)) }, secs(60));
    assert!(!in_force(&mut lowered, secs(60)).contains(&(2, true)));
    lowered.report(Some(vec![]), secs(60));
    let rows = vec![(EntitlementId(3), Some(row(EntitlementSource::Operator, 0, None)))];
    let order = Assignment { term, all_rows: true, rows, ..order(&lowered, 0, 1, (50, 30)) };
    lowered.receive(&order, secs(60));
    assert_eq!(in_force(&mut lowered, secs(60)), [(1, false), (3, true)]);
}

#[test]
fn rows_beyond_the_bound_and_beyond_all_time_are_dropped() {
    let mut session = ordered(30, SessionSettings::default());
    let endless = row(EntitlementSource::Operator, u64::MAX / 1_000_000 - 1, None);
    let never = endless.clone().during(Nanos::new(u64::MAX - 1), Some(Nanos::new(u64::MAX)));
    session.report(Some(vec![]), secs(1));
    let many = (0..70_000).map(|id| (EntitlementId(id), Some(endless.clone())));
    let rows = [(EntitlementId(70_000), Some(never.unwrap()))].into_iter().chain(many).collect();
    let order = Assignment { rows, ..order(&session, 1, 2, (50, 30)) };
    session.receive(&order, secs(1));
    let rows = session.poll_rows(secs(1)).unwrap();
    assert_eq!(rows.len(), 65_536);
    assert!(rows.iter().all(|(id, _)| id.0 < 65_536));
}

#[test]
fn an_older_order_and_one_of_another_life_change_nothing() {
    let mut standing = ordered(30, SessionSettings::default());
    standing.poll_grants(Time::ZERO);
    assert!(standing.receive(&order(&standing, 1, 3, (50, 20)), Time::ZERO));
    standing.report(Some(vec![]), Time::ZERO);
    let gap = Assignment { base: 4, ..order(&standing, 4, 5, (50, 90)) };
    let other = Assignment { epoch: 2, ..order(&standing, 1, 9, (50, 90)) };
    for late in [order(&standing, 1, 2, (50, 70)), gap, other] {
        assert!(!standing.receive(&late, Time::ZERO));
    }
    let listed = vec![(scope(), Some(Share::ratio(20, 100)))];
    let unlisted = Share::ratio(50, 100);
    assert_eq!(standing.poll_grants(Time::ZERO), Some(Grants { proxies: 2, unlisted, listed }));
    assert_eq!(standing.poll_grants(Time::ZERO), None);
}

#[test]
fn a_member_that_hears_nothing_lowers_after_the_hold_and_raises_after_two() {
    for (percent, lowered) in [(99, 50), (1, 1)] {
        let mut standing = ordered(percent, SessionSettings::default());
        let part = |standing: &mut ControllerSession, second| {
            standing.poll_grants(secs(second));
            standing.part_of(&scope())
        };
        assert_eq!(part(&mut standing, 9), Share::ratio(percent, 100));
        assert_eq!(part(&mut standing, 10), Share::ratio(lowered, 100));
        let fell = (11..60).find(|at| part(&mut standing, *at) == Share::ratio(50, 100));
        assert!((11..30).contains(&fell.unwrap()), "{fell:?}");
        (40..60).for_each(|second| assert!(part(&mut standing, second) == Share::ratio(50, 100)));
        let again = standing.report(Some(vec![]), secs(60)).unwrap();
        assert!(again.lease_expired);
        let late = order(&standing, 0, 9, (90, 90));
        standing.receive(&late, secs(60));
        assert_eq!(part(&mut standing, 60), Share::ratio(50, 100), "others may not know");
        let term = Membership { controller: 1, joined: 2 };
        standing.receive(&Assignment { term, ..order(&standing, 0, 0, (0, 0)) }, secs(60));
        assert_eq!(part(&mut standing, 60), Share::ratio(50, 100), "it keeps what it has");
        let told = standing.report(Some(vec![]), secs(60)).unwrap().holdings.unwrap();
        assert_eq!((told.unlisted, told.listed), (Share::ratio(50, 100), vec![]));
        standing.receive(&Assignment { term, ..order(&standing, 0, 1, (50, percent)) }, secs(60));
        assert_eq!(part(&mut standing, 60), Share::ratio(percent, 100));
    }
}

#[test]
fn a_clock_that_jumps_ahead_raises_nothing() {
    let mut standing = ordered(1, SessionSettings::default());
    standing.poll_grants(secs(100_000));
    assert_eq!(standing.part_of(&scope()), Share::ratio(1, 100));
    let mut high = ordered(99, SessionSettings::default());
    high.poll_grants(secs(100_000));
    assert_eq!(high.part_of(&scope()), Share::ratio(50, 100));
}

#[test]
fn an_order_that_was_long_on_its_way_keeps_nothing_alive() {
    let mut standing = ordered(99, SessionSettings::default());
    standing.report(Some(vec![]), secs(2));
    let late = order(&standing, 1, 1, (50, 99));
    standing.receive(&late, secs(9));
    standing.poll_grants(secs(11));
    assert_eq!(standing.part_of(&scope()), Share::ratio(99, 100), "2 s + 10 s");
    standing.poll_grants(secs(12));
    assert_eq!(standing.part_of(&scope()), Share::ratio(50, 100));
    standing.receive(&late, secs(13));
    assert_eq!(standing.part_of(&scope()), Share::ratio(50, 100));
}

#[test]
fn a_controller_that_does_not_know_yet_what_there_is_keeps_nothing_alive() {
    let mut standing = ordered(99, SessionSettings::default());
    let term = Membership { controller: 2, joined: 1 };
    let part = |standing: &mut ControllerSession, second| {
        standing.report(Some(vec![]), secs(second));
        let stay = Assignment { term, learning: true, ..order(standing, 0, 0, (0, 0)) };
        standing.receive(&stay, secs(second));
        standing.part_of(&scope())
    };
    assert_eq!(part(&mut standing, 9), Share::ratio(99, 100));
    assert_eq!(part(&mut standing, 10), Share::ratio(50, 100));
    let mut low = ordered(1, SessionSettings::default());
    for second in 1..60 {
        assert_eq!(part(&mut low, second), Share::ratio(1, 100), "but no share is raised");
    }
}

#[test]
fn silence_may_keep_the_orders_or_lift_them() {
    let with = |silence| SessionSettings { lease_expiry: silence, ..SessionSettings::default() };
    for (silence, part) in [(LeaseExpiry::KeepLast, 99), (LeaseExpiry::Full, 100)] {
        let mut standing = ordered(99, with(silence));
        for second in 1..60 {
            standing.poll_grants(secs(second));
        }
        assert_eq!(standing.part_of(&scope()), Share::ratio(part, 100));
    }
}

#[test]
fn who_has_nothing_to_say_reports_once_a_second_and_sooner_when_it_had_no_answer_for_one() {
    let tick = |at: u64| Time::ZERO + Nanos::from_millis(100 * at);
    for (answers, expected) in [(true, vec![1, 11, 21]), (false, vec![1, 11, 14, 17])] {
        let mut standing = ordered(50, SessionSettings::default());
        let mut reports = Vec::new();
        for at in 1..if answers { 25 } else { 18 } {
            if standing.report(Some(vec![]), tick(at)).is_some() {
                reports.push(at);
                let order = order(&standing, 1, 1, (50, 50));
                assert!(!answers || !standing.receive(&order, tick(at)));
            }
        }
        assert_eq!(reports, expected, "the first acknowledges");
    }
}

#[test]
fn who_goes_on_as_before_reports_each_second_and_each_tick_while_that_changes() {
    let tick = |at: u64| Time::ZERO + Nanos::from_millis(100 * at);
    let mut standing = ordered(50, SessionSettings::default());
    let mut reports = Vec::new();
    for at in 1..60 {
        // The usage begins to grow, and the share follows.
        let waiting = (30..33).contains(&at);
        let uses = vec![(scope(), ScopeUsage { used: Some(Share::ratio(at, 100)), waiting })];
        if let Some(report) = standing.report(Some(uses), tick(at)) {
            reports.push((at, report.uses));
            let order = order(&standing, 1, 1, (50, 50));
            standing.receive(&order, tick(at));
        }
    }
    let at: Vec<_> = reports.iter().map(|(at, _)| *at).collect();
    let ticks = |from, to| (from..=to).collect::<Vec<u64>>();
    assert_eq!(at, [ticks(1, 11), vec![21], ticks(30, 43), vec![53]].concat());
    let told =
        |at: u64| &reports.iter().find(|(of, _)| *of == at).unwrap().1.as_ref().unwrap()[0].1;
    assert_eq!(told(21).used, Some(Share::ratio(165, 1000)), "the mean of ten ticks");
    assert_eq!(told(30), &ScopeUsage { used: Some(Share::ratio(26, 100)), waiting: true });
}
