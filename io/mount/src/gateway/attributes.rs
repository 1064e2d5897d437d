//! Attributes of files, of open ones too, and the figures of the file system.
//!
//! ```text
//!   handle ─► with_file ─► Tgetattr: its qid? ─► attributes
//!   open file ─► its own fid ─┬─ its qid ─► attributes
//!                             └─ another's, or none: by its names ─┬─ found
//!                                                                  └─ removed: as they were
//! ```
//!
//! A server that goes by paths answers for whatever has the path of an open fid by now.

use fuse::Errno;
use ninep::dialect::ExtReply;
use ninep::{Attributes, Fid, Reply, Request, SetAttributes};

use super::asked::{GatewayCall, GatewayReply, GatewayTarget};
use super::files::UpstreamFile;
use super::life::{UpstreamCaller, UpstreamOpened};
use super::peer::UpstreamError;
use crate::session::lock;

impl GatewayCall<'_> {
    pub(super) fn getattr(&self, fid: Fid) -> GatewayReply {
        let told = match self.target(fid)? {
            GatewayTarget::Opened(opened) => self.attributes_of(&opened)?,
            GatewayTarget::File(file, who) => self.attributes_by_name(&file, who)?,
        };
        self.reply(Reply::Getattr(told))
    }

    /// Changes attributes, and says what they are then.
    pub(super) fn change(&self, fid: Fid, set: SetAttributes) -> GatewayReply {
        let attributes = match self.target(fid)? {
            GatewayTarget::Opened(opened) => {
                match self.is_at_its_fid(&opened)? {
                    true => self.set(opened.fid.fid, set)?,
                    false => {
                        self.life.with_file(self.job, &opened.file, opened.caller.uid, |fid| {
                            self.set(fid, set)
                        })?
                    }
                }
                self.attributes_of(&opened)?
            }
            GatewayTarget::File(file, who) => {
                self.life.with_file(self.job, &file, who.uid, |fid| self.set(fid, set))?;
                self.attributes_by_name(&file, who)?
            }
        };
        self.reply(ExtReply::Change { attributes })
    }

    pub(super) fn statfs(&self, fid: Fid) -> GatewayReply {
        let (file, who) = self.file(fid)?;
        let figures = self.life.with_file(self.job, &file, who.uid, |fid| {
            self.life.peer.call(self.job, Request::Statfs { fid }, |reply| match reply {
                Reply::Statfs(figures) => Some(figures),
                _ => None,
            })
        })?;
        self.reply(Reply::Statfs(figures))
    }

    /// The attributes of an open file: if the peer has lost it, as they were last.
    pub(super) fn attributes_of(
        &self,
        opened: &UpstreamOpened,
    ) -> Result<Attributes, UpstreamError> {
        let told = match self.life.attributes(self.job, opened.fid.fid) {
            Ok(told) if opened.file.is(told.qid) => Ok(told),
            Ok(_) | Err(UpstreamError::Errno(Errno::NOENT | Errno::STALE)) => {
                self.attributes_by_name(&opened.file, opened.caller)
            }
            Err(fail) => Err(fail),
        };
        let mut last = lock(&opened.last_attributes);
        match told {
            Ok(told) => *last = told,
            Err(UpstreamError::Errno(Errno::NOENT | Errno::STALE)) => last.nlink = 0,
            Err(fail) => return Err(fail),
        }
        Ok(*last)
    }

    fn attributes_by_name(
        &self,
        file: &UpstreamFile,
        who: UpstreamCaller,
    ) -> Result<Attributes, UpstreamError> {
        self.life.with_file(self.job, file, who.uid, |fid| {
            let told = self.life.attributes(self.job, fid)?;
            match file.is(told.qid) {
                true => Ok(told),
                false => Err(Errno::STALE.into()),
            }
        })
    }

    /// Whether a change of an open file's fid would change that file.
    fn is_at_its_fid(&self, opened: &UpstreamOpened) -> Result<bool, UpstreamError> {
        match self.life.attributes(self.job, opened.fid.fid) {
            Ok(told) => Ok(opened.file.is(told.qid)),
            Err(UpstreamError::Errno(Errno::NOENT | Errno::STALE)) => Ok(false),
            Err(fail) => Err(fail),
        }
    }

    fn set(&self, fid: Fid, set: SetAttributes) -> Result<(), UpstreamError> {
        let request = Request::Setattr { fid, set };
        self.life.peer.call(self.job, request, |reply| (reply == Reply::Setattr).then_some(()))
    }
}
