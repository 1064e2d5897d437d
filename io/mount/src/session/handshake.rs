//! Beginning a connection, and asking over it before others may: one message after the other,
//! waiting for each answer.
//!
//! ```text
//!   connect ─► Tversion "9P2000.L.sluice.4" ─► Tproxies ─► Tsession id, channel ─► NegotiatedSession
//!                 │ the peer does not know it      ▲                                   │
//!                 ▼                                │                                   ▼
//!              Tversion "9P2000.L" ─► Gateway, which does          call_all: identities, files, locks
//! ```
//!
//! The dialect's special steps of beginning a session are all here.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fuse::Errno;
use ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, ReplyHeader, RequestHeader, VERSION, decode_reply,
    encode_request,
};
use ninep::{NOTAG, Reply, Request, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::call::{CallReply, answer_of, errno_of};
use super::mount_group::{GroupMember, GroupMismatch};
use super::socket::{Broken, SocketInbox, connect};
use crate::gateway::Gateway;
use crate::options::MountSource;

/// A connection on which one party waits for each answer.
#[derive(Debug)]
pub(crate) struct Handshake {
    socket: OwnedFd,
    inbox: SocketInbox,
    /// The largest message that was agreed on, in bytes.
    pub(crate) msize: u32,
    /// What the proxy says of its group.
    pub(super) group: Option<GroupMember>,
    /// Header of the last reply.
    pub(crate) header: ReplyHeader,
    /// The peer is a server of another kind, by way of the gateway.
    pub(super) is_gateway: bool,
}

/// Fields of the Rsession that the proxy replied.
#[derive(Clone, Debug)]
pub(crate) struct NegotiatedSession {
    pub(crate) slots: u16,
    pub(crate) resumed: bool,
    pub(crate) root: Vec<u8>,
}

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The proxy cannot be connected to.
    #[error("{0}")]
    Connect(std::io::Error),
    /// The connection broke during the handshake.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The peer does not know the dialect, and is not one that can be used without.
    #[error(
        "it speaks {version}, but {} is needed, or {} if it is the only source",
        VERSION.escape_ascii(),
        ninep::VERSION.escape_ascii()
    )]
    Plain { version: String },
    /// It takes smaller messages than were agreed on.
    #[error("it accepts messages of {msize} bytes, not the agreed {wanted}")]
    Smaller { msize: u32, wanted: u32 },
    /// It is not the proxy that the mount has at this source.
    #[error(transparent)]
    Group(#[from] GroupMismatch),
    /// Its export's root has another handle.
    #[error(
        "it exports a different directory than the other proxies, or signs handles with a \
         different key; give all proxies the same handle_key"
    )]
    OtherExport,
    /// The proxy refused the session.
    #[error("it refused the session: {0}")]
    Refused(Errno),
}

impl HandshakeError {
    /// Whether the machine refuses connections: then nothing is executed there any more.
    pub(super) fn is_dead(&self) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, HandshakeError::Connect(why)
            if matches!(why.kind(), ConnectionRefused | NotFound))
    }
}

impl Handshake {
    /// Connects, agrees on the dialect, with the peer or else with the gateway to it, and asks for the
    /// group of the proxy.
    pub(crate) fn begin(
        source: &MountSource,
        gateway: Option<&Gateway>,
        msize: u32,
    ) -> Result<Handshake, HandshakeError> {
        let mut talk = Handshake::agree(source, gateway, msize)?;
        talk.group = talk.proxies()?;
        Ok(talk)
    }

