//! Writes that somebody else waits for: in whose lane they go, who pays, and what is told of it.

use std::sync::Arc;

use crate::server::{T, UNIT_BYTES, limited, ms, rule, rules, shared, target, who};
use model::{Amount, Bytes, JobId, Lane, OpKind, PathSet, SectionKind, Time};
use rules::RuleSet;
use sluice_sched::{Arrival, Dispatcher, MeterPayers, RequestId, SubjectId, WaitCause};

/// Two jobs: one writes, one waits.
struct Pair {
    sched: Dispatcher,
    writer: SubjectId,
    waiter: SubjectId,
    tokens: u64,
}

impl Pair {
    fn new(set: Arc<RuleSet>) -> Pair {
        let mut sched = Dispatcher::new([target(4, 1_000_000)], set);
        let mut subject = |job| sched.subject(T, &who(job), PathSet::default());
        let (writer, waiter) = (subject("writer"), subject("waiter"));
        Pair { sched, writer, waiter, tokens: 0 }
    }

    /// A write; its token counts from 1.
    fn write(&mut self, subject: SubjectId, now: Time) -> RequestId {
        self.tokens += 1;
        let (amount, lane) = (Amount::new(UNIT_BYTES, 1), Lane::Device);
        let arrival = Arrival { subject, kind: OpKind::Write, amount, lane, token: self.tokens };
        self.sched.enqueue(arrival, now)
    }

    fn donate(&mut self, id: RequestId, now: Time) -> Option<(RequestId, SubjectId)> {
        let donated = self.sched.donate(id, self.waiter, &"fs:/file".into(), now);
        self.sched.check_invariants();
        donated.map(|donated| (donated.id, donated.subject))
    }

    /// Who is served now, and which of the writes.
    fn served(&mut self, now: Time) -> Vec<(SubjectId, u64)> {
        let mut served = Vec::new();
        while let Some(next) = self.sched.poll_dispatch(now) {
            served.push((next.subject, next.token));
            self.sched.complete(next.id, Amount::new(UNIT_BYTES, 1), now);
        }
        served
    }
}

#[test]
fn writes_that_somebody_waits_for_go_in_his_lane_and_he_pays() {
    let set = rules(vec![limited("writer", 1), limited("waiter", 100)], vec![]);
    let mut pair = Pair::new(set);
    let ids: Vec<_> = (0..3).map(|_| pair.write(pair.writer, ms(1))).collect();
    let (writer, waiter) = (pair.writer, pair.waiter);
    // The burst is a tenth of a second's: one goes, and its debt holds the others.
    assert_eq!(pair.served(ms(1)), [(writer, 1)]);
    assert_eq!(pair.served(ms(500)), []);
    for id in &ids[1..] {
        let (new, subject) = pair.donate(*id, ms(500)).unwrap();
        assert_eq!(subject, waiter);
        assert_ne!(new, *id);
    }
    assert_eq!(pair.donate(ids[0], ms(500)), None, "it has been served");
    let at = ms(520);
    let mut served = pair.served(ms(500));
    served.extend(pair.served(at));
    assert_eq!(served, [(waiter, 2), (waiter, 3)], "within a second of the writer's limit");
    let used = |job: &str| {
        let job = JobId::new(job).unwrap();
        let standings = pair.sched.subject_details(at, MeterPayers { job: Some(&job), user: None });
        standings[0].usage.written
    };
    assert_eq!(used("waiter"), Bytes::new(2 * UNIT_BYTES), "who waits has paid");
    assert_eq!(used("writer"), Bytes::new(UNIT_BYTES));
    let told = pair.sched.donations(at, |_, _| true);
    assert_eq!(told.len(), 1, "{told:?}");
    let told = &told[0];
    assert_eq!((told.writer.job.as_str(), told.waiter.job.as_str()), ("writer", "waiter"));
    assert_eq!(&*told.file, "fs:/file");
    assert_eq!((told.requests, told.donated, told.last), (2, 2, ms(500)));
    match &told.by {
        WaitCause::Meter { scope, .. } => {
            assert_eq!((scope.section, &*scope.name), (SectionKind::Rule, "writer"));
        }
        other => panic!("{other:?}"),
    }
    assert!(pair.sched.donations(at, |writer, _| writer.job.as_str() == "other").is_empty());
}

#[test]
fn who_is_held_more_donates_nothing_and_is_told_for_whom_he_waits() {
    let set = rules(vec![limited("writer", 10), limited("waiter", 1)], vec![]);
    let mut pair = Pair::new(set);
    let own = pair.write(pair.waiter, ms(1));
    let ids: Vec<_> = (0..2).map(|_| pair.write(pair.writer, ms(1))).collect();
    assert_eq!(pair.served(ms(1)).len(), 2);
    let (id, subject) = pair.donate(ids[1], ms(2)).unwrap();
    assert_eq!((id, subject), (ids[1], pair.writer), "it is sooner there");
    assert_eq!(pair.donate(own, ms(2)), None);
    let told = pair.sched.donations(ms(3), |_, _| true);
    assert_eq!((told[0].requests, told[0].donated), (1, 0));
    assert_eq!(pair.served(ms(102)), [(pair.writer, 3)]);
}

#[test]
fn without_limits_the_greater_weight_counts() {
    let mut pair = Pair::new(rules(vec![rule("writer", 1), rule("waiter", 8)], vec![]));
    let light = pair.write(pair.writer, ms(1));
    assert_eq!(pair.donate(light, ms(1)).unwrap().1, pair.waiter);
    let mut pair = Pair::new(rules(vec![rule("writer", 8), rule("waiter", 1)], vec![]));
    let heavy = pair.write(pair.writer, ms(1));
    assert_eq!(pair.donate(heavy, ms(1)).unwrap().1, pair.writer);
}

#[test]
fn nobody_donates_to_a_limit_that_both_pay() {
    let set = rules(
        vec![rule("writer", 1), rule("waiter", 1)],
        vec![shared("both", "*", model::Rate::ops_per_sec(5).unwrap())],
    );
    let mut pair = Pair::new(set);
    let ids: Vec<_> = (0..2).map(|_| pair.write(pair.writer, ms(1))).collect();
    pair.served(ms(1));
    assert_eq!(pair.donate(ids[1], ms(1)).unwrap().1, pair.writer);
}

#[test]
fn what_is_remembered_is_bounded_and_the_last_is_told_first() {
    let mut pair = Pair::new(rules(vec![limited("writer", 1)], vec![]));
    let (kind, amount) = (OpKind::Write, Amount::new(UNIT_BYTES, 1));
    for number in 0..200 {
        let file = format!("fs:/{number}").into();
        pair.sched.subject_for_donation(pair.writer, pair.waiter, kind, amount, &file, ms(number));
    }
    let file = "fs:/own".into();
    let own =
        pair.sched.subject_for_donation(pair.writer, pair.writer, kind, amount, &file, ms(300));
    assert_eq!(own, pair.writer, "nobody waits for himself");
    let told = pair.sched.donations(ms(300), |_, _| true);
    assert_eq!((told.len(), &*told[0].file, &*told[63].file), (64, "fs:/199", "fs:/136"));
}
