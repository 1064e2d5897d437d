//! `sluice-bench demo`, shortened: what it prints, and that nothing of it stays behind.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::BENCH;
use rustix::process::{Pid, Signal, kill_process};

/// Where a demo runs: `disk` for its data, and `run` for its sockets, whose paths must be short.
struct Place {
    disk: PathBuf,
    run: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("sluice-{}-{name}", std::process::id());
        let disk = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let run = std::env::temp_dir().join(&name);
        for dir in [&disk, &run] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir_all(dir).unwrap();
        }
        Place { disk, run }
    }

    fn picture(&self) -> PathBuf {
        self.disk.join("demo.svg")
    }

    fn demo(&self, more: &[&str]) -> Command {
        let mut command = Command::new(BENCH);
        command.arg("demo").args(more).arg("--dir").arg(&self.disk);
        command.arg("--out").arg(self.picture()).env("TMPDIR", &self.run);
        command
    }

    /// What lies in the place, by name.
    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in [&self.disk, &self.run] {
            let entries = fs::read_dir(dir).unwrap();
            names.extend(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
        }
        names
    }

    /// The processes whose command line names something of the place, as all of a demo's
    /// children's do.
    fn processes(&self) -> Vec<u32> {
        let place = format!("{}/", self.run.display());
        let names_place = |pid: &u32| {
            let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"));
            line.is_ok_and(|line| String::from_utf8_lossy(&line).contains(&place))
        };
        let entries = fs::read_dir("/proc").unwrap();
        let number = |name: std::ffi::OsString| name.to_str()?.parse::<u32>().ok();
        let pids = entries.filter_map(|entry| number(entry.unwrap().file_name()));
        pids.filter(names_place).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.disk);
        let _ = fs::remove_dir_all(&self.run);
    }
}

/// A demo that is killed if its test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn both_phases_and_jobs_are_reported_and_nothing_is_left_behind() {
    let place = Place::new("report");
    let output = place.demo(&["--quick", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut seen = Vec::new();
    for phase in report["phases"].as_array().unwrap() {
        for job in phase["jobs"].as_array().unwrap() {
            seen.push((phase["phase"].as_str().unwrap(), job["job"].as_str().unwrap()));
            // How many is a matter of the machine: a phase waits two minutes for the first and no more.
            let has_done = job["ops"].as_u64().unwrap() > 0;
            let moves = job["mb_per_sec"].as_f64().unwrap() > 0.0;
            assert_eq!(moves, has_done && job["job"] != "shell", "{job}");
            assert!(job["p50_us"].as_f64() <= job["p99_us"].as_f64(), "{job}");
            assert_eq!(job["errors"], 0, "{job}");
        }
    }
    let expected = [
        ("alone", "victim"),
        ("alone", "shell"),
        ("without rules", "victim"),
        ("without rules", "shell"),
        ("without rules", "bully"),
        ("with rules", "victim"),
        ("with rules", "shell"),
        ("with rules", "bully"),
    ];
    assert_eq!(seen, expected);
    assert!(report["rules"].as_str().unwrap().contains("match = \"jobid={bully}\""));
    assert_eq!(place.names(), ["demo.svg"]);
    testkit::until("its processes are gone", || place.processes().is_empty());
    let picture = fs::read_to_string(place.picture()).unwrap();
    assert!(picture.starts_with("<svg"), "{picture}");
}

#[test]
fn an_interrupt_in_the_middle_leaves_no_process_and_no_file() {
    let place = Place::new("interrupt");
    let mut command = place.demo(&["--seconds", "20"]);
    let mut demo = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    // Both jobs are at work when the first line of the phase with both appears; that one of them
    // has had something done in the last second is not said.
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    let both = lines.find(|line| line.as_ref().unwrap().starts_with("without rules "));
    assert!(both.is_some());
    // The proxy, a mount, two fios and a shell, and perhaps the tool that it runs.
    testkit::until("all of them are there", || place.processes().len() >= 5);
    kill_process(Pid::from_child(&demo.0), Signal::INT).unwrap();
    // Nobody reads the rest: the demo must not wait for that either.
    drop(lines);
    assert_eq!(demo.0.wait().unwrap().code(), Some(1));
    let mut stderr = String::new();
    std::io::Read::read_to_string(&mut demo.0.stderr.take().unwrap(), &mut stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "one line says why: {stderr}");
    assert_eq!(place.names(), Vec::<String>::new());
    testkit::until("its processes are gone", || place.processes().is_empty());
}
