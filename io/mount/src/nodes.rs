//! The kernel's view of the export: inodes, and the proxy's handles for them.
//!
//! ```text
//!   reply: handle ─► lookup ─► MountNode, one look-up more ─► InodeId ─► kernel
//!   kernel: InodeId ─► get ─► MountNode: handle ─► request
//!   kernel: forget n ─► n look-ups less ─► none left: dropped
//! ```
//!
//! A node costs memory only: neither the proxy nor this process holds a descriptor for it.
//!
//! The kernel uses the names that it has received for as long as it caches them, and then sends
//! requests for the file without its name. So the names are kept here as well, as places. A request
//! by name goes to the proxy with the file's places, and fails with `ESTALE` if one of them is a
//! different file by now.
//!
//! Invariants: both maps have the same nodes; the root is never dropped; a place is one node's.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fuse::{Errno, InodeId};
use ninep::dialect::{NAMES_MAX, PLAIN_FILE};
use ninep::{Attributes, QTDIR};
use rustc_hash::FxHashMap;

use crate::operations::control_files::is_control_file;
use crate::session::lock;
use crate::write_behind::FileWriteBehind;

/// A file, directory or other inode that the kernel knows.
#[derive(Debug)]
pub(crate) struct MountNode {
    pub(crate) id: InodeId,
    /// The proxy's handle of the file.
    pub(crate) handle: Arc<[u8]>,
    /// Acknowledged writes that are not yet executed.
    pub(crate) write_behind: FileWriteBehind,
    /// Number of files that are open on it for writing, and so may be mapped for writing.
    pub(crate) writers: AtomicUsize,
    /// Whether the page cache has handed over what was written through mappings.
    pub(crate) written_back: AtomicBool,
    /// Whether its pages are about to be dropped, as no lease covers them.
    pub(crate) dropping_pages: AtomicBool,
    known: Mutex<KnownNode>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownNode {
    /// Time until which ACLs and extended attributes need no request: there are none.
    plain_until: Option<Instant>,
    /// The version of the data that the page cache may hold.
    version: Option<u32>,
    /// Last known length of the file.
    len: u64,
    directory: bool,
    /// The path of its qid.
    path: Option<u64>,
}

/// The nodes of the mount.
#[derive(Debug)]
pub(crate) struct Nodes {
    table: Mutex<NodeTable>,
    /// Time for which names and attributes may be cached.
    believed: Duration,
}

#[derive(Debug)]
struct NodeTable {
    by_id: FxHashMap<u64, CountedNode>,
    by_handle: FxHashMap<Arc<[u8]>, u64>,
    by_place: FxHashMap<NodePlace, u64>,
    next: u64,
}

#[derive(Debug)]
struct CountedNode {
    node: Arc<MountNode>,
    lookups: u64,
    /// Places where the kernel may look for it; the newest is the last.
    places: Vec<BelievedPlace>,
}

/// A place where the kernel may look for a node.
#[derive(Debug)]
struct BelievedPlace {
    place: NodePlace,
    until: Instant,
    /// The kernel is being notified to drop it.
    expiring: bool,
}

/// A name in a directory, which has this number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodePlace {
    directory: u64,
    name: Arc<[u8]>,
}

/// A place in the form of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WirePlace {
    /// The proxy's handle of the directory.
    pub(crate) directory: Arc<[u8]>,
    pub(crate) name: Arc<[u8]>,
}

/// A name that the kernel must no longer cache.
#[derive(Clone, Debug)]
pub(crate) struct DoubtedName {
    pub(crate) directory: InodeId,
    pub(crate) name: Arc<[u8]>,
    /// Distinguishes this cache entry from a later one of the same name.
    until: Instant,
}

impl NodePlace {
    fn new(directory: InodeId, name: &[u8]) -> NodePlace {
        NodePlace { directory: directory.0, name: name.into() }
    }
}

