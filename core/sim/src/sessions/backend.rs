//! The shared backend of the proxies: names, files, and what each machine may yet lose of them.
//!
//! ```text
//!   write at machine 0 ─► volatile at 0 ─┬─ fsync or syncfs at 0 ─► durable
//!                                        └─ machine 0 restarts ───► lost
//!   make, remove ─► names, durable at once
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// What a call does in the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimOp {
    /// Makes a name of a directory.
    Make { name: u32 },
    /// Removes a name of a directory.
    Remove { name: u32 },
    /// Looks a name up.
    Look { name: u32 },
    /// Appends to a file. `write` is the call that was asked for it first.
    Append { file: u32, write: usize },
    /// Writes to a file at a fixed place, once more for a write that was lost.
    Write { file: u32, write: usize },
    /// Makes the writes of a file durable that its proxy's machine has.
    Sync { file: u32 },
    /// Makes all writes durable that the proxy's machine has.
    Commit,
}

/// The result of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimOutcome {
    /// The operation was done.
    Done,
    /// The name is there already, or is not there.
    Refused,
}

/// Names and files, as the file system has them.
#[derive(Debug, Default)]
pub(super) struct SimBackend {
    names: BTreeSet<u32>,
    writes: BTreeMap<usize, StoredWrite>,
    /// How many operations were executed.
    executed: u64,
}

#[derive(Debug)]
struct StoredWrite {
    file: u32,
    durable: bool,
    /// The last execution at each machine that may yet lose it.
    volatile: BTreeMap<usize, u64>,
}

impl SimOp {
    /// Whether it must not be executed twice.
    pub(super) fn is_once(self) -> bool {
        matches!(self, SimOp::Make { .. } | SimOp::Remove { .. } | SimOp::Append { .. })
    }

    /// The file and the call of a write.
    pub(super) fn written(self) -> Option<(u32, usize)> {
        match self {
            SimOp::Append { file, write } | SimOp::Write { file, write } => Some((file, write)),
            _ => None,
        }
    }

    /// The message type that the reply cache compares.
    pub(super) fn kind(self) -> u8 {
        match self {
            SimOp::Make { .. } => 212,
            SimOp::Remove { .. } => 76,
            SimOp::Look { .. } => 206,
            SimOp::Append { .. } => 218,
            SimOp::Write { .. } => 216,
            SimOp::Sync { .. } => 50,
            SimOp::Commit => 236,
        }
    }
}

impl SimBackend {
    /// Executes an operation at a machine. A sync covers what was executed before `since`.
    pub(super) fn execute(&mut self, op: SimOp, machine: usize, since: u64) -> SimOutcome {
        self.executed += 1;
        let done = match op {
            SimOp::Make { name } => self.names.insert(name),
            SimOp::Remove { name } => self.names.remove(&name),
            SimOp::Look { name } => self.names.contains(&name),
            SimOp::Append { file, write } | SimOp::Write { file, write } => {
                let stored = self.writes.entry(write).or_insert_with(|| StoredWrite {
                    file,
                    durable: false,
                    volatile: BTreeMap::new(),
                });
                stored.volatile.insert(machine, self.executed);
                true
            }
            SimOp::Sync { file } => self.sync(machine, Some(file), since),
            SimOp::Commit => self.sync(machine, None, since),
        };
        if done { SimOutcome::Done } else { SimOutcome::Refused }
    }

    /// Loses what a machine has and has not made durable.
    pub(super) fn lose(&mut self, machine: usize) {
        for write in self.writes.values_mut() {
            write.volatile.remove(&machine);
        }
    }

    /// Whether a write can no longer be lost.
    pub(super) fn is_durable(&self, write: usize) -> bool {
        self.writes.get(&write).is_some_and(|write| write.durable)
    }

    /// How many operations were executed: the mark from which a sync begins.
    pub(super) fn executed(&self) -> u64 {
        self.executed
    }

    fn sync(&mut self, machine: usize, file: Option<u32>, since: u64) -> bool {
        for write in self.writes.values_mut() {
            let is_meant = file.is_none_or(|file| file == write.file);
            if is_meant && write.volatile.get(&machine).is_some_and(|at| *at <= since) {
                write.volatile.remove(&machine);
                write.durable = true;
            }
        }
        true
    }
}
