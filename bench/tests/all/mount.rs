//! `sluice-bench mount`, shortened: what it writes, and that nothing of it stays behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::BENCH;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{root_here, skip, until};

/// Where a bench runs: `disk` for what it makes, and `out` for its report.
struct Place {
    dir: PathBuf,
}

impl Place {
    /// None, said aloud, where nothing can be mounted.
    fn new(name: &str) -> Option<Place> {
        if !root_here() {
            return None;
        }
        if !Path::new("/dev/fuse").exists() {
            skip("no /dev/fuse here");
            return None;
        }
        let name = format!("bench-mount-{}-{name}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("disk")).unwrap();
        Some(Place { dir: dir.canonicalize().unwrap() })
    }

    fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    fn bench(&self, more: &[&str]) -> Command {
        let mut command = Command::new(BENCH);
        command.args(["mount", "--quick", "--dir"]).arg(self.disk());
        command.arg("--out").arg(self.dir.join("out")).args(more);
        command
    }

    fn report(&self) -> Value {
        let text = fs::read_to_string(self.dir.join("out/mount.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The processes whose command line names what is served or where it is mounted.
    fn processes(&self, word: &str) -> Vec<u32> {
        let place = format!("{}/", self.disk().display());
        let is_ours = |pid: &u32| {
            let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"));
            let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
            line.contains(&place) && line.contains(word)
        };
        let entries = fs::read_dir("/proc").unwrap();
        let number = |name: std::ffi::OsString| name.to_str()?.parse::<u32>().ok();
        let pids = entries.filter_map(|entry| number(entry.unwrap().file_name()));
        pids.filter(is_ours).collect()
    }

    fn assert_nothing_is_left(&self) {
        until("its processes are gone", || self.processes("").is_empty());
        assert_eq!(fs::read_dir(self.disk()).unwrap().count(), 0);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(self.disk().to_str().unwrap()), "{table}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A bench that is killed if its test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The medians of a line of the table.
fn medians<'r>(report: &'r Value, what: &str) -> &'r Value {
    let figures = report["figures"].as_array().unwrap();
    let figure = figures.iter().find(|figure| figure["what"].as_str().unwrap().contains(what));
    &figure.unwrap_or_else(|| panic!("no {what} in {report}"))["medians"]
}

#[test]
fn each_contender_gets_a_figure_and_nothing_is_left_behind() {
    let Some(place) = Place::new("names") else { return };
    let output =
        place.bench(&["--only", "cold", "--who", "native,sluice-unix,bare"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = place.report();
    for (what, who) in [
        ("sequential read, cold, 1 job", &["native", "sluice-unix", "bare"][..]),
        ("find", &["native", "sluice-unix"]),
        ("ls -l", &["native", "sluice-unix"]),
    ] {
        let medians = medians(&report, what).as_object().unwrap();
        let mut measured: Vec<&str> = medians.keys().map(String::as_str).collect();
        let mut expected = who.to_vec();
        measured.sort_unstable();
        expected.sort_unstable();
        assert_eq!(measured, expected, "{what}: {report}");
        assert!(medians.values().all(|value| value.as_f64().unwrap() > 0.0), "{medians:?}");
    }
    assert_eq!(report["notes"], Value::Array(vec![]));
    let find = &report["figures"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["what"].as_str().unwrap().starts_with("find"));
    let trips = find.unwrap()["requests_per_name"]["sluice-unix"].as_f64().unwrap();
    // A directory at a time and not a file at a time.
    assert!(trips > 0.0 && trips < 0.5, "{trips} requests for each name");
    place.assert_nothing_is_left();
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    let Some(place) = Place::new("interrupted") else { return };
    // Long enough that it cannot end by itself before it is told to.
    let mut command = Command::new(BENCH);
    command.args(["mount", "--only", "random read, direct, 1 job", "--time", "1h"]);
    command.args(["--who", "sluice-tcp", "--dir"]).arg(place.disk());
    let mut bench = Running(command.arg("--out").arg(&place.dir).spawn().unwrap());
    until("fio works on the mount", || !place.processes("at-sluice-tcp/bench-data").is_empty());
    kill_process(Pid::from_child(&bench.0), Signal::INT).unwrap();
    assert_eq!(bench.0.wait().unwrap().code(), Some(1));
    place.assert_nothing_is_left();
    assert!(!place.dir.join("mount.json").exists());
}

#[test]
fn a_name_that_no_case_has_is_refused_and_leaves_nothing() {
    let Some(place) = Place::new("none") else { return };
    let output = place.bench(&["--only", "no such case"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    place.assert_nothing_is_left();
}
