//! A controller that leads: its threads, and the messages between them. Before that it is a
//! [`StandbyController`].
//!
//! ```text
//!              ┌ control (tokio) ┐ reports, looks  ┌ plan ┐ members  ┌ store ┐
//!   TCP, Unix ►│ routes          ├────────────────►│ Desk ├─────────►│ disk  │
//!              │                 │◄─── orders ─────┤      │◄─────────┤ etcd  │
//!              │                 │  usage          └─▲────┘ rules    └───▲───┘
//!              │                 ├──────► usage: Ledger, Accounts        │
//!              │                 ├──────────── PUT rules ────────────────┘
//!              └─────────────────┘        all of them ─► events ─► disk, command, webhook
//! ```
//!
//! Every queue is bounded. The API and the plan never wait: if a queue of the API is full, the
//! caller gets 503; if the queue from the plan to the store is full, the plan retries. The store
//! waits for the plan, which always drains its queue.

mod access;
mod accounts;
mod bounds;
mod calendar;
mod counts;
mod events;
mod fan_out;
mod hosts;
mod job_tokens;
mod listen;
mod listen_policy;
mod offline;
mod plan_actor;
mod queue;
mod records;
mod report;
mod rights;
mod routes;
mod standby;
mod usage;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::EventKind;
use http::{BindError, Credentials, CredentialsError, Endpoint, HostName, HttpServer, TlsFiles};
use rules::RuleFileError;

use self::bounds::ControllerBounds;
use crate::audit::{Audit, AuditError};
use crate::clock::WallClock;
use crate::directory::{DataDirectory, DirectoryError};
use crate::election::{Election, Leadership};
use crate::etcd::{EtcdClient, EtcdError};
use crate::ledger::LedgerError;
use crate::sqlite::SqliteError;
use crate::store::StoreError;
use access::AccessControl;
use accounts::DecayAccounting;
use calendar::{CalendarActor, CalendarOutputs};
use counts::Counts;
use events::{EventDelivery, EventPublisher, RecentEvents};
use queue::{MsgQueue, queue};
use records::{PublishedRules, Records};

pub use calendar::ReservationSettings;
pub use events::{ParseWebhookError, Webhook};
pub use offline::{Offline, OfflineError};
pub use records::TokenFailed;
pub use rights::markdown;
pub use routes::openapi;
pub use standby::StandbyController;

/// The settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The state directory, one per controller.
    pub data: PathBuf,
    /// The store of rules, tokens and proxies; everything else is in `data` in any case.
    pub store: StorePlace,
    /// Where its API listens: `http://IP:PORT` of this machine's loopback, `unix:///path`, and
    /// `https://IP:PORT` where there are tokens. Port 0 lets the system choose.
    pub listen: Vec<Endpoint>,
    /// Names under which it answers on loopback besides `localhost` and loopback addresses, as
    /// behind a reverse proxy.
    pub allowed_hosts: Vec<HostName>,
    /// The certificate of its `https://` endpoints.
    pub tls: Option<TlsFiles>,
    /// Its credentials at the leader while it is a standby.
    pub credentials: Credentials,
    /// The endpoint at which other controllers connect to this one while it leads; `None`: where
    /// it listens.
    pub advertise: Option<Endpoint>,
    /// A command that is run for each event, with the event as JSON on its standard input: words,
    /// or a line for the shell.
    pub on_event: Option<String>,
    /// The URL to which each event is posted as JSON.
    pub webhook: Option<Webhook>,
    /// What may be reserved, and by whom.
    pub reservations: ReservationSettings,
    /// The clock of minutes, periods and events.
    pub clock: WallClock,
}

/// The store of rules, tokens and proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// In its data directory.
    Data,
    /// In etcd, with one leader and standbys.
    Etcd(EtcdClient),
}

/// A running controller; ends when dropped.
pub struct Controller {
    /// Dropped last, after the last decision: a standby takes over at once.
    election: Option<Election>,
    serving: Option<HttpServer>,
    shared: Arc<ApiState>,
    threads: Vec<JoinHandle<()>>,
    _directory: DataDirectory,
}

