//! Tread, Twrite and Tfsync.
//!
//! A short read goes from the file into the reply's own place. A long one goes
//! through a pipe: the kernel passes the pages on and nothing is copied here. How
//! much was really read is known before the header is written, so a file that is
//! cut meanwhile gives a shorter reply and never a broken one.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use model::{Amount, Lane, Nanos};
use ninep::Reply;
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::{Context, Ending};
use crate::credentials;
use crate::fids::FidState;
use crate::gate::SPLICE_MIN;
use crate::pipes::PipeLoad;
use crate::sessions::MountSession;
use crate::sys::read_appending;
use crate::writes::{DirtyAccount, WriteFile, WriteRequest};

pub(super) fn read(cx: &Context<'_>, offset: u64, count: u32) -> Ending {
    match &cx.fid().role {
        FidState::File { .. } => read_file(cx, offset, count),
        FidState::XattrRead { value, .. } => {
            let start = value.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
            let end = value.len().min(start + count as usize);
            cx.answer(Ok(Reply::Read { data: &value[start..end] }))
        }
        FidState::Dir(_) => cx.answer(Err(Errno::ISDIR.into())),
        FidState::Path | FidState::XattrWrite(_) => cx.answer(Err(Errno::BADF.into())),
    }
}

fn read_file(cx: &Context<'_>, offset: u64, count: u32) -> Ending {
    let file = cx.fid().node.fd.as_fd();
    let target = &cx.fid().user.export.target;
    if offset.checked_add(count.into()).is_none_or(|end| end > i64::MAX as u64) {
        return cx.answer(Err(Errno::INVAL.into()));
    }
    let only_cached = cx.running.quick && target.nowait;
    if u64::from(count) >= SPLICE_MIN.get() {
        if only_cached && !is_likely_cached(file, offset, count) {
            return missed(cx, offset);
        }
        return read_long(cx, file, offset, count);
    }
    if !only_cached && !target.in_memory() {
        // May wait: not while the outbox is held, which others may have to flush.
        let mut data = Vec::new();
        return match read_full(file, &mut data, count as usize, offset, ReadWriteFlags::empty()) {
            Ok(_) => cx.answer_read(&data),
            Err(error) => cx.answer(Err(error)),
        };
    }
    let flags = if only_cached { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
    let to = cx.to();
    let mut outbox = cx.outbox.lock().expect("not poisoned");
    let batch = outbox.batch(to);
    let start = batch.begin_read();
    match read_full(file, &mut batch.bytes, count as usize, offset, flags) {
        Ok(len) => {
            batch.end_read(to.tag, start, len as u32);
            if only_cached && !cx.was_fetched() {
                cx.fid().misses.make_up();
            }
            let ending = cx.answered(batch, Amount::new(len as u64, 1), 0);
            cx.flush.set(outbox.mark_due());
            ending
        }
        Err(error) => {
            batch.bytes.truncate(start);
            batch.answered.pop();
            drop(outbox);
            // A file system mounted below may not know of reads that do not wait.
            let may_wait = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP));
            if only_cached && may_wait {
                cx.fid().misses.count();
                return missed(cx, offset);
            }
            cx.answer(Err(error))
        }
    }
}

/// What follows a read that the page cache missed is read ahead by the kernel.
fn missed(cx: &Context<'_>, offset: u64) -> Ending {
    if let FidState::File { accesses, .. } = &cx.fid().role {
        accesses.mark_fetched(offset);
    }
    Ending::Missed
}

