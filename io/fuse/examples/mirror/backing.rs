//! Files that the kernel reads and writes by itself, without asking (passthrough).
//!
//! ```text
//!   open ─► is the inode open already? ─┬─ yes: the same backing file, one more user
//!                                       └─ no: handed to the kernel ─► BackingId
//!   release ─► was it the last user? ─► taken back
//! ```
//!
//! While an inode is open this way the kernel fails every open of it with another backing
//! file, or with none (EIO, EBUSY). So an inode has one for as long as anybody has it open,
//! and where the kernel has refused a file once, no other is tried.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use fuse::{BackingId, InodeId, Notifier};

/// The backing file of each inode that is open; none before [`Backings::allow`].
#[derive(Debug, Default)]
pub(crate) struct Backings {
    notifier: OnceLock<Notifier>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    used: HashMap<InodeId, Used>,
    refused: bool,
}

#[derive(Debug)]
struct Used {
    id: BackingId,
    users: u64,
}

impl Backings {
    /// From now on files are handed to the kernel.
    pub(crate) fn allow(&self, notifier: Notifier) {
        // Called once, when the connection begins.
        let _ = self.notifier.set(notifier);
    }

    /// The inode is opened once more, as `file`.
    pub(crate) fn opened(&self, inode: InodeId, file: BorrowedFd<'_>) -> Option<BackingId> {
        let notifier = self.notifier.get()?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = table.used.get_mut(&inode) {
            used.users += 1;
            return Some(used.id);
        }
        if table.refused {
            return None;
        }
        match notifier.open_backing(file) {
            Ok(id) => {
                table.used.insert(inode, Used { id, users: 1 });
                Some(id)
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel takes no backing files");
                table.refused = true;
                None
            }
        }
    }

    /// One of its openings ended.
    pub(crate) fn released(&self, inode: InodeId) {
        let Some(notifier) = self.notifier.get() else { return };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(used) = table.used.get_mut(&inode) else { return };
        used.users -= 1;
        if used.users == 0 {
            if let Err(error) = notifier.close_backing(used.id) {
                tracing::error!(%error, ?inode, "the kernel does not give a backing file back");
            }
            table.used.remove(&inode);
        }
    }
}
