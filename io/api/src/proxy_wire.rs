//! The messages between a proxy and its controller, and the status messages of a controller.
//!
//! ```text
//!   proxy ── ProxyReport: state of each target, usage ───────────► POST /v1/proxies/NAME/report
//!         ◄─ ControllerReply: grants of each target, rules, counted usage ─┘ held until it changes
//! ```
//!
//! The messages carry the types of `plan` exactly: shares are whole billionths and rates whole
//! numbers, so both sides have the same values, bit for bit. The name of the proxy is in the path,
//! its epoch in the report. Values from the wire become types of `plan` in `proxy_wire/forms.rs`,
//! or an error that names the value. A proxy sends the compact form of `proxy_wire/compact.rs`,
//! other callers JSON.

mod checked;
mod compact;
mod forms;
mod ops;
mod totals;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::accesses::WireAccesses;
use crate::why::{ProxyQuery, ProxyReply};

pub use checked::{CheckedLine, CheckedReport, CheckedUsage, ScopeInterner};
pub use compact::COMPACT_REPORT;
pub use forms::{WireKey, WireRate, WireScope, WireScopeGrant, WireWaits, WrongMessage};
pub use ops::WireOps;

/// The report of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyReport {
    /// Its epoch: increases with each start, in nanoseconds since 1970.
    pub epoch: u64,
    /// The version of the rules from the controller; absent if it has none.
    pub rules: Option<String>,
    /// The reports of its targets, for each target with changes.
    pub targets: BTreeMap<String, WireTargetReport>,
    /// The usage, about once per second.
    pub usage: Option<UsageReport>,
    /// Whether requests of several classes wait for one another at any target.
    #[serde(default)]
    pub contended: bool,
    /// Replies to queries, 8 at most.
    #[serde(default)]
    pub replies: Vec<ProxyReply>,
}

/// The report of one target, without name and epoch of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireTargetReport {
    /// The number of the report in this epoch, from 1.
    pub sequence: u64,
    /// The membership of the last received assignment.
    pub term: WireMembership,
    /// The number of the last received assignment in that membership.
    pub last_assignment: u64,
    /// The revision in force.
    pub revision: u64,
    /// Whether the lease has expired, so that assignments are no longer in force.
    pub lease_expired: bool,
    /// The shares in use, while no revision is in force.
    pub holdings: Option<WireHoldings>,
    /// The usage of each scope since the last report; absent if it was not read since then.
    pub uses: Option<Vec<WireScopeUsage>>,
    /// Total metadata service by class.
    pub served: Vec<WireScopeService>,
}

/// A membership at a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireMembership {
    /// The term of the controller.
    pub controller: u64,
    /// The number of the registration in that term.
    pub registration: u64,
}

/// All shares that a proxy has of a target, in billionths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireHoldings {
    /// The share of scopes that are not listed.
    pub unlisted: u32,
    /// The share to fall back to when the lease expires: 1/N.
    pub fallback: u32,
    /// The shares of single scopes.
    pub listed: Vec<WireWaits>,
}

/// The usage of one scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireScopeUsage {
    /// The scope that was used.
    #[serde(with = "compact::apart")]
    pub scope: WireScope,
    /// The usage in billionths of the whole limit; absent if only the weight is divided.
    pub used: Option<u32>,
    /// Whether requests wait for more.
    pub waiting: bool,
}

/// Metadata service to one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireScopeService {
    /// The scope of the class.
    pub scope: WireScope,
    /// The total in the current generation.
    pub served: WireServiceTotal,
}

/// A running total of service; a greater generation starts from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireServiceTotal {
    /// The generation of the total.
    pub generation: u64,
    /// The total in it.
    pub cost_ns: u64,
}

/// The usage of a proxy since its epoch began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageReport {
    /// The number of the usage report, which grows in an epoch.
    pub sequence: u64,
    /// Total service, with and without a line.
    pub total: WireCounters,
    /// Lines that changed since the last acknowledged usage report.
    pub lines: Vec<UsageLine>,
    /// Lines that it has dropped.
    pub dropped_lines: Vec<u64>,
}

/// The usage of one subject since the epoch of the proxy began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageLine {
    /// The number of the line at the proxy.
    pub id: u64,
    /// The subject of the line.
    #[serde(with = "compact::apart")]
    pub subject: WireSubjectId,
    /// The usage of the subject, cumulative.
    pub counters: WireCounters,
}

/// The subject of a line, with its class and export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireSubjectId {
    /// The job; empty if there is none.
    pub job: String,
    /// The user id of the subject.
    pub uid: u32,
    /// The primary group id of the user.
    pub gid: u32,
    /// The project quota id, if any.
    pub project: Option<u32>,
    /// The network name of the node; empty if it is not reported.
    #[serde(default)]
    pub nid: String,
    /// The directories of the rules in force in which it works: `model::PathSet`.
    #[serde(default)]
    pub paths: u64,
    /// The class in which it was served: its rule, and the values of that rule's `per`.
    #[serde(default)]
    pub class: String,
    /// The export that it used.
    #[serde(default)]
    pub export: String,
}

