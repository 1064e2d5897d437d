//! Whatever is requested, claimed, ended or lost: nothing is booked beyond a capacity, fixed
//! reservations keep their guaranteed starts while capacity stands, and plans move only earlier.

use std::collections::BTreeMap;

use model::{Bytes, Nanos, Share, Time};
use proptest::prelude::*;
use sluice_reserve::{
    Calendar, CalendarChange, CalendarEvent, CalendarSettings, Capacity, Demand, FitWindow, Load,
    MoveRequest, PhaseRequest, ReservationClass, ReservationError, ReservationId,
    ReservationRequest, ReservationState, ResourceId, ResourceKind, RulesError, Span,
};

use crate::life::{at, owner, secs, settings};
use crate::oracle::Oracle;
use crate::restore::Stored;

const RESOURCES: u32 = 3;
const CAPACITIES: [(u64, u64); 3] = [(100, 50), (80, 80), (60, 120)];

/// One call; numbers are reduced to what exists.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Request {
        wanted: Wanted,
        class: ReservationClass,
    },
    Group {
        wanted: Vec<Wanted>,
    },
    Phase {
        of: usize,
        wanted: Wanted,
    },
    Wait {
        secs: u64,
    },
    Installed {
        fails: bool,
    },
    Test {
        which: usize,
    },
    Finish {
        which: usize,
        used: u64,
    },
    Remove {
        which: usize,
    },
    Extend {
        which: usize,
        secs: u64,
    },
    Move {
        which: usize,
        not_before: u64,
        is_exact: bool,
        deadline: Option<u64>,
    },
    Capacity {
        of: u32,
        from: u64,
        length: u64,
        read: u64,
        write: u64,
    },
    Rules {
        of: u32,
        read: u64,
        write: u64,
    },
    /// Time passes; one that restarts is built again from its records then.
    Restart {
        secs: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    loads: Vec<(u32, u64, u64)>,
    release: u64,
    duration: u64,
    deadline: Option<u64>,
    claim: u64,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let loads = prop::collection::vec((0..RESOURCES, 0..60u64, 0..40u64), 1..4);
    let deadline = prop::option::weighted(0.2, 20..200u64);
    let claim = prop_oneof![Just(0u64), 1..20u64];
    (loads, prop_oneof![Just(0u64), 0..100u64], 1..40u64, deadline, claim).prop_map(
        |(loads, release, duration, deadline, claim)| Wanted {
            loads,
            release,
            duration,
            deadline,
            claim,
        },
    )
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let class = prop_oneof![Just(ReservationClass::Fixed), Just(ReservationClass::Spontaneous)];
    prop_oneof![
        10 => (wanted(), class).prop_map(|(wanted, class)| Call::Request { wanted, class }),
        1 => prop::collection::vec(wanted(), 1..4).prop_map(|wanted| Call::Group { wanted }),
        2 => (any::<usize>(), wanted()).prop_map(|(of, wanted)| Call::Phase { of, wanted }),
        8 => (0..30u64).prop_map(|secs| Call::Wait { secs }),
        12 => Just(Call::Installed { fails: false }),
        1 => Just(Call::Installed { fails: true }),
        6 => any::<usize>().prop_map(|which| Call::Test { which }),
        2 => (any::<usize>(), 0..5_000u64).prop_map(|(which, used)| Call::Finish { which, used }),
        2 => any::<usize>().prop_map(|which| Call::Remove { which }),
        2 => (any::<usize>(), 1..30u64).prop_map(|(which, secs)| Call::Extend { which, secs }),
        3 => (any::<usize>(), 0..100u64, any::<bool>(), prop::option::weighted(0.3, 20..200u64))
            .prop_map(|(which, not_before, is_exact, deadline)| Call::Move {
                which,
                not_before,
                is_exact,
                deadline,
            }),
        2 => (0..RESOURCES, 0..50u64, 1..80u64, 0..150u64, 0..150u64).prop_map(
            |(of, from, length, read, write)| Call::Capacity { of, from, length, read, write }
        ),
        1 => (0..RESOURCES, 0..30u64, 0..30u64).prop_map(
            |(of, read, write)| Call::Rules { of, read, write }
        ),
        2 => (0..30u64).prop_map(|secs| Call::Restart { secs }),
    ]
}

