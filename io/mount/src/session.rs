//! The mount's session with one of its proxies, with a connection for each thread.
//!
//! ```text
//!   HomeRouter: which session ─► call ─► LinkChannel n ─► socket ─► proxy
//!   thread n ▲                             │ received      IdentityTable: identities as numbers
//!            └──────────── done ◄──────────┤               MountState: what a new session receives
//!                                          └ disconnect ─► failover: resume, or reclaim and restart
//! ```
//!
//! A thread calls on its own channel, and replies come back to it. Other threads (that found a job
//! late, that interrupt) put calls into the channel and wake its thread.
//!
//! No [`OnReply`](call::OnReply) is called while a channel is locked: it may call again.

mod abandoned;
mod call;
mod channel;
mod channel_call;
mod control;
mod event_loop;
mod failover;
mod handshake;
mod home_router;
mod identities;
mod in_doubt;
mod mount_group;
mod reclaim;
mod remote_ops;
mod replay_buffer;
mod signals;
mod socket;

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuse::{Errno, FuseRequestId};
use leases::LeaseKinds;
use model::{JobId, Nanos, Time};
use ninep::dialect::{
    ExtRequest, HandleList, ReplyHeader, SessionEvent, SessionEvents, decode_reply, handle_fid,
};
use rustix::event::{EventfdFlags, eventfd};
use session::client::{ChannelPhase, ChannelStats, SessionLife};

pub(crate) use call::{CallFrame, CallReply, CallSpec, CallWaiter, ServerCall, errno_of};
pub(crate) use control::SessionControl;
pub(crate) use event_loop::run;
pub(crate) use home_router::{ConnectedRouter, HomeRouter, RouterError, RouterSettings};
pub(crate) use identities::SessionIdentity;
pub use mount_group::GroupError;
pub(crate) use signals::CheckInterval;

use abandoned::Abandoned;
use channel::{ChannelNews, InterruptOutcome, LinkChannel};
use identities::IdentityTable;
use mount_group::MountGroup;
use replay_buffer::{Changed, ReplayBuffer};
use signals::{EarlyInterrupts, PendingSignals, WaitingCalls, is_being_killed};
use socket::Broken;

use crate::clock;
use crate::files::OpenFiles;
use crate::gateway::Gateway;
use crate::leases::{MountLeases, MountRecall};
use crate::locks::MountLocks;
use crate::nodes::MountNode;
use crate::options::{MountSource, nanos};
use crate::write_behind::{SentWrite, WriteBehind};

/// Callback for writes that must be made again.
#[derive(Default)]
struct OnLost(OnceLock<Box<dyn Fn(Vec<SentWrite>) + Send + Sync>>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLost")
    }
}

/// Callback for leases that are recalled.
#[derive(Default)]
struct OnRecall(OnceLock<Box<AnswerRecall>>);

type AnswerRecall = dyn Fn(&MountRecall<'_>) + Send + Sync;

impl fmt::Debug for OnRecall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRecall")
    }
}

/// State of a mount that does not depend on its proxies.
#[derive(Debug)]
pub(crate) struct MountState {
    pub(crate) files: OpenFiles,
    pub(crate) locks: MountLocks,
    pub(crate) write_behind: WriteBehind,
    pub(crate) abandoned: Arc<Abandoned>,
    pub(crate) waits: WaitingCalls,
    missed: EarlyInterrupts,
    signalled: PendingSignals,
    on_writes_lost: OnLost,
    /// The leases that it has, if it is a holder.
    pub(crate) leases: Arc<MountLeases>,
    on_recall: OnRecall,
    /// Wakers of the threads.
    wakers: Vec<OwnedFd>,
    over: AtomicBool,
}

/// One session with a proxy.
#[derive(Debug)]
pub(crate) struct ClientSession {
    shared: Arc<MountState>,
    /// Its index among the mount's sessions.
    home: usize,
    /// The proxies that it may use: its own, and those that take over from it, in their order.
    sources: Vec<MountSource>,
    /// Their indices in the mount's list.
    indices: Vec<usize>,
    /// The group that they are of.
    group: Arc<MountGroup>,
    /// Gateway to a server that does not know the dialect; only if it is the only source.
    gateway: Option<Arc<Gateway>>,
    pub(crate) uncommitted: ReplayBuffer,
    /// The export's root, known after the first session.
    root: OnceLock<Vec<u8>>,
    /// The largest message in bytes.
    msize: u32,
    /// Time without a connection after which calls fail.
    soft: Option<Nanos>,
    channels: Vec<ThreadChannel>,
    payers: IdentityTable,
    /// The proxy's view of the session. Locked while a connection begins, so that all connections
    /// agree on which life of the session they belong to.
    life: Mutex<SessionLife>,
    epoch: AtomicU64,
    /// Calls may not begin: the session is about to fail over.
    pausing: AtomicBool,
    /// Channels that look for a proxy.
    reconnecting: AtomicUsize,
}

