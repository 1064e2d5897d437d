//! Tests of a channel: its messages are decoded, and its replies are made up.

use super::*;
use crate::session::call::CallSpec;
use fuse::FuseRequestId;
use ninep::dialect::{
    AnyRequest, ExtRequest, HandleList, NOSLOT, RequestHeader, WRITE_DONATED, decode_request,
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

const CLUNK: u8 = 120;
const FLUSH: u8 = 108;

impl Bench {
    fn new(slots: u16) -> Bench {
        let mut channel = LinkChannel::new(Arc::default());
        channel.restart(slots, 1, None);
        let (ours, peer) = UnixStream::pair().unwrap();
        channel.up(Arc::new(ours.into()), Instant::now());
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
        self.channel.push(call);
    }

    /// Begins what may begin and gives what was sent.
    fn turn(&mut self) -> Vec<Sent> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&mut self, now: Instant) -> Vec<Sent> {
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
        assert!(self.channel.begin(Instant::now()).is_empty());
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
        for done in self.channel.disconnect(Instant::now()) {
            done(Err(Errno::INTR));
        }
    }

    /// Another connection.
    fn connect(&mut self) {
        let (ours, peer) = UnixStream::pair().unwrap();
        self.channel.up(Arc::new(ours.into()), Instant::now());
        (self.peer, self.inbox) = (peer, SocketInbox::new(4096));
    }

    fn told(&self) -> Vec<(u32, Result<(), Errno>)> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn interrupt(&mut self, number: u32) -> bool {
        match self.channel.interrupt(request(number), Instant::now()) {
            Interrupted::NotHere => false,
            Interrupted::Flushing => true,
            Interrupted::Abandoned(done) => {
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
    assert!(bench.channel.is_idle());
    assert!(bench.channel.received(Tag(0), Reply::Clunk.into()).is_err(), "nobody asked");
}

#[test]
fn an_interrupted_call_that_waits_is_given_up_at_once() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, true);
    bench.turn();
    assert!(bench.interrupt(2));
    assert_eq!(bench.told(), [(2, Err(Errno::INTR))]);
    assert!(!bench.interrupt(2), "it is gone");
    assert!(!bench.interrupt(7), "there never was one");
}

#[test]
fn an_interrupted_call_ends_when_its_flush_is_answered() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0];
    assert!(bench.interrupt(1) && bench.interrupt(1));
    let sent = bench.turn();
    assert_eq!(sent.iter().map(|sent| sent.kind).collect::<Vec<_>>(), [FLUSH], "one, not two");
    assert_eq!(bench.told(), []);
    bench.reply(sent[0].tag, Reply::Flush);
    assert_eq!(bench.told(), [(1, Err(Errno::INTR))]);
    bench.push(2, true);
    let next = bench.turn()[0];
    assert_eq!((next.slot, next.sequence), (call.slot, 2), "the slot is free");
}

#[test]
fn a_reply_before_the_flushs_counts_and_the_tag_is_kept_until_then() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0];
    bench.interrupt(1);
    let flush = bench.turn()[0];
    bench.reply(call.tag, Reply::Clunk);
    assert_eq!(bench.told(), [(1, Ok(()))]);
    bench.push(2, true);
    bench.payer = SessionIdentity::known(2, 100, 1 << 20);
    bench.push(3, false);
    let sent = bench.turn();
    assert_eq!(sent.len(), 1, "the slot is not free yet");
    assert!(sent[0].slot == NOSLOT && sent[0].tag != call.tag, "nor is the tag");
    bench.reply(flush.tag, Reply::Flush);
    assert_eq!(bench.turn()[0].sequence, 2);
}

#[test]
fn a_session_that_goes_on_is_sent_the_same_once_more() {
    let mut bench = Bench::new(2);
    bench.push(1, true);
    bench.push(2, false);
    let before = bench.turn();
    bench.lose();
    bench.push(3, false);
    assert_eq!(bench.channel.begin(Instant::now()).len(), 0);
    bench.channel.resume();
    bench.connect();
    let after = bench.turn();
    assert_eq!(after[..2], before[..], "the same tags, slots and sequences in the same order");
    assert_eq!(after.len(), 3, "and then what came meanwhile");
}

