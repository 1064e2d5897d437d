//! What jobs ask for: a list of steps that each of a job's nodes goes through.
//!
//! ```text
//!   steps:  do "create, write 320B, clunk"  ─ closed: depth, think ─┐ until requests, total,
//!           do "read 1MiB"                  ─ open: rate, spacing  ─┤ span or the job's end
//!           pause 30s                                               └─► the next step, repeated
//! ```
//!
//! Every workload of the literature that we re-enact is such a list: a checkpoint cycle is a
//! write of so many bytes and a pause, multi-md-test a step for each of its phases, a burst an
//! open loop whose requests come in groups, and a recorded trace a list of its own.

use std::sync::Arc;

use model::{Amount, Bytes, Identity, Lane, Nanos, OpKind, Rate, Time};

use crate::network::NicSpec;
use crate::prng::Prng;

/// A `[[job]]` of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct JobSpec {
    /// What reports and expectations call it.
    pub(crate) name: String,
    pub(crate) who: Identity,
    /// Where its files lie, for rules that name paths.
    pub(crate) path: Option<String>,
    /// The first node's address; each further node has the next one. Without it all its nodes
    /// are one identity.
    pub(crate) first_address: Option<std::net::IpAddr>,
    pub(crate) nodes: u32,
    /// Jobs like this one, with a number behind their job's name.
    pub(crate) copies: u32,
    /// How long after each other they begin.
    pub(crate) every: Nanos,
    pub(crate) start: Time,
    /// How long each runs; to the end if none.
    pub(crate) lifetime: Option<Nanos>,
    /// Index of its `[[target]]`.
    pub(crate) target: usize,
    pub(crate) route: JobRoute,
    pub(crate) steps: Arc<[JobStep]>,
    /// How often the steps are gone through.
    pub(crate) repeat: Option<u64>,
    pub(crate) wire: NicSpec,
}

/// Which of a target's proxies a job's requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRoute {
    /// All to this one.
    One(u32),
    /// Each node's to the proxy of its number.
    Node,
    /// One after another.
    Round,
    /// By chance that depends on node and request, as files are spread.
    Hash,
    /// In pieces of so many bytes to one after another; depth counts pieces.
    Stripe(Bytes),
}

/// One step of a job.
#[derive(Clone, Debug)]
pub(crate) enum JobStep {
    Work(StepWork),
    Pause(Nanos),
    /// What one client did, in its order: a node for each.
    Trace(Arc<[ReplayRecord]>),
}

/// Requests of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepWork {
    /// Asked for one after another, from the first again after the last.
    pub(crate) requests: Vec<RequestShape>,
    pub(crate) pace: LoadModel,
    /// Ends after so many requests of each node.
    pub(crate) count: Option<u64>,
    /// Ends after so many bytes of each node.
    pub(crate) total: Option<Bytes>,
    /// Ends after so long.
    pub(crate) span: Option<Nanos>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestShape {
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
}

/// When a node asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadModel {
    /// So many outstanding, and a pause after each answer.
    Closed { depth: u32, think: Nanos },
    /// At a rate, whatever is answered.
    Open { gap: Nanos, spacing: Spacing, group: u32 },
}

/// How the requests of an open loop follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    Even,
    /// As if they knew nothing of each other.
    Poisson,
}

/// One request of a recorded client: what the replay is fed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayRecord {
    /// From the answer to the request before it until it was asked for.
    pub think: Nanos,
    /// What it did.
    pub kind: OpKind,
    /// What it asked for.
    pub amount: Amount,
    /// What was expected to serve it.
    pub lane: Lane,
}

impl StepWork {
    /// A closed or open loop without an end.
    pub(crate) fn endless(requests: Vec<RequestShape>, pace: LoadModel) -> StepWork {
        StepWork { requests, pace, count: None, total: None, span: None }
    }
}

impl LoadModel {
    /// An open loop of a rate in requests (`ops/s`) of this size, or in bytes.
    pub(crate) fn open(
        rate: Rate,
        each: &[RequestShape],
        spacing: Spacing,
        group: u32,
    ) -> LoadModel {
        let bytes: u64 = each.iter().map(|ask| ask.amount.bytes.get()).sum();
        let units = match rate {
            Rate::Ops(_) => u64::from(group),
            Rate::Bytes(_) => (bytes / each.len().max(1) as u64).max(1) * u64::from(group),
        };
        LoadModel::Open { gap: rate.time_for(units), spacing, group }
    }
}

