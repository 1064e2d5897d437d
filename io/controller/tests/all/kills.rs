//! A controller on SQLite is killed in the middle: what it acknowledged is there.
//!
//! The controller is this test's own program, started a second time.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use controller::ledger::{Ledger, LedgerBounds, Retention, SubjectKind};
use controller::store::{Revision, SqliteStore, Store};
use controller::{DataDirectory, DirectoryError};
use model::{Service, Time};
use testkit::{TestFolder, account_subject, again};
use usage::{UsageLine, UsageReport};

const DIRECTORY: &str = "CONTROLLER_TEST_DIRECTORY";
const KILLS: usize = 8;
const MINUTE_NS: u64 = 60_000_000_000;

/// Runs as a process of its own: appends and commits until it is killed.
#[test]
#[ignore = "is started by the other tests of this file"]
fn controller() {
    let Some(path) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let directory = DataDirectory::open(&path).unwrap();
    let mut store = open_store(directory.path());
    let mut ledger = open_ledger(directory.path());
    let history = store.load(Revision::ZERO).unwrap();
    let mut newest = history.newest().unwrap_or_default();
    println!("\nready");
    // counters and the clock go on where the ledger left off, as a proxy's would
    let mut minute = 1 + minutes_kept(&mut ledger);
    loop {
        newest = store.append(newest, format!("record {}", newest.next()).as_bytes()).unwrap();
        println!("record {newest}");
        if newest.get().is_multiple_of(20) {
            let state = format!("up to {newest}");
            store.snapshot(newest, state.as_bytes()).unwrap();
        }
        report(&mut ledger, minute);
        ledger.tick(time(minute)).unwrap();
        if ledger.tick(time(minute + 1)).unwrap() {
            println!("minute {minute}");
        }
        minute += 1;
    }
}

#[test]
fn what_a_killed_controller_acknowledged_is_there() {
    let folder = TestFolder::new();
    let (mut records, mut minutes) = (0, 0);
    for kill in 0..KILLS {
        let (mut child, mut printed) = start(folder.path());
        let (records_before, minutes_before) = (records, minutes);
        // each time a little later in its doings
        for _ in 0..10 + kill * 7 {
            let line = next_line(&mut printed);
            note(&line, &mut records, &mut minutes);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        printed.lines().map_while(Result::ok).for_each(|line| {
            note(&line, &mut records, &mut minutes);
        });
        assert!(records > records_before && minutes > minutes_before, "it did nothing");

        let history = open_store(folder.path()).load(Revision::ZERO).unwrap();
        let newest = history.newest().unwrap().get();
        assert!(newest == records || newest == records + 1, "{newest} kept, {records} told");
        for record in &history.records {
            assert_eq!(record.body, format!("record {}", record.revision).as_bytes());
        }
        let kept = minutes_kept(&mut open_ledger(folder.path()));
        assert!(kept == minutes || kept == minutes + 1, "{kept} kept, {minutes} told");
        (records, minutes) = (newest, kept);
    }
    // the last minute's report comes again, cumulative: it adds only what is new
    let mut ledger = open_ledger(folder.path());
    report(&mut ledger, minutes);
    report(&mut ledger, minutes + 5);
    assert_eq!(minutes_kept(&mut ledger), minutes + 5);
}

#[test]
fn a_second_controller_on_the_directory_is_refused_until_the_first_is_dead() {
    let folder = TestFolder::new();
    let (mut child, _printed) = start(folder.path());
    let error = DataDirectory::open(folder.path()).unwrap_err();
    assert!(matches!(error, DirectoryError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&child.id().to_string()), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    DataDirectory::open(folder.path()).unwrap();
}

/// Starts the controller, and reads on until it is ready.
fn start(directory: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut command = again(module_path!(), "controller");
    let mut child = command.env(DIRECTORY, directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    while next_line(&mut printed) != "ready" {}
    (child, printed)
}

fn next_line(printed: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert!(printed.read_line(&mut line).unwrap() > 0, "the controller ended");
    line.trim().to_string()
}

fn note(line: &str, records: &mut u64, minutes: &mut u64) {
    match line.split_once(' ') {
        Some(("record", number)) => *records = number.parse().unwrap(),
        Some(("minute", number)) => *minutes = number.parse().unwrap(),
        _ => {}
    }
}

fn open_store(directory: &Path) -> SqliteStore {
    SqliteStore::open(&directory.join("store.db")).unwrap()
}

fn open_ledger(directory: &Path) -> Ledger {
    let path = directory.join("ledger.db");
    Ledger::open(&path, Retention::default(), LedgerBounds::default(), time(0)).unwrap()
}

fn time(minute: u64) -> Time {
    Time::from_nanos(minute * MINUTE_NS)
}

/// A proxy that has read one byte a minute since it began.
fn report(ledger: &mut Ledger, minute: u64) {
    let service = Service { read_bytes: minute, ..Service::default() };
    let subject = account_subject("dd.7", 7).into();
    let report = UsageReport {
        sequence: minute,
        total: service,
        lines: vec![UsageLine { id: 1, subject, service }],
        dropped_lines: vec![],
    };
    ledger.report("p1", 1, &report, time(minute)).unwrap();
}

/// The bytes of the job: as many as minutes.
fn minutes_kept(ledger: &mut Ledger) -> u64 {
    let sums = ledger.sums_by(SubjectKind::Job, time(0), time(1_000_000)).unwrap();
    sums.get("dd.7").map_or(0, |sums| sums.read_bytes)
}
