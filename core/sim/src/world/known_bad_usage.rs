//! The checks detect faults of accounting: reporters, controllers and proxies that err on purpose.
//!
//! ```text
//!   a scenario with a controller, lost and double messages ─┐
//!   a reporter with an injected bug ────────────────────────┴─► a violation that names it
//! ```

use std::sync::Arc;

use rules::RuleSet;
use sched::Dispatcher;

use super::World;
use super::accounting::ReporterBug;
use crate::Scenario;
use crate::scheduler::Policy;

/// Two jobs at two proxies with a controller, and faults of messages.
fn text(rules: &str, faults: &str) -> String {
    format!(
        r#"
from = "a test"
description = ""
duration = "60s"
controller = true
rules = '''
{rules}'''

[[target]]
name = "disk"
count = 2
slots = 10
parallelism = 10
read = [["4KiB", "100ms"]]

[[job]]
name = "a"
repeat = 1
steps = [{{ do = "read 4KiB", depth = 20, span = "50s" }}]

[[job]]
name = "b"
repeat = 1
route = "round"
steps = [{{ do = "getattr", depth = 5, span = "50s" }}]

{faults}"#
    )
}

fn world(text: &str) -> World {
    let scenario = Scenario::parse(text, "broken").unwrap_or_else(|error| panic!("{error}"));
    World::new(&scenario, Policy::Dispatcher, 1)
}

fn first_violation(world: World) -> String {
    world.run().violations.first().map_or(String::new(), |first| first.what.clone())
}

fn with_bug(bug: Option<ReporterBug>, faults: &str) -> String {
    let mut world = world(&text("", faults));
    world.proxy_controls.iter_mut().for_each(|control| control.usage.bug = bug);
    first_violation(world)
}

const LOST: &str = "[[fault]]\nwhat = \"drop\"\nat = \"5s\"\nspan = \"54s\"\npercent = 30\n";
const CUT: &str =
    "[[fault]]\nwhat = \"partition\"\nway = \"assignments\"\nat = \"20s\"\nspan = \"12s\"\n";
const CRASH: &str = "[[fault]]\nwhat = \"crash\"\nat = \"20s\"\nspan = \"2s\"\n";
const LEADER: &str = "[[fault]]\nwhat = \"leader\"\nat = \"30s\"\nspan = \"2s\"\n";
const TWICE: &str = "[[fault]]\nwhat = \"duplicate\"\nat = \"5s\"\nspan = \"54s\"\npercent = 50\n";

const FORGET: &str = "[[fault]]\nwhat = \"forget\"\nat = \"5s\"\nspan = \"54s\"\npercent = 50\n";

#[test]
fn usage_that_is_counted_twice_is_seen() {
    for faults in [LOST, CUT, LEADER] {
        let what = with_bug(Some(ReporterBug::CountsTwice), faults);
        assert!(what.contains("operations are counted"), "{faults}: {what}");
    }
}

#[test]
fn usage_that_is_lost_is_seen() {
    let last = "[[fault]]\nwhat = \"partition\"\nway = \"reports\"\nat = \"45s\"\nspan = \"14s\"\n";
    let what = with_bug(Some(ReporterBug::Loses), last);
    assert!(what.contains("operations are counted"), "{what}");
    assert_eq!(with_bug(None, last), "");
}

#[test]
fn usage_of_closed_accounts_that_is_lost_is_seen() {
    let what = with_bug(Some(ReporterBug::LosesRest), FORGET);
    assert!(what.starts_with("of all at proxy 0, epoch 1, "), "{what}");
    assert_eq!(with_bug(None, FORGET), "");
}

#[test]
fn usage_is_counted_once_whatever_is_lost_late_or_double() {
    let all = [LOST, CUT, CRASH, LEADER, TWICE, FORGET].concat();
    for faults in [LOST, CUT, CRASH, LEADER, TWICE, FORGET, &all] {
        assert_eq!(with_bug(None, faults), "", "{faults}");
    }
}

const DECAY: &str = r#"[[decay]]
name = "gets"
resource = "metadata"
mode = "period"
period = "1min"
steps = { "50%" = "50%", "100%" = "floor" }
entitlement = "4ops/s"
max = "20ops/s"
floor = "1ops/s"
update_interval = "1s"
"#;

#[test]
fn a_decay_throttles_in_the_world() {
    let mut world = world(&text(DECAY, ""));
    world.run_until(model::Time::from_nanos(59_000_000_000));
    assert_eq!(world.report().throttlings, 1);
    assert_eq!(first_violation(world), "");
}

#[test]
fn proxies_that_do_not_keep_the_limit_of_a_decay_are_seen() {
    let mut world = world(&text(DECAY, ""));
    let target = world.proxies[0].spec.scheduled();
    world.proxies[0].sched = Box::new(Dispatcher::new([target], Arc::new(RuleSet::default())));
    let what = first_violation(world);
    assert!(what.contains("of decay gets in 10 s, more than"), "{what}");
}

#[test]
fn an_account_that_misses_usage_is_seen() {
    let mut world = world(&text(DECAY, ""));
    world.run_until(model::Time::from_nanos(20_000_000_000));
    let minutes = &mut world.accounting.as_mut().expect("a controller").ledger.minutes;
    minutes.values_mut().for_each(|units| *units += 1);
    let what = first_violation(world);
    assert!(what.contains("has used"), "{what}");
}
