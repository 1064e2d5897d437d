//! Open files: opened and made, read, written, made durable, closed.
//!
//! ```text
//!   open    a copy of the file's fid ─► Tlopen ─► Tgetattr: its qid?
//!   make    a copy of the directory's fid ─► Tlcreate ─► Tgetattr
//!   read, write   pieces that fit into the peer's messages, all at once ─► put together
//!   append  Tgetattr: the end ─► Twrite there
//! ```
//!
//! Bytes that another node appends at the same time may be overwritten, as with v9fs: plain 9P has
//! no message for it.

use std::sync::Arc;

use fuse::Errno;
use ninep::dialect::ExtReply;
use ninep::{Attributes, Fid, Reply, Request, SetAttributes, open, setattr};

use super::asked::{GatewayCall, GatewayReply, GatewayTarget};
use super::files::UpstreamFile;
use super::life::{UpstreamCaller, UpstreamOpened, UpstreamSession};
use super::peer::{UpstreamError, UpstreamOp};
use crate::session::lock;

impl UpstreamSession {
    /// Opens a file for one call.
    pub(super) fn open_once(
        &self,
        job: &UpstreamOp,
        file: &Arc<UpstreamFile>,
        who: UpstreamCaller,
        flags: u32,
    ) -> Result<Arc<UpstreamOpened>, UpstreamError> {
        let opened = self.with_file(job, file, who.uid, |fid| {
            let (held, _) = self.walk(job, fid, &[])?;
            let flags = flags & !NOT_FORWARDED | open::NOFOLLOW;
            let request = Request::Lopen { fid: held.fid, flags };
            let qid = self.peer.call(job, request, |reply| match reply {
                Reply::Lopen { qid, .. } => Some(qid),
                _ => None,
            })?;
            let told = self.attributes(job, held.fid)?;
            match file.is(qid) && file.is(told.qid) {
                true => Ok(UpstreamOpened {
                    fid: held,
                    file: file.clone(),
                    caller: who,
                    last_attributes: told.into(),
                }),
                false => Err(Errno::STALE.into()),
            }
        })?;
        Ok(Arc::new(opened))
    }
}

