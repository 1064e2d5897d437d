//! Groups: rows that reserve for the same requests, in one unit, add up.
//!
//! ```text
//!   row 8: job a, writes, 10 MB/s ─┐
//!   row 9: job a, reads,  10 MB/s ─┼─► group 9
//!   row 12: job a, writes, 5 MB/s ─┴─► group 8: 15 MB/s ─► one branch of each class
//! ```
//!
//! The key of a group is its lowest number. So newer rows that come and go leave it as it is, and no row
//! is in two groups.

use std::collections::{BTreeMap, BTreeSet};

use model::{KindSet, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope};

/// The rows that reserve and apply now, by what they reserve for.
#[derive(Debug, Default)]
pub(super) struct RowGroups {
    groups: BTreeMap<GroupSubject, RowGroup>,
}

#[derive(Debug)]
struct RowGroup {
    rows: BTreeSet<EntitlementId>,
    /// When the first row came.
    since: Time,
}

/// What rows of one group have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupSubject {
    scope: EntitlementScope,
    kinds: KindSet,
    in_bytes: bool,
}

/// The keys of a group before and after a row came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupChange {
    pub(super) before: EntitlementId,
    pub(super) now: EntitlementId,
}

impl RowGroups {
    /// Adds a row. Returns how that changes a group that was there; a row that reserves nothing is in
    /// none.
    pub(super) fn insert(
        &mut self,
        id: EntitlementId,
        row: &Entitlement,
        now: Time,
    ) -> Option<GroupChange> {
        let fresh = || RowGroup { rows: BTreeSet::new(), since: now };
        let group = self.groups.entry(GroupSubject::of(row)?).or_insert_with(fresh);
        let before = group.rows.first().copied();
        group.rows.insert(id);
        group.changed(before?)
    }

    /// Takes a row out. Returns how that changes its group, if others are left in it.
    pub(super) fn remove(&mut self, id: EntitlementId, row: &Entitlement) -> Option<GroupChange> {
        let subject = GroupSubject::of(row)?;
        let group = self.groups.get_mut(&subject)?;
        let before = *group.rows.first()?;
        group.rows.remove(&id);
        let changed = group.changed(before);
        if changed.is_none() {
            self.groups.remove(&subject);
        }
        changed
    }

    /// Whether two rows add up while both apply.
    pub(super) fn are_one(row: &Entitlement, other: &Entitlement) -> bool {
        GroupSubject::of(row).is_some_and(|of| GroupSubject::of(other) == Some(of))
    }

    /// The key of the group of a row.
    pub(super) fn key_of(&self, row: &Entitlement) -> Option<EntitlementId> {
        self.rows_with(row).next()
    }

    /// The rows of the group of a row, in order of their numbers.
    pub(super) fn rows_with(&self, row: &Entitlement) -> impl Iterator<Item = EntitlementId> {
        self.group_of(row).into_iter().flat_map(|group| &group.rows).copied()
    }

    /// Since when any row of the group of a row has applied.
    pub(super) fn since(&self, row: &Entitlement) -> Option<Time> {
        self.group_of(row).map(|group| group.since)
    }

    fn group_of(&self, row: &Entitlement) -> Option<&RowGroup> {
        self.groups.get(&GroupSubject::of(row)?)
    }
}

impl RowGroup {
    /// How rows that came or went change it; `None`: it has none any more.
    fn changed(&self, before: EntitlementId) -> Option<GroupChange> {
        let now = *self.rows.first()?;
        Some(GroupChange { before, now })
    }
}

impl GroupSubject {
    /// Of a row that reserves.
    fn of(row: &Entitlement) -> Option<GroupSubject> {
        let in_bytes = row.reservation()?.is_bytes();
        Some(GroupSubject { scope: row.scope().clone(), kinds: row.kinds(), in_bytes })
    }
}
