//! The checks detect faults: worlds whose scheduler violates an invariant on purpose.
//!
//! ```text
//!   a scenario with rules ─► its checks ─┐
//!   another scheduler in place of ours ──┴─► a violation that names the broken invariant
//! ```

use std::sync::Arc;

use model::{Amount, Identity, Nanos, PathSet, RuleSet, Time};
use sched::Dispatcher;

use super::World;
use crate::Scenario;
use crate::baselines::Fifo;
use crate::scheduler::{Policy, Scheduler, SimArrival, SimDispatch};

/// Two jobs at a device of 100 requests a second over ten slots, under these rules.
fn scenario(rules: &str) -> Scenario {
    let text = format!(
        r#"
from = "a test"
description = ""
duration = "60s"
rules = '''
{rules}'''

[[target]]
name = "disk"
slots = 10
parallelism = 10
read = [["4KiB", "100ms"]]

[[job]]
name = "a"
steps = [{{ do = "read 4KiB", depth = 20 }}]

[[job]]
name = "b"
steps = [{{ do = "read 4KiB", depth = 20 }}]
"#
    );
    Scenario::parse(&text, "broken").unwrap()
}

/// The first violation when this scheduler replaces ours.
fn found(rules: &str, make: impl Fn(Dispatcher) -> Box<dyn Scheduler>) -> String {
    let scenario = scenario(rules);
    let mut world = World::new(&scenario, Policy::Dispatcher, 1);
    let target = world.proxies[0].spec.scheduled();
    // The scheduler in place of ours has no rules.
    world.proxies[0].sched = make(Dispatcher::new(target, Arc::default()));
    let report = world.run();
    report.violations.first().map_or(String::new(), |violation| violation.what.clone())
}

/// Our dispatcher with one injected bug.
#[derive(Debug)]
struct FaultyScheduler {
    inner: Dispatcher,
    does: InjectedBug,
    polls: u32,
    held: Vec<SimDispatch>,
}

#[derive(Debug)]
enum InjectedBug {
    /// Returns nothing to every third poll though a request is ready.
    Idles,
    /// Swaps two requests that follow each other.
    Swaps,
    /// Never completes any request.
    Forgets,
}

impl Scheduler for FaultyScheduler {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        Scheduler::subject(&mut self.inner, who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        Scheduler::enqueue(&mut self.inner, incoming, now)
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        self.polls += 1;
        match self.does {
            InjectedBug::Idles if self.polls.is_multiple_of(3) => None,
            InjectedBug::Swaps => {
                while self.held.len() < 3
                    && let Some(next) = self.inner.poll(now)
                {
                    self.held.push(next);
                }
                self.held.pop()
            }
            InjectedBug::Idles | InjectedBug::Forgets => self.inner.poll(now),
        }
    }

    fn complete(&mut self, id: u64, served: Amount, now: Time) {
        if !matches!(self.does, InjectedBug::Forgets) {
            Scheduler::complete(&mut self.inner, id, served, now);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let deadline = self.inner.next_deadline();
        match self.does {
            InjectedBug::Idles => deadline.map(|at| at + Nanos::from_millis(10)),
            _ => deadline,
        }
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        Scheduler::set_rules(&mut self.inner, rules, now);
    }

    fn queued(&self) -> usize {
        Scheduler::queued(&self.inner)
    }
}

fn odd(does: InjectedBug) -> impl Fn(Dispatcher) -> Box<dyn Scheduler> {
    let does = std::cell::Cell::new(Some(does));
    move |inner| {
        let does = does.take().expect("made once");
        Box::new(FaultyScheduler { inner, does, polls: 0, held: Vec::new() })
    }
}

fn ours(inner: Dispatcher) -> Box<dyn Scheduler> {
    Box::new(inner)
}

fn rule(name: &str, grants: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nmatch = \"jobid={{{name}}}\"\n{grants}\n")
}

#[test]
fn more_slots_than_there_are_is_seen() {
    let what = found("", |_| Box::new(Fifo::default()));
    assert_eq!(what, "11 slots are in use of 10, and not by one request");
}

#[test]
fn slots_that_stand_empty_are_seen() {
    let what = found("", odd(InjectedBug::Idles));
    assert!(what.contains("slots are free while"), "{what}");
}

#[test]
fn requests_in_a_wrong_order_are_seen() {
    let what = found("", odd(InjectedBug::Swaps));
    assert!(what.contains(" was dispatched after "), "{what}");
}

#[test]
fn requests_without_an_answer_are_seen() {
    let what = found("", odd(InjectedBug::Forgets));
    assert!(what.contains("slots") || what.contains("requests had no answer"), "{what}");
}

#[test]
fn a_limit_that_nobody_keeps_is_seen() {
    let what = found(&rule("a", "limit = \"30ops/s\""), ours);
    assert!(what.contains("of limit \"a\" at 30ops/s in 10 s, more than 300"), "{what}");
}

#[test]
fn a_meter_that_nobody_keeps_is_seen() {
    let meter = "[[meter]]\nname = \"m\"\nper = [\"jobid\"]\nrate = \"100kB/s\"\n";
    let what = found(meter, ours);
    assert!(what.contains("of limit \"m\" at 100kB/s in 10 s"), "{what}");
}

#[test]
fn a_reservation_that_nobody_keeps_is_seen() {
    let what = found(&rule("a", "reservation = \"80ops/s\""), ours);
    assert!(what.contains("that 80ops/s reserves, and nothing was cut"), "{what}");
}

#[test]
fn weights_that_nobody_keeps_are_seen() {
    let what = found(&(rule("a", "weight = 3") + &rule("b", "")), ours);
    assert!(
        what.contains("of weights 3 and 1 are") || what.contains("of weights 1 and 3"),
        "{what}"
    );
}

#[test]
fn what_is_right_is_not_called_wrong() {
    let rules =
        rule("a", "weight = 3\nreservation = \"60ops/s\"") + &rule("b", "limit = \"30ops/s\"");
    let report = World::new(&scenario(&rules), Policy::Dispatcher, 1).run();
    assert_eq!(report.violations, []);
}
