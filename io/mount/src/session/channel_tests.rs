//! Tests of a channel with its socket: its messages are decoded, and its replies are made up.

use super::*;
use crate::session::call::CallSpec;
use fuse::FuseRequestId;
use ninep::dialect::{
    AnyRequest, ExtRequest, HandleList, RequestHeader, WRITE_DONATED, decode_request,
};
use ninep::{Fid, Reply, Request};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use crate::session::socket::SocketInbox;

type Told = Arc<Mutex<Vec<(u32, Result<(), Errno>)>>>;

struct Bench {
    channel: LinkChannel,
    peer: UnixStream,
    inbox: SocketInbox,
    payer: Arc<SessionIdentity>,
    told: Told,
}

/// A sent message: tag, slot, sequence and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    tag: Tag,
    slot: u16,
    sequence: u32,
    kind: u8,
}

/// A sent message of the dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnKind {
    Write { fid: u32, flags: u32 },
    Donate { fid: u32, oldtag: Tag },
}

const FLUSH: u8 = 108;

impl Bench {
    fn new(slots: u16) -> Bench {
        let mut channel = LinkChannel::new(Arc::default());
        channel.restart(slots, 1, None);
        let (ours, peer) = UnixStream::pair().unwrap();
        channel.up(Arc::new(ours.into()), clock::now());
        let payer = SessionIdentity::known(1, 100, 1 << 20);
        Bench { channel, peer, inbox: SocketInbox::new(4096), payer, told: Told::default() }
    }

    fn call(&self, number: u32, once: bool) -> ServerCall {
        let mut ask = CallSpec::new(HandleList::NONE, Request::Clunk { fid: Fid(number) });
        ask.needs.once = once;
        let told = self.told.clone();
        let waiter = Some(CallWaiter { request: request(number), thread: number });
        ServerCall::new(self.payer.clone(), ask, waiter, move |answer| {
            told.lock().unwrap().push((number, answer.map(|_| ())));
        })
    }

    fn push(&mut self, number: u32, once: bool) {
        let call = self.call(number, once);
        self.channel.state.push(call);
    }

    /// Begins what may begin and gives what was sent.
    fn turn(&mut self) -> Vec<Sent> {
        self.turn_at(clock::now())
    }

    fn turn_at(&mut self, now: Time) -> Vec<Sent> {
        assert!(self.channel.begin(now).is_empty());
        self.channel.send().unwrap();
        self.inbox.fill(self.peer.as_fd()).unwrap();
        let mut sent = Vec::new();
        while let Some(frame) = self.inbox.next().unwrap() {
            let (tag, header, request) = decode_request(frame).unwrap();
            let RequestHeader { reply_slot: slot, sequence, .. } = header;
            let kind = match request {
                AnyRequest::Base(plain) => plain.kind(),
                AnyRequest::Ext(own) => own.kind(),
            };
            sent.push(Sent { tag, slot, sequence, kind });
        }
        sent
    }

    /// Returns the sent messages of the dialect: tag, identity and the checked part of the body.
    fn frames(&mut self) -> Vec<(Tag, u32, OwnKind)> {
        assert!(self.channel.begin(clock::now()).is_empty());
        self.channel.send().unwrap();
        self.inbox.fill(self.peer.as_fd()).unwrap();
        let mut sent = Vec::new();
        while let Some(frame) = self.inbox.next().unwrap() {
            let (tag, header, request) = decode_request(frame).unwrap();
            let kind = match request {
                AnyRequest::Ext(ExtRequest::Write { fid, flags, .. }) => {
                    OwnKind::Write { fid: fid.0, flags }
                }
                AnyRequest::Ext(ExtRequest::Donate { fid, oldtag }) => {
                    OwnKind::Donate { fid: fid.0, oldtag }
                }
                other => panic!("{other:?}"),
            };
            sent.push((tag, header.identity, kind));
        }
        sent
    }

    fn reply<'a>(&mut self, tag: Tag, reply: impl Into<AnyReply<'a>>) {
        let news = self.channel.received(tag, reply.into()).map_err(|why| why.to_string());
        if let ChannelNews::Done { done, answer, .. } = news.unwrap() {
            done(answer);
        }
    }

    fn lose(&mut self) {
        for done in self.channel.disconnect(clock::now()) {
            done(Err(Errno::INTR));
        }
    }

    /// Another connection.
    fn connect(&mut self) {
        let (ours, peer) = UnixStream::pair().unwrap();
        self.channel.up(Arc::new(ours.into()), clock::now());
        (self.peer, self.inbox) = (peer, SocketInbox::new(4096));
    }

    fn told(&self) -> Vec<(u32, Result<(), Errno>)> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn interrupt(&mut self, number: u32) -> bool {
        match self.channel.interrupt(request(number), clock::now()) {
            InterruptOutcome::NotHere => false,
            InterruptOutcome::Flushing => true,
            InterruptOutcome::Abandoned(done) => {
                done(Err(Errno::INTR));
                true
            }
        }
    }
}

