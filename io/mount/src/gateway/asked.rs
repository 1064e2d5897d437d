//! One message of the dialect, done with one message to the upstream or several.
//!
//! ```text
//!   message ─► perform ─┬─ names: look up, make, remove, rename, link
//!                       ├─ data: open, read, write, append, close, fsync, locks
//!                       ├─ attributes: get, change       listing: names with attributes
//!                       └─ xattr: get, set, remove
//!   fid of the message ─► GatewayTarget ─┬─ a handle: a file, as the message's identity
//!                                        └─ a fid: an open file, as the identity that opened it
//! ```
//!
//! Requests without a message in plain 9P are answered as by a file system that cannot do them:
//! space is not reserved, the server copies nothing, and no file has holes.

use std::sync::Arc;

use fuse::Errno;
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, RequestHeader, encode_reply, handle_fid,
};
use ninep::{Fid, LOCK_BLOCK, Reply, Request, Tag};

use super::files::UpstreamFile;
use super::life::{UpstreamCaller, UpstreamOpened, UpstreamSession};
use super::peer::{UpstreamError, UpstreamOp};

/// A message that is being done.
pub(super) struct GatewayCall<'a> {
    pub(super) life: &'a UpstreamSession,
    pub(super) job: &'a UpstreamOp,
    pub(super) tag: Tag,
    pub(super) header: RequestHeader<'a>,
}

/// The file or open file of a message's fid.
pub(super) enum GatewayTarget {
    Opened(Arc<UpstreamOpened>),
    File(Arc<UpstreamFile>, UpstreamCaller),
}

/// A whole reply, or why there is none.
pub(super) type GatewayReply = Result<Vec<u8>, UpstreamError>;