/// A calendar with what its events have said.
pub(crate) struct Watched {
    pub(crate) calendar: Calendar,
    oracle: Oracle,
    now: u64,
    known: Vec<ReservationId>,
    /// How long those that were requested by themselves occupy the calendar.
    lengths: BTreeMap<ReservationId, Nanos>,
    to_install: Vec<ReservationId>,
    /// The planned start of those with a place.
    planned: BTreeMap<ReservationId, Time>,
    guaranteed: BTreeMap<ReservationId, Time>,
    with_losses: bool,
    /// What is stored, of one that restarts.
    pub(crate) stored: Option<Stored>,
    pub(crate) seen: Vec<CalendarEvent>,
}

impl Watched {
    pub(crate) fn new(with_losses: bool) -> Watched {
        let settings = CalendarSettings { best_effort: Share::ZERO, ..settings() };
        let mut calendar = Calendar::new(settings);
        let mut oracle = Oracle::default();
        for (number, (read, write)) in CAPACITIES.iter().enumerate() {
            let capacity = Capacity::per_sec(*read, *write).unwrap();
            let (name, kind) = (format!("t{number}").into(), ResourceKind::Target);
            let id = calendar.add_resource(name, kind, capacity, at(0)).unwrap();
            oracle.capacities.push((id, Span { from: at(0), until: Time::MAX }, capacity));
        }
        Watched {
            calendar,
            oracle,
            now: 0,
            known: Vec::new(),
            lengths: BTreeMap::new(),
            to_install: Vec::new(),
            planned: BTreeMap::new(),
            guaranteed: BTreeMap::new(),
            with_losses,
            stored: None,
            seen: Vec::new(),
        }
    }

    pub(crate) fn apply(&mut self, call: &Call) {
        let now = at(self.now);
        match call {
            Call::Installed { fails: true } | Call::Capacity { .. } if !self.with_losses => return,
            Call::Request { wanted, class } => {
                let Some(request) = self.request(wanted) else { return };
                let request = match class {
                    ReservationClass::Fixed => request,
                    ReservationClass::Spontaneous => request.spontaneous(),
                };
                let expected = self.first_start(wanted);
                let result = self.calendar.request(request, now);
                self.check_answer(wanted, *class, expected, &result);
                let length = secs(wanted.duration + wanted.claim);
                self.lengths.extend(result.iter().map(|id| (*id, length)));
                self.known.extend(result);
            }
            Call::Group { wanted } => {
                let requests: Vec<_> = wanted.iter().filter_map(|one| self.request(one)).collect();
                let before = self.calendar.count();
                let count = requests.len();
                match self.calendar.request_group(requests, now) {
                    Ok(ids) => self.known.extend(ids),
                    Err(_) => assert_eq!(self.calendar.count(), before, "none of {count}"),
                }
            }
            Call::Phase { of, wanted } => {
                let (Some(parent), Some(demand)) = (self.pick(*of), demand(wanted)) else { return };
                let phase = PhaseRequest {
                    demand,
                    start: at(self.now + wanted.release),
                    tolerance: secs(wanted.claim),
                    duration: secs(wanted.duration),
                };
                self.known.extend(self.calendar.request_phase(parent, phase, now));
            }
            Call::Wait { secs } => {
                self.now += secs;
                self.calendar.advance(at(self.now));
            }
            Call::Installed { fails } => {
                for id in std::mem::take(&mut self.to_install) {
                    match fails {
                        true => self.calendar.install_failed(id, now),
                        false => self.calendar.installed(id, now),
                    };
                    self.read_events();
                }
            }
            Call::Test { which } => {
                if let Some(id) = self.pick(*which) {
                    self.calendar.test(id, now);
                }
            }
            Call::Finish { which, used } => {
                if let Some(id) = self.pick(*which) {
                    let known = self.calendar.status(id).state != ReservationState::Undefined;
                    let credit = self.calendar.finish(id, Bytes::new(*used), now);
                    assert_eq!(credit.is_some(), known);
                }
            }
            Call::Remove { which } => {
                if let Some(id) = self.pick(*which) {
                    let known = self.calendar.status(id).state != ReservationState::Undefined;
                    assert_eq!(self.calendar.remove(id, now), known);
                }
            }
            Call::Extend { which, secs: more } => {
                if let Some(id) = self.pick(*which) {
                    let _ = self.calendar.extend(id, secs(*more), now);
                }
            }
            Call::Move { which, not_before, is_exact, deadline } => {
                if let Some(id) = self.pick(*which) {
                    let to = MoveRequest {
                        not_before: at(self.now + not_before),
                        is_exact: *is_exact,
                        deadline: deadline.map(|deadline| at(self.now + deadline)),
                    };
                    self.move_start(id, to);
                }
            }
            Call::Capacity { of, from, length, read, write } => {
                let (resource, from) = (ResourceId::new(*of), at(self.now + from));
                let span = Span::new(from, secs(*length));
                let capacity = Capacity::per_sec(*read, *write).unwrap();
                self.calendar.set_capacity(resource, span, capacity, now).unwrap();
                self.oracle.capacities.push((resource, span, capacity));
            }
            Call::Rules { of, read, write } => {
                self.set_rules(ResourceId::new(*of), Load::per_sec(*read, *write).unwrap());
            }
            Call::Restart { secs } => {
                self.now += secs;
                match &self.stored {
                    Some(stored) => self.calendar = stored.restored(settings(), at(self.now)),
                    None => self.calendar.advance(at(self.now)),
                }
            }
        }
        if let Some(stored) = &mut self.stored {
            stored.keep(self.calendar.take_changed());
        }
        self.read_events();
        self.check();
    }

