//! The calendar of reservations in the world: the thread that keeps it, its store, and its rows.
//!
//! ```text
//!   step of the scenario ─┐                            written: events, rows ─► TargetRows of the target
//!   rows in force, used ──┼─► inbox ─► Calendar ─ changed records ─► store        │ set_rows
//!   each 100 ms ──────────┘     ▲ waits while the store writes                    ▼
//!                               └──────────── in force, used ◄──────────── ShareAllocator
//! ```
//!
//! It is the twin of the controller's thread, around the same `reserve::Calendar`, `reserve::SentRows`
//! and `plan::TargetRows`. What is not on record has not happened: a leader that dies loses what it was
//! writing, or the store has it though nobody was answered. The next leader begins with the records,
//! and puts their rows before a proxy gets any assignment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{Bytes, Nanos, Time};
use plan::{AwaitedRows, SessionSettings, TargetRows};
use reserve::{
    Calendar, CalendarEvent, CalendarRecords, CalendarSettings, Capacity, Demand, Load,
    PhaseRequest, ReservationId, ReservationOwner, ReservationRequest, ReservationRows,
    ReservationState, ResourceId, ResourceKind, SentRows, Span, WantedRows,
};
use rules::{Entitlement, EntitlementId};

#[cfg(test)]
use model::Rate;
#[cfg(test)]
use rules::{Grantable, TimedEntitlement};

use super::World;
use crate::checks::{InvariantChecks, PromisedReservation, ReservationChecks};
use crate::events::SimEvent;
use crate::prng::Prng;
use crate::report::PromiseStats;
use crate::reservations::{ReservationSpec, ReservationStep, TargetCapacity};
use crate::scheduler::EntitlementChanges;

/// The calendar, its store, and the rows that the controllers of targets have.
#[derive(Debug)]
pub(super) struct SimCalendar {
    calendar: Calendar,
    rows: SentRows,
    /// What is on record.
    stored: CalendarRecords,
    /// What the store writes, and what follows then.
    writing: Option<CalendarWrite>,
    writes: u32,
    inbox: VecDeque<CalendarInput>,
    /// Events and reservations that have changed, which are passed on when they are on record.
    events: Vec<CalendarEvent>,
    changed: BTreeSet<ReservationId>,
    /// The reservations by the change that requested them.
    requested: BTreeMap<u32, ReservationId>,
    /// Changes of capacities that there was no leader for.
    missed: Vec<u32>,
    /// The rows of each target.
    pub(super) target_rows: Vec<TargetRows>,
    /// The target of each row that was ever put.
    row_targets: BTreeMap<EntitlementId, usize>,
    /// When rows that are over were removed, and since when others are put.
    removed: BTreeMap<EntitlementId, Time>,
    put: BTreeMap<EntitlementId, Time>,
    capacities: Vec<TargetCapacity>,
    prng: Prng,
    pub(super) checks: ReservationChecks,
    #[cfg(test)]
    pub(super) bug: Option<CalendarBug>,
    /// How many leaders have begun with the records.
    restores: u32,
}

#[cfg(test)]
type TimedChange = (EntitlementId, Option<TimedEntitlement>);

#[derive(Debug)]
struct CalendarWrite {
    number: u32,
    records: CalendarRecords,
}

/// A message to the thread.
#[derive(Clone, Debug)]
enum CalendarInput {
    Step(u32),
    InForce { id: u64, version: u64 },
    Used(BTreeSet<u64>),
}

/// A fault of the calendar's keeper, for tests of the checks.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalendarBug {
    /// Tells owners before the store has written, and the store loses what it was writing.
    AnswersFirst,
    /// Sends rows of half of the rate.
    Halves,
    /// Leaves the rows of what has ended at the proxies.
    LeavesRows,
    /// Never hears that rows are in force.
    NeverHears,
    /// A new leader does not put the rows that it has on record.
    ForgetsRows,
}

