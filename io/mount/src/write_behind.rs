//! Write-behind: writes that are acknowledged before the proxy has executed them.
//!
//! ```text
//!   write ─► run: grows while it waits ─► in flight, a few of a file ─► executed
//!     │ no room                                 │ failed ─► reported at next write, fsync, close
//!     └─► waits                                 ▼
//!   close, fsync, truncation, unlock ─────► wait for what was written before them
//!   read ─────────────────────────────────► waits for what it reads
//!   stat, look-up, open ──────────────────► wait for nothing: WaitingSince has the length, and
//!                                           whether set-id bits go
//! ```
//!
//! While little is in flight a write goes at once. Later writes that continue the last one travel
//! with it in one message (as Nagle's algorithm does for TCP: RFC 896). No write waits for a timer.
//!
//! Invariant: of two runs that overlap the later one begins after the earlier one was executed.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fuse::Errno;
use model::Time;
use ninep::Attributes;
use ninep::dialect::{ExtRequest, HandleList, WRITE_KILL_PRIV};
use rustc_hash::FxHashMap;
use rustix::fs::FileType;

use crate::files::OpenFile;
use crate::nodes::MountNode;
use crate::session::{CallFrame, CallWaiter, CheckInterval, SessionIdentity, lock};

/// Write-behind state of one file.
#[derive(Debug, Default)]
pub(crate) struct FileWriteBehind {
    /// Number of runs that were not executed, readable without the lock.
    runs: AtomicUsize,
    state: Mutex<WriteBehindState>,
}

/// Write-behind state of the mount.
#[derive(Debug, Default)]
pub(crate) struct WriteBehind {
    bytes: AtomicU64,
    /// Counts changes of files: a clock that shows which attributes are old.
    changes: AtomicU64,
    /// The files with write-behind data.
    files: Mutex<FxHashMap<u64, Arc<MountNode>>>,
    check_interval: CheckInterval,
}

#[derive(Debug, Default)]
struct WriteBehindState {
    waiting: VecDeque<WriteRun>,
    in_flight: Vec<WritesInFlight>,
    bytes: u64,
    /// Number of runs, and number of lost writes.
    last: u64,
    lost_writes: u64,
    /// Where runs ended that were executed, and what [`WriteBehind::changes`] was then: the later, the
    /// nearer to the beginning of the file, since a later one that reaches further counts alone.
    ended: VecDeque<(u64, u64)>,
    /// Value of [`WriteBehind::changes`] when the file changed last, other than by a run.
    changed: u64,
    /// Value of [`WriteBehind::changes`] when the last run was executed that takes the set-id bits
    /// away.
    killed: u64,
    waiters: Vec<WriteWaiter>,
}

/// A run in flight.
#[derive(Debug)]
struct WritesInFlight {
    number: u64,
    range: Range<u64>,
    payer: Arc<SessionIdentity>,
    kill_set_id: bool,
}

/// Changes of a file since its attributes were requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitingSince {
    /// This mount did not change the file.
    Same,
    /// The file was written by this mount, at least to this length, and without the right to keep
    /// its set-id bits or with it.
    Written { end: u64, kill_set_id: bool },
    /// The file was changed otherwise by this mount: the attributes may be older than that.
    Changed,
}

/// A write message, and its file and range.
#[derive(Debug)]
pub(crate) struct SentWrite {
    pub(crate) node: Arc<MountNode>,
    pub(crate) payer: Arc<SessionIdentity>,
    pub(crate) frame: CallFrame,
    pub(crate) range: Range<u64>,
}

/// Bytes of one write message.
pub(crate) struct WriteRun {
    pub(crate) number: u64,
    pub(crate) write: SentWrite,
    /// Open file for it; `None` if that may be closed, and the message has a handle.
    pub(crate) file: Option<Arc<OpenFile>>,
    /// Another identity that waits for it, and lends its queue.
    pub(crate) donor: Option<Arc<SessionIdentity>>,
    kill_set_id: bool,
}

