//! The dialect's promises: messages beside their bytes, any bytes, and exactly-once over
//! a link that breaks anywhere and a server that dies anywhere.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_ninep::dialect::{
    AnyReply, AnyRequest, CallId, CallTable, ExtReply, ExtRequest, HandleList, HandlePlaces,
    ListEntries, Lost, NOSLOT, ReplyCache, ReplyHeader, ReplyLookup, RequestHeader, SessionEvents,
    answer_version, decode_reply, decode_request, encode_reply, encode_request, handle_fid,
    read_reply_header,
};
use sluice_ninep::{FrameError, Reply, Request, Tag, error_reply};

use crate::samples::dialect::{REQUEST_TYPES, replies, requests};
use crate::samples::{Values, set_size};

fn values() -> impl Strategy<Value = Values> {
    let long = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    let text = |max| vec(1u8..b'/', 0..max);
    (any::<u32>(), long, text(300), text(300), vec(any::<u8>(), 0..200)).prop_map(
        |(word, long, name, text, data)| Values { word, long, name, text, data, names: vec![] },
    )
}

fn request(tag: Tag, header: &RequestHeader<'_>, request: &AnyRequest<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_request(tag, header, request, &mut frame);
    frame
}

fn reply(tag: Tag, header: ReplyHeader, reply: &AnyReply<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_reply(tag, header, reply, &mut frame);
    frame
}

/// Frames of every message of the dialect, plain ones among them.
fn frames(values: &Values) -> Vec<Vec<u8>> {
    let (handle, mut frames) = (&values.data[..values.data.len().min(40)], Vec::new());
    let handles = if handle.is_empty() { HandleList::NONE } else { HandleList::two(handle, b"x") };
    let mut space = Vec::new();
    let names = handle.chunks(9).map(|name| (&b"dir"[..], name));
    let names = names.filter(|(_, name)| !name.contains(&0) && !name.contains(&b'/'));
    let names = HandlePlaces::pack(names, &mut space);
    let (identity, reply_slot, sequence, remote_ops) = (values.word, 3, 9, 5);
    let header = RequestHeader { identity, reply_slot, sequence, remote_ops, handles, names };
    requests(values, |own| frames.push(request(Tag(5), &header, &own.into())));
    crate::samples::requests(values, |tag, plain| {
        frames.push(request(tag, &header, &plain.into()))
    });
    let header = ReplyHeader { verifier: values.long, commit_watermark: !values.long };
    replies(values, |own| frames.push(reply(Tag(5), header, &own.into())));
    crate::samples::replies(values, |tag, plain| frames.push(reply(tag, header, &plain.into())));
    frames
}

/// What decodes encodes back to the same bytes.
fn decode_any(frame: &[u8]) -> Result<(), TestCaseError> {
    if let Ok((tag, header, asked)) = decode_request(frame) {
        prop_assert_eq!(&request(tag, &header, &asked), frame);
    }
    if let Ok((tag, header, answered)) = decode_reply(frame) {
        prop_assert_eq!(&reply(tag, header, &answered), frame);
    }
    Ok(())
}

#[test]
fn a_request_has_its_header_between_tag_and_body() {
    let handles = HandleList::one(b"\x01\x02\x03");
    let mut space = Vec::new();
    let names = HandlePlaces::pack([(&b"d"[..], &b"it"[..])], &mut space);
    let (identity, reply_slot, sequence, remote_ops) = (7, 2, 0x0102, 0x03);
    let header = RequestHeader { identity, reply_slot, sequence, remote_ops, handles, names };
    let getattr = Request::Getattr { fid: handle_fid(0), mask: 0x7ff };
    #[rustfmt::skip]
    let bytes = [
        47, 0, 0, 0, 24, 5, 0, // size, type, tag
        7, 0, 0, 0, 2, 0, 2, 1, 0, 0, 3, 0, 0, 0, // identity, reply slot, sequence, remote_ops
        1, 3, 0, 1, 2, 3, // one handle
        1, 1, 0, b'd', 2, 0, b'i', b't', // one name: a directory's handle, a name
        0xf0, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, // the handle's fid, mask
    ];
    assert_eq!(request(Tag(5), &header, &getattr.into()), bytes);
    let (tag, back, asked) = decode_request(&bytes).unwrap();
    assert_eq!((tag, back, asked), (Tag(5), header, getattr.into()));
    assert_eq!(back.handles.get(handle_fid(0)), Some(&[1, 2, 3][..]));
    assert_eq!(back.names.collect::<Vec<_>>(), [(&b"d"[..], &b"it"[..])]);
}

