//! A call of the proxy: a whole message, the identity that pays, and a callback for the reply.
//!
//! ```text
//!   size type tag │ identity reply_slot sequence remote_ops lease_life names │ body    one frame, encoded once;
//!             └───────────┴─── stamped when it is begun                       sent again as it is
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fuse::{Errno, FuseRequestId};
use model::{Direction, Time};
use ninep::dialect::{
    AnyReply, AnyRequest, HandleList, HandlePlaces, RequestHeader, WRITE_DONATED, decode_request,
    encode_request,
};
use ninep::{Fid, NOTAG, Reply};
use session::client::{CallId, CallNeeds};

use super::abandoned::Abandoned;
use super::identities::SessionIdentity;
use crate::leases::{LeaseRequest, OwnChange};
use crate::nodes::{MountNode, WirePlace};

/// Result of a call.
pub(crate) type CallReply<'a> = Result<AnyReply<'a>, Errno>;

/// Takes the answer, usually to answer a request of the kernel with it.
pub(crate) type OnReply = Box<dyn FnOnce(CallReply<'_>) + Send>;

/// A message to the proxy and its waiter.
pub(crate) struct ServerCall {
    pub(crate) payer: Arc<SessionIdentity>,
    pub(crate) spec: CallSpec,
    /// Waiter of the call, if there is one.
    pub(crate) waiter: Option<CallWaiter>,
    /// When it was begun by the wall clock; only for what must be executed once.
    pub(crate) since: Option<Time>,
    /// Another identity that waits for it, and lends its queue.
    pub(super) donor: Option<Arc<SessionIdentity>>,
    pub(crate) done: OnReply,
}

/// The waiter of a call, which may be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallWaiter {
    /// The kernel's request that waits for the reply.
    pub(crate) request: FuseRequestId,
    /// The thread that made it; 0 if it cannot be named here.
    pub(crate) thread: u32,
}

/// A message to the proxy and how it counts.
#[derive(Clone, Debug)]
pub(crate) struct CallSpec {
    pub(crate) frame: CallFrame,
    pub(crate) needs: CallNeeds,
    /// It writes there: kept until that is durable.
    pub(crate) replayable: Option<(Arc<MountNode>, Range<u64>)>,
    /// It asks for leases: where what the reply grants is put.
    pub(crate) lease: Option<Arc<LeaseRequest>>,
    /// What it changes: nothing of that is kept until it is answered.
    pub(crate) change: Option<Arc<OwnChange>>,
}

/// One encoded message. Clones share it.
#[derive(Clone)]
pub(crate) struct CallFrame(Arc<Vec<u8>>);

impl ServerCall {
    pub(crate) fn new(
        payer: Arc<SessionIdentity>,
        ask: CallSpec,
        waiter: Option<CallWaiter>,
        done: impl FnOnce(CallReply<'_>) + Send + 'static,
    ) -> ServerCall {
        ServerCall { payer, spec: ask, waiter, since: None, donor: None, done: Box::new(done) }
    }

    /// Returns the identity in whose queue it goes.
    pub(crate) fn pays(&self) -> &Arc<SessionIdentity> {
        self.donor.as_ref().unwrap_or(&self.payer)
    }

    /// Whether it is this request's.
    pub(crate) fn is_for(&self, request: FuseRequestId) -> bool {
        self.waiter.is_some_and(|waiter| waiter.request == request)
    }

    /// Detaches the waiter, whatever becomes of the call; returns its callback.
    pub(crate) fn detach_waiter(&mut self, all: &Arc<Abandoned>) -> OnReply {
        self.waiter = None;
        let abandoned = all.begin(self.payer.uid());
        std::mem::replace(&mut self.done, Box::new(move |_| drop(abandoned)))
    }
}

impl CallSpec {
    /// Makes a call that may be executed twice.
    pub(crate) fn new<'a>(handles: HandleList<'a>, request: impl Into<AnyRequest<'a>>) -> CallSpec {
        CallSpec::of(CallFrame::new(handles, request))
    }

    /// A message that may be executed twice.
    pub(crate) fn of(frame: CallFrame) -> CallSpec {
        let (needs, replayable, lease, change) = Default::default();
        CallSpec { frame, needs, replayable, lease, change }
    }

