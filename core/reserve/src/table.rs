//! All reservations that have not ended, with the orders in which the calendar reads them.
//!
//! ```text
//!   change(id, …) ─► reservation ─► due: (time, id)          what time alone changes
//!                              ├──► starts: (start, id)      scheduled ones, for compression
//!                              └──► queue: (paid, since, id) waiting ones whose release has come
//!   remove(id, reason) ─► the last reasons, oldest forgotten first
//! ```
//!
//! The keys are functions of a reservation, so each change goes through [`ReservationTable::change`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Nanos, Time};

use crate::record::ChangedSet;
use crate::reservation::{EndReason, Reservation, ReservationId, ReservationState, Stage};

#[derive(Debug)]
pub(crate) struct ReservationTable {
    by_id: BTreeMap<ReservationId, Reservation>,
    due: BTreeSet<(Time, ReservationId)>,
    starts: BTreeSet<(Time, ReservationId)>,
    queue: BTreeSet<QueueKey>,
    /// Those with a load that is scaled.
    scaled: BTreeSet<ReservationId>,
    /// How many are active.
    active: usize,
    ended: BTreeMap<ReservationId, EndReason>,
    ended_order: VecDeque<ReservationId>,
    changed: ChangedSet<ReservationId>,
    install_lead: Nanos,
    wait_max: Nanos,
    last: ReservationId,
}

/// The order of the queue: paid first, then by the begin of the wait.
type QueueKey = (bool, Time, ReservationId);

impl ReservationTable {
    pub(crate) fn new(install_lead: Nanos, wait_max: Nanos) -> ReservationTable {
        ReservationTable {
            by_id: BTreeMap::new(),
            due: BTreeSet::new(),
            starts: BTreeSet::new(),
            queue: BTreeSet::new(),
            scaled: BTreeSet::new(),
            active: 0,
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            changed: ChangedSet::default(),
            install_lead,
            wait_max,
            last: ReservationId(0),
        }
    }

    /// Adds a reservation under the next number.
    pub(crate) fn insert(&mut self, reservation: Reservation) -> ReservationId {
        let id = ReservationId(self.last.0 + 1);
        self.insert_as(id, reservation);
        id
    }

    /// Adds a reservation under a number that no other one has; the next one is above it.
    pub(crate) fn insert_as(&mut self, id: ReservationId, reservation: Reservation) {
        self.last = self.last.max(id);
        self.index(id, &reservation);
        self.by_id.insert(id, reservation);
    }

    /// Leaves out all numbers up to one.
    pub(crate) fn skip_to(&mut self, last: ReservationId) {
        self.last = self.last.max(last);
    }

    /// The reservations that have changed or ended since the last call. Nothing is noted before the
    /// first one.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<ReservationId> {
        self.changed.take()
    }

    /// Notes that a reservation has changed, or that there is none of that number.
    pub(crate) fn note_changed(&mut self, id: ReservationId) {
        self.changed.note(id);
    }

    /// Changes a reservation and its keys.
    ///
    /// # Panics
    /// If it does not exist.
    pub(crate) fn change<T>(
        &mut self,
        id: ReservationId,
        change: impl FnOnce(&mut Reservation) -> T,
    ) -> T {
        let mut reservation = self.take(id);
        let result = change(&mut reservation);
        self.index(id, &reservation);
        self.by_id.insert(id, reservation);
        result
    }

    /// Removes a reservation and keeps the reason.
    pub(crate) fn remove(&mut self, id: ReservationId, reason: EndReason) -> Reservation {
        let reservation = self.take(id);
        self.ended.insert(id, reason);
        self.ended_order.push_back(id);
        if self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        reservation
    }

    pub(crate) fn get(&self, id: ReservationId) -> Option<&Reservation> {
        self.by_id.get(&id)
    }

    /// The greatest number that was given.
    pub(crate) fn last(&self) -> ReservationId {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn active(&self) -> usize {
        self.active
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ReservationId, &Reservation)> {
        self.by_id.iter().map(|(id, reservation)| (*id, reservation))
    }

    /// Why a reservation has ended, of the last ones.
    pub(crate) fn ended(&self, id: ReservationId) -> Option<EndReason> {
        self.ended.get(&id).copied()
    }

    /// The reservation whose next stage is due first.
    pub(crate) fn next_due(&self) -> Option<(Time, ReservationId)> {
        self.due.first().copied()
    }

    /// The first scheduled reservation at or after a start and number.
    pub(crate) fn next_start(&self, from: (Time, ReservationId)) -> Option<(Time, ReservationId)> {
        self.starts.range(from..).next().copied()
    }

    /// The scheduled reservations that start before a time.
    pub(crate) fn starting_before(&self, time: Time) -> impl Iterator<Item = ReservationId> {
        self.starts.range(..(time, ReservationId(0))).map(|(_, id)| *id)
    }

    /// The first waiting reservations, in the order of the queue.
    pub(crate) fn queue(&self) -> impl Iterator<Item = ReservationId> {
        self.queue.iter().map(|(_, _, id)| *id)
    }

    /// The reservations with a scaled load.
    pub(crate) fn scaled(&self) -> Vec<ReservationId> {
        self.scaled.iter().copied().collect()
    }

    fn take(&mut self, id: ReservationId) -> Reservation {
        let reservation = self.by_id.remove(&id).expect("a reservation that has not ended");
        self.due.remove(&(reservation.due(self.install_lead, self.wait_max), id));
        self.starts.remove(&(reservation.place.from, id));
        self.queue.remove(&queue_key(id, &reservation));
        self.scaled.remove(&id);
        self.active -= usize::from(reservation.state() == ReservationState::Active);
        self.changed.note(id);
        reservation
    }

    fn index(&mut self, id: ReservationId, reservation: &Reservation) {
        self.changed.note(id);
        self.active += usize::from(reservation.state() == ReservationState::Active);
        self.due.insert((reservation.due(self.install_lead, self.wait_max), id));
        match reservation.stage {
            Stage::Scheduled => _ = self.starts.insert((reservation.place.from, id)),
            Stage::Waiting { released: true } => {
                self.queue.insert(queue_key(id, reservation));
            }
            _ => {}
        }
        if !reservation.scaled.is_empty() {
            self.scaled.insert(id);
        }
    }
}

fn queue_key(id: ReservationId, reservation: &Reservation) -> QueueKey {
    (!reservation.has_paid, reservation.release.max(reservation.requested), id)
}

/// How many ended reservations keep their reason.
const ENDED_MAX: usize = 4_096;
