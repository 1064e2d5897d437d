//! Random calls against slow, obvious references.
//!
//! A failure prints the least input that fails and keeps its seed, a `cc` line, in
//! `tests/all/props.proptest-regressions`; `cargo test -p sluice-sched --test all props` repeats it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::server::{
    T, UNIT_BYTES, World, grant, limit, ms, ops, rule, rules, shared, target, usage, who,
};
use model::{
    Amount, Grants, KindSet, Lane, Nanos, OpKind, PathSet, Rate, Scope, SectionKind, Share, Time,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rules::{
    DependencyKind, Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable,
    Limit, LimitMode, Rule, RuleDependency, RuleSet,
};
use sluice_sched::{Arrival, Dispatched, Dispatcher, RequestId, SubjectId, TargetParams};

const JOBS: [&str; 4] = ["a", "b", "c", "d"];
const KINDS: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Getattr, OpKind::Clunk];

#[derive(Clone, Debug)]
enum Call {
    Enqueue { job: usize, kind: usize, units: u64, cached: bool },
    Poll,
    Complete { which: usize, tenths: u64 },
    Miss { which: usize },
    Cancel { which: usize },
    Donate { which: usize, job: usize },
    Rules { which: usize },
    Slots { slots_max: u32 },
    Pass { micros: u64 },
    Leave { job: usize },
    Gone { job: usize, kind: usize },
    Elsewhere { job: usize, kind: usize, micros: u64 },
    Learn { latency: Option<u64> },
    Grant { job: usize, percent: u64, unlisted: u64, members: u32 },
    Uses,
    Row { id: u64, job: usize, grants: Option<(bool, bool, u64)> },
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => (0..4usize, 0..4usize, 1..12u64, any::<bool>())
            .prop_map(|(job, kind, units, cached)| Call::Enqueue { job, kind, units, cached }),
        8 => Just(Call::Poll),
        6 => (any::<usize>(), 0..12u64).prop_map(|(which, tenths)| Call::Complete { which, tenths }),
        2 => any::<usize>().prop_map(|which| Call::Miss { which }),
        3 => any::<usize>().prop_map(|which| Call::Cancel { which }),
        2 => (any::<usize>(), 0..4usize).prop_map(|(which, job)| Call::Donate { which, job }),
        1 => (0..6usize).prop_map(|which| Call::Rules { which }),
        1 => (1..9u32).prop_map(|slots_max| Call::Slots { slots_max }),
        4 => (0..40_000u64).prop_map(|micros| Call::Pass { micros }),
        1 => (0..4usize).prop_map(|job| Call::Leave { job }),
        2 => (0..4usize, 0..4usize).prop_map(|(job, kind)| Call::Gone { job, kind }),
        1 => (0..4usize, 0..4usize, 0..9_000u64)
            .prop_map(|(job, kind, micros)| Call::Elsewhere { job, kind, micros }),
        1 => prop::option::of(100..9_000u64).prop_map(|latency| Call::Learn { latency }),
        2 => (0..5usize, 0..110u64, prop::sample::select(&[0u64, 1, 50, 100]), 1..5u32).prop_map(
            |(job, percent, unlisted, members)| Call::Grant { job, percent, unlisted, members }
        ),
        1 => Just(Call::Uses),
        2 => (0..6u64, 0..5usize, prop::option::of((any::<bool>(), any::<bool>(), 1..400u64)))
            .prop_map(|(id, job, grants)| Call::Row { id, job, grants }),
    ]
}

