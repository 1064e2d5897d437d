//! What a channel says on its own account, beside the calls.

use std::sync::Arc;
use std::time::Instant;

use ninep::dialect::{CallId, ExtRequest, HandleList};
use ninep::{Fid, Request, Tag};

use super::call::Frame;
use super::identities::Payer;

/// What a channel says on its own account.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    Identity(Arc<Payer>),
    Retire(u32),
    Flush(Tag),
    /// Who waits for the write with that tag.
    Donate(Tag, Fid, Arc<Payer>),
    /// Sent then.
    Ping(Instant),
    Wait,
}

impl Control {
    /// The message, with its ticket.
    pub(crate) fn frame(&self, ticket: CallId) -> Frame {
        let mut space = Vec::new();
        let mut frame = match self {
            Control::Identity(payer) => Frame::new(HandleList::NONE, payer.message(&mut space)),
            Control::Retire(identity) => {
                Frame::new(HandleList::NONE, ExtRequest::Retire { identity: *identity })
            }
            Control::Flush(oldtag) => {
                Frame::new(HandleList::NONE, Request::Flush { oldtag: *oldtag })
            }
            Control::Donate(oldtag, fid, _) => {
                Frame::new(HandleList::NONE, ExtRequest::Donate { fid: *fid, oldtag: *oldtag })
            }
            Control::Ping(_) => Frame::new(HandleList::NONE, ExtRequest::Ping),
            Control::Wait => Frame::new(HandleList::NONE, ExtRequest::Wait),
        };
        let identity = match self {
            Control::Donate(_, _, donor) => donor.number,
            _ => ninep::dialect::NOBODY,
        };
        frame.stamp(ticket, identity, 0);
        frame
    }
}
