//! `sluice report`: a job that reads small pieces here and there under a limit, and one beside it.
//!
//! ```text
//!   dd.1, user 1000: 4 KiB reads ── 9P ─┬─► proxy ─► controller ─► GET /v1/report, sluice report
//!   logger, user 1001: 100 B appends ───┘
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use api::{ErrorCode, NewToken, Role, WireJobReport};
use model::Nanos;
use ninep::{Fid, Reply, Request};

use crate::clocked::Clocked;
use crate::common::{PATIENCE, Proxy, USER, until};
use crate::controlled::{limited, proxy};
use crate::entrusted::{client, showing, sluice};
use testkit::TestFolder;

const OTHER: u32 = USER + 1;
const READS: u64 = 400;
const WRITES: u64 = 200;
const PIECE: u64 = 4_096;

/// Reads all over a file, with gaps between the pieces: none begins where another one ended. All
/// are asked for at once, so that the limit delays them however slow this machine is.
fn read_pieces(proxy: &Proxy) {
    fs::write(proxy.data().join("big"), vec![7; ((2 * READS + 1) * PIECE) as usize]).unwrap();
    let mut client = proxy.client_of("x?job=dd.1", USER);
    client.open_name(1, "big", 0).unwrap();
    // One that begins where the file does is none of those.
    let offsets = (0..READS).map(|nth| (2 * nth + 1) * PIECE);
    let piece = |offset| Request::Read { fid: Fid(1), offset, count: PIECE as u32 };
    let tags: Vec<_> = offsets.map(|offset| client.send(&piece(offset))).collect();
    for tag in tags {
        let frame = client.wait(tag);
        let Ok(Reply::Read { data }) = frame.reply() else { panic!("{frame:?}") };
        assert_eq!(data.len() as u64, PIECE);
    }
}

/// Writes lines one after the other.
fn write_lines(proxy: &Proxy) {
    let log = proxy.data().join("log");
    fs::write(&log, "").unwrap();
    fs::set_permissions(&log, PermissionsExt::from_mode(0o666)).unwrap();
    let mut client = proxy.client_of("x?job=logger", OTHER);
    client.open_name(1, "log", 1).unwrap();
    (0..WRITES).for_each(|nth| assert_eq!(client.write(1, nth * 100, &[7; 100]).unwrap(), 100));
}

fn names(report: &WireJobReport) -> Vec<&str> {
    report.patterns.iter().map(|pattern| pattern.name.as_str()).collect()
}

