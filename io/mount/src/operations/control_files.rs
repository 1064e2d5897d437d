//! The mount's own files: what holds the job that reads them, what it used, what it has to pay, and
//! how the mount stands with its proxies.
//!
//! ```text
//!   MOUNT/.sluice/why ─ open, as the caller ─► Tinfo to each proxy ─► text, kept while it is open
//!        │        └ not listed in MOUNT: a walk of the tree does not come here
//!        └─ status ─ open ─► the state of the sessions, without a request
//! ```
//!
//! Each open sends a new request, outside the queue of the job's own requests: a reply that waits
//! for what it explains would come too late. A reader gets data about its own requests only: the
//! proxy knows the caller as with any request. A file of the export that is called `.sluice` cannot
//! be reached through the mount, is not listed, and is not changed by it.

use std::ffi::CStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::{MountLink, MountStatus};
use fuse::{
    Attr, Attributes, DataReply, DirEntry, EntryList, EntryListPlus, Errno, FuseOpen, FuseRead,
    FuseRequest, Handle, InodeEntry, InodeId, OpenFlags, OpenedFile, Reply,
};
use ninep::dialect::{AnyReply, ExtReply, ExtRequest, HandleList};
use slab::Slab;

use super::or_error;
use crate::filesystem::MountFs;
use crate::metrics::tallies;
use crate::session::{CallSpec, lock};

/// The open control files.
#[derive(Debug, Default)]
pub(crate) struct ControlFiles {
    texts: Mutex<Slab<Arc<str>>>,
}

/// Whether an inode is one of these.
pub(crate) fn is_control_file(inode: InodeId) -> bool {
    (DIRECTORY.0..=DIRECTORY.0 + FILES.len() as u64).contains(&inode.0)
}

/// Whether a name is one of these, there or not.
pub(crate) fn is_name(directory: InodeId, name: &CStr) -> bool {
    directory == DIRECTORY || is_directory(directory, name)
}

/// Refuses to change the directory's own name.
///
/// # Errors
/// `EPERM` if it is that.
pub(crate) fn may_change(directory: InodeId, name: &CStr) -> Result<(), Errno> {
    if is_directory(directory, name) { Err(Errno::PERM) } else { Ok(()) }
}

fn is_directory(directory: InodeId, name: &CStr) -> bool {
    hides(directory, name.to_bytes())
}

/// Whether an entry of the export's is out of reach, and not listed either.
pub(crate) fn hides(directory: InodeId, name: &[u8]) -> bool {
    directory == InodeId::ROOT && name == NAME.to_bytes()
}

pub(crate) fn lookup(request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
    let inode = match request.inode {
        DIRECTORY => FILES.iter().position(|file| *file == name).map(file_inode),
        _ => Some(DIRECTORY),
    };
    let Some(inode) = inode else { return reply.error(Errno::NOENT) };
    let attributes = attributes(inode);
    reply.ok(&InodeEntry {
        inode,
        generation: 0,
        attributes,
        ttl: BELIEVED,
        attributes_ttl: BELIEVED,
    });
}

pub(crate) fn getattr(request: &FuseRequest, reply: Reply<Attr>) {
    reply.ok(&Attr { attributes: attributes(request.inode), ttl: BELIEVED });
}

/// Asks the proxies, as the caller; the text is what is read until the file is closed.
pub(crate) fn open(
    export: &MountFs,
    request: &FuseRequest,
    open: FuseOpen,
    reply: Reply<OpenedFile>,
) {
    if request.inode == DIRECTORY {
        return reply.ok(&OpenedFile::default());
    }
    if open.flags & ACCESS_MODE != 0 {
        return reply.error(Errno::ROFS);
    }
    if request.inode == file_inode(STATUS) {
        return opened(export, status(export).text(), reply);
    }
    query_proxies(export, *request, 0, QueryOrdering::Past, String::new(), reply);
}

