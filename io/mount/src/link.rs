//! The mount's link to the proxy: one session, with a connection for each thread.
//!
//! ```text
//!   thread n ─► call ─► Channel n ─► socket ─► proxy        Payers: who pays, as numbers
//!      ▲                    │ received                      Files, Locks: what a new session
//!      └──── done ◄─────────┘                                             has to be told
//!                           │ lost ─► a helper: reconnect ─► resume, or restore and restart
//! ```
//!
//! A thread calls on its own channel, and answers come back to it. Others (who found a job
//! late, who interrupts) put calls into the channel and wake its thread.
//!
//! No [`Done`] is called while a channel is locked: it may call again.

mod call;
mod channel;
mod greet;
mod identities;
mod kept;
mod lanes;
mod restore;
mod settle;
mod signals;
mod socket;
mod turn;

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fuse::{Errno, RequestId};
use model::JobId;
use ninep::dialect::{Event, Events, Handles, OwnRequest, ReplyHeader, decode_reply, handle_fid};
use rustix::event::{EventfdFlags, eventfd};

pub(crate) use call::{Answer, Ask, Call, Frame, Waiter};
pub(crate) use greet::GreetError;
pub(crate) use identities::Payer;
pub(crate) use signals::Pace;
pub(crate) use turn::run;

use channel::{Channel, Control, Interrupted, News, Phase, SLOTS};
use greet::Talk;
use identities::Payers;
use kept::{Changed, Kept};
use signals::{Missed, Signalled, is_being_killed};
use socket::Broken;

use crate::behind::{AllBehind, Sent};
use crate::files::Files;
use crate::locks::Locks;
use crate::options::Source;

/// Takes writes that are to be made once more.
#[derive(Default)]
struct OnLost(OnceLock<Box<dyn Fn(Vec<Sent>) + Send + Sync>>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLost")
    }
}

/// One session with a proxy.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) files: Files,
    pub(crate) locks: Locks,
    pub(crate) behind: AllBehind,
    pub(crate) kept: Kept,
    on_lost: OnLost,
    /// The export's root, known once there was a session.
    root: OnceLock<Vec<u8>>,
    source: Source,
    /// The session's name, which nobody else knows.
    id: u128,
    /// The largest message in bytes.
    msize: u32,
    /// After so long without a connection calls fail.
    soft: Option<Duration>,
    seats: Vec<Seat>,
    payers: Payers,
    life: Mutex<Life>,
    epoch: AtomicU64,
    missed: Missed,
    signalled: Signalled,
    over: AtomicBool,
}

/// A channel and how its thread is woken.
#[derive(Debug)]
struct Seat {
    channel: Mutex<Channel>,
    bell: OwnedFd,
}

/// What the proxy knows of the session. Locked while a connection begins, so that all of them
/// agree on which life of the session they belong to.
#[derive(Debug)]
struct Life {
    /// Counts how often the proxy had to be told everything.
    epoch: u64,
    /// Whether it was.
    restored: bool,
}

/// How a link begins.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(crate) source: Source,
    pub(crate) threads: usize,
    pub(crate) soft: Option<Duration>,
    /// Bytes that are kept until they are durable.
    pub(crate) keep: u64,
    /// A random name for the session.
    pub(crate) id: u128,
    /// This mount's name as an owner of locks.
    pub(crate) client: String,
}

/// A link that is up, and what it leads to.
pub(crate) struct Begun {
    pub(crate) link: Arc<Link>,
    pub(crate) root: Vec<u8>,
    /// Payload that fits into one message, in bytes.
    pub(crate) payload: u32,
}

