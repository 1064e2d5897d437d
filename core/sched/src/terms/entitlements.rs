//! The table of entitlements: rows that apply to some requests, for a time.
//!
//! ```text
//!   change ─► row, by its number ─┬─ begins, ends ─► edges, in order of time
//!                                 └─ applies: in the index of its job, else its user, else its
//!                                    class, else its directory, else among the rest;
//!                                    if it reserves: in the group of those with which it adds up
//!   request ─► the rows of its job, user, class, directories, and the rest ─► those that apply
//! ```
//!
//! A row is found by its narrowest condition, so a request looks at few. A change costs what it
//! concerns: the subjects whose requests it may apply to. A limit of a key of a decay, and of
//! nothing else, is the rate of the meter that the key has anyway.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Direction, Directory, Identity, JobId, OpKind, Rate, Scope, SectionKind, TargetId, Time,
    WaitedService,
};
use rules::{Entitlement, EntitlementId, EntitlementScope, Limit};

use super::groups::{GroupChange, RowGroups};

/// Rows by their numbers, and those that apply now by what they name.
#[derive(Debug, Default)]
pub(crate) struct Entitlements {
    rows: BTreeMap<EntitlementId, TimedRow>,
    by_job: BTreeMap<JobId, ScopedRows>,
    by_uid: BTreeMap<u32, ScopedRows>,
    by_class: BTreeMap<Scope, ScopedRows>,
    rest: ScopedRows,
    groups: RowGroups,
    /// When rows begin or end to apply.
    edges: BTreeSet<(Time, EntitlementId)>,
    /// The directories that rows name, with how many do.
    directories: BTreeMap<Directory, usize>,
}

/// The rows of a job, a user or a class, by the directory that they name.
#[derive(Debug, Default)]
struct ScopedRows {
    anywhere: BTreeSet<EntitlementId>,
    in_directories: BTreeMap<Directory, BTreeSet<EntitlementId>>,
}

/// A row with its times by the clock here.
#[derive(Debug)]
struct TimedRow {
    row: Entitlement,
    begins: Time,
    ends: Option<Time>,
    applies: bool,
    /// Of a reservation: the units of its rate that it has served, by target.
    served: BTreeMap<TargetId, u64>,
}

/// What a row is matched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntitledRequest<'a> {
    pub(crate) who: &'a Identity,
    /// The deepest marked directory of its file.
    pub(crate) mark: Option<&'a Directory>,
    pub(crate) target: &'a str,
    /// Its class, whatever branch of that it is in.
    pub(crate) class: &'a Scope,
    pub(crate) kind: OpKind,
}

/// What a change of rows concerns.
#[derive(Debug, Default)]
pub(crate) struct RowChanges {
    /// Rows to which other requests belong from now on.
    pub(crate) moved: Vec<EntitlementScope>,
    /// Rows with another value, and those of a group that has another sum.
    pub(crate) valued: Vec<EntitlementId>,
    /// Groups with another key: the one before and the one now, in the order of the first changes.
    pub(crate) rekeyed: Vec<(EntitlementId, EntitlementId)>,
    /// The places of these by their keys now.
    rekeyed_at: BTreeMap<EntitlementId, usize>,
    /// Scopes of weights that came, went or changed.
    pub(crate) weights: Vec<EntitlementScope>,
    /// Keys of decays whose rate came, went or changed.
    pub(crate) decays: Vec<Scope>,
}

impl Entitlements {
    /// How many rows a dispatcher keeps.
    pub(crate) const MAX_COUNT: usize = 65_536;

    /// Puts, replaces or (`None`) removes rows; spans count from `since`. Returns what that concerns
    /// and how many new ones were refused, since the bound is reached.
    pub(crate) fn change(
        &mut self,
        changes: Vec<(EntitlementId, Option<Entitlement>)>,
        since: Time,
        now: Time,
    ) -> (RowChanges, usize) {
        let (mut concerned, mut refused) = (RowChanges::default(), 0);
        for (id, row) in changes {
            let known = self.rows.contains_key(&id);
            if row.is_some() && !known && self.rows.len() >= Entitlements::MAX_COUNT {
                refused += 1;
                continue;
            }
            self.change_row(id, row, since, now, &mut concerned);
        }
        (concerned, refused)
    }

