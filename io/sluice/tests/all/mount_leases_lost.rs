//! Holders of leases that do not answer, and who may use what others have opened.
//!
//! ```text
//!   a: stopped, killed ─► b changes: waits for the recall limit and the term, and goes on
//!   a: goes on ─► believes nothing of before
//!   the proxy: restarted ─► both join again ─► what one changes the other sees
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Setup, USER};
use crate::mount_leases::joined;
use crate::mounted::{Mounted, can_mount, setup};
use crate::posix_pair;

/// Short spans: changes wait for them.
const SPANS: &str = "lease_term = \"2s\"\nlease_recall_limit = \"1s\"";

fn short(name: &str) -> Setup {
    setup(name).leases().top(SPANS)
}

fn signal(mount: &posix_pair::Mounted, signal: Signal) {
    let process = i32::try_from(mount.process()).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[test]
fn mount_that_was_stopped_delays_a_change_and_shows_it_when_it_goes_on() {
    if !can_mount() {
        return;
    }
    let proxy = short("leases-stopped").start();
    let b = Mounted::new(&proxy, "allow_other");
    fs::write(b.join("file"), "before").unwrap();
    let a = posix_pair::Mounted::new(&proxy, "a", "allow_other");
    let read = || fs::read_to_string(a.join("file")).unwrap();
    (0..3).for_each(|_| assert_eq!(read(), "before"));
    signal(&a, Signal::STOP);
    fs::write(b.join("file"), "afterwards").unwrap();
    fs::rename(b.join("file"), b.join("other")).unwrap();
    signal(&a, Signal::CONT);
    assert!(fs::metadata(a.join("file")).is_err(), "it has another name now");
    assert_eq!(fs::metadata(a.join("other")).unwrap().len(), 10);
    assert_eq!(fs::read_to_string(a.join("other")).unwrap(), "afterwards");
    fs::write(b.join("other"), "again").unwrap();
    assert_eq!(fs::read_to_string(a.join("other")).unwrap(), "again");
}

#[test]
fn mount_that_was_killed_delays_a_change_by_its_term_at_most() {
    if !can_mount() {
        return;
    }
    let proxy = short("leases-killed").start();
    let b = Mounted::new(&proxy, "allow_other");
    fs::write(b.join("file"), "before").unwrap();
    let a = posix_pair::Mounted::new(&proxy, "a", "allow_other");
    (0..3).for_each(|_| assert_eq!(fs::read(a.join("file")).unwrap(), b"before"));
    signal(&a, Signal::KILL);
    fs::write(b.join("file"), "afterwards").unwrap();
    assert_eq!(fs::read(b.join("file")).unwrap(), b"afterwards");
    crate::common::umount(a.at(), &["--force"]);
    // Its end would fail: it was killed on purpose.
    std::mem::forget(a);
}

#[test]
fn mounts_of_a_restarted_proxy_see_what_the_other_changes() {
    if !can_mount() {
        return;
    }
    let proxy = short("leases-restarted").start();
    let [a, b] = [0; 2].map(|_| Mounted::new(&proxy, "allow_other,metrics=http://127.0.0.1:0"));
    [&a, &b].into_iter().for_each(joined);
    fs::write(b.join("file"), "first").unwrap();
    assert_eq!(fs::read(a.join("file")).unwrap(), b"first");
    proxy.crash();
    let proxy = short("leases-restarted").again().start();
    fs::write(b.join("file"), "second one").unwrap();
    assert_eq!(fs::metadata(a.join("file")).unwrap().len(), 10);
    assert_eq!(fs::read(a.join("file")).unwrap(), b"second one");
    [&a, &b].into_iter().for_each(joined);
    fs::remove_file(b.join("file")).unwrap();
    assert!(fs::metadata(a.join("file")).is_err());
    drop((a, b, proxy));
}

#[test]
fn root_of_a_node_cannot_open_what_a_user_has_open_under_a_lease() {
    if !can_mount() {
        return;
    }
    let proxy = Setup::new("leases-squashed").leases().start();
    let mount = Mounted::new(&proxy, "allow_other,metrics=http://127.0.0.1:0");
    joined(&mount);
    let cat = |name: &str| {
        let path = mount.join(name);
        Command::new("cat").arg(path).uid(USER).gid(USER).output().unwrap()
    };
    let made = Command::new("sh")
        .args(["-c", "umask 077; printf hello > \"$0\""])
        .arg(mount.join("secret"))
        .uid(USER)
        .gid(USER)
        .status();
    assert!(made.unwrap().success());
    (0..3).for_each(|_| assert_eq!(cat("secret").stdout, b"hello"));
    let refused = fs::read(mount.join("secret")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(cat("secret").stdout, b"hello");
}
