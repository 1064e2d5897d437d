//! Classification: from the identity of a request to the class and meters that it is charged to.
//!
//! ```text
//!   (identity, paths) ─► subject ─ kind ─► Classification ─┬─► class       (rule name, key)
//!                        cached per kind                   └─► MeterChain ─► meters (owner, key)
//! ```
//!
//! Rules are matched once for each subject and kind; `enqueue` then costs an array index.
//! Unreferenced classes, meters and subjects stay for a while. So an identity that returns finds
//! its tags and its debt, up to [`IDLE_MAX`] of them ([`IDLE_SUBJECTS_MAX`] of subjects, which have
//! nothing but sums to be found again).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use model::{
    Identity, JobId, KeyValue, Limit, LimitMode, Nid, OpKind, Ops, PathSet, Rule, RuleSet, Share,
    Weight, key_of,
};

use crate::activity::Activity;
use crate::class::Class;
use crate::dispatcher::Dispatcher;
use crate::ids::{ClassId, SubjectId};
use crate::meter::{ClassMeter, Meter, MeterChain, MeterKey, ceilings, decay_ceiling};
use crate::pattern::SubjectPattern;
use crate::report::{Usage, metadata};
use crate::reservation::ReservationTerms;
use crate::slab::NONE;

/// The key that identifies a class across changes of rules and reuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub(crate) rule: Arc<str>,
    pub(crate) values: Box<[KeyValue]>,
}

/// An identity at work in certain directories.
///
/// Fields that a request's arrival and completion change are in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Subject {
    /// How often it was taken and not released.
    refs: u32,
    /// The number of its requests that have not completed.
    pub(crate) outstanding: u32,
    /// The place of its job.
    pub(crate) job: u32,
    /// Its number among the idle; 0 while it is in use.
    pub(crate) idle: u64,
    pub(crate) usage: Usage,
    /// In the order of [`OpKind::ALL`]: reads and writes first.
    pub(crate) kinds: [SubjectRequests; OpKind::COUNT],
    /// Its part of the time of its job.
    pub(crate) activity: Activity,
    /// None before its first read or write.
    pub(crate) pattern: SubjectPattern,
    pub(crate) identity: Arc<Identity>,
    pub(crate) paths: PathSet,
    /// The export that it uses.
    pub(crate) export: Arc<str>,
}

/// A subject's requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubjectRequests {
    way: Classification,
    /// Backend operations that were served.
    pub(crate) ops: Ops,
}

/// The class and meters of a subject's requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classification {
    /// `NONE` until the rules were matched.
    pub(crate) class: u32,
    /// `NONE` where no meter applies.
    pub(crate) route: u32,
}

/// The registry of subjects, classes and meters by their keys.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    subjects: BTreeMap<Arc<Identity>, Vec<(PathSet, u32)>>,
    /// How many subjects there ever were.
    classes_made: u64,
    pub(crate) classes: BTreeMap<Arc<ClassKey>, u32>,
    pub(crate) dormant: BTreeMap<Arc<ClassKey>, u32>,
    pub(crate) meters: BTreeMap<MeterKey, u32>,
    /// By class and meter.
    links: BTreeMap<(u32, u32), u32>,
    /// Classes with a key of their own, active and dormant, by rule.
    keyed: BTreeMap<Arc<str>, u32>,
    pub(crate) idle_subjects: IdleList,
    pub(crate) idle_classes: IdleList,
    pub(crate) idle_meters: IdleList,
}

/// Unreferenced items, longest idle first.
#[derive(Debug, Default)]
pub(crate) struct IdleList {
    order: BTreeMap<u64, u32>,
    last: u64,
}

/// How many idle classes and meters are kept, each: enough for the jobs of a day, and some tens of
/// megabytes at most.
pub(crate) const IDLE_MAX: usize = 65_536;
/// How many idle subjects are kept, for users that still query them.
const IDLE_SUBJECTS_MAX: usize = 1_024;
/// How many idle meters are searched for one that owes nothing. Each call adds at most a few, so
/// this many keep up with them.
const DEBTORS_MAX: usize = 16;

impl Dispatcher {
    /// The subject for an identity in these directories; each call must be matched by one
    /// of [`Dispatcher::release_subject`].
    pub fn subject(&mut self, who: &Identity, paths: PathSet) -> SubjectId {
        self.subject_through(who, paths, &Arc::default())
    }

