//! A proxy that records, and `sluice trace` on what it recorded: every request is there,
//! with its kind, its place, its size and how it ended.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{P9Client, Proxy, SLUICE, Setup, Tmpfs, USER, until};
use ninep::{Fid, LOCK_BLOCK, LockKind, NONUNAME, Request, Tag};
use rustix::process::Signal;
use serde_json::Value;

const ENOENT: u64 = 2;
const EBADF: u64 = 9;
const EINVAL: u64 = 22;
/// The requests of [`work`], attaches included.
const WORK: usize = 23;

/// A recording proxy with a class for each job.
fn recording(name: &str) -> (Proxy, PathBuf) {
    let rules = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
    let proxy = Setup::new(name).top("trace = \"t.slt\"").rules(rules).start();
    let trace = proxy.dir.join("t.slt");
    (proxy, trace)
}

/// Two jobs at work, one request after the other.
fn work(proxy: &Proxy) {
    let mut writer = proxy.client_of("x?job=writer", USER);
    writer.make(1, "file");
    for offset in [0, 4096, 8192] {
        assert_eq!(writer.write(1, offset, &[7; 4096]), Ok(4096));
    }
    assert_eq!(writer.write(1, 100, b"short"), Ok(5));
    writer.done(&Request::Fsync { fid: Fid(1), datasync: 0 }).unwrap();
    writer.stat(1).unwrap();
    writer.stat(0).unwrap();

    let mut reader = proxy.client_of("x?job=reader", USER);
    reader.open_name(1, "file", ninep::open::RDONLY).unwrap();
    for (offset, len) in [(0, 4096), (4096, 4096), (4096, 4096), (12_000, 288), (0, 4096)] {
        assert_eq!(reader.read(1, offset, 4096).unwrap().len(), len);
    }
    assert_eq!(reader.write(1, 0, b"x"), Err(EBADF as u32));
    assert_eq!(reader.walk(0, 2, &["none"]), Err(ENOENT as u32));
    reader.clunk(1).unwrap();
    writer.clunk(1).unwrap();
    writer.unlink(0, "file", 0).unwrap();
}

/// How many requests a trace has by now.
fn recorded(file: &Path) -> usize {
    ::proxy::TraceReader::open(file).unwrap().count()
}

