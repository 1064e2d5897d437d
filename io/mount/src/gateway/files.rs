//! Files that the mount knows: their handles, and where they are by now.
//!
//! ```text
//!   (directory, name) and qid ─► UpstreamFile: serial, handle      handle: sort 2[1] serial[8]
//!                                          │                               qid path[8] kind[1]
//!        renamed, removed here ─► names ◄──┘                               path as it was then
//!   handle ─► by_handle ─► UpstreamFile ─► paths: where to walk
//! ```
//!
//! Plain 9P identifies files by walking to their names, and the mount identifies them by handles
//! that must last. So a handle holds its file's path as it was, and renames through this mount
//! since then are remembered here; each walk compares the qid at the end. A file with several names
//! has one handle, by which the kernel sees one inode. Servers reuse inode numbers, and serials are
//! never reused: a file that is removed here and created again is a different file.
//!
//! Bounds: [`FILES_MAX`] files, the last used ones. What is forgotten is found by the path in
//! its handle. Directories on the way to a file are used with it, so they are forgotten later.
//!
//! Invariant: `by_name[(directory, name)]` is a file exactly while it has that name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fuse::Errno;
use ninep::dialect::HANDLE_MAX;
use ninep::{QTDIR, Qid};
use rustc_hash::FxHashMap;

use super::lru::Lru;
use crate::session::lock;

/// A file of the peer that has a handle.
#[derive(Debug)]
pub(super) struct UpstreamFile {
    /// Serial of the file, which is never reused.
    pub(super) serial: u64,
    /// The server's number of the file.
    number: u64,
    kind: u8,
    pub(super) handle: Box<[u8]>,
    /// Held while the file's end is looked up and written.
    pub(super) appending: Mutex<()>,
}

/// The files that the mount knows.
#[derive(Debug)]
pub(super) struct UpstreamFiles {
    /// Never forgotten.
    root: Arc<UpstreamFile>,
    table: Mutex<UpstreamFileTable>,
}

#[derive(Debug)]
struct UpstreamFileTable {
    by_serial: Lru<u64, KnownUpstreamFile>,
    by_name: BTreeMap<ParentAndName, u64>,
    /// Files that may have several names.
    linked: FxHashMap<u64, u64>,
    serials: u64,
}

#[derive(Debug)]
struct KnownUpstreamFile {
    file: Arc<UpstreamFile>,
    names: Vec<ParentAndName>,
    /// It is no longer where its handle says.
    moved: bool,
}

/// A directory's serial and a name in it.
type ParentAndName = (u64, Box<[u8]>);

/// Changes by a rename.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Renamed {
    /// The file that has another place, or none any more.
    pub(super) serials: Vec<u64>,
    /// A directory is among them: other paths begin with its.
    pub(super) directory: bool,
}

impl UpstreamFile {
    fn new(serial: u64, qid: Qid, handle: Box<[u8]>) -> Arc<UpstreamFile> {
        let (number, kind, appending) = (qid.path, qid.kind & KINDS, Mutex::default());
        Arc::new(UpstreamFile { serial, number, kind, handle, appending })
    }

    /// Whether a qid is this file's.
    pub(super) fn is(&self, qid: Qid) -> bool {
        (self.number, self.kind) == (qid.path, qid.kind & KINDS)
    }
}

impl UpstreamFiles {
    /// None but the root, with the peer's qid of it.
    pub(super) fn new(root: Qid) -> UpstreamFiles {
        let handle = handle_of(ROOT, root, b"").expect("an empty path fits");
        let table = UpstreamFileTable {
            by_serial: Lru::new(FILES_MAX),
            by_name: BTreeMap::new(),
            linked: FxHashMap::default(),
            serials: ROOT,
        };
        UpstreamFiles { root: UpstreamFile::new(ROOT, root, handle), table: Mutex::new(table) }
    }

    /// The root directory of the export.
    pub(super) fn root(&self) -> &UpstreamFile {
        &self.root
    }

