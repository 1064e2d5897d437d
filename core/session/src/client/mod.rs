//! The half of the mount: what it sends when, and what becomes of calls when a connection or a proxy is lost.

mod call_queues;
mod call_table;
#[cfg(test)]
mod test_call;

pub use call_queues::{CallNeeds, CallQueues, ChannelRoom, QueuedCall};
pub use call_table::{CallId, CallTable, Lost};
