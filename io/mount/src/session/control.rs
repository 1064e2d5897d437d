//! Messages of a channel beside the calls, as bytes.

use std::sync::Arc;

use ninep::Request;
use ninep::dialect::{ExtRequest, HandleList, NO_IDENTITY};
use session::client::{CallId, ChannelControl};

use super::call::CallFrame;
use super::identities::SessionIdentity;

/// A message of a channel beside the calls.
pub(crate) type SessionControl = ChannelControl<Arc<SessionIdentity>>;

/// The message, with its id.
pub(crate) fn control_frame(control: &SessionControl, id: CallId) -> CallFrame {
    let mut space = Vec::new();
    let mut frame = match control {
        ChannelControl::Identity(payer) => {
            CallFrame::new(HandleList::NONE, payer.message(&mut space))
        }
        ChannelControl::Retire(identity) => {
            CallFrame::new(HandleList::NONE, ExtRequest::Retire { identity: *identity })
        }
        ChannelControl::Flush(oldtag) => {
            CallFrame::new(HandleList::NONE, Request::Flush { oldtag: *oldtag })
        }
        ChannelControl::Donate(oldtag, fid, _) => {
            CallFrame::new(HandleList::NONE, ExtRequest::Donate { fid: *fid, oldtag: *oldtag })
        }
        ChannelControl::Ping(_) => CallFrame::new(HandleList::NONE, ExtRequest::Ping),
        ChannelControl::Events => CallFrame::new(HandleList::NONE, ExtRequest::Events),
        ChannelControl::Renew { life, what, sent: _ } => {
            CallFrame::new(HandleList::NONE, ExtRequest::Renew { life: *life, what: *what })
        }
        ChannelControl::Return { access, done } => {
            let request = ExtRequest::Return { access: *access, done: (*done).into() };
            CallFrame::new(HandleList::NONE, request)
        }
        ChannelControl::GiveBack(data) => {
            CallFrame::new(HandleList::NONE, ExtRequest::GiveBack { data })
        }
    };
    let identity = match control {
        ChannelControl::Donate(_, _, donor) => donor.number,
        _ => NO_IDENTITY,
    };
    frame.stamp(id, identity, 0);
    frame
}
