//! The calendar of bandwidth: when each reservation fits, and its life from request to end.
//!
//! ```text
//!   demand ─► ResourceTable: a step function of each resource, earliest_fit over several
//! ```

mod demand;
mod load;
mod resources;
mod steps;

pub use demand::{Demand, DemandError, ResourceId, ResourceKind};
pub use load::{Capacity, Load};
pub use resources::{FitWindow, ResourceError, ResourceTable, Span};
