//! The rules in force, as the control API shows them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The rules and meters in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rules {
    /// The whole as the TOML text that a rule file would hold.
    pub text: String,
    /// Rules in their order: the first that matches takes the request.
    pub rules: Vec<RuleReport>,
    /// Meters in their order: each one that matches is paid.
    pub meters: Vec<MeterReport>,
}

/// One rule: a condition and what it grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleReport {
    /// Unique among the rules.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide it into classes.
    pub per: Vec<String>,
    /// The part of the service beside other classes.
    pub weight: u32,
    /// The promised rate of each class, as `500MB/s`.
    pub reserve: Option<String>,
    /// Ceilings of each class.
    pub limits: Vec<LimitReport>,
    /// The most device slots of each class.
    pub slots: Option<u32>,
    /// How its writes reach the backend; absent: as the target says.
    pub write_mode: Option<String>,
    /// The most classes it makes.
    pub max_classes: Option<u32>,
    /// Names the earlier rule that leaves nothing for this one; absent: it can match.
    pub shadowed_by: Option<String>,
}

/// One meter: a ceiling beside the classes' own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeterReport {
    /// Unique among the meters.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide it into meters.
    pub per: Vec<String>,
    /// Rate, kinds and burst.
    pub limit: LimitReport,
}

/// A ceiling on some kinds of request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitReport {
    /// The kinds that pay.
    pub kinds: Vec<String>,
    /// The rate, as `500MB/s` or `100ops/s`.
    pub rate: String,
    /// The most let through at once after idleness, in bytes or operations as the
    /// rate counts; absent: the dispatcher chooses.
    pub burst: Option<u64>,
}
