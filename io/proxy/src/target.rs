//! A target: a backing file system whose requests compete.

use std::sync::Arc;

use model::{Lane, TargetId};

use crate::gate::Gate;
use crate::times::CallTimes;
use crate::writes::Writes;

/// One `[[target]]`: a backing file system whose requests compete.
pub(crate) struct Target {
    /// Its id in the dispatcher.
    pub(crate) id: TargetId,
    pub(crate) name: String,
    /// Whether reads can be asked not to wait for the device (RWF_NOWAIT).
    pub(crate) nowait: bool,
    pub(crate) writes: Writes,
    pub(crate) calls: Arc<CallTimes>,
    pub(crate) gate: Arc<Gate>,
}

/// The names of targets.
pub(crate) struct TargetNames(pub(crate) Vec<(TargetId, String)>);

impl TargetNames {
    /// The name of a target; none of one that was added since.
    pub(crate) fn of(&self, target: TargetId) -> &str {
        self.0.iter().find(|(id, _)| *id == target).map_or("", |(_, name)| name)
    }
}

impl Target {
    /// Adds a target to the gate.
    pub(crate) fn new(
        gate: &Arc<Gate>,
        params: sched::TargetParams,
        nowait: bool,
        writes: Writes,
    ) -> Target {
        let (name, calls) = (params.name.clone(), Arc::new(CallTimes::new()));
        let id = gate.add_target(params, calls.clone());
        Target { id, name, nowait, writes, calls, gate: gate.clone() }
    }

    /// Whether the backend has no device: then no request waits for one.
    pub(crate) fn in_memory(&self) -> bool {
        self.writes.backing().memory_fs
    }

    /// Returns the lane where a read is tried first: the attempt shows whether the page cache has
    /// it.
    pub(crate) fn read_lane(&self) -> Lane {
        if self.nowait || self.in_memory() { Lane::Cached } else { Lane::Device }
    }

    /// Returns the lane of a write: the device, also in mode `cached`, which only delays that.
    pub(crate) fn write_lane(&self) -> Lane {
        if self.in_memory() { Lane::Cached } else { Lane::Device }
    }
}
