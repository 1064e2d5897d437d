//! The checks detect faults: worlds whose scheduler violates an invariant on purpose.
//!
//! ```text
//!   a scenario with rules ─► its checks ─┐
//!   another scheduler in place of ours ──┴─► a violation that names the broken invariant
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Amount, Identity, Nanos, OpKind, PathSet, Rate, Time};
use rules::RuleSet;
use sched::Dispatcher;

use super::World;
use crate::Scenario;
use crate::baselines::Fifo;
use crate::scheduler::{Policy, Scheduler, SimArrival, SimDispatch};

/// Two jobs at proxies of a device of 100 requests a second over ten slots; `keys` are further ones of
/// the scenario and `tables` its last tables.
pub(super) fn two_jobs(keys: &str, proxies: u32, tables: &str) -> String {
    format!(
        r#"
from = "a test"
description = ""
duration = "60s"
{keys}

[[target]]
name = "disk"
count = {proxies}
slots = 10
parallelism = 10
read = [["4KiB", "100ms"]]

[[job]]
name = "a"
steps = [{{ do = "read 4KiB", depth = 20 }}]

[[job]]
name = "b"
steps = [{{ do = "read 4KiB", depth = 20 }}]

{tables}"#
    )
}

/// The same at one proxy under these rules.
fn text(rules: &str) -> String {
    two_jobs(&format!("rules = '''\n{rules}'''"), 1, "")
}

/// The first violation when a scheduler with the rules `kept` replaces ours.
fn first_violation(
    text: &str,
    kept: &str,
    make: impl Fn(Dispatcher) -> Box<dyn Scheduler>,
) -> (Time, String) {
    let scenario = Scenario::parse(text, "broken").unwrap();
    let mut world = World::new(&scenario, Policy::Dispatcher, 1);
    let target = world.proxies[0].spec.scheduled();
    let kept = RuleSet::parse(kept).unwrap_or_else(|error| panic!("{error}"));
    world.proxies[0].sched = make(Dispatcher::new([target], Arc::new(kept)));
    let report = world.run();
    let violation = report.violations.first();
    violation.map_or((Time::MAX, String::new()), |first| (first.at, first.what.clone()))
}

/// The first violation when a scheduler without rules replaces ours.
fn found(rules: &str, make: impl Fn(Dispatcher) -> Box<dyn Scheduler>) -> String {
    first_violation(&text(rules), "", make).1
}

/// Our dispatcher with one injected bug.
#[derive(Debug)]
struct FaultyScheduler {
    inner: Dispatcher,
    does: InjectedBug,
    polls: u32,
    held: Vec<SimDispatch>,
    /// When the closes are paid off, and the tokens of those that arrived.
    due: Time,
    closes: BTreeSet<u32>,
}

#[derive(Debug)]
enum InjectedBug {
    /// Returns nothing to every third poll though a request is ready.
    Idles,
    /// Swaps two requests that follow each other.
    Swaps,
    /// Never completes any request.
    Forgets,
    /// Dispatches nothing from 20 s on.
    Freezes,
    /// Keeps its first rules.
    Deaf,
    /// Charges each close to a meter of this rate at once, and dispatches nothing else until the
    /// meter has paid it off.
    OwesCloses(Rate),
}

const FREEZES_AT: Time = Time::from_nanos(20_000_000_000);

impl Scheduler for FaultyScheduler {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        Scheduler::subject(&mut self.inner, who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        if incoming.kind == OpKind::Clunk {
            self.closes.insert(incoming.token);
        }
        Scheduler::enqueue(&mut self.inner, incoming, now)
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        self.polls += 1;
        match self.does {
            InjectedBug::Idles if self.polls.is_multiple_of(3) => None,
            InjectedBug::Freezes if now >= FREEZES_AT => None,
            InjectedBug::Swaps => {
                while self.held.len() < 3
                    && let Some(next) = self.inner.poll(now)
                {
                    self.held.push(next);
                }
                self.held.pop()
            }
            InjectedBug::OwesCloses(rate) => {
                while let Some(next) = self.inner.poll(now) {
                    if self.closes.remove(&next.token) {
                        self.due = self.due.max(now) + rate.time_for(1);
                        return Some(next);
                    }
                    self.held.push(next);
                }
                let pays = now >= self.due && !self.held.is_empty();
                pays.then(|| self.held.remove(0))
            }
            _ => self.inner.poll(now),
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
            InjectedBug::Freezes => deadline.filter(|at| *at < FREEZES_AT),
            InjectedBug::OwesCloses(_) if !self.held.is_empty() => {
                Some(deadline.map_or(self.due, |at| at.min(self.due)))
            }
            _ => deadline,
        }
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        if !matches!(self.does, InjectedBug::Deaf) {
            Scheduler::set_rules(&mut self.inner, rules, now);
        }
    }