    /// Whether a new name's path fits into a handle.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if not.
    pub(super) fn fits(&self, directory: &UpstreamFile, name: &[u8]) -> Result<(), Errno> {
        let path = lock(&self.table).path_of(&(directory.serial, name.into()))?;
        if PATH + path.len() > HANDLE_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// A name was looked up or made: its file, which has `links` names in all.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if its path does not fit into a handle.
    pub(super) fn found(
        &self,
        directory: &UpstreamFile,
        name: &[u8],
        qid: Qid,
        links: u64,
    ) -> Result<Arc<UpstreamFile>, Errno> {
        let mut table = lock(&self.table);
        let place: ParentAndName = (directory.serial, name.into());
        let several = links > 1 && qid.kind & QTDIR == 0;
        let path = table.path_of(&place)?;
        if let Some(file) = table.by_name.get(&place).copied().and_then(|of| table.file(of)) {
            if file.is(qid) {
                if several {
                    table.linked.insert(file.number, file.serial);
                }
                return Ok(file);
            }
            table.remove_name(&place);
        }
        let linked = table.linked.get(&qid.path).copied().filter(|_| several);
        let file = match linked.and_then(|of| table.file(of)).filter(|file| file.is(qid)) {
            Some(file) => file,
            None => {
                table.serials += 1;
                let serial = table.serials;
                let handle = handle_of(serial, qid, &path)?;
                table.add(serial, qid, handle)
            }
        };
        if several {
            table.linked.insert(file.number, file.serial);
        }
        table.put(file.serial, place);
        Ok(file)
    }

    /// The file of a handle that was given out.
    ///
    /// # Errors
    /// `ESTALE` if it is none of these.
    pub(super) fn by_handle(&self, handle: &[u8]) -> Result<Arc<UpstreamFile>, Errno> {
        let (serial, qid, _) = read_handle(handle).ok_or(Errno::STALE)?;
        if *handle == *self.root.handle {
            return Ok(self.root.clone());
        }
        let mut table = lock(&self.table);
        if let Some(file) = table.file(serial) {
            return match *file.handle == *handle {
                true => Ok(file),
                false => Err(Errno::STALE),
            };
        }
        match serial != ROOT && serial <= table.serials {
            true => Ok(table.add(serial, qid, handle.into())),
            false => Err(Errno::STALE),
        }
    }

    /// Where a file may be, the likeliest first; none if it is nowhere any more.
    pub(super) fn paths(&self, file: &UpstreamFile) -> Vec<Vec<u8>> {
        if file.serial == ROOT {
            return vec![Vec::new()];
        }
        let mut table = lock(&self.table);
        let Some(known) = table.by_serial.get(&file.serial) else {
            return Vec::from_iter(read_handle(&file.handle).map(|(_, _, path)| path.to_vec()));
        };
        let (places, moved) = (known.names.clone(), known.moved);
        let mut paths: Vec<Vec<u8>> =
            places.iter().filter_map(|place| table.path_of(place).ok()).collect();
        if places.is_empty() && !moved {
            paths.extend(read_handle(&file.handle).map(|(_, _, path)| path.to_vec()));
        }
        paths
    }

    /// A file was given one name more.
    pub(super) fn linked(&self, file: &UpstreamFile, directory: &UpstreamFile, name: &[u8]) {
        let mut table = lock(&self.table);
        let place: ParentAndName = (directory.serial, name.into());
        table.remove_name(&place);
        table.linked.insert(file.number, file.serial);
        table.put(file.serial, place);
    }

    /// A name was removed; gives the serial of the file that had it.
    pub(super) fn removed(&self, directory: &UpstreamFile, name: &[u8]) -> Option<u64> {
        lock(&self.table).remove_name(&(directory.serial, name.into()))
    }

    /// A name was given to what had another.
    pub(super) fn renamed(
        &self,
        old: (&UpstreamFile, &[u8]),
        new: (&UpstreamFile, &[u8]),
    ) -> Renamed {
        let (from, to): (ParentAndName, ParentAndName) =
            ((old.0.serial, old.1.into()), (new.0.serial, new.1.into()));
        let mut table = lock(&self.table);
        let mut renamed = Renamed::default();
        // Of two names of one file rename(2) takes none away.
        if table.by_name.get(&from) == table.by_name.get(&to) {
            return renamed;
        }
        renamed.serials.extend(table.remove_name(&to));
        if let Some(serial) = table.remove_name(&from) {
            table.put(serial, to);
            renamed.serials.push(serial);
            renamed.directory = table.file(serial).is_some_and(|file| file.kind & QTDIR != 0);
        }
        renamed
    }
}

impl UpstreamFileTable {
    fn file(&mut self, serial: u64) -> Option<Arc<UpstreamFile>> {
        self.by_serial.get(&serial).map(|known| known.file.clone())
    }

