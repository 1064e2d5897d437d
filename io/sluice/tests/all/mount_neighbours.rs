//! A job that waits for its limit holds up no other job of its mount, in the same directory or not,
//! and of its own calls only those that the limit is for.
//!
//! ```text
//!   slow job: 64 processes ─► one call executed, the others wait for days
//!   other jobs, in the same directory: create, rename, list, read … ─► done meanwhile
//! ```
//!
//! The kernel locks a directory while a name in it is made, and a file while it is opened to be cut:
//! a call of the slow job that waits under such a lock holds up everybody else.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use crate::common::{Proxy, until};
use crate::controlled::api_of;
use crate::mounted::{Mounted, can_mount, finish, setup};

/// Processes of the slow job: more than the window of an identity and the slots of a channel.
const PROCESSES: usize = 80;
const OTHERS: usize = 50;

/// A job of many processes that is limited to a byte a second. Killed when dropped.
struct SlowJob<'a> {
    proxy: &'a Proxy,
    processes: Vec<Child>,
}

impl<'a> SlowJob<'a> {
    /// Starts `dd` with these words for each number, and waits until some of them wait.
    fn start(proxy: &'a Proxy, words: impl Fn(usize) -> Vec<String>) -> SlowJob<'a> {
        SlowJob::of_jobs(proxy, PROCESSES, |_| "slow".into(), words)
    }

    fn of_jobs(
        proxy: &'a Proxy,
        processes: usize,
        job: impl Fn(usize) -> String,
        words: impl Fn(usize) -> Vec<String>,
    ) -> SlowJob<'a> {
        let dd = |number| {
            let mut dd = Command::new("dd");
            dd.args(words(number)).env("JOB", job(number));
            dd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let slow = SlowJob { proxy, processes: (0..processes).map(dd).collect() };
        until("one call has gone and others wait", || {
            let (moved, queued) = slow.moved();
            moved > 0 && queued > 0
        });
        slow
    }

    /// Waits until all processes wait for something.
    fn settled(&self) {
        until("all processes wait", || {
            let state = |child: &Child| fs::read_to_string(format!("/proc/{}/stat", child.id()));
            let waits = |stat: &str| stat.contains("(dd) S ") || stat.contains("(dd) D ");
            self.processes.iter().all(|child| waits(&state(child).unwrap()))
        });
    }

    /// Bytes that were moved, and requests that wait at the proxy.
    fn moved(&self) -> (u64, u64) {
        let classes = api_of(self.proxy).classes().unwrap().classes;
        let of = classes.into_iter().filter(|class| class.rule == "slow");
        of.fold((0, 0), |(moved, queued), class| {
            let usage = class.usage;
            (moved + usage.written_bytes + usage.read_bytes, queued + usage.queued)
        })
    }

    /// Has other jobs do something, which must end while this one waits.
    fn holds_up_nobody(&self, other: impl FnOnce() + Send + 'static) {
        let before = self.moved();
        finish(vec![std::thread::spawn(other)]);
        let after = self.moved();
        assert_eq!(after.0, before.0, "nothing of the slow job went meanwhile");
        assert!(after.1 > 0, "what waited still waits: {before:?} {after:?}");
    }

    /// Kills all processes, which must end though their calls wait.
    fn end(mut self) {
        for child in &mut self.processes {
            assert!(child.try_wait().unwrap().is_none(), "it is still at work");
            child.kill().unwrap();
        }
        for child in &mut self.processes {
            until("a killed process ends", || child.try_wait().unwrap().is_some());
        }
        // What the mount has accepted can be written before it ends.
        api_of(self.proxy).set_rules("").unwrap();
    }
}

impl Drop for SlowJob<'_> {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
        }
    }
}

/// A proxy with a limit for the job `slow`, and a mount with one channel, on which all jobs are.
fn one_channel(name: &str, limit: &str) -> Option<(Proxy, Mounted)> {
    if !can_mount() {
        return None;
    }
    let rules =
        format!("[[rule]]\nname = \"slow\"\nmatch = \"jobid={{slow*}}\"\nlimit = {limit}\n");
    let proxy = setup(name).rules(&rules).api().start();
    fs::create_dir(proxy.data().join("dir")).unwrap();
    let mount = Mounted::new(&proxy, "job=env:JOB,threads=1");
    Some((proxy, mount))
}

