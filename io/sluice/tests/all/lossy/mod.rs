//! A file system in memory that loses what was not synced, once, when it is told to: what a disk
//! or a machine does that fails. It writes as slowly as it is told to.
//!
//! ```text
//!   write ─► now ─┬─ fsync ─► durable
//!                 └─ fsync while the file `lose` is there beside it: EIO, all files are what
//!                    they were when they were last synced, and `lose` is gone
//! ```
//!
//! It is served by a process of its own: whoever waits for a file system that is served by the
//! process itself may wait for ever. Nothing of it is cached by the kernel.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use fuse::{
    Attr, Attributes, Created, DataReply, Errno, FileSystem, FuseOpen, FuseRead, FuseRequest,
    FuseSession, FuseWrite, Handle, InodeEntry, InodeId, LockOwner, NewFile, OpenFlags, OpenedFile,
    Options, Reply, SetAttributes, WrittenBytes,
};
use rustix::mount::{UnmountFlags, unmount};

use crate::common::until;

/// Such a file system, mounted.
pub struct Lossy {
    at: PathBuf,
    lose: PathBuf,
    server: Child,
}

impl Lossy {
    /// Mounts one at `at`, served by `serve` in the process that `start` starts.
    pub fn mount(at: &Path, lose: &Path, start: impl FnOnce() -> Child) -> Lossy {
        fs::create_dir_all(at).unwrap();
        let here = fs::metadata(at).unwrap();
        let (at, lose) = (at.to_owned(), lose.to_owned());
        let mut lossy = Lossy { at, lose, server: start() };
        use std::os::unix::fs::MetadataExt as _;
        until("it is mounted", || {
            assert!(lossy.server.try_wait().unwrap().is_none(), "its process has ended");
            fs::metadata(&lossy.at).is_ok_and(|there| there.dev() != here.dev())
        });
        lossy
    }

    /// The next fsync of any file fails, and loses what was not synced.
    pub fn lose_at_next_sync(&self) {
        fs::write(&self.lose, "").unwrap();
    }

    /// Whether it has lost what it was to lose.
    pub fn has_lost(&self) -> bool {
        !self.lose.exists()
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::FORCE);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Serves one at `at` until it is unmounted. It does one thing at a time, and each write takes at
/// least `write_time`.
pub fn serve(at: &Path, lose: &Path, write_time: Duration) {
    let files = Mutex::new(Files::default());
    let memory = Memory { files, lose: lose.to_owned(), write_time };
    let options = Options { source: "lossy".into(), ..Options::default() };
    FuseSession::mount(at, memory, &options).unwrap().join();
}

struct Memory {
    files: Mutex<Files>,
    lose: PathBuf,
    write_time: Duration,
}

#[derive(Default)]
struct Files {
    names: BTreeMap<CString, InodeId>,
    /// File n has the inode number n and 2.
    files: Vec<File>,
}

#[derive(Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    attributes: Attributes,
}

impl Files {
    fn get(&mut self, inode: InodeId) -> Result<&mut File, Errno> {
        self.files.get_mut((inode.0 as usize).wrapping_sub(2)).ok_or(Errno::ISDIR)
    }

    fn attributes(&mut self, inode: InodeId) -> Result<Attributes, Errno> {
        if inode == InodeId::ROOT {
            return Ok(Attributes {
                number: 1,
                mode: 0o040_777,
                links: 2,
                ..Attributes::default()
            });
        }
        let file = self.get(inode)?;
        Ok(Attributes { number: inode.0, size: file.now.len() as u64, ..file.attributes })
    }

    fn entry(&mut self, inode: InodeId) -> Result<InodeEntry, Errno> {
        let attributes = self.attributes(inode)?;
        Ok(InodeEntry { inode, generation: 0, attributes, ttl: NONE, attributes_ttl: NONE })
    }

