//! Operations of a file system, as the kernel requests them.
//!
//! A method is called on the thread that received the request and may answer there and
//! then, which is the fast way: one thread, no hand-over. Or it moves its [`Reply`] away
//! and returns; the answer may come at any later time from any thread, and until then the
//! receiving thread goes on with other requests. **A method that may wait long should do
//! the latter**: while it runs, its thread receives nothing, and over io_uring that thread
//! is the only one for the requests of its processor.
//!
//! Names and data are borrowed for the call. Several threads call at once; the kernel
//! keeps the order where it matters to programs (it locks directories and files).
//!
//! ## Interrupts
//!
//! A signal to a waiting process becomes [`FileSystem::interrupt`] with the request's id. The file
//! system then answers the request soon: with `EINTR` if it gives up, or as if nothing had
//! happened. Until it answers, the process waits, even for SIGKILL. This crate resolves the races
//! of the protocol. An interrupt that overtakes its request is kept until the request has arrived.
//! An interrupt that arrives while the method runs is delivered at once and, if the request is
//! still unanswered then, again when the method has returned. So a file system needs one table of
//! waiting requests, filled before the method returns; an id that is not in the table can be
//! ignored.

use std::ffi::CStr;

use rustix::io::Errno;

use crate::answer::{
    Attr, CopiedBytes, Created, InodeEntry, OpenedFile, SeekPosition, Statfs, Statx, WrittenBytes,
};
use crate::negotiate::FuseConnection;
use crate::notify::Notifier;
use crate::reply::{DataReply, EntryList, EntryListPlus, Reply, Xattr};
use crate::request::{
    Allocate, CopyRange, FuseOpen, FuseRead, FuseRequest, FuseRequestId, FuseWrite, Handle,
    InodeId, Lock, LockOwner, LockRequest, NewFile, Release, SetAttributes, SetXattr,
};

