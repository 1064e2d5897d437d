//! Random scenarios pass every check.
//!
//! `SLUICE_SEEDS=1000 cargo test -p sluice-sim --test all random` tries more of them, and
//! `SLUICE_SEED=7` begins with that one; so does `sluice sim --seeds 1000 --seed 7`.

use std::panic::catch_unwind;

use sluice_sim::{Policy, World, random_scenario};

pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn random_scenarios_pass_every_check() {
    let first = number("SLUICE_SEED").unwrap_or(0);
    let seeds = number("SLUICE_SEEDS").unwrap_or(50);
    let (mut wrong, mut throttled) = (Vec::new(), 0);
    let (mut active, mut scaled, mut overlapping, mut measured) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let scenario = random_scenario(seed);
        // Without coordination the checks see each proxy's own division.
        for policy in [Policy::Dispatcher, Policy::LocalDispatcher] {
            let run = || World::new(&scenario, policy, seed).run();
            let Ok(report) = catch_unwind(run) else {
                wrong.push(format!("{policy}, seed {seed}: the scheduler contradicts itself"));
                continue;
            };
            throttled += u32::from(report.throttlings > 0);
            active += report.promises.active;
            scaled += report.promises.scaled;
            overlapping += report.promises.overlapping;
            measured += report.promises.measured_secs;
            wrong.extend(report.violations.first().map(ToString::to_string));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("decays throttled keys in {throttled} runs of {seeds} scenarios");
    println!("{active} reservations were active, {scaled} scaled, rows measured for {measured} s");
    println!("found active beside another one of their job: {overlapping}");
    let is_empty = [throttled.into(), active, scaled, overlapping, measured].contains(&0);
    assert!(!is_empty || seeds < 50, "something was checked in none of {seeds} scenarios");
}

#[test]
fn every_scheduler_ends_what_it_began() {
    for seed in 0..6 {
        let scenario = random_scenario(seed);
        for policy in Policy::ALL {
            let report = World::new(&scenario, policy, seed).run();
            assert!(report.request_events > 0, "{policy}, seed {seed}: nothing happened");
            let wrong: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
            assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        }
    }
}

#[test]
fn a_run_repeats_bit_for_bit_and_however_it_is_cut() {
    let mut others = 0;
    for seed in [1, 2, 3] {
        let scenario = random_scenario(seed);
        let whole = World::new(&scenario, Policy::Dispatcher, seed).run();
        let again = World::new(&scenario, Policy::Dispatcher, seed).run();
        assert_eq!(whole, again);
        let mut world = World::new(&scenario, Policy::Dispatcher, seed);
        let end = world.end().as_nanos();
        for part in 1..=97 {
            world.run_until(model::Time::from_nanos(end / 97 * part));
        }
        let cut = world.run();
        assert_eq!(whole, cut);
        let other = World::new(&scenario, Policy::Dispatcher, seed + 100).run();
        others += u32::from(whole.request_events != other.request_events);
    }
    // A scenario in which nothing is by chance is the same world under every seed.
    assert!(others > 0, "another seed, another world");
}
