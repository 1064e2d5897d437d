//! Directories, listed: many entries in one message, given to the kernel in its smaller parts.
//!
//! ```text
//!   Tlist ─► OpenListing: entry, entry, entry, … (with handles and attributes)
//!              │ from the offset that the kernel asks for
//!              ▼
//!            as many as fit ─► kernel; the rest stays for its next request
//! ```
//!
//! The kept entries are dropped when the kernel starts again or reads at a different offset, and at
//! the latest after [`BELIEVED`], so a listing is never older than attributes may be.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse::{DirEntry, EntryList as Names, EntryListPlus, Errno, FuseRead, FuseRequest, Reply};
use ninep::dialect::{AnyReply, ExtReply, ExtRequest, HandleList, ListEntries, ListEntry};

use super::leased::ListedFile;
use super::{control_files, or_error};
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::leases::FileKey;
use crate::session::{CallSpec, lock};
use crate::write_behind::{KnownSize, WaitingSince};

/// The part of a directory that was read last, and where the kernel is in it.
#[derive(Debug, Default)]
pub(crate) struct OpenListing {
    data: Vec<u8>,
    /// The offset after which the entry at `at` comes.
    offset: u64,
    at: usize,
    read: Option<Instant>,
    /// When it was asked for, as [`WriteBehind::now`](crate::write_behind::WriteBehind::now) says.
    requested_at: u64,
}

pub(crate) fn list(export: &MountFs, request: &FuseRequest, read: FuseRead, reply: Reply<Names>) {
    let directory = request.inode;
    with_entries(export, request, read, reply, move |_, listing, reply| {
        reply.list(|out| {
            listing.emit_entries(|entry| {
                if control_files::hides(directory, entry.name) {
                    return true;
                }
                let (number, mode) = match &entry.file {
                    Some((_, told)) => (told.qid.path, told.mode),
                    None => (UNKNOWN, u32::from(entry.kind) << 12),
                };
                out.add(&DirEntry { number, offset: entry.offset, mode, name: entry.name })
            })
        });
    });
}

pub(crate) fn list_plus(
    export: &MountFs,
    request: &FuseRequest,
    read: FuseRead,
    reply: Reply<EntryListPlus>,
) {
    let directory = request.inode;
    let listed = or_error!(export.nodes.get(directory), reply);
    with_entries(export, request, read, reply, move |export, listing, reply| {
        let asked = listing.requested_at;
        let age = listing.read.map_or(Duration::ZERO, |read| read.elapsed());
        reply.list(|out| {
            listing.emit_entries(|entry| {
                if control_files::hides(directory, entry.name) {
                    return true;
                }
                let name = DirEntry {
                    number: UNKNOWN,
                    offset: entry.offset,
                    mode: u32::from(entry.kind) << 12,
                    name: entry.name,
                };
                let Some((handle, told)) = &entry.file else { return out.add_name(&name) };
                let name = DirEntry { number: told.qid.path, mode: told.mode, ..name };
                let listed = match export.shared().leases.is_holder() {
                    true => export.leased_entry(
                        &listed,
                        entry.name,
                        FileKey { path: told.qid.path, handle },
                    ),
                    false => (export.believed > age).then(|| ListedFile::new(told, asked)),
                };
                // Of others the kernel is not to believe attributes; it asks if it needs some.
                let Some(listed) = listed else { return out.add_name(&name) };
                let node = export.nodes.lookup(handle, &listed.attributes);
                let since = node.write_behind.since(listed.requested_at);
                if since == WaitingSince::Changed {
                    export.nodes.forget(node.id, 1);
                    return out.add_name(&name);
                }
                let known =
                    KnownSize { leased: listed.until, ..since.applied_to(listed.attributes) };
                let until = listed.named_until;
                let mut known = export.entry(directory, entry.name, &node, &known, until);
                if listed.until.is_none() {
                    known.ttl = known.ttl.saturating_sub(age);
                    known.attributes_ttl = known.attributes_ttl.saturating_sub(age);
                }
                let added = out.add(&known, &name);
                if !added {
                    // The kernel has not received this look-up.
                    export.nodes.forget(known.inode, 1);
                }
                added
            })
        });
    });
}

/// Has the entries from the offset on at hand, and gives them.
fn with_entries<T: 'static>(
    export: &MountFs,
    request: &FuseRequest,
    read: FuseRead,
    reply: Reply<T>,
    give: impl FnOnce(&MountFs, &mut OpenListing, Reply<T>) + Send + 'static,
) where
    Reply<T>: Fails,
{
    let file = or_error!(export.files().get(read.handle), reply);
    {
        let mut listing = lock(&file.listing);
        if read.offset != 0 && listing.seek(read.offset) {
            return give(export, &mut listing, reply);
        }
    }
    if let Some((data, asked)) = export.leased_listing(&file.node, read.offset) {
        let mut listing = lock(&file.listing);
        listing.refill(read.offset, &data);
        listing.requested_at = asked;
        return give(export, &mut listing, reply);
    }
    let lease = export.lease_request();
    let count = export.payload.min(LIST_BYTES);
    let message = ExtRequest::List { fid: file.fid, offset: read.offset, count };
    let ask = CallSpec::new(HandleList::NONE, message).with_bytes(count as usize).leased(&lease);
    let directory: Arc<OpenFile> = file.clone();
    let asked = export.shared().write_behind.now();
    export.as_opener_with(request, &file, ask, reply, move |export, answer, reply| match answer {
        Ok(AnyReply::Ext(ExtReply::List { data })) => {
            export.keep_listing(&lease, &directory.node, read.offset, data, asked);
            let mut listing = lock(&directory.listing);
            listing.refill(read.offset, data);
            listing.requested_at = asked;
            give(export, &mut listing, reply);
        }
        Ok(_) => reply.fail(Errno::PROTO),
        Err(error) => reply.fail(error),
    });
}

