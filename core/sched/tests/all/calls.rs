//! The contract of each public call, one request at a time under simulated time.

use std::sync::Arc;

use crate::server::{T, UNIT_BYTES, limit, ms, ops, rule, rules, shared, target, who};
use model::{Amount, KeyValue, KindSet, Lane, Nanos, OpKind, PathSet, Time};
use rules::{KeyField, Limit, Match, Rule, RuleSet};
use sluice_sched::{Arrival, Dispatched, Dispatcher, RequestId, SubjectId};

const UNIT_NS: u64 = 10_000_000;

fn dispatcher(set: Arc<RuleSet>) -> Dispatcher {
    Dispatcher::new([target(4, UNIT_NS)], set)
}

fn limited(job: &str, rate: u64) -> Rule {
    let limits = vec![Limit { burst: Some(0), ..limit(ops(rate)) }];
    Rule { limits, ..rule(job, 1) }
}

/// Calls with the least ado, checking all invariants after each.
struct Desk {
    sched: Dispatcher,
    count: u64,
}

impl Desk {
    fn new(set: Arc<RuleSet>) -> Desk {
        Desk { sched: dispatcher(set), count: 0 }
    }

    fn subject(&mut self, job: &str) -> SubjectId {
        self.sched.subject(T, &who(job), PathSet::default())
    }

    /// Enqueues one unit request; its token is its number, from 1.
    fn put(&mut self, subject: SubjectId, kind: OpKind, lane: Lane, now: Time) -> RequestId {
        self.put_units(subject, kind, lane, 1, now)
    }

    fn put_units(
        &mut self,
        subject: SubjectId,
        kind: OpKind,
        lane: Lane,
        units: u64,
        now: Time,
    ) -> RequestId {
        self.count += 1;
        let bytes =
            if matches!(kind, OpKind::Read | OpKind::Write) { units * UNIT_BYTES } else { 0 };
        let amount = Amount::new(bytes, 1);
        let id =
            self.sched.enqueue(Arrival { subject, kind, amount, lane, token: self.count }, now);
        self.sched.check_invariants();
        id
    }

    fn poll(&mut self, now: Time) -> Option<Dispatched> {
        let next = self.sched.poll_dispatch(now);
        assert!(next.is_some() || !self.sched.has_work(), "nothing to do and has_work");
        self.sched.check_invariants();
        next
    }

    /// Tokens of all that may go now.
    fn drain(&mut self, now: Time) -> Vec<u64> {
        std::iter::from_fn(|| self.poll(now)).map(|d| d.token).collect()
    }

    fn complete(&mut self, id: RequestId, now: Time) {
        self.sched.complete(id, Amount::new(UNIT_BYTES, 1), now);
        self.sched.check_invariants();
    }
}

#[test]
fn a_request_holds_its_slots_until_it_completes() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    let a = desk.subject("a");
    for _ in 0..3 {
        desk.put_units(a, OpKind::Read, Lane::Device, 2, ms(0));
    }
    let first = desk.poll(ms(1)).expect("slots are free");
    assert_eq!((first.token, first.slots, first.queued), (1, 2, Nanos::from_millis(1)));
    assert_eq!(desk.drain(ms(1)), [2]);
    assert!(!desk.sched.has_work());
    assert_eq!(desk.sched.next_deadline(), None);
    desk.sched.complete(first.id, Amount::new(2 * UNIT_BYTES, 1), ms(2));
    assert!(desk.sched.has_work());
    assert_eq!(desk.drain(ms(2)), [3]);
    assert_eq!(desk.sched.queued(), 0);
}

#[test]
fn a_limit_names_the_time_to_come_back_and_nobody_wakes_in_vain() {
    let mut desk = Desk::new(rules(vec![limited("a", 3)], vec![]));
    let a = desk.subject("a");
    for _ in 0..3 {
        desk.put(a, OpKind::Read, Lane::Device, ms(0));
    }
    assert_eq!(desk.drain(ms(0)), [1]);
    assert_eq!(desk.sched.next_deadline(), Some(Time::from_nanos(333_333_334)));
    assert_eq!(desk.drain(Time::from_nanos(333_333_333)), []);
    assert_eq!(desk.drain(Time::from_nanos(333_333_334)), [2]);
}