    /// Makes a call that must be executed once.
    pub(crate) fn once<'a>(
        handles: HandleList<'a>,
        request: impl Into<AnyRequest<'a>>,
    ) -> CallSpec {
        CallSpec::new(handles, request).only_once()
    }

    /// Makes a call that may be executed twice, of one file: `ESTALE` if that is not in all these
    /// places any more.
    pub(crate) fn of_named<'r>(
        handle: &[u8],
        places: &[WirePlace],
        request: impl Into<AnyRequest<'r>>,
    ) -> CallSpec {
        let mut space = Vec::new();
        let places = places.iter().map(|place| (&place.directory[..], &place.name[..]));
        let places = HandlePlaces::pack(places, &mut space);
        CallSpec::of(CallFrame::encode(HandleList::one(handle), places, &request.into()))
    }

    /// Makes the same message about its file wherever that is.
    pub(crate) fn anywhere(&self) -> CallSpec {
        let (tag, header, request) = decode_request(self.frame.bytes()).expect("we encoded it");
        let mut bytes = Vec::new();
        let header = RequestHeader { names: HandlePlaces::NONE, ..header };
        encode_request(tag, &header, &request, &mut bytes);
        CallSpec { frame: CallFrame(Arc::new(bytes)), ..self.clone() }
    }

    /// Sets that the call must be executed once.
    pub(crate) fn only_once(self) -> CallSpec {
        self.with_needs(|needs| needs.once = true)
    }

    /// Sets the bytes of payload.
    pub(crate) fn with_bytes(self, bytes: usize) -> CallSpec {
        self.with_needs(|needs| needs.bytes = bytes as u64)
    }

    /// Sets the file and the bytes that it writes.
    pub(crate) fn replayable(self, node: &Arc<MountNode>, place: &Range<u64>) -> CallSpec {
        CallSpec { replayable: Some((node.clone(), place.clone())), ..self }
    }

    /// Sets that the call asks for leases, if the mount is a holder.
    pub(crate) fn leased(mut self, lease: &Option<Arc<LeaseRequest>>) -> CallSpec {
        if let Some(lease) = lease {
            self.frame.set_lease_life(lease.life());
            self.lease = Some(lease.clone());
        }
        self
    }

    /// Sets what the call changes.
    pub(crate) fn changing(self, change: Option<Arc<OwnChange>>) -> CallSpec {
        CallSpec { change, ..self }
    }

    /// Sets that the call may wait long at the proxy.
    pub(crate) fn patiently(self) -> CallSpec {
        self.with_needs(|needs| needs.patient = true)
    }

    /// Sets that the call takes a lock.
    pub(crate) fn locking(self) -> CallSpec {
        self.with_needs(|needs| needs.takes_lock = true)
    }

    /// Sets that the call is not limited by a window.
    pub(crate) fn freely(self) -> CallSpec {
        self.with_needs(|needs| needs.free = true)
    }

    fn with_needs(mut self, change: impl FnOnce(&mut CallNeeds)) -> CallSpec {
        change(&mut self.needs);
        self
    }
}

