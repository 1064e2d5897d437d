//! Bytes to and from the proxy: frames go out many in one call, and come in as they come.
//!
//! ```text
//!   frame ─► small: copied behind the last ─┐
//!         ─► large: as it is ───────────────┴─► SocketOutbox ─ one sendmsg ─► socket
//!   socket ─ one recv ─► SocketInbox ─► frame, frame, half a frame: kept
//! ```

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fuse::Errno;
use http::ServerAddress;
use ninep::{HEADER_LEN, frame_len};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use session::client::ChannelError;

use super::call::CallFrame;

/// Why a connection can no longer be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The proxy closed it.
    #[error("the proxy closed the connection")]
    Closed,
    /// The system says so.
    #[error("{0}")]
    System(#[from] Errno),
    /// The received bytes are not the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The session's messages are not the protocol, or none came for too long.
    #[error(transparent)]
    Session(#[from] ChannelError),
    /// Nothing came for too long.
    #[error("received nothing from the proxy for {0:?}")]
    TimedOut(Duration),
}

/// Connects, and waits for it `patience` at most.
pub(crate) fn connect(address: &ServerAddress, patience: Duration) -> std::io::Result<OwnedFd> {
    match address {
        ServerAddress::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, patience)?;
            stream.set_nodelay(true)?;
            Ok(stream.into())
        }
        ServerAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            let checked = http::check_listener(&stream, path);
            checked.map_err(|why| Error::new(ErrorKind::PermissionDenied, why))?;
            Ok(stream.into())
        }
    }
}

/// Bytes that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct SocketOutbox {
    pieces: VecDeque<OutboxPiece>,
    /// Bytes of the first piece that are gone.
    sent: usize,
}

#[derive(Debug)]
enum OutboxPiece {
    Small(Vec<u8>),
    Large(CallFrame),
}

impl SocketOutbox {
    pub(crate) fn push(&mut self, frame: &CallFrame) {
        if frame.bytes().len() > SMALL_MAX {
            return self.pieces.push_back(OutboxPiece::Large(frame.clone()));
        }
        match self.pieces.back_mut() {
            Some(OutboxPiece::Small(last)) if last.len() + frame.bytes().len() <= PIECE_MAX => {
                last.extend_from_slice(frame.bytes());
            }
            _ => {
                let mut piece = Vec::with_capacity(SMALL_MAX);
                piece.extend_from_slice(frame.bytes());
                self.pieces.push_back(OutboxPiece::Small(piece));
            }
        }
    }

    /// Sends as much as the socket takes now. True when nothing is left.
    pub(crate) fn send(&mut self, to: BorrowedFd<'_>) -> Result<bool, Errno> {
        while !self.pieces.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS_MAX];
            let count = self.pieces.len().min(PARTS_MAX);
            for (part, piece) in parts.iter_mut().zip(&self.pieces) {
                *part = IoSlice::new(piece.bytes());
            }
            parts[0] = IoSlice::new(&self.pieces[0].bytes()[self.sent..]);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let mut none = SendAncillaryBuffer::default();
            match sendmsg(to, &parts[..count], &mut none, flags) {
                Ok(sent) => self.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.sent = 0;
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(first) = self.pieces.front() {
            let left = first.bytes().len() - self.sent;
            if bytes < left {
                self.sent += bytes;
                return;
            }
            bytes -= left;
            self.sent = 0;
            self.pieces.pop_front();
        }
    }
}

impl OutboxPiece {
    fn bytes(&self) -> &[u8] {
        match self {
            OutboxPiece::Small(bytes) => bytes,
            OutboxPiece::Large(frame) => frame.bytes(),
        }
    }
}

/// Received bytes that were not decoded.
#[derive(Debug)]
pub(crate) struct SocketInbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    msize: usize,
}

impl SocketInbox {
    /// Room for messages of up to `msize` bytes.
    pub(crate) fn new(msize: u32) -> SocketInbox {
        let msize = msize as usize;
        SocketInbox { buffer: vec![0; msize + READ_MIN], start: 0, end: 0, msize }
    }

