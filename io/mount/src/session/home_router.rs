//! The proxies of a mount, and which of them a file is at home with.
//!
//! ```text
//!   handle ─► highest score(handle, proxy) ─► its session ─► its proxy
//!                                                └─ gone: score(proxy, others) ─► the next one
//! ```
//!
//! Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit
//! rates", 1998): every mount finds the same homes without asking anybody, and a proxy more or
//! less moves only what is its own. Every proxy serves every file, so a home is where requests
//! go and nothing that must be right; docs/decisions/0008 has the rest.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fuse::{Errno, FuseRequestId};
use leases::{HomeCandidate, ObjectId};
use model::Nanos;
use session::client::SessionLife;

use super::channel::LinkChannel;
use super::control::SessionControl;
use super::handshake::{Handshake, HandshakeError};
use super::identities::{IdentityTable, SessionIdentity};
use super::remote_ops::RemoteOpsTable;
use super::replay_buffer::ReplayBuffer;
use super::signals::is_being_killed;
use super::socket::Broken;
use super::{ClientSession, MountState, ThreadChannel};
use crate::gateway::Gateway;
use crate::leases::MountRecall;
use crate::nodes::MountNode;
use crate::options::{MountSource, nanos};
use crate::write_behind::SentWrite;

/// The sessions of a mount, one with each of its proxies.
#[derive(Clone, Debug)]
pub(crate) struct HomeRouter {
    pub(crate) shared: Arc<MountState>,
    pub(crate) links: Vec<Arc<ClientSession>>,
    /// The names of their proxies.
    names: Vec<HomeCandidate>,
}

/// How the sessions of a mount begin.
#[derive(Debug)]
pub(crate) struct RouterSettings<'a> {
    /// The proxies that the mount names, at least one.
    pub(crate) sources: &'a [MountSource],
    pub(crate) threads: usize,
    pub(crate) soft: Option<Duration>,
    /// Bytes that are kept until they are durable.
    pub(crate) replay_buffer: u64,
    /// A random name for the sessions.
    pub(crate) id: u128,
    /// This mount's name as an owner of locks.
    pub(crate) client: String,
    /// For how long the kernel believes what it receives without leases, if the mount is to be a holder
    /// of some.
    pub(crate) leases: Option<Nanos>,
}

/// Sessions that are connected, and what they lead to.
pub(crate) struct ConnectedRouter {
    pub(crate) homes: HomeRouter,
    pub(crate) root: Vec<u8>,
    /// Payload that fits into one message, in bytes.
    pub(crate) payload: u32,
}

impl HomeRouter {
    /// Connects every channel of every session.
    ///
    /// # Errors
    /// Names the proxy at fault. If one of several is missing, others take over, and that is not an
    /// error.
    pub(crate) fn begin(
        begin: RouterSettings<'_>,
    ) -> Result<ConnectedRouter, (MountSource, HandshakeError)> {
        let RouterSettings { sources, threads, soft, replay_buffer: keep, id, client, leases } =
            begin;
        let at = |home: usize| move |error| (sources[home].clone(), error);
        let shared = MountState::new(threads, client, leases.filter(|_| sources.len() == 1))
            .map_err(|error| at(0)(Broken::from(error).into()))?;
        let shared = Arc::new(shared);
        let names: Vec<_> =
            sources.iter().map(|source| HomeCandidate::new(&source.to_string())).collect();
        // Handles of a gateway are its own: no other proxy or gateway knows them.
        let gateway = (sources.len() == 1).then(|| Arc::new(Gateway::default()));
        // All agree on one size of message, so that a file may move.
        let msize = sources
            .iter()
            .map(|source| Handshake::begin(source, gateway.as_deref(), PAYLOAD + ROOM))
            .map(|talk| talk.map(|talk| talk.msize))
            .reduce(|one, other| match (one, other) {
                (Ok(one), Ok(other)) => Ok(one.min(other)),
                (Ok(size), Err(_)) | (Err(_), Ok(size)) => Ok(size),
                (error, _) => error,
            });
        let msize = msize.expect("there is a source").map_err(at(0))?;
        let services = (sources.len() > 1).then(|| Arc::new(RemoteOpsTable::default()));
        let (mut links, mut root): (Vec<Arc<ClientSession>>, Option<Vec<u8>>) = Default::default();
        for home in 0..sources.len() {
            let order = order(&names, ObjectId::of(names[home].name().as_bytes()));
            let others = order.into_iter().filter(|other| *other != home);
            let sources = std::iter::once(home).chain(others).map(|at| sources[at].clone());
            let seat = |_| ThreadChannel {
                channel: Mutex::new(LinkChannel::new(shared.abandoned.clone())),
                receiving: AtomicBool::new(false),
            };
            let link = Arc::new(ClientSession {
                shared: shared.clone(),
                home,
                sources: sources.collect(),
                gateway: gateway.clone(),
                uncommitted: ReplayBuffer::new(keep / names.len() as u64),
                root: OnceLock::new(),
                msize,
                soft: soft.map(nanos),
                channels: (0..threads).map(seat).collect(),
                payers: IdentityTable::new(home, services.clone()),
                life: Mutex::new(SessionLife::new(id)),
                epoch: AtomicU64::new(0),
                pausing: AtomicBool::new(false),
                reconnecting: AtomicUsize::new(0),
            });
            link.lock_channel(0).state.push_control(SessionControl::Events);
            if let Some(root) = &root {
                link.root.set(root.clone()).expect("it is set once");
            }
            let told = link.connect().map_err(at(home))?;
            link.root.get_or_init(|| told.clone());
            root.get_or_insert(told);
            links.push(link);
        }
        let root = root.expect("there is a session");
        let payload = msize.saturating_sub(ROOM).min(PAYLOAD);
        Ok(ConnectedRouter { homes: HomeRouter { shared, links, names }, root, payload })
    }

