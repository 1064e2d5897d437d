//! Reservations: a guaranteed rate of a class, and an account for requests that the rate does not
//! count.
//!
//! ```text
//!   head ─┬─ counts towards the rate ──► R        goes when R ≤ now
//!         └─ without bytes, rate in bytes ──► account   goes when the account owes nothing and
//!                                                   R ≤ now + 500 ms; until then by weight
//! ```
//!
//! A job reads its files one after another, and each needs an open before its bytes. By weight alone
//! the open waits until other classes have had what the reservation gave its class before. Beside
//! 32 classes a twentieth of the rate is left (scenarios/reserved-files.toml). Without a charge, a
//! flood of opens takes the device. Charged to R, a reservation of one byte a second takes it all
//! the same, as opens have no bytes. So they have an account that is charged in device cost, as the
//! bytes that the device would read meanwhile. A part of the rate, in bytes, is a part of the
//! reservation's device time whatever the costs become.
//!
//! Invariant: over any span of t the account is charged at most its rate times (t + 500 ms) and one
//! request in the reservation phase. Beyond that its class goes by weight.

use model::{Amount, Nanos, Rate, Share, TargetId, Time};

use super::class::NO_SIZE;
use super::cost::Costs;
use super::lane::{DEVICE, LANES};
use super::request::{QueuePlace, QueuedRequest};
use super::{Lanes, TargetLanes};
use crate::index::{ClassIndex, RequestIndex, TableIndex as _};
use crate::pacer::{Pacer, RESERVATION_CATCH_UP_NS as CATCH_UP_NS};
use crate::tags::time_key;

/// A class's reservation here, and when it is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    /// Its due time is R.
    rate: Pacer,
    /// For requests without bytes: in the bytes that their cost would read. `None`: they go by
    /// weight.
    account: Option<Pacer>,
    account_part: Share,
    used: ReservationUse,
    /// The last use that was taken with units in it: what they cost.
    typical: ReservationUse,
}

/// What went by a reservation since it was taken last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservationUse {
    /// Units of its rate.
    pub(crate) units: u64,
    /// What that cost the device, in its time; with what went by the account.
    pub(crate) device_ns: u64,
}

/// The terms of a reservation, from the rules and a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationTerms {
    pub(crate) rate: Rate,
    /// The share of the rate that is granted here.
    pub(crate) part: Share,
    /// The part of that share which the account has; nothing: requests without bytes go by weight.
    pub(crate) account: Share,
}

/// A request's charge: its amount for the rate, its device cost for the account.
#[derive(Clone, Copy, Debug)]
struct ReservationCharge {
    amount: Amount,
    /// The bytes that the device cost would read.
    as_bytes: u64,
}

impl Reservation {
    /// A reservation with nothing owed.
    pub(super) fn new(terms: ReservationTerms) -> Reservation {
        let rate = Pacer::new(terms.rate, terms.part);
        Reservation {
            rate,
            account: terms.account(),
            account_part: terms.account,
            used: ReservationUse::default(),
            typical: ReservationUse::default(),
        }
    }

    /// Changes the terms to a rate of the same unit: what is owed stays owed and what is saved
    /// stays saved.
    pub(super) fn set(&mut self, terms: ReservationTerms, now: Time) {
        if terms == self.terms() {
            return;
        }
        self.account_part = terms.account;
        self.rate.set_pace(terms.rate, terms.part, now);
        match (&mut self.account, terms.account()) {
            (Some(known), Some(wanted)) => known.set_pace(terms.rate, wanted.part(), now),
            (known, wanted) => *known = wanted,
        }
    }

    pub(super) fn terms(&self) -> ReservationTerms {
        let (rate, part) = (self.rate.rate(), self.rate.part());
        ReservationTerms { rate, part, account: self.account_part }
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate.rate()
    }

    /// Takes what went by it since the last call.
    pub(super) fn take_use(&mut self) -> ReservationUse {
        if self.used.units > 0 {
            self.typical = self.used;
        }
        std::mem::take(&mut self.used)
    }

