//! FUSE over io_uring: requests arrive and answers leave with one system call.
//!
//! ```text
//!   REGISTER entry ─► kernel ─► completion: a request lies in the entry's memory
//!        ▲                              │ serve
//!        └── COMMIT_AND_FETCH ◄─ answer in the entry's memory ◄─┘ now, or later from
//!                                                                 any thread (eventfd)
//! ```
//!
//! The kernel has a queue for each processor that there may ever be, and gives a request to
//! the queue of the processor that asks; one thread and one ring serve each queue. All
//! queues need an entry before the kernel uses any. FORGET and INTERRUPT do not come this
//! way: /dev/fuse is read beside it (Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! An entry is one request at a time. A reply that is kept for long keeps its entry, and when all
//! entries of a queue are kept, the processes on that processor wait. That is why file systems that
//! delay requests use /dev/fuse.
//!
//! Invariant: an entry's memory is the kernel's from a push to its completion, the serving
//! thread's until the method returned, and then that of the one [`RingReply`] that answers.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::abi::{IN_HEADER_LEN, InHeader, OUT_HEADER_LEN, PAGE, out_header};
use crate::device::{FuseDevice, sendable};
use crate::fields::FieldReader;
use crate::memory::Pages;
use crate::port::Serve;
use crate::reply::ReplySink;
use crate::request::FuseRequestId;

/// The ring of one thread, for one or more of the kernel's queues.
pub(crate) struct Ring {
    // Before the memory: closing it ends the kernel's use of that.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: Arc<FuseDevice>,
    shared: Arc<RingState>,
    /// Target of the wake-up's read.
    woken: Box<u64>,
    /// Completions that came while entries were registered; afterwards kept for its memory only.
    completed: Vec<(u64, i32)>,
}

/// State for the replies that come later.
#[derive(Debug)]
struct RingState {
    entries: Vec<RingEntry>,
    done: Mutex<Vec<RingCompletion>>,
    wake: OwnedFd,
    /// The thread that made the ring: it looks at `done` by itself.
    thread: ThreadId,
}

#[derive(Debug)]
struct RingEntry {
    queue: u16,
    header: RingMemory,
    payload: RingMemory,
}

/// Pages that kernel, serving thread and answering thread use in turn.
#[derive(Debug)]
struct RingMemory {
    start: *mut u8,
    len: usize,
    _pages: Pages,
}

// SAFETY: the invariant above says who may touch it; the pointer is to its own pages.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

/// An answered request.
#[derive(Debug)]
struct RingCompletion {
    entry: usize,
    id: FuseRequestId,
    /// A negative error number, or 0.
    error: i32,
    /// Bytes of the answer, in the entry's memory or, where the request's names still lay
    /// there, beside it.
    len: usize,
    separate_buffer: Option<Vec<u8>>,
}

/// The right to answer the request in an entry.
#[derive(Debug)]
pub(crate) struct RingReply {
    shared: Arc<RingState>,
    entry: usize,
    /// The request has nothing in the payload's memory: the answer may be put there at once.
    direct: bool,
}