    fn queued(&self) -> usize {
        Scheduler::queued(&self.inner)
    }
}

fn odd(does: InjectedBug) -> impl Fn(Dispatcher) -> Box<dyn Scheduler> {
    let does = std::cell::Cell::new(Some(does));
    move |inner| {
        let does = does.take().expect("made once");
        Box::new(FaultyScheduler {
            inner,
            does,
            polls: 0,
            held: Vec::new(),
            due: Time::ZERO,
            closes: BTreeSet::new(),
        })
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
fn a_limit_that_gives_three_percent_less_is_seen() {
    let limit = |rate: u64| {
        rule("a", &format!("limit = \"{rate}ops/s\"")) + &rule("b", "limit = \"30ops/s\"")
    };
    let (_, what) = first_violation(&text(&limit(34)), &limit(33), ours);
    assert!(what.contains("of limit \"a\" at 34ops/s in 9.9 s, less than"), "{what}");
    assert_eq!(first_violation(&text(&limit(33)), &limit(33), ours).1, "");
}

#[test]
fn a_meter_of_several_classes_that_gives_less_is_seen() {
    let meter = |rate: u64| format!("[[meter]]\nname = \"m\"\nrate = \"{rate}kB/s\"\n");
    let (_, what) = first_violation(&text(&meter(250)), &meter(245), ours);
    assert!(what.contains("of limit \"m\" at 250kB/s in 9.9 s, less than"), "{what}");
    assert_eq!(first_violation(&text(&meter(250)), &meter(250), ours).1, "");
}

#[test]
fn a_meter_that_closes_put_into_debt_is_seen() {
    let meter = rule("a", "") + &rule("b", "") + "[[meter]]\nname = \"m\"\nrate = \"40ops/s\"\n";
    let flood =
        text(&meter).replacen("do = \"read 4KiB\", depth = 20", "do = \"clunk\", depth = 8", 1);
    let rate = Rate::ops_per_sec(40).unwrap();
    let (_, what) = first_violation(&flood, &meter, odd(InjectedBug::OwesCloses(rate)));
    assert!(what.contains("of limit \"m\" at 40ops/s in 9.9 s, less than"), "{what}");
    assert_eq!(first_violation(&flood, &meter, ours).1, "");
}

#[test]
fn closes_that_nobody_pays_for_are_seen() {
    let limits = rule("a", "limit = \"30ops/s\"") + &rule("b", "");
    let closes = |text: String| text.replacen("do = \"read 4KiB\"", "do = \"clunk, read 4KiB\"", 1);
    let only_reads = rule("a", "limit = { read = \"30ops/s\" }") + &rule("b", "");
    let (_, what) = first_violation(&closes(text(&limits)), &only_reads, ours);
    assert!(what.contains("of limit \"a\" at 30ops/s in 10 s, more than 300"), "{what}");
    assert_eq!(first_violation(&closes(text(&limits)), &limits, ours).1, "");
}

#[test]
fn a_limit_that_lets_nothing_go_any_more_is_seen() {
    let limits = rule("a", "limit = \"30ops/s\"") + &rule("b", "limit = \"30ops/s\"");
    let (at, what) = first_violation(&text(&limits), &limits, odd(InjectedBug::Freezes));
    assert!(what.contains(" at 30ops/s in 9.9 s, less than"), "{what}");
    assert!(at <= Time::from_nanos(31_000_000_000), "{at:?}");
}

#[test]
fn a_reservation_that_is_kept_to_98_percent_is_seen() {
    let reserved = |rate: u64| {
        rule("a", &format!("reservation = \"{rate}ops/s\"")) + &rule("b", "weight = 10000")
    };
    let (at, what) = first_violation(&text(&reserved(60)), &reserved(59), ours);
    assert!(what.contains("that 60ops/s reserves, and nothing was cut"), "{what}");
    // Half a second of the rate is 30 requests, one is missing each second.
    assert!(at <= Time::from_nanos(35_000_000_000), "{at:?}");
    assert_eq!(first_violation(&text(&reserved(60)), &reserved(60), ours).1, "");
}

/// Whether weights of 3 : 1 that nobody keeps are seen in a scenario with this change.
fn sees_weights(change: impl Fn(String) -> String) -> bool {
    let rules = rule("a", "weight = 3") + &rule("b", "");
    let (_, what) = first_violation(&change(text(&rules)), "", ours);
    what.contains("of weights 3 and 1 are") || what.contains("of weights 1 and 3")
}

#[test]
fn weights_are_checked_after_requests_that_are_never_delayed() {
    let clunks = |text: String| {
        text.replacen("do = \"read 4KiB\"", "do = \"clunk, read 4KiB, read 4KiB\"", 1)
    };
    assert!(sees_weights(clunks));
}

#[test]
fn weights_are_checked_beside_limits_reservations_and_cache_hits() {
    let others = |text: String| {
        let more = rule("c", "limit = \"9ops/s\"") + &rule("d", "reservation = \"9ops/s\"");
        let job = |name: &str| {
            format!("[[job]]\nname = \"{name}\"\nsteps = [{{ do = \"write 4KiB\" }}]\n")
        };
        let text = text.replace("\'\'\'\n\n[[target]]", &format!("{more}\'\'\'\n\n[[target]]"));
        text.replace("parallelism = 10\n", "parallelism = 10\nhit_percent = 20\n")
            + &job("c")
            + &job("d")
    };
    assert!(sees_weights(others));
}

#[test]
fn weights_are_checked_after_faults() {
    let fault = |what: &str| {
        let fault = format!("[[fault]]\nwhat = \"{what}\"\nat = \"0s\"\n");
        move |text: String| text + &fault
    };
    assert!(sees_weights(fault("clock_ahead\"\nby = \"2s")));
    assert!(sees_weights(fault("slow\"\nspan = \"1s\"\npercent = 50\ntarget = \"disk")));
    assert!(sees_weights(fault("drop\"\nspan = \"60s\"\npercent = 1\ntarget = \"disk")));
}

#[test]
fn weights_are_checked_beyond_a_dozen_classes() {
    let more = |text: String| {
        let rules = rule("z", "weight = 3") + "[[rule]]\nname = \"each\"\nper = [\"jobid\"]\n";
        let copies =
            "[[job]]\nname = \"c\"\ncopies = 20\nsteps = [{ do = \"read 4KiB\", depth = 2 }]\n";
        let last =
            "[[job]]\nname = \"z\"\nstart = \"1s\"\nsteps = [{ do = \"read 4KiB\", depth = 20 }]\n";
        let start = text.find("[[rule]]").unwrap();
        let end = text.find("\'\'\'\n\n[[target]]").unwrap();
        format!("{}{rules}{}{copies}{last}", &text[..start], &text[end..])
    };
    assert!(sees_weights(more));
}

#[test]
fn weights_are_checked_after_a_change_of_rules() {
    let weights = rule("a", "weight = 3") + &rule("b", "");
    let change = format!("[[change]]\nat = \"20s\"\nrules = \'\'\'\n{weights}\'\'\'\n");
    let changed = text(&(rule("a", "") + &rule("b", ""))) + &change;
    let (at, what) = first_violation(&changed, "", odd(InjectedBug::Deaf));
    assert!(what.contains("of weights") && at > Time::from_nanos(20_000_000_000), "{what} {at:?}");
    assert_eq!(first_violation(&changed, "", ours).1, "");
}

#[test]
fn a_weight_of_nine_tenths_is_seen() {
    let weights = |heavy: u64| rule("a", &format!("weight = {heavy}")) + &rule("b", "weight = 10");
    let (_, what) = first_violation(&text(&weights(30)), &weights(27), ours);
    assert!(what.contains("of weights"), "{what}");
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
    let scenario = Scenario::parse(&text(&rules), "right").unwrap();
    let report = World::new(&scenario, Policy::Dispatcher, 1).run();
    assert_eq!(report.violations, []);
}
