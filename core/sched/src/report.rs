//! Figures of subjects and classes: the content of `sluice top`.
//!
//! Sums are kept as requests complete. Queued and running requests of a subject are counted on
//! demand, so that dispatch need not touch the subject.

use std::ops::{AddAssign, Range};
use std::sync::Arc;

use model::{
    Accesses, Amount, Bytes, Direction, Identity, KeyValue, Nanos, OpKind, Ops, PathSet, Rule,
    Weight,
};

use crate::activity::Activity;
use crate::class::{DELAYED, QueuedRequest, RequestStage};
use crate::dispatcher::Dispatcher;
use crate::dormant::DormantClass;
use crate::ids::{ClassId, SubjectId};
use crate::lane::DEVICE;
use crate::pattern;

/// Sums since the subject or class was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    /// The payload that was read.
    pub read: Bytes,
    /// The payload that was written.
    pub written: Bytes,
    /// The number of backend operations.
    pub ops: Ops,
    /// Time from arrival to dispatch.
    pub queue_time: Nanos,
    /// Time from dispatch to completion.
    pub service_time: Nanos,
    /// The cost that was charged.
    pub cost: Nanos,
    /// The number of completed requests.
    pub requests: u64,
    /// The cost of remote service, as far as it was reported.
    pub remote: Nanos,
    /// Completed requests that a meter or a cap on slots had delayed.
    pub delayed: u64,
    /// The waiting time of the delayed requests.
    pub delayed_time: Nanos,
    /// The payload of the delayed requests.
    pub delayed_bytes: Bytes,
}

/// The figures of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectReport {
    /// The id of the subject.
    pub id: SubjectId,
    /// The identity of the subject.
    pub identity: Identity,
    /// The rule directories that it works in.
    pub paths: PathSet,
    /// The export that it uses ([`Dispatcher::subject_through`]); empty for none.
    pub export: Arc<str>,
    /// The sums of the subject.
    pub usage: Usage,
    /// Its part of the time of its job, as last counted by [`Dispatcher::count_activity`].
    pub activity: Activity,
    /// Its backend operations by kind, in the order of [`OpKind::ALL`].
    pub ops: [Ops; OpKind::COUNT],
    /// Its reads, as far as they were counted.
    pub reads: Accesses,
    /// Its writes, as far as they were counted.
    pub writes: Accesses,
    /// The number of waiting requests.
    pub queued: u32,
    /// The number of running requests.
    pub running: u32,
    /// Slots of both lanes in use now.
    pub slots: u32,
    /// Whether a request of the subject is, or is queued behind, a head that waits for a meter.
    pub throttled: bool,
}

/// The figures of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassReport {
    /// The id of the class.
    pub id: ClassId,
    /// The rule that makes it; `default` where none matched.
    pub rule: String,
    /// The values of the rule's `per` fields, in its order; empty also for the class that
    /// takes the keys beyond `max_classes`.
    pub key: Vec<KeyValue>,
    /// The weight of the class.
    pub weight: Weight,
    /// The sums of the class.
    pub usage: Usage,
    /// The number of waiting requests.
    pub queued: u32,
    /// The number of running requests.
    pub running: u32,
    /// Device slots in use now.
    pub slots: u32,
    /// Whether a head waits for a meter.
    pub throttled: bool,
}

impl Usage {
    /// The figures that one completed request adds.
    pub(crate) fn of(request: &QueuedRequest, served: Amount, service: Nanos) -> Usage {
        let direction = request.kind.direction();
        let delayed = request.has(DELAYED);
        let if_delayed = |amount: u64| if delayed { amount } else { 0 };
        let queue_time = request.started.since(request.arrived);
        let bytes_if = |is| if direction == is { served.bytes } else { Bytes::ZERO };
        Usage {
            read: bytes_if(Direction::Read),
            written: bytes_if(Direction::Write),
            ops: served.ops,
            queue_time,
            service_time: service,
            cost: Nanos::new(request.cost),
            requests: 1,
            remote: Nanos::ZERO,
            delayed: delayed.into(),
            delayed_time: Nanos::new(if_delayed(queue_time.get())),
            delayed_bytes: Bytes::new(if_delayed(served.bytes.get())),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.read += other.read;
        self.written += other.written;
        self.ops += other.ops;
        self.queue_time += other.queue_time;
        self.service_time += other.service_time;
        self.cost += other.cost;
        self.requests += other.requests;
        self.remote += other.remote;
        // Seldom, so that most requests leave these fields' cache line alone.
        if other.delayed > 0 {
            self.delayed += other.delayed;
            self.delayed_time += other.delayed_time;
            self.delayed_bytes += other.delayed_bytes;
        }
    }
}

impl Dispatcher {
    /// The sums of forgotten subjects, and how many of their operations neither read nor wrote a
    /// file. With [`Dispatcher::sums`] of all indices it is the service of all subjects.
    pub fn forgotten_usage(&self) -> (Usage, Ops) {
        self.forgotten
    }

