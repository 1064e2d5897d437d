//! The half of the proxy: which session a connection enters, and which calls it has executed.
//!
//! ```text
//!   Tsession ─► SessionTable: the session ─► SessionChannels: the channel, or its turn later
//!   call with a reply slot ─► SessionChannels ─► ReplyCache ─┬─ executed: the cached reply
//!                                                            └─ new: executed, then cached
//!   write, fsync ─► CommitTracker ─► the watermark in each reply
//! ```

mod commits;
mod refusal;
mod reply_cache;
mod session_channels;
mod session_table;

pub use commits::CommitTracker;
pub use refusal::{IDENTITIES_MAX, SessionRefusal, check_identity};
pub use reply_cache::{ReplyCache, ReplyLookup, ReplySlotError};
pub use session_channels::{CHANNELS_MAX, ChannelTurn, IdempotencyKey, SLOTS_MAX, SessionChannels};
pub use session_table::{EnteredSession, SessionOwner, SessionTable, TabledSession};