impl SimCalendar {
    fn new(targets: Vec<(Arc<str>, TargetCapacity)>, seed: u64, now: Time) -> SimCalendar {
        let mut calendar = Calendar::new(settings());
        let capacities: Vec<_> = targets.iter().map(|(_, capacity)| *capacity).collect();
        for (name, capacity) in targets {
            let of = |per_sec| Capacity::per_sec(per_sec, per_sec).expect("a bounded rate");
            let (bytes, metadata) = (of(capacity.bytes), of(capacity.metadata));
            let kinds = [(ResourceKind::Target, bytes), (ResourceKind::Metadata, metadata)];
            for (kind, capacity) in kinds {
                calendar.add_resource(name.clone(), kind, capacity, now).expect("a new name");
            }
        }
        let stored = calendar.records();
        SimCalendar {
            calendar,
            rows: SentRows::default(),
            stored,
            writing: None,
            writes: 0,
            inbox: VecDeque::new(),
            events: Vec::new(),
            changed: BTreeSet::new(),
            requested: BTreeMap::new(),
            missed: Vec::new(),
            target_rows: capacities.iter().map(|_| TargetRows::default()).collect(),
            row_targets: BTreeMap::new(),
            removed: BTreeMap::new(),
            put: BTreeMap::new(),
            checks: ReservationChecks::new(&capacities, settings().best_effort),
            capacities,
            prng: Prng::of(seed, 0x5708),
            #[cfg(test)]
            bug: None,
            restores: 0,
        }
    }

    /// The target of a row of the calendar.
    pub(super) fn target_of(&self, row: EntitlementId) -> Option<usize> {
        self.row_targets.get(&row).copied()
    }

    /// The leader dies: what the store was writing is on record or not.
    fn crash(&mut self, now: Time) {
        let is_on_record = self.prng.below(2) == 0;
        #[cfg(test)]
        let is_on_record = is_on_record && self.bug != Some(CalendarBug::AnswersFirst);
        if let Some(write) = self.writing.take().filter(|_| is_on_record) {
            self.stored.merge(write.records);
            // Nobody is told, but it has happened.
            self.events.iter().for_each(|event| self.checks.event(event, now));
        }
        self.inbox.clear();
        self.events.clear();
        self.changed.clear();
    }

    /// A new leader begins with the records.
    fn restore(&mut self, now: Time) {
        let at = self.stored.at;
        let (calendar, repairs) = Calendar::restore(settings(), self.stored.clone(), at);
        assert!(repairs.is_empty(), "records that the calendar has made: {repairs:?}");
        self.calendar = calendar;
        // Nobody took claims since the last record.
        for record in self.stored.reservations.iter().filter(|_| now > at) {
            self.calendar.excuse_claim(record.id());
        }
        self.calendar.advance(now);
        self.rows = SentRows::default();
        self.restores += 1;
        self.target_rows.iter_mut().for_each(|rows| *rows = TargetRows::default());
        self.changed = self.stored.reservations.iter().map(|record| record.id()).collect();
        let last = self.stored.last;
        self.requested.retain(|_, id| *id <= last);
        let missed = std::mem::take(&mut self.missed);
        self.inbox.extend(missed.into_iter().map(CalendarInput::Step));
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.calendar.poll_event() {
            self.changed.insert(event.id);
            self.events.push(event);
        }
    }
}

impl World {
    /// Creates the calendar, if the scenario has one and there are controllers.
    pub(super) fn make_calendar(&mut self) {
        let Some(size) = self.scenario.reserved_size.filter(|_| !self.controls.is_empty()) else {
            return;
        };
        let targets = self.scenario.targets.iter();
        let targets =
            targets.map(|spec| (spec.name.as_str().into(), TargetCapacity::of(spec, size)));
        self.calendar = Some(SimCalendar::new(targets.collect(), self.seed, self.now));
        for (number, (at, _)) in self.scenario.reservations.iter().enumerate() {
            self.events.push(*at, SimEvent::Reserve { change: number as u32 });
        }
        self.events.push(self.now + TICK, SimEvent::CalendarTick);
    }

    /// Passes a step of the scenario to the calendar. Without a leader a client gets no answer, and a
    /// proxy describes its target again when there is one.
    pub(super) fn reserve(&mut self, change: u32) {
        let (_, step) = self.scenario.reservations[change as usize];
        let has_leader = self.has_leader();
        let Some(keeper) = &mut self.calendar else { return };
        match (has_leader, step) {
            (true, _) => keeper.inbox.push_back(CalendarInput::Step(change)),
            (false, ReservationStep::Capacity { .. }) => keeper.missed.push(change),
            (false, _) => return,
        }
        self.run_calendar();
    }

    /// Follows the rows at the proxies, and lets happen what is due.
    pub(super) fn calendar_tick(&mut self) {
        if self.now >= self.measured.1 {
            return;
        }
        self.events.push(self.now + TICK, SimEvent::CalendarTick);
        if self.has_leader() {
            self.follow_rows();
            self.run_calendar();
        }
        self.check_reservations();
        self.check_removed_rows();
    }