/// A piece of a file to write.
#[derive(Clone, Copy)]
pub(crate) struct WritePiece<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) kill_set_id: bool,
}

/// Callback to continue, or with the error.
pub(crate) type OnReady = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A caller that waits for a file's writes.
pub(crate) struct WriteWaiter {
    pub(crate) until: WaitUntil,
    /// The call's waiter, which is detached if it is killed.
    pub(crate) waiter: Option<CallWaiter>,
    pub(crate) then: OnReady,
}

/// The condition that a caller waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitUntil {
    /// Earlier writes must be executed.
    Executed,
    /// Like [`WaitUntil::Executed`], up to this run.
    ExecutedTo(u64),
    /// Earlier writes to this range must be executed.
    Read(Range<u64>),
    /// Like [`WaitUntil::Read`], up to this run.
    ReadTo(Range<u64>, u64),
    /// Room for this many bytes more.
    Room(u64),
}

/// Result of adding a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BufferOutcome {
    /// The piece is accepted.
    Buffered,
    /// The file has no room: wait for [`WaitUntil::Room`].
    Full,
    /// The mount has no room: write without write-behind.
    NoRoom,
}

/// Attributes of a file, including its write-behind data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownSize {
    pub(crate) attributes: Attributes,
    /// Earlier writes will not change them.
    pub(crate) last: bool,
    /// Until when they may be believed under a lease; none without one.
    pub(crate) leased: Option<Time>,
}

impl WaitingSince {
    /// Returns the attributes with the present length of the file, and its set-id bits as they are
    /// once its writes are executed.
    pub(crate) fn applied_to(self, told: Attributes) -> KnownSize {
        match self {
            WaitingSince::Written { end, kill_set_id } => {
                let mode = if kill_set_id { without_set_id(told.mode) } else { told.mode };
                let attributes = Attributes { size: told.size.max(end), mode, ..told };
                KnownSize { attributes, last: false, leased: None }
            }
            WaitingSince::Same => KnownSize { attributes: told, last: true, leased: None },
            WaitingSince::Changed => KnownSize { attributes: told, last: false, leased: None },
        }
    }
}

impl WriteBehind {
    /// Accepts a piece of at most `payload` bytes for a file.
    pub(crate) fn put(
        &self,
        file: &Arc<OpenFile>,
        piece: WritePiece<'_>,
        payload: u32,
    ) -> BufferOutcome {
        let (bytes, behind) = (piece.data.len() as u64, &file.node.write_behind);
        let mut state = lock(&behind.state);
        if state.is_full(bytes) {
            return BufferOutcome::Full;
        }
        let full = self.bytes.load(Ordering::SeqCst) + bytes > ALL_MAX;
        if full || file.payer.write_behind.load(Ordering::SeqCst) + bytes > PAYER_MAX {
            return BufferOutcome::NoRoom;
        }
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        file.payer.write_behind.fetch_add(bytes, Ordering::SeqCst);
        state.put(file, piece, payload);
        if behind.runs.swap(state.runs(), Ordering::SeqCst) == 0 {
            lock(&self.files).insert(file.node.id.0, file.node.clone());
        }
        BufferOutcome::Buffered
    }

    /// Takes back a write that was executed and lost, its file named by handle: it goes before all
    /// others of the file.
    pub(crate) fn requeue_lost(&self, lost: SentWrite) {
        let (node, bytes) = (lost.node.clone(), lost.bytes());
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        lost.payer.write_behind.fetch_add(bytes, Ordering::SeqCst);
        let mut state = lock(&node.write_behind.state);
        state.requeue_lost(lost);
        node.write_behind.runs.store(state.runs(), Ordering::SeqCst);
        lock(&self.files).insert(node.id.0, node.clone());
    }

