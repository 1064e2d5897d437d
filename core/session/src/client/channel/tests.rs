//! Tests of a channel: its replies are made up.

use super::super::test_call::{TestCall, TestIdentity};
use super::interrupts::WAITERS_CHECKED_MAX;
use super::*;
use crate::client::CallNeeds;
use model::Direction;
use ninep::Reply;
use ninep::dialect::{AnyReply, ExtReply, NOSLOT};
use std::rc::Rc;

mod renewals;

type Told = (u32, Result<(), u32>);

/// A sent message: its id, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    id: CallId,
    what: SentKind,
}

/// A sent call with its number and the identity that pays, or a message of the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SentKind {
    Call(u32, u32),
    Identity(u32),
    Flush(Tag),
    Donate(Tag, u32),
    Ping,
    Other,
}

struct Bench {
    channel: ClientChannel<TestCall>,
    payer: Rc<TestIdentity>,
    told: Vec<Told>,
    now: Time,
    /// Messages of [`ClientChannel::resume`].
    resent: Vec<Sent>,
}

impl FrameSink<TestCall> for Vec<Sent> {
    fn send_call(&mut self, call: &TestCall) {
        let (id, payer) = (call.id.expect("it was begun"), call.queue_identity());
        self.push(Sent { id, what: SentKind::Call(call.number, payer) });
    }

    fn send_control(&mut self, id: CallId, control: &ChannelControl<Rc<TestIdentity>>) {
        let what = match control {
            ChannelControl::Identity(identity) => SentKind::Identity(identity.number),
            ChannelControl::Flush(tag) => SentKind::Flush(*tag),
            ChannelControl::Donate(tag, _, donor) => SentKind::Donate(*tag, donor.number),
            ChannelControl::Ping(_) => SentKind::Ping,
            ChannelControl::Retire(_)
            | ChannelControl::Events
            | ChannelControl::Renew { .. }
            | ChannelControl::Return { .. }
            | ChannelControl::GiveBack(_) => SentKind::Other,
        };
        self.push(Sent { id, what });
    }
}

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

const WALL: Time = Time::from_nanos(1_700_000_000_000_000_000);

impl Bench {
    fn new(slots: u16) -> Bench {
        let now = at(100);
        let mut channel = ClientChannel::new(now);
        assert!(channel.restart(slots, 1, None).is_empty());
        channel.up(now);
        let payer = TestIdentity::known(1, 100, 1 << 20);
        Bench { channel, payer, told: Vec::new(), now, resent: Vec::new() }
    }

    fn call(&self, number: u32, once: bool) -> TestCall {
        let needs = CallNeeds { once, ..CallNeeds::default() };
        TestCall { needs, ..TestCall::new(&self.payer, number) }
    }

    fn push(&mut self, number: u32, once: bool) {
        let call = self.call(number, once);
        self.channel.push(call);
    }

    fn push_write(&mut self, number: u32) {
        let call = TestCall { direction: Direction::Write, ..self.call(number, false) };
        self.channel.push(call);
    }

    /// Begins what may begin and gives what was sent.
    fn turn(&mut self) -> Vec<Sent> {
        let mut sent = std::mem::take(&mut self.resent);
        let failed = self.channel.begin(&mut sent, || WALL, self.now);
        assert!(failed.is_empty(), "{failed:?}");
        sent
    }

    fn kinds(&mut self) -> Vec<SentKind> {
        self.turn().into_iter().map(|sent| sent.what).collect()
    }