/// Reads `count` bytes behind those in `bytes`, fewer only where the file ends.
fn read_full(
    file: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    count: usize,
    offset: u64,
    flags: ReadWriteFlags,
) -> io::Result<usize> {
    let mut done = 0;
    while done < count {
        match read_appending(file, bytes, count - done, offset + done as u64, flags) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Whether both ends of a range are in the page cache: what lies between was most
/// likely read together with them. No where the file system does not say.
fn is_likely_cached(file: BorrowedFd<'_>, offset: u64, count: u32) -> bool {
    let has = |at: u64| {
        let mut byte = [0];
        let read = rustix::io::preadv2(
            file,
            &mut [IoSliceMut::new(&mut byte)],
            at,
            ReadWriteFlags::NOWAIT,
        );
        read.is_ok()
    };
    has(offset) && has(offset + u64::from(count) - 1)
}

fn read_long(cx: &Context<'_>, file: BorrowedFd<'_>, offset: u64, count: u32) -> Ending {
    let pipes_max = cx.server.settings().pipes_max as usize;
    let (mut loads, mut tail) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < count as usize {
        let (at, rest) = (offset + done as u64, count as usize - done);
        let load = match PipeLoad::fill(file, at, rest, pipes_max) {
            Ok(load) => load,
            Err(error) if loads.is_empty() => return cx.answer(Err(error)),
            Err(_) => break,
        };
        match load {
            Some(load) if load.left() == 0 => break,
            Some(load) => {
                done += load.left();
                loads.push(load);
            }
            // All pipes are in use: this once, copy.
            None => {
                match read_full(file, &mut tail, rest, at, ReadWriteFlags::empty()) {
                    Ok(_) => {}
                    Err(error) if loads.is_empty() => return cx.answer(Err(error)),
                    Err(_) => tail.clear(),
                }
                done += tail.len();
                break;
            }
        }
    }
    let to = cx.to();
    let mut outbox = cx.outbox.lock().expect("not poisoned");
    let batch = outbox.batch(to);
    batch.read_header(to.tag, done as u32);
    let after = batch.bytes.len();
    batch.pipes.extend(loads.into_iter().map(|load| (after, load)));
    batch.bytes.extend_from_slice(&tail);
    let ending = cx.answered(batch, Amount::new(done as u64, 1), 0);
    cx.flush.set(outbox.mark_due());
    ending
}

pub(super) fn write(cx: &Context<'_>, offset: u64, data: &[u8]) -> Ending {
    let result = match &cx.fid().role {
        FidState::File { .. } => write_file(cx, offset, data),
        FidState::XattrWrite(write) => super::xattr::write(write, offset, data),
        FidState::Path | FidState::Dir(_) | FidState::XattrRead { .. } => Err(Errno::BADF.into()),
    };
    let written = *result.as_ref().unwrap_or(&0);
    let reply = result.map(|count| Reply::Write { count: count as u32 });
    cx.answer_served(reply, Amount::new(written as u64, 1))
}

/// Writes to an open file, in the way that its class writes.
pub(super) fn write_file(cx: &Context<'_>, offset: u64, data: &[u8]) -> io::Result<usize> {
    let writing = writing(cx)?;
    credentials::become_non_root(cx.credentials())?;
    let request = WriteRequest {
        account: DirtyAccount(cx.running.class.map_or(0, |class| class.to_bits())),
        mode: cx.running.write_mode,
        offset,
        data,
    };
    cx.fid().user.export.target.writes.write(cx.fid().node.fd.as_fd(), writing, request)
}

/// The writing side of a file that is open for it.
pub(super) fn writing<'c>(cx: &Context<'c>) -> io::Result<&'c WriteFile> {
    match &cx.fid().role {
        FidState::File { flags, writing, .. }
            if flags.intersects(OFlags::WRONLY | OFlags::RDWR) =>
        {
            Ok(writing)
        }
        _ => Err(Errno::BADF.into()),
    }
}

pub(super) fn fsync<'r>(cx: &Context<'_>, data_only: bool) -> io::Result<Reply<'r>> {
    let node = &cx.fid().node;
    match &cx.fid().role {
        FidState::File { writing, .. } => {
            let mark = cx.mount().map(MountSession::mark);
            let writes = &cx.fid().user.export.target.writes;
            let synced = writes.fsync(node.fd.as_fd(), writing, data_only);
            match (cx.mount().zip(mark), &synced) {
                (Some((mount, mark)), Ok(())) => mount.durable(node, mark),
                (Some((mount, _)), Err(_)) => mount.change_verifier(),
                (None, _) => {}
            }
            synced?;
        }
        FidState::Dir(_) => rustix::fs::fsync(&node.fd)?,
        _ => return Err(Errno::BADF.into()),
    }
    Ok(Reply::Fsync)
}

/// No read of what is in memory takes so long.
const FETCHED: Nanos = Nanos::from_micros(15);

impl Context<'_> {
    /// Whether the device answered a read that was not to wait: the call begins the fetch, and
    /// a fast device may be done before it returns. Asked only where it was chosen for the
    /// device; in the cached lane a look at the clock would be a large part of the read.
    fn was_fetched(&self) -> bool {
        let took = || self.server.clock.now().since(self.running.started);
        self.running.meta.lane == Lane::Device && took() > FETCHED
    }

    fn answer_read(&self, data: &[u8]) -> Ending {
        let served = Amount::new(data.len() as u64, 1);
        self.answer_served(Ok(Reply::Read { data }), served)
    }
}
