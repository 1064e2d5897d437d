//! The proxy's client of its controller: it reports usage and applies what the replies assign.
//!
//! ```text
//!   dispatchers ─ usage ─► ControllerSession ─ report ─► ReportSender ─ HTTP ─► controller
//!        ▲                    │      ▲                   (two threads)           │
//!        └─ grants, rows ◄────┘      └── assignment ◄─┐                          │
//!   rules in force ◄──────── rules ◄──────────────────┴── ControllerReply ◄──────┘
//! ```
//!
//! Requests never wait for this client. Two threads send, since each call is a long poll: the
//! controller replies when there is a change, when the next report arrives, or after half a second.
//! So one call can be open while the next is made. A report that cannot be sent is dropped, and a
//! later report repeats its content. `plan::ControllerSession` decides what is in force when the
//! controller is unreachable and the lease expires.

mod description;
mod state;

use std::io;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use api::{
    ALL_TARGETS, ControllerReply, ErrorCode, ProxyDescription, ProxyReply, ProxyReport, RulesText,
    is_name,
};
use http::{ApiClient, ClientError, Credentials, Endpoints};
use model::{SharePool, Time};
use plan::{ControllerSession, LeaseExpiry, ProxyScopes, ScopeName, SessionSettings};
use sched::AccountReport;
use usage::{AccountTotals, UsageReport, UsageReporter};

use crate::config::{ControllerUnreachable, ProxyConfig};
use crate::server::Server;
use state::refusal;

pub(crate) use state::ControllerClientState;

/// The thread that reports to the controller; it ends when this is dropped.
pub struct ControllerClient {
    events: Sender<LoopEvent>,
    thread: Option<JoinHandle<()>>,
}

