//! Reports of wait causes, with the current status of each meter.
//!
//! ```text
//!   causes of a class ─ with what waits now added ─► WaitReport
//!   subjects ─ classifications ─► classes and meters ─► SubjectDetail
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::{Bytes, Identity, JobId, KeyValue, Nanos, OpKind, PathSet, Rate, Scope, Share, Time};

use super::{PlainCause, WAIT_MIN_NS, WaitCauses, WaitRecord};
use crate::class::QUEUES;
use crate::classify::ClassKey;
use crate::dispatcher::Dispatcher;
use crate::ids::{ClassId, SubjectId};
use crate::lane::LANES;
use crate::meter::{Meter, MeterKey};
use crate::report::Usage;
use crate::slab::NONE;

/// The wait causes of a class since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// The id of the class.
    pub class: ClassId,
    /// The rule that makes it.
    pub rule: String,
    /// The values of the rule's `per` fields.
    pub key: Vec<KeyValue>,
    /// The number of waiting requests.
    pub queued: u32,
    /// The causes, the one that cost most time first.
    pub causes: Vec<WaitCauseReport>,
}

/// One cause for which requests of a class waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCauseReport {
    /// The kind of the cause.
    pub by: WaitCause,
    /// Whether requests wait for it now. They did within the last second, and for a twentieth of
    /// the time since it began, or of a second if that is more.
    pub now: bool,
    /// Since when heads have waited for it, with pauses of less than a second.
    pub since: Time,
    /// For how long of that time some head waited for it.
    pub active: Nanos,
    /// When a head waited for it last.
    pub last: Time,
    /// The time that requests waited for it, summed up over requests.
    pub wait: Nanos,
    /// The time during which some head waited for it.
    pub span: Nanos,
    /// Requests for which it was the last cause before they went.
    pub requests: u64,
    /// The payload of these requests.
    pub bytes: Bytes,
    /// The status of the meter, where it is one that still exists.
    pub meter: Option<MeterStatus>,
}

/// What a head can wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCause {
    /// A meter: the limit of a rule, a `[[meter]]`, or a decay; whether it counts bytes.
    Meter {
        /// The scope of the meter.
        scope: Scope,
        /// Whether it counts bytes; operations otherwise.
        in_bytes: bool,
    },
    /// Others were served by their weights while slots were taken.
    Weight,
    /// No other class was served: its own requests use what the target or the threads can do.
    Busy,
    /// The rule's cap on slots.
    Slots,
    /// Others came first, since the class had service at other servers.
    RemoteService,
    /// Causes that were not kept apart.
    Other,
}

/// The current status of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterStatus {
    /// The scope of the meter.
    pub scope: Scope,
    /// Its current rate, over all proxies.
    pub rate: Rate,
    /// The share of the rate that is let through here.
    pub part: Share,
    /// Units a second that it let through here over the last second or two.
    pub used_per_sec: u64,
    /// When nothing is owed any more and it lets the next request go.
    pub due: Time,
    /// Heads that wait at it, of all classes.
    pub waiting: usize,
    /// The rule that its limit depends on, where it does.
    pub depends_on: Option<String>,
}

/// One subject, its classes, and the meters that it pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectDetail {
    /// The id of the subject.
    pub id: SubjectId,
    /// The identity of the subject.
    pub identity: Identity,
    /// Its classes, of the kinds of request that it made.
    pub classes: Vec<ClassId>,
    /// The indices of its classes, in the same order.
    indices: Vec<u32>,
    /// The meters that these requests pay.
    pub meters: Vec<MeterStatus>,
    /// The sums of the subject.
    pub usage: Usage,
}

/// A selection of subjects: those that match all given fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeterPayers<'q> {
    /// The subjects of this job.
    pub job: Option<&'q JobId>,
    /// The subjects of this user.
    pub user: Option<u32>,
}

impl MeterPayers<'_> {
    /// Whether a subject is selected.
    pub fn has(&self, who: &Identity) -> bool {
        self.job.is_none_or(|job| *job == who.job) && self.user.is_none_or(|user| user == who.uid)
    }
}