/// A thread's channel.
#[derive(Debug)]
struct ThreadChannel {
    channel: Mutex<LinkChannel>,
    /// Whether its thread is processing a reply.
    receiving: AtomicBool,
}

impl MountState {
    /// Makes the state for this many threads; `client` is the mount's name as an owner of locks,
    /// for `leases` see [`RouterSettings`].
    fn new(threads: usize, client: String, leases: Option<Nanos>) -> Result<MountState, Errno> {
        let bell = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (files, behind, abandoned, waits, missed, signalled, on_lost) = Default::default();
        Ok(MountState {
            files,
            locks: MountLocks::new(client),
            write_behind: behind,
            abandoned,
            waits,
            missed,
            signalled,
            on_writes_lost: on_lost,
            leases: Arc::new(MountLeases::new(leases.is_some(), leases.unwrap_or_default())),
            on_recall: OnRecall::default(),
            wakers: (0..threads).map(bell).collect::<Result<_, _>>()?,
            over: AtomicBool::new(false),
        })
    }

    fn wake_thread(&self, on: usize) {
        // A full counter wakes the thread already.
        let _ = rustix::io::write(&self.wakers[on], &1u64.to_ne_bytes());
    }

    fn clear_wake(&self, on: usize) {
        let _ = rustix::io::read(self.wakers[on].as_fd(), &mut [0; 8]);
    }
}

impl ClientSession {
    /// Returns the identity that pays for a user's requests.
    ///
    /// # Errors
    /// `EUSERS` if there are too many.
    pub(crate) fn payer(
        &self,
        uid: u32,
        gid: u32,
        groups: &Arc<[u32]>,
        job: &JobId,
    ) -> Result<Arc<SessionIdentity>, Errno> {
        let found = self.payers.find(uid, gid, groups, job)?;
        if let Some(number) = found.retired {
            let on = here();
            self.lock_channel(on).state.push_control(SessionControl::Retire(number));
            self.wake(on);
        }
        Ok(found.payer)
    }

    /// Calls on a thread's channel. `done` gets the result, perhaps before this returns.
    pub(crate) fn call_on(&self, on: usize, call: ServerCall) {
        let waiter = call.waiter;
        let refused = {
            let mut channel = self.lock_channel(on);
            match self.refuses(&channel) {
                Some(error) => Some((call.done, error)),
                None => {
                    channel.state.push(call);
                    None
                }
            }
        };
        if let Some((done, error)) = refused {
            return done(Err(error));
        }
        self.wake(on);
        if let Some(CallWaiter { request, .. }) = waiter
            && self.shared.missed.remove(request)
        {
            self.interrupt(request);
        }
    }

    /// Whether its connections are pinged in any case: for locks, or as a channel looks for the proxy.
    fn is_checked(&self) -> bool {
        self.shared.locks.any() || self.reconnecting.load(Ordering::SeqCst) > 0
    }

    /// Calls on a thread's channel after a delay.
    pub(crate) fn call_later(&self, on: usize, call: ServerCall, after: Duration) {
        self.lock_channel(on).state.push_later(call, clock::now() + nanos(after));
    }

    /// Lends a waiter's queue to the writes to these places of a file.
    pub(crate) fn donate(
        &self,
        node: &MountNode,
        places: &[Range<u64>],
        donor: &Arc<SessionIdentity>,
    ) {
        let is = |call: &ServerCall| {
            let kept = call.spec.replayable.as_ref();
            kept.is_some_and(|(of, place)| std::ptr::eq(&**of, node) && places.contains(place))
        };
        for on in 0..self.channels.len() {
            if self.lock_channel(on).state.donate(is, donor) {
                self.wake(on);
            }
        }
    }

