//! Agreement of the mount and the server while one connection to the server lives.
//!
//! ```text
//!   Tsession ─► bind ─► Tattach: the root       identity ─► uid ─► Tattach: that user's root
//!   fid of the mount ─► UpstreamOpened: fid of the upstream
//!   (file, uid) ─► UpstreamFid: walked to, and cached
//!   the connection breaks ─► every channel ends ─► the mount's session starts again: resumed = 0
//! ```
//!
//! Nothing here outlives the connection but the [`UpstreamFiles`], which are the gateway's: with
//! them the mount reopens its files. A channel that is bound twice has lost the replies on it
//! before, and they are not kept here. Then the connection is ended, and the mount finds out what
//! was executed as it does when a proxy has died.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use fuse::Errno;
use ninep::dialect::ReplyHeader;
use ninep::{Attributes, Fid, NOFID, Qid, Reply, Request};
use rustc_hash::FxHashMap;
use rustix::net::{Shutdown, shutdown};

use super::durable::DurableWrites;
use super::files::{UpstreamFile, UpstreamFiles};
use super::peer::{UpstreamClient, UpstreamError, UpstreamFid, UpstreamOp};
use super::walks::WalkedFid;
use crate::session::lock;

/// One connection to the peer, and what is known over it.
#[derive(Debug)]
pub(super) struct UpstreamSession {
    pub(super) peer: Arc<UpstreamClient>,
    pub(super) walked: WalkedFid,
    pub(super) durable: DurableWrites,
    /// The peer knows neither Tunlinkat nor Trenameat.
    pub(super) names_by_fid: AtomicBool,
    /// The gateway's files, known after the first attach.
    known: Arc<OnceLock<UpstreamFiles>>,
    aname: String,
    /// Another one for each life.
    verifier: u64,
    jobs: AtomicU64,
    session: Mutex<GatewaySession>,
    identities: Mutex<Identities>,
    opened: Mutex<FxHashMap<u32, Arc<UpstreamOpened>>>,
}

/// The gateway's session: its name and its channels.
#[derive(Debug, Default)]
struct GatewaySession {
    id: Option<u128>,
    /// Channels that live, by number; one that has ended stays as `None`.
    channels: BTreeMap<u16, Option<OwnedFd>>,
}

#[derive(Debug, Default)]
struct Identities {
    by_number: FxHashMap<u32, UpstreamCaller>,
    /// By uid.
    roots: FxHashMap<u32, Arc<UpstreamFid>>,
}

/// A user, and the group of what it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpstreamCaller {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A file that the mount has open.
#[derive(Debug)]
pub(super) struct UpstreamOpened {
    pub(super) fid: UpstreamFid,
    pub(super) file: Arc<UpstreamFile>,
    pub(super) caller: UpstreamCaller,
    /// As they were last: servers that go by paths lose a file that is removed.
    pub(super) last_attributes: Mutex<Attributes>,
}

impl UpstreamSession {
    /// Makes the session of a connection without an attach.
    pub(super) fn new(
        peer: Arc<UpstreamClient>,
        known: Arc<OnceLock<UpstreamFiles>>,
        aname: &str,
        verifier: u64,
    ) -> UpstreamSession {
        let (names_by_fid, session, identities, opened) = Default::default();
        UpstreamSession {
            peer,
            walked: WalkedFid::new(),
            durable: DurableWrites::default(),
            names_by_fid,
            known,
            aname: aname.into(),
            verifier,
            jobs: AtomicU64::new(1),
            session,
            identities,
            opened,
        }
    }

    /// A channel is bound. Gives whether the session went on, and the root's handle.
    ///
    /// # Errors
    /// The server's error for the first attach; `EPERM` to another session, `ESTALE` if the server
    /// exports something else by now.
    pub(super) fn bind(
        &self,
        id: u128,
        channel: u16,
        socket: OwnedFd,
    ) -> Result<(bool, Vec<u8>), UpstreamError> {
        let mut session = lock(&self.session);
        if session.id.is_some_and(|is| is != id) {
            return Err(Errno::PERM.into());
        }
        if session.channels.contains_key(&channel) {
            self.peer.end();
            return Err(UpstreamError::Disconnected);
        }
        let resumed = session.id.is_some();
        if !resumed {
            let uid = rustix::process::geteuid().as_raw();
            let (held, qid) = self.attach(uid)?;
            if !self.known.get_or_init(|| UpstreamFiles::new(qid)).root().is(qid) {
                return Err(Errno::STALE.into());
            }
            lock(&self.identities).roots.insert(uid, Arc::new(held));
        }
        session.id = Some(id);
        session.channels.insert(channel, Some(socket));
        let root = self.files()?.root().handle.to_vec();
        Ok((resumed, root))
    }

