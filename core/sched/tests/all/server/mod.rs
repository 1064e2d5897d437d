//! A tiny deterministic server around the dispatcher, under invented time.
//!
//! Two lanes of D slots each; a request runs for its cost at the rate its slots give it, so
//! one that holds s slots for t seconds is s·t slot-seconds of service. Clients are closed
//! loops: each keeps a number of requests outstanding.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{
    Amount, Bytes, Grants, Identity, JobId, KindSet, Lane, Nanos, Nid, OpKind, PathSet, Rate,
    Scope, ScopeUsage, SharePool, TargetId, Time, Weight,
};
use rules::{Limit, Match, MeterRule, Rule, RuleSet};
use sluice_sched::{
    Arrival, CostMode, Costs, Curve, Dispatcher, LaneCosts, SubjectId, TargetParams,
};

/// A server: the dispatcher, its clients, and what runs.
pub(crate) struct World {
    pub(crate) sched: Dispatcher,
    pub(crate) now: Time,
    pub(crate) clients: Vec<Client>,
    running: BTreeMap<(Time, u64), Job>,
    count: u64,
    /// Requests take from this much less to this much more than their cost, in percent.
    pub(crate) ragged_percent: u64,
    /// Whether the device divides what it can among the slots in use, whatever D is.
    pub(crate) shares_device: bool,
    /// Requests take so many times as long.
    pub(crate) slower: u64,
    /// What requests take, whatever the dispatcher is told or learns.
    costs: Costs,
    /// Device slots that are held.
    held: u32,
    /// Device slots times ns that stood empty while something waited.
    pub(crate) idle_slot_ns: u64,
}

/// One closed loop.
pub(crate) struct Client {
    pub(crate) subject: SubjectId,
    pub(crate) kind: OpKind,
    pub(crate) bytes: u64,
    pub(crate) lane: Lane,
    /// Of ten requests that try the cached lane, so many miss, at once.
    pub(crate) misses: u64,
    /// Requests that tried the cached lane.
    tried: u64,
    /// How many it keeps outstanding.
    pub(crate) depth: u32,
    pub(crate) outstanding: u32,
    /// Requests completed.
    pub(crate) done: u64,
    /// When each was dispatched, in ns.
    pub(crate) starts: Vec<u64>,
    /// How long each took from its arrival to its completion, in ns, in order of dispatch.
    pub(crate) took: Vec<(OpKind, u64)>,
    /// For each request that it completes here it has so many units of service elsewhere.
    pub(crate) elsewhere: u64,
    /// When the backend ends the last of its requests, if it serves one of them after the other.
    pub(crate) serial_until: Option<Time>,
    /// What it does again and again, a step once the one before is done; empty: the same for ever.
    steps: Vec<Step>,
    /// The step after this one, and requests of this one that have not been sent.
    next_step: usize,
    unsent: u32,
}

/// Requests of one kind that a client sends at once.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: OpKind,
    pub(crate) units: u64,
    pub(crate) count: u32,
}

struct Job {
    id: sluice_sched::RequestId,
    client: usize,
    amount: Amount,
    /// Of the device.
    slots: u32,
}

/// The one target.
pub(crate) const T: TargetId = TargetId::FIRST;

/// Grants the same of limits, reservations and weights.
pub(crate) fn grant(sched: &mut Dispatcher, grants: &Grants, now: Time) {
    for pool in [SharePool::Limits, SharePool::Target(T)] {
        sched.set_grants(pool, grants, now);
    }
}

/// The usage of limits, and of classes without a limit.
pub(crate) fn usage(sched: &mut Dispatcher, now: Time) -> Vec<(Scope, ScopeUsage)> {
    let mut usage = BTreeMap::from_iter(sched.take_class_usage(T, now));
    usage.extend(sched.take_limit_usage(now));
    usage.into_iter().collect()
}

/// The first request costs this and holds one slot; others in proportion to their bytes.
pub(crate) const UNIT_BYTES: u64 = 4096;

pub(crate) const fn ms(count: u64) -> Time {
    Time::from_nanos(count * 1_000_000)
}

/// A target of D slots whose smallest request costs `unit_ns` and the others in proportion.
pub(crate) fn target(slots_max: u32, unit_ns: u64) -> TargetParams {
    let line = |ns: u64| {
        let point = |units: u64| (Bytes::new(units * UNIT_BYTES), Nanos::new(units * ns));
        Curve::new(&[point(1), point(2)]).expect("a valid value")
    };
    let costs =
        |ns| LaneCosts { read: line(ns), write: line(ns), ops: [Nanos::new(ns); OpKind::COUNT] };
    let costs =
        Costs { cached: costs(unit_ns), device: costs(unit_ns), mode: CostMode::Calibrated };
    TargetParams {
        name: "t".into(),
        slots_max,
        threads: slots_max,
        costs,
        latency: None,
        recalibrate: false,
    }
}