fn word(key: &str, path: &Path) -> String {
    format!("{key}={}", path.display())
}

/// All that is done with names in one directory.
fn work_in(dir: &Path) {
    for number in 0..OTHERS {
        let at = |what: &str| dir.join(format!("{what}{number}"));
        fs::write(at("made"), "done").unwrap();
        fs::rename(at("made"), at("renamed")).unwrap();
        fs::hard_link(at("renamed"), at("linked")).unwrap();
        std::os::unix::fs::symlink("renamed", at("symlink")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::remove_dir(at("folder")).unwrap();
        fs::remove_file(at("symlink")).unwrap();
        // Cut by its opening.
        fs::write(at("linked"), "cut").unwrap();
        assert_eq!(fs::read(at("renamed")).unwrap(), b"cut");
        assert!(fs::read_dir(dir).unwrap().count() >= 2 * number);
    }
}

#[test]
fn job_that_waits_to_write_holds_up_nobody_in_its_directory() {
    let Some((proxy, mount)) = one_channel("one-dir", "\"1B/s\"") else { return };
    let dir = mount.join("dir");
    let slow = SlowJob::start(&proxy, |number| {
        let to = word("of", &dir.join(format!("slow{number}")));
        ["if=/dev/zero", &to, "bs=1M", "count=64"].map(String::from).into()
    });
    slow.holds_up_nobody(move || work_in(&dir));
    assert_eq!(fs::read(proxy.data().join("dir/renamed49")).unwrap(), b"cut");
    // Its own calls without payload do not wait for its bytes either.
    let there = |number: usize| proxy.data().join(format!("dir/slow{number}")).exists();
    until("all its files are there", || (0..PROCESSES).all(there));
    slow.end();
    // The kernel's lock of a file is given up with its writer.
    let dir = mount.join("dir");
    finish(vec![std::thread::spawn(move || fs::remove_file(dir.join("slow0")).unwrap())]);
}

#[test]
fn many_jobs_that_wait_hold_up_nobody() {
    let Some((proxy, mount)) = one_channel("many", "\"1B/s\"\nper = [\"jobid\"]") else { return };
    let dir = mount.join("dir");
    // Together more than the proxy takes from one connection before it stops reading.
    let job = |number: usize| format!("slow{}", number / 6);
    let slow = SlowJob::of_jobs(&proxy, 20 * 6, job, |number| {
        let to = word("of", &dir.join(format!("slow{number}")));
        ["if=/dev/zero", &to, "bs=1M", "oflag=direct"].map(String::from).into()
    });
    let there = |number: usize| proxy.data().join(format!("dir/slow{number}")).exists();
    until("all its files are there", || (0..20 * 6).all(there));
    slow.settled();
    slow.holds_up_nobody(move || work_in(&dir));
    slow.end();
}

#[test]
fn job_that_waits_to_append_holds_up_nobody() {
    let Some((proxy, mount)) = one_channel("append", "\"1B/s\"") else { return };
    let dir = mount.join("dir");
    let slow = SlowJob::start(&proxy, |number| {
        let to = word("of", &dir.join(format!("slow{number}")));
        ["if=/dev/zero", &to, "bs=4k", "oflag=append", "conv=notrunc"].map(String::from).into()
    });
    let there = |number: usize| proxy.data().join(format!("dir/slow{number}")).exists();
    until("all its files are there", || (0..PROCESSES).all(there));
    slow.settled();
    slow.holds_up_nobody(move || work_in(&dir));
    slow.end();
}

#[test]
fn job_that_waits_to_read_holds_up_no_other_reader() {
    let Some((proxy, mount)) = one_channel("readers", "\"1B/s\"") else { return };
    let files = |what: &'static str| {
        let there = proxy.data().join("dir");
        move |number: usize| -> PathBuf { there.join(format!("{what}{number}")) }
    };
    (0..PROCESSES).for_each(|number| fs::write(files("slow")(number), [1; 1 << 20]).unwrap());
    (0..OTHERS).for_each(|number| fs::write(files("quick")(number), [2; 300_000]).unwrap());
    let dir = mount.join("dir");
    let slow = SlowJob::start(&proxy, |number| {
        let from = word("if", &dir.join(format!("slow{number}")));
        [&from, "of=/dev/null", "bs=64k"].map(String::from).into()
    });
    slow.settled();
    slow.holds_up_nobody(move || {
        for number in 0..OTHERS {
            assert!(fs::read(dir.join(format!("quick{number}"))).unwrap() == [2; 300_000]);
        }
        work_in(&dir);
    });
    slow.end();
}

