//! Rules that are started, changed, ranked and stopped all the time, while requests wait.
//!
//! The server gives 100 unit requests a second over D = 10 slots. Each edit is made as
//! `sluice rule` makes it: on the text, which is read again as a whole.

use std::sync::Arc;

use crate::server::*;
use model::{Nanos, OpKind};
use rules::{KeyEdit, RuleEdit, RulePosition, RuleSet};

const UNIT_NS: u64 = 10_000_000;

/// a may have 10 ops/s and no burst; b and c divide the rest 1 : 3.
const RULES: &str = r#"
[[rule]]
name = "a"
match = "jobid={a}"
limit = { rate = "10ops/s", burst = "1ops" }

[[rule]]
name = "b"
match = "jobid={b}"

[[rule]]
name = "c"
match = "jobid={c}"
weight = 3
"#;

fn name(text: &str) -> String {
    text.into()
}

fn set(key: &'static str, value: &str) -> Vec<KeyEdit> {
    vec![KeyEdit { key, value: Some(value.into()) }]
}

/// A round of edits after which the rules are what they were.
fn round() -> Vec<RuleEdit> {
    let limit = |rate: &str| set("limit", &format!("{{ rate = \"{rate}\", burst = \"1ops\" }}"));
    vec![
        RuleEdit::Start {
            name: name("x"),
            keys: set("match", "\"jobid={x}\""),
            position: RulePosition::First,
        },
        RuleEdit::Rank { name: name("a"), position: RulePosition::Last },
        RuleEdit::Change { name: name("a"), keys: limit("20ops/s") },
        RuleEdit::Change { name: name("a"), keys: limit("10ops/s") },
        RuleEdit::Change { name: name("x"), keys: set("weight", "7") },
        RuleEdit::Rank { name: name("a"), position: RulePosition::Before(name("b")) },
        RuleEdit::Stop { name: name("x") },
    ]
}

/// What a, b and c are served in 20 s; `update_interval` ms a whole round of edits is made, at once.
fn served(every: Option<u64>) -> (World, Vec<u64>) {
    let parse = |text: &str| Arc::new(RuleSet::parse(text).expect("the rules are right"));
    let mut w = World::new(target(10, UNIT_NS), parse(RULES));
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 40);
    }
    w.run(ms(10_000));
    let before: Vec<u64> = w.clients.iter().map(|client| client.done).collect();
    while let Some(every) = every.filter(|_| w.now < ms(30_000)) {
        let mut text = String::from(RULES);
        for edit in round() {
            text = edit.apply(&text).expect("the edit is right");
            w.sched.set_rules(parse(&text), w.now);
            w.sched.check_invariants();
        }
        assert_eq!(text, RULES, "a round ends where it began");
        w.run(w.now + Nanos::from_millis(every));
    }
    w.run(ms(30_000));
    let got = w.clients.iter().zip(before).map(|(client, before)| client.done - before).collect();
    (w, got)
}

#[test]
fn edits_refill_no_meter_and_every_class_keeps_its_place() {
    let (_, quiet) = served(None);
    assert_eq!(quiet[0], 200);
    assert!(quiet[1].abs_diff(450) <= 4 && quiet[2].abs_diff(1350) <= 4, "{quiet:?}");
    for every in [8, 50, 400] {
        let (w, got) = served(Some(every));
        for (edited, quiet) in got.iter().zip(&quiet) {
            assert!(edited.abs_diff(*quiet) <= 4, "every {every} ms: {got:?}, without {quiet}");
        }
        // Nowhere a burst: eleven in a row take a second, give or take the one that it may save.
        for eleven in w.clients[0].starts.windows(12) {
            assert!(eleven[11] - eleven[0] >= 1_000_000_000, "every {every} ms: {eleven:?}");
        }
    }
}

#[test]
fn what_waits_moves_to_a_rule_that_is_started_and_back_when_it_is_stopped() {
    let (mut w, _) = served(None);
    let start = RuleEdit::Start {
        name: name("free"),
        keys: set("match", "\"jobid={a}\""),
        position: RulePosition::First,
    };
    let freed = start.apply(RULES).expect("the edit is right");
    let parse = |text: &str| Arc::new(RuleSet::parse(text).expect("the rules are right"));
    w.sched.set_rules(parse(&freed), w.now);
    // Three classes at 1 : 1 : 3 of 100 a second.
    let got = w.served(ms(40_000));
    assert!(got[0].abs_diff(200) <= 12, "{got:?}");
    let stopped = RuleEdit::Stop { name: name("free") }.apply(&freed).expect("the edit is right");
    assert_eq!(stopped, RULES);
    w.sched.set_rules(parse(&stopped), w.now);
    let got = w.served(ms(50_000));
    // Ten run and one saved when the limit is back.
    assert!((100..=111).contains(&got[0]), "{got:?}");
}
