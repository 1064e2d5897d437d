//! One channel of a session over a blocking socket.
//!
//! ```text
//!   send / send_once ─► CallTable: tag, slot, sequence ─► socket      lose ─► again, after
//!   wait ◄─ early ◄──── one frame after the other ◄──────┘            the session was resumed
//! ```
//!
//! Requests go out one by one or many at once; replies are found by their tags and kept
//! until asked for. Errors are the plain errno, so that a test can name it.

#![allow(missing_docs, reason = "most methods are named after the message that they send")]

use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, GroupList, HandleList, NO_IDENTITY, ReplyHeader,
    RequestHeader, VERSION, decode_reply, encode_request, handle_fid,
};
use ninep::{Fid, NOTAG, NameList, Reply, Request, Tag};
use session::client::{CallId, CallTable};

use super::{P9Address, P9Frame, P9Wire};

/// Requests that may be under way at a time.
const TAGS: u16 = 512;
/// The tag of Tsession, which no call has.
const SESSION: Tag = Tag(0xfffe);

/// A connection that speaks the dialect, and the calls that were made over it and its
/// predecessors.
#[derive(Debug)]
pub struct P9Channel {
    pub door: P9Address,
    /// The identity in the header of what is sent.
    pub identity: u32,
    /// The handle of the export's root.
    pub root: Vec<u8>,
    /// The life in the header of what is sent; 0: no leases are wanted.
    pub lease_life: u32,
    /// The header of the last reply that was read.
    pub head: ReplyHeader,
    wire: P9Wire,
    msize: u32,
    session: (u128, u16, u16, String),
    calls: CallTable<Vec<u8>>,
}

/// Fields of an Rsession message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Session {
    pub slots: u16,
    pub resumed: bool,
    pub keep: u32,
}

impl P9Frame {
    pub fn head(&self) -> ReplyHeader {
        decode_reply(&self.0).unwrap().1
    }

    /// Type and body: what two replies to the same call have in common.
    pub fn said(&self) -> (u8, &[u8]) {
        (self.0[4], &self.0[7 + 16 + self.head().leases.encoded_len()..])
    }

    /// The reply to a message of the dialect, or its errno.
    pub fn own(&self) -> Result<ExtReply<'_>, u32> {
        match decode_reply(&self.0).unwrap().2 {
            AnyReply::Ext(reply) => Ok(reply),
            AnyReply::Base(Reply::Error { ecode }) => Err(ecode),
            AnyReply::Base(other) => panic!("{other:?}"),
        }
    }

    /// The reply to a message of 9P2000.L, or its errno.
    pub fn plain(&self) -> Result<Reply<'_>, u32> {
        match decode_reply(&self.0).unwrap().2 {
            AnyReply::Base(Reply::Error { ecode }) => Err(ecode),
            AnyReply::Base(reply) => Ok(reply),
            AnyReply::Ext(other) => panic!("{other:?}"),
        }
    }

    /// For replies that hold nothing, or nothing of interest.
    pub fn done(&self) -> Result<(), u32> {
        match decode_reply(&self.0).unwrap().2 {
            AnyReply::Base(Reply::Error { ecode }) => Err(ecode),
            _ => Ok(()),
        }
    }
}

impl P9Channel {
    /// A connection on which nothing is said yet.
    pub fn connect(door: P9Address) -> P9Channel {
        P9Channel {
            wire: P9Wire::open(&door).unwrap(),
            door,
            identity: NO_IDENTITY,
            lease_life: 0,
            root: Vec::new(),
            head: ReplyHeader::default(),
            msize: 0,
            session: (0, 0, 0, String::new()),
            calls: CallTable::new(TAGS, 0),
        }
    }

    // ---- the session ----

