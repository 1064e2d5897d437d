//! The proxy: its exports, clients and threads.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use http::ServerAddress;
use model::{Nanos, SharePool, Time};
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::accept::Accepting;
use crate::bounds::SharedBounds;
use crate::config::ProxyConfig;
use crate::connection::{Connection, ConnectionBounds};
use crate::controller_client::ControllerClientState;
use crate::credentials::{self, Users};
use crate::export::Export;
use crate::gate::{Gate, ProxyClock};
use crate::handles::{HandleKey, LoadedHandleKey};
use crate::info::InfoQueue;
use crate::input::IncomingMessage;
use crate::intake::{DeferredClose, IntakeBatch};
use crate::leases::ProxyLeases;
use crate::limits::{self, DescriptorLimits};
use crate::listen::NinepListener;
use crate::locks::{Grace, LockTable};
use crate::memory::MemoryState;
use crate::metrics::ProxyMetrics;
use crate::outbox::ReplyOutbox;
use crate::plain::EndedSessions;
use crate::rules::ActiveRules;
use crate::sessions::MountSessions;
use crate::setup::{self, TargetChange};
use crate::sys;
use crate::tally::ReplyTally;
use crate::target::{Target, TargetNames};
use crate::thread_pool::{self, ThreadPool};
use crate::trace::TraceRecorder;
use crate::worker::Worker;

/// Interval of attempts to get blocked locks: a program of this machine may have unlocked.
const LOCK_RETRY: Nanos = Nanos::from_millis(50);
/// Interval of checks of connections that have not attached.
pub(crate) const HOUSEKEEPING: Nanos = Nanos::from_millis(500);

/// A running proxy and its threads.
pub struct Server {
    pub(crate) clock: ProxyClock,
    pub(crate) crew: ThreadPool,
    pub(crate) poll: OwnedFd,
    pub(crate) locks: LockTable,
    pub(crate) leases: Arc<ProxyLeases>,
    pub(crate) users: Users,
    pub(crate) mounts: MountSessions,
    pub(crate) ended: EndedSessions,
    key: HandleKey,
    wake: OwnedFd,
    settings: RwLock<Arc<ProxyConfig>>,
    bounds: RwLock<ConnectionBounds>,
    limits: RwLock<DescriptorLimits>,
    /// Resources that all clients share.
    pub(crate) shared: Arc<SharedBounds>,
    pub(crate) accepting: Accepting,
    pub(crate) memory: MemoryState,
    exports: RwLock<FxHashMap<String, Arc<Export>>>,
    pub(crate) gate: Arc<Gate>,
    targets: RwLock<Vec<Arc<Target>>>,
    pub(crate) rules: RwLock<ActiveRules>,
    /// Held while rules or settings are replaced.
    pub(crate) changing: Mutex<()>,
    listeners: Mutex<Vec<Arc<NinepListener>>>,
    addresses: Vec<ServerAddress>,
    pub(crate) connections: RwLock<FxHashMap<u64, Arc<Connection>>>,
    /// Counters of closed connections. Locked before any session.
    pub(crate) closed_tally: Mutex<ReplyTally>,
    pub(crate) next_connection: AtomicU64,
    /// Connections that may be read again.
    resumed: Mutex<VecDeque<Arc<Connection>>>,
    leader_outbox: Mutex<Option<Arc<Mutex<ReplyOutbox>>>>,
    /// Time when the leader, now waiting for events, will wake by itself; 0 while it works.
    armed: AtomicU64,
    draining: AtomicBool,
    housekeeping: AtomicU64,
    lock_retry: AtomicU64,
    lease_upkeep: AtomicU64,
    recorder: Option<TraceRecorder>,
    /// Held while a page is made.
    pub(crate) metrics: Mutex<ProxyMetrics>,
    thread_number: AtomicU64,
    pub(crate) teller: InfoQueue,
    pub(crate) link: ControllerClientState,
    /// Whether more than one thread may serve requests from the page cache.
    pub(crate) parallel: bool,
}

