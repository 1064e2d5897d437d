//! The promises of the calendar, from its events, its bookings and what the scenario says of capacity.
//!
//! ```text
//!   events that owners are told ─► promised starts ─┐
//!   capacities of the scenario ─► losses ───────────┼─► a violation: gone, later, late, too much
//!   the calendar: states, places, bookings ─────────┘
//! ```
//!
//! Checked each 100 ms, whatever happens to messages, proxies and leaders: nothing that was promised
//! is gone without an end that was reported; no start is later than promised unless the target has lost
//! capacity; and at no time is more booked than what may be reserved. If for some time no fault keeps
//! rows from the proxies, each reservation is ACTIVE [`LATE_MAX`] after its start.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Share, Time};
use reserve::{
    CalendarChange, CalendarEvent, Load, ReservationId, ReservationState, ResourceId, Span,
};

use crate::report::PromiseStats;
use crate::reservations::TargetCapacity;

/// What was promised to owners, and the capacities of targets.
#[derive(Debug)]
pub(crate) struct ReservationChecks {
    /// Those with a place, and the start that was promised.
    promised: BTreeMap<ReservationId, Promise>,
    /// By resource.
    capacities: Vec<CapacityTimeline>,
    /// When a capacity was changed last.
    changed: Option<Time>,
    pub(crate) stats: PromiseStats,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    start: Option<Time>,
    /// Whether capacity was lost since.
    is_void: bool,
}

/// A promised reservation as the calendar has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromisedReservation {
    pub(crate) state: ReservationState,
    /// Its place, if it has one.
    pub(crate) span: Option<Span>,
}

/// What may be reserved of a resource over time, in one amount for reads and writes.
#[derive(Debug)]
struct CapacityTimeline {
    whole: u64,
    /// In the order in which they were set: a later one counts.
    changes: Vec<(Span, u64)>,
    best_effort: Share,
}

impl ReservationChecks {
    pub(crate) fn new(targets: &[TargetCapacity], best_effort: Share) -> ReservationChecks {
        let of = |whole| CapacityTimeline { whole, changes: Vec::new(), best_effort };
        let both = targets.iter().flat_map(|target| [of(target.bytes), of(target.metadata)]);
        ReservationChecks {
            promised: BTreeMap::new(),
            capacities: both.collect(),
            changed: None,
            stats: PromiseStats::default(),
        }
    }

    /// Notes that the calendar hears that a target has a part of its capacity for a span from now on.
    pub(crate) fn capacity_changed(&mut self, target: usize, percent: u64, span: Span) {
        for resource in &mut self.capacities[target * 2..target * 2 + 2] {
            resource.changes.push((span, percent));
        }
        // Whatever it is, plans may change from here on.
        self.changed = Some(span.from);
        self.promised.values_mut().for_each(|promise| promise.is_void = true);
    }

    /// Notes what an owner hears.
    pub(crate) fn event(&mut self, event: &CalendarEvent, now: Time) {
        let promise = |start| Promise { start, is_void: false };
        match event.change {
            CalendarChange::Scheduled { span, is_guaranteed } => {
                let start = is_guaranteed.then_some(span.from);
                self.promised.insert(event.id, promise(start));
            }
            CalendarChange::Aged { start } => {
                self.promised.insert(event.id, promise(Some(start)));
            }
            CalendarChange::Ended { .. } => {
                self.promised.remove(&event.id);
                self.stats.ended += 1;
            }
            CalendarChange::Active { .. } => self.stats.active += 1,
            CalendarChange::Scaled { .. } => self.stats.scaled += 1,
            CalendarChange::Slipped { .. } => {
                // It may have been promised in the same record.
                let is_excused = self.changed.is_some_and(|at| now.since(at) <= RECORD_MAX);
                if let Some(promise) = self.promised.get_mut(&event.id) {
                    promise.is_void |= is_excused;
                }
            }
            CalendarChange::Moved { .. }
            | CalendarChange::Install { .. }
            | CalendarChange::Ends { .. }
            | CalendarChange::Restored { .. } => {}
        }
    }

    /// The reservations that were promised a place and have not ended.
    pub(crate) fn promised(&self) -> impl Iterator<Item = ReservationId> {
        self.promised.keys().copied()
    }

    /// Compares what was promised with the calendar. Since `undisturbed` rows come to all proxies.
    pub(crate) fn check(
        &self,
        known: &[(ReservationId, PromisedReservation)],
        booked: &[(ReservationId, ResourceId, Load, Span)],
        undisturbed: Option<Time>,
        now: Time,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (id, is) in known {
            let Some(promise) = self.promised.get(id) else { continue };
            if is.state == ReservationState::Undefined {
                wrong.push(format!("reservation {id} is gone, and no end of it was reported"));
            }
            let Some(span) = is.span else { continue };
            if let Some(start) = promise.start.filter(|start| span.from > *start)
                && !promise.is_void
            {
                let late = span.from.since(start);
                wrong.push(format!("reservation {id} starts {late} later than promised"));
            }
            let since = undisturbed.map(|since| since.max(span.from));
            if let Some(since) = since.filter(|since| now.since(*since) > LATE_MAX)
                && is.state == ReservationState::Scheduled
            {
                let late = now.since(since);
                wrong.push(format!("reservation {id} is not active {late} after its start"));
            }
        }
        wrong.extend(self.check_capacities(booked, now));
        wrong
    }

