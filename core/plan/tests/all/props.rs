//! Whatever happens to messages, members, clocks and controllers: nobody gives more than there is,
//! and when it is over everybody has the part that he should have.
//!
//! `SLUICE_SEEDS` says how many seeds are run; a failure names its seed.

use crate::fleet::{Chance, Fleet, Weather};
use model::{ReservationLag, Share, SlotsClaim};

/// How many seeds are run.
pub(crate) fn seeds() -> u64 {
    std::env::var("SLUICE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// What happens to a fleet by chance.
pub(crate) fn trouble(fleet: &mut Fleet, chance: &mut Chance) {
    let count = fleet.nodes.len() as u64;
    let node = chance.below(count) as usize;
    match chance.below(40) {
        0 => {
            fleet.weather = Weather {
                lost: chance.below(60),
                twice: chance.below(40),
                late_max: chance.below(500),
            }
        }
        1 => fleet.weather = Weather::default(),
        2 => fleet.nodes[node].mute = !fleet.nodes[node].mute,
        3 => fleet.nodes[node].deaf = !fleet.nodes[node].deaf,
        4..=6 => (fleet.nodes[node].mute, fleet.nodes[node].deaf) = (false, false),
        7 => fleet.restart(node),
        8 if count < 6 => fleet.add(),
        9 => fleet.nodes[node].up = false,
        10..=12 => {
            if let Some(node) = fleet.nodes.iter().position(|node| !node.up) {
                fleet.restart(node);
            }
        }
        // Ahead by anything at most so often as this comes, or behind by little.
        13 => fleet.nodes[node].ahead += chance.below(100_000) as i64,
        14 => fleet.nodes[node].ahead -= chance.below(100) as i64,
        15 => fleet.begin_controller(),
        16 => fleet.controller = None,
        17..=22 if fleet.controller.is_none() => fleet.begin_controller(),
        23..=27 => fleet.nodes[node].claim = claim(chance),
        _ => {
            let name = if chance.percent(70) { "jobs" } else { "more" };
            let percent = [0, 1, 10, 50, 100][chance.below(5) as usize];
            fleet.ask(node, name, percent);
        }
    }
}

/// What a member may need of the slots: nothing, or reservations of a part, and weights.
fn claim(chance: &mut Chance) -> Option<SlotsClaim> {
    let reserved = Share::ratio([0, 0, 5, 30, 70][chance.below(5) as usize], 100);
    let reserved_weight = if reserved == Share::ZERO { 0 } else { 1 + chance.below(4) };
    let claim = SlotsClaim {
        reserved,
        reserved_weight: reserved_weight << 10,
        weight: chance.below(4) << 10,
        used: Share::ratio(chance.below(100), 100),
        waiting: chance.percent(50),
        lag: [ReservationLag::None, ReservationLag::CatchingUp, ReservationLag::Growing]
            [chance.below(3) as usize],
    };
    (claim.weight + claim.reserved_weight > 0).then_some(claim)
}

/// Ends all trouble.
pub(crate) fn calm(fleet: &mut Fleet) {
    fleet.weather = Weather::default();
    if fleet.controller.is_none() {
        fleet.begin_controller();
    }
    for node in 0..fleet.nodes.len() {
        fleet.nodes[node].claim = None;
        (fleet.nodes[node].mute, fleet.nodes[node].deaf) = (false, false);
        if !fleet.nodes[node].up {
            fleet.restart(node);
        }
    }
}

#[test]
fn nobody_gives_more_than_there_is_whatever_happens_and_all_converges_when_it_is_over() {
    for seed in 1..=seeds() {
        let mut chance = Chance(seed * 7_919);
        let mut fleet = Fleet::new(1 + chance.below(4) as usize, seed);
        for _ in 0..120 {
            trouble(&mut fleet, &mut chance);
            // Four minutes at most in all: nobody is forgotten who is only cut off.
            let steps = 1 + chance.below(200);
            fleet.run(steps, |fleet| {
                let check = std::panic::AssertUnwindSafe(|| fleet.check());
                if std::panic::catch_unwind(check).is_err() {
                    panic!("seed {seed}");
                }
            });
        }
        calm(&mut fleet);
        // The last controller may wait 15 s for what it does not know; then all is a matter of ticks.
        fleet.run(2_500, Fleet::check);
        let members = fleet.nodes.len();
        for node in 0..members {
            fleet.ask(node, "jobs", 100);
        }
        fleet.run(60, Fleet::check);
        for node in 0..members {
            let part = fleet.part(node, "jobs");
            assert_eq!(part, Share::equal(members as u32), "seed {seed}, member {node}");
        }
        for node in 1..members {
            fleet.ask(node, "jobs", 0);
        }
        fleet.run(160, Fleet::check);
        let idle = members as u64 - 1;
        let active = Share::WHOLE.less(Share::ratio(idle, 200));
        assert_eq!(fleet.part(0, "jobs"), active, "seed {seed}");
        assert_eq!(fleet.slots(), vec![None; members], "seed {seed}: nothing is reserved");
        slots_converge(&mut fleet, seed);
    }
}

/// Half of the slots is reserved at the first member, and the others wait.
fn slots_converge(fleet: &mut Fleet, seed: u64) {
    let members = fleet.nodes.len();
    let waits = SlotsClaim { weight: 1 << 10, waiting: true, ..SlotsClaim::default() };
    fleet.nodes.iter_mut().for_each(|node| node.claim = Some(waits));
    let (reserved, reserved_weight) = (Share::ratio(1, 2), 1 << 10);
    fleet.nodes[0].claim = Some(SlotsClaim { reserved, reserved_weight, weight: 0, ..waits });
    fleet.run(60, Fleet::check);
    if members == 1 {
        return assert_eq!(fleet.slots(), [None], "seed {seed}: there is nothing to divide");
    }
    let slots: Vec<Share> = fleet.slots().into_iter().map(|part| part.expect("divided")).collect();
    assert!(slots[0] >= reserved, "seed {seed}: {slots:?}");
    let others = slots[1..].iter().map(|part| part.times(members as u32 - 1));
    let fair = [Share::ratio(45, 100), Share::ratio(1, 2)];
    others.for_each(|sum| assert!(fair[0] <= sum && sum <= fair[1], "seed {seed}: {slots:?}"));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut chance = Chance(4_711);
        let mut fleet = Fleet::new(3, 11);
        let mut parts = Vec::new();
        for _ in 0..60 {
            trouble(&mut fleet, &mut chance);
            fleet.run(100, |_| {});
            parts.push(fleet.rates("jobs"));
        }
        parts
    };
    assert_eq!(run(), run());
}
