//! The process behind a mount is killed: users get errors, the mount can be taken away, and a
//! new one serves at the same place.
//!
//! The daemon is this test's own program, started a second time.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::filesystem::Settings;
use crate::support::stage::Stage;
use crate::support::{PATIENCE, Process, TempDir, on_each_transport, unmounted};
use fuse::{Errno, FuseMountError, FuseSession, OpenFlags, Options, Transport};

const MOUNT: &str = "FUSE_TEST_MOUNT";
const MIRRORED: &str = "FUSE_TEST_MIRRORED";
const RING: &str = "FUSE_TEST_RING";

/// Runs as a process of its own: serves until it is unmounted or killed.
#[test]
#[ignore = "is started by the other tests of this file"]
fn daemon() {
    let Some(mount) = std::env::var_os(MOUNT).map(PathBuf::from) else { return };
    let ring = std::env::var_os(RING).is_some();
    let transport = if ring { Transport::Ring } else { Transport::Device };
    // Each of the readers that wait keeps an entry.
    let options = Options { transport, ring_depth: 64, ..Options::default() };
    let mut session = match std::env::var_os(MIRRORED) {
        Some(folder) => {
            let direct = Settings { open_flags: OpenFlags::DIRECT_IO, ..Settings::default() };
            let mirror = crate::filesystem::Mirror::new(Path::new(&folder), direct);
            FuseSession::mount(&mount, mirror.unwrap(), &options)
        }
        None => FuseSession::mount(&mount, Stage::default(), &options),
    }
    .unwrap();
    println!("\nmounted {:?}", session.connection().transport);
    session.join();
    // Without the report of the test: nobody reads what this prints any more.
    std::process::exit(0);
}

/// Starts the daemon over a mirrored folder, or with a file `wait` whose readers wait.
fn start_daemon(transport: Transport, mount: &Path, mirrored: Option<&Path>) -> Process {
    let mut command = testkit::again(module_path!(), "daemon");
    command.env(MOUNT, mount);
    if transport == Transport::Ring {
        command.env(RING, "");
    }
    if let Some(folder) = mirrored {
        command.env(MIRRORED, folder);
    }
    let mut daemon = Process::spawn(command.stdout(Stdio::piped()));
    let expected = format!("mounted {transport:?}");
    let printed = BufReader::new(daemon.0.stdout.take().unwrap());
    let mounted = printed.lines().map_while(Result::ok).any(|line| line == expected);
    assert!(mounted, "the daemon did not mount");
    daemon
}

fn kill(daemon: &mut Child) {
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

fn errno<T>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.map(drop).expect_err("it should have failed")).unwrap()
}

#[test]
fn a_mount_whose_daemon_was_killed_gives_errors_until_it_is_replaced() {
    on_each_transport(|transport| {
        let place = TempDir::new();
        let (mount, mirrored) = (place.folder("mount"), place.folder("mirrored"));
        fs::write(mirrored.join("file"), "first").unwrap();
        let mut daemon = start_daemon(transport, &mount, Some(&mirrored));
        let file = File::open(mount.join("file")).unwrap();
        assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 5);
        kill(&mut daemon.0);

        // The kernel takes a ring back in its own time: who asks meanwhile is turned away.
        let turned_away = [Errno::CONNABORTED, Errno::CANCELED];
        while turned_away.contains(&errno(fs::metadata(mount.join("file")))) {}
        assert_eq!(errno(fs::metadata(mount.join("file"))), Errno::NOTCONN);
        assert_eq!(errno(fs::read_dir(&mount)), Errno::NOTCONN);
        assert_eq!(errno(file.read_at(&mut [0; 8], 0)), Errno::NOTCONN);
        let again = || FuseSession::mount(&mount, Stage::default(), &Options::default());
        assert!(matches!(again(), Err(FuseMountError::Dead { .. })));
        assert_eq!(fuse::clear_dead_mount(&mount), Ok(true));
        assert_eq!(fuse::clear_dead_mount(&mount), Ok(false));
        assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);

        let mut daemon = start_daemon(transport, &mount, Some(&mirrored));
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"first");
        // What was opened in the old mount stays dead.
        assert_eq!(errno(file.read_at(&mut [0; 8], 0)), Errno::NOTCONN);
        let unmount = || rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty());
        unmounted(unmount);
        assert!(daemon.ends_within(PATIENCE).0.success());
    });
}

#[test]
fn processes_that_wait_for_a_daemon_end_when_it_is_killed() {
    on_each_transport(|transport| {
        let place = TempDir::new();
        let mount = place.folder("mount");
        let mut daemon = start_daemon(transport, &mount, None);
        let mut readers: Vec<_> = (0..20).map(|_| Process::reading(&mount.join("wait"))).collect();
        until_all_wait(&readers);
        kill(&mut daemon.0);
        for reader in &mut readers {
            let (status, took) = reader.ends_within(PATIENCE);
            assert_eq!(status.code(), Some(1), "after {took:?}");
        }
    });
}

/// Waits until every process sleeps in the kernel for an answer.
fn until_all_wait(processes: &[Process]) {
    let start = std::time::Instant::now();
    let waits = |process: &Process| {
        let wchan = fs::read_to_string(format!("/proc/{}/syscall", process.0.id()));
        // Number of the system call: 0 is read(2) on x86-64, 63 on arm64.
        wchan.is_ok_and(|call| matches!(call.split(' ').next(), Some("0" | "63")))
    };
    while !processes.iter().all(waits) {
        assert!(start.elapsed() < PATIENCE, "they do not wait");
        std::thread::yield_now();
    }
}

#[test]
fn a_place_that_is_none_is_refused_with_its_name() {
    on_each_transport(|transport| {
        let options = Options { transport, ..Options::default() };
        let error = FuseSession::mount(Path::new("/no/such/place"), Stage::default(), &options);
        let text = error.expect_err("it should have failed").to_string();
        assert_eq!(text, "cannot mount at /no/such/place: No such file or directory (os error 2)");
    });
}
