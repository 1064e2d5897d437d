//! The calendar: admits requests, moves reservations through their stages, and reports changes.
//!
//! ```text
//!   request, claim, finish, … ─┐                       ┌─► answer, refusal
//!   set_capacity ──────────────┼─► advance ─► settle ──┼─► events
//!   the time ──────────────────┘   (stages)  (replan)  └─► next_deadline
//! ```
//!
//! Each call first advances to its time: everything that is due happens. It then does its work and
//! settles: freed capacity goes to scaled reservations, to scheduled ones (compression) and to the
//! queue, in this order. After each call `poll_event` is called until it returns `None`.
//!
//! Invariants: what is booked fits at every time from now on. The table's booked reservations are
//! exactly what is booked. Of the queue, only the head is scheduled for later.

mod capacity;
mod groups;
mod moves;
mod phases;
mod progress;
mod replan;
mod restore;
mod stages;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use model::{Amount, Bytes, Nanos, Share, Time};

use crate::ceilings::{Ceiling, CeilingSubject, Ceilings, DefaultCeilings, Outstanding};
use crate::credits::{CreditAccounts, CreditSettings};
use crate::demand::{Demand, ResourceId, ResourceKind};
use crate::events::{CalendarChange, CalendarEvent};
use crate::load::{Capacity, Load};
use crate::request::{
    ACCOUNT_MAX, Refusal, ReservationClass, ReservationError, ReservationOwner, ReservationRequest,
};
use crate::reservation::{
    EndReason, Reservation, ReservationId, ReservationState, ReservationStatus, Stage,
};
use crate::resources::{FitWindow, ResourceError, ResourceTable, Span, Unreserved};
use crate::table::ReservationTable;

pub use capacity::RulesError;
pub use moves::MoveRequest;
pub use phases::{PhaseRequest, PlannedPhase};
pub use progress::{ReservationProgress, RowLoads};

/// What a calendar runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarSettings {
    /// The share of each capacity that is never reserved.
    pub best_effort: Share,
    /// How far ahead a reservation may end.
    pub horizon: Nanos,
    /// The longest duration with its claim window.
    pub duration_max: Nanos,
    /// How long before its start a reservation is installed.
    pub install_lead: Nanos,
    /// How long after a failure it is installed again.
    pub install_retry: Nanos,
    /// How long a spontaneous reservation waits before it is fixed.
    pub wait_max: Nanos,
    /// The most reservations that have not ended.
    pub reservations_max: usize,
    /// The ceilings of subjects without one of their own.
    pub ceilings: DefaultCeilings,
    /// The credits for early ends.
    pub credits: CreditSettings,
}

/// The calendar of bandwidth, with all reservations that have not ended.
#[derive(Debug)]
pub struct Calendar {
    settings: CalendarSettings,
    resources: ResourceTable,
    table: ReservationTable,
    ceilings: Ceilings,
    credits: CreditAccounts,
    events: VecDeque<CalendarEvent>,
    /// The one spontaneous reservation with a place for later.
    head: Option<ReservationId>,
    compression: replan::Compression,
    /// Whether the queue may have something that fits now.
    freed: bool,
    /// Phases to be planned again, as their reservations have moved.
    misplaced: Vec<ReservationId>,
    /// When the whole capacities of resources change.
    capacity_changes: BTreeSet<(Time, ResourceId)>,
    now: Time,
}

/// What a request gets if it is accepted.
#[derive(Clone, Copy, Debug)]
struct Admission {
    reserved: Amount,
    start: Time,
}

impl Default for CalendarSettings {
    /// The values of docs/algorithms/reserve.md.
    fn default() -> CalendarSettings {
        CalendarSettings {
            best_effort: Share::ratio(15, 100),
            horizon: Nanos::from_secs(60 * 86_400),
            duration_max: Nanos::from_secs(30 * 86_400),
            install_lead: Nanos::from_secs(2),
            install_retry: Nanos::from_secs(10),
            wait_max: Nanos::from_secs(3_600),
            reservations_max: 131_072,
            ceilings: DefaultCeilings::default(),
            credits: CreditSettings::default(),
        }
    }
}