#[test]
fn a_new_session_is_asked_again_what_may_be_repeated_and_the_rest_is_unsettled() {
    let mut bench = Bench::new(2);
    bench.push(1, false);
    bench.push(2, true);
    bench.push(3, false);
    bench.turn();
    bench.push(4, false);
    bench.interrupt(3);
    bench.turn();
    bench.lose();
    assert_eq!(
        bench.told(),
        [(3, Err(Errno::INTR))],
        "nobody waits for a flush without a connection"
    );
    for done in bench.channel.restart(2, 2, None) {
        done(Err(Errno::INTR));
    }
    bench.connect();
    let unsettled: Vec<_> =
        bench.channel.in_doubt.iter().map(|call| call.is_for(request(2))).collect();
    assert_eq!(unsettled, [true]);
    let sent = bench.turn();
    assert_eq!(sent.iter().map(|sent| sent.kind).collect::<Vec<_>>(), [CLUNK, CLUNK]);
    for sent in sent {
        bench.reply(sent.tag, Reply::Clunk);
    }
    assert_eq!(bench.told(), [(1, Ok(())), (4, Ok(()))]);
    let call = bench.channel.in_doubt.pop().unwrap();
    bench.channel.requeue(call);
    assert_eq!(bench.turn()[0].sequence, 1, "the first of the new session's slot");
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
fn silence_is_answered_by_a_ping_and_then_by_giving_the_connection_up() {
    let mut bench = Bench::new(1);
    let start = Instant::now();
    bench.channel.note_received(start);
    bench.channel.tick(false, start + PING_AFTER * 3).unwrap();
    assert_eq!(bench.turn(), [], "nothing is in flight");
    bench.push(1, false);
    bench.turn();
    bench.channel.tick(false, start + PING_AFTER / 2).unwrap();
    assert_eq!(bench.turn(), []);
    let pinged = start + PING_AFTER;
    bench.channel.tick(false, pinged).unwrap();
    assert_eq!(bench.turn().len(), 1);
    bench.channel.tick(false, pinged + PING_PATIENCE / 2).unwrap();
    assert!(bench.channel.tick(false, pinged + PING_PATIENCE).is_err());
    bench.channel.note_received(pinged + PING_PATIENCE / 2);
    assert!(bench.channel.tick(false, pinged + PING_PATIENCE).is_ok(), "something came");
}

#[test]
fn while_there_are_locks_it_is_known_when_the_session_was_there_last() {
    let mut bench = Bench::new(1);
    let start = Instant::now();
    let after = |times| start + PING_AFTER * times;
    // However late an answer is found in the socket.
    bench.push(1, false);
    let call = bench.turn_at(after(1))[0];
    bench.reply(call.tag, Reply::Clunk);
    bench.channel.note_received(after(9));
    assert_eq!(bench.channel.renewed(), after(1));
    bench.channel.tick(false, after(9)).unwrap();
    assert_eq!(bench.turn(), [], "nobody has locks");
    bench.channel.tick(true, after(9)).unwrap();
    let ping = bench.turn()[0];
    bench.channel.tick(true, after(9) + PING_AFTER / 2).unwrap();
    assert_eq!(bench.turn(), [], "one at a time");
    bench.reply(ping.tag, ExtReply::Ping);
    bench.channel.note_received(after(18));
    assert_eq!(bench.channel.renewed(), after(9));
}

#[test]
fn a_flush_that_is_not_answered_is_waited_for_only_so_long() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0];
    bench.interrupt(1);
    bench.turn();
    let now = Instant::now();
    assert_eq!(bench.channel.overdue(now), []);
    let waiter = CallWaiter { request: request(1), thread: 1 };
    assert_eq!(bench.channel.overdue(now + FLUSH_PATIENCE * 2), [waiter]);
    let done = bench.channel.abandon(request(1)).unwrap();
    done(Err(Errno::INTR));
    assert_eq!(bench.channel.overdue(now + FLUSH_PATIENCE * 2), []);
    bench.reply(call.tag, Reply::Clunk);
    assert_eq!(bench.told(), [(1, Err(Errno::INTR))], "what comes then is nobody's");
}