    pub(crate) fn known(&self) -> &[ReservationId] {
        &self.known
    }

    fn pick(&self, which: usize) -> Option<ReservationId> {
        // mostly one of the last, which has not ended
        let count = self.known.len().min(12);
        (count > 0).then(|| self.known[self.known.len() - 1 - which % count])
    }

    fn request(&self, wanted: &Wanted) -> Option<ReservationRequest> {
        let request = ReservationRequest::new(owner(1), demand(wanted)?, secs(wanted.duration))
            .starting_from(at(self.now + wanted.release))
            .claimed_within(secs(wanted.claim));
        Some(match wanted.deadline {
            Some(deadline) => request.ending_by(at(self.now + deadline)),
            None => request,
        })
    }

    /// The earliest fit beside what is booked, by the lists.
    fn first_start(&mut self, wanted: &Wanted) -> Option<Time> {
        self.list_booked();
        let horizon = at(self.now) + settings().horizon;
        let until = wanted.deadline.map_or(horizon, |deadline| at(self.now + deadline));
        let window = FitWindow {
            release: at(self.now + wanted.release),
            until: until.min(horizon),
            length: secs(wanted.duration + wanted.claim),
        };
        self.oracle.earliest_fit(&demand(wanted)?, window)
    }

    /// Moves a reservation: to the earliest fit beside what else is booked, by the lists; refused, all
    /// is as it was, and in any case no other one starts later.
    fn move_start(&mut self, id: ReservationId, to: MoveRequest) {
        let (now, status) = (at(self.now), self.calendar.status(id));
        let own = self.calendar.progress(id).map(|progress| progress.phases).unwrap_or_default();
        let before: Vec<_> = self.calendar.booked().collect();
        let starts = |calendar: &Calendar| -> BTreeMap<ReservationId, Time> {
            calendar.booked().map(|(id, _, _, span)| (id, span)).fold(
                BTreeMap::new(),
                |mut starts, (id, span)| {
                    let start = starts.entry(id).or_insert(span.from);
                    *start = span.from.min(*start);
                    starts
                },
            )
        };
        let planned = starts(&self.calendar);
        let demand = self.calendar.demand(id).cloned();
        let length = self.lengths.get(&id).copied();
        let result = self.calendar.move_start(id, to, now);
        match &result {
            Ok(start) => {
                assert_eq!(status.state, ReservationState::Scheduled);
                assert!(*start >= to.not_before && (!to.is_exact || *start == to.not_before));
            }
            Err(error) => {
                let after: Vec<_> = self.calendar.booked().collect();
                assert_eq!(before, after, "{error}");
                assert_eq!(self.calendar.status(id), status);
            }
        }
        if let (Some(demand), Some(length), true) = (demand, length, own.is_empty())
            && matches!(result, Ok(_) | Err(ReservationError::NoFit(_)))
        {
            let others = before.into_iter().filter(|(other, ..)| *other != id);
            let booked = others.filter_map(|(_, resource, load, span)| {
                Demand::new(&[(resource, load)]).ok().map(|demand| (demand, span))
            });
            self.oracle.booked = booked.collect();
            let exact = to.is_exact.then(|| to.not_before + length);
            let horizon = now + settings().horizon;
            let until = exact.or(to.deadline).map_or(horizon, |at| at.min(horizon));
            let window = FitWindow { release: to.not_before, until, length };
            let expected = self.oracle.earliest_fit(&demand, window);
            assert_eq!(result.ok(), expected, "{to:?}");
        }
        for (other, start) in starts(&self.calendar) {
            let was = planned.get(&other).filter(|_| other != id && !own.contains(&other));
            // what a loss left scaled may go where it is whole
            let is_later = was.is_some_and(|was| start > *was);
            assert!(!is_later || self.with_losses, "{other} starts later");
        }
    }

