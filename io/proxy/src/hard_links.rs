//! The names of files that have several: a hard link takes no file out of a directory's limit.
//!
//! ```text
//!   a file with two names or more is linked, looked up or opened ─► add its name
//!        └─► it lies in the directories of all its names, until it has one name again
//! ```
//!
//! A name of such a file that is removed or renamed still counts: otherwise a file would leave its
//! meter by a link inside of the directory, one out of it, and the removal of the name that is
//! known here. A file with one name left is removed from the table at its next access.
//!
//! Bounds: [`FILES_MAX`] files and [`BYTES_MAX`] bytes of names for an export. Of too many, the file
//! that was used longest ago goes first, but none whose names lie in different directories of
//! rules: such a file would escape. If there are only those, nothing is forgotten, and a link that
//! would need an entry of its own is refused (EXDEV, as the kernel refuses one between projects).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lru::LruCache;
use model::PathSet;

use crate::location::NumberedRules;

/// The most files of an export whose names are remembered.
const FILES_MAX: usize = 65_536;
/// The most bytes of their names.
const BYTES_MAX: usize = 32 << 20;
/// The most names of a file that are kept although they lie where others do: for other rules.
const SAME_MAX: usize = 8;
/// Number of entries that must stay and are skipped to find one to evict.
const TRIES: usize = 16;
/// Approximate bytes of an entry beside its names.
const ENTRY_BYTES: usize = 128;

/// Device and inode of a file.
pub(crate) type FileKey = (u64, u64);

/// The names of an export's files that have several.
pub(crate) struct HardLinkTable {
    files: Mutex<LinkedFiles>,
    /// Number of files, readable without the lock.
    count: AtomicUsize,
    bounds: HardLinkBounds,
}

/// Bounds of a table, above which entries are evicted.
#[derive(Clone, Copy)]
struct HardLinkBounds {
    files_max: usize,
    /// Bytes of all names.
    bytes_max: usize,
}

struct LinkedFiles {
    names: LruCache<FileKey, LinkedFile>,
    bytes: usize,
}

#[derive(Default)]
struct LinkedFile {
    names: Vec<Box<[u8]>>,
    /// The directories of all names, by the rules of this number.
    paths: PathSet,
    rules: u64,
    /// Some name lies where another does not.
    differ: bool,
}

impl Default for HardLinkTable {
    fn default() -> HardLinkTable {
        HardLinkTable::bounded(FILES_MAX, BYTES_MAX)
    }
}

