//! A file system on which the test is the director: it sees each request come and decides
//! when and how it is answered.
//!
//! ```text
//!   data   a file in memory; what was asked of it is on record
//!   wait   reads wait until the test answers them or an interrupt does
//!   lock   one lock, granted in the order of asking; waiting can be interrupted
//! ```

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fuse::{
    Attr, Attributes, DataReply, Errno, FileSystem, FuseConnection, FuseOpen, FuseRead,
    FuseRequest, FuseRequestId, FuseWrite, Handle, InodeEntry, InodeId, Lock, LockKind, LockOwner,
    LockRequest, Notifier, OpenFlags, OpenedFile, Release, Reply, SetAttributes, WrittenBytes,
};

use super::PATIENCE;

pub(crate) const DATA: InodeId = InodeId(2);
pub(crate) const WAIT: InodeId = InodeId(3);
pub(crate) const LOCK: InodeId = InodeId(4);

const FILES: &[(&CStr, InodeId)] = &[(c"data", DATA), (c"wait", WAIT), (c"lock", LOCK)];

/// The file system; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Stage(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) data: Vec<u8>,
    /// How long the kernel may believe names and attributes.
    pub(crate) ttl: Duration,
    pub(crate) open_flags: OpenFlags,
    /// Interrupts are seen and not obeyed.
    pub(crate) stubborn: bool,
    /// Reads of `wait` block their thread instead of keeping the reply.
    pub(crate) blocking: bool,
    pub(crate) waiting: Vec<Reply<DataReply>>,
    pub(crate) interrupted: Vec<FuseRequestId>,
    /// Bytes of each read and write, in the order of their coming.
    pub(crate) reads: Vec<usize>,
    pub(crate) writes: Vec<usize>,
    /// Callers' threads, of reads of `data`.
    pub(crate) threads: Vec<u32>,
    pub(crate) lookups: usize,
    pub(crate) forgotten: u64,
    pub(crate) flocks: usize,
    pub(crate) destroyed: bool,
    pub(crate) notifier: Option<Notifier>,
    pub(crate) connection: Option<FuseConnection>,
    holder: Option<(LockOwner, Lock)>,
    lockers: VecDeque<(LockRequest, Reply<()>)>,
}

impl Stage {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Waits until the state is as it shall be; fails if it does not become so.
    pub(crate) fn until(&self, mut what: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        let (start, mut state) = (Instant::now(), self.state());
        while !what(&mut state) {
            let left = PATIENCE.checked_sub(start.elapsed()).expect("it did not happen");
            state = self.0.changed.wait_timeout(state, left).unwrap().0;
        }
        state
    }

    /// How many wait for the lock.
    pub(crate) fn lockers(&self) -> usize {
        self.state().lockers.len()
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state());
        self.0.changed.notify_all();
    }

    fn attributes(&self, inode: InodeId) -> Attributes {
        let (mode, size) = match inode {
            InodeId::ROOT => (0o040_755, 0),
            DATA => (0o100_644, self.state().data.len() as u64),
            _ => (0o100_644, 4096),
        };
        Attributes { number: inode.0, mode, size, links: 1, ..Attributes::default() }
    }

    /// Grants the lock to whoever asked first, if nobody has it.
    fn grant(state: &mut State) {
        if state.holder.is_none()
            && let Some((request, reply)) = state.lockers.pop_front()
        {
            state.holder = Some((request.owner, request.lock));
            reply.ok(&());
        }
    }
}

impl FileSystem for Stage {
    fn start(&self, connection: &FuseConnection, notifier: Notifier) {
        self.change(|state| {
            state.notifier = Some(notifier);
            state.connection = Some(connection.clone());
        });
    }

    fn destroy(&self) {
        self.change(|state| state.destroyed = true);
    }

    fn interrupt(&self, id: FuseRequestId) {
        self.change(|state| {
            state.interrupted.push(id);
            if state.stubborn {
                return;
            }
            if let Some(at) = state.waiting.iter().position(|reply| reply.id() == id) {
                state.waiting.remove(at).error(Errno::INTR);
            }
            let at = state.lockers.iter().position(|(_, reply)| reply.id() == id);
            if let Some((_, reply)) = at.and_then(|at| state.lockers.remove(at)) {
                reply.error(Errno::INTR);
            }
        });
    }

