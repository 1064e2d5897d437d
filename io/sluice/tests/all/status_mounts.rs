//! `sluice status` on a machine with mounts: each of them, and what is wrong with it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{SLUICE, until};
use crate::mounted::{can_mount, setup};
use crate::posix_pair::Mounted;

/// What is shown of a mount, and how many things are wrong with it. Other tests have mounts too.
fn shown(at: &Path) -> (Value, usize) {
    let mut command = Command::new(SLUICE);
    let output = command.args(["status", "--json"]).env_remove("SLUICE_CONTROLLER").output();
    let output = output.unwrap();
    let all: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let at = at.to_str().unwrap();
    let mounts = all["mounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["at"] == at).unwrap().clone();
    let problems = all["problems"].as_array().unwrap().iter();
    let problems = problems.filter(|text| text.as_str().unwrap().contains(at)).count();
    if problems > 0 {
        assert_eq!(output.status.code(), Some(1), "{all}");
    }
    (mount, problems)
}

#[test]
fn each_mount_is_shown_with_its_proxies_and_what_is_wrong() {
    if !can_mount() {
        return;
    }
    let proxy = setup("status-mounts").start();
    // The kernel asks for the root each time: that needs no proxy.
    let mount = Mounted::new(&proxy, "mount", "attr_timeout=0");
    let open = fs::File::create(mount.join("f")).unwrap();
    let (well, problems) = shown(mount.at());
    assert_eq!((&well["state"], problems), (&"ok".into(), 0), "{well}");
    assert_eq!(well["status"]["pid"], mount.process());
    assert_eq!(well["status"]["open_files"], 1);
    assert_eq!(well["status"]["proxies"].as_array().unwrap().len(), 1);
    let text = Command::new(SLUICE).arg("status").env_remove("SLUICE_CONTROLLER").output().unwrap();
    assert!(String::from_utf8(text.stdout).unwrap().contains(mount.at().to_str().unwrap()));

    drop(open);
    proxy.crash();
    until("it waits for its proxy", || {
        let (mount, problems) = shown(mount.at());
        mount["state"] == "waits" && problems == 1
    });
    let proxy = setup("status-mounts").again().start();
    until("it is well again", || {
        let (mount, problems) = shown(mount.at());
        mount["state"] == "ok" && problems == 0
    });

    let process = i32::try_from(mount.process()).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    until("its process has ended", || {
        let (mount, problems) = shown(mount.at());
        mount["state"] == "ended" && problems == 1 && mount.get("status").is_none()
    });
    drop(proxy);
    let at = mount.at().to_owned();
    // It cannot be unmounted as one that lives.
    std::mem::forget(mount);
    let output = Command::new(SLUICE).arg("umount").arg(&at).arg("--force").output().unwrap();
    assert!(fs::remove_dir(&at).is_ok(), "{output:?}");
}