    fn reply<'a>(&mut self, id: CallId, reply: impl Into<AnyReply<'a>>) {
        match self.channel.received(id.tag, reply.into()).unwrap() {
            ChannelEvent::Done { call, answer } => {
                if !call.is_detached {
                    self.told.push((call.number, answer.map(|_| ())));
                }
            }
            ChannelEvent::Unchanged => {}
            other => panic!("{other:?}"),
        }
    }

    fn lose(&mut self) {
        let Bench { channel, told, now, .. } = self;
        channel.disconnect(|call| detach(call, told, EINTR), *now);
        self.resent.clear();
    }

    fn restart(&mut self, slots: u16, locks_from: Option<Time>) {
        let epoch = self.channel.epoch() + 1;
        for call in self.channel.restart(slots, epoch, locks_from) {
            assert!(call.is_detached, "{call:?} was flushed before the connection was lost");
        }
        self.channel.up(self.now);
    }

    fn resume(&mut self) {
        self.channel.resume(&mut self.resent);
        self.channel.up(self.now);
    }

    fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    fn interrupt(&mut self, number: u32) -> bool {
        let Bench { channel, told, now, .. } = self;
        let is = |call: &TestCall| call.number == number && !call.is_detached;
        match channel.interrupt(is, |call| detach(call, told, EINTR), *now) {
            Interrupted::NotHere => false,
            Interrupted::Flushing | Interrupted::Detached => true,
            Interrupted::Removed(call) => {
                self.told.push((call.number, Err(EINTR)));
                true
            }
        }
    }
}

fn detach(call: &mut TestCall, told: &mut Vec<Told>, errno: u32) {
    if !std::mem::replace(&mut call.is_detached, true) {
        told.push((call.number, Err(errno)));
    }
}

const EINTR: u32 = 4;
const ETIMEDOUT: u32 = 110;

#[test]
fn a_call_is_answered_once_and_its_tag_and_slot_are_free_again() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, true);
    let first = bench.turn();
    assert_eq!(first.len(), 1, "the second needs the slot");
    assert_eq!((first[0].id.slot, first[0].id.sequence), (0, 1));
    bench.reply(first[0].id, Reply::Clunk);
    let second = bench.turn();
    assert_eq!((second[0].id.slot, second[0].id.sequence), (0, 2));
    bench.reply(second[0].id, Reply::Error { ecode: 2 });
    assert_eq!(bench.told(), [(1, Ok(())), (2, Err(2))]);
    assert!(bench.channel.is_idle());
    let stats = bench.channel.stats();
    assert_eq!((stats.ok, stats.errors, stats.connected), (1, 1, 1));
    let unasked = bench.channel.received(Tag(0), Reply::Clunk.into());
    assert_eq!(unasked.unwrap_err(), ChannelError::UnusedTag(Tag(0)));
}

#[test]
fn the_proxy_is_told_of_an_identity_before_its_first_call_and_once() {
    let mut bench = Bench::new(1);
    bench.payer = TestIdentity::known(7, 0, 1 << 20);
    bench.push(1, false);
    bench.push(2, false);
    let sent = bench.turn();
    assert_eq!(sent.iter().map(|sent| &sent.what).collect::<Vec<_>>(), [&SentKind::Identity(7)]);
    let reply = ExtReply::Identity { requests: 5, bytes: 6 };
    let event = bench.channel.received(sent[0].id.tag, reply.into()).unwrap();
    let ChannelEvent::Identity { identity, answer } = event else { panic!("{event:?}") };
    assert_eq!((identity.number, answer), (7, Ok(IdentityWindow { requests: 5, bytes: 6 })));
    bench.payer.set_requests(5);
    assert_eq!(bench.kinds(), [SentKind::Call(1, 7), SentKind::Call(2, 7)]);
}

#[test]
fn calls_of_a_refused_identity_fail_before_they_begin() {
    let mut bench = Bench::new(1);
    bench.push(1, false);
    bench.payer.refuse(13);
    let mut sent = Vec::new();
    let failed = bench.channel.begin(&mut sent, || WALL, bench.now);
    let failed: Vec<_> = failed.into_iter().map(|(call, errno)| (call.number, errno)).collect();
    assert_eq!((failed, sent), (vec![(1, 13)], vec![]));
}

#[test]
fn an_interrupted_call_that_waits_is_given_up_at_once() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, true);
    bench.turn();
    assert!(bench.interrupt(2));
    assert_eq!(bench.told(), [(2, Err(EINTR))]);
    assert!(!bench.interrupt(2), "it is gone");
    assert!(!bench.interrupt(7), "there never was one");
}