    /// The subject of requests through one export, for callers that count what each export let in.
    /// The rules know no exports.
    pub fn subject_through(
        &mut self,
        who: &Identity,
        paths: PathSet,
        door: &Arc<str>,
    ) -> SubjectId {
        let of = self.names.subjects.get(who).into_iter().flatten();
        let mut known = of.filter(|(p, _)| *p == paths).map(|(_, index)| *index);
        let known = known.find(|index| self.subjects[*index].export == *door);
        let index = known.unwrap_or_else(|| self.new_subject(who, paths, door));
        let subject = &mut self.subjects[index];
        subject.refs += 1;
        self.names.idle_subjects.remove(&mut subject.idle);
        SubjectId { index, generation: self.subjects.generation(index) }
    }

    /// Gives a subject back. Its requests that have not completed are not disturbed.
    ///
    /// # Panics
    /// If it was released as often as it was taken.
    pub fn release_subject(&mut self, id: SubjectId) {
        assert!(self.subjects.has(id.index, id.generation), "subject {id:?} is gone");
        let subject = &mut self.subjects[id.index];
        assert!(subject.refs > 0, "subject {id:?} was released already");
        subject.refs -= 1;
        self.make_subject_idle(id.index);
    }

    /// Class and meters of a subject's requests of one kind.
    pub(crate) fn classification(&mut self, subject: u32, kind: OpKind) -> Classification {
        match self.subjects[subject].kinds[kind as usize].way {
            Classification { class: NONE, .. } => self.classify(subject, kind),
            way => way,
        }
    }

    /// Counts a request of a subject in.
    pub(crate) fn count_in(&mut self, index: u32) {
        let subject = &mut self.subjects[index];
        subject.outstanding += 1;
        if subject.outstanding == 1 {
            self.begin_activity(index);
        }
    }

    /// Counts a request of a subject out.
    pub(crate) fn count_out(&mut self, index: u32) {
        let subject = &mut self.subjects[index];
        subject.outstanding -= 1;
        if subject.outstanding == 0 {
            self.end_activity(index);
        }
        self.make_subject_idle(index);
    }

    /// Drops the classifications of a subject, since its rules changed or it is idle.
    pub(crate) fn drop_classifications(&mut self, index: u32) {
        let ways = self.subjects[index].kinds.each_mut().map(|kind| kind.way.take());
        for way in ways.into_iter().flatten() {
            if way.route != NONE {
                self.drop_chain(way.route);
            }
            self.classes[way.class].refs -= 1;
            self.make_dormant(way.class);
        }
    }

    /// Drops one reference on a meter chain, and with the last one the chain.
    pub(crate) fn drop_chain(&mut self, index: u32) {
        self.routes[index].refs -= 1;
        if self.routes[index].refs > 0 {
            return;
        }
        let route = self.routes[index];
        self.routes.remove(index);
        for link in route.links() {
            self.drop_link(*link);
        }
    }

    fn make_subject_idle(&mut self, index: u32) {
        let subject = &self.subjects[index];
        if subject.refs > 0 || subject.outstanding > 0 || subject.idle != 0 {
            return;
        }
        self.drop_classifications(index);
        self.subjects[index].idle = self.names.idle_subjects.enter(index);
        if let Some(oldest) = self.names.idle_subjects.surplus(IDLE_SUBJECTS_MAX) {
            self.drop_subject(oldest);
        }
    }

    fn new_subject(&mut self, who: &Identity, paths: PathSet, door: &Arc<str>) -> u32 {
        let job = self.job_of_new_subject(&who.job);
        let who = Arc::new(who.clone());
        let index = self.subjects.insert(Subject {
            identity: who.clone(),
            paths,
            export: door.clone(),
            refs: 0,
            outstanding: 0,
            kinds: [SubjectRequests { way: Classification::UNKNOWN, ops: Ops::default() };
                OpKind::COUNT],
            pattern: None,
            job,
            usage: Usage::default(),
            activity: Activity::default(),
            idle: 0,
        });
        self.names.subjects.entry(who).or_default().push((paths, index));
        index
    }

    fn drop_subject(&mut self, index: u32) {
        let subject = &mut self.subjects[index];
        self.forgotten.0 += subject.usage;
        self.forgotten.1 += metadata(&subject.ops());
        self.names.idle_subjects.remove(&mut subject.idle);
        if let Some(of) = self.names.subjects.get_mut(&subject.identity) {
            of.retain(|(_, i)| *i != index);
            if of.is_empty() {
                self.names.subjects.remove(&subject.identity);
            }
        }
        let job = subject.job;
        self.subjects.remove(index);
        self.leave_job(job);
    }

