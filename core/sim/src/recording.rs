//! A recording of a proxy, prepared for replay.
//!
//! ```text
//!   trace ─► requests by target and subject, by arrival
//!              ├─► chains: each request behind the reply that came last before it ─► Replayed
//!              └─► times: medians by lane, kind and size; how many ran at once ─► RecordedTarget
//! ```
//!
//! A chain is a closed loop: it has one request in flight, and sends the next after a reply with
//! the delay of the recorded client. A subject has as many chains as it had requests in flight at
//! most, so that its depth in the replay is the recorded one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Amount, Bytes, Identity, KindSet, Lane, Nanos, OpKind, Time};
use rules::RuleSet;
use sched::{CostMode, Costs, Curve, LaneCosts};
use trace::{TraceOutcome, TraceRecord, TraceSubject};

use crate::report::{JobOutcome, RunResult};
use crate::scenario::{RecordedTarget, Replayed, Scenario};
use crate::workloads::ReplayRecord;

/// The recording of one target.
#[derive(Debug, Default)]
pub struct Recording {
    /// By the number of the subject.
    subjects: BTreeMap<u32, RecordedSubject>,
}

/// A client of a target.
#[derive(Debug)]
pub(crate) struct RecordedSubject {
    pub(crate) subject: Arc<TraceSubject>,
    /// Its requests in the order of arrival.
    pub(crate) requests: Vec<RecordedRequest>,
}

/// The fields of a recorded request that a replay needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedRequest {
    pub(crate) kind: OpKind,
    lane: Lane,
    done: bool,
    pub(crate) amount: Amount,
    /// Since the first request of the trace.
    pub(crate) arrived: Time,
    pub(crate) queued: Nanos,
    service: Nanos,
}

/// A trace, and the number of requests that cannot be replayed.
#[derive(Debug, Default)]
pub struct Recordings {
    /// The targets by name; none if nothing can be replayed.
    pub targets: BTreeMap<String, Recording>,
    /// Requests that were cancelled before their dispatch, or had no identity.
    pub left_out: u64,
    /// Whether the trace has more requests than are replayed.
    pub shortened: bool,
}

/// Each takes about 100 bytes of memory.
const REQUESTS_MAX: u64 = 20_000_000;

impl Recordings {
    /// Reads a trace's records, up to the number that is replayed.
    ///
    /// # Errors
    /// The first of `records`.
    pub fn new<E>(records: impl Iterator<Item = Result<TraceRecord, E>>) -> Result<Recordings, E> {
        let mut all = Recordings::default();
        let mut count = 0;
        for record in records {
            let TraceRecord { subject: who, request } = record?;
            if who.target.is_empty() || request.outcome == TraceOutcome::Cancelled {
                all.left_out += 1;
                continue;
            }
            if count == REQUESTS_MAX {
                all.shortened = true;
                break;
            }
            count += 1;
            let target = all.targets.entry(who.target.clone()).or_default();
            let fresh = || RecordedSubject { subject: who, requests: Vec::new() };
            let subject = target.subjects.entry(request.subject).or_insert_with(fresh);
            subject.requests.push(RecordedRequest {
                kind: request.kind,
                lane: request.lane,
                done: request.outcome == TraceOutcome::Done,
                amount: request.served,
                arrived: request.arrived,
                queued: request.queued,
                service: request.service,
            });
        }
        all.begin_at_zero();
        Ok(all)
    }

    /// Orders by arrival, as a trace is only nearly ordered, and counts times from the first.
    fn begin_at_zero(&mut self) {
        let subjects = self.targets.values_mut().flat_map(|target| target.subjects.values_mut());
        let mut subjects: Vec<&mut RecordedSubject> = subjects.collect();
        let first = subjects.iter().flat_map(|s| &s.requests).map(|asked| asked.arrived).min();
        let first = first.unwrap_or(Time::ZERO);
        for subject in &mut subjects {
            for asked in &mut subject.requests {
                asked.arrived = Time::ZERO + asked.arrived.since(first);
            }
            subject.requests.sort_by_key(|asked| asked.arrived);
        }
    }
}

