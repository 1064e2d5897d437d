//! The mount as a holder of leases: what it may believe without asking the proxy, and for how long.
//!
//! ```text
//!   lookup, getattr, list, open ─► LeaseRequest ─► reply with grants ─► LeaseCache
//!   change ─► OwnChange: nothing of it is kept until it is answered        ▲     │ an answer without
//!   recall ────────────────────────────────────────────────────────────────┘     ▼ a message
//!   holder: joins, renews, answers recalls, gives back                        the kernel
//! ```
//!
//! One mutex covers the leases and what is kept under them. It is taken with a channel locked, so no
//! channel is locked with it. docs/decisions/0025 has the model.

mod cache;
mod ending;
mod holder;
mod names;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use leases::{LeaseKinds, LeaseRequestId, LeaseTerms};
use model::{Nanos, Time};
use ninep::dialect::{LeaseGrants, RENEW_DONE, RENEW_JOIN, RENEW_LEAVE, RENEW_REFUSED, RENEW_TERM};
use session::client::RenewReply;

pub(crate) use cache::{FileKey, KeptAttributes, LeaseCache};
pub(crate) use names::KeptName;

use cache::{BelievedName, Dropped};
use ending::Endings;

use crate::clock;
use crate::session::{SessionControl, lock};

/// The leases of a mount.
#[derive(Debug)]
pub(crate) struct MountLeases {
    is_wanted: bool,
    /// Whether the phase is one of a holder; changed with the state locked.
    holds: AtomicBool,
    state: Mutex<LeaseState>,
    /// For how long the kernel believes what it receives without leases.
    believed: Nanos,
    changed: Condvar,
}

#[derive(Debug)]
struct LeaseState {
    phase: LeasePhase,
    cache: LeaseCache,
    /// When the message to join or to renew was sent that is not answered.
    asked: Option<Time>,
    /// From when it may join: until then the kernel believes what it received without leases.
    join_from: Option<Time>,
    /// What the kernel is to forget before the mount joins again.
    dropped: Dropped,
    /// What the kernel is being made to forget.
    endings: Endings,
    stats: LeaseStats,
}

/// Whether the mount is a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeasePhase {
    /// It never is.
    Off,
    /// It asks to be one.
    Joining,
    Joined,
    /// The proxy grants none; it is asked again at that time.
    Refused(Time),
}

/// Counters of the leases since the mount began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseStats {
    /// Files and directories of which it holds leases now.
    pub(crate) held: u64,
    /// Recalls that the proxy sent.
    pub(crate) recalls: u64,
    /// The longest time from a recall to its answer.
    pub(crate) recall_max: Nanos,
    /// Look-ups that were answered without a message, then attributes, listings and opens.
    pub(crate) lookups: u64,
    pub(crate) attributes: u64,
    pub(crate) listings: u64,
    pub(crate) opens: u64,
}

/// Leases that the proxy recalls for an access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountRecall<'a> {
    pub(crate) access: u64,
    /// The path of the file's qid.
    pub(crate) file: u64,
    pub(crate) kinds: LeaseKinds,
    /// The one name that is recalled; empty: all of these kinds.
    pub(crate) name: &'a [u8],
}

/// A call that asks for leases, and what its reply grants. From its beginning to its end, recalls
/// make what it says older.
#[derive(Debug)]
pub(crate) struct LeaseRequest {
    leases: Arc<MountLeases>,
    id: LeaseRequestId,
    life: u32,
    grants: Mutex<LeaseGrants>,
}

/// What a call of this mount changes. Nothing of that is kept until the call is answered and this
/// dropped.
#[derive(Debug)]
pub(crate) struct OwnChange {
    leases: Arc<MountLeases>,
    files: Vec<ChangedFile>,
    names: Vec<DirectoryName>,
    /// The call was answered without an error.
    is_done: AtomicBool,
}

/// A file, by the path of its qid, and the kinds under which nothing of it is kept meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedFile {
    pub(crate) path: u64,
    pub(crate) kinds: LeaseKinds,
}

/// A name in a directory, which has this path of a qid.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryName {
    pub(crate) directory: u64,
    /// The handle of the directory.
    pub(crate) handle: Arc<[u8]>,
    pub(crate) name: Arc<[u8]>,
}