impl Dispatcher {
    /// The wait causes of the wanted classes, since each was made; classes that never waited are
    /// left out. O(classes).
    pub fn wait_reports(
        &self,
        now: Time,
        wanted: impl Fn(ClassId, &str, &[KeyValue]) -> bool,
    ) -> Vec<WaitReport> {
        let now = self.now.max(now);
        let (at_work, at_rest) = (self.classes.iter(), self.dormant.iter());
        let mut reports: Vec<WaitReport> = Vec::new();
        for (index, class) in at_work {
            if wanted(class.id, &class.key.rule, &class.key.values) {
                let causes = self.causes_of(index, now);
                let (key, queued) = (&class.key, class.queued);
                reports.extend(self.report_class_waits(class.id, key, queued, &causes, now));
            }
        }
        for (_, rested) in at_rest {
            if wanted(rested.id, &rested.key.rule, &rested.key.values) {
                let report =
                    |causes| self.report_class_waits(rested.id, &rested.key, 0, causes, now);
                reports.extend(rested.causes.as_deref().and_then(report));
            }
        }
        reports
    }

    /// The wait causes of the classes in which these subjects have requests. O(their classes).
    pub fn wait_reports_of(&self, standings: &[SubjectDetail], now: Time) -> Vec<WaitReport> {
        let now = self.now.max(now);
        let of = standings.iter().flat_map(|one| one.indices.iter().zip(&one.classes));
        let classes: BTreeSet<(u32, ClassId)> = of.map(|(at, id)| (*at, *id)).collect();
        let reports = classes.into_iter().filter_map(|(index, id)| {
            let class = &self.classes[index];
            if !self.classes.lives(index) || class.id != id {
                return None;
            }
            let causes = self.causes_of(index, now);
            self.report_class_waits(id, &class.key, class.queued, &causes, now)
        });
        reports.collect()
    }

    /// The selected subjects, with their classes and meters. O(subjects of the job) where one is
    /// given, else O(subjects).
    pub fn subject_details(&self, now: Time, payers: MeterPayers<'_>) -> Vec<SubjectDetail> {
        let now = self.now.max(now);
        let known = self.names.subjects_from(payers.job);
        let of_job = known.take_while(|(who, _)| payers.job.is_none_or(|job| *job == who.job));
        let of = of_job.filter(|(who, _)| payers.has(who)).flat_map(|(_, places)| places);
        let standing = of.map(|(_, index)| {
            let (index, subject) = (*index, &self.subjects[*index]);
            let (mut classes, mut meters) = (Vec::new(), Vec::new());
            for way in subject.ways() {
                classes.push((self.classes[way.class].id, way.class));
                if way.route != NONE {
                    let links = self.routes[way.route].links().iter();
                    meters.extend(links.map(|link| self.links[*link].meter));
                }
            }
            classes.sort_unstable();
            classes.dedup();
            let (classes, places) = classes.into_iter().unzip();
            meters.sort_unstable();
            meters.dedup();
            SubjectDetail {
                id: SubjectId { index, generation: self.subjects.generation(index) },
                identity: Identity::clone(&subject.identity),
                classes,
                indices: places,
                meters: meters.iter().map(|at| self.report_meter(&self.meters[*at], now)).collect(),
                usage: subject.usage,
            }
        });
        standing.collect()
    }

    /// The limits that requests of `who` in these directories pay, of any kind, with or without
    /// earlier requests. Nothing is created for it. O(rules + limits).
    pub fn limits_of(&self, who: &Identity, paths: PathSet, now: Time) -> Vec<MeterStatus> {
        let now = self.now.max(now);
        let mut found = BTreeMap::new();
        for kind in OpKind::ALL.iter().copied() {
            let rule = self.rules.rule_for(who, kind, paths).map(|at| &self.rules.rules[at]);
            let class = self.class_key_for(rule, who, kind);
            for (limit, key) in self.limits_for(rule, &class, who, kind, paths) {
                found.entry(key).or_insert(limit);
            }
        }
        let reports = found.into_iter().map(|(key, limit)| match self.names.meters.get(&key) {
            Some(meter) => self.report_meter(&self.meters[*meter], now),
            None => {
                let granted = self.grants.of_meter(&key);
                self.report_meter(&Meter::granted(&limit, granted, key), now)
            }
        });
        reports.collect()
    }