    /// Offers a version; the answer's msize and version.
    pub fn offer(&mut self, msize: u32, version: &[u8]) -> (u32, Vec<u8>) {
        let mut bytes = Vec::new();
        Request::Version { msize, version }.encode(NOTAG, &mut bytes);
        self.send_bytes(&bytes);
        let frame = self.try_next().expect("an answer to Tversion");
        match Reply::decode(&frame.0).unwrap().1 {
            Reply::Version { msize, version } => (msize, version.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Agrees on the dialect.
    pub fn begin(&mut self, msize: u32) -> u32 {
        let (msize, version) = self.offer(msize, VERSION);
        assert_eq!(version, VERSION, "the server speaks the dialect");
        self.msize = msize;
        msize
    }

    /// Binds the connection to a session.
    pub fn session(
        &mut self,
        id: u128,
        channel: u16,
        slots: u16,
        aname: &str,
    ) -> Result<P9Session, u32> {
        self.session = (id, channel, slots, aname.into());
        let request = ExtRequest::Session { id, channel, slots, aname: aname.as_bytes() };
        self.send_as(SESSION, &RequestHeader::SESSION, &request.into());
        let frame = self.wait(SESSION);
        let ExtReply::Session { slots, resumed, keep, root } = frame.own()? else {
            panic!("{frame:?}")
        };
        if resumed == 0 {
            self.calls = CallTable::new(TAGS, slots);
        }
        self.root = root.to_vec();
        Ok(P9Session { slots, resumed: resumed == 1, keep })
    }

    /// Ends the connection; what was not answered yet never will be over it.
    pub fn lose(&mut self) {
        self.wire.close();
    }

    /// Binds the channel again over another connection.
    pub fn reconnect(&mut self) -> P9Session {
        self.try_reconnect().unwrap()
    }

    pub fn try_reconnect(&mut self) -> Result<P9Session, u32> {
        self.lose();
        self.wire = P9Wire::open(&self.door).unwrap();
        self.begin(self.msize);
        let (id, channel, slots, aname) = self.session.clone();
        self.session(id, channel, slots, &aname)
    }

    /// Another channel of the same session, over a connection of its own.
    pub fn channel(&self, channel: u16) -> P9Channel {
        let mut other = P9Channel::connect(self.door.clone());
        other.begin(self.msize);
        let (id, _, slots, aname) = &self.session;
        // The first of a channel has no remembered replies, whatever the session has.
        let terms = other.session(*id, channel, *slots, aname).unwrap();
        assert!(terms.resumed, "the session is there");
        other.calls = CallTable::new(TAGS, terms.slots);
        other.identity = self.identity;
        other
    }

    pub fn id(&self) -> u128 {
        self.session.0
    }

    /// Says who a number is, and uses it from now on; the window.
    pub fn identify(&mut self, number: u32, uid: u32, job: &str) -> Result<(u32, u64), u32> {
        self.identify_with(number, uid, uid, &[], job.as_bytes())
    }

    pub fn identify_with(
        &mut self,
        number: u32,
        uid: u32,
        gid: u32,
        groups: &[u32],
        job: &[u8],
    ) -> Result<(u32, u64), u32> {
        let mut space = Vec::new();
        let groups = GroupList::pack(groups.iter().copied(), &mut space);
        let request = ExtRequest::Identity { identity: number, uid, gid, groups, job, proof: b"" };
        let before = std::mem::replace(&mut self.identity, NO_IDENTITY);
        let frame = self.call(HandleList::NONE, request);
        self.identity = before;
        match frame.own()? {
            ExtReply::Identity { requests, bytes } => {
                self.identity = number;
                Ok((requests, bytes))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Spends more than the burst of a job that a rule limits to one metadata operation a second,
    /// so that its next metadata request waits for longer than [`PATIENCE`](crate::PATIENCE).
    pub fn owe(&mut self) {
        let handle = self.root.clone();
        let mut walk = |newfid| {
            let mut space = Vec::new();
            let names = NameList::pack([&b".."[..]; 16], &mut space).unwrap();
            let (fid, newfid) = (handle_fid(0), Fid(newfid));
            self.send(HandleList::one(&handle), Request::Walk { fid, newfid, names })
        };
        // The first goes at once, the others wait for what it owes, and each owes as much.
        let first = walk(0xffff_0000);
        for nth in 1..10 {
            walk(0xffff_0000 + nth);
        }
        self.wait(first).done().unwrap();
        // Answered before what waits, so the server has seen it all.
        self.ping();
    }

    // ---- calls ----

    /// Sends a request that the server need not remember.
    pub fn send<'a>(&mut self, files: HandleList<'_>, request: impl Into<AnyRequest<'a>>) -> Tag {
        self.begin_call(false, files, &request.into()).tag
    }

    /// Sends a request in a slot.
    pub fn send_once<'a>(
        &mut self,
        files: HandleList<'_>,
        request: impl Into<AnyRequest<'a>>,
    ) -> CallId {
        self.begin_call(true, files, &request.into())
    }

    fn begin_call(
        &mut self,
        once: bool,
        handles: HandleList<'_>,
        request: &AnyRequest<'_>,
    ) -> CallId {
        let ticket = self.plan(once, handles, request);
        let bytes = self.calls.calls_to_replay().into_iter().find(|(known, _)| *known == ticket);
        let bytes = bytes.expect("it was begun").1.clone();
        self.send_bytes(&bytes);
        ticket
    }

    /// Begins a call without sending it.
    pub fn plan(
        &mut self,
        once: bool,
        handles: HandleList<'_>,
        request: &AnyRequest<'_>,
    ) -> CallId {
        // The frame names the ticket that keeps it: which one that is, a copy tells.
        let ticket = self.calls.clone().begin(once, Vec::new()).expect("a free tag and slot");
        let CallId { tag, slot, sequence } = ticket;
        let header = self.header(slot, sequence, handles);
        let mut bytes = Vec::new();
        encode_request(tag, &header, request, &mut bytes);
        assert_eq!(self.calls.begin(once, bytes), Ok(ticket));
        ticket
    }

    fn header<'h>(&self, slot: u16, sequence: u32, handles: HandleList<'h>) -> RequestHeader<'h> {
        let (identity, lease_life) = (self.identity, self.lease_life);
        let reply_slot = slot;
        RequestHeader {
            identity,
            reply_slot,
            sequence,
            lease_life,
            handles,
            ..RequestHeader::SESSION
        }
    }

    /// The bytes of a call that is not answered.
    pub fn planned(&self, ticket: CallId) -> Vec<u8> {
        let calls = self.calls.calls_to_replay();
        calls.into_iter().find(|(known, _)| *known == ticket).unwrap().1.clone()
    }

    /// Sends everything that is not answered once more, as it was.
    pub fn again(&mut self) {
        let frames: Vec<_> =
            self.calls.calls_to_replay().into_iter().map(|(_, b)| b.clone()).collect();
        frames.iter().for_each(|bytes| self.send_bytes(bytes));
    }

    /// Sends a request under any tag, slot and sequence.
    pub fn send_as(&mut self, tag: Tag, header: &RequestHeader<'_>, request: &AnyRequest<'_>) {
        let mut bytes = Vec::new();
        encode_request(tag, header, request, &mut bytes);
        self.send_bytes(&bytes);
    }

    /// Calls under any tag, slot and sequence.
    pub fn call_as<'a>(
        &mut self,
        CallId { tag, slot, sequence }: CallId,
        handles: HandleList<'_>,
        request: impl Into<AnyRequest<'a>>,
    ) -> P9Frame {
        let header = self.header(slot, sequence, handles);
        self.send_as(tag, &header, &request.into());
        self.wait(tag)
    }

    pub fn call<'a>(
        &mut self,
        files: HandleList<'_>,
        request: impl Into<AnyRequest<'a>>,
    ) -> P9Frame {
        let tag = self.send(files, request);
        self.wait(tag)
    }