/// How the mount stands with its proxies, whether they answer or not.
fn status(export: &MountFs) -> MountStatus {
    let shared = &export.homes.shared;
    let proxies = tallies(export).into_iter().map(|(proxy, tally)| {
        let (connected, lost) = (tally.connected, tally.connections_down);
        MountLink { proxy, connected, connections_down: lost }
    });
    MountStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        open_files: shared.files.count() as u64,
        write_behind_bytes: shared.write_behind.bytes(),
        proxies: proxies.collect(),
    }
}

/// The text is what is read until the file is closed.
fn opened(export: &MountFs, text: String, reply: Reply<OpenedFile>) {
    let handle = or_error!(export.control_files.insert_text(text), reply);
    // What it is shows in the reading; nothing of it may be kept.
    reply.ok(&OpenedFile { handle, flags: OpenFlags::DIRECT_IO, backing: None });
}

/// Whether a question goes past what else its job asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryOrdering {
    /// It does; the proxy may not know its identity yet.
    Past,
    /// It comes after the identity.
    AfterIdentity,
}

/// Asks one proxy after the other and puts what they say together.
fn query_proxies(
    export: &MountFs,
    request: FuseRequest,
    at: usize,
    ordering: QueryOrdering,
    mut text: String,
    reply: Reply<OpenedFile>,
) {
    let links = &export.homes.links;
    if at == links.len() {
        return opened(export, text, reply);
    }
    if links.len() > 1 && ordering == QueryOrdering::Past {
        text += &format!("{}:\n", links[at].name());
    }
    let what = (request.inode.0 - DIRECTORY.0 - 1) as u8;
    let message = ExtRequest::Info { what, count: export.payload.min(TEXT_BYTES) };
    let one = CallSpec::new(HandleList::NONE, message);
    let one = if ordering == QueryOrdering::Past { one.freely() } else { one };
    export.as_caller_at(at, &request, one, reply, move |export, _, answer, reply| {
        match answer {
            Ok(AnyReply::Ext(ExtReply::Info { data })) => text += &String::from_utf8_lossy(data),
            Err(Errno::OPNOTSUPP) => text += NO_INFO,
            Err(Errno::INVAL) if ordering == QueryOrdering::Past => {
                return query_proxies(
                    export,
                    request,
                    at,
                    QueryOrdering::AfterIdentity,
                    text,
                    reply,
                );
            }
            Ok(_) => return reply.error(Errno::PROTO),
            Err(error) => return reply.error(error),
        }
        query_proxies(export, request, at + 1, QueryOrdering::Past, text, reply);
    });
}

pub(crate) fn read(export: &MountFs, read: FuseRead, reply: Reply<DataReply>) {
    let text = lock(&export.control_files.texts).get(read.handle.0 as usize).cloned();
    let text = or_error!(text.ok_or(Errno::BADF), reply);
    let rest = usize::try_from(read.offset).ok().and_then(|offset| text.as_bytes().get(offset..));
    let rest = rest.unwrap_or_default();
    reply.bytes(&rest[..rest.len().min(read.size as usize)]);
}

pub(crate) fn release(export: &MountFs, inode: InodeId, handle: Handle, reply: Reply<()>) {
    if inode != DIRECTORY {
        lock(&export.control_files.texts).try_remove(handle.0 as usize);
    }
    reply.ok(&());
}

pub(crate) fn list(read: FuseRead, reply: Reply<EntryList>) {
    reply.list(|out| {
        list_from(read.offset, |entry| out.add(entry));
        Ok(())
    });
}

pub(crate) fn list_plus(read: FuseRead, reply: Reply<EntryListPlus>) {
    reply.list(|out| {
        list_from(read.offset, |entry| out.add_name(entry));
        Ok(())
    });
}

