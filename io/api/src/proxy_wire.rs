//! What a proxy and its controller say to each other, and what the controller tells people.
//!
//! ```text
//!   proxy ── ProxyReport: each target's standing, what was used ──► POST /v1/proxies/NAME/report
//!         ◄─ ControllerReply: each target's grants, rules, what was counted ──┘ held until there is news
//! ```
//!
//! The forms are those of `plan::Report` and `plan::Order`, exact: parts are whole billionths
//! and rates whole numbers, so what one side sent the other has, bit for bit. The proxy's name
//! is that of the path, its life that of the report. Text that comes over the wire becomes
//! plan's types in `proxy_wire/forms.rs`, or an error that names the value. A proxy says it in the
//! compact form of `proxy_wire/compact.rs`, anybody else as JSON.

mod checked;
mod compact;
mod forms;
mod ops;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::accesses::WireAccesses;
use crate::why::{ProxyQuery, ProxyReply};

pub use checked::{CheckedLine, CheckedReport, CheckedUsage, ScopeInterner};
pub use compact::COMPACT_REPORT;
pub use forms::{WireKey, WireRate, WireScope, WireScopeGrant, WireWaits, WrongMessage};
pub use ops::WireOps;

/// What a proxy says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyReport {
    /// Which of its lives: each start has a greater one, nanoseconds since 1970.
    pub epoch: u64,
    /// The version of the rules that a controller gave it; absent: none did.
    pub rules: Option<String>,
    /// Its standing with each target that has something to say.
    pub targets: BTreeMap<String, WireTargetReport>,
    /// What was used, about once a second.
    pub usage: Option<UsageReport>,
    /// Whether requests of several classes wait for one another somewhere.
    #[serde(default)]
    pub contended: bool,
    /// Answers to what was asked, 8 at most.
    #[serde(default)]
    pub answers: Vec<ProxyReply>,
}

/// One target's report: `plan::Report` without name and life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireTargetReport {
    /// The report's number in this life, from 1.
    pub sequence: u64,
    /// The membership of the last order that was heard.
    pub term: WireMembership,
    /// The number of the last order that was heard in it.
    pub heard: u64,
    /// The revision in force.
    pub revision: u64,
    /// Whether the orders are not in force any more.
    pub lapsed: bool,
    /// What is held, while no revision is in force.
    pub holdings: Option<WireHoldings>,
    /// What was used of each scope since the last report; none where nobody looked since then.
    pub uses: Option<Vec<WireScopeUsage>>,
    /// Metadata service by class, in all.
    pub served: Vec<WireScopeService>,
}

/// Which membership under which controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireMembership {
    /// The controller's own number.
    pub controller: u64,
    /// The registration's number with it.
    pub joined: u64,
}

/// All parts that a proxy holds of a target, in billionths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireHoldings {
    /// Of everything that is not listed.
    pub unlisted: u32,
    /// What it falls back to.
    pub fallback: u32,
    /// Of single scopes.
    pub listed: Vec<WireWaits>,
}

/// What was used of one scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireScopeUsage {
    /// The scope.
    #[serde(with = "compact::apart")]
    pub scope: WireScope,
    /// Billionths of what the whole limit lets through; absent: only the weight is divided.
    pub used: Option<u32>,
    /// Whether somebody waits for more.
    pub waiting: bool,
}

/// Metadata service to one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireScopeService {
    /// The class.
    pub scope: WireScope,
    /// The sum.
    pub served: WireServiceTotal,
}

/// Service counted up; a greater lap counts from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireServiceTotal {
    /// The lap.
    pub lap: u64,
    /// The sum in it.
    pub cost_ns: u64,
}

/// What a proxy counted since its life began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageReport {
    /// Grows with each usage report of a life.
    pub sequence: u64,
    /// All that it served, with and without a line.
    pub total: WireCounters,
    /// Lines that changed since the last usage report that was taken.
    pub lines: Vec<UsageLine>,
    /// Lines that it has dropped.
    pub gone: Vec<u64>,
}

/// What was counted for one payer since the proxy's life began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageLine {
    /// The proxy's number for the line.
    pub id: u64,
    /// Whom it counts for.
    #[serde(with = "compact::apart")]
    pub payer: WireSubjectId,
    /// What was counted.
    pub counters: WireCounters,
}

/// Whom one line counts for, in which class and through which export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireSubjectId {
    /// The job; empty if there is none.
    pub job: String,
    /// The user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The project quota id, where there is one.
    pub project: Option<u32>,
    /// The node's network name; empty if it is not told.
    #[serde(default)]
    pub nid: String,
    /// Which directories of the rules in force it works in: `model::PathSet`.
    #[serde(default)]
    pub paths: u64,
    /// The class that it was served as: its rule, and the values of that rule's `per`.
    #[serde(default)]
    pub class: String,
    /// The export that it came through.
    #[serde(default)]
    pub export: String,
}

