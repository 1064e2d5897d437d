//! `sluice mount` and `sluice umount` as an administrator meets them: what they say, when they
//! return, and what is left.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{
    Proxy, SLUICE, Setup, copy_program, is_mounted, making_copies, root_here, skip, status_of,
    umount, until,
};
use http::{ApiClient, ServerAddress};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

/// A directory to mount at; whatever is mounted there is gone when this is dropped.
struct Place(PathBuf);

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
        let dir = std::env::temp_dir().join(format!("sluice-at-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Some(Place(dir.canonicalize().unwrap()))
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.0)
    }

    fn record(&self, ending: &str) -> PathBuf {
        let name = self.text()[1..].replace('-', "\\x2d").replace('/', "-");
        PathBuf::from(format!("/run/sluice/mount-{name}.{ending}"))
    }

    /// The process behind the mount.
    fn process(&self) -> Pid {
        let text = fs::read_to_string(self.record("json")).unwrap();
        let number = text.split("\"pid\":").nth(1).unwrap();
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        Pid::from_raw(number.parse().unwrap()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        while self.is_mounted() && unmount(&self.0, flags).is_ok() {}
        let _ = fs::remove_dir(&self.0);
        for ending in ["log", "json"] {
            let _ = fs::remove_file(self.record(ending));
        }
    }
}

fn source(proxy: &Proxy) -> String {
    format!("unix://{}//x", proxy.socket().display())
}

fn sluice(words: &[&str]) -> Output {
    Command::new(SLUICE).args(words).output().unwrap()
}

fn mount(proxy: &Proxy, place: &Place) {
    let output = sluice(&["mount", &source(proxy), place.text()]);
    assert!(output.status.success(), "{output:?}");
}

