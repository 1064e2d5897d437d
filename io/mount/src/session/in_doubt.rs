//! Calls that may have been executed by a proxy that has since forgotten them: each is resolved over
//! the new connection, before others may use it.
//!
//! ```text
//!   call in doubt ─► InDoubt ─ question ─► Handshake ─ answer ─► InDoubt ─► … ─► outcome
//!                                                    done, with what the call made ◄─┤
//!                                                    made again, in the new session ◄┘
//! ```
//!
//! What is asked, and what the answers mean, is decided in `core/session`.

use model::Time;
use ninep::Tag;
use ninep::dialect::{ExtReply, decode_request, encode_request};
use session::client::{InDoubt, InDoubtFacts, InDoubtOutcome, InDoubtReader};

use super::ClientSession;
use super::call::{CallWaiter, ServerCall, errno_of};
use super::handshake::Handshake;
use super::home_router::ROOM;
use super::socket::Broken;
use crate::files::OpenFiles;

/// Resolves every call in doubt of a channel.
pub(super) fn resolve_all(
    link: &ClientSession,
    on: usize,
    talk: &mut Handshake,
) -> Result<(), Broken> {
    loop {
        let Some(call) = link.lock_channel(on).state.pop_in_doubt() else { return Ok(()) };
        let outcome = match resolve(&link.shared.files, talk, &call) {
            Ok(outcome) => outcome,
            Err(broken) => {
                link.lock_channel(on).state.push_in_doubt(call);
                return Err(broken);
            }
        };
        tracing::info!(?call, ?outcome, "resolved a call in doubt");
        let waiter = call.waiter;
        match outcome {
            InDoubtOutcome::NotExecuted => link.lock_channel(on).state.requeue(call),
            other => complete(call, other),
        }
        if let Some(CallWaiter { request, .. }) = waiter
            && link.shared.missed.remove(request)
        {
            link.interrupt(request);
        }
    }
}

/// Tells the waiter of a call what happened.
fn complete(call: ServerCall, outcome: InDoubtOutcome) {
    match outcome {
        InDoubtOutcome::NotExecuted => unreachable!("such a call is made again"),
        InDoubtOutcome::Done(reply) => (call.done)(Ok(reply)),
        InDoubtOutcome::Made(handle, attributes) => {
            (call.done)(Ok(ExtReply::Mknode { handle: &handle, attributes }.into()));
        }
        InDoubtOutcome::Opened(handle, attributes) => {
            let reply = ExtReply::Open { handle: &handle, created: 1, attributes };
            (call.done)(Ok(reply.into()));
        }
        InDoubtOutcome::Failed(errno) => (call.done)(Err(errno_of(errno))),
    }
}

fn resolve(
    files: &OpenFiles,
    talk: &mut Handshake,
    call: &ServerCall,
) -> Result<InDoubtOutcome, Broken> {
    let (_, header, request) = decode_request(call.spec.frame.bytes()).expect("we encoded it");
    let file = InDoubt::appends_to(&request).and_then(|fid| files.by_fid(fid));
    let unused = file.as_ref().and_then(|_| files.reserve().ok());
    let reader = file.as_ref().zip(unused);
    let facts = InDoubtFacts {
        uid: call.payer.uid(),
        since: call.since.unwrap_or(Time::ZERO),
        file_end: call.spec.replayable.as_ref().map_or(0, |(_, place)| place.start),
        reader: reader.map(|(file, fid)| InDoubtReader { handle: &file.node.handle, fid }),
        read_max: talk.msize.saturating_sub(ROOM).max(1),
    };
    let mut in_doubt = InDoubt::new(header, request, facts);
    let asked = ask_all(talk, &mut in_doubt);
    if let Some(fid) = unused {
        files.release(fid);
    }
    asked.map(|()| in_doubt.into_outcome())
}

fn ask_all(talk: &mut Handshake, in_doubt: &mut InDoubt<'_>) -> Result<(), Broken> {
    let mut frame = Vec::new();
    while let Some((header, request)) = in_doubt.question() {
        frame.clear();
        encode_request(Tag(0), &header, &request, &mut frame);
        talk.ask(&frame, |answer| {
            in_doubt.answered(answer.map_err(|error| error.raw_os_error().unsigned_abs()));
        })?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
