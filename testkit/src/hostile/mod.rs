//! Clients that mean harm: each attack takes what it can get, or says what nobody
//! understands, again and again until the test ends it.
//!
//! ```text
//!   victim ─► attack: round, round, … until stop ─► how many rounds
//!               takes.rs    descriptors, sessions, connections, memory, locks, tags
//!               speech.rs   half messages, noise, changed messages, names, numbers
//!               http.rs     the same against a controller
//!               files.rs    by the files of a mount
//! ```
//!
//! That they are refused, closed or not answered in time is what an attacker expects: it
//! starts again. The test checks what the attacks must not do to others.

pub mod files;
pub mod http;
mod speech;
mod takes;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ninep::{Fid, NOFID, NOTAG, Request, Tag};

use crate::Dice;
use crate::p9::{P9Address, P9Frame, P9Wire};

/// A proxy that the attacks are against.
#[derive(Clone, Debug)]
pub struct NinepVictim {
    /// The address that it listens at.
    pub address: SocketAddr,
    /// The export, with the file `f` of some MiB in it that the attackers may read.
    pub aname: String,
    /// Who the attackers say they are.
    pub uid: u32,
}

/// One way to do harm to a `V`.
#[derive(Debug)]
pub struct Attack<V: 'static> {
    /// What it is called in reports.
    pub name: &'static str,
    round: fn(&V, &mut Dice, Over<'_>) -> io::Result<()>,
}

/// Whether the attack is to end.
type Over<'a> = &'a dyn Fn() -> bool;

/// All that there are against a proxy.
pub const ALL: &[Attack<NinepVictim>] = &[
    Attack { name: "opens", round: takes::opens },
    Attack { name: "fids", round: takes::fids },
    Attack { name: "sessions", round: takes::sessions },
    Attack { name: "connections", round: takes::connections },
    Attack { name: "replies that are not read", round: takes::unread },
    Attack { name: "values of attributes", round: takes::sinks },
    Attack { name: "ranges of locks", round: takes::ranges },
    Attack { name: "locks that wait", round: takes::waiting_locks },
    Attack { name: "jobs", round: takes::jobs },
    Attack { name: "identities", round: takes::identities },
    Attack { name: "questions", round: takes::tells },
    Attack { name: "flushes", round: takes::flushes },
    Attack { name: "half messages", round: speech::halves },
    Attack { name: "noise", round: speech::noise },
    Attack { name: "changed messages", round: speech::changed },
    Attack { name: "names", round: speech::names },
    Attack { name: "numbers", round: speech::numbers },
    Attack { name: "sizes", round: speech::sizes },
];

impl<V> Attack<V> {
    /// Attacks for a moment.
    ///
    /// # Errors
    /// If it was refused or thrown out where nobody else asks for anything.
    pub fn once(&self, victim: &V, seed: u64) -> io::Result<()> {
        let until = Instant::now() + ROUND;
        (self.round)(victim, &mut Dice::new(seed), &|| Instant::now() >= until)
    }

    /// Attacks until `stop`, and counts rounds that went. What it took is given back by then.
    pub fn go(&self, victim: &V, seed: u64, stop: &AtomicBool, rounds: &AtomicU64) {
        let mut dice = Dice::new(seed);
        let over = || stop.load(Ordering::SeqCst);
        while !over() {
            match (self.round)(victim, &mut dice, &over) {
                Ok(()) => drop(rounds.fetch_add(1, Ordering::Relaxed)),
                // There was no place for it, or it was thrown out.
                Err(_) => std::thread::sleep(BREATH),
            }
        }
    }
}

/// A connection that expects the worst.
struct Hostile {
    wire: P9Wire,
}

impl Hostile {
    /// Over which nothing is said yet.
    fn connect(victim: &NinepVictim) -> io::Result<Hostile> {
        Ok(Hostile { wire: P9Wire::open(&P9Address::Tcp(victim.address))? })
    }

    /// Attached, its root as fid 0.
    fn attached(victim: &NinepVictim, msize: u32) -> io::Result<Hostile> {
        let mut hostile = Hostile::connect(victim)?;
        hostile.version(msize, ninep::VERSION)?;
        hostile.ask(&Request::Attach {
            fid: Fid(0),
            afid: NOFID,
            uname: b"",
            aname: victim.aname.as_bytes(),
            n_uname: victim.uid,
        })?;
        Ok(hostile)
    }

    /// The same with `f` open for reading as fid 1.
    fn reading(victim: &NinepVictim, msize: u32) -> io::Result<Hostile> {
        let mut hostile = Hostile::attached(victim, msize)?;
        hostile.walk(0, 1, "f")?;
        hostile.ask(&Request::Lopen { fid: Fid(1), flags: 0 })?;
        Ok(hostile)
    }

    fn version(&mut self, msize: u32, version: &[u8]) -> io::Result<()> {
        self.send_as(NOTAG, &Request::Version { msize, version })?;
        self.wire.wait(NOTAG).map(drop)
    }

    /// Sends a message under a tag of its own.
    fn send(&mut self, request: &Request<'_>) -> io::Result<Tag> {
        let tag = self.wire.tag();
        self.send_as(tag, request)?;
        Ok(tag)
    }

    fn send_as(&mut self, tag: Tag, request: &Request<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        request.encode(tag, &mut bytes);
        self.wire.send(&bytes)
    }

    /// Sends a message and waits for its answer, whatever that is.
    fn answer(&mut self, request: &Request<'_>) -> io::Result<P9Frame> {
        let tag = self.send(request)?;
        self.wire.wait(tag)
    }

    /// The same; an error of the proxy is one.
    fn ask(&mut self, request: &Request<'_>) -> io::Result<()> {
        refused(&self.answer(request)?)
    }

    fn walk(&mut self, fid: u32, newfid: u32, name: &str) -> io::Result<()> {
        let tag = self.wire.tag();
        let mut bytes = Vec::new();
        crate::p9::names(&[name], |names| {
            let newfid = Fid(newfid);
            Request::Walk { fid: Fid(fid), newfid, names }.encode(tag, &mut bytes);
        });
        self.wire.send(&bytes)?;
        refused(&self.wire.wait(tag)?)
    }

    /// Reads what comes for a while, and forgets it.
    fn drain(&mut self, over: &dyn Fn() -> bool) -> io::Result<()> {
        let until = Instant::now() + ROUND;
        while Instant::now() < until && !over() {
            if self.wire.readable(10) && self.wire.receive()?.is_none() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// Keeps what was taken for a while.
fn keep(over: &dyn Fn() -> bool) {
    let until = Instant::now() + ROUND;
    while Instant::now() < until && !over() {
        std::thread::sleep(BREATH);
    }
}

/// An answer that is an error.
fn refused(frame: &P9Frame) -> io::Result<()> {
    match frame.0.get(4) {
        Some(&RLERROR) => Err(io::Error::other("refused")),
        _ => Ok(()),
    }
}

/// The type of an answer that is an error.
const RLERROR: u8 = 7;
/// How long an attack keeps what it took.
const ROUND: Duration = Duration::from_millis(500);
/// Between two attempts.
const BREATH: Duration = Duration::from_millis(20);
