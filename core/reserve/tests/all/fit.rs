//! The step functions and the search over several of them, against sorted lists.

use model::{Nanos, Time};
use proptest::prelude::*;
use sluice_reserve::{
    Capacity, Demand, FitWindow, Load, ResourceId, ResourceKind, ResourceTable, Span,
};

use crate::oracle::Oracle;

fn at(time: u64) -> Time {
    Time::from_nanos(time)
}

fn demand(loads: &[(u32, u64, u64)]) -> Demand {
    let load = |of: &(u32, u64, u64)| (ResourceId::new(of.0), Load::per_sec(of.1, of.2).unwrap());
    Demand::new(&loads.iter().map(load).collect::<Vec<_>>()).unwrap()
}

fn span(from: u64, until: u64) -> Span {
    Span { from: at(from), until: at(until) }
}

fn window(release: u64, latest: u64, length: u64) -> FitWindow {
    FitWindow { release: at(release), until: at(latest + length), length: Nanos::new(length) }
}

fn table(capacities: &[(u64, u64)]) -> ResourceTable {
    let mut table = ResourceTable::default();
    for (number, (read, write)) in capacities.iter().enumerate() {
        let capacity = Capacity::per_sec(*read, *write).unwrap();
        table.add(format!("t{number}").into(), ResourceKind::Target, capacity, at(0)).unwrap();
    }
    table
}

#[test]
fn reservations_back_to_back_at_full_capacity_fit() {
    let mut table = table(&[(100, 50)]);
    let whole = demand(&[(0, 100, 0)]);
    table.book(&whole, span(0, 10));
    table.book(&whole, span(20, 30));
    assert_eq!(table.earliest_fit(&whole, window(0, 99, 10)), Ok(at(10)));
    assert_eq!(table.earliest_fit(&whole, window(0, 99, 11)), Ok(at(30)));
    assert_eq!(table.earliest_fit(&whole, window(0, 29, 11)), Err(ResourceId::new(0)));
}

#[test]
fn two_disjoint_overlaps_count_by_their_peak_and_not_by_their_sum() {
    let mut table = table(&[(100, 100)]);
    table.book(&demand(&[(0, 60, 0)]), span(0, 10));
    table.book(&demand(&[(0, 60, 0)]), span(10, 20));
    assert_eq!(table.earliest_fit(&demand(&[(0, 0, 40)]), window(0, 0, 20)), Ok(at(0)));
    assert_eq!(table.earliest_fit(&demand(&[(0, 0, 41)]), window(0, 99, 20)), Ok(at(20)));
}

#[test]
fn striped_demand_starts_when_its_last_target_is_clear_and_the_bottleneck_is_named() {
    let mut table = table(&[(100, 100), (100, 100), (100, 100)]);
    table.book(&demand(&[(1, 80, 0)]), span(5, 40));
    table.book(&demand(&[(2, 80, 0)]), span(0, 7));
    let striped = demand(&[(0, 30, 0), (1, 30, 0), (2, 30, 0)]);
    assert_eq!(table.earliest_fit(&striped, window(0, 99, 3)), Ok(at(40)));
    assert_eq!(table.earliest_fit(&striped, window(0, 30, 3)), Err(ResourceId::new(1)));
    let (share, bottleneck) = table.share_that_fits(&striped, span(7, 20));
    assert_eq!((share.to_string().as_str(), bottleneck), ("66.6666666%", ResourceId::new(1)));
}

#[test]
fn removed_loads_leave_no_steps() {
    let mut table = table(&[(1_000, 1_000)]);
    let each = demand(&[(0, 1, 0)]);
    let spans: Vec<Span> = (0..500).map(|n| span(n * 7 % 499, n * 7 % 499 + n + 1)).collect();
    spans.iter().for_each(|span| table.book(&each, *span));
    assert!(table.steps_of(ResourceId::new(0)) > 400);
    spans.iter().for_each(|span| table.release(&each, *span));
    assert_eq!(table.steps_of(ResourceId::new(0)), 1);
}

#[test]
fn closed_span_of_a_capacity_is_waited_out() {
    let mut table = table(&[(100, 100)]);
    table.set_capacity(ResourceId::new(0), span(10, 50), Capacity::CLOSED).unwrap();
    let some = demand(&[(0, 1, 0)]);
    assert_eq!(table.earliest_fit(&some, window(0, 99, 10)), Ok(at(0)));
    assert_eq!(table.earliest_fit(&some, window(1, 99, 10)), Ok(at(50)));
}

