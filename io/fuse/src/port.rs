//! One thread's end of a mounted file system.
//!
//! ```text
//!   epoll ─► the receiver's descriptor is readable ─► serve ─► FuseServer ─► FileSystem's method
//!     ▲                                             │
//!     └── whatever else the thread waits for ◄──────┘ nothing more there, or enough
//! ```
//!
//! A request is served on the thread that has the receiver, and its answer goes out by the same
//! descriptor, from whatever thread. Over io_uring the descriptor is the ring's.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::InHeader;
use crate::device::{DeviceInbox, FuseDevice};
use crate::fields::FieldReader;
use crate::filesystem::FileSystem;
use crate::options::MAX_WRITE;
use crate::reply::ReplySink;
use crate::server::FuseServer;
use crate::uring::Ring;

/// Where one thread receives requests. Its descriptor is readable when one is there; add it
/// to an epoll set with `EPOLLEXCLUSIVE`, or every request wakes every thread. Over a ring
/// waiting may end with `EINTR`, after which the descriptor is readable.
pub struct RequestReceiver {
    server: Arc<dyn Serve>,
    from: From,
}

/// Source of requests.
enum From {
    Device(Arc<FuseDevice>, DeviceInbox),
    Ring(Box<Ring>),
}

impl RequestReceiver {
    pub(crate) fn new(
        server: Arc<dyn Serve>,
        device: Arc<FuseDevice>,
    ) -> io::Result<RequestReceiver> {
        Ok(RequestReceiver { server, from: From::Device(device, DeviceInbox::new(MAX_WRITE)?) })
    }

    /// For the thread that made the ring only.
    pub(crate) fn of_ring(server: Arc<dyn Serve>, ring: Ring) -> RequestReceiver {
        RequestReceiver { server, from: From::Ring(Box::new(ring)) }
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
    /// wait for this or for the next [`RequestReceiver::serve`]; those of other threads do not.
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

impl AsFd for RequestReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.from {
            From::Device(device, _) => device.as_fd(),
            From::Ring(ring) => ring.as_fd(),
        }
    }
}

impl fmt::Debug for RequestReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}

/// A [`FuseServer`] whose file system need not be named.
pub(crate) trait Serve: Send + Sync {
    /// A request as it was read from /dev/fuse.
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<FuseDevice>);

    /// One that came otherwise, in its parts.
    fn serve_request(
        &self,
        header: &InHeader,
        from: FieldReader<'_, '_>,
        way: ReplySink,
        device: &FuseDevice,
    );

    /// Bytes of fixed fields that the header's opcode has.
    fn fixed_len(&self, header: &InHeader) -> usize;
}

impl<F: FileSystem> Serve for FuseServer<F> {
    fn serve_bytes(&self, bytes: &[u8], device: &Arc<FuseDevice>) {
        FuseServer::serve_bytes(self, bytes, device);
    }

    fn serve_request(
        &self,
        header: &InHeader,
        from: FieldReader<'_, '_>,
        way: ReplySink,
        device: &FuseDevice,
    ) {
        self.serve(header, from, way, device);
    }

    fn fixed_len(&self, header: &InHeader) -> usize {
        FuseServer::fixed_len(self, header)
    }
}
