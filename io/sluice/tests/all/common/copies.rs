//! Copies of mounts in other name spaces, which tests make beside each other.
//!
//! ```text
//!   unshare(1): a copy of every mount ─► umount --all --lazy: none of them is left
//!          └───────── meanwhile no other test asks `sluice umount` to wait ───────┘
//! ```
//!
//! `sluice umount` names copies and returns without waiting for the mount's process, so a test of
//! what is true when it returns must not meet the name space of another test.

use std::sync::{PoisonError, RwLock};

static COPIES: RwLock<()> = RwLock::new(());

/// Shell words that let go of the mounts of other tests in a name space with private mounts.
pub const LET_GO: &str = "umount --all --internal-only --lazy --types fuse.sluice || :";

/// Calls what makes a name space and lets go of its copies before it returns.
pub fn making_copies<R>(call: impl FnOnce() -> R) -> R {
    // A test that failed meanwhile has ended its name space.
    let _alone = COPIES.write().unwrap_or_else(PoisonError::into_inner);
    call()
}

/// Calls what must not meet copies of its mount.
pub fn without_copies<R>(call: impl FnOnce() -> R) -> R {
    let _nobody_copies = COPIES.read().unwrap_or_else(PoisonError::into_inner);
    call()
}