    fn check_answer(
        &self,
        wanted: &Wanted,
        class: ReservationClass,
        expected: Option<Time>,
        result: &Result<ReservationId, ReservationError>,
    ) {
        match result {
            Ok(id) => {
                let expected = expected.expect("it fits");
                let status = self.calendar.status(*id);
                if class == ReservationClass::Fixed {
                    assert_eq!(status.span.unwrap().from, expected, "{wanted:?}");
                    assert_eq!(status.guaranteed, Some(expected));
                }
            }
            Err(ReservationError::NoFit(refusal)) => {
                assert_eq!(expected, None, "{wanted:?} {refusal}");
            }
            Err(error) => panic!("{wanted:?}: {error}"),
        }
    }

    /// Reads the events of one call: of a reservation one of each kind, but for two moves at most, and
    /// one of each load that is scaled or restored.
    fn read_events(&mut self) {
        let first = self.seen.len();
        let mut kinds: BTreeMap<(ReservationId, &str), usize> = BTreeMap::new();
        while let Some(event) = self.calendar.poll_event() {
            self.seen.push(event.clone());
            let id = event.id;
            let kind = match event.change {
                CalendarChange::Moved { .. } | CalendarChange::Slipped { .. } => "moved",
                CalendarChange::Scaled { .. } | CalendarChange::Restored { .. } => "scaled",
                CalendarChange::Scheduled { .. } => "scheduled",
                CalendarChange::Aged { .. } => "aged",
                CalendarChange::Install { .. } => "install",
                CalendarChange::Active { .. } => "active",
                CalendarChange::Ends { .. } => "ends",
                CalendarChange::Ended { .. } => "ended",
            };
            let count = kinds.entry((id, kind)).or_default();
            *count += 1;
            let most = match kind {
                "scaled" => usize::MAX,
                "moved" => 2,
                _ => 1,
            };
            assert!(*count <= most, "{kind} again: {:?}", &self.seen[first..]);
            match event.change {
                CalendarChange::Scheduled { span, is_guaranteed } => {
                    self.planned.insert(id, span.from);
                    if is_guaranteed {
                        self.guaranteed.insert(id, span.from);
                    }
                }
                CalendarChange::Moved { from, to } => {
                    assert_eq!(self.planned.insert(id, to), Some(from), "{id}");
                    assert!(to < from || self.with_losses, "{id} is later without a loss");
                }
                CalendarChange::Slipped { guaranteed, to } => {
                    assert!(self.with_losses, "{id} slips without a loss");
                    assert_eq!(self.guaranteed.get(&id), Some(&guaranteed));
                    assert!(to > guaranteed);
                    self.planned.insert(id, to);
                }
                CalendarChange::Install { span } => {
                    assert_eq!(self.planned.get(&id), Some(&span.from));
                    let guaranteed = self.guaranteed.get(&id);
                    assert!(
                        self.with_losses || guaranteed.is_none_or(|at| span.from <= *at),
                        "{id} begins later than guaranteed"
                    );
                    self.to_install.push(id);
                }
                CalendarChange::Scaled { .. } | CalendarChange::Restored { .. } => {
                    assert!(self.with_losses);
                }
                CalendarChange::Ended { reason } => {
                    assert_eq!(self.calendar.status(id).ended, Some(reason));
                    self.planned.remove(&id);
                    self.to_install.retain(|other| *other != id);
                }
                _ => {}
            }
        }
    }

