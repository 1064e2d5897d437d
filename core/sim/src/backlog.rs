//! A scheduler with every class backlogged, to measure the cost of one request in it.
//!
//! ```text
//!   classes ─ enqueue ─► any scheduler ─ poll until nothing ─► D in flight, in order
//!      ▲                                                            │ the oldest, after STEP
//!      └──────────── the next of the same class ◄── complete ◄──────┘
//! ```
//!
//! All schedulers are driven through the same calls with the same rules and the same load: classes
//! by job with weights from 1 to 4. Each has a reservation of a quarter of its even part and a
//! limit of one and a half of it, which classes of weight 4 reach. One class in eight sends
//! requests of 64 KiB and the others of 4 KiB.
//!
//! Features that a scheduler lacks are left out. `tbf` keeps limits only, `dmclock` reservations,
//! weights and limits, each request costing one. Ours has, besides these, costs and slots by size,
//! a cap on slots, two lanes, sums for reports, and, on request, a meter that every class pays.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use model::{Amount, Identity, JobId, Lane, Nanos, Nid, OpKind, PathSet, Rate, Time, Weight};
use rules::{Entitlement, EntitlementId, RuleSet};
use sched::{Costs, TargetParams};

use crate::scheduler::{Policy, Scheduler, SimArrival};

/// Many classes that always have requests waiting, and a device that serves one in ten
/// microseconds.
#[derive(Debug)]
pub struct Backlog {
    sched: Box<dyn Scheduler>,
    classes: Vec<BacklogLoad>,
    /// The rules in force.
    text: String,
    /// Ids and classes, the oldest first.
    running: VecDeque<(u64, u32)>,
    now: Time,
}

#[derive(Clone, Copy, Debug)]
struct BacklogLoad {
    subject: u64,
    amount: Amount,
    served: u64,
}

/// The time between two requests that the device serves.
const STEP: Nanos = Nanos::from_micros(10);
/// The requests that it serves in a second.
const CAPACITY: u64 = 100_000;
/// D.
const SLOTS: u32 = 32;
/// Requests of each class that wait or run.
const EACH: usize = 4;
const WEIGHTS: u32 = 4;

impl Backlog {
    /// Creates many classes under a scheduler; `meter` is the rate of a meter that every class
    /// pays.
    ///
    /// # Panics
    /// If there are more classes than the device serves requests in a second.
    pub fn new(policy: Policy, classes: u32, meter: Option<Rate>) -> Backlog {
        Backlog::with_rules(policy, classes, rules(classes, meter))
    }

    /// Creates many classes that have weights and nothing else.
    pub fn by_weight(policy: Policy, classes: u32) -> Backlog {
        let mut text = String::new();
        for weight in 1..=WEIGHTS {
            let _ = writeln!(text, "{}", class_rule(weight, classes));
        }
        Backlog::with_rules(policy, classes, text)
    }

    fn with_rules(policy: Policy, classes: u32, text: String) -> Backlog {
        let target = TargetParams {
            name: "backlog".into(),
            slots_max: SLOTS,
            threads: SLOTS,
            costs: Costs::default(),
            latency: None,
            recalibrate: false,
        };
        let mut sched = policy.scheduler(target, parsed(&text));
        let loads = (0..classes).map(|class| BacklogLoad {
            subject: sched.subject(&identity(class), PathSet::default()),
            amount: Amount::new(if class % 8 == 7 { 65_536 } else { 4_096 }, 1),
            served: 0,
        });
        let classes: Vec<BacklogLoad> = loads.collect();
        let now = Time::ZERO + Nanos::from_secs(10);
        let mut backlog = Backlog { sched, classes, text, running: VecDeque::new(), now };
        for _ in 0..EACH {
            (0..backlog.classes.len()).for_each(|class| backlog.enqueue(class as u32));
        }
        backlog.dispatch();
        backlog
    }

    /// One request through all three calls; its class stays backlogged.
    pub fn serve(&mut self) {
        while self.running.is_empty() {
            // Limits let no request go: time passes until they do.
            let deadline = self.sched.next_deadline().expect("there is a backlog");
            self.now = self.now.max(deadline);
            self.dispatch();
        }
        let (id, class) = self.running.pop_front().expect("something runs");
        self.now = self.now + STEP;
        let load = &mut self.classes[class as usize];
        load.served += 1;
        self.sched.complete(id, load.amount, self.now);
        self.enqueue(class);
        self.dispatch();
    }

    /// The rules with other words in each place of some.
    ///
    /// # Panics
    /// If these are no rules.
    pub fn edited(&self, words: &str, others: &str) -> Arc<RuleSet> {
        parsed(&self.text.replace(words, others))
    }