    fn make(&mut self, request: &FuseRequest, name: &CStr, mode: u32) -> Result<InodeEntry, Errno> {
        if self.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let (uid, gid) = (request.uid, request.gid);
        let attributes = Attributes { mode, links: 1, uid, gid, ..Attributes::default() };
        self.files.push(File { attributes, ..File::default() });
        let inode = InodeId(self.files.len() as u64 + 1);
        self.names.insert(name.to_owned(), inode);
        self.entry(inode)
    }
}

impl Memory {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap()
    }
}

impl FileSystem for Memory {
    fn lookup(&self, _: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        let mut files = self.files();
        match files.names.get(name).copied() {
            Some(inode) => reply.send(files.entry(inode)),
            None => reply.ok(&InodeEntry::absent(NONE)),
        }
    }

    fn getattr(&self, request: &FuseRequest, _: Option<Handle>, reply: Reply<Attr>) {
        let attributes = self.files().attributes(request.inode);
        reply.send(attributes.map(|attributes| Attr { attributes, ttl: NONE }));
    }

    fn setattr(&self, request: &FuseRequest, set: &SetAttributes, reply: Reply<Attr>) {
        if let Ok(file) = self.files().get(request.inode) {
            if let Some(size) = set.size {
                file.now.resize(size as usize, 0);
            }
            let SetAttributes { mode, uid, gid, .. } = *set;
            let was = file.attributes;
            let mode = mode.map_or(was.mode, |mode| was.mode & !0o7777 | mode & 0o7777);
            let (uid, gid) = (uid.unwrap_or(was.uid), gid.unwrap_or(was.gid));
            file.attributes = Attributes { mode, uid, gid, ..was };
        }
        self.getattr(request, None, reply);
    }

    fn create(
        &self,
        request: &FuseRequest,
        name: &CStr,
        _: FuseOpen,
        new: NewFile,
        reply: Reply<Created>,
    ) {
        let made = self.files().make(request, name, new.mode);
        reply.send(made.map(|entry| Created { entry, opened: OPENED }));
    }

    fn unlink(&self, _: &FuseRequest, name: &CStr, reply: Reply<()>) {
        let gone = self.files().names.remove(name);
        reply.send(gone.map(|_| ()).ok_or(Errno::NOENT));
    }

    fn open(&self, _: &FuseRequest, _: FuseOpen, reply: Reply<OpenedFile>) {
        reply.ok(&OPENED);
    }

    fn read(&self, request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        match self.files().get(request.inode) {
            Ok(file) => reply.bytes(&file.now[file.now.len().min(read.offset as usize)..]),
            Err(error) => reply.error(error),
        }
    }

    fn write(&self, request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        let mut files = self.files();
        if self.write_time > Duration::ZERO {
            // The disk is busy, with all of its files.
            std::thread::sleep(self.write_time);
        }
        let written = files.get(request.inode).map(|file| {
            let (from, to) = (write.offset as usize, write.offset as usize + write.data.len());
            file.now.resize(file.now.len().max(to), 0);
            file.now[from..to].copy_from_slice(write.data);
            WrittenBytes(write.data.len() as u32)
        });
        reply.send(written);
    }

    fn flush(&self, _: &FuseRequest, _: Handle, _: LockOwner, reply: Reply<()>) {
        reply.ok(&());
    }

    fn fsync(&self, request: &FuseRequest, _: Handle, _: bool, reply: Reply<()>) {
        let mut files = self.files();
        if fs::remove_file(&self.lose).is_ok() {
            files.files.iter_mut().for_each(|file| file.now.clone_from(&file.durable));
            return reply.error(Errno::IO);
        }
        reply.send(files.get(request.inode).map(|file| file.durable.clone_from(&file.now)));
    }
}

/// Nothing may be believed.
const NONE: Duration = Duration::ZERO;
/// The bytes are here and not in the page cache, which would know what was lost.
const OPENED: OpenedFile =
    OpenedFile { handle: Handle(0), flags: OpenFlags::DIRECT_IO, backing: None };
