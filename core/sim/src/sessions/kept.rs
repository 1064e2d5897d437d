//! The writes that a mount keeps until they are durable, by the rules of `io/mount`.
//!
//! ```text
//!   answered, with its number ─► kept ─┬─ the watermark is as high, or a commit ─► dropped
//!                                      └─ the verifier is another ─► lost: written once more
//! ```

use std::collections::BTreeMap;

use ninep::dialect::ReplyHeader;

/// The writes of a mount that its proxy's machine may lose, by session and number.
#[derive(Debug, Default)]
pub(super) struct KeptWrites {
    epoch: u64,
    header: Option<ReplyHeader>,
    writes: BTreeMap<(u64, u64), KeptWrite>,
    committing: bool,
    losses: u64,
}

/// A write that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptWrite {
    pub(super) file: u32,
    /// The call that was asked for it first.
    pub(super) write: usize,
}

/// What a reply's header, or an answered commit, changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeptChange {
    /// Writes that are durable.
    pub(super) durable: Vec<KeptWrite>,
    /// Writes to be executed once more.
    pub(super) lost: Vec<KeptWrite>,
}

impl KeptWrites {
    /// A reply of session `epoch` came.
    pub(super) fn handle_header(&mut self, epoch: u64, header: ReplyHeader) -> KeptChange {
        if epoch < self.epoch {
            return KeptChange::default();
        }
        let before = self.header.replace(header);
        self.epoch = epoch;
        if before.is_none_or(|before| before.verifier == header.verifier) {
            return KeptChange { durable: self.take_committed(), lost: Vec::new() };
        }
        self.losses += 1;
        let lost = std::mem::take(&mut self.writes).into_values().collect();
        KeptChange { durable: Vec::new(), lost }
    }

    /// A write was answered. `None`: it is kept; otherwise, whether it must be durable by now.
    pub(super) fn insert(&mut self, epoch: u64, number: u64, write: KeptWrite) -> Option<bool> {
        let committed = self.header.map_or(0, |header| header.commit_watermark);
        if epoch < self.epoch {
            return Some(false);
        }
        if epoch == self.epoch && number <= committed {
            return Some(true);
        }
        self.writes.insert((epoch, number), write);
        None
    }

    /// Whether a commit is to be sent now.
    pub(super) fn begin_commit(&mut self) -> bool {
        let older = self.writes.first_key_value().is_some_and(|((of, _), _)| *of < self.epoch);
        let due = self.writes.len() > COMMIT_FROM || older;
        due && !std::mem::replace(&mut self.committing, true)
    }

    /// A commit of session `epoch` was answered: all writes of earlier sessions are durable.
    pub(super) fn committed(&mut self, epoch: u64) -> Vec<KeptWrite> {
        self.committing = false;
        if epoch != self.epoch {
            return Vec::new();
        }
        let later = self.writes.split_off(&(epoch, 0));
        let earlier = std::mem::replace(&mut self.writes, later);
        earlier.into_values().chain(self.take_committed()).collect()
    }

    /// How often writes were lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    fn take_committed(&mut self) -> Vec<KeptWrite> {
        let Some(header) = self.header else { return Vec::new() };
        // Those of earlier sessions come first, and stay.
        let mut of_now = self.writes.split_off(&(self.epoch, 0));
        self.writes.append(&mut of_now.split_off(&(self.epoch, header.commit_watermark + 1)));
        of_now.into_values().collect()
    }
}

/// From this many kept writes on, the mount asks the proxy to make them durable.
const COMMIT_FROM: usize = 8;
