//! The nouns of all crates: points and spans of time, amounts and rates, names of jobs and nodes,
//! kinds of request, and the text of rules.
//!
//! Nothing here decides anything or does I/O. Each type is valid once it is built. Each type that
//! people write in a configuration parses and prints the same text.

mod access;
mod activity;
mod busy_poll;
mod civil;
mod ids;
mod moment;
mod pattern;
mod request;
mod rule;
mod scope;
mod service;
mod share;
mod time;
mod units;

pub use access::Accesses;
pub use activity::RuleActivity;
pub use busy_poll::BusyPoll;
pub use civil::{CivilTime, FixedZone, Zone};
pub use ids::{Identity, JobId, Nid, ParseIdError, TargetId};
pub use moment::{Moment, MomentError};
pub use pattern::{AccessStats, ParsePatternError, Pattern};
pub use request::{Direction, KindSet, Lane, OpKind, ParseKindError};
pub use rule::{
    DecayMode, DecayRule, DecayWindow, DependencyKind, Excerpt, KeyEdit, KeyField, Limit,
    LimitMode, Match, MatchError, MeterRule, ParseWordError, PathSet, Resource, Rule,
    RuleDependency, RuleEdit, RuleEditError, RuleFileError, RulePosition, RuleProblem, RuleSet,
    Shadowed, WriteMode,
};
pub use scope::{KeyValue, Scope, SectionKind, key_of};
pub use service::{AccountSubject, Service};
pub use share::{Grant, Grants, ScopeUsage, Share, SharePool};
pub use time::{Nanos, Time};
pub use units::{Amount, Bytes, Ops, ParseUnitError, Rate, Weight};