#[test]
fn a_report_says_when_how_much_how_delayed_what_patterns_and_who_else_was_there() {
    let data = TestFolder::new();
    // All of it is of the clock's first minute.
    let mut controller = Clocked::start(&data.path().join("c"));
    controller.pass(Nanos::from_secs(50));
    let admin = controller.client();
    // 244 pieces a second.
    admin.set_rules(&limited(1_000_000)).unwrap();
    let proxy = proxy("report", "a", controller.url());
    let api = crate::controlled::api_of(&proxy);
    until("the rules have come", || !api.rules().unwrap().rules.is_empty());
    write_lines(&proxy);
    read_pieces(&proxy);
    let of = |job: &str| admin.job_report(job, "from=-10min").ok();
    until("everything was counted", || {
        let all = |job| of(job).map(|report| report.counters);
        all("dd.1").is_some_and(|all| all.reads.sizes == [0, READS, 0, 0])
            && all("logger").is_some_and(|all| all.writes.sizes[0] == WRITES)
    });

    let report = of("dd.1").unwrap();
    assert_eq!(report.counters.read_bytes, READS * PIECE);
    assert_eq!(report.counters.reads.random, READS, "none began where another one ended");
    assert_eq!(
        (report.users.as_slice(), report.counters.ops_of(model::OpKind::Read)),
        (&[USER][..], READS)
    );
    assert!(report.counters.delayed > READS / 2, "{report:#?}");
    assert_eq!(report.undelayed, None, "it was never seen without a limit");
    let limit = &report.delay_causes[0];
    assert!(report.delay_causes_known && limit.what.contains("the limit of rule jobs"));
    assert!(limit.is_limit && limit.requests > READS / 2, "{:?}", report.delay_causes);
    // Reads wait from the first debt to the last read.
    let delayed = [limit.span_ns, report.delayed_span_ns];
    assert!(delayed.iter().all(|span| *span > 1_400_000_000), "{report:#?}");
    assert!(report.delayed_span_ns <= report.active_ns, "{report:#?}");
    let beside: Vec<_> = report.others.iter().map(|other| (&*other.job, other.bytes)).collect();
    assert_eq!((beside, report.others_count), (vec![("logger", WRITES * 100)], 1));
    let all = READS * PIECE + WRITES * 100;
    assert_eq!(u64::from(report.coverage_ppm), READS * PIECE * 1_000_000 / all);
    assert_eq!(names(&report), ["small-random-reads", "small-reads"]);
    assert!(report.to_s > report.from_s && report.to_s <= report.at_s, "{report:#?}");
    assert_eq!(report.points.iter().map(|point| point.read_bytes).sum::<u64>(), READS * PIECE);
    // The limit lets the burst through at once, and the rest of 1.6 MB at 1 MB/s.
    assert!(report.active_ns > 1_400_000_000, "{report:#?}");
    assert!(report.achieved_per_s < 1_200_000, "{report:#?}");
    assert_eq!(report.caveats, ["The last minute is not over yet."]);

    let log = of("logger").unwrap();
    assert_eq!((names(&log), log.counters.writes.random), (vec!["small-writes"], 0));
    assert_eq!((log.users.as_slice(), log.counters.delayed), (&[OTHER][..], 0));

    // People see the same.
    let picture = data.path().join("job.svg");
    let words = ["report", "--job", "dd.1", "--controller", controller.url(), "--svg"];
    let text = sluice(&[&words[..], &[picture.to_str().unwrap()]].concat()).unwrap();
    for line in [
        "Job dd.1 of user 1000: 20",
        "It read 1.63 MB in 400 operations and wrote 0 B in 0.",
        "Limits delayed it for ",
        "  the limit of rule jobs (jobid=dd.1): ",
        "Of 400 reads with data 100 % below 64 KiB; 0 % began at the end of a previous one.",
        "98 % were its own; 1 other job: logger 1 %.",
        "Pattern small-random-reads: ",
        "copy the file into memory",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("Job dd.1"), "{svg}");
    let json = sluice(&[&words[..5], &["--json", "--since", "1h"]].concat()).unwrap();
    let read: WireJobReport = serde_json::from_str(&json).unwrap();
    assert_eq!((read.counters, read.patterns), (report.counters, report.patterns));

    refusals(&controller);
}

/// What is asked wrongly, and what is none of one's business.
fn refusals(controller: &Clocked) {
    let admin = controller.client();
    for (job, query, code, at) in [
        ("nobody", "", ErrorCode::NotFound, "job"),
        ("dd.1", "from=-2h&to=-1h", ErrorCode::NotFound, "job"),
        ("dd.1", "from=now&to=-1h", ErrorCode::InvalidArgument, "from"),
        ("dd.1", "from=yesterday", ErrorCode::InvalidArgument, "from"),
        ("dd.1", "since=1h", ErrorCode::InvalidArgument, "since"),
    ] {
        let error = admin.job_report(job, query).unwrap_err();
        assert_eq!((error.code(), error.at()), (code, Some(at)), "{job} {query}: {error}");
    }
    let words = ["report", "--job", "nobody", "--controller", controller.url()];
    assert!(sluice(&words).unwrap_err().contains("job \"nobody\" had no requests"));

    let new = |name: &str, role, user| NewToken { name: name.into(), role, user, expires_s: None };
    let root = admin.make_token(&new("root", Role::Admin, None)).unwrap().token;
    let root = client(controller.url(), &showing(&root));
    let of = |name: &str, user| {
        let token = root.make_token(&new(name, Role::User, Some(user))).unwrap().token;
        client(controller.url(), &showing(&token)).with_time_limit(PATIENCE)
    };
    let (owner, other) = (of("ann", USER), of("bob", OTHER));
    assert_eq!(owner.job_report("dd.1", "").unwrap().users, [USER]);
    let error = other.job_report("dd.1", "").unwrap_err();
    assert_eq!((error.code(), error.at()), (ErrorCode::PermissionDenied, Some("job")));
    assert_eq!(other.job_report("logger", "").unwrap().users, [OTHER]);
}