impl CalendarSettings {
    /// The share of a resource that is left to requests without a reservation.
    fn best_effort_of(&self, kind: ResourceKind) -> Share {
        if kind.has_best_effort() { self.best_effort } else { Share::ZERO }
    }
}

impl Calendar {
    /// A calendar without resources.
    pub fn new(settings: CalendarSettings) -> Calendar {
        Calendar {
            settings,
            resources: ResourceTable::default(),
            table: ReservationTable::new(settings.install_lead, settings.wait_max),
            ceilings: Ceilings::new(settings.ceilings),
            credits: CreditAccounts::new(settings.credits),
            events: VecDeque::new(),
            head: None,
            compression: replan::Compression::default(),
            freed: false,
            misplaced: Vec::new(),
            capacity_changes: BTreeSet::new(),
            now: Time::ZERO,
        }
    }

    /// Adds a resource with its whole capacity. `best_effort` of a target is never reserved.
    ///
    /// # Errors
    /// If the table of resources is full, or the name is not a new one.
    pub fn add_resource(
        &mut self,
        name: Arc<str>,
        kind: ResourceKind,
        capacity: Capacity,
        now: Time,
    ) -> Result<ResourceId, ResourceError> {
        self.advance(now);
        self.add_now(name, kind, capacity)
    }

    /// Requests a reservation. A fixed one is planned at its earliest fit; a spontaneous one starts
    /// now, is the head of the queue, or waits in it.
    ///
    /// # Errors
    /// If it does not fit before its deadline, or a bound or ceiling is reached.
    pub fn request(
        &mut self,
        request: ReservationRequest,
        now: Time,
    ) -> Result<ReservationId, ReservationError> {
        self.advance(now);
        let reserved = self.check(&request)?;
        self.ceilings.check(&request.owner, reserved, 1)?;
        let start = self.first_start(&request)?;
        if request.spends_credit && request.class == ReservationClass::Spontaneous {
            let bytes = reserved.bytes;
            if bytes == Bytes::ZERO {
                return Err(ReservationError::NothingToPay);
            }
            let subject = credit_subject(&request.owner);
            let spent = self.credits.spend(&subject, bytes, self.now);
            spent.map_err(|has| ReservationError::Credit { subject, has, needs: bytes })?;
        }
        self.ceilings.charge(&request.owner, reserved, 1);
        let id = self.enter(request, Admission { reserved, start });
        self.settle();
        Ok(id)
    }

    /// The state for the owner's test. The first test that finds it active claims it.
    pub fn test(&mut self, id: ReservationId, now: Time) -> ReservationStatus {
        self.claim(id, now);
        self.status(id)
    }

    /// Removes a reservation at any stage; false if it is unknown or has ended. No credit is given.
    pub fn remove(&mut self, id: ReservationId, now: Time) -> bool {
        self.advance(now);
        let is_known = self.table.get(id).is_some();
        if is_known {
            self.end(id, EndReason::Removed);
            self.settle();
        }
        is_known
    }

    /// Ends a reservation early, after its owner used that many bytes of it. Returns the credit;
    /// `None` if it is unknown or has ended.
    pub fn finish(&mut self, id: ReservationId, used: Bytes, now: Time) -> Option<Bytes> {
        self.advance(now);
        let reservation = self.table.get(id)?;
        let mut credit = Bytes::ZERO;
        let mut reason = EndReason::Removed;
        if let Stage::Claimed { since } = reservation.stage {
            let rate = self.byte_rate(&reservation.demand);
            // what was added later earns nothing, or each owner would extend just before the end
            let until = reservation.place.until.before(reservation.extended);
            let reserved = Bytes::new(in_span(rate, self.now.since(since)));
            let unused = Bytes::new(in_span(rate, until.since(self.now)));
            let subject = credit_subject(&reservation.owner);
            credit = self.credits.grant(subject, reserved, used, unused, self.now);
            reason = EndReason::Completed;
        }
        self.end(id, reason);
        self.settle();
        Some(credit)
    }