impl MountLeases {
    /// Of a mount that is to be a holder, or not. Without leases the kernel believes what it receives for
    /// a time.
    pub(crate) fn new(is_wanted: bool, believed: Nanos) -> MountLeases {
        let phase = if is_wanted { LeasePhase::Joining } else { LeasePhase::Off };
        let cache = LeaseCache::new(LeaseTerms::default());
        let (asked, join_from, dropped, endings, stats) = Default::default();
        let state = LeaseState { phase, cache, asked, join_from, dropped, endings, stats };
        MountLeases {
            is_wanted,
            holds: AtomicBool::new(is_wanted),
            state: Mutex::new(state),
            believed,
            changed: Condvar::new(),
        }
    }

    /// Whether names and attributes are believed under leases only: `attr_timeout` does not count.
    pub(crate) fn is_holder(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }

    /// Whether the mount is to be a holder, now or later: a change that begins before it is one may end after.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Begins a call that asks for leases; none while it is not a holder.
    pub(crate) fn request(self: &Arc<MountLeases>) -> Option<Arc<LeaseRequest>> {
        let mut state = self.lock();
        if state.phase != LeasePhase::Joined {
            return None;
        }
        let (id, life) = (state.cache.held.begin_request(), state.cache.held.life() as u32);
        let (leases, grants) = (self.clone(), Mutex::default());
        Some(Arc::new(LeaseRequest { leases, id, life, grants }))
    }

    /// Begins a change: of these files' attributes and data, and of these names; with two names the first
    /// becomes the second. None if it never is a holder.
    pub(crate) fn begin_change(
        self: &Arc<MountLeases>,
        files: Vec<ChangedFile>,
        names: Vec<DirectoryName>,
    ) -> Option<Arc<OwnChange>> {
        if !self.is_wanted {
            return None;
        }
        let (mut state, now) = (self.lock(), clock::with_suspend());
        for file in &files {
            let dropped = state.cache.begin_change(file.path, file.kinds, now);
            state.dropped.append(dropped);
        }
        if let [from, to] = &names[..] {
            let (old, new) = ((from.directory, &from.name), (to.directory, &to.name));
            if let Some(used) = state.cache.move_belief(old, new, now) {
                let named = BelievedName::new(to.directory, to.handle.clone(), &used);
                state.dropped.names.push(named);
            }
        }
        for name in &names {
            state.cache.begin_name_change(name.directory, &name.name, now);
        }
        self.wake_if_dropped(&state);
        drop(state);
        let is_done = AtomicBool::new(false);
        Some(Arc::new(OwnChange { leases: self.clone(), files, names, is_done }))
    }

    /// Uses the cache, if the mount is a holder now.
    pub(crate) fn with<T>(
        &self,
        use_cache: impl FnOnce(&mut LeaseCache, &mut LeaseStats, Time) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        if state.phase != LeasePhase::Joined {
            return None;
        }
        let state = &mut *state;
        use_cache(&mut state.cache, &mut state.stats, clock::with_suspend())
    }

    /// Keeps no attributes: a call changes those of a file that is not known.
    pub(crate) fn forget_all_attributes(&self) {
        self.lock().cache.forget_all_attributes();
    }

    /// Counts an answer without a message.
    pub(crate) fn count(&self, count: impl FnOnce(&mut LeaseStats)) {
        count(&mut self.lock().stats);
    }

    /// Ends READ of a file: it is open for writing here.
    pub(crate) fn end_read(&self, path: u64) {
        let mut state = self.lock();
        let dropped = state.cache.end_read(path, clock::with_suspend());
        state.dropped.append(dropped);
        self.wake_if_dropped(&state);
    }

