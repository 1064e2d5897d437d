//! Sessions of mounts with proxies over a network that loses and delays messages, driven by a
//! seed under simulated time.
//!
//! ```text
//!   programs ─► SimMount ──── SimWire: delayed, cut ────► SessionProxy ─► SimBackend
//!                  ▲                                        │ killed, restarted, out of reach
//!                  └── lost? connect, resume, move ◄────────┘
//!   SessionChecks: no call with a reply slot twice · answered as executed · nothing durable lost ·
//!                  nothing of an old connection after the next · at the end every call has ended
//! ```
//!
//! The server half is `session::server`, the very structs of the proxy, and the call table of the
//! mounts is `session::client`'s. What `io/` does around them (sockets, queues, the connecting of
//! channels) is modelled here by the same rules and times.
//!
//! Left out: open files, locks, windows of identities; calls in doubt are not resolved by looking
//! but end in doubt; the order of writes to one place.

mod backend;
mod checks;
mod faults;
mod kept;
#[cfg(test)]
mod known_bad;
mod mount;
mod proxy;
mod result;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Nanos, Time};

use crate::prng::Prng;
use backend::SimOp;
use checks::CallEnd;
use mount::{CHANNELS, ConnectFailure, ConnectPath, MountAction, SimMount};
use proxy::{MessageFrom, ProxyAction, ProxySide, SessionProxy};
use wire::{SimWire, ToMount, ToProxy};

pub use result::{SessionRunResult, SessionViolation};

/// A world of mounts and proxies before, in or after its run.
#[derive(Debug)]
pub struct SessionWorld {
    seed: u64,
    prng: Prng,
    now: Time,
    events: BTreeMap<(Time, u64), SessionSimEvent>,
    sequence: u64,
    wires: Vec<SimWire>,
    /// Wires that carry messages.
    live: BTreeSet<usize>,
    mounts: Vec<SimMount>,
    proxies: Vec<SessionProxy>,
    machine_is_up: Vec<bool>,
    /// Mounts and proxies between which nothing passes.
    partitions: BTreeSet<(usize, usize)>,
    side: ProxySide,
    /// Whether programs and faults have ended, so that everything else must end.
    is_healing: bool,
    call_gap: Nanos,
    fault_gap: Nanos,
    log: VecDeque<(Time, SessionSimEvent)>,
    result: SessionRunResult,
}

/// Which faults a world has beyond those that every world has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFaults {
    /// Whether a session is resumed although its first Rsession may be lost: proxies do not wait for
    /// a message that shows that it has arrived. The mount then takes the session, which the proxy
    /// has by now, for the one before.
    pub resumes_unconfirmed: bool,
    /// Whether a mount moves its session away from a proxy that one of its channels cannot reach,
    /// although another channel has reached it since. Calls of that one may run there yet.
    pub moves_while_connected: bool,
    /// A rule that a known-bad world breaks.
    bug: Option<SessionBug>,
}

/// The ways in which known-bad worlds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests have bugs"))]
enum SessionBug {
    /// The reply cache forgets each reply.
    ForgetsReplies,
    /// A connection is bound before the calls of the one before have ended.
    BindsEarly,
    /// Writes count as durable when they are executed.
    CommitsEarly,
    /// The mount sends calls in doubt to the new session.
    ResendsToNewSession,
    /// The mount does not look at the verifier of replies to calls.
    IgnoresVerifier,
}

#[derive(Clone, Debug)]
enum SessionSimEvent {
    ToProxy {
        wire: usize,
        message: ToProxy,
    },
    ToMount {
        wire: usize,
        message: ToMount,
    },
    /// The proxy notices that the connection is broken.
    ProxyNotices {
        wire: usize,
    },
    /// The mount notices that the connection is broken.
    MountNotices {
        wire: usize,
    },
    BeginCall {
        proxy: usize,
        id: u64,
    },
    EndCall {
        proxy: usize,
        id: u64,
    },
    Retry {
        mount: usize,
        channel: usize,
        attempt: u64,
    },
    Connected {
        mount: usize,
        channel: usize,
        path: ConnectPath,
        wire: usize,
    },
    ConnectFailed {
        mount: usize,
        channel: usize,
        path: ConnectPath,
        why: ConnectFailure,
    },
    AttachTimeout {
        mount: usize,
        channel: usize,
        wire: usize,
    },
    Program {
        mount: usize,
    },
    Fault,
    Start {
        proxy: usize,
    },
    Heal {
        mount: usize,
        proxy: usize,
    },
    Tick {
        mount: usize,
    },
    Expire {
        proxy: usize,
    },
}

