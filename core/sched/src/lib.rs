//! The dispatcher: it decides which of the requests that wait for a proxy's targets is next.
//!
//! ```text
//!   subject + kind ─► class ─► queue per lane and direction ─► its meters ─► ready heads
//!    (registry)     (registry)          (lanes)                (meters)        (lanes)
//!                                                                                │
//!        complete ◄── running, using slots  ◄── urgent | reserved | weight ◄────┘
//!     (observation)                                   (lanes)
//! ```
//!
//! A request belongs to one class, which has a weight and may have a reservation and a cap on
//! slots. It pays any number of meters. Between classes the device is divided by weight (start-time
//! fair queueing with slots by size). A reservation comes before weights. A meter comes before both,
//! but not before the reservation of a row.
//! docs/algorithms/dispatcher.md has the rule in words, its sources, and the worked tables that are
//! tests here.
//!
//! The dispatcher is a plain struct that is passed the time. It never waits: a call returns a
//! request, and [`Dispatcher::next_deadline`] is the time of the next call.

mod deadline;
mod dispatcher;
mod heap;
mod idle;
mod ids;
mod index;
mod keys;
mod lanes;
mod meters;
mod observation;
mod pacer;
mod registry;
mod slab;
mod tags;
mod terms;
mod turns;

pub use dispatcher::{Arrival, Dispatcher, Donated};
pub use ids::{ClassId, RequestId, SubjectId};
pub use lanes::{
    CostMode, Costs, Curve, CurveError, Dispatched, LaneCosts, TargetParams, slots_needed,
};
pub use observation::{
    AccountReport, ClassReport, ClosedAccounts, DonationReport, MeterPayers, MeterStatus,
    ReservedRow, SubjectDetail, SubjectReport, Usage, WaitCause, WaitCauseReport, WaitReport,
};
pub use turns::Turns;
