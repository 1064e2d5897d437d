//! Rows of entitlements in the world: who keeps them, and how they come to the schedulers.
//!
//! ```text
//!   change ─► record ─┬─ with a controller ─► ShareAllocator ─ messages ─► ControllerSession ─┐
//!                     └─ without ─────────────────────────────────────────────────────────────┴─► scheduler
//! ```
//!
//! The record stands for the calendar: rows of reservations survive a leader, and the next one puts
//! them again. An operator's are of the leader that has them; while there is none, nobody takes them.
//! Without a controller a proxy that is back gets all rows of the record.
//!
//! After the load, when messages arrive again, each proxy has the rows of the record: none is lost,
//! none is back that was removed, and none is left of a leader that is gone.

use std::collections::BTreeMap;

use model::{Nanos, Time};
use rules::{Entitlement, EntitlementId, EntitlementSource};

use super::World;
use super::control::SimPool;
use crate::checks::{GivenRow, RowsEvent};
use crate::faults::FaultKind;
use crate::row_changes::{FIRST_OF_SCENARIO, RowChange};
use crate::scheduler::EntitlementChanges;

/// The rows that are to be in force.
#[derive(Debug, Default)]
pub(super) struct RowRecord {
    rows: BTreeMap<EntitlementId, RecordedRow>,
    #[cfg(test)]
    pub(super) bug: Option<RowBug>,
}

/// A row since when it was put.
#[derive(Clone, Debug)]
struct RecordedRow {
    row: Entitlement,
    put: Time,
}

/// A fault on the way of rows to the scheduler, for tests of the checks.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) enum RowBug {
    /// New rows are lost.
    Loses,
    /// Rows that are removed stay.
    Keeps,
    /// Rows last for ever.
    Unending,
}

impl RecordedRow {
    /// The row with its span from `now` on; `None` if it has ended.
    fn since(&self, now: Time) -> Option<Entitlement> {
        let span = |span: Nanos| (self.put + span).since(now);
        self.row.clone().during(span(self.row.from()), self.row.until().map(span)).ok()
    }

    fn ends(&self) -> Option<Time> {
        self.row.until().map(|until| self.put + until)
    }
}

impl World {
    /// Changes a row, as the scenario says.
    pub(super) fn change_row(&mut self, number: u32) {
        let RowChange { id, row, .. } = self.scenario.rows[number as usize].clone();
        if self.controls.is_empty() {
            self.record_row(id, row.clone());
            for proxy in 0..self.proxies.len() as u32 {
                self.give_rows_now(proxy, vec![(id, row.clone())]);
            }
            return;
        }
        let at = self.allocator_of(id);
        let has_leader = self.controls[at].has_leader();
        let is_recorded = self.row_record.rows.get(&id);
        let of = row.as_ref().or(is_recorded.map(|known| &known.row));
        if !has_leader && of.is_some_and(|row| row.source() != EntitlementSource::Reservation) {
            return;
        }
        self.record_row(id, row.clone());
        if has_leader {
            self.controls[at].controller.set_rows(vec![(id, row)], self.now);
            self.send_assignments(at);
        }
    }

    /// Puts the rows of the record into the allocator of a new leader.
    pub(super) fn put_rows_again(&mut self, at: usize) {
        let known = self.row_record.rows.keys().copied();
        // The calendar puts its own again.
        let is_of_scenario = |id: &EntitlementId| self.calendar_target(*id).is_none();
        let of_here: Vec<EntitlementId> =
            known.filter(is_of_scenario).filter(|id| self.allocator_of(*id) == at).collect();
        for id in of_here {
            let known = &self.row_record.rows[&id];
            match known.since(self.now) {
                Some(row) if row.source() == EntitlementSource::Reservation => {
                    self.controls[at].controller.set_rows(vec![(id, Some(row))], self.now);
                }
                _ => self.record_row(id, None),
            }
        }
    }

