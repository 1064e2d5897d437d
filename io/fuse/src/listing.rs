//! Directory listings, written straight into the memory that they are sent from.
//!
//! ```text
//!   READDIR       inode 8 │ offset 8 │ name's length 4 │ type 4 │ name │ to a multiple of 8
//!   READDIRPLUS   entry 128 │ the same
//! ```
//!
//! `offset` is what the next call continues behind; the file system chooses it, as long as
//! it is not 0, which is the beginning.

use crate::answer::{ENTRY_LEN, InodeEntry, put_entry};
use crate::fields::FieldWriter;
use crate::request::InodeId;

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Number of the inode, as programs see it.
    pub number: u64,
    /// Where a listing goes on behind this entry; not 0.
    pub offset: u64,
    /// The inode's type, as in `st_mode`; other bits do not matter.
    pub mode: u32,
    /// The name, of at most 1,024 bytes.
    pub name: &'a [u8],
}

/// A part of a directory on its way to the kernel: names.
#[derive(Debug)]
pub struct DirListing<'b> {
    buffer: &'b mut [u8],
    len: usize,
}

/// A part of a directory on its way to the kernel: names, each with its inode.
#[derive(Debug)]
pub struct DirListingPlus<'b>(DirListing<'b>);

const DIRENT_LEN: usize = 24;

impl<'b> DirListing<'b> {
    pub(crate) fn new(buffer: &'b mut [u8]) -> DirListing<'b> {
        DirListing { buffer, len: 0 }
    }

    /// Adds a name; false if there is no room, and then this one comes in the next part.
    #[must_use = "an entry that had no room has to come in the next part"]
    pub fn add(&mut self, entry: &DirEntry<'_>) -> bool {
        self.put(&[], entry)
    }

    fn put(&mut self, before: &[u8], entry: &DirEntry<'_>) -> bool {
        let used = before.len() + DIRENT_LEN + entry.name.len();
        let len = used.next_multiple_of(8);
        let Some(room) = self.buffer.get_mut(self.len..self.len + len) else { return false };
        let mut fields = FieldWriter::new();
        fields.u64(entry.number);
        fields.u64(entry.offset);
        fields.u32(u32::try_from(entry.name.len()).expect("it fits the buffer"));
        fields.u32((entry.mode & S_IFMT) >> 12);
        room[..before.len()].copy_from_slice(before);
        room[before.len()..][..DIRENT_LEN].copy_from_slice(fields.as_slice());
        room[before.len() + DIRENT_LEN..used].copy_from_slice(entry.name);
        room[used..].fill(0);
        self.len += len;
        true
    }

    /// Bytes that were written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl<'b> DirListingPlus<'b> {
    pub(crate) fn new(buffer: &'b mut [u8]) -> DirListingPlus<'b> {
        DirListingPlus(DirListing::new(buffer))
    }

    /// Adds a name with its inode, which counts one look-up if it was added; false if there is
    /// no room, and then this one comes in the next part.
    #[must_use = "an entry that had no room is not looked up, and has to come in the next part"]
    pub fn add(&mut self, inode: &InodeEntry, entry: &DirEntry<'_>) -> bool {
        let mut fields = FieldWriter::new();
        put_entry(inode, &mut fields);
        debug_assert_eq!(fields.as_slice().len(), ENTRY_LEN);
        self.0.put(fields.as_slice(), entry)
    }

    /// Adds a name without an inode (`.`, `..`, or one whose attributes are not at hand): the
    /// kernel looks it up when it needs it.
    #[must_use = "an entry that had no room has to come in the next part"]
    pub fn add_name(&mut self, entry: &DirEntry<'_>) -> bool {
        let none =
            InodeEntry { inode: InodeId(0), ..InodeEntry::absent(std::time::Duration::ZERO) };
        self.add(&none, entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The bits of a mode that are the type.
const S_IFMT: u32 = 0o170_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8]) -> DirEntry<'_> {
        DirEntry { number: 5, offset: 6, mode: 0o040_755, name }
    }

    #[test]
    fn entries_are_padded_to_eight_bytes() {
        let mut buffer = [0xff; 100];
        let mut listing = DirListing::new(&mut buffer);
        assert!(listing.add(&entry(b"a")));
        assert!(listing.add(&entry(b"12345678")));
        assert_eq!(listing.len(), 32 + 32);
        assert_eq!((buffer[0], buffer[8], buffer[16], buffer[20]), (5, 6, 1, 4));
        assert_eq!(buffer[24..32], *b"a\0\0\0\0\0\0\0");
        assert_eq!(buffer[56..64], *b"12345678");
    }

    #[test]
    fn an_entry_that_does_not_fit_leaves_the_listing_as_it_was() {
        let mut buffer = [0; 63];
        let mut listing = DirListing::new(&mut buffer);
        assert!(listing.add(&entry(b"a")));
        assert!(!listing.add(&entry(b"b")));
        assert_eq!(listing.len(), 32);
        let mut none = DirListing::new(&mut []);
        assert!(!none.add(&entry(b"")));
    }

    #[test]
    fn an_entry_with_its_node_has_it_in_front() {
        let mut buffer = [0xff; 160];
        let mut listing = DirListingPlus::new(&mut buffer);
        let inode =
            InodeEntry { inode: InodeId(7), ..InodeEntry::absent(std::time::Duration::ZERO) };
        assert!(listing.add(&inode, &entry(b"x")));
        assert_eq!(listing.len(), 160);
        assert_eq!((buffer[0], buffer[128], buffer[152]), (7, 5, b'x'));
    }
}