pub(crate) fn who(job: &str) -> Identity {
    let job = JobId::new(job).expect("a valid value");
    Identity { job, uid: 1000, gid: 1000, projid: None, nid: Nid::local() }
}

/// A rule for one job.
pub(crate) fn rule(job: &str, weight: u32) -> Rule {
    let matcher = format!("jobid={{{job}}}").parse::<Match>().expect("a valid value");
    Rule { weight: Weight::new(weight).expect("a valid value"), ..Rule::new(job, matcher) }
}

pub(crate) fn ops(per_sec: u64) -> Rate {
    Rate::ops_per_sec(per_sec).expect("a valid value")
}

pub(crate) fn limit(rate: Rate) -> Limit {
    Limit { kinds: KindSet::ALL, rate, burst: None }
}

/// A rule for one job with a ceiling.
pub(crate) fn limited(job: &str, rate: u64) -> Rule {
    Rule { limits: vec![limit(ops(rate))], ..rule(job, 1) }
}

/// A meter that all of these jobs share.
pub(crate) fn shared(name: &str, jobs: &str, rate: Rate) -> MeterRule {
    let matcher = format!("jobid={{{jobs}}}").parse().expect("a valid value");
    MeterRule { name: name.into(), matcher, per: vec![], limit: limit(rate) }
}

pub(crate) fn rules(rules: Vec<Rule>, meters: Vec<MeterRule>) -> Arc<RuleSet> {
    let mut set = RuleSet::default();
    set.rules = rules;
    set.meters = meters;
    Arc::new(set)
}

impl World {
    /// A world where a request of n units runs for `unit_ns` times n divided by its slots.
    pub(crate) fn new(target: TargetParams, rules: Arc<RuleSet>) -> World {
        World {
            costs: Costs { mode: CostMode::Calibrated, ..target.costs.clone() },
            sched: Dispatcher::new([target], rules),
            now: Time::ZERO,
            clients: Vec::new(),
            running: BTreeMap::new(),
            count: 0,
            ragged_percent: 0,
            shares_device: false,
            slower: 1,
            held: 0,
            idle_slot_ns: 0,
        }
    }

    /// Adds a client of the cached lane, of whose ten requests `misses` need the device.
    pub(crate) fn cached_client(
        &mut self,
        job: &str,
        units: u64,
        depth: u32,
        misses: u64,
    ) -> usize {
        let index = self.client(job, OpKind::Read, units, depth);
        (self.clients[index].lane, self.clients[index].misses) = (Lane::Cached, misses);
        index
    }

    /// Adds a client; it starts when the world next runs.
    pub(crate) fn client(&mut self, job: &str, kind: OpKind, units: u64, depth: u32) -> usize {
        let subject = self.sched.subject(T, &who(job), PathSet::default());
        let bytes = bytes_of(kind, units);
        self.clients.push(Client {
            subject,
            kind,
            bytes,
            lane: Lane::Device,
            misses: 0,
            tried: 0,
            depth,
            outstanding: 0,
            done: 0,
            starts: Vec::new(),
            took: Vec::new(),
            elsewhere: 0,
            serial_until: None,
            steps: Vec::new(),
            next_step: 0,
            unsent: 0,
        });
        self.clients.len() - 1
    }

    /// Adds a client that goes through these steps again and again.
    pub(crate) fn stepping_client(&mut self, job: &str, steps: &[Step]) -> usize {
        let index = self.client(job, steps[0].kind, steps[0].units, 0);
        self.clients[index].steps = steps.to_vec();
        index
    }

    /// Runs until `end`.
    pub(crate) fn run(&mut self, end: Time) {
        loop {
            self.refill();
            self.dispatch();
            let next = self.running.keys().next().map(|(time, _)| *time);
            let next = [next, self.sched.next_deadline()].into_iter().flatten().min();
            match next {
                Some(time) if time <= end => self.pass(time),
                _ => break,
            }
            self.complete();
        }
        self.pass(end);
    }

    fn pass(&mut self, time: Time) {
        if self.sched.queued() > 0 {
            let free = self.sched.target(T).slots_max - self.held;
            self.idle_slot_ns += u64::from(free) * time.since(self.now).get();
        }
        self.now = time;
    }