#[test]
fn a_reply_has_verifier_and_commit_number_before_its_body() {
    let header = ReplyHeader { verifier: 0x0807_0605_0403_0201, commit_watermark: 9 };
    let write = ExtReply::Write { count: 4096, number: 10 };
    #[rustfmt::skip]
    let bytes = [
        35, 0, 0, 0, 217, 5, 0,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0,
        0, 16, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(reply(Tag(5), header, &write.into()), bytes);
    let mut read = read_reply_header(Tag(6), header, 4).to_vec();
    read.extend_from_slice(b"data");
    let data = AnyReply::Base(Reply::Read { data: b"data" });
    assert_eq!(decode_reply(&read), Ok((Tag(6), header, data)));
}

#[test]
fn only_this_dialect_is_answered() {
    assert_eq!(answer_version(b"9P2000.L.sluice.2"), Some(&b"9P2000.L.sluice.2"[..]));
    for offered in [&b"9P2000.L"[..], b"9P2000.L.sluice.1", b"9P2000.L.sluice.20", b""] {
        assert_eq!(answer_version(offered), None);
    }
}

#[test]
fn lists_beyond_their_bounds_are_refused_before_they_are_read() {
    let ping = request(Tag(1), &RequestHeader::SESSION, &ExtRequest::Ping.into());
    let mut handles = ping.clone();
    handles[21] = 3;
    let three = FrameError::BadValue { tag: Tag(1), field: "handles", value: 3 };
    assert_eq!(decode_request(&handles), Err(three));
    let mut names = ping.clone();
    names[22] = 33;
    let more = FrameError::BadValue { tag: Tag(1), field: "names", value: 33 };
    assert_eq!(decode_request(&names), Err(more));

    let header = RequestHeader { handles: HandleList::one(&[7; 4097]), ..RequestHeader::SESSION };
    let long = request(Tag(1), &header, &ExtRequest::Ping.into());
    let error = decode_request(&long).unwrap_err().to_string();
    assert_eq!(error, "message with tag 1: handle has 4097 bytes, 1 to 4096 are allowed");

    let identity = ExtRequest::Identity {
        identity: 1,
        uid: 2,
        gid: 3,
        groups: Default::default(),
        job: b"",
        proof: b"",
    };
    let mut groups = request(Tag(1), &RequestHeader::SESSION, &identity.into());
    groups[35..37].copy_from_slice(&513u16.to_le_bytes());
    let many = FrameError::TooMany { tag: Tag(1), field: "groups", count: 513, limit: 512 };
    assert_eq!(decode_request(&groups), Err(many));
}

#[test]
fn messages_cut_short_or_made_longer_are_refused() {
    for whole in frames(&Values::plain()) {
        for len in (0..whole.len()).chain([whole.len() + 1, whole.len() + 7]) {
            let mut frame = whole.clone();
            frame.resize(len, 0);
            set_size(&mut frame);
            let accepted = if whole[4].is_multiple_of(2) {
                decode_request(&frame).is_ok()
            } else {
                decode_reply(&frame).is_ok()
            };
            assert!(!accepted, "type {} with {len} bytes instead of {}", whole[4], whole.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_comes_back_as_it_went(values in values()) {
        let mut types = Vec::new();
        requests(&values, |own| {
            let header = RequestHeader::SESSION;
            let frame = request(Tag(5), &header, &own.into());
            assert_eq!(decode_request(&frame), Ok((Tag(5), header, AnyRequest::Ext(own))));
            types.push(frame[4]);
        });
        prop_assert_eq!(&types[..], &REQUEST_TYPES[..]);
        types.clear();
        replies(&values, |own| {
            let header = ReplyHeader { verifier: values.long, commit_watermark: 3 };
            let frame = reply(Tag(5), header, &own.into());
            assert_eq!(decode_reply(&frame), Ok((Tag(5), header, AnyReply::Ext(own))));
            types.push(frame[4]);
        });
        prop_assert_eq!(types, REQUEST_TYPES.map(|kind| kind + 1).to_vec());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        values in values(),
        pick in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        noise in vec(any::<u8>(), 0..100),
    ) {
        let mut frame = pick.get(&frames(&values)).clone();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.extend_from_slice(&noise);
        frame.truncate(len.index(frame.len() + 1));
        decode_any(&frame)?;
        set_size(&mut frame);
        decode_any(&frame)?;
        prop_assert!(ListEntries::new(&frame).count() <= frame.len() / 12 + 1);
        prop_assert!(SessionEvents::new(&frame).count() <= frame.len() / 3 + 1);
    }

    /// The client and the server halves over a link that loses everything at any moment.
    #[test]
    fn a_call_with_a_slot_is_executed_once(steps in vec((0u8..16, any::<prop::sample::Index>()), 0..400)) {
        let mut world = World::new();
        for (what, which) in steps {
            match what {
                0..4 => world.call(which),
                4..8 => world.arrive(),
                8..11 => world.execute(which),
                11..14 => world.answer(),
                14 => world.lose_connection(),
                _ => world.kill_server(which),
            }
        }
        world.finish();
    }
}

/// What a call does, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Op {
    number: u32,
    once: bool,
}

/// One channel between the two halves; its server may die and begin anew.
struct World {
    calls: CallTable<Op>,
    slots: ReplyCache,
    next: u32,
    to_server: Vec<(CallId, Op)>,
    executing: Vec<(CallId, Op)>,
    to_client: Vec<(Tag, Vec<u8>)>,
    /// Executions of each operation, over all lives of the server.
    executed: BTreeMap<u32, u32>,
    /// Operations that must not be executed twice.
    once: BTreeSet<u32>,
    learnt: BTreeSet<u32>,
    unsettled: BTreeSet<u32>,
}

const SLOTS: u16 = 3;
const KIND: u8 = 72;

impl World {
    fn new() -> World {
        World {
            calls: CallTable::new(6, SLOTS),
            slots: ReplyCache::new(SLOTS),
            next: 0,
            to_server: Vec::new(),
            executing: Vec::new(),
            to_client: Vec::new(),
            executed: BTreeMap::new(),
            once: BTreeSet::new(),
            learnt: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    fn call(&mut self, which: prop::sample::Index) {
        let op = Op { number: self.next, once: which.index(3) > 0 };
        if let Ok(ticket) = self.calls.begin(op.once, op) {
            self.next += 1;
            self.once.extend(op.once.then_some(op.number));
            self.to_server.push((ticket, op));
        }
    }

    /// The server reads the next message: in order, as connections are.
    fn arrive(&mut self) {
        if self.to_server.is_empty() {
            return;
        }
        let (ticket, op) = self.to_server.remove(0);
        assert_eq!(op.once, ticket.slot != NOSLOT);
        if !op.once {
            return self.executing.push((ticket, op));
        }
        match self.slots.begin(ticket.slot, ticket.sequence, KIND).expect("a client of ours") {
            ReplyLookup::New => self.executing.push((ticket, op)),
            ReplyLookup::Replay(reply) => {
                let mut again = Vec::new();
                ReplyCache::replay(reply, ticket.tag, &mut again);
                self.to_client.push((ticket.tag, again));
            }
            ReplyLookup::Executing => {
                unreachable!("a new connection waits for the old one's calls")
            }
        }
    }

    /// Something that was read is executed, in any order.
    fn execute(&mut self, which: prop::sample::Index) {
        if !self.executing.is_empty() {
            self.execute_at(which.index(self.executing.len()));
        }
    }

    fn execute_at(&mut self, at: usize) {
        let (ticket, op) = self.executing.remove(at);
        *self.executed.entry(op.number).or_default() += 1;
        // The result says which operation it belongs to.
        let reply = error_reply(ticket.tag, op.number).to_vec();
        if op.once {
            self.slots.end(ticket.slot, ticket.sequence, &reply);
        }
        self.to_client.push((ticket.tag, reply));
    }

    fn answer(&mut self) {
        if self.to_client.is_empty() {
            return;
        }
        let (tag, frame) = self.to_client.remove(0);
        let Ok((of, Reply::Error { ecode })) = Reply::decode(&frame) else { panic!("{frame:?}") };
        let op = self.calls.end(tag).expect("an answer to a call");
        assert_eq!((of, ecode), (tag, op.number), "the answer of its own execution");
        assert!(self.learnt.insert(op.number), "answered twice");
    }

    /// The server takes back what it has not begun to execute, finishes the rest, and
    /// only then answers the client's new connection.
    fn lose_connection(&mut self) {
        self.to_server.clear();
        while !self.executing.is_empty() {
            if self.executing.len().is_multiple_of(2) {
                let (ticket, _) = self.executing.remove(0);
                self.slots.abandon(ticket.slot, ticket.sequence);
            } else {
                self.execute_at(0);
            }
        }
        self.to_client.clear();
        self.to_server = self.calls.calls_to_replay().into_iter().map(|(t, op)| (t, *op)).collect();
    }

    /// Some of what was being executed is done, nothing of it is remembered.
    fn kill_server(&mut self, which: prop::sample::Index) {
        let done = which.index(self.executing.len() + 1);
        for (_, op) in self.executing.drain(..).take(done) {
            *self.executed.entry(op.number).or_default() += 1;
        }
        self.to_server.clear();
        self.to_client.clear();
        self.slots = ReplyCache::new(SLOTS);
        for lost in self.calls.restart(SLOTS) {
            match lost {
                Lost::Repeatable(op) => {
                    let ticket = self.calls.begin(op.once, op).expect("its tag is free");
                    self.to_server.push((ticket, op));
                }
                Lost::InDoubt(op) => assert!(self.unsettled.insert(op.number)),
            }
        }
    }

    fn finish(mut self) {
        while !self.calls.is_empty() {
            self.arrive();
            if !self.executing.is_empty() {
                self.execute_at(0);
            }
            while !self.to_client.is_empty() {
                self.answer();
            }
        }
        for number in 0..self.next {
            let (learnt, unsettled) =
                (self.learnt.contains(&number), self.unsettled.contains(&number));
            assert!(learnt != unsettled, "operation {number} is answered or unsettled");
            let executed = self.executed.get(&number).copied().unwrap_or(0);
            assert!(executed <= 1 || !self.once.contains(&number), "{number}: {executed} times");
            assert!(executed >= 1 || unsettled, "operation {number} was answered, not executed");
        }
    }
}