    /// Notes that a run of [`FileWriteBehind::begin`] was executed or failed. Returns the waiters
    /// that may continue.
    pub(crate) fn executed(
        &self,
        node: &MountNode,
        payer: &SessionIdentity,
        number: u64,
    ) -> Vec<OnReady> {
        let now = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = lock(&node.write_behind.state);
        let bytes = state.end(number, now);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        payer.write_behind.fetch_sub(bytes, Ordering::SeqCst);
        let ready = state.ready();
        node.write_behind.runs.store(state.runs(), Ordering::SeqCst);
        if state.runs() == 0 {
            lock(&self.files).remove(&node.id.0);
        }
        ready
    }

    /// Notes that a file was changed other than by a run.
    pub(crate) fn changed(&self, node: &MountNode) {
        let now = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        lock(&node.write_behind.state).changed = now;
    }

    /// Returns the present count, for [`FileWriteBehind::since`].
    pub(crate) fn now(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that are not executed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Whether [`WriteBehind::detach_killed`] may have to check a waiter before long.
    pub(crate) fn any(&self) -> bool {
        self.bytes() != 0
    }

    /// Detaches, once in a while, the waiters whose processes are killed, as `killed` says of a
    /// thread. Their writes go on without them.
    pub(crate) fn detach_killed(&self, now: Instant, killed: impl Fn(u32) -> bool) -> Vec<OnReady> {
        if !self.any() || !self.check_interval.is_due(now) {
            return Vec::new();
        }
        let dead = |held: &mut WriteWaiter| held.waiter.is_some_and(|waiter| killed(waiter.thread));
        let files: Vec<_> = lock(&self.files).values().cloned().collect();
        files.iter().flat_map(|node| lock(&node.write_behind.state).take_waiters(dead)).collect()
    }
}

impl FileWriteBehind {
    /// Whether all writes are executed.
    pub(crate) fn is_idle(&self) -> bool {
        self.runs.load(Ordering::SeqCst) == 0
    }

    /// Returns changes that attributes requested at `then` ([`WriteBehind::now`]) may not include.
    pub(crate) fn since(&self, then: u64) -> WaitingSince {
        let state = lock(&self.state);
        match state.reach(then) {
            _ if state.changed > then => WaitingSince::Changed,
            Some(end) => WaitingSince::Written { end, kill_set_id: state.kills_set_id(then) },
            None => WaitingSince::Same,
        }
    }

    /// Returns the least size of the file by the writes of this mount that may not have been
    /// executed at `then`; 0 without such writes.
    pub(crate) fn reach(&self, then: u64) -> u64 {
        lock(&self.state).reach(then).unwrap_or(0)
    }

    /// Returns the next run that may begin now.
    pub(crate) fn begin(&self) -> Option<WriteRun> {
        lock(&self.state).begin()
    }

    /// Keeps a waiter until it is time, and returns until when; returns the waiter if it need not
    /// wait.
    pub(crate) fn wait(&self, held: WriteWaiter) -> Result<WaitUntil, WriteWaiter> {
        let mut state = lock(&self.state);
        let last = NEW + state.last;
        let until = match held.until {
            WaitUntil::Executed => WaitUntil::ExecutedTo(last),
            WaitUntil::Read(place) => WaitUntil::ReadTo(place, last),
            until => until,
        };
        let held = WriteWaiter { until: until.clone(), ..held };
        if !state.is_to_wait(&until) {
            return Err(held);
        }
        state.waiters.push(held);
        Ok(until)
    }

