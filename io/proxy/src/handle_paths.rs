//! By which name a client reached a file, found by the file's handle: so that what names a file
//! by handle is counted where the file lies.
//!
//! ```text
//!   lookup, open, list, make, rename: directory's path + name ─► learn: the handle's path
//!   any message on a handle ─► find: its location, O(1), before it is queued
//! ```
//!
//! The name that was looked up last counts, since that is the one in use: a mount's kernel looks a
//! name up again within the time that it may keep it, and after a rename. What a file with more
//! names than one is in is kept apart and for all clients together (hard_links.rs).
//!
//! Its mark, the deepest directory on its path that an entitlement names, is that of the look-up: a
//! directory that is named later, and a rename of a directory above, change it with the next one.
//!
//! Bounds: [`CLIENT_BYTES_MAX`] for a client and [`TOTAL_BYTES_MAX`] over all. Above its own bound
//! a client loses its least recently used name. Above the total, the client loses its names whose
//! last use is the longest ago of all. A handle that is not known is resolved when its message is
//! executed (the kernel gives the path of a file with one name) and counts from then on.

use std::sync::{Arc, Mutex};

use lru::LruCache;
use model::{Directory, FilePlace, PathSet};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::gate::Gate;
use crate::location::{Location, NumberedRules};

/// Bytes that the names of a client may take: some 50,000 files.
const CLIENT_BYTES_MAX: usize = 8 << 20;
/// Bytes that the names of all clients may take.
const TOTAL_BYTES_MAX: usize = 128 << 20;
/// Approximate bytes of an entry beside its path.
const ENTRY_BYTES: usize = 128;
/// Number of names that are evicted at once from the client whose last use is the longest ago.
const EVICT_AT_ONCE: usize = 64;

/// The names of all clients.
pub(crate) struct PathTable {
    clients: Mutex<PathClients>,
    bounds: PathTableBounds,
}

/// Bounds on the bytes that names take.
#[derive(Clone, Copy)]
struct PathTableBounds {
    /// Of one client.
    client_max: usize,
    /// Of all clients.
    total_max: usize,
}

/// One client's part of it; its names end with it.
pub(crate) struct ClientPaths {
    table: Arc<PathTable>,
    client: u64,
}

/// Facts of the file behind a handle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownFile {
    /// Its path from the export's root.
    pub(crate) path: Box<[u8]>,
    /// Its mark by that path, when that was looked up.
    pub(crate) mark: Option<Directory>,
    pub(crate) project: Option<u32>,
    /// It is a directory whose project is that of what is made in it.
    pub(crate) inherits: bool,
    /// Device and inode of a file with several names.
    pub(crate) linked: Option<(u64, u64)>,
}

/// A handle, by the code that begins each: no two files have the same.
type NameKey = u128;

#[derive(Default)]
struct PathClients {
    names: FxHashMap<u64, FileNames>,
    bytes: usize,
    /// Counts uses, to tell which was first.
    used: u64,
    last_client: u64,
}

struct FileNames {
    files: LruCache<NameKey, NamedFile, FxBuildHasher>,
    bytes: usize,
}

struct NamedFile {
    known: KnownFile,
    /// The directories of its path, by the rules of this number.
    paths: PathSet,
    rules: u64,
    used: u64,
}

impl PathTable {
    pub(crate) fn new() -> Arc<PathTable> {
        PathTable::bounded(CLIENT_BYTES_MAX, TOTAL_BYTES_MAX)
    }

    fn bounded(client_max: usize, total_max: usize) -> Arc<PathTable> {
        let bounds = PathTableBounds { client_max, total_max };
        Arc::new(PathTable { clients: Mutex::default(), bounds })
    }

    /// A client without names.
    pub(crate) fn client(self: &Arc<PathTable>) -> ClientPaths {
        let clients = &mut *self.clients.lock().expect("not poisoned");
        clients.last_client += 1;
        ClientPaths { table: self.clone(), client: clients.last_client }
    }
}

impl ClientPaths {
    /// Notes by which name a file was reached.
    pub(crate) fn insert(&self, handle: &[u8], known: KnownFile) {
        let Some(key) = key_of(handle) else { return };
        let clients = &mut *self.table.clients.lock().expect("not poisoned");
        clients.insert(self.client, key, known, self.table.bounds);
    }

    /// Whether a handle's file is known.
    pub(crate) fn has(&self, handle: &[u8]) -> bool {
        let clients = self.table.clients.lock().expect("not poisoned");
        let files = clients.names.get(&self.client).map(|names| &names.files);
        key_of(handle).zip(files).is_some_and(|(key, files)| files.contains(&key))
    }

    /// Returns the known facts of a handle's file.
    pub(crate) fn known(&self, handle: &[u8]) -> Option<KnownFile> {
        let key = key_of(handle)?;
        let clients = &mut *self.table.clients.lock().expect("not poisoned");
        clients.find(self.client, key).map(|file| file.known.clone())
    }

    /// Where a handle's file lies, as far as its own name says, and whether it has others.
    pub(crate) fn find(
        &self,
        handle: &[u8],
        gate: &Gate,
    ) -> Option<(Location, Option<(u64, u64)>)> {
        let key = key_of(handle)?;
        let clients = &mut *self.table.clients.lock().expect("not poisoned");
        let file = clients.find(self.client, key)?;
        if file.rules != gate.rules_number() {
            file.compare(&gate.rules());
        }
        Some((file.location(), file.known.linked))
    }
}