    fn forget(&self, _node: InodeId, lookups: u64) {
        self.change(|state| state.forgotten += lookups);
    }

    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        self.change(|state| state.lookups += 1);
        let ttl = self.state().ttl;
        match FILES.iter().find(|(known, _)| *known == name) {
            Some((_, inode)) => reply.ok(&InodeEntry {
                inode: *inode,
                generation: 0,
                attributes: self.attributes(*inode),
                ttl,
                attributes_ttl: ttl,
            }),
            None => reply.ok(&InodeEntry::absent(ttl)),
        }
    }

    fn getattr(&self, request: &FuseRequest, _: Option<Handle>, reply: Reply<Attr>) {
        let ttl = self.state().ttl;
        reply.ok(&Attr { attributes: self.attributes(request.inode), ttl });
    }

    fn setattr(&self, request: &FuseRequest, set: &SetAttributes, reply: Reply<Attr>) {
        if let (DATA, Some(size)) = (request.inode, set.size) {
            self.change(|state| state.data.resize(size as usize, 0));
        }
        self.getattr(request, None, reply);
    }

    fn open(&self, request: &FuseRequest, _open: FuseOpen, reply: Reply<OpenedFile>) {
        let mut flags = self.state().open_flags;
        if request.inode == WAIT {
            // A page of the page cache is read in the background, where nothing interrupts.
            flags |= OpenFlags::DIRECT_IO;
        }
        reply.ok(&OpenedFile { handle: Handle(1), flags, backing: None });
    }

    fn read(&self, request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        if request.inode == WAIT {
            let blocking = self.state().blocking;
            if !blocking {
                return self.change(|state| state.waiting.push(reply));
            }
            // The thread waits for its interrupt, which another one receives.
            self.change(|state| state.reads.push(read.size as usize));
            let id = reply.id();
            drop(self.until(|state| state.interrupted.contains(&id)));
            return reply.error(Errno::INTR);
        }
        self.change(|state| {
            state.reads.push(read.size as usize);
            state.threads.push(request.thread);
        });
        let state = self.state();
        let from = state.data.len().min(read.offset as usize);
        reply.bytes(&state.data[from..]);
    }

    fn write(&self, _request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        self.change(|state| {
            let (from, to) = (write.offset as usize, write.offset as usize + write.data.len());
            if state.data.len() < to {
                state.data.resize(to, 0);
            }
            state.data[from..to].copy_from_slice(write.data);
            state.writes.push(write.data.len());
        });
        reply.ok(&WrittenBytes(write.data.len() as u32));
    }

    fn flush(&self, _request: &FuseRequest, _: Handle, owner: LockOwner, reply: Reply<()>) {
        self.change(|state| {
            state.holder.take_if(|(holder, _)| *holder == owner);
            Stage::grant(state);
        });
        reply.ok(&());
    }

    fn release(&self, _request: &FuseRequest, release: Release, reply: Reply<()>) {
        self.change(|state| {
            state.holder.take_if(|(holder, _)| Some(*holder) == release.unlock_flock);
            Stage::grant(state);
        });
        reply.ok(&());
    }

    fn getlk(&self, _request: &FuseRequest, asked: LockRequest, reply: Reply<Lock>) {
        match &self.state().holder {
            Some((owner, lock)) if *owner != asked.owner => reply.ok(lock),
            _ => reply.ok(&Lock { kind: LockKind::None, ..asked.lock }),
        }
    }

    fn setlk(&self, _request: &FuseRequest, asked: LockRequest, reply: Reply<()>) {
        self.change(|state| {
            state.flocks += usize::from(asked.flock);
            if asked.lock.kind == LockKind::None {
                state.holder.take_if(|(holder, _)| *holder == asked.owner);
                reply.ok(&());
                return Stage::grant(state);
            }
            if state.holder.is_some_and(|(holder, _)| holder != asked.owner) && !asked.wait {
                return reply.error(Errno::AGAIN);
            }
            state.lockers.push_back((asked, reply));
            Stage::grant(state);
        });
    }
}
