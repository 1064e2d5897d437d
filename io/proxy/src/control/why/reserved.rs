//! Reservations that serve the queried subjects here, and targets whose slots are divided.
//!
//! ```text
//!   subjects ─ branches of their classes ─ row ─► WhyReservation: what went by it, of how much
//!            ─ their targets ─ share of the slots < 1 ─► WhyDivision
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::{WhyDivision, WhyReservation};
use model::{Direction, KindSet, Share, TargetId, Time};
use rules::{EntitlementId, EntitlementSource};
use sched::{ClassId, Dispatcher, MeterPayers, ReservedBranch, SubjectDetail, WaitReport};

/// The other subjects that the reservations of a job's subjects serve, since these are for all
/// requests of their user. O(subjects), once.
pub(super) fn also_served(
    dispatcher: &Dispatcher,
    found: &[SubjectDetail],
    now: Time,
) -> Vec<SubjectDetail> {
    let scopes = found.iter().flat_map(calendar_rows).map(|of| of.entitlement.scope());
    let users: BTreeSet<u32> =
        scopes.filter(|scope| scope.job.is_none()).filter_map(|scope| scope.uid).collect();
    if users.is_empty() {
        return Vec::new();
    }
    let user = if users.len() == 1 { users.first().copied() } else { None };
    let mut others = dispatcher.subject_details(now, MeterPayers { job: None, user });
    let known: BTreeSet<_> = found.iter().map(|subject| subject.id).collect();
    others.retain(|of| users.contains(&of.identity.uid) && !known.contains(&of.id));
    others
}

/// The reservations of these subjects, one of each target and direction, with what others had of them.
pub(super) fn reservations<'n>(
    found: &[SubjectDetail],
    others: &[SubjectDetail],
    now: Time,
    name_of: impl Fn(TargetId) -> &'n str,
) -> Vec<WhyReservation> {
    let mut known: BTreeMap<(TargetId, EntitlementId), WhyReservation> = BTreeMap::new();
    for subject in found {
        for branch in calendar_rows(subject) {
            let at = (subject.target, branch.row);
            known.entry(at).or_insert_with(|| described(branch, name_of(subject.target), now));
        }
    }
    let mut counted: BTreeSet<(EntitlementId, ClassId)> = BTreeSet::new();
    for subject in found.iter().chain(others) {
        let mut is_counted: BTreeSet<EntitlementId> = BTreeSet::new();
        for branch in calendar_rows(subject) {
            let Some(of) = known.get_mut(&(subject.target, branch.row)) else { continue };
            if is_counted.insert(branch.row) {
                of.total += total(subject, direction(branch));
            }
            if counted.insert((branch.row, branch.class)) {
                of.served += branch.served;
            }
        }
    }
    known.into_values().collect()
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

/// The rows of the calendar that reserve for a subject.
fn calendar_rows(subject: &SubjectDetail) -> impl Iterator<Item = &ReservedBranch> {
    let is_of_calendar =
        |of: &&ReservedBranch| of.entitlement.source() == EntitlementSource::Reservation;
    subject.reserved.iter().filter(is_of_calendar)
}

fn described(branch: &ReservedBranch, target: &str, now: Time) -> WhyReservation {
    let row = &branch.entitlement;
    let rate = row.reservation().expect("a branch is of a row that reserves");
    let scope = row.scope();
    let direction = match direction(branch) {
        Direction::Read => "read",
        Direction::Write => "write",
        Direction::Metadata => "metadata",
    };
    WhyReservation {
        proxy: String::new(),
        target: target.into(),
        id: branch.row.reservation(),
        direction: direction.into(),
        rate: rate.into(),
        share_ppb: branch.part.billionths(),
        ends_ns: branch.ends.map(|ends| ends.since(now).get()),
        job: scope.job.as_ref().map(|job| job.to_string()),
        user: scope.uid,
        directory: scope.directory.as_ref().map(|directory| directory.to_string()),
        served: 0,
        total: 0,
    }
}

/// A row of the calendar is of one direction.
fn direction(branch: &ReservedBranch) -> Direction {
    let kinds = branch.entitlement.kinds();
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
