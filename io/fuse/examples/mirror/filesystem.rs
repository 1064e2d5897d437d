//! A directory shown at another place: each operation is passed to the system call that it
//! came from, and answered on the thread that received it.
//!
//! Run as root it acts as root: permissions are the kernel's business (the mount's option
//! `default_permissions`), new inodes are given to the caller, and set-id bits are taken away
//! where the kernel says so. Locks stay in the kernel.
//!
//! ```text
//!   kernel ─► Mirror ─► inodes: InodeId ─► O_PATH descriptor ─┐
//!                   └─► files: Handle ─► open file ───────────┴─► the system call
//!                   └─► backing: files that the kernel reads and writes without asking
//! ```

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuse::{
    Allocate, Attr, Attributes, Capabilities, CopiedBytes, CopyRange, Created, DataReply,
    DeviceNumber, DirEntry, EntryList, EntryListPlus, Errno, FileSystem, FuseConnection, FuseOpen,
    FuseRead, FuseRequest, FuseWrite, Handle, InodeEntry, InodeId, LockOwner, NewFile, Notifier,
    OpenFlags, OpenedFile, Release, Reply, SeekPosition, SetAttributes, SetTime, SetXattr, Statfs,
    Statx, Timestamp, WrittenBytes, Xattr,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat,
    StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};

use crate::backing::Backings;
use crate::inodes::{Files, Inodes};
use crate::owners::{by_number, give_to_caller, kill_set_group_id, kill_set_id, permissions};

/// A directory and what of it the kernel knows.
#[derive(Debug)]
pub(crate) struct Mirror {
    inodes: Inodes,
    files: Files,
    backings: Backings,
    settings: Settings,
}

/// How the directory is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// How long names and attributes may be believed.
    pub(crate) cached: Duration,
    /// How the kernel shall treat open files.
    pub(crate) open_flags: OpenFlags,
    /// Where the kernel can, it reads and writes the directory's files by itself.
    pub(crate) passthrough: bool,
    /// How many reads and writes came here.
    pub(crate) asked: Arc<AtomicU64>,
}

