//! How many descriptors a process may have.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Lets the process have as many descriptors as its hard limit says; how many.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    descriptor_limit()
}

/// How many descriptors the process may have; `u64::MAX` if there is no limit.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
