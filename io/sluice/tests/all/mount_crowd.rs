//! A node with a thousand processes, all at once at work on one mount.
//!
//! ```text
//!   1,000 processes ─ wait for the word ─► make, write, read back, rename, look ─► ok
//!                                           │ by ten jobs
//!                                           ▼
//!                          sluice mount: its threads and descriptors are counted meanwhile
//! ```
//!
//! The mount may have 1,024 descriptors. Of those a quarter is for threads that it remembers, so
//! it must forget most of the thousand.

#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{PATIENCE, Setup, root_here, skip, status_of, until};
use crate::posix_pair::Mounted;
use rustix::fs::{CWD, FileType, Mode};

const CROWD: usize = 1000;
const DESCRIPTORS: usize = 1024;
/// Beyond those it has when idle: four may read environments that do not answer.
const MORE_THREADS: usize = 4;

/// What each process does: `sh` with the mount, a folder beside it, and how many there are. Its
/// name is a number.
const SCRIPT: &str = "exec 7<> \"$2/go\"\n\
    one() {\n\
        echo >> \"$2/ready\"; read -r word <&7\n\
        echo \"content of $i\" > \"$1/new$i\" || return\n\
        read -r back < \"$1/new$i\" && [ \"$back\" = \"content of $i\" ] || return\n\
        SLURM_JOB_ID=$((i % 10)) mv \"$1/new$i\" \"$1/moved$i\" || return\n\
        [ -s \"$1/moved$i\" ] && [ ! -e \"$1/new$i\" ] && echo ok > \"$2/$i\"\n\
    }\n\
    i=0\n\
    while [ $i -lt $3 ]; do one \"$@\" & i=$((i + 1)); done\n\
    wait";

/// How many threads and descriptors a process has.
fn has(process: u32) -> (usize, usize) {
    let threads = status_of(&format!("/proc/{process}/status"), "Threads:").parse().unwrap();
    (threads, fs::read_dir(format!("/proc/{process}/fd")).unwrap().count())
}

/// The crowd, once all of it waits for the word.
fn crowd(mount: &Path, beside: &Path) -> Child {
    fs::create_dir(beside).unwrap();
    rustix::fs::mknodat(CWD, beside.join("go"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "crowd"]).args([mount, beside]).arg(CROWD.to_string());
    let crowd = command.stdin(Stdio::null()).spawn().unwrap();
    until("all are there", || {
        fs::metadata(beside.join("ready")).is_ok_and(|ready| ready.len() == CROWD as u64)
    });
    crowd
}

#[test]
fn a_thousand_processes_use_one_mount_at_once() {
    if !root_here() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return skip("no /dev/fuse here");
    }
    let proxy = Setup::new("crowd").top("squash = \"none\"").start();
    let mount = Mounted::with_descriptors(&proxy, "mount", "", DESCRIPTORS);
    let (process, beside) = (mount.process(), proxy.dir.join("beside"));
    let before = has(process);
    let mut crowd = crowd(mount.at(), &beside);
    // A process takes one line, byte by byte.
    let mut go = OpenOptions::new().write(true).open(beside.join("go")).unwrap();
    go.write_all(&[b'\n'; CROWD]).unwrap();
    let mut most = before;
    let began = std::time::Instant::now();
    let ended = loop {
        if let Some(status) = crowd.try_wait().unwrap() {
            break status;
        }
        let now = has(process);
        most = (most.0.max(now.0), most.1.max(now.1));
        if began.elapsed() > 3 * PATIENCE {
            crowd.kill().unwrap();
        }
    };
    assert!(ended.success(), "{ended}");
    println!("threads and descriptors: {before:?} before, {most:?} at most");
    for number in 0..CROWD {
        let said = fs::read_to_string(beside.join(number.to_string()));
        assert_eq!(said.ok().as_deref(), Some("ok\n"), "process {number}");
        let there = fs::read_to_string(proxy.data().join(format!("moved{number}"))).unwrap();
        assert_eq!(there, format!("content of {number}\n"));
    }
    assert!(most.0 <= before.0 + MORE_THREADS, "{most:?} threads and descriptors, {before:?}");
    assert!(most.1 <= before.1 + DESCRIPTORS / 2, "{most:?} threads and descriptors, {before:?}");
    // Others are served afterwards, and find what the crowd made.
    fs::write(mount.join("afterwards"), "served").unwrap();
    assert_eq!(fs::read(mount.join("afterwards")).unwrap(), b"served");
    assert_eq!(fs::read_dir(mount.at()).unwrap().count(), CROWD + 1);
}
