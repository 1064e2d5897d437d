//! What a mount says of itself, in the file `.sluice/status` in it.

use serde::{Deserialize, Serialize};

/// A mount's process, and how it stands with its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The version of the program.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Files that programs have open.
    pub open_files: u64,
    /// Bytes that programs wrote through the page cache and that no proxy has confirmed yet.
    pub behind_bytes: u64,
    /// The proxies that it asks.
    pub proxies: Vec<MountLink>,
}

/// How a mount stands with a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountLink {
    /// Where the mount reaches it.
    pub proxy: String,
    /// Connections that were made to it, the first ones too.
    pub connected: u64,
    /// Connections that it should have and has not now: requests wait for it.
    pub lost: u64,
}

impl MountStatus {
    /// As JSON, with a line's end.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a status is plain data") + "\n"
    }

    /// From such a text.
    ///
    /// # Errors
    /// If it is none.
    pub fn of(text: &str) -> Result<MountStatus, serde_json::Error> {
        serde_json::from_str(text)
    }
}
