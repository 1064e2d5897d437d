//! The world: clients, network interfaces, proxies and targets in simulated time.
//!
//! ```text
//!   clients ─send─► NIC ─► proxy: scheduler ─dispatch─► target ─served─► proxy ─► NIC ─► clients
//!      ▲ think                       ▲ deadline                                            │
//!      └─────────────────────────────┴──── events by (time, order) ◄───────────────────────┘
//! ```
//!
//! One event is handled at a time. When the last event of an instant is done, every proxy that was
//! touched is polled until its scheduler has nothing. So a proxy answers the requests of an instant
//! after it has read all of them, as the proxy drains its connections first.
//!
//! The same scenario, scheduler and seed give the same world, bit for bit.

mod accounting;
mod calendar;
mod clients;
mod control;
mod fault_injection;
#[cfg(test)]
mod known_bad;
#[cfg(test)]
mod known_bad_calendar;
#[cfg(test)]
mod known_bad_rows;
#[cfg(test)]
mod known_bad_usage;
mod messages;
mod proxies;
mod rows;

use std::sync::Arc;

use model::{Amount, Identity, Lane, OpKind, Time};

use crate::checks::{InvariantChecks, UsageChecks};
use crate::events::{SimEvent, SimEvents};
use crate::faults::NetworkFaults;
use crate::network::Nic;
use crate::prng::Prng;
use crate::report::{InvariantViolation, RunResult, RunStats};
use crate::scenario::{Replayed, Scenario};
use crate::scheduler::{Policy, SimRemoteService};
use crate::targets::FLUSH;
use crate::workloads::SimClient;

use accounting::SimAccounting;
use calendar::SimCalendar;
use control::{MessagesInTransit, SimController, SimProxyControl};
use proxies::SimProxy;
use rows::RowRecord;

/// A scenario that runs under one scheduler.
#[derive(Debug)]
pub struct World {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) policy: Policy,
    pub(crate) seed: u64,
    pub(crate) now: Time,
    /// The beginning of the measurement and the end of the load.
    pub(crate) measured: (Time, Time),
    events: SimEvents,
    proxies: Vec<SimProxy>,
    /// The first proxy of each target.
    first_proxy: Vec<u32>,
    pub(crate) rules: Arc<rules::RuleSet>,
    clients: Vec<SimClient>,
    /// Each client's interface; empty where no job has one.
    wires: Vec<Nic>,
    copies: Vec<JobCopy>,
    /// Copies that have begun or will, and whose steps are not done.
    copies_left: u32,
    identities: Vec<SimOwner>,
    requests: Vec<SimRequest>,
    free: Vec<u32>,
    outstanding: u32,
    /// Proxies with events in this instant.
    touched: Vec<u32>,
    network_faults: NetworkFaults,
    /// The next time at which waiting requests are sampled.
    sample_times: Prng,
    /// By copy and proxy; empty where schedulers do not receive remote service.
    advertised: Vec<AdvertisedService>,
    /// By target, and then that of limits; and by proxy. Empty without a controller.
    controls: Vec<SimController>,
    proxy_controls: Vec<SimProxyControl>,
    accounting: Option<SimAccounting>,
    control_msgs: MessagesInTransit,
    row_record: RowRecord,
    calendar: Option<SimCalendar>,
    /// Faults that keep control messages from their receivers, and until when the last one matters.
    disturbances: (u32, Time),
    pub(crate) tally: RunStats,
    checks: Option<InvariantChecks>,
    usage_checks: UsageChecks,
    pub(crate) violations: Vec<InvariantViolation>,
    /// The number of arrivals, dispatches and completions.
    pub(crate) request_events: u64,
    sent: u64,
}

/// A job of its own: one of the copies of a `[[job]]`.
#[derive(Clone, Copy, Debug)]
struct JobCopy {
    clients: (u32, u32),
    identities: (u32, u32),
    /// Clients whose steps are not done.
    running: u32,
    served: SimRemoteService,
}

/// The identities of its requests.
#[derive(Clone, Debug)]
pub(crate) struct SimOwner {
    pub(crate) identity: Identity,
    /// The directory of its files, for rules that name paths.
    pub(crate) path: Option<String>,
}

/// Service of a copy by a proxy, and how much of the remote service was advertised to it.
#[derive(Clone, Copy, Debug, Default)]
struct AdvertisedService {
    own: SimRemoteService,
    advertised: SimRemoteService,
}

/// A request from its client's first message to the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimRequest {
    pub(crate) client: u32,
    pub(crate) proxy: u32,
    /// The stamp: events with another one are void.
    stamp: u32,
    pub(crate) slots: u32,
    /// The scheduler's id of the request.
    id: u64,
    /// Its number among the arrived requests.
    pub(crate) number: u64,
    issued: Time,
    arrived: Time,
    started: Time,
    pub(crate) amount: Amount,
    pub(crate) kind: OpKind,
    pub(crate) lane: Lane,
    state: WorldState,
    /// A try in the cached lane that missed.
    pub(crate) returned: bool,
    /// A recorded request, which is answered whatever the cache contains.
    recorded: bool,
    occupies: bool,
    reserved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldState {
    /// In transit, or lost.
    Sent,
    Queued,
    Running,
    /// Of a proxy that crashed while the device, which others use too, served it.
    Orphaned,
    /// Served; its reply is in transit, or lost.
    Answered,
    Free,
}

