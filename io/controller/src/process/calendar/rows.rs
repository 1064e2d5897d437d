//! The rows that reservations have at the proxies of their targets.
//!
//! ```text
//!   ReservationProgress ─► a row for reads, writes, metadata ─ others than were sent? ─► PlanMsg::Rows
//! ```
//!
//! The number of a row is that of its reservation times four, plus the direction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Direction, Directory, KindSet, Rate, Time};
use reserve::{ReservationId, ReservationOwner, ResourceKind, ResourceTable, RowLoads, Span};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};

use super::state::ReservationDetails;
use crate::process::plan_actor::{ReservationRows, TimedRow};

/// What was sent of each reservation.
#[derive(Debug, Default)]
pub(super) struct SentRows {
    sent: BTreeMap<ReservationId, SentReservation>,
    /// When loads change by themselves.
    changes: BTreeSet<(Time, ReservationId)>,
}

#[derive(Debug, Default)]
struct SentReservation {
    target: Arc<str>,
    span: Option<Span>,
    /// The rate of each direction.
    rates: [Option<u64>; 3],
    is_installing: bool,
}

impl SentRows {
    /// Compares what a reservation is to have with what was sent; `None` without a change.
    pub(super) fn update(
        &mut self,
        id: ReservationId,
        wanted: Option<(&RowLoads, &ReservationOwner, &ReservationDetails)>,
        resources: &ResourceTable,
        now: Time,
    ) -> Option<ReservationRows> {
        let next_change = wanted.and_then(|(rows, ..)| rows.next_change);
        self.changes.extend(next_change.map(|at| (at, id)));
        let new = match wanted {
            None => SentReservation::default(),
            Some((rows, _, details)) => SentReservation {
                target: details.target.as_str().into(),
                span: Some(rows.span),
                rates: rates(rows, resources),
                is_installing: rows.is_installing,
            },
        };
        let before = self.sent.remove(&id).unwrap_or_default();
        let target = if new.span.is_some() { &new.target } else { &before.target };
        let target = target.clone();
        let awaited = new.is_installing.then_some(id.0);
        let mut changes = Vec::new();
        let grants = new.rates.iter().zip(before.rates).zip(DIRECTIONS).enumerate();
        for (nth, ((rate, before_rate), direction)) in grants {
            let row = rate.zip(new.span).zip(wanted);
            let row = row.map(|((rate, span), (_, owner, details))| TimedRow {
                row: entitlement(rate, direction, owner, details),
                from: span.from,
                until: span.until,
            });
            let is_same = (*rate, new.span) == (before_rate, before.span);
            if !is_same && (row.is_some() || before_rate.is_some()) {
                changes.push((EntitlementId(id.0 * 4 + nth as u64), row));
            }
        }
        let is_news = !changes.is_empty() || (awaited.is_some() && !before.is_installing);
        if new.span.is_some() {
            self.sent.insert(id, new);
        }
        is_news.then_some(ReservationRows { target, at: now, changes, awaited })
    }

    /// The reservations whose loads have changed by themselves until now.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<ReservationId> {
        let mut due = Vec::new();
        while let Some((_, id)) = self.changes.first().copied().filter(|(at, _)| *at <= now) {
            self.changes.pop_first();
            due.push(id);
        }
        due
    }

    /// The reservations of which rows were sent.
    pub(super) fn ids(&self) -> Vec<ReservationId> {
        self.sent.keys().copied().collect()
    }

    /// Forgets what was sent, without a change at the proxies, so that it is sent again.
    pub(super) fn resend(&mut self) {
        for sent in self.sent.values_mut() {
            (sent.span, sent.is_installing) = (None, false);
        }
        self.changes.clear();
    }
}

/// The rates of reads, writes and metadata; of zero there is no row.
fn rates(rows: &RowLoads, resources: &ResourceTable) -> [Option<u64>; 3] {
    let mut rates = [None; 3];
    for (resource, load) in &rows.loads {
        let Some((_, kind)) = resources.describe(*resource) else { continue };
        match kind {
            ResourceKind::Target => {
                rates[0] = Some(load.read_per_sec());
                rates[1] = Some(load.write_per_sec());
            }
            ResourceKind::Metadata => rates[2] = Some(load.read_per_sec()),
            _ => {}
        }
    }
    rates.map(|rate| rate.filter(|per_sec| *per_sec > 0))
}

fn entitlement(
    per_sec: u64,
    direction: Direction,
    owner: &ReservationOwner,
    details: &ReservationDetails,
) -> Entitlement {
    let rate = match direction {
        Direction::Metadata => Rate::ops_per_sec(per_sec),
        _ => Rate::bytes_per_sec(per_sec),
    };
    let directory = details.directory.as_ref().map(|path| Directory::new(path.as_bytes()));
    let scope = EntitlementScope {
        job: (!owner.job.as_str().is_empty()).then(|| owner.job.clone()),
        uid: Some(owner.uid),
        class: None,
        directory: directory.map(|path| path.expect("checked at the request")),
        target: Some(details.target.as_str().into()),
    };
    let grants = Grantable::Reservation(rate.expect("rows without a rate are left out"));
    let kinds = KindSet::of(direction);
    Entitlement::new(scope, grants, kinds, EntitlementSource::Reservation).expect("it has kinds")
}

const DIRECTIONS: [Direction; 3] = [Direction::Read, Direction::Write, Direction::Metadata];