    fn agree(
        source: &MountSource,
        gateway: Option<&Gateway>,
        msize: u32,
    ) -> Result<Handshake, HandshakeError> {
        let channel = gateway.map_or(Ok(None), |gateway| gateway.channel(msize));
        if let Some(socket) = channel.map_err(HandshakeError::Connect)? {
            return Ok(Handshake { is_gateway: true, ..Handshake::over(socket, msize) });
        }
        let socket = connect(&source.address, PATIENCE).map_err(HandshakeError::Connect)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).map_err(Broken::from)?;
        let mut talk = Handshake::over(socket, msize);
        let agreed = match talk.offer(msize, VERSION)? {
            Ok(agreed) if agreed.1 == VERSION || agreed.1 == ninep::VERSION => agreed,
            // Some servers compare the whole string, and some of those call it an error.
            _ => talk.offer(msize, ninep::VERSION)?.map_err(HandshakeError::Refused)?,
        };
        match (agreed, gateway) {
            ((theirs, version), _) if version == VERSION => talk.msize = theirs.min(msize),
            ((theirs, version), Some(gateway)) if version == ninep::VERSION => {
                let (theirs, export) = (theirs.min(msize), &source.export);
                let socket = gateway.begin(talk.socket, theirs, export, msize);
                let socket = socket.map_err(HandshakeError::Connect)?;
                return Ok(Handshake { is_gateway: true, ..Handshake::over(socket, msize) });
            }
            ((_, version), _) => {
                let version = version.escape_ascii().to_string();
                return Err(HandshakeError::Plain { version });
            }
        }
        Ok(talk)
    }

    fn over(socket: OwnedFd, msize: u32) -> Handshake {
        let (inbox, header) = (SocketInbox::new(msize), ReplyHeader::default());
        Handshake { socket, inbox, msize, group: None, header, is_gateway: false }
    }

    /// Offers a protocol; gives the message size and the protocol that the peer answers.
    fn offer(
        &mut self,
        msize: u32,
        version: &[u8],
    ) -> Result<Result<(u32, Vec<u8>), Errno>, Broken> {
        let mut out = Vec::new();
        Request::Version { msize, version }.encode(NOTAG, &mut out);
        self.send(&out)?;
        let frame = self.frame(PATIENCE)?;
        match Reply::decode(frame).map_err(|error| Broken::Protocol(error.to_string()))?.1 {
            Reply::Version { msize, version } => Ok(Ok((msize, version.to_vec()))),
            Reply::Error { ecode } => Ok(Err(errno_of(ecode))),
            _ => Err(Broken::Protocol("unexpected reply to Tversion".into())),
        }
    }

    /// Asks for the group of the proxy.
    fn proxies(&mut self) -> Result<Option<GroupMember>, HandshakeError> {
        let ask = (RequestHeader::SESSION, ExtRequest::Proxies.into());
        let mut said = Err(HandshakeError::Refused(Errno::PROTO));
        self.call_all(&[ask], |_, answer| {
            said = match answer {
                Ok(AnyReply::Ext(ExtReply::Proxies(group))) => Ok(GroupMember::of(group)),
                Ok(_) => Err(Broken::Protocol("unexpected reply to Tproxies".into()).into()),
                Err(error) => Err(HandshakeError::Refused(error)),
            };
        })?;
        said
    }

    /// With a peer that has agreed already.
    #[cfg(test)]
    pub(crate) fn with(socket: OwnedFd) -> Handshake {
        Handshake::over(socket, 1 << 16)
    }

    /// Begins the session, or goes on with it. Waits for what an older connection of the
    /// channel has in flight.
    pub(crate) fn session(
        &mut self,
        id: u128,
        channel: u16,
        slots: u16,
        export: &str,
    ) -> Result<NegotiatedSession, HandshakeError> {
        let request = ExtRequest::Session { id, channel, slots, aname: export.as_bytes() };
        let mut terms = Err(HandshakeError::Refused(Errno::PROTO));
        let each = |_, answer: CallReply<'_>| {
            terms = match answer {
                Ok(AnyReply::Ext(ExtReply::Session { slots, resumed, keep: _, root })) => {
                    Ok(NegotiatedSession { slots, resumed: resumed != 0, root: root.to_vec() })
                }
                Ok(_) => Err(Broken::Protocol("unexpected reply to Tsession".into()).into()),
                Err(error) => Err(HandshakeError::Refused(error)),
            };
        };
        self.call_with_deadline(
            SESSION_PATIENCE,
            &[(RequestHeader::SESSION, request.into())],
            each,
        )?;
        terms
    }

    /// Shows the proxy that Rsession has arrived. Until then nothing may be called in the session: the
    /// proxy would begin it once more for the next connection.
    pub(crate) fn confirm(&mut self) -> Result<(), Broken> {
        let ping = (RequestHeader::SESSION, ExtRequest::Ping.into());
        let mut confirmed = false;
        self.call_all(&[ping], |_, answer| {
            confirmed = matches!(answer, Ok(AnyReply::Ext(ExtReply::Ping)));
        })?;
        match confirmed {
            true => Ok(()),
            false => Err(Broken::Protocol("unexpected reply to Tping".into())),
        }
    }

    /// Asks all of these, and gives each answer with its question's place in the list.
    pub(crate) fn call_all(
        &mut self,
        asks: &[(RequestHeader<'_>, AnyRequest<'_>)],
        each: impl FnMut(usize, CallReply<'_>),
    ) -> Result<(), Broken> {
        self.call_with_deadline(PATIENCE, asks, each)
    }

    /// Sends one encoded message, and passes its answer on.
    pub(crate) fn ask(
        &mut self,
        frame: &[u8],
        take: impl FnOnce(CallReply<'_>),
    ) -> Result<(), Broken> {
        self.send(frame)?;
        let frame = self.frame(PATIENCE)?;
        let (_, header, reply) =
            decode_reply(frame).map_err(|error| Broken::Protocol(error.to_string()))?;
        take(answer_of(reply));
        self.header = header;
        Ok(())
    }

    /// The connection, for others to use.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    fn call_with_deadline(
        &mut self,
        patience: Duration,
        asks: &[(RequestHeader<'_>, AnyRequest<'_>)],
        mut each: impl FnMut(usize, CallReply<'_>),
    ) -> Result<(), Broken> {
        for (number, asks) in asks.chunks(AT_ONCE).enumerate() {
            let mut out = Vec::new();
            for (tag, (header, request)) in (0..).zip(asks) {
                encode_request(Tag(tag), header, request, &mut out);
            }
            self.send(&out)?;
            for _ in asks {
                let frame = self.frame(patience)?;
                let (tag, header, reply) =
                    decode_reply(frame).map_err(|error| Broken::Protocol(error.to_string()))?;
                each(number * AT_ONCE + usize::from(tag.0), answer_of(reply));
                self.header = header;
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Broken::TimedOut(PATIENCE)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn frame(&mut self, patience: Duration) -> Result<&[u8], Broken> {
        let deadline = Instant::now() + patience;
        while !self.inbox.has_frame()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Broken::TimedOut(patience));
            }
            let left = Timespec::try_from(left).expect("seconds fit");
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => self.inbox.fill(self.socket.as_fd())?,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(self.inbox.next()?.expect("it is there"))
    }
}

/// How long one answer may take, and a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a session may take to begin: what the old connection has in flight ends first.
const SESSION_PATIENCE: Duration = Duration::from_secs(60);
/// Questions that are asked before the first answer is waited for.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_machine_that_refuses_connections_has_no_proxy_and_a_silent_one_may_have() {
        let kind = |kind| HandshakeError::Connect(Error::from(kind));
        assert!(kind(ErrorKind::ConnectionRefused).is_dead());
        assert!(kind(ErrorKind::NotFound).is_dead(), "a socket in a directory");
        assert!(!kind(ErrorKind::TimedOut).is_dead());
        assert!(!HandshakeError::Broken(Broken::Closed).is_dead());
    }
}