/// A node of a job at work.
#[derive(Debug)]
pub(crate) struct SimClient {
    pub(crate) job: u32,
    pub(crate) copy: u32,
    /// Its identity's place in the world's table.
    pub(crate) identity: u32,
    /// Its number among the job's nodes.
    pub(crate) node: u32,
    /// Whether it may ask for more.
    pub(crate) active: bool,
    pub(crate) step: u32,
    /// The next of the step's requests or records.
    pub(crate) next: u32,
    /// Requests or bytes that the step still has; as many as there are if it has no count.
    pub(crate) left: u64,
    /// When the step ends.
    pub(crate) until: Time,
    /// Its loops that go on: requests outstanding or thought about, and the timer.
    pub(crate) busy: u32,
    pub(crate) rounds: u64,
    /// Requests it asked for so far.
    pub(crate) asked: u64,
    /// Bytes of a striped request that it has not asked for, and of what kind.
    pub(crate) rest: Option<(OpKind, u64)>,
    pub(crate) prng: Prng,
}

/// What a client does about a step that it has begun or goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepProgress {
    Ask(RequestShape, Option<Lane>),
    /// There is nothing more in this step.
    Over,
}

impl SimClient {
    /// Takes up its step.
    pub(crate) fn begin(&mut self, step: &JobStep, now: Time) {
        self.next = 0;
        (self.left, self.until) = (u64::MAX, Time::MAX);
        if let JobStep::Work(work) = step {
            if let Some(span) = work.span {
                self.until = now + span;
            }
            self.left = work.count.or(work.total.map(Bytes::get)).unwrap_or(u64::MAX);
        }
    }

    /// The next request of the step.
    pub(crate) fn turn(&mut self, step: &JobStep, now: Time) -> StepProgress {
        if !self.active || now >= self.until || self.left == 0 {
            return StepProgress::Over;
        }
        let (ask, lane) = match step {
            JobStep::Pause(_) => return StepProgress::Over,
            JobStep::Trace(records) => {
                let Some(record) = records.get(self.next as usize) else {
                    return StepProgress::Over;
                };
                self.next += 1;
                (RequestShape { kind: record.kind, amount: record.amount }, Some(record.lane))
            }
            JobStep::Work(work) => {
                let ask = work.requests[self.next as usize];
                self.next = (self.next + 1) % work.requests.len() as u32;
                let paid = if work.count.is_some() { 1 } else { ask.amount.bytes.get() };
                if work.count.is_some() || work.total.is_some() {
                    self.left = self.left.saturating_sub(paid);
                }
                (ask, None)
            }
        };
        self.asked += 1;
        StepProgress::Ask(ask, lane)
    }

    /// The next piece of a request that is cut into pieces.
    pub(crate) fn piece(&mut self, step: &JobStep, piece: Bytes, now: Time) -> StepProgress {
        let (ask, lane) = match self.rest.take().filter(|_| self.active) {
            Some((kind, bytes)) => {
                self.asked += 1;
                (RequestShape { kind, amount: Amount::new(bytes, 1) }, None)
            }
            None => match self.turn(step, now) {
                StepProgress::Ask(ask, lane) => (ask, lane),
                StepProgress::Over => return StepProgress::Over,
            },
        };
        let bytes = ask.amount.bytes.get();
        if bytes <= piece.get() {
            return StepProgress::Ask(ask, lane);
        }
        self.rest = Some((ask.kind, bytes - piece.get()));
        StepProgress::Ask(
            RequestShape { kind: ask.kind, amount: Amount::new(piece.get(), 1) },
            lane,
        )
    }

    /// How long it thinks before it goes on in a step.
    pub(crate) fn think(&self, step: &JobStep) -> Nanos {
        match step {
            JobStep::Work(StepWork { pace: LoadModel::Closed { think, .. }, .. }) => *think,
            JobStep::Trace(records) => {
                records.get(self.next as usize).map_or(Nanos::ZERO, |record| record.think)
            }
            _ => Nanos::ZERO,
        }
    }

    /// From one arrival of an open loop to the next.
    pub(crate) fn gap(&mut self, gap: Nanos, spacing: Spacing) -> Nanos {
        match spacing {
            Spacing::Even => gap,
            Spacing::Poisson => Nanos::new(self.prng.exponential(gap.get())),
        }
    }
}
