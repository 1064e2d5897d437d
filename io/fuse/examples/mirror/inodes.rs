//! Which inode of the directory the kernel means, and which open file.
//!
//! An inode is known by a descriptor that was opened with O_PATH, which names it whatever
//! becomes of its names. Looked up again under any name, the same inode has the same id.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use fuse::{Errno, Handle, InodeId};
use rustix::fs::Stat;

/// Every inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inodes {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    inodes: HashMap<InodeId, Known>,
    by_number: HashMap<(u64, u64), InodeId>,
    next: u64,
}

#[derive(Debug)]
struct Known {
    fd: Arc<OwnedFd>,
    number: (u64, u64),
    lookups: u64,
}

impl Inodes {
    /// The root only.
    pub(crate) fn new(root: OwnedFd) -> Result<Inodes, Errno> {
        let number = number_of(&rustix::fs::fstat(&root)?);
        let known = Known { fd: Arc::new(root), number, lookups: 1 };
        let table = Table {
            inodes: HashMap::from([(InodeId::ROOT, known)]),
            by_number: HashMap::from([(number, InodeId::ROOT)]),
            next: InodeId::ROOT.0 + 1,
        };
        Ok(Inodes { table: Mutex::new(table) })
    }

    /// The descriptor of an inode.
    pub(crate) fn get(&self, inode: InodeId) -> Result<Arc<OwnedFd>, Errno> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.inodes.get(&inode).map(|known| known.fd.clone()).ok_or(Errno::STALE)
    }

    /// Counts one look-up of what `fd` is.
    pub(crate) fn look_up(&self, fd: OwnedFd, stat: &Stat) -> InodeId {
        let number = number_of(stat);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *table;
        let inode = *table.by_number.entry(number).or_insert_with(|| {
            table.next += 1;
            InodeId(table.next - 1)
        });
        let new = || Known { fd: Arc::new(fd), number, lookups: 0 };
        table.inodes.entry(inode).or_insert_with(new).lookups += 1;
        inode
    }

    /// Takes look-ups back.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = table.inodes.get_mut(&inode) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            let number = known.number;
            table.inodes.remove(&inode);
            table.by_number.remove(&number);
        }
    }
}

fn number_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Every file and directory that is open: the handle is the number of its descriptor.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: Mutex<HashMap<Handle, Arc<File>>>,
}

impl Files {
    /// Keeps a file until it is removed.
    pub(crate) fn add(&self, fd: OwnedFd) -> Handle {
        let handle = Handle(u64::try_from(fd.as_fd().as_raw_fd()).expect("not negative"));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(handle, Arc::new(File::from(fd)));
        handle
    }

    /// The file of a handle.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<File>, Errno> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Closes it, once nobody uses it any more.
    pub(crate) fn remove(&self, handle: Handle) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }
}
