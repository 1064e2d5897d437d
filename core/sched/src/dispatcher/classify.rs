//! Classification: from the identity of a request to the class and meters that it is charged to;
//! and when classes and subjects come and go.

use std::sync::Arc;

use model::{FilePlace, Identity, OpKind, TargetId};
use rules::EntitlementId;

use super::Dispatcher;
use crate::ids::SubjectId;
use crate::index::{ChainIndex, ClassIndex, DormantIndex, SubjectIndex};
use crate::keys::ClassKey;
use crate::registry::{ChosenClass, Classification, RestedClass};

impl Dispatcher {
    /// The subject of an identity's requests to a target in these directories; each call must be
    /// matched by one of [`Dispatcher::release_subject`].
    ///
    /// # Panics
    /// If there is no such target.
    pub fn subject(
        &mut self,
        target: TargetId,
        who: &Identity,
        place: impl Into<FilePlace>,
    ) -> SubjectId {
        self.subject_through(target, who, place, &Arc::default())
    }

    /// The subject of requests through one export, for callers that count what each export let in.
    /// The rules know no exports.
    ///
    /// # Panics
    /// If there is no such target.
    pub fn subject_through(
        &mut self,
        target: TargetId,
        who: &Identity,
        place: impl Into<FilePlace>,
        export: &Arc<str>,
    ) -> SubjectId {
        let place = place.into();
        assert!(target.index() < self.lanes.targets().count(), "there is no {target:?}");
        let known = self.registry.find_subject(target, who, &place, export);
        let index = known.unwrap_or_else(|| {
            let sibling = self.registry.subject_of_job(&who.job);
            let index = self.registry.add_subject(target, who, place, export);
            self.observation.add_subject(index, sibling, self.now);
            index
        });
        self.registry.retain_subject(index)
    }

    /// Gives a subject back. Its requests that have not completed are not disturbed.
    ///
    /// # Panics
    /// If it was released as often as it was taken.
    pub fn release_subject(&mut self, id: SubjectId) {
        let index = self.registry.release_subject(id);
        self.rest_subject(index);
    }

    /// Class and meters of a subject's requests of one kind.
    #[inline(always)]
    pub(super) fn classification(&mut self, subject: SubjectIndex, kind: OpKind) -> Classification {
        match self.registry.way(subject, kind) {
            Some(way) => way,
            None => self.classify(subject, kind, None),
        }
    }

    /// Matches the rules. `like` is a chain of such a request, which is used if it has the same
    /// meters.
    pub(super) fn classify(
        &mut self,
        subject: SubjectIndex,
        kind: OpKind,
        like: Option<ChainIndex>,
    ) -> Classification {
        let (who, paths) = (self.registry.identity(subject).clone(), self.registry.paths(subject));
        let class = self.class_for(subject, kind);
        let key = self.registry.key(class).clone();
        let mut meters = self.terms.meters_for(&key, &who, kind, paths);
        let mark = self.registry.mark(subject);
        let name = &self.lanes.params(key.target).name;
        let branch = self.terms.entitle(&key, &who, mark, name, kind, &mut meters);
        let class = branch.map_or(class, |group| self.branch_for(class, group));
        let known = self.registry.ways_of(subject).filter_map(|way| way.chain.get());
        let chain = self.meters.chain_for(class, meters, known.chain(like));
        self.registry.set_way(subject, kind, class, chain)
    }

    /// The class of a subject's requests of one kind, whatever rows reserve.
    fn class_for(&mut self, subject: SubjectIndex, kind: OpKind) -> ClassIndex {
        let (who, paths) = (self.registry.identity(subject), self.registry.paths(subject));
        let rule = self.terms.rule_for(who, kind, paths);
        let target = self.registry.target(subject);
        let ChosenClass { key, shares, surplus } = self.registry.class_for(target, rule, who, kind);
        surplus.into_iter().for_each(|dormant| self.drop_dormant(dormant));
        if let Some(combination) = shares {
            self.registry.note_shared(subject, combination);
        }
        self.registry.find_class(&key).unwrap_or_else(|| self.activate(key, None))
    }

    /// The branch of a class that the rows of a group reserve for.
    fn branch_for(&mut self, class: ClassIndex, group: EntitlementId) -> ClassIndex {
        let key = ClassKey { branch: Some(group), ..ClassKey::clone(self.registry.key(class)) };
        self.registry.find_class(&key).unwrap_or_else(|| self.activate(key, Some(class)))
    }

    /// Makes a class active, or a branch of one.
    fn activate(&mut self, key: ClassKey, parent: Option<ClassIndex>) -> ClassIndex {
        let target = key.target;
        let since = key.branch.and_then(|group| self.terms.entitlements().since(group));
        let new = self.registry.activate(key, parent);
        self.lanes.add_class(new.index, new.id, target, new.dormant, self.now);
        if let Some(parent) = parent {
            self.lanes.join(new.index, parent);
        }
        self.observation.add_class(new.index, new.dormant);
        self.meters.grow_waiters(self.lanes.waiters());
        self.set_terms(new.index);
        if let Some(since) = since.filter(|_| new.dormant.is_none()) {
            self.lanes.begin_reservation(new.index, since, self.now);
        }
        new.index
    }

    /// Gives a class what the rules grant it now. Its requests count for the parents that its rule
    /// has now.
    pub(super) fn set_terms(&mut self, class: ClassIndex) {
        let key = self.registry.key(class);
        let terms = self.terms.of_class(key, &self.lanes.params(key.target).name);
        let before = self.lanes.watched(class);
        self.lanes.set_terms(class, &terms, self.now);
        if before != terms.watched {
            let (queued, running, _) = self.lanes.own_load_of(class);
            let outstanding = i64::from(queued) + i64::from(running);
            self.count_dependents(terms.watched & !before, outstanding);
            self.count_dependents(before & !terms.watched, -outstanding);
        }
    }

    /// Drops the classifications of a subject, since its rules changed or it is idle. Returns their
    /// number.
    pub(super) fn drop_classifications(&mut self, subject: SubjectIndex) -> usize {
        let ways = self.registry.take_ways(subject);
        for way in &ways {
            self.drop_chain(way.chain);
            self.rest_unused(way.class);
        }
        ways.len()
    }

    /// Makes a class dormant that has neither references nor requests.
    #[inline]
    pub(super) fn rest_unused(&mut self, class: ClassIndex) {
        if !self.lanes.has_requests(class) && self.registry.is_unreferenced(class) {
            self.rest_class(class);
        }
    }

    fn rest_class(&mut self, class: ClassIndex) {
        let RestedClass { dormant, surplus, parent } = self.registry.rest_class(class);
        self.lanes.rest_class(class, dormant);
        self.observation.rest_class(class, dormant);
        surplus.into_iter().for_each(|oldest| self.drop_dormant(oldest));
        if let Some(parent) = parent {
            self.rest_unused(parent);
        }
    }

    /// Forgets a dormant class.
    pub(super) fn drop_dormant(&mut self, dormant: DormantIndex) {
        self.registry.drop_dormant(dormant);
        self.observation.drop_dormant(dormant);
    }

    /// Puts a subject among the idle, if it has neither references nor requests.
    pub(super) fn rest_subject(&mut self, subject: SubjectIndex) {
        if !self.registry.is_unused(subject) {
            return;
        }
        self.drop_classifications(subject);
        if let Some(oldest) = self.registry.rest_subject(subject) {
            let closed = self.account_subject(oldest);
            self.observation.drop_subject(oldest, &closed);
            self.registry.drop_subject(oldest);
        }
    }
}
