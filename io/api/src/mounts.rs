//! The status of a mount, in its file `.sluice/status`.

use serde::{Deserialize, Serialize};

/// The process of a mount, and its connections to proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The version of the program.
    pub version: String,
    /// The process id of the mount.
    pub pid: u32,
    /// Files that programs have open.
    pub open_files: u64,
    /// Bytes written through the page cache that no proxy has confirmed yet.
    pub write_behind_bytes: u64,
    /// The proxies that it uses.
    pub proxies: Vec<MountLink>,
}

/// A mount's connections to one proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLink {
    /// The address of the proxy.
    pub proxy: String,
    /// Connections made to it, including the first ones.
    pub connected: u64,
    /// Connections to it that are down. Requests wait until they are back.
    pub connections_down: u64,
}

impl MountStatus {
    /// Formats it as JSON with an end of line.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a status is plain data") + "\n"
    }

    /// Parses such a text.
    ///
    /// # Errors
    /// If it is not such a text.
    pub fn of(text: &str) -> Result<MountStatus, serde_json::Error> {
        serde_json::from_str(text)
    }
}