/// What happens to a table; numbers are reduced to what exists.
#[derive(Clone, Debug)]
enum Call {
    Fit { loads: Vec<(u32, u64, u64)>, release: u64, latest: u64, length: u64, books: bool },
    Release { which: usize },
    Capacity { of: u32, from: u64, until: u64, read: u64, write: u64 },
    Forget { by: u64 },
}

fn call() -> impl Strategy<Value = Call> {
    let loads = prop::collection::vec((0..3u32, 0..50u64, 0..30u64), 1..4);
    prop_oneof![
        8 => (loads, 0..200u64, 0..300u64, 1..60u64, prop::bool::weighted(0.9)).prop_map(
            |(loads, release, latest, length, books)| Call::Fit { loads, release, latest, length, books }
        ),
        3 => any::<usize>().prop_map(|which| Call::Release { which }),
        1 => (0..3u32, 0..300u64, 1..100u64, 0..150u64, 0..80u64).prop_map(
            |(of, from, length, read, write)| Call::Capacity { of, from, until: from + length, read, write }
        ),
        1 => (0..10u64).prop_map(|by| Call::Forget { by }),
    ]
}

struct Pair {
    table: ResourceTable,
    oracle: Oracle,
    now: u64,
}

impl Pair {
    fn new() -> Pair {
        let capacities = [(100, 50), (80, 80), (60, 120)];
        let always = Span { from: at(0), until: Time::MAX };
        let all = capacities.iter().enumerate().map(|(number, (read, write))| {
            (ResourceId::new(number as u32), always, Capacity::per_sec(*read, *write).unwrap())
        });
        let oracle = Oracle { capacities: all.collect(), ..Oracle::default() };
        Pair { table: table(&capacities), oracle, now: 0 }
    }

    fn apply(&mut self, call: &Call) {
        match call {
            Call::Fit { loads, release, latest, length, books } => {
                if loads.iter().all(|load| load.1 + load.2 == 0) {
                    return;
                }
                let (demand, release) = (demand(loads), self.now + release);
                let window = window(release, release + latest, *length);
                let found = self.table.earliest_fit(&demand, window);
                assert_eq!(found.ok(), self.oracle.earliest_fit(&demand, window));
                if let Some(start) = found.ok().filter(|_| *books) {
                    let span = Span::new(start, window.length);
                    assert_eq!(self.table.check_fit(&demand, span), Ok(()));
                    assert!(self.table.share_that_fits(&demand, span).0.is_whole());
                    self.table.book(&demand, span);
                    self.oracle.booked.push((demand, span));
                }
            }
            Call::Release { which } => {
                if !self.oracle.booked.is_empty() {
                    let which = which % self.oracle.booked.len();
                    let (demand, span) = self.oracle.booked.swap_remove(which);
                    self.table.release(&demand, span);
                }
            }
            Call::Capacity { of, from, until, read, write } => {
                let span = span(self.now + from, self.now + until);
                let capacity = Capacity::per_sec(*read, *write).unwrap();
                self.table.set_capacity(ResourceId::new(*of), span, capacity).unwrap();
                self.oracle.capacities.push((ResourceId::new(*of), span, capacity));
            }
            Call::Forget { by } => {
                self.now += by;
                self.table.forget_before(at(self.now));
            }
        }
    }

    fn check(&self) {
        for time in self.oracle.times().into_iter().filter(|time| *time >= at(self.now)) {
            for resource in (0..3).map(ResourceId::new) {
                if time == Time::MAX {
                    continue;
                }
                let (load, capacity) = self.table.used(resource, time);
                let used = (load.read_per_sec(), load.write_per_sec());
                assert_eq!(used, self.oracle.used(resource, time), "{resource} at {time:?}");
                let (read, write) = self.oracle.capacity(resource, time);
                assert_eq!(capacity, Capacity::per_sec(read, write).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn earliest_fit_and_loads_equal_those_of_the_lists(
        calls in prop::collection::vec(call(), 1..120)
    ) {
        let mut pair = Pair::new();
        for call in &calls {
            pair.apply(call);
        }
        pair.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Enough steps for many blocks, which are split and joined.
    #[test]
    fn long_step_functions_equal_the_lists(calls in prop::collection::vec(call(), 800..1_000)) {
        let mut pair = Pair::new();
        for (number, call) in calls.iter().enumerate() {
            let mut call = call.clone();
            if let Call::Fit { loads, release, length, .. } = &mut call {
                // small loads far apart: the functions grow
                loads.iter_mut().for_each(|load| (load.1, load.2) = (load.1 / 9, load.2 / 9));
                *release = (*release * 97) % 5_000 + number as u64;
                *length *= 3;
            }
            pair.apply(&call);
        }
        pair.check();
    }
}