    /// The store has written.
    pub(super) fn calendar_written(&mut self, number: u32) {
        let Some(keeper) = &mut self.calendar else { return };
        let Some(write) = keeper.writing.take_if(|write| write.number == number) else { return };
        keeper.stored.merge(write.records);
        self.pass_on();
        self.run_calendar();
    }

    pub(super) fn crash_calendar(&mut self) {
        let now = self.now;
        self.calendar.iter_mut().for_each(|keeper| keeper.crash(now));
    }

    /// The calendar of a new leader. Its rows are put at once: they follow from what is on record.
    pub(super) fn restore_calendar(&mut self) {
        let Some(keeper) = &mut self.calendar else { return };
        keeper.restore(self.now);
        for row in self.row_record.forget_calendar() {
            keeper.removed.entry(row).or_insert(self.now);
        }
        self.send_changed();
        if let Some(keeper) = &mut self.calendar {
            keeper.drain_events();
        }
        self.run_calendar();
    }

    fn has_leader(&self) -> bool {
        self.controls.iter().all(super::control::SimController::has_leader)
    }

    /// What the thread does with all that waits for it, unless it waits for the store.
    fn run_calendar(&mut self) {
        let scenario = self.scenario.clone();
        let Some(keeper) = self.calendar.as_mut().filter(|keeper| keeper.writing.is_none()) else {
            return;
        };
        let now = self.now;
        while let Some(input) = keeper.inbox.pop_front() {
            match input {
                CalendarInput::Step(number) => {
                    let (_, step) = scenario.reservations[number as usize];
                    let owner = |job: u32| {
                        let job = &scenario.jobs[job as usize];
                        let id = job.identity.job.clone();
                        ReservationOwner {
                            // Copies have other jobs, and one user.
                            job: if job.copies == 1 { id } else { model::JobId::default() },
                            uid: job.identity.uid,
                            gid: job.identity.gid,
                            account: None,
                            project: Some(job.target as u32),
                        }
                    };
                    keeper.step(number, step, owner, now);
                }
                CalendarInput::InForce { id, version } => {
                    let id = ReservationId(id);
                    if keeper.rows.is_latest(id, version) {
                        keeper.calendar.installed(id, now);
                        keeper.changed.insert(id);
                    }
                }
                CalendarInput::Used(ids) => {
                    for id in ids {
                        keeper.calendar.claim(ReservationId(id), now);
                    }
                }
            }
            keeper.drain_events();
        }
        keeper.calendar.advance(now);
        keeper.drain_events();
        let due = keeper.rows.take_due(now);
        keeper.changed.extend(due);
        #[cfg(test)]
        if keeper.bug == Some(CalendarBug::AnswersFirst) {
            keeper.events.iter().for_each(|event| keeper.checks.event(event, now));
        }
        let records = keeper.calendar.take_changed();
        if records.is_empty() {
            return self.pass_on();
        }
        keeper.writes += 1;
        let number = keeper.writes;
        keeper.writing = Some(CalendarWrite { number, records });
        let span = Nanos::new(keeper.prng.between(STORE.0.get(), STORE.1.get()));
        self.events.push(now + span, SimEvent::CalendarWritten { number });
    }

    /// What follows a record: answers, events, and rows.
    fn pass_on(&mut self) {
        let Some(keeper) = &mut self.calendar else { return };
        let events = std::mem::take(&mut keeper.events);
        for event in &events {
            keeper.checks.event(event, self.now);
        }
        self.send_changed();
    }

    fn send_changed(&mut self) {
        let Some(keeper) = &mut self.calendar else { return };
        let mut sent = Vec::new();
        for id in std::mem::take(&mut keeper.changed) {
            let loads = keeper.calendar.progress(id).and_then(|progress| progress.rows);
            let record = keeper.calendar.record(id);
            let wanted = loads.as_ref().zip(record.as_ref()).map(|(loads, record)| {
                let target = record.owner().project.expect("the target of the job") as usize;
                let target = &self.scenario.targets[target].name;
                WantedRows { loads, owner: record.owner(), target, directory: None }
            });
            sent.extend(keeper.rows.update(id, wanted, keeper.calendar.resources(), self.now));
        }
        sent.into_iter().for_each(|rows| self.put_calendar_rows(rows));
    }