#[test]
fn limit_for_writes_delays_no_read_of_the_same_job() {
    let Some((proxy, mount)) = one_channel("same-job", "{ write = \"1B/s\" }") else { return };
    let dir = mount.join("dir");
    fs::write(proxy.data().join("dir/read"), [2; 300_000]).unwrap();
    let slow = SlowJob::start(&proxy, |number| {
        let to = word("of", &dir.join(format!("slow{number}")));
        ["if=/dev/zero", &to, "bs=4k", "oflag=direct"].map(String::from).into()
    });
    let there = |number: usize| proxy.data().join(format!("dir/slow{number}")).exists();
    until("all its files are there", || (0..PROCESSES).all(there));
    slow.settled();
    let before = slow.moved();
    let mut cat = Command::new("cat");
    cat.arg(dir.join("read")).env("JOB", "slow").stdout(Stdio::null());
    let mut cat = cat.spawn().unwrap();
    until("the reader ends", || cat.try_wait().unwrap().is_some());
    assert!(cat.wait().unwrap().success());
    assert_eq!(slow.moved().0, before.0 + 300_000, "and no write went meanwhile");
    slow.end();
}

/// A file whose bytes are acknowledged, and not executed.
fn file_behind(proxy: &Proxy, mount: &Mounted, name: &str) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mount.join(name))
        .unwrap();
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    file.write_all_at(&[8; 1 << 20], 1 << 20).unwrap();
    let len = fs::metadata(proxy.data().join(name)).unwrap().len();
    assert!(len < 2 << 20, "not all is executed");
    file
}

#[test]
fn call_that_needs_earlier_writes_of_its_file_waits_for_them() {
    type Calls = fn(&File, &Path);
    let calls: [(&str, Calls, u64); 6] = [
        ("cut", |file, _| file.set_len(1000).unwrap(), 1000),
        ("cut-by-name", |_, path| drop(File::create(path).unwrap()), 0),
        ("sync", |file, _| file.sync_all().unwrap(), 2 << 20),
        (
            "append",
            |_, path| {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                std::io::Write::write_all(&mut file, b"end").unwrap();
            },
            (2 << 20) + 3,
        ),
        (
            "punch",
            |file, _| {
                use rustix::fs::{FallocateFlags, fallocate};
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, flags, 0, 2 << 20).unwrap();
            },
            2 << 20,
        ),
        (
            "copy",
            |file, path| {
                let to = File::create(path.with_extension("to")).unwrap();
                let copied =
                    rustix::fs::copy_file_range(file, Some(&mut (1 << 20)), &to, None, 1 << 20);
                assert_eq!(copied, Ok(1 << 20));
            },
            2 << 20,
        ),
    ];
    if !can_mount() {
        return;
    }
    for (name, call, len) in calls {
        let rules = "[[rule]]\nname = \"all\"\nlimit = { write = \"1B/s\" }\n";
        let proxy = setup(&format!("after-{name}")).rules(rules).api().start();
        let mount = Mounted::new(&proxy, "threads=1");
        let file = file_behind(&proxy, &mount, "file");
        let (here, path) = (file.try_clone().unwrap(), mount.join("file"));
        let (told, tells) = mpsc::channel();
        let caller = std::thread::spawn(move || {
            told.send(rustix::thread::gettid()).unwrap();
            call(&here, &path);
        });
        let stat = format!("/proc/self/task/{}/stat", tells.recv().unwrap().as_raw_nonzero());
        until("the caller waits", || fs::read_to_string(&stat).unwrap().contains(") S "));
        api_of(&proxy).set_rules("").unwrap();
        finish(vec![caller]);
        let there = fs::read(proxy.data().join("file")).unwrap();
        let expected: Vec<u8> = match name {
            "punch" => vec![0; 2 << 20],
            "append" => [&vec![7; 1 << 20][..], &vec![8; 1 << 20], b"end"].concat(),
            _ => [&vec![7; 1 << 20][..], &vec![8; 1 << 20]].concat()[..len as usize].to_vec(),
        };
        assert!(there == expected, "{name}");
        if name == "copy" {
            assert!(fs::read(proxy.data().join("file.to")).unwrap() == [8; 1 << 20]);
        }
    }
}
