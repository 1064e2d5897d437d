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
//! What is decided about sessions, channels and replies is in `core/session`; the locks, the
//! connections and the open files are here.
//!
//! Lock order: the table of sessions, then a session's channels; a connection's session
//! before a session's channels; a binding is never dropped while channels are locked.

mod bind;
mod events;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use self::events::EventQueue;
use bounds::{Holder, ReclaimPlace, Worth, reclaim};
use leases::HolderId;
use model::{Nanos, Time};
use ninep::Tag;
use ninep::dialect::ReplyHeader;
use rustc_hash::FxHashMap;
use session::server::{
    ChannelTurn, CommitTracker, EnteredSession, IdempotencyKey, ReplyCache, ReplySlotError,
    SessionChannels, SessionOwner, SessionRefusal, SessionTable, TabledSession, check_identity,
};

use crate::bounds::Charge;
use crate::connection::{Connection, ConnectionPeer, ReplyTo};
use crate::export::{Export, ExportNode};
use crate::fids::{FidTable, OpenFid, ProxyUser};
use crate::gate::ProxyClock;
use crate::handle_paths::{ClientPaths, PathTable};
use crate::leases::HolderKey;
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
    owner: SessionOwner,
    pub(crate) fids: FidTable,
    users: RwLock<FxHashMap<u32, (Arc<ProxyUser>, Charge)>>,
    channels: Mutex<SessionChannels<Weak<Connection>, PendingBind>>,
    /// Whether `channels` knows that the client has an Rsession.
    confirmed: AtomicBool,
    /// Names by which it reached the files that it names by handle.
    pub(crate) names: ClientPaths,
    commits: Mutex<CommitTracker>,
    committed: AtomicU64,
    verifier: Arc<AtomicU64>,
    clock: ProxyClock,
    /// What it is recorded by as a holder of leases, and its number as one; 0: it has not joined.
    lease_key: HolderKey,
    lease_holder: AtomicU32,
    pub(crate) events: EventQueue,
}

/// A Tsession that waits until the calls of its predecessor have ended.
pub(crate) struct PendingBind {
    pub(crate) to: ReplyTo,
    session: Arc<MountSession>,
    channel: u16,
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

/// The sessions of all mounts.
pub(crate) struct MountSessions {
    table: Mutex<SessionTable<Arc<MountSession>>>,
    /// Channels that have become free for their next connection.
    ready: Mutex<VecDeque<PendingBind>>,
    /// Verifier: changes when acknowledged writes may be lost.
    verifier: Arc<AtomicU64>,
    names: Arc<PathTable>,
    clock: ProxyClock,
}

/// Result of a Tsession.
struct EnteredChannel {
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

/// Maximum number of abandoned sessions that one scan of the table drops.
const AT_ONCE: usize = 64;

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
        let mut channels = self.session.channels.lock().expect("not poisoned");
        Ok(channels.begin(self.channel, once, kind)?.map(<[u8]>::to_vec))
    }

    /// Keeps the reply of an executed call.
    pub(crate) fn end(&self, once: IdempotencyKey, reply: &[u8]) {
        let mut channels = self.session.channels.lock().expect("not poisoned");
        channels.end(self.channel, once, reply);
    }

    /// Notes that a call was cancelled before it was executed.
    pub(crate) fn abandon(&self, once: IdempotencyKey) {
        let mut channels = self.session.channels.lock().expect("not poisoned");
        channels.abandon(self.channel, once);
    }
}

impl Drop for ChannelBinding {
    fn drop(&mut self) {
        let next = self.session.release(self.channel);
        if let (Some(next), Some(server)) = (next, self.server.upgrade()) {
            server.mounts.ready(next, &server);
        }
    }
}

impl MountSession {
    fn new(
        export: Arc<Export>,
        owner: SessionOwner,
        verifier: Arc<AtomicU64>,
        names: ClientPaths,
        clock: ProxyClock,
        id: u128,
    ) -> MountSession {
        let lease_key = lease_key(id, &owner, &export.name);
        MountSession {
            export,
            owner,
            fids: FidTable::default(),
            users: RwLock::default(),
            channels: Mutex::new(SessionChannels::new(clock.now())),
            confirmed: AtomicBool::new(false),
            names,
            commits: Mutex::default(),
            committed: AtomicU64::new(0),
            verifier,
            clock,
            lease_key,
            lease_holder: AtomicU32::new(0),
            events: EventQueue::default(),
        }
    }

    fn header(&self) -> ReplyHeader {
        ReplyHeader {
            verifier: self.verifier.load(Ordering::Relaxed),
            commit_watermark: self.committed.load(Ordering::Relaxed),
            ..ReplyHeader::default()
        }
    }

    /// What the session is recorded by as a holder of leases.
    pub(crate) fn lease_key(&self) -> HolderKey {
        self.lease_key
    }

    /// Its number as a holder of leases; none before it has joined.
    pub(crate) fn lease_holder(&self) -> Option<HolderId> {
        let number = self.lease_holder.load(Ordering::Relaxed);
        (number > 0).then_some(HolderId(number))
    }

    pub(crate) fn set_lease_holder(&self, holder: HolderId) {
        self.lease_holder.store(holder.0, Ordering::Relaxed);
    }

