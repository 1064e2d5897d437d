//! Notices of a file system to the kernel: that cached data is no longer valid, or that the kernel
//! should cache data.
//!
//! **The rule.** A notice takes the locks of what it is about: of an inode's pages to throw
//! them away or store them, of a directory to drop one of its names. A request holds such
//! locks while it waits for its answer: a read or write those of its pages, a look-up or a
//! change of names that of its directory. So a notice about the same inode or directory,
//! sent before that request is answered by the thread that would answer it, waits for ever.
//! Send notices from a thread that answers no requests, or answer first.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::NotifyCode;
use crate::answer::BackingId;
use crate::device::FuseDevice;
use crate::fields::FieldWriter;
use crate::request::InodeId;

/// Tells the kernel what changed. Can be used from any thread, for as long as the mount is.
///
/// `ENOENT` of any method can be ignored: the kernel then has nothing to drop. `ENODEV` or
/// `ENOTCONN` say that the mount is gone. For the danger of waiting for ever see the beginning of
/// this module's source: no notice from a thread that has yet to answer a request about the same
/// inode or directory.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<FuseDevice>,
}

impl Notifier {
    pub(crate) fn new(device: Arc<FuseDevice>) -> Notifier {
        Notifier { device }
    }

    /// An inode's attributes are no longer valid, and neither are its cached bytes in
    /// `[offset, offset + len)`. `len` 0 means to the end; a negative offset leaves data alone.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode.
    pub fn inval_inode(&self, inode: InodeId, offset: i64, len: i64) -> Result<(), Errno> {
        let mut put = FieldWriter::new();
        put.u64(inode.0);
        put.i64(offset);
        put.i64(len);
        self.device.notify(NotifyCode::InvalInode, [put.as_slice(), b"", b""])
    }

    /// A name of the directory no longer means what it meant.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory or the name, `ENOTDIR`.
    pub fn inval_entry(&self, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
        self.entry(directory, name, 0)
    }

    /// Like [`Notifier::inval_entry`], but current users of the name can continue: the kernel looks
    /// it up again at the next use. Needs
    /// [`Capabilities::EXPIRE_ONLY`](crate::Capabilities::EXPIRE_ONLY).
    ///
    /// # Errors
    /// As there.
    pub fn expire_entry(&self, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
        self.entry(directory, name, EXPIRE_ONLY)
    }

    fn entry(&self, directory: InodeId, name: &[u8], flags: u32) -> Result<(), Errno> {
        let mut put = FieldWriter::new();
        put.u64(directory.0);
        put.u32(name_len(name)?);
        put.u32(flags);
        self.device.notify(NotifyCode::InvalEntry, [put.as_slice(), name, b"\0"])
    }

    /// Notifies watchers of the directory that a name was removed, if it still means `child`.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know them, `EBUSY` if something is mounted there,
    /// `ENOTEMPTY` for a directory that the kernel believes to have names.
    pub fn delete(&self, directory: InodeId, child: InodeId, name: &[u8]) -> Result<(), Errno> {
        let mut put = FieldWriter::new();
        put.u64(directory.0);
        put.u64(child.0);
        put.u32(name_len(name)?);
        put.zeros(4);
        self.device.notify(NotifyCode::Delete, [put.as_slice(), name, b"\0"])
    }

    /// Puts bytes of an inode into the page cache, where reads will find them. The inode's size
    /// grows to hold them, as the kernel sees it.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode, `EINVAL` for 2 GiB at once.
    pub fn store(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut put = FieldWriter::new();
        put.u64(inode.0);
        put.u64(offset);
        put.u32(u32::try_from(data.len()).map_err(|_| Errno::INVAL)?);
        put.zeros(4);
        self.device.notify(NotifyCode::Store, [put.as_slice(), data, b""])
    }

    /// Hands an open file to the kernel, to be read and written in place of one of ours:
    /// [`OpenedFile::backing`](crate::OpenedFile) names it. Reads and writes are then not seen here.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN or without
    /// [`Capabilities::PASSTHROUGH`](crate::Capabilities::PASSTHROUGH), `ELOOP` for a file that
    /// itself is on a file system with backing files.
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        self.device.open_backing(file)
    }

    /// Takes a file back; those that are open with it stay so.
    ///
    /// # Errors
    /// `ENOENT` if it is none.
    pub fn close_backing(&self, id: BackingId) -> Result<(), Errno> {
        self.device.close_backing(id)
    }
}

fn name_len(name: &[u8]) -> Result<u32, Errno> {
    u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)
}

/// FUSE_EXPIRE_ONLY.
const EXPIRE_ONLY: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    fn notifier() -> (Notifier, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        (Notifier::new(Arc::new(FuseDevice::new(ours.into(), 4096))), theirs)
    }

    fn sent(to: &UnixDatagram) -> Vec<u8> {
        let mut packet = [0; 256];
        let len = to.recv(&mut packet).unwrap();
        packet[..len].to_vec()
    }

    #[test]
    fn a_notice_has_no_unique_and_its_code_as_the_error() {
        let (notifier, kernel) = notifier();
        notifier.inval_inode(InodeId(7), -1, 0).unwrap();
        let notice = sent(&kernel);
        assert_eq!(notice[..16], *b"\x28\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!((notice[16], &notice[24..32]), (7, &[0xff; 8][..]));
    }

    #[test]
    fn what_is_too_long_to_be_sent_at_once_is_refused() {
        let (notifier, _kernel) = notifier();
        // Never touched, so it takes no memory.
        let data = crate::memory::Pages::new(u32::MAX as usize).unwrap();
        assert_eq!(notifier.store(InodeId(2), 0, &data), Err(Errno::INVAL));
        assert_eq!(notifier.store(InodeId(2), 0, &data[..1 << 31]), Err(Errno::INVAL));
    }

    #[test]
    fn names_are_sent_with_their_nul_which_does_not_count() {
        let (notifier, kernel) = notifier();
        notifier.expire_entry(InodeId(1), b"ab").unwrap();
        assert_eq!(sent(&kernel)[16..], *b"\x01\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0ab\0");
        notifier.delete(InodeId(1), InodeId(2), b"ab").unwrap();
        let notice = sent(&kernel);
        assert_eq!((notice[4], notice[0] as usize, notice.len()), (6, 16 + 24 + 3, 43));
        notifier.store(InodeId(2), 4096, b"data").unwrap();
        assert_eq!(sent(&kernel)[32..], *b"\x04\0\0\0\0\0\0\0data");
    }
}