    fn classify(&mut self, subject: u32, kind: OpKind) -> Classification {
        let rules = Arc::clone(&self.rules);
        let (who, paths) = (self.subjects[subject].identity.clone(), self.subjects[subject].paths);
        let rule = rules.rule_for(&who, kind, paths).map(|i| &rules.rules[i]);
        let class = self.class_for(rule, &who, kind);
        let key = self.classes[class].key.clone();
        let limits = self.limits_for(rule, &key, &who, kind, paths);
        let meters = limits.into_iter().map(|(limit, key)| self.meter_for(&limit, key));
        let meters: Vec<u32> = meters.collect();
        debug_assert!(meters.len() <= RuleSet::METERS_MAX, "the parser refuses such rules");
        let route = self.route_for(subject, class, &meters);
        let own = &mut self.classes[class];
        own.refs += 1;
        let way = Classification { class, route };
        self.subjects[subject].kinds[kind as usize].way = way;
        way
    }

    /// The meters that a request of a class pays, and their keys.
    pub(crate) fn limits_for(
        &self,
        rule: Option<&Rule>,
        class: &ClassKey,
        who: &Identity,
        kind: OpKind,
        paths: PathSet,
    ) -> Vec<(Limit, MeterKey)> {
        let rules = &self.rules;
        let effective = rule.and_then(|rule| self.dependents.effective(&rule.name));
        let own = rule.into_iter().flat_map(limits_of);
        let own = own.filter(|(limit, _)| limit.kinds.contains(kind)).map(|(limit, nth)| {
            let limit = Limit { rate: effective.unwrap_or(limit.rate), ..limit };
            (limit, MeterKey::of_rule(class, limit.kinds, limit.rate, nth))
        });
        let meters = rules.meters_for(who, kind, paths).map(|i| &rules.meters[i]).map(|meter| {
            let key = key_of(&meter.per, who, kind);
            (meter.limit, MeterKey::of_meter(&meter.name, meter.limit.rate, key))
        });
        let decays = rules.decays_for(who, kind, paths).map(|i| &rules.decays[i]).map(|decay| {
            (decay_ceiling(decay), MeterKey::of_decay(decay, key_of(&decay.per, who, kind)))
        });
        own.chain(meters).chain(decays).collect()
    }

    /// The key of the class that a request would get, without creating it.
    pub(crate) fn class_key_for(
        &self,
        rule: Option<&Rule>,
        who: &Identity,
        kind: OpKind,
    ) -> ClassKey {
        let Some(rule) = rule else {
            return ClassKey { rule: RuleSet::DEFAULT.into(), values: Box::default() };
        };
        let values = key_of(&rule.per, who, kind).into();
        let key = ClassKey { rule: rule.name.as_str().into(), values };
        let known = self.names.classes.contains_key(&key) || self.names.dormant.contains_key(&key);
        let classes = self.names.keyed.get(&*rule.name).copied().unwrap_or(0);
        let full = rule.max_classes.is_some_and(|most| classes >= most);
        if known || !full || self.idle_class_of(rule).is_some() {
            return key;
        }
        ClassKey { values: Box::default(), ..key }
    }

    /// The class of a rule that is idle for longest.
    fn idle_class_of(&self, rule: &Rule) -> Option<u32> {
        let of_rule = |key: &ClassKey| *key.rule == *rule.name && !key.values.is_empty();
        self.names.idle_classes.iter().find(|i| of_rule(&self.dormant[*i].key))
    }

    fn class_for(&mut self, rule: Option<&Rule>, who: &Identity, kind: OpKind) -> u32 {
        let Some(rule) = rule else {
            let key = ClassKey { rule: RuleSet::DEFAULT.into(), values: Box::default() };
            return self.class_named(key);
        };
        let named = self.names.keyed.get_key_value(&*rule.name);
        let name = named.map_or_else(|| rule.name.as_str().into(), |(name, _)| Arc::clone(name));
        let key = ClassKey { rule: name, values: key_of(&rule.per, who, kind).into() };
        let known = self.names.classes.contains_key(&key) || self.names.dormant.contains_key(&key);
        if !known && !rule.per.is_empty() && !self.has_room(rule) {
            return self.class_named(ClassKey { values: Box::default(), ..key });
        }
        self.class_named(key)
    }

