//! What was used of what is reserved, from the ledger.
//!
//! ```text
//!   exports of a target ─► ledger: points of minutes or longer ─► rates in spans of equal length
//!   job or user, since the claim ─► the owner's bytes at the target, for its credit
//! ```
//!
//! The ledger counts by the minute and in coarser steps later: a point counts in proportion to its
//! time within a span.

use std::collections::BTreeMap;

use api::{CalendarStep, ErrorCode, WireReservation};
use model::{Bytes, Nanos, Service, Time};
use reserve::Span;
use tokio::sync::oneshot;

use super::{RouteError, shutting_down, submit, usage};
use crate::ledger::{LedgerPoint, SubjectKind};
use crate::process::ApiState;
use crate::process::access::ApiCaller;
use crate::process::calendar::{CalendarMsg, PromisedCalendar};

/// Adds what proxies have served of each target until now.
pub(super) async fn add_used(
    shared: &ApiState,
    shown: &mut PromisedCalendar,
    from: Time,
    until: Time,
) -> Result<(), RouteError> {
    let until = until.min(Time::from_nanos(shown.calendar.at_ns));
    if from >= until {
        return Ok(());
    }
    let mut of_targets: BTreeMap<&str, Vec<LedgerPoint>> = BTreeMap::new();
    for (target, exports) in shown.exports.iter().take(TARGETS_MAX) {
        let points = series(shared, SubjectKind::Export, exports.clone(), from, until).await?;
        of_targets.insert(target, points);
    }
    for resource in &mut shown.calendar.resources {
        let Some(points) = of_targets.get(resource.name.as_str()) else { continue };
        let amount: fn(&Service) -> (u64, u64) = match resource.kind.as_str() {
            "target" => |sums| (sums.read_bytes, sums.written_bytes),
            "metadata" => |sums| (sums.metadata_ops(), 0),
            _ => continue,
        };
        resource.used = rates(points, amount, from, until);
    }
    Ok(())
}

/// The bytes that the owner of a reservation has moved with its job, or without one with all its
/// requests, since its clock runs; none of a job that is also another user's, as the ledger does not
/// count these apart, and no more than what its target has served meanwhile.
pub(super) async fn bytes_used(
    shared: &ApiState,
    of: &WireReservation,
    by: &ApiCaller,
) -> Result<Bytes, RouteError> {
    let now = shared.clock.now();
    let Some(since) = of.claimed_ns.map(Time::from_nanos).filter(|since| *since < now) else {
        return Ok(Bytes::ZERO);
    };
    let own = match &of.job {
        Some(job) => {
            let (answer, found) = oneshot::channel();
            let ask = usage::UsageMsg::Job { job: job.clone(), from: since, to: now, answer };
            submit(&shared.usage, ask)?;
            let found = found.await.map_err(|_| shutting_down())?.map_err(store_failed)?;
            if found.users != [of.user] {
                return Ok(Bytes::ZERO);
            }
            found.points
        }
        None => series(shared, SubjectKind::User, vec![of.user.to_string()], since, now).await?,
    };
    let own = bytes_in(&own, since, now);
    let (answer, target) = oneshot::channel();
    let wanted = CalendarMsg::Promised {
        span: (now, now + Nanos::new(1)),
        target: Some(of.target.clone()),
        by: by.clone(),
        answer,
    };
    submit(&shared.calendar, wanted)?;
    let mut target = target.await.map_err(|_| shutting_down())?;
    let Some(exports) = target.exports.remove(&of.target).filter(|found| !found.is_empty()) else {
        return Ok(Bytes::new(own));
    };
    let served = series(shared, SubjectKind::Export, exports, since, now).await?;
    Ok(Bytes::new(own.min(bytes_in(&served, since, now))))
}

/// The points of some subjects of the ledger, together.
async fn series(
    shared: &ApiState,
    kind: SubjectKind,
    names: Vec<String>,
    from: Time,
    to: Time,
) -> Result<Vec<LedgerPoint>, RouteError> {
    let (answer, points) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Series { kind, names, from, to, answer })?;
    points.await.map_err(|_| shutting_down())?.map_err(store_failed)
}

fn store_failed(why: impl ToString) -> RouteError {
    RouteError::new(ErrorCode::StoreFailed, why.to_string())
}

/// The payload of points in a span.
fn bytes_in(points: &[LedgerPoint], from: Time, until: Time) -> u64 {
    let bytes = points.iter().map(|point| {
        let bytes = point.sums.read_bytes.saturating_add(point.sums.written_bytes);
        part(bytes, point, Span { from, until }, until)
    });
    bytes.fold(0, u64::saturating_add)
}

