//! The dialect `9P2000.L.sluice.2`: what the mount and the proxy say to each other
//! beyond 9P2000.L.
//!
//! ```text
//!   size type tag │ identity slot sequence handles │ body of a plain or an own message
//!   ──────────────┼────────────────────────────────┼──────────────────────────────────
//!   as in 9P      │ who pays; which try; which file │ Twalk, Tgetattr … or `ExtRequest`
//!
//!   mount: Calls ── tag, slot, sequence ──►  link  ──► proxy: Slots ── execute, or repeat
//!            ▲                             (may break)           the reply of the first try
//!            └── lost ► resend, or settle by looking ◄── Commits: what is on disk by now
//! ```
//!
//! A connection speaks it after both sides have said so in Tversion; then every
//! message has the longer header, and a fid field may name a [`handle`](handle_fid)
//! of its header in place of a fid. Nothing of 9P2000.L is taken away.
//!
//! The three halves here do no I/O and are told what happens: [`ReplyCache`] (the reply cache
//! of the server), [`CommitTracker`] (which writes are durable), [`CallTable`] (the client's tags,
//! slots and tries). docs/protocol.md has every byte; docs/decisions/0006 says why.
//!
//! Invariant, shown by `tests/all/dialect.rs` over links that break anywhere: a call that
//! has a slot is executed at most once for each life of the server, and its caller
//! learns the result of that one execution.

mod calls;
mod codec;
mod commits;
mod entries;
mod groups;
mod header;
mod messages;
mod reply_cache;

pub use calls::{CallId, CallTable, Lost};
pub use codec::{AnyReply, AnyRequest, decode_reply, decode_request, encode_reply, encode_request};
pub use commits::CommitTracker;
pub use entries::{EntryError, ListEntries, ListEntry, SessionEvent, SessionEvents};
pub use groups::GroupList;
pub use header::{
    HandleList, HandlePlaces, READ_REPLY_HEADER_LEN, ReplyHeader, RequestHeader, handle_fid,
    handle_index, read_reply_header,
};
pub use messages::{ExtReply, ExtRequest};
pub use reply_cache::{ReplyCache, ReplyLookup, ReplySlotError};

/// What Tversion offers and answers for this dialect.
pub const VERSION: &[u8] = b"9P2000.L.sluice.2";
/// The slot of a message that may be executed again without harm.
pub const NOSLOT: u16 = u16::MAX;
/// The identity number of messages that are about the session itself.
pub const NOBODY: u32 = u32::MAX;
/// The longest handle in bytes: room for a path where the backend has no handles.
pub const HANDLE_MAX: usize = 4 << 10;
/// The most handles that one message names: rename, link and copy have two files.
pub const HANDLES_MAX: usize = 2;
/// The most places in which one message says that its file is: names of a file that is linked a lot.
pub const PLACES_MAX: usize = 32;
/// The most supplementary groups of an identity: the kernel's own bound is 65,536, but
/// they must fit into the smallest message.
pub const GROUPS_MAX: usize = 512;
/// Bit of an attribute's `valid`: the file has neither ACL nor extended attributes, so
/// nobody needs to ask. Beyond the bits that 9P2000.L knows.
pub const PLAIN_FILE: u64 = 1 << 62;
/// Flag of `ExtRequest::Write`: take set-id bits away, as a write by its user would.
pub const WRITE_KILL_PRIV: u32 = 1;
/// Flag of a write to a fid: the header's identity waits for it, and it goes in that one's lane.
pub const WRITE_DONATED: u32 = 2;

/// The dialect to answer to what a client offers; `None` if it is not this one.
pub fn answer_version(offered: &[u8]) -> Option<&'static [u8]> {
    (offered == VERSION).then_some(VERSION)
}

/// The number of a slot's next call: 0 is for a slot in which nothing was called.
fn next_sequence(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}