fn request(number: u32) -> FuseRequestId {
    FuseRequestId(number.into())
}

#[test]
fn a_call_is_answered_once_and_its_tag_and_slot_are_free_again() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, true);
    let first = bench.turn();
    assert_eq!(first.len(), 1, "the second needs the slot");
    assert_eq!((first[0].slot, first[0].sequence), (0, 1));
    bench.reply(first[0].tag, Reply::Clunk);
    let second = bench.turn();
    assert_eq!((second[0].slot, second[0].sequence), (0, 2));
    bench.reply(second[0].tag, Reply::Error { ecode: 2 });
    assert_eq!(bench.told(), [(1, Ok(())), (2, Err(Errno::NOENT))]);
    assert!(bench.channel.state.is_idle());
    assert!(bench.channel.received(Tag(0), Reply::Clunk.into()).is_err(), "nobody asked");
}

#[test]
fn a_session_that_goes_on_is_sent_the_same_once_more() {
    let mut bench = Bench::new(2);
    bench.push(1, true);
    bench.push(2, false);
    let before = bench.turn();
    bench.lose();
    bench.push(3, false);
    assert_eq!(bench.channel.begin(clock::now()).len(), 0);
    bench.channel.resume();
    bench.connect();
    let after = bench.turn();
    assert_eq!(after[..2], before[..], "the same tags, slots and sequences in the same order");
    assert_eq!(after.len(), 3, "and then what came meanwhile");
}

#[test]
fn without_a_connection_an_interrupt_is_answered_at_once_but_the_slot_goes_on_counting() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let before = bench.turn();
    bench.lose();
    assert!(bench.interrupt(1));
    assert_eq!(bench.told(), [(1, Err(Errno::INTR))]);
    bench.channel.resume();
    bench.connect();
    let after = bench.turn();
    assert_eq!((after[0], after[1].kind), (before[0], FLUSH), "sent once more, and flushed");
    bench.reply(after[1].tag, Reply::Flush);
    bench.push(2, true);
    assert_eq!(bench.turn()[0].sequence, 2);
    assert_eq!(bench.told(), [], "no reply comes twice");
}

#[test]
fn writes_that_somebody_waits_for_go_in_his_lane_begun_or_not() {
    let mut bench = Bench::new(2);
    let write = |bench: &Bench, number: u32| {
        let mut call = bench.call(number, false);
        let message = ExtRequest::Write { fid: Fid(number), offset: 0, flags: 0, data: b"data" };
        call.spec = CallSpec::new(HandleList::NONE, message).with_bytes(4);
        call
    };
    // The writer's window has room for one.
    bench.payer.set_window(1, 1 << 20);
    let (first, second) = (write(&bench, 1), write(&bench, 2));
    bench.channel.state.push(first);
    bench.channel.state.push(second);
    let sent = bench.frames();
    assert_eq!(sent.len(), 1);
    let (tag, identity, body) = &sent[0];
    assert_eq!((*identity, body), (1, &OwnKind::Write { fid: 1, flags: 0 }));
    let donor = SessionIdentity::known(9, 100, 1 << 20);
    let unknown = SessionIdentity::known(8, 0, 0);
    unknown.refuse(Errno::PERM);
    assert!(!bench.channel.state.donate(|_| false, &donor), "for nothing that is here");
    bench.channel.state.donate(|_| true, &unknown);
    assert!(bench.frames().is_empty(), "whom the proxy does not know donates nothing");
    assert!(bench.channel.state.donate(|_| true, &donor));
    let sent = bench.frames();
    let bodies: Vec<_> = sent.iter().map(|(_, identity, body)| (*identity, body.clone())).collect();
    let donated = OwnKind::Donate { fid: 1, oldtag: *tag };
    let second = OwnKind::Write { fid: 2, flags: WRITE_DONATED };
    assert_eq!(bodies, [(9, donated), (9, second)], "the writer's window is its own no more");
    // A new session: both start again, in the queue of the waiting call.
    bench.lose();
    bench.channel.restart(2, 2, None);
    bench.connect();
    let again: Vec<_> =
        bench.frames().into_iter().map(|(_, identity, body)| (identity, body)).collect();
    let flags = WRITE_DONATED;
    let writes = [1, 2].map(|fid| (9, OwnKind::Write { fid, flags }));
    assert_eq!(again, writes);
    // Unless the proxy refuses him by now.
    bench.lose();
    bench.channel.restart(2, 3, None);
    donor.refuse(Errno::PERM);
    bench.connect();
    let again: Vec<_> =
        bench.frames().into_iter().map(|(_, identity, body)| (identity, body)).collect();
    assert_eq!(again, [(1, OwnKind::Write { fid: 1, flags: 0 })]);
}
