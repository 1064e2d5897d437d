//! From a received request to the method of the file system that it is for.
//!
//! ```text
//!   header, fixed fields, names and data ─► opcode? ─┬─ forget, interrupt: no answer
//!                                                    └─ ReplyToken ─► arguments ─► method
//!                                                          └─ dropped anywhere: EIO
//! ```
//!
//! A method that panics costs its request an `EIO` and nothing else: a thread of a
//! connection must not end, or what the kernel gives it later waits for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::{IN_HEADER_LEN, InHeader, Opcode};
use crate::device::FuseDevice;
use crate::fields::{FieldReader, Malformed};
use crate::filesystem::FileSystem;
use crate::inflight::{FuseInFlight, Interrupt};
use crate::reply::{Reply, ReplySink, ReplyToken};
use crate::request::{
    Allocate, CopyRange, FuseOpen, FuseRead, FuseRequest, FuseRequestId, FuseWrite, Handle,
    InodeId, LockRequest, NewFile, Release, SetAttributes, SetXattr, parse_flush, parse_fsync,
    parse_getattr,
};

/// A file system with the requests that it has not answered.
#[derive(Debug)]
pub(crate) struct FuseServer<F: FileSystem> {
    filesystem: F,
    inflight: Arc<FuseInFlight>,
    /// SETXATTR comes in its long form.
    setxattr_ext: bool,
}

impl<F: FileSystem> FuseServer<F> {
    pub(crate) fn new(filesystem: F, setxattr_ext: bool) -> FuseServer<F> {
        FuseServer { filesystem, inflight: Arc::new(FuseInFlight::new()), setxattr_ext }
    }

    /// Serves a request as it was read from /dev/fuse.
    pub(crate) fn serve_bytes(&self, bytes: &[u8], device: &Arc<FuseDevice>) {
        let Ok(header) = InHeader::parse(bytes) else {
            return tracing::error!(
                len = bytes.len(),
                "received less than a header from the kernel"
            );
        };
        let body = &bytes[IN_HEADER_LEN..];
        let (fixed, rest) = body.split_at(self.fixed_len(&header).min(body.len()));
        self.serve(
            &header,
            FieldReader::new(fixed, rest),
            ReplySink::Device(device.clone()),
            device,
        );
    }

    /// Bytes of fixed fields that the header's opcode has.
    pub(crate) fn fixed_len(&self, header: &InHeader) -> usize {
        Opcode::new(header.opcode).map_or(0, |opcode| opcode.fixed_len_with(self.setxattr_ext))
    }