#[test]
fn an_interrupted_call_ends_when_its_flush_is_answered() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0].id;
    assert!(bench.interrupt(1) && bench.interrupt(1));
    let sent = bench.turn();
    assert_eq!(sent.len(), 1, "one flush, not two");
    assert_eq!(sent[0].what, SentKind::Flush(call.tag));
    assert_eq!(bench.told(), []);
    bench.reply(sent[0].id, Reply::Flush);
    assert_eq!(bench.told(), [(1, Err(EINTR))]);
    bench.push(2, true);
    let next = bench.turn()[0].id;
    assert_eq!((next.slot, next.sequence), (call.slot, 2), "the slot is free");
}

#[test]
fn a_reply_before_the_flushs_counts_and_the_tag_is_kept_until_then() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0].id;
    bench.interrupt(1);
    let flush = bench.turn()[0].id;
    bench.reply(call, Reply::Clunk);
    assert_eq!(bench.told(), [(1, Ok(()))]);
    bench.push(2, true);
    bench.payer = TestIdentity::known(2, 100, 1 << 20);
    bench.push(3, false);
    let sent = bench.turn();
    assert_eq!(sent.len(), 1, "the slot is not free yet");
    assert!(sent[0].id.slot == NOSLOT && sent[0].id.tag != call.tag, "nor is the tag");
    bench.reply(flush, Reply::Flush);
    assert_eq!(bench.turn()[0].id.sequence, 2);
    let again = bench.channel.received(flush.tag, Reply::Flush.into());
    assert!(again.is_err(), "{again:?}");
}

#[test]
fn a_session_that_goes_on_is_sent_the_same_once_more() {
    let mut bench = Bench::new(2);
    bench.push(1, true);
    bench.push(2, false);
    let before = bench.turn();
    bench.lose();
    bench.push(3, false);
    assert_eq!(bench.turn(), [], "there is no connection");
    bench.resume();
    let after = bench.turn();
    assert_eq!(after[..2], before[..], "the same tags, slots and sequences in the same order");
    assert_eq!(after.len(), 3, "and then what came meanwhile");
}

#[test]
fn a_new_session_is_asked_again_what_may_be_repeated_and_the_rest_is_in_doubt() {
    let mut bench = Bench::new(2);
    bench.push(1, false);
    bench.push(2, true);
    bench.push(3, false);
    bench.turn();
    bench.push(4, false);
    bench.interrupt(3);
    bench.turn();
    bench.lose();
    assert_eq!(bench.told(), [(3, Err(EINTR))], "nobody waits for a flush without a connection");
    bench.restart(2, None);
    let sent = bench.turn();
    let kinds: Vec<_> = sent.iter().map(|sent| sent.what.clone()).collect();
    assert_eq!(kinds, [SentKind::Call(1, 1), SentKind::Call(4, 1)]);
    for sent in sent {
        bench.reply(sent.id, Reply::Clunk);
    }
    assert_eq!(bench.told(), [(1, Ok(())), (4, Ok(()))]);
    let call = bench.channel.pop_in_doubt().expect("one call needs a slot");
    assert_eq!((call.number, call.since), (2, Some(WALL)));
    assert!(bench.channel.pop_in_doubt().is_none());
    bench.channel.push_in_doubt(call);
    let call = bench.channel.pop_in_doubt().unwrap();
    bench.channel.requeue(call);
    assert_eq!(bench.turn()[0].id.sequence, 1, "the first of the new session's slot");
}

#[test]
fn without_a_connection_an_interrupt_is_answered_at_once_but_the_slot_goes_on_counting() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let before = bench.turn();
    bench.lose();
    assert!(bench.interrupt(1));
    assert_eq!(bench.told(), [(1, Err(EINTR))]);
    bench.resume();
    let after = bench.turn();
    assert_eq!(after[0], before[0], "sent once more,");
    assert_eq!(after[1].what, SentKind::Flush(before[0].id.tag), "and flushed");
    bench.reply(after[1].id, Reply::Flush);
    bench.push(2, true);
    assert_eq!(bench.turn()[0].id.sequence, 2);
    assert_eq!(bench.told(), [], "no reply comes twice");
}

