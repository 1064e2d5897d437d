//! The messages between a proxy and its controller, and the status messages of a controller.
//!
//! ```text
//!   proxy ── ProxyReport: state of each target, usage ───────────► POST /v1/proxies/NAME/report
//!         ◄─ ControllerReply: grants of each target, rules, counted usage ─┘ held until it changes
//! ```
//!
//! Reports and replies have one form, postcard (`proxy_wire/codec.rs`), and carry the types of `plan`
//! and `usage` exactly, so both sides have the same values, bit for bit. The name of the proxy is in
//! the path, its epoch in the report.

mod codec;
mod description;

use std::sync::Arc;

use model::Service;
use plan::{Assignment, ShareReport};
use serde::{Deserialize, Serialize};
use usage::UsageReport;
use utoipa::ToSchema;

use crate::access::Role;
use crate::schema::ServiceSchema;
use crate::why::{ProxyQuery, ProxyReply};

pub use codec::{REPLY_TYPE, REPORT_TYPE, ReportDecoder};
pub use description::{DescribedCapacity, ExportDescription, ProxyDescription, TargetDescription};

/// The name under which a proxy reports its limits, which are one over all its targets. No target
/// has it.
pub const ALL_TARGETS: &str = "*";

/// The report of a proxy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProxyReport {
    /// Its epoch: increases with each start, in nanoseconds since 1970.
    pub epoch: u64,
    /// The version of the rules from the controller; absent if it has none.
    pub rules: Option<String>,
    /// The reports of its targets, for each target with changes; that of its limits under
    /// [`ALL_TARGETS`]. What the proxy has (`scopes`) is one of all: it travels once, from the first
    /// that names it.
    pub targets: Vec<(Arc<str>, ShareReport)>,
    /// The usage, about once per second.
    pub usage: Option<UsageReport>,
    /// Whether requests of several classes wait for one another at any target.
    pub contended: bool,
    /// Replies to queries, 8 at most.
    pub replies: Vec<ProxyReply>,
    /// What it has: when that has changed until it is answered, and each minute.
    pub description: Option<Arc<ProxyDescription>>,
}

/// The reply of the controller to a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControllerReply {
    /// The term of the controller; another term means another leader.
    pub term: u64,
    /// The assignments by name of the target; those of limits under [`ALL_TARGETS`].
    pub targets: Vec<(Arc<str>, Assignment)>,
    /// The rules, if the proxy has another version.
    pub rules: Option<RulesText>,
    /// The last usage report of this epoch that was counted.
    pub usage_acknowledged: Option<u64>,
    /// Queries, 8 at most.
    pub queries: Vec<ProxyQuery>,
    /// Whether another process reports under the same name; its reports are rejected.
    pub duplicate: bool,
}

/// The rules that a controller sends to its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// The role of the caller. A standby does not ask who calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
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
    /// The service in the span of time.
    #[serde(flatten)]
    #[schema(value_type = ServiceSchema)]
    pub service: Service,
}