/// An error at the start of a controller.
#[derive(Debug, thiserror::Error)]
pub enum ControllerStartError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The election among several.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The store of rules, tokens and proxies.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored rules: perhaps of a later version of this program.
    #[error("cannot read the stored rules: {}", .0.in_file("rules"))]
    Rules(RuleFileError),
    /// The ledger cannot be opened.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The file of events.
    #[error(transparent)]
    Events(#[from] SqliteError),
    /// The controller cannot listen at one of its endpoints.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// An endpoint that other machines could reach.
    #[error("{endpoint} can be reached by other machines, and {lacks}\n{commands}")]
    Open {
        /// The endpoint as it was given.
        endpoint: Endpoint,
        /// The missing protection, and what to do about it.
        lacks: &'static str,
        /// The commands that create it.
        commands: String,
    },
    /// An `https://` endpoint without a certificate.
    #[error("{endpoint} requires a certificate; add --tls-cert FILE --tls-key FILE\n{commands}")]
    NoCertificate {
        /// The endpoint as it was given.
        endpoint: Endpoint,
        /// The commands that create a certificate.
        commands: String,
    },
    /// An endpoint to which other controllers cannot connect.
    #[error("other controllers cannot connect to {endpoint}; add --advertise https://NAME:PORT")]
    Nameless {
        /// The endpoint as it was given.
        endpoint: Endpoint,
    },
    /// The certificate, or the credentials at the leader.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No endpoint was given.
    #[error("no address to listen at; add --listen http://127.0.0.1:PORT or unix:///path")]
    Nowhere,
    /// A thread or its means.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// The state that the API's handlers share.
pub(crate) struct ApiState {
    plan: MsgQueue<plan_actor::PlanMsg>,
    store: MsgQueue<records::StoreMsg>,
    calendar: MsgQueue<calendar::CalendarMsg>,
    usage: MsgQueue<usage::UsageMsg>,
    events: MsgQueue<events::EventMsg>,
    recent: Arc<RecentEvents>,
    usage_acks: Arc<usage::UsageAcks>,
    rules: Arc<RwLock<Arc<PublishedRules>>>,
    access: Arc<AccessControl>,
    bounds: Arc<ControllerBounds>,
    began: Instant,
    clock: WallClock,
    term: u64,
    store_location: String,
    listeners: Vec<String>,
    data: PathBuf,
    counts: Arc<Counts>,
    /// The decoder of reports, which knows the names of recent ones.
    reports: api::ReportDecoder,
}

impl Controller {
    /// Reads the store and starts to decide.
    fn begin(with: standby::LeaderInit) -> Result<Controller, ControllerStartError> {
        let mut records = Records::open(with.store)?;
        let term = records.begin(with.election.as_ref().map(|(_, fence)| fence.term()))?;
        let rules = Arc::new(records.rules().map_err(ControllerStartError::Rules)?);
        let open = with.settings.listen.iter().any(|endpoint| !endpoint.is_local());
        let access = AccessControl::new(records.tokens(), Audit::open(&with.settings.data)?, open);
        let access = Arc::new(access);
        let mut ledger = with.ledger;
        ledger.lead(term);

        let (plan, plan_asked) = queue(PLAN_QUEUE);
        let (store, store_asked) = queue(STORE_QUEUE);
        let (usage, usage_asked) = queue(USAGE_QUEUE);
        let (calendar, calendar_asked) = queue(CALENDAR_QUEUE);
        let (events, events_asked) = queue(EVENTS_QUEUE);
        let recent = Arc::new(RecentEvents::of(&with.events)?);
        let counts = Arc::new(Counts::default());
        let clock = with.settings.clock;
        let teller = EventPublisher::new(events.clone(), counts.clone(), clock.clone());
        let (command, webhook) = (with.settings.on_event, with.settings.webhook);
        let deliveries = EventDelivery::start(command.as_deref(), webhook.as_ref(), &counts);
        let deliveries = deliveries.map_err(ControllerStartError::Thread)?;
        let shared = Arc::new(ApiState {
            reports: api::ReportDecoder::default(),
            plan,
            store,
            calendar,
            usage,
            events,
            recent: recent.clone(),
            usage_acks: Arc::default(),
            rules: Arc::new(RwLock::new(rules.clone())),
            access: access.clone(),
            bounds: with.bound.bounds().clone(),
            began: Instant::now(),
            clock: clock.clone(),
            term,
            store_location: with.store_location,
            listeners: with.listeners,
            data: with.settings.data,
            counts,
        });
        let standings = records.throttled_keys();
        let known = accounts::known(&standings, &with.events);
        let links = accounts::AccountOutputs {
            plan: shared.plan.clone(),
            store: shared.store.clone(),
            publisher: teller.clone(),
            counts: shared.counts.clone(),
        };
        let now = clock.now();
        let accounts =
            DecayAccounting::begin(&mut ledger, rules.clone(), standings, known, links, now)?;
        let outputs = CalendarOutputs {
            store: shared.store.clone(),
            plan: shared.plan.clone(),
            publisher: teller.clone(),
            access: access.clone(),
            counts: shared.counts.clone(),
            clock: clock.clone(),
        };
        let mut reservations =
            CalendarActor::new(records.calendar(), &rules.set, with.settings.reservations, outputs);
        let desk = plan_actor::PlanActor::new(
            term,
            rules,
            records.known_proxies(),
            shared.store.clone(),
            teller.clone(),
            shared.counts.clone(),
            shared.calendar.clone(),
        );
        let (plan, usage) = (shared.plan.clone(), shared.usage.clone());
        let (to, in_force) = (
            records::StoreOutputs { plan, usage, publisher: teller.clone() },
            shared.rules.clone(),
        );
        let (taken, counts) = (shared.usage_acks.clone(), shared.counts.clone());
        let mut controller = Controller {
            election: with.election.map(|(election, _)| election),
            serving: None,
            shared: shared.clone(),
            threads: Vec::new(),
            _directory: with.directory,
        };
        controller.spawn("plan", move || desk.run(&plan_asked))?;
        reservations.send_restored_rows();
        controller.spawn("store", move || {
            records::run(records, &store_asked, &to, &in_force, &access);
        })?;
        controller.spawn("calendar", move || reservations.run(&calendar_asked))?;
        controller.spawn("usage", move || {
            usage::run(ledger, accounts, &clock, &usage_asked, &taken, &counts);
        })?;
        let (file, counts) = (with.events, shared.counts.clone());
        controller.spawn("events", move || {
            events::run(file, &events_asked, &recent, &deliveries, &counts);
        })?;
        let place = controller.shared.listeners.join(",");
        let text = format!("the controller at {place} is now the leader, term {term}");
        teller.publish_now(EventKind::Leader, place, text);
        controller.serving = Some(with.bound.serve(routes::router(shared))?);
        Ok(controller)
    }

    /// Waits until it has lost leadership, or `patience` is over; true if it still leads. A
    /// controller without etcd always leads.
    pub fn leads_after(&self, patience: Duration) -> bool {
        let Some(election) = &self.election else {
            std::thread::sleep(patience);
            return true;
        };
        let office = election.leadership();
        let leads = matches!(office, Leadership::Leader(_));
        leads && matches!(election.wait_for_change(&office, patience), Leadership::Leader(_))
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), ControllerStartError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(api::critical(run));
        self.threads.push(thread.map_err(ControllerStartError::Thread)?);
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // First the calls, then whom they ask; what was used is written last.
        drop(self.serving.take());
        // A thread that has ended already needs no telling.
        let _ = self.shared.calendar.send(calendar::CalendarMsg::Stop);
        let _ = self.shared.store.send(records::StoreMsg::Stop);
        let _ = self.shared.plan.send(plan_actor::PlanMsg::Stop);
        let _ = self.shared.usage.send(usage::UsageMsg::Stop);
        let _ = self.shared.events.send(events::EventMsg::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the controller panicked");
            }
        }
        drop(self.election.take());
    }
}

/// The most reports that wait for the plan: some milliseconds of a thousand proxies.
const PLAN_QUEUE: usize = 1_024;
/// The most calls about reservations that wait while a record is written.
const CALENDAR_QUEUE: usize = 1_024;
/// The most changes that wait for the disk.
const STORE_QUEUE: usize = 64;
/// The most events that wait for the disk: one of each of some thousand proxies and users.
const EVENTS_QUEUE: usize = 4_096;
/// The most usage reports that wait while a minute is written.
const USAGE_QUEUE: usize = 1_024;