    /// The first time of each resource at which more is booked than may be reserved.
    fn check_capacities(
        &self,
        booked: &[(ReservationId, ResourceId, Load, Span)],
        now: Time,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, capacity) in self.capacities.iter().enumerate() {
            let own = || booked.iter().filter(|(_, at, ..)| at.index() == place);
            let begins = own().map(|(.., span)| span.from);
            let changes = capacity.changes.iter().flat_map(|(span, _)| [span.from, span.until]);
            let times: BTreeSet<Time> = begins.chain(changes).map(|time| time.max(now)).collect();
            let first = times.into_iter().find_map(|time| {
                let at = own().filter(|(.., span)| span.from <= time && time < span.until);
                let used = at.fold(0, |sum, (_, _, load, _)| {
                    sum + load.read_per_sec() + load.write_per_sec()
                });
                let most = capacity.reservable(time);
                (used > most).then_some((time, used, most))
            });
            if let Some((time, used, most)) = first {
                let after = time.since(now);
                wrong.push(format!(
                    "{used}/s of resource {place} are promised {after} from now, of {most}/s"
                ));
            }
        }
        wrong
    }
}

impl CapacityTimeline {
    /// What may be reserved at a time.
    fn reservable(&self, time: Time) -> u64 {
        let mut holds = self.changes.iter().rev();
        let found = holds.find(|(span, _)| span.from <= time && time < span.until);
        let whole = self.whole * found.map_or(100, |(_, percent)| *percent) / 100;
        Share::WHOLE.less(self.best_effort).of(whole)
    }
}

/// How much later than its start a reservation is ACTIVE: the way of its rows to the proxies and of
/// the acknowledgements, two ticks, and the records of the store.
const LATE_MAX: Nanos = Nanos::from_millis(1_000);
/// How long after a change of capacity its consequences are on record and reported.
const RECORD_MAX: Nanos = Nanos::from_millis(500);

#[cfg(test)]
mod tests {
    use model::JobId;
    use reserve::ReservationOwner;

    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Nanos::from_secs(secs)
    }

    fn promised() -> ReservationChecks {
        let capacity = TargetCapacity { bytes: 100, metadata: 10 };
        let mut checks = ReservationChecks::new(&[capacity], Share::ratio(15, 100));
        let job = JobId::default();
        let owner = ReservationOwner { job, uid: 1, gid: 1, account: None, project: None };
        let span = Span::new(at(10), Nanos::from_secs(5));
        let change = CalendarChange::Scheduled { span, is_guaranteed: true };
        checks.event(&CalendarEvent { id: ReservationId(1), owner, change }, at(0));
        checks
    }

    fn wrong(checks: &ReservationChecks, state: ReservationState, start: u64, now: u64) -> String {
        let span = Some(Span::new(at(start), Nanos::from_secs(5)));
        let known = [(ReservationId(1), PromisedReservation { state, span })];
        checks.check(&known, &[], Some(at(0)), at(now)).join("; ")
    }

    #[test]
    fn a_start_that_is_later_than_promised_is_seen_unless_capacity_was_lost() {
        use ReservationState::{Active, Scheduled, Undefined};
        let mut checks = promised();
        assert_eq!(wrong(&checks, Scheduled, 9, 1), "");
        assert!(wrong(&checks, Scheduled, 11, 1).contains("starts 1s later than promised"));
        assert!(wrong(&checks, Scheduled, 10, 12).contains("is not active 2s after its start"));
        assert_eq!(wrong(&checks, Active, 10, 12), "");
        assert!(wrong(&checks, Undefined, 10, 12).contains("is gone"));
        checks.capacity_changed(0, 50, Span::new(at(3), Nanos::from_secs(1)));
        assert_eq!(wrong(&checks, Scheduled, 11, 1), "");
    }

    #[test]
    fn what_is_promised_beyond_a_capacity_at_any_time_is_seen() {
        let mut checks = promised();
        let (resource, span) = (ResourceId::new(0), Span::new(at(10), Nanos::from_secs(5)));
        let booked = |load| [(ReservationId(1), resource, Load::per_sec(load, 5).unwrap(), span)];
        let check =
            |checks: &ReservationChecks, load| checks.check(&[], &booked(load), None, at(1));
        assert!(check(&checks, 80).is_empty() && check(&checks, 81).len() == 1);
        checks.capacity_changed(0, 50, Span::new(at(12), Nanos::from_secs(1)));
        assert_eq!(check(&checks, 80).len(), 1, "from 12 s on");
    }
}