    /// A call in a slot.
    pub fn once<'a>(
        &mut self,
        files: HandleList<'_>,
        request: impl Into<AnyRequest<'a>>,
    ) -> P9Frame {
        let ticket = self.send_once(files, request);
        self.wait(ticket.tag)
    }

    /// The reply to the request of this tag.
    pub fn wait(&mut self, tag: Tag) -> P9Frame {
        let frame = loop {
            if let Some(frame) = self.wire.take(tag) {
                break frame;
            }
            let frame = self.try_next().expect("the connection is open");
            self.head = frame.head();
            self.wire.keep(frame);
        };
        self.calls.end(tag);
        frame
    }

    /// Whether the reply of this tag has been read while another was waited for.
    pub fn came(&self, tag: Tag) -> bool {
        self.wire.came(tag)
    }

    /// Takes a request back; whether it was, or has been answered before.
    pub fn flush(&mut self, oldtag: Tag) -> bool {
        let frame = self.call(HandleList::NONE, Request::Flush { oldtag });
        assert_eq!(frame.plain(), Ok(Reply::Flush));
        let answered = self.came(oldtag);
        if !answered {
            self.calls.end(oldtag);
        }
        !answered
    }

    // ---- bytes ----

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).unwrap();
    }

    /// The next reply, whosever it is; `None` when the server has closed.
    pub fn try_next(&mut self) -> Option<P9Frame> {
        self.wire.receive().unwrap()
    }

    /// Asserts that the server has closed, or closes, this connection.
    pub fn expect_closed(&mut self) {
        if let Some(frame) = self.try_next() {
            panic!("a reply in place of the end: {frame:?}");
        }
    }

    /// Whether a reply is there, or the end, or comes within `ms` milliseconds.
    pub fn readable(&self, ms: i64) -> bool {
        self.wire.readable(ms)
    }
}
