//! The registry: subjects and classes by their keys, active and dormant.
//!
//! ```text
//!   (target, identity, paths) ─► subject ─ kind ─► Classification ─┬─► class   (target, rule name, key)
//!                                 cached per kind                  └─► chain of meters
//!   class ── last subject leaves ─► dormant ── its key returns ─► class
//!                                     └─ more than IDLE_MAX: the one dormant for longest is dropped
//! ```
//!
//! Rules are matched once for each subject and kind; `enqueue` then costs an array index.
//! Unreferenced classes and subjects stay for a while. So an identity that returns finds its tags,
//! up to [`IDLE_MAX`] classes ([`IDLE_SUBJECTS_MAX`] subjects, which have nothing but sums to be
//! found again). It gives out the indices at which the other owners keep their parts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use model::{Directory, FilePlace, Identity, JobId, Nid, OpKind, PathSet, TargetId};
use rules::{EntitlementId, Rule, RuleSet, key_of};

use crate::idle::{IDLE_MAX, IdleList};
use crate::ids::{ClassId, SubjectId};
use crate::index::{
    ChainIndex, ClassIndex, DormantIndex, OptionalIndex, SubjectIndex, TableIndex as _,
};
use crate::keys::ClassKey;
use crate::slab::Slab;

/// Subjects and classes by their keys.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    subjects: Slab<SubjectIndex, Subject>,
    by_identity: BTreeMap<Arc<Identity>, BTreeMap<SubjectPlace, SubjectIndex>>,
    /// How many identities each job has.
    by_job: BTreeMap<JobId, u32>,
    by_uid: BTreeMap<u32, BTreeSet<SubjectIndex>>,
    /// How often a job or a user came or went.
    identity_changes: u64,
    idle_subjects: IdleList<SubjectIndex>,
    classes: Slab<ClassIndex, RegisteredClass>,
    by_key: BTreeMap<Arc<ClassKey>, ClassIndex>,
    dormant: Slab<DormantIndex, DormantClass>,
    dormant_by_key: BTreeMap<Arc<ClassKey>, DormantIndex>,
    idle_classes: IdleList<DormantIndex>,
    /// How many classes there ever were.
    classes_made: u64,
    /// How many active classes have no references.
    unreferenced: usize,
    /// By rule: its combinations of `per` that have classes, active or dormant, at any target.
    keyed: BTreeMap<Arc<str>, u32>,
    /// Combinations that share the class of their rule, with the subjects that have them. They do so
    /// at every target until none of these is classified: a limit of a combination is one over all
    /// targets.
    sharing: BTreeMap<ClassKey, BTreeSet<SubjectIndex>>,
    /// The combinations that each of these subjects has there.
    shared_by: BTreeMap<SubjectIndex, Vec<ClassKey>>,
    /// By rule how many combinations came to be idle everywhere since [`Registry::unshare`].
    freed: BTreeMap<Arc<str>, usize>,
    /// Active branches, by the group of rows that reserves for them.
    branches: GroupTable<ClassIndex>,
    dormant_branches: GroupTable<DormantIndex>,
}

/// Branches by the group of rows in their keys.
type GroupTable<I> = BTreeMap<EntitlementId, BTreeSet<I>>;

/// What tells the subjects of one identity apart: target, files and export.
pub(crate) type SubjectPlace = (TargetId, FilePlace, Arc<str>);

/// An identity at work in certain directories.
///
/// Fields that a request's arrival and completion change are in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Subject {
    /// How often it was taken and not released.
    refs: u32,
    /// The number of its requests that have not completed.
    outstanding: u32,
    /// Its number among the idle; 0 while it is in use.
    idle: u64,
    target: TargetId,
    /// In the order of [`OpKind::ALL`]: reads and writes first.
    ways: [CachedWay; OpKind::COUNT],
    identity: Arc<Identity>,
    paths: PathSet,
    /// The mark of its files.
    mark: Option<Directory>,
    /// The export that it uses.
    export: Arc<str>,
}

