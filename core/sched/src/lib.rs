//! The dispatcher: it decides which of the requests that wait for a target is served next.
//!
//! ```text
//!   subject + kind ─► class ─► queue per lane and direction ─► its meters ─► ready heads
//!    (classify)      (class)                                  (admission)      (lane)
//!                                                                                │
//!        complete ◄── running, using slots  ◄── urgent | reserved | weight ◄────┘
//!                                                       (choose)
//! ```
//!
//! A request belongs to one class, which has a weight and may have a reservation and a cap on
//! slots. It pays any number of meters. Between classes the device is divided by weight (start-time
//! fair queueing with slots by size). A reservation comes before weights, and a meter before both.
//! docs/algorithms/dispatcher.md has the rule in words, its sources, and the worked tables that are
//! tests here.
//!
//! The dispatcher is a plain struct that is passed the time. It never waits: a call returns a
//! request, and [`Dispatcher::next_deadline`] is the time of the next call.

mod activity;
mod admission;
mod change;
mod choose;
mod class;
mod classify;
mod cost;
mod deferred;
mod dependent;
mod dispatcher;
mod donate;
mod dormant;
mod grant;
mod heap;
mod ids;
mod invariants;
mod lane;
mod meter;
mod pattern;
mod recalibrate;
mod remote_delay;
mod report;
mod reservation;
mod reservation_clock;
mod slab;
mod slot_controller;
mod slots;
mod tags;
mod totals;
mod turns;
mod unreported;
mod wait;

pub use activity::Activity;
pub use cost::{CostMode, Costs, Curve, CurveError, LaneCosts};
pub use dispatcher::{Arrival, Dispatched, Dispatcher, TargetParams};
pub use donate::{Donated, DonationReport};
pub use ids::{ClassId, RequestId, SubjectId};
pub use report::{ClassReport, SubjectReport, Usage};
pub use slots::slots_needed;
pub use turns::Turns;
pub use wait::{MeterPayers, MeterStatus, SubjectDetail, WaitCause, WaitCauseReport, WaitReport};