fn trace(file: &Path, flags: &[&str]) -> Output {
    Command::new(SLUICE).arg("trace").arg(file).args(flags).output().unwrap()
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that `sluice trace --json` prints; the last is the summary.
fn objects(file: &Path, flags: &[&str]) -> (Vec<Value>, Value) {
    let text = text(trace(file, &[flags, &["--json"]].concat()));
    let mut all: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = all.pop().unwrap()["summary"].take();
    (all, summary)
}

fn counts(records: &[Value], job: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for record in records.iter().filter(|record| record["job"] == job) {
        *counts.entry(record["kind"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn expected(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(kind, count)| (kind.to_string(), *count)).collect()
}

/// The offset classes and sizes of one job's reads or writes, in their order.
fn accesses(records: &[Value], job: &str, kind: &str) -> Vec<(String, u64)> {
    let own = records.iter().filter(|record| record["job"] == job && record["kind"] == kind);
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|record| record["t_ns"].as_u64());
    let access = |r: &&Value| (r["offset"].as_str().unwrap().into(), r["bytes"].as_u64().unwrap());
    own.iter().map(access).collect()
}

#[test]
fn every_request_is_in_the_trace_and_in_its_sums() {
    let (mut proxy, file) = recording("trace");
    work(&proxy);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));
    let (records, summary) = objects(&file, &[]);

    let writer = [("attach", 1), ("walk", 1), ("create", 1), ("write", 4), ("fsync", 1)];
    let writer = [&writer[..], &[("getattr", 2), ("clunk", 1), ("unlink", 1)]].concat();
    let writer = expected(&writer);
    assert_eq!(counts(&records, "writer"), writer);
    let reader = [("attach", 1), ("walk", 2), ("open", 1), ("read", 5), ("write", 1), ("clunk", 1)];
    assert_eq!(counts(&records, "reader"), expected(&reader));
    assert_eq!(records.len(), WORK);

    let is = |class: &str, bytes| (class.to_owned(), bytes);
    let follows = is("sequential", 4096);
    assert_eq!(
        accesses(&records, "writer", "write"),
        [follows.clone(), follows.clone(), follows.clone(), is("backward", 5)]
    );
    assert_eq!(
        accesses(&records, "reader", "read"),
        [follows.clone(), follows, is("same", 4096), is("forward", 288), is("backward", 4096)]
    );
    let errors: Vec<_> = records.iter().filter(|r| r["errno"] != 0).collect();
    assert_eq!(errors.len(), 2);
    assert_eq!((&errors[0]["kind"], &errors[0]["errno"]), (&"write".into(), &EBADF.into()));
    assert_eq!((&errors[1]["kind"], &errors[1]["errno"]), (&"walk".into(), &ENOENT.into()));
    for record in &records {
        assert_eq!(record["uid"], USER);
        assert_eq!((&record["nid"], &record["export"]), (&"127.0.0.1@tcp".into(), &"x".into()));
        assert!(record["service_ns"].as_u64().unwrap() > 0);
        assert_eq!(record["cancelled"], false);
    }

    assert_eq!((&summary["requests"], &summary["dropped"]), (&WORK.into(), &0.into()));
    assert_eq!(summary["cut"], false);
    let rows = summary["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let row = |job: &str| rows.iter().find(|row| row["name"] == job).unwrap();
    assert_eq!((&row("writer")["requests"], &row("writer")["errors"]), (&12.into(), &0.into()));
    assert_eq!(row("writer")["written_bytes"], 3 * 4096 + 5);
    assert_eq!((&row("reader")["requests"], &row("reader")["errors"]), (&11.into(), &2.into()));
    assert_eq!(row("reader")["read_bytes"], 4 * 4096 + 288);
}

#[test]
fn what_is_refused_before_it_waits_for_a_turn_is_in_the_trace() {
    let (mut proxy, file) = recording("trace-refused");
    let mut client = proxy.connect();
    let msize = client.version(1 << 20);
    assert_eq!(client.attach(0, "none?job=a", USER), Err(ENOENT as u32));
    assert_eq!(client.read(7, 0, 4096), Err(EBADF as u32));
    client.attach(0, "x?job=a", USER).unwrap();
    client.make(1, "f");
    assert_eq!(client.read(1, 4096, msize), Err(EINVAL as u32));
    assert_eq!(client.walk(0, 2, &["a/b"]), Err(EINVAL as u32));
    let (uname, aname) = (&b"u"[..], &b"x"[..]);
    let auth = Request::Auth { afid: Fid(9), uname, aname, n_uname: NONUNAME };
    assert_eq!(client.done(&auth), Err(ENOENT as u32));
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));

    let (records, summary) = objects(&file, &[]);
    let is = |kind: &str, errno: u64, uid: Value, export: &str, asked: u64| {
        (kind.to_owned(), errno, uid, export.to_owned(), asked)
    };
    let seen: Vec<_> = records
        .iter()
        .filter(|r| r["errno"] != 0)
        .map(|r| {
            let text = |key: &str| r[key].as_str().unwrap().to_owned();
            let number = |key: &str| r[key].as_u64().unwrap();
            assert_eq!(
                (text("nid"), number("ops"), number("bytes")),
                ("127.0.0.1@tcp".into(), u64::from(r["kind"] == "attach"), 0)
            );
            (
                text("kind"),
                number("errno"),
                r["uid"].clone(),
                text("export"),
                number("requested_bytes"),
            )
        })
        .collect();
    let expected = [
        is("attach", ENOENT, Value::Null, "", 0),
        is("read", EBADF, Value::Null, "", 4096),
        is("read", EINVAL, USER.into(), "x", msize.into()),
        is("walk", EINVAL, Value::Null, "", 0),
    ];
    assert_eq!(seen, expected);
    // The attach, the walk and the create that went well, and nothing of Tauth.
    assert_eq!(records.len(), 3 + expected.len());
    assert_eq!(records.iter().filter(|r| r["offset"] == "forward").count(), 1);
    assert_eq!(summary["rows"].as_array().unwrap().len(), 2);
    let lines = text(trace(&file, &[]));
    assert!(lines.lines().any(|l| l.contains("  -  127.0.0.1@tcp") && l.ends_with("ENOENT")));
}