    fn change_row(
        &mut self,
        id: EntitlementId,
        row: Option<Entitlement>,
        since: Time,
        now: Time,
        concerned: &mut RowChanges,
    ) {
        let begins = |row: &Entitlement| since + row.from();
        let ends = |row: &Entitlement| row.until().map(|until| since + until);
        if let (Some(known), Some(row)) = (self.rows.get_mut(&id), &row)
            && known.row.differs_in_value_only(row)
            && known.applies
            && (known.begins <= now && begins(row) <= now)
            && known.ends.is_none()
            && row.until().is_none()
        {
            known.row = row.clone();
            concerned.note_value(id, row);
            return;
        }
        let before = self.remove(id, concerned);
        let Some(row) = row else { return };
        let before = before.filter(|known| RowGroups::are_one(&known.row, &row));
        let served = before.map(|known| known.served).unwrap_or_default();
        let (begins, ends) = (begins(&row), ends(&row));
        if let Some(directory) = &row.scope().directory {
            *self.directories.entry(directory.clone()).or_default() += 1;
        }
        self.edges.insert((begins, id));
        self.edges.extend(ends.map(|ends| (ends, id)));
        self.rows.insert(id, TimedRow { row, begins, ends, applies: false, served });
        self.pass_edges(now, concerned);
    }

    fn remove(&mut self, id: EntitlementId, concerned: &mut RowChanges) -> Option<TimedRow> {
        let known = self.rows.remove(&id)?;
        self.edges.remove(&(known.begins, id));
        if let Some(directory) = &known.row.scope().directory {
            let rows = self.directories.get_mut(directory).expect("counted with its rows");
            *rows -= 1;
            if *rows == 0 {
                self.directories.remove(directory);
            }
        }
        known.ends.into_iter().for_each(|ends| {
            self.edges.remove(&(ends, id));
        });
        if known.applies {
            self.unindex(id, known.row.scope());
            concerned.note_group(self.groups.remove(id, &known.row));
            concerned.note_moved(&known.row);
        }
        Some(known)
    }

    /// When the next row begins or ends to apply.
    pub(crate) fn next_edge(&self) -> Option<Time> {
        self.edges.first().map(|(at, _)| *at)
    }

    /// Lets rows begin and end to apply by `now`.
    pub(crate) fn advance(&mut self, now: Time) -> RowChanges {
        let mut concerned = RowChanges::default();
        self.pass_edges(now, &mut concerned);
        concerned
    }

    fn pass_edges(&mut self, now: Time, concerned: &mut RowChanges) {
        while let Some((at, id)) = self.edges.first().copied().filter(|(at, _)| *at <= now) {
            self.edges.remove(&(at, id));
            let known = self.rows.get_mut(&id).expect("an edge is of a row");
            let over = known.ends.is_some_and(|ends| ends <= now);
            if over {
                self.remove(id, concerned);
            } else if !known.applies {
                known.applies = true;
                let row = known.row.clone();
                self.index_of(row.scope()).insert(id, row.scope());
                concerned.note_group(self.groups.insert(id, &row, now));
                concerned.note_moved(&row);
                // A row of that number may have been another one.
                concerned.valued.push(id);
            }
        }
    }

    // ---- what applies ----