/// Reason why a proxy cannot start, or cannot use a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum ProxyStartError {
    /// The configuration or a file that it names is wrong.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The rule file is wrong.
    #[error("{0}")]
    Rules(String),
    /// The file of costs is wrong.
    #[error("{0}")]
    Costs(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The failed action, as a clause.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl ProxyStartError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> ProxyStartError {
        let what = what.into();
        move |source| ProxyStartError::System { what, source }
    }
}

/// Keys of the epoll set that are not connections.
pub(crate) const WAKE: u64 = 0;
pub(crate) const FIRST_LISTENER: u64 = 1;
const FIRST_CONNECTION: u64 = 1000;

impl Server {
    /// Opens the exports, listens, drops unneeded privileges and begins to serve.
    ///
    /// # Errors
    /// If the configuration names something that does not exist or may not be used.
    pub fn start(config: ProxyConfig) -> Result<Arc<Server>, ProxyStartError> {
        sys::return_large_memory();
        let limits = DescriptorLimits::of(&config, limits::raise_descriptor_limit());
        if limits.connections < config.connections_max as usize {
            tracing::warn!(
                connections_max = config.connections_max,
                connections = limits.connections,
                "fewer connections than connections_max: the limit of open files is too low"
            );
        }
        let clock = ProxyClock::start();
        let rules = setup::load_rules(&config)?;
        let system = |what: &str| ProxyStartError::system(what.to_owned());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| system("cannot create an epoll instance")(e.into()))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("cannot create an eventfd")(e.into()))?;
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(|e| system("cannot use the poll set")(e.into()))?;
        let mut listeners = Vec::new();
        for address in &config.listen {
            let listener = NinepListener::bind(address)
                .map_err(ProxyStartError::system(format!("cannot listen on {address}")))?;
            let key = epoll::EventData::new_u64(FIRST_LISTENER + listeners.len() as u64);
            epoll::add(&poll, &listener, key, epoll::EventFlags::IN)
                .map_err(|e| system("cannot use the poll set")(e.into()))?;
            listeners.push(Arc::new(listener));
        }
        // Before any thread is started: each keeps what it began with.
        credentials::drop_capabilities().map_err(system("cannot drop capabilities"))?;
        let LoadedHandleKey { key, is_old } = setup::load_key(&config)?;
        let gate = Arc::new(Gate::new(rules.set.clone(), clock, config.schedule));
        if config.controller.is_some() {
            gate.grant_nothing(SharePool::Limits);
        }
        let leases = setup::open_leases(&config, clock)?;
        let has_leases = leases.is_needed();
        let (exports, targets) =
            setup::open_exports(&config, &gate, &key, limits.directories, &[], &[], has_leases)?;
        let mounts = MountSessions::new(clock).map_err(system("cannot read random numbers"))?;
        let recorder = match &config.trace {
            None => None,
            Some(path) => Some(TraceRecorder::start(path).map_err(ProxyStartError::system(
                format!("cannot write a trace to {}", path.display()),
            ))?),
        };
        // Under a key that was made just now, nobody has had a lock.
        let grace = match is_old {
            true => Grace::new(clock.now() + config.lock_grace),
            false => Grace::default(),
        };
        let parallel = setup::threads(&config) > 1;
        let server = Arc::new(Server {
            clock,
            crew: ThreadPool::new(config.promote_after, config.threads_max as usize),
            poll,
            locks: LockTable::new(grace),
            leases,
            users: Users::new(config.group_cache_time.to_duration()),
            mounts,
            ended: EndedSessions::default(),
            key,
            wake,
            bounds: RwLock::new(setup::bounds(&config)),
            shared: SharedBounds::new(&limits),
            limits: RwLock::new(limits),
            accepting: Accepting::default(),
            memory: MemoryState::default(),
            addresses: listeners.iter().map(|listener| listener.address()).collect(),
            settings: RwLock::new(Arc::new(config)),
            exports: RwLock::new(exports),
            gate,
            targets: RwLock::new(targets),
            rules: RwLock::new(rules),
            changing: Mutex::default(),
            listeners: Mutex::new(listeners),
            connections: RwLock::default(),
            closed_tally: Mutex::default(),
            next_connection: AtomicU64::new(FIRST_CONNECTION),
            resumed: Mutex::default(),
            leader_outbox: Mutex::default(),
            armed: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            housekeeping: AtomicU64::new(0),
            lock_retry: AtomicU64::new(0),
            lease_upkeep: AtomicU64::new(0),
            recorder,
            metrics: Mutex::default(),
            thread_number: AtomicU64::new(0),
            teller: InfoQueue::new(),
            link: ControllerClientState::default(),
            parallel,
        });
        server.start_info_thread().map_err(system("cannot start a thread"))?;
        for _ in 0..2 {
            server.crew.count_in();
            server.start_worker().map_err(system("cannot start a thread"))?;
        }
        Ok(server)
    }

    /// Returns the addresses that clients can connect to, with the ports that the system chose.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Activates a new configuration and its rule file: rules, exports, targets and bounds.
    /// Listeners, threads, the API socket, metrics, the controller and the trace stay as they are,
    /// and so do rules of the controller.
    ///
    /// # Errors
    /// If anything in it is wrong; then nothing has changed.
    pub fn reload(&self, config: ProxyConfig) -> Result<(), ProxyStartError> {
        let _alone = self.changing.lock().expect("not poisoned");
        config.check_group_after(&self.settings())?;
        let limits = DescriptorLimits::of(&config, limits::descriptors());
        let mut rules = setup::load_rules(&config)?;
        let before = self.rules_in_force();
        if before.controller.is_some() {
            rules = ActiveRules { in_file: rules.in_file, ..before };
        }
        let old = self.targets.read().expect("not poisoned").clone();
        let exported = self.exports();
        let changes = TargetChange::all(&config, &old)?;
        let (exports, targets) = setup::open_exports(
            &config,
            &self.gate,
            &self.key,
            limits.directories,
            &old,
            &exported,
            self.leases.is_needed(),
        )?;
        // Nothing fails from here on.
        changes.into_iter().for_each(TargetChange::apply);
        self.shared.set(&limits);
        *self.limits.write().expect("not poisoned") = limits;
        *self.bounds.write().expect("not poisoned") = setup::bounds(&config);
        *self.exports.write().expect("not poisoned") = exports;
        *self.targets.write().expect("not poisoned") = targets;
        // The last of the three: who sees it has the exports and targets that it names.
        *self.settings.write().expect("not poisoned") = Arc::new(config);
        self.put_in_force(rules);
        Ok(())
    }

    /// Stops accepting connections and requests, answers requests in flight, and ends the threads.
    /// Returns whether all were answered within `drain_timeout`.
    pub fn drain(&self) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().expect("not poisoned").drain(..) {
            let _ = epoll::delete(&self.poll, &listener);
        }
        for connection in self.connections() {
            connection.session.lock().expect("not poisoned").pause(&connection, &self.poll);
        }
        let patience = self.settings().drain_timeout.to_duration();
        let began = Instant::now();
        let busy = |c: &Arc<Connection>| {
            !c.session.lock().expect("not poisoned").tags.is_empty() || c.unsent() > 0
        };
        self.refuse_lock_waiters();
        self.drop_parked();
        self.end_waits();
        let drained = loop {
            if !self.connections().iter().any(busy) {
                break true;
            }
            if began.elapsed() > patience {
                break false;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        self.see_out(began + patience);
        for connection in self.connections() {
            let leaving = self.close(&connection, &"the proxy is shutting down");
            self.close_deferred(leaving, &Mutex::default());
        }
        self.leases.close();
        self.crew.stop();
        self.teller.stop();
        self.poke();
        if let Some(recorder) = &self.recorder {
            recorder.finish();
        }
        drained
    }

    /// Waits until the last replies have reached their readers. A TCP socket that is
    /// closed with input unread resets its peer and drops what it had still to send.
    fn see_out(&self, until: Instant) {
        let mut connections = self.connections();
        for connection in &connections {
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
        }
        loop {
            connections.retain(|c| c.discard_input() && c.unacknowledged() > 0);
            if connections.is_empty() || Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    // ---- what the workers need ----

    pub(crate) fn settings(&self) -> Arc<ProxyConfig> {
        self.settings.read().expect("not poisoned").clone()
    }

    pub(crate) fn bounds(&self) -> ConnectionBounds {
        *self.bounds.read().expect("not poisoned")
    }

    pub(crate) fn limits(&self) -> DescriptorLimits {
        *self.limits.read().expect("not poisoned")
    }

    pub(crate) fn listeners(&self) -> MutexGuard<'_, Vec<Arc<NinepListener>>> {
        self.listeners.lock().expect("not poisoned")
    }

    pub(crate) fn export(&self, name: &str) -> Option<Arc<Export>> {
        self.exports.read().expect("not poisoned").get(name).cloned()
    }

    pub(crate) fn exports(&self) -> Vec<Arc<Export>> {
        let mut exports: Vec<_> =
            self.exports.read().expect("not poisoned").values().cloned().collect();
        exports.sort_by(|a, b| a.name.cmp(&b.name));
        exports
    }

    /// The names of all targets.
    pub(crate) fn target_names(&self) -> TargetNames {
        TargetNames(self.targets().iter().map(|target| (target.id, target.name.clone())).collect())
    }

    pub(crate) fn targets(&self) -> Vec<Arc<Target>> {
        self.targets.read().expect("not poisoned").clone()
    }

    pub(crate) fn connection(&self, key: u64) -> Option<Arc<Connection>> {
        self.connections.read().expect("not poisoned").get(&key).cloned()
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.connections.read().expect("not poisoned").values().cloned().collect()
    }

    pub(crate) fn recorder(&self) -> Option<&TraceRecorder> {
        self.recorder.as_ref()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Leaves this outbox for a successor; returns the predecessor's.
    pub(crate) fn leader_outbox(
        &self,
        own: Arc<Mutex<ReplyOutbox>>,
    ) -> Option<Arc<Mutex<ReplyOutbox>>> {
        let mut place = self.leader_outbox.lock().expect("not poisoned");
        place.replace(own.clone()).filter(|old| !Arc::ptr_eq(old, &own))
    }

    /// Starts a thread if there is none to take over from the leader.
    pub(crate) fn ensure_standby(self: &Arc<Server>) {
        if self.crew.lacks_standby()
            && let Err(error) = self.start_worker()
        {
            tracing::error!(%error, "cannot start a thread; a slow backend call may delay others");
        }
    }

    /// Wakes another thread to help with waiting requests, if there are processors for it.
    pub(crate) fn call_help(self: &Arc<Server>) {
        if self.crew.call_help()
            && let Err(error) = self.start_worker()
        {
            tracing::error!(%error, "cannot start a thread");
        }
    }

    fn start_worker(self: &Arc<Server>) -> io::Result<()> {
        let server = self.clone();
        let number = self.thread_number.fetch_add(1, Ordering::Relaxed);
        thread_pool::start_thread(number as usize, move || Worker::new(server).run())
    }

    /// Returns how long the leader polls before it sleeps.
    pub(crate) fn busy_poll(&self) -> Nanos {
        self.settings.read().expect("not poisoned").busy_poll
    }

    /// Returns how long the leader may wait for events; from here on it can be woken.
    pub(crate) fn before_poll(&self, now: Time) -> Option<Timespec> {
        let mut until = Time::from_nanos(self.housekeeping.load(Ordering::Relaxed));
        let is_idle =
            self.connections.read().expect("not poisoned").is_empty() && self.mounts.is_empty();
        if is_idle && !self.memory.may_release() {
            until = Time::MAX;
        }
        if self.locks.any_waiting() {
            until = until.min(Time::from_nanos(self.lock_retry.load(Ordering::Relaxed)));
        }
        until = self.leases.next_deadline().map_or(until, |deadline| until.min(deadline));
        until = self.accepting.resume_time().map_or(until, |resumes| until.min(resumes));
        self.armed.store(until.as_nanos(), Ordering::SeqCst);
        let mut work = !self.resumed.lock().expect("not poisoned").is_empty();
        work |= self.teller.has_replies() || self.ended.any() || self.leases.has_changes();
        let queue = self.gate.queue_state();
        work |= queue.work;
        until = queue.deadline.map_or(until, |deadline| until.min(deadline));
        if work {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        self.armed.store(until.as_nanos(), Ordering::SeqCst);
        let wait = until.since(now).get();
        let (secs, nanos) = (wait / 1_000_000_000, wait % 1_000_000_000);
        (until < Time::MAX).then_some(Timespec { tv_sec: secs as i64, tv_nsec: nanos as i64 })
    }

    /// Whether the calling thread should try blocked locks again now.
    pub(crate) fn lock_retry_is_due(&self, now: Time) -> bool {
        let due =
            self.locks.any_waiting() && now.as_nanos() >= self.lock_retry.load(Ordering::Relaxed);
        if due {
            self.lock_retry.store((now + LOCK_RETRY).as_nanos(), Ordering::Relaxed);
        }
        due
    }

    /// Whether the calling thread should write the record of holders again now.
    pub(crate) fn lease_upkeep_is_due(&self, now: Time) -> bool {
        if now.as_nanos() < self.lease_upkeep.load(Ordering::Relaxed) || !self.leases.is_needed() {
            return false;
        }
        self.lease_upkeep.store((now + HOUSEKEEPING).as_nanos(), Ordering::Relaxed);
        self.leases.sweep()
    }

    /// Does what is due by the clock, in the awake leader.
    pub(crate) fn after_poll(&self, outbox: &Mutex<ReplyOutbox>, now: Time) {
        self.armed.store(0, Ordering::SeqCst);
        self.resume_accepting(now);
        if now.as_nanos() < self.housekeeping.load(Ordering::Relaxed) {
            return;
        }
        self.housekeeping.store((now + HOUSEKEEPING).as_nanos(), Ordering::Relaxed);
        let patience = self.settings().attach_timeout;
        for connection in self.connections() {
            if connection.session.lock().expect("not poisoned").is_late(patience) {
                let why = format_args!("no attach within {:?}", patience.to_duration());
                let leaving = self.close(&connection, &why);
                self.close_deferred(leaving, outbox);
            }
        }
        self.release_memory();
        let expired = self.mounts.expire(self.settings().session_timeout);
        self.close_deferred(DeferredClose::files(expired), outbox);
    }

    /// Wakes the leader if a waiting request is due before it would wake by itself.
    pub(crate) fn wake_for_deadline(&self) {
        let armed = self.armed.load(Ordering::SeqCst);
        if armed == 0 {
            return;
        }
        let queue = self.gate.queue_state();
        let is_due = queue.work || queue.deadline.is_some_and(|at| at.as_nanos() < armed);
        let locks = self.locks.any_waiting() && self.lock_retry.load(Ordering::Relaxed) < armed;
        let leases = self.leases.has_changes()
            || self.leases.next_deadline().is_some_and(|at| at.as_nanos() < armed);
        if locks || leases || is_due {
            self.poke();
        }
    }

    /// Wakes the leading thread from its wait for sockets.
    pub(crate) fn poke(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Reads from a connection again.
    pub(crate) fn resume(&self, connection: Arc<Connection>) {
        self.resumed.lock().expect("not poisoned").push_back(connection);
        self.poke_leader();
    }

    /// Wakes the leader if it waits for events: there is work for it that comes from no socket.
    pub(crate) fn poke_leader(&self) {
        if self.armed.load(Ordering::SeqCst) != 0 {
            self.poke();
        }
    }

    pub(crate) fn next_resumed(&self) -> Option<Arc<Connection>> {
        self.resumed.lock().expect("not poisoned").pop_front()
    }

    /// Handles an event of no connection. Returns the connections that must end for new ones.
    pub(crate) fn accept_or_wake(self: &Arc<Server>, key: u64) -> Vec<Arc<Connection>> {
        if key == WAKE {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return Vec::new();
        }
        // Shared with nobody but a drain: that waits, and a pause locks them again.
        let listener = self.listeners().get((key - FIRST_LISTENER) as usize).cloned();
        listener.map_or_else(Vec::new, |listener| self.accept(&listener))
    }

    /// Reads a connection once; an error says why it must be closed.
    pub(crate) fn read(
        &self,
        connection: &Arc<Connection>,
        scratch: &mut [u8],
        arrivals: &mut IntakeBatch,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), String> {
        let bounds = self.bounds();
        let mut input = connection.input.lock().expect("not poisoned");
        let mut session = connection.session.lock().expect("not poisoned");
        if session.paused || connection.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.is_draining() {
            // Replies that left have let it go on.
            session.pause(connection, &self.poll);
            return Ok(());
        }
        let ticked = Time::from_nanos(self.housekeeping.load(Ordering::Relaxed));
        connection.used_at(ticked.before(HOUSEKEEPING));
        let mut round = input.round(scratch);
        let mut filled = false;
        let result = loop {
            if session.is_over(bounds, connection.unsent()) {
                session.pause(connection, &self.poll);
                break Ok(());
            }
            let next = match session.stalled.take() {
                Some(frame) => Ok(Some(IncomingMessage::Buffered(frame))),
                None => round.next(session.msize),
            };
            let next = match next {
                Ok(next) => next,
                Err(error) => break Err(error.to_string()),
            };
            if let Some(incoming) = next {
                let memory = incoming.memory(session.msize);
                if !session.cover(self, connection, memory) {
                    session.stalled = Some(incoming.into_frame());
                    break Ok(());
                }
                if let Err(why) = self.receive(connection, &mut session, incoming, arrivals, outbox)
                {
                    break Err(why.to_string());
                }
                continue;
            }
            if filled || !session.cover(self, connection, round.pending()) {
                break Ok(());
            }
            filled = true;
            match round.fill(&connection.socket) {
                Ok(None) => break Ok(()),
                Ok(Some(0)) => break Err("closed by the peer".into()),
                Ok(Some(count)) => {
                    let all = connection.received.fetch_add(count as u64, Ordering::Relaxed);
                    let before = (all + count as u64).saturating_sub(session.detached.0);
                    if !session.attached && before > bounds.before_attach as u64 {
                        break Err(format!(
                            "more than {} bytes before attach",
                            bounds.before_attach
                        ));
                    }
                }
                Err(error) => break Err(error.to_string()),
            }
        };
        connection.in_flight.store(session.tags.len(), Ordering::Relaxed);
        self.enqueue_batch(&mut session, arrivals);
        result
    }

    /// Ends a connection and its requests in flight. Returns its open files for closing.
    pub(crate) fn close(
        &self,
        connection: &Arc<Connection>,
        why: &dyn fmt::Display,
    ) -> DeferredClose {
        if connection.closed.swap(true, Ordering::AcqRel) {
            return DeferredClose::default();
        }
        tracing::debug!(connection = connection.id, nid = %connection.peer.nid, "closed: {why}");
        let _ = epoll::delete(&self.poll, &connection.socket);
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        let mut session = connection.session.lock().expect("not poisoned");
        let leaving = self.end_session(connection, &mut session);
        (session.stalled, session.memory) = (None, None);
        drop(session);
        connection.drop_unsent();
        self.merge_closed(connection);
        self.connections.write().expect("not poisoned").remove(&connection.id);
        leaving
    }
}
