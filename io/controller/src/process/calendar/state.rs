//! The calendar as the store has it: what changed is a record, all of it is part of a snapshot.
//!
//! ```text
//!   calendar ─ what has changed ─► CalendarDecision ─ apply ─► CalendarState ─► Calendar::restore
//! ```

use std::collections::BTreeMap;

use api::ProxyDescription;
use model::JobId;
use reserve::{CalendarRecords, JobChange, JobRecord, ReservationId};
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
    /// Jobs that were registered, or have ended, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) jobs: Vec<JobChange>,
}

/// All records of the calendar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CalendarState {
    /// From which a calendar is built again.
    pub(crate) records: CalendarRecords,
    pub(crate) details: BTreeMap<ReservationId, ReservationDetails>,
    pub(crate) proxies: BTreeMap<String, ProxyDescription>,
    /// The registered jobs by name.
    #[serde(default, with = "job_rows")]
    pub(crate) jobs: BTreeMap<JobId, JobRecord>,
}

impl CalendarDecision {
    /// Whether nothing has changed that the next controller would not do by itself.
    pub(crate) fn is_empty(&self) -> bool {
        let CalendarDecision { records, details, proxies, jobs } = self;
        records.is_empty() && details.is_empty() && proxies.is_empty() && jobs.is_empty()
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
            jobs: second_half(&mut self.jobs),
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
        let CalendarDecision { records, details, proxies, jobs } = decision;
        self.details.extend(details);
        records.ended.iter().for_each(|id| drop(self.details.remove(id)));
        self.records.merge(records);
        for (name, description) in proxies {
            match description {
                Some(description) => self.proxies.insert(name, description),
                None => self.proxies.remove(&name),
            };
        }
        jobs.into_iter().for_each(|change| change.apply(&mut self.jobs));
    }
}

/// The rows of jobs as a list: each names its job.
mod job_rows {
    use std::collections::BTreeMap;

    use model::JobId;
    use reserve::JobRecord;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        jobs: &BTreeMap<JobId, JobRecord>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(jobs.values())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<JobId, JobRecord>, D::Error> {
        let rows = Vec::<JobRecord>::deserialize(from)?;
        Ok(rows.into_iter().map(|row| (row.registration.job.clone(), row)).collect())
    }
}

/// Takes the second half of a list; of one item that is nothing.
fn second_half<T>(of: &mut Vec<T>) -> Vec<T> {
    of.split_off(of.len().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use model::Time;
    use reserve::{
        Calendar, CalendarSettings, Capacity, JobRegistration, JobRegistry, JobSecret, ResourceKind,
    };

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
        let (mut table, of) = (JobRegistry::default(), |name: &str| JobId::new(name).unwrap());
        let nodes = (0..20_000).map(|number| format!("{number:0>60}")).collect();
        let wide = JobRegistration { job: of("wide"), nodes, ..JobRegistration::default() };
        table.register(wide, JobSecret::new("s".into()), Time::ZERO).unwrap();
        let details = |n| (ReservationId(n), ReservationDetails::default());
        let decision = CalendarDecision {
            records: calendar.take_changed(),
            details: (0..513).map(details).collect(),
            proxies: vec![("a".into(), Some(ProxyDescription::default())), ("b".into(), None)],
            jobs: table.take_changed(),
        };
        let parts = decision.clone().into_parts(RECORD_BYTES_MAX);
        let bytes = |part: &CalendarDecision| serde_json::to_vec(part).unwrap().len();
        assert!(bytes(&decision) > RECORD_BYTES_MAX && parts.len() > 2, "{}", bytes(&decision));
        assert!(parts.iter().all(|part| bytes(part) <= RECORD_BYTES_MAX));
        assert!(CalendarDecision::default().is_empty() && !decision.is_empty());
        let mut state = CalendarState::default();
        parts.into_iter().for_each(|part| state.apply(part));
        assert_eq!(state.records.resources, decision.records.resources);
        assert_eq!((state.details.len(), state.proxies.len()), (513, 1));
        assert!(state.jobs.values().eq(table.iter()), "its nodes are in several parts");
        // What cannot be divided is one part.
        assert!(decision.into_parts(1).iter().all(|part| part.records.resources.len() <= 1));
        let text = serde_json::to_string(&state).unwrap();
        let again: CalendarState = serde_json::from_str(&text).unwrap();
        assert_eq!((again.details, again.proxies), (state.details, state.proxies));
        assert_eq!(again.jobs, state.jobs);
    }
}
