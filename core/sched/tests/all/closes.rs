//! Closes: never delayed, and paid for by the class that closes.
//!
//! The server of `named_cases`, ten times as fast: 1000 unit requests a second over D = 10 slots.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::server::*;
use model::OpKind;
use rules::Rule;

const UNIT_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn world(all: Vec<Rule>, jobs: &str, rate: u64) -> World {
    let meters = if jobs.is_empty() { vec![] } else { vec![shared("m", jobs, ops(rate))] };
    World::new(target(10, UNIT_NS), rules(all, meters))
}

fn step(kind: OpKind, count: u32) -> Step {
    Step { kind, units: 1, count }
}

/// Each job's own class.
fn classes(jobs: &[&str]) -> Vec<Rule> {
    jobs.iter().map(|job| rule(job, 1)).collect()
}

#[test]
fn flood_of_closes_takes_nothing_from_the_others_of_a_meter() {
    let mut w = world(classes(&["a", "b"]), "a b", 100);
    w.client("a", OpKind::Clunk, 1, 3);
    w.client("b", OpKind::Read, 1, 10);
    w.run(ms(10_000));
    let got = w.served(ms(20_000));
    assert_eq!(got[1], 1_000, "a has no request that could pay: {got:?}");
    assert!(got[0] > 1_000, "this is a flood: {got:?}");
}

#[test]
fn job_that_floods_with_closes_has_no_more_than_its_share_of_a_meter() {
    let mut w = world(classes(&["a", "b"]), "a b", 100);
    w.client("a", OpKind::Clunk, 1, 3);
    w.client("a", OpKind::Read, 1, 10);
    w.client("b", OpKind::Read, 1, 10);
    w.run(ms(10_000));
    let got = w.served(ms(30_000));
    // Of 100 a second b has half; each read of a pays for a close.
    assert!(got[2].abs_diff(1_000) <= 4 && got[1].abs_diff(500) <= 4, "{got:?}");
}

#[test]
fn limit_holds_for_opens_and_closes_together() {
    let mut w = world(vec![limited("a", 100)], "", 0);
    w.stepping_client("a", &[step(OpKind::Open, 20), step(OpKind::Clunk, 20)]);
    w.run(ms(10_000));
    let got = w.served(ms(70_000));
    assert!(got[0].abs_diff(6_000) <= 60, "{got:?}");
}

#[test]
fn closes_of_an_hour_are_paid_in_seconds() {
    let mut w = world(vec![limited("a", 100)], "", 0);
    w.client("a", OpKind::Clunk, 1, 1);
    w.client("a", OpKind::Read, 1, 0);
    w.run(ms(60_000));
    w.clients[0].depth = 0;
    w.clients[1].depth = 10;
    // 1000 closes are deferred, ten seconds of the rate: half of the rate for twenty seconds.
    assert!(w.served(ms(80_000))[1].abs_diff(1_000) <= 11);
    assert!(w.served(ms(90_000))[1].abs_diff(1_000) <= 11);
}

/// What a client does at a meter, again and again.
fn load() -> impl Strategy<Value = Vec<(bool, u32)>> {
    prop::collection::vec((any::<bool>(), 1..60u32), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// Reads and the closes that they pay for stay within the rate, and a job that always waits has
    /// its share, whatever the others close.
    #[test]
    fn closes_are_paid_within_the_rate_and_by_their_class(
        loads in prop::collection::vec(load(), 1..4),
        rate in 20..300u64,
    ) {
        const JOBS: [&str; 4] = ["a", "b", "c", "always"];
        let mut w = world(classes(&JOBS), "*", rate);
        for (job, load) in JOBS.iter().zip(&loads) {
            let kind = |closes| if closes { OpKind::Clunk } else { OpKind::Read };
            let steps: Vec<_> = load.iter().map(|(closes, n)| step(kind(*closes), *n)).collect();
            w.stepping_client(job, &steps);
        }
        w.client("always", OpKind::Read, 1, 4);
        w.run(ms(30_000));

        // The obvious model: each read pays for one close of its own job, if there is any.
        let mut events = Vec::new();
        for (job, client) in w.clients.iter().enumerate() {
            let kinds = client.took.iter().map(|(kind, _)| *kind);
            events.extend(client.starts.iter().zip(kinds).map(|(at, kind)| (*at, job, kind)));
        }
        events.sort_by_key(|(at, ..)| *at);
        let mut deferred = vec![0u64; w.clients.len()];
        let mut charges = Vec::new();
        for (at, job, kind) in events {
            if kind == OpKind::Clunk {
                deferred[job] = (deferred[job] + 1).min(rate * 10);
                continue;
            }
            let pays = deferred[job].min(1);
            deferred[job] -= pays;
            charges.push((at, 1 + pays));
        }
        // Never more than the rate and 100 ms of it, or the last request with its close.
        let burst = (rate / 10).max(1) + 2;
        let (mut due, mut late) = (0u64, 0);
        for (at, units) in charges {
            due = due.max(at.saturating_sub(burst * SECOND_NS / rate)) + units * SECOND_NS / rate;
            late = late.max(due.saturating_sub(at));
        }
        prop_assert!(late <= 2 * SECOND_NS / rate + 1_000_000, "{late} ns ahead of the rate");
        let share = rate * 30 / w.clients.len() as u64;
        let least = share - share / 50 - 4;
        let always = w.clients.last().expect("a client").done;
        prop_assert!(always >= least, "{always} of a share of {share}");
    }
}
