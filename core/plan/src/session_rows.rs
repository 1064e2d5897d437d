//! The rows of entitlements that a controller gave a proxy, and what its dispatcher has not received.
//!
//! ```text
//!   assignment ─► spans from the answered report ─► rows, spans by the proxy's clock ─► dispatcher
//!   mode ───────► which sources are in force ───────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Time};
use rules::{Entitlement, EntitlementId};

use crate::rows::RowTable;

/// Rows by their numbers, with spans that count from [`Time::ZERO`] of the proxy's clock.
#[derive(Debug, Default)]
pub(crate) struct SessionRows {
    rows: BTreeMap<EntitlementId, Entitlement>,
    /// What the dispatcher has not received.
    due: BTreeSet<EntitlementId>,
}

impl SessionRows {
    /// Applies what an assignment brings; its spans count from `since`. With `all` it brings every
    /// row that the proxy is to have. Rows beyond the bound of a dispatcher are dropped.
    pub(crate) fn apply(
        &mut self,
        all: bool,
        changes: &[(EntitlementId, Option<Entitlement>)],
        since: Time,
    ) {
        if all {
            let named: BTreeSet<EntitlementId> = changes.iter().map(|(id, _)| *id).collect();
            self.retain(|id, _| named.contains(&id));
        }
        for (id, row) in changes {
            let has_room = self.rows.len() < RowTable::MAX_COUNT || self.rows.contains_key(id);
            let row = row.as_ref().filter(|_| has_room).and_then(|row| since_zero(row, since));
            let before = match row.clone() {
                Some(row) => self.rows.insert(*id, row),
                None => self.rows.remove(id),
            };
            if before != row {
                self.due.insert(*id);
            }
        }
    }

    /// Removes the rows that do not meet a condition.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(EntitlementId, &Entitlement) -> bool) {
        let due = &mut self.due;
        self.rows.retain(|id, row| {
            let stays = keep(*id, row);
            if !stays {
                due.insert(*id);
            }
            stays
        });
    }

    /// Notes that other rows may be in force.
    pub(crate) fn all_due(&mut self) {
        self.due.extend(self.rows.keys());
    }

    /// Takes what changed for the dispatcher: rows that are in force, and `None` for others.
    pub(crate) fn poll(
        &mut self,
        is_in_force: impl Fn(&Entitlement) -> bool,
    ) -> Option<Vec<(EntitlementId, Option<Entitlement>)>> {
        let due = std::mem::take(&mut self.due);
        let row = |id| (id, self.rows.get(&id).filter(|row| is_in_force(row)).cloned());
        (!due.is_empty()).then(|| due.into_iter().map(row).collect())
    }
}

/// A row whose span counts from [`Time::ZERO`] instead of `since`. What applied at `since` has
/// applied from the start, so that another rate of it is nothing else. `None` if it is beyond all
/// time.
fn since_zero(row: &Entitlement, since: Time) -> Option<Entitlement> {
    let of_clock = |span: Nanos| (since + span).since(Time::ZERO);
    let from = if row.from() == Nanos::ZERO { Nanos::ZERO } else { of_clock(row.from()) };
    row.clone().during(from, row.until().map(of_clock)).ok()
}