impl Ring {
    /// A ring for the calling thread, with `depth` entries for each of the queues, for answers
    /// and data of up to `payload` bytes. Nothing is registered yet.
    pub(crate) fn new(
        device: Arc<FuseDevice>,
        queues: &[u16],
        depth: u16,
        payload: usize,
    ) -> io::Result<Ring> {
        let mut entries = Vec::with_capacity(queues.len() * usize::from(depth));
        for queue in queues {
            for _ in 0..depth {
                let (header, payload) = (RingMemory::new(PAGE)?, RingMemory::new(payload)?);
                entries.push(RingEntry { queue: *queue, header, payload });
            }
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        // One more for the wake-up.
        let size = u32::try_from(entries.len() + 1).map_err(|_| Errno::INVAL)?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(size.next_power_of_two())?;
        let (done, thread) = (Mutex::default(), std::thread::current().id());
        let shared = Arc::new(RingState { entries, done, wake, thread });
        let completed = Vec::with_capacity(shared.entries.len() + 1);
        Ok(Ring { ring, device, shared, woken: Box::new(0), completed })
    }

    /// Gives all entries to the kernel.
    ///
    /// With the first entry of the last queue the kernel begins to use them all. Requests that
    /// waited for that come at once, and are kept for [`Ring::serve_ready`].
    ///
    /// # Errors
    /// Errors of the kernel for one of them; the connection cannot be used then.
    pub(crate) fn register_all(&mut self) -> Result<(), Errno> {
        for entry in 0..self.shared.entries.len() {
            self.register(entry).map_err(|error| errno_of(&error))?;
        }
        self.completed.extend(self.ring.completion().map(|cqe| (cqe.user_data(), cqe.result())));
        if let Some((_, error)) = self.completed.iter().find(|(_, result)| *result < 0) {
            return Err(Errno::from_raw_os_error(-error));
        }
        self.submit_wake_read();
        if !self.completed.is_empty() {
            // What is kept makes no ring readable; this does.
            rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes())?;
        }
        self.flush(false)
    }