    /// Lets a claimed reservation end later, if the time after its end is free. Returns the new end.
    ///
    /// # Errors
    /// If it is not claimed, does not fit, is a phase that would outlive its reservation, or a bound
    /// or ceiling is reached.
    pub fn extend(
        &mut self,
        id: ReservationId,
        more: Nanos,
        now: Time,
    ) -> Result<Time, ReservationError> {
        self.advance(now);
        let reservation = self.table.get(id).ok_or(ReservationError::Unknown)?;
        let Stage::Claimed { since } = reservation.stage else {
            return Err(ReservationError::NotActive);
        };
        let added = Span::new(reservation.place.until, more);
        let parent = reservation.parent.and_then(|parent| self.table.get(parent));
        if let Some(last) = parent.map(|one| one.place.until).filter(|last| added.until > *last) {
            return Err(ReservationError::BeyondParent(added.until.since(last)));
        }
        self.check_duration(added.until.since(since).max(more), Nanos::ZERO)?;
        let demand = reservation.demand.clone();
        self.resources.check_room(&demand, 1)?;
        // as much as the sum grows, so that the end releases what was charged
        let (has, adds) = (reservation.reserved, self.amount(&demand, more));
        let reserved = Amount { bytes: has.bytes + adds.bytes, ops: has.ops + adds.ops };
        let adds = Amount { bytes: reserved.bytes - has.bytes, ops: reserved.ops - has.ops };
        self.ceilings.check(&reservation.owner, adds, 0)?;
        let is_near = added.until <= self.now + self.settings.horizon;
        if !is_near || self.resources.check_fit(&demand, added).is_err() {
            return Err(self.refusal(&demand, Span::new(added.from, more), None));
        }
        self.ceilings.charge(&reservation.owner, adds, 0);
        self.table.change(id, |reservation| {
            reservation.place.until = added.until;
            reservation.extended += more;
            reservation.reserved = reserved;
        });
        let reservation = self.table.get(id).expect("has not ended");
        reservation.book_within(added, &mut self.resources);
        self.report(id, CalendarChange::Ends { until: added.until });
        self.settle();
        Ok(added.until)
    }

