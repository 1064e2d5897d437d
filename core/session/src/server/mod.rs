//! The half of the proxy: which session a connection enters, and which calls it has executed.

mod commits;
mod reply_cache;

pub use commits::CommitTracker;
pub use reply_cache::{ReplyCache, ReplyLookup, ReplySlotError};