impl CallFrame {
    pub(crate) fn new<'a>(
        handles: HandleList<'a>,
        request: impl Into<AnyRequest<'a>>,
    ) -> CallFrame {
        CallFrame::encode(handles, HandlePlaces::NONE, &request.into())
    }

    fn encode(
        handles: HandleList<'_>,
        places: HandlePlaces<'_>,
        request: &AnyRequest<'_>,
    ) -> CallFrame {
        let mut bytes = Vec::new();
        let header = RequestHeader { handles, names: places, ..RequestHeader::SESSION };
        encode_request(NOTAG, &header, request, &mut bytes);
        CallFrame(Arc::new(bytes))
    }

    /// Adds bytes to what a write without handles writes.
    pub(crate) fn grow(&mut self, more: &[u8]) {
        let bytes = Arc::make_mut(&mut self.0);
        bytes.extend_from_slice(more);
        for at in [SIZE, WRITE_COUNT] {
            let field: &mut [u8; 4] = (&mut bytes[at..at + 4]).try_into().expect("4 bytes");
            *field = (u32::from_le_bytes(*field) + more.len() as u32).to_le_bytes();
        }
    }

    /// Writes in what is known once the message is begun.
    pub(crate) fn stamp(&mut self, ticket: CallId, identity: u32, remote_ops: u32) {
        // Nobody else has it, unless it was begun before a restart and its bytes still wait
        // to be dropped.
        let bytes = Arc::make_mut(&mut self.0);
        bytes[TAG..TAG + 2].copy_from_slice(&ticket.tag.0.to_le_bytes());
        bytes[IDENTITY..IDENTITY + 4].copy_from_slice(&identity.to_le_bytes());
        bytes[SLOT..SLOT + 2].copy_from_slice(&ticket.slot.to_le_bytes());
        bytes[SEQUENCE..SEQUENCE + 4].copy_from_slice(&ticket.sequence.to_le_bytes());
        bytes[REMOTE_OPS..REMOTE_OPS + 4].copy_from_slice(&remote_ops.to_le_bytes());
    }

    /// Sets the life of the mount as a holder of leases.
    fn set_lease_life(&mut self, life: u32) {
        let bytes = Arc::make_mut(&mut self.0);
        bytes[LEASE_LIFE..LEASE_LIFE + 4].copy_from_slice(&life.to_le_bytes());
    }

    /// Sets the waiter's identity in a write to a fid; false for other messages.
    pub(super) fn set_donor(&mut self, identity: Option<u32>) -> bool {
        if self.written_fid().is_none() {
            return false;
        }
        let bytes = Arc::make_mut(&mut self.0);
        bytes[WRITE_FLAGS] &= !(WRITE_DONATED as u8);
        if let Some(identity) = identity {
            bytes[WRITE_FLAGS] |= WRITE_DONATED as u8;
            bytes[IDENTITY..IDENTITY + 4].copy_from_slice(&identity.to_le_bytes());
        }
        true
    }

    /// The fid of a write that names its file by that.
    pub(crate) fn written_fid(&self) -> Option<Fid> {
        let bytes = &self.0[..];
        let is_plain = ninep::frame_kind(bytes) == Some(WRITE) && bytes[LISTS..LISTS + 2] == [0, 0];
        let fid = bytes.get(LISTS + 2..LISTS + 6)?;
        is_plain.then(|| Fid(u32::from_le_bytes(fid.try_into().expect("4 bytes"))))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the queue of its class in which it waits at the proxy.
    pub(crate) fn direction(&self) -> Direction {
        match ninep::frame_kind(&self.0) {
            Some(ninep::TREAD) => Direction::Read,
            Some(ninep::TWRITE | WRITE | APPEND | COPY) => Direction::Write,
            _ => Direction::Metadata,
        }
    }
}

/// The answer that a reply is.
pub(crate) fn answer_of(reply: AnyReply<'_>) -> CallReply<'_> {
    match reply {
        AnyReply::Base(Reply::Error { ecode }) => Err(errno_of(ecode)),
        other => Ok(other),
    }
}

/// The errno of an Rlerror; what is none becomes `EIO`.
pub(crate) fn errno_of(ecode: u32) -> Errno {
    match ecode {
        1..4096 => Errno::from_raw_os_error(ecode as i32),
        _ => Errno::IO,
    }
}

// Where the fields stand: size[4] type[1] tag[2] identity[4] reply_slot[2] sequence[4] remote_ops[4]
// lease_life[4].
const SIZE: usize = 0;
const TAG: usize = 5;
const IDENTITY: usize = 7;
const SLOT: usize = 11;
const SEQUENCE: usize = 13;
const REMOTE_OPS: usize = 17;
const LEASE_LIFE: usize = 21;
// The dialect's own messages that write.
const WRITE: u8 = 216;
const APPEND: u8 = 218;
const COPY: u8 = 224;
// Behind them n[1] m[1]; of a write without handles and places then fid[4] offset[8] flags[4] count[4].
const LISTS: usize = 25;
const WRITE_FLAGS: usize = LISTS + 2 + 12;
const WRITE_COUNT: usize = LISTS + 2 + 16;

impl fmt::Debug for CallFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame(type {}, {} bytes)", self.0[4], self.0.len())
    }
}