impl HardLinkTable {
    fn bounded(files_max: usize, bytes_max: usize) -> HardLinkTable {
        let names = LruCache::unbounded();
        HardLinkTable {
            files: Mutex::new(LinkedFiles { names, bytes: 0 }),
            count: AtomicUsize::new(0),
            bounds: HardLinkBounds { files_max, bytes_max },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Notes a name of a file and returns the directories of all known names. Without room these
    /// are the directories of this name.
    pub(crate) fn add(&self, key: FileKey, name: &[u8], rules: &NumberedRules) -> PathSet {
        self.with(|files, bounds| files.add(key, name, rules, bounds)).1
    }

    /// Notes two names of a file that was linked; false if there is no room and the second name is
    /// not below every directory of the first.
    pub(crate) fn add_link(
        &self,
        key: FileKey,
        name: &[u8],
        link: &[u8],
        rules: &NumberedRules,
    ) -> bool {
        self.with(|files, bounds| {
            let (kept, before) = files.add(key, name, rules, bounds);
            let (also, _) =
                if kept { files.add(key, link, rules, bounds) } else { (false, before) };
            let inside = before.0 & !rules.set.path_set(link).0 == 0;
            (kept && also) || inside
        })
    }

    /// The directories of all known names of a file; `None` if none is.
    pub(crate) fn paths(&self, key: FileKey, rules: &NumberedRules) -> Option<PathSet> {
        if self.is_empty() {
            return None;
        }
        self.with(|files, _| files.names.get_mut(&key).map(|file| file.in_rules(rules)))
    }

    /// Removes a file that had at most one name at its last check. Whether it still `is_single` is
    /// checked while no request can add a name: a link that is made meanwhile must not be
    /// forgotten.
    pub(crate) fn forget(&self, key: FileKey, is_single: impl FnOnce() -> bool) {
        if self.is_empty() {
            return;
        }
        self.with(|files, _| {
            if files.names.contains(&key) && is_single() {
                files.remove(key);
            }
        });
    }

    fn with<R>(&self, f: impl FnOnce(&mut LinkedFiles, HardLinkBounds) -> R) -> R {
        let files = &mut *self.files.lock().expect("not poisoned");
        let result = f(files, self.bounds);
        self.count.store(files.names.len(), Ordering::Relaxed);
        result
    }
}

impl LinkedFiles {
    /// Whether the file is remembered now, and where it lies.
    fn add(
        &mut self,
        key: FileKey,
        name: &[u8],
        rules: &NumberedRules,
        bounds: HardLinkBounds,
    ) -> (bool, PathSet) {
        let mut file = self.remove(key).unwrap_or_default();
        file.in_rules(rules);
        file.add(name, rules);
        let (paths, bytes) = (file.paths, file.bytes());
        while self.names.len() >= bounds.files_max || self.bytes + bytes > bounds.bytes_max {
            if !self.evict() {
                // What was remembered of it stays, whatever the bound: it may not escape.
                let known = file.names.len() > 1;
                if known {
                    self.put(key, file);
                }
                return (known, paths);
            }
        }
        self.put(key, file);
        (true, paths)
    }

    /// Forgets the file that was used longest ago, of those that may be forgotten.
    fn evict(&mut self) -> bool {
        for _ in 0..TRIES {
            let Some((key, file)) = self.names.pop_lru() else { return false };
            self.bytes -= file.bytes();
            if !file.differ {
                return true;
            }
            self.put(key, file);
        }
        false
    }

    fn put(&mut self, key: FileKey, file: LinkedFile) {
        self.bytes += file.bytes();
        self.names.put(key, file);
    }

    fn remove(&mut self, key: FileKey) -> Option<LinkedFile> {
        let file = self.names.pop(&key)?;
        self.bytes -= file.bytes();
        Some(file)
    }
}

impl LinkedFile {
    fn add(&mut self, name: &[u8], rules: &NumberedRules) {
        let paths = rules.set.path_set(name);
        let adds = paths.0 & !self.paths.0 != 0;
        let known = self.names.iter().any(|there| **there == *name);
        // One that lies in fewer directories than all together says that the names differ.
        let shows = paths != self.paths && !self.differ;
        if !known && (adds || shows || self.names.len() < SAME_MAX) {
            self.differ |= !self.names.is_empty() && paths != self.paths;
            self.names.push(name.into());
            self.paths.0 |= paths.0;
        }
    }

    /// Its directories by these rules.
    fn in_rules(&mut self, rules: &NumberedRules) -> PathSet {
        if self.rules != rules.number {
            let each: Vec<_> = self.names.iter().map(|name| rules.set.path_set(name)).collect();
            self.paths = PathSet(each.iter().fold(0, |all, paths| all | paths.0));
            self.differ = each.iter().any(|paths| *paths != self.paths);
            self.rules = rules.number;
        }
        self.paths
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + self.names.iter().map(|name| name.len() + size_of::<Box<[u8]>>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rules::RuleSet;

    use super::*;

    const RULES: &str = "[[meter]]\nname = \"m\"\nmatch = \"path={/dir}\"\nrate = \"1MB/s\"\n";

    fn rules(number: u64, text: &str) -> NumberedRules {
        NumberedRules { number, set: Arc::new(RuleSet::parse(text).unwrap()) }
    }

    #[test]
    fn a_file_lies_wherever_a_name_of_it_does() {
        let (table, rules) = (HardLinkTable::default(), rules(1, RULES));
        assert_eq!(table.add((1, 1), b"/out", &rules), PathSet(0));
        assert_eq!(table.add((1, 1), b"/dir/in", &rules), PathSet(1));
        assert_eq!(table.add((1, 1), b"/out", &rules), PathSet(1));
        assert_eq!(table.paths((1, 2), &rules), None);
        table.forget((1, 1), || false);
        assert_eq!(table.paths((1, 1), &rules), Some(PathSet(1)));
        table.forget((1, 1), || true);
        assert_eq!(table.paths((1, 1), &rules), None);
        assert!(table.is_empty());
    }

    #[test]
    fn names_are_compared_anew_when_the_rules_change() {
        let (table, before) = (HardLinkTable::default(), rules(1, ""));
        assert!(table.add_link((1, 1), b"/dir/in", b"/out", &before));
        assert_eq!(table.paths((1, 1), &before), Some(PathSet(0)));
        assert_eq!(table.paths((1, 1), &rules(2, RULES)), Some(PathSet(1)));
        assert_eq!(table.paths((1, 1), &rules(3, "")), Some(PathSet(0)));
    }

    #[test]
    fn the_table_of_links_is_bounded_and_forgets_no_file_that_would_escape() {
        let (table, rules) = (HardLinkTable::bounded(4, 1 << 20), rules(1, RULES));
        for file in 0..100 {
            table.add((1, file), b"/dir/in", &rules);
        }
        assert_eq!(table.count.load(Ordering::Relaxed), 4);
        for file in 0..4 {
            assert!(table.add_link((2, file), b"/dir/in", b"/out", &rules));
        }
        for file in 0..100 {
            table.add((3, file), b"/dir/in", &rules);
            assert!(!table.add_link((4, file), b"/dir/in", b"/out", &rules), "it would escape");
            assert!(table.add_link((5, file), b"/dir/in", b"/dir/also", &rules));
            assert!(table.add_link((6, file), b"/out", b"/dir/in", &rules));
        }
        assert_eq!(table.count.load(Ordering::Relaxed), 4);
        for file in 0..4 {
            assert_eq!(table.paths((2, file), &rules), Some(PathSet(1)));
        }
        table.forget((2, 0), || true);
        assert!(table.add_link((4, 0), b"/dir/in", b"/out", &rules), "there is room again");
    }

    #[test]
    fn the_bytes_of_names_are_bounded() {
        let (table, rules) = (HardLinkTable::bounded(1000, 10_000), rules(1, RULES));
        let long = [b"/dir/".as_slice(), &[b'x'; 1000]].concat();
        for file in 0..100 {
            table.add((1, file), &long, &rules);
            assert!(table.files.lock().unwrap().bytes <= 10_000);
        }
        assert!(table.count.load(Ordering::Relaxed) >= 8);
    }
}
