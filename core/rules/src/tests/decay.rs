//! `[[decay]]`: what is read, what is refused and where, what is written.

use model::{Identity, JobId, Nanos, Nid, OpKind, PathSet, Pattern, Rate};

use crate::{DecayMode, DecayWindow, Resource, RuleSet};

/// Two decays in their canonical form.
const CANONICAL: &str = r#"[[decay]]
name = "writers"
match = "path={/scratch}"
per = ["uid"]
exempt = "uid={0 34}"
resource = "write"
entitlement = "70MB/s"
max = "700MB/s"
floor = "10MB/s"
mode = "decay"
half_life = "4h"
steepness = "2.5"
contention = true
hysteresis = "10%"
update_interval = "5s"
pattern_factors = { small-writes = "50%", sequential = "125%" }

[[decay]]
name = "day"
per = ["projid", "jobid"]
resource = "metadata"
entitlement = "100ops/s"
max = "1kops/s"
floor = "10ops/s"
mode = "period"
period = "24h"
window = "sliding"
steps = { "75%" = "50%", "100%" = "25%", "150%" = "floor" }
"#;

/// The error of a decay of these lines besides its name.
fn refusal(lines: &str) -> String {
    let text = format!("[[decay]]\nname = \"d\"\n{lines}\n");
    RuleSet::parse(&text).unwrap_err().in_file("rules.toml")
}

const STEP: &str =
    "resource = \"read\"\nentitlement = \"1MB/s\"\nfloor = \"1kB/s\"\nmode = \"period\"\n";

#[test]
fn a_canonical_decay_is_written_as_it_was_read() {
    let set = RuleSet::parse(CANONICAL).unwrap();
    assert_eq!(set.to_toml(), CANONICAL);
    let [writers, day] = &set.decays[..] else { panic!("two") };
    assert_eq!((writers.resource, writers.hysteresis_ppm), (Resource::Write, 100_000));
    let half_life = Nanos::from_secs(4 * 3_600);
    assert_eq!(writers.mode, DecayMode::HalfLife { half_life, steepness_milli: 2_500 });
    let steps = vec![(750_000, Some(500_000)), (1_000_000, Some(250_000)), (1_500_000, None)];
    let period = Nanos::from_secs(86_400);
    assert_eq!(day.mode, DecayMode::Period { period, window: DecayWindow::Sliding, steps });
}

