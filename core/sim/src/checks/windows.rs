//! Limits and reservations over any ten seconds.
//!
//! ```text
//!   │ 100 ms │ 100 ms │ …  a hundred of them, one running sum for each ceiling
//!   └──────── 10 s ───────┘  sum ≤ rate × 10 s + max(1 %, burst + a request)
//! ```
//!
//! A reservation is checked when its class was backlogged for the whole window and the dispatcher
//! reported no shortfall of reservations.

use model::{Nanos, Rate, Time};

use super::classes::{ClassOf, RuleView};
use crate::world::SimRequest;

/// The windows of one proxy.
#[derive(Debug, Default)]
pub(super) struct Windows {
    gauges: Vec<RateWindow>,
    reservations: Vec<ReservationWindow>,
    next_check: u64,
    /// When the last request was dispatched.
    last: Time,
    /// Proxies that divide the limits, beyond the first: each may be ahead by a request.
    others: u64,
}

/// The amounts dispatched in the last hundred pieces of time.
#[derive(Clone, Debug)]
struct RateWindow {
    pieces: Box<[u64; PIECES]>,
    sum: u64,
    /// The number of the last piece.
    last: u64,
    largest: u64,
}

/// A class with a reservation.
#[derive(Clone, Debug, Default)]
struct ReservationWindow {
    rate: Option<Rate>,
    served: RateWindow,
    waiting: u64,
    mixed: bool,
    /// Since when a request of it always waited, by the piece.
    since: u64,
}

const PIECES: usize = 100;
const PIECE: u64 = 100_000_000;
/// How far behind a reservation may be and still be made up for.
pub(super) const CATCH_UP: Nanos = Nanos::from_millis(500);
/// Without a burst of its own, a ceiling has this much of its rate.
const BURST: Nanos = Nanos::from_millis(100);

impl Default for RateWindow {
    fn default() -> RateWindow {
        RateWindow { pieces: Box::new([0; PIECES]), sum: 0, last: 0, largest: 0 }
    }
}

impl RateWindow {
    fn add(&mut self, units: u64, now: Time) {
        self.roll(now);
        self.pieces[self.last as usize % PIECES] += units;
        self.sum += units;
        self.largest = self.largest.max(units);
    }

    fn roll(&mut self, now: Time) {
        let piece = piece_of(now);
        for _ in 0..(piece - self.last).min(PIECES as u64) {
            self.last += 1;
            self.sum -= std::mem::take(&mut self.pieces[self.last as usize % PIECES]);
        }
        if self.last < piece {
            // Everything is older than the window.
            self.last = piece;
        }
    }
}

fn piece_of(now: Time) -> u64 {
    now.as_nanos() / PIECE
}

impl Windows {
    /// Creates the windows of a number of proxies that divide the limits.
    pub(super) fn over(proxies: u64) -> Windows {
        Windows { others: proxies.saturating_sub(1), ..Windows::default() }
    }

    /// Restarts the windows after a fault or a change of rules.
    pub(super) fn forget(&mut self) {
        *self = Windows::over(self.others + 1);
    }

    /// Counts waiting requests of a class with a reservation.
    pub(super) fn waits(&mut self, belongs: &ClassOf, r: &SimRequest, joins: bool, now: Time) {
        let Some(rate) = belongs.reservation else { return };
        let class = belongs.class as usize;
        if class >= self.reservations.len() {
            self.reservations.resize(class + 1, ReservationWindow::default());
        }
        let own = &mut self.reservations[class];
        own.rate = Some(rate);
        // A request without bytes of the reserved unit goes by share and may delay the others.
        own.mixed |= rate.units_of(r.amount) == 0;
        if joins && own.waiting == 0 {
            own.since = piece_of(now) + 1;
        }
        own.waiting = if joins { own.waiting + 1 } else { own.waiting.saturating_sub(1) };
    }

    /// Counts a dispatched request; returns the ceiling that it breaks.
    pub(super) fn dispatched(
        &mut self,
        known: &RuleView,
        belongs: &ClassOf,
        r: &SimRequest,
        now: Time,
    ) -> Option<String> {
        if now.since(self.last) > CATCH_UP {
            // The target was stuck for longer than a reservation may lag. What it missed is a
            // shortfall, but the dispatcher only finds out when it dispatches again.
            self.restart_reservations(now);
        }
        self.last = now;
        if let Some(rate) = belongs.reservation
            && !r.returned
            && let Some(own) = self.reservations.get_mut(belongs.class as usize)
        {
            own.served.add(rate.units_of(r.amount), now);
        }
        if r.returned || r.kind.never_delayed() {
            return None;
        }
        // A meter may be ahead by the requests that wait for another meter of theirs.
        let ahead = if belongs.gauges.len() > 1 { AHEAD } else { 1 };
        let ahead = ahead * (self.others + 1);
        let mut broken = None;
        for index in belongs.gauges.iter() {
            let gauge = &known.gauges[*index as usize];
            let index = *index as usize;
            if index >= self.gauges.len() {
                self.gauges.resize(index + 1, RateWindow::default());
            }
            let window = &mut self.gauges[index];
            debug_assert!(gauge.kinds.contains(r.kind));
            window.add(gauge.rate.units_of(r.amount), now);
            let whole = gauge.rate.per_sec() * 10;
            let (saved, _) = gauge.rate.amount_in(BURST, 0);
            let burst = gauge.burst.unwrap_or(saved).max(window.largest);
            let slack = (whole / 100).max(burst + ahead * window.largest);
            if window.sum > whole + slack {
                broken = Some(format!(
                    "{} of limit {:?} at {} in 10 s, more than {whole} and {slack}",
                    window.sum, gauge.name, gauge.rate
                ));
            }
        }
        broken
    }

    /// A momentary shortfall may be missing for a whole window.
    fn restart_reservations(&mut self, now: Time) {
        for own in &mut self.reservations {
            own.since = piece_of(now) + 1;
        }
    }

    /// Checks occasionally; returns the reservation that was not kept.
    pub(super) fn check_reservations(
        &mut self,
        known: &RuleView,
        cut: bool,
        now: Time,
    ) -> Option<String> {
        let piece = piece_of(now);
        if cut || known.reserves_slots {
            self.restart_reservations(now);
        }
        if piece < self.next_check || now.since(self.last) > CATCH_UP {
            return None;
        }
        self.next_check = piece + 1;
        for own in &mut self.reservations {
            let Some(rate) = own.rate else { continue };
            own.served.roll(now);
            let backlogged = !own.mixed && own.waiting > 0 && piece > own.since + 2 * PIECES as u64;
            if !backlogged {
                continue;
            }
            // The last piece has only begun.
            let span = Nanos::new(PIECE * (PIECES as u64 - 1));
            let (due, _) = rate.amount_in(span, 0);
            let (behind, _) = rate.amount_in(CATCH_UP, 0);
            let slack = (due / 100).max(own.served.largest + behind);
            if own.served.sum + slack < due {
                return Some(format!(
                    "{} in 10 s of the {due} that {rate} reserves, and nothing was cut",
                    own.served.sum
                ));
            }
        }
        None
    }
}

/// Heads that may wait at another meter when this one let them go.
const AHEAD: u64 = 64;