impl SessionWorld {
    /// Creates a world before its first event.
    pub fn new(seed: u64, faults: SessionFaults) -> SessionWorld {
        let mut prng = Prng::of(seed, 0x5e55);
        let call_gap = Nanos::from_millis([10, 60, 400, 3_000][prng.below(4) as usize]);
        let fault_gap = Nanos::from_millis([400, 3_000, 12_000][prng.below(3) as usize]);
        let mount = |number| SimMount::new(number, [number % 2, 1 - number % 2], faults);
        let mut world = SessionWorld {
            seed,
            prng,
            now: Time::ZERO,
            events: BTreeMap::new(),
            sequence: 0,
            wires: Vec::new(),
            live: BTreeSet::new(),
            mounts: (0..MOUNTS).map(mount).collect(),
            proxies: (0..PROXIES).map(|number| SessionProxy::new(number, faults)).collect(),
            machine_is_up: vec![true; PROXIES],
            partitions: BTreeSet::new(),
            side: ProxySide::default(),
            is_healing: false,
            call_gap,
            fault_gap,
            log: VecDeque::new(),
            result: SessionRunResult::default(),
        };
        for mount in 0..MOUNTS {
            for channel in 0..CHANNELS {
                world.after(Nanos::ZERO, SessionSimEvent::Retry { mount, channel, attempt: 0 });
            }
            world.after(TICK, SessionSimEvent::Tick { mount });
            world.after(call_gap, SessionSimEvent::Program { mount });
        }
        (0..PROXIES).for_each(|proxy| world.after(EXPIRY, SessionSimEvent::Expire { proxy }));
        world.after(fault_gap, SessionSimEvent::Fault);
        world
    }

    /// Runs `steps` events with faults and new calls, and then until every call has ended.
    pub fn run(mut self, steps: u64) -> SessionRunResult {
        while self.result.steps < steps && self.step() {
            self.result.steps += 1;
        }
        self.heal();
        for _ in 0..COMMITS_MAX {
            let until = self.now + END_PATIENCE;
            while self.side.checks.open().next().is_some() && self.now < until && self.step() {}
            let open = self.side.checks.open().next();
            if let Some(call) = open.filter(|_| self.side.checks.violation.is_none()) {
                let record = self.side.checks.call(call);
                let what = format!("call {call} of mount {} ({:?}) hangs", record.mount, record.op);
                self.side.checks.violate(what);
            }
            if self.side.checks.violation.is_some() || self.mounts.iter().all(|it| it.kept() == 0) {
                break;
            }
            for mount in 0..MOUNTS {
                self.mounts[mount].commit(&mut self.side.checks, self.now);
                self.carry_out(mount);
            }
        }
        self.check_end();
        self.finish()
    }

