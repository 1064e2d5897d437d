//! Locks, held at the proxy and known here so that they can be taken again.
//!
//! ```text
//!   setlk ─┬─ the owner has some, or gives back ─► mapped and cached writes brought out ─┐
//!          └─ else ──────────────────────────────────────────────────────────────────────┴─► Tlock
//!   Tlock ─┬─ granted ─► MountLocks ─► the kernel drops the file's pages and attributes ─► answered
//!          ├─ somebody has it: EAGAIN, or the proxy waits
//!          └─ the proxy has no room for one that waits: asked again in a while
//!   flush, release ─► the owner's locks are given back ─┐
//!   setlk, unlock ──────────────────────────────────────┴─► once all is over that was begun under them
//! ```
//!
//! A process that gets a lock relies on it that no call of the last owner is in flight any more.
//! Acknowledged writes are executed first, and so are calls that a killed process has left behind
//! (session/abandoned.rs). A killed process may be gone by then.
//!
//! Locks make data coherent: writes before the release of a lock are read by its next owner, on
//! whatever node. So at each grant all cached data of the file is dropped, whatever its times say:
//! two writes in one tick of the backend's clock leave the times as they were.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fuse::{Errno, FuseRequest, Handle, InodeId, Lock, LockKind, LockOwner, LockRequest, Reply};
use ninep::dialect::AnyReply;
use ninep::{LOCK_BLOCK, LockKind as WireKind, LockStatus};

use super::{behind, or_error};
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::locks::{MountLockOwner, PendingRelease, WHOLE};
use crate::session::{CallReply, CallWaiter, ServerCall, here};

pub(crate) fn set(export: &MountFs, request: &FuseRequest, asked: LockRequest, reply: Reply<()>) {
    let file = or_error!(export.files().get(asked.handle), reply);
    // Closing it must reach the proxy: a lock may be held there of which the mount does not know.
    file.set_read_span(0);
    let owner = MountLockOwner { owner: asked.owner, flock: asked.flock };
    let gives = asked.lock.kind == LockKind::None;
    let (who, has) = (*request, export.shared().locks.has(file.node.id, owner));
    if !gives && !has {
        return after_release(export, file.node.id, &who, reply, move |export, reply| {
            try_lock(export, &who, &file, asked, reply);
        });
    }
    // The next owner of the lock must see what was written under it, by way of a mapping too.
    brought_out(export, &file.clone(), move |export| {
        behind::after_opener(export, &file.clone(), &who, reply, move |export, who, reply| {
            behind::after_abandoned(
                export,
                &file.clone(),
                who,
                reply,
                move |export, who, reply| {
                    try_lock(export, who, &file, asked, reply);
                },
            );
        });
    });
}

/// Continues once none of an inode's locks is being released, unless the waiter is killed.
fn after_release(
    export: &MountFs,
    inode: InodeId,
    request: &FuseRequest,
    reply: Reply<()>,
    then: impl FnOnce(&MountFs, Reply<()>) + Send + 'static,
) {
    if !export.shared().locks.is_releasing(inode) {
        return then(export, reply);
    }
    let (later, id) = (export.clone(), reply.id());
    export.shared().waits.begin(request.thread, reply, Instant::now());
    let go_on = move || {
        if let Some(reply) = later.shared().waits.end(id) {
            then(&later, reply);
        }
    };
    if let Some(now) = export.shared().locks.wait_for_release(inode, go_on) {
        now();
    }
}

/// Goes on once the kernel has handed over what was written through mappings of a file.
fn brought_out(export: &MountFs, file: &OpenFile, then: impl FnOnce(&MountFs) + Send + 'static) {
    if file.node.writers.load(Ordering::SeqCst) == 0 {
        return then(export);
    }
    pages_dropped(export, file.node.id, then);
}

/// Goes on once the kernel has nothing of a file any more, dirty pages written.
fn pages_dropped(export: &MountFs, inode: InodeId, then: impl FnOnce(&MountFs) + Send + 'static) {
    let Some(notifier) = export.notifier.get() else { return then(export) };
    let later = export.clone();
    export.notices.drop_pages(notifier, inode, move || then(&later));
}

/// A lock was granted: it is known, and what others wrote before is seen.
fn granted(
    export: &MountFs,
    file: &Arc<OpenFile>,
    owner: MountLockOwner,
    lock: Lock,
    reply: Reply<()>,
) {
    export.shared().locks.set(file, owner, lock);
    match lock.kind {
        LockKind::None => reply.ok(&()),
        LockKind::Read | LockKind::Write => {
            pages_dropped(export, file.node.id, move |_| reply.ok(&()));
        }
    }
}

fn try_lock(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    asked: LockRequest,
    reply: Reply<()>,
) {
    let owner = MountLockOwner { owner: asked.owner, flock: asked.flock };
    let flags = if asked.wait { LOCK_BLOCK } else { 0 };
    let ask = export.shared().locks.lock_call(file, owner, &asked.lock, flags);
    let locked = file.clone();
    let thread = request.thread;
    export.as_opener_with(request, file, ask, reply, move |export, answer, reply| {
        match status(answer) {
            Ok(LockStatus::Success) => granted(export, &locked, owner, asked.lock, reply),
            // One that waits is only refused for lack of room.
            Ok(LockStatus::Blocked) if asked.wait => later(export, thread, &locked, asked, reply),
            Ok(LockStatus::Blocked) => reply.error(Errno::AGAIN),
            Ok(LockStatus::Error | LockStatus::Grace) => reply.error(Errno::NOLCK),
            Err(error) => reply.error(error),
        }
    });
}