    /// The key of the rows that reserve for a request: of the narrowest ones the group that has the
    /// newest row. Without a row for its kind, a request without bytes goes by one in bytes, whose account it
    /// pays: an open or an fsync belongs to the data around it.
    pub(crate) fn reservation_for(&self, request: EntitledRequest<'_>) -> Option<EntitlementId> {
        let narrowest = |is_for: &dyn Fn(&Entitlement) -> bool| {
            let rows = self.rows_in_scope(request);
            self.narrowest(rows.filter(|(_, row)| row.reservation().is_some() && is_for(row)))
        };
        let mut newest = narrowest(&|row| row.kinds().contains(request.kind));
        if newest.is_none() && request.kind.direction() == Direction::Metadata {
            newest = narrowest(&|row| row.reservation().is_some_and(Rate::is_bytes));
        }
        newest.and_then(|newest| self.group_of(newest))
    }

    /// The key of the group of a row that reserves, while it applies.
    pub(crate) fn group_of(&self, id: EntitlementId) -> Option<EntitlementId> {
        self.groups.key_of(self.row(id)?)
    }

    /// Since when any of the rows that add up with one has applied.
    pub(crate) fn since(&self, id: EntitlementId) -> Option<Time> {
        self.groups.since(self.row(id)?)
    }

    /// The rows that add up with a row that reserves, with itself, while it applies.
    pub(crate) fn adding_up(
        &self,
        id: EntitlementId,
    ) -> impl Iterator<Item = (EntitlementId, Rate)> {
        let ids = self.row(id).into_iter().flat_map(|row| self.groups.rows_with(row));
        ids.filter_map(|id| Some((id, self.rows[&id].row.reservation()?)))
    }

    /// Counts what the rows that add up with one have served at a target, to each its part.
    pub(crate) fn count_served(&mut self, id: EntitlementId, target: TargetId, units: u64) {
        let rows: Vec<_> = self.adding_up(id).collect();
        let parts = division(units, rows.iter().map(|(_, rate)| rate.per_sec()));
        for ((id, _), part) in rows.iter().zip(parts) {
            let known = self.rows.get_mut(id).expect("it applies");
            *known.served.entry(target).or_default() += part;
        }
    }

    /// What the rows that add up with one were owed and served, to each its part.
    pub(crate) fn divide_waited(
        &self,
        id: EntitlementId,
        waited: WaitedService,
    ) -> Vec<(EntitlementId, WaitedService)> {
        let rows: Vec<_> = self.adding_up(id).collect();
        let parts_of = |amount| division(amount, rows.iter().map(|(_, rate)| rate.per_sec()));
        let parts = parts_of(waited.owed).zip(parts_of(waited.served));
        let parts = parts.map(|(owed, served)| WaitedService { owed, served });
        rows.iter().map(|(id, _)| *id).zip(parts).collect()
    }

    /// What was counted so of a row.
    pub(crate) fn served(&self, id: EntitlementId, target: TargetId) -> u64 {
        let known = self.rows.get(&id);
        known.and_then(|known| known.served.get(&target)).copied().unwrap_or(0)
    }

    /// The limits of rows that a request pays, in order of their numbers.
    pub(crate) fn limits_for(&self, request: EntitledRequest<'_>) -> Vec<(EntitlementId, Limit)> {
        let rows = self.rows_for(request);
        let mut limits: Vec<_> =
            rows.filter_map(|(id, row)| row.limit().map(|limit| (id, limit))).collect();
        limits.sort_unstable_by_key(|(id, _)| *id);
        limits.truncate(Entitlement::LIMITS_MAX);
        limits
    }

    /// The rate that rows set for a key of a decay: of several the lowest.
    pub(crate) fn decay_rate(&self, key: &Scope, in_bytes: bool) -> Option<Rate> {
        let ids = self.by_class.get(key).into_iter().flat_map(|rows| &rows.anywhere);
        let rows = ids.map(|id| &self.rows[id].row);
        let rates = rows.filter(|row| decay_key(row).is_some()).filter_map(Entitlement::limit);
        rates
            .map(|limit| limit.rate)
            .filter(|rate| rate.is_bytes() == in_bytes)
            .min_by_key(|rate| rate.per_sec())
    }

