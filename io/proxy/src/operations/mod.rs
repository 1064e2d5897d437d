//! What each request does to the backend, and what it is answered.
//!
//! One function owns the branching; the families of calls live in files of their
//! own. A function returns the reply or the errno at the place where it arises.
//! Whatever happens, the request is answered exactly once.

mod attach;
mod attributes;
mod data;
mod directory;
mod locking;
mod names;
mod open;
mod walk;
mod xattr;

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex};

use model::Amount;
use ninep::{Reply, Request};
use rustix::io::Errno;

use crate::connection::ReplyTo;
use crate::credentials::{self, Credentials};
use crate::export::Node;
use crate::fids::Fid;
use crate::gate::Running;
use crate::outbox::{Batch, Outbox, errno_of};
use crate::server::Server;

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// Its reply is in the outbox.
    Answered {
        /// What it really amounted to.
        served: Amount,
        /// 0, or the errno of its reply.
        errno: u32,
    },
    /// The page cache did not have it: it must wait for the device. Nothing was answered.
    Missed,
    /// A lock that must wait: answered later, by whoever grants it.
    Held,
}

/// One operation and all that it may need.
pub(crate) struct Context<'a> {
    pub(crate) server: &'a Server,
    pub(crate) running: &'a Running,
    pub(crate) outbox: &'a Mutex<Outbox>,
    /// Set when replies should leave before more are added.
    pub(crate) flush: &'a Cell<bool>,
}

impl<'a> Context<'a> {
    fn to(&self) -> &'a ReplyTo {
        &self.running.operation.to
    }

    fn fid(&self) -> &'a Arc<Fid> {
        &self.running.operation.fid
    }

    fn credentials(&self) -> &'a Credentials {
        &self.fid().user.credentials
    }

    /// The largest message of the session in bytes.
    fn msize(&self) -> usize {
        self.to().connection.session.lock().expect("not poisoned").msize as usize
    }

    /// Acts as the user of the fid from now on.
    fn as_user(&self) -> io::Result<()> {
        credentials::become_user(self.credentials(), self.credentials().gid)
    }

    /// Acts as the user, with the group that a new file is to get.
    fn as_creator(&self, gid: u32) -> io::Result<()> {
        let who = self.credentials();
        credentials::become_user(who, who.group_for(gid))
    }

    /// Refuses changes in a read-only export.
    fn writable(&self) -> io::Result<()> {
        if self.fid().user.export.readonly { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Another fid of the same session.
    fn other_fid(&self, fid: ninep::Fid) -> io::Result<Arc<Fid>> {
        let session = self.to().connection.session.lock().expect("not poisoned");
        if session.epoch != self.to().epoch {
            return Err(Errno::BADF.into());
        }
        session.fids.get(&fid.0).cloned().ok_or_else(|| Errno::BADF.into())
    }

    /// The same, where both must lie in one export: no name leads from one to the other.
    fn other_in_export(&self, fid: ninep::Fid) -> io::Result<Arc<Fid>> {
        let other = self.other_fid(fid)?;
        let same = Arc::ptr_eq(&other.user.export, &self.fid().user.export);
        if same { Ok(other) } else { Err(Errno::XDEV.into()) }
    }

    /// Puts a new fid into the session's table; `replaces` is what may be there.
    fn put_fid(&self, at: ninep::Fid, fid: Fid, replaces: Option<&Arc<Fid>>) -> io::Result<()> {
        let mut session = self.to().connection.session.lock().expect("not poisoned");
        if session.epoch != self.to().epoch {
            return Err(Errno::BADF.into());
        }
        match (session.fids.get(&at.0), replaces) {
            (None, None) if session.fids.len() >= self.server.settings().fids_max as usize => {
                return Err(Errno::MFILE.into());
            }
            (None, None) if at == ninep::NOFID => return Err(Errno::INVAL.into()),
            (None, None) => {}
            (Some(there), Some(old)) if Arc::ptr_eq(there, old) => {}
            _ => return Err(Errno::BADF.into()),
        }
        session.fids.insert(at.0, Arc::new(fid));
        Ok(())
    }

    /// Takes a fid out of the session's table.
    fn take_fid(&self, at: ninep::Fid) {
        let mut session = self.to().connection.session.lock().expect("not poisoned");
        if session.epoch == self.to().epoch
            && session.fids.get(&at.0).is_some_and(|there| Arc::ptr_eq(there, self.fid()))
        {
            session.fids.remove(&at.0);
        }
    }

    /// A name for a new or existing entry of a directory.
    fn name<'n>(&self, dir: &Node, name: &'n [u8]) -> io::Result<&'n [u8]> {
        if dir.kind != rustix::fs::FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        match name {
            b"" => Err(Errno::NOENT.into()),
            b"." | b".." => Err(Errno::INVAL.into()),
            _ => Ok(name),
        }
    }

    fn answer(&self, result: io::Result<Reply<'_>>) -> Ending {
        self.answer_served(result, self.running.asked.amount)
    }

    fn answer_served(&self, result: io::Result<Reply<'_>>, served: Amount) -> Ending {
        let to = self.to();
        let mut outbox = self.outbox.lock().expect("not poisoned");
        let batch = outbox.batch(to);
        let ending = match result {
            Ok(reply) => {
                batch.reply(to.tag, &reply);
                self.answered(batch, served, 0)
            }
            Err(error) => {
                batch.error(to.tag, &error);
                // It cost the backend a call, but moved nothing.
                let served = Amount { bytes: model::Bytes::ZERO, ..served };
                self.answered(batch, served, errno_of(&error))
            }
        };
        self.flush.set(outbox.is_full());
        ending
    }

    /// Counts a reply that was added to its batch.
    fn answered(&self, batch: &mut Batch, served: Amount, errno: u32) -> Ending {
        batch.tally.count(self.running.asked.kind, served, errno);
        Ending::Answered { served, errno }
    }
}