    /// Handles a signal for the waiting caller of this request. Only a signal that ends the process
    /// ends the call, unless it waits for other programs: a program that reads a file's attributes
    /// does not expect EINTR. The kernel sends the interrupt once, so a caller that was not being
    /// killed is checked again ([`HomeRouter::detach_signalled`]). True if the call is here.
    fn interrupt(&self, request: FuseRequestId) -> bool {
        // Recorded first: a thread that is about to call on behalf of the request checks here
        // afterwards.
        self.shared.missed.put(request);
        for on in 0..self.channels.len() {
            let mut channel = self.lock_channel(on);
            let Some(call) = channel.find(request) else { continue };
            let thread = call.waiter.map_or(0, |waiter| waiter.thread);
            let obeys = call.spec.needs.patient || thread == 0 || is_being_killed(thread);
            let found = obeys.then(|| channel.interrupt(request, clock::now()));
            drop(channel);
            self.shared.missed.remove(request);
            match found {
                None => self.shared.signalled.put(request),
                Some(InterruptOutcome::NotHere) => {}
                Some(InterruptOutcome::Flushing) => self.wake(on),
                Some(InterruptOutcome::Abandoned(done)) => done(Err(Errno::INTR)),
            }
            return true;
        }
        false
    }

    /// Detaches processes that are being killed while the proxy does not cancel their calls. Others
    /// wait: to report a call as interrupted would be a guess.
    fn detach_killed(&self, on: usize, waiters: &[CallWaiter]) {
        for waiter in waiters.iter().filter(|waiter| is_being_killed(waiter.thread)) {
            let done = self.lock_channel(on).abandon(waiter.request);
            if let Some(done) = done {
                done(Err(Errno::INTR));
            }
        }
    }

    /// Returns the proxy that it uses while that is present.
    pub(crate) fn name(&self) -> String {
        self.sources[0].to_string()
    }