/// The class and meters of a subject's requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classification {
    pub(crate) class: ClassIndex,
    pub(crate) chain: OptionalIndex<ChainIndex>,
}

/// The same as it is kept: without a class until the rules were matched.
#[derive(Clone, Copy, Debug)]
struct CachedWay {
    class: OptionalIndex<ClassIndex>,
    chain: OptionalIndex<ChainIndex>,
}

/// A class with references or requests.
#[derive(Debug)]
struct RegisteredClass {
    key: Arc<ClassKey>,
    id: ClassId,
    /// Kinds of subjects that lead here, and branches of it.
    refs: u32,
    /// The class of which it is a branch.
    parent: OptionalIndex<ClassIndex>,
}

/// A class without waiting or running requests and without references.
#[derive(Debug)]
struct DormantClass {
    key: Arc<ClassKey>,
    id: ClassId,
    /// Its number among the dormant classes.
    idle: u64,
}

/// The class that the rules choose for a request.
#[derive(Debug)]
pub(crate) struct ChosenClass {
    pub(crate) key: ClassKey,
    /// Its combination, if that shares the class with others.
    pub(crate) shares: Option<ClassKey>,
    /// The dormant classes that are to be dropped for it, since its rule has as many as it may.
    pub(crate) surplus: Vec<DormantIndex>,
}

/// A class that was made active.
#[derive(Debug)]
pub(crate) struct NewClass {
    pub(crate) index: ClassIndex,
    pub(crate) id: ClassId,
    /// Where its parts were kept, if it was dormant.
    pub(crate) dormant: Option<DormantIndex>,
}

/// A class that was made dormant.
#[derive(Debug)]
pub(crate) struct RestedClass {
    pub(crate) dormant: DormantIndex,
    /// The class that is to be dropped, since there are too many.
    pub(crate) surplus: Option<DormantIndex>,
    /// The class of which it was a branch.
    pub(crate) parent: Option<ClassIndex>,
}

/// How many idle subjects are kept, for users that still query them.
const IDLE_SUBJECTS_MAX: usize = 1_024;

impl Registry {
    // ---- subjects ----

    /// The subject of an identity in these directories through an export, if there is one.
    pub(crate) fn find_subject(
        &self,
        target: TargetId,
        who: &Identity,
        place: &FilePlace,
        export: &Arc<str>,
    ) -> Option<SubjectIndex> {
        let of_identity = self.by_identity.get(who)?;
        of_identity.get(&(target, place.clone(), export.clone())).copied()
    }

    /// Another subject of a job.
    pub(crate) fn subject_of_job(&self, job: &JobId) -> Option<SubjectIndex> {
        self.subjects_by_identity(Some(job), None).next().map(|(_, index)| index)
    }

    /// A new subject without references.
    pub(crate) fn add_subject(
        &mut self,
        target: TargetId,
        who: &Identity,
        place: FilePlace,
        export: &Arc<str>,
    ) -> SubjectIndex {
        let who = Arc::new(who.clone());
        let FilePlace { paths, mark } = place.clone();
        let index = self.subjects.insert(Subject {
            target,
            identity: who.clone(),
            paths,
            mark,
            export: export.clone(),
            refs: 0,
            outstanding: 0,
            ways: [CachedWay::UNKNOWN; OpKind::COUNT],
            idle: 0,
        });
        let of_user = self.by_uid.entry(who.uid).or_default();
        self.identity_changes += u64::from(of_user.is_empty());
        of_user.insert(index);
        let of_identity = self.by_identity.entry(who.clone()).or_default();
        if of_identity.is_empty() {
            let identities = self.by_job.entry(who.job.clone()).or_default();
            self.identity_changes += u64::from(*identities == 0);
            *identities += 1;
        }
        of_identity.insert((target, place, export.clone()), index);
        index
    }

