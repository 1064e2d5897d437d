//! Limits over any ten seconds, and reservations since their class waits.
//!
//! ```text
//!   │ 100 ms │ 100 ms │ …  a hundred of them, a running sum for each ceiling
//!   └──────── 10 s ───────┘  sum ≤ rate × 10 s + max(1 %, burst + a request of each lane)
//!                            sum ≥ rate × 9.9 s − a request of each lane, if a queue waited
//!                                  for it alone
//!   t₀: a class with a reservation waits ─────► served since t₀ ≥ rate × (t − t₀) − lag
//! ```
//!
//! *The lower bound of a limit.* A head waits at a meter only while the meter is in debt. So a
//! meter at which some queue always waited, while slots were free, has been charged for all of the
//! time but the debt that it had at its beginning: a request of each lane, and one for each queue
//! whose head it had let go and that waits at another meter. Not checked: limits that depend on
//! other rules or that a controller divides.
//!
//! *Requests that are never delayed* count when they are paid: each later request of their class
//! pays as much again as it costs itself, until they are paid or beyond the bound that a class
//! defers. So a flood of them changes neither bound, and no class but their own pays.
//!
//! *Limits of rows* are held more strictly, since they come and go within a run: over any span, the
//! first ones included, no more than the rate and a burst of each proxy, and two requests of each head
//! that may be ahead: it was let go in its turn, and others have used the burst by then. A row begins with another window each time. What a class had deferred before
//! rows changed may have been forgiven, as it may be of another class now.
//!
//! *The lag of a reservation.* The due time R of a class is at most 500 ms behind, or the dispatcher
//! reports a shortfall, and at most one request ahead. Each dispatch by reservation moves R by its
//! units. So a class that always waits has its rate, less 500 ms of it and a request: over 50 s that
//! is 1 %. It is counted from when the class began to wait, or from the last reported shortfall.

use std::collections::BTreeMap;

use model::{Nanos, Rate, Time};

use super::classes::{ClassOf, RuleView};
use super::waiting::WaitingRequests;
use crate::world::SimRequest;

/// The windows of one proxy, or of all proxies of a target.
#[derive(Debug, Default)]
pub(super) struct Windows {
    gauges: Vec<RateWindow>,
    /// Units that are not paid yet, by ceiling, proxy and class.
    deferred: BTreeMap<(usize, u32, u32), DeferredUnits>,
    reservations: Vec<LagWindow>,
    next_check: u64,
    /// When the last request was dispatched.
    last: Time,
    /// Proxies that divide the limits, beyond the first: each may be ahead by a request.
    others: u64,
    /// Whether the rates here are shares of limits.
    divided: bool,
    /// Whether the target has no other proxy, so that all of a row is here.
    alone: bool,
    /// Before this time the clock of the proxy stands still.
    stands_until: Time,
    /// Whether meters may begin with a debt of earlier rules.
    inherits_debt: bool,
}

/// What requests that are never delayed cost, until others of their class pay for it.
#[derive(Clone, Copy, Debug, Default)]
struct DeferredUnits {
    all: u64,
    /// The part of all that may have been forgiven.
    uncertain: u64,
}

/// The amounts dispatched in the last hundred pieces of time.
#[derive(Clone, Debug)]
struct RateWindow {
    pieces: Box<[Piece; PIECES]>,
    /// All units that were paid in the pieces, and those of them that may have been forgiven.
    sum: (u64, u64),
    /// The number of the last piece.
    last: u64,
    largest: u64,
    /// When what was charged since the start will be paid off, at the rate of the ceiling.
    due: Time,
    /// The same of what was certainly charged.
    certain_due: Time,
    /// Whether it may begin with a debt of another rate.
    inherits_debt: bool,
    /// When a request that waits in a queue was charged first.
    first: Option<Time>,
    /// Since when a queue waits for this ceiling alone.
    waits_since: Option<Time>,
}

/// 100 ms of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    units: u64,
    uncertain: u64,
    /// The time that it takes to pay off what was charged before.
    debt: Nanos,
}

/// A class with a reservation.
#[derive(Clone, Debug, Default)]
pub(super) struct LagWindow {
    rate: Option<Rate>,
    /// Whether a controller divides it.
    is_divided: bool,
    waiting: u64,
    /// Waiting requests that pay a limit of a row, and may delay the others.
    row_limited: u64,
    /// Since when a request of it always waited, and the units served since then.
    since: Time,
    served: u64,
    largest: u64,
}

