//! Files that are read, and what the set then says of requests.

use model::{Direction, Identity, JobId, KindSet, Nid, OpKind, PathSet, Rate, Weight};

use crate::{KeyField, Limit, Match, RuleSet, Shadowed, WriteMode};

const WHOLE: &str = r#"
# A site's rules.
[[rule]]
name = "checkpoint"
match = "jobid={ckpt.*}&opcode={write}"
per = ["jobid"]
weight = 4
reservation = "50MB/s"
max_classes = 8
slots = 3
write_mode = "direct"

[[rule]]
name = "scratch"
match = "path={/scratch/a /b*}"
limit = { metadata = "1000ops/s", read = "100MB/s", create = "10ops/s", burst = "100ms" }

[[rule]]
name = "default"
weight = 2

[[meter]]
name = "users"
match = "uid={500,0x3e8}"
per = ["uid", "nid"]
kinds = ["create", "mkdir"]
rate = "50ops/s"
burst = "5ops"
"#;

fn who(job: &str, uid: u32) -> Identity {
    Identity { job: JobId::new(job).unwrap(), uid, gid: 100, projid: None, nid: Nid::local() }
}

fn bytes(count: u64) -> Rate {
    Rate::bytes_per_sec(count).unwrap()
}

fn ops(count: u64) -> Rate {
    Rate::ops_per_sec(count).unwrap()
}

/// The limits of a file's only rule.
fn limits(limit: &str) -> Vec<Limit> {
    let text = format!("[[rule]]\nname = \"x\"\nlimit = {limit}\n");
    RuleSet::parse(&text).unwrap().rules.remove(0).limits
}

fn read_write() -> KindSet {
    KindSet::NONE.with(OpKind::Read).with(OpKind::Write)
}

#[test]
fn every_key_reaches_its_field() {
    let set = RuleSet::parse(WHOLE).unwrap();
    let [checkpoint, scratch, default] = &*set.rules else { panic!("three rules") };
    assert_eq!(checkpoint.name, "checkpoint");
    assert_eq!(checkpoint.matcher.to_string(), "jobid={ckpt.*}&opcode={write}");
    assert_eq!(checkpoint.per, [KeyField::Jobid]);
    assert_eq!(checkpoint.weight, Weight::new(4).unwrap());
    assert_eq!(checkpoint.reservation, Some(bytes(50_000_000)));
    assert_eq!(checkpoint.max_classes, Some(8));
    assert_eq!(checkpoint.slots, Some(3));
    assert_eq!(checkpoint.write_mode, Some(WriteMode::Direct));
    assert_eq!(checkpoint.limits, []);
    let kinds = |kind| KindSet::NONE.with(kind);
    assert_eq!(
        scratch.limits,
        [
            Limit { kinds: KindSet::of(Direction::Metadata), rate: ops(1000), burst: Some(100) },
            Limit { kinds: kinds(OpKind::Read), rate: bytes(100_000_000), burst: Some(10_000_000) },
            Limit { kinds: kinds(OpKind::Create), rate: ops(10), burst: Some(1) },
        ]
    );
    assert_eq!((default.weight.get(), default.matcher.clone()), (2, Match::any()));
    let meter = &set.meters[0];
    assert_eq!(meter.per, [KeyField::Uid, KeyField::Nid]);
    let creates = KindSet::NONE.with(OpKind::Create).with(OpKind::Mkdir);
    assert_eq!(meter.limit, Limit { kinds: creates, rate: ops(50), burst: Some(5) });
}

#[test]
fn an_empty_file_has_no_rules() {
    assert_eq!(RuleSet::parse("").unwrap(), RuleSet::default());
    assert_eq!(RuleSet::parse("# nothing\n").unwrap(), RuleSet::default());
}