#[test]
fn silence_is_answered_by_a_ping_and_then_by_giving_the_connection_up() {
    let mut bench = Bench::new(1);
    let start = bench.now;
    bench.channel.tick(false, start + Nanos::from_secs(15)).unwrap();
    assert_eq!(bench.turn(), [], "nothing is in flight");
    bench.push(1, false);
    bench.turn();
    bench.channel.tick(false, start + Nanos::from_secs(4)).unwrap();
    assert_eq!(bench.turn(), []);
    let pinged = start + PING_AFTER;
    bench.channel.tick(false, pinged).unwrap();
    assert_eq!(bench.kinds(), [SentKind::Ping]);
    bench.channel.tick(false, pinged + Nanos::from_secs(5)).unwrap();
    let silent = bench.channel.tick(false, pinged + PING_PATIENCE);
    assert_eq!(silent, Err(ChannelError::Silent(Nanos::from_secs(15))));
    bench.channel.note_received(pinged + Nanos::from_secs(5));
    assert!(bench.channel.tick(false, pinged + PING_PATIENCE).is_ok(), "something came");
}

#[test]
fn while_there_are_locks_it_is_known_when_the_session_was_there_last() {
    let mut bench = Bench::new(1);
    let start = bench.now;
    let after = |seconds| start + Nanos::from_secs(seconds);
    // However late an answer is found in the socket.
    bench.push(1, false);
    bench.now = after(5);
    let call = bench.turn()[0].id;
    bench.reply(call, Reply::Clunk);
    bench.channel.note_received(after(45));
    assert_eq!(bench.channel.renewed(), after(5));
    bench.channel.tick(false, after(45)).unwrap();
    assert_eq!(bench.turn(), [], "nobody has locks");
    bench.channel.tick(true, after(45)).unwrap();
    let ping = bench.turn()[0].id;
    bench.channel.tick(true, after(47)).unwrap();
    assert_eq!(bench.turn(), [], "one at a time");
    bench.reply(ping, ExtReply::Ping);
    bench.channel.note_received(after(90));
    assert_eq!(bench.channel.renewed(), after(45));
}

#[test]
fn a_ping_that_a_lost_connection_owes_is_not_sent_over_the_next() {
    let mut bench = Bench::new(1);
    bench.channel.tick(true, bench.now + PING_AFTER).unwrap();
    assert_eq!(bench.kinds(), [SentKind::Ping]);
    bench.lose();
    bench.resume();
    assert_eq!(bench.turn(), []);
    assert!(bench.channel.is_idle());
}

#[test]
fn a_flush_that_is_not_answered_is_waited_for_only_so_long() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    let call = bench.turn()[0].id;
    bench.interrupt(1);
    bench.turn();
    let patience = Nanos::from_secs(1);
    let waiter = |call: &TestCall| (!call.is_detached).then_some(call.number);
    let later = bench.now + Nanos::from_secs(2);
    assert_eq!(bench.channel.overdue(patience, waiter, bench.now), []);
    assert_eq!(bench.channel.overdue(patience, waiter, later), [1]);
    let found = bench.channel.in_flight_mut(|call| call.number == 1).unwrap();
    found.is_detached = true;
    assert_eq!(bench.channel.overdue(patience, waiter, later), []);
    bench.reply(call, Reply::Clunk);
    assert_eq!(bench.told(), [], "what comes then is nobody's");
}

