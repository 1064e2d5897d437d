//! Events of a controller, and the accounts of its decays.
//!
//! ```text
//!   GET /v1/events?since=SEQ&wait=30s ─► Events: those after it, or as soon as there is one
//!   GET /v1/decays                    ─► Decays: each policy with its accounts
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::rules::DecayRuleReport;
use crate::scope::{WireKey, WireRate};

/// The kind of an event.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A key has used four fifths of its entitlement of a decay.
    #[default]
    Warned,
    /// A key is throttled.
    Throttled,
    /// A key is throttled to the floor.
    Floor,
    /// A key is no longer throttled.
    Released,
    /// A proxy is unreachable.
    Unreachable,
    /// A proxy has recovered.
    Recovered,
    /// Two proxies report under one name.
    Duplicate,
    /// A controller became the leader.
    Leader,
    /// The rules in force have changed.
    Rules,
    /// A reservation was scheduled, has another start, is active, has less than its rate, or has
    /// ended; or reservations of a target are late, or none is any more.
    Reservation,
}

/// One event that a controller has published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerEvent {
    /// Its number: greater than that of each event before it. Numbers may be skipped.
    pub sequence: u64,
    /// The time, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// The subject: a decay's key such as `uid=1000`, a proxy, a controller, the version of the
    /// rules, a reservation or a target.
    pub subject: String,
    /// The `[[decay]]` and its numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay: Option<DecayChange>,
    /// The event in one sentence.
    pub text: String,
}

/// The numbers of a decay's event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayChange {
    /// The name of the `[[decay]]`.
    pub name: String,
    /// The key's values, in the order of `per`.
    pub key: Vec<WireKey>,
    /// Its usage, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// Its entitlement, in the same unit.
    pub entitlement: u64,
    /// Its limit over all proxies; absent: only `max`.
    pub limit: Option<WireRate>,
    /// The part of `max` that this limit is, in millionths; absent without a limit or a `max`.
    pub factor_ppm: Option<u32>,
    /// When throttling ends without further usage, in nanoseconds since 1970.
    pub until_ns: Option<u64>,
}

/// Events in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerEvents {
    /// The events, by increasing number.
    pub events: Vec<ControllerEvent>,
    /// The number to continue from: the next `since`.
    pub next: u64,
}

/// All decays in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDecayAccounts {
    /// The time of this, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Whether requests wait for one another, as reported by proxies; without it, decays with
    /// `contention` throttle no key.
    pub contended: bool,
    /// The decays in the order of the rules.
    pub decays: Vec<DecayAccountTable>,
}

/// One `[[decay]]` section with the accounts of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayAccountTable {
    /// The decay as it is written.
    #[serde(flatten)]
    pub rule: DecayRuleReport,
    /// The keys with usage, those with the most of their entitlement first.
    pub accounts: Vec<WireDecayAccount>,
    /// Further accounts that are not listed.
    pub omitted: u64,
}

/// The account of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDecayAccount {
    /// The key such as `uid=1000`; `all` for a decay without `per`.
    pub subject: String,
    /// The key's values, in the order of `per`.
    pub key: Vec<WireKey>,
    /// `free`, `warned` (80 % used), `throttled` (limit below `max`) or `floor`.
    pub level: String,
    /// Its usage, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// Its entitlement, in the same unit.
    pub entitlement: u64,
    /// Its current limit over all proxies; absent: only `max`.
    pub limit: Option<WireRate>,
    /// When throttling ends without further usage, in nanoseconds since 1970; absent if it is not
    /// throttled.
    pub until_ns: Option<u64>,
    /// The pattern of its requests that changes its entitlement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The factor of that pattern on its entitlement, in millionths; absent without a pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern_factor_ppm: Option<u32>,
}

impl EventKind {
    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Warned => "warned",
            EventKind::Throttled => "throttled",
            EventKind::Floor => "floor",
            EventKind::Released => "released",
            EventKind::Unreachable => "unreachable",
            EventKind::Recovered => "recovered",
            EventKind::Duplicate => "duplicate",
            EventKind::Leader => "leader",
            EventKind::Rules => "rules",
            EventKind::Reservation => "reservation",
        }
    }
}