    /// Lets everything happen that is due. To be called at [`Calendar::next_deadline`].
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.resources.forget_before(self.now);
        while self.capacity_changes.first().is_some_and(|(at, _)| *at <= self.now) {
            self.capacity_changes.pop_first();
            self.freed = true;
        }
        self.settle();
    }

    /// The next event; to be called until there is none after each other call. One call makes of each
    /// reservation at most one event of each kind, two moves, and one for each load that is scaled or
    /// restored, and a move by its owner one more place: unread, they add up.
    pub fn poll_event(&mut self) -> Option<CalendarEvent> {
        self.events.pop_front()
    }

    /// When to call [`Calendar::advance`] next, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.compression.is_pending() {
            return Some(self.now);
        }
        let due = self.table.next_due().map(|(at, _)| at);
        let change = self.capacity_changes.first().map(|(at, _)| *at);
        due.into_iter().chain(change).min()
    }

    /// Sets or removes the ceiling of one subject; false if too many have one.
    pub fn set_ceiling(&mut self, subject: CeilingSubject, ceiling: Option<Ceiling>) -> bool {
        self.ceilings.set(subject, ceiling)
    }

    /// The state of a reservation, without a claim.
    pub fn status(&self, id: ReservationId) -> ReservationStatus {
        match self.table.get(id) {
            None => ReservationStatus {
                state: ReservationState::Undefined,
                span: None,
                guaranteed: None,
                ended: self.table.ended(id),
            },
            Some(reservation) => ReservationStatus {
                state: reservation.state(),
                span: Some(reservation.place),
                guaranteed: reservation.guaranteed,
                ended: None,
            },
        }
    }

    /// What a reservation has requested, of a phase what that adds; `None` if it is unknown or has ended.
    pub fn demand(&self, id: ReservationId) -> Option<&Demand> {
        self.table.get(id).map(|reservation| &reservation.demand)
    }

    /// What is booked from now on: a reservation's load of a resource for a span.
    pub fn booked(&self) -> impl Iterator<Item = (ReservationId, ResourceId, Load, Span)> {
        let booked = self.table.iter().filter(|(_, reservation)| reservation.is_booked());
        booked.flat_map(|(id, reservation)| {
            let mut loads = Vec::new();
            reservation.pieces(self.rest_of(reservation.place), |resource, load, span| {
                loads.push((id, resource, load, span));
            });
            loads
        })
    }

    /// What a subject has reserved and not used up.
    pub fn outstanding(&self, subject: &CeilingSubject) -> Outstanding {
        self.ceilings.outstanding(subject)
    }

    /// The credit of an account, or of a user without one.
    pub fn credit(&self, subject: &CeilingSubject) -> Bytes {
        self.credits.balance(subject, self.now)
    }

    /// The resources and what is used of them.
    pub fn resources(&self) -> &ResourceTable {
        &self.resources
    }

    /// How many reservations have not ended.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// How many reservations are active.
    pub fn active_count(&self) -> usize {
        self.table.active()
    }

    fn add_now(
        &mut self,
        name: Arc<str>,
        kind: ResourceKind,
        capacity: Capacity,
    ) -> Result<ResourceId, ResourceError> {
        let id = self.resources.add(name, kind, capacity, self.now)?;
        let best_effort = self.settings.best_effort_of(kind);
        let unreserved = Unreserved { best_effort, ..Unreserved::default() };
        self.resources.set_unreserved(id, unreserved, self.now)?;
        Ok(id)
    }

    /// Checks what does not depend on the plan, and returns what is reserved.
    fn check(&self, request: &ReservationRequest) -> Result<Amount, ReservationError> {
        if self.table.len() >= self.settings.reservations_max {
            return Err(ReservationError::Full(self.table.len()));
        }
        self.check_duration(request.duration, request.claim_window)?;
        if let Some(name) = request.owner.account.as_ref().filter(|name| name.len() > ACCOUNT_MAX) {
            return Err(ReservationError::AccountName(name.len()));
        }
        self.resources.check_room(&request.demand, 1)?;
        Ok(self.amount(&request.demand, request.length()))
    }

    fn check_duration(&self, duration: Nanos, claim: Nanos) -> Result<(), ReservationError> {
        let most = self.settings.duration_max;
        if duration == Nanos::ZERO || duration + claim > most {
            return Err(ReservationError::Duration(duration, claim, most));
        }
        Ok(())
    }

    fn first_start(&self, request: &ReservationRequest) -> Result<Time, ReservationError> {
        let window = self.window(request.release, request.deadline, request.length());
        self.resources.earliest_fit(&request.demand, window).map_err(|_| {
            self.refusal(&request.demand, Span::new(window.release, window.length), None)
        })
    }

    /// Where a reservation may start: from now on, before its deadline, and within the horizon.
    fn window(&self, release: Time, deadline: Option<Time>, length: Nanos) -> FitWindow {
        let horizon = self.now + self.settings.horizon;
        let until = deadline.map_or(horizon, |deadline| deadline.min(horizon));
        FitWindow { release: release.max(self.now), until, length }
    }

    /// Why a demand does not fit in a span, with the next start by which it ends until a time.
    fn refusal(&self, demand: &Demand, span: Span, until: Option<Time>) -> ReservationError {
        let window = self.window(span.from, until, span.until.since(span.from));
        let least = self.resources.share_that_fits(demand, span);
        let next_start = self.resources.earliest_fit(demand, window).ok();
        self.no_fit(least, span.from, next_start)
    }

    fn no_fit(
        &self,
        least: (Share, ResourceId),
        release: Time,
        next_start: Option<Time>,
    ) -> ReservationError {
        let (fits_now, at) = least;
        let (bottleneck, kind) = self.resources.describe(at).expect("a resource of the demand");
        let bottleneck = bottleneck.clone();
        ReservationError::NoFit(Refusal { kind, bottleneck, release, next_start, fits_now })
    }

    /// Puts an admitted request, charged to its ceilings, into the calendar or the queue.
    fn enter(&mut self, request: ReservationRequest, admitted: Admission) -> ReservationId {
        let (class, place) = (request.class, Span::new(admitted.start, request.length()));
        let reservation = Reservation::new(request, admitted.reserved, place, self.now);
        let is_released = reservation.stage == Stage::Waiting { released: true };
        let id = self.table.insert(reservation);
        match class {
            ReservationClass::Fixed => self.place(id, admitted.start, true),
            ReservationClass::Spontaneous if is_released => self.start_or_lead(id, admitted.start),
            ReservationClass::Spontaneous => {}
        }
        id
    }

    /// Ends a reservation and frees what it occupied from now on.
    fn end(&mut self, id: ReservationId, reason: EndReason) {
        let owner = self.table.get(id).expect("has not ended").owner.clone();
        let reservation = self.table.remove(id, reason);
        if reservation.is_booked() {
            let rest = self.rest_of(reservation.place);
            reservation.release_within(rest, &mut self.resources);
            self.compression.note(&reservation.demand, rest);
            self.freed = true;
        }
        if self.head == Some(id) {
            self.head = None;
        }
        self.ceilings.release(&owner, reservation.reserved);
        if reservation.has_paid && reason.is_of_calendar() {
            self.credits.add(credit_subject(&owner), reservation.reserved.bytes, self.now);
        }
        if let Some(parent) = reservation.parent.filter(|parent| self.table.get(*parent).is_some())
        {
            self.table.change(parent, |parent| parent.phases.retain(|phase| *phase != id));
        }
        let change = CalendarChange::Ended { reason };
        self.events.push_back(CalendarEvent { id, owner, change });
        reservation.phases.iter().for_each(|phase| self.end(*phase, EndReason::ParentEnded));
    }

    fn report(&mut self, id: ReservationId, change: CalendarChange) {
        let owner = self.table.get(id).expect("has not ended").owner.clone();
        self.events.push_back(CalendarEvent { id, owner, change });
    }

    /// The part of a span from now on. Only this part is ever changed: the past stays as it was.
    fn rest_of(&self, span: Span) -> Span {
        Span { from: span.from.max(self.now), until: span.until }
    }

    /// What a demand reserves in a span: bytes, and the operations of all metadata resources.
    fn amount(&self, demand: &Demand, span: Nanos) -> Amount {
        let loads = demand.loads().filter(|(resource, _)| {
            let described = self.resources.describe(*resource);
            described.is_some_and(|(_, kind)| kind == ResourceKind::Metadata)
        });
        let ops = loads.fold(0u64, |sum, (_, load)| {
            sum.saturating_add(load.read_per_sec()).saturating_add(load.write_per_sec())
        });
        Amount::new(in_span(self.byte_rate(demand), span), in_span(ops, span))
    }

    /// Bytes per second of a demand: the sum over its targets, or its greatest load if that is more.
    fn byte_rate(&self, demand: &Demand) -> u64 {
        let (mut targets, mut greatest) = (0u64, 0u64);
        for (resource, load) in demand.loads() {
            let rate = load.read_per_sec().saturating_add(load.write_per_sec());
            match self.resources.describe(resource) {
                Some((_, ResourceKind::Target)) => targets = targets.saturating_add(rate),
                Some((_, kind)) if kind.is_bytes() => greatest = greatest.max(rate),
                _ => {}
            }
        }
        targets.max(greatest)
    }
}

/// The account that has credits: that of the batch system, or the user.
fn credit_subject(owner: &ReservationOwner) -> CeilingSubject {
    match &owner.account {
        Some(account) => CeilingSubject::Account(account.clone()),
        None => CeilingSubject::User(owner.uid),
    }
}

fn in_span(per_sec: u64, span: Nanos) -> u64 {
    let amount = u128::from(per_sec) * u128::from(span.get()) / 1_000_000_000;
    u64::try_from(amount).unwrap_or(u64::MAX)
}