/// Rule sets from none to one with everything at once.
fn rule_set(which: usize) -> Arc<RuleSet> {
    let bytes = |units: u64| Rate::bytes_per_sec(units * UNIT_BYTES).expect("above zero");
    let limits = |limits: Vec<Limit>, rule: Rule| Rule { limits, ..rule };
    match which {
        0 => rules(vec![], vec![]),
        1 => rules(
            vec![limits(vec![limit(ops(200))], rule("a", 3)), rule("b", 2)],
            vec![shared("m", "a b c", ops(300)), shared("n", "b c", bytes(700))],
        ),
        2 => rules(
            vec![
                Rule { reservation: Some(bytes(300)), ..rule("a", 1) },
                Rule { slots: Some(3), ..rule("b", 2) },
                Rule { reservation: Some(ops(100)), slots: Some(2), ..rule("c", 2) },
            ],
            vec![shared("m", "a b", ops(150))],
        ),
        3 => {
            let on =
                |rule: &str, kind| Some(RuleDependency { rule: rule.into(), kind, min: ops(5) });
            let total = DependencyKind::Remainder { total: ops(250) };
            let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(20) };
            let one = |rule: Rule, rate| limits(vec![limit(ops(rate))], rule);
            let follow = DependencyKind::Follow { part_ppm: 500_000 };
            rules(
                vec![
                    Rule { depends_on: on("b", total), ..one(rule("a", 3), 200) },
                    Rule { depends_on: on("c", gate), ..one(rule("b", 2), 150) },
                    Rule { depends_on: on("a", follow), ..one(rule("d", 1), 90) },
                    rule("c", 1),
                ],
                vec![shared("m", "a b c", ops(300))],
            )
        }
        4 => {
            let promise = |mode, rule: Rule, rate| Rule {
                limit_mode: mode,
                ..limits(vec![limit(ops(rate))], rule)
            };
            let parent = RuleDependency {
                rule: "b".into(),
                kind: DependencyKind::Follow { part_ppm: 700_000 },
                min: ops(5),
            };
            rules(
                vec![
                    Rule {
                        reserved_slots: Some(2),
                        depends_on: Some(parent),
                        ..promise(LimitMode::Realtime, rule("a", 2), 200)
                    },
                    Rule {
                        reserved_slots: Some(9),
                        ..promise(LimitMode::Spare, rule("b", 1), 150)
                    },
                    Rule {
                        min_local_service_ppm: Some(250_000),
                        ..promise(LimitMode::Spare, rule("c", 1), 50)
                    },
                ],
                vec![shared("m", "a b", ops(300))],
            )
        }
        _ => {
            let writes = Limit { kinds: KindSet::NONE.with(OpKind::Write), ..limit(bytes(90)) };
            let a = limits(vec![writes, limit(ops(80))], rule("a", 1));
            let (reservation, part) = (Some(bytes(40)), Some(1_000_000));
            let a = Rule { reservation, reservation_metadata_ppm: part, ..a };
            rules(vec![a], vec![shared("m", "*", ops(250))])
        }
    }
}

/// A row of a job, or of everybody, that reserves or limits.
fn row(job: usize, reserves: bool, in_bytes: bool, rate: u64) -> Entitlement {
    let job = JOBS.get(job).map(|job| who(job).job);
    let scope = EntitlementScope { job, ..EntitlementScope::default() };
    let rate = match in_bytes {
        true => Rate::bytes_per_sec(rate * UNIT_BYTES).expect("above zero"),
        false => ops(rate),
    };
    let grants = match reserves {
        true => Grantable::Reservation(rate),
        false => Grantable::Limit(rate, None),
    };
    let source = EntitlementSource::Operator;
    Entitlement::new(scope, grants, KindSet::ALL, source).expect("it has kinds")
}

/// The dispatcher beside a plain record of what should be where.
struct Book {
    sched: Dispatcher,
    now: Time,
    subjects: Vec<SubjectId>,
    waiting: BTreeMap<u64, RequestId>,
    running: Vec<Dispatched>,
    amounts: BTreeMap<u64, Amount>,
    count: u64,
    /// Since when each waits that may be delayed.
    since: BTreeMap<u64, Time>,
    /// How long those waited that do so no more, and how often one did.
    waited: (Nanos, u64),
    /// A change of rules takes more than one call.
    is_spread: bool,
    /// Rows changed: a branch at rest is forgotten once another one takes its key.
    forgets: bool,
}

impl Book {
    fn new() -> Book {
        let mut sched = Dispatcher::new([target(6, 1_000_000)], rule_set(0));
        let subjects =
            JOBS.iter().map(|job| sched.subject(T, &who(job), PathSet::default())).collect();
        Book {
            sched,
            now: ms(1),
            subjects,
            waiting: BTreeMap::new(),
            running: vec![],
            amounts: BTreeMap::new(),
            count: 0,
            since: BTreeMap::new(),
            waited: (Nanos::ZERO, 0),
            is_spread: false,
            forgets: false,
        }
    }

