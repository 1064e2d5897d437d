//! Reservations and weights where requests use both lanes, or one after the other.
//!
//! The server is that of the named cases, once for each lane: 100 unit requests a second
//! over ten slots.

use crate::server::*;
use model::{OpKind, Rate};
use rules::Rule;

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>) -> World {
    World::new(target(10, UNIT_NS), rules(all, vec![]))
}

fn reserved(job: &str, weight: u32, rate: Rate) -> Rule {
    Rule { reservation: Some(rate), ..rule(job, weight) }
}

#[test]
fn reservation_is_met_if_every_request_misses_the_cache_first() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1000)]);
    w.cached_client("a", 1, 20, 10);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    // 60 of the device's 100 a second for 30 s; by weight it would be 3 in all.
    assert_eq!(w.served(ms(40_000)), [1800, 1200]);
}

/// A cached attempt that misses is not charged to the reservation. If it were, requests that wait
/// for the device would be charged and not due: a got 1 % less, and b 2520 of 4000 with a's 60.
#[test]
fn reservation_for_large_requests_is_the_same_through_the_cached_lane() {
    for rate in [23, 40, 60] {
        let served = |cached: bool| {
            let bytes = Rate::bytes_per_sec(rate * UNIT_BYTES).expect("above zero");
            let mut w = world(vec![reserved("a", 1, bytes), rule("b", 5)]);
            match cached {
                true => w.cached_client("a", 3, 40, 10),
                false => w.client("a", OpKind::Read, 3, 40),
            };
            w.client("b", OpKind::Read, 1, 20);
            w.run(ms(5_000));
            w.served(ms(105_000))
        };
        let direct = served(false);
        assert!((3 * direct[0]).abs_diff(100 * rate) <= 3, "{direct:?}");
        assert_eq!(served(true), direct);
    }
}

#[test]
fn hits_count_towards_a_reservation_like_misses() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1000)]);
    w.cached_client("a", 1, 20, 5);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    let got = w.served(ms(40_000));
    // Every second one of a's misses, and the device serves it or b. More hits than the
    // reservation covers are served by weight, since no other class uses the cached lane.
    let missed = 3000 - got[1];
    assert!(got[0].abs_diff(2 * missed) <= 20, "a's 20 outstanding blur it: {got:?}");
    assert!(got[0] >= 1800, "{got:?}");
    assert!(missed <= 1800 + 30, "the reservation, and 1/1000 of the rest: {got:?}");
}

#[test]
fn one_reservation_spans_both_lanes_and_the_rest_of_each_is_divided_by_weight() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1), rule("c", 2)]);
    for job in ["a", "b", "c"] {
        w.cached_client(job, 1, 20, 0);
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(10_000));
    let got = w.served(ms(40_000));
    let both = |job: usize| got[2 * job] + got[2 * job + 1];
    // 200 a second: a has 60, above the 50 of its weight; the rest is halved 1 : 2 in each
    // lane, so whichever lane a's were served in. Lanes take turns, so it is half in each.
    assert_eq!([both(0), both(1), both(2)], [1800, 1400, 2800], "{got:?}");
    assert_eq!(got[0], got[1]);
}

#[test]
fn weights_hold_in_each_lane_whatever_is_used_of_the_other() {
    let mut w = world(vec![rule("a", 3), rule("b", 1), rule("c", 1)]);
    w.cached_client("a", 1, 40, 0);
    w.client("a", OpKind::Read, 1, 40);
    w.cached_client("b", 1, 40, 0);
    w.client("c", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    // 1000 requests in each lane, 3 : 1 beside b in one and beside c in the other; tags of
    // one lane say nothing in the other.
    assert_eq!(w.served(ms(20_000)), [750, 750, 250, 250]);
}

#[test]
fn misses_share_the_device_by_weight() {
    let mut w = world(vec![rule("a", 4), rule("b", 1)]);
    w.cached_client("a", 1, 40, 10);
    w.client("b", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    assert_eq!(w.served(ms(20_000)), [800, 200]);
}
