//! Extended attributes, by way of fids: one that is read, one that is written and set at clunk.
//!
//! ```text
//!   get      Txattrwalk ─► Tread ─► Tclunk
//!   set      Twalk ─► Txattrcreate ─► Twrite ─► Tclunk, which says what came of it
//!   remove   the same with no bytes and XATTR_REPLACE, as the kernel's v9fs asks for it
//! ```

use fuse::Errno;
use ninep::dialect::ExtReply;
use ninep::{Fid, Reply, Request, XATTR_REPLACE};

use super::asked::{GatewayCall, GatewayReply};
use super::peer::UpstreamError;

impl GatewayCall<'_> {
    pub(super) fn getxattr(&self, fid: Fid, name: &[u8], count: u32) -> GatewayReply {
        let (file, who) = self.file(fid)?;
        let (length, data) = self.life.with_file(self.job, &file, who.uid, |fid| {
            let (held, size) = self.life.peer.make(|newfid| {
                let request = Request::Xattrwalk { fid, newfid, name };
                self.life.peer.call(self.job, request, |reply| match reply {
                    Reply::Xattrwalk { size } => Some(size),
                    _ => None,
                })
            })?;
            let size = u32::try_from(size).ok().filter(|size| *size <= XATTR_MAX);
            let size = size.ok_or(Errno::TOOBIG)?;
            match count {
                0 => Ok((size, Vec::new())),
                _ if size > count => Err(Errno::RANGE.into()),
                _ => Ok((size, self.read_xattr(held.fid, size)?)),
            }
        })?;
        self.reply(ExtReply::Getxattr { length, data: &data })
    }

    pub(super) fn setxattr(&self, fid: Fid, name: &[u8], flags: u32, data: &[u8]) -> GatewayReply {
        self.put_xattr(fid, name, flags, data)?;
        self.reply(ExtReply::Setxattr)
    }

    pub(super) fn removexattr(&self, fid: Fid, name: &[u8]) -> GatewayReply {
        self.put_xattr(fid, name, XATTR_REPLACE, b"")?;
        self.reply(ExtReply::Removexattr)
    }

    fn read_xattr(&self, fid: Fid, size: u32) -> Result<Vec<u8>, UpstreamError> {
        let mut data = Vec::new();
        while data.len() < size as usize {
            let count = (size - data.len() as u32).min(self.life.peer.payload());
            let request = Request::Read { fid, offset: data.len() as u64, count };
            let read = self.life.peer.call(self.job, request, |reply| match reply {
                Reply::Read { data } if data.len() <= count as usize => Some(data.to_vec()),
                _ => None,
            })?;
            if read.is_empty() {
                return Err(Errno::PROTO.into());
            }
            data.extend_from_slice(&read);
        }
        Ok(data)
    }

    fn put_xattr(
        &self,
        fid: Fid,
        name: &[u8],
        flags: u32,
        data: &[u8],
    ) -> Result<(), UpstreamError> {
        let (file, who) = self.file(fid)?;
        self.life.with_file(self.job, &file, who.uid, |fid| {
            let (held, _) = self.life.walk(self.job, fid, &[])?;
            let (fid, size) = (held.fid, data.len() as u64);
            let request = Request::Xattrcreate { fid, name, size, flags };
            self.life
                .peer
                .call(self.job, request, |reply| (reply == Reply::Xattrcreate).then_some(()))?;
            let mut written = 0;
            while written < data.len() {
                let rest = &data[written..];
                let data = &rest[..rest.len().min(self.life.peer.payload() as usize)];
                let request = Request::Write { fid, offset: written as u64, data };
                written += self.life.peer.call(self.job, request, |reply| match reply {
                    Reply::Write { count: count @ 1.. } if count as usize <= data.len() => {
                        Some(count as usize)
                    }
                    _ => None,
                })?;
            }
            held.clunk()
        })
    }
}

/// The largest value or list of names in Linux, in bytes.
const XATTR_MAX: u32 = 64 << 10;
