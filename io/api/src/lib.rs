//! What proxy and controller tell and take over their control API, a small client for it, and
//! metrics.
//!
//! ```text
//!   sluice top, sluice rule ─► Client ──HTTP/JSON, Unix socket──► io/proxy's control server
//!                                ◄── Status, Classes, Subjects, Rules, Connections ──┘
//!   sluice rule, io/proxy   ─► Client ──HTTP/JSON, TLS or Unix──► io/controller
//!                                ◄── Rules, ProxyOrder, Proxies, UsageTable ──┘
//!   Prometheus ─► MetricsServer ─► Page, of the names in `metrics`     proxies and mounts
//! ```
//!
//! Every message is a plain struct that serialises to the JSON of the same field
//! names; the OpenAPI description is made from these structs, so code and
//! description cannot part. Counters only ever grow while a proxy lives: who wants
//! rates takes two samples and divides by the difference of their `t_ns`.

mod access;
mod accesses;
mod address;
mod client;
pub mod credentials;
mod critical;
mod describe;
mod descriptors;
mod edit;
mod endpoint;
mod events;
mod files;
mod hosts;
mod link;
mod messages;
pub mod metrics;
mod mounts;
mod page;
mod process;
mod report;
mod rules;
mod scrape;
mod socket;
pub mod why;

pub use access::{
    AuditLine, AuditLines, MadeToken, NewToken, ParseRoleError, Role, TokenReport, Tokens,
};
pub use accesses::AccessesForm;
pub use address::{Address, ParseAddressError};
pub use client::{Client, ClientError};
pub use credentials::{Credentials, CredentialsError};
pub use critical::critical;
pub use describe::{AnyAnswer, described, query_names};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use edit::{Place, RuleAction, RuleChange, key_edit};
pub use endpoint::{Endpoint, Endpoints, ParseEndpointError};
pub use events::{DecayAccount, DecayAccounts, DecayChange, Decays, Event, EventKind, Events};
pub use files::{
    PrivateFileError, check_private, close_directory, make_directory, private_options,
};
pub use hosts::{AllowedHosts, HostName, HostRefused, ParseHostNameError};
pub use link::{
    COMPACT_REPORT, ControllerStatus, CountersForm, GrantOf, HeldForm, HoldingsForm, KeyForm,
    Named, OpsForm, PayerForm, Proxies, ProxyOrder, ProxyReport, ProxyStanding, RateForm,
    RulesText, ScopeForm, ServedForm, ServedOf, TakenLine, TakenReport, TakenUsage,
    TargetOrderForm, TargetReportForm, TermForm, ToldOf, UsageLine, UsageReport, UsageRow,
    UsageTable, UseOf, WrongMessage,
};
pub use messages::{
    Attach, ClassReport, Classes, Connection, Connections, ControllerLink, CostPoint, ErrorReport,
    ExportReport, Status, SubjectReport, Subjects, TargetReport, Threads, Totals, Usage,
};
pub use mounts::{MountLink, MountStatus};
pub use page::{Family, Page};
pub use process::tell_process;
pub use report::{JobBeside, JobHolder, JobPattern, JobPoint, JobReport};
pub use rules::{
    DecayRuleReport, ExportProjects, LimitReport, MeterReport, ParentReport, ProjectsKnown,
    RuleLoad, RuleReport, Rules,
};
pub use scrape::{MetricsAddress, MetricsError, MetricsServer, ParseMetricsAddressError};
pub use socket::{ListenerError, Listening, SocketError, check_listener};
pub use why::{
    Answer, DelayRow, DelayTable, Donation, Hold, HoldKind, LimitNow, Live, LiveSample,
    ProxyAnswer, ProxyQuestion, Question, Why, WhyQuery, WhySubject,
};

/// The paths of the control API, shared by servers and client. STATUS, RULES and OPENAPI are
/// every server's; CLASSES, SUBJECTS and CONNECTIONS a proxy's; the others a controller's.
pub mod path {
    /// [`Status`](crate::Status), of a controller [`ControllerStatus`](crate::ControllerStatus).
    pub const STATUS: &str = "/v1/status";
    /// [`Classes`](crate::Classes).
    pub const CLASSES: &str = "/v1/classes";
    /// [`Subjects`](crate::Subjects).
    pub const SUBJECTS: &str = "/v1/subjects";
    /// [`Rules`](crate::Rules) by GET; a new rule file's TOML text by PUT, with `If-Match`
    /// only over the version that it names, with `?save=true` into the proxy's rule file too.
    pub const RULES: &str = "/v1/rules";
    /// POST a [`RuleChange`](crate::RuleChange), get the [`Rules`](crate::Rules) as they are then.
    pub const RULE_EDITS: &str = "/v1/rules/edits";
    /// [`Connections`](crate::Connections).
    pub const CONNECTIONS: &str = "/v1/connections";
    /// [`Proxies`](crate::Proxies).
    pub const PROXIES: &str = "/v1/proxies";
    /// One of them: DELETE forgets it.
    pub const PROXY: &str = "/v1/proxies/{name}";
    /// POST a [`ProxyReport`](crate::ProxyReport), get a [`ProxyOrder`](crate::ProxyOrder).
    pub const REPORT: &str = "/v1/proxies/{name}/report";
    /// [`Why`](crate::Why), a proxy's and a controller's.
    pub const WHY: &str = "/v1/why";
    /// [`DelayTable`](crate::DelayTable).
    pub const WHY_TOP: &str = "/v1/why/top";
    /// [`JobReport`](crate::JobReport).
    pub const JOB_REPORT: &str = "/v1/report";
    /// [`Live`](crate::Live).
    pub const LIVE: &str = "/v1/live";
    /// [`UsageTable`](crate::UsageTable).
    pub const USAGE: &str = "/v1/usage";
    /// [`Decays`](crate::Decays).
    pub const DECAYS: &str = "/v1/decays";
    /// [`Events`](crate::Events), or each as it comes for who accepts `text/event-stream`.
    pub const EVENTS: &str = "/v1/events";

    /// [`PROXY`] of a proxy; its name needs no escapes, as [`is_name`](crate::is_name) sees to.
    pub fn proxy(name: &str) -> String {
        PROXY.replace("{name}", name)
    }

    /// [`REPORT`] of a proxy.
    pub fn report(name: &str) -> String {
        REPORT.replace("{name}", name)
    }

    /// [`Tokens`](crate::Tokens) by GET; POST a [`NewToken`](crate::NewToken), get a
    /// [`MadeToken`](crate::MadeToken).
    pub const TOKENS: &str = "/v1/tokens";
    /// One of them: DELETE revokes it.
    pub const TOKEN: &str = "/v1/tokens/{name}";
    /// [`AuditLines`](crate::AuditLines).
    pub const AUDIT: &str = "/v1/audit";

    /// [`TOKEN`] of a name.
    pub fn token(name: &str) -> String {
        TOKEN.replace("{name}", name)
    }

    /// What its ledger took since a controller that stands by asked last.
    pub const LEDGER_CHANGES: &str = "/v1/ledger/changes";
    /// Its whole ledger, a file.
    pub const LEDGER_FILE: &str = "/v1/ledger/file";

    /// The metrics of [`crate::metrics`], as Prometheus text.
    pub const METRICS: &str = "/metrics";
    /// The OpenAPI description of all of these.
    pub const OPENAPI: &str = "/openapi.json";
}

/// Whether a proxy may have this name: 1 to 63 letters, digits, `_`, `-` and `.`, the first a
/// letter or digit. Names stand in paths, tables and metrics.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first && name.len() <= 63 && name.bytes().all(plain)
}
