//! Reports: sums, loads, limits and causes of waiting, as the owners have them now.
//!
//! ```text
//!   registry: who ─┬─ observation: sums, causes ─┬─► SubjectReport, ClassReport: `sluice top`
//!                  ├─ lanes: what waits, runs ───┤
//!                  └─ meters, terms: limits ─────┴─► WaitReport, SubjectDetail, MeterStatus: `why`
//! ```
//!
//! Sums are kept as requests complete. Queued and running requests of a subject are counted on
//! demand, so that dispatch need not touch the subject.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use model::{AccountSubject, Identity, KeyValue, OpKind, Ops, PathSet, TargetId, Time, Weight};
use rules::EntitlementId;

use super::Dispatcher;
use crate::ids::{ClassId, SubjectId};
use crate::index::{ClassIndex, MeterIndex, SubjectIndex, TableIndex as _};
use crate::keys::ClassKey;
use crate::lanes::{QueuePlace, RequestStage};
use crate::meters::MeterFigures;
use crate::observation::{
    AccountReport, ClassReport, ClosedAccounts, ClosedSubject, MeterPayers, MeterStatus,
    ReservedRow, SubjectDetail, SubjectReport, Usage, WAIT_MIN_NS, WaitCauses, WaitReport,
};

/// What a subject has here now.
#[derive(Clone, Copy, Default)]
struct SubjectLoad {
    queued: u32,
    running: u32,
    slots: u32,
    throttled: bool,
}

impl Dispatcher {
    /// The sums of a target's forgotten subjects, and how many of their operations neither read nor
    /// wrote a file. With [`Dispatcher::sums`] of all indices it is the service of all its subjects.
    pub fn forgotten_usage(&self, target: TargetId) -> (Usage, Ops) {
        self.observation.forgotten(target)
    }

    /// The end of the range that [`Dispatcher::sums`] covers: all subjects have indices below it.
    pub fn subject_index_end(&self) -> usize {
        self.registry.subjects_end()
    }

    /// The sums of the subjects at some indices, each with its target, and how many of their
    /// operations neither read nor wrote a file. Callers read a few indices at a time, so that no request waits for tens of
    /// thousands. O(indices).
    pub fn sums(
        &self,
        places: Range<usize>,
    ) -> impl Iterator<Item = (SubjectId, TargetId, &Identity, Usage, Ops)> {
        let end = places.end.min(self.subject_index_end());
        let subjects =
            (places.start.min(end)..end).filter_map(|place| self.registry.subject_at(place));
        subjects.map(|index| {
            let usage = self.observation.usage_of_subject(index);
            let metadata = self.observation.metadata_of_subject(index);
            let (id, target) = (self.registry.id_of(index), self.registry.target(index));
            (id, target, &**self.registry.identity(index), usage, metadata)
        })
    }

    /// Device slots of a target in use now.
    pub fn slots_in_use(&self, target: TargetId) -> u32 {
        self.lanes.slots_in_use(target)
    }

    /// Whether requests wait for one another at any target: those of some class for a slot and not
    /// for a meter, while another class is active there. O(classes).
    pub fn is_contended(&self) -> bool {
        let mut targets = vec![(0, false); self.lanes.targets().count()];
        for class in self.whole_classes() {
            let (queued, running, _) = self.lanes.load_of(class);
            let (at_work, waits) = &mut targets[self.lanes.target_of(class).index()];
            *at_work += u32::from(queued > 0 || running > 0);
            *waits |= queued > 0 && !self.lanes.is_throttled(class);
        }
        targets.into_iter().any(|(at_work, waits)| waits && at_work > 1)
    }

    /// Counts active and delayed time up to `now`, also for what still waits or runs. To be called
    /// before [`Dispatcher::subjects`] or [`Dispatcher::accounts`] where times are read. Poll
    /// afterwards.
    /// O(subjects + requests).
    pub fn count_activity(&mut self, now: Time) {
        self.advance(now);
        let (lanes, now) = (&self.lanes, self.now);
        let delayed = lanes.requests().filter(|request| {
            let is_queued = request.stage == RequestStage::Queued;
            let waited = now.since(request.arrived).get();
            is_queued && waited >= WAIT_MIN_NS && lanes.is_waiting(request.place())
        });
        let delayed = delayed.map(|request| (request.arrived, request.subject));
        self.observation.count_delays(delayed, now);
        for subject in self.registry.busy_subjects() {
            self.observation.count_active(subject, now);
        }
        self.finish_call();
    }

