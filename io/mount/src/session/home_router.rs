//! The proxies of a mount, and which of them a file is at home with.
//!
//! ```text
//!   handle ─► MountGroup: the name with the highest rank ─► its session ─► its proxy
//!                                                       └─ gone: rank for its name ─► the next one
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
use model::Nanos;
use session::client::SessionLife;

use super::channel::LinkChannel;
use super::control::SessionControl;
use super::handshake::{Handshake, HandshakeError};
use super::identities::{IdentityTable, SessionIdentity};
use super::mount_group::{GroupError, MountGroup, ProbedSource};
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
    group: Arc<MountGroup>,
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

/// Reason why the sessions of a mount do not begin.
#[derive(Debug)]
pub(crate) enum RouterError {
    /// A proxy cannot be used.
    Source(Box<MountSource>, HandshakeError),
    /// The proxies are not of one group.
    Group(GroupError),
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
    pub(crate) fn begin(begin: RouterSettings<'_>) -> Result<ConnectedRouter, RouterError> {
        let RouterSettings { sources, threads, soft, replay_buffer: keep, id, client, leases } =
            begin;
        let at =
            |home: usize| move |error| RouterError::Source(Box::new(sources[home].clone()), error);
        let shared = MountState::new(threads, client, leases.filter(|_| sources.len() == 1))
            .map_err(|error| at(0)(Broken::from(error).into()))?;
        let shared = Arc::new(shared);
        // Handles of a gateway are its own: no other proxy or gateway knows them.
        let gateway = (sources.len() == 1).then(|| Arc::new(Gateway::default()));
        let ProbedSources { group, msize } = ProbedSources::probe(sources, gateway.as_deref())?;
        let group = Arc::new(group);
        let services = (sources.len() > 1).then(|| Arc::new(RemoteOpsTable::default()));
        let (mut links, mut root): (Vec<Arc<ClientSession>>, Option<Vec<u8>>) = Default::default();
        for home in 0..sources.len() {
            let indices = group.order_for(home);
            let seat = |_| ThreadChannel {
                channel: Mutex::new(LinkChannel::new(shared.abandoned.clone())),
                receiving: AtomicBool::new(false),
            };
            let link = Arc::new(ClientSession {
                shared: shared.clone(),
                home,
                sources: indices.iter().map(|at| sources[*at].clone()).collect(),
                indices,
                group: group.clone(),
                gateway: gateway.clone(),
                uncommitted: ReplayBuffer::new(keep / sources.len() as u64),
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
        Ok(ConnectedRouter { homes: HomeRouter { shared, links, group }, root, payload })
    }

    /// The index of the session with a file's home.
    pub(crate) fn of(&self, node: &MountNode) -> usize {
        self.group.home_of(&node.handle)
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

/// What the sources say before sessions begin.
struct ProbedSources {
    group: MountGroup,
    /// The largest message that all agree on, in bytes, so that a file may move.
    msize: u32,
}

impl ProbedSources {
    fn probe(sources: &[MountSource], gateway: Option<&Gateway>) -> Result<Self, RouterError> {
        let (mut probed, mut msize, mut first) = (Vec::new(), None, None);
        for source in sources {
            match Handshake::begin(source, gateway, PAYLOAD + ROOM) {
                Ok(talk) => {
                    msize = Some(msize.map_or(talk.msize, |least: u32| least.min(talk.msize)));
                    probed.push(match talk.group {
                        Some(member) => ProbedSource::Member(member),
                        None => ProbedSource::Ungrouped,
                    });
                }
                Err(error) => {
                    let is_missing =
                        matches!(error, HandshakeError::Connect(_) | HandshakeError::Broken(_));
                    let error = RouterError::Source(Box::new(source.clone()), error);
                    if !is_missing {
                        return Err(error);
                    }
                    first = first.or(Some(error));
                    probed.push(ProbedSource::Unreachable);
                }
            }
        }
        let Some(msize) = msize else { return Err(first.expect("there is a source")) };
        let group = MountGroup::new(sources, &probed).map_err(RouterError::Group)?;
        Ok(ProbedSources { group, msize })
    }
}

/// The largest payload of one message, in bytes: what the kernel reads or writes at once.
const PAYLOAD: u32 = 1 << 20;
/// Bytes of a message besides its payload, two long handles and a name among them.
pub(super) const ROOM: u32 = 12 << 10;
/// How often it is looked whether a proxy is back.
const FAIL_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Longer pause after calls had to pause in vain.
const FAIL_BACK_INTERVAL_MAX: Duration = Duration::from_secs(60);