impl RecordedSubject {
    /// The name of its job in reports.
    pub(crate) fn job(&self) -> String {
        Replayed::job_of(&self.subject.identity)
    }

    /// Its identity, with each kind of request that it sent.
    pub(crate) fn identity_and_kinds(&self) -> impl Iterator<Item = (&Identity, OpKind)> {
        let kinds: KindSet = self.requests.iter().map(|asked| asked.kind).collect();
        kinds.iter().map(move |kind| (&self.subject.identity, kind))
    }
}

impl RecordedRequest {
    fn started(&self) -> Time {
        self.arrived + self.queued
    }

    /// When it was answered.
    pub(crate) fn answered(&self) -> Time {
        self.started() + self.service
    }

    /// The latency of its client.
    pub(crate) fn latency(&self) -> Nanos {
        self.queued + self.service
    }
}

impl Recording {
    /// The recording under a set of rules, for as long as that may take.
    ///
    /// The proxy's targets have schedulers of their own: each is replayed by itself.
    pub fn scenario(&self, target: &RecordedTarget, rules: Arc<RuleSet>) -> Scenario {
        let recorded = self.end().since(Time::ZERO).get();
        let duration = Nanos::new(recorded.saturating_mul(SLOWER_MAX)) + Nanos::from_secs(60);
        let name = target.name.clone();
        Scenario::of_recording(&name, target.clone(), self.clients(), rules, duration)
    }

    /// The recorded outcome of each job, by its name.
    pub fn recorded_outcomes(&self) -> BTreeMap<String, JobOutcome> {
        let mut jobs: BTreeMap<String, Vec<&RecordedRequest>> = BTreeMap::new();
        for subject in self.subjects() {
            jobs.entry(subject.job()).or_default().extend(&subject.requests);
        }
        jobs.into_iter().map(|(job, asked)| (job, JobOutcome::recorded(&asked))).collect()
    }

    /// The outcome of each job in a run under `rules`, by its name.
    pub fn replayed_outcomes(
        &self,
        run: &RunResult,
        rules: &RuleSet,
    ) -> BTreeMap<String, JobOutcome> {
        let had = run.jobs.iter().map(|job| {
            let had = JobOutcome::replayed(job, rules, self, run);
            (job.job.clone(), had)
        });
        had.collect()
    }

    /// The number of its requests.
    pub fn len(&self) -> usize {
        self.requests().count()
    }

    /// Whether it has no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = &RecordedSubject> {
        self.subjects.values()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &RecordedRequest> {
        self.subjects.values().flat_map(|subject| &subject.requests)
    }

    /// When the last of its requests was answered.
    pub fn end(&self) -> Time {
        self.requests().map(RecordedRequest::answered).max().unwrap_or(Time::ZERO)
    }

    /// Its clients as closed loops.
    pub fn clients(&self) -> Vec<Replayed> {
        let of = |subject: &RecordedSubject| {
            let who = subject.subject.identity.clone();
            let chains = chains(&subject.requests).into_iter();
            chains
                .map(move |records| Replayed { identity: who.clone(), records })
                .collect::<Vec<_>>()
        };
        self.subjects.values().flat_map(of).collect()
    }