impl Drop for ClientPaths {
    fn drop(&mut self) {
        let clients = &mut *self.table.clients.lock().expect("not poisoned");
        let names = clients.names.remove(&self.client);
        clients.bytes -= names.map_or(0, |names| names.bytes);
    }
}

impl PathClients {
    fn find(&mut self, client: u64, key: NameKey) -> Option<&mut NamedFile> {
        let file = self.names.get_mut(&client)?.files.get_mut(&key)?;
        self.used += 1;
        file.used = self.used;
        Some(file)
    }

    fn insert(&mut self, client: u64, key: NameKey, known: KnownFile, bounds: PathTableBounds) {
        self.used += 1;
        let bytes = ENTRY_BYTES + known.path.len();
        // Of rules that never are: it is compared when it is looked for.
        let file = NamedFile { known, paths: PathSet::default(), rules: u64::MAX, used: self.used };
        let names = self.names.entry(client).or_insert_with(FileNames::new);
        let before = names.bytes;
        if let Some(old) = names.files.put(key, file) {
            names.bytes -= old.bytes();
        }
        names.bytes += bytes;
        while names.bytes > bounds.client_max && names.evict() {}
        self.bytes = self.bytes - before + names.bytes;
        while self.bytes > bounds.total_max && self.evict() {}
    }

    /// Takes some names of the client whose last use is the longest ago.
    fn evict(&mut self) -> bool {
        let oldest =
            |names: &FileNames| names.files.peek_lru().map_or(u64::MAX, |(_, file)| file.used);
        let Some(names) = self.names.values_mut().min_by_key(|names| oldest(names)) else {
            return false;
        };
        let before = names.bytes;
        for _ in 0..EVICT_AT_ONCE.min(names.files.len()) {
            names.evict();
        }
        self.bytes = self.bytes - before + names.bytes;
        before != names.bytes
    }
}

impl FileNames {
    fn new() -> FileNames {
        FileNames { files: LruCache::unbounded_with_hasher(FxBuildHasher), bytes: 0 }
    }

    fn evict(&mut self) -> bool {
        let Some((_, file)) = self.files.pop_lru() else { return false };
        self.bytes -= file.bytes();
        true
    }
}

impl NamedFile {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.known.path.len()
    }

    fn compare(&mut self, rules: &NumberedRules) {
        self.paths = rules.set.path_set(&self.known.path);
        self.rules = rules.number;
    }

    fn location(&self) -> Location {
        let place = FilePlace { paths: self.paths, mark: self.known.mark.clone() };
        Location { place, project: self.known.project }
    }
}

fn key_of(handle: &[u8]) -> Option<NameKey> {
    handle.first_chunk().map(|code| u128::from_le_bytes(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u32) -> [u8; 20] {
        let mut handle = [7; 20];
        handle[..4].copy_from_slice(&number.to_le_bytes());
        handle
    }

    fn file(path: &str) -> KnownFile {
        KnownFile { path: path.as_bytes().into(), ..KnownFile::default() }
    }

    fn bytes(table: &PathTable) -> usize {
        table.clients.lock().unwrap().bytes
    }

    #[test]
    fn the_name_that_was_looked_up_last_counts() {
        let table = PathTable::new();
        let (one, two) = (table.client(), table.client());
        one.insert(&handle(1), file("/a"));
        one.insert(&handle(1), file("/b"));
        assert_eq!(one.known(&handle(1)), Some(file("/b")));
        assert_eq!((one.known(&handle(2)), two.known(&handle(1))), (None, None));
        drop((one, two));
        assert_eq!((bytes(&table), table.clients.lock().unwrap().names.len()), (0, 0));
    }

    #[test]
    fn the_table_of_paths_by_handle_is_bounded_for_each_client_and_over_all() {
        let one_entry = ENTRY_BYTES + 2;
        let table = PathTable::bounded(1_000 * one_entry, 2_500 * one_entry);
        let clients: Vec<_> = (0..4).map(|_| table.client()).collect();
        for number in 0..3_000 {
            clients[0].insert(&handle(number), file("/a"));
            // In use all the time: others go first.
            assert!(clients[0].known(&handle(0)).is_some());
        }
        assert_eq!(bytes(&table), 1_000 * one_entry);
        assert!(clients[0].known(&handle(2_999)).is_some());
        assert!(clients[0].known(&handle(1_000)).is_none());
        for client in &clients[1..] {
            for number in 0..3_000 {
                client.insert(&handle(number), file("/a"));
                assert!(bytes(&table) <= 2_500 * one_entry);
            }
        }
        assert!(bytes(&table) > 2_400 * one_entry);
        // Whose names were used longest ago has lost them, and nobody is kept from new ones.
        assert!(clients[0].known(&handle(2_998)).is_none());
        assert!(clients[3].known(&handle(2_999)).is_some());
        clients[0].insert(&handle(1), file("/a"));
        assert!(clients[0].known(&handle(1)).is_some());
    }

    #[test]
    fn a_long_path_takes_as_much_as_it_is_long() {
        let table = PathTable::bounded(10_000, 100_000);
        let client = table.client();
        let long = "/x".repeat(1_000);
        for number in 0..100 {
            client.insert(&handle(number), file(&long));
            assert!(bytes(&table) <= 10_000);
        }
        assert!(client.known(&handle(99)).is_some());
    }
}