    /// Gives a proxy that is back the rows of the record, where there is no controller.
    pub(super) fn restore_rows(&mut self, proxy: u32) {
        if self.controls.is_empty() {
            let rows = self.row_record.rows.iter();
            let rows = rows.filter_map(|(id, known)| Some((*id, Some(known.since(self.now)?))));
            self.give_rows_now(proxy, rows.collect());
        }
    }

    /// Passes rows to a proxy's scheduler; their spans count from `since` of its clock.
    pub(super) fn give_rows(&mut self, proxy: u32, rows: EntitlementChanges, since: Time) {
        #[cfg(test)]
        let rows = self.row_record.inject(rows);
        if let Some(what) = self.check_lost_rows(proxy, &rows) {
            self.violate(what);
        }
        let own = &mut self.proxies[proxy as usize];
        let clock = own.clock(self.now);
        own.sched.set_entitlements(rows.clone(), since, clock);
        // Limits of decays are checked with the usage.
        let is_noted = |(id, _): &(EntitlementId, _)| id.0 < FIRST_OF_DECAYS;
        let rows = rows.into_iter().filter(is_noted).collect();
        self.note_rows(proxy, RowsEvent::Given(rows, since), clock);
        self.touch(proxy);
    }

    /// Lets rows begin and end by a proxy's clock, before it is polled.
    pub(super) fn pass_row_edges(&mut self, proxy: u32) {
        if !self.scenario.rows.is_empty() || self.calendar.is_some() {
            let clock = self.proxies[proxy as usize].clock(self.now);
            self.note_rows(proxy, RowsEvent::Passed, clock);
        }
    }

    fn give_rows_now(&mut self, proxy: u32, rows: EntitlementChanges) {
        if self.proxies[proxy as usize].up {
            let clock = self.proxies[proxy as usize].clock(self.now);
            self.give_rows(proxy, rows, clock);
        }
    }

    fn note_rows(&mut self, proxy: u32, event: RowsEvent, clock: Time) {
        let Some(checks) = &mut self.checks else { return };
        let (requests, clients, owners) = (&self.requests, &self.clients, &self.identities);
        let waiting = || super::waiting_of(requests, clients, owners, Some(proxy));
        let spreading = self.proxies[proxy as usize].sched.is_spreading();
        checks.rows_changed(proxy, event, spreading, waiting, clock, self.now);
    }

    fn record_row(&mut self, id: EntitlementId, row: Option<Entitlement>) {
        self.row_record.put(id, row, self.now);
    }

    /// The target of a row of the calendar.
    fn calendar_target(&self, id: EntitlementId) -> Option<usize> {
        self.calendar.as_ref().and_then(|keeper| keeper.target_of(id))
    }

    /// The allocator of a row: that of its target, or that of limits.
    fn allocator_of(&self, id: EntitlementId) -> usize {
        if let Some(target) = self.calendar_target(id) {
            return target;
        }
        let named = |change: &RowChange| {
            let row = change.row.as_ref().filter(|_| change.id == id)?;
            Some(row.scope().target.clone())
        };
        let target = self.scenario.rows.iter().find_map(named).flatten();
        let find = |target: &str| self.scenario.targets.iter().position(|spec| spec.name == target);
        target.and_then(|target| find(&target)).unwrap_or(self.scenario.targets.len())
    }

    /// Whether a proxy is to have a row: those of limits are for all, and others for the target's,
    /// of those that have its scope.
    fn concerns(&self, id: EntitlementId, row: &Entitlement, proxy: u32) -> bool {
        let of_target = self.control_of(proxy, SimPool::Target);
        self.controls.is_empty()
            || [of_target, self.scenario.targets.len()].contains(&self.allocator_of(id))
                && self.proxies[proxy as usize].scopes().has(row.scope())
    }

