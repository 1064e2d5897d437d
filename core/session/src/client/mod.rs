//! The half of the mount: what it sends when, and what becomes of calls when a connection or a proxy is
//! lost.
//!
//! ```text
//!   call ─► ClientChannel: CallQueues ─► CallTable ─► frames ─► proxy
//!              │ lost                                  replies ─► UncommittedWrites ─► written again
//!              └─► Outage, SessionLife: the same proxy or another ─┬─ resumed: sent again
//!                                                                  └─ restarted: again, or InDoubt
//! ```
//!
//! A channel belongs to one thread of the mount and is locked by its caller; a session has several. What
//! a call is, who pays for it and how its message looks is the caller's ([`QueuedCall`],
//! [`ChannelCall`]).

mod call_queues;
mod call_table;
mod channel;
mod failover;
mod in_doubt;
#[cfg(test)]
mod test_call;
mod uncommitted_writes;

pub use call_queues::{CallNeeds, CallQueues, ChannelRoom, QueuedCall};
pub use call_table::{CallId, CallTable, Lost};
pub use channel::{
    ChannelCall, ChannelControl, ChannelError, ChannelEvent, ChannelPhase, ChannelStats,
    ClientChannel, FrameSink, IdentityWindow, Interrupted, RenewReply, TAGS, TICK,
};
pub use failover::{FailBack, FailBackStep, LockReclaim, Outage, ReconnectPause, SessionLife};
pub use in_doubt::{InDoubt, InDoubtFacts, InDoubtOutcome, InDoubtReader};
pub use uncommitted_writes::{HeaderChange, KeptWrite, UncommittedWrites};