    /// The device as recorded; the costs that the scheduler is to use, where a file of costs gives
    /// them, and its slots.
    pub fn target(&self, name: &str, believed: Option<(Costs, u32)>) -> RecordedTarget {
        let times = Costs {
            cached: self.times(Lane::Cached, &Costs::default().cached),
            device: self.times(Lane::Device, &Costs::default().device),
            mode: CostMode::Calibrated,
        };
        let smallest = times.device.read.at(Bytes::ZERO);
        let slots_of = |asked: &RecordedRequest| {
            sched::slots_needed(time(&times.device, asked), smallest, SLOTS_MAX)
        };
        let slots = believed.as_ref().map(|(_, slots)| *slots);
        RecordedTarget {
            name: name.into(),
            slots: slots.unwrap_or_else(|| self.at_once(Lane::Device, slots_of)),
            threads: self.at_once(Lane::Cached, |_| 1),
            parallelism: self.at_once(Lane::Device, |_| 1),
            times,
            believed: believed.map(|(costs, _)| costs),
        }
    }

    /// The most requests in service at a time in a lane.
    fn at_once(&self, lane: Lane, weight: impl Fn(&RecordedRequest) -> u32) -> u32 {
        let mut changes = Vec::new();
        for asked in self.requests().filter(|asked| asked.lane == lane) {
            let weight = i64::from(weight(asked));
            changes.push((asked.started(), weight));
            changes.push((asked.answered(), -weight));
        }
        // Requests that end at a time make room for those that begin then.
        changes.sort_unstable();
        let (mut now, mut most) = (0, 1);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        u32::try_from(most).unwrap_or(SLOTS_MAX).min(SLOTS_MAX)
    }

    fn times(&self, lane: Lane, otherwise: &LaneCosts) -> LaneCosts {
        let own = || self.requests().filter(move |asked| asked.lane == lane && asked.done);
        let moved = |kind: OpKind| {
            let of = own().filter(|asked| asked.kind == kind);
            curve(of.map(|asked| (asked.amount.bytes, asked.service)))
        };
        // The replay has only recorded kinds, but slots are counted in the smallest read.
        let (read, write) = (moved(OpKind::Read), moved(OpKind::Write));
        let either = read.clone().or(write.clone());
        let mut by_kind: BTreeMap<OpKind, Vec<u64>> = BTreeMap::new();
        for asked in own() {
            let each = asked.service.get() / asked.amount.ops.get().max(1);
            by_kind.entry(asked.kind).or_default().push(each);
        }
        let mut ops = otherwise.ops;
        for (kind, mut times) in by_kind {
            ops[kind as usize] = Nanos::new(median(&mut times).max(1));
        }
        LaneCosts {
            read: read.or(either.clone()).unwrap_or_else(|| otherwise.read.clone()),
            write: write.or(either).unwrap_or_else(|| otherwise.write.clone()),
            ops,
        }
    }
}

/// How much longer than the recording a replay may take, and a minute.
const SLOWER_MAX: u64 = 10;
/// As in the configuration of a proxy.
const SLOTS_MAX: u32 = 65_536;

fn time(costs: &LaneCosts, asked: &RecordedRequest) -> Nanos {
    match asked.kind {
        OpKind::Read => costs.read.at(asked.amount.bytes),
        OpKind::Write => costs.write.at(asked.amount.bytes),
        kind => costs.ops[kind as usize],
    }
}

/// A curve through the medians of sizes that are alike: between two powers of two.
fn curve(samples: impl Iterator<Item = (Bytes, Nanos)>) -> Option<Curve> {
    let mut alike: BTreeMap<u32, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    for (bytes, time) in samples {
        let (sizes, times) = alike.entry(bytes.get().max(1).ilog2()).or_default();
        sizes.push(bytes.get().max(1));
        times.push(time.get());
    }
    // A larger request that was served faster is chance: times must not fall.
    let mut least = 1;
    let point = |(sizes, times): &mut (Vec<u64>, Vec<u64>)| {
        least = median(times).max(least);
        (Bytes::new(median(sizes)), Nanos::new(least))
    };
    let points: Vec<_> = alike.values_mut().map(point).collect();
    Curve::new(&points).ok()
}

fn median(values: &mut [u64]) -> u64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}