/// Replies that can fail, whatever they are for.
trait Fails {
    fn fail(self, error: Errno);
}

impl<T> Fails for Reply<T> {
    fn fail(self, error: Errno) {
        self.error(error);
    }
}

impl OpenListing {
    /// Whether the entries behind `offset` are here; then they are next.
    fn seek(&mut self, offset: u64) -> bool {
        if self.read.is_none_or(|read| read.elapsed() > BELIEVED) {
            return false;
        }
        if self.offset != offset {
            let Some(at) = self.position_after(offset) else { return false };
            (self.offset, self.at) = (offset, at);
        }
        self.at < self.data.len()
    }

    fn refill(&mut self, offset: u64, data: &[u8]) {
        self.data.clear();
        self.data.extend_from_slice(data);
        (self.offset, self.at, self.read) = (offset, 0, Some(Instant::now()));
    }

    /// Gives entry after entry until one is not taken.
    fn emit_entries(&mut self, mut take: impl FnMut(&ListEntry<'_>) -> bool) -> Result<(), Errno> {
        while let Some((entry, place)) = next(&self.data, self.at)? {
            if !take(&entry) {
                break;
            }
            (self.offset, self.at) = (entry.offset, place.end);
        }
        Ok(())
    }

    fn position_after(&self, offset: u64) -> Option<usize> {
        let mut at = 0;
        while let Ok(Some((entry, place))) = next(&self.data, at) {
            if entry.offset == offset {
                return Some(place.end);
            }
            at = place.end;
        }
        None
    }
}

/// The entry that begins at a place, and where it lies.
fn next(data: &[u8], at: usize) -> Result<Option<(ListEntry<'_>, Range<usize>)>, Errno> {
    let mut entries = ListEntries::new(&data[at..]);
    match entries.next() {
        None => Ok(None),
        Some(Ok(entry)) => {
            let file =
                entry.file.map_or(0, |(handle, _)| 2 + handle.len() + ATTRIBUTES_LEN + LEASE_LEN);
            Ok(Some((entry, at..at + 8 + 1 + 2 + entry.name.len() + 1 + file)))
        }
        Some(Err(_)) => Err(Errno::PROTO),
    }
}

/// Bytes of attributes on the wire.
const ATTRIBUTES_LEN: usize = 153;
/// Bytes of a file's leases on the wire.
const LEASE_LEN: usize = 9;
/// The number of an entry whose file is not known.
const UNKNOWN: u64 = u64::MAX;
/// Bytes of entries that are asked for at once: about a thousand.
const LIST_BYTES: u32 = 256 << 10;
/// How long a listing that was begun may be gone on with.
const BELIEVED: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use ninep::Attributes;
    use ninep::dialect::LeaseGrant;

    fn listing(count: u64) -> OpenListing {
        let mut data = Vec::new();
        for number in 1..=count {
            let name = format!("file{number}");
            let file = (number % 2 == 0).then_some((&b"handle"[..], Attributes::default()));
            let lease = LeaseGrant::NONE;
            let entry =
                ListEntry { offset: number * 7, kind: 8, name: name.as_bytes(), file, lease };
            entry.encode(&mut data);
        }
        let mut listing = OpenListing::default();
        listing.refill(0, &data);
        listing
    }

    fn take(listing: &mut OpenListing, most: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        let fits = |entry: &ListEntry<'_>| {
            let fits = taken.len() < most;
            taken.extend(fits.then_some(entry.offset));
            fits
        };
        listing.emit_entries(fits).unwrap();
        taken
    }

    #[test]
    fn what_did_not_fit_comes_in_the_next_part() {
        let mut listing = listing(5);
        assert_eq!(take(&mut listing, 2), [7, 14]);
        assert!(listing.seek(14));
        assert_eq!(take(&mut listing, 9), [21, 28, 35]);
        assert!(!listing.seek(35), "the proxy knows what comes then");
        assert!(listing.seek(7), "back to what is still here");
        assert_eq!(take(&mut listing, 1), [14]);
        assert!(!listing.seek(8), "no entry has this offset");
    }

    #[test]
    fn a_list_that_is_no_list_is_an_error() {
        let mut listing = listing(1);
        listing.data.truncate(9);
        assert_eq!(listing.emit_entries(|_| true), Err(Errno::PROTO));
    }
}