    /// Every subject that is referenced, and those lately gone; O(subjects + requests).
    pub fn subjects(&self) -> impl Iterator<Item = SubjectReport> {
        let mut loads = vec![SubjectLoad::default(); self.subject_index_end()];
        for request in self.lanes.requests() {
            let load = &mut loads[request.subject.raw() as usize];
            match request.stage {
                RequestStage::Running => {
                    load.running += 1;
                    load.slots += request.slots;
                }
                RequestStage::Urgent => load.queued += 1,
                RequestStage::Queued => {
                    load.queued += 1;
                    load.throttled |= self.lanes.is_waiting(request.place());
                }
            }
        }
        self.registry.subjects().map(move |index| {
            let SubjectLoad { queued, running, slots, throttled } = loads[index.raw() as usize];
            SubjectReport {
                id: self.registry.id_of(index),
                target: self.registry.target(index),
                identity: Identity::clone(self.registry.identity(index)),
                paths: self.registry.paths(index),
                export: self.registry.export(index).clone(),
                usage: self.observation.usage_of_subject(index),
                service: self.observation.service_of_subject(index),
                queued,
                running,
                slots,
                throttled,
            }
        })
    }

    /// The service of every subject in each of its classes; O(subjects).
    pub fn accounts(&self) -> impl Iterator<Item = AccountReport> {
        self.registry.subjects().flat_map(|index| {
            let ClosedSubject { id, target, subject } = self.account_subject(index);
            self.observation.accounts_of(index).map(move |(class, service)| {
                let subject = AccountSubject { class, ..subject.clone() };
                AccountReport { id, target, subject, service }
            })
        })
    }

    /// Takes the accounts of subjects that were forgotten since the last call. Before the first call
    /// none is kept.
    pub fn take_closed_accounts(&mut self) -> ClosedAccounts {
        self.observation.take_closed()
    }

    /// A subject as its accounts name it, without a class.
    pub(super) fn account_subject(&self, index: SubjectIndex) -> ClosedSubject {
        let subject = AccountSubject {
            identity: Identity::clone(self.registry.identity(index)),
            paths: self.registry.paths(index),
            export: self.registry.export(index).clone(),
            class: Arc::default(),
        };
        let (id, target) = (self.registry.id_of(index), self.registry.target(index));
        ClosedSubject { id, target, subject }
    }

    /// Every active and dormant class; O(classes).
    pub fn classes(&self) -> impl Iterator<Item = ClassReport> {
        let report = |id, key: &ClassKey, usage, (queued, running, slots)| ClassReport {
            id,
            target: key.target,
            rule: key.rule.to_string(),
            key: key.values.to_vec(),
            weight: Weight::ONE,
            usage,
            queued,
            running,
            slots,
            throttled: false,
        };
        let at_rest = self.registry.dormant().filter(|(_, _, key)| key.branch.is_none());
        let at_rest = at_rest.map(move |(index, id, key)| {
            let weight = self.terms.weight_of(key, &self.lanes.params(key.target).name);
            let usage = self.observation.usage_of_dormant(index);
            ClassReport { weight, ..report(id, key, usage, (0, 0, 0)) }
        });
        let at_work = self.whole_classes().map(move |index| {
            let (id, key) = (self.registry.class_id(index), self.registry.key(index));
            let (usage, load) = (self.observation.usage_of_class(index), self.lanes.load_of(index));
            let (weight, throttled) =
                (self.lanes.rule_weight_of(index), self.lanes.is_throttled(index));
            ClassReport { weight, throttled, ..report(id, key, usage, load) }
        });
        at_work.chain(at_rest)
    }

    /// The wait causes of the wanted classes, since each was made; classes that never waited are
    /// left out. O(classes).
    pub fn wait_reports(
        &self,
        now: Time,
        wanted: impl Fn(ClassId, &str, &[KeyValue]) -> bool,
    ) -> Vec<WaitReport> {
        let now = self.now.max(now);
        let status_of = |meter, generation| self.status_of_meter(meter, generation, now);
        let at_work = self.registry.classes().filter_map(|index| {
            let (id, key) = (self.registry.class_id(index), self.registry.key(index));
            wanted(id, &key.rule, &key.values).then(|| self.report_waits(index, now)).flatten()
        });
        let at_rest = self.registry.dormant().filter_map(|(index, id, key)| {
            let causes = self.observation.causes_of_dormant(index)?;
            wanted(id, &key.rule, &key.values)
                .then(|| causes.report(id, key, 0, now, status_of))
                .flatten()
        });
        at_work.chain(at_rest).collect()
    }

    /// The wait causes of the classes in which these subjects have requests. O(their classes).
    pub fn wait_reports_of(&self, details: &[SubjectDetail], now: Time) -> Vec<WaitReport> {
        let now = self.now.max(now);
        let of = details.iter().flat_map(|one| one.indices.iter().zip(&one.classes));
        let classes: BTreeSet<(ClassIndex, ClassId)> = of.map(|(at, id)| (*at, *id)).collect();
        let known = classes.into_iter().filter(|(index, id)| self.registry.is_class(*index, *id));
        known.filter_map(|(index, _)| self.report_waits(index, now)).collect()
    }

    /// The selected subjects, with their classes and meters. O(subjects of the job) where one is
    /// given, else O(subjects).
    pub fn subject_details(&self, now: Time, payers: MeterPayers<'_>) -> Vec<SubjectDetail> {
        let now = self.now.max(now);
        let known = self.registry.subjects_by_identity(payers.job, None);
        let of = known.filter(|(who, _)| payers.has(who));
        of.map(|(_, index)| self.detail_of(index, now)).collect()
    }