#[test]
fn the_first_rule_that_matches_takes_the_request() {
    let set = RuleSet::parse(WHOLE).unwrap();
    let inside = set.path_set(b"/scratch/a/f");
    let job = who("ckpt.7", 1);
    assert_eq!(set.rule_for(&job, OpKind::Write, inside), Some(0));
    assert_eq!(set.rule_for(&job, OpKind::Read, inside), Some(1));
    assert_eq!(set.rule_for(&job, OpKind::Read, PathSet::default()), Some(2));
    let only_ann = RuleSet::parse("[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"").unwrap();
    assert_eq!(only_ann.rule_for(&who("", 2), OpKind::Read, PathSet::default()), None);
}

#[test]
fn a_meter_is_paid_by_its_kinds_alone() {
    let set = RuleSet::parse(WHOLE).unwrap();
    let paid = |uid, kind| -> Vec<usize> {
        set.meters_for(&who("", uid), kind, PathSet::default()).collect()
    };
    assert_eq!(paid(1000, OpKind::Create), [0]);
    assert_eq!(paid(1000, OpKind::Read), []);
    assert_eq!(paid(1, OpKind::Create), []);
}

#[test]
fn paths_get_their_bits_in_the_order_of_the_file() {
    let text = "[[rule]]\nname = \"a\"\nmatch = \"path={/x /y/*}\"\n\
                [[meter]]\nname = \"b\"\nmatch = \"path={/y/* /}\"\nrate = \"1ops/s\"\n";
    let set = RuleSet::parse(text).unwrap();
    assert!(set.has_paths());
    assert_eq!(set.path_set(b"/x/f"), PathSet(0b101));
    assert_eq!(set.path_set(b"/y/ann/f"), PathSet(0b110));
    assert_eq!(set.path_set(b"/y"), PathSet(0b100));
    assert_eq!(set.path_set(b"/"), PathSet(0b100));
    let y = set.path_set(b"/y/ann");
    assert_eq!(set.rule_for(&who("", 1), OpKind::Read, y), Some(0));
    assert_eq!(set.meters_for(&who("", 1), OpKind::Read, y).collect::<Vec<_>>(), [0]);
    assert_eq!(set.rule_for(&who("", 1), OpKind::Read, set.path_set(b"/y")), None);
}

#[test]
fn sixty_four_directories_are_kept_apart() {
    let rule = |i: usize| format!("[[rule]]\nname = \"r{i}\"\nmatch = \"path={{/d{i}}}\"\n");
    let set = RuleSet::parse(&(0..64).map(rule).collect::<String>()).unwrap();
    assert_eq!(set.path_set(b"/d63/f"), PathSet(1 << 63));
    assert_eq!(set.rule_for(&who("", 1), OpKind::Read, PathSet(1 << 63)), Some(63));
}

#[test]
fn a_plain_byte_limit_is_for_reads_and_writes_together() {
    let plain = Limit { kinds: read_write(), rate: bytes(100_000_000), burst: None };
    for text in [
        "\"100MB/s\"",
        "{ all = \"100MB/s\" }",
        "{ rate = \"100MB/s\" }",
        "[\"100MB/s\"]",
        "{ rate = \"100MB/s\", kinds = [\"all\"] }",
        "{ rate = \"100MB/s\", kinds = [\"write\", \"read\"] }",
    ] {
        assert_eq!(limits(text), std::slice::from_ref(&plain), "{text}");
    }
}

#[test]
fn a_plain_operations_limit_is_for_all_kinds() {
    let plain = Limit { kinds: KindSet::ALL, rate: ops(5000), burst: None };
    for text in ["\"5000ops/s\"", "{ all = \"5kops/s\" }"] {
        assert_eq!(limits(text), std::slice::from_ref(&plain), "{text}");
    }
}

#[test]
fn a_list_of_limits_may_mix_all_forms() {
    assert_eq!(
        limits(
            "[\"1MB/s\", { kinds = [\"metadata\", \"read\"], rate = \"9ops/s\", burst = \"3ops\" }]"
        ),
        [
            Limit { kinds: read_write(), rate: bytes(1_000_000), burst: None },
            Limit {
                kinds: KindSet::of(Direction::Metadata).with(OpKind::Read),
                rate: ops(9),
                burst: Some(3)
            },
        ]
    );
}

#[test]
fn a_tenth_of_a_reservation_in_bytes_is_for_requests_without_bytes() {
    let part = |keys: &str| {
        let text = format!("[[rule]]\nname = \"a\"\n{keys}\n");
        let set = RuleSet::parse(&text).unwrap();
        assert_eq!(RuleSet::parse(&set.to_toml()).unwrap(), set);
        set.rules[0].reservation_metadata().unwrap_or(0)
    };
    assert_eq!(part("reservation = \"20MB/s\""), 100_000);
    assert_eq!(part("limit = \"20MB/s\"\nrealtime = true"), 100_000);
    assert_eq!(part("reservation = \"20MB/s\"\nreservation_metadata = \"12.5%\""), 125_000);
    assert_eq!(
        part("limit = \"20MB/s\"\nspare = true\nreservation_metadata = \"100%\""),
        1_000_000
    );
    assert_eq!(part("reservation = \"20MB/s\"\nreservation_metadata = \"0%\""), 0);
    assert_eq!(part("reservation = \"50ops/s\""), 0);
    assert_eq!(part("limit = \"20MB/s\""), 0);
}

#[test]
fn a_burst_in_time_is_that_much_of_its_rate() {
    let bursts = |text| limits(text).iter().map(|l| l.burst).collect::<Vec<_>>();
    assert_eq!(
        bursts("{ read = \"100MB/s\", write = \"50MB/s\", burst = \"10ms\" }"),
        [Some(1_000_000), Some(500_000)]
    );
    assert_eq!(bursts("{ rate = \"100MB/s\", burst = \"4MiB\" }"), [Some(4 << 20)]);
    assert_eq!(bursts("{ rate = \"3ops/s\", burst = \"500ms\" }"), [Some(1)]);
}

#[test]
fn a_rule_behind_a_wider_one_is_shadowed() {
    let rules = |conditions: &[&str]| {
        let rule = |(i, c): (usize, &&str)| format!("[[rule]]\nname = \"r{i}\"\nmatch = \"{c}\"\n");
        let text: String = conditions.iter().enumerate().map(rule).collect();
        RuleSet::parse(&text).unwrap().shadowed()
    };
    assert_eq!(rules(&["uid={1}", "uid={2}", "*"]), []);
    assert_eq!(rules(&["uid={1}", "*", "uid={2}"]), [Shadowed { rule: 2, by: 1 }]);
    assert_eq!(rules(&["uid={1}", "gid={1}", "uid={1}"]), [Shadowed { rule: 2, by: 0 }]);
    assert_eq!(
        rules(&["jobid={dd.*}", "jobid={dd.5}&uid={1}", "uid={1}"]),
        [Shadowed { rule: 1, by: 0 }]
    );
}

#[test]
fn meters_that_exclude_each_other_are_never_paid_together() {
    let meter = |i: usize, condition: String| {
        format!("[[meter]]\nname = \"m{i}\"\nmatch = \"{condition}\"\nrate = \"1ops/s\"\n")
    };
    let apart: String = (0..100).map(|i| meter(i, format!("path={{/d{}}}", i % 60))).collect();
    assert!(RuleSet::parse(&apart).is_ok(), "at most two of these are paid by one file");
    let users: String = (0..256).map(|i| meter(i, format!("uid={{{i}}}"))).collect();
    assert_eq!(RuleSet::parse(&users).unwrap().meters.len(), 256);
    let eight: String = (0..8).map(|i| meter(i, "*".into())).collect();
    assert!(RuleSet::parse(&eight).is_ok());
}

/// A file of rules by name, each with the rest of its section.
fn of_rules(rules: &[(&str, &str)]) -> String {
    let section = |(name, rest): &(&str, &str)| format!("[[rule]]\nname = \"{name}\"\n{rest}\n\n");
    rules.iter().map(section).collect()
}

#[test]
fn rules_that_depend_on_one_another_in_a_circle_are_named() {
    let on = |parent: &str| {
        format!(
            "limit = \"9ops/s\"\ndepends_on = {{ rule = \"{parent}\", when_idle = \"1s\", min = \"1ops/s\" }}"
        )
    };
    let refused = |text: String| crate::RuleSet::parse(&text).unwrap_err();
    let circle = of_rules(&[("a", &on("b")), ("b", &on("c")), ("c", &on("a"))]);
    let error = refused(circle);
    let message = "rules depend on one another in a circle: a on b on c on a";
    assert_eq!((error.problem.to_string().as_str(), error.excerpt.line), (message, 2));
    let own = refused(of_rules(&[("a", &on("a"))])).problem.to_string();
    assert_eq!(own, "rules depend on one another in a circle: a on a");
    let names: Vec<String> = (0..10).map(|n| format!("r{n}")).collect();
    let chain: Vec<(&str, String)> =
        (0..9).map(|n| (names[n].as_str(), on(&names[n + 1]))).collect();
    let mut chain: Vec<(&str, &str)> = chain.iter().map(|(n, rest)| (*n, rest.as_str())).collect();
    chain.push((&names[9], "limit = \"9ops/s\""));
    let long = refused(of_rules(&chain)).problem.to_string();
    assert_eq!(long, "rule \"r0\" is in a chain of more than 8 rules that depend on one another");
    assert!(crate::RuleSet::parse(&of_rules(&chain[2..])).is_ok(), "eight in a row");
}
