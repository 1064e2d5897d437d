//! `cat MOUNT/.sluice/why`: a job is told what holds it, without rights and without a tool.
//!
//! ```text
//!   job ─► MOUNT ─► proxy ─ limit of the job's rule
//!   cat ─► MOUNT/.sluice/why ─► Tinfo ─► of the caller's own job and user
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::common::{Proxy, USER, until};
use crate::mounted::{Mounted, can_mount, setup};

const RULES: &str = "
[[rule]]
name = \"slow\"
match = \"jobid={dd.*}\"
per = [\"jobid\"]
limit = \"20ops/s\"
";

fn mount(name: &str, options: &str) -> Option<(Proxy, Mounted)> {
    if !can_mount() {
        return None;
    }
    let proxy = setup(name).rules(RULES).api().start();
    let mount = Mounted::new(&proxy, &format!("allow_other,attr_timeout=0s{options}"));
    Some((proxy, mount))
}

/// Two threads that look for files which are not there, until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new(at: &Path) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        for name in ["a", "b"] {
            let (file, stop) = (at.join(name), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(!file.exists());
                }
            });
        }
        Busy(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read(mount: &Mounted, name: &str) -> String {
    fs::read_to_string(mount.join(".sluice").join(name)).unwrap()
}

#[test]
fn a_job_reads_what_holds_it_what_it_used_and_what_it_pays() {
    let Some((_proxy, mount)) = mount("why-mount", ",job=fixed:dd.1") else { return };
    let _busy = Busy::new(mount.at());
    let mut why = String::new();
    until("it is told what holds it", || {
        why = read(&mount, "why");
        why.contains("jobid=dd.1 (rule slow) is throttled by the limit of rule slow")
    });
    assert!(why.contains("The limit is 20 ops/s, and "), "{why}");
    assert!(
        why.contains("To change this: ask an administrator to raise the limit of rule slow"),
        "{why}"
    );
    let usage = read(&mount, "usage");
    assert!(usage.contains("Job dd.1, user 0, node 0@lo: "), "{usage}");
    let limits = read(&mount, "limits");
    assert!(
        limits.contains("the limit of rule slow (jobid=dd.1): the limit is 20 ops/s"),
        "{limits}"
    );

    // Another user of the node, by his own process: of root he is told nothing.
    let told = Command::new("cat").arg(mount.join(".sluice/usage")).uid(USER).gid(USER).output();
    let told = told.unwrap();
    let (text, failed) =
        (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(text.contains(&format!("user {USER}")) && !text.contains("user 0"), "{text}{failed}");
}

#[test]
fn one_that_nothing_holds_is_told_so_and_each_job_is_told_of_itself() {
    let Some((_proxy, mount)) = mount("why-own", ",job=env:SLUICE_TEST_JOB") else { return };
    let as_job = |job: &str, command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(mount.at()).env("SLUICE_TEST_JOB", job);
        let out = shell.output().unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    // The whole burst and some more: the last ones have to wait, unless the machine is slower
    // than the limit just then.
    until("it is told what holds it", || {
        let looks = "for i in 1 2 3 4 5 6 7 8; do test ! -e $i || exit 1; done; cat .sluice/why";
        as_job("dd.7", looks)
            .contains("jobid=dd.7 (rule slow) is throttled by the limit of rule slow")
    });
    let text = as_job("free", "test ! -e x; cat .sluice/why");
    assert_eq!(text, "Nothing delays job free of user 0 now.\n");
    let text = as_job("free", "cat .sluice/limits");
    assert_eq!(text, "No limit applies to job free of user 0.\n");
}

#[test]
fn who_walks_the_tree_does_not_find_it_and_nobody_changes_it() {
    let Some((proxy, mount)) = mount("why-hidden", "") else { return };
    fs::write(mount.join("file"), b"x").unwrap();
    // The export has one of that name, too: it is out of reach, and stays as it is.
    fs::create_dir(proxy.data().join(".sluice")).unwrap();
    fs::write(proxy.data().join(".sluice/mine"), b"mine").unwrap();
    fs::create_dir(mount.join("below")).unwrap();
    fs::create_dir(mount.join("below/.sluice")).unwrap();

    let found = Command::new("find").arg(mount.at()).args(["-not", "-path", "*/below/*"]).output();
    let found = String::from_utf8(found.unwrap().stdout).unwrap();
    assert!(found.contains("/file") && !found.contains("/.sluice/why"), "{found}");
    let listed = fs::read_dir(mount.join(".sluice")).unwrap();
    let mut listed: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    assert_eq!(listed, ["limits", "status", "usage", "why"]);
    assert!(!mount.join(".sluice/mine").exists());
    assert_eq!(fs::metadata(mount.join(".sluice/why")).unwrap().permissions().mode(), 0o100_444);

    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let why = mount.join(".sluice/why");
    assert_eq!(errno(fs::write(&why, b"x").unwrap_err()), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(&why).unwrap_err()), Errno::ROFS);
    assert_eq!(errno(fs::write(mount.join(".sluice/new"), b"").unwrap_err()), Errno::ROFS);
    let to = mount.join(".sluice");
    assert_eq!(errno(fs::remove_dir(&to).unwrap_err()), Errno::PERM);
    assert_eq!(fs::create_dir(&to).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(errno(fs::rename(&to, mount.join("other")).unwrap_err()), Errno::PERM);
    assert_eq!(errno(fs::rename(mount.join("below"), &to).unwrap_err()), Errno::PERM);
    assert_eq!(fs::read(proxy.data().join(".sluice/mine")).unwrap(), b"mine");

    let listed = Command::new("ls").args(["-la"]).arg(&to).output().unwrap();
    assert!(listed.status.success() && listed.stderr.is_empty(), "{listed:?}");
}