impl Link {
    /// Connects every channel.
    ///
    /// # Errors
    /// Says what was refused; a proxy that is not there is not waited for.
    pub(crate) fn begin(begin: Begin) -> Result<Begun, GreetError> {
        let Begin { source, threads, soft, keep, id, client } = begin;
        let first = Talk::begin(&source, PAYLOAD + ROOM)?;
        let msize = first.msize;
        let seats = (0..threads).map(|_| Seat::new()).collect::<Result<_, _>>();
        let link = Arc::new(Link {
            files: Files::default(),
            locks: Locks::new(client),
            behind: AllBehind::default(),
            kept: Kept::new(keep),
            on_lost: OnLost::default(),
            root: OnceLock::new(),
            source,
            id,
            msize,
            soft,
            seats: seats.map_err(Broken::from)?,
            payers: Payers::default(),
            life: Mutex::new(Life { epoch: 0, restored: false }),
            epoch: AtomicU64::new(0),
            missed: Missed::default(),
            signalled: Signalled::default(),
            over: AtomicBool::new(false),
        });
        link.seats[0].lock().say(Control::Wait);
        let root = link.attach(0, first)?;
        link.root.set(root.clone()).expect("it begins once");
        for number in 1..threads {
            link.attach(number, Talk::begin(&link.source, msize)?)?;
        }
        Ok(Begun { link, root, payload: msize.saturating_sub(ROOM).min(PAYLOAD) })
    }

    /// Who pays for what a user does.
    ///
    /// # Errors
    /// `EUSERS` if there are too many.
    pub(crate) fn payer(
        &self,
        uid: u32,
        gid: u32,
        groups: &Arc<[u32]>,
        job: &JobId,
    ) -> Result<Arc<Payer>, Errno> {
        let found = self.payers.find(uid, gid, groups, job)?;
        if let Some(number) = found.retired {
            let on = here();
            self.seat(on).lock().say(Control::Retire(number));
            self.wake(on);
        }
        Ok(found.payer)
    }

    /// Calls on a thread's channel. What it comes to, `done` learns, perhaps before this
    /// returns.
    pub(crate) fn call_on(&self, on: usize, call: Call) {
        let (seat, waiter) = (self.seat(on), call.waiter);
        let refused = {
            let mut channel = seat.lock();
            match self.refuses(&channel) {
                Some(error) => Some((call.done, error)),
                None => {
                    channel.push(call);
                    None
                }
            }
        };
        if let Some((done, error)) = refused {
            return done(Err(error));
        }
        self.wake(on);
        if let Some(Waiter { request, .. }) = waiter
            && self.missed.take(request)
        {
            self.interrupt(request);
        }
    }

    /// Calls on a thread's channel after a while.
    pub(crate) fn call_later(&self, on: usize, call: Call, after: Duration) {
        self.seat(on).lock().push_later(call, Instant::now() + after);
    }

    /// The kernel says that a signal came for who waits for this request. Only one that ends the
    /// process ends the call, unless it waits for other programs: whoever asks for a file's
    /// attributes does not expect EINTR. The kernel says it once, so who was not being killed
    /// is looked at again ([`Link::look_at_signalled`]).
    pub(crate) fn interrupt(&self, request: RequestId) {
        // Recorded first: who is about to call on behalf of the request looks here afterwards.
        self.missed.put(request);
        for (on, seat) in self.seats.iter().enumerate() {
            let mut channel = seat.lock();
            let Some(call) = channel.find(request) else { continue };
            let thread = call.waiter.map_or(0, |waiter| waiter.thread);
            let obeys = call.ask.patient || thread == 0 || is_being_killed(thread);
            let found = obeys.then(|| channel.interrupt(request, Instant::now()));
            drop(channel);
            self.missed.take(request);
            match found {
                None => self.signalled.put(request),
                Some(Interrupted::NotHere) => {}
                Some(Interrupted::Flushing) => self.wake(on),
                Some(Interrupted::GivenUp(done)) => done(Err(Errno::INTR)),
            }
            return;
        }
    }

    /// Lets those go who are killed while they wait for writes, and those who got a signal that
    /// did not end them, and one since that does.
    fn look_at_signalled(&self) {
        let now = Instant::now();
        let behind = self.behind.let_go(now, is_being_killed);
        for then in behind.into_iter().chain(self.kept.let_go(now, is_being_killed)) {
            then(Err(Errno::INTR));
        }
        for request in self.signalled.take_due(now) {
            // Those that were answered meanwhile are in no channel.
            if self.seats.iter().any(|seat| seat.lock().find(request).is_some()) {
                self.interrupt(request);
            }
        }
    }