impl World {
    /// Creates a world before its first event, with every check on.
    pub fn new(scenario: &Scenario, policy: Policy, seed: u64) -> World {
        let scenario = Arc::new(scenario.clone());
        let mut world = World {
            policy,
            seed,
            now: Time::ZERO,
            measured: (Time::ZERO + scenario.warmup, Time::ZERO + scenario.duration),
            events: SimEvents::default(),
            proxies: Vec::new(),
            first_proxy: Vec::new(),
            rules: scenario.rules.clone(),
            clients: Vec::new(),
            wires: Vec::new(),
            copies: Vec::new(),
            copies_left: 0,
            identities: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            outstanding: 0,
            touched: Vec::new(),
            network_faults: NetworkFaults::new(seed),
            sample_times: Prng::of(seed, 0x100c),
            advertised: Vec::new(),
            controls: Vec::new(),
            proxy_controls: Vec::new(),
            accounting: None,
            control_msgs: MessagesInTransit::default(),
            row_record: RowRecord::default(),
            calendar: None,
            disturbances: (0, Time::ZERO),
            tally: RunStats::new(&scenario),
            checks: None,
            usage_checks: UsageChecks::default(),
            violations: Vec::new(),
            request_events: 0,
            sent: 0,
            scenario,
        };
        world.make_proxies();
        world.make_controls();
        world.make_calendar();
        world.make_clients();
        world.schedule_faults();
        if world.scenario.is_replay() {
            world.events.push(Time::ZERO, SimEvent::Sample);
        }
        world.checks = Some(InvariantChecks::new(&world.scenario, world.proxies.len(), policy));
        world
    }

    /// Creates a world without the checks, which cost about half of the time.
    pub fn without_checks(mut self) -> World {
        self.checks = None;
        self
    }

    /// Handles all events up to a time.
    pub fn run_until(&mut self, until: Time) {
        while let Some((time, event)) = self.events.pop(until) {
            self.now = time;
            self.happen(event);
            self.end_instant();
        }
        self.now = self.now.max(until);
    }

    /// Runs to the end of the scenario, measures, and then drains all queues.
    pub fn run(mut self) -> RunResult {
        self.run_until(self.measured.1);
        let mut report = self.report();
        self.drain();
        report.violations = std::mem::take(&mut self.violations);
        report
    }

    /// The end of the scenario.
    pub fn end(&self) -> Time {
        self.measured.1
    }

    /// The number of arrivals, dispatches and completions so far.
    pub fn request_events(&self) -> u64 {
        self.request_events
    }

    /// The results so far.
    pub fn report(&self) -> RunResult {
        RunResult::of(self)
    }

    /// The service by rule, over all proxies, where schedulers sum it.
    pub(crate) fn usage(&self) -> Vec<(String, sched::Usage)> {
        self.proxies.iter().flat_map(|proxy| proxy.sched.usage()).collect()
    }

    /// Ends the load and drains the requests in flight.
    fn drain(&mut self) {
        for client in &mut self.clients {
            client.active = false;
        }
        let limit = self.now + DRAIN;
        while self.outstanding > 0 {
            let Some((time, event)) = self.events.pop(limit) else { break };
            self.now = time;
            self.happen(event);
            self.end_instant();
        }
        let waiting: usize = self.proxies.iter().map(|proxy| proxy.sched.queued()).sum();
        if self.outstanding > 0 || waiting > 0 {
            let what = format!(
                "{} requests had no answer, {waiting} of them queued, {DRAIN} after the load ended",
                self.outstanding
            );
            self.violate(what);
        }
        self.settle_usage();
        self.check_rows();
    }

    fn happen(&mut self, event: SimEvent) {
        match event {
            SimEvent::Arrive { request, stamp } if self.is(request, stamp) => self.arrive(request),
            SimEvent::Served { request, stamp } if self.is(request, stamp) => self.served(request),
            SimEvent::Reply { request, stamp } if self.is(request, stamp) => self.answer(request),
            SimEvent::Resend { request, stamp } if self.is(request, stamp) => self.resend(request),
            SimEvent::Arrive { .. } | SimEvent::Served { .. } => {}
            SimEvent::Reply { .. } | SimEvent::Resend { .. } => {}
            SimEvent::Tick { proxy, epoch } => self.tick(proxy, epoch),
            SimEvent::Flushed { proxy, life } => {
                let now = self.now;
                let (device, events) = self.device_of(proxy as usize);
                device.flushed(life, now, events);
            }
            SimEvent::Poll { proxy } => {
                self.proxies[proxy as usize].armed = Time::MAX;
                self.touch(proxy);
            }
            SimEvent::Loop { client } => self.send_next(client),
            SimEvent::Timer { client } => self.timer(client),
            SimEvent::Next { client } => self.next_step(client),
            SimEvent::Begin { copy } => self.begin_copy(copy),
            SimEvent::End { copy } => self.end_copy(copy),
            SimEvent::Fault { fault } => self.begin_fault(fault),
            SimEvent::FaultEnd { fault } => self.end_fault(fault),
            SimEvent::Change { change } => self.change_rules(change),
            SimEvent::Rows { change } => self.change_row(change),
            SimEvent::Account { proxy } => self.account(proxy),
            SimEvent::ControlMsg { message } => self.deliver_control_msg(message),
            SimEvent::Decide { control } => self.decide(control),
            SimEvent::Reserve { change } => self.reserve(change),
            SimEvent::CalendarTick => self.calendar_tick(),
            SimEvent::CalendarWritten { number } => self.calendar_written(number),
            SimEvent::Second => self.second(),
            SimEvent::Sample => self.sample_waiting(),
        }
    }