    /// Lends the queue of a waiter to the writes of others that have not begun. Returns the ranges
    /// of those that have.
    pub(crate) fn donate(
        &self,
        until: &WaitUntil,
        donor: &Arc<SessionIdentity>,
    ) -> Vec<Range<u64>> {
        lock(&self.state).donate(until, donor)
    }
}

impl WriteBehindState {
    fn runs(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    fn is_full(&self, bytes: u64) -> bool {
        self.bytes > 0 && self.bytes + bytes > FILE_MAX
    }

    fn put(&mut self, file: &Arc<OpenFile>, piece: WritePiece<'_>, payload: u32) {
        let WritePiece { offset, data, kill_set_id } = piece;
        let end = offset + data.len() as u64;
        self.bytes += data.len() as u64;
        if self.may_grow()
            && let Some(run) = self.waiting.back_mut()
            && run.file.as_ref().is_some_and(|opened| Arc::ptr_eq(opened, file))
            && (run.write.range.end, run.kill_set_id) == (offset, kill_set_id)
            && end - run.write.range.start <= u64::from(payload)
        {
            run.write.frame.grow(data);
            run.write.range.end = end;
            return;
        }
        self.last += 1;
        let flags = if kill_set_id { WRITE_KILL_PRIV } else { 0 };
        let message = ExtRequest::Write { fid: file.fid, offset, flags, data };
        self.waiting.push_back(WriteRun {
            number: NEW + self.last,
            write: SentWrite {
                node: file.node.clone(),
                payer: file.payer.clone(),
                frame: CallFrame::new(HandleList::NONE, message),
                range: offset..end,
            },
            file: Some(file.clone()),
            donor: None,
            kill_set_id,
        });
    }

    fn requeue_lost(&mut self, lost: SentWrite) {
        self.lost_writes += 1;
        self.bytes += lost.bytes();
        let before = self.waiting.iter().take_while(|run| run.number < NEW).count();
        let run = WriteRun {
            number: self.lost_writes,
            write: lost,
            file: None,
            donor: None,
            kill_set_id: false,
        };
        self.waiting.insert(before, run);
    }

    /// Whether the last run has no waiter as it is.
    fn may_grow(&self) -> bool {
        let last = NEW + self.last;
        !self.waiters.iter().any(|held| match held.until {
            WaitUntil::ExecutedTo(to) | WaitUntil::ReadTo(_, to) => to == last,
            WaitUntil::Executed | WaitUntil::Read(_) | WaitUntil::Room(_) => false,
        })
    }

    /// Returns the runs that are not executed.
    fn pending(&self) -> impl Iterator<Item = (u64, &Range<u64>)> {
        let waiting = self.waiting.iter().map(|run| (run.number, &run.write.range));
        waiting.chain(self.in_flight.iter().map(|run| (run.number, &run.range)))
    }

    fn reach(&self, then: u64) -> Option<u64> {
        let executed = self.ended.iter().filter(|(_, number)| *number > then).map(|(end, _)| *end);
        executed.chain(self.pending().map(|(_, place)| place.end)).max()
    }

    fn kills_set_id(&self, then: u64) -> bool {
        self.killed > then
            || self.waiting.iter().any(|run| run.kill_set_id)
            || self.in_flight.iter().any(|run| run.kill_set_id)
    }

    fn begin(&mut self) -> Option<WriteRun> {
        let next = &self.waiting.front()?.write.range;
        let in_use = |run: &WritesInFlight| overlap(next, &run.range);
        if self.in_flight.len() >= DEPTH || self.in_flight.iter().any(in_use) {
            return None;
        }
        let run = self.waiting.pop_front()?;
        let (place, payer) = (run.write.range.clone(), run.write.payer.clone());
        let WriteRun { number, kill_set_id, .. } = run;
        self.in_flight.push(WritesInFlight { number, range: place, payer, kill_set_id });
        Some(run)
    }

    fn end(&mut self, number: u64, now: u64) -> u64 {
        let at = self.in_flight.iter().position(|run| run.number == number);
        let Some(at) = at else { return 0 };
        let WritesInFlight { range: place, kill_set_id, .. } = self.in_flight.swap_remove(at);
        if kill_set_id {
            self.killed = now;
        }
        let bytes = place.end - place.start;
        self.bytes -= bytes;
        while self.ended.back().is_some_and(|(end, _)| *end <= place.end) {
            self.ended.pop_back();
        }
        if self.ended.len() == ENDED_MAX
            && let Some((_, number)) = self.ended.pop_front()
        {
            self.changed = self.changed.max(number);
        }
        self.ended.push_back((place.end, now));
        bytes
    }

    fn is_to_wait(&self, until: &WaitUntil) -> bool {
        match until {
            WaitUntil::Room(bytes) => self.is_full(*bytes),
            WaitUntil::Executed => self.runs() > 0,
            WaitUntil::ExecutedTo(last) => self.pending().any(|(run, _)| run <= *last),
            WaitUntil::Read(place) => self.pending().any(|(_, at)| overlap(at, place)),
            WaitUntil::ReadTo(place, last) => {
                self.pending().any(|(run, at)| run <= *last && overlap(at, place))
            }
        }
    }

    fn donate(&mut self, until: &WaitUntil, donor: &Arc<SessionIdentity>) -> Vec<Range<u64>> {
        // Runs begin in their order, so those before the last that is waited for are waited for too.
        let last = match until {
            WaitUntil::ExecutedTo(last) => Some(*last),
            WaitUntil::ReadTo(place, last) => {
                let in_the_way = |(run, at): &(u64, &Range<u64>)| run <= last && overlap(at, place);
                self.pending().filter(in_the_way).map(|(run, _)| run).max()
            }
            WaitUntil::Room(_) => Some(u64::MAX),
            WaitUntil::Executed | WaitUntil::Read(_) => None,
        };
        let Some(last) = last else { return Vec::new() };
        let is_his = |payer: &Arc<SessionIdentity>| Arc::ptr_eq(payer, donor);
        let waiting = self.waiting.iter_mut().filter(|run| run.number <= last);
        for run in waiting.filter(|run| !is_his(&run.write.payer)) {
            run.donor.get_or_insert_with(|| donor.clone());
        }
        let begun = self.in_flight.iter().filter(|run| run.number <= last && !is_his(&run.payer));
        begun.map(|run| run.range.clone()).collect()
    }

    fn ready(&mut self) -> Vec<OnReady> {
        let mut held = std::mem::take(&mut self.waiters);
        let go = held.extract_if(.., |held| !self.is_to_wait(&held.until));
        let go = go.map(|held| held.then).collect();
        self.waiters = held;
        go
    }

    fn take_waiters(&mut self, which: impl Fn(&mut WriteWaiter) -> bool) -> Vec<OnReady> {
        self.waiters.extract_if(.., which).map(|held| held.then).collect()
    }
}

impl SentWrite {
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl fmt::Debug for WriteRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} of {:?}: {:?})", self.number, self.write.node.id, self.write.range)
    }
}

impl fmt::Debug for WriteWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?} until {:?})", self.waiter, self.until)
    }
}

/// What a write leaves of the mode of a regular file, as the kernel and the proxy do.
fn without_set_id(mode: u32) -> u32 {
    let group_exec = mode & 0o10 != 0;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => mode & !(if group_exec { 0o6000 } else { 0o4000 }),
        _ => mode,
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Runs are numbered from here on. Runs of lost writes are numbered below it, so that waiters wait
/// for them too.
const NEW: u64 = 1 << 32;
/// Maximum number of ends of executed runs that are remembered, each before the one before it. For
/// a caller from before a forgotten one the file has changed.
const ENDED_MAX: usize = 64;
/// Maximum number of messages of one file in flight. With more, writes would not be joined.
const DEPTH: usize = 4;
/// Maximum bytes of one file: the last close of a writer waits for these at most.
const FILE_MAX: u64 = 4 << 20;
/// Maximum bytes of all files, and of the files that one identity pays for: a throttled job leaves
/// room.
const ALL_MAX: u64 = 64 << 20;
const PAYER_MAX: u64 = 16 << 20;

#[cfg(test)]
#[path = "write_behind_tests.rs"]
mod tests;
