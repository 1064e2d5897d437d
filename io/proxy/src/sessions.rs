//! Sessions of the dialect: what a mount has here, whatever becomes of its connections.
//!
//! ```text
//!   connection ─ Form::Bound ─► Binding ─► MountSession: identities, fids, commits
//!        │ gone, or replaced       │                       channels: remembered replies
//!        ▼                         ▼
//!   queued: taken back     the last reply on its way to it is dropped with all that was
//!   executing: ends ─────► executing; only then the channel's next connection is bound
//! ```
//!
//! Every request of a bound connection holds its [`ChannelBinding`]. So the binding ends when
//! nothing of that connection is queued, executing or to be answered any more, and Rsession to
//! the connection that replaces it cannot come earlier: no call of the old connection is
//! executed after one of the new (docs/decisions/0006).
//!
//! Lock order: the table of sessions, then a session's channels; a connection's session
//! before a session's channels; a binding is never dropped while channels are locked.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use bounds::{Holder, ReclaimPlace, Worth, reclaim};
use model::{Nid, Time};
use ninep::Tag;
use ninep::dialect::ReplyHeader;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use session::server::{CommitTracker, ReplyCache, ReplyLookup, ReplySlotError};

use crate::bounds::Charge;
use crate::connection::{Connection, ConnectionPeer, ReplyTo};
use crate::export::{Export, ExportNode};
use crate::fids::{FidTable, OpenFid, ProxyUser};
use crate::handle_paths::{ClientPaths, PathTable};
use crate::intake::DeferredClose;
use crate::location::Location;
use crate::plain::PlainSession;
use crate::server::Server;

/// Protocol of a connection, by its last Tversion.
#[derive(Clone)]
pub(crate) enum Protocol {
    /// Base 9P2000.L, with a session of one connection.
    Base(Arc<PlainSession>),
    /// The dialect; no session yet.
    Unbound,
    /// The dialect, as one channel of a session.
    Bound(Arc<ChannelBinding>),
}

/// A connection's binding to a channel of a session; see the module's documentation.
pub(crate) struct ChannelBinding {
    pub(crate) session: Arc<MountSession>,
    channel: u16,
    server: Weak<Server>,
}

/// A mount's session at this proxy.
pub(crate) struct MountSession {
    pub(crate) export: Arc<Export>,
    /// User or address that may resume the session.
    owner: (Option<u32>, Nid),
    pub(crate) fids: FidTable,
    users: RwLock<FxHashMap<u32, (Arc<ProxyUser>, Charge)>>,
    channels: Mutex<BTreeMap<u16, SessionChannel>>,
    /// Names by which it reached the files that it names by handle.
    pub(crate) names: ClientPaths,
    commits: Mutex<CommitTracker>,
    committed: AtomicU64,
    verifier: Arc<AtomicU64>,
    /// Time when its last connection ended.
    left: Mutex<Instant>,
}

struct SessionChannel {
    slots: ReplyCache,
    /// Number of slots.
    granted: u16,
    /// The connection that has it, or is next in line for it.
    connection: Option<Weak<Connection>>,
    /// The next connection, once the calls of the former one have ended.
    next: Option<PendingBind>,
}

/// A Tsession that waits until the calls of its predecessor have ended.
pub(crate) struct PendingBind {
    pub(crate) to: ReplyTo,
    session: Arc<MountSession>,
    channel: u16,
    resumed: bool,
}

/// Fields of an Rsession message, and its destination.
pub(crate) struct BoundChannel {
    /// Destination of its answer: in the protocol of the session from here on.
    pub(crate) to: ReplyTo,
    pub(crate) slots: u16,
    pub(crate) resumed: bool,
    pub(crate) timeout: u32,
    pub(crate) root: Vec<u8>,
}

/// The table of sessions.
pub(crate) struct SessionTable {
    sessions: Mutex<FxHashMap<u128, Arc<MountSession>>>,
    /// Channels that have become free for their next connection.
    ready: Mutex<VecDeque<PendingBind>>,
    /// Verifier: changes when acknowledged writes may be lost.
    verifier: Arc<AtomicU64>,
    names: Arc<PathTable>,
    /// Start of the times of sessions.
    began: Instant,
    refused: AtomicU64,
    reclaimed: AtomicU64,
}

