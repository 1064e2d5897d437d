//! The worked tables of docs/algorithms/dispatcher.md, same numbers.
//!
//! The server gives 100 unit requests a second over D = 10 slots (a unit costs 10 ms of
//! it and runs for 100 ms in its slot), as in the model those tables come from.

mod server;

use model::{Kind, KindSet, Lane, Limit, Rate, Rule};
use server::*;

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>, meters: Vec<model::MeterRule>) -> World {
    World::new(target(10, UNIT_NS), rules(all, meters))
}

fn reserved(job: &str, weight: u32, rate: u64) -> Rule {
    Rule { reserve: Some(ops(rate)), ..rule(job, weight) }
}

fn limited(job: &str, weight: u32, rate: u64) -> Rule {
    Rule { limits: vec![limit(ops(rate))], ..rule(job, weight) }
}

#[test]
fn a_reservation_comes_before_shares_and_the_rest_is_shared_by_weight() {
    let mut w = world(vec![reserved("a", 1, 60), rule("b", 1), rule("c", 2)], vec![]);
    for job in ["a", "b", "c"] {
        w.client(job, Kind::Read, 1, 20);
    }
    w.run(ms(10_000));
    let got = w.served(ms(40_000));
    println!("a reserved 60: {got:?} of 3000 in 30 s");
    assert_eq!(got[0], 1800);
    assert_eq!(got.iter().sum::<u64>(), 3000);
}
