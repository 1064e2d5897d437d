//! Licences and the calendar are one pool: what others promised there is set aside in Slurm.
//!
//! ```text
//!   calendar: promised of the target, from each time on ─┐
//!   reservations of Slurm's jobs, whose licences count  ─┴─► of others ─► MB/s ─► license_only reservations
//! ```
//!
//! One licence is 1 MB/s. Slurm has no directions: of a target that is used in both, the promised
//! part is that of the larger rate of reads and writes of each moment, added as in the calendar.

use api::{CalendarResource, WireReservation, WireReservationState};
use model::{Nanos, Time};

/// Licences that are set aside for a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolSpan {
    pub(super) from: Time,
    pub(super) until: Time,
    pub(super) licences: u64,
}

/// Returns the licences that a target is worth: what may be reserved of it in MB/s.
pub(super) fn total(target: &CalendarResource, writes: bool) -> u64 {
    let capacity = if writes { target.write_per_sec } else { target.read_per_sec };
    let kept = u64::from(target.best_effort_ppm.saturating_add(target.unseen_ppm).min(1_000_000));
    let reservable = u128::from(capacity) * u128::from(1_000_000 - kept) / 1_000_000;
    u64::try_from(reservable / MB).unwrap_or(u64::MAX)
}

/// Returns what others than `own` have promised of the target, from `now` until `until`, in at most
/// [`SPANS_MAX`] spans: neighbours are joined with the larger of both.
pub(super) fn others(
    target: &CalendarResource,
    own: &[&WireReservation],
    now: Time,
    until: Time,
    total: u64,
) -> Vec<PoolSpan> {
    let mut times: Vec<Time> = vec![now];
    let mut add = |ns: u64| times.push(Time::from_nanos(ns));
    target.steps.iter().for_each(|step| add(step.from_ns));
    for held in own.iter().filter(|held| is_counted(held)) {
        held.start_ns.into_iter().chain(held.end_ns).for_each(&mut add);
    }
    times.retain(|at| *at >= now && *at < until);
    times.sort_unstable();
    times.dedup();
    let ends = times.iter().copied().skip(1).chain([until]);
    let spans = times.iter().copied().zip(ends).map(|(from, until)| {
        let licences = promised(target, from).saturating_sub(of(own, from)).div_ceil(MB as u64);
        PoolSpan { from, until, licences: licences.min(total) }
    });
    let mut joined: Vec<PoolSpan> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.licences == span.licences => last.until = span.until,
            _ => joined.push(span),
        }
    }
    while joined.len() > SPANS_MAX {
        join_cheapest(&mut joined);
    }
    joined.retain(|span| span.licences > 0 && span.until.since(span.from) >= LEAST);
    joined
}

/// Joins the two neighbours that set the fewest licences aside in vain.
fn join_cheapest(spans: &mut Vec<PoolSpan>) {
    let cost = |pair: &[PoolSpan]| {
        let most = pair[0].licences.max(pair[1].licences);
        let wasted = |span: &PoolSpan| {
            u128::from(most - span.licences) * u128::from(span.until.since(span.from).get())
        };
        wasted(&pair[0]) + wasted(&pair[1])
    };
    let pairs = spans.windows(2).enumerate();
    let Some((at, _)) = pairs.min_by_key(|(_, pair)| cost(pair)) else { return };
    let next = spans.remove(at + 1);
    spans[at].until = next.until;
    spans[at].licences = spans[at].licences.max(next.licences);
}

/// The bytes a second that are promised at a time.
fn promised(target: &CalendarResource, at: Time) -> u64 {
    let step = target.steps.iter().rev().find(|step| step.from_ns <= at.as_nanos());
    step.map_or(0, |step| step.read_per_sec.saturating_add(step.write_per_sec))
}

/// The bytes a second of these reservations at a time.
fn of(held: &[&WireReservation], at: Time) -> u64 {
    let at = at.as_nanos();
    let is_on = |held: &&&WireReservation| {
        is_counted(held)
            && held.start_ns.is_some_and(|start| start <= at)
            && held.end_ns.is_some_and(|end| at < end)
    };
    let bytes = |rate: &Option<api::WireRate>| match rate {
        Some(api::WireRate::Bytes(bytes)) => *bytes,
        _ => 0,
    };
    let rates = held.iter().filter(is_on).map(|held| bytes(&held.read) + bytes(&held.write));
    rates.fold(0, u64::saturating_add)
}

fn is_counted(held: &WireReservation) -> bool {
    held.state != WireReservationState::Undefined
}

/// The bytes a second of a licence.
const MB: u128 = 1_000_000;
/// The most reservations of licences at a time.
const SPANS_MAX: usize = 32;
/// The shortest span that is set aside: Slurm plans in minutes.
const LEAST: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use api::{CalendarStep, WireRate};

    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn target(steps: &[[u64; 3]]) -> CalendarResource {
        let step = |[from, read, write]: &[u64; 3]| CalendarStep {
            from_ns: from * 1_000_000_000,
            read_per_sec: read * 1_000_000,
            write_per_sec: write * 1_000_000,
        };
        CalendarResource {
            read_per_sec: 2_000_000_000,
            write_per_sec: 1_000_000_000,
            best_effort_ppm: 150_000,
            steps: steps.iter().map(step).collect(),
            ..CalendarResource::default()
        }
    }

    fn own(start: u64, end: u64, mb: u64) -> WireReservation {
        WireReservation {
            state: WireReservationState::Scheduled,
            start_ns: Some(start * 1_000_000_000),
            end_ns: Some(end * 1_000_000_000),
            write: Some(WireRate::Bytes(mb * 1_000_000)),
            ..WireReservation::default()
        }
    }

    #[test]
    fn licences_are_what_may_be_reserved() {
        assert_eq!(total(&target(&[]), true), 850);
        assert_eq!(total(&target(&[]), false), 1700);
    }

    #[test]
    fn what_others_promised_is_set_aside_and_what_jobs_hold_by_licences_is_not() {
        let target = target(&[[0, 0, 300], [100, 50, 300], [200, 0, 100], [300, 0, 0]]);
        let job = own(50, 250, 100);
        let spans = others(&target, &[&job], at(10), at(1000), 850);
        let span = |from, until, licences| PoolSpan { from: at(from), until: at(until), licences };
        assert_eq!(
            spans,
            [span(10, 50, 300), span(50, 100, 200), span(100, 200, 250), span(250, 300, 100)]
        );
        assert_eq!(others(&target, &[], at(10), at(60), 200), [span(10, 60, 200)], "at most all");
        assert!(others(&target, &[], at(300), at(400), 850).is_empty());
    }

    #[test]
    fn of_many_steps_neighbours_are_joined_and_none_is_set_aside_too_little() {
        let steps: Vec<[u64; 3]> = (0..200).map(|i| [i * 10, 0, 100 + i * 7 % 31]).collect();
        let target = target(&steps);
        let spans = others(&target, &[], at(0), at(2000), 850);
        assert_eq!(spans.len(), SPANS_MAX);
        for [from, _, mb] in steps {
            let span = spans.iter().find(|span| span.from <= at(from) && at(from) < span.until);
            assert!(span.unwrap().licences >= mb);
        }
    }
}