/// Result of a Tsession.
struct EnteredSession {
    /// The connection to bind now.
    next: Option<PendingBind>,
    /// The connection to close first.
    before: Option<Arc<Connection>>,
    /// Open files of the sessions that ended for it.
    files: Vec<Arc<OpenFid>>,
}

/// Parameters of a Tsession message.
#[derive(Clone, Copy)]
pub(crate) struct SessionParams {
    pub(crate) id: u128,
    pub(crate) channel: u16,
    pub(crate) slots: u16,
}

/// A call with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    pub(crate) slot: u16,
    pub(crate) sequence: u32,
}

/// Maximum number of slots of a channel: each keeps a reply.
const SLOTS_MAX: u16 = 64;
/// Maximum number of abandoned sessions that one scan of the table drops.
const AT_ONCE: usize = 64;
/// Maximum number of channels of a session.
const CHANNELS_MAX: usize = 256;
/// Maximum number of identities of a session.
const IDENTITIES_MAX: usize = 65_536;

impl Protocol {
    /// Returns the header of each reply; `None` in 9P2000.L.
    pub(crate) fn header(&self) -> Option<ReplyHeader> {
        match self {
            Protocol::Base(_) => None,
            Protocol::Unbound => Some(ReplyHeader::default()),
            Protocol::Bound(binding) => Some(binding.session.header()),
        }
    }

    pub(crate) fn binding(&self) -> Option<&Arc<ChannelBinding>> {
        match self {
            Protocol::Bound(binding) => Some(binding),
            Protocol::Base(_) | Protocol::Unbound => None,
        }
    }
}

impl ChannelBinding {
    /// Looks a call up in its slot. `Some`: it was executed, and this was its reply.
    pub(crate) fn begin(
        &self,
        once: IdempotencyKey,
        kind: u8,
    ) -> Result<Option<Vec<u8>>, ReplySlotError> {
        self.with_slots(|slots| match slots.begin(once.slot, once.sequence, kind)? {
            ReplyLookup::New => Ok(None),
            ReplyLookup::Replay(reply) => Ok(Some(reply.to_vec())),
            // On one connection a call is made once.
            ReplyLookup::Executing => {
                Err(ReplySlotError::Overlapping { slot: once.slot, sequence: once.sequence })
            }
        })
    }

    /// Keeps the reply of an executed call.
    pub(crate) fn end(&self, once: IdempotencyKey, reply: &[u8]) {
        self.with_slots(|slots| slots.end(once.slot, once.sequence, reply));
    }

    /// Notes that a call was cancelled before it was executed.
    pub(crate) fn abandon(&self, once: IdempotencyKey) {
        self.with_slots(|slots| slots.abandon(once.slot, once.sequence));
    }

    fn with_slots<R>(&self, f: impl FnOnce(&mut ReplyCache) -> R) -> R {
        let mut channels = self.session.channels.lock().expect("not poisoned");
        f(&mut channels.get_mut(&self.channel).expect("a bound channel is there").slots)
    }
}

impl Drop for ChannelBinding {
    fn drop(&mut self) {
        *self.session.left.lock().expect("not poisoned") = Instant::now();
        let next = self.session.release(self.channel);
        if let (Some(next), Some(server)) = (next, self.server.upgrade()) {
            server.mounts.ready(next, &server);
        }
    }
}

impl MountSession {
    fn new(
        export: Arc<Export>,
        peer: &ConnectionPeer,
        verifier: Arc<AtomicU64>,
        names: ClientPaths,
    ) -> MountSession {
        MountSession {
            export,
            owner: owner(peer),
            fids: FidTable::default(),
            users: RwLock::default(),
            channels: Mutex::default(),
            names,
            commits: Mutex::default(),
            committed: AtomicU64::new(0),
            verifier,
            left: Mutex::new(Instant::now()),
        }
    }

    fn header(&self) -> ReplyHeader {
        ReplyHeader {
            verifier: self.verifier.load(Ordering::Relaxed),
            commit_watermark: self.committed.load(Ordering::Relaxed),
        }
    }

