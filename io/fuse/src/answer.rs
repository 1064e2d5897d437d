//! Bodies of replies, and their form in bytes.
//!
//! Every type with an [`ReplyBody`] has a fixed length, so it is put on the stack and sent
//! from there. Data, listings and extended attributes have none; they are sent through
//! their own methods of [`Reply`](crate::Reply).
//!
//! Times to live are how long the kernel may believe an answer without asking again: zero
//! for "ask each time". A notice ends them early ([`Notifier`](crate::Notifier)).

use std::time::Duration;

use crate::fields::FieldWriter;
use crate::flags::OpenFlags;
use crate::request::{DeviceNumber, Handle, InodeId, Lock, LockKind, Timestamp};

/// A body of a reply, in the kernel's form.
pub trait ReplyBody: sealed::Encode {}

pub(crate) mod sealed {
    /// Writing an answer's fields.
    pub trait Encode {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn put(&self, to: &mut crate::fields::FieldWriter);
    }
}

/// The attributes of an inode, as in stat(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Number of the inode, as programs see it.
    pub number: u64,
    /// Length of the content in bytes.
    pub size: u64,
    /// Space that is occupied, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub accessed: Timestamp,
    /// Time of the last write.
    pub modified: Timestamp,
    /// Time of the last change of anything.
    pub changed: Timestamp,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owning group.
    pub gid: u32,
    /// Device number of a device file.
    pub device: DeviceNumber,
    /// Bytes that are best read or written at once; 0 for the kernel's own figure.
    pub block_size: u32,
}

/// The reply with an inode's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The attributes that the kernel may cache.
    pub attributes: Attributes,
    /// How long it may be believed.
    pub ttl: Duration,
}

/// A name's inode. Each one that is answered counts one look-up, until
/// [`FileSystem::forget`](crate::FileSystem::forget) takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeEntry {
    /// The inode; `InodeId(0)` says that there is none of this name.
    pub inode: InodeId,
    /// Tells inodes apart that had the same number one after the other.
    pub generation: u64,
    /// The attributes of the inode.
    pub attributes: Attributes,
    /// How long the name may be believed to mean this inode.
    pub ttl: Duration,
    /// How long the attributes may be believed.
    pub attributes_ttl: Duration,
}

impl InodeEntry {
    /// No such name, and it may be believed for this long.
    pub fn absent(ttl: Duration) -> InodeEntry {
        InodeEntry {
            inode: InodeId(0),
            generation: 0,
            attributes: Attributes::default(),
            ttl,
            attributes_ttl: Duration::ZERO,
        }
    }
}

/// The number of a file that was handed to the kernel ([`Notifier::open_backing`](crate::Notifier)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub(crate) i32);

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedFile {
    /// Handle by which later operations name the file.
    pub handle: Handle,
    /// How the kernel shall treat it.
    pub flags: OpenFlags,
    /// Read and write this file instead, without asking. Needs
    /// [`Capabilities::PASSTHROUGH`](crate::Capabilities::PASSTHROUGH).
    pub backing: Option<BackingId>,
}

/// A new file that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The inode of the new name.
    pub entry: InodeEntry,
    /// The handle and flags of the open file.
    pub opened: OpenedFile,
}

/// How many bytes were written; fewer than asked only where the rest failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenBytes(pub u32);

/// How many bytes were copied from file to file; 0 at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedBytes(pub u64);

/// The position that was sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekPosition(pub u64);

/// The figures of statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Size, in units of `fragment_size`.
    pub blocks: u64,
    /// Free, in the same units.
    pub blocks_free: u64,
    /// Free for users other than root.
    pub blocks_available: u64,
    /// How many inodes there can be.
    pub files: u64,
    /// How many more inodes there can be.
    pub files_free: u64,
    /// Bytes that are best read or written at once.
    pub block_size: u32,
    /// Bytes in the unit of space.
    pub fragment_size: u32,
    /// Bytes in the longest name.
    pub name_max: u32,
}

/// The attributes of statx(2) beyond stat(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statx {
    /// The attributes of stat(2).
    pub attributes: Attributes,
    /// Which fields are valid, as `STATX_…`.
    pub mask: u32,
    /// Time of the inode's creation.
    pub born: Timestamp,
    /// The file's attributes, as `STATX_ATTR_…`.
    pub file_attributes: u64,
    /// Which of the file's attributes are known.
    pub file_attributes_mask: u64,
    /// How long it may be believed.
    pub ttl: Duration,
}

impl Default for Handle {
    /// The handle of file systems that need none.
    fn default() -> Handle {
        Handle(0)
    }
}

macro_rules! answers {
    ($($name:ty: |$value:ident, $to:ident| $put:block)*) => {
        $(
            impl sealed::Encode for $name {
                #[allow(private_interfaces)]
                fn put(&self, $to: &mut FieldWriter) {
                    let $value = self;
                    $put
                }
            }
            impl ReplyBody for $name {}
        )*
    };
}
answers! {
    (): |_value, _to| {}
    Attr: |value, to| {
        to.u64(value.ttl.as_secs());
        to.u32(value.ttl.subsec_nanos());
        to.zeros(4);
        put_attributes(&value.attributes, to);
    }
    InodeEntry: |value, to| { put_entry(value, to); }
    OpenedFile: |value, to| { put_opened(value, to); }
    Created: |value, to| {
        put_entry(&value.entry, to);
        put_opened(&value.opened, to);
    }
    WrittenBytes: |value, to| { to.u64(value.0.into()); }
    // Four bytes and padding, or eight bytes: the same in this byte order.
    CopiedBytes: |value, to| { to.u64(value.0); }
    SeekPosition: |value, to| { to.u64(value.0); }
    Statfs: |value, to| {
        for blocks in [value.blocks, value.blocks_free, value.blocks_available] {
            to.u64(blocks);
        }
        to.u64(value.files);
        to.u64(value.files_free);
        to.u32(value.block_size);
        to.u32(value.name_max);
        to.u32(value.fragment_size);
        to.zeros(4 + 6 * 4);
    }
    Lock: |value, to| {
        to.u64(value.start);
        to.u64(value.end);
        to.u32(match value.kind {
            LockKind::Read => LockKind::READ,
            LockKind::Write => LockKind::WRITE,
            LockKind::None => LockKind::UNLOCK,
        });
        to.u32(value.process);
    }
    Statx: |value, to| { put_statx(value, to); }
}

