//! `sluice why` with reservations, over two proxies of a target.
//!
//! ```text
//!   ck.1, user 1001 ─► proxy a ─┐ reservation: rate, share, what went by it     ┌─ its owner
//!   free.1, user 1002 ─► proxy b ┴─ share of the slots, and whose reservation ──┴─ another user
//! ```

#![allow(clippy::unwrap_used)]

use api::{
    NewPhase, NewReservation, Why, WhyQuery, WireRate, WireReservation, WireReservationState,
};
use http::ApiClient;

use crate::common::until;
use crate::controlled::{Reader, api_of};
use crate::entrusted::sluice;
use crate::site::Site;

const MB: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const OWNER: u32 = 1001;
const OTHER: u32 = 1002;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={ck.*}\"\nper = [\"jobid\"]\n\
                     limit = \"500MB/s\"\n[[rule]]\nname = \"rest\"\nmatch = \"*\"\nper = [\"jobid\"]\n";

/// A controller with tokens and rules, a proxy `a` and a proxy `b`.
fn start(test: &str) -> Site<2> {
    // So few slots that a writer with 64 requests always waits for them.
    let site = Site::start(test, ["a", "b"], "slots_max = 4\n");
    site.admin.set_rules(RULES).unwrap();
    site
}

/// What `sluice why` prints for these words with the token of a file.
fn why_text(site: &Site<2>, words: &[&str], token: &str) -> String {
    let to = ["--controller", site.controller.url.as_str(), "--token-file", token];
    sluice(&[&["why"], words, &to].concat()).unwrap()
}

fn writes(job: &str, not_before_ns: Option<u64>) -> NewReservation {
    NewReservation {
        write: Some(WireRate::Bytes(20 * MB)),
        duration_ns: 600 * SECOND,
        job: Some(job.into()),
        not_before_ns,
        ..NewReservation::default()
    }
}

fn active(by: &ApiClient, asked: &NewReservation) -> WireReservation {
    let made = by.reserve(asked).unwrap();
    let active = by.reservation(made.id, "until=active&wait=30s").unwrap();
    assert_eq!(active.state, WireReservationState::Active);
    active
}

fn of_job(by: &ApiClient, job: &str) -> Why {
    by.why(&WhyQuery { job: Some(job.into()), ..WhyQuery::default() }).unwrap()
}

#[test]
fn a_reserved_job_sees_what_holds_for_it_and_another_user_that_slots_are_divided() {
    let site = start("why-reserved");
    let [a, b] = &site.proxies;
    let (owner, owner_token) = site.user(OWNER);
    let (other, other_token) = site.user(OTHER);
    let held = active(&owner, &writes("ck.1", None));
    let in_an_hour = held.start_ns.unwrap() + 3_600 * SECOND;
    let later = owner.reserve(&writes("ck.1", Some(in_an_hour))).unwrap();
    let _reserved = Reader::writing(a, ("ck.1", OWNER), 64);
    let _bully = Reader::writing(b, ("free.1", OTHER), 64);

    let mut why = Why::default();
    until("service went by the reservation at proxy a", || {
        why = of_job(&owner, "ck.1");
        why.reservations.iter().any(|of| of.proxy == "a" && of.served > 0)
    });
    let at_a = why.reservations.iter().find(|of| of.proxy == "a").unwrap();
    assert_eq!(
        (at_a.id, at_a.direction.as_str(), at_a.rate),
        (held.id, "write", WireRate::Bytes(20 * MB))
    );
    assert_eq!((at_a.job.as_deref(), at_a.user), (Some("ck.1"), Some(OWNER)));
    assert!(at_a.ends_ns.is_some_and(|ends| (1..=600 * SECOND).contains(&ends)), "{at_a:?}");
    assert!(at_a.share_ppb > 0 && at_a.served <= at_a.total, "{at_a:?}");
    let states: Vec<_> =
        why.calendar.as_ref().unwrap().reservations.iter().map(|of| (of.id, of.state)).collect();
    let expected =
        [(held.id, WireReservationState::Active), (later.id, WireReservationState::Scheduled)];
    assert_eq!(states, expected);
    let text = why_text(&site, &["--job", "ck.1"], &owner_token);
    for part in [
        format!("Reservation {} serves job ck.1 of user {OWNER}: 20.0 MB/s of writes", held.id),
        "They count for the limit of rule jobs (jobid=ck.1), which does not delay them.".into(),
        format!("Reservation {} of target fs is ACTIVE", held.id),
        format!("Reservation {} of target fs is SCHEDULED; it starts in ", later.id),
    ] {
        assert!(text.contains(&part), "{part:?} is not in: {text}");
    }

    // Proxy b has a share of the slots because of it, and says so; whose it is sees who may.
    let division = |why: &Why| why.divisions.iter().find(|of| of.proxy == "b").cloned();
    until("the slots are divided at proxy b", || {
        why = of_job(&other, "free.1");
        division(&why).is_some_and(|of| of.others > 0)
    });
    let seen = division(&why).unwrap();
    assert!(seen.share_ppb < 1_000_000_000, "{seen:?}");
    assert_eq!((seen.holders.len(), seen.others), (0, 1), "it is another user's: {seen:?}");
    assert!(why.reservations.is_empty(), "{:?}", why.reservations);
    assert!(why.calendar.as_ref().unwrap().reservations.is_empty());
    let seen = division(&of_job(&site.admin, "free.1")).unwrap();
    assert_eq!((seen.holders[0].id, seen.holders[0].user, seen.others), (held.id, OWNER, 0));
    let told = "its slots are divided: ";
    until("it is said where requests wait for slots", || {
        let text = why_text(&site, &["--job", "free.1"], &other_token);
        assert!(!text.contains(&format!("user {OWNER}")) && !text.contains("ck.1"), "{text}");
        text.contains(told) && text.contains("Active reservations: 1 of other users.")
    });

    owner.remove_reservation(held.id).unwrap();
    until("nothing is divided any more, and nothing reserved", || {
        let why = of_job(&site.admin, "ck.1");
        why.divisions.is_empty() && why.reservations.is_empty()
    });
}