/// Amounts and operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireCounters {
    /// Payload read.
    pub read_bytes: u64,
    /// Payload written.
    pub written_bytes: u64,
    /// What the requests cost their targets.
    pub cost_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    #[serde(default)]
    pub delayed: u64,
    /// How long these waited, summed up.
    #[serde(default)]
    pub delayed_ns: u64,
    /// Their payload.
    #[serde(default)]
    pub delayed_bytes: u64,
    /// Operations by kind; those that are not named are none.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub ops: WireOps,
    /// What the reads looked like.
    #[serde(default)]
    pub reads: WireAccesses,
    /// What the writes looked like.
    #[serde(default)]
    pub writes: WireAccesses,
}

/// What the controller answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerReply {
    /// The controller's own number: another one has begun anew.
    pub term: u64,
    /// Orders by target.
    pub targets: BTreeMap<String, WireTargetAssignment>,
    /// The rules, where the proxy has others.
    pub rules: Option<RulesText>,
    /// The last usage report of this life that was counted.
    pub usage_taken: Option<u64>,
    /// What somebody asks, 8 at most.
    #[serde(default)]
    pub questions: Vec<ProxyQuery>,
    /// Another process reports under the same name; its reports are not taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// One target's order: `plan::Order` without name and life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireTargetAssignment {
    /// The membership for which it is.
    pub term: WireMembership,
    /// Its number in it, from 1.
    pub number: u64,
    /// The report that it answers.
    pub answers: u64,
    /// Whether the controller does not know yet what there is to be divided.
    pub stay: bool,
    /// It says all that changed since this revision.
    pub base: u64,
    /// The revision that is in force with it; 0 changes nothing.
    pub revision: u64,
    /// How many proxies there are.
    pub members: u32,
    /// The part of what is not listed, in billionths.
    pub unlisted: u32,
    /// The part of everything after a long silence, in billionths.
    pub fallback: u32,
    /// Scopes whose grant is another now.
    pub grants: Vec<WireScopeGrant>,
    /// Metadata service that classes had of other proxies.
    pub elsewhere: Vec<WireRemoteService>,
}

/// Service to one class by all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRemoteService {
    /// The class.
    pub scope: WireScope,
    /// What the others served.
    pub elsewhere: WireServiceTotal,
    /// What is known of the proxy's own.
    pub own: WireServiceTotal,
}

/// Rules as the proxies of a controller are given them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesText {
    /// Tells this text from others.
    pub version: String,
    /// The text of the rule file.
    pub text: String,
}

/// What a controller is and how it fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerStatus {
    /// The version of the program.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Nanoseconds since it started.
    pub t_ns: u64,
    /// Its own number: greater than that of every controller before it.
    pub term: u64,
    /// Whether it decides. One that does not answers nothing else.
    pub leads: bool,
    /// Who decides instead, if that is known.
    pub leader: Option<String>,
    /// How long ago one that stands by had copied all that the leader had counted.
    pub copied_ns_ago: Option<u64>,
    /// Where it keeps what people decided.
    pub store: String,
    /// Where it listens.
    pub listeners: Vec<String>,
    /// The version of the rules.
    pub rules: String,
    /// Proxies that it knows.
    pub proxies: u64,
    /// Classes and meters of which proxies hold parts.
    pub scopes: u64,
}

/// Every proxy that a controller knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proxies {
    /// When it was read, in nanoseconds since the controller started.
    pub t_ns: u64,
    /// The proxies by name, once for each of their targets.
    pub proxies: Vec<WireProxyStatus>,
}

/// One proxy's standing with one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireProxyStatus {
    /// Its name.
    pub name: String,
    /// The target.
    pub target: String,
    /// Which of its lives.
    pub epoch: u64,
    /// How long ago it was heard.
    pub heard_ns_ago: u64,
    /// Whether it counts for all that it may be using, since it is silent.
    pub silent: bool,
    /// Whether another process reports under its name.
    #[serde(default)]
    pub duplicate: bool,
    /// The part of everything that it falls back to when it hears nothing, in billionths.
    pub fallback: u32,
    /// The revision that it was sent.
    pub sent: u64,
    /// The revision that it said is in force.
    pub acknowledged: u64,
}

/// What was used in a span of time, by subjects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageTable {
    /// The kind: `job`, `user`, `group`, `project`, `class`, `export`, `proxy` or `kind`.
    pub by: String,
    /// Its begin, in seconds since 1970.
    pub from_s: u64,
    /// Its end.
    pub to_s: u64,
    /// The subjects, the costliest first.
    pub rows: Vec<UsageRow>,
    /// Further subjects that are not listed.
    pub left_out: u64,
}

/// What one subject used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The job, user, …; `(other)` where there were too many.
    pub name: String,
    /// What it used.
    #[serde(flatten)]
    pub counters: WireCounters,
}
