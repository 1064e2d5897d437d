//! What a proxy has: its targets with what they give, and its exports.
//!
//! ```text
//!   [[target]] capacity_… ─┐
//!   costs of a calibration ┴► ProxyDescription ─► report ─► the controller's calendar of reservations
//! ```

use serde::{Deserialize, Serialize};

use super::ALL_TARGETS;
use crate::scope::WrongMessage;

/// The targets and exports of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyDescription {
    /// The targets of the proxy.
    pub targets: Vec<TargetDescription>,
    /// The exports of the proxy.
    pub exports: Vec<ExportDescription>,
    /// What its network moves for clients, in bytes per second: above 0 and at most 2^60; none if
    /// that is not configured.
    #[serde(default)]
    pub network_per_sec: Option<u64>,
}

/// A target of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDescription {
    /// The name of the target.
    pub name: String,
    /// What it reads and writes; none if that is neither configured nor calibrated.
    pub bytes: Option<DescribedCapacity>,
    /// Its metadata operations; none if that is neither configured nor calibrated.
    pub metadata: Option<DescribedCapacity>,
    /// The part of it that is used by what no proxy sees, in millionths.
    pub unseen_ppm: u32,
}

/// What a target gives if only one direction is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedCapacity {
    /// Bytes or operations per second; above 0 and at most 2^60.
    pub read_per_sec: u64,
    /// The same if only writes are served; of metadata the same number.
    pub write_per_sec: u64,
    /// Whether the configuration says so, which goes before measurements.
    pub is_configured: bool,
}

/// An export of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportDescription {
    /// The name that clients attach to.
    pub name: String,
    /// The name of its target.
    pub target: String,
}

impl ProxyDescription {
    /// The most targets of a proxy.
    pub const TARGETS_MAX: usize = 64;
    /// The most exports of a proxy that are described.
    pub const EXPORTS_MAX: usize = 1_024;

    /// Checks a description from the wire.
    ///
    /// # Errors
    /// Names the value that is not valid.
    pub(crate) fn check(&self) -> Result<(), WrongMessage> {
        let is_target = |name: &str| {
            let is_length = !name.is_empty() && name.len() <= 255;
            is_length && name != ALL_TARGETS && !name.chars().any(char::is_control)
        };
        let wrong_target =
            |name| WrongMessage::new(name, "a target: 1 to 255 printable characters, not *");
        if self.targets.len() > ProxyDescription::TARGETS_MAX {
            return Err(WrongMessage::new(self.targets.len(), "a number of targets: at most 64"));
        }
        if self.exports.len() > ProxyDescription::EXPORTS_MAX {
            return Err(WrongMessage::new(self.exports.len(), "a number of exports: at most 1024"));
        }
        for target in &self.targets {
            if !is_target(&target.name) {
                return Err(wrong_target(&target.name));
            }
            if target.unseen_ppm > 1_000_000 {
                let want = "a part in millionths: at most 1000000";
                return Err(WrongMessage::new(target.unseen_ppm, want));
            }
            for of in target.bytes.iter().chain(&target.metadata) {
                for per_sec in [of.read_per_sec, of.write_per_sec] {
                    if !(1..=PER_SEC_MAX).contains(&per_sec) {
                        return Err(WrongMessage::new(per_sec, "a capacity: 1 to 2^60 per second"));
                    }
                }
            }
        }
        if let Some(per_sec) = self.network_per_sec.filter(|of| !(1..=PER_SEC_MAX).contains(of)) {
            return Err(WrongMessage::new(per_sec, "a network: 1 to 2^60 bytes per second"));
        }
        for export in &self.exports {
            if !model::is_export_name(&export.name) {
                let want = "an export: 1 to 63 letters, digits, '_', '-' and '.'";
                return Err(WrongMessage::new(&export.name, want));
            }
            if !is_target(&export.target) {
                return Err(wrong_target(&export.target));
            }
        }
        Ok(())
    }
}

/// The most that a resource of the calendar has per second.
const PER_SEC_MAX: u64 = 1 << 60;
