//! The rows of reservations at one target: kept for its allocator, and followed until they are in
//! force.
//!
//! ```text
//!   calendar ─ rows, version ─► TargetRows ─► set_rows of the target's allocator, also a later one
//!            ◄─ in force, version: no reachable proxy has them unacknowledged; or no room for them
//!            ◄─ used
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::Time;
use rules::{Entitlement, EntitlementId, TimedEntitlement};

use crate::ShareAllocator;

/// What has become of rows that are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedRows {
    /// All proxies that can be reached have them.
    InForce,
    /// The table of rows was full when they came.
    NoRoom,
}

/// The rows of the reservations at one target, and which of these are awaited to be in force.
#[derive(Debug, Default)]
pub struct TargetRows {
    rows: BTreeMap<EntitlementId, TimedEntitlement>,
    /// The version of the rows of each reservation that is awaited.
    awaited: BTreeMap<u64, u64>,
}

impl TargetRows {
    /// Keeps changed rows, by the clock here, and puts them to the proxies of the target, if there are
    /// some. `awaited` is a reservation and the version of its rows, to be reported when they are in
    /// force; what was awaited of a reservation whose rows change is so no more. Returns how many rows
    /// were refused.
    pub fn change(
        &mut self,
        changes: Vec<(EntitlementId, Option<TimedEntitlement>)>,
        awaited: Option<(u64, u64)>,
        allocator: Option<&mut ShareAllocator>,
        now: Time,
    ) -> usize {
        let mut of_here = Vec::with_capacity(changes.len());
        for (id, timed) in changes {
            of_here.push((id, timed.as_ref().and_then(|timed| timed.since(now))));
            self.awaited.remove(&id.reservation());
            match timed {
                Some(timed) => self.rows.insert(id, timed),
                None => self.rows.remove(&id),
            };
        }
        self.awaited.extend(awaited);
        allocator.map_or(0, |allocator| allocator.set_rows(of_here, now))
    }

    /// All rows with their spans from `now` on, for an allocator that is new.
    pub fn all(&self, now: Time) -> Vec<(EntitlementId, Option<Entitlement>)> {
        self.rows.iter().map(|(id, timed)| (*id, timed.since(now))).collect()
    }

    /// Reports the awaited reservations whose rows are in force at all proxies of the target that can
    /// be reached, or have no room, each with the version of its rows; those that `report` does not
    /// take are reported again. At most 256 are checked. Without any proxy there is none that could
    /// do otherwise.
    pub fn report_awaited(
        &mut self,
        allocator: Option<&ShareAllocator>,
        now: Time,
        mut report: impl FnMut(u64, u64, AwaitedRows) -> bool,
    ) {
        let (rows, mut checks) = (&self.rows, 0);
        self.awaited.retain(|reservation, version| {
            checks += 1;
            let all = (0..EntitlementId::OF_RESERVATION)
                .map(|row| EntitlementId::of_reservation(*reservation, row));
            let own: Vec<_> = all.filter(|id| rows.contains_key(id)).collect();
            let lacks = |allocator: &ShareAllocator| {
                own.iter().any(|id| rows[id].until > now && !allocator.has_row(*id))
            };
            let is = match allocator {
                _ if checks > CHECKS_MAX => return true,
                Some(allocator) if lacks(allocator) => AwaitedRows::NoRoom,
                Some(allocator) if allocator.rows_state(&own).unacknowledged > 0 => return true,
                _ => AwaitedRows::InForce,
            };
            !report(*reservation, *version, is)
        });
    }

    /// Takes the reservations whose rows proxies have used since the last call.
    pub fn take_used(&self, allocator: &mut ShareAllocator) -> BTreeSet<u64> {
        let used = allocator.take_used_rows().into_iter();
        used.filter(|id| self.rows.contains_key(id)).map(EntitlementId::reservation).collect()
    }
}

/// The most reservations that are checked in one call.
const CHECKS_MAX: usize = 256;
