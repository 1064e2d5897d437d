//! Workloads of jobs: a list of steps that each of a job's nodes performs.
//!
//! ```text
//!   steps:  do "create, write 320B, clunk"  ─ closed: depth, think ─┐ until requests, total,
//!           do "read 1MiB"                  ─ open: rate, spacing  ─┤ span or the job's end
//!           pause 30s                                               └─► the next step, repeated
//! ```
//!
//! Every workload of the literature that is re-enacted is such a list. A checkpoint cycle is a
//! write of some bytes and a pause, multi-md-test a step for each of its phases. A burst is an open
//! loop whose requests come in groups, and a recorded trace a list of its own.

use std::sync::Arc;

use model::{Amount, Bytes, Identity, Lane, Nanos, OpKind, Rate, Time};

use crate::network::NicSpec;
use crate::prng::Prng;

/// A `[[job]]` of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct JobSpec {
    /// The name in reports and expectations.
    pub(crate) name: String,
    pub(crate) identity: Identity,
    /// The directory of its files, for rules that name paths.
    pub(crate) path: Option<String>,
    /// The first node's address; each further node has the next one. Without it all its nodes are
    /// one identity.
    pub(crate) first_address: Option<std::net::IpAddr>,
    pub(crate) nodes: u32,
    /// The number of jobs like this one, with a number behind their job's name.
    pub(crate) copies: u32,
    /// The time between the starts of two copies.
    pub(crate) every: Nanos,
    pub(crate) start: Time,
    /// The run time of each copy; to the end if none.
    pub(crate) lifetime: Option<Nanos>,
    /// Index of its `[[target]]`.
    pub(crate) target: usize,
    pub(crate) route: JobRoute,
    pub(crate) steps: Arc<[JobStep]>,
    /// How often the steps are repeated.
    pub(crate) repeat: Option<u64>,
    pub(crate) nic: NicSpec,
}

/// Which of a target's proxies a job's requests go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobRoute {
    /// Each node's requests to one of these proxies, by the node's number.
    Nodes(Arc<[u32]>),
    /// Requests to one proxy after another.
    Round,
    /// At random by node and request, as files are spread.
    Hash,
    /// In pieces of this size to one proxy after another; depth counts pieces.
    Stripe(Bytes),
}

/// One step of a job.
#[derive(Clone, Debug)]
pub(crate) enum JobStep {
    Work(StepWork),
    Pause(Nanos),
    /// A recorded client's requests, in their order: a node for each client.
    Trace(Arc<[ReplayRecord]>),
}

/// The requests of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepWork {
    /// The requests in order, from the first again after the last.
    pub(crate) requests: Vec<RequestShape>,
    pub(crate) pace: LoadModel,
    /// The step ends after this many requests of each node.
    pub(crate) count: Option<u64>,
    /// The step ends after this many bytes of each node.
    pub(crate) total: Option<Bytes>,
    /// The step ends after this time.
    pub(crate) span: Option<Nanos>,
}

/// The kind and amount of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestShape {
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
}

/// When a node sends its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadModel {
    /// A number of requests in flight, and a pause after each reply.
    Closed { depth: u32, think: Nanos },
    /// At a rate, whatever the replies.
    Open { gap: Nanos, spacing: Spacing, group: u32 },
}

/// The spacing of the requests of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    Even,
    /// At random, independent of each other.
    Poisson,
}

/// One request of a recorded client, for the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayRecord {
    /// The time from the reply to the request before it until it was sent.
    pub think: Nanos,
    /// The kind of the request.
    pub kind: OpKind,
    /// The amount that was requested.
    pub amount: Amount,
    /// The lane that was expected to serve it.
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

/// An active node of a job.
#[derive(Debug)]
pub(crate) struct SimClient {
    pub(crate) job: u32,
    pub(crate) copy: u32,
    /// Its identity's index in the world's table.
    pub(crate) identity: u32,
    /// Its number among the job's nodes.
    pub(crate) node: u32,
    /// Whether it may send more requests.
    pub(crate) active: bool,
    pub(crate) step: u32,
    /// The next of the step's requests or records.
    pub(crate) next: u32,
    /// Requests or bytes that the step still has; unbounded if it has no count.
    pub(crate) left: u64,
    /// The end of the step.
    pub(crate) until: Time,
    /// Its active loops: requests in flight or in think time, and the timer.
    pub(crate) busy: u32,
    pub(crate) rounds: u64,
    /// The number of requests that it has sent.
    pub(crate) requests_sent: u64,
    /// Bytes of a striped request that it has not sent, and their kind.
    pub(crate) remaining: Option<(OpKind, u64)>,
    pub(crate) prng: Prng,
}

/// The progress of a client in a step that it begins or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepProgress {
    Send(RequestShape, Option<Lane>),
    /// The step is over.
    End,
}

impl SimClient {
    /// Begins its next step.
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
    pub(crate) fn next_request(&mut self, step: &JobStep, now: Time) -> StepProgress {
        if !self.active || now >= self.until || self.left == 0 {
            return StepProgress::End;
        }
        let (ask, lane) = match step {
            JobStep::Pause(_) => return StepProgress::End,
            JobStep::Trace(records) => {
                let Some(record) = records.get(self.next as usize) else {
                    return StepProgress::End;
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
        self.requests_sent += 1;
        StepProgress::Send(ask, lane)
    }

    /// The next piece of a request that is cut into pieces.
    pub(crate) fn piece(&mut self, step: &JobStep, piece: Bytes, now: Time) -> StepProgress {
        let (ask, lane) = match self.remaining.take().filter(|_| self.active) {
            Some((kind, bytes)) => {
                self.requests_sent += 1;
                (RequestShape { kind, amount: Amount::new(bytes, 1) }, None)
            }
            None => match self.next_request(step, now) {
                StepProgress::Send(ask, lane) => (ask, lane),
                StepProgress::End => return StepProgress::End,
            },
        };
        let bytes = ask.amount.bytes.get();
        if bytes <= piece.get() {
            return StepProgress::Send(ask, lane);
        }
        self.remaining = Some((ask.kind, bytes - piece.get()));
        StepProgress::Send(
            RequestShape { kind: ask.kind, amount: Amount::new(piece.get(), 1) },
            lane,
        )
    }

    /// The think time before it continues in a step.
    pub(crate) fn think(&self, step: &JobStep) -> Nanos {
        match step {
            JobStep::Work(StepWork { pace: LoadModel::Closed { think, .. }, .. }) => *think,
            JobStep::Trace(records) => {
                records.get(self.next as usize).map_or(Nanos::ZERO, |record| record.think)
            }
            _ => Nanos::ZERO,
        }
    }

    /// The time from one arrival of an open loop to the next.
    pub(crate) fn gap(&mut self, gap: Nanos, spacing: Spacing) -> Nanos {
        match spacing {
            Spacing::Even => gap,
            Spacing::Poisson => Nanos::new(self.prng.exponential(gap.get())),
        }
    }
}