    /// After the load, when every proxy has had the time to get what changed: compares the rows of
    /// each with the record.
    pub(super) fn check_rows(&mut self) {
        let Some(checks) = &self.checks else { return };
        let slack = self.end_slack();
        let mut wrong = Vec::new();
        for proxy in (0..self.proxies.len() as u32).filter(|of| self.proxies[*of as usize].up) {
            let clock = self.proxies[proxy as usize].clock(self.now);
            let mut given: BTreeMap<EntitlementId, &GivenRow> =
                checks.current_rows(proxy, clock).collect();
            for (id, known) in &self.row_record.rows {
                let has = given.remove(id);
                let left = known.ends().map(|ends| (ends.since(self.now), self.now.since(ends)));
                let is_about_to_end = left.is_some_and(|(left, ago)| left.max(ago) <= slack);
                let has_ended = left.is_some_and(|(left, _)| left == Nanos::ZERO);
                if is_about_to_end {
                    continue;
                }
                let fits = |given: &GivenRow| {
                    let same_end = match (left, given.ends) {
                        (Some((left, _)), Some(ends)) => {
                            let here = ends.since(clock);
                            left.max(here) - left.min(here) <= slack
                        }
                        (None, None) => true,
                        _ => false,
                    };
                    same_end && is_same(&known.row, &given.row)
                };
                let is_due = !has_ended && self.concerns(*id, &known.row, proxy);
                let is_right = if is_due { has.is_some_and(fits) } else { has.is_none() };
                if !is_right {
                    wrong.push(format!("row {} at proxy {proxy} is {has:?}, not {known:?}", id.0));
                }
            }
            let further = given.iter().map(|(id, row)| {
                format!("row {} at proxy {proxy} is {row:?}, though nobody has it", id.0)
            });
            wrong.extend(further);
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// By how much the end of a row may differ between clocks: a late report, and clocks that jumped.
    pub(super) fn end_slack(&self) -> Nanos {
        let jumps = self.scenario.faults.iter().map(|fault| match fault.what {
            FaultKind::Clock { by, .. } => by,
            _ => Nanos::ZERO,
        });
        jumps.fold(LATE_REPORT, |sum, by| sum + by)
    }
}

impl RowRecord {
    /// Puts a row, whose span counts from `put`, or removes it.
    pub(super) fn put(&mut self, id: EntitlementId, row: Option<Entitlement>, put: Time) {
        match row {
            Some(row) => self.rows.insert(id, RecordedRow { row, put }),
            None => self.rows.remove(&id),
        };
    }

    /// When a row ends.
    pub(super) fn ends(&self, id: EntitlementId) -> Option<Time> {
        self.rows.get(&id)?.ends()
    }

    /// The rates of the rows of a reservation.
    pub(super) fn rates_of(&self, reservation: u64) -> [u64; 3] {
        [0, 1, 2].map(|row| {
            let known = self.rows.get(&EntitlementId::of_reservation(reservation, row));
            known.and_then(|known| known.row.reservation()).map_or(0, |rate| rate.per_sec())
        })
    }

    /// Forgets all rows of the calendar, and returns them.
    pub(super) fn forget_calendar(&mut self) -> impl Iterator<Item = EntitlementId> {
        let of_scenario = self.rows.split_off(&EntitlementId(FIRST_OF_SCENARIO));
        std::mem::replace(&mut self.rows, of_scenario).into_keys()
    }

    #[cfg(test)]
    fn inject(&self, mut rows: EntitlementChanges) -> EntitlementChanges {
        match self.bug {
            Some(RowBug::Loses) => rows.retain(|(_, row)| row.is_none()),
            Some(RowBug::Keeps) => rows.retain(|(_, row)| row.is_some()),
            Some(RowBug::Unending) => rows.iter_mut().for_each(|(_, row)| {
                *row = row.take().map(|row| row.during(Nanos::ZERO, None).expect("no end"));
            }),
            None => {}
        }
        rows
    }
}

/// Whether two rows differ in nothing but their spans.
fn is_same(one: &Entitlement, other: &Entitlement) -> bool {
    let parts = |row: &Entitlement| (row.scope().clone(), row.grants(), row.kinds(), row.source());
    parts(one) == parts(other)
}

/// Rows that decays make have numbers from here on.
const FIRST_OF_DECAYS: u64 = 1 << 63;
/// A report from which a span counts may have been late, and answered late.
const LATE_REPORT: Nanos = Nanos::from_secs(2);
