//! Copies of mounts in other name spaces, which tests make beside each other.
//!
//! ```text
//!   unshare(1): a copy of every mount ─► umount --all --lazy: none of them is left
//!          └───────── meanwhile no other test asks `sluice umount` to wait ───────┘
//! ```
//!
//! `sluice umount` names copies and returns without waiting for the mount's process, so a test of
//! what is true when it returns must not meet the name space of another test.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use testkit::PATIENCE;

use super::SLUICE;

static COPIES: RwLock<()> = RwLock::new(());

/// Shell words that let go of the mounts of other tests in a name space with private mounts.
pub const LET_GO: &str = "umount --all --internal-only --lazy --types fuse.sluice || :";

/// Calls what makes a name space and lets go of its copies before it returns.
pub fn making_copies<R>(call: impl FnOnce() -> R) -> R {
    // A test that failed meanwhile has ended its name space.
    let _alone = COPIES.write().unwrap_or_else(PoisonError::into_inner);
    call()
}

/// Calls `sluice umount` for this directory until nothing of the mount is open any more: between fork
/// and exec, a process that another test starts has what this one had open. Nobody makes copies of
/// the mount meanwhile. Returns the last attempt.
pub fn umount(dir: &Path, flags: &[&str]) -> Output {
    let began = Instant::now();
    loop {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).args([SLUICE, "umount"]).arg(dir).args(flags);
        let output = without_copies(|| command.output().unwrap());
        if output.status.success() || !is_mounted(dir) || began.elapsed() > PATIENCE {
            return output;
        }
    }
}

/// Whether something is mounted at this directory.
pub fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// Calls what must not meet copies of its mount.
fn without_copies<R>(call: impl FnOnce() -> R) -> R {
    let _nobody_copies = COPIES.read().unwrap_or_else(PoisonError::into_inner);
    call()
}
