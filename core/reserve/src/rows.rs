//! The rows that reservations have at the proxies of their targets.
//!
//! ```text
//!   RowLoads ─► a row for reads, writes, metadata ─ others than were sent? ─► ReservationRows ─► plan
//!                                                                  in force, version ◄──────────────┘
//! ```
//!
//! Each change of the rows of a reservation has a version: what is in force of an earlier one says
//! nothing about the rows that it has now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Direction, Directory, KindSet, Rate, Time};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, TimedEntitlement,
};

use crate::calendar::RowLoads;
use crate::demand::ResourceKind;
use crate::request::ReservationOwner;
use crate::reservation::ReservationId;
use crate::resources::{ResourceTable, Span};

/// What was sent of the rows of each reservation.
#[derive(Debug, Default)]
pub struct SentRows {
    sent: BTreeMap<ReservationId, SentReservation>,
    /// When loads change by themselves.
    changes: BTreeSet<(Time, ReservationId)>,
    /// The version of the last change.
    version: u64,
}

/// What the rows of a reservation are to be.
#[derive(Clone, Copy, Debug)]
pub struct WantedRows<'a> {
    /// The loads that they grant.
    pub loads: &'a RowLoads,
    /// The job and user for whose requests they are.
    pub owner: &'a ReservationOwner,
    /// The target at which they are.
    pub target: &'a str,
    /// The directory to which they are limited.
    pub directory: Option<&'a Directory>,
}

/// Changed rows of one reservation.
#[derive(Clone, Debug)]
pub struct ReservationRows {
    /// The target at whose proxies they are.
    pub target: Arc<str>,
    /// The time of this, by the clock of the rows.
    pub at: Time,
    /// The rows that are put, replaced or (`None`) removed.
    pub changes: Vec<(EntitlementId, Option<TimedEntitlement>)>,
    /// The reservation and the version of its rows, if it is to be reported that they are in force.
    pub awaited: Option<(ReservationId, u64)>,
}

#[derive(Debug, Default)]
struct SentReservation {
    target: Arc<str>,
    span: Option<Span>,
    /// The rate of each direction.
    rates: [Option<u64>; 3],
    is_installing: bool,
    next_change: Option<Time>,
    version: u64,
}

impl SentRows {
    /// Compares what a reservation is to have with what was sent; `None` without a change.
    pub fn update(
        &mut self,
        id: ReservationId,
        wanted: Option<WantedRows<'_>>,
        resources: &ResourceTable,
        now: Time,
    ) -> Option<ReservationRows> {
        let mut new = wanted.map_or_else(SentReservation::default, |wanted| SentReservation {
            target: wanted.target.into(),
            span: Some(wanted.loads.span),
            rates: rates(wanted.loads, resources),
            is_installing: wanted.loads.is_installing,
            next_change: wanted.loads.next_change,
            version: 0,
        });
        let before = self.sent.remove(&id).unwrap_or_default();
        before.next_change.map(|at| self.changes.remove(&(at, id)));
        self.changes.extend(new.next_change.map(|at| (at, id)));
        let target = if new.span.is_some() { &new.target } else { &before.target };
        let target = target.clone();
        let mut changes = Vec::new();
        let grants = new.rates.iter().zip(before.rates).zip(DIRECTIONS).zip(0..);
        for (((rate, before_rate), direction), nth) in grants {
            let row = rate.zip(new.span).zip(wanted);
            let row = row.map(|((rate, span), wanted)| TimedEntitlement {
                row: entitlement(rate, direction, wanted),
                from: span.from,
                until: span.until,
            });
            let is_same = (*rate, new.span) == (before_rate, before.span);
            if !is_same && (row.is_some() || before_rate.is_some()) {
                changes.push((EntitlementId::of_reservation(id.0, nth), row));
            }
        }
        let is_news = !changes.is_empty() || (new.is_installing && !before.is_installing);
        self.version += u64::from(is_news);
        new.version = if is_news { self.version } else { before.version };
        let awaited = new.is_installing.then_some((id, new.version));
        if new.span.is_some() {
            self.sent.insert(id, new);
        }
        is_news.then_some(ReservationRows { target, at: now, changes, awaited })
    }

    /// Whether the rows of a reservation are those of this version, with no change since.
    pub fn is_latest(&self, id: ReservationId, version: u64) -> bool {
        self.sent.get(&id).is_some_and(|sent| sent.version == version)
    }

    /// The reservations whose loads have changed by themselves until now.
    pub fn take_due(&mut self, now: Time) -> Vec<ReservationId> {
        let mut due = Vec::new();
        while let Some((_, id)) = self.changes.first().copied().filter(|(at, _)| *at <= now) {
            self.changes.pop_first();
            due.push(id);
        }
        due
    }

    /// When loads change by themselves next.
    pub fn next_due(&self) -> Option<Time> {
        self.changes.first().map(|(at, _)| *at)
    }

    /// The reservations of which rows were sent.
    pub fn ids(&self) -> impl Iterator<Item = ReservationId> {
        self.sent.keys().copied()
    }

    /// Forgets what was sent, without a change at the proxies, so that it is sent again.
    pub fn resend(&mut self) {
        for sent in self.sent.values_mut() {
            (sent.span, sent.is_installing, sent.next_change) = (None, false, None);
        }
        self.changes.clear();
    }
}

/// The direction of a row of a reservation; `None`: it is of none.
pub fn direction_of_row(id: EntitlementId) -> Option<Direction> {
    DIRECTIONS.get((id.0 % EntitlementId::OF_RESERVATION) as usize).copied()
}

/// The rates of reads, writes and metadata: the least that a resource gives, as one of them may have
/// lost capacity. Of zero there is no row.
fn rates(rows: &RowLoads, resources: &ResourceTable) -> [Option<u64>; 3] {
    let mut rates = [None; 3];
    let mut note = |at: usize, per_sec: u64| {
        rates[at] = Some(rates[at].map_or(per_sec, |least: u64| least.min(per_sec)));
    };
    for (resource, load) in &rows.loads {
        let Some((_, kind)) = resources.describe(*resource) else { continue };
        match kind {
            ResourceKind::Metadata => note(2, load.read_per_sec()),
            _ => {
                note(0, load.read_per_sec());
                note(1, load.write_per_sec());
            }
        }
    }
    rates.map(|rate: Option<u64>| rate.filter(|per_sec| *per_sec > 0))
}

fn entitlement(per_sec: u64, direction: Direction, wanted: WantedRows<'_>) -> Entitlement {
    let rate = match direction {
        Direction::Metadata => Rate::ops_per_sec(per_sec),
        _ => Rate::bytes_per_sec(per_sec),
    };
    let WantedRows { owner, target, directory, .. } = wanted;
    let scope = EntitlementScope {
        job: (!owner.job.as_str().is_empty()).then(|| owner.job.clone()),
        uid: Some(owner.uid),
        class: None,
        directory: directory.cloned(),
        target: Some(target.into()),
    };
    let grants = Grantable::Reservation(rate.expect("rows without a rate are left out"));
    let kinds = KindSet::of(direction);
    Entitlement::new(scope, grants, kinds, EntitlementSource::Reservation).expect("it has kinds")
}

const DIRECTIONS: [Direction; 3] = [Direction::Read, Direction::Write, Direction::Metadata];