impl Nodes {
    /// Makes the nodes with only the root. Attributes may be cached for the given time.
    pub(crate) fn new(root: &[u8], believed: Duration) -> Nodes {
        let (by_id, by_handle, by_place) = Default::default();
        let mut table = NodeTable { by_id, by_handle, by_place, next: 1 };
        table.add(root);
        Nodes { table: Mutex::new(table), believed }
    }

    /// Returns the node with this handle, and counts one look-up.
    pub(crate) fn lookup(&self, handle: &[u8], attributes: &Attributes) -> Arc<MountNode> {
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
        self.update_attributes(&node, attributes);
        node
    }

    /// Notes that the kernel receives this name of a node. False if the node has too many names
    /// already: then the kernel must not cache the name.
    pub(crate) fn add_name(&self, node: &MountNode, directory: InodeId, name: &[u8]) -> bool {
        let now = Instant::now();
        let until = now + self.believed + LATE;
        lock(&self.table).insert_place(node.id.0, NodePlace::new(directory, name), now, until)
    }

    /// Notes that a name was removed. Returns whether the kernel may have had a file under it.
    pub(crate) fn removed(&self, directory: InodeId, name: &[u8]) -> bool {
        lock(&self.table).remove_place(&NodePlace::new(directory, name)).is_some()
    }

    /// Notes that a file with one name has a different name now.
    pub(crate) fn renamed(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        let mut table = lock(&self.table);
        let moved = table.remove_place(&NodePlace::new(from.0, from.1));
        let to = NodePlace::new(to.0, to.1);
        match moved {
            Some(id) => {
                let now = Instant::now();
                table.insert_place(id, to, now, now + self.believed + LATE);
            }
            None => {
                table.remove_place(&to);
            }
        }
    }

    /// Returns the places where the kernel may look for a node, the newest first: handles of
    /// directories with names in them.
    pub(crate) fn believed_places(&self, node: &MountNode) -> Vec<WirePlace> {
        let mut table = lock(&self.table);
        table.drop_expired_places(node.id.0, Instant::now());
        let Some(counted) = table.by_id.get(&node.id.0) else { return Vec::new() };
        let wired = |believed: &BelievedPlace| {
            let NodePlace { directory, name } = &believed.place;
            let directory = table.by_id.get(directory)?.node.handle.clone();
            Some(WirePlace { directory, name: name.clone() })
        };
        counted.places.iter().rev().filter_map(wired).collect()
    }

    /// Returns the node and the directories through which the kernel may have come to it.
    pub(crate) fn ancestors_of(&self, node: &MountNode) -> Vec<InodeId> {
        let table = lock(&self.table);
        let (mut way, mut at) = (vec![node.id], 0);
        while at < way.len() && way.len() < ANCESTORS_MAX {
            let places = table.by_id.get(&way[at].0).map_or(&[][..], |counted| &counted.places);
            for BelievedPlace { place, .. } in places {
                let above = InodeId(place.directory);
                if !way.contains(&above) {
                    way.push(above);
                }
            }
            at += 1;
        }
        way
    }

    /// Notes that a node is not, or not only, at its former places. Returns the names that the
    /// kernel must no longer cache, each once. Until it has dropped them, and a while longer, they
    /// count as cached: see [`Nodes::expired`].
    pub(crate) fn expire_places(&self, node: &MountNode) -> Vec<DoubtedName> {
        let mut table = lock(&self.table);
        let Some(counted) = table.by_id.get_mut(&node.id.0) else { return Vec::new() };
        let places = counted.places.iter_mut().filter(|believed| !believed.expiring);
        let doubted = places.map(|believed| {
            believed.expiring = true;
            let NodePlace { directory, name } = &believed.place;
            let (directory, name) = (InodeId(*directory), name.clone());
            DoubtedName { directory, name, until: believed.until }
        });
        doubted.collect()
    }

