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
        let CalendarRecords { resources, reservations, ended, credits, .. } = &self.records;
        let changes = resources.len() + reservations.len() + ended.len() + credits.len();
        changes + self.details.len() + self.proxies.len() == 0
    }

    /// The decision as records of a bounded size, in their order. Without the later ones it is a
    /// state that a calendar can be restored from: what does not fit counts as a loss.
    pub(crate) fn into_parts(mut self) -> Vec<CalendarDecision> {
        let mut parts = Vec::new();
        loop {
            let records = CalendarRecords {
                at: self.records.at,
                last: self.records.last,
                is_settled: self.records.is_settled,
                resources: std::mem::take(&mut self.records.resources),
                ended: std::mem::take(&mut self.records.ended),
                reservations: split_first(&mut self.records.reservations, PART_MAX),
                credits: split_first(&mut self.records.credits, PART_MAX),
            };
            let details = split_first(&mut self.details, PART_MAX);
            let proxies = split_first(&mut self.proxies, PROXIES_MAX);
            parts.push(CalendarDecision { records, details, proxies });
            if self.is_empty() {
                return parts;
            }
        }
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

/// Takes the first ones, at most as many.
fn split_first<T>(of: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = of.split_off(of.len().min(most));
    std::mem::replace(of, rest)
}

/// The most reservations of one record, which is 1 MiB at most: one takes about 1 KB.
const PART_MAX: usize = 256;
/// The most descriptions of one record; one of 64 targets and 1,024 exports takes 400 KB.
const PROXIES_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_decision_make_the_state_of_all() {
        let details = |n| (ReservationId(n), ReservationDetails::default());
        let decision = CalendarDecision {
            details: (0..PART_MAX as u64 * 2 + 1).map(details).collect(),
            proxies: vec![("a".into(), Some(ProxyDescription::default())), ("b".into(), None)],
            ..CalendarDecision::default()
        };
        let parts = decision.clone().into_parts();
        assert_eq!(parts.len(), 3);
        assert!(CalendarDecision::default().is_empty() && !decision.is_empty());
        let mut state = CalendarState::default();
        parts.into_iter().for_each(|part| state.apply(part));
        assert_eq!(state.details.len(), PART_MAX * 2 + 1);
        assert_eq!(state.proxies.len(), 1);
        let text = serde_json::to_string(&state).unwrap();
        let again: CalendarState = serde_json::from_str(&text).unwrap();
        assert_eq!((again.details, again.proxies), (state.details, state.proxies));
    }
}