/// Requests in the order of their arrival, as chains. In a chain each follows the reply that came
/// last before it and that no other request follows.
fn chains(requests: &[RecordedRequest]) -> Vec<Vec<ReplayRecord>> {
    let mut chains: Vec<Vec<ReplayRecord>> = Vec::new();
    // Chains whose last request is answered, or will be, by when that is.
    let mut ends: BTreeSet<(Time, usize)> = BTreeSet::new();
    for asked in requests {
        let free = ends.range(..=(asked.arrived, usize::MAX)).next_back().copied();
        let (since, chain) = match free {
            Some(end) => {
                ends.remove(&end);
                end
            }
            None => {
                chains.push(Vec::new());
                (Time::ZERO, chains.len() - 1)
            }
        };
        let RecordedRequest { kind, lane, amount, .. } = *asked;
        let think = asked.arrived.since(since);
        chains[chain].push(ReplayRecord { think, kind, amount, lane });
        ends.insert((asked.answered(), chain));
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arrived_ms: u64, queued_ms: u64, service_ms: u64, bytes: u64) -> RecordedRequest {
        RecordedRequest {
            kind: OpKind::Read,
            lane: Lane::Device,
            done: true,
            amount: Amount::new(bytes, 1),
            arrived: Time::ZERO + Nanos::from_millis(arrived_ms),
            queued: Nanos::from_millis(queued_ms),
            service: Nanos::from_millis(service_ms),
        }
    }

    fn thinks(requests: &[RecordedRequest]) -> Vec<Vec<u64>> {
        let ms = |record: &ReplayRecord| record.think.get() / 1_000_000;
        chains(requests).iter().map(|chain| chain.iter().map(ms).collect()).collect()
    }

    #[test]
    fn each_request_follows_the_answer_that_came_last_before_it() {
        // Replies at 10, 25, 30 and 60; the request of 30 follows the reply of 30.
        let requests =
            [asked(0, 2, 8, 1), asked(5, 0, 20, 1), asked(12, 8, 10, 1), asked(30, 0, 30, 1)];
        assert_eq!(thinks(&requests), [vec![0, 2, 0], vec![5]]);
    }

    #[test]
    fn a_subject_is_as_deep_as_it_was() {
        let three = [asked(0, 0, 9, 1), asked(1, 0, 9, 1), asked(2, 0, 9, 1), asked(20, 0, 9, 1)];
        assert_eq!(thinks(&three), [vec![0], vec![1], vec![2, 9]]);
    }

    #[test]
    fn times_are_medians_of_sizes_that_are_alike_and_do_not_fall() {
        let of = |samples: &[(u64, u64)]| {
            let samples = samples.iter().map(|(size, time)| (Bytes::new(*size), Nanos::new(*time)));
            let curve = curve(samples)?;
            Some(curve.points().map(|(size, time)| (size.get(), time.get())).collect::<Vec<_>>())
        };
        let samples = [(4096, 50), (4096, 10), (5000, 20), (65_536, 15), (1 << 20, 900)];
        assert_eq!(of(&samples), Some(vec![(4096, 20), (65_536, 20), (1 << 20, 900)]));
        assert_eq!(of(&[(0, 0)]), Some(vec![(1, 1)]), "nothing takes no time");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn what_ends_makes_room_for_what_begins() {
        let who = TraceSubject {
            identity: model::Identity {
                job: model::JobId::new("a").unwrap(),
                uid: 1,
                gid: 1,
                projid: None,
                nid: model::Nid::local(),
            },
            export: "x".into(),
            target: "t".into(),
        };
        let requests = vec![asked(0, 0, 10, 4096), asked(5, 5, 10, 4096), asked(10, 1, 2, 4096)];
        let subject = RecordedSubject { subject: Arc::new(who), requests };
        let recording = Recording { subjects: BTreeMap::from([(1, subject)]) };
        let target = recording.target("t", None);
        assert_eq!((target.parallelism, target.slots, target.threads), (2, 2, 1));
        assert_eq!(recording.clients().len(), 2);
    }
}
