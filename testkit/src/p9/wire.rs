//! Frames over one blocking socket: what every 9P client of tests and benches stands on.
//!
//! ```text
//!   P9Address ─► P9Wire ── send bytes ─►
//!                  ▲ receive ◄── one frame after the other; wait(tag) keeps the others until asked for
//! ```
//!
//! What the world can refuse is an error here; the clients of tests fail on it.

use std::collections::BTreeMap;
use std::fs::File as Stream;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use ninep::Tag;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Uid;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{AddressFamily, Shutdown, SocketType};

use crate::PATIENCE;

/// A way to a server.
#[derive(Clone, Debug)]
pub enum P9Address {
    /// To where it listens.
    Tcp(SocketAddr),
    /// From an address of this machine.
    From(Ipv4Addr, SocketAddr),
    /// To a Unix socket, as the user of this process.
    Unix(PathBuf),
    /// As a user; others than oneself need root.
    UnixAs(PathBuf, u32),
}

/// One whole message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Frame(pub Vec<u8>);

/// A connection, and the replies that came while others were waited for.
#[derive(Debug)]
pub struct P9Wire {
    socket: Stream,
    next: u16,
    early: BTreeMap<u16, P9Frame>,
}

impl P9Frame {
    /// The tag of the request that it answers.
    pub fn tag(&self) -> Tag {
        ninep::frame_tag(&self.0).unwrap()
    }
}

impl P9Address {
    /// A connection on which anything can be said.
    pub fn open_tcp(&self) -> io::Result<TcpStream> {
        self.open().map(TcpStream::from)
    }

    /// Connects; a socket that stays silent for [`PATIENCE`] is an error from then on.
    fn open(&self) -> io::Result<OwnedFd> {
        let socket: OwnedFd = match self {
            P9Address::Tcp(to) => TcpStream::connect(to)?.into(),
            P9Address::From(from, to) => {
                let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
                rustix::net::bind(&socket, &SocketAddr::from((*from, 0)))?;
                rustix::net::connect(&socket, to)?;
                socket
            }
            P9Address::Unix(path) => std::os::unix::net::UnixStream::connect(path)?.into(),
            P9Address::UnixAs(path, uid) => connect_as(path.clone(), *uid)?,
        };
        if matches!(self, P9Address::Tcp(_) | P9Address::From(..)) {
            set_tcp_nodelay(&socket, true)?;
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        Ok(socket)
    }
}

/// The kernel tells the server as whom a thread was acting when it connected.
fn connect_as(path: PathBuf, uid: u32) -> io::Result<OwnedFd> {
    let connect = move || {
        if !rustix::process::geteuid().is_root() || uid != 0 {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(None, Some(uid), None)?;
        }
        Ok(std::os::unix::net::UnixStream::connect(path)?.into())
    };
    std::thread::spawn(connect).join().expect("connecting does not panic")
}

impl P9Wire {
    /// A connection on which nothing is said yet.
    pub fn open(door: &P9Address) -> io::Result<P9Wire> {
        Ok(door.open()?.into())
    }

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// A tag that no request has had lately.
    pub fn tag(&mut self) -> Tag {
        self.next = (self.next + 1) % 0xfff0;
        Tag(self.next)
    }

    /// The next reply, whosever it is; `None` when the server has closed.
    pub fn receive(&mut self) -> io::Result<Option<P9Frame>> {
        let mut size = [0; 4];
        if let Err(error) = self.socket.read_exact(&mut size) {
            return match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    Ok(None)
                }
                _ => Err(error),
            };
        }
        let len = u32::from_le_bytes(size) as usize;
        if !(ninep::HEADER_LEN..=LONGEST).contains(&len) {
            let why = format!("a message of {len} bytes, where at most {LONGEST} were agreed");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        let mut bytes = size.to_vec();
        bytes.resize(len, 0);
        self.socket.read_exact(&mut bytes[4..])?;
        Ok(Some(P9Frame(bytes)))
    }

    /// The reply to the request of this tag; the end of the connection is an error.
    pub fn wait(&mut self, tag: Tag) -> io::Result<P9Frame> {
        loop {
            if let Some(frame) = self.take(tag) {
                return Ok(frame);
            }
            let frame = self.receive()?.ok_or(ErrorKind::UnexpectedEof)?;
            self.keep(frame);
        }
    }

    /// Keeps a reply until it is asked for.
    pub fn keep(&mut self, frame: P9Frame) {
        let twice = self.early.insert(frame.tag().0, frame);
        assert_eq!(twice, None, "one reply for each request");
    }

    /// The reply of this tag, if it was kept.
    pub fn take(&mut self, tag: Tag) -> Option<P9Frame> {
        self.early.remove(&tag.0)
    }

    /// Whether the reply of this tag has been read while another was waited for.
    pub fn came(&self, tag: Tag) -> bool {
        self.early.contains_key(&tag.0)
    }

    /// Whether a reply is there, or the end, or comes within `ms` milliseconds.
    pub fn readable(&self, ms: i64) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let time = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        poll(&mut fds, Some(&time)).unwrap() > 0
    }

    /// Ends the connection; what was not answered yet never will be over it.
    pub fn close(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.early.clear();
    }
}

impl AsFd for P9Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for P9Wire {
    /// Over a stream that is connected, as it is.
    fn from(socket: OwnedFd) -> P9Wire {
        P9Wire { socket: socket.into(), next: 0, early: BTreeMap::new() }
    }
}

impl From<P9Wire> for OwnedFd {
    /// The socket, for somebody who goes on with it; nothing may be outstanding.
    fn from(wire: P9Wire) -> OwnedFd {
        wire.socket.into()
    }
}

/// The longest message that any client here agrees on, and what a header adds to it.
const LONGEST: usize = (16 << 20) + 4096;
