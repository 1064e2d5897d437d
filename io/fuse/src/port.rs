//! One thread's end of a mounted file system.
//!
//! ```text
//!   epoll ─► the port's descriptor is readable ─► serve ─► Server ─► FileSystem's method
//!     ▲                                             │
//!     └── whatever else the thread waits for ◄──────┘ nothing more there, or enough
//! ```
//!
//! A request is served on the thread that has the port, and its answer goes out by the same
//! descriptor, from whatever thread. Over io_uring the descriptor is the ring's.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::InHeader;
use crate::device::{Device, Inbox};
use crate::fields::Take;
use crate::filesystem::FileSystem;
use crate::options::MAX_WRITE;
use crate::reply::Way;
use crate::server::Server;
use crate::uring::Ring;

/// Where one thread receives requests. Its descriptor is readable when one is there; add it
/// to an epoll set with `EPOLLEXCLUSIVE`, or every request wakes every thread. Over a ring
/// waiting may end with `EINTR`, after which the descriptor is readable.
pub struct Port {
    server: Arc<dyn Serve>,
    from: From,
}

/// What requests come by.
enum From {
    Device(Arc<Device>, Inbox),
    Ring(Box<Ring>),
}

impl Port {
    pub(crate) fn new(server: Arc<dyn Serve>, device: Arc<Device>) -> io::Result<Port> {
        Ok(Port { server, from: From::Device(device, Inbox::new(MAX_WRITE)?) })
    }

    /// For the thread that made the ring only.
    pub(crate) fn of_ring(server: Arc<dyn Serve>, ring: Ring) -> Port {
        Port { server, from: From::Ring(Box::new(ring)) }
    }

    /// Serves the requests that are there, about `max` of them at most, and waits for none.
    /// Says how many it were; fewer than `max` mean that no more are there.
    ///
    /// # Errors
    /// `ENODEV` when the mount is gone, `ECONNABORTED` or `ENOTCONN` if the connection was
    /// ended.
    pub fn serve(&mut self, max: usize) -> Result<usize, Errno> {
        match &mut self.from {
            From::Device(device, inbox) => {
                for served in 0..max {
                    match device.try_receive(inbox)? {
                        Some(request) => self.server.serve_bytes(request, device),
                        None => return Ok(served),
                    }
                }
                Ok(max)
            }
            From::Ring(ring) => {
                let served = ring.serve_ready(&*self.server)?;
                ring.flush(false)?;
                Ok(served)
            }
        }
    }

    /// Sends the answers that this thread has given since it last served. Over a ring they
    /// wait for this or for the next [`Port::serve`]; those of other threads do not.
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> Result<(), Errno> {
        match &mut self.from {
            From::Device(..) => Ok(()),
            From::Ring(ring) => ring.flush(false),
        }
    }

    /// Serves until the connection ends.
    pub(crate) fn run(&mut self) -> Errno {
        loop {
            let served = match &mut self.from {
                From::Device(device, inbox) => {
                    device.receive(inbox).map(|request| self.server.serve_bytes(request, device))
                }
                From::Ring(ring) => {
                    ring.flush(true).and_then(|()| ring.serve_ready(&*self.server).map(drop))
                }
            };
            if let Err(end) = served {
                return end;
            }
        }
    }

    pub(crate) fn set_nonblocking(&self) -> Result<(), Errno> {
        match &self.from {
            From::Device(device, _) => device.set_nonblocking(),
            From::Ring(_) => Ok(()),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.from {
            From::Device(device, _) => device.as_fd(),
            From::Ring(ring) => ring.as_fd(),
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}

/// A [`Server`] whose file system need not be named.
pub(crate) trait Serve: Send + Sync {
    /// A request as it was read from /dev/fuse.
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<Device>);

    /// One that came otherwise, in its parts.
    fn serve_request(&self, header: &InHeader, from: Take<'_, '_>, way: Way, device: &Device);

    /// Bytes of fixed fields that the header's opcode has.
    fn fixed_len(&self, header: &InHeader) -> usize;
}

impl<F: FileSystem> Serve for Server<F> {
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<Device>) {
        Server::serve_bytes(self, bytes, device);
    }

    fn serve_request(&self, header: &InHeader, from: Take<'_, '_>, way: Way, device: &Device) {
        self.serve(header, from, way, device);
    }

    fn fixed_len(&self, header: &InHeader) -> usize {
        Server::fixed_len(self, header)
    }
}
