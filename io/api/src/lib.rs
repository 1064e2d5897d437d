//! The messages of the control API of proxy and controller, and metrics.
//!
//! ```text
//!   io/proxy ─► Status, Classes, Subjects, Rules, Connections ─┐ as JSON
//!   io/controller ─► Rules, Proxies, UsageTable, Why ──────────┴► io/http ─► sluice, the page, curl
//!   io/proxy ◄─ ControllerReply, ProxyReport ─► io/controller      as postcard
//!   MetricsPage, of the names in `metrics` ─► Prometheus
//!   Endpoints, Credentials: who calls where ─► io/http and native/library, by the same rules
//! ```
//!
//! Every message is a plain struct that serialises to the JSON of the same field
//! names, but for a proxy's report and its reply, which are postcard; the OpenAPI description is made from these structs, so code and
//! description agree. Counters only grow while a proxy runs: the rate is the difference
//! of two samples divided by the difference of their `t_ns`.

mod access;
mod address;
pub mod credentials;
mod critical;
mod describe;
mod descriptors;
mod edit;
mod endpoint;
mod error;
mod events;
mod files;
mod jobs;
mod messages;
pub mod metrics;
mod mounts;
mod page;
mod process;
mod proxy_wire;
mod report;
mod reservations;
mod rules;
mod schema;
mod scope;
pub mod why;

pub use self::rules::{
    DecayRuleReport, ExportProjects, LimitReport, ProjectsKnown, RuleLoad, WireMeter, WireRule,
    WireRuleDependency, WireRules,
};
pub use access::{
    AuditLine, AuditLines, MadeToken, NewToken, ParseRoleError, Role, TokenReport, Tokens,
};
pub use address::{ParseAddressError, ServerAddress};
pub use credentials::{Credentials, CredentialsError};
pub use critical::critical;
pub use describe::{described, query_names};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use edit::{RuleAction, RuleChange, WireRulePosition, key_edit};
pub use endpoint::{Endpoint, Endpoints, LocalhostError, ParseEndpointError};
pub use error::{ErrorCode, ErrorReport};
pub use events::{
    ControllerEvent, ControllerEvents, DecayAccountTable, DecayChange, EventKind, WireDecayAccount,
    WireDecayAccounts,
};
pub use files::{
    PrivateFileError, check_owner, check_private, close_directory, is_trusted, make_directory,
    private_options,
};
pub use jobs::{EndedJob, JobToken, NewJob, WireJob, WireJobs};
pub use messages::{
    Attach, ConnectionInfo, Connections, ControllerLink, CostPoint, ExportReport, GroupReport,
    ProxyStatus, ProxyTotals, TargetReport, Threads, WireClass, WireClasses, WireSubject,
    WireSubjects, WireUsage,
};
pub use mounts::{MountLink, MountStatus};
pub use page::{MetricFamily, MetricsPage};
pub use process::write_process_metrics;
pub use proxy_wire::{
    ALL_TARGETS, ControllerReply, ControllerStatus, DescribedCapacity, ExportDescription, Proxies,
    ProxyDescription, ProxyReport, REPLY_TYPE, REPORT_TYPE, ReportDecoder, RulesText,
    TargetDescription, UsageRow, UsageTable, WireProxyStatus,
};
pub use report::{
    ConcurrentJob, JobDelayCause, JobPattern, JobPoint, UndelayedRate, WireJobReport,
};
pub use reservations::{
    AddedPhase, CalendarResource, CalendarStep, LateRate, NewPhase, NewReservation,
    ReducedReservation, ReservationExtension, ReservationMove, WireCalendar, WireCredit, WirePhase,
    WireRefusal, WireReservation, WireReservationState, WireReservations,
};
pub use scope::{WireKey, WireRate, WireScope, WrongMessage};
pub use why::{
    DelayRow, DelayTable, LimitState, LiveSample, LiveUsage, ProxyQuery, ProxyReply, QueryKind,
    QueryReply, SlotHolder, Why, WhyDivision, WhyQuery, WhyReservation, WhySubject, WireDonation,
    WireWait, WireWaitKind, escaped,
};

