//! A standby controller: it copies the leader's ledger and names the leader.
//!
//! ```text
//!   directory, ledger ─► listen ─► election ─┬─ leading ──────────────────────────► Controller
//!                                            └─ standby: each second ──┐
//!        leader ◄─ GET /v1/ledger/changes?cursor ─────────────────────┤ apply
//!               ◄─ GET /v1/ledger/file, if that is too far behind ────┘ in place of ours
//!   any other call ─► 421, with the leader's endpoint
//! ```
//!
//! The usage of the leader's last second that was not copied is in the next report of each proxy:
//! reports are cumulative. Without etcd there are no other controllers, and it leads at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use api::{ControllerStatus, ErrorCode, ErrorReport, path};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use http::{ApiClient, Endpoints, RouteError};

use super::events::EventFile;
use super::listen::{self, BoundListener};
use super::offline::{decided_path, open_store};
use super::{
    Controller, ControllerSettings, ControllerStartError, StorePlace, hosts, listen_policy,
};
use crate::clock::WallClock;
use crate::directory::DataDirectory;
use crate::election::{Election, FencingToken, Leadership};
use crate::ledger::{Ledger, LedgerBounds, LedgerError, Retention};
use crate::store::Store;

/// A controller that is not the leader yet.
pub struct StandbyController {
    settings: ControllerSettings,
    directory: DataDirectory,
    bound: BoundListener,
    listeners: Vec<String>,
    election: Option<Election>,
    /// `None` while the file is to be replaced.
    ledger: Option<Ledger>,
    events: EventFile,
}

/// The initial state of a leader.
pub(super) struct LeaderInit {
    pub(super) settings: ControllerSettings,
    pub(super) directory: DataDirectory,
    pub(super) bound: BoundListener,
    pub(super) listeners: Vec<String>,
    pub(super) election: Option<(Election, FencingToken)>,
    pub(super) ledger: Ledger,
    pub(super) events: EventFile,
    pub(super) store: Box<dyn Store>,
    /// The description of its store.
    pub(super) store_location: String,
}

impl StandbyController {
    /// Locks the directory, reads the ledger, listens and campaigns for leadership.
    ///
    /// # Errors
    /// If the directory is another controller's or damaged, or it cannot listen.
    pub fn begin(settings: &ControllerSettings) -> Result<StandbyController, ControllerStartError> {
        if settings.listen.is_empty() {
            return Err(ControllerStartError::Nowhere);
        }
        let directory = DataDirectory::open(&settings.data)?;
        if settings.store == StorePlace::Data {
            // Before all that would miss it.
            drop(open_store(&settings.data, &settings.store, None)?);
        }
        let tls = listen_policy::check(settings)?;
        // Credentials at the leader are checked now, not when they are needed.
        settings.credentials.token()?;
        settings.credentials.tls()?;
        let ledger = open_ledger(&ledger_path(&settings.data), &settings.clock)?;
        let (bound, listeners) = listen::bind(&settings.listen, tls.as_ref(), hosts::of(settings))?;
        let election = match &settings.store {
            StorePlace::Data => None,
            StorePlace::Etcd(etcd) => {
                let name = settings.advertise.as_ref().map(ToString::to_string);
                Some(Election::campaign(etcd, &name.unwrap_or_else(|| listeners.join(",")))?)
            }
        };
        let (settings, ledger) = (settings.clone(), Some(ledger));
        let events = EventFile::open(&settings.data.join("events.db"), 0)?;
        Ok(StandbyController { settings, directory, bound, listeners, election, ledger, events })
    }

