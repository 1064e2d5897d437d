//! A thread of the mount: it takes the kernel's requests and the proxy's replies, in turn.
//!
//! ```text
//!   epoll ─┬─ /dev/fuse ─► serve ─► FileSystem ─► call ─┐
//!          ├─ socket ─► received ─► done ─► (call) ─────┼─► begin ─► one send ─► epoll
//!          └─ bell ─► another thread has called ────────┘
//! ```
//!
//! A request stays on the thread that took it: handing over costs more than all the rest.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fuse::{Errno, Port};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::channel::Phase;
use super::signals::SIGNALS_EVERY;
use super::socket::{Broken, Inbox};
use super::{HERE, Link};

/// Serves until the mount is gone, and then what is still under way for a moment.
pub(crate) fn run(link: &Arc<Link>, on: usize, mut port: Port) {
    HERE.set(Some(on));
    let ended = Turn::new(link, on, &port).and_then(|mut turn| {
        let end = turn.run(&mut port);
        turn.finish();
        end
    });
    let Err(end) = ended;
    match end {
        Errno::NODEV | Errno::CONNABORTED => tracing::debug!(thread = on, "the mount is gone"),
        error => tracing::error!(thread = on, %error, "a thread of the mount cannot go on"),
    }
}

struct Turn<'l> {
    link: &'l Arc<Link>,
    on: usize,
    set: OwnedFd,
    inbox: Inbox,
    /// The connection that is in the set.
    socket: Option<Arc<OwnedFd>>,
    /// The socket does not take everything that is to be sent.
    blocked: bool,
    /// /dev/fuse is in the set.
    serving: bool,
}

enum Never {}

impl<'l> Turn<'l> {
    fn new(link: &'l Arc<Link>, on: usize, port: &Port) -> Result<Turn<'l>, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, &link.seats[on].bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let inbox = Inbox::new(link.msize);
        let mut turn = Turn { link, on, set, inbox, socket: None, blocked: false, serving: false };
        turn.serve(port, true)?;
        turn.adopt()?;
        Ok(turn)
    }

    fn run(&mut self, port: &mut Port) -> Result<Never, Errno> {
        loop {
            let tick = self.link.seat(self.on).lock().next_tick();
            let link = self.link;
            let looks = link.signalled.any() || link.behind.any() || link.kept.is_full();
            let signals = looks.then_some(SIGNALS_EVERY);
            let pause = tick.into_iter().chain(signals).min();
            let ready = self.wait(pause)?;
            if ready.bell {
                self.link.seats[self.on].hush();
                self.adopt()?;
            }
            if ready.socket {
                self.receive();
            }
            if ready.fuse {
                port.serve(REQUESTS_AT_ONCE)?;
            }
            self.link.look_at_signalled();
            self.begin();
            port.flush()?;
            let full = self.link.seat(self.on).lock().is_full();
            if full == self.serving {
                self.serve(port, !full)?;
            }
        }
    }

    /// The mount is gone. What it has asked for is seen through, within reason.
    fn finish(&mut self) {
        self.link.end();
        let deadline = Instant::now() + FINISH;
        while !self.link.seat(self.on).lock().is_idle() && Instant::now() < deadline {
            // /dev/fuse is always readable by now.
            match self.wait_without_fuse() {
                Ok(ready) if ready.socket => self.receive(),
                Ok(_) => {}
                Err(_) => break,
            }
            self.begin();
            if self.socket.is_none() {
                break;
            }
        }
        let mut channel = self.link.seat(self.on).lock();
        channel.phase = Phase::Over;
        let left = channel.give_up(Instant::now());
        drop(channel);
        for done in left {
            done(Err(Errno::NOTCONN));
        }
    }

