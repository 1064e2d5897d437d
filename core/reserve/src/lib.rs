//! The calendar of bandwidth: when each reservation fits, and its life from request to end.
//!
//! ```text
//!   request ─► Calendar ─► place at the earliest fit ─► installed ─► active ─► claimed ─► ended
//!                 │             │                           events for owners and for the installer
//!                 │             └─ ResourceTable: a step function of each target, network, pool …
//!                 ├─ ReservationTable: stages, what is due, the queue
//!                 ├─ SentRows: the rows of each reservation, and what of them has changed
//!                 └─ ceilings, credits
//! ```
//!
//! Everything here is passed the time and what happened, and returns answers, events and the time of
//! the next call. At no time do reservations add up to more than a capacity. A fixed reservation
//! starts when it was guaranteed or earlier, while capacity stands. docs/algorithms/reserve.md has
//! the rules in words, their sources and all bounds.

mod calendar;
mod ceilings;
mod credits;
mod demand;
mod events;
mod jobs;
mod load;
mod record;
mod request;
mod reservation;
mod resources;
mod rows;
mod steps;
mod table;

pub use calendar::{
    Calendar, CalendarSettings, MoveRequest, PhaseRequest, PlannedPhase, ReservationProgress,
    RowLoads, RulesError,
};
pub use ceilings::{Ceiling, CeilingSubject, DefaultCeilings, Outstanding};
pub use credits::CreditSettings;
pub use demand::{Demand, DemandError, ResourceId, ResourceKind};
pub use events::{CalendarChange, CalendarEvent};
pub use jobs::{
    JobChange, JobError, JobRecord, JobRegistration, JobRegistry, JobSecret, RegistrationOutcome,
};
pub use load::{Capacity, Load};
pub use record::{CalendarRecords, CreditRecord, ReservationRecord, ResourceRecord, RestoreRepair};
pub use request::{
    Refusal, ReservationClass, ReservationError, ReservationOwner, ReservationRequest,
};
pub use reservation::{EndReason, ReservationId, ReservationState, ReservationStatus};
pub use resources::{FitWindow, ResourceError, ResourceTable, Span, Unreserved};
pub use rows::{ReservationRows, SentRows, WantedRows, direction_of_row};