    /// The same with changes of rules that come in slices of so much work.
    fn with_slices(units: usize) -> Book {
        let mut book = Book { is_spread: true, ..Book::new() };
        book.sched.set_change_slice(units);
        book
    }

    fn apply(&mut self, call: &Call) {
        match *call {
            Call::Enqueue { job, kind, units, cached } => {
                self.enqueue(job, KINDS[kind], units, cached)
            }
            Call::Poll => {
                self.poll();
            }
            Call::Complete { which, tenths } => {
                if let Some(running) = self.pick(which) {
                    let asked = self.amounts[&running.token];
                    let served = Amount::new(asked.bytes.get() * tenths / 10, tenths.min(2));
                    self.sched.complete(running.id, served, self.now);
                }
            }
            Call::Miss { which } => {
                let cached: Vec<usize> = (0..self.running.len())
                    .filter(|i| self.running[*i].lane == Lane::Cached)
                    .collect();
                if !cached.is_empty() {
                    let missed = self.running.remove(cached[which % cached.len()]);
                    self.sched.miss(missed.id, self.now);
                    self.begin_to_wait(missed.token, missed.kind);
                    self.waiting.insert(missed.token, missed.id);
                }
            }
            Call::Cancel { which } => self.cancel(which),
            Call::Donate { which, job } => self.donate(which, job),
            Call::Rules { which } => self.sched.set_rules(rule_set(which), self.now),
            Call::Slots { slots_max } => {
                self.sched.set_target(T, target(slots_max, 1_000_000), self.now)
            }
            Call::Elsewhere { job, kind, micros } => {
                let cost = Nanos::from_micros(micros);
                self.sched.charge_remote_service(self.subjects[job], KINDS[kind], cost, self.now);
            }
            Call::Learn { latency } => {
                let latency = latency.map(Nanos::from_micros);
                let target = TargetParams { latency, recalibrate: true, ..target(8, 1_000_000) };
                self.sched.set_target(T, target, self.now);
            }
            Call::Grant { job, percent, unlisted, members } => {
                // The last is the meter of rule sets 1 to 4.
                let scope = match JOBS.get(job) {
                    Some(job) => Scope::rule(job, &[]),
                    None => Scope::meter("m", &[]),
                };
                // Now and then it is listed no longer.
                let part = (percent <= 100).then(|| Share::ratio(percent, 100));
                let listed = vec![(scope, part)];
                let unlisted = Share::ratio(unlisted, 100);
                grant(&mut self.sched, &Grants { proxies: members, unlisted, listed }, self.now);
            }
            Call::Uses => {
                for (scope, what) in usage(&mut self.sched, self.now) {
                    // Of a row also what runs and went by weight.
                    let is_row = scope.section == SectionKind::Entitlement;
                    assert!(is_row || what.waiting || what.used != Some(Share::ZERO), "{scope:?}");
                }
            }
            Call::Row { id, job, grants } => {
                let row =
                    grants.map(|(reserves, in_bytes, rate)| row(job, reserves, in_bytes, rate));
                self.forgets = true;
                let change = vec![(EntitlementId(id), row)];
                assert_eq!(self.sched.set_entitlements(change, self.now, self.now), 0);
            }
            Call::Pass { micros } => self.now = self.now + Nanos::from_micros(micros),
            Call::Gone { job, kind } => {
                // One of its own asks for one thing and leaves before that is done.
                let subject =
                    self.sched.subject(T, &who(&format!("{}9", JOBS[job])), PathSet::default());
                let kept = std::mem::replace(&mut self.subjects[job], subject);
                self.enqueue(job, KINDS[kind], 1, false);
                self.sched.release_subject(subject);
                self.subjects[job] = kept;
            }
            Call::Leave { job } => {
                self.sched.release_subject(self.subjects[job]);
                self.subjects[job] = self.sched.subject(T, &who(JOBS[job]), PathSet::default());
            }
        }
        self.sched.check_invariants();
        assert_eq!(self.sched.queued(), self.waiting.len());
        self.check_held();
    }