/// What a command that fails says.
fn refused(words: &[&str]) -> String {
    let output = sluice(words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn is_gone(process: Pid) -> bool {
    // A zombie is one that nobody has waited for.
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_mount_whose_log_is_on_a_full_disk_is_there_when_the_command_returns() {
    let Some(place) = Place::new("fulllog") else { return };
    let proxy = Setup::new("fulllog").top("squash = \"none\"").start();
    let words = ["mount", &source(&proxy), place.text(), "--log", "/dev/full"];
    let mounted = sluice(&words);
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(place.is_mounted());
    fs::write(place.0.join("f"), "text").unwrap();
    assert_eq!(fs::read(proxy.data().join("f")).unwrap(), b"text");
    let unmounted = umount(&place.0, &[]);
    assert!(unmounted.status.success() && !place.is_mounted(), "{unmounted:?}");
}

#[test]
fn a_mount_can_be_used_when_the_command_returns_and_is_gone_after_umount() {
    let Some(place) = Place::new("use") else { return };
    let proxy = Proxy::plain("use");
    fs::write(proxy.data().join("file"), "content").unwrap();
    mount(&proxy, &place);
    assert_eq!(fs::read_to_string(place.0.join("file")).unwrap(), "content");
    let process = place.process();
    let output = umount(&place.0, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("\"written_back\": true"), "{told}");
    assert!(!place.is_mounted() && is_gone(process) && !place.record("json").exists());
}

#[test]
fn what_was_written_is_at_the_proxy_when_umount_returns() {
    let Some(place) = Place::new("back") else { return };
    let proxy = Proxy::plain("back");
    mount(&proxy, &place);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    fs::write(place.0.join("file"), &bytes).unwrap();
    assert!(umount(&place.0, &[]).status.success());
    assert!(fs::read(proxy.data().join("file")).unwrap() == bytes);
}

#[test]
fn what_cannot_be_mounted_is_said_and_leaves_nothing() {
    let Some(place) = Place::new("cannot") else { return };
    let proxy = Proxy::plain("cannot");
    let nobody = "unix:///run/sluice/nobody-listens-here//x";
    let told = refused(&["mount", nobody, place.text()]);
    assert!(told.contains("nobody-listens-here"), "{told}");
    let other = format!("unix://{}//other", proxy.socket().display());
    let told = refused(&["mount", &other, place.text()]);
    assert!(told.contains("other"), "{told}");
    let missing = format!("{}/missing", place.text());
    let told = refused(&["mount", &source(&proxy), &missing]);
    assert!(told.contains("missing: No such file or directory"), "{told}");
    let told = refused(&["mount", &source(&proxy), place.text(), "-o", "rw,alow_other"]);
    assert!(told.contains("the option \"alow_other\" is not one of "), "{told}");
    assert!(!place.is_mounted() && !place.record("json").exists());
    let told = refused(&["umount", place.text()]);
    assert!(told.contains("is not a mount of sluice"), "{told}");
}

#[test]
fn the_process_behind_a_mount_may_open_as_many_files_as_can_be() {
    let Some(place) = Place::new("files") else { return };
    let proxy = Proxy::plain("files");
    let script = "ulimit -Sn 256; exec \"$0\" mount \"$1\" \"$2\"";
    let status = Command::new("sh")
        .args(["-c", script, SLUICE, &source(&proxy), place.text()])
        .status()
        .unwrap();
    assert!(status.success());
    let limits = format!("/proc/{}/limits", place.process().as_raw_nonzero());
    let files = status_of(&limits, "Max open files");
    let mut words = files.split_ascii_whitespace();
    let (soft, hard) = (words.next(), words.next());
    assert!(soft == hard && soft != Some("256"), "{files}");
    assert!(umount(&place.0, &[]).status.success());
}

#[test]
fn a_mount_that_nobody_waits_for_is_taken_away_again() {
    let Some(place) = Place::new("nobody") else { return };
    let proxy = Proxy::plain("nobody");
    let mut daemon = Command::new(SLUICE)
        .args(["mount", &source(&proxy), place.text(), "--foreground", "--tells"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(daemon.stdout.take());
    let output = daemon.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!place.is_mounted() && !place.record("json").exists());
}

#[test]
fn a_second_mount_at_the_same_place_is_refused() {
    let Some(place) = Place::new("second") else { return };
    let proxy = Proxy::plain("second");
    mount(&proxy, &place);
    let told = refused(&["mount", &source(&proxy), place.text()]);
    assert!(told.contains("is mounted already: unix://"), "{told}");
    assert!(umount(&place.0, &[]).status.success());
}

#[test]
fn a_mount_whose_process_died_is_cleared() {
    let Some(place) = Place::new("dead") else { return };
    let proxy = Proxy::plain("dead");
    mount(&proxy, &place);
    let process = place.process();
    kill_process(process, Signal::KILL).unwrap();
    until("the process is gone", || is_gone(process));
    let output = sluice(&["mount", &source(&proxy), place.text()]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("removed a dead mount, whose process had ended, from"), "{told}");
    fs::metadata(&place.0).unwrap();
    assert!(umount(&place.0, &[]).status.success());
}

#[test]
fn a_mount_in_use_stays_unless_it_is_forced() {
    let Some(place) = Place::new("busy") else { return };
    let proxy = Proxy::plain("busy");
    fs::write(proxy.data().join("file"), "content").unwrap();
    mount(&proxy, &place);
    let process = place.process();
    let file = fs::File::open(place.0.join("file")).unwrap();
    let told = refused(&["umount", place.text()]);
    assert!(told.contains("is in use") && told.contains("--force"), "{told}");
    assert!(place.is_mounted() && !is_gone(process));
    let output = umount(&place.0, &["--force", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!place.is_mounted() && is_gone(process));
    drop(file);
}

#[test]
fn a_mount_whose_proxy_is_gone_can_be_forced_away() {
    let Some(place) = Place::new("forced") else { return };
    let proxy = Proxy::plain("forced");
    mount(&proxy, &place);
    let process = place.process();
    drop(proxy);
    let output = umount(&place.0, &["--force"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!place.is_mounted() && is_gone(process));
}

#[test]
fn a_signal_ends_a_mount_in_the_foreground() {
    let Some(place) = Place::new("signal") else { return };
    let proxy = Proxy::plain("signal");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut daemon = Command::new(SLUICE)
            .args(["mount", &source(&proxy), place.text(), "--foreground"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(daemon.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert_eq!(&line, b"ready\n");
        assert!(place.is_mounted());
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        assert!(daemon.wait().unwrap().success());
        assert!(!place.is_mounted() && !place.record("json").exists());
    }
}

#[test]
fn whoever_uses_a_mount_is_known_at_the_proxy_by_user_groups_and_job() {
    let Some(place) = Place::new("who") else { return };
    let proxy = Setup::new("who").top("groups = \"client\"").api().start();
    let secret = proxy.data().join("secret");
    fs::write(&secret, "content").unwrap();
    chown(&secret, Some(0), Some(4242)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    let words = ["mount", &source(&proxy), place.text(), "-o", "allow_other"];
    assert!(sluice(&words).status.success());
    let read = |groups: &str, job: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--groups", groups, "cat"]);
        command.arg(place.0.join("secret")).env("SLURM_JOB_ID", job).output().unwrap()
    };
    let output = read("1000,4242", "dd.7");
    assert_eq!(output.stdout, b"content", "{output:?}");
    assert!(!read("1000", "dd.8").status.success());
    let api = ApiClient::new(&ServerAddress::Unix(proxy.dir.join("api"))).unwrap();
    until("the job has paid", || {
        let subjects = api.subjects().unwrap().subjects;
        subjects.iter().any(|subject| subject.job == "dd.7" && subject.uid == 1000)
    });
    assert!(umount(&place.0, &[]).status.success());
}

#[test]
fn a_program_of_the_mount_can_be_run_in_a_job() {
    let Some(place) = Place::new("run") else { return };
    let proxy = Setup::new("run").api().start();
    copy_program(Path::new("/bin/true"), &proxy.data().join("program"));
    mount(&proxy, &place);
    let program = place.0.join("program");
    for _ in 0..20 {
        let status = Command::new(&program).env("SLURM_JOB_ID", "run.1").status().unwrap();
        assert!(status.success());
    }
    assert!(umount(&place.0, &[]).status.success());
}

#[test]
fn a_signal_to_a_mount_in_use_hides_it_and_serves_the_last_user() {
    let Some(place) = Place::new("hide") else { return };
    let proxy = Proxy::plain("hide");
    fs::write(proxy.data().join("file"), "content").unwrap();
    mount(&proxy, &place);
    let process = place.process();
    let file = fs::File::open(place.0.join("file")).unwrap();
    kill_process(process, Signal::TERM).unwrap();
    until("the mount is out of sight", || !place.is_mounted());
    assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
    assert!(!is_gone(process));
    drop(file);
    until("the process ends", || is_gone(process));
}

#[test]
fn under_the_name_that_mount8_uses_it_mounts_too() {
    let Some(place) = Place::new("mount8") else { return };
    let proxy = Proxy::plain("mount8");
    let name = proxy.dir.join("mount.sluice");
    symlink(SLUICE, &name).unwrap();
    let call = |source: &str| {
        let words = [source, place.text(), "-v", "-o", "rw,nosuid,_netdev", "-t", "sluice"];
        Command::new(&name).args(words).output().unwrap()
    };
    let output = call(&source(&proxy));
    assert!(output.status.success(), "{output:?}");
    assert!(place.is_mounted());
    assert!(umount(&place.0, &[]).status.success());
    let output = call("unix:///run/sluice/nobody-listens-here//x");
    assert_eq!(output.status.code(), Some(32), "{output:?}");
    assert!(output.stderr.starts_with(b"mount.sluice: "), "{output:?}");
}

#[test]
fn umount_returns_and_says_so_where_another_name_space_has_a_copy() {
    let Some(place) = Place::new("copy") else { return };
    let proxy = Proxy::plain("copy");
    mount(&proxy, &place);
    let process = place.process();
    making_copies(|| umount_beside_a_copy(&place, process));
    until("the process behind the mount ends", || is_gone(process));
}

fn umount_beside_a_copy(place: &Place, process: Pid) {
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep infinity"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let output = sluice(&["umount", place.text(), "--json"]);
    assert!(output.status.success(), "{output:?}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["written_back"], false);
    let copies = serde_json::json!([{ "process": other.id(), "dir": place.text() }]);
    assert_eq!(told["copies"], copies);
    assert!(String::from_utf8(output.stderr).unwrap().contains(place.text()));
    assert!(!place.is_mounted() && !is_gone(process));
    other.kill().unwrap();
    other.wait().unwrap();
}
