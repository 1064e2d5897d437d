//! The controller's rows of entitlements, and what each proxy has not acknowledged of them.
//!
//! ```text
//!   set_rows ──────┐
//!   rate of a decay ┴► row, with its times here ─► of each proxy: changed since it acknowledged
//!   its end has come ─► removed ───────────────────┘   │    └─► assignment: rows from its report on
//!   scopes of a proxy changed ─► rows that name them ──┘        and of its scopes; others end there
//! ```
//!
//! A span is sent as durations from the report that the assignment answers. The controller takes the
//! arrival of that report for the origin and the proxy its sending, so a row begins and ends at the
//! proxy earlier by the time that the report travelled, never later.

use std::collections::{BTreeMap, BTreeSet};

use model::{KindSet, Nanos, Rate, Scope, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};

use crate::scopes::{ProxyScopes, RowsByName, ScopeName};

/// All rows by their numbers.
#[derive(Debug, Default)]
pub(crate) struct RowTable {
    rows: BTreeMap<EntitlementId, PlannedRow>,
    by_name: RowsByName,
    /// When rows end.
    ends: BTreeSet<(Time, EntitlementId)>,
    /// The rows of the keys that decays limit.
    decays: BTreeMap<Scope, EntitlementId>,
    /// How many rows of decays there were.
    decays_made: u64,
}

/// A row with its times by the controller's clock.
#[derive(Debug, PartialEq, Eq)]
struct PlannedRow {
    row: Entitlement,
    /// What its scope names: a thousand proxies are compared with it.
    names: Box<[ScopeName]>,
    /// The origin if it applied from the start.
    begins: Time,
    ends: Option<Time>,
}

/// A row that was put, replaced or removed, and what its scope named before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChangedRow {
    pub(crate) id: EntitlementId,
    before: Option<Box<[ScopeName]>>,
}

/// What a proxy has not acknowledged of the rows.
#[derive(Debug, Default)]
pub(crate) struct UnacknowledgedRows {
    /// The revision that brings all rows: the proxy has unknown ones, or too many changed.
    all: Option<u64>,
    /// The revisions of rows that changed.
    changed: BTreeMap<EntitlementId, u64>,
}

impl RowTable {
    /// How many rows there are at most: as many as a dispatcher keeps.
    pub(crate) const MAX_COUNT: usize = 65_536;

    /// Puts, replaces or (`None`) removes rows, whose spans count from `now`. Returns those that
    /// changed, and how many were refused: beyond the bound, or with a number of a decay's row.
    pub(crate) fn change(
        &mut self,
        changes: Vec<(EntitlementId, Option<Entitlement>)>,
        now: Time,
    ) -> (Vec<ChangedRow>, usize) {
        let (mut changed, mut refused) = (Vec::new(), 0);
        for (id, row) in changes {
            if id.0 >= FIRST_OF_DECAYS || (row.is_some() && !self.has_room(id)) {
                refused += 1;
            } else {
                changed.extend(self.put(id, row, now));
            }
        }
        (changed, refused)
    }

    /// Sets or removes the row that limits a key of a decay. Returns it if that is a change and the
    /// table has room.
    pub(crate) fn set_decay(
        &mut self,
        key: &Scope,
        rate: Option<Rate>,
        now: Time,
    ) -> Option<ChangedRow> {
        let known = self.decays.get(key).copied();
        let id = known.unwrap_or(EntitlementId(FIRST_OF_DECAYS + self.decays_made));
        let Some(rate) = rate else {
            self.decays.remove(key)?;
            return self.put(id, None, now);
        };
        if !self.has_room(id) {
            return None;
        }
        if known.is_none() {
            self.decays_made += 1;
            self.decays.insert(key.clone(), id);
        }
        let scope = EntitlementScope { class: Some(key.clone()), ..EntitlementScope::default() };
        let (grants, source) = (Grantable::Limit(rate, None), EntitlementSource::Decay);
        let row = Entitlement::new(scope, grants, KindSet::ALL, source).expect("a limit of all");
        self.put(id, Some(row), now)
    }

