//! `sluice why` at one proxy: each job is told what holds it, and one that is free that it is.
//!
//! ```text
//!   dd.1 ─ limit of its rule ─┐
//!   sh.1, sh.2 ─ a meter ─────┼─ proxy ◄─ GET /v1/why ─ sluice why --job, --user, --limit, --top
//!   free.1 ───────────────────┘
//! ```

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Instant;

use api::{Why, WhyQuery, WireWait, WireWaitKind};

use crate::common::{Proxy, SLUICE, Setup, USER, until};
use crate::controlled::{Reader, api_of};

const DEPTH: usize = 64;
const RULES: &str = "
[[rule]]
name = \"jobs\"
match = \"jobid={dd.*}\"
per = [\"jobid\"]
limit = \"2MB/s\"

[[rule]]
name = \"others\"
match = \"*\"
per = [\"jobid\"]

[[meter]]
name = \"shared\"
match = \"jobid={sh.*}\"
rate = \"3MB/s\"
";

fn why(proxy: &Proxy, args: &[&str]) -> (bool, String) {
    let api = format!("unix://{}", proxy.dir.join("api").display());
    let out = Command::new(SLUICE).arg("why").args(args).args(["--proxy", &api]).output().unwrap();
    let text = if out.status.success() { out.stdout } else { out.stderr };
    (out.status.success(), String::from_utf8(text).unwrap())
}

fn told(proxy: &Proxy, args: &[&str]) -> String {
    let (ok, text) = why(proxy, args);
    assert!(ok, "{args:?}: {text}");
    text
}

/// What holds now by a limit that was used lately: a busy machine may make it wait for a thread,
/// too.
fn by_limit(why: &Why) -> Vec<WireWait> {
    let now = why.waits.iter().filter(|hold| hold.current && hold.kind == WireWaitKind::Limit);
    now.filter(|hold| hold.limit.as_ref().is_some_and(|l| l.used_per_s > 0)).cloned().collect()
}

#[test]
fn each_job_is_told_what_holds_it_since_when_until_when_and_what_would_change_it() {
    let proxy = Setup::new("why").rules(RULES).api().start();
    // So many at a time that some wait though nobody sends more for a second or two.
    let began = Instant::now();
    let _readers = [("dd.1", DEPTH), ("sh.1", DEPTH), ("sh.2", DEPTH), ("free.1", 1)]
        .map(|(job, depth)| Reader::of_job(&proxy, job, depth));
    let client = api_of(&proxy);
    let of =
        |job: &str| client.why(&WhyQuery { job: Some(job.into()), ..WhyQuery::default() }).unwrap();
    let held_for =
        |why: &Why, ns: u64| why.waits.iter().any(|hold| hold.current && hold.active_ns > ns);
    until("they are held for a while", || {
        ["dd.1", "sh.1", "sh.2"].iter().all(|job| held_for(&of(job), 3_000_000_000))
    });

    // What holds a job now may be looked at while its reader waits for a processor.
    let told_that = |args: &[&str], holds: &[&str]| {
        let mut text = String::new();
        until(&format!("{args:?} tells {holds:?}"), || {
            text = told(&proxy, args);
            holds.iter().all(|hold| text.contains(hold))
        });
        text
    };
    let text = told_that(
        &["--job", "dd.1"],
        &["jobid=dd.1 (rule jobs) is throttled by the limit of rule jobs (jobid=dd.1): "],
    );
    assert!(text.contains("The limit is 2.00 MB/s, and "), "{text}");
    assert!(
        text.contains(" the next may go in ") || text.contains("the next may go now"),
        "{text}"
    );
    assert!(
        text.contains("To change this: ask an administrator to raise the limit of rule jobs"),
        "{text}"
    );

    let mut answer = Why::default();
    until("the limit holds it, and was used lately", || {
        answer = serde_json::from_str(&told(&proxy, &["--job", "dd.1", "--json"])).unwrap();
        !by_limit(&answer).is_empty()
    });
    let holds = by_limit(&answer);
    assert_eq!((holds.len(), holds[0].rule.as_str()), (1, "jobs"), "{answer:?}");
    let limit = holds[0].limit.as_ref().unwrap();
    assert_eq!((limit.per_s, limit.in_bytes, limit.key.as_str()), (2_000_000, true, "jobid=dd.1"));
    // What was used lately is a matter of speed; that it is about the limit is one of units.
    assert!(limit.used_per_s <= 4_000_000, "{limit:?}");
    assert!(limit.next_ns < 100_000_000, "one in flight takes 33 ms: {limit:?}");
    // Each of those under way waited at most all the time, and one of them always did.
    let most = DEPTH as u64 * u64::try_from(began.elapsed().as_nanos()).unwrap();
    assert!((1_000_000_000..=most).contains(&holds[0].wait_ns), "{:?}", holds[0]);
    assert_eq!(holds[0].bytes, holds[0].requests * u64::from(crate::controlled::BLOCK));
    let subject = &answer.subjects[0];
    assert_eq!((subject.job.as_str(), subject.uid), ("dd.1", USER));
    // It was held for three seconds, and was in the queue while it was.
    assert!(subject.delayed > 0 && subject.delayed_ns > 1_000_000_000, "{subject:?}");
    assert!(subject.delayed_ns <= subject.queue_ns, "{subject:?}");

    let text = told_that(&["--job", "sh.1"], &["is throttled by meter shared: "]);
    assert!(text.contains("raise the limit of [[meter]] shared"), "{text}");
    let mut shared = Vec::new();
    until("the meter holds the other one", || {
        shared = by_limit(&of("sh.2"));
        !shared.is_empty()
    });
    let shared = shared[0].limit.as_ref().unwrap();
    assert!(shared.used_per_s <= 6_000_000, "both use it: {shared:?}");

    // It may be looked at while it waits for a thread.
    until("nothing holds the free one", || {
        told(&proxy, &["--job", "free.1"]).starts_with("Nothing delays job free.1 now.\n")
    });
    assert_eq!(told(&proxy, &["--job", "gone"]), "No requests from job gone found.\n");
    told_that(&["--user", &USER.to_string()], &["meter shared", "rule jobs"]);
    let only = told_that(&["--limit", "shared"], &["meter shared"]);
    assert!(!only.contains("rule jobs ("), "{only}");

    let top = told(&proxy, &["--top"]);
    let rows: Vec<_> = top.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(rows.len(), 3, "{top}");
    assert!(rows.contains(&"dd.1") && !rows.contains(&"free.1"), "{top}");
}

#[test]
fn wrong_questions_are_refused_and_name_what_is_wrong() {
    let proxy = Setup::new("why-wrong").api().start();
    for (args, text) in [
        (
            &["--user", "nobody-has-this-name"][..],
            "\"nobody-has-this-name\" is not a user of this machine",
        ),
        (&["--top", "--since", "1h"], "give --controller URL"),
        (&["--top", "--by", "group"], "a proxy ranks by job or user, not by \"group\""),
        (&["--since", "1h"], "--top"),
        (&["--top", "--by", "shoe"], "invalid value 'shoe'"),
    ] {
        let (ok, told) = why(&proxy, args);
        assert!(!ok && told.contains(text), "{args:?}: {told}");
    }
    assert_eq!(told(&proxy, &["--top"]), "no request was delayed by a limit\n");
}

#[test]
fn a_proxy_that_does_not_schedule_says_that_nothing_is_held() {
    let proxy = Setup::new("why-unscheduled").top("schedule = false").api().start();
    let _reader = Reader::of_job(&proxy, "dd.1", 1);
    let text = told(&proxy, &["--job", "dd.1"]);
    assert!(text.contains("No requests from job dd.1") || text.contains("--no-schedule"), "{text}");
}