    fn add(&mut self, serial: u64, qid: Qid, handle: Box<[u8]>) -> Arc<UpstreamFile> {
        let file = UpstreamFile::new(serial, qid, handle);
        let known = KnownUpstreamFile { file: file.clone(), names: Vec::new(), moved: false };
        if let Some((_, gone)) = self.by_serial.insert(serial, known) {
            for place in &gone.names {
                self.by_name.remove(place);
            }
            if self.linked.get(&gone.file.number) == Some(&gone.file.serial) {
                self.linked.remove(&gone.file.number);
            }
        }
        file
    }

    fn put(&mut self, serial: u64, place: ParentAndName) {
        let Some(known) = self.by_serial.get(&serial) else { return };
        known.names.insert(0, place.clone());
        let too_many = (known.names.len() > NAMES_MAX).then(|| known.names.pop()).flatten();
        if let Some(place) = too_many {
            self.by_name.remove(&place);
        }
        self.by_name.insert(place, serial);
    }

    /// Takes a place from the file that has it, and gives that file's serial.
    fn remove_name(&mut self, place: &ParentAndName) -> Option<u64> {
        let serial = self.by_name.remove(place)?;
        let known = self.by_serial.get(&serial)?;
        known.names.retain(|one| one != place);
        known.moved = true;
        let (number, nowhere) = (known.file.number, known.names.is_empty());
        if nowhere && self.linked.get(&number) == Some(&serial) {
            // The number may be another file's from now on.
            self.linked.remove(&number);
        }
        Some(serial)
    }