    fn begin_to_wait(&mut self, token: u64, kind: OpKind) {
        if !kind.never_delayed() {
            self.since.insert(token, self.now);
        }
    }

    fn end_to_wait(&mut self, token: u64) {
        if let Some(since) = self.since.remove(&token) {
            self.waited.0 += self.now.since(since);
            self.waited.1 += 1;
        }
    }

    /// All causes together are the time that requests waited, but for 100 µs a request.
    fn check_held(&self) {
        if cfg!(not(feature = "observation")) {
            return;
        }
        let waits = self.since.values().map(|since| self.now.since(*since).get());
        let waited = self.waited.0.get() + waits.sum::<u64>();
        let least = waited.saturating_sub(100_000 * (self.waited.1 + self.since.len() as u64));
        let held = self.sched.wait_reports(self.now, |_, _, _| true);
        let causes = held.iter().flat_map(|class| &class.causes);
        let least = if self.forgets { 0 } else { least };
        let told: u64 = causes.clone().map(|cause| cause.wait.get()).sum();
        assert!((least..=waited).contains(&told), "{told} ns told of {waited} ns waited");
        for cause in causes {
            assert!(
                cause.span <= cause.wait && cause.since <= cause.last && cause.last <= self.now
            );
        }
    }

    fn enqueue(&mut self, job: usize, kind: OpKind, units: u64, cached: bool) {
        self.count += 1;
        let bytes =
            if matches!(kind, OpKind::Read | OpKind::Write) { units * UNIT_BYTES } else { 0 };
        let (amount, token) = (Amount::new(bytes, 1), self.count);
        let lane = if cached { Lane::Cached } else { Lane::Device };
        let arrival = Arrival { subject: self.subjects[job], kind, amount, lane, token };
        let id = self.sched.enqueue(arrival, self.now);
        self.begin_to_wait(token, kind);
        self.waiting.insert(token, id);
        self.amounts.insert(token, amount);
    }

    fn poll(&mut self) -> bool {
        let Some(next) = self.sched.poll_dispatch(self.now) else {
            assert!(!self.sched.has_work());
            let is_over = self.sched.next_deadline().is_none_or(|time| time > self.now);
            assert!(is_over || self.is_spread);
            return false;
        };
        assert_eq!(
            self.waiting.remove(&next.token),
            Some(next.id),
            "dispatched twice or never queued"
        );
        self.end_to_wait(next.token);
        self.running.push(next);
        true
    }

    fn pick(&mut self, which: usize) -> Option<Dispatched> {
        let count = self.running.len();
        (count > 0).then(|| self.running.swap_remove(which % count))
    }

    fn pick_waiting(&self, which: usize) -> Option<(u64, RequestId)> {
        let at = which.checked_rem(self.waiting.len())?;
        self.waiting.iter().nth(at).map(|(token, id)| (*token, *id))
    }

    /// What waits goes on waiting, as one of the two.
    fn donate(&mut self, which: usize, job: usize) {
        let Some((token, id)) = self.pick_waiting(which) else { return };
        let to = self.subjects[job];
        let donated = self.sched.donate(id, to, &"file".into(), self.now).expect("it waits");
        assert_eq!(donated.token, token);
        if donated.id == id {
            return;
        }
        assert_eq!(donated.subject, to);
        assert_eq!(self.sched.donate(id, to, &"file".into(), self.now), None, "the old id is gone");
        self.waiting.insert(token, donated.id);
        if self.since.contains_key(&token) {
            self.end_to_wait(token);
            self.since.insert(token, self.now);
        }
    }

    fn cancel(&mut self, which: usize) {
        let Some((token, id)) = self.pick_waiting(which) else { return };
        self.waiting.remove(&token);
        self.end_to_wait(token);
        assert_eq!(self.sched.cancel(id, self.now), Some(token));
        assert_eq!(self.sched.cancel(id, self.now), None);
    }

