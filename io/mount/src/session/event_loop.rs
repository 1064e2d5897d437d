//! A thread of the mount: it takes the kernel's requests and the proxies' replies, in turn.
//!
//! ```text
//!   epoll ─┬─ /dev/fuse ─► serve ─► FileSystem ─► call ──┐
//!          ├─ connection ─► received ─► done ─► (call) ───┼─► begin ─► one send ─► epoll
//!          └─ waker ─► another thread has called ─────────┘
//! ```
//!
//! A request stays on the thread that took it: handing over costs more than all the rest.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use fuse::{Errno, RequestReceiver};
use model::{BusyPoll, Nanos};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use session::client::{ChannelPhase, TICK};

use super::channel::LinkChannel;
use super::signals::{CheckInterval, SIGNALS_EVERY, is_being_killed};
use super::socket::{Broken, SocketInbox};
use super::{ClientSession, HERE, HomeRouter};
use crate::clock;
use crate::options::nanos;

/// Serves until the mount is gone, and then what is still in flight for a moment.
pub(crate) fn run(homes: &HomeRouter, on: usize, mut port: RequestReceiver, busy_poll: BusyPoll) {
    HERE.set(Some(on));
    let ended = EventLoop::new(homes, on, &port, busy_poll).and_then(|mut turn| {
        let end = turn.run(&mut port);
        turn.finish();
        end
    });
    let Err(end) = ended;
    match end {
        Errno::NODEV | Errno::CONNABORTED => tracing::debug!(thread = on, "the mount has ended"),
        error => tracing::error!(thread = on, %error, "a thread of the mount failed"),
    }
}

struct EventLoop<'h> {
    homes: &'h HomeRouter,
    on: usize,
    set: OwnedFd,
    lines: Vec<LoopConnection<'h>>,
    /// /dev/fuse is in the set.
    serving: bool,
    /// Time of the last check of the waiters in full channels.
    check_interval: CheckInterval,
    busy_poll: BusyPoll,
}

/// This thread's connection of one session.
struct LoopConnection<'h> {
    link: &'h Arc<ClientSession>,
    on: usize,
    inbox: SocketInbox,
    /// The connection that is in the set.
    socket: Option<Arc<OwnedFd>>,
    /// The socket does not take everything that is to be sent.
    blocked: bool,
}

enum Never {}