/// Executes one operation on the calling thread.
pub(crate) fn perform(cx: &Context<'_>) -> Ending {
    let frame = cx.running.operation.frame.bytes();
    let (_, request) = Request::decode(frame).expect("decoded once when it was taken in");
    match request {
        Request::Read { offset, count, .. } => data::read(cx, offset, count),
        Request::Write { offset, data, .. } => data::write(cx, offset, data),
        Request::Getattr { mask, .. } => cx.answer(attributes::getattr(cx, mask)),
        Request::Walk { newfid, names, fid } => cx.answer(walk::walk(cx, fid, newfid, names)),
        Request::Clunk { fid } => cx.answer(walk::clunk(cx, fid)),
        Request::Lopen { fid, flags } => cx.answer(open::open(cx, fid, flags)),
        Request::Lcreate { fid, name, flags, mode, gid } => {
            cx.answer(open::create(cx, fid, name, (flags, mode, gid)))
        }
        Request::Readdir { offset, count, .. } => directory::readdir(cx, offset, count),
        Request::Fsync { datasync, .. } => cx.answer(data::fsync(cx, datasync != 0)),
        Request::Setattr { set, .. } => cx.answer(attributes::setattr(cx, &set)),
        Request::Statfs { .. } => cx.answer(attributes::statfs(cx)),
        Request::Readlink { .. } => names::readlink(cx),
        Request::Xattrwalk { newfid, name, .. } => cx.answer(xattr::walk(cx, newfid, name)),
        Request::Xattrcreate { fid, name, size, flags } => {
            cx.answer(xattr::create(cx, fid, name, size, flags))
        }
        Request::Lock { kind, flags, start, length, proc_id, client_id, .. } => {
            locking::lock(cx, (kind, start, length), (client_id, proc_id), flags)
        }
        Request::Getlock { kind, start, length, proc_id, client_id, .. } => {
            locking::getlock(cx, (kind, start, length), (client_id, proc_id))
        }
        Request::Symlink { name, target, gid, .. } => {
            cx.answer(names::symlink(cx, name, target, gid))
        }
        Request::Mknod { name, mode, major, minor, gid, .. } => {
            cx.answer(names::mknod(cx, name, mode, (major, minor), gid))
        }
        Request::Link { fid, name, .. } => cx.answer(names::link(cx, fid, name)),
        Request::Mkdir { name, mode, gid, .. } => cx.answer(names::mkdir(cx, name, mode, gid)),
        Request::Rename { fid, dfid, name } => cx.answer(names::rename(cx, fid, dfid, name)),
        Request::Renameat { oldname, newdirfid, newname, .. } => {
            cx.answer(names::renameat(cx, oldname, newdirfid, newname))
        }
        Request::Unlinkat { name, flags, .. } => cx.answer(names::unlinkat(cx, name, flags)),
        Request::Remove { fid } => cx.answer(names::remove(cx, fid)),
        Request::Version { .. }
        | Request::Auth { .. }
        | Request::Attach { .. }
        | Request::Flush { .. } => unreachable!("never handed to a dispatcher"),
    }
}

pub(crate) use attach::attach;
