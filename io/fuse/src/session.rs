//! A mounted file system and the threads that serve it.
//!
//! ```text
//!   FuseSession::mount ─► open, mount(2), FUSE_INIT ─► threads ─► RequestReceiver ─► FuseServer
//!   unmount, abort, umount(8), drop ─► the kernel says ENODEV ─► threads end ─► destroy
//! ```
//!
//! The kernel decides when a session is over: threads end when the kernel reports that the mount is
//! gone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use crate::device::{DeviceInbox, FuseDevice};
use crate::filesystem::FileSystem;
use crate::flags::Capabilities;
use crate::mount::{FuseMountError, MountPoint};
use crate::negotiate::{FuseConnection, negotiate};
use crate::notify::Notifier;
use crate::options::{MAX_WRITE, Options, Transport};
use crate::port::RequestReceiver;
use crate::server::FuseServer;
use crate::uring::{self, Ring};

/// A mounted file system. Dropping it ends it, as [`FuseSession::abort`] does.
#[derive(Debug)]
pub struct FuseSession {
    point: MountPoint,
    connection: FuseConnection,
    notifier: Notifier,
    threads: Vec<JoinHandle<()>>,
}

impl FuseSession {
    /// Mounts a file system and begins to serve it. It can be used as soon as this returns.
    ///
    /// # Errors
    /// Names what was refused; then nothing is mounted.
    pub fn mount<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
    ) -> Result<FuseSession, FuseMountError> {
        FuseSession::mount_threads(at, filesystem, options, |_, mut port| {
            let end = port.run();
            tracing::debug!(%end, "a reader of /dev/fuse stopped");
        })
    }

    /// As [`FuseSession::mount`], but each thread runs `serve` with its number and its [`RequestReceiver`],
    /// and has other things to wait for besides. When `serve` returns the thread ends, and
    /// requests that its receiver still receives wait for ever: it returns after
    /// [`RequestReceiver::serve`] failed, not before.
    ///
    /// # Errors
    /// As for [`FuseSession::mount`].
    pub fn mount_with<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
        serve: impl Fn(usize, RequestReceiver) + Send + Sync + 'static,
    ) -> Result<FuseSession, FuseMountError> {
        FuseSession::mount_threads(at, filesystem, options, move |number, port| {
            match port.set_nonblocking() {
                Ok(()) => serve(number, port),
                Err(error) => tracing::error!(%error, "cannot make /dev/fuse non-blocking"),
            }
        })
    }

    fn mount_threads<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
        serve: impl Fn(usize, RequestReceiver) + Send + Sync + 'static,
    ) -> Result<FuseSession, FuseMountError> {
        let device = Arc::new(FuseDevice::open(MAX_WRITE).map_err(FuseMountError::Device)?);
        let point = MountPoint::mount(at, &device, options)?;
        match start(&point, device, filesystem, options, serve) {
            Ok((connection, notifier, threads)) => {
                Ok(FuseSession { point, connection, notifier, threads })
            }
            Err(error) => {
                point.detach();
                Err(error)
            }
        }
    }

    /// Returns what kernel and file system negotiated.
    pub fn connection(&self) -> &FuseConnection {
        &self.connection
    }

    /// Returns the notifier, which reports changes to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// The connection's number below /sys/fs/fuse/connections; also the minor number of the
    /// mount's device.
    pub fn number(&self) -> u32 {
        self.point.minor()
    }

    /// Unmounts the file system and waits until all requests are served.
    ///
    /// # Errors
    /// `EBUSY` if it is in use; then it goes on. `EINVAL` if it is no longer mounted.
    pub fn unmount(&mut self) -> Result<(), Errno> {
        if !self.is_over() {
            self.point.unmount()?;
        }
        self.join();
        Ok(())
    }

    /// Ends the session even if it is in use. Waiting processes get `ECONNABORTED`, and open files
    /// give errors from now on. Waits for methods of the file system that run.
    pub fn abort(&mut self) {
        if !self.is_over() {
            self.point.detach();
        }
        self.join();
    }

    /// Waits until the session is over, by umount(8); see [`FuseSession::is_over`].
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a FUSE thread panicked");
            }
        }
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for FuseSession {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Transport {
    /// Returns this transport, or the device if this process may not make rings: negotiated and
    /// missing, they would leave all callers waiting for them.
    fn here(self) -> Transport {
        if self == Transport::Ring
            && let Err(error) = uring::can_be_made()
        {
            tracing::info!(%error, "io_uring is not available; using /dev/fuse");
            return Transport::Device;
        }
        self
    }
}

type Started = (FuseConnection, Notifier, Vec<JoinHandle<()>>);

fn start<F: FileSystem>(
    point: &MountPoint,
    device: Arc<FuseDevice>,
    filesystem: F,
    options: &Options,
    serve: impl Fn(usize, RequestReceiver) + Send + Sync + 'static,
) -> Result<Started, FuseMountError> {
    let mut inbox = DeviceInbox::new(MAX_WRITE)?;
    let transport = options.transport.here();
    let connection = negotiate(&device, &mut inbox, &Options { transport, ..options.clone() })?;
    let notifier = Notifier::new(device.clone());
    filesystem.start(&connection, notifier.clone());
    let long = connection.capabilities.contains(Capabilities::SETXATTR_EXT);
    let server = Arc::new(FuseServer::new(filesystem, long));
    let serve = Arc::new(serve);
    let threads = match connection.transport {
        Transport::Device => serve_devices(server, device, options.threads, serve)?,
        Transport::Ring => serve_rings(server, device, &connection, options.ring_depth, serve)?,
    };
    point.set_readahead(connection.max_readahead);
    Ok((connection, notifier, threads))
}

/// Threads that read /dev/fuse, each a descriptor of its own.
fn serve_devices<F: FileSystem>(
    server: Arc<FuseServer<F>>,
    first: Arc<FuseDevice>,
    count: usize,
    serve: Arc<impl Fn(usize, RequestReceiver) + Send + Sync + 'static>,
) -> Result<Vec<JoinHandle<()>>, FuseMountError> {
    let mut devices = vec![first];
    for _ in 1..count {
        let device = devices[0].another(MAX_WRITE).map_err(FuseMountError::Device)?;
        devices.push(Arc::new(device));
    }
    let spawned = devices.into_iter().enumerate().map(|(number, device)| {
        let port = RequestReceiver::new(server.clone(), device)?;
        let serve = serve.clone();
        thread(format!("fuse-{number}"), move || serve(number, port))
    });
    Ok(spawned.collect::<io::Result<_>>()?)
}

/// A thread for each of the kernel's queues, which are one for each processor; those of
/// processors that are not there share the last thread. One more reads what does not come
/// that way from /dev/fuse.
fn serve_rings<F: FileSystem>(
    server: Arc<FuseServer<F>>,
    device: Arc<FuseDevice>,
    connection: &FuseConnection,
    depth: u16,
    serve: Arc<impl Fn(usize, RequestReceiver) + Send + Sync + 'static>,
) -> Result<Vec<JoinHandle<()>>, FuseMountError> {
    let queues = uring::queues()?;
    let there = std::thread::available_parallelism()?.get().min(queues.into()) as u16;
    let payload = connection.max_write.max(RING_PAYLOAD_MIN) as usize;
    let (tell, told) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for first in 0..there {
        let last = if first + 1 == there { queues } else { first + 1 };
        let (server, device, serve) = (server.clone(), device.clone(), serve.clone());
        let tell = tell.clone();
        threads.push(thread(format!("fuse-ring-{first}"), move || {
            let queues: Vec<_> = (first..last).collect();
            // The queue's requests come from its processor; where that is not allowed to us,
            // they come all the same.
            uring::pin_to(first);
            let ring = Ring::new(device, &queues, depth.max(1), payload)
                .and_then(|mut ring| ring.register_all().map(|()| ring).map_err(Into::into));
            let ring = match ring {
                Ok(ring) => ring,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // Nobody hears it once another thread's ring has failed.
            let _ = tell.send(Ok(()));
            drop(tell);
            serve(first.into(), RequestReceiver::of_ring(server, ring));
        })?);
    }
    drop(tell);
    told.into_iter().collect::<io::Result<()>>()?;
    let over = Arc::new((Mutex::new(false), Condvar::new()));
    let ended = over.clone();
    let mut beside = RequestReceiver::new(server.clone(), device)?;
    threads.push(thread("fuse-beside".into(), move || {
        let end = beside.run();
        tracing::debug!(%end, "the reader of /dev/fuse stopped");
        *ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.1.notify_all();
    })?);
    threads.push(thread("fuse-signals".into(), move || {
        let mut is_over = over.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_over {
            let waited = over.1.wait_timeout(is_over, SIGNALS_EVERY);
            is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
            server.find_interrupts();
        }
    })?);
    Ok(threads)
}

/// How often processes that are killed are looked for: twice as long, and they end.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// The kernel wants room for this much in every entry, however small writes are.
const RING_PAYLOAD_MIN: u32 = 8192;

fn thread(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let whole = move || {
        // What a file system's method panics with is caught before: without one of its threads a
        // mount may hang for ever, and a process that is gone is an error at once.
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            std::process::abort();
        }
    };
    std::thread::Builder::new().name(name).spawn(whole)
}