const PIECES: usize = 100;
const PIECE: u64 = 100_000_000;
/// How far behind a reservation may be and still be made up for.
pub(super) const CATCH_UP: Nanos = Nanos::from_millis(500);
/// Without a burst of its own, a ceiling has this much of its rate.
const BURST: Nanos = Nanos::from_millis(100);
/// The length of a window.
const WINDOW: Nanos = Nanos::from_secs(10);
/// The rate's amount in this time is the most that a class defers.
const DEFERRED_MAX: Nanos = Nanos::from_secs(10);
/// The time after which a meter that lets nothing go is not in debt of earlier rules.
const INHERITED_DEBT_MAX: Nanos = Nanos::from_secs(60);

impl Default for RateWindow {
    fn default() -> RateWindow {
        RateWindow {
            pieces: Box::new([Piece::default(); PIECES]),
            sum: (0, 0),
            last: 0,
            largest: 0,
            due: Time::ZERO,
            certain_due: Time::ZERO,
            inherits_debt: false,
            first: None,
            waits_since: None,
        }
    }
}

impl RateWindow {
    fn add(&mut self, rate: Rate, units: u64, uncertain: u64, now: Time) {
        self.roll(now);
        self.due = self.due.max(now) + rate.time_for(units);
        self.certain_due = self.certain_due.max(now) + rate.time_for(units - uncertain);
        if units > 0 {
            self.first.get_or_insert(now);
        }
        let piece = &mut self.pieces[self.last as usize % PIECES];
        (piece.units, piece.uncertain) = (piece.units + units, piece.uncertain + uncertain);
        self.sum = (self.sum.0 + units, self.sum.1 + uncertain);
        self.largest = self.largest.max(units);
    }

    fn roll(&mut self, now: Time) {
        let piece = piece_of(now);
        // Beyond a whole window everything is older.
        self.last = self.last.max(piece.saturating_sub(PIECES as u64));
        while self.last < piece {
            self.last += 1;
            let debt = self.due.since(Time::from_nanos(self.last * PIECE));
            let fresh = Piece { debt, ..Piece::default() };
            let old = std::mem::replace(&mut self.pieces[self.last as usize % PIECES], fresh);
            self.sum = (self.sum.0 - old.units, self.sum.1 - old.uncertain);
        }
    }

    /// The debt at the beginning of the window.
    fn first_debt(&self) -> Nanos {
        self.pieces[(self.last + 1) as usize % PIECES].debt
    }
}

fn piece_of(now: Time) -> u64 {
    now.as_nanos() / PIECE
}

impl Windows {
    /// Creates the windows of a number of proxies that divide the limits.
    pub(super) fn over(proxies: u64) -> Windows {
        Windows { others: proxies.saturating_sub(1), divided: true, ..Windows::default() }
    }

    /// Creates the windows of one proxy; whether its limits are shares of those of the rules, and
    /// whether it has its target alone.
    pub(super) fn of_proxy(divided: bool, alone: bool) -> Windows {
        Windows { divided, alone, ..Windows::default() }
    }

    /// Begins again, with meters that may have a debt of earlier rules.
    pub(super) fn restart(&mut self, inherits_debt: bool) {
        let Windows { last, others, divided, alone, stands_until, .. } = *self;
        let new = Windows { last, others, divided, alone, stands_until, ..Windows::default() };
        *self = Windows { inherits_debt, ..new };
    }

    /// Begins to measure again after the clock jumped: until a time it stands still.
    pub(super) fn clock_jumped(&mut self, stands_until: Time, now: Time) {
        self.gauges.clear();
        self.stands_until = self.stands_until.max(stands_until);
        self.restart_reservations(now);
    }

    /// Begins new windows of some ceilings, and takes what a proxy's classes deferred for uncertain.
    pub(super) fn rows_changed(&mut self, proxy: u32, began: &[u32]) {
        for gauge in began.iter().map(|gauge| *gauge as usize) {
            if gauge >= self.gauges.len() {
                self.gauges.resize(gauge + 1, RateWindow::default());
            }
            let last = self.gauges[gauge].last;
            let inherits_debt = true;
            self.gauges[gauge] = RateWindow { last, inherits_debt, ..RateWindow::default() };
        }
        let own = self.deferred.iter_mut().filter(|((_, of, _), _)| *of == proxy);
        own.for_each(|(_, deferred)| deferred.uncertain = deferred.all);
    }

    /// Begins to count again which requests of reservations wait; returns what was counted.
    pub(super) fn recount_reservations(&mut self) -> Vec<LagWindow> {
        std::mem::take(&mut self.reservations)
    }