impl Mirror {
    /// Shows `directory`.
    pub(crate) fn new(directory: &Path, settings: Settings) -> Result<Mirror, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty())?;
        let (files, backings) = (Files::default(), Backings::default());
        Ok(Mirror { inodes: Inodes::new(root)?, files, backings, settings })
    }

    /// The inode that has a name, counted as looked up.
    fn entry(&self, directory: &OwnedFd, name: &CStr) -> Result<InodeEntry, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.entry_of(rustix::fs::openat(directory, name, flags, Mode::empty())?)
    }

    fn entry_of(&self, fd: OwnedFd) -> Result<InodeEntry, Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let inode = self.inodes.look_up(fd, &stat);
        let attributes = attributes(&stat);
        Ok(InodeEntry {
            inode,
            generation: 0,
            attributes,
            ttl: self.settings.cached,
            attributes_ttl: self.settings.cached,
        })
    }

    fn attr(&self, fd: impl AsFd) -> Result<Attr, Errno> {
        Ok(Attr { attributes: attributes(&rustix::fs::fstat(fd)?), ttl: self.settings.cached })
    }

    /// Gives what was just made to the caller, and tells the kernel of it.
    fn made(&self, request: &FuseRequest, name: &CStr, mode: u32) -> Result<InodeEntry, Errno> {
        let directory = self.inodes.get(request.inode)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
        give_to_caller(request, &directory, &fd, mode)?;
        self.entry_of(fd)
    }

    fn mknod_now(
        &self,
        request: &FuseRequest,
        name: &CStr,
        new: NewFile,
    ) -> Result<InodeEntry, Errno> {
        let directory = self.inodes.get(request.inode)?;
        let device = rustix::fs::makedev(new.device.major(), new.device.minor());
        let kind = rustix::fs::FileType::from_raw_mode(new.mode);
        rustix::fs::mknodat(&directory, name, kind, permissions(new.mode), device)?;
        self.made(request, name, new.mode)
    }

    fn mkdir_now(
        &self,
        request: &FuseRequest,
        name: &CStr,
        new: NewFile,
    ) -> Result<InodeEntry, Errno> {
        rustix::fs::mkdirat(self.inodes.get(request.inode)?, name, permissions(new.mode))?;
        self.made(request, name, 0)
    }

    fn symlink_now(
        &self,
        request: &FuseRequest,
        name: &CStr,
        target: &CStr,
    ) -> Result<InodeEntry, Errno> {
        rustix::fs::symlinkat(target, self.inodes.get(request.inode)?, name)?;
        self.made(request, name, 0)
    }

    fn link_now(
        &self,
        request: &FuseRequest,
        inode: InodeId,
        name: &CStr,
    ) -> Result<InodeEntry, Errno> {
        let (from, directory) = (self.inodes.get(inode)?, self.inodes.get(request.inode)?);
        rustix::fs::linkat(CWD, by_number(&from), &directory, name, AtFlags::SYMLINK_FOLLOW)?;
        self.entry(&directory, name)
    }

    fn open_now(&self, inode: InodeId, open: FuseOpen) -> Result<OpenedFile, Errno> {
        let flags = open_flags(open.flags) - OFlags::NOFOLLOW;
        let fd = rustix::fs::open(by_number(&self.inodes.get(inode)?), flags, Mode::empty())?;
        if open.kill_set_id {
            kill_set_id(&fd)?;
        }
        Ok(self.opened(inode, fd))
    }

    /// What the kernel is told of a file that was opened.
    fn opened(&self, inode: InodeId, fd: OwnedFd) -> OpenedFile {
        let backing = self.backings.opened(inode, fd.as_fd());
        // With another flag beside it the kernel refuses a backing file, or does not use it.
        let flags = if backing.is_some() { OpenFlags::NONE } else { self.settings.open_flags };
        OpenedFile { handle: self.files.add(fd), flags, backing }
    }

    fn opendir_now(&self, inode: InodeId, open: FuseOpen) -> Result<OpenedFile, Errno> {
        let flags = open_flags(open.flags);
        let fd = rustix::fs::open(by_number(&self.inodes.get(inode)?), flags, Mode::empty())?;
        Ok(OpenedFile { handle: self.files.add(fd), ..OpenedFile::default() })
    }

    fn create_now(
        &self,
        request: &FuseRequest,
        name: Option<&CStr>,
        open: FuseOpen,
        new: NewFile,
    ) -> Result<Created, Errno> {
        let directory = self.inodes.get(request.inode)?;
        let (name, kind) = match name {
            Some(name) => (name, OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW),
            None => (c".", OFlags::TMPFILE),
        };
        let flags = open_flags(open.flags);
        let fd = match rustix::fs::openat(&directory, name, flags | kind, permissions(new.mode)) {
            Ok(fd) => {
                give_to_caller(request, &directory, &fd, new.mode)?;
                fd
            }
            // Somebody else was faster, and the caller takes what is there.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let flags = flags | OFlags::NOFOLLOW;
                let fd = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
                if open.kill_set_id {
                    kill_set_id(&fd)?;
                }
                fd
            }
            Err(error) => return Err(error),
        };
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let entry = self.entry_of(rustix::fs::open(by_number(&fd), path, Mode::empty())?)?;
        let opened = self.opened(entry.inode, fd);
        Ok(Created { entry, opened })
    }

    fn write_now(&self, write: &FuseWrite<'_>) -> Result<WrittenBytes, Errno> {
        let file = self.files.get(write.handle)?;
        if write.kill_set_id {
            kill_set_id(&*file)?;
        }
        let written = match write.from_cache && appends(&file)? {
            false => file.write_all_at(write.data, write.offset),
            // The kernel takes any file that may write, and pwrite(2) of one with O_APPEND would
            // put the page behind the end.
            true => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let plain = rustix::fs::open(by_number(&*file), flags, Mode::empty())?;
                File::from(plain).write_all_at(write.data, write.offset)
            }
        };
        written.map_err(|error| errno(&error))?;
        Ok(WrittenBytes(u32::try_from(write.data.len()).expect("as it was asked, in 32 bits")))
    }

    fn setattr_now(&self, request: &FuseRequest, set: &SetAttributes) -> Result<Attr, Errno> {
        let inode = self.inodes.get(request.inode)?;
        if let Some(size) = set.size {
            match set.handle {
                Some(handle) => rustix::fs::ftruncate(&*self.files.get(handle)?, size)?,
                None => {
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                    let file = rustix::fs::open(by_number(&inode), flags, Mode::empty())?;
                    rustix::fs::ftruncate(file, size)?;
                }
            }
        }
        if set.kill_set_id {
            kill_set_id(&inode)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&inode, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            rustix::fs::chmod(by_number(&inode), permissions(mode))?;
        }
        if set.accessed.is_some() || set.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(set.accessed),
                last_modification: timespec(set.modified),
            };
            rustix::fs::utimensat(&inode, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        self.attr(&inode)
    }

    fn statx_now(&self, inode: InodeId, mask: u32) -> Result<Statx, Errno> {
        let inode = self.inodes.get(inode)?;
        let mask = StatxFlags::from_bits_retain(mask) | StatxFlags::BASIC_STATS;
        let found = rustix::fs::statx(&inode, c"", AtFlags::EMPTY_PATH, mask)?;
        Ok(Statx {
            attributes: self.attr(&inode)?.attributes,
            mask: found.stx_mask,
            born: Timestamp {
                seconds: found.stx_btime.tv_sec,
                nanoseconds: found.stx_btime.tv_nsec,
            },
            file_attributes: found.stx_attributes.bits(),
            file_attributes_mask: found.stx_attributes_mask.bits(),
            ttl: self.settings.cached,
        })
    }

    /// Calls `add` for the names from `offset` on until it says that there is no more room.
    fn list(
        &self,
        read: FuseRead,
        mut add: impl FnMut(&DirEntry<'_>) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let directory = self.files.get(read.handle)?;
        rustix::fs::seek(&*directory, SeekFrom::Start(read.offset))?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut names = RawDir::new(&*directory, &mut buffer);
        while let Some(name) = names.next() {
            let name = name?;
            let entry = DirEntry {
                number: name.ino(),
                offset: name.next_entry_cookie(),
                mode: name.file_type().as_raw_mode(),
                name: name.file_name().to_bytes(),
            };
            if !add(&entry)? {
                break;
            }
        }
        Ok(())
    }

    fn value(
        &self,
        inode: InodeId,
        room: usize,
        get: impl Fn(&str, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Vec<u8>, Errno> {
        let path = by_number(&self.inodes.get(inode)?);
        // Asked for the length only, the value is read all the same.
        let mut value = vec![0; if room == 0 { XATTR_MAX } else { room }];
        let len = get(&path, &mut value)?;
        value.truncate(len);
        Ok(value)
    }
}

impl FileSystem for Mirror {
    fn start(&self, connection: &FuseConnection, notifier: Notifier) {
        let can = connection.capabilities.contains(Capabilities::PASSTHROUGH);
        if can && self.settings.passthrough {
            self.backings.allow(notifier);
        }
    }

    fn forget(&self, inode: InodeId, lookups: u64) {
        self.inodes.forget(inode, lookups);
    }

    fn lookup(&self, request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        reply.send(self.inodes.get(request.inode).and_then(|fd| self.entry(&fd, name)));
    }

    fn getattr(&self, request: &FuseRequest, handle: Option<Handle>, reply: Reply<Attr>) {
        reply.send(match handle {
            Some(handle) => self.files.get(handle).and_then(|file| self.attr(&*file)),
            None => self.inodes.get(request.inode).and_then(|fd| self.attr(&fd)),
        });
    }

    fn statx(&self, request: &FuseRequest, _: Option<Handle>, mask: u32, reply: Reply<Statx>) {
        reply.send(self.statx_now(request.inode, mask));
    }

    fn setattr(&self, request: &FuseRequest, set: &SetAttributes, reply: Reply<Attr>) {
        reply.send(self.setattr_now(request, set));
    }

    fn readlink(&self, request: &FuseRequest, reply: Reply<DataReply>) {
        let target =
            self.inodes.get(request.inode).and_then(|fd| rustix::fs::readlinkat(&fd, c"", vec![]));
        match target {
            Ok(target) => reply.bytes(target.to_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        reply.send(self.mknod_now(request, name, new));
    }

    fn mkdir(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        reply.send(self.mkdir_now(request, name, new));
    }

    fn unlink(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        let directory = self.inodes.get(request.inode);
        reply.send(directory.and_then(|fd| rustix::fs::unlinkat(fd, name, AtFlags::empty())));
    }

    fn rmdir(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        let directory = self.inodes.get(request.inode);
        reply.send(directory.and_then(|fd| rustix::fs::unlinkat(fd, name, AtFlags::REMOVEDIR)));
    }

    fn symlink(&self, request: &FuseRequest, name: &CStr, target: &CStr, reply: Reply<InodeEntry>) {
        reply.send(self.symlink_now(request, name, target));
    }

    fn rename(
        &self,
        request: &FuseRequest,
        from: &CStr,
        directory: InodeId,
        to: &CStr,
        flags: u32,
        reply: Reply<()>,
    ) {
        let directories =
            self.inodes.get(request.inode).and_then(|a| Ok((a, self.inodes.get(directory)?)));
        let flags = RenameFlags::from_bits_retain(flags);
        reply.send(directories.and_then(|(a, b)| rustix::fs::renameat_with(a, from, b, to, flags)));
    }

    fn link(&self, request: &FuseRequest, inode: InodeId, name: &CStr, reply: Reply<InodeEntry>) {
        reply.send(self.link_now(request, inode, name));
    }

    fn open(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        reply.send(self.open_now(request.inode, open));
    }

    fn create(
        &self,
        request: &FuseRequest,
        name: &CStr,
        open: FuseOpen,
        new: NewFile,
        reply: Reply<Created>,
    ) {
        reply.send(self.create_now(request, Some(name), open, new));
    }

    fn tmpfile(&self, request: &FuseRequest, open: FuseOpen, new: NewFile, reply: Reply<Created>) {
        reply.send(self.create_now(request, None, open, new));
    }

    fn read(&self, _request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        self.settings.asked.fetch_add(1, Ordering::Relaxed);
        match self.files.get(read.handle) {
            Ok(file) => reply.file(file.as_fd(), read.offset),
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, _request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        self.settings.asked.fetch_add(1, Ordering::Relaxed);
        reply.send(self.write_now(&write));
    }

    fn flush(&self, _request: &FuseRequest, _handle: Handle, _owner: LockOwner, reply: Reply<()>) {
        // There is nothing that close(2) could still report: every write has been passed on.
        reply.ok(&());
    }

    fn fsync(&self, _request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        reply.send(self.files.get(handle).and_then(|file| sync(&file, data_only)));
    }

    fn release(&self, request: &FuseRequest, release: Release, reply: Reply<()>) {
        self.backings.released(request.inode);
        self.files.remove(release.handle);
        reply.ok(&());
    }

    fn opendir(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        reply.send(self.opendir_now(request.inode, open));
    }

    fn readdir(&self, _request: &FuseRequest, read: FuseRead, reply: Reply<EntryList>) {
        reply.list(|listing| self.list(read, |entry| Ok(listing.add(entry))));
    }

    fn readdirplus(&self, request: &FuseRequest, read: FuseRead, reply: Reply<EntryListPlus>) {
        let directory = match self.inodes.get(request.inode) {
            Ok(directory) => directory,
            Err(error) => return reply.error(error),
        };
        reply.list(|listing| {
            self.list(read, |entry| {
                if matches!(entry.name, b"." | b"..") {
                    return Ok(listing.add_name(entry));
                }
                let name = [entry.name, b"\0"].concat();
                let name = CStr::from_bytes_with_nul(&name).map_err(|_| Errno::IO)?;
                match self.entry(&directory, name) {
                    Ok(inode) => {
                        let added = listing.add(&inode, entry);
                        if !added {
                            self.inodes.forget(inode.inode, 1);
                        }
                        Ok(added)
                    }
                    // It went away meanwhile.
                    Err(_) => Ok(listing.add_name(entry)),
                }
            })
        });
    }

    fn fsyncdir(&self, _request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        reply.send(self.files.get(handle).and_then(|file| sync(&file, data_only)));
    }

    fn releasedir(&self, _request: &FuseRequest, release: Release, reply: Reply<()>) {
        self.files.remove(release.handle);
        reply.ok(&());
    }

    fn statfs(&self, request: &FuseRequest, reply: Reply<Statfs>) {
        let found = self.inodes.get(request.inode).and_then(|fd| rustix::fs::fstatfs(&fd));
        reply.send(found.map(|found| Statfs {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: found.f_bsize as u32,
            fragment_size: found.f_frsize as u32,
            name_max: found.f_namelen as u32,
        }));
    }

    fn setxattr(&self, request: &FuseRequest, set: SetXattr<'_>, reply: Reply<()>) {
        let flags = XattrFlags::from_bits_retain(set.flags);
        let inode = self.inodes.get(request.inode);
        reply.send(inode.and_then(|fd| {
            rustix::fs::setxattr(by_number(&fd), set.name, set.value, flags)?;
            if set.kill_set_group_id { kill_set_group_id(&fd) } else { Ok(()) }
        }));
    }

    fn getxattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<Xattr>) {
        let value = self.value(request.inode, reply.room(), |path, value| {
            rustix::fs::getxattr(path, name, value)
        });
        match value {
            Ok(value) => reply.value(&value),
            Err(error) => reply.error(error),
        }
    }

    fn listxattr(&self, request: &FuseRequest, reply: Reply<Xattr>) {
        let names = self
            .value(request.inode, reply.room(), |path, names| rustix::fs::listxattr(path, names));
        match names {
            Ok(names) => reply.value(&names),
            Err(error) => reply.error(error),
        }
    }

    fn removexattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        let inode = self.inodes.get(request.inode);
        reply.send(inode.and_then(|fd| rustix::fs::removexattr(by_number(&fd), name)));
    }

    fn fallocate(&self, _request: &FuseRequest, allocate: Allocate, reply: Reply<()>) {
        let mode = FallocateFlags::from_bits_retain(allocate.mode);
        let file = self.files.get(allocate.handle);
        reply.send(
            file.and_then(|file| {
                rustix::fs::fallocate(&*file, mode, allocate.offset, allocate.len)
            }),
        );
    }

    fn lseek(
        &self,
        _: &FuseRequest,
        handle: Handle,
        offset: u64,
        whence: u32,
        reply: Reply<SeekPosition>,
    ) {
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return reply.error(Errno::INVAL),
        };
        let file = self.files.get(handle);
        reply.send(file.and_then(|file| rustix::fs::seek(&*file, to)).map(SeekPosition));
    }

    fn copy_file_range(&self, _request: &FuseRequest, copy: CopyRange, reply: Reply<CopiedBytes>) {
        let (mut from, mut to) = (copy.from_offset, copy.to_offset);
        let len = usize::try_from(copy.len).unwrap_or(usize::MAX);
        let files = self.files.get(copy.from).and_then(|a| Ok((a, self.files.get(copy.to)?)));
        reply.send(files.and_then(|(a, b)| {
            let copied =
                rustix::fs::copy_file_range(&*a, Some(&mut from), &*b, Some(&mut to), len)?;
            Ok(CopiedBytes(copied as u64))
        }));
    }
}

/// The flags that make sense in another process; direct I/O would want aligned requests.
fn open_flags(flags: u32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags) | OFlags::CLOEXEC;
    flags - OFlags::DIRECT
}

/// Whether what is written to the file goes behind its end.
fn appends(file: &File) -> Result<bool, Errno> {
    Ok(rustix::fs::fcntl_getfl(file)?.contains(OFlags::APPEND))
}

fn sync(file: &File, data_only: bool) -> Result<(), Errno> {
    if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::To(time)) => {
            Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
        }
    }
}

fn attributes(stat: &Stat) -> Attributes {
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    Attributes {
        number: stat.st_ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        accessed: time(stat.st_atime, stat.st_atime_nsec as u32),
        modified: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        changed: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        mode: stat.st_mode,
        links: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        device: DeviceNumber::new(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
        block_size: stat.st_blksize as u32,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The longest value, and the longest list of names, of extended attributes.
const XATTR_MAX: usize = 64 << 10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