    /// Notes that the kernel no longer caches a name, unless it has looked the name up again since.
    /// A caller that used the name until now may still have to name its reason.
    pub(crate) fn expired(&self, doubted: &DoubtedName) {
        let place = NodePlace { directory: doubted.directory.0, name: doubted.name.clone() };
        let mut table = lock(&self.table);
        let Some(id) = table.by_place.get(&place).copied() else { return };
        let places = table.by_id.get_mut(&id).into_iter().flat_map(|counted| &mut counted.places);
        for believed in places.filter(|it| it.place == place && it.until == doubted.until) {
            believed.until = believed.until.min(Instant::now() + EXPIRED_LATE);
        }
    }

    /// Notes the proxy's attributes of a node.
    pub(crate) fn update_attributes(&self, node: &MountNode, attributes: &Attributes) {
        let plain = attributes.valid & PLAIN_FILE != 0;
        let mut known = lock(&node.known);
        known.plain_until = plain.then(|| Instant::now() + self.believed);
        known.len = attributes.size;
        known.directory = attributes.qid.kind & QTDIR != 0;
        known.path = Some(attributes.qid.path);
    }

    /// Returns the node that the kernel names.
    ///
    /// # Errors
    /// `ESTALE` if there is none, which the kernel does not ask for; `EROFS` for one of the mount's
    /// own, of which nothing else is done with this.
    pub(crate) fn get(&self, inode: InodeId) -> Result<Arc<MountNode>, Errno> {
        if is_control_file(inode) {
            return Err(Errno::ROFS);
        }
        let table = lock(&self.table);
        table.by_id.get(&inode.0).map(|counted| counted.node.clone()).ok_or(Errno::STALE)
    }

    /// The inode that has this handle, if the kernel knows it.
    pub(crate) fn inode_of(&self, handle: &[u8]) -> Option<InodeId> {
        lock(&self.table).by_handle.get(handle).copied().map(InodeId)
    }

    /// The node that the kernel may have under this name.
    pub(crate) fn node_at(&self, directory: InodeId, name: &[u8]) -> Option<Arc<MountNode>> {
        let table = lock(&self.table);
        let id = table.by_place.get(&NodePlace::new(directory, name))?;
        table.by_id.get(id).map(|counted| counted.node.clone())
    }

    /// Whether the kernel has received the node more than once, so that it may know it from before
    /// its last question.
    pub(crate) fn is_known_before(&self, node: &MountNode) -> bool {
        lock(&self.table).by_id.get(&node.id.0).is_some_and(|counted| counted.lookups > 1)
    }

