//! Start-time fair queueing with D requests in flight, as published.
//!
//! ```text
//!   arrival ─► S = max(v, F + delay/φ), F = S + c/φ ─► heap by (S, arrival)
//!                                                          │ in flight < D, or
//!   v = S of the dispatched; max F when all is idle ◄──────┘ its slots fit (no backfill)
//! ```
//!
//! P. Goyal et al., SIGCOMM 1996; W. Jin et al., SIGMETRICS 2004. By count, a request is one of D
//! whatever its size, which SFQ(D)+ mends: by slots, it uses as many as its cost in units of the
//! smallest. A request that does not fit delays everything behind it.
//!
//! Tags are cost in nanoseconds × 2^20 / weight, wide enough never to wrap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use model::{Amount, Identity, Lane, OpKind, PathSet, Time};
use rules::RuleSet;
use sched::TargetParams;

use super::classes::BaselineClasses;
use crate::scheduler::{Scheduler, SimArrival, SimDispatch, SimRemoteService};

/// SFQ(D), by count or by slots.
#[derive(Debug)]
pub(crate) struct SfqD {
    target: TargetParams,
    by_slots: bool,
    classes: BaselineClasses,
    tags: Vec<SfqTags>,
    v: u128,
    last_finish: u128,
    queue: BinaryHeap<Reverse<(u128, u64, SfqItem)>>,
    arrivals: u64,
    outstanding: u32,
    slots_in_use: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct SfqTags {
    finish: u128,
    /// Cost of remote service with which no request has been charged yet.
    delay: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SfqItem {
    token: u32,
    slots: u32,
    cached: bool,
}

impl SfqD {
    /// Makes the SFQ(D) scheduler, in which D counts requests.
    pub(crate) fn by_count(target: TargetParams, rules: Arc<RuleSet>) -> SfqD {
        SfqD {
            target,
            by_slots: false,
            classes: BaselineClasses::new(rules),
            tags: Vec::new(),
            v: 0,
            last_finish: 0,
            queue: BinaryHeap::new(),
            arrivals: 0,
            outstanding: 0,
            slots_in_use: 0,
        }
    }

    /// D counts slots, as in SFQ(D)+, without its backfill.
    pub(crate) fn by_slots(target: TargetParams, rules: Arc<RuleSet>) -> SfqD {
        SfqD { by_slots: true, ..SfqD::by_count(target, rules) }
    }

    fn tags(&mut self, class: usize) -> &mut SfqTags {
        if class >= self.tags.len() {
            self.tags.resize(class + 1, SfqTags::default());
        }
        &mut self.tags[class]
    }

    fn slots(&self, cost: u64) -> u32 {
        if !self.by_slots {
            return 1;
        }
        let smallest = Amount::new(0, 1);
        let unit = self.target.costs.charge(Lane::Device, OpKind::Read, smallest).get();
        let units = cost.div_ceil(unit).clamp(1, u64::from(self.target.slots_max));
        units as u32
    }
}

impl Scheduler for SfqD {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        self.classes.subject(who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, _now: Time) -> u64 {
        let class = self.classes.class(incoming.subject, incoming.kind);
        let weight = u128::from(self.classes.grants[class].weight);
        let cost = self.target.costs.charge(Lane::Device, incoming.kind, incoming.amount).get();
        let v = self.v;
        let tags = self.tags(class);
        let scaled = |cost: u64| (u128::from(cost) << 20) / weight;
        let start = v.max(tags.finish + scaled(std::mem::take(&mut tags.delay)));
        tags.finish = start + scaled(cost);
        let finish = tags.finish;
        self.last_finish = self.last_finish.max(finish);
        self.arrivals += 1;
        let slots = self.slots(cost);
        let cached = incoming.lane == Lane::Cached;
        let item = SfqItem { token: incoming.token, slots, cached };
        self.queue.push(Reverse((start, self.arrivals, item)));
        u64::from(slots)
    }

    fn poll(&mut self, _now: Time) -> Option<SimDispatch> {
        let Reverse((start, _, item)) = *self.queue.peek()?;
        let fits = match self.by_slots {
            true => {
                self.slots_in_use == 0 || self.slots_in_use + item.slots <= self.target.slots_max
            }
            false => self.outstanding < self.target.slots_max,
        };
        if !fits {
            return None;
        }
        self.queue.pop();
        self.v = start;
        self.outstanding += 1;
        self.slots_in_use += item.slots;
        Some(SimDispatch {
            id: item.slots.into(),
            token: item.token,
            lane: if item.cached { Lane::Cached } else { Lane::Device },
            slots: item.slots,
            reserved: false,
        })
    }

    fn complete(&mut self, id: u64, _served: Amount, _now: Time) {
        self.outstanding -= 1;
        self.slots_in_use -= id as u32;
        if self.outstanding == 0 && self.queue.is_empty() {
            self.v = self.v.max(self.last_finish);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, _now: Time) {
        self.classes.set_rules(rules);
    }

    fn charge_remote_service(
        &mut self,
        subject: u64,
        kind: OpKind,
        what: SimRemoteService,
        _now: Time,
    ) {
        let class = self.classes.class(subject, kind);
        self.tags(class).delay += what.cost.get();
    }

    fn queued(&self) -> usize {
        self.queue.len()
    }
}