    /// Adds a reference on a subject.
    pub(crate) fn retain_subject(&mut self, index: SubjectIndex) -> SubjectId {
        let subject = &mut self.subjects[index];
        subject.refs += 1;
        self.idle_subjects.remove(&mut subject.idle);
        self.id_of(index)
    }

    /// Drops a reference on a subject.
    ///
    /// # Panics
    /// If it was released as often as it was taken.
    pub(crate) fn release_subject(&mut self, id: SubjectId) -> SubjectIndex {
        let index = self.find(id);
        let subject = &mut self.subjects[index];
        assert!(subject.refs > 0, "subject {id:?} was released already");
        subject.refs -= 1;
        index
    }

    /// A subject that was taken.
    ///
    /// # Panics
    /// If it was released as often as it was taken.
    #[inline]
    pub(crate) fn find(&self, id: SubjectId) -> SubjectIndex {
        let index = SubjectIndex::new(id.index);
        assert!(self.subjects.has(index, id.generation), "subject {id:?} is gone");
        index
    }

    /// The id of a subject.
    #[inline]
    pub(crate) fn id_of(&self, index: SubjectIndex) -> SubjectId {
        SubjectId { index: index.raw(), generation: self.subjects.generation(index) }
    }

    /// Counts a request of a subject in. Returns whether it is the only one.
    #[inline]
    pub(crate) fn count_in(&mut self, index: SubjectIndex) -> bool {
        let subject = &mut self.subjects[index];
        subject.outstanding += 1;
        subject.outstanding == 1
    }

    /// Counts a request of a subject out. Returns whether it was the last one.
    #[inline]
    pub(crate) fn count_out(&mut self, index: SubjectIndex) -> bool {
        let subject = &mut self.subjects[index];
        subject.outstanding -= 1;
        subject.outstanding == 0
    }

    /// Whether a subject has neither references nor requests, and is not among the idle yet.
    #[inline]
    pub(crate) fn is_unused(&self, index: SubjectIndex) -> bool {
        let subject = &self.subjects[index];
        subject.refs == 0 && subject.outstanding == 0 && subject.idle == 0
    }

    /// Puts an unused subject among the idle. Returns the one that is dropped for it, if there are
    /// too many.
    pub(crate) fn rest_subject(&mut self, index: SubjectIndex) -> Option<SubjectIndex> {
        self.subjects[index].idle = self.idle_subjects.enter(index);
        self.idle_subjects.surplus(IDLE_SUBJECTS_MAX)
    }

    /// Forgets an idle subject.
    pub(crate) fn drop_subject(&mut self, index: SubjectIndex) {
        let subject = &mut self.subjects[index];
        self.idle_subjects.remove(&mut subject.idle);
        let (who, mark) = (subject.identity.clone(), subject.mark.clone());
        let files = FilePlace { paths: subject.paths, mark };
        let place = (subject.target, files, subject.export.clone());
        self.subjects.remove(index);
        let of_user = self.by_uid.get_mut(&who.uid).expect("it has this subject");
        of_user.remove(&index);
        if of_user.is_empty() {
            self.by_uid.remove(&who.uid);
            self.identity_changes += 1;
        }
        let of_identity = self.by_identity.get_mut(&who).expect("it has this subject");
        of_identity.remove(&place);
        if of_identity.is_empty() {
            self.by_identity.remove(&who);
            count_out(&mut self.by_job, who.job.clone());
            self.identity_changes += u64::from(!self.by_job.contains_key(&who.job));
        }
    }

    /// Class and meters of a subject's requests of one kind, if the rules were matched.
    #[inline]
    pub(crate) fn way(&self, index: SubjectIndex, kind: OpKind) -> Option<Classification> {
        self.subjects[index].ways[kind as usize].get()
    }

    /// Keeps class and meters of a subject's requests of one kind.
    pub(crate) fn set_way(
        &mut self,
        index: SubjectIndex,
        kind: OpKind,
        class: ClassIndex,
        chain: OptionalIndex<ChainIndex>,
    ) -> Classification {
        self.subjects[index].ways[kind as usize] = CachedWay { class: class.into(), chain };
        self.retain_class(class);
        Classification { class, chain }
    }