/// Bytes of an entry, as it also stands in listings.
pub(crate) const ENTRY_LEN: usize = 128;

pub(crate) fn put_entry(entry: &InodeEntry, to: &mut FieldWriter) {
    to.u64(entry.inode.0);
    to.u64(entry.generation);
    to.u64(entry.ttl.as_secs());
    to.u64(entry.attributes_ttl.as_secs());
    to.u32(entry.ttl.subsec_nanos());
    to.u32(entry.attributes_ttl.subsec_nanos());
    put_attributes(&entry.attributes, to);
}

fn put_attributes(attributes: &Attributes, to: &mut FieldWriter) {
    let times = [attributes.accessed, attributes.modified, attributes.changed];
    to.u64(attributes.number);
    to.u64(attributes.size);
    to.u64(attributes.blocks);
    for time in times {
        to.i64(time.seconds);
    }
    for time in times {
        to.u32(time.nanoseconds);
    }
    to.u32(attributes.mode);
    to.u32(attributes.links);
    to.u32(attributes.uid);
    to.u32(attributes.gid);
    to.u32(attributes.device.0);
    to.u32(attributes.block_size);
    to.zeros(4);
}

fn put_opened(opened: &OpenedFile, to: &mut FieldWriter) {
    let mut flags = opened.flags;
    if opened.backing.is_some() {
        flags |= OpenFlags::PASSTHROUGH;
    }
    to.u64(opened.handle.0);
    to.u32(flags.bits());
    to.i32(opened.backing.map_or(0, |backing| backing.0));
}

fn put_statx(value: &Statx, to: &mut FieldWriter) {
    let attributes = &value.attributes;
    to.u64(value.ttl.as_secs());
    to.u32(value.ttl.subsec_nanos());
    to.zeros(4 + 16);
    to.u32(value.mask);
    to.u32(attributes.block_size);
    to.u64(value.file_attributes);
    to.u32(attributes.links);
    to.u32(attributes.uid);
    to.u32(attributes.gid);
    // Type and permissions have 16 bits; the two bytes after them are spare.
    to.u32(attributes.mode & 0xffff);
    to.u64(attributes.number);
    to.u64(attributes.size);
    to.u64(attributes.blocks);
    to.u64(value.file_attributes_mask);
    for time in [attributes.accessed, value.born, attributes.changed, attributes.modified] {
        to.i64(time.seconds);
        to.u32(time.nanoseconds);
        to.zeros(4);
    }
    to.u32(attributes.device.major());
    to.u32(attributes.device.minor());
    // The device that the file is on, which the kernel fills in, and what may come.
    to.zeros(8 + 14 * 8);
}

#[cfg(test)]
mod tests {
    use super::sealed::Encode;
    use super::*;

    fn encoded(answer: &impl Encode) -> Vec<u8> {
        let mut put = FieldWriter::new();
        answer.put(&mut put);
        put.as_slice().to_vec()
    }

    #[test]
    fn every_answer_has_the_length_that_the_kernel_expects() {
        let entry = InodeEntry::absent(Duration::ZERO);
        assert_eq!(encoded(&()).len(), 0);
        assert_eq!(encoded(&Attr::default()).len(), 104);
        assert_eq!(encoded(&entry).len(), ENTRY_LEN);
        assert_eq!(encoded(&OpenedFile::default()).len(), 16);
        assert_eq!(encoded(&Created { entry, opened: OpenedFile::default() }).len(), 144);
        assert_eq!(encoded(&WrittenBytes(1)).len(), 8);
        assert_eq!(encoded(&CopiedBytes(1)).len(), 8);
        assert_eq!(encoded(&SeekPosition(1)).len(), 8);
        assert_eq!(encoded(&Statfs::default()).len(), 80);
        let lock = Lock { kind: LockKind::None, start: 0, end: 0, process: 0 };
        assert_eq!(encoded(&lock).len(), 24);
        assert_eq!(encoded(&Statx::default()).len(), 288);
    }

    #[test]
    fn attributes_stand_where_the_kernel_looks() {
        let attributes = Attributes {
            number: 1,
            size: 2,
            modified: Timestamp { seconds: -3, nanoseconds: 4 },
            mode: 0o100644,
            links: 5,
            block_size: 6,
            ..Attributes::default()
        };
        let bytes = encoded(&Attr { attributes, ttl: Duration::new(7, 8) });
        assert_eq!((bytes[0], bytes[8], bytes[16], bytes[24]), (7, 8, 1, 2));
        assert_eq!(bytes[48..56], (-3i64).to_le_bytes());
        assert_eq!(bytes[68], 4);
        assert_eq!(bytes[76..80], 0o100644u32.to_le_bytes());
        assert_eq!((bytes[80], bytes[96]), (5, 6));
    }

    #[test]
    fn a_backing_file_sets_its_flag() {
        let opened =
            OpenedFile { handle: Handle(9), backing: Some(BackingId(3)), ..OpenedFile::default() };
        let bytes = encoded(&opened);
        assert_eq!((bytes[0], bytes[8], bytes[12]), (9, 1 << 7, 3));
    }
}
