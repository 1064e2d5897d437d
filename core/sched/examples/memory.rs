//! What a class costs while nothing of it waits, in bytes of the process: at rest, or with its
//! job still there.
//!
//! ```text
//!   cargo run --release -p sluice-sched --example memory -- CLASSES [stay]
//! ```
//!
//! Each class has one subject, a weight, a limit, a reservation and a finish tag: it was served once.

use std::sync::Arc;

use model::{
    Amount, Identity, JobId, KeyField, KindSet, Lane, Limit, Match, Nid, OpKind, PathSet, Rate,
    Rule, RuleSet, Time,
};
use sluice_sched::{Arrival, Costs, Dispatcher, TargetParams};

fn main() {
    let classes: u64 = std::env::args().nth(1).map_or(100_000, |n| n.parse().expect("a number"));
    let stay = std::env::args().nth(2).is_some_and(|word| word == "stay");
    let mut set = RuleSet::default();
    let rate = Rate::ops_per_sec(1_000).expect("above zero");
    set.rules.push(Rule {
        per: vec![KeyField::Jobid],
        limits: vec![Limit { kinds: KindSet::ALL, rate, burst: None }],
        reservation: Rate::ops_per_sec(10),
        max_classes: Some(u32::MAX),
        ..Rule::new("jobs", Match::any())
    });
    let target = TargetParams {
        name: "t".into(),
        slots_max: 64,
        threads: 8,
        costs: Costs::default(),
        latency: None,
        recalibrate: false,
    };
    let mut sched = Dispatcher::new(target, Arc::new(set));
    let before = resident();
    for i in 0..classes {
        let job = JobId::new(&format!("job.{i}")).expect("a short name");
        let who = Identity { job, uid: i as u32, gid: 100, projid: None, nid: Nid::local() };
        let subject = sched.subject(&who, PathSet::default());
        let now = Time::from_nanos(i * 1_000_000);
        let (kind, amount, lane) = (OpKind::Read, Amount::new(4096, 1), Lane::Device);
        sched.enqueue(Arrival { subject, kind, amount, lane, token: i }, now);
        let next = sched.poll_dispatch(now).expect("nothing holds it back");
        sched.complete(next.id, amount, now);
        if !stay {
            sched.release_subject(subject);
        }
    }
    let kept = sched.classes().count() as u64;
    let used = resident() - before;
    println!("{classes} classes came, {kept} are kept: {} bytes each", used / kept.max(1));
}

/// Bytes of memory that the process has in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second field is a number") * 4096
}
