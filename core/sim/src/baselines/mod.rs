//! The published schedulers that ours is compared with. They are in this module only.
//!
//! ```text
//!   rules ─► classes (identity, kind ─► class: weight, rate, reservation) ─┬─► fifo
//!                                                                     ├─► sfqd
//!                                                                     ├─► tbf
//!                                                                     └─► dmclock
//! ```
//!
//! Each follows its source exactly, faults included: a comparison with something better than what
//! is in use would prove nothing. They know one resource. A request that the page cache could have
//! answered is a request like others, and goes on to the device at its position.

mod classes;
mod dmclock;
mod fifo;
mod heap;
mod sfqd;
mod tbf;

pub(crate) use dmclock::DmClock;
pub(crate) use fifo::Fifo;
pub(crate) use sfqd::SfqD;
pub(crate) use tbf::LustreTbf;
