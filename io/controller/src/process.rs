//! One controller at work: its threads, and who hands what to whom. Before that it is
//! [`Standing`].
//!
//! ```text
//!              ┌ control (tokio) ┐ reports, looks  ┌ plan ┐ members  ┌ store ┐
//!   TCP, Unix ►│ routes          ├────────────────►│ Desk ├─────────►│ disk  │
//!              │                 │◄─── orders ─────┤      │◄─────────┤ etcd  │
//!              │                 │  usage          └──────┘ rules    └───▲───┘
//!              │                 ├──────► usage: Ledger                  │
//!              │                 ├──────────── PUT rules ────────────────┘
//!              └─────────────────┘
//! ```
//!
//! Every queue is bounded. The API and the plan never wait: where a queue of the API's is full,
//! the caller is told to come again; where the plan's to the store is, it asks again. The store
//! waits for the plan, which always comes round.

mod asking;
mod counts;
mod listen;
mod plan;
mod queue;
mod records;
mod routes;
mod standing;
mod usage;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::{Endpoint, SocketError};
use model::RuleFileError;

use crate::directory::{DataDirectory, DirectoryError};
use crate::election::{Election, Office};
use crate::etcd::{Etcd, EtcdError};
use crate::ledger::LedgerError;
use crate::store::StoreError;
use counts::Counts;
use listen::Serving;
use queue::{Queue, queue};
use records::{InForce, Records};

pub use routes::openapi;
pub use standing::Standing;

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it keeps what it knows.
    pub data: PathBuf,
    /// Where it keeps what people decide; everything else is in `data` in any case.
    pub store: StorePlace,
    /// Where its API listens: `http://IP:PORT` of this machine's loopback, `unix:///path`. Port
    /// 0 lets the system choose.
    pub listen: Vec<Endpoint>,
    /// Where the other controllers reach this one while it leads; `None`: where it listens.
    pub advertise: Option<Endpoint>,
}

/// Where a controller keeps what people decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// In its data directory.
    Data,
    /// In etcd, where several controllers stand and one leads.
    Etcd(Etcd),
}

/// A running controller; ends when dropped.
pub struct Controller {
    /// Dropped last, when nothing is decided any more: whoever stands takes over at once.
    election: Option<Election>,
    serving: Option<Serving>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    _directory: DataDirectory,
}

/// Why a controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
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
    #[error(
        "{endpoint} can be reached by other machines, and whoever reaches a controller may change \
         all rules: give http://127.0.0.1:PORT, http://[::1]:PORT or unix:///path"
    )]
    Open {
        /// The place.
        endpoint: Endpoint,
    },
    /// No place.
    #[error("nowhere to listen: give --listen http://127.0.0.1:PORT or unix:///path")]
    Nowhere,
    /// A thread or its means.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What the API's handlers share.
pub(crate) struct Shared {
    plan: Queue<plan::Ask>,
    store: Queue<records::Ask>,
    usage: Queue<usage::Ask>,
    taken: Arc<usage::Taken>,
    rules: Arc<RwLock<Arc<InForce>>>,
    began: Instant,
    term: u64,
    place: String,
    listeners: Vec<String>,
    data: PathBuf,
    counts: Arc<Counts>,
}

impl Controller {
    /// Reads what is on record and begins to decide.
    fn begin(with: standing::Inherited) -> Result<Controller, StartError> {
        let mut records = Records::open(with.store)?;
        let term = records.begin(with.election.as_ref().map(|(_, fence)| fence.term()))?;
        let rules = Arc::new(records.rules().map_err(StartError::Rules)?);
        let mut ledger = with.ledger;
        ledger.lead(term);

        let (plan, plan_asked) = queue(PLAN_QUEUE);
        let (store, store_asked) = queue(STORE_QUEUE);
        let (usage, usage_asked) = queue(USAGE_QUEUE);
        let shared = Arc::new(Shared {
            plan,
            store,
            usage,
            taken: Arc::default(),
            rules: Arc::new(RwLock::new(rules.clone())),
            began: Instant::now(),
            term,
            place: with.place,
            listeners: with.listeners,
            data: with.settings.data,
            counts: Arc::default(),
        });
        let desk = plan::Desk::new(
            term,
            rules,
            records.members(),
            shared.store.clone(),
            shared.counts.clone(),
        );
        let (to_plan, in_force) = (shared.plan.clone(), shared.rules.clone());
        let (taken, counts) = (shared.taken.clone(), shared.counts.clone());
        let mut controller = Controller {
            election: with.election.map(|(election, _)| election),
            serving: None,
            shared: shared.clone(),
            threads: Vec::new(),
            _directory: with.directory,
        };
        controller.spawn("plan", move || desk.run(&plan_asked))?;
        controller
            .spawn("store", move || records::run(records, &store_asked, &to_plan, &in_force))?;
        controller.spawn("usage", move || usage::run(ledger, &usage_asked, &taken, &counts))?;
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
        let leads = matches!(office, Office::Leading(_));
        leads && matches!(election.changed(&office, patience), Office::Leading(_))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // First the calls, then whom they ask; what was used is written last.
        drop(self.serving.take());
        // A thread that has ended already needs no telling.
        let _ = self.shared.store.send(records::Ask::Stop);
        let _ = self.shared.plan.send(plan::Ask::Stop);
        let _ = self.shared.usage.send(usage::Ask::Stop);
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
/// Usage reports that wait while a minute is written.
const USAGE_QUEUE: usize = 1_024;