    /// The row that gives the requests of a class their weight. `who` has the job and the user of
    /// all of them, where all have the same.
    pub(crate) fn weight_for(
        &self,
        job: Option<&JobId>,
        uid: Option<u32>,
        class: &Scope,
        target: &str,
    ) -> Option<&Entitlement> {
        let of_job = job.and_then(|job| self.by_job.get(job));
        let of_uid = uid.and_then(|uid| self.by_uid.get(&uid));
        let lists = [of_job, of_uid, self.by_class.get(class), Some(&self.rest)];
        // None is for a directory.
        let ids = lists.into_iter().flatten().flat_map(|rows| &rows.anywhere);
        let rows = ids.map(|id| (*id, &self.rows[id].row));
        let rows = rows.filter(|(_, row)| {
            let scope = row.scope();
            row.weight().is_some()
                && scope.job.as_ref().is_none_or(|of| job == Some(of))
                && scope.uid.is_none_or(|of| uid == Some(of))
                && scope.class.as_ref().is_none_or(|of| of == class)
                && scope.target.as_deref().is_none_or(|of| of == target)
        });
        self.narrowest(rows).map(|id| &self.rows[&id].row)
    }

    /// The row of a number, while it applies.
    pub(crate) fn row(&self, id: EntitlementId) -> Option<&Entitlement> {
        self.rows.get(&id).filter(|known| known.applies).map(|known| &known.row)
    }

    /// When a row ends; `None`: when it is removed.
    pub(crate) fn ends(&self, id: EntitlementId) -> Option<Time> {
        self.rows.get(&id).and_then(|known| known.ends)
    }

    /// Whether no row applies.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows of a request: of its scope, and for its kind.
    fn rows_for<'a>(
        &'a self,
        request: EntitledRequest<'a>,
    ) -> impl Iterator<Item = (EntitlementId, &'a Entitlement)> {
        self.rows_in_scope(request).filter(move |(_, row)| row.kinds().contains(request.kind))
    }

    fn rows_in_scope<'a>(
        &'a self,
        request: EntitledRequest<'a>,
    ) -> impl Iterator<Item = (EntitlementId, &'a Entitlement)> {
        let lists = [
            self.by_job.get(&request.who.job),
            self.by_uid.get(&request.who.uid),
            self.by_class.get(request.class),
            Some(&self.rest),
        ];
        let found = lists.into_iter().flatten().flat_map(move |rows| rows.holding(request.mark));
        let rows = found.map(|id| (id, &self.rows[&id].row));
        rows.filter(move |(_, row)| {
            let scope = row.scope();
            scope.job.as_ref().is_none_or(|job| *job == request.who.job)
                && scope.uid.is_none_or(|uid| uid == request.who.uid)
                && scope.class.as_ref().is_none_or(|class| class == request.class)
                && scope.target.as_deref().is_none_or(|target| target == request.target)
        })
    }

    fn narrowest<'a>(
        &self,
        rows: impl Iterator<Item = (EntitlementId, &'a Entitlement)>,
    ) -> Option<EntitlementId> {
        let narrowest = rows
            .max_by(|(a, one), (b, other)| one.scope().narrowness(other.scope()).then(a.cmp(b)));
        narrowest.map(|(id, _)| id)
    }

    // ---- marks ----

    /// The deepest directory that a row names and that is a directory of this text or above it.
    pub(crate) fn mark_of(&self, text: &[u8]) -> Option<Directory> {
        let known = |text| self.directories.get_key_value(text).map(|(known, _)| known.clone());
        Directory::ancestors(text).find_map(known)
    }

    /// Whether a row names a directory.
    pub(crate) fn has_marks(&self) -> bool {
        !self.directories.is_empty()
    }

    // ---- the index ----

    fn index_of(&mut self, scope: &EntitlementScope) -> &mut ScopedRows {
        if let Some(job) = &scope.job {
            return self.by_job.entry(job.clone()).or_default();
        }
        if let Some(uid) = scope.uid {
            return self.by_uid.entry(uid).or_default();
        }
        match &scope.class {
            Some(class) => self.by_class.entry(class.clone()).or_default(),
            None => &mut self.rest,
        }
    }

    fn unindex(&mut self, id: EntitlementId, scope: &EntitlementScope) {
        let list = self.index_of(scope);
        list.remove(id, scope);
        if !list.anywhere.is_empty() || !list.in_directories.is_empty() {
            return;
        }
        if let Some(job) = &scope.job {
            self.by_job.remove(job);
        } else if let Some(uid) = scope.uid {
            self.by_uid.remove(&uid);
        } else if let Some(class) = &scope.class {
            self.by_class.remove(class);
        }
    }
}