/// The entries behind an offset, until one is not taken.
fn list_from(offset: u64, mut take: impl FnMut(&DirEntry<'_>) -> bool) {
    let own = [(&b"."[..], DIRECTORY), (b"..", InodeId::ROOT)];
    let files = FILES.iter().enumerate().map(|(at, name)| (name.to_bytes(), file_inode(at)));
    for (at, (name, inode)) in own.into_iter().chain(files).enumerate() {
        let offset_behind = at as u64 + 1;
        let mode = if inode == InodeId::ROOT { DIRECTORY_MODE } else { attributes(inode).mode };
        let entry = DirEntry { number: inode.0, offset: offset_behind, mode, name };
        if offset_behind > offset && !take(&entry) {
            break;
        }
    }
}

fn attributes(inode: InodeId) -> Attributes {
    let (mode, links) = if inode == DIRECTORY { (DIRECTORY_MODE, 2) } else { (FILE_MODE, 1) };
    Attributes { number: inode.0, mode, links, ..Attributes::default() }
}

const fn file_inode(at: usize) -> InodeId {
    InodeId(DIRECTORY.0 + 1 + at as u64)
}

impl ControlFiles {
    fn insert_text(&self, text: String) -> Result<Handle, Errno> {
        let mut texts = lock(&self.texts);
        if texts.len() >= OPEN_MAX {
            return Err(Errno::NFILE);
        }
        Ok(Handle(texts.insert(text.into()) as u64))
    }
}

/// The directory's name in the root.
const NAME: &CStr = c".sluice";
/// The files in it: first those that proxies fill, in the order of the protocol's numbers for them.
const FILES: [&CStr; 4] = [c"why", c"usage", c"limits", c"status"];
/// The one that they do not.
const STATUS: usize = 3;
/// Far above the numbers of nodes, which count from 1; the files follow.
const DIRECTORY: InodeId = InodeId(u64::MAX - 15);
const DIRECTORY_MODE: u32 = 0o040_555;
const FILE_MODE: u32 = 0o100_444;
/// `O_ACCMODE`.
const ACCESS_MODE: u32 = 3;
/// How long the kernel may believe that they are there.
const BELIEVED: Duration = Duration::from_secs(60);
/// Of what one proxy says.
const TEXT_BYTES: u32 = 60 << 10;
/// How many may be open.
const OPEN_MAX: usize = 1_024;
const NO_INFO: &str =
    "Not available: the server speaks only 9P2000.L, or is older than this mount.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_behind_the_offset() {
        let names = |offset, most: usize| {
            let mut names = Vec::new();
            list_from(offset, |entry| {
                let fits = names.len() < most;
                names.extend(fits.then(|| String::from_utf8_lossy(entry.name).into_owned()));
                fits
            });
            names
        };
        assert_eq!(names(0, 9), [".", "..", "why", "usage", "limits", "status"]);
        assert_eq!(names(2, 2), ["why", "usage"]);
        assert!(names(6, 9).is_empty());
    }

    #[test]
    fn only_its_own_names_and_inodes_are_its_own() {
        assert!(is_name(InodeId::ROOT, c".sluice") && is_name(DIRECTORY, c"anything"));
        assert!(!is_name(InodeId::ROOT, c".sluic") && !is_name(InodeId(7), c".sluice"));
        assert!(
            is_control_file(DIRECTORY)
                && is_control_file(file_inode(STATUS))
                && !is_control_file(file_inode(4))
        );
        assert!(!is_control_file(InodeId::ROOT));
        assert_eq!(may_change(InodeId::ROOT, NAME), Err(Errno::PERM));
    }

    #[test]
    fn texts_that_are_open_are_bounded() {
        let told = ControlFiles::default();
        let first = told.insert_text("a".into()).unwrap();
        (1..OPEN_MAX).for_each(|_| assert!(told.insert_text(String::new()).is_ok()));
        assert_eq!(told.insert_text(String::new()), Err(Errno::NFILE));
        lock(&told.texts).remove(first.0 as usize);
        assert_eq!(told.insert_text(String::new()), Ok(first));
    }
}
