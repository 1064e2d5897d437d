//! The writes that a mount keeps until they are durable, and what the checks want to know of them.
//!
//! ```text
//!   answered, with its number ─► UncommittedWrites of production ─┬─ dropped: has to be durable
//!                                                                 └─ lost: written once more
//! ```

use ninep::dialect::ReplyHeader;
use session::client::{KeptWrite, UncommittedWrites};

/// The writes of a mount that its proxy's machine may lose.
#[derive(Debug)]
pub(super) struct SimKeptWrites {
    writes: UncommittedWrites<SimWrite, ()>,
    /// The proxy is to be asked to make them durable.
    commits: bool,
}

/// A write that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimWrite {
    pub(super) file: u32,
    /// The call that was asked for it first.
    pub(super) write: usize,
}

/// What a reply's header, or an answered commit, changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeptChange {
    /// Writes that the mount takes for durable.
    pub(super) durable: Vec<SimWrite>,
    /// Writes to be executed once more.
    pub(super) lost: Vec<SimWrite>,
}

/// Each counts as one byte of what may be kept.
impl KeptWrite for SimWrite {
    fn bytes(&self) -> u64 {
        1
    }
}

impl Default for SimKeptWrites {
    fn default() -> SimKeptWrites {
        SimKeptWrites { writes: UncommittedWrites::new(KEPT_MAX), commits: false }
    }
}

impl SimKeptWrites {
    /// A reply of session `epoch` came.
    pub(super) fn handle_header(&mut self, epoch: u64, header: ReplyHeader) -> KeptChange {
        let before = self.kept();
        let change = self.writes.handle_header(epoch, header);
        let lost = change.map_or(Vec::new(), |change| change.lost_writes);
        let durable = self.dropped(before).into_iter().filter(|write| !lost.contains(write));
        KeptChange { durable: durable.collect(), lost }
    }

    /// A write was answered. True if the mount takes it for durable at once.
    pub(super) fn insert(&mut self, epoch: u64, number: u64, write: SimWrite) -> bool {
        self.commits |= self.writes.insert(epoch, number, write);
        !self.writes.kept().any(|kept| *kept == write)
    }

    /// Whether a commit is to be sent now.
    pub(super) fn begin_commit(&mut self) -> bool {
        std::mem::take(&mut self.commits)
    }

    /// A commit of session `epoch` was answered. Returns what the mount takes for durable by it.
    pub(super) fn committed(&mut self, epoch: u64) -> Vec<SimWrite> {
        let before = self.kept();
        self.writes.committed(epoch, true);
        self.dropped(before)
    }

    /// How often writes were lost.
    pub(super) fn losses(&self) -> u64 {
        self.writes.losses()
    }

    pub(super) fn len(&self) -> usize {
        self.writes.kept().count()
    }

    fn kept(&self) -> Vec<SimWrite> {
        self.writes.kept().copied().collect()
    }

    /// Which of these are not kept any more.
    fn dropped(&self, before: Vec<SimWrite>) -> Vec<SimWrite> {
        let is_kept = |write: &SimWrite| self.writes.kept().any(|kept| kept == write);
        before.into_iter().filter(|write| !is_kept(write)).collect()
    }
}

/// From half of this many on, the mount asks the proxy to make them durable.
const KEPT_MAX: u64 = 16;