    /// The rows that add up with one of [`SubjectDetail::reserved`] at a target, with itself, in order
    /// of their numbers. O(these rows).
    pub fn reserved_rows(&self, target: TargetId, row: EntitlementId) -> Vec<ReservedRow> {
        let rows = self.terms.entitlements();
        let all = rows.adding_up(row).filter_map(|(row, _)| {
            Some(ReservedRow {
                row,
                entitlement: rows.row(row)?.clone(),
                part: self.terms.part_of_row(row, target),
                ends: rows.ends(row),
                served: rows.served(row, target),
            })
        });
        all.collect()
    }

    /// The limits that requests of `who` in these directories pay, of any kind and at any target,
    /// with or without earlier requests. Nothing is created for it. O(rules + limits).
    pub fn limits_of(&self, who: &Identity, paths: PathSet, now: Time) -> Vec<MeterStatus> {
        let now = self.now.max(now);
        let mut found = BTreeMap::new();
        for kind in OpKind::ALL.iter().copied() {
            let rule = self.terms.rule_for(who, kind, paths);
            let class = self.registry.class_for(TargetId::FIRST, rule, who, kind).key;
            let mut meters = self.terms.meters_for(&class, who, kind, paths);
            for target in self.lanes.targets() {
                let target = &self.lanes.params(target).name;
                self.terms.entitle(&class, who, None, target, kind, &mut meters);
            }
            for terms in meters {
                found.entry(terms.key.clone()).or_insert(terms);
            }
        }
        let reports = found.into_iter().map(|(key, terms)| match self.meters.find(&key) {
            Some(meter) => self.status_of(&self.meters.figures(meter, now)),
            None => self.status_of(&terms.figures()),
        });
        reports.collect()
    }

    // ---- inside ----

    /// The active classes that are no branches.
    fn whole_classes(&self) -> impl Iterator<Item = ClassIndex> {
        self.registry.classes().filter(|class| self.registry.parent(*class).is_none())
    }

    /// The status of a meter, with the rule that its limit depends on.
    pub(super) fn status_of(&self, meter: &MeterFigures<'_>) -> MeterStatus {
        MeterStatus {
            scope: meter.key.scope(),
            rate: meter.rate,
            part: meter.part,
            used_per_sec: meter.used_per_sec,
            due: meter.due,
            waiting: meter.waiting,
            depends_on: self.terms.parent_of(meter.key),
        }
    }

    fn status_of_meter(
        &self,
        index: MeterIndex,
        generation: u32,
        now: Time,
    ) -> Option<MeterStatus> {
        let lives = self.meters.has(index, generation);
        lives.then(|| self.status_of(&self.meters.figures(index, now)))
    }

    fn detail_of(&self, index: SubjectIndex, now: Time) -> SubjectDetail {
        let (mut classes, mut meters) = (Vec::new(), Vec::new());
        for way in self.registry.ways_of(index) {
            classes.push((self.registry.class_id(way.class), way.class));
            meters
                .extend(way.chain.get().into_iter().flat_map(|chain| self.meters.of_chain(chain)));
        }
        classes.sort_unstable();
        classes.dedup();
        let (classes, indices): (_, Vec<_>) = classes.into_iter().unzip();
        meters.sort_unstable();
        meters.dedup();
        let groups = indices.iter().filter_map(|class| self.registry.key(*class).branch);
        let groups: BTreeSet<EntitlementId> = groups.collect();
        let status = |meter: &MeterIndex| self.status_of(&self.meters.figures(*meter, now));
        SubjectDetail {
            id: self.registry.id_of(index),
            target: self.registry.target(index),
            identity: Identity::clone(self.registry.identity(index)),
            classes,
            reserved: groups.into_iter().collect(),
            indices,
            meters: meters.iter().map(status).collect(),
            metadata: self.observation.metadata_of_subject(index),
            usage: self.observation.usage_of_subject(index),
        }
    }

    fn report_waits(&self, index: ClassIndex, now: Time) -> Option<WaitReport> {
        let (id, key) = (self.registry.class_id(index), self.registry.key(index));
        let (queued, ..) = self.lanes.load_of(index);
        let status_of = |meter, generation| self.status_of_meter(meter, generation, now);
        self.causes_of(index, now).report(id, key, queued, now, status_of)
    }

    /// The causes of an active class, with the current waiting added.
    fn causes_of(&self, class: ClassIndex, now: Time) -> WaitCauses {
        let mut causes = self.observation.causes_of(class);
        for place in QueuePlace::all_of(class) {
            let Some(waited) = self.lanes.waiting_now(place, WAIT_MIN_NS, now) else { continue };
            if self.lanes.is_waiting(place) {
                let head = self.lanes.waiting_head(place);
                causes.add_metered(waited, self.meters.at(head.chain, head.at), now);
            } else {
                causes.add_ready(waited, self.lanes.ready_causes(place).since(waited.began), now);
            }
        }
        causes
    }
}