    /// Requests that each client completed between now and `end`.
    pub(crate) fn served(&mut self, end: Time) -> Vec<u64> {
        let before: Vec<u64> = self.clients.iter().map(|c| c.done).collect();
        self.run(end);
        self.clients.iter().zip(before).map(|(c, b)| c.done - b).collect()
    }

    fn refill(&mut self) {
        // One each in turn, so that no client's requests stand in a block.
        loop {
            let mut added = false;
            for index in 0..self.clients.len() {
                let client = &mut self.clients[index];
                client.begin_step();
                if client.outstanding >= client.depth {
                    continue;
                }
                client.outstanding += 1;
                client.unsent = client.unsent.saturating_sub(1);
                let amount = Amount::new(client.bytes, 1);
                let (subject, kind, lane) = (client.subject, client.kind, client.lane);
                let arrival = Arrival { subject, kind, amount, lane, token: index as u64 };
                self.sched.enqueue(arrival, self.now);
                added = true;
            }
            if !added {
                return;
            }
        }
    }

    fn dispatch(&mut self) {
        while let Some(next) = self.sched.poll_dispatch(self.now) {
            let client = &mut self.clients[next.token as usize];
            if next.lane == Lane::Cached {
                client.tried += 1;
                if client.tried % 10 < client.misses {
                    self.sched.miss(next.id, self.now);
                    continue;
                }
            }
            client.starts.push(self.now.as_nanos());
            let index = next.token as usize;
            let amount = Amount::new(client.bytes, 1);
            let cost = self.costs.charge(next.lane, next.kind, amount).get();
            // All slots together serve one cost-second a second.
            let slots = if next.lane == Lane::Device { next.slots } else { 0 };
            self.held += slots;
            let all = if self.shares_device { self.held } else { self.sched.target(T).slots_max };
            self.count += 1;
            let cost = self.ragged(cost) * self.slower;
            let ns = cost * u64::from(all) / u64::from(next.slots.max(1));
            self.clients[index].took.push((next.kind, next.queued.get() + ns));
            let mut ends = self.now + Nanos::new(ns);
            if let Some(until) = &mut self.clients[index].serial_until {
                *until = (*until).max(self.now) + Nanos::new(ns);
                ends = *until;
            }
            let job = Job { id: next.id, client: index, amount, slots };
            self.running.insert((ends, self.count), job);
        }
    }

    /// The cost with this request's luck: the same in every run, and evenly spread.
    fn ragged(&self, cost: u64) -> u64 {
        // SplitMix64's finaliser; any good mixing of the number would do.
        let mut mixed = self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let luck = (mixed >> 32) % (2 * self.ragged_percent * 100 + 1);
        cost * (10_000 - self.ragged_percent * 100 + luck) / 10_000
    }

    fn complete(&mut self) {
        while let Some(entry) = self.running.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let job = entry.remove();
            self.held -= job.slots;
            self.clients[job.client].done += 1;
            self.clients[job.client].outstanding -= 1;
            self.sched.complete(job.id, job.amount, self.now);
            let Client { subject, kind, elsewhere, .. } = self.clients[job.client];
            if elsewhere > 0 {
                let unit = self.sched.target(T).costs.charge(
                    Lane::Device,
                    OpKind::Read,
                    Amount::new(UNIT_BYTES, 1),
                );
                let cost = Nanos::new(unit.get() * elsewhere);
                self.sched.charge_remote_service(subject, kind, cost, self.now);
            }
        }
    }
}

impl Client {
    /// Begins the next step if it has steps and this one is done.
    fn begin_step(&mut self) {
        let Some(step) = self.steps.get(self.next_step).copied() else { return };
        if self.unsent == 0 && self.outstanding == 0 {
            (self.kind, self.bytes) = (step.kind, bytes_of(step.kind, step.units));
            self.unsent = step.count;
            self.next_step = (self.next_step + 1) % self.steps.len();
        }
        self.depth = self.outstanding + self.unsent;
    }

    /// The time that 99 of 100 of its requests of a kind took at most, in ns.
    pub(crate) fn p99(&self, kind: OpKind) -> u64 {
        let of_kind = self.took.iter().filter(|(of, _)| *of == kind);
        let mut times: Vec<u64> = of_kind.map(|(_, ns)| *ns).collect();
        times.sort_unstable();
        times[times.len() * 99 / 100]
    }
}

fn bytes_of(kind: OpKind, units: u64) -> u64 {
    if matches!(kind, OpKind::Read | OpKind::Write) { units * UNIT_BYTES } else { 0 }
}
