//! Tests of the queues: who begins, in which order, and what is left to others.

use super::super::test_call::{TestCall, TestIdentity};
use super::*;
use std::rc::Rc;

const ROOM: ChannelRoom = ChannelRoom { calls: 1000, slots: 64 };

type Queues = CallQueues<TestCall>;

/// A call with a payload of 100 bytes in this direction.
fn moving(payer: &Rc<TestIdentity>, direction: Direction, number: u32) -> TestCall {
    TestCall { direction, ..call(payer, number) }
}

/// A call with a payload of 100 bytes.
fn call(payer: &Rc<TestIdentity>, number: u32) -> TestCall {
    TestCall {
        needs: CallNeeds { bytes: 100, ..CallNeeds::default() },
        ..TestCall::new(payer, number)
    }
}

fn next(lanes: &mut Queues) -> Option<u32> {
    lanes.next(ROOM).map(|call| call.unwrap().number)
}

#[test]
fn identities_take_turns_and_each_keeps_its_order() {
    let (first, second) = (TestIdentity::known(1, 9, 9999), TestIdentity::known(2, 9, 9999));
    let mut lanes = Queues::default();
    for number in 1..4 {
        lanes.push(call(&first, number));
    }
    lanes.push(call(&second, 11));
    lanes.push(call(&second, 12));
    let order: Vec<_> = std::iter::from_fn(|| next(&mut lanes)).collect();
    assert_eq!(order, [1, 11, 2, 12, 3]);
    assert_eq!(lanes.waiting(), (0, 0));
}

#[test]
fn a_full_window_holds_up_its_own_identity_only() {
    let (full, other) = (TestIdentity::known(1, 1, 9999), TestIdentity::known(2, 9, 150));
    let mut lanes = Queues::default();
    for number in 1..4 {
        lanes.push(call(&full, number));
        lanes.push(call(&other, 10 + number));
    }
    assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(1), Some(11)));
    assert_eq!(next(&mut lanes), None, "150 bytes have room for one of 100");
    lanes.ended(&call(&full, 1));
    assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(2), None));
    lanes.all_ended();
    let mut both = [next(&mut lanes), next(&mut lanes)];
    both.sort_unstable();
    assert_eq!((both, next(&mut lanes)), ([Some(3), Some(12)], None));
}

#[test]
fn a_full_window_of_one_direction_delays_no_other() {
    use Direction::{Metadata, Read, Write};
    for full in [Read, Write, Metadata] {
        let payer = TestIdentity::known(1, 3, 250);
        let mut lanes = Queues::default();
        (0..9).for_each(|_| lanes.push(moving(&payer, full, 1)));
        let begun = std::iter::from_fn(|| lanes.next(ROOM)).count();
        assert_eq!(begun, 2, "of the 250 bytes");
        for other in [Read, Write, Metadata].into_iter().filter(|other| *other != full) {
            lanes.push(moving(&payer, other, 2));
            let next = lanes.next(ROOM).unwrap().unwrap();
            assert_eq!(next.direction(), other, "behind {full:?}");
        }
        assert!(lanes.next(ROOM).is_none());
        lanes.ended(&moving(&payer, full, 1));
        assert_eq!(lanes.next(ROOM).unwrap().unwrap().direction, full);
        assert_eq!(lanes.waiting().0, 6);
    }
}

/// Begins all that may begin in a channel with this room, for one identity after the other: what
/// throttled jobs have taken they keep. Gives how many calls each has.
fn fill(payers: u32, once: bool, bytes: u64, mut left: ChannelRoom) -> Vec<usize> {
    let mut lanes = Queues::default();
    let mut fill_one = |number| {
        let payer = TestIdentity::known(number, 64, 4 << 20);
        for _ in 0..100 {
            let mut call = call(&payer, 1);
            (call.needs.once, call.needs.bytes) = (once, bytes);
            lanes.push(call);
        }
        let begun = std::iter::from_fn(|| {
            lanes.next(left)?.ok()?;
            left.calls -= 1;
            left.slots -= u32::from(once);
            Some(())
        });
        begun.count()
    };
    (0..payers).map(&mut fill_one).collect()
}

