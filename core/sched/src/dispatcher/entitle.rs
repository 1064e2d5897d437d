//! Changes of entitlements: rows come, change, begin, end and go.
//!
//! ```text
//!   another value ─► its meter, the branches of its group, its classes     nothing moves
//!   of a decay's key ─► the rate of the key's meter              nothing moves
//!   begins, ends ──► the subjects that it concerns are classified again, what waits of them in
//!                    order of arrival; a reservation: its group has another sum,
//!                    or comes or goes with its branches
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Directory, JobId, SectionKind, TargetId, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope};

use super::Dispatcher;
use crate::index::{ClassIndex, SubjectIndex};
use crate::keys::{ClassKey, MeterKey};
use crate::terms::RowChanges;

/// The directory and the target of a scope, where it names them.
type ScopePlace<'a> = (Option<&'a [u8]>, Option<&'a str>);

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

    /// The mark of a file at `path`, an export and the names below it ([`Directory::text`]): the
    /// deepest directory that a row names and that holds it. O(depth).
    pub fn mark_of(&self, path: &[u8]) -> Option<Directory> {
        self.terms.entitlements().mark_of(path)
    }

    /// How often a job or a user came or went: while it is the same, so are the [`Dispatcher::jobs`]
    /// and [`Dispatcher::users`].
    pub fn identity_changes(&self) -> u64 {
        self.registry.identity_changes()
    }

    /// The jobs of all subjects, also of some that were released lately, in their order.
    pub fn jobs(&self) -> impl Iterator<Item = &JobId> {
        self.registry.jobs()
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
        let RowChanges { moved, valued, rekeyed, weights, decays, .. } = concerned;
        // A row that went and came again within these changes leaves its group's key as it was.
        let rekeyed = rekeyed.into_iter().filter(|(before, now)| before != now);
        rekeyed.for_each(|(before, now)| self.rekey_branches(before, now));
        decays.iter().for_each(|key| self.grant_meters_of(key));
        self.set_row_values(valued);
        self.classes_of(&weights).into_iter().for_each(|class| self.set_terms(class));
        if !moved.is_empty() {
            self.classify_again(&moved);
        }
    }

    /// Brings other rates or bursts of rows to their meters, or to the branches of their groups, each
    /// of these once.
    fn set_row_values(&mut self, rows: Vec<EntitlementId>) {
        let mut groups = BTreeSet::new();
        for id in rows {
            groups.extend(self.terms.entitlements().group_of(id));
            let limit = self.terms.entitlements().row(id).and_then(Entitlement::limit);
            let Some(limit) = limit else { continue };
            if let Some(meter) = self.meters.find(&MeterKey::of_row(id, limit.rate)) {
                self.meters.set_limit(meter, &limit, self.now);
            }
        }
        groups.into_iter().for_each(|group| self.set_reserved(group, None));
    }

    /// Gives the branches of a group what its rows reserve here now: at one target, or at each. Dormant
    /// ones have it when they become active. O(rows · targets + branches).
    pub(super) fn set_reserved(&mut self, group: EntitlementId, target: Option<TargetId>) {
        let mut reserved = BTreeMap::new();
        for branch in self.registry.branches(group) {
            let at = self.lanes.target_of(branch);
            if target.is_none_or(|target| target == at) {
                let terms =
                    *reserved.entry(at).or_insert_with(|| self.terms.reserved_by(group, at));
                self.lanes.set_reservation(branch, terms, self.now);
            }
        }
    }

    /// Lets the branches of a group go on with its other key, also those at rest: what they owe, and what
    /// they have saved and served, stays. One whose place is taken does not: by requests that still run
    /// for what had this key before. Its requests are classified again, as all of the group.
    fn rekey_branches(&mut self, before: EntitlementId, now: EntitlementId) {
        for branch in self.registry.branches(before) {
            if let Some(key) = self.freed_key(self.registry.key(branch).clone(), now) {
                self.registry.rekey(branch, key);
            }
        }
        for dormant in self.registry.dormant_branches(before) {
            if let Some(key) = self.freed_key(self.registry.dormant_key(dormant).clone(), now) {
                self.registry.rekey_dormant(dormant, key);
            }
        }
    }

    /// The key of a branch with another group, unless an active one has it. One at rest is forgotten.
    fn freed_key(&mut self, key: Arc<ClassKey>, group: EntitlementId) -> Option<ClassKey> {
        let key = ClassKey { branch: Some(group), ..ClassKey::clone(&key) };
        if self.registry.find_class(&key).is_some() {
            return None;
        }
        if let Some(dormant) = self.registry.find_dormant(&key) {
            self.drop_dormant(dormant);
        }
        Some(key)
    }

    /// The active classes that may have their weights from rows of these scopes.
    fn classes_of(&self, scopes: &[EntitlementScope]) -> BTreeSet<ClassIndex> {
        if scopes.iter().any(|scope| scope.class.is_none() && scope.job.is_none()) {
            return self.registry.classes().collect();
        }
        let (of_class, of_job): (Vec<_>, Vec<_>) =
            scopes.iter().partition(|scope| scope.class.is_some());
        let rules = of_class.into_iter().filter_map(|scope| scope.class.as_ref());
        let rules = rules.filter(|class| class.section == SectionKind::Rule);
        let keys = rules.flat_map(|class| {
            self.lanes.targets().map(move |target| ClassKey::of_scope(target, class))
        });
        let found = keys.filter_map(|key| self.registry.find_class(&key));
        let subjects = self.subjects_of(of_job).into_iter();
        let ways = subjects.flat_map(|subject| self.registry.ways_of(subject));
        found.chain(ways.map(|way| self.lanes.owner_of(way.class))).collect()
    }

    /// The subjects that rows of any of these scopes may concern: those of each job and user that they
    /// name are visited once, all if one names neither.
    fn subjects_of<'a>(
        &self,
        scopes: impl IntoIterator<Item = &'a EntitlementScope>,
    ) -> BTreeSet<SubjectIndex> {
        let mut places = BTreeMap::<_, BTreeSet<ScopePlace<'_>>>::new();
        for EntitlementScope { job, uid, directory, target, class: _ } in scopes {
            let of_identity = places.entry((job.as_ref(), *uid)).or_default();
            of_identity.insert((directory.as_ref().map(Directory::as_bytes), target.as_deref()));
        }
        let mut found = BTreeSet::new();
        for ((job, uid), places) in places {
            let concerns = |subject: &SubjectIndex| {
                let target = &*self.lanes.params(self.registry.target(*subject)).name;
                let mark = self.registry.mark(*subject).into_iter();
                let above = mark.flat_map(|mark| Directory::ancestors(mark.as_bytes())).map(Some);
                std::iter::once(None).chain(above).any(|directory| {
                    places.contains(&(directory, None))
                        || places.contains(&(directory, Some(target)))
                })
            };
            match (job, uid) {
                (None, Some(uid)) => {
                    found.extend(self.registry.subjects_of_user(uid).filter(concerns))
                }
                _ => {
                    let known = self.registry.subjects_by_identity(job, uid);
                    found.extend(known.map(|(_, subject)| subject).filter(concerns));
                }
            }
        }
        found
    }

    /// Classifies the subjects of some scopes again, with what waits of them.
    fn classify_again(&mut self, scopes: &[EntitlementScope]) {
        let mut subjects = self.subjects_of(scopes);
        subjects.retain(|subject| self.registry.ways_of(*subject).next().is_some());
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
