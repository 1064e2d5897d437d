//! Figures of mounts, shortened: what is printed, and that nothing of a run stays behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::BENCH;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{root_here, skip, until};

/// The directory of a bench, with `disk` for what it makes.
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
        command.args(["figures", "run", "--json", "--dir"]).arg(self.disk()).args(more);
        command
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

#[test]
fn each_contender_gets_a_figure_and_nothing_is_left_behind() {
    let Some(place) = Place::new("names") else { return };
    let rows = ["mount/seqread-1m-1", "mount/find", "mount/ls-l"];
    let who = ["--quick", "--who", "native,sluice-unix,bare"];
    let output = place.bench(&[&rows[..], &who].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (row, measure, who) in [
        (rows[0], "mb_per_s", &["bare", "native", "sluice-unix"][..]),
        (rows[1], "s", &["native", "sluice-unix"]),
        (rows[2], "s", &["native", "sluice-unix"]),
    ] {
        let rounds = report[row]["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 1, "{report}");
        let samples = rounds[0]["samples"].as_object().unwrap();
        assert_eq!(samples.keys().map(String::as_str).collect::<Vec<_>>(), who, "{row}: {report}");
        assert!(samples.values().all(|sample| sample[measure].as_f64().unwrap() > 0.0), "{report}");
        assert_eq!(report[row]["failed"], Value::Null);
    }
    let find = &report["mount/find"]["rounds"][0]["samples"]["sluice-unix"];
    let trips = find["requests_per_name_ratio"].as_f64().unwrap();
    // A directory at a time and not a file at a time.
    assert!(trips > 0.0 && trips < 0.5, "{trips} requests for each name");
    place.assert_nothing_is_left();
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    let Some(place) = Place::new("interrupted") else { return };
    // Long enough that it cannot end by itself before it is told to.
    let words = ["mount/randread-4k-1", "--span", "1h", "--who", "sluice-tcp"];
    let mut bench = Running(place.bench(&words).spawn().unwrap());
    until("fio works on the mount", || !place.processes("at-sluice-tcp/bench-data").is_empty());
    kill_process(Pid::from_child(&bench.0), Signal::INT).unwrap();
    assert_eq!(bench.0.wait().unwrap().code(), Some(1));
    place.assert_nothing_is_left();
}

#[test]
fn a_name_that_no_row_has_is_refused_and_leaves_nothing() {
    let Some(place) = Place::new("none") else { return };
    let output = place.bench(&["no such row"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("no row and no group is named no such row"), "{told}");
    place.assert_nothing_is_left();
}
