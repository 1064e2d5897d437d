//! Restoring a session at a proxy that has forgotten it: identities, open files and held locks.
//!
//! ```text
//!   identities ─► files, each opened again by its handle ─► locks, each taken again
//!                   │ gone                                    │ somebody else has it
//!                   ▼                                         ▼
//!                 stale: ESTALE from now on                 stale: its owner relied on it
//! ```
//!
//! A lock is reclaimed only if no other owner can have had it meanwhile ([`LockReclaim`]).
//!
//! Numbers stay what they were, so calls that wait need not be changed.

use std::sync::Arc;

use fuse::Errno;
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, RequestHeader, decode_request,
    handle_fid,
};
use ninep::{LOCK_RECLAIM, LockStatus, Reply};
use session::client::LockReclaim;

use super::ClientSession;
use super::handshake::Handshake;
use super::identities::SessionIdentity;
use super::socket::Broken;
use crate::clock;
use crate::files::OpenFile;
use crate::locks::GrantedLock;

/// Tells everything. What cannot be had again is marked as stale.
pub(super) fn restore(
    link: &ClientSession,
    reclaim: LockReclaim,
    talk: &mut Handshake,
) -> Result<(), Broken> {
    identities(talk, &link.payers.sent_identities())?;
    files(talk, &link.shared.files.all_at(link.home))?;
    let mut held = link.shared.locks.all_at(link.home);
    held.retain(|held| !held.file.is_stale());
    locks(link, reclaim, &held, talk)?;
    if reclaim.is_late(clock::now()) {
        mark_lost(&held);
    }
    Ok(())
}

/// Others may have had these locks meanwhile.
fn mark_lost(locks: &[GrantedLock]) {
    for held in locks {
        tracing::warn!(
            fid = held.file.fid.0,
            "lost a lock: its proxy was unreachable for too long"
        );
        held.file.set_stale();
    }
}

fn identities(talk: &mut Handshake, payers: &[Arc<SessionIdentity>]) -> Result<(), Broken> {
    let mut spaces = vec![Vec::new(); payers.len()];
    let asks: Vec<(RequestHeader<'_>, AnyRequest<'_>)> = payers
        .iter()
        .zip(&mut spaces)
        .map(|(payer, space)| (RequestHeader::SESSION, payer.message(space).into()))
        .collect();
    talk.call_all(&asks, |at, answer| match answer {
        Ok(AnyReply::Ext(ExtReply::Identity { requests, bytes })) => {
            payers[at].set_window(requests, bytes);
        }
        Ok(_) => payers[at].refuse(Errno::PROTO),
        Err(error) => payers[at].refuse(error),
    })
}

fn files(talk: &mut Handshake, files: &[Arc<OpenFile>]) -> Result<(), Broken> {
    let asks: Vec<(RequestHeader<'_>, AnyRequest<'_>)> = files
        .iter()
        .map(|file| {
            let header = idempotent_header(&file.payer, HandleList::one(&file.node.handle));
            let request = ExtRequest::Open {
                fid: handle_fid(0),
                newfid: file.fid,
                name: b"",
                flags: file.reopen_flags(),
                mode: 0,
            };
            (header, request.into())
        })
        .collect();
    talk.call_all(&asks, |at, answer| {
        if let Err(error) = answer {
            tracing::warn!(fid = files[at].fid.0, %error, "cannot reopen a file");
            files[at].set_stale();
        }
    })
}

fn locks(
    link: &ClientSession,
    reclaim: LockReclaim,
    held: &[GrantedLock],
    talk: &mut Handshake,
) -> Result<(), Broken> {
    let flags = match reclaim {
        LockReclaim::Grace => LOCK_RECLAIM,
        LockReclaim::Until(_) => 0,
        LockReclaim::Never => {
            mark_lost(held);
            return Ok(());
        }
    };
    let asks: Vec<_> = held
        .iter()
        .map(|held| link.shared.locks.lock_call(&held.file, held.owner, &held.lock, flags))
        .collect();
    let asks: Vec<(RequestHeader<'_>, AnyRequest<'_>)> = asks
        .iter()
        .zip(held)
        .map(|(ask, held)| {
            let (_, _, request) = decode_request(ask.frame.bytes()).expect("we encoded it");
            (idempotent_header(&held.file.payer, HandleList::NONE), request)
        })
        .collect();
    talk.call_all(&asks, |at, answer| {
        let granted = Reply::Lock { status: LockStatus::Success };
        if answer != Ok(granted.into()) {
            let fid = held[at].file.fid.0;
            tracing::warn!(fid, ?answer, "cannot reclaim a lock");
            held[at].file.set_stale();
        }
    })
}

/// The header of a message that may be executed twice.
pub(super) fn idempotent_header<'a>(
    payer: &SessionIdentity,
    handles: HandleList<'a>,
) -> RequestHeader<'a> {
    RequestHeader { identity: payer.number, handles, ..RequestHeader::SESSION }
}