#[test]
fn a_behaviour_is_of_a_known_pattern_and_a_quarter_to_twice() {
    let set = RuleSet::parse(CANONICAL).unwrap();
    let wanted = [(Pattern::SmallWrites, 500_000), (Pattern::Sequential, 1_250_000)];
    assert_eq!(set.decays[0].pattern_factors, wanted);
    assert!(set.decays[1].pattern_factors.is_empty());
    for (table, says) in [
        ("{ slow = \"50%\" }", "\"slow\" is not a pattern of requests; use one of small-writes, "),
        ("{ sequential = \"201%\" }", "25% to 200%, not \"201%\""),
        ("{ sequential = \"24.9%\" }", "25% to 200%, not \"24.9%\""),
        ("{}", "pattern_factors"),
        ("\"50%\"", "a table such as { small-writes = \"50%\""),
    ] {
        let error = refusal(&format!("{STEP}period = \"1h\"\npattern_factors = {table}"));
        assert!(error.contains(says), "{table}: {error}");
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let text = format!("[[decay]]\nname = \"d\"\n{STEP}period = \"10min\"\n");
    let set = RuleSet::parse(&text).unwrap();
    let decay = &set.decays[0];
    let steps = vec![(1_000_000, None)];
    let period = Nanos::from_secs(600);
    assert_eq!(decay.mode, DecayMode::Period { period, window: DecayWindow::Fixed, steps });
    assert_eq!(
        (decay.max, decay.contention, decay.update_interval),
        (None, false, Nanos::from_secs(10))
    );
    assert_eq!(decay.floor, Rate::bytes_per_sec(1_000).unwrap());
    assert_eq!(RuleSet::parse(&set.to_toml()).unwrap(), set);
}

#[test]
fn the_exempt_are_looked_at_first() {
    let set = RuleSet::parse(CANONICAL).unwrap();
    let who =
        |uid| Identity { job: JobId::default(), uid, gid: 1, projid: None, nid: Nid::local() };
    let paths = set.path_set(b"/scratch/a");
    let decays = |uid, kind, paths| set.decays_for(&who(uid), kind, paths).collect::<Vec<_>>();
    assert_eq!(decays(1, OpKind::Write, paths), [0]);
    assert_eq!(decays(34, OpKind::Write, paths), []);
    assert_eq!(decays(1, OpKind::Write, PathSet::default()), []);
    assert_eq!(decays(34, OpKind::Create, paths), [1]);
    assert_eq!(decays(1, OpKind::Read, paths), []);
}

#[test]
fn each_mistake_is_shown_at_its_place() {
    for (lines, place, message) in [
        (
            "per = [\"nid\"]",
            "3:7",
            "per of a decay cannot contain nid; use jobid, uid, gid or projid",
        ),
        (
            "resource = \"ops\"",
            "3:12",
            "\"ops\" is not something that a decay counts; use one of read, write, metadata",
        ),
        (
            "resource = \"read\"\nentitlement = \"5ops/s\"",
            "4:15",
            "\"5ops/s\" is not in bytes per second, the unit of resource \"read\"",
        ),
        (
            "resource = \"read\"\nentitlement = \"5MB/s\"\nmax = \"1MB/s\"\nfloor = \"2MB/s\"",
            "6:9",
            "floor = \"2MB/s\" is greater than max = \"1MB/s\"",
        ),
    ] {
        let refused = refusal(lines);
        assert!(refused.starts_with(&format!("rules.toml:{place}: {message}\n")), "{refused}");
    }
    for (line, place, message) in [
        (
            "period = \"10min\"\nhalf_life = \"1h\"",
            "8:13",
            "half_life cannot be combined with mode = \"period\"",
        ),
        ("period = \"30s\"", "7:10", "period must be a minute or more"),
        ("period = \"90s\"", "7:10", "period must be a whole number of minutes"),
        ("window = \"fixed\"", "1:1", "[[decay]] needs period"),
        (
            "period = \"1h\"\nwindow = \"day\"",
            "8:10",
            "\"day\" is not a window; use one of fixed, sliding",
        ),
        (
            "period = \"1h\"\nsteps = { \"50%\" = \"50%\" }",
            "8:19",
            "a step to a percentage needs max; set max or use \"floor\"",
        ),
        (
            "period = \"1h\"\nsteps = { \"50%\" = \"floor\", \"40%\" = \"floor\" }",
            "8:28",
            "the thresholds of steps must rise: each must be greater than the one before",
        ),
        (
            "period = \"1h\"\nsteps = { half = \"floor\" }",
            "8:11",
            "\"half\" is not a percentage above zero and up to 10000%, such as 50% or 12.5%",
        ),
        ("period = \"1h\"\nsteps = {}", "8:9", "steps = [] is empty; remove steps for its default"),
        (
            "period = \"1h\"\nupdate_interval = \"10ms\"",
            "8:19",
            "update_interval must be a second or more",
        ),
    ] {
        let refused = refusal(&format!("{STEP}{line}"));
        assert!(refused.starts_with(&format!("rules.toml:{place}: {message}\n")), "{refused}");
    }
    let decay = STEP.replace("\"period\"", "\"decay\"") + "max = \"1MB/s\"\nhalf_life = \"1h\"\n";
    for (line, place, message) in [
        (
            "steepness = \"20\"",
            "9:13",
            "\"20\" is not a steepness from 0.1 to 10 such as \"2\" or \"2.5\"",
        ),
        (
            "steepness = 2.5",
            "9:13",
            "steepness must be a text such as \"2\" or \"2.5\", not a fraction",
        ),
        ("steps = {}", "9:9", "steps cannot be combined with mode = \"decay\""),
    ] {
        let refused = refusal(&format!("{decay}{line}"));
        assert!(refused.starts_with(&format!("rules.toml:{place}: {message}\n")), "{refused}");
    }
    let other = refusal(&STEP.replace("\"period\"", "\"slow\""));
    assert!(
        other.contains(":6:8: \"slow\" is not a mode of a decay; use period or decay\n"),
        "{other}"
    );
}

#[test]
fn decays_count_among_the_meters_that_one_request_pays() {
    let one = |at| format!("[[decay]]\nname = \"d{at}\"\n{STEP}period = \"1h\"\n");
    let eight: String = (0..8).map(one).collect();
    assert!(RuleSet::parse(&eight).is_ok());
    let nine = eight + &one(8);
    let refused = RuleSet::parse(&nine).unwrap_err().to_string();
    assert!(
        refused.contains("a read request could have to pay 9 meters, ending with \"d8\""),
        "{refused}"
    );
}

#[test]
fn a_rule_is_changed_beside_a_decay_and_leaves_it_alone() {
    let text = format!("[[rule]]\nname = \"a\"\nweight = 2\n\n# why\n{CANONICAL}");
    let edit = crate::RuleEdit::Change {
        name: "a".into(),
        keys: vec![crate::KeyEdit { key: "weight", value: Some("3".into()) }],
    };
    assert_eq!(edit.apply(&text).unwrap(), text.replace("weight = 2", "weight = 3"));
    let stop = crate::RuleEdit::Stop { name: "a".into() };
    assert!(stop.apply(&text).unwrap().ends_with(CANONICAL));
}
