//! Costs of the kinds of metadata request with many threads.
//!
//! Each thread works in a directory of its own with [`FILES`] files, so that one
//! directory's lock does not stand for the whole back end. What a lookup costs on
//! a network file system whose client has cached it is not what it costs the
//! servers; only operations that change something are certain to reach them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use model::{Nanos, OpKind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, XattrFlags};
use rustix::io::Errno;

use super::load::LoadWindow;
use super::scratch::{ScratchFiles, write_whole};
use super::{CalibrateError, Steps};
use crate::writes::nameless_file;

/// Cost of one operation of each kind; kinds that the file system refuses are missing.
pub(super) type OpCosts = Vec<(OpKind, Nanos)>;

/// One thread's place of work.
struct ScratchDir {
    dir: OwnedFd,
    /// Where syncs, attributes and locks go.
    file: OwnedFd,
    /// How often each operation has been called, for names that are new.
    calls: u64,
    made: u64,
}

/// Threads at once; a kind's cost is taken from whichever gives the higher rate.
const CROWDS: [usize; 2] = [4, 16];
const FILES: u64 = 64;

/// Every kind that an operation stands for, in the order in which they must run: what
/// is unlinked was made before, and fsync comes last, as it leaves the journal busy.
const KINDS: [OpKind; 17] = [
    OpKind::Walk,
    OpKind::Getattr,
    OpKind::Open,
    OpKind::Setattr,
    OpKind::Readdir,
    OpKind::Statfs,
    OpKind::Setxattr,
    OpKind::Getxattr,
    OpKind::Lock,
    OpKind::Create,
    OpKind::Rename,
    OpKind::Unlink,
    OpKind::Mkdir,
    OpKind::Symlink,
    OpKind::Mknod,
    OpKind::Link,
    OpKind::Fsync,
];

/// Costs at saturation, within about `time`.
pub(super) fn measure(
    scratch: &ScratchFiles,
    time: Duration,
    steps: &mut Steps<'_>,
) -> Result<OpCosts, CalibrateError> {
    let each = time / (CROWDS.len() * KINDS.len()) as u32;
    let mut best = [0.0_f64; OpKind::COUNT];
    let wrong = |error: Errno| CalibrateError::Backend(error.into());
    let place = |number: usize| ScratchDir::make(scratch.own(), &number.to_string());
    let all = CROWDS.into_iter().max().expect("there are crowds");
    let mut places = (0..all).map(place).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    for crowd in CROWDS {
        for kind in KINDS {
            steps.report_progress(&format!("{kind} by {crowd}"));
            let mut workers: Vec<_> =
                places[..crowd].iter_mut().map(|place| place.worker(kind)).collect();
            let each = if makes_names(kind) { each / 3 } else { each };
            let rate = match LoadWindow::of(each, steps.stop).rate(&mut workers) {
                Err(CalibrateError::Backend(error)) if refused(&error) => continue,
                answer => answer?,
            };
            best[kind as usize] = rate.max(best[kind as usize]);
        }
    }
    let cost = |rate: f64| Nanos::new((1e9 / rate).ceil() as u64);
    let measured = KINDS.into_iter().filter(|kind| best[*kind as usize] > 0.0);
    Ok(measured.map(|kind| (kind, cost(best[kind as usize]))).collect())
}

/// Whether a kind creates names: such kinds get less time, since all names must be removed again.
fn makes_names(kind: OpKind) -> bool {
    matches!(kind, OpKind::Create | OpKind::Mkdir | OpKind::Symlink | OpKind::Mknod | OpKind::Link)
}

fn refused(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL))
}

impl ScratchDir {
    fn make(parent: BorrowedFd<'_>, name: &str) -> Result<ScratchDir, Errno> {
        rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        for number in 0..FILES {
            create(dir.as_fd(), &format!("f{number}"))?;
        }
        let file = nameless_file(dir.as_fd())?;
        Ok(ScratchDir { dir, file, calls: 0, made: 0 })
    }

    fn worker(&mut self, kind: OpKind) -> impl FnMut() -> io::Result<Option<u64>> + Send {
        move || self.call(kind)
    }