#[test]
fn what_was_given_up_is_not_made_again_in_another_session() {
    let mut bench = Bench::new(1);
    bench.push(1, true);
    bench.push(2, false);
    bench.turn();
    bench.push(3, false);
    bench.lose();
    let Bench { channel, told, now, .. } = &mut bench;
    let waiting = channel.abandon_all(|call| detach(call, told, ETIMEDOUT), *now);
    assert_eq!(waiting.into_iter().map(|call| call.number).collect::<Vec<_>>(), [3]);
    assert_eq!(bench.told(), [(1, Err(ETIMEDOUT)), (2, Err(ETIMEDOUT))]);
    bench.restart(1, None);
    assert_eq!(bench.turn(), []);
    assert!(bench.channel.pop_in_doubt().is_none() && bench.channel.is_idle());
}

#[test]
fn everybody_in_a_full_channel_is_looked_at_before_long() {
    let mut bench = Bench::new(4);
    let waiter = |call: &TestCall| Some(call.number);
    (0..100).for_each(|number| bench.push(number, false));
    assert!(bench.channel.waiters_if_full(waiter).is_empty(), "their interrupts are read");
    (100..=WAITING_MAX as u32).for_each(|number| bench.push(number, false));
    let looks = WAITING_MAX / WAITERS_CHECKED_MAX + 1;
    let mut seen = vec![false; WAITING_MAX + 1];
    for number in (0..looks).flat_map(|_| bench.channel.waiters_if_full(waiter)) {
        seen[number as usize] = true;
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn locks_are_left_to_those_who_had_them_when_a_session_is_begun_anew() {
    let mut bench = Bench::new(2);
    let lock = |bench: &mut Bench, number| {
        let mut call = bench.call(number, false);
        (call.needs.free, call.needs.takes_lock) = (true, true);
        bench.channel.push(call);
    };
    lock(&mut bench, 1);
    assert_eq!(bench.turn().len(), 1, "nobody had any in a session before the first");
    bench.lose();
    let from = bench.now + Nanos::from_secs(9);
    bench.restart(2, Some(from));
    lock(&mut bench, 2);
    bench.push(3, false);
    bench.now = from.before(Nanos::new(1));
    assert_eq!(bench.kinds(), [SentKind::Call(3, 1)], "what takes no lock");
    assert_eq!(bench.channel.next_tick(), Some(TICK));
    assert!(bench.interrupt(2), "who waits for that can be killed");
    bench.now = from;
    assert_eq!(bench.kinds(), [SentKind::Call(1, 1)]);
}

#[test]
fn writes_that_somebody_waits_for_go_in_his_lane_begun_or_not() {
    let mut bench = Bench::new(2);
    // The writer's window has room for one.
    bench.payer.set_requests(1);
    bench.push_write(1);
    bench.push_write(2);
    let sent = bench.turn();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].what, SentKind::Call(1, 1));
    let donor = TestIdentity::known(9, 100, 1 << 20);
    assert!(!bench.channel.donate(|_| false, &donor), "for nothing that is here");
    assert!(bench.channel.donate(|_| true, &donor));
    let donate = SentKind::Donate(sent[0].id.tag, 9);
    assert_eq!(
        bench.kinds(),
        [donate, SentKind::Call(2, 9)],
        "the writer's window is its own no more"
    );
    // A new session: both start again, in the queue of the waiting call.
    bench.lose();
    bench.restart(2, None);
    assert_eq!(bench.kinds(), [SentKind::Call(1, 9), SentKind::Call(2, 9)]);
    // Unless the proxy refuses him by now.
    bench.lose();
    bench.restart(2, None);
    donor.refuse(1);
    assert_eq!(bench.kinds(), [SentKind::Call(1, 1)]);
}

#[test]
fn who_waits_for_a_write_that_was_answered_meanwhile_says_nothing() {
    let mut bench = Bench::new(2);
    bench.push_write(1);
    let id = bench.turn()[0].id;
    let donor = TestIdentity::known(9, 100, 1 << 20);
    assert!(bench.channel.donate(|_| true, &donor));
    bench.reply(id, Reply::Error { ecode: 5 });
    bench.push(2, false);
    assert_eq!(bench.kinds(), [SentKind::Call(2, 1)], "the tag is another's");
}
