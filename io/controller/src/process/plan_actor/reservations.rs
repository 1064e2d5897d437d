//! The rows of reservations: kept for the proxies of their targets, and followed until they are in
//! force.
//!
//! ```text
//!   calendar ─ rows ─► set_rows of the target's allocator, kept for one that is made later
//!            ◄─ in force: no reachable proxy has them unacknowledged
//!            ◄─ used, and the unreachable proxies with what they may still use
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::rules::{Entitlement, EntitlementId};
use model::Time;

use super::{PlanActor, ShareAllocator};
use crate::process::calendar::{CalendarMsg, UnreachableProxies};

/// Changed rows of one reservation.
#[derive(Debug)]
pub(crate) struct ReservationRows {
    pub(crate) target: Arc<str>,
    /// The time of this, since 1970 as those of the rows.
    pub(crate) at: Time,
    pub(crate) changes: Vec<(EntitlementId, Option<TimedRow>)>,
    /// The reservation, if it is to be reported when its rows are in force.
    pub(crate) awaited: Option<u64>,
}

/// A row with its span, since 1970.
#[derive(Clone, Debug)]
pub(crate) struct TimedRow {
    pub(crate) row: Entitlement,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// The rows of one target, by this thread's clock.
#[derive(Debug, Default)]
pub(super) struct TargetReservations {
    rows: BTreeMap<EntitlementId, TimedRow>,
    awaited: BTreeSet<u64>,
    unreachable: UnreachableProxies,
}

impl TargetReservations {
    /// All rows as they count from `now` on.
    pub(super) fn from(&self, now: Time) -> Vec<(EntitlementId, Option<Entitlement>)> {
        self.rows.iter().map(|(id, timed)| (*id, timed.since(now))).collect()
    }
}

impl TimedRow {
    /// The row with its span from a time on; `None` if it has ended by then.
    fn since(&self, now: Time) -> Option<Entitlement> {
        let (from, until) = (self.from.since(now), self.until.since(now));
        self.row.clone().during(from, Some(until)).ok()
    }
}

impl PlanActor {
    /// Keeps rows, and puts them to the proxies of their target if there are some.
    pub(super) fn set_rows(&mut self, rows: ReservationRows) {
        let now = self.now();
        let here = |time: Time| match time >= rows.at {
            true => now + time.since(rows.at),
            false => now.before(rows.at.since(time)),
        };
        let kept = self.reservations.entry(rows.target.clone()).or_default();
        let mut changes = Vec::with_capacity(rows.changes.len());
        for (id, timed) in rows.changes {
            let timed = timed.map(|timed| TimedRow {
                from: here(timed.from),
                until: here(timed.until),
                ..timed
            });
            changes.push((id, timed.as_ref().and_then(|timed| timed.since(now))));
            kept.awaited.remove(&(id.0 / ROWS_EACH));
            match timed {
                Some(timed) => kept.rows.insert(id, timed),
                None => kept.rows.remove(&id),
            };
        }
        kept.awaited.extend(rows.awaited);
        if let Some(allocator) = self.targets.get_mut(&rows.target) {
            let refused = allocator.set_rows(changes, now);
            if refused > 0 {
                tracing::error!(
                    target = &*rows.target,
                    refused,
                    "rows of reservations were refused: the table of rows is full"
                );
            }
        }
    }

    /// Reports which rows are in force and used, and which proxies may use what is reserved. What the
    /// calendar has no room for is reported with the next tick.
    pub(super) fn follow_rows(&mut self) {
        let calendar = &self.calendar;
        for (target, kept) in &mut self.reservations {
            let mut allocator = self.targets.get_mut(target);
            let mut checks = 0;
            kept.awaited.retain(|number| {
                checks += 1;
                let all = (0..ROWS_EACH).map(|nth| EntitlementId(number * ROWS_EACH + nth));
                let rows: Vec<_> = all.filter(|id| kept.rows.contains_key(id)).collect();
                let is_in_force =
                    |allocator: &ShareAllocator| allocator.rows_state(&rows).unacknowledged == 0;
                // Without any proxy there is none that could do otherwise.
                let reported = checks <= CHECKS_MAX
                    && allocator.as_deref().is_none_or(is_in_force)
                    && calendar.try_send(CalendarMsg::InForce(*number)).is_ok();
                !reported
            });
            let Some(allocator) = allocator.as_mut() else { continue };
            let used = allocator.take_used_rows();
            let used = used.iter().filter(|id| kept.rows.contains_key(id));
            let used: BTreeSet<u64> = used.map(|id| id.0 / ROWS_EACH).collect();
            if !used.is_empty() {
                // They are reported again while they are used.
                let _ = calendar.try_send(CalendarMsg::Used(used.into_iter().collect()));
            }
            let state = allocator.rows_state(&[]);
            let given_out = state.given_out;
            let unreachable = UnreachableProxies { names: state.unreachable, given_out };
            if unreachable != kept.unreachable {
                let msg = CalendarMsg::Unreachable(target.clone(), unreachable.clone());
                if calendar.try_send(msg).is_ok() {
                    kept.unreachable = unreachable;
                }
            }
        }
    }
}

/// The numbers of rows of one reservation: one for each direction, and one to spare.
const ROWS_EACH: u64 = 4;
/// The most reservations of a target that are checked in one tick.
const CHECKS_MAX: usize = 256;