    /// One call of the operation that stands for `kind`, and how many operations it was;
    /// `None` when there is nothing left to do it on.
    fn call(&mut self, kind: OpKind) -> io::Result<Option<u64>> {
        self.calls += 1;
        let old = format!("f{}", self.calls % FILES);
        match kind {
            OpKind::Readdir => return self.list().map(Some),
            OpKind::Create => {
                create(self.dir.as_fd(), &format!("n{}", self.made))?;
                self.made += 1;
            }
            OpKind::Unlink | OpKind::Rename if self.made == 0 => return Ok(None),
            OpKind::Rename => {
                self.rename_and_back()?;
                return Ok(Some(2));
            }
            OpKind::Unlink => {
                self.made -= 1;
                self.unlink_made()?;
            }
            OpKind::Fsync => {
                write_whole(self.file.as_fd(), &[1; 4096], self.calls % 16 * 4096)?;
                rustix::fs::fsync(&self.file)?;
            }
            OpKind::Lock => {
                rustix::fs::flock(&self.file, rustix::fs::FlockOperation::LockExclusive)?;
                rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock)?;
                return Ok(Some(2));
            }
            OpKind::Walk | OpKind::Getattr | OpKind::Open | OpKind::Statfs | OpKind::Getxattr => {
                self.run_read_only(kind, &old)?;
            }
            _ => self.change(kind, &old)?,
        }
        Ok(Some(1))
    }

    /// Operations that change nothing.
    fn run_read_only(&self, kind: OpKind, old: &str) -> Result<(), Errno> {
        let open =
            |flags| rustix::fs::openat(&self.dir, old, flags | OFlags::CLOEXEC, Mode::empty());
        match kind {
            OpKind::Walk => drop(open(OFlags::PATH | OFlags::NOFOLLOW)?),
            OpKind::Open => drop(open(OFlags::RDONLY)?),
            OpKind::Getattr => drop(rustix::fs::statat(&self.dir, old, AtFlags::SYMLINK_NOFOLLOW)?),
            OpKind::Statfs => drop(rustix::fs::fstatfs(&self.dir)?),
            _ => match rustix::fs::fgetxattr(&self.file, c"user.sluice", &mut [0; 64][..]) {
                Ok(_) | Err(Errno::NODATA) => {}
                Err(error) => return Err(error),
            },
        }
        Ok(())
    }

    /// Operations that change something, each on a name of its own.
    fn change(&self, kind: OpKind, old: &str) -> Result<(), Errno> {
        let (dir, calls) = (&self.dir, self.calls);
        let mode = Mode::RUSR | Mode::WUSR;
        match kind {
            OpKind::Setattr => rustix::fs::chmodat(dir, old, mode | bit(calls), AtFlags::empty()),
            OpKind::Setxattr => {
                let value = calls.to_ne_bytes();
                rustix::fs::fsetxattr(&self.file, c"user.sluice", &value, XattrFlags::empty())
            }
            OpKind::Mkdir => rustix::fs::mkdirat(dir, format!("d{calls}"), Mode::RWXU),
            OpKind::Symlink => rustix::fs::symlinkat(old, dir, format!("s{calls}")),
            OpKind::Mknod => rustix::fs::mknodat(dir, format!("p{calls}"), FileType::Fifo, mode, 0),
            _ => rustix::fs::linkat(dir, old, dir, format!("l{calls}"), AtFlags::empty()),
        }
    }

    fn rename_and_back(&self) -> Result<(), Errno> {
        let (dir, name) = (&self.dir, format!("n{}", self.calls % self.made));
        rustix::fs::renameat(dir, &name, dir, "moved")?;
        rustix::fs::renameat(dir, "moved", dir, &name)
    }

    fn unlink_made(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.dir, format!("n{}", self.made), AtFlags::empty())
    }

    /// Lists the directory once; the number of entries.
    fn list(&self) -> io::Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, ".", flags, Mode::empty())?;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let (mut entries, mut listing) = (0, RawDir::new(dir, &mut buffer));
        while let Some(entry) = listing.next() {
            entry?;
            entries += 1;
        }
        Ok(entries)
    }
}

fn create(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
}

/// A permission that differs from call to call, so that each one changes something.
fn bit(calls: u64) -> Mode {
    if (calls / FILES).is_multiple_of(2) { Mode::RGRP } else { Mode::empty() }
}
