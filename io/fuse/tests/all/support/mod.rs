//! What every test of a mounted file system needs: a place, the transports that this machine
//! has, and processes that do not outlive the test.
//!
//! A request that blocks is made by a child process, never by the test itself: a process that
//! is killed while it waits for its own mount cannot end.

#![allow(dead_code, reason = "each test file uses its part of it")]

pub(crate) mod stage;

use std::fs;
use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fuse::{Errno, FileSystem, FuseSession, Options, Transport};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use testkit::PATIENCE;

/// Runs a test's body with each transport that this machine has; says which it has not.
pub(crate) fn on_each_transport(body: impl Fn(Transport)) {
    if let Err(why) = can_mount(Transport::Device) {
        return aloud(&format!("skipped: fuse: {why}"));
    }
    body(Transport::Device);
    match let_rings().and_then(|()| can_mount(Transport::Ring)) {
        Ok(()) => body(Transport::Ring),
        Err(why) => aloud(&format!("skipped: fuse over io_uring: {why}")),
    }
}

/// Lets mounts that begin from now on use io_uring, where the kernel can.
fn let_rings() -> Result<(), String> {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    std::fs::write(SWITCH, "Y").map_err(|error| format!("{SWITCH}: {error}"))
}

/// Unmounts, as soon as nobody has anything of it open: a process that another test starts has
/// for a moment whatever this one has, and over the ring the last close may still be on its way.
pub(crate) fn unmounted(mut unmount: impl FnMut() -> Result<(), Errno>) {
    let start = Instant::now();
    while let Err(error) = unmount() {
        assert_eq!(error, Errno::BUSY);
        assert!(start.elapsed() < PATIENCE, "it stays in use");
        std::thread::yield_now();
    }
}

/// Prints a line that the test harness does not swallow.
pub(crate) fn aloud(line: &str) {
    let _ = writeln!(std::io::stdout(), "\n{line}");
}

/// Whether this process may mount with the transport, or why not.
pub(crate) fn can_mount(transport: Transport) -> Result<(), String> {
    let place = TempDir::new();
    let options = Options { transport, ..Options::default() };
    let mounted = FuseSession::mount(&place.folder("mount"), stage::Stage::default(), &options);
    match mounted.map_err(|error| error.to_string())?.connection().transport == transport {
        true => Ok(()),
        false => Err("the kernel or this machine's administrator forbids it".to_string()),
    }
}

/// A folder that is removed with everything in it.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fuse-test-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    /// A folder in it, made if need be.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fuse::clear_dead_mount(&self.0.join("mount"));
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// A file system of the test's, mounted.
pub(crate) struct Mounted {
    session: FuseSession,
    // Removed after the session, which is the field before, has unmounted.
    _place: TempDir,
}

impl Mounted {
    /// Mounts with the options' transport, and insists on it.
    pub(crate) fn new(filesystem: impl FileSystem, options: &Options) -> Mounted {
        let place = TempDir::new();
        Mounted::at(place, filesystem, options)
    }

    /// Mounts in a place that exists, as its folder `mount`.
    pub(crate) fn at(place: TempDir, filesystem: impl FileSystem, options: &Options) -> Mounted {
        let session = FuseSession::mount(&place.folder("mount"), filesystem, options).unwrap();
        assert_eq!(session.connection().transport, options.transport);
        Mounted { session, _place: place }
    }

    /// A path in the mount.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.session.path().join(name)
    }
}

impl Deref for Mounted {
    type Target = FuseSession;

    fn deref(&self) -> &FuseSession {
        &self.session
    }
}

impl DerefMut for Mounted {
    fn deref_mut(&mut self) -> &mut FuseSession {
        &mut self.session
    }
}

/// A child process that is killed with the test.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Reads a file and throws it away.
    pub(crate) fn reading(path: &Path) -> Process {
        let mut command = Command::new("cat");
        Process::spawn(command.arg(path).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; fails if it takes longer than `limit`, and says how long it took.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return (status, start.elapsed());
            }
            assert!(start.elapsed() < limit, "process {} did not end", self.0.id());
            // There is no wait for a child with a time limit; what happened does not depend on
            // how often one looks.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            // A process that waits for the mount ends when that does, which may be later.
            let mut child = Command::new("true").spawn().unwrap();
            std::mem::swap(&mut child, &mut self.0);
            let _ = self.0.wait();
            std::thread::spawn(move || child.wait());
        }
    }
}
