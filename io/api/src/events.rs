//! What a controller tells when something changes, and the accounts of its decays.
//!
//! ```text
//!   GET /v1/events?since=SEQ&wait=30s ─► Events: those after it, or as soon as there is one
//!   GET /v1/decays                    ─► Decays: each policy with its accounts
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::proxy_wire::{WireKey, WireRate};
use crate::rules::DecayRuleReport;

/// What an event is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A key has four fifths of what a decay entitles it to.
    #[default]
    Warned,
    /// It is held to less.
    Throttled,
    /// It is held to the floor.
    Floor,
    /// It is not held back any more.
    Released,
    /// A proxy is not heard any more.
    Lost,
    /// It is heard again.
    Returned,
    /// Two proxies report under one name.
    Duplicate,
    /// A controller began to decide.
    Leader,
    /// Other rules are in force.
    Rules,
}

/// One change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerEvent {
    /// Its number: greater than that of each event before it. Numbers may be left out.
    pub sequence: u64,
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// What happened.
    pub kind: EventKind,
    /// Whom or what it is about: a decay's key as `uid=1000`, a proxy, a controller, or the
    /// version of the rules.
    pub subject: String,
    /// The `[[decay]]` that it is of, and its numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay: Option<DecayChange>,
    /// All of it in one sentence.
    pub text: String,
}

/// The numbers of a decay's event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayChange {
    /// The name of the `[[decay]]`.
    pub name: String,
    /// The key's values, in the order of `per`.
    pub key: Vec<WireKey>,
    /// What it had, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// What it is entitled to, likewise.
    pub entitled: u64,
    /// What it is held to over all proxies; absent: to nothing but `max`.
    pub limit: Option<WireRate>,
    /// The part of `max` that this is, in millionths; absent without a limit or a `max`.
    pub factor_ppm: Option<u32>,
    /// When it is free again if it uses nothing until then, in nanoseconds since 1970.
    pub until_ns: Option<u64>,
}

/// Events in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerEvents {
    /// The events.
    pub events: Vec<ControllerEvent>,
    /// The number to go on from: what `since` is to be next.
    pub next: u64,
}

/// Every decay in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDecayAccounts {
    /// When this was, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Whether requests wait for one another, as proxies say: decays with `contention` hold
    /// nobody back otherwise.
    pub contended: bool,
    /// The decays in the order of the rules.
    pub decays: Vec<DecayAccountTable>,
}

/// One `[[decay]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayAccountTable {
    /// As it is written.
    #[serde(flatten)]
    pub rule: DecayRuleReport,
    /// The keys that used anything, those with the most of their entitlement first.
    pub accounts: Vec<WireDecayAccount>,
    /// Further accounts that are not listed.
    pub left_out: u64,
}

/// One key's account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireDecayAccount {
    /// The key as `uid=1000`; `all` for a decay without `per`.
    pub subject: String,
    /// The key's values, in the order of `per`.
    pub key: Vec<WireKey>,
    /// `free`, `near` (four fifths used), `held` or `floor`.
    pub level: String,
    /// What it had, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// What it is entitled to, likewise.
    pub entitled: u64,
    /// What it is held to now over all proxies; absent: to nothing but `max`.
    pub limit: Option<WireRate>,
    /// When it is free again if it uses nothing until then, in nanoseconds since 1970; absent
    /// if it is free.
    pub until_ns: Option<u64>,
    /// The pattern in its requests for which its entitlement is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// By how many millionths its entitlement is multiplied for that; absent without a pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behaviour_ppm: Option<u32>,
}

impl EventKind {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Warned => "warned",
            EventKind::Throttled => "throttled",
            EventKind::Floor => "floor",
            EventKind::Released => "released",
            EventKind::Lost => "lost",
            EventKind::Returned => "returned",
            EventKind::Duplicate => "duplicate",
            EventKind::Leader => "leader",
            EventKind::Rules => "rules",
        }
    }
}