    fn wait_without_fuse(&mut self) -> Result<Ready, Errno> {
        use rustix::event::{PollFd, PollFlags, poll};
        let Some(socket) = &self.socket else { return Ok(Ready::default()) };
        let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let flags = if self.blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut polled = [PollFd::new(socket, flags)];
        poll(&mut polled, Some(&pause))?;
        let readable = polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP);
        Ok(Ready { socket: readable, ..Ready::default() })
    }

    fn wait(&mut self, pause: Option<Duration>) -> Result<Ready, Errno> {
        let pause = pause.map(|pause| Timespec::try_from(pause).expect("it is short"));
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; 4];
        let count = match epoll::wait(&self.set, &mut events, pause.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        let mut ready = Ready::default();
        for event in &events[..count] {
            match event.data.u64() {
                FUSE => ready.fuse = true,
                BELL => ready.bell = true,
                _ => ready.socket = true,
            }
        }
        Ok(ready)
    }

    /// Takes what the proxy has sent.
    fn receive(&mut self) {
        let Some(socket) = self.socket.clone() else { return };
        if let Err(why) = self.try_receive(&socket) {
            self.lose(&why);
        }
    }

    fn try_receive(&mut self, socket: &OwnedFd) -> Result<(), Broken> {
        for _ in 0..READS_AT_ONCE {
            let drained = self.inbox.fill(socket.as_fd())?;
            self.link.seat(self.on).lock().hear(Instant::now());
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
    fn begin(&mut self) {
        loop {
            let now = Instant::now();
            let mut channel = self.link.seat(self.on).lock();
            let ticked = channel.tick(now);
            let failed = channel.begin(now);
            let sent = channel.send();
            let expired = match self.link.refuses(&channel) {
                Some(error) if !channel.is_idle() => Some((error, channel.give_up(now))),
                _ => None,
            };
            let overdue = channel.overdue(now);
            let outlived = matches!(channel.phase, Phase::Up(_))
                && channel.epoch != self.link.epoch.load(Ordering::SeqCst);
            drop(channel);
            match (ticked, sent) {
                (Err(why), _) => self.lose(&why),
                (_, Err(error)) => self.lose(&error.into()),
                _ if outlived => self.lose(&Broken::Protocol("the session was begun anew".into())),
                (Ok(()), Ok(all)) => self.want_room(!all),
            }
            self.link.let_the_dead_go(self.on, &overdue);
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

    fn lose(&mut self, why: &Broken) {
        if let Some(socket) = self.socket.take() {
            // The set forgets a descriptor when its last copy is closed, not before.
            let _ = epoll::delete(&self.set, &socket);
        }
        self.inbox = Inbox::new(self.link.msize);
        self.blocked = false;
        self.link.lose(self.on, why);
    }

    /// Takes the connection that somebody may have made.
    fn adopt(&mut self) -> Result<(), Errno> {
        let phase = self.link.seat(self.on).lock().phase.clone();
        if let Phase::Up(socket) = phase
            && self.socket.is_none()
        {
            epoll::add(&self.set, &socket, EventData::new_u64(SOCKET), EventFlags::IN)?;
            self.socket = Some(socket);
        }
        Ok(())
    }

    /// Whether the set tells when the socket takes more.
    fn want_room(&mut self, blocked: bool) {
        if self.blocked == blocked {
            return;
        }
        let Some(socket) = &self.socket else { return };
        let flags = if blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        match epoll::modify(&self.set, socket, EventData::new_u64(SOCKET), flags) {
            Ok(()) => self.blocked = blocked,
            Err(error) => self.lose(&error.into()),
        }
    }

    /// Whether requests are taken. While too much waits they stay with the kernel.
    fn serve(&mut self, port: &Port, serving: bool) -> Result<(), Errno> {
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

/// What a thread has to do.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    fuse: bool,
    socket: bool,
    bell: bool,
}

const FUSE: u64 = 0;
const SOCKET: u64 = 1;
const BELL: u64 = 2;
/// Requests that are taken before their messages are sent.
const REQUESTS_AT_ONCE: usize = 64;
/// Readings of the socket before the kernel's turn comes again.
const READS_AT_ONCE: usize = 16;
/// How long a thread stays for what is under way when the mount is gone.
const FINISH: Duration = Duration::from_secs(2);
