//! Names: looked up, made, removed, renamed and linked.
//!
//! ```text
//!   look up   Twalk ─► Tgetattr ─► UpstreamFile, its fid cached
//!   make      Tmkdir, Tmknod, Tsymlink ─► look up
//!   remove    Tunlinkat, or Twalk ─► Tremove      rename    Trenameat, or Twalk ─► Trename
//! ```
//!
//! Servers such as diod have only the messages that name a file by its fid, and say so by
//! EOPNOTSUPP or ENOSYS; they are asked once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use fuse::Errno;
use ninep::dialect::ExtReply;
use ninep::{Attributes, Fid, QTDIR, REMOVE_DIR, Reply, Request};

use super::asked::{GatewayCall, GatewayReply};
use super::files::UpstreamFile;
use super::life::UpstreamCaller;
use super::peer::{UpstreamError, UpstreamFid};

impl GatewayCall<'_> {
    pub(super) fn lookup(&self, fid: Fid, name: &[u8]) -> GatewayReply {
        let (directory, who) = self.file(fid)?;
        let (file, attributes) = self.file_by_name(&directory, who, name)?;
        self.reply(ExtReply::Lookup { handle: &file.handle, attributes })
    }

    /// A file by its name.
    pub(super) fn file_by_name(
        &self,
        directory: &UpstreamFile,
        who: UpstreamCaller,
        name: &[u8],
    ) -> Result<(Arc<UpstreamFile>, Attributes), UpstreamError> {
        let at = self.at(directory, who, name)?;
        let (held, _) = self.life.walk(self.job, at.fid, &[name])?;
        let told = self.life.attributes(self.job, held.fid)?;
        let file = self.life.files()?.found(directory, name, told.qid, told.nlink)?;
        self.life.walked.insert(&file, who.uid, Arc::new(held));
        Ok((file, told))
    }

    /// Makes a directory, a special file or a symbolic link.
    pub(super) fn make(
        &self,
        fid: Fid,
        name: &[u8],
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> GatewayReply {
        let (directory, who) = self.file(fid)?;
        let at = self.at(&directory, who, name)?;
        self.life.files()?.fits(&directory, name)?;
        let (dfid, gid) = (at.fid, who.gid);
        let request = match mode & S_IFMT {
            S_IFDIR => Request::Mkdir { dfid, name, mode: mode & 0o7777, gid },
            S_IFLNK => Request::Symlink { fid: dfid, name, target, gid },
            _ => {
                let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
                Request::Mknod { dfid, name, mode, major, minor, gid }
            }
        };
        self.life.peer.call(self.job, request, |reply| {
            matches!(reply, Reply::Mkdir { .. } | Reply::Symlink { .. } | Reply::Mknod { .. })
                .then_some(())
        })?;
        let (file, attributes) = self.file_by_name(&directory, who, name)?;
        self.reply(ExtReply::Mknode { handle: &file.handle, attributes })
    }

    pub(super) fn unlinkat(&self, dirfid: Fid, name: &[u8], flags: u32) -> GatewayReply {
        let (directory, who) = self.file(dirfid)?;
        let at = self.at(&directory, who, name)?;
        let request = Request::Unlinkat { dirfid: at.fid, name, flags };
        self.or_by_fid(request, Reply::Unlinkat, || {
            let (held, qid) = self.life.walk(self.job, at.fid, &[name])?;
            let is_directory = qid.is_some_and(|qid| qid.kind & QTDIR != 0);
            match (is_directory, flags & REMOVE_DIR != 0) {
                (true, false) => Err(Errno::ISDIR.into()),
                (false, true) => Err(Errno::NOTDIR.into()),
                _ => held.remove(self.job),
            }
        })?;
        if let Some(serial) = self.life.files()?.removed(&directory, name) {
            self.life.walked.forget(serial);
        }
        self.reply(Reply::Unlinkat)
    }

    pub(super) fn renameat(&self, old: (Fid, &[u8]), new: (Fid, &[u8])) -> GatewayReply {
        let (from, who) = self.file(old.0)?;
        let (to, _) = self.file(new.0)?;
        let (from_at, to_at) = (self.at(&from, who, old.1)?, self.at(&to, who, new.1)?);
        self.life.files()?.fits(&to, new.1)?;
        let _moving = self.life.walked.moving.read().unwrap_or_else(PoisonError::into_inner);
        let request = Request::Renameat {
            olddirfid: from_at.fid,
            oldname: old.1,
            newdirfid: to_at.fid,
            newname: new.1,
        };
        self.or_by_fid(request, Reply::Renameat, || {
            let (held, _) = self.life.walk(self.job, from_at.fid, &[old.1])?;
            let request = Request::Rename { fid: held.fid, dfid: to_at.fid, name: new.1 };
            self.life.peer.call(self.job, request, |reply| (reply == Reply::Rename).then_some(()))
        })?;
        let renamed = self.life.files()?.renamed((&from, old.1), (&to, new.1));
        match renamed.directory {
            true => self.life.walked.forget_all(),
            false => renamed.serials.iter().for_each(|serial| self.life.walked.forget(*serial)),
        }
        self.reply(Reply::Renameat)
    }

    pub(super) fn link(&self, dfid: Fid, fid: Fid, name: &[u8]) -> GatewayReply {
        let (directory, who) = self.file(dfid)?;
        let (file, _) = self.file(fid)?;
        let at = self.at(&directory, who, name)?;
        self.life.files()?.fits(&directory, name)?;
        self.life.with_file(self.job, &file, who.uid, |fid| {
            let request = Request::Link { dfid: at.fid, fid, name };
            self.life.peer.call(self.job, request, |reply| (reply == Reply::Link).then_some(()))
        })?;
        self.life.files()?.linked(&file, &directory, name);
        self.reply(Reply::Link)
    }

    pub(super) fn readlink(&self, fid: Fid) -> GatewayReply {
        let (file, who) = self.file(fid)?;
        let target = self.life.with_file(self.job, &file, who.uid, |fid| {
            self.life.peer.call(self.job, Request::Readlink { fid }, |reply| match reply {
                Reply::Readlink { target } => Some(target.to_vec()),
                _ => None,
            })
        })?;
        self.reply(Reply::Readlink { target: &target })
    }

    /// A fid of a directory in which something is to be done with a name.
    ///
    /// # Errors
    /// For names that mean something else than a file in it.
    pub(super) fn at(
        &self,
        directory: &UpstreamFile,
        who: UpstreamCaller,
        name: &[u8],
    ) -> Result<Arc<UpstreamFid>, UpstreamError> {
        match name {
            b"" => Err(Errno::NOENT.into()),
            b"." | b".." => Err(Errno::INVAL.into()),
            _ => self.life.walk_to(self.job, directory, who.uid),
        }
    }

    /// Asks by name, or where the peer cannot be asked so, by fid.
    fn or_by_fid(
        &self,
        request: Request<'_>,
        done: Reply<'_>,
        by_fid: impl FnOnce() -> Result<(), UpstreamError>,
    ) -> Result<(), UpstreamError> {
        if !self.life.names_by_fid.load(Ordering::Relaxed) {
            match self.life.peer.call(self.job, request, |reply| (reply == done).then_some(())) {
                Err(UpstreamError::Errno(Errno::OPNOTSUPP | Errno::NOSYS)) => {
                    self.life.names_by_fid.store(true, Ordering::Relaxed);
                }
                asked => return asked,
            }
        }
        by_fid()
    }
}

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;
