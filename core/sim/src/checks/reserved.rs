//! What the rows of the calendar reserve is served, over all proxies of a target. Rows for the same
//! requests promise their sum; the lowest number stands for them.
//!
//! ```text
//!   requests of a row wait at the same proxies since t₀ ─► served since t₀ + settling
//!                                                          ≥ 99 % of the rate − what may lag
//! ```
//!
//! The controller divides the rate of a row over the proxies by demand: within [`SETTLING`] those whose
//! requests wait have all of it but 1 %. Each dispatcher lags by 500 ms and a request at most. So it is
//! measured while at each proxy that the row has requests at some wait always, and begins again when
//! that changes, when rows or rules change, and after each fault. A shortfall that a dispatcher reports
//! does not excuse it: the capacity of the calendar is what the device can keep.

use std::collections::BTreeMap;

use model::{Nanos, Rate, Time};
use rules::EntitlementId;

use super::classes::ClassOf;
use super::windows::CATCH_UP;
use crate::world::SimRequest;

/// The service of the rows that reserve.
#[derive(Debug, Default)]
pub(super) struct ReservedService {
    rows: BTreeMap<EntitlementId, RowService>,
    /// Until then nothing is measured.
    disturbed_until: Time,
    /// How many rows were measured for longer than a second, in pieces of a second.
    pub(super) measured: u64,
}

#[derive(Debug)]
struct RowService {
    rate: Rate,
    /// Requests that wait, by proxy.
    waiting: BTreeMap<u32, u64>,
    since: Time,
    served: u64,
    largest: u64,
}

impl ReservedService {
    /// Counts a request that begins or ends to wait.
    pub(super) fn waits(&mut self, belongs: &ClassOf, r: &SimRequest, joins: bool, now: Time) {
        let Some((id, rate, units)) = reserved(belongs, r) else { return };
        let fresh =
            || RowService { rate, waiting: BTreeMap::new(), since: now, served: 0, largest: 0 };
        let own = self.rows.entry(id).or_insert_with(fresh);
        if own.rate != rate {
            own.rate = rate;
            own.restart(now);
        }
        own.largest = own.largest.max(units);
        let waiting = own.waiting.entry(r.proxy).or_default();
        let before = *waiting;
        *waiting = if joins { before + 1 } else { before.saturating_sub(1) };
        if before == 0 || *waiting == 0 {
            own.restart(now);
        }
    }

    /// Counts a dispatched request.
    pub(super) fn served(&mut self, belongs: &ClassOf, r: &SimRequest) {
        if let Some((id, _, units)) = reserved(belongs, r)
            && let Some(own) = self.rows.get_mut(&id)
        {
            own.served += units;
        }
    }

    /// Begins to count again what waits at a proxy; at all without one.
    pub(super) fn recount(&mut self, proxy: Option<u32>, now: Time) {
        for own in self.rows.values_mut() {
            own.waiting.retain(|at, _| proxy.is_some_and(|proxy| *at != proxy));
            own.restart(now);
        }
    }

    /// Measures nothing until a time, which replaces the last one.
    pub(super) fn disturb(&mut self, until: Time) {
        self.disturbed_until = until;
    }

    /// Checks each second; returns the row that was not kept.
    pub(super) fn check(&mut self, now: Time) -> Option<String> {
        if now < self.disturbed_until {
            return None;
        }
        for (id, own) in &mut self.rows {
            own.waiting.retain(|_, requests| *requests > 0);
            if own.since < self.disturbed_until {
                own.restart(now);
                continue;
            }
            let since = own.since + SETTLING;
            if own.waiting.is_empty() || now <= since {
                continue;
            }
            self.measured += 1;
            let span = now.since(since);
            let (due, _) = own.rate.amount_in(span, 0);
            let (behind, _) = own.rate.amount_in(CATCH_UP, 0);
            let slack = due / 100 + behind + own.largest * own.waiting.len() as u64 + 1;
            if own.served + slack < due {
                return Some(format!(
                    "{} in {span} of the {due} that row {} reserves at {}, while requests wait at \
                     proxies {:?}",
                    own.served,
                    id.0,
                    own.rate,
                    own.waiting.keys().collect::<Vec<_>>()
                ));
            }
        }
        None
    }
}

impl RowService {
    fn restart(&mut self, now: Time) {
        (self.since, self.served) = (now, 0);
    }
}

/// The row that reserves for a request that counts towards it, its rate, and the request's units.
fn reserved(belongs: &ClassOf, r: &SimRequest) -> Option<(EntitlementId, Rate, u64)> {
    let (id, rate) = (belongs.row?, belongs.reservation?);
    let units = rate.units_of(r.amount);
    (units > 0 && !r.kind.never_delayed()).then_some((id, rate, units))
}

/// The time in which shares and slots follow a demand that has changed.
const SETTLING: Nanos = Nanos::from_millis(1_500);