    /// Returns the endpoints at which it listens, with the ports that the system chose.
    pub fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// Waits until it is the leader, and starts to decide; `None` if it is to end before. Without
    /// etcd it
    /// leads at once.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn lead(
        mut self,
        ends: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Controller>, ControllerStartError> {
        let fence = match self.election.take() {
            None => None,
            Some(election) => match self.wait(election, ends)? {
                None => return Ok(None),
                fence => fence,
            },
        };
        let StandbyController {
            settings,
            directory,
            bound,
            listeners,
            election,
            ledger,
            mut events,
        } = self;
        if settings.store != StorePlace::Data {
            // The events of the former leader's last second were not copied.
            events.skip(EVENTS_OMITTED);
        }
        let store = open_store(&settings.data, &settings.store, fence.clone())?;
        let place = match &settings.store {
            StorePlace::Etcd(etcd) => {
                format!("etcd at {}, {}", etcd.endpoints.join(", "), etcd.prefix)
            }
            StorePlace::Data => format!("SQLite in {}", decided_path(&settings.data).display()),
        };
        let ledger = match ledger {
            Some(ledger) => ledger,
            None => open_ledger(&ledger_path(&settings.data), &settings.clock)?,
        };
        let election = election.zip(fence);
        let inherited = LeaderInit {
            settings,
            directory,
            bound,
            listeners,
            election,
            ledger,
            events,
            store,
            store_location: place,
        };
        Controller::begin(inherited).map(Some)
    }

    /// Copies and answers until the election is won, or the controller is to end.
    fn wait(
        &mut self,
        election: Election,
        ends: &mut dyn FnMut() -> bool,
    ) -> Result<Option<FencingToken>, ControllerStartError> {
        let told = Arc::new(StandbyApi {
            began: Instant::now(),
            listeners: self.listeners.clone(),
            state: RwLock::default(),
        });
        let serving = self.bound.clone().serve(router(told.clone()))?;
        let mut seen = Leadership::Standby { leader: None };
        let (mut now, mut troubled, mut due) = (StandbyState::default(), false, Instant::now());
        let fence = loop {
            if ends() {
                return Ok(None);
            }
            let office = election.wait_for_change(&seen, STOP_CHECK_INTERVAL);
            let leader = match &office {
                Leadership::Leader(fence) => break fence.clone(),
                Leadership::Standby { leader } => leader.clone(),
            };
            if office != seen {
                tracing::info!(leader = leader.as_deref().unwrap_or("none yet"), "standby");
            } else if Instant::now() < due {
                continue;
            }
            let asked = Instant::now();
            due = asked + COPY_EVERY;
            match leader.as_deref().and_then(|name| name.parse().ok()).map(|at| self.copy(&at)) {
                Some(Ok(())) => (now.copied, troubled) = (Some(asked), false),
                Some(Err(why)) if !std::mem::replace(&mut troubled, true) => {
                    tracing::warn!(why, "cannot copy the leader's ledger; retrying");
                }
                _ => {}
            }
            now.leader = leader;
            told.set(now.clone());
            seen = office;
        };
        drop(serving);
        self.election = Some(election);
        Ok(Some(fence))
    }

    /// Brings the ledger up to date with the leader's.
    fn copy(&mut self, leader: &Endpoints) -> Result<(), String> {
        let said = |error: &dyn std::error::Error| error.to_string();
        let client =
            ApiClient::at(leader).and_then(|client| client.with(&self.settings.credentials));
        let client = client.map_err(|error| said(&error))?.with_time_limit(COPY_TIME_MAX);
        self.copy_events(&client).map_err(|error| error.to_string())?;
        let path = ledger_path(&self.settings.data);
        let mut ledger = match self.ledger.take() {
            Some(ledger) => ledger,
            None => open_ledger(&path, &self.settings.clock).map_err(|error| said(&error))?,
        };
        for _ in 0..2 {
            let at = ledger.cursor();
            let query = format!(
                "born_ns={}&commit={}&term={}&boot={}&generation={}",
                at.born_ns, at.commit, at.term, at.boot, at.generation
            );
            let outcome = match client.ledger_changes(&query) {
                Ok(changes) => ledger.apply(&changes).map_err(|error| error.to_string()),
                Err(why) if why.code() == ErrorCode::CursorExpired => Err(said(&why)),
                Err(error) => {
                    self.ledger = Some(ledger);
                    return Err(said(&error));
                }
            };
            let Err(why) = outcome else {
                self.ledger = Some(ledger);
                return Ok(());
            };
            tracing::info!(why, "copying the leader's whole ledger");
            // Closed before its file is replaced.
            drop(ledger);
            let new = self.download_ledger(&client)?;
            fs::rename(new, &path).map_err(|error| said(&error))?;
            ledger = open_ledger(&path, &self.settings.clock).map_err(|error| said(&error))?;
        }
        self.ledger = Some(ledger);
        Err("the copy of the leader's whole ledger was too old; its disk may be slow".into())
    }

