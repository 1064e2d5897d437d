//! No scheduler at all: everything goes to the device at once, in the order it came.
//!
//! ```text
//!   enqueue ─► queue ─► poll: the oldest, always
//! ```
//!
//! This is what a file system without QoS does with requests; the device's own queue decides.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Amount, Identity, Lane, PathSet, Time};
use rules::RuleSet;

use crate::scheduler::{Scheduler, SimArrival, SimDispatch};

/// First come, first served.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    queue: VecDeque<(u32, Lane)>,
}

impl Scheduler for Fifo {
    fn subject(&mut self, _who: &Identity, _paths: PathSet) -> u64 {
        0
    }

    fn enqueue(&mut self, incoming: SimArrival, _now: Time) -> u64 {
        self.queue.push_back((incoming.token, incoming.lane));
        0
    }

    fn poll(&mut self, _now: Time) -> Option<SimDispatch> {
        let (token, lane) = self.queue.pop_front()?;
        Some(SimDispatch { id: 0, token, lane, slots: 1, reserved: false })
    }

    fn complete(&mut self, _id: u64, _served: Amount, _now: Time) {}

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn set_rules(&mut self, _rules: Arc<RuleSet>, _now: Time) {}

    fn queued(&self) -> usize {
        self.queue.len()
    }
}