/// What serves the writes of a job at proxy a, when something went by each: number and rate.
fn serving(by: &ApiClient, job: &str, count: usize) -> Vec<(u64, WireRate)> {
    let mut found = Vec::new();
    until("each of them serves the job", || {
        let at_a = of_job(by, job).reservations.into_iter().filter(|of| of.proxy == "a");
        found = at_a.collect();
        found.len() == count && found.iter().all(|of| of.served > 0 && of.direction == "write")
    });
    assert!(found.iter().map(|of| of.served).sum::<u64>() <= found[0].total, "{found:?}");
    found.into_iter().map(|of| (of.id, of.rate)).collect()
}

#[test]
fn reservations_of_a_job_that_overlap_all_serve_it_and_a_phase_beside_its_reservation() {
    let site = start("why-overlap");
    let [a, _] = &site.proxies;
    let (owner, token) = site.user(OWNER);
    let rate = |megabytes| WireRate::Bytes(megabytes * MB);
    let first = active(&owner, &writes("ck.1", None));
    let second = active(&owner, &NewReservation { write: Some(rate(30)), ..writes("ck.1", None) });
    let of_first = Reader::writing(a, ("ck.1", OWNER), 64);
    let both = [(first.id, rate(20)), (second.id, rate(30))];
    assert_eq!(serving(&owner, "ck.1", 2), both);
    let states = [first.id, second.id].map(|id| owner.reservation(id, "").unwrap().state);
    assert_eq!(states, [WireReservationState::Active; 2]);
    let text = why_text(&site, &["--job", "ck.1"], &token);
    for (id, rate) in [(first.id, "20.0 MB/s"), (second.id, "30.0 MB/s")] {
        let part = format!("Reservation {id} serves job ck.1 of user {OWNER}: {rate} of writes");
        assert!(text.contains(&part), "{part:?} is not in: {text}");
    }
    owner.remove_reservation(first.id).unwrap();
    assert_eq!(serving(&owner, "ck.1", 1), both[1..]);
    drop(of_first);

    // The phase has reads, which its reservation has not.
    let phase = NewPhase {
        duration_ns: 300 * SECOND,
        read: Some(rate(10)),
        write: Some(rate(50)),
        ..NewPhase::default()
    };
    let made = active(&owner, &NewReservation { phases: vec![phase], ..writes("ck.2", None) });
    let phase = owner.reservation(made.phases[0].id, "until=active&wait=30s").unwrap();
    assert_eq!((phase.state, phase.write), (WireReservationState::Active, Some(rate(50))));
    assert_eq!((phase.read, phase.reduced), (Some(rate(10)), None));
    let _of_second = Reader::writing(a, ("ck.2", OWNER), 64);
    let parts = [(made.id, rate(20)), (phase.id, rate(30))];
    assert_eq!(serving(&owner, "ck.2", 2), parts, "50 MB/s together");
}

#[test]
fn a_reservation_is_shown_to_its_own_job_at_the_proxy_alone() {
    let site = start("why-at-proxy");
    let [a, _] = &site.proxies;
    let (owner, _) = site.user(OWNER);
    let held = active(&owner, &NewReservation { job: None, ..writes("", None) });
    let _reader = Reader::writing(a, ("ck.2", OWNER), 4);
    let _foreign = Reader::writing(a, ("ck.3", OTHER), 4);
    let api = api_of(a);
    let of = |job: &str, uid: u32| {
        let query = WhyQuery { job: Some(job.into()), user: Some(uid), limit: None };
        api.why(&query).unwrap()
    };
    until("it serves all requests of its user", || {
        of("ck.2", OWNER).reservations.iter().any(|one| one.id == held.id && one.served > 0)
    });
    let why = of("ck.2", OWNER);
    let [one] = &why.reservations[..] else { panic!("{:?}", why.reservations) };
    assert_eq!((one.job.clone(), one.user), (None, Some(OWNER)));
    assert_eq!((one.served <= one.total, why.calendar), (true, None));
    until("the other user's job is known", || !of("ck.3", OTHER).subjects.is_empty());
    assert!(of("ck.3", OTHER).reservations.is_empty());
    // What is asked of one limit is answered for that limit only.
    let query = WhyQuery { limit: Some("jobs".into()), ..WhyQuery::default() };
    assert!(api.why(&query).unwrap().reservations.is_empty());
}

#[test]
fn a_limit_counts_what_is_reserved_and_does_not_delay_it() {
    let site = start("why-limited");
    let [a, _] = &site.proxies;
    site.admin.set_rules(&RULES.replace("500MB/s", "1MB/s")).unwrap();
    let (owner, _) = site.user(OWNER);
    let held = active(
        &owner,
        &NewReservation { write: Some(WireRate::Bytes(4 * MB)), ..writes("ck.1", None) },
    );
    let _writer = Reader::writing(a, ("ck.1", OWNER), 16);
    // More is in use than the limit gives, which only the reservation can let through.
    until("the limit's account is charged beyond its rate", || {
        let why = of_job(&owner, "ck.1");
        let limits = why.subjects.iter().flat_map(|subject| &subject.limits);
        let mut jobs = limits.filter(|limit| limit.name == "jobs");
        jobs.any(|limit| limit.used_per_s > 2 * limit.per_s)
            && why.reservations.iter().any(|of| of.id == held.id && of.served > 0)
    });
}