/// The part of an amount of a point that is within a span, if all of it came evenly until `now`.
fn part(amount: u64, point: &LedgerPoint, span: Span, now: Time) -> u64 {
    let Span { from, until } = span;
    let end = (point.at + point.span).min(now);
    let length = u128::from(end.since(point.at).get()).max(1);
    let inside = u128::from(until.min(end).since(from.max(point.at)).get()).min(length);
    // not more than the amount
    (u128::from(amount) * inside / length) as u64
}

/// The mean rates in spans of equal length, whole minutes; those that are equal are one.
fn rates(
    points: &[LedgerPoint],
    amount: fn(&Service) -> (u64, u64),
    from: Time,
    until: Time,
) -> Vec<CalendarStep> {
    let minutes = until.since(from).get().div_ceil(SPANS_MAX).div_ceil(MINUTE_NS).max(1);
    let length = Nanos::new(minutes * MINUTE_NS);
    let mut steps: Vec<CalendarStep> = Vec::new();
    let mut begin = from.before(Nanos::new(from.as_nanos() % MINUTE_NS));
    while begin < until {
        let end = (begin + length).min(until);
        let (mut read, mut write) = (0u64, 0u64);
        for point in points.iter().filter(|of| of.at < end && of.at + of.span > begin) {
            let (of_reads, of_writes) = amount(&point.sums);
            read =
                read.saturating_add(part(of_reads, point, Span { from: begin, until: end }, until));
            write = write.saturating_add(part(
                of_writes,
                point,
                Span { from: begin, until: end },
                until,
            ));
        }
        let span = u128::from(end.since(begin).get()).max(1);
        let per_sec = |amount: u64| {
            u64::try_from(u128::from(amount) * 1_000_000_000 / span).unwrap_or(u64::MAX)
        };
        let (read_per_sec, write_per_sec) = (per_sec(read), per_sec(write));
        let from_ns = begin.max(from).as_nanos();
        let is_same = |last: &CalendarStep| {
            (last.read_per_sec, last.write_per_sec) == (read_per_sec, write_per_sec)
        };
        if !steps.last().is_some_and(is_same) {
            steps.push(CalendarStep { from_ns, read_per_sec, write_per_sec });
        }
        begin = begin + length;
    }
    steps
}

/// The most spans of a past.
const SPANS_MAX: u64 = 240;
/// The most targets whose usage is read for one answer.
const TARGETS_MAX: usize = 64;
const MINUTE_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn point(minute: u64, minutes: u64, bytes: u64) -> LedgerPoint {
        LedgerPoint {
            at: Time::from_nanos(minute * MINUTE_NS),
            span: Nanos::new(minutes * MINUTE_NS),
            sums: Service { read_bytes: bytes, ..Service::default() },
        }
    }

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn bytes_count_in_proportion_to_the_time_since_the_claim() {
        let points = [point(1, 1, 600), point(2, 1, 1_000)];
        // half of the first minute, and all of the open one, of which 10 s are over
        assert_eq!(bytes_in(&points, at(90), at(130)), 300 + 1_000);
        assert_eq!(bytes_in(&points, at(60), at(180)), 1_600);
        assert_eq!(bytes_in(&points, at(125), at(130)), 500);
        assert_eq!(bytes_in(&[point(1, 1, u64::MAX)], at(0), at(500)), u64::MAX);
    }

    #[test]
    fn rates_are_means_of_a_bounded_number_of_spans() {
        let reads: fn(&Service) -> (u64, u64) = |sums| (sums.read_bytes, sums.written_bytes);
        let points = [point(1, 1, 6_000), point(2, 1, 6_000), point(3, 1, 300)];
        let steps = rates(&points, reads, at(30), at(190));
        let shown: Vec<_> =
            steps.iter().map(|step| (step.from_ns / 1_000_000_000, step.read_per_sec)).collect();
        assert_eq!(shown, [(30, 0), (60, 100), (180, 30)]);
        // a point of an hour is spread over its time
        let steps = rates(&[point(0, 60, 7_200)], reads, at(0), at(7_200));
        let shown: Vec<_> =
            steps.iter().map(|step| (step.from_ns / 1_000_000_000, step.read_per_sec)).collect();
        assert_eq!(shown, [(0, 2), (3_600, 0)]);
        let many: Vec<_> = (0..10_000).map(|minute| point(minute, 1, minute * 60)).collect();
        let steps = rates(&many, reads, at(0), at(600_000));
        assert!(steps.len() <= SPANS_MAX as usize && steps.len() > 200, "{}", steps.len());
    }
}