    /// A message to join or to renew was answered.
    pub(crate) fn renewed(&self, reply: &RenewReply) {
        let mut state = self.lock();
        let life = u64::from(reply.life);
        if state.phase == LeasePhase::Off || life != state.cache.held.life() {
            return;
        }
        let is_answer = matches!(
            (reply.what, state.phase),
            (RENEW_JOIN, LeasePhase::Joining | LeasePhase::Refused(_))
                | (RENEW_TERM, LeasePhase::Joined)
        );
        if !is_answer {
            return;
        }
        state.asked = None;
        match reply.outcome {
            RENEW_DONE if matches!(state.phase, LeasePhase::Refused(_)) => {
                // Once what was told without leases is not believed any more.
                state.lapse();
                state.join_from = Some(clock::with_suspend() + self.believed);
                self.set_phase(&mut state, LeasePhase::Joining);
            }
            RENEW_DONE => {
                let term = Nanos::new(reply.term);
                state.cache.held.set_term(term);
                state.cache.held.renewed(life, reply.sent);
                if state.phase == LeasePhase::Joining {
                    tracing::debug!(life, ?term, "the proxy grants leases");
                }
                self.set_phase(&mut state, LeasePhase::Joined);
            }
            RENEW_REFUSED => {
                state.lapse();
                self.set_phase(&mut state, LeasePhase::Refused(clock::with_suspend() + REFUSED));
            }
            _ => {
                state.lapse();
                self.set_phase(&mut state, LeasePhase::Joining);
            }
        }
        drop(state);
        self.wake();
    }

    /// The proxy has a new session with this mount, in which it has no leases.
    pub(crate) fn session_replaced(&self) {
        let mut state = self.lock();
        if state.phase != LeasePhase::Off {
            state.lapse();
            self.set_phase(&mut state, LeasePhase::Joining);
        }
    }

    /// The message that the mount leaves with; none if it is not a holder.
    pub(crate) fn leave(&self) -> Option<SessionControl> {
        let mut state = self.lock();
        if state.phase != LeasePhase::Joined {
            return None;
        }
        self.set_phase(&mut state, LeasePhase::Off);
        let life = state.cache.held.life() as u32;
        Some(SessionControl::Renew { life, what: RENEW_LEAVE, sent: clock::with_suspend() })
    }

    /// The counters since the mount began.
    pub(crate) fn stats(&self) -> LeaseStats {
        let state = self.lock();
        LeaseStats { held: state.cache.held.len() as u64, ..state.stats }
    }

    /// Has the holder's thread look again.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    fn set_phase(&self, state: &mut LeaseState, phase: LeasePhase) {
        state.phase = phase;
        self.note_phase(state);
    }

    fn note_phase(&self, state: &LeaseState) {
        let holds = matches!(state.phase, LeasePhase::Joining | LeasePhase::Joined);
        self.holds.store(holds, Ordering::SeqCst);
    }

    fn wake_if_dropped(&self, state: &LeaseState) {
        if !state.dropped.is_empty() {
            self.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        lock(&self.state)
    }
}

impl LeaseState {
    fn lapse(&mut self) {
        let dropped = self.cache.lapse(clock::with_suspend());
        self.dropped.append(dropped);
        self.endings.forget_recalls();
        self.asked = None;
    }
}

impl LeaseRequest {
    /// The life of the mount in which it was begun.
    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// Notes what the reply grants.
    pub(crate) fn set_grants(&self, grants: LeaseGrants) {
        *lock(&self.grants) = grants;
    }

    /// Keeps what the reply says, as `keep` does with the cache, what was granted and the time.
    pub(crate) fn keep<T>(
        &self,
        keep: impl FnOnce(&mut LeaseCache, LeaseRequestId, LeaseGrants, Time) -> T,
    ) -> T {
        let grants = *lock(&self.grants);
        let mut state = self.leases.lock();
        let kept = keep(&mut state.cache, self.id, grants, clock::with_suspend());
        if state.cache.is_over_full() {
            self.leases.wake();
        }
        kept
    }
}

impl Drop for LeaseRequest {
    fn drop(&mut self) {
        self.leases.lock().cache.held.end_request(self.id);
    }
}

impl OwnChange {
    /// The call was answered without an error: the kernel knows what it has changed.
    pub(crate) fn done(&self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        let (is_done, now) = (*self.is_done.get_mut(), clock::with_suspend());
        let mut state = self.leases.lock();
        for file in &self.files {
            state.cache.end_change(file.path, file.kinds);
        }
        for name in &self.names {
            let dropped = state.cache.end_name_change(name.directory, &name.name, is_done, now);
            state.dropped.append(dropped);
        }
        self.leases.wake_if_dropped(&state);
    }
}

/// Until a proxy that grants no leases is asked again.
const REFUSED: Nanos = Nanos::from_secs(20);
