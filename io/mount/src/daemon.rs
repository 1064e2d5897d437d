//! The life of a mount: connecting, mounting, serving and unmounting.
//!
//! ```text
//!   start: connect all channels ─► mount(2) ─► threads, each with its receiver and its channel
//!   unmount, umount(8) ─► the kernel says that it is gone ─► threads end
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use fuse::{Capabilities, FuseSession, MountFlags, Options, Transport};
use http::{MetricsAddress, MetricsError, MetricsServer, ServerAddress};
use model::{BusyPoll, Nanos};

use crate::filesystem::{MountFs, MountFsState};
use crate::helpers;
use crate::jobs::JobResolver;
use crate::metrics::MountMetrics;
use crate::nodes::Nodes;
use crate::notices::Notices;
use crate::operations::control_files::ControlFiles;
use crate::options::{MountSettings, MountSource, nanos};
use crate::retries::StaleRetries;
use crate::session::{self, ConnectedRouter, GroupError, HomeRouter, RouterError, RouterSettings};

/// A mounted export. Dropping it unmounts it, in use or not.
#[derive(Debug)]
pub struct MountDaemon {
    session: FuseSession,
    metrics: Option<MetricsServer>,
}

/// Reason why an export could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The settings name no proxy.
    #[error("no source is given; add tcp://HOST:PORT/NAME")]
    NoSource,
    /// The proxy is not present, speaks another protocol or has no such export.
    #[error("cannot use {export} of the proxy at {address}: {why}")]
    Proxy {
        /// The address of the proxy.
        address: ServerAddress,
        /// The name of the export.
        export: String,
        /// The error of the connection, as text.
        why: String,
    },
    /// The sources are not different proxies of one group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The sources of jobs of processes cannot be read.
    #[error("cannot identify the jobs of processes: {0}")]
    Jobs(#[source] io::Error),
    /// Random bytes for the session's name cannot be read.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
    /// Its metrics cannot be exported.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The kernel refused the mount.
    #[error(transparent)]
    Kernel(#[from] fuse::FuseMountError),
    /// The export cannot be unmounted.
    #[error("cannot unmount: {0}")]
    Unmount(fuse::Errno),
}

impl MountDaemon {
    /// Connects to the proxy and mounts its export. The mount is ready when this returns.
    ///
    /// # Errors
    /// Names what was refused; then nothing is mounted.
    pub fn start(settings: &MountSettings) -> Result<MountDaemon, MountError> {
        if settings.sources.is_empty() {
            return Err(MountError::NoSource);
        }
        helpers::note_processors();
        let jobs = JobResolver::new(&settings.jobs).map_err(MountError::Jobs)?;
        let threads = match settings.uring {
            true => processors(),
            false => settings.threads.unwrap_or_else(|| processors().min(THREADS_DEFAULT)),
        };
        let id = u128::from_ne_bytes(random().map_err(MountError::Random)?);
        let begin = RouterSettings {
            sources: &settings.sources,
            threads,
            soft: settings.soft,
            replay_buffer: settings.replay_buffer.get(),
            id,
            client: client_name(id),
            leases: Some(nanos(settings.attr_timeout))
                .filter(|time| settings.leases && *time > Nanos::ZERO),
        };
        let ConnectedRouter { homes, root, payload } = HomeRouter::begin(begin).map_err(refused)?;
        let export = MountFs::new(MountFsState {
            homes: homes.clone(),
            nodes: Nodes::new(&root, settings.attr_timeout),
            jobs,
            believed: settings.attr_timeout,
            payload,
            notifier: OnceLock::new(),
            notices: Notices::new(),
            name_notices: Notices::new(),
            retries: StaleRetries::default(),
            root_attributes: Mutex::default(),
            control_files: ControlFiles::default(),
        });
        export.rewrite_lost_writes();
        export.hold_leases();
        homes.start_fail_back_thread();
        let metrics = match show_metrics(settings, &export) {
            Ok(metrics) => metrics,
            Err(error) => {
                homes.end();
                return Err(error.into());
            }
        };
        let options = options(settings, threads, payload);
        let serving = homes.clone();
        let busy_poll = BusyPoll::new(nanos(settings.busy_poll));
        let serve = move |number, port| session::run(&serving, number, port, busy_poll);
        match mount(&settings.at, export, &options, serve) {
            Ok(session) => {
                if settings.uring && session.connection().transport != Transport::Ring {
                    tracing::warn!(
                        "the kernel does not offer FUSE over io_uring; set {URING_SWITCH} to Y"
                    );
                }
                Ok(MountDaemon { session, metrics })
            }
            Err(error) => {
                homes.end();
                Err(error.into())
            }
        }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.session.path()
    }

    /// Returns the address of its metrics, with the port that the system chose.
    pub fn metrics(&self) -> Option<&MetricsAddress> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// Waits until the mount is gone, which umount(8) causes; see [`MountDaemon::is_over`].
    pub fn join(mut self) {
        self.session.join();
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        self.session.is_over()
    }

    /// Unmounts the export and waits until everything is sent.
    ///
    /// # Errors
    /// `EBUSY` if it is in use; then it stays mounted.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        self.session.unmount().map_err(MountError::Unmount)
    }
}