    /// Ends the load: everything that waits must come out.
    fn finish(&mut self) {
        // A class that is granted nothing would come out in years.
        let all = JOBS.iter().map(|job| (Scope::rule(job, &[]), None));
        let listed = all.chain([(Scope::meter("m", &[]), None)]).collect();
        let whole = Grants { proxies: 1, unlisted: Share::WHOLE, listed };
        grant(&mut self.sched, &whole, self.now);
        loop {
            while self.poll() {}
            if let Some(done) = self.running.pop() {
                self.sched.complete(done.id, self.amounts[&done.token], self.now);
                continue;
            }
            match self.sched.next_deadline() {
                Some(time) => self.now = time,
                None => break,
            }
        }
        assert!(self.waiting.is_empty(), "{} requests never came out", self.waiting.len());
        self.sched.check_invariants();
        self.check_held();
        for (index, job) in self.subjects.iter().enumerate() {
            let report = self.sched.subjects().find(|s| s.id == *job).expect("it is referenced");
            assert_eq!((report.queued, report.running, report.slots), (0, 0, 0), "job {index}");
        }
    }
}

fn put(
    sched: &mut Dispatcher,
    subject: SubjectId,
    kind: OpKind,
    token: u64,
    now: Time,
) -> RequestId {
    let (amount, lane) = (Amount::new(UNIT_BYTES, 1), Lane::Device);
    sched.enqueue(Arrival { subject, kind, amount, lane, token }, now)
}

/// Start-time fair queueing with slots, written down naively: a list of requests in order
/// of arrival, tags in eighths of a nanosecond so that weights 1, 2, 4 and 8 divide them.
struct Naive {
    slots_max: u32,
    held: u32,
    v: u128,
    classes: Vec<NaiveClass>,
}

#[derive(Default)]
struct NaiveClass {
    weight: u128,
    /// Arrival number, cost, slots.
    queue: Vec<(u64, u128, u32)>,
    start: u128,
    finish: u128,
    overtaken: u32,
}

impl Naive {
    fn enqueue(&mut self, class: usize, number: u64, cost: u128, slots: u32) {
        let own = &mut self.classes[class];
        if own.queue.is_empty() {
            (own.start, own.overtaken) = (own.finish.max(self.v), 0);
        }
        own.queue.push((number, cost, slots));
    }

    /// Other weights, at once. With new rules, who waits starts anew from its finish tag.
    fn set_weights(&mut self, weights: [u32; 4], are_rules_new: bool) {
        for (own, weight) in self.classes.iter_mut().zip(weights) {
            own.weight = weight.into();
            own.finish = own.finish.min(self.v + 8 * 250_000_000 / own.weight);
            let anew = own.finish.max(self.v);
            match are_rules_new {
                true => (own.start, own.overtaken) = (anew, 0),
                false => own.start = own.start.min(anew),
            }
        }
    }

