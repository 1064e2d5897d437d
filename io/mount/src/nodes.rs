//! What the kernel knows of the export: inodes, and the proxy's handles for them.
//!
//! ```text
//!   reply: handle ─► look_up ─► Node, one look-up more ─► InodeId ─► kernel
//!   kernel: InodeId ─► get ─► Node: handle ─► request
//!   kernel: forget n ─► n look-ups less ─► none left: dropped
//! ```
//!
//! A node costs memory only: neither the proxy nor this process holds a descriptor for it.
//!
//! Invariant: both maps have the same nodes; the root is never dropped.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fuse::{Errno, InodeId};
use ninep::Attributes;
use ninep::dialect::PLAIN_FILE;
use rustc_hash::FxHashMap;

use crate::behind::Behind;
use crate::link::lock;
use crate::operations::told::is_told;

/// A file, directory or other inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: InodeId,
    /// The proxy's name of it.
    pub(crate) handle: Arc<[u8]>,
    /// What was written and answered, and not yet executed.
    pub(crate) behind: Behind,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Until then nobody needs to ask for ACLs and extended attributes: there are none.
    plain_until: Option<Instant>,
    /// The version of the data that the page cache may hold.
    version: Option<u32>,
    /// How long the file was when that was heard last.
    len: u64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Nodes {
    table: Mutex<Table>,
    /// How long attributes may be believed.
    believed: Duration,
}

#[derive(Debug)]
struct Table {
    by_id: FxHashMap<u64, Counted>,
    by_handle: FxHashMap<Arc<[u8]>, u64>,
    next: u64,
}

#[derive(Debug)]
struct Counted {
    node: Arc<Node>,
    lookups: u64,
}

impl Nodes {
    /// The root alone. What attributes say is believed for so long.
    pub(crate) fn new(root: &[u8], believed: Duration) -> Nodes {
        let mut table =
            Table { by_id: FxHashMap::default(), by_handle: FxHashMap::default(), next: 1 };
        table.add(root);
        Nodes { table: Mutex::new(table), believed }
    }

    /// The node with this handle, looked up once more.
    pub(crate) fn look_up(&self, handle: &[u8], attributes: &Attributes) -> Arc<Node> {
        let node = {
            let mut table = lock(&self.table);
            let id = match table.by_handle.get(handle) {
                Some(id) => *id,
                None => table.add(handle),
            };
            let counted = table.by_id.get_mut(&id).expect("both maps have the same nodes");
            counted.lookups += 1;
            counted.node.clone()
        };
        self.told(&node, attributes);
        node
    }

    /// What the proxy said of a node.
    pub(crate) fn told(&self, node: &Node, attributes: &Attributes) {
        let plain = attributes.valid & PLAIN_FILE != 0;
        let mut known = lock(&node.known);
        known.plain_until = plain.then(|| Instant::now() + self.believed);
        known.len = attributes.size;
    }

    /// The node that the kernel names.
    ///
    /// # Errors
    /// `ESTALE` if there is none, which the kernel does not ask for; `EROFS` for one of the mount's
    /// own, of which nothing else is done with this.
    pub(crate) fn get(&self, inode: InodeId) -> Result<Arc<Node>, Errno> {
        if is_told(inode) {
            return Err(Errno::ROFS);
        }
        let table = lock(&self.table);
        table.by_id.get(&inode.0).map(|counted| counted.node.clone()).ok_or(Errno::STALE)
    }

    /// How many the kernel knows, the root among them.
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).by_id.len()
    }

    /// The kernel takes look-ups back.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(counted) = table.by_id.get_mut(&inode.0) else { return };
        counted.lookups = counted.lookups.saturating_sub(lookups);
        if counted.lookups == 0 && inode != InodeId::ROOT {
            let gone = table.by_id.remove(&inode.0).expect("it was there");
            table.by_handle.remove(&gone.node.handle);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let table = lock(&self.table);
        assert_eq!(table.by_id.len(), table.by_handle.len());
        table.by_id.len()
    }
}

impl Table {
    fn add(&mut self, handle: &[u8]) -> u64 {
        let handle: Arc<[u8]> = handle.into();
        let id = self.next;
        self.next += 1;
        let (behind, known) = Default::default();
        let node = Node { id: InodeId(id), handle: handle.clone(), behind, known };
        self.by_id.insert(id, Counted { node: Arc::new(node), lookups: 0 });
        self.by_handle.insert(handle, id);
        id
    }
}

impl Node {
    /// Whether it is known to have neither ACL nor extended attributes.
    pub(crate) fn is_plain(&self) -> bool {
        lock(&self.known).plain_until.is_some_and(|until| Instant::now() < until)
    }

    /// Its attributes were changed from here, other than by what is told next.
    pub(crate) fn not_plain(&self) {
        lock(&self.known).plain_until = None;
    }

    /// It is opened and has this version: true if the page cache holds no other's data.
    pub(crate) fn keeps_cache(&self, version: u32) -> bool {
        let mut known = lock(&self.known);
        // Version 0 says: do not cache.
        let same = version != 0 && known.version == Some(version);
        known.version = Some(version);
        same
    }

    /// It was written from here, so its version is another.
    pub(crate) fn written(&self) {
        lock(&self.known).version = None;
    }

    /// How long it was when that was heard last: what is appended from now on is behind that.
    pub(crate) fn len(&self) -> u64 {
        lock(&self.known).len
    }

    /// Something was appended, and it ends here.
    pub(crate) fn reaches(&self, end: u64) {
        let mut known = lock(&self.known);
        known.len = known.len.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_lives_until_every_look_up_is_taken_back() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let attributes = Attributes::default();
        let first = nodes.look_up(b"a", &attributes);
        let again = nodes.look_up(b"a", &attributes);
        assert_eq!((first.id, again.id), (InodeId(2), InodeId(2)));
        nodes.forget(first.id, 1);
        assert_eq!(nodes.get(first.id).unwrap().handle, first.handle);
        nodes.forget(first.id, 1);
        assert_eq!(nodes.get(first.id).err(), Some(Errno::STALE));
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.look_up(b"a", &attributes).id, InodeId(3), "a number is used once");
    }

    #[test]
    fn the_root_stays_whoever_forgets_it() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        assert_eq!(nodes.look_up(b"root", &Attributes::default()).id, InodeId::ROOT);
        nodes.forget(InodeId::ROOT, 7);
        assert_eq!(*nodes.get(InodeId::ROOT).unwrap().handle, *b"root");
    }

    #[test]
    fn a_plain_file_is_believed_to_be_so_for_as_long_as_its_attributes() {
        let plain = Attributes { valid: PLAIN_FILE, ..Attributes::default() };
        let never = Nodes::new(b"root", Duration::ZERO);
        assert!(!never.look_up(b"a", &plain).is_plain());
        let long = Nodes::new(b"root", Duration::from_secs(1000));
        let node = long.look_up(b"a", &plain);
        assert!(node.is_plain());
        long.told(&node, &Attributes::default());
        assert!(!node.is_plain());
    }

    #[test]
    fn cached_data_is_kept_only_for_the_version_that_was_open_before() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let node = nodes.look_up(b"a", &Attributes::default());
        assert!(!node.keeps_cache(5), "nothing was cached");
        assert!(node.keeps_cache(5));
        assert!(!node.keeps_cache(6));
        node.written();
        assert!(!node.keeps_cache(6));
        assert!(!node.keeps_cache(0) && !node.keeps_cache(0), "0 is never the same");
    }
}