    /// Returns the user of an identity number.
    pub(crate) fn user(&self, identity: u32) -> Option<Arc<ProxyUser>> {
        Some(self.users.read().expect("not poisoned").get(&identity)?.0.clone())
    }

    /// Returns the location of the file behind a handle: the name that was looked up last, and all
    /// names of a file with several. O(1).
    pub(crate) fn location(&self, handle: &[u8]) -> Location {
        let export = &self.export;
        let (target, unknown) = (&export.target, export.unknown());
        let wanted = target.gate.wanted();
        if !wanted.anything() {
            return unknown;
        }
        let Some((mut location, linked)) = self.names.find(handle, &target.gate) else {
            return unknown;
        };
        if let Some(paths) = linked.and_then(|key| export.links.paths(key, &target.gate.rules())) {
            location.place.paths.0 |= paths.0;
        }
        if !wanted.projects {
            location.project = unknown.project;
        }
        location
    }

    /// Gives an identity its number; the one before is forgotten.
    pub(crate) fn set_user(
        &self,
        identity: u32,
        user: Arc<ProxyUser>,
        charge: Charge,
    ) -> io::Result<()> {
        let mut users = self.users.write().expect("not poisoned");
        if users.len() >= IDENTITIES_MAX && !users.contains_key(&identity) {
            return Err(Errno::NFILE.into());
        }
        let before = users.insert(identity, (user, charge));
        drop(users);
        // Forgetting it asks the dispatcher, which is not to wait for this lock.
        drop(before);
        Ok(())
    }

    pub(crate) fn retire(&self, identity: u32) {
        let before = self.users.write().expect("not poisoned").remove(&identity);
        drop(before);
    }

    /// Notes that a write to a file was executed; returns its number.
    pub(crate) fn written(&self, node: &ExportNode) -> u64 {
        self.with_commits(|commits| commits.written(node.qid.path))
    }

    /// Returns the mark for [`MountSession::durable`], before a file is made durable.
    pub(crate) fn mark(&self) -> u64 {
        self.with_commits(|commits| commits.mark())
    }

    /// Notes that the writes to a file up to `mark` are durable.
    pub(crate) fn durable(&self, node: &ExportNode, mark: u64) {
        self.with_commits(|commits| commits.durable(node.qid.path, mark));
    }

    /// Notes that the writes to all files up to `mark` are durable.
    pub(crate) fn all_durable(&self, mark: u64) {
        self.with_commits(|commits| commits.all_durable(mark));
    }

    /// Whether there are writes that may not be durable.
    pub(crate) fn has_written(&self) -> bool {
        self.with_commits(|commits| commits.files()) > 0
    }

    fn with_commits<R>(&self, f: impl FnOnce(&mut CommitTracker) -> R) -> R {
        let mut commits = self.commits.lock().expect("not poisoned");
        let result = f(&mut commits);
        self.committed.store(commits.committed(), Ordering::Relaxed);
        result
    }

