//! What the proxy tells and takes over its control socket, and a small client for it.
//!
//! ```text
//!   sluice top, sluice rule ─► Client ──HTTP/JSON, Unix socket──► io/proxy's control server
//!                                ◄── Status, Classes, Subjects, Rules, Connections ──┘
//! ```
//!
//! Every message is a plain struct that serialises to the JSON of the same field
//! names; the OpenAPI description is made from these structs, so code and
//! description cannot part. Counters only ever grow while a proxy lives: who wants
//! rates takes two samples and divides by the difference of their `t_ns`.

mod address;
mod client;
mod messages;
mod rules;

pub use address::{Address, ParseAddressError};
pub use client::{Client, ClientError};
pub use messages::{
    Attach, ClassReport, Classes, Connection, Connections, ErrorReport, ExportReport, Status,
    SubjectReport, Subjects, TargetReport, Threads, Totals, Usage,
};
pub use rules::{LimitReport, MeterReport, ParentReport, RuleLoad, RuleReport, Rules};

/// The paths of the control API, shared by server and client.
pub mod path {
    /// [`Status`](crate::Status).
    pub const STATUS: &str = "/v1/status";
    /// [`Classes`](crate::Classes).
    pub const CLASSES: &str = "/v1/classes";
    /// [`Subjects`](crate::Subjects).
    pub const SUBJECTS: &str = "/v1/subjects";
    /// [`Rules`](crate::Rules) by GET; a new rule file's TOML text by PUT, with `If-Match`
    /// only over the version that it names, with `?save=true` into the proxy's rule file too.
    pub const RULES: &str = "/v1/rules";
    /// [`Connections`](crate::Connections).
    pub const CONNECTIONS: &str = "/v1/connections";
    /// The OpenAPI description of all of these.
    pub const OPENAPI: &str = "/openapi.json";
}