    /// Puts other rules in force; one call of the scheduler.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>) {
        self.sched.set_rules(rules, self.now);
    }

    /// Puts, replaces or (`None`) removes rows of entitlements; one call of the scheduler.
    pub fn set_entitlements(&mut self, rows: Vec<(EntitlementId, Option<Entitlement>)>) {
        self.sched.set_entitlements(rows, self.now, self.now);
    }

    /// The job of a class; its user has the number of the class.
    pub fn job(class: u32) -> JobId {
        identity(class).job
    }

    /// Asks for a request once; one call of the scheduler. Returns whether it is to be asked again
    /// at once.
    pub fn poll(&mut self) -> bool {
        let chosen = self.sched.poll(self.now);
        self.running.extend(chosen.map(|chosen| (chosen.id, chosen.token)));
        self.sched.next_deadline() == Some(self.now)
    }

    /// The service that each class has had.
    pub fn served(&self) -> impl Iterator<Item = u64> {
        self.classes.iter().map(|load| load.served)
    }

    fn enqueue(&mut self, class: u32) {
        let BacklogLoad { subject, amount, .. } = self.classes[class as usize];
        let incoming =
            SimArrival { subject, kind: OpKind::Read, amount, lane: Lane::Device, token: class };
        self.sched.enqueue(incoming, self.now);
    }

    fn dispatch(&mut self) {
        while let Some(chosen) = self.sched.poll(self.now) {
            self.running.push_back((chosen.id, chosen.token));
        }
    }
}

fn weight(class: u32) -> Weight {
    Weight::new(1 + class % WEIGHTS).expect("from 1 to 4")
}

fn identity(class: u32) -> Identity {
    let job = format!("w{}.{class}", weight(class).get());
    let job = JobId::new(&job).expect("a short name");
    Identity { job, uid: class, gid: 100, projid: None, nid: Nid::local() }
}

fn rules(classes: u32, meter: Option<Rate>) -> String {
    let even = CAPACITY / u64::from(classes);
    assert!(even >= 4, "{classes} classes of {CAPACITY} requests a second have nothing each");
    let mut text = String::new();
    for weight in 1..=WEIGHTS {
        let (reservation, limit) = (even / 4, even * 3 / 2);
        let _ = write!(
            text,
            "{}reservation = \"{reservation}ops/s\"\nlimit = \"{limit}ops/s\"\nslots = 16\n\n",
            class_rule(weight, classes)
        );
    }
    if let Some(rate) = meter {
        let _ = write!(text, "[[meter]]\nname = \"all\"\nrate = \"{rate}\"\n");
    }
    text
}

fn class_rule(weight: u32, classes: u32) -> String {
    format!(
        "[[rule]]\nname = \"w{weight}\"\nmatch = \"jobid={{w{weight}.*}}\"\nper = [\"jobid\"]\n\
         max_classes = {classes}\nweight = {weight}\n"
    )
}

fn parsed(text: &str) -> Arc<RuleSet> {
    Arc::new(RuleSet::parse(text).expect("rules that are right"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: u32 = 100;

    /// Requests of the classes of each weight, those of 4 KiB, after a second.
    fn by_weight(policy: Policy, meter: Option<Rate>) -> (u64, Vec<u64>) {
        let mut backlog = Backlog::new(policy, CLASSES, meter);
        let began = backlog.now;
        (0..CAPACITY).for_each(|_| backlog.serve());
        let mut sums = vec![0; WEIGHTS as usize];
        for (class, served) in backlog.served().enumerate().filter(|(class, _)| class % 8 != 7) {
            sums[class % WEIGHTS as usize] += served;
        }
        backlog.sched.check();
        (backlog.now.since(began).get() / 1_000_000, sums)
    }

    #[test]
    fn ours_and_dmclock_keep_the_weights_of_a_backlog_and_lustre_gives_each_the_same() {
        for (policy, wanted) in [
            (Policy::Dispatcher, [1, 2, 3]),
            (Policy::Dmclock, [1, 2, 3]),
            (Policy::Tbf, [1, 1, 1]),
        ] {
            let (_, sums) = by_weight(policy, Rate::ops_per_sec(2 * CAPACITY));
            for (sum, wanted) in sums.iter().zip(wanted) {
                let part = sum * 10 / sums[0];
                assert!(part.abs_diff(wanted * 10) <= 2, "{policy}: {sums:?}");
            }
        }
    }

    #[test]
    fn the_meter_that_everybody_pays_is_kept_by_ours_only() {
        let half = Rate::ops_per_sec(CAPACITY / 2);
        // A tenth of a second may come at once.
        assert!((1_800..=2_000).contains(&by_weight(Policy::Dispatcher, half).0));
        assert_eq!(by_weight(Policy::Tbf, half).0, 1_000);
    }
}