    /// The part of the device's time that the rate needs. Before anything went by it, units cost what
    /// those of the largest measured read do, and operations what the smallest one does.
    pub(super) fn device_part(&self, costs: &Costs) -> Share {
        let rate = self.rate.part().of(self.rate.rate().per_sec());
        let (units, device_ns) = match (self.typical.units, self.rate().is_bytes()) {
            (0, true) => costs.largest_read(),
            (0, false) => (1, costs.smallest_time()),
            (units, _) => (units, self.typical.device_ns),
        };
        let needed = u128::from(rate) * u128::from(device_ns) / u128::from(units.max(1));
        Share::ratio(u64::try_from(needed).unwrap_or(u64::MAX), 1_000_000_000)
    }

    /// Whether a request counts towards the rate.
    fn counts(&self, amount: Amount) -> bool {
        self.rate().units_of(amount) > 0
    }

    /// From when on a head may go in the reservation phase, by the reservations' clock; `None`: it
    /// goes by weight only.
    fn due(&self, amount: Amount) -> Option<Time> {
        if self.counts(amount) {
            return Some(self.rate.due());
        }
        let account = self.account.as_ref()?;
        Some(account.due().max(self.rate.due().before(AHEAD_MAX)))
    }

    /// Since when a head that goes in the reservation phase can be late.
    fn late_since(&self, amount: Amount) -> Option<Time> {
        let due = self.due(amount)?;
        Some(due.max(self.rate.due()))
    }

    /// Charges a request.
    fn charge(&mut self, charge: ReservationCharge, now: Time) {
        self.used.units += self.rate().units_of(charge.amount);
        match (self.rate().units_of(charge.amount), &mut self.account) {
            (0, Some(account)) => account.charge(charge.as_bytes, Some(CATCH_UP_NS), now),
            (units, _) => self.rate.charge_late(units, CATCH_UP_NS, now),
        }
    }

    /// Moves the charge for what a request asked for to what it was served.
    fn correct(&mut self, asked: ReservationCharge, served: ReservationCharge, now: Time) {
        let (old, new) = (self.rate().units_of(asked.amount), self.rate().units_of(served.amount));
        self.used.units = (self.used.units + new).saturating_sub(old);
        if new > old {
            self.rate.charge_late(new - old, CATCH_UP_NS, now);
        } else {
            self.rate.refund(old - new);
        }
        if old > 0 {
            return;
        }
        let Some(account) = &mut self.account else { return };
        match served.as_bytes >= asked.as_bytes {
            true => account.charge(served.as_bytes - asked.as_bytes, Some(CATCH_UP_NS), now),
            false => account.refund(asked.as_bytes - served.as_bytes),
        }
    }
}

impl ReservationTerms {
    /// The account beside the rate, if there is one: a rate in operations counts every request.
    fn account(self) -> Option<Pacer> {
        let wanted = self.rate.is_bytes() && self.account != Share::ZERO;
        let granted = self.part.of(self.account.billionths().into());
        let part = Share::ratio(granted, Share::WHOLE.billionths().into());
        wanted.then(|| Pacer::new(self.rate, part))
    }
}

impl Lanes {
    /// When a lane's earliest reservation falls due, if that lets a head go that could not go
    /// before.
    pub(crate) fn reservation_deadline(
        &self,
        target: TargetId,
        lane: usize,
        now: Time,
    ) -> Option<Time> {
        let target = &self.targets[target];
        let (state, clock) = (&target.states[lane], &target.reservation_clock);
        let (due, class) = state.first_reserved()?;
        let fits = self.slots_of_reservation(class, lane) <= state.free();
        (due > clock.at(now) && fits).then_some(clock.when(due))
    }

    /// When the share of a target's slots lets a head go by weight that waits for that.
    pub(crate) fn share_deadline(&self, target: TargetId, lane: usize, now: Time) -> Option<Time> {
        self.targets[target].metered_until(now).filter(|_| lane == DEVICE)
    }

    /// The shortfall of a target's reservations in the last second, in parts per million.
    pub(crate) fn reservation_shortfall_ppm(&self, target: TargetId, now: Time) -> u64 {
        let lanes = &self.targets[target];
        lanes.reservation_clock.cut_ppm(self.reservation_lag(lanes, now), now)
    }