    /// Returns the number of nodes that the kernel knows, the root among them.
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).by_id.len()
    }

    /// Takes back look-ups that the kernel has forgotten.
    pub(crate) fn forget(&self, inode: InodeId, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(counted) = table.by_id.get_mut(&inode.0) else { return };
        counted.lookups = counted.lookups.saturating_sub(lookups);
        if counted.lookups == 0 && inode != InodeId::ROOT {
            let gone = table.by_id.remove(&inode.0).expect("it was there");
            table.by_handle.remove(&gone.node.handle);
            for believed in &gone.places {
                table.by_place.remove(&believed.place);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let table = lock(&self.table);
        assert_eq!(table.by_id.len(), table.by_handle.len());
        table.by_id.len()
    }
}

impl NodeTable {
    fn add(&mut self, handle: &[u8]) -> u64 {
        let handle: Arc<[u8]> = handle.into();
        let id = self.next;
        self.next += 1;
        let (behind, writers, written_back, dropping_pages, known) = Default::default();
        let (number, name) = (InodeId(id), handle.clone());
        let node = MountNode {
            id: number,
            handle: name,
            write_behind: behind,
            writers,
            written_back,
            dropping_pages,
            known,
        };
        self.by_id.insert(id, CountedNode { node: Arc::new(node), lookups: 0, places: Vec::new() });
        self.by_handle.insert(handle, id);
        id
    }

    fn insert_place(&mut self, id: u64, place: NodePlace, now: Instant, until: Instant) -> bool {
        self.remove_place(&place);
        self.drop_expired_places(id, now);
        let Some(counted) = self.by_id.get_mut(&id) else { return false };
        if counted.places.len() >= NAMES_MAX {
            return false;
        }
        counted.places.push(BelievedPlace { place: place.clone(), until, expiring: false });
        self.by_place.insert(place, id);
        true
    }

    fn drop_expired_places(&mut self, id: u64, now: Instant) {
        let Some(counted) = self.by_id.get_mut(&id) else { return };
        for old in counted.places.extract_if(.., |believed| believed.until < now) {
            self.by_place.remove(&old.place);
        }
    }

    /// Returns the node that had this place.
    fn remove_place(&mut self, place: &NodePlace) -> Option<u64> {
        let id = self.by_place.remove(place)?;
        if let Some(counted) = self.by_id.get_mut(&id) {
            counted.places.retain(|known| known.place != *place);
        }
        Some(id)
    }
}

impl MountNode {
    /// Whether the node is known to have neither ACL nor extended attributes.
    pub(crate) fn is_plain(&self) -> bool {
        lock(&self.known).plain_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the node is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        lock(&self.known).directory
    }

    /// The path of its qid, by which leases name it; none before its attributes were known.
    pub(crate) fn path(&self) -> Option<u64> {
        lock(&self.known).path
    }

    /// Notes that its attributes were changed from here, other than by the next reply.
    pub(crate) fn not_plain(&self) {
        lock(&self.known).plain_until = None;
    }

    /// Notes an open with this version: true if the page cache holds no other version's data.
    pub(crate) fn note_open_version(&self, version: u32) -> bool {
        let mut known = lock(&self.known);
        // Version 0 says: do not cache.
        let same = version != 0 && known.version == Some(version);
        known.version = Some(version);
        same
    }

    /// Notes a write of this mount, which changes its version.
    pub(crate) fn clear_version(&self) {
        lock(&self.known).version = None;
    }

    /// Returns its last known length: bytes that are appended from now on are behind that.
    pub(crate) fn len(&self) -> u64 {
        lock(&self.known).len
    }

    /// Notes an append, and its end.
    pub(crate) fn extend_to(&self, end: u64) {
        let mut known = lock(&self.known);
        known.len = known.len.max(end);
    }
}

/// Maximum delay after which the kernel notices a reply: from then on it caches it.
const LATE: Duration = Duration::from_secs(60);

/// Maximum delay after which a file is opened by a name that the kernel used before it was notified
/// to drop it.
const EXPIRED_LATE: Duration = Duration::from_secs(10);
/// Maximum number of directories above a node that are checked: few paths have more.
const ANCESTORS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(nodes: &Nodes, node: &MountNode) -> Vec<Vec<u8>> {
        nodes.believed_places(node).iter().map(|place| place.name.to_vec()).collect()
    }

    #[test]
    fn a_node_is_where_the_kernel_was_told_it_is() {
        let nodes = Nodes::new(b"root", Duration::from_secs(1));
        let [one, other] = [b"a", b"b"].map(|handle| nodes.lookup(handle, &Attributes::default()));
        nodes.add_name(&one, InodeId::ROOT, b"x");
        nodes.add_name(&one, InodeId::ROOT, b"y");
        nodes.add_name(&one, InodeId::ROOT, b"x");
        assert_eq!(names(&nodes, &one), [b"x", b"y"]);
        assert_eq!(*nodes.believed_places(&one)[0].directory, *b"root");
        nodes.add_name(&other, InodeId::ROOT, b"x");
        assert_eq!(
            (names(&nodes, &one), names(&nodes, &other)),
            (vec![b"y".to_vec()], vec![b"x".to_vec()])
        );
        nodes.renamed((InodeId::ROOT, b"y"), (InodeId::ROOT, b"x"));
        assert_eq!(names(&nodes, &one), [b"x"]);
        assert!(names(&nodes, &other).is_empty());
        nodes.renamed((InodeId::ROOT, b"unknown"), (InodeId::ROOT, b"x"));
        assert!(names(&nodes, &one).is_empty());
        nodes.add_name(&one, InodeId::ROOT, b"x");
        nodes.removed(InodeId::ROOT, b"x");
        assert!(names(&nodes, &one).is_empty());
    }

    #[test]
    fn places_are_bounded_and_go_with_their_node() {
        let nodes = Nodes::new(b"root", Duration::from_secs(1));
        let node = nodes.lookup(b"a", &Attributes::default());
        for name in 0..NAMES_MAX as u8 {
            assert!(nodes.add_name(&node, InodeId::ROOT, &[b'A' + name]));
        }
        assert!(!nodes.add_name(&node, InodeId::ROOT, b"one more"));
        assert!(nodes.add_name(&node, InodeId::ROOT, b"A"), "it has this one");
        assert_eq!(names(&nodes, &node).len(), NAMES_MAX);
        let doubted = nodes.expire_places(&node);
        assert_eq!(doubted.len(), NAMES_MAX);
        assert!(nodes.expire_places(&node).is_empty(), "the kernel is being notified");
        assert!(nodes.add_name(&node, InodeId::ROOT, b"A"), "asked for once more meanwhile");
        doubted.iter().for_each(|name| nodes.expired(name));
        lock(&nodes.table).drop_expired_places(node.id.0, Instant::now() + EXPIRED_LATE);
        assert_eq!(names(&nodes, &node), [b"A"], "cached again");
        nodes.forget(node.id, 1);
        assert!(lock(&nodes.table).by_place.is_empty());
    }

    #[test]
    fn the_way_to_a_node_is_by_all_its_names() {
        let nodes = Nodes::new(b"root", Duration::from_secs(1));
        let [a, b, file] =
            [b"a", b"b", b"f"].map(|handle| nodes.lookup(handle, &Attributes::default()));
        nodes.add_name(&a, InodeId::ROOT, b"a");
        nodes.add_name(&b, a.id, b"b");
        nodes.add_name(&file, b.id, b"x");
        nodes.add_name(&file, a.id, b"y");
        assert_eq!(nodes.ancestors_of(&file), [file.id, b.id, a.id, InodeId::ROOT]);
    }

    #[test]
    fn a_node_lives_until_every_look_up_is_taken_back() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let attributes = Attributes::default();
        let first = nodes.lookup(b"a", &attributes);
        let again = nodes.lookup(b"a", &attributes);
        assert_eq!((first.id, again.id), (InodeId(2), InodeId(2)));
        nodes.forget(first.id, 1);
        assert_eq!(nodes.get(first.id).unwrap().handle, first.handle);
        nodes.forget(first.id, 1);
        assert_eq!(nodes.get(first.id).err(), Some(Errno::STALE));
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.lookup(b"a", &attributes).id, InodeId(3), "a number is used once");
    }

    #[test]
    fn the_root_stays_whoever_forgets_it() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        assert_eq!(nodes.lookup(b"root", &Attributes::default()).id, InodeId::ROOT);
        nodes.forget(InodeId::ROOT, 7);
        assert_eq!(*nodes.get(InodeId::ROOT).unwrap().handle, *b"root");
    }

    #[test]
    fn a_plain_file_is_believed_to_be_so_for_as_long_as_its_attributes() {
        let plain = Attributes { valid: PLAIN_FILE, ..Attributes::default() };
        let never = Nodes::new(b"root", Duration::ZERO);
        assert!(!never.lookup(b"a", &plain).is_plain());
        let long = Nodes::new(b"root", Duration::from_secs(1000));
        let node = long.lookup(b"a", &plain);
        assert!(node.is_plain());
        long.update_attributes(&node, &Attributes::default());
        assert!(!node.is_plain());
    }

    #[test]
    fn cached_data_is_kept_only_for_the_version_that_was_open_before() {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let node = nodes.lookup(b"a", &Attributes::default());
        assert!(!node.note_open_version(5), "nothing was cached");
        assert!(node.note_open_version(5));
        assert!(!node.note_open_version(6));
        node.clear_version();
        assert!(!node.note_open_version(6));
        assert!(!node.note_open_version(0) && !node.note_open_version(0), "0 is never the same");
    }
}