    /// Goes on with the classes that wait as before.
    pub(super) fn resume_reservations(&mut self, before: Vec<LagWindow>) {
        for (own, before) in self.reservations.iter_mut().zip(before) {
            let state = |of: &LagWindow| (of.rate, of.waiting, of.row_limited);
            if state(own) == state(&before) {
                *own = before;
            }
        }
    }

    /// Counts waiting requests of a class with a reservation.
    pub(super) fn waits(&mut self, belongs: &ClassOf, r: &SimRequest, joins: bool, now: Time) {
        let class = belongs.class as usize;
        if class >= self.reservations.len() {
            self.reservations.resize(class + 1, LagWindow::default());
        }
        let own = &mut self.reservations[class];
        if belongs.row_limited && belongs.row.is_none() && !r.kind.never_delayed() {
            own.row_limited = if joins { own.row_limited + 1 } else { own.row_limited - 1 };
            own.restart(now.max(self.stands_until));
        }
        let Some((rate, units)) = reserved(belongs, r) else { return };
        // Its last request may have been one of these, before rows changed.
        own.largest = own.largest.max(units);
        own.rate = Some(rate);
        own.is_divided = self.divided && (belongs.class == belongs.owner || !self.alone);
        if joins && own.waiting == 0 {
            own.restart(now.max(self.stands_until));
        }
        own.waiting = if joins { own.waiting + 1 } else { own.waiting.saturating_sub(1) };
    }

    /// Counts a try in the cached lane that missed: the reservation is charged when the device
    /// serves it.
    pub(super) fn missed(&mut self, belongs: &ClassOf, r: &SimRequest) {
        let Some((_, units)) = reserved(belongs, r) else { return };
        let own = &mut self.reservations[belongs.class as usize];
        own.served = own.served.saturating_sub(units);
    }

    /// Counts a dispatched request of a class with a reservation.
    pub(super) fn served(&mut self, belongs: &ClassOf, r: &SimRequest, now: Time) {
        if now.since(self.last) > CATCH_UP {
            // The target was stuck for longer than a reservation may lag. What it missed is a
            // shortfall, but the dispatcher only finds out when it dispatches again.
            self.restart_reservations(now);
        }
        self.last = now;
        if let Some((_, units)) = reserved(belongs, r)
            && let Some(own) = self.reservations.get_mut(belongs.class as usize)
        {
            own.served += units;
            own.largest = own.largest.max(units);
        }
    }

    /// Counts what a dispatched request pays; returns the ceiling that it breaks. `is_late` is one
    /// that a change of rows may not have reached, so that it paid nothing, or that goes by the
    /// reservation of a row: limits count that and do not delay it.
    pub(super) fn pays(
        &mut self,
        known: &RuleView,
        belongs: &ClassOf,
        r: &SimRequest,
        waiting: &WaitingRequests,
        is_late: bool,
        now: Time,
    ) -> Option<String> {
        let mut broken = None;
        for index in belongs.gauges.iter() {
            let gauge = &known.gauges[*index as usize];
            let index = *index as usize;
            if index >= self.gauges.len() {
                self.gauges.resize(index + 1, RateWindow::default());
            }
            let window = &mut self.gauges[index];
            debug_assert!(gauge.kinds.contains(r.kind));
            let units = gauge.rate.units_of(r.amount);
            let deferred = self.deferred.entry((index, r.proxy, belongs.class)).or_default();
            if r.kind.never_delayed() {
                let most = gauge.rate.amount_in(DEFERRED_MAX, 0).0.max(1);
                deferred.all = (deferred.all + units).min(most);
                continue;
            }
            let paid = units.min(deferred.all);
            let forgiven = paid.min(deferred.uncertain);
            (deferred.all, deferred.uncertain) =
                (deferred.all - paid, deferred.uncertain - forgiven);
            let uncertain = match (self.divided || !belongs.defers, is_late) {
                (_, true) => units + paid,
                (true, false) => paid,
                (false, false) => forgiven,
            };
            window.add(gauge.rate, units + paid, uncertain, now);
            let ahead = waiting.ahead(index) * (self.others + 1);
            let whole = gauge.rate.per_sec() * 10;
            let (saved, _) = gauge.rate.amount_in(BURST, 0);
            let burst = gauge.burst.unwrap_or(saved).max(window.largest);
            let slack = (whole / 100).max(burst + ahead * window.largest);
            let sum = window.sum.0 - window.sum.1;
            if sum > whole + slack {
                broken = Some(format!(
                    "{sum} of limit {:?} at {} in 10 s, more than {whole} and {slack}",
                    gauge.name, gauge.rate
                ));
            }
            if gauge.of_row {
                let (owed, _) = gauge.rate.amount_in(window.certain_due.since(now), 0);
                // Each request's time is rounded up. One that was let go in its turn may go when others
                // have used the burst.
                let (rounding, _) = gauge.rate.amount_in(BURST, 0);
                let requests = 2 * ahead * window.largest;
                let most = burst * (self.others + 1) + requests + rounding / 100 + 1;
                broken = broken.or((owed > most).then(|| {
                    format!(
                        "limit {:?} at {} is exceeded by {owed} at once, more than {most}",
                        gauge.name, gauge.rate
                    )
                }));
            }
        }
        broken
    }

