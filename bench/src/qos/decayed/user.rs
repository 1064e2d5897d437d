//! A user of the sawtooth: a thread that writes, or makes names and removes them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ninep::{Fid, Request};

use super::super::super::session::{BenchIdentity, BenchSession};
use super::super::super::socket::BenchAddress;

/// What a user does, until it is ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecayedWork {
    /// Writes a file of [`FILE`] again and again, block by block; `per_sec` blocks a second, or as
    /// fast as it can.
    Write { per_sec: Option<u32> },
    /// Creates a file and removes it.
    Names,
}

/// One user; it ends when dropped.
pub(super) struct DecayedUser {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// Makes a directory and a file for each.
pub(super) fn prepare(export: &Path, works: &[(u32, DecayedWork)]) -> anyhow::Result<()> {
    for (uid, _) in works {
        let dir = export.join(format!("u{uid}"));
        std::fs::create_dir_all(&dir).context("cannot make a user's directory")?;
        let file = dir.join("f");
        std::fs::write(&file, b"").context("cannot make a user's file")?;
        for (path, mode) in [(dir, 0o777), (file, 0o666)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).context("cannot open it to its user")?;
        }
    }
    Ok(())
}

impl DecayedUser {
    /// Begins to work as the user.
    pub(super) fn start(
        at: &BenchAddress,
        uid: u32,
        work: DecayedWork,
    ) -> anyhow::Result<DecayedUser> {
        let mut session = BenchSession::open(at, BLOCK as u32 + 4096)?;
        let name = format!("user{uid}");
        session.attach(ROOT, &format!("x?job=job{uid}"), &BenchIdentity { uname: name, uid })?;
        session.walk(ROOT, HOME, &format!("u{uid}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let over = || stopped.load(Ordering::Relaxed);
            match work {
                DecayedWork::Write { per_sec } => write(&mut session, per_sec, &over),
                DecayedWork::Names => names(&mut session, &over),
            }
        });
        Ok(DecayedUser { stop, thread: Some(thread) })
    }

    /// Ends it; an error if it met one.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().ok().context("a user panicked")?.context("a user")
    }
}

impl Drop for DecayedUser {
    fn drop(&mut self) {
        // Whoever wanted its error has called end.
        let _ = self.join();
    }
}

fn write(
    session: &mut BenchSession,
    per_sec: Option<u32>,
    over: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    session.open_file(HOME, OPEN, "f", ninep::open::WRONLY)?;
    let data = vec![7; BLOCK];
    let pause = per_sec.map(|count| Duration::from_secs(1) / count);
    let (mut due, mut offset) = (Instant::now(), 0);
    while !over() {
        if let Some(pause) = pause {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += pause;
        }
        session.call(&Request::Write { fid: OPEN, offset, data: &data })?;
        offset = (offset + BLOCK as u64) % FILE;
    }
    Ok(())
}

fn names(session: &mut BenchSession, over: &dyn Fn() -> bool) -> anyhow::Result<()> {
    while !over() {
        session.create(HOME, OPEN, "name")?;
        session.clunk(OPEN)?;
        session.unlink(HOME, "name", 0)?;
    }
    Ok(())
}

const ROOT: Fid = Fid(1);
const HOME: Fid = Fid(2);
const OPEN: Fid = Fid(3);
const BLOCK: usize = 1 << 20;
/// Small enough for any disk.
const FILE: u64 = 64 << 20;