    fn poll(&mut self) -> Option<(u64, u32)> {
        let mut heads: Vec<(u128, u64, usize)> = Vec::new();
        for (index, own) in self.classes.iter().enumerate() {
            heads.extend(own.queue.first().map(|head| (own.start, head.0, index)));
        }
        heads.sort_unstable();
        let (least, _, first) = *heads.first()?;
        let free = self.slots_max.saturating_sub(self.held);
        let fits = |index: &usize| self.classes[*index].queue[0].2 <= free;
        let chosen = heads.iter().map(|head| head.2).find(fits)?;
        let lead = 8 * 1_000 * u128::from(self.slots_max) / self.classes[chosen].weight;
        let too_far = self.classes[chosen].start > least + lead;
        if chosen != first && (too_far || self.classes[first].overtaken >= self.slots_max) {
            return None;
        }
        self.v = self.v.max(least);
        let own = &mut self.classes[chosen];
        let (number, cost, slots) = own.queue.remove(0);
        let bound = self.v + 8 * 250_000_000u128.max(4 * cost) / own.weight;
        own.finish = (own.start + 8 * cost / own.weight).min(bound);
        (own.start, own.overtaken) = (own.finish.max(self.v), 0);
        if chosen != first {
            self.classes[first].overtaken += slots;
        }
        self.held += slots;
        Some((number, slots))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn any_calls_keep_the_books_and_every_queue_empties(calls in prop::collection::vec(call(), 1..120)) {
        let mut book = Book::new();
        for call in &calls {
            book.apply(call);
        }
        book.finish();
    }

    /// The invariants say, where no change is spreading any more, that each waiting request is where
    /// the rules in force send it.
    #[test]
    fn changes_that_are_not_everywhere_yet_lose_nothing_and_get_everywhere(
        units in 1..40usize,
        calls in prop::collection::vec(prop_oneof![4 => call(), 1 => (0..6usize).prop_map(|which| Call::Rules { which })], 1..120),
    ) {
        let mut book = Book::with_slices(units);
        for call in &calls {
            book.apply(call);
        }
        book.finish();
    }

    /// After any changes in the middle of others, classes, their requests and the limits that depend
    /// on them are those of a dispatcher in which each change was one call.
    #[test]
    fn changes_in_slices_come_to_the_same_as_at_once(
        units in 1..30usize,
        steps in prop::collection::vec((0..10u8, 0..6usize, 0..3usize), 1..150),
    ) {
        let mut both = [0; 2].map(|_| Dispatcher::new([target(6, 1_000_000)], rule_set(0)));
        both[0].set_change_slice(units);
        both[1].set_change_slice(usize::MAX);
        let now = ms(1);
        // Somebody else has all slots, so that polls do nothing but spread.
        let others = both.each_mut().map(|sched| {
            let other = sched.subject(T, &who("other"), PathSet::default());
            for token in 0..6 {
                put(sched, other, OpKind::Read, token, now);
            }
            while sched.poll_dispatch(now).is_some() {}
            JOBS.map(|job| sched.subject(T, &who(job), PathSet::default()))
        });
        let mut waiting = Vec::new();
        for (token, (what, which, kind)) in steps.into_iter().enumerate() {
            match what {
                0 => both.iter_mut().for_each(|sched| sched.set_rules(rule_set(which), now)),
                1 | 2 => both.iter_mut().for_each(|sched| assert_eq!(sched.poll_dispatch(now), None)),
                3 if !waiting.is_empty() => {
                    let ids: [RequestId; 2] = waiting.swap_remove(which % waiting.len());
                    for (sched, id) in both.iter_mut().zip(ids) {
                        prop_assert!(sched.cancel(id, now).is_some());
                    }
                }
                _ => {
                    let [one, other] = [0, 1].map(|at| {
                        put(&mut both[at], others[at][which % 4], KINDS[kind], token as u64, now)
                    });
                    waiting.push([one, other]);
                }
            }
            both[0].check_invariants();
        }
        let mut polls = 0;
        while both[0].next_deadline() == Some(now) {
            prop_assert_eq!(both[0].poll_dispatch(now), None);
            polls += 1;
            prop_assert!(polls < 10_000, "the change gets nowhere");
        }
        let [spread, at_once] = both.each_ref().map(|sched| {
            sched.check_invariants();
            let of = |class: sluice_sched::ClassReport| (class.rule, class.queued, class.running);
            let mut classes: Vec<_> = sched.classes().map(of).filter(|of| of.1 + of.2 > 0).collect();
            classes.sort();
            let limits = sched.dependent_limits().map(|(rule, rate)| (rule.to_owned(), rate));
            let subjects = sched.subjects().map(|subject| (subject.queued, subject.running));
            (sched.queued(), classes, limits.collect::<Vec<_>>(), subjects.collect::<Vec<_>>())
        });
        prop_assert_eq!(spread, at_once);
        let activity = both.each_mut().map(|sched| sched.parent_activity(now));
        prop_assert_eq!(&activity[0], &activity[1]);
    }

    /// The order, request by request, is the naive one's, whenever the rules change; so are
    /// slots held and v.
    #[test]
    fn shares_come_in_the_order_of_a_sorted_list(
        calls in prop::collection::vec((0..13u8, 0..4usize, 1..20u64), 1..300),
        slots_max in 1..20u32,
    ) {
        let weights = [1u32, 2, 4, 8];
        let set = |weights: [u32; 4], other: u64| {
            let all = JOBS.iter().zip(weights).map(|(job, weight)| rule(job, weight));
            let other = rule(&format!("other{other}"), 1);
            rules(all.chain([other]).collect(), vec![])
        };
        let mut sched = Dispatcher::new([target(slots_max, 1_000)], set(weights, 0));
        let subjects: Vec<SubjectId> =
            JOBS.iter().map(|job| sched.subject(T, &who(job), PathSet::default())).collect();
        let classes = weights.map(|w| NaiveClass { weight: u128::from(w), ..NaiveClass::default() });
        let mut naive = Naive { slots_max, held: 0, v: 0, classes: classes.into() };
        let (mut running, mut asked) = (Vec::new(), Vec::new());
        let (mut number, mut other) = (0, 0);
        for (what, job, units) in calls {
            if what == 12 {
                let mut turned = weights;
                turned.rotate_left(job);
                let are_rules_new = units % 2 == 0;
                other += u64::from(are_rules_new);
                sched.set_rules(set(turned, other), ms(0));
                naive.set_weights(turned, are_rules_new);
            } else if what < 6 {
                number += 1;
                let amount = Amount::new(units * UNIT_BYTES, 1);
                asked.push(amount);
                let (subject, kind, lane) = (subjects[job], OpKind::Read, Lane::Device);
                sched.enqueue(Arrival { subject, kind, amount, lane, token: number }, ms(0));
                let slots = (units as u32).next_power_of_two().min(slots_max);
                naive.enqueue(job, number, u128::from(units) * 1_000, slots);
            } else if what < 10 {
                let next = sched.poll_dispatch(ms(0));
                prop_assert_eq!(next.map(|n| (n.token, n.slots)), naive.poll());
                running.extend(next);
            } else if !running.is_empty() {
                let done = running.swap_remove(units as usize % running.len());
                naive.held -= done.slots;
                let served = asked[done.token as usize - 1];
                sched.complete(done.id, served, ms(0));
            }
        }
    }

    /// Between any two dispatches, no more than the rate, the burst and one request.
    #[test]
    fn a_class_never_passes_its_rate(
        rate in 1..2_000u64,
        burst in prop::option::of(0..50u64),
        steps in prop::collection::vec((0..30_000u64, 1..6u64), 1..200),
    ) {
        let bytes = Rate::bytes_per_sec(rate * UNIT_BYTES).expect("above zero");
        let burst_bytes = burst.map(|units| units * UNIT_BYTES);
        let all = vec![Rule { limits: vec![Limit { burst: burst_bytes, ..limit(bytes) }], ..rule("a", 1) }];
        let mut sched = Dispatcher::new([target(1_000, 1_000)], rules(all, vec![]));
        let subject = sched.subject(T, &who("a"), PathSet::default());
        let mut now = ms(1_000);
        let mut sent: Vec<(u64, u64)> = Vec::new();
        let mut sizes = Vec::new();
        for (micros, units) in steps {
            now = now + Nanos::from_micros(micros);
            let amount = Amount::new(units * UNIT_BYTES, 1);
            let token = sizes.len() as u64;
            sizes.push(amount);
            sched.enqueue(Arrival { subject, kind: OpKind::Read, amount, lane: Lane::Device, token }, now);
            while let Some(next) = sched.poll_dispatch(now) {
                let amount = sizes[next.token as usize];
                sent.push((now.as_nanos(), amount.bytes.get()));
                sched.complete(next.id, amount, now);
            }
        }
        let largest = 5 * UNIT_BYTES;
        let burst = burst_bytes.unwrap_or((rate * UNIT_BYTES / 10).max(largest));
        for from in 0..sent.len() {
            let mut sum = 0;
            for (at, bytes) in &sent[from..] {
                sum += bytes;
                let whole = u128::from(at - sent[from].0) * u128::from(rate * UNIT_BYTES);
                let allowed = whole.div_ceil(1_000_000_000) as u64 + burst + largest + 1;
                prop_assert!(sum <= allowed, "{sum} bytes where {allowed} are allowed");
            }
        }
    }

    /// |W_f/φ_f − W_g/φ_g| ≤ (D + 1)(c_f/φ_f + c_g/φ_g) while both are backlogged, and what
    /// a lead of D units adds.
    #[test]
    fn backlogged_classes_stay_together(
        weights in (1..33u32, 1..33u32),
        units in (1..9u64, 1..9u64),
        slots_max in 1..17u32,
        ends in prop::collection::vec(any::<usize>(), 100..400),
    ) {
        let all = vec![rule("a", weights.0), rule("b", weights.1)];
        let mut sched = Dispatcher::new([target(slots_max, 1_000)], rules(all, vec![]));
        let subjects = ["a", "b"].map(|job| sched.subject(T, &who(job), PathSet::default()));
        let amounts = [units.0, units.1].map(|units| Amount::new(units * UNIT_BYTES, 1));
        for i in 0..2 * ends.len() + 200 {
            let (subject, amount) = (subjects[i % 2], amounts[i % 2]);
            let arrival =
                Arrival { subject, kind: OpKind::Read, amount, lane: Lane::Device, token: i as u64 % 2 };
            sched.enqueue(arrival, ms(0));
        }
        // Units of cost times the other's weight: comparable, and whole.
        let (phi, cost) = ([weights.0, weights.1].map(i64::from), [units.0, units.1].map(|u| u as i64));
        let mut work = [0i64; 2];
        let mut running = Vec::new();
        for end in ends {
            while let Some(next) = sched.poll_dispatch(ms(0)) {
                work[next.token as usize] += cost[next.token as usize];
                running.push(next);
            }
            let lag = (work[0] * phi[1] - work[1] * phi[0]).abs();
            let lag_max = (i64::from(slots_max) + 1) * (cost[0] * phi[1] + cost[1] * phi[0]);
            let bound = lag_max + i64::from(slots_max) * phi[0].max(phi[1]);
            prop_assert!(lag <= bound, "apart by {lag}, the bound is {bound}");
            let done = running.swap_remove(end % running.len());
            sched.complete(done.id, amounts[done.token as usize], ms(0));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::default() })]

