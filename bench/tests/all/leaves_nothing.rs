//! Nothing of a run stays behind, whichever way it ends: no file where it was started nor in
//! its temporary directory, no mount, no process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{TestFolder, root_here, skip, until};

use crate::BENCH;

/// A run with a current and a temporary directory of its own; killed if its test fails.
struct Run {
    folder: TestFolder,
    child: Child,
}

impl Run {
    fn start(words: &str) -> Run {
        let folder = TestFolder::new();
        let [here, tmp] = ["here", "tmp"].map(|name| folder.path().join(name));
        fs::create_dir(&here).unwrap();
        fs::create_dir(&tmp).unwrap();
        let child = Command::new(BENCH)
            .args(words.split_whitespace())
            .current_dir(here)
            .env("TMPDIR", tmp)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Run { folder, child }
    }

    /// Waits until a process with `word` in its command line works in the temporary directory.
    fn wait_for(&mut self, word: &str) {
        until(word, || {
            assert_eq!(self.child.try_wait().unwrap(), None, "it ended before {word}");
            self.processes().iter().any(|line| line.contains(word))
        });
    }

    fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        until("it ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// The command lines that name something of the run.
    fn processes(&self) -> Vec<String> {
        let place = format!("{}/", self.folder.path().display());
        let line = |dir: PathBuf| fs::read(dir.join("cmdline")).unwrap_or_default();
        let entries = fs::read_dir("/proc").unwrap().map(|entry| line(entry.unwrap().path()));
        let lines = entries.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        lines.filter(|line| line.contains(&place)).collect()
    }

    fn assert_nothing_is_left(&self) {
        until("its processes are gone", || self.processes().is_empty());
        assert_eq!(names(&self.folder.path().join("here")), [""; 0]);
        assert_eq!(names(&self.folder.path().join("tmp")), [""; 0]);
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(self.folder.path().to_str().unwrap()), "{mounts}");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether something can be mounted here; says so aloud if not.
fn can_mount() -> bool {
    if !Path::new("/dev/fuse").exists() {
        skip("no /dev/fuse here");
        return false;
    }
    root_here()
}

fn ends_by_itself(words: &str) {
    let mut run = Run::start(words);
    assert!(run.end().success(), "{words}");
    run.assert_nothing_is_left();
}

/// Sends the signal to the program alone, once there is a process with `word` in its line.
fn ends_by(signal: Signal, words: &str, word: &str) {
    let mut run = Run::start(words);
    run.wait_for(word);
    kill_process(Pid::from_child(&run.child), signal).unwrap();
    assert_eq!(run.end().code(), Some(1), "{words}");
    run.assert_nothing_is_left();
}

#[test]
fn of_a_guarantee_that_was_measured() {
    ends_by_itself("figures run cost/schedule-64k-cached --quick");
}

#[test]
fn of_a_demo_that_was_played() {
    if can_mount() {
        ends_by_itself("demo --quick");
    }
}

#[test]
fn of_a_guarantee_that_was_interrupted() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        ends_by(signal, "figures run limits --span 1h", " proxy ");
    }
}

#[test]
fn of_mounts_that_were_interrupted() {
    if can_mount() {
        ends_by(Signal::TERM, "figures run neighbour/cached-large --span 1h", "fio ");
    }
}

#[test]
fn of_a_demo_that_was_told_to_end() {
    if can_mount() {
        for signal in [Signal::TERM, Signal::HUP] {
            ends_by(signal, "demo --seconds 600", "fio ");
        }
    }
}

#[test]
fn of_a_comparison_that_was_told_to_end() {
    if can_mount() {
        let words = "figures run mount/randread* --span 1h --who sluice-unix";
        ends_by(Signal::TERM, words, "fio ");
        let words = "figures run peers/getattr-1x16 --span 1h";
        ends_by(Signal::INT, words, " proxy ");
    }
}