#[test]
fn a_deadline_is_not_named_while_the_lane_has_no_slot() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    let first = desk.poll(ms(0)).expect("the limit allows one");
    for _ in 0..3 {
        desk.put(b, OpKind::Read, Lane::Device, ms(0));
    }
    assert_eq!(desk.drain(ms(0)).len(), 3);
    assert_eq!(desk.sched.next_deadline(), None);
    desk.complete(first.id, ms(10));
    assert_eq!(desk.sched.next_deadline(), Some(ms(1000)));
}

#[test]
fn a_short_read_is_charged_for_what_it_read() {
    let bytes = model::Rate::bytes_per_sec(UNIT_BYTES).expect("above zero");
    let a = Rule { limits: vec![Limit { burst: Some(0), ..limit(bytes) }], ..rule("a", 1) };
    let mut desk = Desk::new(rules(vec![a], vec![]));
    let a = desk.subject("a");
    desk.put_units(a, OpKind::Read, Lane::Device, 4, ms(0));
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    let first = desk.poll(ms(0)).expect("nothing is owed");
    assert_eq!(desk.sched.next_deadline(), None, "all four slots are held");
    desk.complete(first.id, ms(1));
    assert_eq!(desk.sched.next_deadline(), Some(ms(1000)), "one unit is owed, not four");
    let report = desk.sched.classes().next().expect("one class");
    if cfg!(feature = "observation") {
        assert_eq!((report.usage.read.get(), report.usage.cost.get()), (UNIT_BYTES, UNIT_NS));
    }
}

#[test]
fn a_cancelled_request_gives_back_what_it_paid_wherever_it_stood() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for _ in 0..4 {
        desk.put(b, OpKind::Read, Lane::Device, ms(0));
    }
    let running: Vec<RequestId> = std::iter::from_fn(|| desk.poll(ms(0))).map(|d| d.id).collect();
    // The first is ready and has paid, the second waits behind it, the third as well.
    let ids: Vec<RequestId> =
        (0..3).map(|_| desk.put(a, OpKind::Read, Lane::Device, ms(0))).collect();
    assert_eq!(desk.sched.cancel(ids[0], ms(0)), Some(5));
    desk.sched.check_invariants();
    assert_eq!(desk.sched.cancel(ids[2], ms(0)), Some(7));
    desk.complete(running[0], ms(1));
    // The first one's payment came back, so the second went without waiting a second.
    assert_eq!(desk.drain(ms(1)), [6]);
    assert_eq!(desk.sched.cancel(ids[1], ms(1)), None, "it runs");
    let fourth = desk.put(a, OpKind::Read, Lane::Device, ms(1));
    assert_eq!(desk.sched.cancel(fourth, ms(1)), Some(8), "it waited at the meter");
    desk.sched.check_invariants();
    assert_eq!(desk.sched.cancel(ids[0], ms(1)), None, "it is gone");
    assert_eq!(desk.sched.queued(), 0);
}

#[test]
fn a_miss_comes_back_first_in_the_device_lane_and_pays_its_meters_once() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let a = desk.subject("a");
    desk.put(a, OpKind::Read, Lane::Cached, ms(0));
    let hit = desk.poll(ms(0)).expect("the limit allows one");
    assert_eq!((hit.lane, hit.slots), (Lane::Cached, 1));
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    desk.sched.miss(hit.id, ms(5));
    desk.sched.check_invariants();
    let again = desk.poll(ms(6)).expect("it has paid");
    assert_eq!((again.id, again.token, again.lane), (hit.id, 1, Lane::Device));
    assert_eq!(again.queued, Nanos::from_millis(1));
    assert_eq!(desk.drain(ms(999)), []);
    assert_eq!(desk.drain(ms(1000)), [2]);
    desk.complete(again.id, ms(1000));
}