    /// Gives the controller of a target changed rows of a reservation.
    fn put_calendar_rows(&mut self, rows: ReservationRows) {
        let ReservationRows { target, changes, awaited, .. } = rows;
        let at = self.scenario.targets.iter().position(|spec| *spec.name == *target);
        let (at, now) = (at.expect("a target of the scenario"), self.now);
        let Some(keeper) = &mut self.calendar else { return };
        for (id, row) in &changes {
            keeper.row_targets.insert(*id, at);
            match row {
                // What a new leader puts again was never gone.
                Some(_) if keeper.removed.remove(id) == Some(now) => {}
                Some(_) => _ = keeper.put.entry(*id).or_insert(now),
                None => {
                    keeper.put.remove(id);
                    keeper.removed.insert(*id, now);
                }
            }
            self.row_record.put(*id, row.as_ref().and_then(|row| row.since(now)), now);
        }
        #[cfg(test)]
        let changes = keeper.inject(changes);
        let awaited = awaited.map(|(id, version)| (id.0, version));
        let allocator = &mut self.controls[at].controller;
        let refused = keeper.target_rows[at].change(changes, awaited, Some(allocator), now);
        assert_eq!(refused, 0, "a scenario has few rows");
        self.send_assignments(at);
    }

    /// Passes on what is in force and used.
    fn follow_rows(&mut self) {
        let now = self.now;
        let Some(keeper) = &mut self.calendar else { return };
        for (rows, control) in keeper.target_rows.iter_mut().zip(&mut self.controls) {
            let inbox = &mut keeper.inbox;
            #[cfg(test)]
            if keeper.bug == Some(CalendarBug::NeverHears) {
                continue;
            }
            rows.report_awaited(Some(&control.controller), now, |id, version, is| {
                assert_eq!(is, AwaitedRows::InForce, "a scenario has few rows");
                inbox.push_back(CalendarInput::InForce { id, version });
                true
            });
            let used = rows.take_used(&mut control.controller);
            if !used.is_empty() {
                inbox.push_back(CalendarInput::Used(used));
            }
        }
    }

    /// Checks that a proxy with a valid lease loses no row of a reservation that goes on.
    pub(super) fn check_lost_rows(&self, proxy: u32, rows: &EntitlementChanges) -> Option<String> {
        let (keeper, checks) = (self.calendar.as_ref()?, self.checks.as_ref()?);
        let clock = self.proxies[proxy as usize].clock(self.now);
        let lost = |(id, row): &(EntitlementId, Option<Entitlement>)| {
            let put = keeper.put.get(id).filter(|_| row.is_none())?;
            let (_, given) = checks.current_rows(proxy, clock).find(|(of, _)| of == id)?;
            let is_valid = self.is_settled(proxy, LATE_MESSAGE)
                && self.now.since(*put) > LATE_MESSAGE
                && self.proxies[proxy as usize].scopes().has(given.row.scope())
                && self
                    .row_record
                    .ends(*id)
                    .is_some_and(|ends| ends.since(self.now) > LATE_MESSAGE);
            is_valid.then(|| {
                format!("row {} of a reservation that goes on is taken from proxy {proxy}", id.0)
            })
        };
        rows.iter().find_map(lost)
    }

    /// How much there was to check.
    pub(crate) fn promises(&self) -> PromiseStats {
        let stats = self.calendar.as_ref().map(|keeper| keeper.checks.stats).unwrap_or_default();
        let measured = self.checks.as_ref().map_or(0, InvariantChecks::reserved_seconds);
        PromiseStats { measured_secs: measured, ..stats }
    }