    /// Serves one request: `way` is where its answer goes, `device` where interrupts go back.
    pub(crate) fn serve(
        &self,
        header: &InHeader,
        mut from: FieldReader<'_, '_>,
        way: ReplySink,
        device: &FuseDevice,
    ) {
        let opcode = Opcode::new(header.opcode);
        let served = catch_unwind(AssertUnwindSafe(|| match opcode {
            Some(Opcode::Forget) => self.forget(header.request.inode, &mut from),
            Some(Opcode::BatchForget) => self.forget_batch(&mut from),
            Some(Opcode::Interrupt) => self.interrupt(&mut from, device),
            Some(Opcode::NotifyReply) => Ok(()),
            _ => self.serve_answered(opcode, &header.request, &mut from, way),
        }));
        match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(?opcode, %error, "cannot decode a request"),
            Err(_) => tracing::error!(?opcode, "the file system panicked"),
        }
    }

    /// Tells the file system of interrupts that the kernel has lost.
    pub(crate) fn find_interrupts(&self) {
        for id in self.inflight.missed_kills() {
            if let Interrupt::Deliver = self.inflight.interrupt(id) {
                self.filesystem.interrupt(id);
            }
        }
    }

    fn serve_answered(
        &self,
        opcode: Option<Opcode>,
        request: &FuseRequest,
        from: &mut FieldReader<'_, '_>,
        way: ReplySink,
    ) -> Result<(), Malformed> {
        self.inflight.begin(request);
        let mut ticket = Some(ReplyToken::new(request.id, way, self.inflight.clone()));
        let called = match opcode {
            Some(opcode) => self.call(opcode, request, from, &mut ticket),
            None => {
                reply::<()>(&mut ticket).error(Errno::NOSYS);
                Ok(())
            }
        };
        // Arguments that are not understood leave it here.
        drop(ticket);
        if self.inflight.returned(request.id) {
            self.filesystem.interrupt(request.id);
        }
        called
    }

    fn forget(&self, inode: InodeId, from: &mut FieldReader<'_, '_>) -> Result<(), Malformed> {
        self.filesystem.forget(inode, from.u64("nlookup")?);
        Ok(())
    }

    fn forget_batch(&self, from: &mut FieldReader<'_, '_>) -> Result<(), Malformed> {
        for _ in 0..from.u32("count")? {
            let mut one = from.next_fixed("forget", 16)?;
            self.forget(InodeId(one.u64("nodeid")?), &mut one)?;
        }
        Ok(())
    }

    fn interrupt(
        &self,
        from: &mut FieldReader<'_, '_>,
        device: &FuseDevice,
    ) -> Result<(), Malformed> {
        let id = FuseRequestId(from.u64("unique")?);
        match self.inflight.interrupt(id) {
            Interrupt::Deliver => self.filesystem.interrupt(id),
            Interrupt::Stored => {}
            Interrupt::StoredEvicting(oldest) => device.requeue_interrupt(oldest),
        }
        Ok(())
    }

    /// Calls the method for the opcode. Arguments are parsed before the token is taken: if they are
    /// malformed, the caller still has it to answer with.
    fn call(
        &self,
        opcode: Opcode,
        request: &FuseRequest,
        from: &mut FieldReader<'_, '_>,
        ticket: &mut Option<ReplyToken>,
    ) -> Result<(), Malformed> {
        match opcode {
            Opcode::Open
            | Opcode::Create
            | Opcode::TmpFile
            | Opcode::Read
            | Opcode::Write
            | Opcode::Flush
            | Opcode::Release
            | Opcode::FSync
            | Opcode::OpenDir
            | Opcode::ReadDir
            | Opcode::ReadDirPlus
            | Opcode::ReleaseDir
            | Opcode::FSyncDir
            | Opcode::GetLk
            | Opcode::SetLk
            | Opcode::SetLkW
            | Opcode::FAllocate
            | Opcode::LSeek
            | Opcode::CopyFileRange
            | Opcode::CopyFileRange64 => self.call_on_open(opcode, request, from, ticket),
            _ => self.call_on_inode(opcode, request, from, ticket),
        }
    }

    fn call_on_inode(
        &self,
        opcode: Opcode,
        request: &FuseRequest,
        from: &mut FieldReader<'_, '_>,
        ticket: &mut Option<ReplyToken>,
    ) -> Result<(), Malformed> {
        let to = &self.filesystem;
        match opcode {
            Opcode::Lookup => to.lookup(request, from.name("name")?, reply(ticket)),
            Opcode::GetAttr => to.getattr(request, parse_getattr(from)?, reply(ticket)),
            Opcode::Statx => {
                let handle = parse_getattr(from)?;
                from.u32("sx_flags")?;
                to.statx(request, handle, from.u32("sx_mask")?, reply(ticket));
            }
            Opcode::SetAttr => to.setattr(request, &SetAttributes::parse(from)?, reply(ticket)),
            Opcode::ReadLink => to.readlink(request, reply_with_room(ticket, LINK_MAX)),
            Opcode::MkNod => {
                let new = NewFile::parse_mknod(from)?;
                to.mknod(request, from.name("name")?, new, reply(ticket));
            }
            Opcode::MkDir => {
                let new = NewFile::parse_mkdir(from)?;
                to.mkdir(request, from.name("name")?, new, reply(ticket));
            }
            Opcode::Unlink => to.unlink(request, from.name("name")?, reply(ticket)),
            Opcode::RmDir => to.rmdir(request, from.name("name")?, reply(ticket)),
            Opcode::SymLink => {
                let (name, target) = (from.name("name")?, from.name("target")?);
                to.symlink(request, name, target, reply(ticket));
            }
            Opcode::Rename | Opcode::Rename2 => {
                let directory = InodeId(from.u64("newdir")?);
                let flags = if opcode == Opcode::Rename2 { from.u32("flags")? } else { 0 };
                let (old, new) = (from.name("from")?, from.name("to")?);
                to.rename(request, old, directory, new, flags, reply(ticket));
            }
            Opcode::Link => {
                let inode = InodeId(from.u64("oldnodeid")?);
                to.link(request, inode, from.name("name")?, reply(ticket));
            }
            Opcode::StatFs => to.statfs(request, reply(ticket)),
            Opcode::SetXattr => to.setxattr(request, SetXattr::parse(from)?, reply(ticket)),
            Opcode::GetXattr => {
                let room = from.u32("size")?;
                to.getxattr(request, from.name("name")?, reply_with_room(ticket, room));
            }
            Opcode::ListXattr => {
                to.listxattr(request, reply_with_room(ticket, from.u32("size")?));
            }
            Opcode::RemoveXattr => to.removexattr(request, from.name("name")?, reply(ticket)),
            Opcode::Access => to.access(request, from.u32("mask")?, reply(ticket)),
            Opcode::Destroy => reply::<()>(ticket).ok(&()),
            _ => reply::<()>(ticket).error(Errno::NOSYS),
        }
        Ok(())
    }

    fn call_on_open(
        &self,
        opcode: Opcode,
        request: &FuseRequest,
        from: &mut FieldReader<'_, '_>,
        ticket: &mut Option<ReplyToken>,
    ) -> Result<(), Malformed> {
        let to = &self.filesystem;
        match opcode {
            Opcode::Open => to.open(request, FuseOpen::parse(from)?, reply(ticket)),
            Opcode::Create => {
                let (open, new) = FuseOpen::parse_create(from)?;
                to.create(request, from.name("name")?, open, new, reply(ticket));
            }
            Opcode::TmpFile => {
                let (open, new) = FuseOpen::parse_create(from)?;
                to.tmpfile(request, open, new, reply(ticket));
            }
            Opcode::Read => {
                let read = FuseRead::parse(from)?;
                to.read(request, read, reply_with_room(ticket, read.size));
            }
            Opcode::Write => to.write(request, FuseWrite::parse(from)?, reply(ticket)),
            Opcode::Flush => {
                let (handle, owner) = parse_flush(from)?;
                to.flush(request, handle, owner, reply(ticket));
            }
            Opcode::Release => to.release(request, Release::parse(from)?, reply(ticket)),
            Opcode::FSync => {
                let (handle, data_only) = parse_fsync(from)?;
                to.fsync(request, handle, data_only, reply(ticket));
            }
            Opcode::OpenDir => to.opendir(request, FuseOpen::parse(from)?, reply(ticket)),
            Opcode::ReadDir => {
                let read = FuseRead::parse(from)?;
                to.readdir(request, read, reply_with_room(ticket, read.size));
            }
            Opcode::ReadDirPlus => {
                let read = FuseRead::parse(from)?;
                to.readdirplus(request, read, reply_with_room(ticket, read.size));
            }
            Opcode::ReleaseDir => to.releasedir(request, Release::parse(from)?, reply(ticket)),
            Opcode::FSyncDir => {
                let (handle, data_only) = parse_fsync(from)?;
                to.fsyncdir(request, handle, data_only, reply(ticket));
            }
            Opcode::GetLk => to.getlk(request, LockRequest::parse(from, false)?, reply(ticket)),
            Opcode::SetLk => to.setlk(request, LockRequest::parse(from, false)?, reply(ticket)),
            Opcode::SetLkW => to.setlk(request, LockRequest::parse(from, true)?, reply(ticket)),
            Opcode::FAllocate => to.fallocate(request, Allocate::parse(from)?, reply(ticket)),
            Opcode::LSeek => {
                let (handle, offset) = (Handle(from.u64("fh")?), from.u64("offset")?);
                to.lseek(request, handle, offset, from.u32("whence")?, reply(ticket));
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let mut copy = CopyRange::parse(from)?;
                if opcode == Opcode::CopyFileRange {
                    // The count in the answer has 32 bits.
                    copy.len = copy.len.min(u32::MAX.into());
                }
                to.copy_file_range(request, copy, reply(ticket));
            }
            _ => reply::<()>(ticket).error(Errno::NOSYS),
        }
        Ok(())
    }
}

impl<F: FileSystem> Drop for FuseServer<F> {
    /// The last thread of the connection ended.
    fn drop(&mut self) {
        let destroyed = catch_unwind(AssertUnwindSafe(|| self.filesystem.destroy()));
        if destroyed.is_err() {
            tracing::error!("the file system panicked while stopping");
        }
    }
}

fn reply<T>(ticket: &mut Option<ReplyToken>) -> Reply<T> {
    Reply::new(ticket.take().expect("each opcode takes it once"))
}

fn reply_with_room<T>(ticket: &mut Option<ReplyToken>, room: u32) -> Reply<T> {
    Reply::new(ticket.take().expect("each opcode takes it once").with_room(room))
}

/// Bytes of a link's target that the kernel takes: a page without its terminating NUL.
const LINK_MAX: u32 = 4095;

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