/// The cumulative amounts and operations of a subject or a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireCounters {
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// The cost of the requests to their targets.
    pub cost_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    #[serde(default)]
    pub delayed: u64,
    /// The time that these waited, summed up.
    #[serde(default)]
    pub delayed_ns: u64,
    /// The payload bytes of the delayed requests.
    #[serde(default)]
    pub delayed_bytes: u64,
    /// The time in which a job had requests, with the pauses between them of less than a second.
    /// It is counted once for each job at each target of a proxy; other sums add these up.
    #[serde(default)]
    pub active_ns: u64,
    /// The part of `active_ns` in which a limit or a cap on slots delayed at least one request.
    #[serde(default)]
    pub delayed_span_ns: u64,
    /// Operations by kind; kinds that are absent have none.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub ops: WireOps,
    /// The sizes and order of the reads.
    #[serde(default)]
    pub reads: WireAccesses,
    /// The sizes and order of the writes.
    #[serde(default)]
    pub writes: WireAccesses,
}

/// The reply of the controller to a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerReply {
    /// The term of the controller; another term means another leader.
    pub term: u64,
    /// The assignments by name of the target.
    pub targets: BTreeMap<String, WireTargetAssignment>,
    /// The rules, if the proxy has another version.
    pub rules: Option<RulesText>,
    /// The last usage report of this epoch that was counted.
    pub usage_acknowledged: Option<u64>,
    /// Queries, 8 at most.
    #[serde(default)]
    pub queries: Vec<ProxyQuery>,
    /// Whether another process reports under the same name; its reports are rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The assignment of one target, without name and epoch of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireTargetAssignment {
    /// The membership of the assignment.
    pub term: WireMembership,
    /// Its number in the membership, from 1.
    pub number: u64,
    /// The report to which it replies.
    pub in_reply_to: u64,
    /// Whether the controller is learning and raises no share.
    pub learning: bool,
    /// The revision since which it lists all changes.
    pub base: u64,
    /// The revision that is in force with it; 0 changes nothing.
    pub revision: u64,
    /// The number of proxies.
    pub proxies: u32,
    /// The share of scopes that are not listed, in billionths.
    pub unlisted: u32,
    /// The fallback share after the lease expires, in billionths.
    pub fallback: u32,
    /// Scopes with a changed grant.
    pub grants: Vec<WireScopeGrant>,
    /// Metadata service of classes by other proxies.
    pub remote_service: Vec<WireRemoteService>,
}

/// The service of one class by all other proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRemoteService {
    /// The scope of the class.
    pub scope: WireScope,
    /// The service by the others.
    pub total: WireServiceTotal,
    /// The known service of the proxy itself.
    pub local: WireServiceTotal,
}

/// The rules that a controller sends to its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesText {
    /// The version, which identifies this text.
    pub version: String,
    /// The text of the rule file.
    pub text: String,
}

/// The status of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerStatus {
    /// The version of the program.
    pub version: String,
    /// The process id of the controller.
    pub pid: u32,
    /// Nanoseconds since it started.
    pub t_ns: u64,
    /// Its term: greater than that of every leader before it.
    pub term: u64,
    /// Whether it is the leader. A standby serves nothing else.
    pub is_leader: bool,
    /// The leader, if this one is a standby and the leader is known.
    pub leader: Option<String>,
    /// How old a standby's copy of the leader's usage is.
    pub replication_lag_ns: Option<u64>,
    /// The store of rules, tokens and proxies.
    pub store: String,
    /// The addresses at which it listens.
    pub listeners: Vec<String>,
    /// The version of the rules.
    pub rules: String,
    /// The number of known proxies.
    pub proxies: u64,
    /// Classes and meters that are divided over proxies.
    pub scopes: u64,
}

/// All proxies of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proxies {
    /// When it was read, in nanoseconds since the controller started.
    pub t_ns: u64,
    /// The proxies by name, once for each of their targets.
    pub proxies: Vec<WireProxyStatus>,
}

/// The state of one proxy at one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireProxyStatus {
    /// The name of the proxy.
    pub name: String,
    /// The name of the target.
    pub target: String,
    /// The epoch of the proxy, which increases with each start.
    pub epoch: u64,
    /// How long ago its last report came.
    pub last_report_ns_ago: u64,
    /// Whether it is unreachable, so that its share is not reassigned.
    pub unreachable: bool,
    /// Whether another process reports under its name.
    #[serde(default)]
    pub duplicate: bool,
    /// The fallback share after its lease expires, in billionths.
    pub fallback: u32,
    /// The revision that was sent to it.
    pub sent: u64,
    /// The revision that it has acknowledged.
    pub acknowledged: u64,
}

/// The usage in a span of time, by subjects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageTable {
    /// The kind: `job`, `user`, `group`, `project`, `class`, `export`, `proxy` or `kind`.
    pub by: String,
    /// The start of the span, in seconds since 1970.
    pub from_s: u64,
    /// The end of the span.
    pub to_s: u64,
    /// The subjects, the costliest first.
    pub rows: Vec<UsageRow>,
    /// Further subjects that are not listed.
    pub omitted: u64,
}

/// The usage of one subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The job, user, …; `(other)` if there were too many.
    pub name: String,
    /// The usage in the span of time.
    #[serde(flatten)]
    pub counters: WireCounters,
}