    /// Handles the next event. `false` if an invariant is violated.
    fn step(&mut self) -> bool {
        if let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            if self.log.len() >= LOG_MAX {
                self.log.pop_front();
            }
            self.log.push_back((at, event.clone()));
            self.handle(event);
            self.side.checks.end_step(&self.side.backend);
        }
        self.side.checks.violation.is_none()
    }

    fn handle(&mut self, event: SessionSimEvent) {
        let now = self.now;
        match event {
            SessionSimEvent::ToProxy { wire, message } if self.wires[wire].carries => {
                self.deliver_to_proxy(wire, message);
            }
            SessionSimEvent::ToMount { wire, message } if self.wires[wire].carries => {
                self.deliver_to_mount(wire, message);
            }
            SessionSimEvent::ToProxy { .. } | SessionSimEvent::ToMount { .. } => {}
            SessionSimEvent::ProxyNotices { wire } => {
                let proxy = self.wires[wire].proxy;
                self.proxies[proxy].close(wire, &mut self.side, now);
                self.carry_out_of(proxy);
            }
            SessionSimEvent::MountNotices { wire } => self.deliver_to_mount(wire, ToMount::Closed),
            SessionSimEvent::BeginCall { proxy, id } => {
                self.proxies[proxy].begin_call(id, &mut self.side);
                self.carry_out_of(proxy);
            }
            SessionSimEvent::EndCall { proxy, id } => {
                self.proxies[proxy].end_call(id, &mut self.side, now);
                self.carry_out_of(proxy);
            }
            SessionSimEvent::Retry { mount, channel, attempt } => {
                self.mounts[mount].connect(channel, attempt);
                self.carry_out(mount);
            }
            SessionSimEvent::Connected { mount, channel, path, wire } => {
                self.connected(mount, channel, path, wire);
            }
            SessionSimEvent::ConnectFailed { mount, channel, path, why } => {
                self.mounts[mount].connect_failed(channel, path, why, now);
                self.carry_out(mount);
            }
            SessionSimEvent::AttachTimeout { mount, channel, wire } => {
                self.mounts[mount].attach_timeout(channel, wire, now);
                self.carry_out(mount);
            }
            SessionSimEvent::Program { mount } => self.call_of_program(mount),
            SessionSimEvent::Fault => self.fault(),
            SessionSimEvent::Start { proxy } => self.start_proxy(proxy),
            SessionSimEvent::Heal { mount, proxy } => {
                self.partitions.remove(&(mount, proxy));
            }
            SessionSimEvent::Tick { mount } => {
                let answers = self.is_reachable(mount, mount % 2) && self.proxies[mount % 2].is_up;
                self.mounts[mount].tick(answers, &mut self.side.checks, now);
                self.carry_out(mount);
                self.after(TICK, SessionSimEvent::Tick { mount });
            }
            SessionSimEvent::Expire { proxy } => {
                self.result.expired += self.proxies[proxy].expire(now) as u64;
                self.after(EXPIRY, SessionSimEvent::Expire { proxy });
            }
        }
    }

    fn deliver_to_proxy(&mut self, wire: usize, message: ToProxy) {
        let SimWire { mount, channel, proxy, .. } = self.wires[wire];
        let from = MessageFrom { connection: wire, channel: channel as u16, mount: mount as u8 };
        self.proxies[proxy].receive(&from, message, &mut self.side, self.now);
        self.carry_out_of(proxy);
        if message == ToProxy::Closed {
            self.wires[wire].carries = false;
            self.live.remove(&wire);
        }
    }

    fn deliver_to_mount(&mut self, wire: usize, message: ToMount) {
        let SimWire { mount, channel, .. } = self.wires[wire];
        let checks = &mut self.side.checks;
        self.mounts[mount].receive(channel, wire, message, checks, self.now);
        self.carry_out(mount);
    }

    fn connected(&mut self, mount: usize, channel: usize, path: ConnectPath, wire: usize) {
        if !self.wires[wire].carries {
            let why = ConnectFailure::Broken;
            let failed = SessionSimEvent::ConnectFailed { mount, channel, path, why };
            return self.after(Nanos::ZERO, failed);
        }
        if !self.mounts[mount].connected(channel, path, wire, self.now) {
            // Another channel enters the session first.
            let again = SessionSimEvent::Connected { mount, channel, path, wire };
            return self.after(Nanos::from_millis(100), again);
        }
        self.carry_out(mount);
        let patience = SessionSimEvent::AttachTimeout { mount, channel, wire };
        self.after(ATTACH_PATIENCE, patience);
    }

    /// A program of a mount does something, and others go on later.
    fn call_of_program(&mut self, mount: usize) {
        if self.is_healing {
            return;
        }
        let call = self.side.checks.next_call();
        let (name, file) = (self.prng.below(6) as u32, self.prng.below(4) as u32);
        let op = match self.prng.below(20) {
            0..5 => SimOp::Make { name },
            5..9 => SimOp::Remove { name },
            9..11 => SimOp::Look { name },
            11..14 => SimOp::Append { file, write: call },
            14..18 => SimOp::Write { file, write: call },
            _ => SimOp::Sync { file },
        };
        let channel = self.prng.below(CHANNELS as u64) as usize;
        self.mounts[mount].push(channel, op, &mut self.side.checks, self.now);
        if self.prng.below(12) == 0 {
            self.mounts[mount].interrupt(channel, &mut self.side.checks);
        }
        self.carry_out(mount);
        let gap = Nanos::new(self.prng.exponential(self.call_gap.get()));
        self.after(gap, SessionSimEvent::Program { mount });
    }

    /// Carries out what a mount does.
    fn carry_out(&mut self, mount: usize) {
        for action in std::mem::take(&mut self.mounts[mount].actions) {
            match action {
                MountAction::Send(wire, message) => self.send_to_proxy(wire, message),
                MountAction::Close(wire) => self.send_to_proxy(wire, ToProxy::Closed),
                MountAction::Connect { channel, path } => self.connect(mount, channel, path),
                MountAction::Retry { channel, attempt } => {
                    let pause = Nanos::from_millis(self.prng.between(10, 500));
                    self.after(pause, SessionSimEvent::Retry { mount, channel, attempt });
                }
            }
        }
    }

    fn connect(&mut self, mount: usize, channel: usize, path: ConnectPath) {
        let soon = Nanos::from_millis(self.prng.between(1, 5));
        let failed = |why| SessionSimEvent::ConnectFailed { mount, channel, path, why };
        if !self.is_reachable(mount, path.at) {
            return self.after(CONNECT_PATIENCE, failed(ConnectFailure::Silent));
        }
        if !self.proxies[path.at].is_up {
            return self.after(soon, failed(ConnectFailure::Refused));
        }
        let wire = self.wires.len();
        self.wires.push(SimWire::new(mount, channel, path.at));
        self.live.insert(wire);
        self.after(soon, SessionSimEvent::Connected { mount, channel, path, wire });
    }

    fn send_to_proxy(&mut self, wire: usize, message: ToProxy) {
        if self.wires[wire].carries {
            let at = self.wires[wire].arrival(false, &mut self.prng, self.now);
            self.at(at, SessionSimEvent::ToProxy { wire, message });
        }
    }

    /// Carries out what a proxy does.
    fn carry_out_of(&mut self, proxy: usize) {
        for action in std::mem::take(&mut self.side.actions) {
            match action {
                ProxyAction::Send(wire, message) => {
                    if self.wires[wire].carries {
                        let at = self.wires[wire].arrival(true, &mut self.prng, self.now);
                        self.at(at, SessionSimEvent::ToMount { wire, message });
                    }
                }
                ProxyAction::Queue(id) => {
                    let wait = self.rarely_long(40, 1_500);
                    self.after(wait, SessionSimEvent::BeginCall { proxy, id });
                }
                ProxyAction::Run(id) => {
                    let wait = self.rarely_long(20, 4_000);
                    self.after(wait, SessionSimEvent::EndCall { proxy, id });
                }
            }
        }
    }

    /// A span of up to `usual` milliseconds, and of up to `long` once in thirty times.
    fn rarely_long(&mut self, usual: u64, long: u64) -> Nanos {
        let most = if self.prng.below(30) == 0 { long } else { usual };
        Nanos::from_millis(self.prng.below(most))
    }

    fn check_end(&mut self) {
        if self.side.checks.violation.is_some() {
            return;
        }
        for mount in 0..MOUNTS {
            let kept = self.mounts[mount].kept();
            if kept > 0 {
                let what = format!("mount {mount} keeps {kept} writes that never become durable");
                self.side.checks.violate(what);
            }
            let answered = self.side.checks.answered_writes(mount, None);
            self.side.checks.expect_durable(&answered, "one that was answered before a commit");
        }
        self.side.checks.end_step(&self.side.backend);
    }

    fn finish(self) -> SessionRunResult {
        let checks = &self.side.checks;
        let lines = |(at, event): &(Time, SessionSimEvent)| {
            format!("{:>12.3} s  {event:?}", Nanos::new(at.as_nanos()))
        };
        let violation = checks.violation.clone().map(|what| SessionViolation {
            seed: self.seed,
            at: self.now,
            what,
            events: self.log.iter().map(lines).collect(),
        });
        SessionRunResult {
            answered: checks.count(|end| matches!(end, CallEnd::Answered(_))),
            in_doubt: checks.count(|end| end == CallEnd::InDoubt),
            interrupted: checks.count(|end| end == CallEnd::Interrupted),
            replayed: self.side.replayed,
            waited: self.side.waited,
            moved: self.mounts.iter().map(|mount| mount.moves).sum(),
            rewritten: checks.rewrites(),
            violation,
            ..self.result
        }
    }

    fn after(&mut self, span: Nanos, event: SessionSimEvent) {
        self.at(self.now + span, event);
    }

    fn at(&mut self, at: Time, event: SessionSimEvent) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }
}

const MOUNTS: usize = 3;
const PROXIES: usize = 2;
/// Events that a violation is printed with.
const LOG_MAX: usize = 60;
const TICK: Nanos = Nanos::from_secs(1);
const EXPIRY: Nanos = Nanos::from_secs(5);
/// How long one connection may take, and one Tsession; `io/mount` has the same.
const CONNECT_PATIENCE: Nanos = Nanos::from_secs(10);
const ATTACH_PATIENCE: Nanos = Nanos::from_secs(60);
/// Bound of the time after the last fault within which every call must have ended.
const END_PATIENCE: Nanos = Nanos::from_secs(300);
/// Commits at the end of a run: each may find that what it would commit was lost.
const COMMITS_MAX: usize = 10;
