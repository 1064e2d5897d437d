//! The calendar as the store has it: what changed is a record, all of it is part of a snapshot.
//!
//! ```text
//!   calendar ─ what has changed ─► CalendarDecision ─ apply ─► CalendarState ─► Calendar::restore
//! ```

use std::collections::BTreeMap;

use api::ProxyDescription;
use model::Time;
use reserve::{CalendarRecords, CreditRecord, ReservationId, ReservationRecord, ResourceRecord};
use serde::{Deserialize, Serialize};

/// What a reservation is limited to, beside what the calendar knows of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReservationDetails {
    pub(crate) target: String,
    /// The directory as `EXPORT/PATH`.
    pub(crate) directory: Option<String>,
    /// The rates in bytes per second.
    pub(crate) read: Option<u64>,
    pub(crate) write: Option<u64>,
    /// The rate in operations per second.
    pub(crate) metadata: Option<u64>,
    pub(crate) is_spontaneous: bool,
    /// The key of its request, which its user may send again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<String>,
}

/// One record: what has changed of the calendar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CalendarDecision {
    pub(crate) records: CalendarRecords,
    pub(crate) details: Vec<(ReservationId, ReservationDetails)>,
    /// Proxies that have described themselves, or (`None`) were removed.
    pub(crate) proxies: Vec<(String, Option<ProxyDescription>)>,
}

/// All records of the calendar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CalendarState {
    at: Time,
    last: ReservationId,
    is_settled: bool,
    /// In the order of their places.
    resources: Vec<ResourceRecord>,
    reservations: BTreeMap<ReservationId, ReservationRecord>,
    pub(crate) details: BTreeMap<ReservationId, ReservationDetails>,
    /// In the order of subjects.
    credits: Vec<CreditRecord>,
    pub(crate) proxies: BTreeMap<String, ProxyDescription>,
}

impl CalendarDecision {
    /// Whether nothing has changed that the next controller would not do by itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.details.is_empty() && self.proxies.is_empty()
    }

    /// The decision as parts of at most `bytes_max` bytes as JSON, in their order. Only all of them make
    /// a state that a calendar was in. What is one item is one part, however large.
    pub(crate) fn into_parts(mut self, bytes_max: usize) -> Vec<CalendarDecision> {
        let bytes = serde_json::to_vec(&self).expect("a decision is plain data").len();
        if bytes <= bytes_max {
            return vec![self];
        }
        let CalendarRecords { at, last, is_settled, .. } = self.records;
        let of = &mut self.records;
        let rest = CalendarDecision {
            records: CalendarRecords {
                at,
                last,
                is_settled,
                resources: second_half(&mut of.resources),
                reservations: second_half(&mut of.reservations),
                ended: second_half(&mut of.ended),
                credits: second_half(&mut of.credits),
            },
            details: second_half(&mut self.details),
            proxies: second_half(&mut self.proxies),
        };
        if rest.is_empty() {
            return vec![self];
        }
        let mut parts = self.into_parts(bytes_max);
        parts.extend(rest.into_parts(bytes_max));
        parts
    }
}

impl CalendarState {
    /// Applies one record to all.
    pub(crate) fn apply(&mut self, decision: CalendarDecision) {
        let CalendarDecision { records, details, proxies } = decision;
        (self.at, self.last, self.is_settled) = (records.at, records.last, records.is_settled);
        for new in records.resources {
            let is_same =
                |old: &ResourceRecord| (old.kind(), old.name()) == (new.kind(), new.name());
            match self.resources.iter_mut().find(|old| is_same(old)) {
                Some(old) => *old = new,
                None => self.resources.push(new),
            }
        }
        self.details.extend(details);
        for new in records.reservations {
            self.reservations.insert(new.id(), new);
        }
        for id in records.ended {
            self.reservations.remove(&id);
            self.details.remove(&id);
        }
        for new in records.credits {
            let place = self.credits.binary_search_by(|old| old.subject().cmp(new.subject()));
            match (place, new.is_empty()) {
                (Ok(at), true) => drop(self.credits.remove(at)),
                (Ok(at), false) => self.credits[at] = new,
                (Err(_), true) => {}
                (Err(at), false) => self.credits.insert(at, new),
            }
        }
        for (name, description) in proxies {
            match description {
                Some(description) => self.proxies.insert(name, description),
                None => self.proxies.remove(&name),
            };
        }
    }

    /// The time of the last record.
    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// All records, from which a calendar is built again.
    pub(crate) fn records(&self) -> CalendarRecords {
        CalendarRecords {
            at: self.at,
            last: self.last,
            is_settled: self.is_settled,
            resources: self.resources.clone(),
            reservations: self.reservations.values().cloned().collect(),
            ended: Vec::new(),
            credits: self.credits.clone(),
        }
    }
}

/// Takes the second half of a list; of one item that is nothing.
fn second_half<T>(of: &mut Vec<T>) -> Vec<T> {
    of.split_off(of.len().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use reserve::{Calendar, CalendarSettings, Capacity, ResourceKind};

    use super::*;
    use crate::store::RECORD_BYTES_MAX;

    #[test]
    fn parts_of_a_decision_are_small_and_make_the_state_of_all() {
        let mut calendar = Calendar::new(CalendarSettings::default());
        calendar.records();
        let capacity = Capacity::per_sec(1 << 40, 1 << 40).unwrap();
        for number in 0..5_000 {
            let name = format!("{number:0>120}").into();
            calendar.add_resource(name, ResourceKind::Target, capacity, Time::ZERO).unwrap();
        }
        let details = |n| (ReservationId(n), ReservationDetails::default());
        let decision = CalendarDecision {
            records: calendar.take_changed(),
            details: (0..513).map(details).collect(),
            proxies: vec![("a".into(), Some(ProxyDescription::default())), ("b".into(), None)],
        };
        let parts = decision.clone().into_parts(RECORD_BYTES_MAX);
        let bytes = |part: &CalendarDecision| serde_json::to_vec(part).unwrap().len();
        assert!(bytes(&decision) > RECORD_BYTES_MAX && parts.len() == 2, "{}", bytes(&decision));
        assert!(parts.iter().all(|part| bytes(part) <= RECORD_BYTES_MAX));
        assert!(CalendarDecision::default().is_empty() && !decision.is_empty());
        let mut state = CalendarState::default();
        parts.into_iter().for_each(|part| state.apply(part));
        assert_eq!(state.records().resources, decision.records.resources);
        assert_eq!((state.details.len(), state.proxies.len()), (513, 1));
        // What cannot be divided is one part.
        assert!(decision.into_parts(1).iter().all(|part| part.records.resources.len() <= 1));
        let text = serde_json::to_string(&state).unwrap();
        let again: CalendarState = serde_json::from_str(&text).unwrap();
        assert_eq!((again.details, again.proxies), (state.details, state.proxies));
    }
}