#[test]
fn throttled_jobs_leave_calls_and_slots_to_others() {
    let room = ChannelRoom { calls: 992, slots: 64 };
    let slots = fill(16, true, 0, room);
    assert_eq!(slots, [13, 11, 8, 7, 5, 4, 4, 3, 2, 2, 1, 1, 1, 1, 1, 0]);
    let calls = fill(30, false, 0, room);
    assert!(calls[..11].iter().all(|calls| *calls == 64), "the whole window: {calls:?}");
    assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
    let large = fill(17, false, 1 << 20, room);
    assert_eq!(large, [4, 4, 4, 4, 4, 4, 4, 4, 3, 2, 2, 2, 1, 1, 1, 1, 0]);
}

#[test]
fn what_gives_back_waits_for_no_window_and_what_needs_a_slot_waits_for_one() {
    let payer = TestIdentity::known(1, 1, 9999);
    let mut lanes = Queues::default();
    lanes.push(call(&payer, 1));
    lanes.push(call(&payer, 2));
    assert_eq!(next(&mut lanes), Some(1));
    let mut unlock = call(&payer, 3);
    unlock.needs.free = true;
    lanes.push(unlock);
    assert_eq!(next(&mut lanes), Some(3));
    let mut make = call(&TestIdentity::known(2, 9, 9999), 4);
    make.needs.once = true;
    lanes.push(make);
    assert!(lanes.next(ChannelRoom { slots: 0, ..ROOM }).is_none());
    assert_eq!(next(&mut lanes), Some(4));
}

#[test]
fn those_who_wait_for_locks_leave_room_for_those_who_give_them_back() {
    let payer = TestIdentity::known(1, 1, 9999);
    let mut lanes = Queues::default();
    let lock = |patient| {
        let mut lock = call(&payer, 7);
        (lock.needs.free, lock.needs.patient) = (true, patient);
        lock
    };
    (0..PATIENT_MAX + 1).for_each(|_| lanes.push(lock(true)));
    (0..PATIENT_MAX).for_each(|_| assert!(next(&mut lanes).is_some()));
    assert_eq!(next(&mut lanes), None);
    lanes.push(lock(false));
    assert!(next(&mut lanes).is_some(), "an unlock");
    lanes.ended(&lock(true));
    assert!(next(&mut lanes).is_some(), "the last one's turn");
}

#[test]
fn who_waits_is_looked_at_in_turn_and_round_again() {
    let (first, second) = (TestIdentity::known(1, 9, 9999), TestIdentity::known(2, 9, 9999));
    let mut lanes = Queues::default();
    let waiter = |call: &TestCall| Some(call.number);
    assert!(lanes.waiters(3, 2, waiter).is_empty());
    for number in 1..=5 {
        lanes.push(call(if number % 2 == 0 { &first } else { &second }, number));
    }
    let mut seen: Vec<_> =
        [0, 2, 4].iter().flat_map(|from| lanes.waiters(*from, 2, waiter)).collect();
    assert_eq!(seen.len(), 6);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

#[test]
fn who_was_refused_is_told_for_each_call() {
    let payer = TestIdentity::known(1, 9, 9999);
    let mut lanes = Queues::default();
    lanes.push(call(&payer, 1));
    lanes.push(call(&payer, 2));
    payer.refuse(1);
    for _ in 0..2 {
        let (_, error) = lanes.next(ROOM).unwrap().unwrap_err();
        assert_eq!(error, 1);
    }
    assert!(lanes.next(ROOM).is_none());
}

#[test]
fn a_lent_queue_is_used_until_its_owner_is_refused() {
    let (writer, donor) = (TestIdentity::known(1, 1, 9999), TestIdentity::known(2, 1, 9999));
    let mut lanes = Queues::default();
    (1..=3).for_each(|number| lanes.push(moving(&writer, Direction::Write, number)));
    assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(1), None), "the writer's window");
    assert!(lanes.donate(|call| call.number == 3, &donor));
    assert!(!lanes.donate(|call| call.number == 7, &donor), "no such call");
    donor.refuse(1);
    assert_eq!(next(&mut lanes), None, "it waits behind the writer's own");
    lanes.ended(&moving(&writer, Direction::Write, 1));
    assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(2), None));
    lanes.ended(&moving(&writer, Direction::Write, 2));
    assert_eq!(next(&mut lanes), Some(3));
}
