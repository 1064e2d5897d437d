//! A gateway to servers that know only 9P2000.L, such as diod: to the session it is a proxy, to
//! the server a client.
//!
//! ```text
//!   session ═ the dialect, over sockets in this process ═► GatewayChannel ─► GatewayCall ─┐
//!                     one for each channel of the session                                 │ one or
//!                                                                                         ▼ several
//!   server ◄════════════ 9P2000.L, over one connection ═════════════════ UpstreamClient, by tag
//! ```
//!
//! Everything about such servers is in this folder: the rest of the mount does not know of
//! them. What a proxy does that they do not (groups, jobs, windows, appending and waiting for
//! locks at the server, replies that are remembered) is left out or made up for here, one
//! file for each part. docs/MOUNT.md says what programs notice of it.
//!
//! An [`UpstreamSession`] is one connection to the server. When it breaks, so do the channels of the
//! mount's session. That reconnects and learns that it is unknown, so it opens its files
//! again by handles. Handles stay valid, because the [`UpstreamFiles`] are kept here.

mod asked;
mod attributes;
mod channel;
mod data;
mod durable;
mod files;
mod life;
mod listing;
mod lru;
mod names;
mod peer;
mod walks;
mod xattr;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use ninep::MSIZE_MIN;
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::session::lock;
use files::UpstreamFiles;
use life::UpstreamSession;
use peer::UpstreamClient;

/// The way to a server of plain 9P2000.L; unused while the peer knows the dialect.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    files: Arc<OnceLock<UpstreamFiles>>,
    session: Mutex<Option<Arc<UpstreamSession>>>,
}

impl Gateway {
    /// One more channel, if there is a connection to a plain server. Its messages have at most
    /// `msize` bytes.
    pub(crate) fn channel(&self, msize: u32) -> io::Result<Option<OwnedFd>> {
        let life = lock(&self.session);
        match life.as_ref().filter(|life| life.peer.is_up()) {
            Some(life) => Ok(Some(serve(life, msize)?)),
            None => Ok(None),
        }
    }

    /// The first channel over a connection that has agreed on plain 9P2000.L and messages of
    /// `theirs` bytes. If another thread was faster with one, that is used.
    pub(crate) fn begin(
        &self,
        socket: OwnedFd,
        theirs: u32,
        export: &str,
        msize: u32,
    ) -> io::Result<OwnedFd> {
        let mut life = lock(&self.session);
        if let Some(life) = life.as_ref().filter(|life| life.peer.is_up()) {
            return serve(life, msize);
        }
        if theirs < MSIZE_MIN {
            let why = format!("it accepts messages of {theirs} bytes, not {MSIZE_MIN} or more");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        set_socket_timeout(&socket, Timeout::Send, None)?;
        set_keepalive(&socket);
        let slot: Arc<OnceLock<Weak<UpstreamSession>>> = Arc::default();
        let ends = slot.clone();
        let peer = UpstreamClient::begin(socket, theirs, move |why| {
            let life = ends.get().and_then(Weak::upgrade);
            match life.is_some_and(|life| life.end()) {
                true => tracing::warn!(%why, "lost the connection to the server"),
                false => tracing::debug!(%why, "closed the connection to the server"),
            }
        })?;
        let begun = Arc::new(UpstreamSession::new(peer, self.files.clone(), export, verifier()));
        slot.get_or_init(|| Arc::downgrade(&begun));
        *life = Some(begun.clone());
        serve(&begun, msize)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(life) = lock(&self.session).take() {
            life.peer.end();
        }
    }
}

/// A channel's own end of a new pair; the other one is served.
fn serve(life: &Arc<UpstreamSession>, msize: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, links) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    channel::serve(life.clone(), ours, msize)?;
    Ok(links)
}

/// Has the kernel find out that the server's machine is gone: plain 9P has no message that is
/// answered whatever else is in flight. A Unix socket needs none of it, and refuses.
fn set_keepalive(socket: &OwnedFd) {
    let watched = set_socket_keepalive(socket, true)
        .and_then(|()| set_tcp_keepidle(socket, KEEPALIVE_IDLE))
        .and_then(|()| set_tcp_keepintvl(socket, KEEPALIVE_IDLE))
        .and_then(|()| set_tcp_keepcnt(socket, PROBES))
        .and_then(|()| set_tcp_user_timeout(socket, USER_TIMEOUT_MS));
    if let Err(error) = watched {
        tracing::debug!(%error, "cannot enable TCP keepalive");
    }
}

/// Another number for each connection: what was not fsynced over the last one may be lost.
fn verifier() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// Time without a message after which the kernel asks for a sign of life,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// and number of unanswered probes after which the connection is over; as with a proxy, 15 s in
/// all.
const PROBES: u32 = 2;
const USER_TIMEOUT_MS: u32 = 15_000;

#[cfg(test)]
mod tests;
