//! How a file system is mounted and served.

use rustix::mount::MountFlags;

use crate::flags::Capabilities;

/// How requests travel between kernel and file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// /dev/fuse, read by threads with a descriptor of their own each.
    #[default]
    Device,
    /// io_uring, with a queue for each processor and /dev/fuse beside it: faster for several
    /// processes at once. A request that is not answered keeps one of the queue's `ring_depth`
    /// entries. The kernel must have it (6.14) and let it (`enable_uring` of the module fuse,
    /// and io_uring itself for this process), else it is the device.
    Ring,
}

/// How a file system is mounted and served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source in the table of mounts.
    pub source: String,
    /// read-only, nosuid, nodev and so on. Default: nosuid and nodev.
    pub flags: MountFlags,
    /// Whether users other than the one that mounts may use it. Default: true.
    pub allow_other: bool,
    /// The kernel checks permissions by mode, owner and ACL. Default: true.
    pub default_permissions: bool,
    /// The features that the file system requests. Default: [`Capabilities::DEFAULT`].
    pub capabilities: Capabilities,
    /// Bytes in the largest write, and in the largest read past the page cache: 4 KiB to
    /// 1 MiB, in whole pages. Default: 1 MiB, which is also the most that the kernel's
    /// `fs.fuse.max_pages_limit` allows by default.
    pub max_write: u32,
    /// Bytes that the kernel reads ahead at most. Default: 1 MiB.
    pub max_readahead: u32,
    /// Requests in the background at once (readahead, write-back, asynchronous direct I/O);
    /// more wait in the kernel. Default: 64.
    pub max_background: u16,
    /// From how many of those on the device counts as congested. Default: 48.
    pub congestion_threshold: u16,
    /// The grain of the file system's timestamps, in nanoseconds: a power of ten up to a
    /// second. Default: 1.
    pub time_grain_ns: u32,
    /// Seconds after which a request that is not answered ends the connection; 0 for never.
    /// Default: 0.
    pub request_timeout_s: u16,
    /// How requests travel. Default: [`Transport::Device`].
    pub transport: Transport,
    /// Requests that each of the ring's queues has in flight at most; each takes memory for
    /// the largest write. Default: 16.
    pub ring_depth: u16,
    /// Threads that read /dev/fuse; beside a ring there is one. Default: one for each processor, from 2 to 16.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        let processors = std::thread::available_parallelism().map_or(2, |count| count.get());
        Options {
            source: "sluice".to_string(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            allow_other: true,
            default_permissions: true,
            capabilities: Capabilities::DEFAULT,
            max_write: MAX_WRITE,
            max_readahead: MAX_WRITE,
            max_background: 64,
            congestion_threshold: 48,
            time_grain_ns: 1,
            request_timeout_s: 0,
            transport: Transport::Device,
            ring_depth: 16,
            threads: processors.clamp(2, 16),
        }
    }
}

/// Bytes of the largest write that can be asked for.
pub(crate) const MAX_WRITE: u32 = 1 << 20;
