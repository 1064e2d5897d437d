//! Changes of entitlements: rows come, change, begin, end and go.
//!
//! ```text
//!   another value ─► its meter, its branches, its classes        nothing moves
//!   of a decay's key ─► the rate of the key's meter              nothing moves
//!   begins, ends ──► the subjects that it concerns are classified again, what waits of them in
//!                    order of arrival; a reservation: its branch comes or goes
//! ```

use std::collections::BTreeSet;

use model::{Directory, JobId, SectionKind, TargetId, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope};

use super::Dispatcher;
use crate::index::{ClassIndex, SubjectIndex};
use crate::keys::{ClassKey, MeterKey};
use crate::terms::RowChanges;

impl Dispatcher {
    /// Puts, replaces or (`None`) removes rows of entitlements; their spans count from `since`.
    /// Returns how many new ones were refused, since 65,536 are kept. O(what they concern) for
    /// another rate, burst or weight; where a row comes or goes, O(subjects of its job or user) or,
    /// if it names neither, O(subjects), and O(requests) if any of these has requests. What waits
    /// moves with the next polls, like at a change of rules. Poll afterwards.
    pub fn set_entitlements(
        &mut self,
        changes: Vec<(EntitlementId, Option<Entitlement>)>,
        since: Time,
        now: Time,
    ) -> usize {
        self.advance(now);
        let (concerned, refused) = self.terms.change_rows(changes, since, self.now);
        self.apply_rows(concerned);
        self.finish_call();
        refused
    }

    /// The mark of a file at `path` below an export, which begins with `/`: the deepest directory
    /// that a row names and that holds it. O(depth), and no more than [`Directory::DEPTH_MAX`] names
    /// are compared.
    pub fn mark_of(&self, export: &str, path: &[u8]) -> Option<Directory> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut text = export.as_bytes().to_vec();
        for name in names.take(Directory::DEPTH_MAX) {
            text.push(b'/');
            text.extend_from_slice(name);
        }
        self.terms.entitlements().mark_of(&text)
    }

    /// How often an identity came or went: while it is the same, so are the [`Dispatcher::jobs`] and
    /// [`Dispatcher::users`].
    pub fn identity_changes(&self) -> u64 {
        self.registry.identity_changes()
    }

    /// The jobs of all subjects, also of some that were released lately, in their order. O(subjects).
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        let mut last = None;
        let jobs = self.registry.subjects_from(None).map(|(who, _)| &who.job);
        jobs.filter(move |job| last.replace(*job) != Some(*job))
    }

    /// The users of all subjects, also of some that were released lately, in their order.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        self.registry.users()
    }

    /// Whether a row names a directory, so that files have marks.
    pub fn has_marks(&self) -> bool {
        self.terms.entitlements().has_marks()
    }

    /// Computes the limits that depend on other rules, and lets rows begin and end.
    #[inline(never)]
    pub(super) fn change_terms(&mut self) {
        if self.terms.next_update().is_some_and(|at| self.now >= at) {
            self.apply_dependents();
        }
        let concerned = self.terms.pass_edges(self.now);
        self.apply_rows(concerned);
    }

    fn apply_rows(&mut self, concerned: RowChanges) {
        let RowChanges { moved, valued, weights, decays } = concerned;
        decays.iter().for_each(|key| self.grant_meters_of(key));
        valued.into_iter().for_each(|id| self.set_row_value(id));
        for class in
            weights.iter().flat_map(|scope| self.classes_of(scope)).collect::<BTreeSet<_>>()
        {
            self.set_terms(class);
        }
        if !moved.is_empty() {
            self.classify_again(&moved);
        }
    }

    /// Brings another rate or burst of a row to its meter or its branches.
    fn set_row_value(&mut self, id: EntitlementId) {
        let Some(row) = self.terms.entitlements().row(id) else { return };
        if let Some(limit) = row.limit() {
            if let Some(meter) = self.meters.find(&MeterKey::of_row(id, limit.rate)) {
                self.meters.set_limit(meter, &limit, self.now);
            }
            return;
        }
        self.registry.branches(id).into_iter().for_each(|branch| self.set_terms(branch));
    }

    /// The active classes that may have their weight from a row of that scope.
    fn classes_of(&self, scope: &EntitlementScope) -> Vec<ClassIndex> {
        if let Some(class) = &scope.class {
            let targets = self.lanes.targets();
            let is_rule = class.section == SectionKind::Rule;
            let find =
                |target: TargetId| self.registry.find_class(&ClassKey::of_scope(target, class));
            return targets.filter(|_| is_rule).filter_map(find).collect();
        }
        if scope.job.is_none() {
            return self.active_classes();
        }
        let subjects = self.subjects_of(scope);
        let ways = subjects.into_iter().flat_map(|subject| self.registry.ways_of(subject));
        ways.map(|way| self.lanes.owner_of(way.class)).collect()
    }

    /// The subjects that a row of that scope may concern.
    fn subjects_of(&self, scope: &EntitlementScope) -> Vec<SubjectIndex> {
        let known = match (&scope.job, scope.uid) {
            (Some(job), _) => self.registry.subjects_of_job(job),
            (None, Some(uid)) => self.registry.subjects_of_user(uid),
            (None, None) => self.registry.subjects().collect(),
        };
        let concerns = |subject: &SubjectIndex| {
            let (who, mark) = (self.registry.identity(*subject), self.registry.mark(*subject));
            let target = &self.lanes.params(self.registry.target(*subject)).name;
            self.terms.entitlements().may_concern(scope, who, mark, target)
        };
        known.into_iter().filter(concerns).collect()
    }

    /// Classifies the subjects of some scopes again, with what waits of them.
    fn classify_again(&mut self, scopes: &[EntitlementScope]) {
        let subjects = scopes.iter().flat_map(|scope| self.subjects_of(scope));
        let known = |subject: &SubjectIndex| self.registry.ways_of(*subject).next().is_some();
        let subjects: BTreeSet<SubjectIndex> = subjects.filter(known).collect();
        let are_busy = subjects.iter().any(|subject| self.registry.is_busy(*subject));
        for subject in &subjects {
            self.drop_classifications(*subject);
        }
        if are_busy {
            let waiting: Vec<_> = self.lanes.waiting_of(&subjects).collect();
            self.visit_all(waiting.into_iter());
        }
    }
}
