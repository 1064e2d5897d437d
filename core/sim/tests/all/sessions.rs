//! Sessions of mounts with proxies keep their promises over a network that loses and delays.
//!
//! `SLUICE_SESSION_STEPS=1000000 cargo test -p sluice-sim --test all sessions` takes more steps, and
//! `SLUICE_SEED=7` begins with that seed.

use sluice_sim::{SessionFaults, SessionRunResult, SessionWorld};

use crate::random::number;

/// Steps of one world before its faults end.
const STEPS_OF_SEED: u64 = 2_000;

fn run(seed: u64) -> SessionRunResult {
    SessionWorld::new(seed, SessionFaults::default()).run(STEPS_OF_SEED)
}

#[test]
fn sessions_keep_their_promises_over_a_lossy_network() {
    let first = number("SLUICE_SEED").unwrap_or(0);
    let steps = number("SLUICE_SESSION_STEPS").unwrap_or(10_000);
    let seeds = steps.div_ceil(STEPS_OF_SEED);
    let mut sum = SessionRunResult::default();
    for seed in first..first + seeds {
        let result = run(seed);
        if let Some(violation) = result.violation {
            panic!("{violation}\nSLUICE_SEED={seed} SLUICE_SESSION_STEPS=1 repeats it");
        }
        sum.steps += result.steps;
        sum.answered += result.answered;
        sum.in_doubt += result.in_doubt;
        sum.interrupted += result.interrupted;
        sum.replayed += result.replayed;
        sum.waited += result.waited;
        sum.moved += result.moved;
        sum.expired += result.expired;
        sum.rewritten += result.rewritten;
    }
    println!("{seeds} worlds: {sum:?}");
    let SessionRunResult { in_doubt, interrupted, replayed, waited, moved, rewritten, .. } = sum;
    let counts = [sum.answered, in_doubt, interrupted, replayed, waited, moved, rewritten];
    assert!(!counts.contains(&0) || seeds < 50, "something happened in no world: {sum:?}");
}

#[test]
fn a_run_of_sessions_repeats_bit_for_bit() {
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
