//! One controller at work: its threads, and who hands what to whom. Before that it is
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
//! Every queue is bounded. The API and the plan never wait: where a queue of the API's is full,
//! the caller is told to come again; where the plan's to the store is, it asks again. The store
//! waits for the plan, which always comes round.

mod access;
mod accounts;
mod bounds;
mod counts;
mod events;
mod fan_out;
mod hosts;
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
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::{Credentials, CredentialsError, Endpoint, EventKind, HostName, SocketError};
use model::RuleFileError;

use self::bounds::ControllerBounds;
use crate::audit::{Audit, AuditError};
use crate::clock::WallClock;
use crate::directory::{DataDirectory, DirectoryError};
use crate::election::{Election, Leadership};
use crate::etcd::{EtcdClient, EtcdError};
use crate::ledger::LedgerError;
use crate::sqlite::SqliteError;
use crate::store::StoreError;
use crate::tls::TlsFiles;
use access::AccessControl;
use accounts::DecayAccounting;
use counts::Counts;
use events::{EventDelivery, EventPublisher, RecentEvents};
use listen::Serving;
use queue::{MsgQueue, queue};
use records::{PublishedRules, Records};

pub use events::{ParseWebhookError, Webhook};
pub use offline::{Offline, OfflineError};
pub use records::TokenFailed;
pub use rights::markdown;
pub use routes::openapi;
pub use standby::StandbyController;

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Where it keeps what it knows.
    pub data: PathBuf,
    /// Where it keeps what people decide; everything else is in `data` in any case.
    pub store: StorePlace,
    /// Where its API listens: `http://IP:PORT` of this machine's loopback, `unix:///path`, and
    /// `https://IP:PORT` where there are tokens. Port 0 lets the system choose.
    pub listen: Vec<Endpoint>,
    /// Names under which it answers on loopback besides `localhost` and loopback addresses, as
    /// behind a reverse proxy.
    pub allowed_hosts: Vec<HostName>,
    /// What it shows at `https://` places.
    pub tls: Option<TlsFiles>,
    /// What it shows the leader while it stands by.
    pub credentials: Credentials,
    /// Where the other controllers reach this one while it leads; `None`: where it listens.
    pub advertise: Option<Endpoint>,
    /// A command that is run for each event, with the event as JSON on its standard input: words,
    /// or a line for the shell.
    pub on_event: Option<String>,
    /// Where each event is posted as JSON.
    pub webhook: Option<Webhook>,
    /// What minutes, periods and events go by.
    pub clock: WallClock,
}

/// Where a controller keeps what people decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// In its data directory.
    Data,
    /// In etcd, where several controllers stand and one leads.
    Etcd(EtcdClient),
}

/// A running controller; ends when dropped.
pub struct Controller {
    /// Dropped last, when nothing is decided any more: whoever stands takes over at once.
    election: Option<Election>,
    serving: Option<Serving>,
    shared: Arc<ApiState>,
    threads: Vec<JoinHandle<()>>,
    _directory: DataDirectory,
}

