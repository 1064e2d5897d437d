//! What a site says about its reservations, in the configuration of its controllers.

use model::{Rate, Share, Time};
use reserve::{
    Calendar, CalendarSettings, Capacity, Ceiling, CeilingSubject, DefaultCeilings, ResourceKind,
    Span,
};

/// What a site lets be reserved, beside the capacities of its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationSettings {
    /// The share of each target that is left to requests without a reservation.
    pub best_effort: Share,
    /// What all reservations together may have; `None`: what the targets give.
    pub pool: Option<Capacity>,
    /// What one node reads, and what it writes; `None`: that bounds nothing.
    pub node: Option<Rate>,
    /// The ceilings of each user, group, account and project.
    pub ceilings: DefaultCeilings,
    /// The ceilings of some of them in place of these.
    pub own_ceilings: Vec<(CeilingSubject, Ceiling)>,
}

impl Default for ReservationSettings {
    fn default() -> ReservationSettings {
        let CalendarSettings { best_effort, ceilings, .. } = CalendarSettings::default();
        let (pool, node, own_ceilings) = (None, None, Vec::new());
        ReservationSettings { best_effort, pool, node, ceilings, own_ceilings }
    }
}

impl ReservationSettings {
    pub(super) fn calendar(&self) -> CalendarSettings {
        CalendarSettings {
            best_effort: self.best_effort,
            ceilings: self.ceilings,
            reservations_max: RESERVATIONS_MAX,
            ..CalendarSettings::default()
        }
    }

    /// Sets what a calendar does not get with its settings. A pool that is no longer configured
    /// bounds nothing any more.
    pub(super) fn apply(&self, calendar: &mut Calendar, now: Time) {
        for (subject, ceiling) in &self.own_ceilings {
            if !calendar.set_ceiling(subject.clone(), Some(*ceiling)) {
                tracing::error!(%subject, "too many ceilings: this one is that of all others");
            }
        }
        let known = calendar.resources().find(ResourceKind::Pool, POOL);
        let outcome = match (known, self.pool) {
            (None, None) => Ok(()),
            (None, Some(capacity)) => {
                let added = calendar.add_resource(POOL.into(), ResourceKind::Pool, capacity, now);
                added.map(drop).map_err(Into::into)
            }
            (Some(known), capacity) => {
                let capacity = capacity.unwrap_or(Capacity::BOUNDLESS);
                match calendar.resources().whole(known, now) == capacity {
                    true => Ok(()),
                    false => {
                        let span = Span { from: now, until: Time::MAX };
                        calendar.set_capacity(known, span, capacity, now)
                    }
                }
            }
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "cannot set the pool of all reservations");
        }
    }
}

/// The name of the pool of all reservations.
pub(super) const POOL: &str = "all";
/// The most reservations that have not ended: the snapshot of the store takes 64 MiB, and each of
/// them about 1 KB.
const RESERVATIONS_MAX: usize = 32_768;