    /// Takes the classifications of a subject, since its rules changed or it is idle. Each was a
    /// reference on its class, which is dropped, and on its chain.
    pub(crate) fn take_ways(&mut self, index: SubjectIndex) -> Vec<Classification> {
        let ways = &mut self.subjects[index].ways;
        let taken = ways.iter_mut().map(|way| std::mem::replace(way, CachedWay::UNKNOWN));
        let taken: Vec<Classification> = taken.filter_map(CachedWay::get).collect();
        taken.iter().for_each(|way| self.release_class(way.class));
        for combination in self.shared_by.remove(&index).into_iter().flatten() {
            if let Entry::Occupied(mut of) = self.sharing.entry(combination) {
                of.get_mut().remove(&index);
                if of.get().is_empty() {
                    of.remove();
                }
            }
        }
        taken
    }

    /// The classifications of a subject.
    pub(crate) fn ways_of(&self, index: SubjectIndex) -> impl Iterator<Item = Classification> {
        self.subjects[index].ways.iter().copied().filter_map(CachedWay::get)
    }

    /// The classifications of all subjects.
    pub(crate) fn ways(&self) -> impl Iterator<Item = Classification> {
        self.subjects.indices().flat_map(|index| self.ways_of(index))
    }

    pub(crate) fn identity(&self, index: SubjectIndex) -> &Arc<Identity> {
        &self.subjects[index].identity
    }

    pub(crate) fn paths(&self, index: SubjectIndex) -> PathSet {
        self.subjects[index].paths
    }

    /// The mark of a subject's files.
    pub(crate) fn mark(&self, index: SubjectIndex) -> Option<&Directory> {
        self.subjects[index].mark.as_ref()
    }

    pub(crate) fn export(&self, index: SubjectIndex) -> &Arc<str> {
        &self.subjects[index].export
    }

    /// The target of a subject's requests.
    #[inline]
    pub(crate) fn target(&self, index: SubjectIndex) -> TargetId {
        self.subjects[index].target
    }