#[test]
fn what_its_client_gives_up_is_cancelled_and_counts_for_the_order_of_accesses() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = { kinds = [\"read\"], rate = \"100B/s\" }\n";
    let mut proxy = Setup::new("trace-cancelled").top("trace = \"t.slt\"").rules(rules).start();
    let file = proxy.dir.join("t.slt");
    let mut client = proxy.client();
    client.make(1, "f");
    client.write(1, 0, &[7; 16384]).unwrap();
    let read = |offset| Request::Read { fid: Fid(1), offset, count: 4096 };
    client.done(&read(0)).unwrap();
    let oldtag = client.send(&read(4096));
    client.done(&Request::Flush { oldtag }).unwrap();
    client.send(&read(8192));
    client.stat(0).unwrap();
    // A new session, and one that ends with its connection.
    client.version(1 << 20);
    client.attach(0, "x", USER).unwrap();
    client.open_name(1, "f", ninep::open::RDONLY).unwrap();
    client.send(&read(0));
    client.stat(0).unwrap();
    drop(client);
    let recorded = || objects(&file, &[]).0;
    let cancelled = |records: &[Value]| records.iter().filter(|r| r["cancelled"] == true).count();
    until("the end of the connection is in the trace", || cancelled(&recorded()) == 3);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));

    let (records, summary) = objects(&file, &[]);
    let mut reads: Vec<_> = records.iter().filter(|r| r["kind"] == "read").collect();
    reads.sort_by_key(|record| record["t_ns"].as_u64());
    let ends: Vec<_> =
        reads.iter().map(|r| (r["offset"].as_str().unwrap(), r["cancelled"] == true)).collect();
    // The first reads what was written through its fid.
    let is = |access| (access, true);
    let expected = [("same", false), is("sequential"), is("sequential"), is("sequential")];
    assert_eq!(ends, expected);
    for record in &reads[1..] {
        assert_eq!((&record["errno"], &record["service_ns"]), (&0.into(), &0.into()));
        assert_eq!((&record["bytes"], &record["ops"]), (&0.into(), &0.into()));
        assert_eq!(record["requested_bytes"], 4096);
        assert!(record["queue_ns"].as_u64().unwrap() > 0);
    }
    let row = &summary["rows"][0];
    assert_eq!((&row["cancelled"], &row["errors"]), (&3.into(), &0.into()));
    assert!(text(trace(&file, &[])).lines().any(|line| line.ends_with("  cancelled")));
}

/// Opens `f` and asks for all of it; when this returns, the lock has been tried once.
fn wait_for_lock(client: &mut P9Client, fid: u32) -> Tag {
    client.open_name(fid, "f", ninep::open::RDWR).unwrap();
    let range = (0, 0);
    let lock = P9Client::lock_request(fid, LockKind::Write, range, ("w", fid), LOCK_BLOCK);
    let tag = client.send(&lock);
    client.stat(0).unwrap();
    tag
}

#[test]
fn locks_that_wait_are_in_the_trace_once_however_they_end() {
    let (mut proxy, file) = recording("trace-locks");
    let mut holder = proxy.client_of("x?job=holder", USER);
    holder.make(1, "f");
    let (write, unlock, all) = (LockKind::Write, LockKind::Unlock, (0, 0));
    let mut waiter = proxy.client_of("x?job=waiter", USER);
    holder.lock(1, write, all, ("h", 1)).unwrap();
    let granted = wait_for_lock(&mut waiter, 1);
    holder.lock(1, unlock, all, ("h", 1)).unwrap();
    waiter.wait(granted).reply().unwrap();
    waiter.clunk(1).unwrap();

    holder.lock(1, write, all, ("h", 1)).unwrap();
    let [flushed, closed, ..] = [2, 3, 4, 5].map(|fid| wait_for_lock(&mut waiter, fid));
    waiter.done(&Request::Flush { oldtag: flushed }).unwrap();
    waiter.clunk(3).unwrap();
    assert_eq!(waiter.wait(closed).reply(), Err(EBADF as u32));
    waiter.version(1 << 20);
    waiter.attach(0, "x?job=waiter", USER).unwrap();
    wait_for_lock(&mut waiter, 6);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));

    let (records, _) = objects(&file, &[]);
    let locks = records.iter().filter(|r| r["kind"] == "lock" && r["job"] == "waiter");
    let mut locks: Vec<_> = locks.collect();
    locks.sort_by_key(|record| record["t_ns"].as_u64());
    let ends: Vec<_> =
        locks.iter().map(|r| (r["errno"].as_u64().unwrap(), r["cancelled"] == true)).collect();
    // Granted, flushed, closed, two of a session that ended, told that it is taken.
    let cancelled = (0, true);
    assert_eq!(ends, [(0, false), cancelled, (EBADF, false), cancelled, cancelled, (0, false)]);
    assert!(locks.iter().all(|record| record["service_ns"].as_u64().unwrap() > 0));
}

