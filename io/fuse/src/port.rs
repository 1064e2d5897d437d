//! One thread's end of a mounted file system.
//!
//! ```text
//!   epoll ─► the port's descriptor is readable ─► serve ─► Server ─► FileSystem's method
//!     ▲                                             │
//!     └── whatever else the thread waits for ◄──────┘ nothing more there, or enough
//! ```
//!
//! A request is served on the thread that has the port, and its answer goes out by the same
//! descriptor, from whatever thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::device::{Device, Inbox};
use crate::filesystem::FileSystem;
use crate::options::MAX_WRITE;
use crate::server::Server;

/// Where one thread receives requests. Its descriptor is readable when one is there; add it
/// to an epoll set with `EPOLLEXCLUSIVE`, or every request wakes every thread.
pub struct Port {
    server: Arc<dyn Serve>,
    device: Arc<Device>,
    inbox: Inbox,
}

impl Port {
    pub(crate) fn new(server: Arc<dyn Serve>, device: Arc<Device>) -> io::Result<Port> {
        Ok(Port { server, device, inbox: Inbox::new(MAX_WRITE)? })
    }

    /// Serves the requests that are there, `max` of them at most, and waits for none. Says how
    /// many it were; fewer than `max` mean that no more are there.
    ///
    /// # Errors
    /// `ENODEV` when the mount is gone, `ECONNABORTED` if the connection was ended.
    pub fn serve(&mut self, max: usize) -> Result<usize, Errno> {
        for served in 0..max {
            match self.device.try_receive(&mut self.inbox)? {
                Some(request) => self.server.serve_bytes(request, &self.device),
                None => return Ok(served),
            }
        }
        Ok(max)
    }

    /// Serves until the connection ends.
    pub(crate) fn run(&mut self) -> Errno {
        loop {
            match self.device.receive(&mut self.inbox) {
                Ok(request) => self.server.serve_bytes(request, &self.device),
                Err(end) => return end,
            }
        }
    }

    pub(crate) fn set_nonblocking(&self) -> Result<(), Errno> {
        self.device.set_nonblocking()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A [`Server`] whose file system need not be named.
pub(crate) trait Serve: Send + Sync {
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<Device>);
}

impl<F: FileSystem> Serve for Server<F> {
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<Device>) {
        Server::serve_bytes(self, bytes, device);
    }
}