impl fmt::Debug for ServerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerCall { payer, spec: ask, waiter, .. } = self;
        write!(f, "Call({ask:?} for {} {waiter:?})", payer.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ninep::dialect::{ExtRequest, decode_request, handle_fid};
    use ninep::{Request, Tag};

    #[test]
    fn a_stamped_frame_is_the_message_with_its_ticket() {
        let request = Request::Fsync { fid: handle_fid(0), datasync: 1 };
        let mut frame = CallFrame::new(HandleList::one(b"handle"), request);
        let again = frame.clone();
        frame.stamp(CallId { tag: Tag(513), slot: 3, sequence: 70_000 }, 9, 4);
        let (tag, header, body) = decode_request(frame.bytes()).unwrap();
        assert_eq!((tag, body), (Tag(513), AnyRequest::Base(request)));
        assert_eq!((header.identity, header.reply_slot, header.sequence), (9, 3, 70_000));
        assert_eq!(header.remote_ops, 4);
        assert_eq!(header.handles, HandleList::one(b"handle"));
        assert_eq!(decode_request(again.bytes()).unwrap().0, NOTAG, "a clone stays as it was");
    }

    #[test]
    fn a_write_that_grew_is_a_larger_write() {
        let write = |data| ExtRequest::Write { fid: Fid(7), offset: 9, flags: 1, data };
        let mut frame = CallFrame::new(HandleList::NONE, write(b"some"));
        frame.grow(b" more");
        assert_eq!(frame.bytes(), CallFrame::new(HandleList::NONE, write(b"some more")).bytes());
    }

    #[test]
    fn a_write_that_somebody_waits_for_says_who() {
        let write = |flags| ExtRequest::Write { fid: Fid(7), offset: 9, flags, data: b"some" };
        let mut frame = CallFrame::new(HandleList::NONE, write(1));
        assert_eq!(frame.written_fid(), Some(Fid(7)));
        assert!(frame.set_donor(Some(77)));
        let (_, header, body) = decode_request(frame.bytes()).unwrap();
        assert_eq!((header.identity, body), (77, AnyRequest::Ext(write(1 | WRITE_DONATED))));
        assert!(frame.set_donor(None));
        assert_eq!(decode_request(frame.bytes()).unwrap().2, AnyRequest::Ext(write(1)));
        let mut by_handle = CallFrame::new(HandleList::one(b"handle"), write(0));
        let mut other = CallFrame::new(HandleList::NONE, Request::Clunk { fid: Fid(7) });
        for frame in [&mut by_handle, &mut other] {
            let before = frame.clone();
            assert!(!frame.set_donor(Some(77)));
            assert_eq!(frame.bytes(), before.bytes());
        }
    }

    #[test]
    fn a_call_waits_where_the_proxy_lets_it_wait() {
        let fid = Fid(7);
        let of = |request: AnyRequest<'_>| CallFrame::new(HandleList::NONE, request).direction();
        let read = Request::Read { fid, offset: 0, count: 1 };
        assert_eq!(of(read.into()), Direction::Read);
        let copy = ExtRequest::Copy { fid, offset: 0, tofid: fid, tooffset: 9, length: 1 };
        for writes in [
            Request::Write { fid, offset: 0, data: b"" }.into(),
            ExtRequest::Write { fid, offset: 0, flags: 0, data: b"" }.into(),
            ExtRequest::Append { fid, flags: 0, data: b"" }.into(),
            copy.into(),
        ] {
            assert_eq!(of(writes), Direction::Write, "{writes:?}");
        }
        for other in [
            Request::Fsync { fid, datasync: 0 }.into(),
            ExtRequest::List { fid, offset: 0, count: 1 }.into(),
            ExtRequest::Lookup { fid, name: b"name" }.into(),
        ] {
            assert_eq!(of(other), Direction::Metadata, "{other:?}");
        }
    }

    #[test]
    fn an_error_that_is_no_errno_is_eio() {
        assert_eq!(errno_of(2), Errno::NOENT);
        assert_eq!(errno_of(0), Errno::IO);
        assert_eq!(errno_of(u32::MAX), Errno::IO);
    }
}