    /// The path of a place below the root, found upwards.
    ///
    /// # Errors
    /// `ESTALE` if a directory above is nowhere, `ENAMETOOLONG` if the path is too long.
    fn path_of(&mut self, place: &ParentAndName) -> Result<Vec<u8>, Errno> {
        let mut names: Vec<Vec<u8>> = vec![place.1.to_vec()];
        let (mut above, mut len) = (place.0, place.1.len());
        while above != ROOT {
            let known = self.by_serial.get(&above).ok_or(Errno::STALE)?;
            let (next, name) = match known.names.first() {
                Some((next, name)) => (*next, name.to_vec()),
                None if known.moved => return Err(Errno::STALE),
                None => {
                    let (_, _, path) = read_handle(&known.file.handle).ok_or(Errno::STALE)?;
                    (ROOT, path.to_vec())
                }
            };
            len += name.len() + 1;
            // Directories that others have moved into each other would go round for ever.
            if len > HANDLE_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            names.push(name);
            above = next;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}

/// The handle of a file.
///
/// # Errors
/// `ENAMETOOLONG` if the path does not fit.
fn handle_of(serial: u64, qid: Qid, path: &[u8]) -> Result<Box<[u8]>, Errno> {
    if PATH + path.len() > HANDLE_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut handle = vec![SORT];
    handle.extend_from_slice(&serial.to_le_bytes());
    handle.extend_from_slice(&qid.path.to_le_bytes());
    handle.push(qid.kind & KINDS);
    handle.extend_from_slice(path);
    Ok(handle.into())
}

/// A handle's serial, qid and path.
fn read_handle(handle: &[u8]) -> Option<(u64, Qid, &[u8])> {
    let (sort, rest) = handle.split_first()?;
    let (serial, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (kind, path) = rest.split_first()?;
    let qid = Qid { kind: *kind, version: 0, path: u64::from_le_bytes(*number) };
    (*sort == SORT).then_some((u64::from_le_bytes(*serial), qid, path))
}

/// The root's serial.
const ROOT: u64 = 0;
/// The bits of a qid's kind that distinguish files: a server may set others later.
const KINDS: u8 = ninep::QTDIR | ninep::QTSYMLINK;
/// The first byte of a handle that is a path, as with the proxy.
const SORT: u8 = 2;
/// Where the path begins in a handle.
const PATH: usize = 1 + 8 + 8 + 1;
/// Files that are known at a time.
const FILES_MAX: usize = 1 << 18;
/// Names of a file that are known at a time.
const NAMES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn qid(path: u64) -> Qid {
        Qid { kind: 0, version: 0, path }
    }

    fn directory(path: u64) -> Qid {
        Qid { kind: QTDIR, version: 0, path }
    }

    fn with_root() -> (UpstreamFiles, Arc<UpstreamFile>) {
        let files = UpstreamFiles::new(directory(2));
        let root = files.root.clone();
        (files, root)
    }

    fn path(files: &UpstreamFiles, file: &UpstreamFile) -> String {
        let paths = files.paths(file);
        let text = paths.iter().map(|path| String::from_utf8(path.clone()).unwrap());
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_handle_outlives_the_renaming_of_its_file_and_of_a_directory_above() {
        let (files, root) = with_root();
        let a = files.found(&root, b"a", directory(10), 2).unwrap();
        let file = files.found(&a, b"file", qid(11), 1).unwrap();
        assert_eq!(path(&files, &file), "a/file");
        assert!(files.renamed((&root, b"a"), (&root, b"b")).directory);
        assert_eq!(path(&files, &files.by_handle(&file.handle).unwrap()), "b/file");
        let renamed = files.renamed((&a, b"file"), (&root, b"up"));
        assert_eq!(renamed, Renamed { serials: vec![file.serial], directory: false });
        assert_eq!(path(&files, &file), "up");
        assert_eq!(files.found(&root, b"up", qid(11), 1).unwrap().serial, file.serial);
    }

    #[test]
    fn what_replaces_a_file_is_another_even_if_it_has_its_number() {
        let (files, root) = with_root();
        let first = files.found(&root, b"a", qid(10), 1).unwrap();
        assert_eq!(files.removed(&root, b"a"), Some(first.serial));
        assert_eq!(path(&files, &first), "", "it is nowhere");
        let second = files.found(&root, b"a", qid(10), 1).unwrap();
        assert_ne!(first.handle, second.handle);
        let other = files.found(&root, b"a", qid(12), 1).unwrap();
        assert_eq!((path(&files, &second), path(&files, &other)), ("".into(), "a".into()));
        files.found(&root, b"b", qid(13), 1).unwrap();
        assert_eq!(files.renamed((&root, b"b"), (&root, b"a")).serials.len(), 2);
        assert_eq!(path(&files, &other), "");
    }

    #[test]
    fn two_names_of_one_file_have_one_handle() {
        let (files, root) = with_root();
        let a = files.found(&root, b"a", qid(10), 2).unwrap();
        let b = files.found(&root, b"b", qid(10), 2).unwrap();
        assert_eq!(a.handle, b.handle);
        assert_eq!(path(&files, &a), "b a");
        assert_eq!(files.renamed((&root, b"a"), (&root, b"b")), Renamed::default());
        files.removed(&root, b"b");
        assert_eq!(path(&files, &a), "a");
        let alike = files.found(&root, b"c", directory(10), 2).unwrap();
        assert_ne!(alike.serial, a.serial, "directories have one name");
    }

    #[test]
    fn a_file_that_was_forgotten_is_found_by_its_handle() {
        let (files, root) = with_root();
        let file = files.found(&root, b"a", qid(10), 1).unwrap();
        lock(&files.table).by_serial.remove(&file.serial);
        let again = files.by_handle(&file.handle).unwrap();
        assert_eq!((path(&files, &again), again.is(qid(10))), ("a".into(), true));
        let below = files.found(&again, b"b", qid(11), 1).unwrap();
        assert_eq!(path(&files, &below), "a/b");
    }

    #[test]
    fn what_is_no_handle_is_stale() {
        let (files, root) = with_root();
        let mut handles = vec![b"".to_vec(), vec![2], vec![1; 30], root.handle[..17].to_vec()];
        handles.push(handle_of(77, qid(1), b"x").unwrap().into());
        handles.push(handle_of(ROOT, directory(3), b"").unwrap().into());
        for handle in handles {
            assert_eq!(files.by_handle(&handle).err(), Some(Errno::STALE), "{handle:?}");
        }
    }

    #[test]
    fn a_path_that_does_not_fit_into_a_handle_is_too_long() {
        let (files, mut at) = with_root();
        let name = [b'x'; 255];
        let mut depth = 0;
        let error = loop {
            match files.found(&at, &name, directory(depth + 10), 2) {
                Ok(below) => (at, depth) = (below, depth + 1),
                Err(error) => break error,
            }
        };
        assert_eq!((error, depth), (Errno::NAMETOOLONG, 15));
    }
}
