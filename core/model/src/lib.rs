//! The words every other crate speaks: points and spans of time, amounts and
//! rates, names of jobs and nodes, the kinds of request, and the text of rules.
//!
//! Nothing here decides anything and nothing here touches the world. Each type
//! is built valid or not at all, and each one that people write in a
//! configuration parses and prints the same text.

mod access;
mod civil;
mod ids;
mod linger;
mod moment;
mod part;
mod pattern;
mod request;
mod rule;
mod scope;
mod time;
mod units;

pub use access::Accesses;
pub use civil::{CivilTime, FixedZone, Zone};
pub use ids::{Identity, JobId, Nid};
pub use linger::Linger;
pub use moment::{Moment, MomentError};
pub use part::{Grant, Grants, Part, Use};
pub use pattern::{ParsePatternError, Pattern, Seen};
pub use request::{Direction, Kind, KindSet, Lane, ParseKindError};
pub use rule::{
    Boundary, DecayMode, DecayRule, Dependence, Excerpt, KeyEdit, KeyField, Limit, LimitMode,
    Match, MatchError, MeterRule, Parent, ParseWordError, PathSet, Resource, Rule, RuleEdit,
    RuleEditError, RuleFileError, RulePlace, RuleProblem, RuleSet, Shadowed, WriteMode,
};
pub use scope::{KeyValue, Scope, SectionKind, key_of};
pub use time::{Nanos, Time};
pub use units::{Amount, Bytes, Ops, ParseUnitError, Rate, Weight};
