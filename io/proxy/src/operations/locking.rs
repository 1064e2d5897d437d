//! Tlock and Tgetlock.

use std::io;

use ninep::{LOCK_BLOCK, LOCK_RECLAIM, LockKind, LockStatus, Reply};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Context, Ending};
use crate::fids::Role;
use crate::locks::{Grant, Owner, Waiter, Wanted};

/// A blocking request that must wait is not answered until the lock is granted.
pub(super) fn lock(
    cx: &Context<'_>,
    range: (LockKind, u64, u64),
    owner: (&[u8], u32),
    flags: u32,
) -> Ending {
    match try_lock(cx, range, owner, flags) {
        Ok(Some(status)) => {
            let ending = cx.answer(Ok(Reply::Lock { status }));
            if range.0 != LockKind::Write {
                // Given back, or shared from now on: somebody may have waited for that.
                cx.server.retry_locks(cx.outbox);
            }
            ending
        }
        Ok(None) => Ending::Held,
        Err(error) => cx.answer(Err(error)),
    }
}

fn try_lock(
    cx: &Context<'_>,
    (kind, start, length): (LockKind, u64, u64),
    (client_id, proc_id): (&[u8], u32),
    flags: u32,
) -> io::Result<Option<LockStatus>> {
    let fid = cx.fid();
    let Role::File { flags: opened, owners, .. } = &fid.role else {
        return Err(Errno::BADF.into());
    };
    let access = *opened & OFlags::RWMODE;
    let refused = match kind {
        LockKind::Read => access == OFlags::WRONLY,
        LockKind::Write => access == OFlags::RDONLY,
        LockKind::Unlock => false,
    };
    if refused || flags & !(LOCK_BLOCK | LOCK_RECLAIM) != 0 {
        return Err(if refused { Errno::BADF } else { Errno::INVAL }.into());
    }
    let owner = Owner::new(&fid.node, client_id, proc_id);
    {
        let mut owners = owners.lock().expect("not poisoned");
        if kind != LockKind::Unlock && !owners.contains(&owner) {
            owners.push(owner.clone());
        }
    }
    let wanted = Wanted { kind, start, len: length };
    let to = cx.to();
    let waiter =
        (flags & LOCK_BLOCK != 0).then(|| Waiter { to: to.clone(), owner: owner.clone(), wanted });
    let waits = waiter.is_some();
    match cx.server.locks.set(&fid.node, &owner, wanted, waiter)? {
        Grant::Granted => Ok(Some(LockStatus::Success)),
        Grant::Blocked if waits => Ok(None),
        Grant::Blocked => Ok(Some(LockStatus::Blocked)),
    }
}

pub(super) fn getlock(
    cx: &Context<'_>,
    (kind, start, length): (LockKind, u64, u64),
    (client_id, proc_id): (&[u8], u32),
) -> Ending {
    let fid = cx.fid();
    if !matches!(fid.role, Role::File { .. }) {
        return cx.answer(Err(Errno::BADF.into()));
    }
    let owner = Owner::new(&fid.node, client_id, proc_id);
    // v9fs asks with "unlock": what would stand in the way of a write lock is any lock.
    let asked = if kind == LockKind::Unlock { LockKind::Write } else { kind };
    let wanted = Wanted { kind: asked, start, len: length };
    match cx.server.locks.test(&fid.node, &owner, wanted) {
        Ok(None) => {
            let kind = LockKind::Unlock;
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
