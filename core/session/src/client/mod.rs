//! The half of the mount: what it sends when, and what becomes of calls when a connection or a proxy is lost.

mod call_queues;
mod call_table;
mod channel;
mod failover;
#[cfg(test)]
mod test_call;
mod uncommitted_writes;

pub use call_queues::{CallNeeds, CallQueues, ChannelRoom, QueuedCall};
pub use call_table::{CallId, CallTable, Lost};
pub use channel::{
    ChannelCall, ChannelControl, ChannelError, ChannelEvent, ChannelPhase, ChannelStats,
    ClientChannel, FrameSink, IdentityWindow, Interrupted, TAGS, TICK,
};
pub use failover::{FailBack, FailBackStep, LockReclaim, Outage, ReconnectPause, SessionLife};
pub use uncommitted_writes::{HeaderChange, KeptWrite, UncommittedWrites};