    /// Notes that a file could not be made durable: acknowledged writes may be lost.
    pub(crate) fn change_verifier(&self) {
        self.verifier.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases a channel whose connection has no requests in flight; returns the next in line.
    fn release(&self, channel: u16) -> Option<PendingBind> {
        let mut channels = self.channels.lock().expect("not poisoned");
        let channel = channels.get_mut(&channel)?;
        let next = channel.next.take();
        channel.connection = next.as_ref().map(|next| Arc::downgrade(&next.to.path.connection));
        next
    }

    /// Returns its place in the table of sessions, with times since `began`.
    fn reclaim_place(&self, id: u128, began: Instant) -> ReclaimPlace {
        let is_empty = self.fids.lock().expect("not poisoned").is_empty();
        let worth = match is_empty && !self.has_written() {
            true => Worth::Nothing,
            false => Worth::State,
        };
        let worth = (!self.is_bound()).then_some(worth);
        let left = self.left.lock().expect("not poisoned").saturating_duration_since(began);
        let (uid, peer) = self.owner.clone();
        let used = Time::from_nanos(left.as_nanos() as u64);
        ReclaimPlace { id, holder: Holder { peer, uid }, worth, used }
    }

    fn take_files(&self) -> Vec<Arc<OpenFid>> {
        let files = std::mem::take(&mut *self.fids.lock().expect("not poisoned"));
        files.into_values().inspect(|fid| fid.end_locks()).collect()
    }

    fn is_bound(&self) -> bool {
        let channels = self.channels.lock().expect("not poisoned");
        channels.values().any(|channel| channel.connection.is_some())
    }
}

impl SessionTable {
    pub(crate) fn new() -> io::Result<SessionTable> {
        // What a proxy has written outlives it, in the page cache: only the end of its kernel
        // loses it.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
        let verifier = blake3::hash(&boot).as_bytes()[..8].try_into().expect("8 bytes");
        Ok(SessionTable {
            sessions: Mutex::default(),
            ready: Mutex::default(),
            verifier: Arc::new(AtomicU64::new(u64::from_le_bytes(verifier))),
            names: PathTable::new(),
            began: Instant::now(),
            refused: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.lock().expect("not poisoned").is_empty()
    }

    /// Returns all mount sessions of the proxy.
    pub(crate) fn all(&self) -> Vec<Arc<MountSession>> {
        self.sessions.lock().expect("not poisoned").values().cloned().collect()
    }

    fn ready(&self, next: PendingBind, server: &Server) {
        self.ready.lock().expect("not poisoned").push_back(next);
        server.poke();
    }

    /// Returns a channel that its next connection can have.
    pub(crate) fn next_ready(&self) -> Option<PendingBind> {
        self.ready.lock().expect("not poisoned").pop_front()
    }

    /// Drops sessions whose connections ended longer ago than `keep`; returns their open files.
    pub(crate) fn expire(&self, keep: Duration) -> Vec<Arc<OpenFid>> {
        let mut fids = Vec::new();
        let mut sessions = self.sessions.lock().expect("not poisoned");
        sessions.retain(|_, session| {
            let old = session.left.lock().expect("not poisoned").elapsed() > keep;
            let over = old && !session.is_bound();
            if over {
                fids.extend(session.take_files());
            }
            !over
        });
        fids
    }

    /// Drops abandoned sessions for a newcomer to the full table; their open files are added to
    /// `files`.
    fn reclaim(
        &self,
        sessions: &mut FxHashMap<u128, Arc<MountSession>>,
        newcomer: &ConnectionPeer,
        files: &mut Vec<Arc<OpenFid>>,
    ) -> io::Result<()> {
        let (began, newcomer) = (self.began, newcomer.holder());
        let places: Vec<_> = sessions.iter().map(|(id, it)| it.reclaim_place(*id, began)).collect();
        let now = Time::from_nanos(began.elapsed().as_nanos() as u64);
        let taken = reclaim(&places, &newcomer, AT_ONCE, now);
        tracing::warn!(
            peer = %newcomer.peer, uid = newcomer.uid, count = taken.len(),
            "the table of sessions is full"
        );
        if taken.is_empty() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::NFILE.into());
        }
        self.reclaimed.fetch_add(taken.len() as u64, Ordering::Relaxed);
        for session in taken.iter().filter_map(|id| sessions.remove(id)) {
            files.extend(session.take_files());
        }
        Ok(())
    }

    /// Returns the number of refused sessions, and of those that were dropped for others.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.refused, &self.reclaimed].map(|count| count.load(Ordering::Relaxed))
    }