    /// Lets time pass for the reservations.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) {
        if now >= self.window_ends {
            self.end_windows(now);
        }
    }

    /// Ends the windows of the reservations' clocks that are over.
    #[inline(never)]
    fn end_windows(&mut self, now: Time) {
        let clocks = self.targets.iter_mut().map(|target| &mut target.reservation_clock);
        let ends = clocks.map(|clock| clock.advance(now)).min();
        self.window_ends = ends.unwrap_or(Time::ZERO);
    }

    /// Slots for the head of a class that goes first by its reservation.
    #[inline(never)]
    pub(super) fn slots_of_reservation(&self, class: ClassIndex, lane: usize) -> u32 {
        let queue = self.reserved_queue(class, lane).expect("a reserved class has a head");
        let head = self.classes[class].lanes[lane].queues[queue].head();
        self.of_class(class).states[lane].slots(self.requests[head].size)
    }

    /// The queue whose ready head goes first by its class's reservation.
    pub(super) fn reserved_queue(&self, class: ClassIndex, lane: usize) -> Option<usize> {
        self.reserved_head(class, lane).map(|(_, queue)| queue)
    }

    fn reserved_head(&self, class: ClassIndex, lane: usize) -> Option<(u128, usize)> {
        let own = &self.classes[class];
        let (reservation, standing) = (own.reservation.as_ref()?, &own.lanes[lane]);
        let heads = standing.ready_queues().filter_map(|queue| {
            let head = &self.requests[standing.queues[queue].head()];
            Some((time_key(reservation.due(head.amount)?, head.number), queue))
        });
        heads.min()
    }

    /// A class's position among a lane's reserved ones: by when it may go, and by arrival.
    #[inline]
    pub(super) fn reserve_key(&self, class: ClassIndex, lane: usize) -> Option<u128> {
        let owner = &self.classes[self.owner_of(class)];
        if owner.lanes[lane].size == NO_SIZE {
            // Its first head is beyond its cap on slots: no head of the class may go.
            return None;
        }
        let (key, queue) = self.reserved_head(class, lane)?;
        let head = &self.requests[self.head(QueuePlace { class, lane, queue })];
        let state = &self.targets[owner.target].states[lane];
        owner.if_fitting(lane, state, head).map(|_| key)
    }

    /// Updates the position of a class among the reserved ones of both lanes.
    pub(super) fn refresh_reserves(&mut self, class: ClassIndex, now: Time) {
        (0..LANES.len()).for_each(|lane| self.refresh_reserve(class, lane, now));
    }

    /// Updates the position of a class among a lane's reserved ones.
    pub(super) fn refresh_reserve(&mut self, class: ClassIndex, lane: usize, now: Time) {
        let (key, raw) = (self.reserve_key(class, lane), class.raw());
        let own = &mut self.classes[class];
        let target = &mut self.targets[own.target];
        let waits_in = |lane: usize| target.states[lane].reserved_positions.holds(raw);
        match key {
            Some(key) => {
                if !waits_in(lane) {
                    // Both lanes serve the one rate: a class that waits in one lane and then in the
                    // other is late since it waits in either.
                    own.lanes[lane].reservation_since = match waits_in(1 - lane) {
                        true => own.lanes[1 - lane].reservation_since,
                        false => target.reservation_clock.at(now),
                    };
                }
                let state = &mut target.states[lane];
                state.reserved.put(key, raw, &mut state.reserved_positions);
            }
            None if waits_in(lane) => {
                let state = &mut target.states[lane];
                state.reserved.remove(raw, &mut state.reserved_positions);
            }
            None => {}
        }
    }

    /// Since when heads wait for their classes' reservations, by class and lane.
    pub(crate) fn reservation_waits(&self) -> Vec<(ClassIndex, usize, Time)> {
        let states = self.targets.iter().flat_map(|target| target.states.iter().enumerate());
        let waits = states.flat_map(|(lane, state)| {
            let classes = state.reserved.iter().map(|(_, class)| ClassIndex::new(class));
            classes
                .map(move |class| (class, lane, self.classes[class].lanes[lane].reservation_since))
        });
        waits.collect()
    }

    /// Goes on with what [`Lanes::reservation_waits`] returned before all heads stood again.
    pub(crate) fn resume_reservation_waits(&mut self, waits: Vec<(ClassIndex, usize, Time)>) {
        for (class, lane, since) in waits {
            let own = &mut self.classes[class];
            if self.targets[own.target].states[lane].reserved_positions.holds(class.raw()) {
                own.lanes[lane].reservation_since = since;
            }
        }
    }

    /// Charges the head of a queue to its class's reservation, which both lanes follow.
    pub(super) fn charge_reserve(&mut self, place: QueuePlace, now: Time) {
        let QueuePlace { class, lane, queue } = place;
        let index = self.classes[class].lanes[lane].queues[queue].head();
        let QueuedRequest { kind, amount, .. } = self.requests[index];
        let own = &mut self.classes[class];
        let target = &mut self.targets[own.target];
        let Some(reservation) = &mut own.reservation else { return };
        if lane == DEVICE {
            let cost = self.requests[index].cost;
            reservation.used.device_ns += target.params.costs.device_time(cost);
        }
        self.requests[index].set_reserved(reservation.rate().is_bytes());
        if let Some(late) = reservation.late_since(amount) {
            target.reservation_clock.dispatch(late.max(own.lanes[lane].reservation_since), now);
        }
        let as_bytes = match reservation.counts(amount) {
            true => 0,
            false => target.params.costs.device_bytes(kind, amount),
        };
        let clock = target.reservation_clock.at(now);
        reservation.charge(ReservationCharge { amount, as_bytes }, clock);
        self.refresh_reserve(class, 1 - lane, now);
    }

    /// Moves the charge of a running request at its class's reservation to the charge for `served`.
    /// A charge to a reservation that was replaced by one of another unit is not corrected.
    pub(super) fn correct_reserve(&mut self, index: RequestIndex, served: Amount, now: Time) {
        let QueuedRequest { class, kind, amount, .. } = self.requests[index];
        let own = &mut self.classes[class];
        let target = &self.targets[own.target];
        let Some(reservation) = &mut own.reservation else { return };
        if reservation.rate().is_bytes() != self.requests[index].is_reserved_in_bytes() {
            return;
        }
        let costs = &target.params.costs;
        let charge_of = |amount: Amount| match amount == Amount::default() {
            true => ReservationCharge { amount, as_bytes: 0 },
            false => ReservationCharge { amount, as_bytes: costs.device_bytes(kind, amount) },
        };
        let clock = target.reservation_clock.at(now);
        reservation.correct(charge_of(amount), charge_of(served), clock);
        self.refresh_reserves(class, now);
    }

    /// How far the most overdue head lags that waits for its reservation, in ns. All reserved heads
    /// are compared: the next one may have arrived late with credit, while others behind it have
    /// waited for long.
    fn reservation_lag(&self, target: &TargetLanes, now: Time) -> u64 {
        let now = target.reservation_clock.at(now);
        let lanes = target.states.iter().enumerate();
        let lags = lanes.flat_map(|(lane, state)| {
            let classes = state.reserved.iter().map(|(_, class)| ClassIndex::new(class));
            classes.map(move |class| now.since(self.late_since(class, lane)).get())
        });
        lags.max().unwrap_or(0)
    }

    /// Since when the first of a class's heads is late that go by its reservation.
    fn late_since(&self, class: ClassIndex, lane: usize) -> Time {
        let own = &self.classes[class];
        let standing = &own.lanes[lane];
        let heads = standing.ready_queues().filter_map(|queue| {
            let head = &self.requests[standing.queues[queue].head()];
            own.reservation.as_ref()?.late_since(head.amount)
        });
        heads.min().unwrap_or(Time::MAX).max(standing.reservation_since)
    }
}