    /// Over 20 s a reserved class has its rate, but for the half second and one request by
    /// which R may lag at the end, and for D units that run when it ends.
    #[test]
    fn reservation_is_met_with_any_sizes_lanes_and_misses(
        rate in 5..60u64,
        units in (1..5u64, 1..9u64),
        weight in 1..1_000u32,
        misses in 0..11u64,
        both_lanes in any::<bool>(),
    ) {
        let bytes = Rate::bytes_per_sec(rate * UNIT_BYTES).expect("above zero");
        let a = Rule { reservation: Some(bytes), ..rule("a", 1) };
        let all = rules(vec![a, rule("b", weight), rule("c", weight)], vec![]);
        let mut w = World::new(target(10, 10_000_000), all);
        // 40 outstanding are enough demand though the cached lane is free each 400 ms only,
        // which is less than what R may lag by.
        w.cached_client("a", units.0, 40, misses);
        w.client("b", OpKind::Read, units.1, 20);
        if both_lanes {
            w.cached_client("c", units.1.min(4), 20, 0);
        }
        w.run(ms(5_000));
        let got = w.served(ms(25_000))[0] * units.0;
        let blur = rate.div_ceil(2) + units.0 + 10;
        prop_assert!(got + blur >= 20 * rate, "{got} of {} units", 20 * rate);
    }

