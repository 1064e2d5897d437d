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

mod heads;
mod standing;

use model::{Amount, Nanos, Rate, ReservationLag, Share, Time, WaitedService};

pub(crate) use self::standing::ReservedStanding;
use super::cost::Costs;
use super::service_lag::{ServedTick, ServiceLag};
use crate::pacer::{Pacer, RESERVATION_CATCH_UP_NS as CATCH_UP_NS};

/// A class's reservation here, and when it is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    /// Its due time is R.
    rate: Pacer,
    /// For requests without bytes: in the bytes that their cost would read. `None`: they go by
    /// weight.
    account: Option<Pacer>,
    account_part: Share,
    /// How far R went without service of the device since it followed the clock last, and when last.
    unserved: (u64, Time),
    used: ReservationUse,
    /// Units of its rate that went by weight, since `used` was taken.
    beside: u64,
    /// Units of its rate and their device time lately, about those of a second of the rate.
    typical: (u64, u64),
    pub(super) lag: ServiceLag,
    waited: WaitedService,
    /// Device slots in use by requests that went by it, and the most that may be.
    slots_in_use: u32,
    slots_most: u32,
    /// Whether its head in the device lane waited for these slots since the last one went.
    waited_for_own: bool,
}

/// What went by a reservation since it was taken last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservationUse {
    /// Units of its rate.
    pub(crate) units: u64,
    /// What they cost the device, in its time.
    pub(crate) device_ns: u64,
    /// The same of what went by the account.
    pub(crate) account_ns: u64,
}

/// What the requests of a class or a branch ask of its reservation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AskedService {
    /// It has requests, and no limit delays them.
    pub(super) asks: bool,
    /// Some of them that count for the rate wait here.
    pub(super) waits_for_rate: bool,
}

/// What a class or a branch needs for its reservation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservationNeed {
    /// What went by it since its need was taken last.
    pub(crate) used: ReservationUse,
    /// The part of the device's time.
    pub(crate) part: Share,
    pub(crate) lag: ReservationLag,
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
    /// The device's time; none in the cached lane.
    device_ns: u64,
}