    /// Serves the requests that are there, and waits for none. Says how many they were.
    ///
    /// # Errors
    /// The error that ended the connection.
    pub(crate) fn serve_ready(&mut self, server: &dyn Serve) -> Result<usize, Errno> {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.ring.completion().map(|cqe| (cqe.user_data(), cqe.result())));
        let (mut served, mut end) = (0, None);
        for (what, result) in completed.drain(..) {
            match (what, result) {
                (WAKE, _) => self.submit_wake_read(),
                (entry, 0..) => {
                    self.serve(server, entry as usize);
                    served += 1;
                }
                // One that waited for a request, or one whose answer came too late: both
                // say that the connection is over.
                (_, error) => end = Some(Errno::from_raw_os_error(-error)),
            }
        }
        self.completed = completed;
        end.map_or(Ok(served), Err)
    }

    /// Gives the kernel all answers there are, and waits for a request if `wait`.
    pub(crate) fn flush(&mut self, wait: bool) -> Result<(), Errno> {
        self.commit_all();
        let waits = usize::from(wait);
        if waits == 0 && self.ring.submission().is_empty() {
            return Ok(());
        }
        loop {
            match self.ring.submit_and_wait(waits).map_err(|error| errno_of(&error)) {
                Ok(_) | Err(Errno::INTR) => return Ok(()),
                // Memory is short. A thread that ended would leave the processes of its
                // processor waiting for ever.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
    }

    fn register(&mut self, entry: usize) -> io::Result<()> {
        let memory = &self.shared.entries[entry];
        let parts = [
            libc::iovec { iov_base: memory.header.start.cast(), iov_len: memory.header.len },
            libc::iovec { iov_base: memory.payload.start.cast(), iov_len: memory.payload.len },
        ];
        let command = self.command(REGISTER, entry, 0, Some(&parts));
        // The kernel reads the two iovecs while the entry is submitted: they must outlive that.
        self.push(&command);
        self.ring.submit().map(drop)
    }

    /// `struct fuse_uring_cmd_req` in the command's own bytes.
    fn command(
        &self,
        operation: u32,
        entry: usize,
        commit: u64,
        parts: Option<&[libc::iovec; 2]>,
    ) -> squeue::Entry128 {
        let mut body = [0; 80];
        body[8..16].copy_from_slice(&commit.to_ne_bytes());
        body[16..18].copy_from_slice(&self.shared.entries[entry].queue.to_ne_bytes());
        let fd = types::Fd(self.device.as_fd().as_raw_fd());
        let mut command = opcode::UringCmd80::new(fd, operation).cmd(body);
        if let Some(parts) = parts {
            command = command.addr(Some(parts.as_ptr() as u64));
        }
        let mut command = command.build().user_data(entry as u64);
        if parts.is_some() {
            let len = (&raw mut command).cast::<u8>();
            // SAFETY: `Entry128` is the kernel's `struct io_uring_sqe` with 64 more bytes, in
            // which `len` is a 32-bit number at byte 24; the crate's builder has no name for it.
            unsafe { len.add(24).cast::<u32>().write(2) };
        }
        command
    }

    fn submit_wake_read(&mut self) {
        let buffer = (&raw mut *self.woken).cast::<u8>();
        let wake = types::Fd(self.shared.wake.as_raw_fd());
        let read = opcode::Read::new(wake, buffer, 8).build().user_data(WAKE);
        self.push(&read.into());
    }

    fn push(&mut self, command: &squeue::Entry128) {
        // SAFETY: what the command points to is memory of the entry or of `self.woken`, which
        // live until after the ring is closed, or iovecs that live until it is submitted.
        let pushed = unsafe { self.ring.submission().push(command) };
        assert!(pushed.is_ok(), "the ring has room for each entry and the wake-up");
    }

    /// Serves the request that lies in an entry.
    fn serve(&mut self, server: &dyn Serve, entry: usize) {
        let memory = &self.shared.entries[entry];
        // SAFETY: the completion gave the memory to this thread; only the header is read
        // here, and nobody writes it before `commit`.
        let header = unsafe { memory.header.bytes(HEADER_LEN) };
        let Ok(request) = InHeader::parse(&header[..IN_HEADER_LEN]) else {
            return tracing::error!("received less than a header from the kernel");
        };
        let len = u32::from_ne_bytes(header[PAYLOAD_LEN_AT..][..4].try_into().expect("4 bytes"));
        let fixed = &header[OP_AT..][..server.fixed_len(&request).min(ENTRY_AT - OP_AT)];
        let direct = len == 0;
        // SAFETY: names and data of the request; with `direct` false the answer is written
        // only by `commit`, after the method returned. With `direct` there are none.
        let rest = unsafe { memory.payload.bytes((len as usize).min(memory.payload.len)) };
        let held = RingReply { shared: self.shared.clone(), entry, direct };
        server.serve_request(
            &request,
            FieldReader::new(fixed, rest),
            ReplySink::Ring(held),
            &self.device,
        );
    }

    /// Gives every answered entry back to the kernel, to come with the next request.
    fn commit_all(&mut self) {
        let done = std::mem::take(&mut *lock(&self.shared.done));
        for done in done {
            self.commit(&done);
        }
    }

    fn commit(&mut self, done: &RingCompletion) {
        let memory = &self.shared.entries[done.entry];
        if let Some(beside) = &done.separate_buffer {
            // SAFETY: the request is answered: nobody else uses the entry's memory.
            let payload = unsafe { memory.payload.bytes_mut(memory.payload.len) };
            payload[..done.len].copy_from_slice(beside);
        }
        // SAFETY: as above.
        let header = unsafe { memory.header.bytes_mut(HEADER_LEN) };
        header[..OUT_HEADER_LEN].copy_from_slice(&out_header(done.len, done.error, done.id.0));
        let len = u32::try_from(done.len).expect("bounded by the entry's memory");
        header[PAYLOAD_LEN_AT..][..4].copy_from_slice(&len.to_ne_bytes());
        let commit = header[COMMIT_AT..][..8].try_into().expect("8 bytes");
        let command = self.command(COMMIT_AND_FETCH, done.entry, u64::from_ne_bytes(commit), None);
        self.push(&command);
    }
}

impl AsFd for Ring {
    /// Readable when a request is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl RingReply {
    /// Answers with the parts, or with an error.
    pub(crate) fn answer(
        &self,
        id: FuseRequestId,
        result: Result<(), Errno>,
        parts: &[IoSlice<'_>],
    ) {
        let len = parts.iter().map(|part| part.len()).sum();
        let room = self.shared.entries[self.entry].payload.len;
        let (error, len) = match result {
            Ok(()) if len <= room => (0, len),
            Ok(()) => (-Errno::IO.raw_os_error(), 0),
            Err(error) => (-sendable(error), 0),
        };
        let mut beside = None;
        if len > 0 && self.direct {
            // SAFETY: the request has nothing in the payload, so nobody borrows from it, and
            // there is one `RingReply` for each entry.
            let mut to = unsafe { self.shared.entries[self.entry].payload.bytes_mut(len) };
            for part in parts {
                let (here, rest) = to.split_at_mut(part.len());
                here.copy_from_slice(part);
                to = rest;
            }
        } else if len > 0 {
            beside = Some(parts.iter().flat_map(|part| part.iter().copied()).collect());
        }
        self.done(id, error, len, beside);
    }

    /// Answers with what `write` puts into `room` bytes; its error is not sent.
    pub(crate) fn fill(
        &self,
        id: FuseRequestId,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let memory = &self.shared.entries[self.entry].payload;
        if room > memory.len {
            return Err(Errno::IO);
        }
        if self.direct {
            // SAFETY: as in `answer`.
            let to = unsafe { memory.bytes_mut(room) };
            let len = write(to)?.min(room);
            self.done(id, 0, len, None);
        } else {
            let mut beside = vec![0; room];
            let len = write(&mut beside)?.min(room);
            beside.truncate(len);
            self.done(id, 0, len, Some(beside));
        }
        Ok(())
    }

    fn done(&self, id: FuseRequestId, error: i32, len: usize, beside: Option<Vec<u8>>) {
        let done = RingCompletion { entry: self.entry, id, error, len, separate_buffer: beside };
        lock(&self.shared.done).push(done);
        if self.shared.thread != std::thread::current().id() {
            // It cannot be full: it is read each time.
            let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        }
    }
}

impl RingMemory {
    fn new(len: usize) -> io::Result<RingMemory> {
        let mut pages = Pages::new(len)?;
        let start = pages.as_mut_ptr();
        Ok(RingMemory { start, len, _pages: pages })
    }

    /// # Safety
    /// `len` is at most the memory's, and nobody writes to it while the bytes are borrowed.
    unsafe fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the pages live as long as `self`; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(self.start, len) }
    }

    /// # Safety
    /// `len` is at most the memory's, and nobody else uses it while the bytes are borrowed.
    #[allow(clippy::mut_from_ref, reason = "the invariant of this module says which thread may")]
    unsafe fn bytes_mut(&self, len: usize) -> &mut [u8] {
        // SAFETY: the pages live as long as `self`; the rest is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start, len) }
    }
}

/// The queues that the kernel has: one for each processor that there may ever be.
pub(crate) fn queues() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u16>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether rings can be made here: administrators forbid them, and containers do.
///
/// # Errors
/// Why not.
pub(crate) fn can_be_made() -> io::Result<()> {
    IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(1).map(drop)
}

/// Keeps the calling thread on one processor, if that can be.
pub(crate) fn pin_to(processor: u16) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor.into());
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// FUSE_IO_URING_CMD_REGISTER.
const REGISTER: u32 = 1;
/// FUSE_IO_URING_CMD_COMMIT_AND_FETCH.
const COMMIT_AND_FETCH: u32 = 2;
/// `struct fuse_uring_req_header`: in_out\[128\] op_in\[128\] and `fuse_uring_ent_in_out`,
/// which has flags\[8\] commit_id\[8\] payload_sz\[4\] padding\[4\] reserved\[8\].
const OP_AT: usize = 128;
const ENTRY_AT: usize = 256;
const COMMIT_AT: usize = ENTRY_AT + 8;
const PAYLOAD_LEN_AT: usize = ENTRY_AT + 16;
const HEADER_LEN: usize = ENTRY_AT + 32;
/// Completion of the eventfd's read.
const WAKE: u64 = u64::MAX;