    /// Over 20 s a flood of requests without bytes has the account of its class's reservation or the
    /// class's share, whichever is more, but for a burst, D units that run and what F may lead by.
    #[test]
    fn a_flood_of_metadata_has_its_account_or_its_share_whichever_is_more(
        rate in 1..90u64,
        percent in 0..101u64,
        weights in (1..9u32, 1..9u32),
    ) {
        let reservation = Rate::bytes_per_sec(rate * UNIT_BYTES).expect("above zero");
        let part = Some(percent as u32 * 10_000);
        let a = rule("a", weights.0);
        let a = Rule { reservation: Some(reservation), reservation_metadata_ppm: part, ..a };
        let all = rules(vec![a, rule("b", weights.1)], vec![]);
        let mut w = World::new(target(10, 10_000_000), all);
        w.client("a", OpKind::Getattr, 0, 40);
        w.client("b", OpKind::Read, 1, 40);
        w.run(ms(5_000));
        let got = w.served(ms(25_000))[0];
        let (account, share) = (20 * rate * percent / 100, 2_000 * weights.0 / (weights.0 + weights.1));
        let want = account.max(share.into());
        let slack = account / 40 + 10 + 5;
        prop_assert!(got.abs_diff(want) <= slack, "{got}, where {account} and {share} are due");
    }
}