    /// Finds or begins a session and puts `to` next in line for one of its channels.
    fn enter(
        &self,
        export: Arc<Export>,
        to: &ReplyTo,
        terms: SessionParams,
        most: usize,
    ) -> io::Result<EnteredSession> {
        let mut files = Vec::new();
        let mut sessions = self.sessions.lock().expect("not poisoned");
        let found = sessions.get(&terms.id).cloned();
        let resumed = found.is_some();
        let session = match found {
            Some(session) if session.owner != owner(&to.path.connection.peer) => {
                return Err(Errno::PERM.into());
            }
            Some(session) if session.export.name != export.name => return Err(Errno::INVAL.into()),
            Some(session) => session,
            None => {
                let peer = &to.path.connection.peer;
                if sessions.len() >= most {
                    self.reclaim(&mut sessions, peer, &mut files)?;
                }
                let session =
                    MountSession::new(export, peer, self.verifier.clone(), self.names.client());
                let session = Arc::new(session);
                sessions.insert(terms.id, session.clone());
                session
            }
        };
        let mut channels = session.channels.lock().expect("not poisoned");
        if channels.len() >= CHANNELS_MAX && !channels.contains_key(&terms.channel) {
            return Err(Errno::NFILE.into());
        }
        let granted = terms.slots.min(SLOTS_MAX);
        let fresh = || SessionChannel {
            slots: ReplyCache::new(granted),
            granted,
            connection: None,
            next: None,
        };
        let channel = channels.entry(terms.channel).or_insert_with(fresh);
        let next = PendingBind {
            to: to.clone(),
            session: session.clone(),
            channel: terms.channel,
            resumed,
        };
        let Some(before) = channel.connection.replace(Arc::downgrade(&to.path.connection)) else {
            return Ok(EnteredSession { next: Some(next), before: None, files });
        };
        // The request that waited before is gone, or it would not have been sent again.
        let given_up = channel.next.replace(next);
        drop(channels);
        drop(given_up);
        let before = before.upgrade().filter(|before| !Arc::ptr_eq(before, &to.path.connection));
        Ok(EnteredSession { next: None, before, files })
    }
}

impl Server {
    /// Executes Tsession: `None` while calls of an older connection of the channel have not ended.
    pub(crate) fn open_session(
        self: &Arc<Server>,
        to: &ReplyTo,
        aname: &[u8],
        terms: SessionParams,
        outbox: &Mutex<crate::outbox::ReplyOutbox>,
    ) -> io::Result<Option<PendingBind>> {
        let name = std::str::from_utf8(aname).map_err(|_| Errno::INVAL)?;
        let export = self.export(name).ok_or(Errno::NOENT)?;
        if to.path.form.binding().is_some() {
            return Err(Errno::BUSY.into());
        }
        let most = self.limits().sessions;
        let EnteredSession { next, before, files } = self.mounts.enter(export, to, terms, most)?;
        self.close_deferred(DeferredClose::files(files), outbox);
        if let Some(before) = before {
            let leaving = self.close(&before, &"a newer connection uses its channel");
            self.close_deferred(leaving, outbox);
        }
        Ok(next)
    }

    /// Binds a connection to its channel. `None`: it is gone, and the next one has its turn.
    pub(crate) fn bind(
        self: &Arc<Server>,
        pending: &PendingBind,
    ) -> io::Result<Option<BoundChannel>> {
        let bound = self.try_bind(pending);
        if !matches!(bound, Ok(Some(_)))
            && let Some(next) = pending.session.release(pending.channel)
        {
            self.mounts.ready(next, self);
        }
        bound
    }

    fn try_bind(self: &Arc<Server>, pending: &PendingBind) -> io::Result<Option<BoundChannel>> {
        let (to, session) = (&pending.to, pending.session.clone());
        let root = session.export.handles.of(&session.export.root, &session.export)?;
        let granted = {
            let channels = session.channels.lock().expect("not poisoned");
            channels.get(&pending.channel).map_or(0, |channel| channel.granted)
        };
        let (channel, server) = (pending.channel, Arc::downgrade(self));
        let mut own = to.path.connection.session.lock().expect("not poisoned");
        if to.path.connection.closed.load(Ordering::Acquire) || own.epoch != to.path.epoch {
            return Ok(None);
        }
        own.fids = session.fids.clone();
        own.attached = true;
        own.set_form(Protocol::Bound(Arc::new(ChannelBinding { session, channel, server })));
        let to = own.reply_to(&to.path.connection, to.tag);
        drop(own);
        let keep = self.settings().session_timeout.to_duration().as_secs() as u32;
        Ok(Some(BoundChannel { to, slots: granted, resumed: pending.resumed, timeout: keep, root }))
    }
}

fn owner(peer: &ConnectionPeer) -> (Option<u32>, Nid) {
    (peer.uid, peer.nid.clone())
}

/// Appends a kept reply as the answer to `tag`.
pub(crate) fn repeat(reply: &[u8], tag: Tag, out: &mut Vec<u8>) {
    ReplyCache::replay(reply, tag, out);
}
