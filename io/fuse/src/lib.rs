//! The kernel's FUSE protocol: mounts a file system and serves what programs do in it.
//!
//! ```text
//!   program ─► kernel ─► device, uring ─► server ─► FileSystem ─┬─► reply ─► kernel
//!                                                                     └─► moved away, later
//!   notifier ─► kernel: this changed, have these bytes
//! ```
//!
//! A file system is one trait, [`FileSystem`], with a method for each operation.
//! [`FuseSession::mount`] serves it until the mount is gone. A file system whose threads wait for
//! sockets as well uses their [`RequestReceiver`]s ([`FuseSession::mount_with`]). A request runs to
//! its end on the thread that received it, unless the method keeps its [`Reply`] for later.
//! Interrupts name their request, and this crate resolves every race of the protocol.
//!
//! Not in this crate: names and inodes, caching, jobs of requests. [`Options`] selects what the
//! kernel may do, and [`FuseConnection`] has what was negotiated.

mod abi;
mod answer;
mod device;
mod fields;
mod filesystem;
mod flags;
mod inflight;
mod listing;
mod memory;
mod mount;
mod negotiate;
mod notify;
mod options;
mod port;
mod reply;
mod request;
mod server;
mod session;
mod uring;

pub use answer::{
    Attr, Attributes, BackingId, CopiedBytes, Created, InodeEntry, OpenedFile, ReplyBody,
    SeekPosition, Statfs, Statx, WrittenBytes,
};
pub use filesystem::FileSystem;
pub use flags::{Capabilities, OpenFlags};
pub use listing::{DirEntry, DirListing, DirListingPlus};
pub use mount::{FuseMountError, clear_dead_mount};
pub use negotiate::{FuseConnection, NegotiateError};
pub use notify::Notifier;
pub use options::{Options, Transport};
pub use port::RequestReceiver;
pub use reply::{DataReply, EntryList, EntryListPlus, Reply, Xattr};
pub use request::{
    Allocate, CopyRange, DeviceNumber, FuseOpen, FuseRead, FuseRequest, FuseRequestId, FuseWrite,
    Handle, InodeId, Lock, LockKind, LockOwner, LockRequest, NewFile, Release, SetAttributes,
    SetTime, SetXattr, Timestamp,
};
pub use rustix::io::Errno;
pub use rustix::mount::MountFlags;
pub use session::FuseSession;
