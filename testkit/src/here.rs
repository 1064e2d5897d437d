//! What this machine lets a test do, said aloud, and waiting for what must happen.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long anything that must happen may take before a test fails. Only a failure waits for so
/// long; a machine with many other things to do needs a good part of it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `is` holds, and fails naming `what` if it does not within [`PATIENCE`].
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until nothing has the port of this address any more, such as `http://127.0.0.1:4711`: for
/// a server that was killed and starts again where it was, since the system may have given its port
/// to somebody's connection meanwhile. Of an address without a port, or with port 0, it is free.
pub fn until_free(address: &str) {
    let (_, at) = address.split_once("://").unwrap_or(("", address));
    if let Ok(at) = at.parse::<SocketAddr>() {
        until(&format!("{address} is free"), || TcpListener::bind(at).is_ok());
    }
}

/// Says aloud that the test of this thread, or a part of it, cannot be done here.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    // Not by a macro: what a passing test prints by those is shown to nobody.
    let _ = std::io::stderr().write_all(format!("\nskipped: {name}: {why}\n").as_bytes());
}

/// Whether the tests run as root; says so aloud if not.
pub fn root_here() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0);
    if !root {
        skip("needs root");
    }
    root
}

/// Lets everybody make and remove files in a directory.
pub fn everybodys(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Copies a program that is to be started, by a process of its own: a file that this one had open for writing
/// another test's child may have open still, and then it cannot be started (ETXTBSY).
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}", from.display(), to.display());
}