    /// Lets processes go that are being killed while the proxy does not take their calls back.
    /// Others wait: to tell them that a call was interrupted would be a guess.
    fn let_the_dead_go(&self, on: usize, waiters: &[Waiter]) {
        for waiter in waiters.iter().filter(|waiter| is_being_killed(waiter.thread)) {
            let done = self.seat(on).lock().abandon(waiter.request);
            if let Some(done) = done {
                done(Err(Errno::INTR));
            }
        }
    }

    /// What is to be done with writes that the proxy's machine has lost.
    pub(crate) fn on_lost(&self, then: impl Fn(Vec<Sent>) + Send + Sync + 'static) {
        let _ = self.on_lost.0.set(Box::new(then));
    }

    /// The mount is gone: nobody reconnects any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    fn seat(&self, on: usize) -> &Seat {
        &self.seats[on]
    }

    /// Lets a channel's thread look at it; the thread itself does so anyway.
    fn wake(&self, on: usize) {
        if HERE.get() != Some(on) {
            self.seats[on].ring();
        }
    }

    fn refuses(&self, channel: &Channel) -> Option<Errno> {
        match channel.phase {
            Phase::Up(_) => None,
            Phase::Lost(since) => {
                self.soft.is_some_and(|soft| since.elapsed() > soft).then_some(Errno::TIMEDOUT)
            }
            Phase::Over => Some(Errno::NOTCONN),
        }
    }

    /// A whole frame came on a channel.
    fn received(self: &Arc<Link>, on: usize, frame: &[u8]) -> Result<(), Broken> {
        let (tag, header, reply) =
            decode_reply(frame).map_err(|error| Broken::Protocol(error.to_string()))?;
        let (news, epoch) = {
            let mut channel = self.seat(on).lock();
            (channel.received(tag, reply)?, channel.epoch)
        };
        self.heard(epoch, header);
        match news {
            News::Nothing => {}
            // A thread that ended here would leave what the kernel gives it without an answer;
            // the reply that is dropped by a panic says EIO.
            News::Done { done, answer, written } => {
                if let Some((number, write)) = written
                    && self.kept.keep(epoch, number, write)
                {
                    self.commit(on);
                }
                if catch_unwind(AssertUnwindSafe(|| done(answer))).is_err() {
                    tracing::error!(%tag, "what was to be done with a reply panicked");
                }
            }
            News::Identity(payer) => self.identity_answered(on, &payer),
            News::Events(data) => self.events(on, data)?,
        }
        Ok(())
    }

    /// What a reply says of writes before it.
    fn heard(&self, epoch: u64, header: ReplyHeader) {
        let Changed { lost, ready } = self.kept.heard(epoch, header);
        if let (false, Some(again)) = (lost.is_empty(), self.on_lost.0.get()) {
            tracing::warn!(writes = lost.len(), "the proxy's machine lost writes: once more");
            again(lost);
        }
        ready.into_iter().for_each(|then| then(Ok(())));
    }

    /// Has everything made durable that was written.
    fn commit(self: &Arc<Link>, on: usize) {
        let (Some(payer), Some(root)) = (self.kept.oldest(), self.root.get()) else { return };
        let message = OwnRequest::Commit { fid: handle_fid(0) };
        let ask = Ask::new(Handles::one(root), message).freely();
        let link = self.clone();
        let done = move |answer: Answer<'_>| {
            if let Err(error) = &answer {
                tracing::warn!(%error, "what was written could not be made durable");
            }
            let ready = link.kept.committed(link.epoch.load(Ordering::SeqCst), answer.is_ok());
            ready.into_iter().for_each(|then| then(Ok(())));
        };
        self.call_on(on, Call::new(payer, ask, None, done));
    }

    /// Everybody's calls for it may begin now, or fail.
    fn identity_answered(&self, on: usize, payer: &Payer) {
        if payer.refused().is_some() {
            self.payers.forget(payer);
        }
        for other in (0..self.seats.len()).filter(|other| *other != on) {
            self.wake(other);
        }
    }

    fn events(&self, on: usize, data: &[u8]) -> Result<(), Broken> {
        for event in Events::new(data) {
            match event.map_err(|error| Broken::Protocol(error.to_string()))? {
                Event::Window { identity, requests, bytes } => {
                    if let Some(payer) = self.payers.by_number(identity) {
                        payer.set_window(requests, bytes);
                    }
                }
            }
        }
        self.seat(on).lock().say(Control::Wait);
        for other in 0..self.seats.len() {
            self.wake(other);
        }
        Ok(())
    }

    /// A channel's connection broke; a helper sees to another one.
    fn lose(self: &Arc<Link>, on: usize, why: &Broken) {
        let given_up = {
            let mut channel = self.seat(on).lock();
            if !matches!(channel.phase, Phase::Up(_)) {
                return;
            }
            channel.lose(Instant::now())
        };
        for done in given_up {
            done(Err(Errno::INTR));
        }
        if self.over.load(Ordering::SeqCst) {
            return;
        }
        tracing::warn!(channel = on, proxy = %self.source.address, %why, "connection lost");
        let link = self.clone();
        let helper = std::thread::Builder::new().name(format!("reconnect-{on}"));
        if let Err(error) = helper.spawn(move || link.reconnect(on)) {
            tracing::error!(%error, "nobody can reconnect");
        }
    }

    /// Tries until there is a connection, or the mount is gone.
    fn reconnect(&self, on: usize) {
        let mut pause = PAUSE_MIN;
        while !self.over.load(Ordering::SeqCst) {
            let attached = Talk::begin(&self.source, self.msize).and_then(|talk| {
                match talk.msize == self.msize {
                    true => self.attach(on, talk),
                    false => Err(Broken::Protocol("it takes smaller messages now".into()).into()),
                }
            });
            match attached {
                Ok(_) => {
                    tracing::info!(channel = on, proxy = %self.source.address, "connected again");
                    return;
                }
                Err(error) => tracing::debug!(channel = on, %error, "no connection yet"),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Makes a connection a channel's, with everything as it was or told anew. Gives the root.
    fn attach(&self, on: usize, mut talk: Talk) -> Result<Vec<u8>, GreetError> {
        let mut life = lock(&self.life);
        let export = self.source.export.as_str();
        let terms = talk.session(self.id, on as u16, SLOTS, export)?;
        if !terms.resumed {
            life.epoch += 1;
            life.restored = false;
        }
        if !life.restored {
            restore::restore(self, &mut talk)?;
            life.restored = true;
            self.epoch.store(life.epoch, Ordering::SeqCst);
        }
        let epoch = life.epoch;
        drop(life);
        self.heard(epoch, talk.header);
        let same = self.seat(on).lock().epoch == epoch;
        if same {
            self.seat(on).lock().resume();
        } else {
            let given_up = self.seat(on).lock().restart(terms.slots, epoch);
            for done in given_up {
                done(Err(Errno::INTR));
            }
        }
        settle::settle(self, on, &mut talk)?;
        let socket = Arc::new(talk.into_socket());
        self.seat(on).lock().up(socket, Instant::now());
        self.seats[on].ring();
        // Those that still have a connection of the life before learn that it is over.
        if !terms.resumed {
            self.seats.iter().for_each(Seat::ring);
        }
        Ok(terms.root)
    }
}

impl Seat {
    fn new() -> Result<Seat, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Seat { channel: Mutex::new(Channel::new()), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        lock(&self.channel)
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
    }
}

thread_local! {
    /// The channel of this thread, if it is a thread that has one.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The channel for what begins on this thread.
pub(crate) fn here() -> usize {
    HERE.get().unwrap_or(0)
}

/// Nothing that is locked here is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The largest payload of one message, in bytes: what the kernel reads or writes at once.
const PAYLOAD: u32 = 1 << 20;
/// Bytes of a message besides its payload, two long handles and a name among them.
const ROOM: u32 = 12 << 10;
/// Between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
