//! A proxy that is killed and started again, again and again, under a load on two mounts whose
//! workers know what was acknowledged: nothing is lost, nothing is done twice, nothing hangs.
//!
//! ```text
//!   workers ─► a ─► sluice mount ─┐
//!   workers ─► b ─► sluice mount ─┴─► Proxy: killed at moments that the seed chooses
//!      └─ checks ─► c, mounted afterwards, and the directory itself
//! ```
//!
//! `SLUICE_KILLS` says how often (`make soak`: 50), `SLUICE_SEED` repeats a run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Setup, root_here, skip, until};
use crate::mixed::{Dice, Load, Obeying};
use crate::posix_pair::Mounted;
use rustix::process::{Pid, Signal, kill_process};
use testkit::TestFolder;

/// A proxy that lets root be root, so that what is done in the mount is as beside it.
fn setup(name: &str) -> Setup {
    Setup::new(name).top("squash = \"none\"")
}

fn can_mount() -> bool {
    let fuse = Path::new("/dev/fuse").exists();
    if !fuse {
        skip("no /dev/fuse here");
    }
    root_here() && fuse
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is no number")))
}

/// The workers' process; by itself, that a worker's promise is looked for.
#[test]
fn workers_find_what_they_did_and_miss_what_they_did_not() {
    if crate::mixed::serve() {
        return;
    }
    let folder = TestFolder::new();
    let dir = folder.path();
    let (here, empty) = (dir.join("here"), dir.join("empty"));
    for dir in [&here, &empty] {
        fs::create_dir_all(dir).unwrap();
    }
    let mut load = Load::start(module_path!(), WORKERS, &[&here], dir, 1);
    load.all_go_on();
    load.stop();
    load.look_in(&here);
    let missed = catch_unwind(AssertUnwindSafe(|| load.look_in(&empty)));
    assert!(missed.is_err(), "it looks for nothing");
}

const WORKERS: &str = "workers_find_what_they_did_and_miss_what_they_did_not";

#[test]
fn what_was_acknowledged_is_there_once_however_often_the_proxy_dies() {
    if !can_mount() {
        return;
    }
    let kills = number("SLUICE_KILLS").unwrap_or(5);
    let by_clock = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("SLUICE_SEED").unwrap_or_else(by_clock);
    println!("to repeat: SLUICE_KILLS={kills} SLUICE_SEED={seed}");
    let mut proxy = setup("kills").start();
    // One that believes what it knows for a second, and one that asks each time.
    let (a, b) =
        (Mounted::new(&proxy, "a", "attr_timeout=1s"), Mounted::new(&proxy, "b", "attr_timeout=0"));
    let mut load = Load::start(module_path!(), WORKERS, &[a.at(), b.at()], &proxy.dir, seed);
    let mut dice = Dice::new(seed);
    load.all_go_on();
    for kill in 0..kills {
        // Now and then it dies before everybody has found it again.
        if dice.below(4) > 0 {
            load.all_go_on();
        }
        load.goes_on_by(dice.below(400));
        println!("kill {kill}");
        proxy.crash();
        proxy = setup("kills").again().start();
    }
    load.all_go_on();
    load.stop();
    let c = Mounted::new(&proxy, "c", "");
    load.look_in(c.at());
    load.look_in(&proxy.data());
}

#[test]
fn a_lock_is_nobody_elses_when_its_mount_finds_the_proxy_last() {
    if !can_mount() {
        return;
    }
    let mut round = 0;
    until("a machine that is fast enough to tell", || {
        round += 1;
        the_lock_is_kept(&format!("order-{round}"))
    });
}

/// False if the mount was too late to find its lock: others leave it to it for [`GRACE`] only.
fn the_lock_is_kept(name: &str) -> bool {
    let mut proxy = setup(name).start();
    let (a, b) =
        (Mounted::new(&proxy, "a", "attr_timeout=0"), Mounted::new(&proxy, "b", "attr_timeout=0"));
    // By processes of their own, as in the mixed load.
    let [mut holder, mut waiter] = [&a, &b].map(|mount| {
        let mut shell = Obeying::shell();
        shell.tell(&format!("file={}; exec 9<>$file", mount.join("file").display()));
        shell
    });
    holder.tell("flock 9");
    waiter.tell("! flock --nonblock 9");
    let waits = std::thread::spawn(move || {
        waiter.tell("flock 9");
        waiter
    });
    proxy.crash();
    // Its mount is stopped, and so is the last one that finds the proxy.
    let process = Pid::from_raw(a.process() as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let began = Instant::now();
    proxy = setup(name).again().start();
    fs::metadata(b.at()).unwrap();
    kill_process(process, Signal::CONT).unwrap();
    // ESTALE if the lock is not its own any more.
    let lost = proxy.dir.join("lost");
    holder.tell(&format!(
        "{{ printf 'under the lock' >&9 && sync $file; }} || : >{}",
        lost.display()
    ));
    if lost.exists() {
        assert!(began.elapsed() >= GRACE, "it was in time");
        waits.join().unwrap().end();
        return false;
    }
    assert!(!waits.is_finished());
    holder.tell("flock --unlock 9");
    until("the other one gets it", || waits.is_finished());
    waits.join().unwrap().end();
    holder.end();
    assert_eq!(fs::read(proxy.data().join("file")).unwrap(), b"under the lock");
    true
}

/// How long a proxy that was started again leaves locks to those who had them.
const GRACE: Duration = Duration::from_secs(10);