/// The paths of the control API, shared by servers and client. STATUS, RULES and OPENAPI are
/// every server's; CLASSES, SUBJECTS and CONNECTIONS a proxy's; the others a controller's.
pub mod path {
    /// [`ProxyStatus`](crate::ProxyStatus), of a controller [`ControllerStatus`](crate::ControllerStatus).
    pub const STATUS: &str = "/v1/status";
    /// GET the classes of a proxy: [`WireClasses`](crate::WireClasses).
    pub const CLASSES: &str = "/v1/classes";
    /// GET the subjects of a proxy: [`WireSubjects`](crate::WireSubjects).
    pub const SUBJECTS: &str = "/v1/subjects";
    /// [`WireRules`](crate::WireRules) by GET; a new rule file's TOML text by PUT, with `If-Match`
    /// only over the version that it names, with `?save=true` into the proxy's rule file too.
    pub const RULES: &str = "/v1/rules";
    /// POST a [`RuleChange`](crate::RuleChange), get the [`WireRules`](crate::WireRules) as they are then.
    pub const RULE_EDITS: &str = "/v1/rules/edits";
    /// GET the open connections of a proxy: [`Connections`](crate::Connections).
    pub const CONNECTIONS: &str = "/v1/connections";
    /// GET the proxies of a controller and their shares: [`Proxies`](crate::Proxies).
    pub const PROXIES: &str = "/v1/proxies";
    /// One proxy: DELETE removes it.
    pub const PROXY: &str = "/v1/proxies/{name}";
    /// POST a [`ProxyReport`](crate::ProxyReport), get a [`ControllerReply`](crate::ControllerReply).
    pub const REPORT: &str = "/v1/proxies/{name}/report";
    /// [`Why`](crate::Why), a proxy's and a controller's.
    pub const WHY: &str = "/v1/why";
    /// GET the subjects that limits delayed longest: [`DelayTable`](crate::DelayTable).
    pub const WHY_TOP: &str = "/v1/why/top";
    /// GET the report of one job: [`WireJobReport`](crate::WireJobReport).
    pub const JOB_REPORT: &str = "/v1/report";
    /// GET the current activity of all proxies: [`LiveUsage`](crate::LiveUsage).
    pub const LIVE: &str = "/v1/live";
    /// GET the usage in a span of time: [`UsageTable`](crate::UsageTable).
    pub const USAGE: &str = "/v1/usage";
    /// GET the accounts of all decays: [`WireDecayAccounts`](crate::WireDecayAccounts).
    pub const DECAYS: &str = "/v1/decays";
    /// [`ControllerEvents`](crate::ControllerEvents), or a stream of them with `Accept: text/event-stream`.
    pub const EVENTS: &str = "/v1/events";

    /// [`WireReservations`](crate::WireReservations) by GET; POST a
    /// [`NewReservation`](crate::NewReservation), get a [`WireReservation`](crate::WireReservation).
    pub const RESERVATIONS: &str = "/v1/reservations";
    /// One reservation: [`WireReservation`](crate::WireReservation) by GET, with `?until=active&wait=30s`
    /// once it is; DELETE removes it.
    pub const RESERVATION: &str = "/v1/reservations/{id}";
    /// POST tests a reservation for its owner: the first test that finds it active claims it.
    pub const RESERVATION_CLAIM: &str = "/v1/reservations/{id}/claim";
    /// POST an [`AddedPhase`](crate::AddedPhase) to reserve more for a part of its time.
    pub const RESERVATION_PHASES: &str = "/v1/reservations/{id}/phases";
    /// POST a [`ReservationExtension`](crate::ReservationExtension) to end it later.
    pub const RESERVATION_EXTEND: &str = "/v1/reservations/{id}/extend";
    /// POST a [`ReservationMove`](crate::ReservationMove) to have it start at another time.
    pub const RESERVATION_MOVE: &str = "/v1/reservations/{id}/move";
    /// POST ends a reservation early, for a credit.
    pub const RESERVATION_FINISH: &str = "/v1/reservations/{id}/finish";
    /// GET what is promised of each resource: [`WireCalendar`](crate::WireCalendar).
    pub const CALENDAR: &str = "/v1/calendar";
    /// GET the credit of a user or account: [`WireCredit`](crate::WireCredit).
    pub const CREDIT: &str = "/v1/credit";

    /// GET the registered jobs: [`WireJobs`](crate::WireJobs).
    pub const JOBS: &str = "/v1/jobs";
    /// One job: PUT a [`NewJob`](crate::NewJob), get a [`WireJob`](crate::WireJob), as by GET; DELETE ends it,
    /// with `?attempt=N` only if no later attempt is registered: [`EndedJob`](crate::EndedJob).
    pub const JOB: &str = "/v1/jobs/{job}";
    /// POST makes no token but returns that of the job: [`JobToken`](crate::JobToken).
    pub const JOB_TOKEN: &str = "/v1/jobs/{job}/token";

    /// One of the paths of a job.
    pub fn job(path: &str, job: &str) -> String {
        path.replace("{job}", &crate::escaped(job))
    }

    /// One of the paths of a reservation.
    pub fn reservation(path: &str, id: u64) -> String {
        path.replace("{id}", &id.to_string())
    }

    /// [`PROXY`] of a proxy; its name needs no escapes, as [`is_name`](crate::is_name) ensures.
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
    /// One token: DELETE revokes it.
    pub const TOKEN: &str = "/v1/tokens/{name}";
    /// GET the audit log of a controller: [`AuditLines`](crate::AuditLines).
    pub const AUDIT: &str = "/v1/audit";

    /// [`TOKEN`] of a name.
    pub fn token(name: &str) -> String {
        TOKEN.replace("{name}", name)
    }

    /// Changes of the ledger since the last request of a standby controller.
    pub const LEDGER_CHANGES: &str = "/v1/ledger/changes";
    /// The whole ledger, as a file.
    pub const LEDGER_FILE: &str = "/v1/ledger/file";

    /// The metrics of [`crate::metrics`], as Prometheus text.
    pub const METRICS: &str = "/metrics";
    /// The OpenAPI description of all of these.
    pub const OPENAPI: &str = "/openapi.json";
}

/// Returns whether a proxy may have this name: 1 to 63 letters, digits, `_`, `-` and `.`, the
/// first a letter or digit. Names appear in paths, tables and metrics.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first && name.len() <= 63 && name.bytes().all(plain)
}
