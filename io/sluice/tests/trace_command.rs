//! A proxy that records, and `sluice trace` on what it recorded: every request is there,
//! with its kind, its place, its size and how it ended.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Proxy, SLUICE, Setup, Tmpfs, USER, until};
use ninep::{Fid, Request};
use rustix::process::Signal;
use serde_json::Value;

const ENOENT: u64 = 2;
const EBADF: u64 = 9;

/// A recording proxy with a class for each job.
fn recording(name: &str) -> (Proxy, PathBuf) {
    let rules = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
    let proxy = Setup::new(name).top("record = \"t.slt\"").rules(rules).start();
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

    let writer = [("walk", 1), ("create", 1), ("write", 4), ("fsync", 1), ("getattr", 2)];
    let writer = expected(&[&writer[..], &[("clunk", 1), ("unlink", 1)]].concat());
    assert_eq!(counts(&records, "writer"), writer);
    let reader = [("walk", 2), ("open", 1), ("read", 5), ("write", 1), ("clunk", 1)];
    assert_eq!(counts(&records, "reader"), expected(&reader));
    assert_eq!(records.len(), 21);

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
    }

    assert_eq!((&summary["requests"], &summary["lost"]), (&21.into(), &0.into()));
    assert_eq!(summary["cut"], false);
    let rows = summary["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let row = |job: &str| rows.iter().find(|row| row["name"] == job).unwrap();
    assert_eq!((&row("writer")["requests"], &row("writer")["errors"]), (&11.into(), &0.into()));
    assert_eq!(row("writer")["written_bytes"], 3 * 4096 + 5);
    assert_eq!((&row("reader")["requests"], &row("reader")["errors"]), (&10.into(), &2.into()));
    assert_eq!(row("reader")["read_bytes"], 4 * 4096 + 288);
}

#[test]
fn a_trace_is_printed_by_lines_by_job_and_by_class() {
    let (mut proxy, file) = recording("trace-lines");
    work(&proxy);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));

    let all = text(trace(&file, &[]));
    let (lines, sums) = all.split_once("\n\n").unwrap();
    assert_eq!(lines.lines().count(), 1 + 21);
    assert!(lines.lines().any(|line| line.ends_with("  ENOENT")), "{lines}");
    assert_eq!(text(trace(&file, &["--summary"])), sums);
    let some = text(trace(&file, &["--job", "reader", "--limit", "3"]));
    let (lines, sums) = some.split_once("\n\n").unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("  reader  ")).count(), 3);
    assert!(sums.contains("\nreader        10 ") && !sums.contains("writer"), "{sums}");

    let names = |by: &str| -> Vec<String> {
        let rows = objects(&file, &["--summary", "--by", by]).1["rows"].take();
        let rows = rows.as_array().unwrap().clone();
        rows.iter().map(|row| row["name"].as_str().unwrap().into()).collect()
    };
    assert_eq!(names("class"), ["jobs jobid=writer", "jobs jobid=reader"]);
    assert_eq!(names("user"), [USER.to_string()]);
    assert_eq!(names("client"), ["127.0.0.1@tcp"]);
    assert_eq!(names("export"), ["x"]);
}

#[test]
fn a_killed_proxy_leaves_what_is_older_than_a_second() {
    let (mut proxy, file) = recording("trace-killed");
    work(&proxy);
    let all = || -> Vec<_> { ::proxy::TraceReader::open(&file).unwrap().collect() };
    until("what was recorded is written", || all().len() == 21);
    proxy.child.kill().unwrap();
    proxy.wait();
    let (records, summary) = objects(&file, &[]);
    assert_eq!((records.len(), &summary["cut"]), (21, &true.into()));
    assert!(
        text(trace(&file, &["--summary"])).ends_with("the proxy was killed, or still writes it\n")
    );
}

#[test]
fn a_disk_that_fills_up_loses_requests_until_there_is_room_again() {
    const ROUNDS: u64 = 60;
    let Some(disk) = Tmpfs::mount("trace-full", "16k") else { return };
    let file = disk.dir.join("t.slt");
    let top = format!("record = \"{}\"", file.display());
    let mut proxy = Setup::new("trace-full-proxy").top(&top).start();
    let filler = disk.dir.join("filler");
    fs::write(&filler, [0; 1 << 20]).unwrap_err();
    for _ in 0..ROUNDS {
        work(&proxy);
    }
    proxy.told("cannot write the trace");
    fs::remove_file(&filler).unwrap();
    work(&proxy);
    proxy.told("can be written again");
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));
    let (records, summary) = objects(&file, &[]);
    let lost = summary["lost"].as_u64().unwrap();
    assert_eq!(records.len() as u64 + lost, 21 * (ROUNDS + 1));
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
            "sluice: {}: no trace of sluice proxy --record: it begins with \"[[rule]]\"\n",
            file.display()
        )
    );
}
