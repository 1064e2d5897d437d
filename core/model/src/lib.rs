//! The nouns of all crates: points and spans of time, amounts and rates, names of jobs and nodes,
//! kinds of request, scopes and shares.
//!
//! Nothing here decides anything or does I/O. Each type is valid once it is built. Each type that
//! people write in a configuration parses and prints the same text.

mod access;
mod activity;
mod busy_poll;
mod civil;
mod directory;
mod ids;
mod moment;
mod path_set;
mod pattern;
mod request;
mod scope;
mod service;
mod share;
mod time;
mod units;

pub use access::Accesses;
pub use activity::RuleActivity;
pub use busy_poll::BusyPoll;
pub use civil::{CivilTime, FixedZone, Zone};
pub use directory::{Directory, is_export_name};
pub use ids::{Identity, JobId, Nid, ParseIdError, TargetId};
pub use moment::{Moment, MomentError};
pub use path_set::{FilePlace, PathSet};
pub use pattern::{AccessStats, ParsePatternError, Pattern};
pub use request::{Direction, KindSet, Lane, OpKind, ParseKindError};
pub use scope::{KeyValue, Scope, SectionKind};
pub use service::{AccountSubject, Service};
pub use share::{Grants, ReservationLag, ScopeUsage, Share, SharePool, SlotsClaim, WaitedService};
pub use time::{Nanos, Time};
pub use units::{Amount, Bytes, Ops, ParseUnitError, Rate, Weight};