    /// Notes which ceilings a queue waits for alone, while these lanes have free slots.
    pub(super) fn note_throttled(
        &mut self,
        known: &RuleView,
        waiting: &WaitingRequests,
        free: [bool; 2],
        now: Time,
    ) {
        if self.gauges.len() < known.gauges.len() {
            self.gauges.resize(known.gauges.len(), RateWindow::default());
        }
        for (index, window) in self.gauges.iter_mut().enumerate() {
            match waiting.wait_at(index, free) {
                true => _ = window.waits_since.get_or_insert(now.max(self.stands_until)),
                false => window.waits_since = None,
            }
        }
    }

    /// Checks each second; returns the ceiling that throttles more than its rate.
    pub(super) fn check_throttled(
        &mut self,
        known: &RuleView,
        waiting: &WaitingRequests,
        now: Time,
    ) -> Option<String> {
        for (index, window) in self.gauges.iter_mut().enumerate() {
            window.roll(now);
            let Some(since) = window.waits_since else { continue };
            let since = match (self.inherits_debt || window.inherits_debt, window.first) {
                (false, _) => since,
                (true, Some(first)) => since.max(first),
                (true, None) => since + INHERITED_DEBT_MAX,
            };
            if now.since(since) < WINDOW {
                continue;
            }
            let gauge = &known.gauges[index];
            // The last piece has only begun.
            let span = Nanos::new(PIECE * (PIECES as u64 - 1));
            let (due, _) = gauge.rate.amount_in(span, 0);
            let (debt, _) = gauge.rate.amount_in(window.first_debt(), 0);
            let slack = (debt + 1).max(waiting.ahead(index) * window.largest);
            if window.sum.0 + slack < due {
                return Some(format!(
                    "{} of limit {:?} at {} in 9.9 s, less than {due} less {slack}, though requests \
                     waited for it alone",
                    window.sum.0, gauge.name, gauge.rate
                ));
            }
        }
        None
    }

    /// Begins to count again: what was missed is a shortfall.
    fn restart_reservations(&mut self, now: Time) {
        let now = now.max(self.stands_until);
        self.reservations.iter_mut().for_each(|own| own.restart(now));
    }

    /// Checks occasionally; returns the reservation that was not kept.
    pub(super) fn check_reservations(
        &mut self,
        known: &RuleView,
        cut: bool,
        now: Time,
    ) -> Option<String> {
        if cut || known.reserves_slots {
            self.restart_reservations(now);
        }
        let piece = piece_of(now);
        if piece < self.next_check || now.since(self.last) > CATCH_UP {
            return None;
        }
        self.next_check = piece + 1;
        let is_unhindered =
            |own: &&LagWindow| own.waiting > 0 && own.row_limited == 0 && !own.is_divided;
        for own in self.reservations.iter().filter(is_unhindered) {
            let Some(rate) = own.rate else { continue };
            let span = now.since(own.since);
            let (due, _) = rate.amount_in(span, 0);
            let (behind, _) = rate.amount_in(CATCH_UP, 0);
            // A shortfall of less than a part per million is not reported.
            let slack = behind + own.largest + due / 1_000_000 + 1;
            if own.served + slack < due {
                return Some(format!(
                    "{} in {span} of the {due} that {rate} reserves, and nothing was cut",
                    own.served
                ));
            }
        }
        None
    }
}

impl LagWindow {
    fn restart(&mut self, now: Time) {
        (self.since, self.served) = (now, 0);
    }
}

/// The reserved rate of a request that counts towards it, and its units.
fn reserved(belongs: &ClassOf, r: &SimRequest) -> Option<(Rate, u64)> {
    let rate = belongs.reservation?;
    let units = rate.units_of(r.amount);
    (units > 0 && !r.kind.never_delayed()).then_some((rate, units))
}