impl<'h> EventLoop<'h> {
    fn new(
        homes: &'h HomeRouter,
        on: usize,
        port: &RequestReceiver,
        busy_poll: BusyPoll,
    ) -> Result<EventLoop<'h>, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = &homes.shared.wakers[on];
        epoll::add(&set, bell, EventData::new_u64(WAKE), EventFlags::IN)?;
        let line = |link: &'h Arc<ClientSession>| {
            let inbox = SocketInbox::new(link.msize);
            LoopConnection { link, on, inbox, socket: None, blocked: false }
        };
        let lines = homes.links.iter().map(line).collect();
        let looked = CheckInterval::default();
        let mut turn =
            EventLoop { homes, on, set, lines, serving: false, check_interval: looked, busy_poll };
        turn.serve(port, true)?;
        turn.lines.iter_mut().try_for_each(|line| line.adopt(&turn.set))?;
        Ok(turn)
    }

    fn run(&mut self, port: &mut RequestReceiver) -> Result<Never, Errno> {
        loop {
            let ticks = self.lines.iter().filter_map(|line| line.channel().state.next_tick());
            let signals = (self.homes.has_waiters() || !self.serving).then_some(SIGNALS_EVERY);
            let checked = self.lines.iter().any(|line| line.link.is_checked()).then_some(TICK);
            let pause = ticks.chain(checked).map(Nanos::to_duration).chain(signals).min();
            let ready = self.wait(pause)?;
            if ready.wake {
                self.homes.shared.clear_wake(self.on);
                self.lines.iter_mut().try_for_each(|line| line.adopt(&self.set))?;
            }
            for (line, _) in self.lines.iter_mut().zip(0..).filter(|(_, at)| ready.has(*at)) {
                line.receive(&self.set);
            }
            if ready.fuse {
                port.serve(REQUESTS_AT_ONCE)?;
            }
            self.homes.detach_signalled();
            if !self.serving && self.check_interval.is_due(Instant::now()) {
                self.lines.iter().for_each(LoopConnection::detach_killed);
            }
            self.lines.iter_mut().for_each(|line| line.begin(&self.set));
            port.flush()?;
            let full = self.lines.iter().any(|line| line.channel().state.is_full());
            if full == self.serving {
                self.serve(port, !full)?;
            }
        }
    }

    /// The mount is gone. What it has asked for is seen through, within reason.
    fn finish(&mut self) {
        self.homes.end();
        if let Some((leave, line)) = self.homes.shared.leases.leave().zip(self.lines.first()) {
            line.link.send_about_leases(leave);
        }
        self.lines.iter_mut().for_each(|line| line.begin(&self.set));
        let deadline = Instant::now() + FINISH;
        let busy =
            |line: &LoopConnection<'_>| line.socket.is_some() && !line.channel().state.is_idle();
        while self.lines.iter().any(busy) && Instant::now() < deadline {
            for line in &mut self.lines {
                // /dev/fuse is always readable by now.
                match line.poll_socket() {
                    Ok(true) => line.receive(&self.set),
                    Ok(false) => {}
                    Err(error) => line.disconnect(&self.set, &error.into()),
                }
                line.begin(&self.set);
            }
        }
        for line in &self.lines {
            let left = line.channel().close(clock::now());
            for done in left {
                done(Err(Errno::NOTCONN));
            }
        }
    }

    fn wait(&mut self, pause: Option<Duration>) -> Result<ReadySet, Errno> {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; 8];
        let mut ready = ReadySet::default();
        let began = Instant::now();
        let came = self.wait_for_events(&mut events, began, pause);
        self.busy_poll.record_wait(nanos(began.elapsed()));
        let count = match came {
            Ok(count) => count,
            // A ring's entry may have come by what interrupted it.
            Err(Errno::INTR) => {
                ready.fuse = self.serving;
                0
            }
            Err(error) => return Err(error),
        };
        for event in &events[..count] {
            match event.data.u64() {
                FUSE => ready.fuse = true,
                WAKE => ready.wake = true,
                home => ready.sockets |= 1 << (home - SOCKETS),
            }
        }
        Ok(ready)
    }

    /// Waits for events: awake for a while if they come soon, then asleep.
    fn wait_for_events(
        &self,
        events: &mut [Event],
        began: Instant,
        pause: Option<Duration>,
    ) -> Result<usize, Errno> {
        let span = Duration::from_nanos(self.busy_poll.span().get());
        let span = pause.map_or(span, |pause| span.min(pause));
        while !span.is_zero() && began.elapsed() < span {
            match epoll::wait(&self.set, &mut *events, Some(&AT_ONCE))? {
                0 => std::thread::yield_now(),
                count => return Ok(count),
            }
        }
        let pause = pause.map(|pause| Timespec::try_from(pause).expect("it is short"));
        epoll::wait(&self.set, events, pause.as_ref())
    }

    /// Whether requests are taken. While too much waits they stay with the kernel.
    fn serve(&mut self, port: &RequestReceiver, serving: bool) -> Result<(), Errno> {
        if serving {
            // Exclusive: a request wakes one thread, not all.
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            epoll::add(&self.set, port, EventData::new_u64(FUSE), flags)?;
        } else {
            epoll::delete(&self.set, port)?;
        }
        self.serving = serving;
        Ok(())
    }
}

