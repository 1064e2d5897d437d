//! A mounted file system and the threads that serve it.
//!
//! ```text
//!   Session::mount ─► open, mount(2), FUSE_INIT ─► threads ─► Port ─► Server ─► FileSystem
//!   unmount, abort, umount(8), drop ─► the kernel says ENODEV ─► threads end ─► destroy
//! ```
//!
//! The kernel decides when a session is over: threads end when it says that the mount is
//! gone, whoever took it away.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno;

use crate::device::{Device, Inbox};
use crate::filesystem::FileSystem;
use crate::flags::Capabilities;
use crate::mount::{MountError, MountPoint};
use crate::negotiate::{Connection, negotiate};
use crate::notify::Notifier;
use crate::options::{MAX_WRITE, Options};
use crate::port::Port;
use crate::server::Server;

/// A mounted file system. Dropping it ends it, as [`Session::abort`] does.
#[derive(Debug)]
pub struct Session {
    point: MountPoint,
    connection: Connection,
    notifier: Notifier,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    /// Mounts a file system and begins to serve it. It can be used as soon as this returns.
    ///
    /// # Errors
    /// Says what was refused; then nothing is mounted.
    pub fn mount<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
    ) -> Result<Session, MountError> {
        Session::mount_threads(at, filesystem, options, |_, mut port| {
            let end = port.run();
            tracing::debug!(%end, "a reader of /dev/fuse ends");
        })
    }

    /// As [`Session::mount`], but each thread runs `serve` with its number and its [`Port`],
    /// and has other things to wait for besides. When `serve` returns the thread ends, and
    /// requests that its port still receives wait for ever: it returns after
    /// [`Port::serve`] failed, not before.
    ///
    /// # Errors
    /// As there.
    pub fn mount_with<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
        serve: impl Fn(usize, Port) + Send + Sync + 'static,
    ) -> Result<Session, MountError> {
        Session::mount_threads(at, filesystem, options, move |number, port| {
            match port.set_nonblocking() {
                Ok(()) => serve(number, port),
                Err(error) => tracing::error!(%error, "/dev/fuse insists on waiting"),
            }
        })
    }

    fn mount_threads<F: FileSystem>(
        at: &Path,
        filesystem: F,
        options: &Options,
        serve: impl Fn(usize, Port) + Send + Sync + 'static,
    ) -> Result<Session, MountError> {
        let device = Arc::new(Device::open(MAX_WRITE).map_err(MountError::Device)?);
        let point = MountPoint::mount(at, &device, options)?;
        match start(&point, device, filesystem, options, serve) {
            Ok((connection, notifier, threads)) => {
                Ok(Session { point, connection, notifier, threads })
            }
            Err(error) => {
                point.detach();
                Err(error)
            }
        }
    }

    /// What kernel and file system agreed on.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Tells the kernel what changed.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// The connection's number below /sys/fs/fuse/connections; also the minor number of the
    /// mount's device.
    pub fn number(&self) -> u32 {
        self.point.minor()
    }

    /// Unmounts it and waits until it is served no more.
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

    /// Ends it, in use or not: whoever waits for it gets `ECONNABORTED`, and files that are
    /// open give errors from now on. Waits for methods of the file system that run.
    pub fn abort(&mut self) {
        if !self.is_over() {
            self.point.detach();
        }
        self.join();
    }

    /// Waits until it is over, which others bring about (umount(8), [`Session::is_over`]).
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the session panicked");
            }
        }
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abort();
    }
}

type Started = (Connection, Notifier, Vec<JoinHandle<()>>);

fn start<F: FileSystem>(
    point: &MountPoint,
    device: Arc<Device>,
    filesystem: F,
    options: &Options,
    serve: impl Fn(usize, Port) + Send + Sync + 'static,
) -> Result<Started, MountError> {
    let mut inbox = Inbox::new(MAX_WRITE)?;
    let connection = negotiate(&device, &mut inbox, options)?;
    let notifier = Notifier::new(device.clone());
    filesystem.start(&connection, notifier.clone());
    let long = connection.capabilities.contains(Capabilities::SETXATTR_EXT);
    let server = Arc::new(Server::new(filesystem, long));
    let threads = serve_devices(server, device, options.threads, Arc::new(serve))?;
    point.set_readahead(connection.max_readahead);
    Ok((connection, notifier, threads))
}

/// Threads that read /dev/fuse, each a descriptor of its own.
fn serve_devices<F: FileSystem>(
    server: Arc<Server<F>>,
    first: Arc<Device>,
    count: usize,
    serve: Arc<impl Fn(usize, Port) + Send + Sync + 'static>,
) -> Result<Vec<JoinHandle<()>>, MountError> {
    let mut devices = vec![first];
    for _ in 1..count {
        let device = devices[0].another(MAX_WRITE).map_err(MountError::Device)?;
        devices.push(Arc::new(device));
    }
    let spawned = devices.into_iter().enumerate().map(|(number, device)| {
        let port = Port::new(server.clone(), device)?;
        let serve = serve.clone();
        thread(format!("fuse-{number}"), move || serve(number, port))
    });
    Ok(spawned.collect::<io::Result<_>>()?)
}

fn thread(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(run)
}
