//! A user of the sawtooth: a thread that writes, or makes names and removes them.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ninep::{Fid, Request};
use nix::unistd::{Uid, setfsuid};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

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

/// One client of a user: a user may have several, with a number each.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecayedSeat {
    pub(super) uid: u32,
    pub(super) work: DecayedWork,
    pub(super) number: usize,
}

/// A client at work; it ends when dropped.
pub(super) struct DecayedUser {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl DecayedSeat {
    /// The user's directory, from the export.
    fn dir(&self) -> String {
        format!("u{}", self.uid)
    }

    /// The client's file in it.
    fn file(&self) -> String {
        format!("f{}", self.number)
    }
}

/// Makes a directory for the user and a file for the client.
pub(super) fn prepare(export: &Path, seat: &DecayedSeat) -> anyhow::Result<()> {
    let dir = export.join(seat.dir());
    std::fs::create_dir_all(&dir).context("cannot make a user's directory")?;
    let file = dir.join(seat.file());
    std::fs::write(&file, b"").context("cannot make a user's file")?;
    for (path, mode) in [(dir, 0o777), (file, 0o666)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).context("cannot open it to its user")?;
    }
    Ok(())
}

impl DecayedUser {
    /// Begins to work as the user.
    pub(super) fn start(at: &BenchAddress, seat: &DecayedSeat) -> anyhow::Result<DecayedUser> {
        let uid = seat.uid;
        let mut session = BenchSession::open(at, BLOCK as u32 + 4096)?;
        let name = format!("user{uid}");
        session.attach(ROOT, &format!("x?job=job{uid}"), &BenchIdentity { uname: name, uid })?;
        session.walk(ROOT, HOME, &seat.dir())?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, seat) = (Arc::clone(&stop), *seat);
        let thread = std::thread::spawn(move || {
            let over = || stopped.load(Ordering::Relaxed);
            match seat.work {
                DecayedWork::Write { per_sec } => write(&mut session, &seat.file(), per_sec, &over),
                DecayedWork::Names => names(&mut session, &format!("n{}", seat.number), &over),
            }
        });
        Ok(DecayedUser { stop, thread: Some(thread) })
    }

    /// Begins to work as the user on a mount.
    pub(super) fn start_on(root: &Path, seat: &DecayedSeat) -> anyhow::Result<DecayedUser> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, seat) = (Arc::clone(&stop), *seat);
        // Directories above it are the bench's alone.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let home = rustix::fs::open(root.join(seat.dir()), flags, Mode::empty())
            .context("cannot open a user's directory")?;
        let thread = std::thread::spawn(move || {
            // Of this thread alone, until it ends.
            setfsuid(Uid::from_raw(seat.uid));
            let over = || stopped.load(Ordering::Relaxed);
            match seat.work {
                DecayedWork::Write { per_sec } => {
                    write_mounted(&home, &seat.file(), per_sec, &over)
                }
                DecayedWork::Names => names_mounted(&home, &format!("n{}", seat.number), &over),
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
    name: &str,
    per_sec: Option<u32>,
    over: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    session.open_file(HOME, OPEN, name, ninep::open::WRONLY)?;
    blocks(per_sec, over, |offset, data| {
        session.call(&Request::Write { fid: OPEN, offset, data }).map(drop)
    })
}

/// Past the page cache, so that what is written is served, and no more is under way.
fn write_mounted(
    home: &OwnedFd,
    name: &str,
    per_sec: Option<u32>,
    over: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = openat(home, name, flags, Mode::empty()).context("cannot open a user's file")?;
    blocks(per_sec, over, |offset, data| {
        let written = rustix::io::pwrite(&file, data, offset).context("cannot write")?;
        ensure!(written == data.len(), "{written} bytes were written of {}", data.len());
        Ok(())
    })
}

/// Writes block by block with `write`, from the begin again after [`FILE`].
fn blocks(
    per_sec: Option<u32>,
    over: &dyn Fn() -> bool,
    mut write: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let data = vec![7; BLOCK];
    let pause = per_sec.map(|count| Duration::from_secs(1) / count);
    let (mut due, mut offset) = (Instant::now(), 0);
    while !over() {
        if let Some(pause) = pause {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += pause;
        }
        write(offset, &data)?;
        offset = (offset + BLOCK as u64) % FILE;
    }
    Ok(())
}

fn names_mounted(home: &OwnedFd, name: &str, over: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    while !over() {
        drop(openat(home, name, flags, Mode::RUSR | Mode::WUSR).context("cannot create a file")?);
        unlinkat(home, name, AtFlags::empty()).context("cannot remove a file")?;
    }
    Ok(())
}

fn names(session: &mut BenchSession, name: &str, over: &dyn Fn() -> bool) -> anyhow::Result<()> {
    while !over() {
        session.create(HOME, OPEN, name)?;
        session.clunk(OPEN)?;
        session.unlink(HOME, name, 0)?;
    }
    Ok(())
}

const ROOT: Fid = Fid(1);
const HOME: Fid = Fid(2);
const OPEN: Fid = Fid(3);
/// Payload of a write.
pub(super) const BLOCK: usize = 1 << 20;
/// Small enough for any disk.
const FILE: u64 = 64 << 20;