    /// The index of the session with a file's home.
    pub(crate) fn of(&self, node: &MountNode) -> usize {
        match self.names.len() {
            1 => 0,
            _ => best(&self.names, ObjectId::of(&node.handle)),
        }
    }

    /// Returns the session of an identity.
    pub(crate) fn link(&self, payer: &SessionIdentity) -> &Arc<ClientSession> {
        &self.links[payer.home]
    }

    /// Handles a signal for the waiting caller of this request.
    pub(crate) fn interrupt(&self, request: FuseRequestId) {
        // In none of them it is answered, or about to be called: then it is found there.
        let _ = self.links.iter().any(|link| link.interrupt(request));
    }

    /// Sets the callback for writes that a proxy's machine has lost.
    pub(crate) fn on_writes_lost(&self, then: impl Fn(Vec<SentWrite>) + Send + Sync + 'static) {
        // Once for each mount.
        let _ = self.shared.on_writes_lost.0.set(Box::new(then));
    }

    /// Whether a waiter must be checked before long.
    pub(super) fn has_waiters(&self) -> bool {
        let MountState { signalled, write_behind: behind, abandoned, waits, .. } = &*self.shared;
        let any = signalled.any() || behind.any() || abandoned.any() || waits.any();
        any || self.links.iter().any(|link| link.uncommitted.is_full())
    }

    /// Detaches callers that are killed while they wait for writes, and those that got a signal
    /// that did not end them, and one since that does.
    pub(super) fn detach_signalled(&self) {
        let now = Instant::now();
        let kept =
            self.links.iter().flat_map(|link| link.uncommitted.detach_killed(now, is_being_killed));
        for then in
            self.shared.write_behind.detach_killed(now, is_being_killed).into_iter().chain(kept)
        {
            then(Err(Errno::INTR));
        }
        for (then, result) in self.shared.abandoned.take_due(now, is_being_killed) {
            then(result);
        }
        self.shared.waits.detach_killed(now, is_being_killed);
        for request in self.shared.signalled.take_due(now) {
            // Those that were answered meanwhile are in no channel.
            let mut links = self.links.iter();
            if let Some(link) = links.find(|link| link.has(request)) {
                link.interrupt(request);
            }
        }
    }

    /// Sets the callback for leases that a proxy recalls.
    pub(crate) fn on_recall(&self, then: impl Fn(&MountRecall<'_>) + Send + Sync + 'static) {
        // Once for each mount.
        let _ = self.shared.on_recall.0.set(Box::new(then));
    }

    /// Whether the mount is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::SeqCst)
    }

    /// Sees to it that sessions return to their own proxies; ends with the mount.
    pub(crate) fn start_fail_back_thread(&self) {
        if self.links.len() < 2 {
            return;
        }
        let (links, shared) = (self.links.clone(), self.shared.clone());
        let helper = std::thread::Builder::new().name("homes".into());
        let watch = move || {
            let mut from = vec![Instant::now(); links.len()];
            while !shared.over.load(Ordering::SeqCst) {
                std::thread::park_timeout(FAIL_BACK_INTERVAL);
                for (link, from) in links.iter().zip(&mut from) {
                    if Instant::now() >= *from && !link.try_fail_back() {
                        *from = Instant::now() + FAIL_BACK_INTERVAL_MAX;
                    }
                }
            }
        };
        if let Err(error) = helper.spawn(api::critical(watch)) {
            tracing::warn!(%error, "cannot start the failback thread; failover is permanent");
        }
    }

    /// Ends reconnecting: the mount is gone.
    pub(crate) fn end(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.leases.wake();
    }
}

impl ClientSession {
    fn has(&self, request: FuseRequestId) -> bool {
        (0..self.channels.len()).any(|on| self.lock_channel(on).find(request).is_some())
    }
}

/// Returns the index of the home of an object.
fn best(names: &[HomeCandidate], object: ObjectId) -> usize {
    let best = names
        .iter()
        .enumerate()
        .max_by(|(_, one), (_, other)| one.rank(object).cmp(&other.rank(object)));
    best.map(|(at, _)| at).expect("there is a name")
}

/// Returns the indices of all names, the highest rank first.
fn order(names: &[HomeCandidate], object: ObjectId) -> Vec<usize> {
    let mut order: Vec<_> = (0..names.len()).collect();
    order.sort_by(|one, other| names[*other].rank(object).cmp(&names[*one].rank(object)));
    order
}

/// The largest payload of one message, in bytes: what the kernel reads or writes at once.
const PAYLOAD: u32 = 1 << 20;
/// Bytes of a message besides its payload, two long handles and a name among them.
pub(super) const ROOM: u32 = 12 << 10;
/// How often it is looked whether a proxy is back.
const FAIL_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Longer pause after calls had to pause in vain.
const FAIL_BACK_INTERVAL_MAX: Duration = Duration::from_secs(60);