/// Errors that keep a proxy from using a controller.
#[derive(Debug, thiserror::Error)]
pub enum ControllerClientError {
    /// The proxy's name is not valid.
    #[error(
        "the machine's name {name:?} is not letters, digits, '_', '-' and '.'; set the proxy's \
         name with --name NAME"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The client of the controller's API cannot be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A thread cannot be started.
    #[error("cannot start the controller thread")]
    Thread(#[source] io::Error),
}

/// Events that the thread waits for.
enum LoopEvent {
    /// A reply, and the description that it acknowledges.
    Order(ControllerReply, Option<Arc<ProxyDescription>>),
    Failed(ClientError),
    Stop,
}

/// State of the reporting thread.
struct ReportLoop {
    server: Arc<Server>,
    controller: Endpoints,
    name: Arc<str>,
    epoch: u64,
    sessions: Vec<PoolSession>,
    settings: SessionSettings,
    /// What this proxy has of that which rows of entitlements name, and what that was made of: how
    /// often jobs and users came or went, and the configuration's names.
    scopes: Arc<ProxyScopes>,
    scopes_of: (u64, Vec<ScopeName>),
    /// What this proxy has, the configuration that it was made of, and when it is sent next.
    description: Arc<ProxyDescription>,
    described: Option<Arc<ProxyConfig>>,
    description_due: Instant,
    usage: UsageReporter,
    posts: SyncSender<ProxyReport>,
    /// Replies to the controller's queries that are not sent yet.
    answers: Vec<ProxyReply>,
    /// Calls without a reply, including those that wait for a sender thread.
    in_flight: usize,
    /// The version of the rules that the controller sent.
    rules: Option<String>,
    /// The greatest term of a controller that replied.
    term: u64,
    /// The time until which no call is made, since the controller refused one.
    paused: Option<Instant>,
}

/// Calls the controller.
struct ReportSender {
    client: ApiClient,
    controller: Endpoints,
    credentials: Credentials,
    name: String,
}

/// The controller session of all limits, or of one target.
struct PoolSession {
    /// The name of the target, or [`ALL_TARGETS`].
    name: Arc<str>,
    pool: SharePool,
    session: ControllerSession,
}

impl ControllerClient {
    /// Starts the client of the configured controller; `None` if none is configured.
    ///
    /// # Errors
    /// If the proxy has no name, or threads cannot be started. A controller that does not answer is
    /// not an error.
    pub fn start(server: &Arc<Server>) -> Result<Option<ControllerClient>, ControllerClientError> {
        let settings = server.settings();
        let Some(controller) = settings.controller.clone() else { return Ok(None) };
        let name = settings.proxy_name.clone().unwrap_or_else(machine);
        if !is_name(&name) {
            return Err(ControllerClientError::Name { name });
        }
        let (posts, to_post) = sync_channel(1);
        let (events, heard) = channel();
        let to_post = Arc::new(Mutex::new(to_post));
        for _ in 0..POSTERS {
            let poster = ReportSender {
                client: client(&controller, &settings.credentials())?,
                controller: controller.clone(),
                credentials: settings.credentials(),
                name: name.clone(),
            };
            let (to_post, events) = (to_post.clone(), events.clone());
            spawn("link-post", move || poster.run(&to_post, &events))?;
        }
        server.link.begin(controller.to_string(), &name);
        let driver = ReportLoop {
            server: server.clone(),
            controller,
            name: name.as_str().into(),
            epoch: unix_time_ns(),
            sessions: Vec::new(),
            settings: SessionSettings {
                lease_expiry: match settings.controller_unreachable {
                    ControllerUnreachable::Equal => LeaseExpiry::Equal,
                    ControllerUnreachable::Keep => LeaseExpiry::KeepLast,
                    ControllerUnreachable::Full => LeaseExpiry::Full,
                },
                ..SessionSettings::default()
            },
            scopes: Arc::default(),
            scopes_of: (0, Vec::new()),
            description: Arc::default(),
            described: None,
            description_due: Instant::now(),
            usage: UsageReporter::default(),
            posts,
            answers: Vec::new(),
            in_flight: 0,
            rules: None,
            term: 0,
            paused: None,
        };
        let thread = spawn("link", move || driver.run(&heard))?;
        Ok(Some(ControllerClient { events, thread: Some(thread) }))
    }
}

impl Drop for ControllerClient {
    fn drop(&mut self) {
        // Sender threads end by themselves, when their call returns.
        let _ = self.events.send(LoopEvent::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the controller thread panicked");
        }
    }
}

impl ReportLoop {
    fn run(mut self, events: &Receiver<LoopEvent>) {
        let mut tick = Instant::now();
        loop {
            match events.recv_timeout(tick.saturating_duration_since(Instant::now())) {
                Ok(LoopEvent::Order(order, described)) => {
                    self.in_flight -= 1;
                    if described.is_some_and(|of| Arc::ptr_eq(&of, &self.description)) {
                        self.description_due = Instant::now() + DESCRIBED_AGAIN;
                    }
                    self.server.link.answered(&order, self.server.clock.now());
                    if self.receive(&order) {
                        self.report(false);
                    }
                    self.apply_grants();
                }
                Ok(LoopEvent::Failed(error)) => {
                    self.in_flight -= 1;
                    self.handle_failure(&error);
                }
                Ok(LoopEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= tick {
                tick = Instant::now() + TICK;
                self.register_targets();
                self.set_scopes();
                self.describe();
                if self.paused.is_none_or(|until| tick > until) {
                    self.paused = None;
                    self.report(true);
                }
                self.apply_grants();
            }
            self.send_replies();
            self.send_long_poll();
        }
    }

    /// Registers for the limits, and for targets that are new.
    fn register_targets(&mut self) {
        let targets = self.server.targets().into_iter();
        let targets =
            targets.map(|target| (target.name.as_str().into(), SharePool::Target(target.id)));
        let all = std::iter::once((ALL_TARGETS.into(), SharePool::Limits)).chain(targets);
        for (name, pool) in all.skip(self.sessions.len()) {
            let now = self.server.clock.now();
            let session = ControllerSession::new(&self.name, self.epoch, self.settings, now);
            self.sessions.push(PoolSession { name, pool, session });
        }
    }

    /// Gives the sessions what this proxy has of that which rows of entitlements name.
    fn set_scopes(&mut self) {
        let (targets, exports) = (self.server.targets(), self.server.exports());
        let targets = targets.iter().map(|target| ScopeName::Target(target.name.as_str().into()));
        let exports = exports.iter().map(|export| ScopeName::Export(export.name.clone()));
        let configured: Vec<_> = targets.chain(exports).collect();
        let changes = self.server.gate.with_dispatcher(|d, _| d.identity_changes()).unwrap_or(0);
        let of = (changes, configured);
        if self.scopes_of != of {
            let all = self.server.gate.with_dispatcher(|d, _| {
                let jobs = d.jobs().cloned().map(ScopeName::Job);
                let users = d.users().map(ScopeName::User);
                ProxyScopes::named(of.1.iter().cloned().chain(jobs).chain(users))
            });
            let next = self.scopes.followed_by(all.unwrap_or_default());
            if *self.scopes != next {
                self.scopes = next.into();
            }
            self.scopes_of = of;
        }
        self.sessions.iter_mut().for_each(|of| of.session.set_scopes(&self.scopes));
    }

    /// Describes this proxy again if its configuration, targets or exports are others.
    fn describe(&mut self) {
        let settings = self.server.settings();
        if self.described.as_ref().is_some_and(|of| Arc::ptr_eq(of, &settings)) {
            return;
        }
        let (targets, exports) = (self.server.targets(), self.server.exports());
        let described = description::describe(&settings, &targets, &exports);
        description::warn_of_less(&described, &self.description);
        self.description = described.into();
        self.described = Some(settings);
        self.description_due = Instant::now();
    }

    /// Sends what is to be reported, with the usage if a tick has passed.
    fn report(&mut self, with_uses: bool) {
        let now = self.server.clock.now();
        let mut report = self.empty_report();
        let gate = &self.server.gate;
        for PoolSession { name, pool, session } in &mut self.sessions {
            let used = || match *pool {
                SharePool::Limits => gate.with_dispatcher(|d, now| d.take_limit_usage(now)),
                SharePool::Target(id) => gate.with_dispatcher(|d, now| d.take_class_usage(id, now)),
            };
            let uses = with_uses.then(|| used().unwrap_or_default());
            if let (SharePool::Target(id), true) = (*pool, with_uses) {
                let claim = gate.with_dispatcher(|d, _| d.slots_claim(id));
                session.set_slots_claim(claim.flatten());
                let waited = gate.with_dispatcher(|d, _| d.take_waited(id));
                session.add_waited(waited.unwrap_or_default());
            }
            if *pool == SharePool::Limits {
                let parents = gate.with_dispatcher(|d, now| d.parent_activity(now));
                session.set_parents(parents.unwrap_or_default());
            }
            if let SharePool::Target(id) = *pool {
                let served = gate.with_dispatcher(|d, _| d.take_unreported(id));
                let served = served.unwrap_or_default();
                served.iter().for_each(|(class, cost)| session.serve(class, *cost, now));
            }
            if let Some(said) = session.report(uses, now) {
                report.targets.push((name.clone(), said));
            }
        }
        if with_uses {
            report.usage = self.usage_report(now);
            report.contended = report.usage.is_some() && self.is_contended();
        }
        if with_uses && Instant::now() >= self.description_due {
            report.description = Some(self.description.clone());
        }
        let has_more = report.usage.is_some() || report.description.is_some();
        if !report.targets.is_empty() || has_more {
            self.post(report);
        }
    }

    /// The usage to report now, if any.
    fn usage_report(&mut self, now: Time) -> Option<UsageReport> {
        let gate = &self.server.gate;
        let rules = gate.rules().set;
        if !self.usage.is_due(!rules.decays.is_empty(), now) {
            return None;
        }
        let accounts = gate.with_dispatcher(|d, now| {
            d.count_activity(now);
            (d.accounts().collect::<Vec<_>>(), d.take_closed_accounts())
        });
        let (accounts, closed) = accounts.unwrap_or_default();
        let totals = |AccountReport { id, subject, service, .. }: AccountReport| AccountTotals {
            id: id.to_bits(),
            subject,
            service,
        };
        accounts.into_iter().for_each(|account| self.usage.note(totals(account), now));
        closed
            .accounts
            .into_iter()
            .for_each(|account| self.usage.note_closed(totals(account), now));
        self.usage.add_rest(&closed.rest);
        self.usage.end_sweep(now)
    }

    /// Whether requests of several classes wait for one another at any target.
    fn is_contended(&self) -> bool {
        self.server.gate.with_dispatcher(|d, _| d.is_contended()).unwrap_or(false)
    }

    /// Makes a call without content if none is open, so that the controller can reply with changes.
    /// While the controller does not reply, the reports suffice.
    fn send_long_poll(&mut self) {
        if self.in_flight == 0 && self.server.link.is_answered() {
            let report = self.empty_report();
            self.post(report);
        }
    }

    fn empty_report(&self) -> ProxyReport {
        let (epoch, rules) = (self.epoch, self.rules.clone());
        ProxyReport { epoch, rules, ..ProxyReport::default() }
    }

    /// Sends each reply in a call of its own: a long one takes no room from a report of usage.
    fn send_replies(&mut self) {
        while let Some(reply) = self.answers.pop() {
            let report = ProxyReport { replies: vec![reply], ..self.empty_report() };
            if let Some(unsent) = self.post(report) {
                return self.answers.extend(unsent.replies);
            }
        }
    }

    /// Passes a report to a sender thread, and returns it if all wait for replies of the
    /// controller: the next report of usage repeats its content.
    fn post(&mut self, report: ProxyReport) -> Option<ProxyReport> {
        match self.posts.try_send(report) {
            Ok(()) => {
                self.in_flight += 1;
                None
            }
            Err(TrySendError::Full(report) | TrySendError::Disconnected(report)) => Some(report),
        }
    }

    /// Applies a reply of the controller; true if something is to be reported at once.
    fn receive(&mut self, order: &ControllerReply) -> bool {
        if order.term < self.term {
            return false;
        }
        if order.term > self.term {
            self.term = order.term;
            self.description_due = Instant::now();
            self.usage.reset();
        }
        let mut asks = false;
        if let Some(rules) = &order.rules {
            asks |= self.apply_rules(rules);
        }
        if let Some(sequence) = order.usage_acknowledged {
            self.usage.acknowledge(sequence);
        }
        let questions = order.queries.iter().take(QUESTIONS_MAX);
        self.answers.extend(questions.map(|question| self.server.answer_controller(question)));
        self.answers.truncate(QUESTIONS_MAX);
        let now = self.server.clock.now();
        for PoolSession { name, session, .. } in &mut self.sessions {
            let of_session = order.targets.iter().filter(|(target, _)| target == name);
            for (_, assignment) in of_session {
                asks |= session.receive(assignment, now);
            }
        }
        asks
    }

    fn apply_rules(&mut self, rules: &RulesText) -> bool {
        if self.rules.as_ref() == Some(&rules.version) {
            return false;
        }
        match self.server.apply_controller_rules(&rules.text, &self.controller.to_string()) {
            Ok(()) => {
                tracing::info!(version = rules.version, "applied the controller's rules")
            }
            Err(error) => {
                let error = error.in_file("rules");
                tracing::error!("cannot apply the controller's rules: {error}");
            }
        }
        // Reported in either case: to receive these rules again would change nothing.
        self.rules = Some(rules.version.clone());
        true
    }

    fn apply_grants(&mut self) {
        let now = self.server.clock.now();
        let mut changed = false;
        let gate = &self.server.gate;
        for PoolSession { name, pool, session } in &mut self.sessions {
            while let Some(grants) = session.poll_grants(now) {
                tracing::debug!(target = &**name, ?grants, "granted");
                gate.with_dispatcher(|d, now| d.set_grants(*pool, &grants, now));
                changed = true;
            }
            if let Some(rows) = session.poll_rows(now) {
                tracing::debug!(target = &**name, rows = rows.len(), "entitlements changed");
                gate.set_entitlements(rows);
                changed = true;
            }
            let SharePool::Target(id) = *pool else {
                if let Some(remote) = session.poll_remote_parents(now) {
                    gate.with_dispatcher(|d, now| d.set_remote_activity(&remote, now));
                    changed = true;
                }
                continue;
            };
            while let Some((class, cost)) = session.poll_remote_service() {
                gate.with_dispatcher(|d, now| d.charge_class_remote_service(id, &class, cost, now));
            }
        }
        if changed {
            self.server.poke();
        }
    }

    /// Handles a call that failed or was refused.
    fn handle_failure(&mut self, error: &ClientError) {
        self.server.link.failed(error);
        let Some(code) = refusal(error) else { return };
        self.paused = Some(Instant::now() + REFUSED_PAUSE);
        if code == ErrorCode::EpochSuperseded {
            // A later process had this name and has ended: a new epoch takes over its shares.
            self.epoch = unix_time_ns().max(self.epoch + 1);
            for PoolSession { session, .. } in self.sessions.drain(..) {
                self.server.gate.set_entitlements(session.end());
            }
            self.usage.begin_epoch();
            self.rules = None;
        }
    }
}

impl ReportSender {
    /// Makes one call after another, until the channel is closed.
    fn run(mut self, reports: &Mutex<Receiver<ProxyReport>>, events: &Sender<LoopEvent>) {
        loop {
            let next = reports.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(report) = next else { return };
            let event = match self.client.report(&self.name, &report) {
                Ok(order) => LoopEvent::Order(order, report.description),
                Err(error) => {
                    self.reload_credentials();
                    LoopEvent::Failed(error)
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    }

    /// Reads the credentials again, since a token or certificate may have been replaced.
    fn reload_credentials(&mut self) {
        if self.credentials == Credentials::default() {
            return;
        }
        match client(&self.controller, &self.credentials) {
            Ok(client) => self.client = client,
            Err(error) => {
                tracing::debug!(%error, "cannot read the credentials; keeping the old ones")
            }
        }
    }
}

fn client(controller: &Endpoints, credentials: &Credentials) -> Result<ApiClient, ClientError> {
    let client = ApiClient::at(controller)?.with(credentials)?;
    Ok(client.with_connection_reuse().with_time_limit(CALL_TIME_MAX))
}

fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ControllerClientError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(api::critical(run))
        .map_err(ControllerClientError::Thread)
}

/// The current time in nanoseconds since 1970, as the epoch of this process.
fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// This machine's name, without its domain.
fn machine() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Interval at which the description is repeated, in case the controller has forgotten it.
const DESCRIBED_AGAIN: Duration = Duration::from_secs(60);
/// Interval of reports while usage changes.
const TICK: Duration = Duration::from_millis(100);
/// Time that a refused proxy waits until it reports again: an administrator has to act first.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Number of sender threads: one call may be open at the controller while the next is made.
const POSTERS: usize = 2;
/// Maximum number of queries that are answered at once, and of replies that wait to be sent.
const QUESTIONS_MAX: usize = 8;
/// The controller holds a call for a second at most.
const CALL_TIME_MAX: Duration = Duration::from_secs(4);