    /// Whether none of its channels has a connection.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.tally().connections_down == self.channels.len() as u64
    }

    /// Returns the counters of all its channels.
    pub(crate) fn tally(&self) -> ChannelStats {
        let mut sum = ChannelStats::default();
        (0..self.channels.len()).for_each(|on| sum += self.lock_channel(on).state.stats());
        sum
    }

    /// Locks a thread's channel.
    fn lock_channel(&self, on: usize) -> MutexGuard<'_, LinkChannel> {
        lock(&self.channels[on].channel)
    }

    /// Wakes a channel's thread, unless it is the calling thread, which checks anyway.
    fn wake(&self, on: usize) {
        if HERE.get() != Some(on) {
            self.shared.wake_thread(on);
        }
    }

    fn refuses(&self, channel: &LinkChannel) -> Option<Errno> {
        let has_waited =
            |since: Time| self.soft.is_some_and(|soft| clock::now().since(since) > soft);
        match channel.state.phase() {
            ChannelPhase::Up => None,
            ChannelPhase::Disconnected(since) => has_waited(since).then_some(Errno::TIMEDOUT),
            ChannelPhase::Over => Some(Errno::NOTCONN),
        }
    }

    /// Handles a whole frame of a channel.
    fn received(self: &Arc<ClientSession>, on: usize, frame: &[u8]) -> Result<(), Broken> {
        self.channels[on].receiving.store(true, Ordering::SeqCst);
        let received = self.receive(on, frame);
        self.channels[on].receiving.store(false, Ordering::SeqCst);
        received
    }

    /// Waits until the replies of an older life of the session are processed: then the open files
    /// and locks are known.
    fn wait_for_receivers(&self) {
        for seat in &self.channels {
            while seat.receiving.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    fn receive(self: &Arc<ClientSession>, on: usize, frame: &[u8]) -> Result<(), Broken> {
        let (tag, header, reply) =
            decode_reply(frame).map_err(|error| Broken::Protocol(error.to_string()))?;
        let (news, epoch) = {
            let mut channel = self.lock_channel(on);
            // What a proxy said before it forgot the session is not so any more: the call is
            // made again, or resolved.
            if channel.state.epoch() != self.epoch.load(Ordering::SeqCst) {
                return Err(Broken::Protocol("the session was replaced".into()));
            }
            (channel.received(tag, reply)?, channel.state.epoch())
        };
        self.handle_header(epoch, header);
        match news {
            ChannelNews::Unchanged => {}
            // A thread that ended here would leave what the kernel gives it without an answer;
            // the reply that is dropped by a panic says EIO.
            ChannelNews::Done { done, answer, written, lease, change } => {
                if let Some(lease) = &lease {
                    lease.set_grants(header.leases);
                }
                if let (Some(change), Ok(_)) = (&change, &answer) {
                    change.done();
                }
                if let Some((number, write)) = written
                    && self.uncommitted.insert(epoch, number, write)
                {
                    self.commit(on);
                }
                if catch_unwind(AssertUnwindSafe(|| done(answer))).is_err() {
                    tracing::error!(%tag, "the handler of a reply panicked");
                }
                drop((lease, change));
            }
            ChannelNews::Identity(payer) => self.identity_answered(on, &payer),
            ChannelNews::Events(data) => self.events(on, data)?,
            ChannelNews::Renewed(reply) => self.shared.leases.renewed(&reply),
        }
        Ok(())
    }

    /// Handles the header of a reply: the state of earlier writes.
    fn handle_header(&self, epoch: u64, header: ReplyHeader) {
        let Changed { lost_writes: lost, ready } = self.uncommitted.handle_header(epoch, header);
        if let (false, Some(again)) = (lost.is_empty(), self.shared.on_writes_lost.0.get()) {
            tracing::warn!(
                writes = lost.len(),
                "the proxy's machine lost writes; writing them again"
            );
            again(lost);
        }
        ready.into_iter().for_each(|then| then(Ok(())));
    }

    /// Makes all earlier writes durable.
    fn commit(self: &Arc<ClientSession>, on: usize) {
        let (Some(payer), Some(root)) = (self.uncommitted.oldest(), self.root.get()) else {
            return;
        };
        let message = ExtRequest::Commit { fid: handle_fid(0) };
        let ask = CallSpec::new(HandleList::one(root), message).freely();
        let link = self.clone();
        let done = move |answer: CallReply<'_>| {
            if let Err(error) = &answer {
                tracing::warn!(%error, "cannot commit writes");
            }
            let ready =
                link.uncommitted.committed(link.epoch.load(Ordering::SeqCst), answer.is_ok());
            ready.into_iter().for_each(|then| then(Ok(())));
        };
        self.call_on(on, ServerCall::new(payer, ask, None, done));
    }

    /// Starts or fails all calls of an identity whose message was answered.
    fn identity_answered(&self, on: usize, payer: &SessionIdentity) {
        if payer.refused().is_some() {
            self.payers.forget(payer);
        }
        for other in (0..self.channels.len()).filter(|other| *other != on) {
            self.wake(other);
        }
    }

    /// Sends a message about leases by a channel that has a connection of the present session; false
    /// if there is none.
    pub(crate) fn send_about_leases(&self, control: SessionControl) -> bool {
        let epoch = self.epoch.load(Ordering::SeqCst);
        for on in 0..self.channels.len() {
            let mut channel = self.lock_channel(on);
            let state = &mut channel.state;
            if state.phase() == ChannelPhase::Up && state.epoch() == epoch {
                state.push_control(control);
                drop(channel);
                self.wake(on);
                return true;
            }
        }
        false
    }

    /// Answers a recall, or says that it is worked on. What cannot be said now is said by the end
    /// of the term.
    pub(crate) fn return_lease(&self, access: u64, done: bool) {
        self.send_about_leases(SessionControl::Return { access, done });
    }

    fn events(&self, on: usize, data: &[u8]) -> Result<(), Broken> {
        for event in SessionEvents::new(data) {
            match event.map_err(|error| Broken::Protocol(error.to_string()))? {
                SessionEvent::Window { identity, requests, bytes } => {
                    if let Some(payer) = self.payers.by_number(identity) {
                        payer.set_window(requests, bytes);
                    }
                }
                SessionEvent::Recall { access, file, kinds, name } => {
                    let recall =
                        MountRecall { access, file, kinds: LeaseKinds::from_bits(kinds), name };
                    match self.shared.on_recall.0.get() {
                        Some(answer) => answer(&recall),
                        None => self.return_lease(access, true),
                    }
                }
            }
        }
        self.lock_channel(on).state.push_control(SessionControl::Events);
        for other in 0..self.channels.len() {
            self.wake(other);
        }
        Ok(())
    }
}

thread_local! {
    /// The channel of this thread, if it has one.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the channel for calls that begin on this thread.
pub(crate) fn here() -> usize {
    HERE.get().unwrap_or(0)
}

/// Locks despite poisoning: a panic leaves no state here half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
