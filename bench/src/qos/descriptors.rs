//! The limit of open files of the bench.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to its maximum: one guarantee concerns thousands of connections.
pub(super) fn raise_descriptor_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    // Without it the case that needs them says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}