impl Reservation {
    /// A reservation with nothing owed.
    pub(super) fn new(terms: ReservationTerms) -> Reservation {
        let rate = Pacer::new(terms.rate, terms.part);
        Reservation {
            rate,
            account: terms.account(),
            account_part: terms.account,
            unserved: (0, Time::ZERO),
            used: ReservationUse::default(),
            beside: 0,
            typical: (0, 0),
            lag: ServiceLag::default(),
            waited: WaitedService::default(),
            slots_in_use: 0,
            slots_most: u32::MAX,
            waited_for_own: false,
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

    /// Forgets what was saved before a time: a reservation that did not apply saves nothing.
    pub(super) fn save_from(&mut self, since: Time) {
        let before = self.rate.due();
        self.rate.save_from(since);
        self.note_unserved(before, 0, since);
        self.account.iter_mut().for_each(|account| account.save_from(since));
    }

    pub(super) fn terms(&self) -> ReservationTerms {
        let (rate, part) = (self.rate.rate(), self.rate.part());
        ReservationTerms { rate, part, account: self.account_part }
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate.rate()
    }

    /// Takes what went by it in a tick of `span` and what it needs. `clock` is the reservations' time.
    pub(super) fn take_need(
        &mut self,
        costs: &Costs,
        asked: AskedService,
        span: Nanos,
        clock: Time,
        now: Time,
    ) -> ReservationNeed {
        let AskedService { asks, waits_for_rate } = asked;
        let used = std::mem::take(&mut self.used);
        let beside = std::mem::take(&mut self.beside);
        let served = ServedTick {
            units: used.units,
            per_sec: self.rate.part().of(self.rate.rate().per_sec()),
            span,
            overdue: clock.since(self.rate.due()),
        };
        let asks_always = asks && !self.lag.had_gap();
        let lag = self.lag.tick(asks.then_some(served), now);
        if asks_always && (waits_for_rate || lag != ReservationLag::None) {
            let owed = u128::from(served.per_sec) * u128::from(span.get()) / 1_000_000_000;
            let owed = u64::try_from(owed).unwrap_or(u64::MAX);
            let served = used.units.saturating_add(beside);
            self.waited = self.waited.plus(WaitedService { owed, served });
        }
        let often =
            |used_ns: u64| Share::ratio(used_ns.saturating_mul(3), span.get().saturating_mul(2));
        let all = self.device_part(costs);
        let of_rate =
            if waits_for_rate || self.lag.is_late() { all } else { all.min(often(used.device_ns)) };
        let of_account = self.account_part(costs).min(often(used.account_ns));
        ReservationNeed { used, part: of_rate.plus(of_account), lag }
    }

    /// Takes what it was served, since that was taken last, in ticks in which its requests waited: here,
    /// or, as it lags, behind those of others.
    pub(super) fn take_waited(&mut self) -> WaitedService {
        std::mem::take(&mut self.waited)
    }

    /// Moves the count of a request that went by weight from what it asked for to what it was served.
    fn count_beside(&mut self, asked: Amount, served: Amount) {
        let (old, new) = (self.rate().units_of(asked), self.rate().units_of(served));
        self.beside = self.beside.saturating_add(new).saturating_sub(old);
    }

    /// Whether a head for the device has to wait until others that went by it end. The last one may use
    /// more than the rest of its slots: these are few large requests on some devices.
    pub(super) fn is_full(&self) -> bool {
        self.slots_in_use >= self.slots_most
    }

    /// Sets the most device slots that may be in use by it.
    pub(super) fn set_slots_most(&mut self, most: u32) {
        self.slots_most = most;
    }

    /// Handles that a request that went by it begins to use slots of the device.
    pub(super) fn take_slots(&mut self, slots: u32) {
        self.slots_in_use += slots;
    }

    /// Handles that a request that went by it, or by the one before it, ends. Returns whether a head may
    /// have waited for that.
    pub(super) fn free_slots(&mut self, slots: u32) -> bool {
        let was_full = self.is_full();
        self.slots_in_use = self.slots_in_use.saturating_sub(slots);
        was_full
    }

    /// The part of the device's time that the rate needs. Before anything went by it, units cost what
    /// those of the largest measured read do, and operations what the smallest one does.
    pub(super) fn device_part(&self, costs: &Costs) -> Share {
        let rate = self.rate.part().of(self.rate.rate().per_sec());
        let (units, device_ns) = match (self.typical, self.rate().is_bytes()) {
            ((0, _), true) => costs.largest_read(),
            ((0, _), false) => (1, costs.smallest_time()),
            (typical, _) => typical,
        };
        let needed = u128::from(rate) * u128::from(device_ns) / u128::from(units.max(1));
        Share::ratio(u64::try_from(needed).unwrap_or(u64::MAX), 1_000_000_000)
    }

    /// The most of the device's time that the account gives.
    fn account_part(&self, costs: &Costs) -> Share {
        let Some(account) = &self.account else { return Share::ZERO };
        let (bytes, ns) = costs.largest_read();
        let needed = u128::from(account.part().of(account.rate().per_sec())) * u128::from(ns);
        let needed = needed / u128::from(bytes.max(1));
        Share::ratio(u64::try_from(needed).unwrap_or(u64::MAX), 1_000_000_000)
    }

    /// Whether a request counts towards the rate.
    pub(super) fn counts(&self, amount: Amount) -> bool {
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

    /// Since when a head that goes in the reservation phase is late.
    fn late_since(&self, amount: Amount, standing: ReservedStanding) -> Option<Time> {
        let since = standing.since(self.counts(amount))?;
        Some(self.due(amount)?.max(self.rate.due()).max(since))
    }

    /// Charges a request. Returns whether the units of a second went by it since that was so last.
    fn charge(&mut self, charge: ReservationCharge, now: Time) -> bool {
        let units = self.rate().units_of(charge.amount);
        if units == 0 {
            self.used.account_ns += charge.device_ns;
        } else {
            self.used.units += units;
            self.used.device_ns += charge.device_ns;
            self.typical.0 = self.typical.0.saturating_add(units);
            self.typical.1 = self.typical.1.saturating_add(charge.device_ns);
        }
        let before = self.rate.due();
        match (units, &mut self.account) {
            (0, Some(account)) => account.charge(charge.as_bytes, Some(CATCH_UP_NS), now),
            (units, _) => self.rate.charge_late(units, CATCH_UP_NS, now),
        }
        self.note_unserved(before, if charge.device_ns > 0 { units } else { 0 }, now);
        let is_second = self.typical.0 >= self.rate().per_sec().saturating_mul(2);
        if is_second {
            self.typical = (self.typical.0 / 2, self.typical.1 / 2);
        }
        is_second
    }

    /// Notes how far R has gone since it was `before`, beyond the units that the device serves.
    fn note_unserved(&mut self, before: Time, served: u64, clock: Time) {
        let (served_ns, _) = self.rate.time_of(served);
        let unserved_ns = self.rate.due().since(before).get().saturating_sub(served_ns);
        if unserved_ns > 0 {
            self.unserved = (self.unserved.0.saturating_add(unserved_ns), clock);
        }
    }

    /// Handles that the reservations' clock was set back to `clock`: R goes back as far as it went
    /// beyond that without service of the device. Returns whether it did.
    pub(super) fn follow(&mut self, clock: Time) -> bool {
        let (unserved_ns, last) = std::mem::take(&mut self.unserved);
        let back_ns = unserved_ns.min(last.since(clock).get());
        self.rate.pull(back_ns, clock);
        back_ns > 0
    }

    /// Moves the charge for what a request asked for to what it was served.
    fn correct(&mut self, asked: ReservationCharge, served: ReservationCharge, now: Time) {
        let (old, new) = (self.rate().units_of(asked.amount), self.rate().units_of(served.amount));
        if old > 0 {
            // What moved nothing says nothing of the cost of a unit.
            let served_ns = if new > 0 { served.device_ns } else { 0 };
            let moved = |sum: u64, old: u64, new: u64| sum.saturating_add(new).saturating_sub(old);
            self.used.units = moved(self.used.units, old, new);
            self.used.device_ns = moved(self.used.device_ns, asked.device_ns, served_ns);
            self.typical.0 = moved(self.typical.0, old, new);
            self.typical.1 = moved(self.typical.1, asked.device_ns, served_ns);
        }
        if new > old {
            self.rate.charge_late(new - old, CATCH_UP_NS, now);
        } else {
            self.rate.refund(old - new);
            if asked.device_ns == 0 {
                let (refunded_ns, _) = self.rate.time_of(old - new);
                self.unserved.0 = self.unserved.0.saturating_sub(refunded_ns);
            }
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
        ReservationCharge { amount, as_bytes, device_ns: 0 }
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
        let mut stands = ReservedStanding::NONE;
        stands.set([true, false], ReservedStanding::NONE, ms(9_000));
        assert_eq!(own.late_since(OPEN, stands), Some(ms(11_500)), "not before its bytes are due");
    }

    #[test]
    fn data_is_not_late_for_the_time_in_which_an_open_waited_for_its_account() {
        let mut own = reserved(10);
        own.charge(charge(DATA, 0), ms(10_000));
        own.charge(charge(OPEN, 150), ms(10_000));
        let mut stands = ReservedStanding::NONE;
        stands.set([true, false], ReservedStanding::NONE, ms(10_000));
        stands.set([true, true], ReservedStanding::NONE, ms(15_000));
        assert_eq!(own.late_since(DATA, stands), Some(ms(15_000)), "it came then");
        stands.set([true, true], ReservedStanding::NONE, ms(16_000));
        assert_eq!(own.late_since(DATA, stands), Some(ms(15_000)), "it stands since then");
        let mut other = ReservedStanding::NONE;
        other.set([false, true], stands, ms(16_000));
        assert_eq!(own.late_since(DATA, other), Some(ms(15_000)), "in either lane");
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

    #[test]
    fn r_goes_back_with_the_clock_as_far_as_the_device_did_not_serve_it() {
        let served = |own: &mut Reservation, at: Time, device_ns| {
            own.charge(ReservationCharge { amount: DATA, as_bytes: 0, device_ns }, at);
        };
        // After a pause the device serves it three seconds of its rate, and then stands still.
        let mut own = reserved(10);
        (0..3).for_each(|_| served(&mut own, ms(100_000), 1));
        assert_eq!(own.rate.due(), ms(101_500));
        assert!(!own.follow(ms(100_500)), "nothing but the device since then");
        assert_eq!(own.rate.due(), ms(101_500));
        // The same while the device stood still since 90 s.
        let mut own = reserved(10);
        (0..3).for_each(|_| served(&mut own, ms(100_000), 1));
        assert!(own.follow(ms(90_500)));
        assert_eq!(own.rate.due(), ms(92_000), "three seconds beside half a second saved");
        // The cache goes on while the device stands still.
        let mut own = reserved(10);
        (90..100).for_each(|at| served(&mut own, ms(at * 1_000), 0));
        assert!(own.follow(ms(90_500)));
        assert_eq!(own.rate.due(), ms(90_500));
        assert!(!own.follow(ms(80_000)), "only once");
    }

    #[test]
    fn short_reads_and_opens_change_no_cost_of_what_is_moved() {
        let costs = Costs::default();
        let tick = Nanos::from_millis(100);
        let of = |amount, device_ns| ReservationCharge { amount, as_bytes: 0, device_ns };
        let mut own = reserved(10);
        let need = |own: &mut Reservation, waits| {
            let asked = AskedService { asks: true, waits_for_rate: waits };
            own.take_need(&costs, asked, tick, ms(10_000), ms(10_000)).part.billionths() / 1_000_000
        };
        // 1000 bytes cost 300 ms of the device, and 1000 a second are reserved.
        for _ in 0..10 {
            own.charge(of(DATA, 300_000_000), ms(10_000));
        }
        assert_eq!(need(&mut own, true), 300);
        // At the end of a file nothing is moved; a tenth is moved and costs a tenth.
        own.charge(of(DATA, 300_000_000), ms(10_000));
        own.correct(of(DATA, 300_000_000), of(Amount::new(0, 1), 10_000_000), ms(10_000));
        own.charge(of(DATA, 300_000_000), ms(10_000));
        own.correct(of(DATA, 300_000_000), of(Amount::new(100, 1), 30_000_000), ms(10_000));
        assert_eq!(need(&mut own, true), 300);
        own.charge(of(OPEN, 900_000_000), ms(10_000));
        assert_eq!(need(&mut own, true), 300, "the account gives next to nothing of the device");
        assert_eq!(need(&mut own, false), 0, "nothing went by it since the last tick");
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