/// How far R may be ahead for requests without bytes to go in the reservation phase. A class that
/// was served more than its reservation, by a request that is large beside its rate, has no claim
/// to more.
const AHEAD_MAX: Nanos = Nanos::new(CATCH_UP_NS);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: Amount = Amount::new(1_000, 1);
    const OPEN: Amount = Amount::new(0, 1);

    const fn ms(count: u64) -> Time {
        Time::from_nanos(count * 1_000_000)
    }

    const fn charge(amount: Amount, as_bytes: u64) -> ReservationCharge {
        ReservationCharge { amount, as_bytes }
    }

    /// A reservation of 1000 bytes a second, and a part of it in percent for the account.
    fn reserved(percent: u64) -> Reservation {
        let rate = Rate::bytes_per_sec(1_000).unwrap();
        let account = Share::ratio(percent, 100);
        Reservation::new(ReservationTerms { rate, part: Share::WHOLE, account })
    }

    #[test]
    fn an_open_costs_the_account_and_not_the_rate() {
        let mut own = reserved(10);
        // 50 bytes are half a second of 100 a second, beside half a second that was saved.
        own.charge(charge(OPEN, 50), ms(10_000));
        assert_eq!((own.due(OPEN), own.due(DATA)), (Some(ms(10_000)), Some(ms(0))));
        own.charge(charge(OPEN, 50), ms(10_000));
        assert_eq!((own.due(OPEN), own.due(DATA)), (Some(ms(10_500)), Some(ms(0))));
        own.correct(charge(OPEN, 50), charge(Amount::new(0, 3), 150), ms(10_000));
        assert_eq!(own.due(OPEN), Some(ms(11_500)), "it was three operations");
        own.correct(charge(OPEN, 150), charge(Amount::default(), 0), ms(10_000));
        assert_eq!(own.due(OPEN), Some(ms(10_000)), "it missed the cache");
    }

    #[test]
    fn an_open_waits_while_the_rate_is_served_more_than_half_a_second_ahead() {
        let mut own = reserved(10);
        own.charge(charge(DATA, 0), ms(10_000));
        assert_eq!((own.due(DATA), own.due(OPEN)), (Some(ms(10_500 - 1_000)), Some(ms(9_000))));
        own.charge(charge(DATA, 0), ms(10_000));
        own.charge(charge(DATA, 0), ms(10_000));
        assert_eq!((own.due(DATA), own.due(OPEN)), (Some(ms(11_500)), Some(ms(11_000))));
        assert_eq!(own.late_since(OPEN), Some(ms(11_500)), "not before its bytes are due");
    }

    #[test]
    fn without_an_account_an_open_goes_by_share() {
        assert_eq!(reserved(0).due(OPEN), None);
        let rate = Rate::ops_per_sec(10).unwrap();
        let terms = ReservationTerms { rate, part: Share::WHOLE, account: Share::WHOLE };
        let mut counts_all = Reservation::new(terms);
        counts_all.charge(charge(OPEN, 4096), ms(10_000));
        assert_eq!(counts_all.due(OPEN), Some(ms(9_500)), "it is one of ten a second");
    }

    #[test]
    fn a_change_of_terms_keeps_what_the_account_owes() {
        let mut own = reserved(10);
        own.charge(charge(OPEN, 150), ms(10_000));
        own.set(ReservationTerms { account: Share::ratio(20, 100), ..own.terms() }, ms(10_000));
        assert_eq!(own.due(OPEN), Some(ms(10_500)), "100 bytes of 200 a second");
        own.set(ReservationTerms { part: Share::ratio(1, 2), ..own.terms() }, ms(10_000));
        assert_eq!(own.due(OPEN), Some(ms(11_000)));
        own.set(ReservationTerms { account: Share::ZERO, ..own.terms() }, ms(10_000));
        assert_eq!(own.due(OPEN), None);
    }

    proptest! {
        /// Over any span the account gives its part of the rate for that span, what half a second
        /// saved, and one request.
        #[test]
        fn the_account_gives_its_part_and_one_burst_whatever_is_asked(
            percent in 1..101u64,
            steps in prop::collection::vec((0..400u64, 1..900u64), 1..200),
        ) {
            let mut own = reserved(percent);
            let (mut now, mut given) = (ms(1_000), vec![]);
            for (pause, bytes) in steps {
                now = now + Nanos::from_millis(pause);
                if own.due(OPEN).unwrap() <= now {
                    own.charge(charge(OPEN, bytes), now);
                    given.push((now, bytes));
                }
            }
            for from in 0..given.len() {
                let mut sum = 0;
                for (at, bytes) in &given[from..] {
                    let span_ms = at.since(given[from].0).get() / 1_000_000 + 500;
                    // Bytes a second, percent, milliseconds.
                    let saved = (1_000 * percent * span_ms).div_ceil(100 * 1_000);
                    prop_assert!(sum <= saved, "{sum} bytes and one more of {saved}");
                    sum += bytes;
                }
            }
        }
    }
}
