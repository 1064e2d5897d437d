//! 9P2000.L on the wire: messages to bytes and back, and nothing else.
//!
//! ```text
//!   bytes ─► frame_len ─► one frame ─► Request::decode ─► (Tag, Request<'frame>)
//!                                                              server acts
//!   bytes ◄──────────── out: Vec<u8> ◄─ Reply::encode ◄─ (Tag, Reply<'data>)
//! ```
//!
//! A client uses the other two directions, `Request::encode` and `Reply::decode`. Decoded messages
//! borrow from the frame: strings are bytes, because file names are, and a peer's lengths cause no
//! allocation. Any bytes decode to a message or to a [`FrameError`] that names the invalid value;
//! none panics.
//!
//! docs/protocol.md describes what a message means, and what the server does with it. Left to
//! others: sockets, fids, credentials, the meaning of `.` and `..`, and the limits of a session
//! (its msize above all).

mod attributes;
pub mod dialect;
mod direntry;
mod error;
mod header;
mod lists;
mod lock;
pub mod open;
mod reply;
mod request;
mod table;
mod types;
mod wire;

pub use attributes::{Attributes, SetAttributes, Statfs, Timestamp, getattr, setattr};
pub use direntry::{DirEntries, DirEntry, DirEntryError};
pub use error::FrameError;
pub use header::{
    READ_REPLY_HEADER_LEN, RREAD, TREAD, TWRITE, WRITE_HEADER_LEN, error_reply, frame_kind,
    frame_len, frame_tag, read_reply_header, write_header,
};
pub use lists::{NameList, Qids, TooManyNames};
pub use lock::{LOCK_BLOCK, LOCK_RECLAIM, LockKind, LockStatus};
pub use reply::Reply;
pub use request::Request;
pub use types::{
    Fid, HEADER_LEN, IO_HEADER, MSIZE_MAX, MSIZE_MIN, NOFID, NONUNAME, NOTAG, QTDIR, QTFILE,
    QTSYMLINK, Qid, REMOVE_DIR, Tag, VERSION, VERSION_UNKNOWN, WALK_NAMES_MAX, XATTR_CREATE,
    XATTR_REPLACE, answer_version,
};
