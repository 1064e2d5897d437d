//! A job that waits for its limit delays nobody who only looks at what it writes, on the same mount.
//!
//! ```text
//!   slow job: dd ─► answered, behind ─► waits for its limit, for hours
//!   others: ls, stat, open, read elsewhere in the file ─► as if it were executed
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};

use api::{Why, WireDonation};

use crate::common::{Proxy, SLUICE, until};
use crate::mounted::{Mounted, can_mount, finish, setup};
use rustix::process::Signal;

const RULES: &str =
    "[[rule]]\nname = \"slow\"\nmatch = \"jobid={slow}\"\nlimit = { write = \"1B/s\" }\n";
/// Where the slow job begins to write, and where it ends.
const BEGIN: u64 = 1_000_000;
const END: u64 = 3_000_000;

/// A mount on which a job has written more than its limit allows for days.
fn held_up(name: &str) -> Option<(Proxy, Mounted, Child)> {
    if !can_mount() {
        return None;
    }
    let proxy = setup(name).rules(RULES).api().start();
    let mount = Mounted::new(&proxy, "job=env:OF_JOB");
    let mut dd = Command::new("dd");
    let to = format!("of={}", mount.join("file").display());
    dd.args(["if=/dev/urandom", &to, "bs=1000", "seek=1000", "count=2000"]);
    let dd = dd.env("OF_JOB", "slow").stderr(Stdio::null()).spawn().unwrap();
    let (here, beside) = (mount.join("file"), proxy.data().join("file"));
    until("all is written, as the mount has it", || {
        fs::metadata(&here).is_ok_and(|file| file.len() == END)
    });
    assert!(fs::metadata(beside).unwrap().len() < END, "and not executed");
    Some((proxy, mount, dd))
}

/// Lets the job go on, and waits until it has ended well.
fn set_free(proxy: &Proxy, mut dd: Child) {
    fs::write(proxy.dir.join("rules.toml"), "").unwrap();
    proxy.signal(Signal::HUP);
    until("the job ends", || dd.try_wait().unwrap().is_some());
    assert!(dd.wait().unwrap().success());
}

#[test]
fn what_a_throttled_job_writes_can_be_listed_and_looked_at_meanwhile() {
    let Some((proxy, mount, dd)) = held_up("looks") else { return };
    let (dir, file) = (mount.at().to_path_buf(), mount.join("file"));
    let looks = std::thread::spawn(move || {
        for command in [&["ls", "-la"][..], &["find"], &["du", "-a"], &["stat", "file"]] {
            let done = Command::new(command[0]).args(&command[1..]).current_dir(&dir).output();
            let done = done.unwrap();
            assert!(done.status.success(), "{command:?}: {done:?}");
        }
        assert_eq!(fs::metadata(&file).unwrap().len(), END);
        let mut open = File::open(&file).unwrap();
        assert_eq!(open.metadata().unwrap().len(), END);
        assert_eq!(open.seek(SeekFrom::End(0)).unwrap(), END);
        assert_eq!(open.read(&mut [0; 100]).unwrap(), 0, "its end is known");
        // What was never written is read, although the proxy's file may not reach so far.
        let mut hole = [1; 4096];
        open.read_exact_at(&mut hole, 0).unwrap();
        assert_eq!(hole, [0; 4096]);
        // The kernel knows it by another name, from another directory, made anew.
        let link = file.with_file_name("link");
        fs::hard_link(&file, &link).unwrap();
        assert_eq!(fs::metadata(&link).unwrap().len(), END);
        OpenOptions::new().append(true).open(&link).unwrap();
    });
    finish(vec![looks]);
    let beside = proxy.data().join("file");
    assert!(fs::metadata(&beside).unwrap().len() < END, "nothing of it was waited for");
    set_free(&proxy, dd);
    assert!(fs::read(mount.join("file")).unwrap() == fs::read(&beside).unwrap());
}

#[test]
fn the_time_of_what_is_written_behind_moves_forward_and_ends_with_the_close() {
    let Some((proxy, mount, dd)) = held_up("moves") else { return };
    let time = |file: &fs::Metadata| (file.mtime(), file.mtime_nsec());
    let first = time(&fs::metadata(mount.join("file")).unwrap());
    set_free(&proxy, dd);
    let last = fs::metadata(mount.join("file")).unwrap();
    assert!(first <= time(&last));
    let beside = fs::metadata(proxy.data().join("file")).unwrap();
    assert_eq!((last.len(), time(&last)), (END, time(&beside)));
}

#[test]
fn read_of_unexecuted_writes_returns_after_they_are_executed() {
    let Some((proxy, mount, dd)) = held_up("reads") else { return };
    let file = mount.join("file");
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; (END - BEGIN) as usize];
        File::open(&file).unwrap().read_exact_at(&mut bytes, BEGIN).unwrap();
        bytes
    });
    set_free(&proxy, dd);
    let beside = fs::read(proxy.data().join("file")).unwrap();
    until("it has read", || reader.is_finished());
    assert!(reader.join().unwrap() == beside[BEGIN as usize..]);
}

/// Who waits for whose writes, as the proxy tells a job.
fn donations_of(proxy: &Proxy, job: &str) -> Vec<WireDonation> {
    let api = format!("unix://{}", proxy.dir.join("api").display());
    let asked =
        Command::new(SLUICE).args(["why", "--json", "--job", job, "--proxy", &api]).output();
    serde_json::from_slice::<Why>(&asked.unwrap().stdout).unwrap().donations
}

#[test]
fn writes_that_another_job_waits_for_are_executed_in_its_class() {
    // Reading it, making it durable and changing it: days before the writer's limit would let that.
    for (program, words) in [("cat", &[][..]), ("sync", &[]), ("truncate", &["-s+1"])] {
        let Some((proxy, mount, mut dd)) = held_up(&format!("lane-{program}")) else { return };
        let file = mount.join("file");
        let mut waits = Command::new(program);
        waits.args(words).arg(&file).env("OF_JOB", program).stdout(Stdio::null());
        let mut waits = waits.spawn().unwrap();
        until("who waits goes on", || waits.try_wait().unwrap().is_some());
        assert!(waits.wait().unwrap().success(), "{program}");
        until("the writer too", || dd.try_wait().unwrap().is_some());
        assert!(dd.wait().unwrap().success());
        assert!(fs::read(&file).unwrap() == fs::read(proxy.data().join("file")).unwrap());
        // Both are told who writes, which file, and what holds it.
        for job in ["slow", program] {
            let told = donations_of(&proxy, job);
            assert_eq!(told.len(), 1, "{told:?}");
            let told = &told[0];
            assert_eq!((&*told.writer_job, &*told.waiter_job), ("slow", program));
            assert_eq!(told.file, "x:/file");
            let limit = told.limit.as_ref().unwrap();
            assert_eq!((&*limit.section, &*limit.name), ("rule", "slow"));
            assert!(told.donated > 0 && told.bytes > 0, "{told:?}");
        }
        let own =
            Command::new("cat").arg(mount.join(".sluice/why")).env("OF_JOB", program).output();
        let own = String::from_utf8(own.unwrap().stdout).unwrap();
        assert!(own.contains("x:/file") && own.contains("slow"), "{own}");
    }
}
