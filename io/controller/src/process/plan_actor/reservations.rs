//! The rows of reservations: kept for the proxies of their targets, and followed until they are in
//! force.
//!
//! ```text
//!   calendar ─ rows ─► plan::TargetRows of the target
//!            ◄─ in force, or no room for them
//!            ◄─ used, and the unreachable proxies with what they may still use
//!            ◄─ late, with what was served
//! ```

use std::collections::BTreeSet;

use plan::{AwaitedRows, TargetRows};
use reserve::ReservationRows;

use super::PlanActor;
use crate::process::calendar::{CalendarMsg, UnreachableProxies};

/// The rows of one target, by this thread's clock.
#[derive(Debug, Default)]
pub(super) struct TargetReservations {
    pub(super) rows: TargetRows,
    unreachable: UnreachableProxies,
}

impl PlanActor {
    /// Keeps rows, and puts them to the proxies of their target if there are some.
    pub(super) fn set_rows(&mut self, rows: ReservationRows) {
        let now = self.now();
        let ReservationRows { target, at, changes, awaited } = rows;
        let changes = changes.into_iter().map(|(id, row)| (id, row.map(|row| row.moved(at, now))));
        let kept = self.reservations.entry(target.clone()).or_default();
        let awaited = awaited.map(|(id, version)| (id.0, version));
        let allocator = self.targets.get_mut(&target);
        let refused = kept.rows.change(changes.collect(), awaited, allocator, now);
        // What is awaited is reported to the calendar, which logs whose it is.
        if refused > 0 && awaited.is_none() {
            tracing::error!(
                target = &*target,
                refused,
                "rows of reservations were refused: the table of rows is full"
            );
        }
    }

    /// Reports which rows are in force and used, and which proxies may use what is reserved. What the
    /// calendar has no room for is reported with the next tick.
    pub(super) fn follow_rows(&mut self) {
        let (calendar, now) = (&self.calendar, self.now());
        for (target, kept) in &mut self.reservations {
            let mut allocator = self.targets.get_mut(target);
            kept.rows.report_awaited(allocator.as_deref(), now, |id, version, is| {
                let report = match is {
                    AwaitedRows::InForce => CalendarMsg::InForce { id, version },
                    AwaitedRows::NoRoom => CalendarMsg::NoRoom { id, version },
                };
                calendar.try_send(report).is_ok()
            });
            let Some(allocator) = allocator.as_mut() else { continue };
            let used: BTreeSet<u64> = kept.rows.take_used(allocator);
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

    /// Reports which reservations are late, if others are or their figures have changed. What the
    /// calendar has no room for is reported with the next tick.
    pub(super) fn follow_late(&mut self) {
        for (target, allocator) in &self.targets {
            let late: Vec<_> = allocator.late_reservations().collect();
            let reported = self.late.get(target);
            if reported.map_or(late.is_empty(), |reported| *reported == late) {
                continue;
            }
            let msg = CalendarMsg::Late(target.clone(), late.clone());
            if self.calendar.try_send(msg).is_ok() {
                self.late.insert(target.clone(), late);
            }
        }
    }
}
