//! Mounts, proxies and an authority over a lossy network, with clocks at different rates.

mod dice;
mod network;
mod table;
mod truth;
mod world;

use dice::Dice;
use world::{KnownBad, World, WorldSize};

/// Steps of all seeds together: `SLUICE_LEASE_STEPS`, ten thousand if it is not set.
fn steps() -> u64 {
    std::env::var("SLUICE_LEASE_STEPS")
        .map_or(10_000, |text| text.parse().expect("a number of steps"))
}

fn run(seed: u64, steps: u64, bad: Option<KnownBad>) -> Result<world::WorldReport, String> {
    let mut dice = Dice::new(seed);
    let size = WorldSize { proxies: dice.to(1, 3), mounts: dice.to(1, 4), objects: dice.to(1, 4) };
    let mut world = World::new(size, dice, bad);
    world.run(steps).map_err(|error| format!("seed {seed} ({size:?}): {error}"))
}

const SEED_STEPS: u64 = 1_000;

#[test]
fn nobody_believes_what_another_has_changed_and_every_access_ends() {
    let seeds = steps().div_ceil(SEED_STEPS);
    let mut total = world::WorldReport::default();
    for seed in 0..seeds {
        total += run(seed, SEED_STEPS, None).unwrap_or_else(|error| panic!("{error}"));
    }
    // a world in which nothing is believed, recalled or lost would prove nothing
    assert!(total.local_reads > steps() / 50, "{total:?}");
    assert!(total.executed > steps() / 50 && total.recalls > steps() / 500, "{total:?}");
    assert!(total.lost > 0 && total.crashes > 0 && total.epochs > 0, "{total:?}");
}

#[test]
fn each_known_mistake_is_found() {
    for bad in KnownBad::ALL {
        let found = (0..2_000).any(|seed| run(seed, SEED_STEPS, Some(bad)).is_err());
        assert!(found, "{bad:?} is not found");
    }
}