    /// Rules are refused if and only if at some time they leave less than is booked.
    fn set_rules(&mut self, resource: ResourceId, load: Load) {
        self.calendar.advance(at(self.now));
        self.list_booked();
        let mut with_rules = self.oracle.clone();
        with_rules.rules.push((resource, load));
        let is_less = |time: &Time| {
            let (is, was) = (&with_rules, &self.oracle);
            let ((read, write), (reads, writes)) =
                (is.capacity(resource, *time), was.capacity(resource, *time));
            read < reads || write < writes
        };
        let times = self.oracle.times().into_iter().chain([at(self.now)]);
        let ahead = times.filter(|time| *time >= at(self.now) && *time < Time::MAX);
        let beyond = |time: &Time| !with_rules.fits_at(resource, Load::NONE, *time);
        let first = ahead.filter(|time| is_less(time) && beyond(time)).min();
        match self.calendar.set_rules(&[(resource, load)], at(self.now)) {
            Ok(()) => {
                assert_eq!(first, None);
                self.oracle = with_rules;
            }
            Err(RulesError::Promised { at, reservations, .. }) => {
                assert_eq!(first, Some(at));
                assert!((1..=8).contains(&reservations.len()), "{reservations:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn list_booked(&mut self) {
        let demand = |at, load| Demand::new(&[(at, load)]);
        let booked = self.calendar.booked().filter_map(|(_, resource, load, span)| {
            // a load that is scaled to nothing is no demand
            demand(resource, load).ok().map(|demand| (demand, span))
        });
        self.oracle.booked = booked.collect();
    }

    /// What is booked is what the step functions have, and fits at every time.
    fn check(&mut self) {
        self.list_booked();
        let now = at(self.now);
        let times = self.oracle.times().into_iter().filter(|at| *at >= now && *at < Time::MAX);
        for time in times.chain([now]) {
            for resource in (0..RESOURCES).map(ResourceId::new) {
                let (load, _) = self.calendar.resources().used(resource, time);
                let used = (load.read_per_sec(), load.write_per_sec());
                assert_eq!(used, self.oracle.used(resource, time), "{resource} at {time:?}");
                let fits = self.oracle.fits_at(resource, Load::NONE, time);
                assert!(fits, "resource {resource} has too much at {time:?}");
            }
        }
        let next = self.calendar.next_deadline();
        assert!(next.is_none_or(|at| at > now), "something is due and has not happened");
    }

    /// Time alone ends everything.
    pub(crate) fn finish(&mut self) {
        for _ in 0..10_000 {
            let Some(next) = self.calendar.next_deadline() else { break };
            assert!(next > at(self.now) || self.now == 0);
            self.now = next.since(Time::ZERO).get().div_ceil(Nanos::from_secs(1).get());
            self.calendar.advance(at(self.now));
            self.read_events();
        }
        assert_eq!((self.calendar.count(), self.calendar.booked().count()), (0, 0));
        for resource in (0..RESOURCES).map(ResourceId::new) {
            let used = self.calendar.resources().used(resource, at(self.now));
            assert!(used.0.is_none());
        }
    }
}

fn demand(wanted: &Wanted) -> Option<Demand> {
    let load = |of: &(u32, u64, u64)| (ResourceId::new(of.0), Load::per_sec(of.1, of.2).unwrap());
    Demand::new(&wanted.loads.iter().map(load).collect::<Vec<_>>()).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// While capacity stands, no start is later than guaranteed and none moves later.
    #[test]
    fn fixed_reservations_keep_their_starts_and_all_loads_fit(
        calls in prop::collection::vec(call(), 1..100)
    ) {
        let mut watched = Watched::new(false);
        calls.iter().for_each(|call| watched.apply(call));
        watched.finish();
    }

    /// Capacities fall and rise and rows cannot be installed: all loads fit at every time.
    #[test]
    fn all_loads_fit_whatever_is_lost(calls in prop::collection::vec(call(), 1..100)) {
        let mut watched = Watched::new(true);
        calls.iter().for_each(|call| watched.apply(call));
        watched.finish();
    }
}