impl ScopedRows {
    fn insert(&mut self, id: EntitlementId, scope: &EntitlementScope) {
        match &scope.directory {
            Some(directory) => {
                self.in_directories.entry(directory.clone()).or_default().insert(id);
            }
            None => {
                self.anywhere.insert(id);
            }
        }
    }

    fn remove(&mut self, id: EntitlementId, scope: &EntitlementScope) {
        let Some(directory) = &scope.directory else {
            self.anywhere.remove(&id);
            return;
        };
        if let Some(rows) = self.in_directories.get_mut(directory) {
            rows.remove(&id);
            if rows.is_empty() {
                self.in_directories.remove(directory);
            }
        }
    }

    /// The rows whose directory, if they name one, holds a file of this mark. O(log rows) for each
    /// directory above it.
    fn holding(&self, mark: Option<&Directory>) -> impl Iterator<Item = EntitlementId> {
        let above = mark.into_iter().flat_map(|mark| Directory::ancestors(mark.as_bytes()));
        let in_these = above.filter_map(|directory| self.in_directories.get(directory));
        in_these.flatten().chain(&self.anywhere).copied()
    }
}

impl RowChanges {
    fn note_group(&mut self, change: Option<GroupChange>) {
        let Some(GroupChange { before, now }) = change else { return };
        self.valued.push(now);
        if before == now {
            return;
        }
        // Of many rows that go in turn only the last change counts.
        let at = *self.rekeyed_at.entry(before).or_insert(self.rekeyed.len());
        self.rekeyed_at.remove(&before);
        self.rekeyed_at.insert(now, at);
        match self.rekeyed.get_mut(at) {
            Some((_, key)) => *key = now,
            None => self.rekeyed.push((before, now)),
        }
    }

    fn note_moved(&mut self, row: &Entitlement) {
        if let Some(key) = decay_key(row) {
            return self.decays.push(key.clone());
        }
        let list = if row.weight().is_some() { &mut self.weights } else { &mut self.moved };
        list.push(row.scope().clone());
    }

    fn note_value(&mut self, id: EntitlementId, row: &Entitlement) {
        match (decay_key(row), row.weight()) {
            (Some(key), _) => self.decays.push(key.clone()),
            (None, Some(_)) => self.weights.push(row.scope().clone()),
            (None, None) => self.valued.push(id),
        }
    }
}

/// The parts of an amount in proportion to these numbers, which are the whole of it together.
fn division(amount: u64, of: impl Iterator<Item = u64> + Clone) -> impl Iterator<Item = u64> {
    let all: u128 = of.clone().map(u128::from).sum();
    let ends = of.scan(0, move |sum, one| {
        *sum += u128::from(one);
        Some((u128::from(amount) * *sum / all.max(1)) as u64)
    });
    ends.scan(0, |before, end| Some(end - std::mem::replace(before, end)))
}

/// The key of a decay whose rate a row sets, if it does.
fn decay_key(row: &Entitlement) -> Option<&Scope> {
    let class = row.scope().class.as_ref();
    let key = class.filter(|class| class.section == SectionKind::Decay)?;
    let only = EntitlementScope { class: Some(key.clone()), ..EntitlementScope::default() };
    (row.limit().is_some() && *row.scope() == only).then_some(key)
}
