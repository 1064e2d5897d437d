//! The dialect `9P2000.L.sluice.4`: the messages of mount and proxy beyond 9P2000.L.
//!
//! ```text
//!   size type tag │ identity slot sequence handles │ body of a base or an extension message
//!   ──────────────┼────────────────────────────────┼──────────────────────────────────
//!   as in 9P      │ identity; call; files          │ Twalk, Tgetattr … or `ExtRequest`
//! ```
//!
//! A connection speaks it after both sides have agreed in Tversion. Then every message has the
//! longer header, and a fid field may name a [`handle`](handle_fid) of its header in place of a
//! fid. Nothing of 9P2000.L is taken away.
//!
//! Which calls are sent again, executed or answered from the reply cache is decided in
//! `core/session`. docs/protocol.md has every byte; docs/decisions/0006 has the reasons.

mod codec;
mod entries;
mod groups;
mod header;
mod leases;
mod messages;
mod proxies;

pub use codec::{AnyReply, AnyRequest, decode_reply, decode_request, encode_reply, encode_request};
pub use entries::{EntryError, ListEntries, ListEntry, SessionEvent, SessionEvents};
pub use groups::GroupList;
pub use header::{
    HandleList, HandlePlaces, READ_REPLY_HEADER_LEN, ReplyHeader, RequestHeader, handle_fid,
    handle_index, read_reply_header,
};
pub use leases::{LeaseGrant, LeaseGrants, ReturnedLease, ReturnedLeases};
pub use messages::{ExtReply, ExtRequest};
pub use proxies::{PROXIES_MAX, PROXY_NAME_MAX, ProxyNames, WireGroup, is_proxy_name};

/// What Tversion offers and answers for this dialect.
pub const VERSION: &[u8] = b"9P2000.L.sluice.4";
/// The slot of a message that may be executed again without harm.
pub const NOSLOT: u16 = u16::MAX;
/// The identity number of messages that are about the session itself.
pub const NO_IDENTITY: u32 = u32::MAX;
/// The longest handle in bytes: room for a path where the backend has no handles.
pub const HANDLE_MAX: usize = 4 << 10;
/// The most handles that one message names: rename, link and copy have two files.
pub const HANDLES_MAX: usize = 2;
/// The most names in one message for the first file: names of a file with many links.
pub const NAMES_MAX: usize = 32;
/// The most supplementary groups of an identity: the kernel's own bound is 65,536, but
/// they must fit into the smallest message.
pub const GROUPS_MAX: usize = 512;
/// Bit of an attribute's `valid`: the file has neither ACL nor extended attributes, so a client
/// need not ask. It is beyond the bits of 9P2000.L.
pub const PLAIN_FILE: u64 = 1 << 62;
/// Flag of `ExtRequest::Write`: clear set-id bits, as a write by its user would.
pub const WRITE_KILL_PRIV: u32 = 1;
/// Flag of a write to a fid: the header's identity waits for it, and it goes in that identity's
/// lane.
pub const WRITE_DONATED: u32 = 2;

/// `what` of a Renew: the term begins again.
pub const RENEW_TERM: u8 = 0;
/// `what` of a Renew: the client joins with a life in which it has no leases.
pub const RENEW_JOIN: u8 = 1;
/// `what` of a Renew: the client has dropped its leases and leaves.
pub const RENEW_LEAVE: u8 = 2;
/// `outcome` of a Renew: done.
pub const RENEW_DONE: u8 = 0;
/// `outcome` of a Renew: this life is over; the client joins with its next one.
pub const RENEW_OVER: u8 = 1;
/// `outcome` of a Renew: the server grants no leases now; the client asks again after a term.
pub const RENEW_REFUSED: u8 = 2;

/// The dialect in the reply to a client's offer; `None` if the offer is different.
pub fn answer_version(offered: &[u8]) -> Option<&'static [u8]> {
    (offered == VERSION).then_some(VERSION)
}

/// The number of a reply slot's next call, from 1: 0 means that the slot has had no call.
pub fn next_sequence(last: u32) -> u32 {
    last.wrapping_add(1).max(1)
}