/// Why a controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControllerStartError {
    /// Its directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The election among several.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// What people decided.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rules on record: of a later version of this program, perhaps.
    #[error("the rules on record cannot be read: {}", .0.in_file("rules"))]
    Rules(RuleFileError),
    /// What was used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// What happened.
    #[error(transparent)]
    Events(#[from] SqliteError),
    /// Its Unix socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its TCP port.
    #[error("cannot listen on {endpoint}: {source}")]
    Listen {
        /// The place.
        endpoint: Endpoint,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A place that others could reach.
    #[error("{endpoint} can be reached by other machines, and {lacks}\n{commands}")]
    Open {
        /// The place.
        endpoint: Endpoint,
        /// What is missing.
        lacks: &'static str,
        /// What makes it.
        commands: String,
    },
    /// A place over TLS without a certificate.
    #[error("{endpoint} needs a certificate: --tls-cert FILE --tls-key FILE\n{commands}")]
    NoCertificate {
        /// The place.
        endpoint: Endpoint,
        /// What makes one.
        commands: String,
    },
    /// A place where nobody could look for it.
    #[error("{endpoint} is no place that others could ask: say --advertise https://NAME:PORT")]
    Nameless {
        /// The place.
        endpoint: Endpoint,
    },
    /// Its certificate, or what it shows the leader.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Its audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No place.
    #[error("nowhere to listen: give --listen http://127.0.0.1:PORT or unix:///path")]
    Nowhere,
    /// A thread or its means.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What the API's handlers share.
pub(crate) struct ApiState {
    plan: MsgQueue<plan_actor::PlanMsg>,
    store: MsgQueue<records::StoreMsg>,
    usage: MsgQueue<usage::UsageMsg>,
    events: MsgQueue<events::EventMsg>,
    recent: Arc<RecentEvents>,
    taken: Arc<usage::UsageAcks>,
    rules: Arc<RwLock<Arc<PublishedRules>>>,
    access: Arc<AccessControl>,
    bounds: Arc<ControllerBounds>,
    began: Instant,
    clock: WallClock,
    term: u64,
    place: String,
    listeners: Vec<String>,
    data: PathBuf,
    counts: Arc<Counts>,
    /// What reports named lately.
    named: Mutex<api::ScopeInterner>,
}

impl Controller {
    /// Reads what is on record and begins to decide.
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
        let (events, events_asked) = queue(EVENTS_QUEUE);
        let recent = Arc::new(RecentEvents::of(&with.events)?);
        let counts = Arc::new(Counts::default());
        let clock = with.settings.clock;
        let teller = EventPublisher::new(events.clone(), counts.clone(), clock.clone());
        let (command, webhook) = (with.settings.on_event, with.settings.webhook);
        let deliveries = EventDelivery::start(command.as_deref(), webhook.as_ref(), &counts);
        let deliveries = deliveries.map_err(ControllerStartError::Thread)?;
        let shared = Arc::new(ApiState {
            named: Mutex::default(),
            plan,
            store,
            usage,
            events,
            recent: recent.clone(),
            taken: Arc::default(),
            rules: Arc::new(RwLock::new(rules.clone())),
            access: access.clone(),
            bounds: with.bound.bounds().clone(),
            began: Instant::now(),
            clock: clock.clone(),
            term,
            place: with.place,
            listeners: with.listeners,
            data: with.settings.data,
            counts,
        });
        let standings = records.standings();
        let known = accounts::known(&standings, &with.events);
        let links = accounts::AccountOutputs {
            plan: shared.plan.clone(),
            store: shared.store.clone(),
            teller: teller.clone(),
            counts: shared.counts.clone(),
        };
        let now = clock.now();
        let accounts =
            DecayAccounting::begin(&mut ledger, rules.clone(), (standings, known), links, now)?;
        let desk = plan_actor::PlanActor::new(
            term,
            rules,
            records.members(),
            shared.store.clone(),
            teller.clone(),
            shared.counts.clone(),
        );
        let (plan, usage) = (shared.plan.clone(), shared.usage.clone());
        let (to, in_force) =
            (records::StoreOutputs { plan, usage, teller: teller.clone() }, shared.rules.clone());
        let (taken, counts) = (shared.taken.clone(), shared.counts.clone());
        let mut controller = Controller {
            election: with.election.map(|(election, _)| election),
            serving: None,
            shared: shared.clone(),
            threads: Vec::new(),
            _directory: with.directory,
        };
        controller.spawn("plan", move || desk.run(&plan_asked))?;
        controller.spawn("store", move || {
            records::run(records, &store_asked, &to, &in_force, &access);
        })?;
        controller.spawn("usage", move || {
            usage::run((ledger, accounts), &clock, &usage_asked, &taken, &counts);
        })?;
        let (file, counts) = (with.events, shared.counts.clone());
        controller.spawn("events", move || {
            events::run(file, &events_asked, &recent, &deliveries, &counts);
        })?;
        let place = controller.shared.listeners.join(",");
        let text = format!("the controller at {place} decides now, term {term}");
        teller.tell_now(EventKind::Leader, place, text);
        controller.serving = Some(with.bound.serve(routes::router(shared))?);
        Ok(controller)
    }

    /// Waits until it does not lead any more, or `patience` is over; true if it still leads. A
    /// controller without etcd always does.
    pub fn leads_after(&self, patience: Duration) -> bool {
        let Some(election) = &self.election else {
            std::thread::sleep(patience);
            return true;
        };
        let office = election.office();
        let leads = matches!(office, Leadership::Leader(_));
        leads && matches!(election.changed(&office, patience), Leadership::Leader(_))
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

/// Reports that wait to be decided upon: some milliseconds of a thousand proxies.
const PLAN_QUEUE: usize = 1_024;
/// Changes that wait for the disk.
const STORE_QUEUE: usize = 64;
/// Events that wait for the disk: of each of some thousand proxies and users.
const EVENTS_QUEUE: usize = 4_096;
/// Usage reports that wait while a minute is written.
const USAGE_QUEUE: usize = 1_024;
