//! The limit of open descriptors of a process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of descriptors to the hard limit; returns it.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    descriptor_limit()
}

/// Returns the limit of descriptors; `u64::MAX` if there is none.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