fn show_metrics(
    settings: &MountSettings,
    export: &MountFs,
) -> Result<Option<MetricsServer>, MetricsError> {
    let Some(at) = &settings.metrics else { return Ok(None) };
    let metrics = MountMetrics::of(export.downgrade(), settings);
    MetricsServer::start(at, move || metrics.page()).map(Some)
}

fn mount(
    at: &Path,
    export: MountFs,
    options: &Options,
    serve: impl Fn(usize, fuse::RequestReceiver) + Send + Sync + 'static,
) -> Result<FuseSession, fuse::FuseMountError> {
    FuseSession::mount_with(at, export, options, serve)
}

fn options(settings: &MountSettings, threads: usize, payload: u32) -> Options {
    let mut flags = settings.flags;
    if settings.read_only {
        flags |= MountFlags::RDONLY;
    }
    Options {
        source: settings.source.clone(),
        flags,
        allow_other: settings.allow_other,
        // Modes are checked here without asking, and access is the proxy's to give at open.
        default_permissions: true,
        capabilities: Capabilities::DEFAULT
            | Capabilities::POSIX_LOCKS
            | Capabilities::FLOCK_LOCKS
            | Capabilities::READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::POSIX_ACL
            | Capabilities::DONT_MASK
            | Capabilities::HANDLE_KILLPRIV_V2
            | Capabilities::DIRECT_IO_ALLOW_MMAP,
        max_write: payload,
        max_readahead: payload,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX,
        threads,
        transport: if settings.uring { Transport::Ring } else { Transport::Device },
        ring_depth: RING_DEPTH,
        ..Options::default()
    }
}

fn refused(error: RouterError) -> MountError {
    match error {
        RouterError::Group(error) => error.into(),
        RouterError::Source(source, why) => {
            let MountSource { address, export } = *source;
            MountError::Proxy { address, export, why: why.to_string() }
        }
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// Default number of threads: more do not increase throughput.
const THREADS_DEFAULT: usize = 4;
/// Reads ahead and the like that the kernel has open at once, of all jobs together. Those of
/// throttled jobs wait here for hours, so there is room for as many as the kernel can have.
const BACKGROUND_MAX: u16 = u16::MAX;
/// Requests from each processor that may wait for the proxy over io_uring. Above it the kernel
/// blocks further callers there.
const RING_DEPTH: u16 = 128;
/// A file that says Y or N: whether mounts may use io_uring.
pub const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns the name of this mount as an owner of locks, which differs from those of other mounts.
fn client_name(id: u128) -> String {
    let name = rustix::system::uname();
    format!("{}:{:08x}", name.nodename().to_string_lossy(), id as u32)
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