    /// Takes what is there, and waits for nothing. False if more may be there.
    pub(crate) fn fill(&mut self, from: BorrowedFd<'_>) -> Result<bool, Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < self.read_size() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        let len = room.len();
        loop {
            match recv(from, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((count, _)) => {
                    self.end += count;
                    return Ok(count < len);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Broken> {
        if !self.has_frame()? {
            return Ok(None);
        }
        let len = frame_len(&self.buffer[self.start..]).expect("has_frame was true") as usize;
        self.start += len;
        Ok(Some(&self.buffer[self.start - len..self.start]))
    }

    /// Whether a whole frame is here.
    pub(crate) fn has_frame(&self) -> Result<bool, Broken> {
        let here = &self.buffer[self.start..self.end];
        let Some(len) = frame_len(here) else { return Ok(false) };
        let len = len as usize;
        if !(HEADER_LEN..=self.msize).contains(&len) {
            return Err(Broken::Protocol(format!("received a message of {len} bytes")));
        }
        Ok(here.len() >= len)
    }

    /// Bytes that the frame which has begun to come needs, and a reading that is worth it.
    fn read_size(&self) -> usize {
        let frame = frame_len(&self.buffer[self.start..self.end]).unwrap_or(0) as usize;
        frame.clamp(READ_MIN, self.msize)
    }
}

/// Larger frames are not copied.
const SMALL_MAX: usize = 16 << 10;
/// Bytes of small frames that are kept together.
const PIECE_MAX: usize = 64 << 10;
/// Pieces in one system call.
const PARTS_MAX: usize = 16;
/// Room that reading needs at least.
const READ_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use ninep::dialect::{ExtRequest, HandleList};
    use ninep::{Fid, Request};
    use std::io::Read;
    use std::os::fd::AsFd;

    fn write(len: usize, fill: u8) -> CallFrame {
        let data = vec![fill; len];
        let request = ExtRequest::Write { fid: Fid(1), offset: 0, flags: 0, data: &data };
        CallFrame::new(HandleList::NONE, request)
    }

    #[test]
    fn frames_of_all_sizes_arrive_in_order_through_a_socket_that_takes_little() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sizes = [0, 10, 20_000, 5, 1 << 20, 16_000, 16_000, 16_000, 16_000, 16_000, 300_000];
        let (mut out, mut expected) = (SocketOutbox::default(), Vec::new());
        for (fill, size) in (0..).zip(sizes) {
            let frame = write(size, fill);
            expected.extend_from_slice(frame.bytes());
            out.push(&frame);
        }
        let total = expected.len();
        let reader = std::thread::spawn(move || {
            let mut inbox = SocketInbox::new((1 << 20) + 4096);
            let mut got = Vec::new();
            while got.len() < total {
                inbox.fill(theirs.as_fd()).unwrap();
                while let Some(frame) = inbox.next().unwrap() {
                    got.extend_from_slice(frame);
                }
            }
            got
        });
        while !out.send(ours.as_fd()).unwrap() {
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap() == expected);
    }

    #[test]
    fn a_size_that_nobody_agreed_on_breaks_the_connection() {
        for size in [6u32, 4097] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut inbox = SocketInbox::new(4096);
            rustix::io::write(&theirs, &size.to_le_bytes()).unwrap();
            inbox.fill(ours.as_fd()).unwrap();
            assert!(matches!(inbox.next(), Err(Broken::Protocol(_))));
        }
    }

    #[test]
    fn a_closed_connection_is_told_after_what_came_before() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut inbox = SocketInbox::new(4096);
        let frame = CallFrame::new(HandleList::NONE, Request::Flush { oldtag: ninep::Tag(1) });
        rustix::io::write(&theirs, frame.bytes()).unwrap();
        drop(theirs);
        assert!(inbox.fill(ours.as_fd()).unwrap(), "less came than there was room for");
        assert_eq!(inbox.next().unwrap(), Some(frame.bytes()));
        assert!(matches!(inbox.fill(ours.as_fd()), Err(Broken::Closed)));
        let mut nothing = [0];
        assert_eq!((&ours).read(&mut nothing).unwrap(), 0);
    }
}
