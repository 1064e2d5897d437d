//! Tlock and Tgetlock, and the replies of those locks that had to wait.

use std::io;
use std::sync::Mutex;

use model::{Amount, OpKind};
use ninep::{LOCK_BLOCK, LOCK_RECLAIM, LockKind, LockStatus, Reply};
use rustix::fs::OFlags;
use rustix::io::Errno;
use trace::TraceOutcome;

use super::{Context, Ending};
use crate::connection::ReplyTo;
use crate::fids::{FidState, OpenFid};
use crate::locks::{LockCall, LockOutcome, LockReply, TlockOwner, WantedRange};
use crate::outbox::ReplyOutbox;
use crate::server::Server;
use crate::trace::TraceDraft;

/// A request that must wait is not answered until the lock is granted, or the grace is over.
pub(super) fn lock(
    cx: &Context<'_>,
    wanted: WantedRange,
    client_id: &[u8],
    proc_id: u32,
    flags: u32,
) -> Ending {
    match try_lock(cx, wanted, client_id, proc_id, flags) {
        Ok(Some(LockOutcome::Status(status))) => {
            let ending = cx.answer(Ok(Reply::Lock { status }));
            if wanted.kind != LockKind::Write && status == LockStatus::Success {
                // Given back, or shared from now on: somebody may have waited for that.
                cx.server.retry_file(cx.fid(), cx.outbox);
            }
            ending
        }
        Ok(Some(outcome)) => {
            let answer = LockReply { to: cx.to().clone(), outcome, record: record(cx) };
            cx.server.answer_parked(cx.outbox, answer);
            Ending::Parked
        }
        Ok(None) => Ending::Parked,
        Err(error) => cx.answer(Err(error)),
    }
}

fn try_lock(
    cx: &Context<'_>,
    wanted: WantedRange,
    client_id: &[u8],
    proc_id: u32,
    flags: u32,
) -> io::Result<Option<LockOutcome>> {
    let fid = cx.fid();
    let FidState::File { flags: opened, locks, .. } = &fid.role else {
        return Err(Errno::BADF.into());
    };
    let access = *opened & OFlags::RWMODE;
    let refused = match wanted.kind {
        LockKind::Read => access == OFlags::WRONLY,
        LockKind::Write => access == OFlags::RDONLY,
        LockKind::Unlock => false,
    };
    if refused || flags & !(LOCK_BLOCK | LOCK_RECLAIM) != 0 {
        return Err(if refused { Errno::BADF } else { Errno::INVAL }.into());
    }
    let asked = LockCall {
        to: cx.to(),
        node: &fid.node,
        through: locks,
        owner: TlockOwner::new(&fid.node, client_id, proc_id)?,
        wanted,
        waits: flags & LOCK_BLOCK != 0,
        reclaims: flags & LOCK_RECLAIM != 0,
        waiters_max: cx.server.bounds().lock_waiters_max(),
        owners_max: cx.server.settings().fids_max as usize,
        bounds: &cx.server.shared,
        holder: fid.user.holder(),
        record: &|| record(cx),
    };
    cx.server.locks.set(&asked, cx.server.clock.now())
}

/// Begins the record of a lock whose reply is held.
fn record(cx: &Context<'_>) -> Option<TraceDraft> {
    cx.server.recorder()?.begin_parked(cx.running, cx.server.clock.now())
}