    /// The end of the range that [`Dispatcher::sums`] covers: all subjects have indices below it.
    pub fn subject_index_end(&self) -> usize {
        self.subjects.span()
    }

    /// The sums of the subjects at some indices, and how many of their operations neither read nor
    /// wrote a file. Callers read a few indices at a time, so that no request waits for tens of
    /// thousands. O(indices).
    pub fn sums(
        &self,
        places: Range<usize>,
    ) -> impl Iterator<Item = (SubjectId, &Identity, &Usage, Ops)> {
        let end = places.end.min(self.subjects.span());
        let places = (places.start.min(end)..end).map(|place| place as u32);
        places.filter(|place| self.subjects.lives(*place)).map(|index| {
            let subject = &self.subjects[index];
            let id = SubjectId { index, generation: self.subjects.generation(index) };
            (id, &*subject.identity, &subject.usage, metadata(&subject.ops()))
        })
    }

    /// Device slots in use now.
    pub fn slots_in_use(&self) -> u32 {
        self.lanes[DEVICE].slots_in_use
    }

    /// Whether requests wait for one another: those of some class for a slot and not for a meter,
    /// while another class is active. O(classes).
    pub fn is_contended(&self) -> bool {
        let (mut at_work, mut waits) = (0, false);
        for (_, class) in self.classes.iter() {
            at_work += u32::from(class.queued > 0 || class.running > 0);
            let metered = class.lanes.iter().any(|standing| standing.waiting != 0);
            waits |= class.queued > 0 && !metered;
        }
        waits && at_work > 1
    }

    /// Every subject that is referenced, and those lately gone; O(subjects + requests).
    pub fn subjects(&self) -> impl Iterator<Item = SubjectReport> {
        let mut now = vec![(0u32, 0u32, 0u32, false); self.subjects.span()];
        for (_, request) in self.requests.iter() {
            let (queued, running, slots, throttled) = &mut now[request.subject as usize];
            match request.stage {
                RequestStage::Running => {
                    *running += 1;
                    *slots += request.slots;
                }
                RequestStage::Urgent => *queued += 1,
                RequestStage::Queued => {
                    *queued += 1;
                    let standing = &self.classes[request.class].lanes[usize::from(request.lane)];
                    *throttled |= standing.waiting >> request.queue & 1 == 1;
                }
            }
        }
        self.subjects.iter().map(move |(index, subject)| {
            let (queued, running, slots, throttled) = now[index as usize];
            let (reads, writes) = pattern::of(&subject.pattern);
            SubjectReport {
                id: SubjectId { index, generation: self.subjects.generation(index) },
                identity: Identity::clone(&subject.identity),
                paths: subject.paths,
                export: subject.export.clone(),
                usage: subject.usage,
                activity: subject.activity,
                ops: subject.ops(),
                reads,
                writes,
                queued,
                running,
                slots,
                throttled,
            }
        })
    }

    /// Every active and dormant class; O(classes).
    pub fn classes(&self) -> impl Iterator<Item = ClassReport> {
        let at_rest = self.dormant.iter().map(|(_, rested)| self.report_dormant(rested));
        let at_work = self.classes.iter().map(|(_, class)| ClassReport {
            id: class.id,
            rule: class.key.rule.to_string(),
            key: class.key.values.to_vec(),
            weight: class.weight,
            usage: class.usage,
            queued: class.queued,
            running: class.running,
            slots: class.slots_in_use,
            throttled: class.lanes.iter().any(|standing| standing.waiting != 0),
        });
        at_work.chain(at_rest)
    }

    fn report_dormant(&self, rested: &DormantClass) -> ClassReport {
        let rule = self.rules.rule(&rested.key.rule);
        ClassReport {
            id: rested.id,
            rule: rested.key.rule.to_string(),
            key: rested.key.values.to_vec(),
            weight: rule.map_or(Weight::ONE, Rule::effective_weight),
            usage: rested.usage,
            queued: 0,
            running: 0,
            slots: 0,
            throttled: false,
        }
    }
}

/// How many of a subject's operations, by kind, neither read nor wrote a file.
pub(crate) fn metadata(ops: &[Ops; OpKind::COUNT]) -> Ops {
    let kinds = OpKind::ALL.iter().zip(ops);
    let of_metadata = kinds.filter(|(kind, _)| kind.direction() == Direction::Metadata);
    of_metadata.fold(Ops::default(), |sum, (_, ops)| sum + *ops)
}