    /// Whether a rule may make one more class, if necessary in place of an idle one.
    fn has_room(&mut self, rule: &Rule) -> bool {
        let Some(most) = rule.max_classes else { return true };
        if self.names.keyed.get(&*rule.name).copied().unwrap_or(0) < most {
            return true;
        }
        let oldest = self.idle_class_of(rule);
        if let Some(oldest) = oldest {
            self.drop_dormant(oldest);
        }
        oldest.is_some()
    }

    fn class_named(&mut self, key: ClassKey) -> u32 {
        if let Some(index) = self.names.classes.get(&key) {
            return *index;
        }
        if let Some(index) = self.revive_class(&key) {
            return index;
        }
        if !key.values.is_empty() {
            *self.names.keyed.entry(key.rule.clone()).or_default() += 1;
        }
        self.names.classes_made += 1;
        let id = ClassId(self.names.classes_made);
        self.add_class(Class::new(Arc::new(key), id))
    }

    /// Makes a class active.
    pub(crate) fn add_class(&mut self, class: Class) -> u32 {
        let key = class.key.clone();
        let index = self.classes.insert(class);
        self.names.classes.insert(key, index);
        for lane in &mut self.lanes {
            lane.grow_classes(self.classes.span());
        }
        self.configure_class(index);
        index
    }

    /// Gives a class what the rule of its name grants now.
    pub(crate) fn configure_class(&mut self, index: u32) {
        let part = self.grants.part_of_class(&self.classes[index].key);
        let members = self.grants.proxies();
        let class = &mut self.classes[index];
        class.watched = self.dependents.watched(&class.key.rule);
        let Some(rule) = self.rules.rule(&class.key.rule) else {
            // A class without a rule, or whose rule is gone.
            class.set_weight(Weight::ONE, part, members);
            (class.slots_cap, class.min_local_service_ppm) = (u32::MAX, 0);
            class.write_mode = None;
            class.set_reserve(None, self.now);
            return;
        };
        let overflow = !rule.per.is_empty() && class.key.values.is_empty();
        class.set_weight(rule.effective_weight(), part, members);
        class.min_local_service_ppm = rule.min_local_service_ppm.unwrap_or(0);
        class.slots_cap = rule.slots.unwrap_or(u32::MAX);
        class.write_mode = rule.write_mode;
        let effective = self.dependents.effective(&rule.name);
        let effective = effective.filter(|_| rule.limit_mode == LimitMode::Realtime);
        let promised = rule.reserved_rate().map(|rate| effective.unwrap_or(rate));
        let account = Share::ratio(rule.reservation_metadata().unwrap_or(0).into(), 1_000_000);
        let promised = promised.filter(|_| !overflow);
        let terms = promised.map(|rate| ReservationTerms { rate, part, account });
        class.set_reserve(terms, self.reservation_clock.at(self.now));
    }

    fn meter_for(&mut self, limit: &Limit, key: MeterKey) -> u32 {
        if let Some(index) = self.names.meters.get(&key) {
            return *index;
        }
        let grant = self.grants.of_meter(&key);
        let index = self.meters.insert(Meter::granted(limit, grant, key.clone()));
        self.names.meters.insert(key, index);
        for lane in &mut self.lanes {
            lane.deadline_positions.grow(self.meters.span());
        }
        index
    }

    fn drop_meter(&mut self, index: u32) {
        let meter = &mut self.meters[index];
        self.names.idle_meters.remove(&mut meter.idle);
        self.names.meters.remove(&meter.key);
        self.meters.remove(index);
    }

    /// A subject's chain over these meters, shared by all its kinds that pay the same.
    fn route_for(&mut self, subject: u32, class: u32, meters: &[u32]) -> u32 {
        if meters.is_empty() {
            return NONE;
        }
        let links: Vec<u32> = meters.iter().map(|meter| self.link_for(class, *meter)).collect();
        let ways = self.subjects[subject].ways().filter(|way| way.route != NONE);
        let same = ways.map(|way| way.route).find(|route| self.routes[*route].links() == links);
        let index = same.unwrap_or_else(|| self.new_route(&links));
        self.routes[index].refs += 1;
        index
    }

    fn new_route(&mut self, links: &[u32]) -> u32 {
        for link in links {
            self.links[*link].refs += 1;
        }
        self.routes.insert(MeterChain::new(links))
    }

