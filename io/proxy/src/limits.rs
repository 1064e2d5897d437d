//! How much there is of what all clients share: from the configuration, and from the descriptors
//! that the process may have.
//!
//! ```text
//!   descriptors = connections + directories of handles + the proxy's own + files of clients
//!                 (a quarter each at most)                               (the rest)
//! ```

use rustix::process::{Resource, Rlimit};

use crate::config::ProxyConfig;

/// How much there is of what all clients share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorLimits {
    /// Connections at a time.
    pub(crate) connections: usize,
    /// Sessions of mounts at a time.
    pub(crate) sessions: usize,
    /// Descriptors of fids and of owners of locks.
    pub(crate) open_files: u64,
    /// Directories that each export keeps open for handles.
    pub(crate) directories: usize,
    /// Locked ranges of files.
    pub(crate) locks: u64,
    /// Bytes of requests, replies and extended attributes.
    pub(crate) memory: u64,
}

impl DescriptorLimits {
    /// Divides the descriptors that the process may have. The files of clients get what the rest
    /// does not need, so accepting, the control API and files of the proxy's own always find some.
    pub(crate) fn of(config: &ProxyConfig, descriptors: u64) -> DescriptorLimits {
        let quarter = descriptors / 4;
        let connections = u64::from(config.connections_max).min(quarter);
        let exports = config.export.len().max(1) as u64;
        let directories = (DIRECTORIES_MAX.min(quarter) / exports).max(1);
        let own = (OWN_DESCRIPTORS + 2 * u64::from(config.pipes_max)).min(quarter);
        let left = descriptors.saturating_sub(connections + directories * exports + own).max(1);
        let open_files = match config.open_files_max {
            0 => left,
            most => left.min(most.into()),
        };
        DescriptorLimits {
            connections: connections as usize,
            sessions: config.sessions_max as usize,
            open_files,
            directories: directories as usize,
            locks: config.locks_max.into(),
            memory: config.memory_max.get(),
        }
    }
}

/// Directories that are kept open for handles, all exports together.
const DIRECTORIES_MAX: u64 = 4096;
/// Descriptors of the proxy's own: listeners, API, metrics, controller, record, and one for what
/// each of some threads has open for a moment.
const OWN_DESCRIPTORS: u64 = 128;

/// Lets the process have as many descriptors as it may, at most [`DESCRIPTORS_MAX`]; how many.
pub(crate) fn raise_descriptor_limit() -> u64 {
    // More than this is refused even to root: /proc/sys/fs/nr_open.
    let allowed = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let allowed = allowed.and_then(|text| text.trim().parse().ok()).unwrap_or(DESCRIPTORS_MAX);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = DESCRIPTORS_MAX.min(allowed);
    let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    let is_low = limit.maximum.is_some_and(|most| most < wanted);
    if !is_low || rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        // Not privileged, or enough: as much as there may be.
        let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
        let most = Rlimit { current: Some(current), maximum: limit.maximum };
        let _ = rustix::process::setrlimit(Resource::Nofile, most);
    }
    descriptors()
}

/// How many descriptors the process may have.
pub(crate) fn descriptors() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX)
}

/// As many as any proxy needs.
const DESCRIPTORS_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn descriptors_are_divided_so_that_all_parts_together_fit() {
        for descriptors in [64, 256, 1024, 20_000, 1 << 20] {
            for exports in [1, 3] {
                let mut config = ProxyConfig::default();
                let export = |n| crate::config::ExportConfig::new(&format!("{n}"), Path::new("/"));
                config.export = (0..exports).map(export).collect();
                let limits = DescriptorLimits::of(&config, descriptors);
                let others = limits.connections + limits.directories * exports;
                assert!(limits.open_files + others as u64 + 16 <= descriptors, "{descriptors}");
                assert!(limits.open_files >= descriptors / 4, "{descriptors}");
            }
        }
        let limits = DescriptorLimits::of(&ProxyConfig::default(), 20_000);
        assert_eq!((limits.connections, limits.open_files), (4096, 11_552));
        let few = ProxyConfig { open_files_max: 100, ..ProxyConfig::default() };
        assert_eq!(DescriptorLimits::of(&few, 20_000).open_files, 100);
    }
}