    /// Polls the touched proxies, when nothing more happens at this time.
    fn end_instant(&mut self) {
        if self.touched.is_empty() || self.events.next_time() == Some(self.now) {
            return;
        }
        let mut touched = std::mem::take(&mut self.touched);
        for proxy in touched.drain(..) {
            self.proxies[proxy as usize].touched = false;
            self.poll_proxy(proxy);
        }
        if self.touched.is_empty() {
            self.touched = touched;
        }
    }

    fn touch(&mut self, proxy: u32) {
        let own = &mut self.proxies[proxy as usize];
        if !own.touched {
            own.touched = true;
            self.touched.push(proxy);
        }
    }

    fn is(&self, request: u32, stamp: u32) -> bool {
        debug_assert_ne!(request, FLUSH);
        self.requests[request as usize].stamp == stamp
    }

    /// Handles each second: a point of the series, and the occasional checks.
    fn second(&mut self) {
        let cut = |proxy: &SimProxy| proxy.sched.reservation_shortfall_ppm(proxy.clock(self.now));
        let cut = self.proxies.iter().map(cut).max();
        self.tally.second(cut.unwrap_or(0), self.now > self.measured.0);
        for proxy in 0..self.proxies.len() as u32 {
            let checks = self.checks.as_mut();
            if let Some(what) = checks.and_then(|checks| checks.check_second(proxy, self.now)) {
                self.violate(what);
            }
        }
        let now = self.now;
        if let Some(what) = self.checks.as_mut().and_then(|checks| checks.check_reserved(now)) {
            self.violate(what);
        }
        self.check_throttled_keys();
        if self.now < self.measured.1 {
            self.events.push(self.now + SECOND, SimEvent::Second);
        }
    }

    /// Samples at random times which requests wait, and whether for a limit or a meter. Over a
    /// replay the samples add up to parts of the waiting time.
    fn sample_waiting(&mut self) {
        if self.outstanding > 0 {
            for proxy in &self.proxies {
                for waiting in proxy.sched.waiting() {
                    let job = Replayed::job_of(&waiting.identity);
                    self.tally.count_sampled(&job, waiting.requests, waiting.for_meter);
                }
            }
        }
        if self.now < self.measured.1 {
            // At random, since meters have a period of their own.
            let next = self.sample_times.between(SAMPLE_INTERVAL.0.get(), SAMPLE_INTERVAL.1.get());
            self.events.push(self.now + model::Nanos::new(next), SimEvent::Sample);
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(InvariantViolation {
                at: self.now,
                what,
                scenario: self.scenario.name.clone(),
                policy: self.policy.name().into(),
                seed: self.seed,
            });
        }
    }
}

/// The requests that wait at a proxy or at all, with their owners, in order of arrival.
fn waiting_of<'a>(
    requests: &'a [SimRequest],
    clients: &[SimClient],
    owners: &'a [SimOwner],
    proxy: Option<u32>,
) -> Vec<(&'a SimRequest, u32, &'a SimOwner)> {
    let waits = |r: &&SimRequest| {
        r.state == WorldState::Queued && proxy.is_none_or(|proxy| proxy == r.proxy)
    };
    let mut waiting: Vec<_> = requests.iter().filter(waits).collect();
    waiting.sort_by_key(|r| r.number);
    let owned = waiting.into_iter().map(|r| {
        let identity = clients[r.client as usize].identity;
        (r, identity, &owners[identity as usize])
    });
    owned.collect()
}

/// The time after the load within which every queue must be empty: the slowest limit of a scenario
/// lets every waiting request go by then.
const DRAIN: model::Nanos = model::Nanos::from_secs(10_000_000);
/// The mean time between two samples.
const SAMPLE_INTERVAL: (model::Nanos, model::Nanos) =
    (model::Nanos::from_millis(1), model::Nanos::from_millis(19));
const SECOND: model::Nanos = model::Nanos::from_secs(1);
/// The first few show the fault; a broken invariant fails at every step.
const VIOLATIONS_MAX: usize = 20;