    fn report_class_waits(
        &self,
        class: ClassId,
        key: &ClassKey,
        queued: u32,
        causes: &WaitCauses,
        now: Time,
    ) -> Option<WaitReport> {
        let plain = PlainCause::ALL.into_iter().zip(&causes.plain);
        let plain = plain.map(|(by, waits)| (WaitCause::from(by), waits, None));
        let meters = causes.meters.iter().map(|at| {
            let by = WaitCause::Meter { scope: at.key.scope(), in_bytes: at.key.in_bytes };
            let lives = self.meters.has(at.index, at.generation);
            (by, &at.waits, lives.then(|| self.report_meter(&self.meters[at.index], now)))
        });
        let some = plain.chain(meters).filter(|(_, waits, _)| !waits.is_empty());
        let mut causes: Vec<_> =
            some.map(|(by, waits, meter)| waits.report(by, meter, now)).collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.wait));
        let (rule, key) = (key.rule.to_string(), key.values.to_vec());
        (!causes.is_empty()).then_some(WaitReport { class, rule, key, queued, causes })
    }

    /// The status of the meter of that key, if there is one.
    pub(crate) fn report_named_meter(&self, key: &MeterKey, now: Time) -> Option<MeterStatus> {
        let index = self.names.meters.get(key)?;
        Some(self.report_meter(&self.meters[*index], now))
    }

    fn report_meter(&self, meter: &Meter, now: Time) -> MeterStatus {
        let depends_on = meter.key.rule().filter(|rule| self.dependents.effective(rule).is_some());
        let parent = |rule: &str| {
            let rule = self.rules.rules.iter().find(|known| known.name == *rule)?;
            rule.depends_on.as_ref().map(|parent| parent.rule.clone())
        };
        MeterStatus {
            scope: meter.key.scope(),
            rate: meter.pacer.rate(),
            part: meter.pacer.part(),
            used_per_sec: meter.used_per_sec(now),
            due: meter.pacer.due(),
            waiting: meter.waiting_heads(),
            depends_on: depends_on.and_then(parent),
        }
    }

    /// The causes of an active class, with the current waiting added.
    fn causes_of(&self, class: u32, now: Time) -> WaitCauses {
        let own = &self.classes[class];
        let mut held = own.causes.as_deref().cloned().unwrap_or_default();
        for lane in 0..LANES.len() {
            for queue in 0..QUEUES {
                let mut fifo = own.lanes[lane].queues[queue];
                if fifo.is_empty() {
                    continue;
                }
                fifo.add_elapsed(now);
                let waited = now.since(self.requests[fifo.head].arrived).get();
                if fifo.area == 0 || fifo.area.max(waited) < WAIT_MIN_NS {
                    continue;
                }
                let place = match own.lanes[lane].waiting >> queue & 1 == 1 {
                    true => {
                        let meter = self.meter_waited_for(class, lane, queue);
                        let key = &self.meters[meter].key;
                        held.meter(meter, self.meters.generation(meter), key).0
                    }
                    false => self.ready_cause(class, lane, fifo.began) as usize,
                };
                held.at(place).expect("its place").count(fifo.area, fifo.began, now);
            }
        }
        held
    }
}

impl WaitRecord {
    fn report(&self, by: WaitCause, meter: Option<MeterStatus>, now: Time) -> WaitCauseReport {
        WaitCauseReport {
            by,
            now: self.is_current(now),
            since: self.since,
            last: self.last,
            active: Nanos::new(self.active),
            wait: Nanos::new(self.wait),
            span: Nanos::new(self.span),
            requests: self.requests,
            bytes: Bytes::new(self.bytes),
            meter,
        }
    }
}

impl From<PlainCause> for WaitCause {
    fn from(cause: PlainCause) -> WaitCause {
        match cause {
            PlainCause::Weight => WaitCause::Weight,
            PlainCause::Busy => WaitCause::Busy,
            PlainCause::Slots => WaitCause::Slots,
            PlainCause::RemoteService => WaitCause::RemoteService,
            PlainCause::Other => WaitCause::Other,
        }
    }
}
