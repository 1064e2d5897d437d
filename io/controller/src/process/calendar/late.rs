//! Reservations that are late, by target, as the plan reports them.
//!
//! ```text
//!   plan ─ each second ─► LateTargets ─┬─► the first of a target, and none any more: an event
//!                                      ├─► reservations, the calendar: served and reserved
//!                                      └─► metrics
//! ```
//!
//! What is late is decided by `plan`; here it is known what to call it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::rules::EntitlementId;
use api::{EventKind, LateRate, WireRate};
use model::{Direction, Nanos, Rate, SectionKind, Time};
use plan::LateReservation;
use reserve::{ReservationId, ResourceKind, direction_of_row};

use super::CalendarActor;

/// The targets of which something is or was late.
#[derive(Debug, Default)]
pub(super) struct LateTargets(BTreeMap<Arc<str>, LateTarget>);

#[derive(Debug, Default)]
struct LateTarget {
    since: Option<Time>,
    /// The time in which something was late, without that since `since`.
    past: Nanos,
    rows: BTreeMap<EntitlementId, LateReservation>,
    /// Classes of rules.
    classes: Vec<LateReservation>,
}

/// How late a target is, for metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateFigures {
    pub(crate) target: Arc<str>,
    pub(crate) late: u64,
    /// In sum since the controller leads.
    pub(crate) span: Nanos,
}

impl CalendarActor {
    /// Takes which reservations of a target are late now, and publishes when that begins and ends.
    pub(super) fn set_late(&mut self, target: &Arc<str>, late: Vec<LateReservation>, now: Time) {
        let of = self.late.0.entry(target.clone()).or_default();
        (of.rows, of.classes) = Default::default();
        for one in late {
            match one.scope.section {
                SectionKind::Entitlement => {
                    let id = one.scope.name.parse().map(EntitlementId);
                    of.rows.extend(id.map(|id| (id, one)));
                }
                _ => of.classes.push(one),
            }
        }
        let is_late = of.count() > 0;
        let text = match of.since {
            None if is_late => {
                of.since = Some(now);
                of.sentence(target)
            }
            Some(since) if !is_late => {
                (of.since, of.past) = (None, of.past + now.since(since));
                let span = explain::span(now.since(since).get());
                format!("no reservation of target {target} is late any more, after {span}")
            }
            _ => return,
        };
        tracing::info!("{text}");
        self.to.publisher.publish_now(EventKind::Reservation, format!("target={target}"), text);
    }
}

impl LateTargets {
    /// The rates of a reservation that are late.
    pub(super) fn of_reservation(&self, target: &str, id: ReservationId) -> Vec<LateRate> {
        let rows = |nth| EntitlementId::of_reservation(id.0, nth);
        let rows = rows(0)..rows(EntitlementId::OF_RESERVATION);
        let late = self.0.get(target).map(|of| sums(of.rows.range(rows).map(|(_, late)| late)));
        late.unwrap_or_default()
    }

    /// The sums of what is late of a resource, by direction.
    pub(super) fn of_resource(&self, name: &str, kind: ResourceKind) -> Vec<LateRate> {
        let Some(of) = self.0.get(name).filter(|_| kind.is_of_target()) else { return vec![] };
        sums(of.all().filter(|late| late.reserved.is_bytes() == kind.is_bytes()))
    }

    /// How late each of these targets is, and others that were.
    pub(super) fn figures<'a>(
        &'a self,
        targets: impl Iterator<Item = &'a Arc<str>>,
        now: Time,
    ) -> Vec<LateFigures> {
        let known = targets.chain(self.0.keys());
        let mut figures: BTreeMap<&Arc<str>, LateFigures> = BTreeMap::new();
        for target in known {
            let of = self.0.get(target);
            let present = of.and_then(|of| of.since).map_or(Nanos::ZERO, |since| now.since(since));
            figures.entry(target).or_insert_with(|| LateFigures {
                target: target.clone(),
                late: of.map_or(0, |of| of.count() as u64),
                span: of.map_or(Nanos::ZERO, |of| of.past) + present,
            });
        }
        figures.into_values().collect()
    }
}

impl LateTarget {
    fn all(&self) -> impl Iterator<Item = &LateReservation> {
        self.rows.values().chain(&self.classes)
    }

    fn count(&self) -> usize {
        self.rows.len() + self.classes.len()
    }

    /// What is late, with the figures and who it is.
    fn sentence(&self, target: &str) -> String {
        let rates: Vec<String> = sums(self.all()).iter().map(explain::late).collect();
        let mut names: Vec<String> = Vec::new();
        for id in self.rows.keys().map(|id| format!("reservation {}", id.reservation())) {
            if names.last() != Some(&id) {
                names.push(id);
            }
        }
        names.extend(self.classes.iter().map(|late| late.scope.to_string()));
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        let (rates, names) = (rates.join("; "), names.join(", "));
        format!("reservations of target {target} are late: {rates} ({names})")
    }
}

/// The sums of each direction.
fn sums<'a>(late: impl Iterator<Item = &'a LateReservation>) -> Vec<LateRate> {
    let mut sums: BTreeMap<(&str, bool), (u64, u64)> = BTreeMap::new();
    for LateReservation { scope, reserved, served_per_sec } in late {
        let row = (scope.section == SectionKind::Entitlement).then(|| scope.name.parse().ok());
        let direction = row.flatten().and_then(|id| direction_of_row(EntitlementId(id)));
        let name = match direction {
            Some(Direction::Read) => "read",
            Some(Direction::Write) => "write",
            Some(Direction::Metadata) => "metadata",
            None => "all",
        };
        let sum = sums.entry((name, reserved.is_bytes())).or_default();
        sum.0 = sum.0.saturating_add(*served_per_sec);
        sum.1 = sum.1.saturating_add(Rate::per_sec(*reserved));
    }
    let wire = |((direction, is_bytes), (served, reserved)): ((&str, bool), (u64, u64))| {
        let rate = if is_bytes { WireRate::Bytes } else { WireRate::Ops };
        LateRate {
            direction: direction.into(),
            served: rate(served),
            reserved: rate(reserved),
            span_ns: LateReservation::SPAN.get(),
        }
    };
    sums.into_iter().map(wire).collect()
}

/// The most reservations that an event names.
const NAMED_MAX: usize = 8;
