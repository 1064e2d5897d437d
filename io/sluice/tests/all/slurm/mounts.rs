//! The samples that give a job a mount of its own, with programs that note how they are called.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::{TestFolder, root_here};

use testkit::{native, write_program};

/// Runs a sample with its settings as `sed` changes them, as slurmd runs it, and says whether it succeeded.
fn run(folder: &Path, sample: &str, method: &str, job: &str) -> bool {
    let text = fs::read_to_string(native(&format!("slurm/{sample}"))).unwrap();
    let mounts = folder.join("mnt");
    let text = text
        .replace("MOUNTS=/run/sluice/mnt", &format!("MOUNTS={}", mounts.display()))
        .replace("METHOD=v9fs\n", &format!("METHOD={method}\n"));
    fs::write(folder.join("hook"), text).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.join("bin").display());
    let status = Command::new("sh")
        .arg(folder.join("hook"))
        .env_clear()
        .env("PATH", path)
        .env("SLURM_JOB_ID", job)
        .env("SLURM_JOB_UID", "65534")
        .stderr(fs::File::create(folder.join("errors")).unwrap())
        .status()
        .unwrap();
    status.success()
}

/// Programs that note how they are called; `mount` fails if there is a file `fails`.
fn programs() -> TestFolder {
    let folder = TestFolder::new();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let calls = folder.path().join("calls");
    for name in ["mount", "umount", "systemctl"] {
        let text = format!(
            "#!/bin/sh\necho \"{name} $*\" >>{}\n[ ! -e {}/fails ]\n",
            calls.display(),
            folder.path().display()
        );
        write_program(&bin.join(name), &text);
    }
    write_program(&bin.join("mountpoint"), "#!/bin/sh\nexit 1\n");
    folder
}

fn calls(folder: &TestFolder) -> String {
    fs::read_to_string(folder.path().join("calls")).unwrap_or_default()
}

#[test]
fn sample_mounts_an_export_with_the_name_of_the_job_and_unmounts_it() {
    if !root_here() {
        return;
    }
    let folder = programs();
    let at = folder.path();
    let place = at.join("mnt/4711");
    assert!(run(at, "mount_prolog.sh", "v9fs", "4711"));
    let options = "trans=tcp,port=5640,version=9p2000.L,access=any,aname=scratch?job=4711";
    assert_eq!(calls(&folder), format!("mount -t 9p -o {options} 192.0.2.7 {}\n", place.display()));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&place).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    assert!(run(at, "mount_epilog.sh", "v9fs", "4711"));
    assert!(calls(&folder).ends_with(&format!("umount {}\n", place.display())));
    assert!(!place.exists());
    // a second epilog, or one of a job that had no mount, has nothing to do
    assert!(run(at, "mount_epilog.sh", "v9fs", "4711"));
}

#[test]
fn sample_starts_and_stops_the_unit_of_the_job() {
    if !root_here() {
        return;
    }
    let folder = programs();
    assert!(run(folder.path(), "mount_prolog.sh", "unit", "7"));
    assert!(run(folder.path(), "mount_epilog.sh", "unit", "7"));
    assert_eq!(
        calls(&folder),
        "systemctl start sluice-mount@7.service\nsystemctl stop sluice-mount@7.service\n"
    );
}

#[test]
fn sample_fails_the_prolog_of_a_job_without_its_mount_and_names_what_is_wrong() {
    if !root_here() {
        return;
    }
    let folder = programs();
    let errors = || fs::read_to_string(folder.path().join("errors")).unwrap();
    fs::write(folder.path().join("fails"), "").unwrap();
    assert!(!run(folder.path(), "mount_prolog.sh", "v9fs", "7"));
    assert!(errors().contains("job 7"), "{}", errors());
    assert!(!run(folder.path(), "mount_prolog.sh", "nfs", "7"));
    assert!(errors().contains("\"nfs\""), "{}", errors());
    assert!(!run(folder.path(), "mount_prolog.sh", "v9fs", "7/../.."));
    assert!(errors().contains("\"7/../..\""), "{}", errors());
}
