//! The published schedulers that ours is held against. They live here and nowhere else.
//!
//! ```text
//!   rules ─► classes (who, kind ─► class: weight, rate, reservation) ─┬─► fifo
//!                                                                     ├─► sfqd
//!                                                                     ├─► tbf
//!                                                                     └─► dmclock
//! ```
//!
//! Each is written to its source's letter, faults included, for a comparison with something
//! better than what is in use would say nothing. They know one resource: a request that the
//! page cache could have answered is a request like others, and goes on to the device with
//! the place it has.

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