impl GatewayCall<'_> {
    /// Opens a file, or a name in a directory, or makes it.
    pub(super) fn open(
        &self,
        fid: Fid,
        name: &[u8],
        newfid: Fid,
        flags: u32,
        mode: u32,
    ) -> GatewayReply {
        let (file, who) = self.file(fid)?;
        let opened = match (name.is_empty(), flags & open::CREATE != 0) {
            (true, _) => self.life.open_once(self.job, &file, who, flags)?,
            (false, true) => self.create(&file, who, name, flags, mode)?,
            (false, false) => {
                let (file, _) = self.file_by_name(&file, who, name)?;
                self.life.open_once(self.job, &file, who, flags)?
            }
        };
        let attributes = *lock(&opened.last_attributes);
        let handle = opened.file.handle.clone();
        self.life.open(newfid, opened)?;
        // Whether it was there already only EXCL tells.
        let created = u8::from(!name.is_empty() && flags & open::EXCL != 0);
        self.reply(ExtReply::Open { handle: &handle, created, attributes })
    }

    fn create(
        &self,
        directory: &UpstreamFile,
        who: UpstreamCaller,
        name: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<Arc<UpstreamOpened>, UpstreamError> {
        let at = self.at(directory, who, name)?;
        self.life.files()?.fits(directory, name)?;
        let (held, _) = self.life.walk(self.job, at.fid, &[])?;
        let (fid, gid) = (held.fid, who.gid);
        let flags = flags & !(NOT_FORWARDED & !MAKING) | open::NOFOLLOW;
        let request = Request::Lcreate { fid, name, flags, mode, gid };
        self.life.peer.call(self.job, request, |reply| {
            matches!(reply, Reply::Lcreate { .. }).then_some(())
        })?;
        let told = self.life.attributes(self.job, fid)?;
        let file = self.life.files()?.found(directory, name, told.qid, told.nlink)?;
        Ok(Arc::new(UpstreamOpened { fid: held, file, caller: who, last_attributes: told.into() }))
    }

    pub(super) fn read(&self, fid: Fid, offset: u64, count: u32) -> GatewayReply {
        if count > PAYLOAD_MAX {
            return Err(Errno::INVAL.into());
        }
        let opened = self.opened(fid, open::RDONLY)?;
        let (fid, step) = (opened.fid.fid, self.life.peer.payload());
        let pieces: Vec<Request<'_>> = (0..count)
            .step_by(step as usize)
            .map(|at| {
                let offset = offset.saturating_add(at.into());
                Request::Read { fid, offset, count: step.min(count - at) }
            })
            .collect();
        let mut data = Vec::with_capacity(count as usize);
        for (told, piece) in self.life.peer.call_all(self.job, &pieces)?.iter().zip(&pieces) {
            let Request::Read { count, .. } = *piece else { break };
            match told.reply() {
                Ok(Reply::Read { data: read }) if read.len() <= count as usize => {
                    data.extend_from_slice(read);
                    if read.len() < count as usize {
                        break;
                    }
                }
                Ok(_) => return Err(Errno::PROTO.into()),
                Err(error) if data.is_empty() => return Err(error.into()),
                // The next read begins where this one has ended, and learns it.
                Err(_) => break,
            }
        }
        self.reply(Reply::Read { data: &data })
    }

    pub(super) fn write(&self, fid: Fid, offset: u64, data: &[u8]) -> GatewayReply {
        let opened = self.opened(fid, open::WRONLY)?;
        let count = self.put(&opened, offset, data)?;
        let number = self.life.written(self.job, &opened)?;
        self.reply(ExtReply::Write { count, number })
    }

    /// Writes at the end, all or nothing as far as the peer lets a file be cut again.
    pub(super) fn append(&self, fid: Fid, data: &[u8]) -> GatewayReply {
        let opened = self.life.opened(fid)?;
        let _appending = lock(&opened.file.appending);
        let offset = self.attributes_of(&opened)?.size;
        let count = self.put(&opened, offset, data)?;
        if (count as usize) < data.len() {
            let set = SetAttributes { valid: setattr::SIZE, size: offset, ..Default::default() };
            let request = Request::Setattr { fid: opened.fid.fid, set };
            let cut = self.life.peer.call(self.job, request, |_| Some(()));
            tracing::warn!(offset, count, ?cut, "an append was cut short");
            return Err(Errno::NOSPC.into());
        }
        let number = self.life.written(self.job, &opened)?;
        self.reply(ExtReply::Append { offset, number })
    }

    pub(super) fn fsync(&self, fid: Fid, datasync: u32) -> GatewayReply {
        let opened = self.opened(fid, open::RDONLY)?;
        self.life.fsync(self.job, &opened, datasync)?;
        self.reply(Reply::Fsync)
    }

    pub(super) fn clunk(&self, fid: Fid) -> GatewayReply {
        let opened = self.life.close(fid)?;
        // Somebody may use it yet, such as a commit: then the last one lets it go.
        if let Ok(UpstreamOpened { fid: held, .. }) = Arc::try_unwrap(opened) {
            held.clunk()?;
        }
        self.reply(Reply::Clunk)
    }

    /// As in a file without holes.
    pub(super) fn seek(&self, fid: Fid, offset: u64, whence: u32) -> GatewayReply {
        let Attributes { size, .. } = self.attributes_of(&*self.life.opened(fid)?)?;
        let found = match whence {
            _ if offset >= size => Err(Errno::NXIO),
            SEEK_DATA => Ok(offset),
            SEEK_HOLE => Ok(size),
            _ => Err(Errno::INVAL),
        };
        self.reply(ExtReply::Seek { offset: found? })
    }

    /// The open file of a fid; of a handle, opened for this one call.
    fn opened(&self, fid: Fid, flags: u32) -> Result<Arc<UpstreamOpened>, UpstreamError> {
        match self.target(fid)? {
            GatewayTarget::Opened(opened) => Ok(opened),
            GatewayTarget::File(file, who) => self.life.open_once(self.job, &file, who, flags),
        }
    }

    /// Writes all that the peer takes, and says how much that was.
    ///
    /// # Errors
    /// If it takes nothing.
    fn put(&self, opened: &UpstreamOpened, offset: u64, data: &[u8]) -> Result<u32, UpstreamError> {
        let (fid, step) = (opened.fid.fid, self.life.peer.payload() as usize);
        let mut written = 0;
        while written < data.len() {
            let rest = &data[written..];
            let at = offset + written as u64;
            let pieces: Vec<Request<'_>> = (0u64..)
                .zip(rest.chunks(step))
                .map(|(n, data)| Request::Write { fid, offset: at + n * step as u64, data })
                .collect();
            let told = self.life.peer.call_all(self.job, &pieces)?;
            let mut taken = 0;
            let mut failed = None;
            for (told, piece) in told.iter().zip(rest.chunks(step)) {
                match told.reply() {
                    Ok(Reply::Write { count }) if count as usize <= piece.len() => {
                        taken += count as usize;
                        if (count as usize) < piece.len() {
                            break;
                        }
                    }
                    Ok(_) => failed = Some(Errno::PROTO),
                    Err(error) => failed = Some(error),
                }
                if failed.is_some() {
                    break;
                }
            }
            written += taken;
            match failed {
                Some(error) if written == 0 => return Err(error.into()),
                Some(_) => break,
                None if taken == 0 => break,
                None => {}
            }
        }
        let mut told = lock(&opened.last_attributes);
        told.size = told.size.max(offset + written as u64);
        Ok(written as u32)
    }
}

/// Flags of an open that the upstream server does not receive: writes carry their offset and come
/// in pieces that no device requires, and no file is created that way.
const NOT_FORWARDED: u32 = open::APPEND | open::DIRECT | MAKING;
const MAKING: u32 = open::CREATE | open::EXCL;
/// The most bytes of one read: more than the mount asks for.
const PAYLOAD_MAX: u32 = 1 << 20;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