    /// Looks for rows of reservations that are over: a proxy loses them with the next message, or with its
    /// lease.
    fn check_removed_rows(&mut self) {
        let (Some(keeper), Some(checks)) = (&self.calendar, &self.checks) else { return };
        let jumps = self.end_slack();
        let undisturbed = self.undisturbed_since();
        let mut wrong = Vec::new();
        for (proxy, own) in self.proxies.iter().enumerate().filter(|(_, own)| own.up) {
            for (id, _) in checks.current_rows(proxy as u32, own.clock(self.now)) {
                let Some(removed) = keeper.removed.get(&id) else { continue };
                let by_message = undisturbed.map(|since| since.max(*removed) + REMOVED_WITHIN);
                let by_lease = *removed + SessionSettings::default().lease + jumps;
                if self.now > by_message.unwrap_or(Time::MAX).min(by_lease) {
                    let since = self.now.since(*removed);
                    wrong.push(format!(
                        "row {} is in force at proxy {proxy} {since} after its removal",
                        id.0
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// Compares what the calendar has promised with what it does.
    fn check_reservations(&mut self) {
        let undisturbed_since = self.undisturbed_since();
        let has_leader = self.has_leader();
        let Some(keeper) = &mut self.calendar else { return };
        // What is not on record may be lost, and nobody has been told of it.
        if !has_leader || keeper.writing.is_some() {
            return;
        }
        let promised = keeper.checks.promised().map(|id| {
            let status = keeper.calendar.status(id);
            let is_waiting =
                keeper.calendar.progress(id).is_some_and(|progress| progress.is_waiting);
            let span = status.span.filter(|_| !is_waiting);
            (id, PromisedReservation { state: status.state, span })
        });
        let promised: Vec<_> = promised.collect();
        let booked: Vec<_> = keeper.calendar.booked().collect();
        let mut wrong = keeper.checks.check(&promised, &booked, undisturbed_since, self.now);
        let active = promised.iter().filter(|(_, is)| is.state == ReservationState::Active);
        let mut owners = BTreeSet::new();
        for (id, _) in active {
            let is_phase = keeper.calendar.progress(*id).is_some_and(|of| of.parent.is_some());
            let owner = keeper.calendar.record(*id).map(|record| record.owner().clone());
            if let Some(ReservationOwner { job, uid, project, .. }) = owner.filter(|_| !is_phase) {
                let is_first = owners.insert((job, uid, project));
                keeper.checks.stats.overlapping += u64::from(!is_first);
            }
            let rates = self.row_record.rates_of(id.0);
            let at = |span: &Span| span.from <= self.now && self.now < span.until;
            let mut loads = [0; 3];
            for (_, resource, load, _) in
                booked.iter().filter(|(of, _, _, span)| of == id && at(span))
            {
                match resource.index() % 2 {
                    0 => (loads[0], loads[1]) = (load.read_per_sec(), load.write_per_sec()),
                    _ => loads[2] = load.read_per_sec(),
                }
            }
            let is_over = keeper.calendar.status(*id).span.is_none_or(|span| !at(&span));
            if rates != loads && !is_over {
                wrong.push(format!("reservation {id} has rows of {rates:?}/s, not of {loads:?}/s"));
            }
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }
}

impl SimCalendar {
    fn step(
        &mut self,
        number: u32,
        step: ReservationStep,
        owner: impl Fn(u32) -> ReservationOwner,
        now: Time,
    ) {
        let id = |of: u32| self.requested.get(&of).copied();
        match step {
            ReservationStep::Request(spec) => {
                let Some(request) = self.request(spec, owner(spec.job), now) else { return };
                if let Ok(id) = self.calendar.request(request, now) {
                    self.requested.insert(number, id);
                    self.changed.insert(id);
                }
            }
            ReservationStep::Phase { of, thousandths, after, duration } => {
                let Some(id) = id(of) else { return };
                let Some(demand) = self.demand_of(id, thousandths) else { return };
                let phase =
                    PhaseRequest { demand, start: now + after, tolerance: duration, duration };
                if let Ok(id) = self.calendar.request_phase(id, phase, now) {
                    self.changed.insert(id);
                }
            }
            // A refusal is an answer, too.
            ReservationStep::Extend { of, more } => {
                id(of).map(|id| self.calendar.extend(id, more, now));
            }
            ReservationStep::Finish { of } => {
                id(of).map(|id| self.calendar.finish(id, Bytes::new(u64::MAX), now));
            }
            ReservationStep::Remove { of } => {
                id(of).map(|id| self.calendar.remove(id, now));
            }
            ReservationStep::Test { of } => {
                id(of).map(|id| self.calendar.test(id, now));
            }
            ReservationStep::Capacity { target, percent, span } => {
                let (target, span) = (target as usize, Span::new(now, span));
                self.checks.capacity_changed(target, percent, span);
                self.set_capacity(target, percent, span, now);
            }
        }
    }

    /// Takes the targets for twice as fast as they are.
    #[cfg(test)]
    pub(super) fn overbook(&mut self, now: Time) {
        self.capacities
            .iter_mut()
            .for_each(|of| (of.bytes, of.metadata) = (of.bytes * 2, of.metadata * 2));
        let forever = Span { from: now, until: Time::MAX };
        (0..self.capacities.len()).for_each(|target| self.set_capacity(target, 100, forever, now));
    }

    fn set_capacity(&mut self, target: usize, percent: u64, span: Span, now: Time) {
        let TargetCapacity { bytes, metadata } = self.capacities[target];
        for (resource, whole) in resources_of(target).into_iter().zip([bytes, metadata]) {
            let part = whole * percent / 100;
            let capacity = Capacity::per_sec(part, part).expect("a bounded rate");
            let set = self.calendar.set_capacity(resource, span, capacity, now);
            set.expect("few changes of capacities");
        }
    }

    fn request(
        &self,
        spec: ReservationSpec,
        owner: ReservationOwner,
        now: Time,
    ) -> Option<ReservationRequest> {
        let target = owner.project? as usize;
        let TargetCapacity { bytes, metadata } = self.capacities[target];
        let part = |whole: u64, percent: u64| whole * percent / 100;
        let [bytes_of, ops_of] = resources_of(target);
        let bytes = Load::per_sec(part(bytes, spec.read), part(bytes, spec.write))?;
        let ops = Load::per_sec(part(metadata, spec.metadata), 0)?;
        let demand = Demand::new(&[(bytes_of, bytes), (ops_of, ops)]).ok()?;
        let release = now + spec.release;
        let request = ReservationRequest::new(owner, demand, spec.duration)
            .starting_from(release)
            .claimed_within(spec.claim_window);
        let request = match spec.deadline {
            Some(more) => request.ending_by(release + spec.claim_window + spec.duration + more),
            None => request,
        };
        Some(if spec.is_spontaneous { request.spontaneous() } else { request })
    }

    #[cfg(test)]
    fn inject(&self, changes: Vec<TimedChange>) -> Vec<TimedChange> {
        let half = |mut timed: TimedEntitlement| {
            let rate = timed.row.reservation().expect("a reservation");
            let half = match rate {
                Rate::Bytes(_) => Rate::bytes_per_sec(rate.per_sec() / 2),
                Rate::Ops(_) => Rate::ops_per_sec(rate.per_sec() / 2),
            };
            let (scope, kinds) = (timed.row.scope().clone(), timed.row.kinds());
            let grants = Grantable::Reservation(half.expect("above zero"));
            timed.row = Entitlement::new(scope, grants, kinds, timed.row.source()).expect("kinds");
            timed
        };
        let with_bug = |(id, row): TimedChange| match (self.bug, row) {
            (Some(CalendarBug::LeavesRows), None) => None,
            (Some(CalendarBug::ForgetsRows), _) if self.restores > 0 => None,
            (Some(CalendarBug::Halves), row) => Some((id, row.map(half))),
            (_, row) => Some((id, row)),
        };
        changes.into_iter().filter_map(with_bug).collect()
    }

    /// The demand of a reservation in thousandths of what it has booked.
    fn demand_of(&self, id: ReservationId, thousandths: u64) -> Option<Demand> {
        let mut loads: BTreeMap<ResourceId, Load> = BTreeMap::new();
        for (_, resource, load, _) in self.calendar.booked().filter(|(of, ..)| *of == id) {
            loads.insert(resource, load);
        }
        let more = |per_sec: u64| per_sec * thousandths / 1_000;
        let more = |(resource, load): (ResourceId, Load)| {
            Some((resource, Load::per_sec(more(load.read_per_sec()), more(load.write_per_sec()))?))
        };
        Demand::new(&loads.into_iter().filter_map(more).collect::<Vec<_>>()).ok()
    }
}

/// The resources of a target: its bytes and its metadata, in the order in which they were added.
fn resources_of(target: usize) -> [ResourceId; 2] {
    [0, 1].map(|kind| ResourceId::new(target as u32 * 2 + kind))
}

/// The settings of production, with a shorter horizon and wait.
fn settings() -> CalendarSettings {
    CalendarSettings {
        horizon: Nanos::from_secs(600),
        duration_max: Nanos::from_secs(300),
        wait_max: Nanos::from_secs(8),
        ..CalendarSettings::default()
    }
}

/// How often the clock is read and rows are followed.
const TICK: Nanos = Nanos::from_millis(100);
/// How long after its removal a row is gone where messages arrive.
const REMOVED_WITHIN: Nanos = Nanos::from_millis(1_000);
/// How long a message may be late.
const LATE_MESSAGE: Nanos = Nanos::from_secs(2);
/// How long the store writes a record.
const STORE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_millis(60));