pub(super) fn getlock(
    cx: &Context<'_>,
    wanted: WantedRange,
    client_id: &[u8],
    proc_id: u32,
) -> Ending {
    let fid = cx.fid();
    if !matches!(fid.role, FidState::File { .. }) {
        return cx.answer(Err(Errno::BADF.into()));
    }
    // v9fs asks with "unlock": what would stand in the way of a write lock is any lock.
    let kind = if wanted.kind == LockKind::Unlock { LockKind::Write } else { wanted.kind };
    let wanted = WantedRange { kind, ..wanted };
    let owner = TlockOwner::new(&fid.node, client_id, proc_id);
    match owner.and_then(|owner| cx.server.locks.test(&fid.node, &owner, wanted)) {
        Ok(None) => {
            let (kind, start, length) = (LockKind::Unlock, wanted.start, wanted.len);
            cx.answer(Ok(Reply::Getlock { kind, start, length, proc_id, client_id }))
        }
        Ok(Some((found, name))) => {
            // A program of the server's own machine has no name in this protocol.
            let (client, proc) = name.unwrap_or((Box::default(), 0));
            cx.answer(Ok(Reply::Getlock {
                kind: found.kind,
                start: found.start,
                length: found.len,
                proc_id: proc,
                client_id: &client,
            }))
        }
        Err(error) => cx.answer(Err(error)),
    }
}

impl Server {
    /// Tries blocked locks again and answers those that need not wait on. A call on
    /// behalf of one file may hang; what others are due is in the outbox by then, or
    /// comes with the next try.
    pub(crate) fn retry_locks(&self, outbox: &Mutex<ReplyOutbox>) {
        let now = self.clock.now();
        self.locks.retry_all(&mut |answer| self.answer_parked(outbox, answer), now);
    }

    fn retry_file(&self, fid: &OpenFid, outbox: &Mutex<ReplyOutbox>) {
        let now = self.clock.now();
        self.locks.retry(&fid.node, &mut |answer| self.answer_parked(outbox, answer), now);
    }

    /// Gives back the locks taken through a fid, as closing it does, to those that wait.
    pub(crate) fn release_locks(&self, fid: &OpenFid, outbox: &Mutex<ReplyOutbox>) {
        if let FidState::File { locks, .. } = &fid.role
            && self
                .locks
                .release(&fid.node, locks, &mut |answer| self.answer_parked(outbox, answer))
        {
            self.retry_file(fid, outbox);
        }
    }

    /// Refuses all lock requests that wait, at shutdown: the client may ask another proxy.
    pub(crate) fn refuse_lock_waiters(&self) {
        let outbox = Mutex::new(ReplyOutbox::default());
        self.locks.end_waiting().into_iter().for_each(|answer| self.answer_parked(&outbox, answer));
        while let Some(mut batch) = outbox.lock().expect("not poisoned").pop_batch() {
            batch.path.connection.clone().send(&mut batch, &self.poll, self.bounds());
        }
    }

    /// Notes in the trace that a parked Tlock has ended.
    pub(crate) fn trace_parked(&self, answer: &LockReply) {
        let (Some(recorder), Some(draft)) = (self.recorder(), answer.record) else { return };
        let outcome = match answer.outcome {
            LockOutcome::Status(_) => TraceOutcome::Done,
            LockOutcome::Failed(errno) => TraceOutcome::of(errno.raw_os_error() as u32),
            LockOutcome::Flushed(_) => TraceOutcome::Cancelled,
        };
        recorder.record_parked(draft, outcome, self.clock.now());
    }

    /// Answers a Tlock whose reply was held.
    fn answer_parked(&self, outbox: &Mutex<ReplyOutbox>, answer: LockReply) {
        self.trace_parked(&answer);
        let LockReply { to, outcome, .. } = answer;
        if matches!(outcome, LockOutcome::Flushed(_)) {
            self.count_cancelled(&to.path.connection);
        }
        let mut outbox = outbox.lock().expect("not poisoned");
        match outcome {
            LockOutcome::Status(status) => {
                let batch = outbox.batch(&to);
                batch.reply(to.tag, Reply::Lock { status });
                batch.tally.count(OpKind::Lock, Amount::new(0, 1), 0);
            }
            LockOutcome::Failed(errno) => {
                let batch = outbox.batch(&to);
                batch.error(to.tag, &errno.into());
                batch.tally.count(OpKind::Lock, Amount::new(0, 1), errno.raw_os_error() as u32);
            }
            LockOutcome::Flushed(flushes) => {
                for tag in flushes {
                    let to = ReplyTo { tag, ..to.clone() };
                    outbox.batch(&to).reply(tag, Reply::Flush);
                }
            }
        }
    }
}