    /// Copies the leader's events that are not here.
    fn copy_events(&mut self, client: &ApiClient) -> Result<(), Box<dyn std::error::Error>> {
        for _ in 0..EVENT_PAGES {
            let since = self.events.newest();
            let page = client.events(&format!("since={since}&limit={EVENT_PAGE}"))?.events;
            self.events.insert_copies(&page)?;
            if page.len() < EVENT_PAGE {
                break;
            }
        }
        Ok(())
    }

    /// Copies the leader's whole ledger into a file beside ours.
    fn download_ledger(&self, client: &ApiClient) -> Result<PathBuf, String> {
        let path = self.settings.data.join("used.new");
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut options = api::private_options();
        let file = options.write(true).create(true).truncate(true).open(&path);
        let mut file = file.map_err(failed)?;
        client.ledger_file(&mut file).map_err(|error| error.to_string())?;
        file.sync_all().map_err(failed)?;
        Ok(path)
    }
}

/// The ledger's file in a data directory.
pub(super) fn ledger_path(data: &Path) -> PathBuf {
    data.join("used.db")
}

fn open_ledger(path: &Path, clock: &WallClock) -> Result<Ledger, LedgerError> {
    Ledger::open(path, Retention::default(), LedgerBounds::default(), clock.now())
}

// ---- the API of a standby ----

struct StandbyApi {
    began: Instant,
    listeners: Vec<String>,
    state: RwLock<StandbyState>,
}

#[derive(Clone, Default)]
struct StandbyState {
    leader: Option<String>,
    /// When the last successful copy was requested.
    copied: Option<Instant>,
}

impl StandbyApi {
    fn state(&self) -> StandbyState {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, now: StandbyState) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

fn router(told: Arc<StandbyApi>) -> Router {
    Router::new().route(path::STATUS, get(status)).fallback(refer_to_leader).with_state(told)
}

async fn status(State(told): State<Arc<StandbyApi>>) -> Json<ControllerStatus> {
    let StandbyState { leader, copied } = told.state();
    let nanos = |since: Instant| u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Json(ControllerStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        t_ns: nanos(told.began),
        is_leader: false,
        leader,
        replication_lag_ns: copied.map(nanos),
        listeners: told.listeners.clone(),
        ..ControllerStatus::default()
    })
}

async fn refer_to_leader(State(told): State<Arc<StandbyApi>>) -> RouteError {
    let Some(leader) = told.state().leader else {
        let message = "this controller is a standby and no leader is elected; retry in 5 s";
        return RouteError::new(ErrorCode::NoLeader, message);
    };
    let message = format!("this controller is a standby; the leader is {leader}");
    let report = ErrorReport::new(ErrorCode::NotLeader, message);
    ErrorReport { leader: Some(leader), ..report }.into()
}

/// The numbers of events that a new leader skips.
const EVENTS_OMITTED: u64 = 1_000;
/// The events of one page, and the pages of one copy.
const EVENT_PAGE: usize = 1_000;
const EVENT_PAGES: usize = 10;
/// The interval of checks whether the controller is to end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of copies of the leader's ledger.
const COPY_EVERY: Duration = Duration::from_secs(1);
/// The longest time of one copy; the whole file may be some hundred megabytes.
const COPY_TIME_MAX: Duration = Duration::from_secs(30);