impl LoopConnection<'_> {
    fn channel(&self) -> MutexGuard<'_, LinkChannel> {
        self.link.lock_channel(self.on)
    }

    /// Detaches killed waiters in a full channel, while the kernel's interrupts are not read.
    fn detach_killed(&self) {
        let waiters = self.channel().waiters_if_full();
        for waiter in waiters.iter().filter(|waiter| is_being_killed(waiter.thread)) {
            self.link.interrupt(waiter.request);
        }
    }

    /// Whether something came, for which it waits a moment.
    fn poll_socket(&self) -> Result<bool, Errno> {
        use rustix::event::{PollFd, PollFlags, poll};
        let Some(socket) = &self.socket else { return Ok(false) };
        let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let flags = if self.blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut polled = [PollFd::new(socket, flags)];
        poll(&mut polled, Some(&pause))?;
        Ok(polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP))
    }

    /// Whether something has come that is not read yet.
    fn has_input(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let Some(socket) = &self.socket else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Takes what the proxy has sent.
    fn receive(&mut self, set: &OwnedFd) {
        let Some(socket) = self.socket.clone() else { return };
        if let Err(why) = self.try_receive(&socket) {
            self.disconnect(set, &why);
        }
    }

    fn try_receive(&mut self, socket: &OwnedFd) -> Result<(), Broken> {
        for _ in 0..READS_AT_ONCE {
            let drained = self.inbox.fill(socket.as_fd())?;
            self.channel().state.note_received(clock::now());
            while let Some(frame) = self.inbox.next()? {
                self.link.received(self.on, frame)?;
            }
            if drained {
                break;
            }
        }
        Ok(())
    }

    /// Begins what may begin and sends it.
    fn begin(&mut self, set: &OwnedFd) {
        loop {
            let now = clock::now();
            let mut channel = self.channel();
            let ticked = channel.state.tick(self.link.is_checked(), now);
            // The pause first: a thread that sees its end sees the life that it was for.
            let pausing = self.link.pausing.load(Ordering::SeqCst);
            let outlived = channel.state.phase() == ChannelPhase::Up
                && channel.state.epoch() != self.link.epoch.load(Ordering::SeqCst);
            let failed = match pausing || outlived {
                true => Vec::new(),
                false => channel.begin(now),
            };
            let sent = channel.send();
            let expired = match self.link.refuses(&channel) {
                Some(error) if !channel.state.is_idle() => Some((error, channel.abandon_all(now))),
                _ => None,
            };
            let overdue = channel.overdue(now);
            drop(channel);
            match (ticked, sent) {
                // A process that stood still finds what came meanwhile.
                (Err(_), _) if self.has_input() => {}
                (Err(why), _) => self.disconnect(set, &why.into()),
                (_, Err(error)) => self.disconnect(set, &error.into()),
                _ if outlived => {
                    self.disconnect(set, &Broken::Protocol("the session was replaced".into()));
                }
                (Ok(()), Ok(all)) => self.want_room(set, !all),
            }
            self.link.detach_killed(self.on, &overdue);
            let again = !failed.is_empty();
            for (done, error) in failed {
                done(Err(error));
            }
            if let Some((error, given_up)) = expired {
                given_up.into_iter().for_each(|done| done(Err(error)));
            }
            if !again {
                return;
            }
        }
    }

    fn disconnect(&mut self, set: &OwnedFd, why: &Broken) {
        if let Some(socket) = self.socket.take() {
            // The set forgets a descriptor when its last copy is closed, not before.
            let _ = epoll::delete(set, &socket);
        }
        self.inbox = SocketInbox::new(self.link.msize);
        self.blocked = false;
        self.link.disconnect(self.on, why);
    }

    /// Adopts a connection that another thread may have made.
    fn adopt(&mut self, set: &OwnedFd) -> Result<(), Errno> {
        if self.socket.is_some() {
            return Ok(());
        }
        let socket = self.channel().socket().cloned();
        if let Some(socket) = socket {
            let data = EventData::new_u64(SOCKETS + self.link.home as u64);
            epoll::add(set, &socket, data, EventFlags::IN)?;
            self.socket = Some(socket);
        }
        Ok(())
    }

    /// Whether the set tells when the socket takes more.
    fn want_room(&mut self, set: &OwnedFd, blocked: bool) {
        if self.blocked == blocked {
            return;
        }
        let Some(socket) = &self.socket else { return };
        let flags = if blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let data = EventData::new_u64(SOCKETS + self.link.home as u64);
        match epoll::modify(set, socket, data, flags) {
            Ok(()) => self.blocked = blocked,
            Err(error) => self.disconnect(set, &error.into()),
        }
    }
}

/// Work of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct ReadySet {
    fuse: bool,
    wake: bool,
    /// A bit for each of `lines`.
    sockets: u64,
}

impl ReadySet {
    fn has(self, line: usize) -> bool {
        self.sockets & (1 << line) != 0
    }
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const FUSE: u64 = 0;
const WAKE: u64 = 1;
/// Event key of the first connection; the others follow.
const SOCKETS: u64 = 2;
/// Requests that are taken before their messages are sent.
const REQUESTS_AT_ONCE: usize = 64;
/// Readings of the socket between two readings of the kernel's requests.
const READS_AT_ONCE: usize = 16;
/// How long a thread stays for what is in flight when the mount is gone.
const FINISH: Duration = Duration::from_secs(2);