#[test]
fn what_was_given_up_is_not_made_again_in_another_session() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, false);
    bench.turn();
    bench.push(3, false);
    bench.lose();
    for done in bench.channel.abandon_all(Instant::now()) {
        done(Err(Errno::TIMEDOUT));
    }
    let timed_out: Vec<_> = bench.told().into_iter().map(|(_, told)| told).collect();
    assert_eq!(timed_out, [Err(Errno::TIMEDOUT); 3]);
    bench.channel.restart(1, 2, None);
    bench.connect();
    assert_eq!(bench.turn(), []);
    assert!(bench.channel.in_doubt.is_empty() && bench.channel.is_idle());
}

#[test]
fn everybody_in_a_full_channel_is_looked_at_before_long() {
    let mut bench = Bench::new(4);
    (0..100).for_each(|number| bench.push(number, false));
    assert!(bench.channel.waiters_if_full().is_empty(), "their interrupts are read");
    (100..=WAITING_MAX as u32).for_each(|number| bench.push(number, false));
    let looks = WAITING_MAX / WAITERS_CHECKED_MAX + 1;
    let mut seen = vec![false; WAITING_MAX + 1];
    for waiter in (0..looks).flat_map(|_| bench.channel.waiters_if_full()) {
        seen[waiter.thread as usize] = true;
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn locks_are_left_to_those_who_had_them_when_a_session_is_begun_anew() {
    let mut bench = Bench::new(2);
    let lock = |bench: &mut Bench, number| {
        let mut call = bench.call(number, false);
        call.spec = call.spec.freely().locking();
        bench.channel.push(call);
    };
    lock(&mut bench, 1);
    assert_eq!(bench.turn().len(), 1, "nobody had any in a session before the first");
    bench.lose();
    let now = Instant::now();
    let from = now + Duration::from_secs(9);
    assert!(bench.channel.restart(2, 2, Some(from)).is_empty());
    bench.connect();
    lock(&mut bench, 2);
    bench.push(3, false);
    let almost = from - Duration::from_millis(1);
    assert_eq!(bench.turn_at(almost).len(), 1, "what takes no lock");
    assert!(bench.interrupt(2), "who waits for that can be killed");
    assert_eq!(bench.turn_at(from).len(), 1);
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
    bench.channel.push(first);
    bench.channel.push(second);
    let sent = bench.frames();
    assert_eq!(sent.len(), 1);
    let (tag, identity, body) = &sent[0];
    assert_eq!((*identity, body), (1, &OwnKind::Write { fid: 1, flags: 0 }));
    let donor = SessionIdentity::known(9, 100, 1 << 20);
    let unknown = SessionIdentity::known(8, 0, 0);
    unknown.refuse(Errno::PERM);
    assert!(!bench.channel.donate(|_| false, &donor), "for nothing that is here");
    bench.channel.donate(|_| true, &unknown);
    assert!(bench.frames().is_empty(), "whom the proxy does not know donates nothing");
    assert!(bench.channel.donate(|_| true, &donor));
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

#[test]
fn who_waits_for_a_write_that_was_answered_meanwhile_says_nothing() {
    let mut bench = Bench::new(2);
    let mut call = bench.call(1, false);
    let message = ExtRequest::Write { fid: Fid(1), offset: 0, flags: 0, data: b"data" };
    call.spec = CallSpec::new(HandleList::NONE, message);
    bench.channel.push(call);
    let tag = bench.turn()[0].tag;
    let donor = SessionIdentity::known(9, 100, 1 << 20);
    assert!(bench.channel.donate(|_| true, &donor));
    bench.reply(tag, Reply::Error { ecode: 5 });
    bench.push(2, false);
    let kinds: Vec<_> = bench.turn().iter().map(|sent| sent.kind).collect();
    assert_eq!(kinds, [CLUNK], "the tag is another's");
}