    /// Notes a message over a bound connection: from the first on, the session is resumed.
    pub(crate) fn confirm(&self) {
        if !self.confirmed.load(Ordering::Relaxed) {
            self.channels.lock().expect("not poisoned").confirm();
            self.confirmed.store(true, Ordering::Relaxed);
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
        check_identity(users.contains_key(&identity), users.len()).map_err(refused)?;
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
        channels.release(channel, self.clock.now())
    }

    /// Returns its place in the table of sessions, whose time counts only if it has no connection.
    fn reclaim_place(&self, id: u128) -> ReclaimPlace {
        let is_empty = self.fids.lock().expect("not poisoned").is_empty();
        let worth = match is_empty && !self.has_written() {
            true => Worth::Nothing,
            false => Worth::State,
        };
        let left = self.left();
        let SessionOwner { uid, peer } = self.owner.clone();
        let (worth, used) = (left.map(|_| worth), left.unwrap_or(Time::ZERO));
        ReclaimPlace { id, holder: Holder { peer, uid }, worth, used }
    }

    fn take_files(&self) -> Vec<Arc<OpenFid>> {
        let files = std::mem::take(&mut *self.fids.lock().expect("not poisoned"));
        files.into_values().inspect(|fid| fid.end_locks()).collect()
    }
}

impl TabledSession for MountSession {
    fn owner(&self) -> &SessionOwner {
        &self.owner
    }

    fn export(&self) -> &str {
        &self.export.name
    }

    fn left(&self) -> Option<Time> {
        self.channels.lock().expect("not poisoned").left()
    }
}

impl MountSessions {
    pub(crate) fn new(clock: ProxyClock) -> io::Result<MountSessions> {
        // What a proxy has written outlives it, in the page cache: only the end of its kernel
        // loses it.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
        let verifier = blake3::hash(&boot).as_bytes()[..8].try_into().expect("8 bytes");
        Ok(MountSessions {
            table: Mutex::default(),
            ready: Mutex::default(),
            verifier: Arc::new(AtomicU64::new(u64::from_le_bytes(verifier))),
            names: PathTable::new(),
            clock,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().expect("not poisoned").is_empty()
    }

    /// Returns all mount sessions of the proxy.
    pub(crate) fn all(&self) -> Vec<Arc<MountSession>> {
        let table = self.table.lock().expect("not poisoned");
        table.iter().map(|(_, session)| session.clone()).collect()
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
    pub(crate) fn expire(&self, keep: Nanos) -> Vec<Arc<OpenFid>> {
        let mut table = self.table.lock().expect("not poisoned");
        let ended = table.expire(keep, self.clock.now());
        ended.iter().flat_map(|session| session.take_files()).collect()
    }

    /// Returns the abandoned sessions to drop for a newcomer to the full table.
    fn reclaim(
        &self,
        table: &SessionTable<Arc<MountSession>>,
        newcomer: &ConnectionPeer,
    ) -> Vec<u128> {
        let newcomer = newcomer.holder();
        let places: Vec<_> = table.iter().map(|(id, it)| it.reclaim_place(id)).collect();
        let taken = reclaim(&places, &newcomer, AT_ONCE, self.clock.now());
        tracing::warn!(
            peer = %newcomer.peer, uid = newcomer.uid, count = taken.len(),
            "the table of sessions is full"
        );
        taken
    }

    /// Returns the number of refused sessions, and of those that were dropped for others.
    pub(crate) fn counts(&self) -> [u64; 2] {
        let table = self.table.lock().expect("not poisoned");
        [table.refused(), table.reclaimed()]
    }

    /// Finds or begins a session and puts `to` next in line for one of its channels.
    fn enter(
        &self,
        export: Arc<Export>,
        to: &ReplyTo,
        terms: SessionParams,
        most: usize,
    ) -> io::Result<EnteredChannel> {
        let mut table = self.table.lock().expect("not poisoned");
        let connection = &to.path.connection;
        let (owner, name) = (owner(&connection.peer), export.name.clone());
        let reclaim = |table: &SessionTable<_>| self.reclaim(table, &connection.peer);
        let begin = || {
            let (owner, names) = (owner.clone(), self.names.client());
            let verifier = self.verifier.clone();
            Arc::new(MountSession::new(export, owner, verifier, names, self.clock, terms.id))
        };
        let entered = table.enter(terms.id, &owner, &name, most, reclaim, begin);
        let EnteredSession { session, ended, .. } = entered.map_err(refused)?;
        let session = session.clone();
        let files = ended.iter().flat_map(|session| session.take_files()).collect();
        let channel = terms.channel;
        let pending = PendingBind { to: to.clone(), session: session.clone(), channel };
        let mut channels = session.channels.lock().expect("not poisoned");
        let turn = channels.enter(channel, terms.slots, Arc::downgrade(connection), pending);
        drop(channels);
        match turn.map_err(refused)? {
            ChannelTurn::Bind(next) => Ok(EnteredChannel { next: Some(next), before: None, files }),
            ChannelTurn::Wait { before, given_up } => {
                drop(given_up);
                let before = before.upgrade().filter(|before| !Arc::ptr_eq(before, connection));
                Ok(EnteredChannel { next: None, before, files })
            }
        }
    }
}

fn owner(peer: &ConnectionPeer) -> SessionOwner {
    SessionOwner { uid: peer.uid, peer: peer.nid.clone() }
}

/// A hash of what a session is: it does not give the session's number away.
fn lease_key(id: u128, owner: &SessionOwner, export: &str) -> HolderKey {
    let text = format!("{id:032x} {:?} {} {export}", owner.uid, owner.peer);
    blake3::hash(text.as_bytes()).as_bytes()[..16].try_into().expect("16 bytes")
}

fn refused(why: SessionRefusal) -> io::Error {
    io::Error::from_raw_os_error(why.errno() as i32)
}

/// Appends a kept reply as the answer to `tag`.
pub(crate) fn repeat(reply: &[u8], tag: Tag, out: &mut Vec<u8>) {
    ReplyCache::replay(reply, tag, out);
}