    /// A channel has ended; with the last one the connection does. Before the first is bound
    /// the mount only tries what it can have.
    pub(super) fn unbind(&self, channel: Option<u16>) {
        let mut session = lock(&self.session);
        if let Some(bound) = channel.and_then(|number| session.channels.get_mut(&number)) {
            *bound = None;
        }
        if session.id.is_some() && session.channels.values().all(Option::is_none) {
            self.peer.end();
        }
    }

    /// The connection to the peer is gone: the mount learns it on every channel. False if it
    /// has none, and wants no connection.
    pub(super) fn end(&self) -> bool {
        let session = lock(&self.session);
        for socket in session.channels.values().flatten() {
            // One that is gone already is as good.
            let _ = shutdown(socket.as_fd(), Shutdown::Both);
        }
        session.channels.values().any(Option::is_some)
    }

    /// An identity may be used once the peer has taken its user.
    pub(super) fn identify(&self, number: u32, who: UpstreamCaller) -> Result<(), UpstreamError> {
        let known = lock(&self.identities).roots.contains_key(&who.uid);
        let root = match known {
            true => None,
            false => Some(Arc::new(self.attach(who.uid)?.0)),
        };
        let mut identities = lock(&self.identities);
        if identities.by_number.len() >= IDENTITIES_MAX {
            return Err(Errno::USERS.into());
        }
        identities.by_number.insert(number, who);
        if let Some(root) = root {
            // What another thread has put there is as good, and is dropped outside of the lock.
            let before = identities.roots.insert(who.uid, root);
            drop(identities);
            drop(before);
        }
        Ok(())
    }

    /// An identity is not used any more, nor its user if no other has it.
    pub(super) fn retire(&self, number: u32) {
        let mut identities = lock(&self.identities);
        let Some(who) = identities.by_number.remove(&number) else { return };
        if identities.by_number.values().any(|other| other.uid == who.uid) {
            return;
        }
        let root = identities.roots.remove(&who.uid);
        drop(identities);
        drop(root);
    }

    /// Returns the caller of an identity number.
    ///
    /// # Errors
    /// `EINVAL` if it is unknown.
    pub(super) fn caller(&self, number: u32) -> Result<UpstreamCaller, Errno> {
        lock(&self.identities).by_number.get(&number).copied().ok_or(Errno::INVAL)
    }

    /// The root as a user has it.
    pub(super) fn root_of(&self, uid: u32) -> Result<Arc<UpstreamFid>, UpstreamError> {
        if let Some(root) = lock(&self.identities).roots.get(&uid) {
            return Ok(root.clone());
        }
        // Retired, and an opener of a file goes on with it.
        Ok(Arc::new(self.attach(uid)?.0))
    }

    /// The files of the export.
    ///
    /// # Errors
    /// `EINVAL` before there was a session.
    pub(super) fn files(&self) -> Result<&UpstreamFiles, Errno> {
        self.known.get().ok_or(Errno::INVAL)
    }

    /// The mount has a file open from now on.
    ///
    /// # Errors
    /// `EBADF` if it has another by this fid.
    pub(super) fn open(&self, fid: Fid, opened: Arc<UpstreamOpened>) -> Result<(), Errno> {
        let mut all = lock(&self.opened);
        if all.contains_key(&fid.0) {
            return Err(Errno::BADF);
        }
        all.insert(fid.0, opened);
        Ok(())
    }

    pub(super) fn opened(&self, fid: Fid) -> Result<Arc<UpstreamOpened>, Errno> {
        lock(&self.opened).get(&fid.0).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn close(&self, fid: Fid) -> Result<Arc<UpstreamOpened>, Errno> {
        lock(&self.opened).remove(&fid.0).ok_or(Errno::BADF)
    }

    /// Returns the header of every reply.
    pub(super) fn header(&self) -> ReplyHeader {
        ReplyHeader {
            verifier: self.verifier,
            commit_watermark: self.durable.committed(),
            ..ReplyHeader::default()
        }
    }

    /// Makes an operation of its own.
    pub(super) fn job(&self) -> UpstreamOp {
        UpstreamOp::new(self.jobs.fetch_add(1, Ordering::Relaxed))
    }

    fn attach(&self, uid: u32) -> Result<(UpstreamFid, Qid), UpstreamError> {
        let attached = self.peer.make(|fid| {
            let aname = self.aname.as_bytes();
            let request = Request::Attach { fid, afid: NOFID, uname: b"", aname, n_uname: uid };
            self.peer.call(&UpstreamOp::steady(), request, |reply| match reply {
                Reply::Attach { qid } => Some(qid),
                _ => None,
            })
        });
        if let Err(UpstreamError::Errno(error)) = &attached {
            tracing::warn!(uid, aname = self.aname, %error, "the server refused a user");
        }
        attached
    }
}

/// Identities at a time: the mount keeps to fewer.
const IDENTITIES_MAX: usize = 1 << 16;