/// A file system that the kernel can mount.
///
/// The default of an operation answers `ENOSYS`, after which the kernel does not send many
/// operations again. By default opening succeeds.
#[allow(unused_variables)]
pub trait FileSystem: Send + Sync + 'static {
    /// Called once, before the first request.
    fn start(&self, connection: &FuseConnection, notifier: Notifier) {}

    /// Called once, after the last request: the mount is gone, whatever the reason. Inodes
    /// and handles that the kernel had then are not given back one by one.
    fn destroy(&self) {}

    /// A process would rather not wait for this request any longer. May come more than once
    /// for one request, and for requests that are answered.
    fn interrupt(&self, id: FuseRequestId) {}

    /// The kernel forgets an inode: `lookups` of its look-ups are taken back. Once all are, the
    /// kernel does not name the inode again.
    fn forget(&self, inode: InodeId, lookups: u64) {}

    /// Look up the inode of a name in the directory.
    fn lookup(&self, request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        reply.error(Errno::NOSYS);
    }

    /// Get the attributes of the inode.
    fn getattr(&self, request: &FuseRequest, handle: Option<Handle>, reply: Reply<Attr>) {
        reply.error(Errno::NOSYS);
    }

    /// Get the attributes of the inode, beyond stat(2). `mask` has the requested fields.
    fn statx(&self, request: &FuseRequest, handle: Option<Handle>, mask: u32, reply: Reply<Statx>) {
        reply.error(Errno::NOSYS);
    }

    /// Change attributes, and answer with all of them.
    fn setattr(&self, request: &FuseRequest, set: &SetAttributes, reply: Reply<Attr>) {
        reply.error(Errno::NOSYS);
    }

    /// Read the target of a symbolic link.
    fn readlink(&self, request: &FuseRequest, reply: Reply<DataReply>) {
        reply.error(Errno::NOSYS);
    }

    /// Create a file, device, pipe or socket.
    fn mknod(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        reply.error(Errno::NOSYS);
    }

    /// Create a directory in the request's directory.
    fn mkdir(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        reply.error(Errno::NOSYS);
    }

    /// Remove the name of what is not a directory.
    fn unlink(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Remove an empty directory.
    fn rmdir(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Create a symbolic link.
    fn symlink(&self, request: &FuseRequest, name: &CStr, target: &CStr, reply: Reply<InodeEntry>) {
        reply.error(Errno::NOSYS);
    }

    /// Give what has `from` in the request's directory the name `to` in `directory`; `flags`
    /// are renameat2's.
    fn rename(
        &self,
        request: &FuseRequest,
        from: &CStr,
        directory: InodeId,
        to: &CStr,
        flags: u32,
        reply: Reply<()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Give `inode` one more name, in the request's directory.
    fn link(&self, request: &FuseRequest, inode: InodeId, name: &CStr, reply: Reply<InodeEntry>) {
        reply.error(Errno::NOSYS);
    }

    /// Open the request's file; by default with handle 0.
    fn open(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        reply.ok(&OpenedFile::default());
    }

    /// Make a file and open it. Without this the kernel makes do with `mknod` and `open`.
    fn create(
        &self,
        request: &FuseRequest,
        name: &CStr,
        open: FuseOpen,
        new: NewFile,
        reply: Reply<Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Make a file without a name in the directory, and open it.
    fn tmpfile(&self, request: &FuseRequest, open: FuseOpen, new: NewFile, reply: Reply<Created>) {
        reply.error(Errno::NOSYS);
    }

    /// Read. Fewer bytes than asked for are the end of the file.
    fn read(&self, request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        reply.error(Errno::NOSYS);
    }

    /// Write bytes at an offset, and reply with their number.
    fn write(&self, request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        reply.error(Errno::NOSYS);
    }

    /// A descriptor was closed, perhaps not the last one; its owner's fcntl locks end. What
    /// this answers is what close(2) returns.
    fn flush(&self, request: &FuseRequest, handle: Handle, owner: LockOwner, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Make what was written durable; with `data_only` no more metadata than that needs.
    fn fsync(&self, request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor was closed: the handle will not be named again.
    fn release(&self, request: &FuseRequest, release: Release, reply: Reply<()>) {
        reply.ok(&());
    }

    /// Open the request's directory; by default with handle 0.
    fn opendir(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        reply.ok(&OpenedFile::default());
    }

    /// List a part of a directory; an empty part is the end.
    fn readdir(&self, request: &FuseRequest, read: FuseRead, reply: Reply<EntryList>) {
        reply.error(Errno::NOSYS);
    }

    /// List a part of a directory with each name's inode.
    fn readdirplus(&self, request: &FuseRequest, read: FuseRead, reply: Reply<EntryListPlus>) {
        reply.error(Errno::NOSYS);
    }

    /// Make a directory's changes durable.
    fn fsyncdir(&self, request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// The last descriptor of a directory was closed.
    fn releasedir(&self, request: &FuseRequest, release: Release, reply: Reply<()>) {
        reply.ok(&());
    }

    /// Get the space of the file system.
    fn statfs(&self, request: &FuseRequest, reply: Reply<Statfs>) {
        reply.ok(&Statfs::default());
    }

    /// Set an extended attribute.
    fn setxattr(&self, request: &FuseRequest, set: SetXattr<'_>, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Get the value of an extended attribute.
    fn getxattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<Xattr>) {
        reply.error(Errno::NOSYS);
    }

    /// List the names of the extended attributes, each followed by NUL.
    fn listxattr(&self, request: &FuseRequest, reply: Reply<Xattr>) {
        reply.error(Errno::NOSYS);
    }

    /// Remove an extended attribute.
    fn removexattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Check the caller's access (R_OK, W_OK, X_OK in `mask`). Not called if the mount checks
    /// permissions by itself.
    fn access(&self, request: &FuseRequest, mask: u32, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Find a lock that conflicts with this one; kind [`LockKind::None`](crate::LockKind) without
    /// a conflict.
    fn getlk(&self, request: &FuseRequest, lock: LockRequest, reply: Reply<Lock>) {
        reply.error(Errno::NOSYS);
    }

    /// Lock or unlock a range. A lock that waits must not hold up the thread: the one that
    /// frees it may come through the same.
    fn setlk(&self, request: &FuseRequest, lock: LockRequest, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Reserve, clear or cut out space of a file.
    fn fallocate(&self, request: &FuseRequest, allocate: Allocate, reply: Reply<()>) {
        reply.error(Errno::NOSYS);
    }

    /// Find the next data or hole from `offset` on; `whence` is SEEK_DATA or SEEK_HOLE.
    fn lseek(
        &self,
        request: &FuseRequest,
        handle: Handle,
        offset: u64,
        whence: u32,
        reply: Reply<SeekPosition>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Copy from one open file to another.
    fn copy_file_range(&self, request: &FuseRequest, copy: CopyRange, reply: Reply<CopiedBytes>) {
        reply.error(Errno::NOSYS);
    }
}
