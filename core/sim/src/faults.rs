//! Faults of a scenario, and their times.
//!
//! ```text
//!   at ──────── span ────────►        crash: the proxy is gone, with its memory
//!   │                        │        slow: requests that begin take longer
//!   begins              ends          drop, delay, duplicate: a percentage of messages
//!                                     clock: jumps once, at its beginning
//!                                     leader: no controller until a new one begins
//!                                     partition: no control messages of a proxy, in one direction
//!                                     or both
//!                                     forget: accounts of usage are closed, some as one sum
//! ```
//!
//! A lost message is sent again after [`RESEND`]; a proxy answers what it has already served from
//! its reply cache, as the sessions of the protocol do, unless it crashed.

use model::{Nanos, Time};

use crate::prng::Prng;

/// One fault of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimFault {
    pub(crate) what: FaultKind,
    pub(crate) at: Time,
    pub(crate) span: Nanos,
    /// The proxy with the fault; all if none.
    pub(crate) proxy: Option<u32>,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The proxy crashes, and is back after the span.
    Crash,
    /// Requests take longer, in thousandths of their time.
    Slow { thousandths: u64 },
    /// The proxy's clock jumps.
    Clock { ahead: bool, by: Nanos },
    /// The controllers crash; after the span others begin with the proxies on record.
    Leader,
    /// Control messages between the proxy and its controller are lost, in these directions.
    Partition { reports: bool, assignments: bool },
    /// Messages are lost, with a probability in millionths.
    Drop { ppm: u64 },
    /// Messages are delayed by a time, with a probability in millionths.
    Delay { ppm: u64, by: Nanos },
    /// Messages arrive twice, with a probability in millionths.
    Duplicate { ppm: u64 },
    /// The proxy's accounts are closed at each check of them, with a probability in millionths.
    Forget { ppm: u64 },
}

/// The timeout after which a client sends again.
pub(crate) const RESEND: Nanos = Nanos::from_millis(500);

/// Generator of random faults for scenarios.
pub(crate) struct Faults;

impl Faults {
    /// A handful of random faults for a number of proxies and a duration, over by the last tenth.
    pub(crate) fn random(seed: u64, proxies: u32, duration: Nanos) -> Vec<SimFault> {
        let mut prng = Prng::of(seed, 0xfa17);
        let count = prng.below(6);
        (0..count).map(|_| one(&mut prng, proxies, duration.get())).collect()
    }
}

fn one(prng: &mut Prng, proxies: u32, duration: u64) -> SimFault {
    let at = prng.below(duration * 8 / 10);
    let span = prng.below(duration * 9 / 10 - at).min(duration / 4).max(1);
    let proxy = Some(prng.below(proxies.into()) as u32);
    let ppm = prng.between(1_000, 50_000);
    let (what, proxy) = match prng.below(9) {
        0 => (FaultKind::Crash, proxy),
        1 => (FaultKind::Slow { thousandths: prng.between(1_500, 8_000) }, proxy),
        2 => {
            let by = Nanos::from_millis(prng.between(1, 3_000));
            (FaultKind::Clock { ahead: prng.below(2) == 0, by }, proxy)
        }
        3 => (FaultKind::Leader, None),
        4 => (FaultKind::Drop { ppm }, None),
        5 => {
            let way = prng.below(3);
            (FaultKind::Partition { reports: way != 0, assignments: way != 1 }, proxy)
        }
        6 => (FaultKind::Delay { ppm, by: Nanos::from_millis(prng.between(1, 300)) }, None),
        7 => (FaultKind::Duplicate { ppm }, None),
        _ => (FaultKind::Forget { ppm: prng.between(10_000, 1_000_000) }, proxy),
    };
    SimFault { what, at: Time::from_nanos(at), span: Nanos::new(span), proxy }
}

/// The fate of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageFate {
    Arrives,
    Dropped,
    Late(Nanos),
    Duplicated,
}

/// The fate of one account at a check of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccountFate {
    Kept,
    /// Closed, and reported by itself.
    Closed,
    /// Closed, and reported in the sum of all such accounts.
    Folded,
}

/// The faults that affect messages and accounts now.
#[derive(Debug)]
pub(crate) struct NetworkFaults {
    prng: Prng,
    /// The active faults of the scenario, by their index in it.
    on: Vec<(u32, FaultKind)>,
}

impl NetworkFaults {
    pub(crate) fn new(seed: u64) -> NetworkFaults {
        NetworkFaults { prng: Prng::of(seed, 0x7e47), on: Vec::new() }
    }

    pub(crate) fn begin(&mut self, fault: u32, what: FaultKind) {
        self.on.push((fault, what));
    }

    pub(crate) fn end(&mut self, fault: u32) {
        self.on.retain(|(other, _)| *other != fault);
    }

    /// Whether a partition loses a proxy's reports or assignments; `faults` are the scenario's.
    pub(crate) fn is_cut(&self, faults: &[SimFault], proxy: u32, report: bool) -> bool {
        self.on.iter().any(|(fault, what)| match *what {
            FaultKind::Partition { reports, assignments } => {
                let affected = faults[*fault as usize].proxy;
                affected.is_none_or(|affected| affected == proxy)
                    && if report { reports } else { assignments }
            }
            _ => false,
        })
    }

    /// The fate of the next account of a proxy; `faults` are the scenario's.
    pub(crate) fn account_fate(&mut self, faults: &[SimFault], proxy: u32) -> AccountFate {
        let ppm = |(fault, what): &(u32, FaultKind)| match *what {
            FaultKind::Forget { ppm } => {
                let affected = faults[*fault as usize].proxy;
                affected.is_none_or(|affected| affected == proxy).then_some(ppm)
            }
            _ => None,
        };
        match self.on.iter().find_map(ppm) {
            Some(ppm) if self.prng.chance_ppm(ppm) => match self.prng.below(2) {
                0 => AccountFate::Closed,
                _ => AccountFate::Folded,
            },
            _ => AccountFate::Kept,
        }
    }

    /// The fate of the next message.
    pub(crate) fn fate(&mut self) -> MessageFate {
        if self.on.is_empty() {
            return MessageFate::Arrives;
        }
        for (_, what) in &self.on {
            match *what {
                FaultKind::Drop { ppm } if self.prng.chance_ppm(ppm) => {
                    return MessageFate::Dropped;
                }
                FaultKind::Delay { ppm, by } if self.prng.chance_ppm(ppm) => {
                    return MessageFate::Late(by);
                }
                FaultKind::Duplicate { ppm } if self.prng.chance_ppm(ppm) => {
                    return MessageFate::Duplicated;
                }
                _ => {}
            }
        }
        MessageFate::Arrives
    }
}
