//! Reservations that serve the queried subjects here, and targets whose slots are divided.
//!
//! ```text
//!   subjects ─ groups of rows ─ each row ─► WhyReservation: what went by it, of how much
//!            ─ their targets ─ share of the slots < 1 ─► WhyDivision
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::{WhyDivision, WhyReservation};
use model::{Direction, KindSet, Share, TargetId, Time};
use rules::{EntitlementId, EntitlementSource};
use sched::{Dispatcher, MeterPayers, ReservedRow, SubjectDetail, WaitReport};

/// The rows of the calendar that reserve for subjects, by target and by what their subjects name them.
type CalendarRows = BTreeMap<(TargetId, EntitlementId), Vec<ReservedRow>>;

/// The reservations of subjects, with the others that these serve.
pub(super) struct FoundReservations {
    rows: CalendarRows,
    others: Vec<SubjectDetail>,
}

impl FoundReservations {
    /// Finds the reservations of these subjects. If they are those of a job, also the other subjects
    /// whose requests these serve, since some are for all requests of their user. O(rows), and once
    /// O(subjects).
    pub(super) fn of(
        dispatcher: &Dispatcher,
        found: &[SubjectDetail],
        are_of_job: bool,
        now: Time,
    ) -> FoundReservations {
        let mut rows = CalendarRows::new();
        for subject in found {
            for row in &subject.reserved {
                rows.entry((subject.target, *row)).or_insert_with(|| {
                    let mut all = dispatcher.reserved_rows(subject.target, *row);
                    all.retain(|of| of.entitlement.source() == EntitlementSource::Reservation);
                    all
                });
            }
        }
        let scopes = rows.values().filter_map(|all| Some(all.first()?.entitlement.scope()));
        let of_users = scopes.filter(|scope| scope.job.is_none() && are_of_job);
        let users: BTreeSet<u32> = of_users.filter_map(|scope| scope.uid).collect();
        let mut others = Vec::new();
        if !users.is_empty() {
            let user = if users.len() == 1 { users.first().copied() } else { None };
            others = dispatcher.subject_details(now, MeterPayers { job: None, user });
            let known: BTreeSet<_> = found.iter().map(|subject| subject.id).collect();
            others.retain(|of| users.contains(&of.identity.uid) && !known.contains(&of.id));
        }
        FoundReservations { rows, others }
    }

    /// The reservations as a message, one of each target and direction, with what all had of these.
    pub(super) fn described<'n>(
        self,
        found: &[SubjectDetail],
        now: Time,
        name_of: impl Fn(TargetId) -> &'n str,
    ) -> Vec<WhyReservation> {
        let mut totals: BTreeMap<(TargetId, EntitlementId), u64> = BTreeMap::new();
        for subject in found.iter().chain(&self.others) {
            for row in &subject.reserved {
                let at = (subject.target, *row);
                let first = self.rows.get(&at).and_then(|all| all.first());
                let had = first.map_or(0, |row| total(subject, direction(row)));
                *totals.entry(at).or_default() += had;
            }
        }
        let mut all: Vec<WhyReservation> = Vec::new();
        for (at, rows) in self.rows {
            let total = totals.get(&at).copied().unwrap_or(0);
            all.extend(rows.iter().map(|row| described(row, name_of(at.0), total, now)));
        }
        all
    }
}

/// The share of the slots of each target of these subjects and waiting classes, where it is not all.
pub(super) fn divided(
    dispatcher: &Dispatcher,
    found: &[SubjectDetail],
    waiting: &[WaitReport],
) -> Vec<(TargetId, Share)> {
    let of_subjects = found.iter().map(|subject| subject.target);
    let targets: BTreeSet<_> =
        of_subjects.chain(waiting.iter().map(|report| report.target)).collect();
    let parts = targets.into_iter().map(|target| (target, dispatcher.slots_part(target)));
    parts.filter(|(_, part)| !part.is_whole()).collect()
}

/// The divided targets as a message.
pub(super) fn divisions<'n>(
    parts: &[(TargetId, Share)],
    name_of: impl Fn(TargetId) -> &'n str,
) -> Vec<WhyDivision> {
    let of = |(target, part): &(TargetId, Share)| WhyDivision {
        target: name_of(*target).into(),
        share_ppb: part.billionths(),
        ..WhyDivision::default()
    };
    parts.iter().map(of).collect()
}

fn described(of: &ReservedRow, target: &str, total: u64, now: Time) -> WhyReservation {
    let row = &of.entitlement;
    let rate = row.reservation().expect("it reserves");
    let scope = row.scope();
    let direction = match direction(of) {
        Direction::Read => "read",
        Direction::Write => "write",
        Direction::Metadata => "metadata",
    };
    WhyReservation {
        proxy: String::new(),
        target: target.into(),
        id: of.row.reservation(),
        direction: direction.into(),
        rate: rate.into(),
        share_ppb: of.part.billionths(),
        ends_ns: of.ends.map(|ends| ends.since(now).get()),
        job: scope.job.as_ref().map(|job| job.to_string()),
        user: scope.uid,
        directory: scope.directory.as_ref().map(|directory| directory.to_string()),
        served: of.served,
        total,
    }
}

/// A row of the calendar is of one direction.
fn direction(of: &ReservedRow) -> Direction {
    let kinds = of.entitlement.kinds();
    let others = [Direction::Write, Direction::Metadata];
    let other = others.into_iter().find(|direction| KindSet::of(*direction) == kinds);
    other.unwrap_or(Direction::Read)
}

/// What a subject had of a direction: bytes, or operations without.
fn total(subject: &SubjectDetail, direction: Direction) -> u64 {
    match direction {
        Direction::Read => subject.usage.read.get(),
        Direction::Write => subject.usage.written.get(),
        Direction::Metadata => subject.metadata.get(),
    }
}