#[test]
fn a_trace_is_printed_by_lines_by_job_and_by_class() {
    let (mut proxy, file) = recording("trace-lines");
    work(&proxy);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));

    let all = text(trace(&file, &[]));
    let (lines, sums) = all.split_once("\n\n").unwrap();
    assert_eq!(lines.lines().count(), 1 + WORK);
    assert!(lines.lines().any(|line| line.ends_with("  ENOENT")), "{lines}");
    assert_eq!(text(trace(&file, &["--summary"])), sums);
    let some = text(trace(&file, &["--job", "reader", "--limit", "3"]));
    let (lines, sums) = some.split_once("\n\n").unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("  reader  ")).count(), 3);
    assert!(sums.contains("\nreader        11 ") && !sums.contains("writer"), "{sums}");

    let names = |by: &str| -> Vec<String> {
        let rows = objects(&file, &["--summary", "--by", by]).1["rows"].take();
        let rows = rows.as_array().unwrap().clone();
        rows.iter().map(|row| row["name"].as_str().unwrap().into()).collect()
    };
    // An attach waits for no turn and has no class.
    assert_eq!(names("class"), ["jobs jobid=writer", "jobs jobid=reader", "-"]);
    assert_eq!(names("user"), [USER.to_string()]);
    assert_eq!(names("client"), ["127.0.0.1@tcp"]);
    assert_eq!(names("export"), ["x"]);
}

#[test]
fn a_killed_proxy_leaves_what_is_older_than_a_second() {
    let (mut proxy, file) = recording("trace-killed");
    work(&proxy);
    until("what was recorded is written", || recorded(&file) == WORK);
    proxy.child.kill().unwrap();
    proxy.wait();
    let (records, summary) = objects(&file, &[]);
    assert_eq!((records.len(), &summary["cut"]), (WORK, &true.into()));
    assert!(
        text(trace(&file, &["--summary"]))
            .ends_with("the proxy was killed, or is still writing it\n")
    );
}

#[test]
fn a_disk_that_fills_up_loses_requests_until_there_is_room_again() {
    const ROUNDS: u64 = 60;
    let Some(disk) = Tmpfs::mount("trace-full", "1m") else { return };
    let file = disk.dir.join("t.slt");
    let top = format!("trace = \"{}\"", file.display());
    let mut proxy = Setup::new("trace-full-proxy").top(&top).start();
    work(&proxy);
    // Once a request is written, so is its class: what cannot be written from now on are requests.
    until("what was recorded is written", || recorded(&file) == WORK);
    let filler = disk.dir.join("filler");
    fs::write(&filler, vec![0; 2 << 20]).unwrap_err();
    for _ in 0..ROUNDS {
        work(&proxy);
    }
    proxy.told("cannot write the trace");
    fs::remove_file(&filler).unwrap();
    work(&proxy);
    proxy.told("writing the trace again");
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));
    let (records, summary) = objects(&file, &[]);
    let lost = summary["dropped"].as_u64().unwrap();
    assert_eq!(records.len() as u64 + lost, WORK as u64 * (ROUNDS + 2));
    assert!(lost > 0 && summary["cut"] == false, "{lost}");
    assert!(text(trace(&file, &["--summary"])).ends_with(" requests were not recorded\n"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (mut proxy, file) = recording("trace-pipe");
    work(&proxy);
    proxy.signal(Signal::TERM);
    proxy.wait();
    for flags in [&[][..], &["--json"]] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(SLUICE);
        let command = command.arg("trace").arg(&file).args(flags).stdout(Stdio::from(writer));
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    }
}

#[test]
fn a_file_that_is_no_trace_is_named_in_the_error() {
    let file = std::env::temp_dir().join(format!("sluice-no-trace-{}", std::process::id()));
    fs::write(&file, "[[rule]]\n").unwrap();
    let output = trace(&file, &[]);
    fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "sluice: {}: not a trace of sluice proxy --trace: it begins with \"[[rule]]\"\n",
            file.display()
        )
    );
}