impl GatewayCall<'_> {
    /// Performs the request at the upstream and returns the whole reply message.
    pub(super) fn perform(&self, request: AnyRequest<'_>) -> GatewayReply {
        self.check_names()?;
        match request {
            AnyRequest::Base(request) => self.plain(request),
            AnyRequest::Ext(request) => self.own(request),
        }
    }

    /// Whether the message's first file has all the names that the message gives it.
    fn check_names(&self) -> Result<(), UpstreamError> {
        let Some(handle) = self.header.handles.get(handle_fid(0)) else { return Ok(()) };
        for (directory, name) in self.header.names {
            let files = self.life.files()?;
            let (file, directory) = (files.by_handle(handle)?, files.by_handle(directory)?);
            let who = self.life.caller(self.header.identity)?;
            let at = self.life.walk_to(self.job, &directory, who.uid)?;
            match self.life.walk(self.job, at.fid, &[name]) {
                Ok((_, qid)) if qid.is_none_or(|qid| file.is(qid)) => {}
                Err(UpstreamError::Errno(Errno::ACCESS)) => {}
                Ok(_) | Err(UpstreamError::Errno(Errno::NOENT | Errno::NOTDIR)) => {
                    self.life.walked.forget(file.serial);
                    return Err(Errno::STALE.into());
                }
                Err(fail) => return Err(fail),
            }
        }
        Ok(())
    }

    /// Encodes the reply in the mount's protocol.
    pub(super) fn reply<'r>(&self, reply: impl Into<AnyReply<'r>>) -> GatewayReply {
        let mut out = Vec::new();
        encode_reply(self.tag, self.life.header(), &reply.into(), &mut out);
        Ok(out)
    }

    /// Returns the file or open file of a fid.
    ///
    /// # Errors
    /// `EBADF` for one that is not open, `ESTALE` for a handle that is none of ours, `EINVAL`
    /// for an identity that is not known.
    pub(super) fn target(&self, fid: Fid) -> Result<GatewayTarget, Errno> {
        match self.header.handles.get(fid) {
            Some(handle) => {
                let file = self.life.files()?.by_handle(handle)?;
                Ok(GatewayTarget::File(file, self.life.caller(self.header.identity)?))
            }
            None => Ok(GatewayTarget::Opened(self.life.opened(fid)?)),
        }
    }

    /// Returns the file and the identity of a fid.
    pub(super) fn file(&self, fid: Fid) -> Result<(Arc<UpstreamFile>, UpstreamCaller), Errno> {
        Ok(match self.target(fid)? {
            GatewayTarget::Opened(opened) => (opened.file.clone(), opened.caller),
            GatewayTarget::File(file, who) => (file, who),
        })
    }

    fn plain(&self, request: Request<'_>) -> GatewayReply {
        match request {
            Request::Getattr { fid, .. } => self.getattr(fid),
            Request::Statfs { fid } => self.statfs(fid),
            Request::Readlink { fid } => self.readlink(fid),
            Request::Read { fid, offset, count } => self.read(fid, offset, count),
            Request::Fsync { fid, datasync } => self.fsync(fid, datasync),
            Request::Clunk { fid } => self.clunk(fid),
            Request::Unlinkat { dirfid, name, flags } => self.unlinkat(dirfid, name, flags),
            Request::Renameat { olddirfid, oldname, newdirfid, newname } => {
                self.renameat((olddirfid, oldname), (newdirfid, newname))
            }
            Request::Link { dfid, fid, name } => self.link(dfid, fid, name),
            Request::Lock { fid, flags, .. } => {
                // The mount asks again while somebody else has it; a server that waited would
                // keep a worker from everybody else.
                let flags = flags & !LOCK_BLOCK;
                self.lock(fid, |fid| match request {
                    Request::Lock { kind, start, length, proc_id, client_id, .. } => {
                        Request::Lock { fid, kind, flags, start, length, proc_id, client_id }
                    }
                    other => other,
                })
            }
            Request::Getlock { fid, kind, start, length, proc_id, client_id } => self
                .lock(fid, |fid| Request::Getlock { fid, kind, start, length, proc_id, client_id }),
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    fn own(&self, request: ExtRequest<'_>) -> GatewayReply {
        match request {
            ExtRequest::Identity { identity, uid, gid, .. } => {
                self.life.identify(identity, UpstreamCaller { uid, gid })?;
                self.reply(ExtReply::Identity { requests: REQUESTS, bytes: BYTES })
            }
            ExtRequest::Retire { identity } => {
                self.life.retire(identity);
                self.reply(ExtReply::Retire)
            }
            ExtRequest::Lookup { fid, name } => self.lookup(fid, name),
            ExtRequest::Open { fid, newfid, name, flags, mode } => {
                self.open(fid, name, newfid, flags, mode)
            }
            ExtRequest::List { fid, offset, count } => self.list(fid, offset, count),
            ExtRequest::Mknode { fid, name, mode, rdev, target } => {
                self.make(fid, name, mode, rdev, target)
            }
            ExtRequest::Change { fid, set } => self.change(fid, set),
            ExtRequest::Write { fid, offset, data, .. } => self.write(fid, offset, data),
            ExtRequest::Append { fid, data, .. } => self.append(fid, data),
            ExtRequest::Seek { fid, offset, whence } => self.seek(fid, offset, whence),
            ExtRequest::Getxattr { fid, name, count } => self.getxattr(fid, name, count),
            ExtRequest::Setxattr { fid, name, flags, data } => {
                self.setxattr(fid, name, flags, data)
            }
            ExtRequest::Removexattr { fid, name } => self.removexattr(fid, name),
            ExtRequest::Commit { .. } => {
                self.life.commit(self.job)?;
                self.reply(ExtReply::Commit)
            }
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    fn lock<'r>(&self, fid: Fid, request: impl FnOnce(Fid) -> Request<'r>) -> GatewayReply {
        let opened = self.life.opened(fid)?;
        let asked = request(opened.fid.fid);
        let told = self.life.peer.call_all(self.job, &[asked])?;
        match told.first().ok_or(UpstreamError::Disconnected)?.reply()? {
            reply @ (Reply::Lock { .. } | Reply::Getlock { .. }) => self.reply(reply),
            _ => Err(Errno::PROTO.into()),
        }
    }
}

/// Requests that each identity may have in flight on a channel, and their bytes: a server
/// without the dialect has no word for how much it takes.
const REQUESTS: u32 = 64;
const BYTES: u64 = 4 << 20;