    /// Removes the rows that have ended, and returns them.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<ChangedRow> {
        let mut ended = Vec::new();
        while let Some((_, id)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            ended.extend(self.put(id, None, now));
        }
        ended
    }

    /// When the next row ends.
    pub(crate) fn next_end(&self) -> Option<Time> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// What is sent to a proxy of these scopes whose last report arrived at `origin`, and whether
    /// that is all.
    pub(crate) fn update(
        &self,
        of: &UnacknowledgedRows,
        scopes: &ProxyScopes,
        origin: Time,
    ) -> (bool, Vec<(EntitlementId, Option<Entitlement>)>) {
        let own = |(id, planned): (&EntitlementId, &PlannedRow)| {
            scopes.has_all(&planned.names).then(|| (*id, planned.from(origin)))
        };
        let sent =
            |id: &EntitlementId| self.rows.get_key_value(id).and_then(own).unwrap_or((*id, None));
        match of.all {
            Some(_) => (true, self.rows.iter().filter_map(own).collect()),
            None => (false, of.changed.keys().map(sent).collect()),
        }
    }

    /// Whether a change concerns a proxy of these scopes.
    pub(crate) fn concerns(&self, changed: &ChangedRow, scopes: &ProxyScopes) -> bool {
        let after = self.rows.get(&changed.id).map(|planned| &planned.names);
        changed.before.as_ref().into_iter().chain(after).any(|names| scopes.has_all(names))
    }

    /// Whether there is a row of that number.
    pub(crate) fn contains(&self, id: EntitlementId) -> bool {
        self.rows.contains_key(&id)
    }

    /// Whether a proxy of these scopes has a row, or may have it: what it has not acknowledged changes.
    pub(crate) fn may_have(
        &self,
        id: EntitlementId,
        of: &UnacknowledgedRows,
        scopes: &ProxyScopes,
    ) -> bool {
        let is_own = |planned: &PlannedRow| scopes.has_all(&planned.names);
        of.all.is_some() || of.changed.contains_key(&id) || self.rows.get(&id).is_some_and(is_own)
    }

    /// The rate that a row reserves.
    pub(crate) fn reserved_rate(&self, id: EntitlementId) -> Option<Rate> {
        self.rows.get(&id)?.row.reservation()
    }

    /// Whether a proxy of these scopes has not acknowledged what it is to get of some rows: that they
    /// are in force, or that they are over.
    pub(crate) fn are_unacknowledged(
        &self,
        ids: &[EntitlementId],
        of: &UnacknowledgedRows,
        scopes: &ProxyScopes,
    ) -> bool {
        let is_own = |id| self.rows.get(id).is_none_or(|planned| scopes.has(planned.row.scope()));
        ids.iter().any(|id| of.changed.contains_key(id) || (of.all.is_some() && is_own(id)))
    }

    /// The rows that a proxy may get or lose by a change of its scopes; `None`: any.
    pub(crate) fn between(
        &self,
        before: &ProxyScopes,
        after: &ProxyScopes,
    ) -> Option<BTreeSet<EntitlementId>> {
        self.by_name.between(before, after)
    }

    fn has_room(&self, id: EntitlementId) -> bool {
        self.rows.len() < RowTable::MAX_COUNT || self.rows.contains_key(&id)
    }

    /// Puts or removes a row, if that is a change.
    fn put(
        &mut self,
        id: EntitlementId,
        row: Option<Entitlement>,
        now: Time,
    ) -> Option<ChangedRow> {
        let new = row.map(|row| {
            let begins = if row.from() == Nanos::ZERO { Time::ZERO } else { now + row.from() };
            let ends = row.until().map(|until| now + until);
            let names = ScopeName::of(row.scope()).collect();
            PlannedRow { row, names, begins, ends }
        });
        if self.rows.get(&id) == new.as_ref() {
            return None;
        }
        let before = self.rows.remove(&id).map(|old| {
            old.ends.map(|ends| self.ends.remove(&(ends, id)));
            self.by_name.remove(id, &old.names);
            old.names
        });
        if let Some(new) = new {
            self.by_name.insert(id, &new.names);
            self.ends.extend(new.ends.map(|ends| (ends, id)));
            self.rows.insert(id, new);
        }
        Some(ChangedRow { id, before })
    }
}

impl PlannedRow {
    /// The row with its span from `origin` on; `None` if it has ended by then, or begins and ends
    /// beyond all time.
    fn from(&self, origin: Time) -> Option<Entitlement> {
        let until = self.ends.map(|ends| ends.since(origin));
        self.row.clone().during(self.begins.since(origin), until).ok()
    }
}

impl UnacknowledgedRows {
    /// Notes that a row changed with a revision.
    pub(crate) fn note(&mut self, id: EntitlementId, revision: u64) {
        if self.changed.len() >= CHANGED_MAX && !self.changed.contains_key(&id) {
            return self.note_all(revision);
        }
        self.changed.insert(id, revision);
    }

    /// Notes that a revision brings all rows.
    pub(crate) fn note_all(&mut self, revision: u64) {
        *self = UnacknowledgedRows { all: Some(revision), changed: BTreeMap::new() };
    }

