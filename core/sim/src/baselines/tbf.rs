//! Lustre's token bucket filter to the letter, with its quirks.
//!
//! ```text
//!   arrival ─► class: FIFO, tokens, check_time, deadline, residue
//!                └─ was empty: deadline := check_time + nsecs, into the heap
//!   a free thread ─► heap root by (deadline, check_time)
//!                     ├─ has a token: its oldest request; a plain rule's deadline := now + nsecs
//!                     └─ has none: throttle all classes until its check_time + nsecs
//! ```
//!
//! lustre/ptlrpc/nrs_tbf.c as of August 2026; docs/algorithms/baselines.md. The quirks are kept.
//! Only the root is checked, and a plain rule throws the fraction of a token away. Depth caps what
//! comes in batches. A compensated rule (`realtime`) has neither and no bound on what it may catch
//! up. A class has its new rate when its next request arrives.
//!
//! It counts requests, so it has limits in operations only. Deadlines round 10^9 / rate up: rounded
//! down, a clock that jumps to the deadline never gets a token.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Amount, Identity, Lane, Nanos, PathSet, Rate, Time};
use rules::RuleSet;
use sched::TargetParams;

use super::classes::{BaselineClasses, BaselineGrant};
use super::heap::TagHeap;
use crate::scheduler::{Scheduler, SimArrival, SimDispatch};

/// The token bucket filter.
#[derive(Debug)]
pub(crate) struct LustreTbf {
    /// Service threads: D.
    threads: u32,
    classes: BaselineClasses,
    buckets: Vec<Bucket>,
    /// Classes with requests by deadline, check_time and order of entry.
    heap: TagHeap<(Time, Time, u64)>,
    sequence: u64,
    /// No class may go before.
    throttled: Option<Time>,
    queued: usize,
    outstanding: u32,
}

#[derive(Debug)]
struct Bucket {
    fifo: VecDeque<(u32, Lane)>,
    rate: u64,
    nsecs: Nanos,
    realtime: bool,
    tokens: u64,
    check_time: Time,
    deadline: Time,
    residue: u64,
    generation: u32,
}

/// The rate of the rule `default`.
const RATE: u64 = 10_000;
/// The depth of every bucket.
const DEPTH: u64 = 3;
const SECOND: u64 = 1_000_000_000;

impl LustreTbf {
    pub(crate) fn new(target: TargetParams, rules: Arc<RuleSet>) -> LustreTbf {
        LustreTbf {
            threads: target.slots_max,
            classes: BaselineClasses::new(rules),
            buckets: Vec::new(),
            heap: TagHeap::default(),
            sequence: 0,
            throttled: None,
            queued: 0,
            outstanding: 0,
        }
    }

    /// The bucket of a class, with the current rate of its rule.
    fn load(&mut self, class: usize, now: Time) {
        let (grant, generation) = (&self.classes.grants[class], self.classes.generation);
        match self.buckets.get_mut(class) {
            // Classes are numbered as they come, so this is the next one.
            None => self.buckets.push(Bucket::new(grant, generation, now)),
            Some(own) if own.generation != generation => {
                own.generation = generation;
                if (own.rate, own.realtime) != terms(grant) {
                    // A change gives each class a full bucket: a quirk.
                    let (fifo, deadline) = (std::mem::take(&mut own.fifo), own.deadline);
                    *own = Bucket { fifo, deadline, ..Bucket::new(grant, generation, now) };
                }
            }
            Some(_) => {}
        }
    }

    fn sift(&mut self, class: usize) {
        let own = &self.buckets[class];
        self.sequence += 1;
        self.heap.put((own.deadline, own.check_time, self.sequence), class);
    }

    /// The next step of the root: its class, or until when all classes wait.
    fn root(&mut self, now: Time) -> Result<usize, Option<Time>> {
        loop {
            let Some((_, class)) = self.heap.first() else { return Err(None) };
            let own = &mut self.buckets[class];
            let passed = now.since(own.check_time).get();
            let mut tokens = fresh(passed, own.rate) + own.tokens;
            let mut residue = own.residue;
            if own.realtime {
                // Rounded down, or a whole number of tokens would leave almost one more.
                let each = SECOND / own.rate;
                residue += passed % each;
                if residue > each {
                    tokens += 1;
                    residue -= each;
                }
            } else {
                tokens = tokens.min(DEPTH);
            }
            if tokens > 0 {
                (own.tokens, own.check_time, own.residue) = (tokens - 1, now, residue);
                return Ok(class);
            }
            let due = own.check_time + own.nsecs;
            if own.realtime && own.deadline != due {
                own.deadline = due;
                self.sift(class);
                if self.heap.first().is_some_and(|(_, root)| root != class) {
                    continue;
                }
            }
            return Err(Some(due));
        }
    }
}

impl Bucket {
    fn new(grant: &BaselineGrant, generation: u32, now: Time) -> Bucket {
        let (rate, realtime) = terms(grant);
        Bucket {
            fifo: VecDeque::new(),
            rate,
            nsecs: Nanos::new(SECOND.div_ceil(rate)),
            realtime,
            tokens: DEPTH,
            check_time: now,
            deadline: now,
            residue: 0,
            generation,
        }
    }
}

/// The tokens of a number of nanoseconds.
fn fresh(passed: u64, rate: u64) -> u64 {
    match passed.checked_mul(rate) {
        Some(product) => product / SECOND,
        None => (u128::from(passed) * u128::from(rate) / u128::from(SECOND)) as u64,
    }
}

/// Requests per second and whether they are compensated.
fn terms(grant: &BaselineGrant) -> (u64, bool) {
    match grant.limit {
        Some(Rate::Ops(rate)) => (rate.get(), grant.realtime),
        _ => (RATE, false),
    }
}

impl Scheduler for LustreTbf {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        self.classes.subject(who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        let class = self.classes.class(incoming.subject, incoming.kind);
        self.load(class, now);
        let own = &mut self.buckets[class];
        let was_empty = own.fifo.is_empty();
        own.fifo.push_back((incoming.token, incoming.lane));
        self.queued += 1;
        if was_empty {
            own.deadline = own.check_time + own.nsecs;
            let deadline = own.deadline;
            self.sift(class);
            self.throttled = self.throttled.map(|until| until.min(deadline));
        }
        0
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        if self.outstanding >= self.threads || self.throttled.is_some_and(|until| now < until) {
            return None;
        }
        self.throttled = None;
        let class = match self.root(now) {
            Ok(class) => class,
            Err(until) => {
                self.throttled = until;
                return None;
            }
        };
        let own = &mut self.buckets[class];
        let (token, lane) =
            own.fifo.pop_front().expect("only classes with requests are in the heap");
        if own.fifo.is_empty() {
            self.heap.remove(class);
        } else {
            if !own.realtime {
                own.deadline = now + own.nsecs;
            }
            self.sift(class);
        }
        self.queued -= 1;
        self.outstanding += 1;
        Some(SimDispatch { id: 0, token, lane, slots: 1, reserved: false })
    }

    fn complete(&mut self, _id: u64, _served: Amount, _now: Time) {
        self.outstanding -= 1;
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.outstanding < self.threads { self.throttled } else { None }
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, _now: Time) {
        self.classes.set_rules(rules);
    }

    fn queued(&self) -> usize {
        self.queued
    }
}