    /// The jobs of all subjects.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.by_job.keys()
    }

    /// The users of all subjects.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> {
        self.by_uid.keys().copied()
    }

    /// How often a job or a user came or went.
    pub(crate) fn identity_changes(&self) -> u64 {
        self.identity_changes
    }

    /// The indices of all subjects.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = SubjectIndex> {
        self.subjects.indices()
    }

    /// Whether a subject has requests.
    pub(crate) fn is_busy(&self, index: SubjectIndex) -> bool {
        self.subjects[index].outstanding > 0
    }

    /// Subjects that have requests.
    pub(crate) fn busy_subjects(&self) -> Vec<SubjectIndex> {
        let busy = self.subjects.iter().filter(|(_, subject)| subject.outstanding > 0);
        busy.map(|(index, _)| index).collect()
    }

    /// The subject at a place, if there is one.
    pub(crate) fn subject_at(&self, place: usize) -> Option<SubjectIndex> {
        self.subjects.at(place)
    }

    /// The end of the places of subjects.
    pub(crate) fn subjects_end(&self) -> usize {
        self.subjects.span()
    }

    /// The subjects in the order of identities, which begin with job and user: all, or those of a job,
    /// or of one user of it.
    pub(crate) fn subjects_by_identity(
        &self,
        job: Option<&JobId>,
        uid: Option<u32>,
    ) -> impl Iterator<Item = (&Identity, SubjectIndex)> {
        let first = job.map(|job| Identity {
            job: job.clone(),
            uid: uid.unwrap_or(0),
            gid: 0,
            projid: None,
            nid: Nid::least(),
        });
        let from = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let known = self.by_identity.range::<Identity, _>((from, Bound::Unbounded));
        let known = known.take_while(move |(who, _)| {
            first
                .as_ref()
                .is_none_or(|first| who.job == first.job && (uid.is_none() || who.uid == first.uid))
        });
        known.flat_map(|(who, places)| places.values().map(|index| (&**who, *index)))
    }

    /// The subjects of a user.
    pub(crate) fn subjects_of_user(&self, uid: u32) -> impl Iterator<Item = SubjectIndex> {
        self.by_uid.get(&uid).into_iter().flatten().copied()
    }

    // ---- classes ----

    /// The active class of a key.
    pub(crate) fn find_class(&self, key: &ClassKey) -> Option<ClassIndex> {
        self.by_key.get(key).copied()
    }

    /// The dormant class of a key.
    pub(crate) fn find_dormant(&self, key: &ClassKey) -> Option<DormantIndex> {
        self.dormant_by_key.get(key).copied()
    }

    /// The class that a request gets, without creating it.
    pub(crate) fn class_for(
        &self,
        target: TargetId,
        rule: Option<&Rule>,
        who: &Identity,
        kind: OpKind,
    ) -> ChosenClass {
        let name = rule.map_or(RuleSet::DEFAULT, |rule| &rule.name);
        // One name for all classes of a rule.
        let known = self.keyed.get_key_value(name);
        let name = known.map_or_else(|| name.into(), |(name, _)| name.clone());
        let values = rule.map_or_else(Vec::new, |rule| key_of(&rule.per, who, kind)).into();
        let key = ClassKey { rule: name, values, branch: None, target };
        let own = |key, surplus| ChosenClass { key, shares: None, surplus };
        let Some(most) = rule.and_then(|rule| rule.max_classes) else { return own(key, vec![]) };
        if self.is_known(&key) {
            return own(key, vec![]);
        }
        let combination = ClassKey { target: TargetId::FIRST, ..key.clone() };
        if !self.sharing.contains_key(&combination) {
            if self.keyed.get(&key.rule).is_none_or(|count| *count < most) {
                return own(key, vec![]);
            }
            let surplus = self.idle_of(&key.rule);
            if !surplus.is_empty() {
                return own(key, surplus);
            }
        }
        let key = ClassKey { values: Box::default(), ..key };
        ChosenClass { key, shares: Some(combination), surplus: vec![] }
    }

    /// Notes that a combination of a subject shares a class.
    pub(crate) fn note_shared(&mut self, subject: SubjectIndex, combination: ClassKey) {
        let of = self.shared_by.entry(subject).or_default();
        if !of.contains(&combination) {
            of.push(combination.clone());
            self.sharing.entry(combination).or_default().insert(subject);
        }
    }

    /// Lets all combinations that share a class have their own, once they are classified.
    pub(crate) fn forget_shared(&mut self) {
        self.sharing.clear();
        self.shared_by.clear();
        self.freed.clear();
    }

    /// Lets as many combinations that share a class have their own as others came to be idle since the
    /// last call. Returns the subjects that are to be classified for that: not many more than `most`,
    /// and the others with the next calls.
    pub(crate) fn unshare(&mut self, most: usize) -> Vec<SubjectIndex> {
        let mut subjects = Vec::new();
        while let Some(mut of_rule) = self.freed.first_entry() {
            let (rule, room) = (of_rule.key().clone(), of_rule.get_mut());
            let first = ClassKey { rule, values: [].into(), branch: None, target: TargetId::FIRST };
            let next = self.sharing.range(&first..).next();
            let next = next.filter(|(key, _)| *room > 0 && key.rule == first.rule);
            let Some(combination) = next.map(|(key, _)| key.clone()) else {
                of_rule.remove();
                continue;
            };
            if subjects.len() >= most {
                break;
            }
            *room -= 1;
            for subject in self.sharing.remove(&combination).into_iter().flatten() {
                if let Some(of) = self.shared_by.get_mut(&subject) {
                    of.retain(|shared| *shared != combination);
                }
                subjects.push(subject);
            }
        }
        subjects
    }

    /// Whether [`Registry::unshare`] has something to do.
    pub(crate) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Whether an active class is there for its requests alone: no subject's next one leads there.
    #[inline]
    pub(crate) fn has_unreferenced(&self) -> bool {
        self.unreferenced > 0
    }

    /// Makes a class active that is not: a dormant one or a new one, or a branch of `parent`.
    pub(crate) fn activate(&mut self, key: ClassKey, parent: Option<ClassIndex>) -> NewClass {
        if let Some(dormant) = self.dormant_by_key.remove(&key) {
            let known = &mut self.dormant[dormant];
            self.idle_classes.remove(&mut known.idle);
            let (key, id) = (known.key.clone(), known.id);
            leave_group(&mut self.dormant_branches, &key, dormant);
            self.dormant.remove(dormant);
            let index = self.insert_class(key, id, parent);
            return NewClass { index, id, dormant: Some(dormant) };
        }
        if key.counts() && !self.is_known(&key) {
            *self.keyed.entry(key.rule.clone()).or_default() += 1;
        }
        self.classes_made += 1;
        let id = ClassId(self.classes_made);
        NewClass { index: self.insert_class(Arc::new(key), id, parent), id, dormant: None }
    }

    fn insert_class(
        &mut self,
        key: Arc<ClassKey>,
        id: ClassId,
        parent: Option<ClassIndex>,
    ) -> ClassIndex {
        if let Some(parent) = parent {
            self.retain_class(parent);
        }
        self.unreferenced += 1;
        let parent = parent.map_or(OptionalIndex::NONE, OptionalIndex::from);
        let index = self.classes.insert(RegisteredClass { key: key.clone(), id, refs: 0, parent });
        join_group(&mut self.branches, &key, index);
        self.by_key.insert(key, index);
        index
    }

    fn retain_class(&mut self, index: ClassIndex) {
        let refs = &mut self.classes[index].refs;
        self.unreferenced -= usize::from(*refs == 0);
        *refs += 1;
    }

    fn release_class(&mut self, index: ClassIndex) {
        let refs = &mut self.classes[index].refs;
        *refs -= 1;
        self.unreferenced += usize::from(*refs == 0);
    }

    /// Whether an active class has no references.
    #[inline]
    pub(crate) fn is_unreferenced(&self, index: ClassIndex) -> bool {
        self.classes.lives(index) && self.classes[index].refs == 0
    }

    /// Makes a class dormant.
    pub(crate) fn rest_class(&mut self, index: ClassIndex) -> RestedClass {
        let RegisteredClass { key, id, parent, .. } = &self.classes[index];
        let (key, id, parent) = (key.clone(), *id, parent.get());
        if let Some(parent) = parent {
            self.release_class(parent);
        }
        leave_group(&mut self.branches, &key, index);
        self.by_key.remove(&key);
        if !self.sharing.is_empty()
            && key.counts()
            && at_targets(&self.by_key, &key).next().is_none()
        {
            *self.freed.entry(key.rule.clone()).or_default() += 1;
        }
        self.classes.remove(index);
        self.unreferenced -= 1;
        let dormant = self.dormant.insert(DormantClass { key: key.clone(), id, idle: 0 });
        self.dormant[dormant].idle = self.idle_classes.enter(dormant);
        join_group(&mut self.dormant_branches, &key, dormant);
        self.dormant_by_key.insert(key, dormant);
        RestedClass { dormant, surplus: self.idle_classes.surplus(IDLE_MAX), parent }
    }

    /// Gives an active branch a key that no other class has.
    pub(crate) fn rekey(&mut self, index: ClassIndex, key: ClassKey) {
        let known = &mut self.classes[index].key;
        rekey(known, key, index, &mut self.by_key, &mut self.branches);
    }

    /// The same of a dormant branch.
    pub(crate) fn rekey_dormant(&mut self, index: DormantIndex, key: ClassKey) {
        let known = &mut self.dormant[index].key;
        rekey(known, key, index, &mut self.dormant_by_key, &mut self.dormant_branches);
    }

    /// Forgets a dormant class.
    pub(crate) fn drop_dormant(&mut self, index: DormantIndex) {
        let known = &mut self.dormant[index];
        self.idle_classes.remove(&mut known.idle);
        let key = known.key.clone();
        leave_group(&mut self.dormant_branches, &key, index);
        self.dormant.remove(index);
        self.dormant_by_key.remove(&key);
        if key.counts() && !self.is_known(&key) {
            count_out(&mut self.keyed, key.rule.clone());
        }
    }

    pub(crate) fn key(&self, index: ClassIndex) -> &Arc<ClassKey> {
        &self.classes[index].key
    }

    #[inline]
    pub(crate) fn class_id(&self, index: ClassIndex) -> ClassId {
        self.classes[index].id
    }

    /// Whether the class of that id is at that place.
    pub(crate) fn is_class(&self, index: ClassIndex, id: ClassId) -> bool {
        self.classes.lives(index) && self.classes[index].id == id
    }

    /// The indices of all active classes.
    pub(crate) fn classes(&self) -> impl Iterator<Item = ClassIndex> {
        self.classes.indices()
    }

    /// The active class at a place, if there is one.
    pub(crate) fn class_at(&self, place: usize) -> Option<ClassIndex> {
        self.classes.at(place)
    }

    /// One more than the last place of an active class.
    pub(crate) fn class_places(&self) -> usize {
        self.classes.span()
    }

    /// Indices, ids and keys of the dormant classes.
    pub(crate) fn dormant(&self) -> impl Iterator<Item = (DormantIndex, ClassId, &Arc<ClassKey>)> {
        self.dormant.iter().map(|(index, known)| (index, known.id, &known.key))
    }

    /// The active branches for which a group of rows reserves.
    pub(crate) fn branches(&self, group: EntitlementId) -> Vec<ClassIndex> {
        self.branches.get(&group).into_iter().flatten().copied().collect()
    }

    /// The dormant branches of a group.
    pub(crate) fn dormant_branches(&self, group: EntitlementId) -> Vec<DormantIndex> {
        self.dormant_branches.get(&group).into_iter().flatten().copied().collect()
    }

    /// The groups of rows that reserve for active branches.
    pub(crate) fn groups(&self) -> Vec<EntitlementId> {
        self.branches.keys().copied().collect()
    }

    /// The class of which a class is a branch.
    pub(crate) fn parent(&self, index: ClassIndex) -> Option<ClassIndex> {
        self.classes[index].parent.get()
    }

    /// The key of a dormant class.
    pub(crate) fn dormant_key(&self, index: DormantIndex) -> &Arc<ClassKey> {
        &self.dormant[index].key
    }

    /// Whether a combination has a class, active or dormant, at any target.
    fn is_known(&self, key: &ClassKey) -> bool {
        let is_dormant = || at_targets(&self.dormant_by_key, key).next().is_some();
        at_targets(&self.by_key, key).next().is_some() || is_dormant()
    }

    /// The dormant classes of the combination of a rule that is idle everywhere for longest.
    fn idle_of(&self, rule: &str) -> Vec<DormantIndex> {
        let is_idle_since = |index: &DormantIndex| {
            let DormantClass { key, idle, .. } = &self.dormant[*index];
            *key.rule == *rule
                && key.counts()
                && at_targets(&self.by_key, key).next().is_none()
                && at_targets(&self.dormant_by_key, key).all(|at| self.dormant[at].idle <= *idle)
        };
        let last = self.idle_classes.iter().find(is_idle_since).into_iter();
        last.flat_map(|last| at_targets(&self.dormant_by_key, &self.dormant[last].key)).collect()
    }

    // ---- checks ----

    /// Panics unless references on classes are as many as there are, and each class is in use.
    pub(crate) fn check(&self, has_requests: impl Fn(ClassIndex) -> bool) {
        let mut classes = vec![0u32; self.classes.span()];
        self.ways().for_each(|way| classes[way.class.raw() as usize] += 1);
        let parents = self.classes.iter().filter_map(|(_, class)| class.parent.get());
        parents.for_each(|parent| classes[parent.raw() as usize] += 1);
        for (index, class) in self.classes.iter() {
            assert_eq!(class.refs, classes[index.raw() as usize], "references on class {index:?}");
            assert!(class.refs > 0 || has_requests(index), "class {index:?} is active and unused");
        }
        let unreferenced = self.classes.iter().filter(|(_, class)| class.refs == 0).count();
        assert_eq!(self.unreferenced, unreferenced, "classes without references");
        assert!(self.sharing.keys().all(|key| !self.is_known(key)), "{:?}", self.sharing);
        let shared =
            self.shared_by.iter().flat_map(|(of, all)| all.iter().map(move |key| (key, of)));
        let sharing = self.sharing.iter().flat_map(|(key, of)| of.iter().map(move |of| (key, of)));
        assert_eq!(BTreeSet::from_iter(shared), sharing.collect());
        assert_eq!(self.idle_classes.len(), self.dormant.iter().count());
        let dormant_branches =
            self.dormant_by_key.iter().filter_map(|(key, at)| Some((key.branch?, at)));
        let grouped =
            self.dormant_branches.iter().flat_map(|(group, of)| of.iter().map(|at| (*group, at)));
        assert_eq!(BTreeSet::from_iter(dormant_branches), grouped.collect());
        let at_rest = self.dormant_by_key.values().all(|index| self.dormant.lives(*index));
        assert!(at_rest && self.dormant_by_key.len() == self.dormant.iter().count());
    }
}