    /// Handles the acknowledgement of a revision.
    pub(crate) fn acknowledge(&mut self, revision: u64) {
        self.all = self.all.filter(|at| *at > revision);
        self.changed.retain(|_, at| *at > revision);
    }
}

/// The first number of a decay's row; operators' and the calendar's are below it.
const FIRST_OF_DECAYS: u64 = 1 << 63;
/// How many changes a proxy may not have acknowledged; of more it is sent all rows. So a proxy that
/// is unreachable costs no memory.
const CHANGED_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Nanos::from_millis(millis)
    }

    fn row(rate: u64) -> Entitlement {
        let grants = Grantable::Reservation(Rate::ops_per_sec(rate).unwrap());
        let (scope, source) = (EntitlementScope::default(), EntitlementSource::Operator);
        Entitlement::new(scope, grants, KindSet::ALL, source).unwrap()
    }

    type Update = (bool, Vec<(EntitlementId, Option<Entitlement>)>);

    /// What is sent to a proxy that has all scopes.
    fn update(table: &RowTable, of: &UnacknowledgedRows, origin: u64) -> Update {
        table.update(of, &ProxyScopes::All, at(origin))
    }

    #[test]
    fn a_span_is_sent_from_the_arrival_of_the_report_and_the_row_ends_by_itself() {
        let (mut table, mut proxy) = (RowTable::default(), UnacknowledgedRows::default());
        let ms = Nanos::from_millis;
        let planned = row(5).during(ms(100), Some(ms(900))).unwrap();
        assert_eq!(table.change(vec![(EntitlementId(1), Some(planned))], at(1_000)).0.len(), 1);
        proxy.note(EntitlementId(1), 7);
        let sent = |origin| update(&table, &proxy, origin).1[0].1.clone().unwrap();
        assert_eq!((sent(950).from(), sent(950).until()), (ms(150), Some(ms(950))));
        assert_eq!((sent(1_500).from(), sent(1_500).until()), (Nanos::ZERO, Some(ms(400))));
        assert_eq!((table.next_end(), table.expire(at(1_899))), (Some(at(1_900)), vec![]));
        assert_eq!(table.expire(at(1_900)).pop().unwrap().id, EntitlementId(1));
        assert_eq!(update(&table, &proxy, 1_900), (false, vec![(EntitlementId(1), None)]));
        proxy.acknowledge(7);
        assert_eq!(update(&table, &proxy, 1_900), (false, vec![]));
    }

    #[test]
    fn rows_and_unacknowledged_changes_are_bounded() {
        let (mut table, mut proxy) = (RowTable::default(), UnacknowledgedRows::default());
        let numbers = (0..65_537).chain([u64::MAX]);
        let many = numbers.map(|id| (EntitlementId(id), Some(row(1)))).collect();
        let (changed, refused) = table.change(many, at(0));
        assert_eq!((changed.len(), refused), (RowTable::MAX_COUNT, 2));
        let decay = Scope::decay("d", &[]);
        assert_eq!(table.set_decay(&decay, Rate::ops_per_sec(1), at(0)), None, "no room");
        assert_eq!(table.set_decay(&decay, None, at(0)), None);
        (0..5_000).for_each(|id| proxy.note(EntitlementId(id), id));
        assert!(proxy.changed.len() <= CHANGED_MAX);
        let (is_all, rows) = update(&table, &proxy, 0);
        assert_eq!((is_all, rows.len()), (true, RowTable::MAX_COUNT));
        proxy.acknowledge(5_000);
        assert_eq!(update(&table, &proxy, 0), (false, vec![]));
    }

    #[test]
    fn the_same_row_again_is_no_change_and_a_decay_keeps_its_number() {
        let mut table = RowTable::default();
        let change = |table: &mut RowTable, rate| {
            table.change(vec![(EntitlementId(1), Some(row(rate)))], at(rate)).0.len()
        };
        assert_eq!([5, 5, 6].map(|rate| change(&mut table, rate)), [1, 0, 1]);
        let [a, b] = ["a", "b"].map(|name| Scope::decay(name, &[]));
        let ops = Rate::ops_per_sec;
        let mut set = |key, rate, now| table.set_decay(key, rate, at(now)).map(|row| row.id);
        let first = set(&a, ops(5), 1);
        assert_eq!(set(&a, ops(4), 2), first);
        assert_ne!(set(&b, ops(4), 2), first);
        assert_eq!(set(&a, None, 3), first);
        assert_eq!(set(&a, None, 3), None);
        assert_ne!(set(&a, ops(5), 4), first, "no number is used again");
    }
}
