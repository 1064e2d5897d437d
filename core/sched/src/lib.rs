//! The one dispatcher: of all requests that wait for a target, it decides who goes next.
//!
//! ```text
//!   subject + kind ─► class ─► queue per lane and direction ─► its meters ─► ready heads
//!    (classify)      (class)                                    (gate)         (lane)
//!                                                                                │
//!        complete ◄── running, holding slots ◄── urgent | reserved | share ◄─────┘
//!                                                       (choose)
//! ```
//!
//! A request belongs to one class, which has a weight, perhaps a promised rate and a cap
//! on slots, and it pays any number of meters. Between classes the device is divided by
//! weight (start-time fair queueing with slots by size), a promise comes before shares,
//! and a meter before either. docs/algorithms/dispatcher.md has the rule in words, its
//! sources, and the worked tables that are tests here.
//!
//! The dispatcher is a plain struct that is told the time. It never waits: a call answers
//! with a request, and [`Dispatcher::next_deadline`] says when to ask again.

mod change;
mod choose;
mod class;
mod classify;
mod cost;
mod delay;
mod dependent;
mod depth;
mod dispatcher;
mod donate;
mod gate;
mod grant;
mod heap;
mod held;
mod ids;
mod invariants;
mod lane;
mod meter;
mod pattern;
mod promise;
mod recalibrate;
mod report;
mod reservation;
mod rest;
mod slab;
mod slots;
mod tags;
mod turns;
mod untold;

pub use cost::{CostMode, Costs, Curve, CurveError, LaneCosts};
pub use dispatcher::{Arrival, Dispatched, Dispatcher, Target};
pub use donate::{Donated, DonationReport};
pub use held::{HeldBy, HeldCause, HeldReport, MeterReport, Payers, SubjectStanding};
pub use ids::{ClassId, RequestId, SubjectId};
pub use report::{ClassReport, SubjectReport, Usage};
pub use slots::slots_held;
pub use turns::Turns;