/// The classes of a combination in a table: one for each target that it is at.
fn at_targets<'a, I: Copy>(
    table: &'a BTreeMap<Arc<ClassKey>, I>,
    key: &'a ClassKey,
) -> impl Iterator<Item = I> + 'a {
    let first = ClassKey { target: TargetId::FIRST, ..key.clone() };
    let from = table.range::<ClassKey, _>((Bound::Included(&first), Bound::Unbounded));
    from.take_while(|(of, _)| of.is_combination_of(key)).map(|(_, index)| *index)
}

/// Adds a class to those of the group in its key, if it is a branch.
fn join_group<I: Ord>(table: &mut GroupTable<I>, key: &ClassKey, index: I) {
    if let Some(group) = key.branch {
        table.entry(group).or_default().insert(index);
    }
}

/// Takes a class from those of the group in its key, if it is a branch.
fn leave_group<I: Ord>(table: &mut GroupTable<I>, key: &ClassKey, index: I) {
    if let Some(Entry::Occupied(mut of)) = key.branch.map(|group| table.entry(group)) {
        of.get_mut().remove(&index);
        if of.get().is_empty() {
            of.remove();
        }
    }
}

/// Gives a branch another key, in the tables that find it by its key and by its group.
fn rekey<I: Copy + Ord>(
    known: &mut Arc<ClassKey>,
    key: ClassKey,
    index: I,
    by_key: &mut BTreeMap<Arc<ClassKey>, I>,
    groups: &mut GroupTable<I>,
) {
    let key = Arc::new(key);
    let before = std::mem::replace(known, key.clone());
    by_key.remove(&before);
    leave_group(groups, &before, index);
    join_group(groups, &key, index);
    by_key.insert(key, index);
}

/// Counts one out; what has none left is forgotten.
fn count_out<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl CachedWay {
    const UNKNOWN: CachedWay = CachedWay { class: OptionalIndex::NONE, chain: OptionalIndex::NONE };

    #[inline]
    fn get(self) -> Option<Classification> {
        let CachedWay { class, chain } = self;
        class.get().map(|class| Classification { class, chain })
    }
}