#[test]
fn shortfall_counts_from_when_a_class_began_to_wait_in_either_lane() {
    let promised = Rule { reservation: Some(ops(100)), ..rule("a", 1) };
    let mut desk = Desk::new(rules(vec![promised, rule("b", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for lane in [Lane::Cached, Lane::Device].repeat(4) {
        desk.put(b, OpKind::Read, lane, ms(0));
    }
    let running: Vec<Dispatched> = std::iter::from_fn(|| desk.poll(ms(0))).collect();
    desk.put(a, OpKind::Read, Lane::Cached, ms(0));
    desk.put(a, OpKind::Read, Lane::Device, ms(300));
    assert_eq!((running.len(), desk.drain(ms(300))), (8, vec![]), "both lanes are full");
    let cached = running.iter().find(|dispatched| dispatched.lane == Lane::Cached);
    desk.complete(cached.expect("four of them").id, ms(400));
    assert_eq!(desk.drain(ms(400)), [9]);
    // One request in 750 ms, though some always waited: R is at 10 ms, 240 ms behind its bound. The
    // head in the device lane has waited for 450 ms, which alone would be no shortfall.
    assert_eq!(desk.sched.reservation_shortfall_ppm(T, ms(750)), 240_000);
}

#[test]
fn shortfall_counts_from_when_a_class_began_to_wait_though_costs_change_meanwhile() {
    let promised = Rule { reservation: Some(ops(100)), ..rule("a", 1) };
    let mut desk = Desk::new(rules(vec![promised, rule("b", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for _ in 0..4 {
        desk.put(b, OpKind::Read, Lane::Device, ms(0));
    }
    assert_eq!(desk.drain(ms(0)).len(), 4, "the lane is full");
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    desk.sched.set_target(T, target(4, 2 * UNIT_NS), ms(400));
    assert_eq!(desk.drain(ms(400)), []);
    assert_eq!(desk.sched.reservation_shortfall_ppm(T, ms(750)), 250_000);
}

#[test]
fn miss_returns_its_reserved_turn_and_takes_it_at_the_device() {
    let promised = Rule { reservation: Some(ops(1)), ..rule("a", 1) };
    let mut desk = Desk::new(rules(vec![promised, rule("b", 1000)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for _ in 0..8 {
        desk.put(b, OpKind::Read, Lane::Device, ms(1000));
    }
    let running: Vec<Dispatched> = std::iter::from_fn(|| desk.poll(ms(1000))).collect();
    // R may lag by half a second and a request, so two go by it, and R is 2 s until they miss.
    let tries = [0, 0].map(|_| desk.put(a, OpKind::Read, Lane::Cached, ms(1000)));
    assert_eq!(desk.drain(ms(1000)), [9, 10]);
    for id in tries {
        desk.sched.miss(id, ms(1000));
        desk.sched.check_invariants();
    }
    // By weight b would have the next 1000 slots after a's first.
    for (done, next) in [(0, 9), (1, 10), (2, 5)] {
        desk.complete(running[done].id, ms(1001));
        assert_eq!(desk.drain(ms(1001)), [next]);
    }
    // The third goes by its share in the idle cached lane, and has to wait for R.
    let third = desk.put(a, OpKind::Read, Lane::Cached, ms(1002));
    assert_eq!(desk.drain(ms(1002)), [11]);
    desk.sched.miss(third, ms(1002));
    desk.complete(tries[0], ms(1999));
    assert_eq!(desk.drain(ms(1999)), [6]);
    desk.complete(tries[1], ms(2000));
    assert_eq!(desk.drain(ms(2000)), [11]);
}

#[test]
fn what_gives_something_back_is_never_delayed_only_charged() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for _ in 0..4 {
        desk.put(b, OpKind::Read, Lane::Device, ms(0));
    }
    assert_eq!(desk.drain(ms(0)).len(), 4);
    for _ in 0..3 {
        desk.put(a, OpKind::Clunk, Lane::Device, ms(0));
    }
    let clunk = desk.poll(ms(0)).expect("a clunk needs no slot");
    assert_eq!((clunk.token, clunk.slots), (5, 0));
    assert_eq!(desk.drain(ms(0)), [6, 7]);
    desk.complete(clunk.id, ms(0));
    // Each later operation pays for one of the three as well, at 1/s.
    for _ in 0..4 {
        desk.put(a, OpKind::Getattr, Lane::Cached, ms(0));
    }
    let times = [0, 2000, 4000, 6000];
    for (time, token) in times.into_iter().zip(8..) {
        assert_eq!(desk.sched.next_deadline(), Some(ms(time)));
        assert_eq!(desk.drain(ms(time)), [token]);
    }
}

#[test]
fn a_change_of_rules_acts_at_once_and_refills_nothing() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let a = desk.subject("a");
    for _ in 0..4 {
        desk.put(a, OpKind::Read, Lane::Device, ms(0));
    }
    let first = desk.poll(ms(0)).expect("the limit allows one");
    desk.sched.set_rules(rules(vec![limited("a", 1)], vec![]), ms(100));
    desk.sched.check_invariants();
    assert_eq!(desk.drain(ms(999)), [], "the same rules again are no refill");
    desk.sched.set_rules(rules(vec![limited("a", 10)], vec![]), ms(999));
    // 1 ms of debt at 1/s is a thousandth of a request: 0.1 ms at 10/s.
    assert_eq!(desk.sched.next_deadline(), Some(Time::from_nanos(999_100_000)));
    assert_eq!(desk.drain(Time::from_nanos(999_100_000)), [2]);
    desk.sched.set_rules(rules(vec![rule("a", 1)], vec![]), ms(1000));
    desk.sched.check_invariants();
    assert_eq!(desk.drain(ms(1000)), [3, 4]);
    desk.complete(first.id, ms(1001));
}

#[test]
fn waiting_requests_move_to_their_new_class_in_order_of_arrival() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    for subject in [a, b, a, b] {
        desk.put_units(subject, OpKind::Read, Lane::Device, 4, ms(0));
    }
    let first = desk.poll(ms(0)).expect("slots are free");
    desk.sched.set_rules(rules(vec![rule("b", 1000), rule("a", 1)], vec![]), ms(1));
    desk.sched.check_invariants();
    desk.complete(first.id, ms(2));
    let next = desk.poll(ms(2)).expect("slots are free");
    assert_eq!(next.token, 2);
    desk.complete(next.id, ms(3));
    let names: Vec<(String, u32)> =
        desk.sched.classes().map(|c| (c.rule, c.queued + c.running)).collect();
    assert_eq!(names, [("b".into(), 1), ("a".into(), 1), ("default".into(), 0)]);
}

#[test]
fn fewer_slots_take_effect_as_running_requests_end() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    let a = desk.subject("a");
    for _ in 0..6 {
        desk.put(a, OpKind::Read, Lane::Device, ms(0));
    }
    let running: Vec<RequestId> = std::iter::from_fn(|| desk.poll(ms(0))).map(|d| d.id).collect();
    desk.sched.set_target(T, target(2, UNIT_NS), ms(1));
    desk.sched.check_invariants();
    for (done, free) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        desk.complete(running[done], ms(2));
        assert_eq!(desk.drain(ms(2)).len(), free);
    }
}

#[test]
fn keys_beyond_the_class_bound_share_a_class_without_reservation() {
    let mut per_job = rule("jobs", 1);
    per_job.matcher = Match::any();
    per_job.per = vec![KeyField::Jobid];
    per_job.max_classes = Some(2);
    per_job.reservation = Some(ops(10));
    let mut desk = Desk::new(rules(vec![per_job], vec![]));
    for job in ["a", "b", "c", "d"] {
        let subject = desk.subject(job);
        desk.put(subject, OpKind::Getattr, Lane::Cached, ms(0));
    }
    let keys: Vec<Vec<KeyValue>> = desk.sched.classes().map(|class| class.key).collect();
    let job = |name| vec![KeyValue::Jobid(who(name).job)];
    assert_eq!(keys, [job("a"), job("b"), vec![]]);
    assert_eq!(desk.sched.classes().map(|c| c.queued).collect::<Vec<u32>>(), [1, 1, 2]);
}

#[test]
fn a_class_whose_job_is_gone_makes_room_for_the_next() {
    let mut per_job = rule("jobs", 1);
    per_job.matcher = Match::any();
    per_job.per = vec![KeyField::Jobid];
    per_job.max_classes = Some(1);
    let mut desk = Desk::new(rules(vec![per_job], vec![]));
    for (i, job) in ["a", "b", "c"].into_iter().enumerate() {
        let subject = desk.subject(job);
        desk.put(subject, OpKind::Getattr, Lane::Cached, ms(0));
        let id = desk.poll(ms(0)).expect("slots are free").id;
        desk.complete(id, ms(0));
        desk.sched.release_subject(subject);
        desk.sched.check_invariants();
        let keys: Vec<Vec<KeyValue>> = desk.sched.classes().map(|class| class.key).collect();
        assert_eq!(keys, [vec![KeyValue::Jobid(who(job).job)]], "round {i}");
    }
}

#[test]
fn a_class_rests_once_whoever_leaves_it_last() {
    let mut desk = Desk::new(rules(vec![rule("a", 1), rule("b", 1)], vec![]));
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    let ends = [a, b].map(|subject| desk.put(subject, OpKind::Read, Lane::Device, ms(0)));
    desk.drain(ms(0));
    let waits = desk.put(a, OpKind::Read, Lane::Device, ms(0));
    // Their jobs are gone while something of theirs runs or waits.
    desk.sched.release_subject(a);
    desk.sched.release_subject(b);
    let _ = desk.sched.cancel(waits, ms(1));
    for id in ends {
        desk.complete(id, ms(1));
    }
    let id = |desk: &Desk, rule: &str| desk.sched.classes().find(|c| c.rule == rule).unwrap().id;
    let before = ["a", "b"].map(|rule| id(&desk, rule));
    let (a, c) = (desk.subject("a"), desk.subject("c"));
    desk.put(c, OpKind::Read, Lane::Device, ms(2));
    desk.put(a, OpKind::Read, Lane::Device, ms(2));
    assert_eq!(["a", "b"].map(|rule| id(&desk, rule)), before);
    assert_eq!(desk.sched.classes().count(), 3);
}

#[test]
fn who_comes_back_finds_its_debt() {
    let mut desk = Desk::new(rules(vec![limited("a", 1)], vec![]));
    let a = desk.subject("a");
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    let id = desk.poll(ms(0)).expect("the limit allows one").id;
    desk.complete(id, ms(0));
    desk.sched.release_subject(a);
    let a = desk.subject("a");
    desk.put(a, OpKind::Read, Lane::Device, ms(1));
    assert_eq!(desk.sched.next_deadline(), Some(ms(1000)));
}

#[test]
fn one_meter_serves_both_lanes_by_turns() {
    let meters = vec![shared("m", "a", ops(10))];
    let mut desk = Desk::new(rules(vec![rule("a", 1)], meters));
    let a = desk.subject("a");
    for _ in 0..20 {
        desk.put(a, OpKind::Read, Lane::Cached, ms(0));
        desk.put(a, OpKind::Read, Lane::Device, ms(0));
    }
    let (mut lanes, mut time) = ([0; 2], ms(0));
    while time <= ms(1_900) {
        while let Some(next) = desk.poll(time) {
            lanes[next.lane as usize] += 1;
            desk.complete(next.id, time);
        }
        time = desk.sched.next_deadline().expect("the meter has waiters");
    }
    assert!(lanes[0] >= 9 && lanes[1] >= 9, "{lanes:?}");
}

#[test]
#[cfg(feature = "observation")]
fn figures_are_those_of_what_was_served() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    let a = desk.subject("a");
    desk.put_units(a, OpKind::Write, Lane::Device, 4, ms(0));
    desk.put(a, OpKind::Read, Lane::Device, ms(0));
    let first = desk.poll(ms(3)).expect("slots are free");
    let report = desk.sched.subjects().next().expect("one subject");
    assert_eq!((report.queued, report.running, report.slots), (1, 1, 4));
    desk.sched.complete(first.id, Amount::new(4 * UNIT_BYTES, 1), ms(10));
    let usage = desk.sched.subjects().next().expect("one subject").usage;
    assert_eq!((usage.written.get(), usage.read.get()), (4 * UNIT_BYTES, 0));
    assert_eq!(
        (usage.queue_time, usage.service_time),
        (Nanos::from_millis(3), Nanos::from_millis(7))
    );
    assert_eq!((usage.ops.get(), usage.cost.get(), usage.requests), (1, 4 * UNIT_NS, 1));
}

#[test]
fn a_rule_with_a_limit_by_direction_meters_each_direction() {
    let only = |kind| KindSet::NONE.with(kind);
    let of = |kind, rate| Limit { kinds: only(kind), rate: ops(rate), burst: Some(0) };
    let a = Rule { limits: vec![of(OpKind::Read, 1), of(OpKind::Write, 2)], ..rule("a", 1) };
    let mut desk = Desk::new(rules(vec![a], vec![]));
    let a = desk.subject("a");
    for kind in [OpKind::Read, OpKind::Write, OpKind::Read, OpKind::Write, OpKind::Getattr] {
        desk.put(a, kind, Lane::Cached, ms(0));
    }
    assert_eq!(desk.drain(ms(0)), [1, 2, 5]);
    assert_eq!(desk.drain(ms(500)), [4]);
    assert!(desk.sched.classes().next().expect("one class").throttled);
}

#[test]
fn nothing_grows_with_the_jobs_that_came_and_went() {
    let mut per_job = rule("jobs", 1);
    per_job.matcher = Match::any();
    per_job.per = vec![KeyField::Jobid];
    per_job.limits = vec![limit(ops(1_000_000))];
    let mut sched = dispatcher(rules(vec![per_job], vec![]));
    for i in 0..66_000 {
        let now = ms(i);
        let subject = sched.subject(T, &who(&format!("j{i}")), PathSet::default());
        let (kind, lane) = (OpKind::Getattr, Lane::Cached);
        sched.enqueue(Arrival { subject, kind, amount: Amount::new(0, 1), lane, token: i }, now);
        let id = sched.poll_dispatch(now).expect("slots are free").id;
        sched.complete(id, Amount::new(0, 1), now);
        sched.release_subject(subject);
    }
    sched.check_invariants();
    assert_eq!((sched.classes().count(), sched.subjects().count()), (65_536, 1_024));
}

#[test]
#[cfg(feature = "observation")]
fn what_all_were_served_outlives_who_was_served() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    for i in 0..1_100 {
        let who = desk.subject(&format!("j{i}"));
        for kind in [OpKind::Mkdir, OpKind::Read] {
            desk.put(who, kind, Lane::Device, ms(0));
            let next = desk.poll(ms(0)).expect("slots are free");
            desk.sched.complete(next.id, Amount::new(0, 2), ms(1));
        }
        desk.sched.release_subject(who);
    }
    let sched = &desk.sched;
    let (gone, gone_metadata) = sched.forgotten_usage(T);
    assert_eq!((gone.requests, gone_metadata.get()), (2 * 76, 2 * 76));
    let known = sched.sums(0..sched.subject_index_end());
    let (known, metadata) = known.fold((0, 0), |(requests, metadata), (_, _, _, usage, of)| {
        (requests + usage.requests, metadata + of.get())
    });
    assert_eq!((known, metadata), (2 * 1_024, 2 * 1_024));
}

#[test]
fn sums_come_a_few_at_a_time_and_each_once() {
    let mut desk = Desk::new(rules(vec![], vec![]));
    let subjects: Vec<_> = (0..10).map(|i| desk.subject(&format!("j{i}"))).collect();
    let sched = &desk.sched;
    let ids: Vec<_> =
        [0..3, 3..9, 9..100].into_iter().flat_map(|p| sched.sums(p)).map(|sums| sums.0).collect();
    assert_eq!(ids, subjects);
}