    fn link_for(&mut self, class: u32, meter: u32) -> u32 {
        if let Some(index) = self.names.links.get(&(class, meter)) {
            return *index;
        }
        let link = ClassMeter::new(class, meter);
        let index = self.links.insert(link);
        self.names.links.insert((class, meter), index);
        let meter = &mut self.meters[meter];
        meter.refs += 1;
        self.names.idle_meters.remove(&mut meter.idle);
        index
    }

    fn drop_link(&mut self, index: u32) {
        self.links[index].refs -= 1;
        if self.links[index].refs > 0 {
            return;
        }
        let ClassMeter { class, meter, .. } = self.links[index];
        self.names.links.remove(&(class, meter));
        self.links.remove(index);
        let of = &mut self.meters[meter];
        of.refs -= 1;
        if of.refs == 0 {
            of.idle = self.names.idle_meters.enter(meter);
            self.forget_meters();
        }
    }

    /// Drops idle meters that are as good as new. A meter that still owes is kept, since its key
    /// would return with a full burst. If there are too many, more are searched.
    fn forget_meters(&mut self) {
        for look in 0..DEBTORS_MAX {
            let Some(oldest) = self.names.idle_meters.iter().next() else { return };
            if !self.meters[oldest].has_state(self.now) {
                self.drop_meter(oldest);
                continue;
            }
            if look > 0 && self.names.idle_meters.surplus(IDLE_MAX).is_none() {
                return;
            }
            let meter = &mut self.meters[oldest];
            self.names.idle_meters.remove(&mut meter.idle);
            meter.idle = self.names.idle_meters.enter(oldest);
        }
    }
}

/// The limits of a rule, each with its number among those of the same kinds and unit.
pub(crate) fn limits_of(rule: &Rule) -> impl Iterator<Item = (Limit, usize)> {
    let alike = |a: &Limit, b: &Limit| a.kinds == b.kinds && a.rate.is_bytes() == b.rate.is_bytes();
    let before =
        move |i, limit: &Limit| rule.ceilings()[..i].iter().filter(|l| alike(l, limit)).count();
    ceilings(rule).enumerate().map(move |(i, limit)| (limit, before(i, &limit)))
}

impl Registry {
    /// The subjects in the order of identities, from the first of a job on: identities begin with
    /// their job.
    pub(crate) fn subjects_from(
        &self,
        job: Option<&JobId>,
    ) -> impl Iterator<Item = (&Identity, &[(PathSet, u32)])> {
        let first = job.map(|job| Identity {
            job: job.clone(),
            uid: 0,
            gid: 0,
            projid: None,
            nid: Nid::least(),
        });
        let from = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let known = self.subjects.range::<Identity, _>((from, Bound::Unbounded));
        known.map(|(who, places)| (&**who, &**places))
    }

    /// Counts a forgotten class out.
    pub(crate) fn uncount(&mut self, key: &ClassKey) {
        if !key.values.is_empty()
            && let Some(count) = self.keyed.get_mut(&key.rule)
        {
            *count -= 1;
            if *count == 0 {
                self.keyed.remove(&key.rule);
            }
        }
    }
}

impl Subject {
    /// The classes and meters of the kinds of request that it made.
    pub(crate) fn ways(&self) -> impl Iterator<Item = Classification> {
        self.kinds.iter().map(|kind| kind.way).filter(|way| way.class != NONE)
    }

    /// Operations by kind, in the order of [`OpKind::ALL`].
    pub(crate) fn ops(&self) -> [Ops; OpKind::COUNT] {
        self.kinds.each_ref().map(|kind| kind.ops)
    }
}

impl Classification {
    const UNKNOWN: Classification = Classification { class: NONE, route: NONE };

    fn take(&mut self) -> Option<Classification> {
        let way = std::mem::replace(self, Classification::UNKNOWN);
        (way.class != NONE).then_some(way)
    }
}

impl IdleList {
    /// Adds an item as the last to be dropped; its number is never 0.
    pub(crate) fn enter(&mut self, index: u32) -> u64 {
        self.last += 1;
        self.order.insert(self.last, index);
        self.last
    }

    /// Takes an item out if it is in.
    pub(crate) fn remove(&mut self, number: &mut u64) {
        if *number != 0 {
            self.order.remove(number);
            *number = 0;
        }
    }

    /// The longest idle item if there are more than `most`.
    pub(crate) fn surplus(&self, most: usize) -> Option<u32> {
        if self.order.len() <= most {
            return None;
        }
        self.order.first_key_value().map(|(_, index)| *index)
    }

    /// The items, longest idle first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.order.values().copied()
    }
}
