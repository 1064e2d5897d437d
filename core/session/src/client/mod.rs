//! The half of the mount: what it sends when, and what becomes of calls when a connection or a proxy is lost.

mod call_table;

pub use call_table::{CallId, CallTable, Lost};