/// Asks once more in a while; can be interrupted meanwhile.
fn later(
    export: &MountFs,
    thread: u32,
    file: &Arc<OpenFile>,
    asked: LockRequest,
    reply: Reply<()>,
) {
    let owner = MountLockOwner { owner: asked.owner, flock: asked.flock };
    let ask = export.shared().locks.lock_call(file, owner, &asked.lock, LOCK_BLOCK);
    let waiter = CallWaiter { request: reply.id(), thread };
    let (again, locked) = (export.clone(), file.clone());
    let done = move |answer: CallReply<'_>| match status(answer) {
        Ok(LockStatus::Success) => granted(&again, &locked, owner, asked.lock, reply),
        Ok(LockStatus::Blocked) => later(&again, thread, &locked, asked, reply),
        Ok(LockStatus::Error | LockStatus::Grace) => reply.error(Errno::NOLCK),
        Err(error) => reply.error(error),
    };
    let call = ServerCall::new(file.payer.clone(), ask, Some(waiter), done);
    export.homes.link(&call.payer).call_later(here(), call, RETRY_INTERVAL);
}

/// Which lock is in the way?
pub(crate) fn get(export: &MountFs, request: &FuseRequest, asked: LockRequest, reply: Reply<Lock>) {
    let file = or_error!(export.files().get(asked.handle), reply);
    let owner = MountLockOwner { owner: asked.owner, flock: asked.flock };
    let ask = export.shared().locks.test(&file, owner, &asked.lock);
    let inode = file.node.id;
    export.as_opener(request, &file, ask, reply, move |export, answer| match answer? {
        AnyReply::Base(ninep::Reply::Getlock { kind, start, length, proc_id, client_id }) => {
            let kind = match kind {
                WireKind::Read => LockKind::Read,
                WireKind::Write => LockKind::Write,
                WireKind::Unlock => LockKind::None,
            };
            let end = if length == 0 { WHOLE.end } else { start + (length - 1) };
            let process = export.shared().locks.process(inode, client_id).unwrap_or(proc_id);
            Ok(Lock { kind, start, end: end.min(WHOLE.end), process })
        }
        _ => Err(Errno::PROTO),
    });
}

/// A descriptor is closed: what was written is executed, and its owner's fcntl locks on the file
/// end.
pub(crate) fn flush(
    export: &MountFs,
    request: &FuseRequest,
    handle: Handle,
    owner: LockOwner,
    reply: Reply<()>,
) {
    let file = or_error!(export.files().get(handle), reply);
    let owner = MountLockOwner { owner, flock: false };
    if export.shared().locks.has(file.node.id, owner) {
        return unlock(export, request, file, owner, reply);
    }
    // The kernel has handed over what was written through mappings.
    if !file.has_written() {
        return reply.send(file.take_failure());
    }
    behind::after_opener(export, &file.clone(), request, reply, move |_, _, reply| {
        reply.send(file.take_failure());
    });
}

/// All of an owner's locks on a file's inode are given back, whether its process waits for that or
/// is killed.
fn unlock(
    export: &MountFs,
    request: &FuseRequest,
    file: Arc<OpenFile>,
    owner: MountLockOwner,
    reply: Reply<()>,
) {
    let giving = export.shared().locks.begin_release(file.node.id);
    let id = reply.id();
    export.shared().waits.begin(request.thread, reply, Instant::now());
    behind::all_over(export, &file.clone(), move |export| {
        let written = file.take_failure();
        export.shared().locks.set(&file, owner, WHOLE);
        let ask = export.shared().locks.lock_call(&file, owner, &WHOLE, 0);
        export.call_without_waiter(&file.payer.clone(), ask, move |export, answer| {
            let stale = matches!(answer, Err(Errno::BADF)) && file.is_stale();
            let given = if stale { Err(Errno::STALE) } else { status(answer).map(drop) };
            drop(giving);
            if let Some(reply) = export.shared().waits.end(id) {
                reply.send(given.and(written));
            }
        });
    });
}

/// An open file ends, and with it what was locked by it: `then` is to make the proxy forget it, and
/// is given what is to be kept until that has answered.
pub(crate) fn release(
    export: &MountFs,
    file: Arc<OpenFile>,
    flock: Option<LockOwner>,
    then: impl FnOnce(&MountFs, Arc<OpenFile>, Option<PendingRelease>) + Send + 'static,
) {
    let locks = &export.shared().locks;
    if !locks.any_by(&file) {
        return behind::after_all(export, &file.node.clone(), move |export| {
            then(export, file, None);
        });
    }
    let giving = locks.begin_release(file.node.id);
    behind::all_over(export, &file.clone(), move |export| {
        let locks = &export.shared().locks;
        let owner = flock.map(|owner| MountLockOwner { owner, flock: true });
        if let Some(owner) = owner.filter(|owner| locks.has(file.node.id, *owner)) {
            let ask = locks.lock_call(&file, owner, &WHOLE, 0);
            export.call_without_waiter(&file.payer, ask, |_, _| {});
        }
        locks.close(&file);
        then(export, file, Some(giving));
    });
}

fn status(answer: CallReply<'_>) -> Result<LockStatus, Errno> {
    match answer? {
        AnyReply::Base(ninep::Reply::Lock { status }) => Ok(status),
        _ => Err(Errno::PROTO),
    }
}

/// Until a lock is asked for again that the proxy had no room to wait for.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
