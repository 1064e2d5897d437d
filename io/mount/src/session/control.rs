//! Messages of a channel beside the calls.

use std::sync::Arc;
use std::time::Instant;

use ninep::dialect::{ExtRequest, HandleList};
use ninep::{Fid, Request, Tag};
use session::client::CallId;

use super::call::CallFrame;
use super::identities::SessionIdentity;

/// A message of a channel beside the calls.
#[derive(Clone, Debug)]
pub(crate) enum SessionControl {
    Identity(Arc<SessionIdentity>),
    Retire(u32),
    Flush(Tag),
    /// Another identity waits for the write with that tag.
    Donate(Tag, Fid, Arc<SessionIdentity>),
    /// A ping with the time at which it was sent.
    Ping(Instant),
    Events,
}

impl SessionControl {
    /// The message, with its ticket.
    pub(crate) fn frame(&self, ticket: CallId) -> CallFrame {
        let mut space = Vec::new();
        let mut frame = match self {
            SessionControl::Identity(payer) => {
                CallFrame::new(HandleList::NONE, payer.message(&mut space))
            }
            SessionControl::Retire(identity) => {
                CallFrame::new(HandleList::NONE, ExtRequest::Retire { identity: *identity })
            }
            SessionControl::Flush(oldtag) => {
                CallFrame::new(HandleList::NONE, Request::Flush { oldtag: *oldtag })
            }
            SessionControl::Donate(oldtag, fid, _) => {
                CallFrame::new(HandleList::NONE, ExtRequest::Donate { fid: *fid, oldtag: *oldtag })
            }
            SessionControl::Ping(_) => CallFrame::new(HandleList::NONE, ExtRequest::Ping),
            SessionControl::Events => CallFrame::new(HandleList::NONE, ExtRequest::Events),
        };
        let identity = match self {
            SessionControl::Donate(_, _, donor) => donor.number,
            _ => ninep::dialect::NO_IDENTITY,
        };
        frame.stamp(ticket, identity, 0);
        frame
    }
}
