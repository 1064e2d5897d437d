//! Error codes: what a program compares, where a person reads the message.
//!
//! ```text
//!   handler ─► ErrorCode, message, at ─► ErrorReport ─► HTTP: the code's status, the report as JSON
//!                                                          └─► ClientError::code ─► sluice --json
//! ```
//!
//! A code keeps its meaning and its HTTP status; messages may change with every version. The table
//! in docs/CONTROLLER.md is made from this file.

use std::error::Error;
use std::fmt;

use rules::{RuleEditError, RuleFileError};
use serde::{Deserialize, Serialize};
use serde_path_to_error::Error as PathError;
use utoipa::ToSchema;

use crate::reservations::WireRefusal;

/// Defines the codes: documentation, which is also the meaning, variant, name and HTTP status.
macro_rules! error_codes {
    ($($(#[doc = $means:literal])+ $code:ident = $name:literal, $status:literal;)*) => {
        /// The kind of an error, of a server or of the command `sluice`.
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize, ToSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[doc = $means])+ $code,)*
            /// A code that this version does not know.
            #[default]
            #[serde(other)]
            Unknown,
        }

        impl ErrorCode {
            /// Every code but [`ErrorCode::Unknown`].
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$code),*];

            /// Returns the name in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $name,)*
                    ErrorCode::Unknown => "unknown",
                }
            }

            /// Returns the HTTP status of a reply with this code; 500 for codes that only the
            /// command has.
            pub const fn status(self) -> u16 {
                match self {
                    $(ErrorCode::$code => $status,)*
                    ErrorCode::Unknown => 500,
                }
            }

            /// Returns the meaning: one or two sentences.
            pub fn meaning(self) -> &'static str {
                let text = match self {
                    $(ErrorCode::$code => concat!($($means),+),)*
                    ErrorCode::Unknown => "A code that this version does not know.",
                };
                text.trim_start()
            }
        }
    };
}

error_codes! {
    /// A parameter, a header, a name in the path, a value of the body or a flag is invalid.
    InvalidArgument = "invalid_argument", 400;
    /// The rules, or a change of them, are invalid; `at` is `line:column` if there is a position.
    InvalidRules = "invalid_rules", 400;
    /// A token is required, or this one is unknown or has expired.
    Unauthenticated = "unauthenticated", 401;
    /// The call requires another role, or shows data of another user.
    PermissionDenied = "permission_denied", 403;
    /// The call has an `Origin` or `Host` header that the server does not permit.
    WrongHost = "wrong_host", 403;
    /// The path does not exist, or the object that the path or a parameter names.
    NotFound = "not_found", 404;
    /// The path does not have this method.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The call was not completed in time.
    Timeout = "timeout", 408;
    /// The rules no longer have the version in `If-Match`; read them again.
    VersionConflict = "version_conflict", 409;
    /// A rule or token of this name exists.
    AlreadyExists = "already_exists", 409;
    /// The change would leave the controller without a token that can create others.
    LastAdminToken = "last_admin_token", 409;
    /// The reservation does not fit; `refusal` names the bottleneck, the next start and what fits.
    DoesNotFit = "does_not_fit", 409;
    /// The controller stores the maximum number of tokens, or a ceiling of reservations is reached.
    LimitReached = "limit_reached", 409;
    /// The job is registered to another user, or a later attempt of it is.
    JobRegistered = "job_registered", 409;
    /// Another process reports as this proxy and started later.
    DuplicateName = "duplicate_name", 409;
    /// A controller publishes the rules of this proxy; `leader` is its URL.
    RulesManaged = "rules_managed", 409;
    /// Another process reported as this proxy and has ended; report with a new epoch.
    EpochSuperseded = "epoch_superseded", 410;
    /// The ledger no longer has the changes since this cursor; copy the whole ledger.
    CursorExpired = "cursor_expired", 410;
    /// The body is too long, or the rules are too long to be stored.
    TooLarge = "too_large", 413;
    /// The call does not accept this content type.
    UnsupportedMediaType = "unsupported_media_type", 415;
    /// This controller is a standby; `leader` is the URL of the leader.
    NotLeader = "not_leader", 421;
    /// This controller is a standby and no leader is elected; retry in 5 s.
    NoLeader = "no_leader", 421;
    /// The body is JSON, but not a message of this call.
    InvalidMessage = "invalid_message", 422;
    /// The rules cannot be saved, because the proxy was started without a rule file.
    NoRuleFile = "no_rule_file", 422;
    /// The rules cannot be saved, because the rule file was edited since the proxy read it.
    RuleFileEdited = "rule_file_edited", 422;
    /// The server failed.
    Internal = "internal", 500;
    /// The server cannot read or write its store or its files.
    StoreFailed = "store_failed", 500;
    /// The server is overloaded, or the caller has too many calls; retry in 1 s.
    Overloaded = "overloaded", 503;
    /// The rules were changed by others during each attempt; retry.
    Contended = "contended", 503;
    /// The server is shutting down.
    ShuttingDown = "shutting_down", 503;
    /// The command cannot connect to the server, or the connection broke.
    Unreachable = "unreachable", 500;
    /// The command cannot read or write a local file.
    Io = "io", 500;
    /// The command failed for another reason.
    Failed = "failed", 500;
}

impl ErrorCode {
    /// Returns the general code of an HTTP status, for a reply without one.
    pub fn of_status(status: u16) -> ErrorCode {
        match status {
            400 => ErrorCode::InvalidArgument,
            401 => ErrorCode::Unauthenticated,
            403 => ErrorCode::PermissionDenied,
            404 => ErrorCode::NotFound,
            405 => ErrorCode::MethodNotAllowed,
            408 => ErrorCode::Timeout,
            413 => ErrorCode::TooLarge,
            415 => ErrorCode::UnsupportedMediaType,
            421 => ErrorCode::NotLeader,
            422 => ErrorCode::InvalidMessage,
            500 => ErrorCode::Internal,
            503 => ErrorCode::Overloaded,
            _ => ErrorCode::Unknown,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a call was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReport {
    /// The kind of the error, for programs.
    pub code: ErrorCode,
    /// One or more lines for people, with the place in the file where there is one.
    pub message: String,
    /// The parameter, header, name in the path or field at fault, or `line:column` of rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The endpoint of the controller to call instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Why a reservation does not fit, and what would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<WireRefusal>>,
}

impl ErrorReport {
    /// Makes a report without a place.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ErrorReport {
        ErrorReport { code, message: message.into(), at: None, leader: None, refusal: None }
    }

    /// Makes the report of an error in rules, with its line and column.
    pub fn of_rules(error: &RuleFileError) -> ErrorReport {
        ErrorReport::new(ErrorCode::InvalidRules, error.in_file("rules")).at(error.position())
    }

    /// Makes the report of a change that was not made to the text of rules.
    pub fn of_edit(error: &RuleEditError) -> ErrorReport {
        let report = |code| ErrorReport::new(code, error.to_string());
        match error {
            RuleEditError::NoRule { .. } => report(ErrorCode::NotFound).at("name"),
            RuleEditError::Exists { .. } => report(ErrorCode::AlreadyExists).at("name"),
            RuleEditError::Before(error) | RuleEditError::After(error) => {
                report(ErrorCode::InvalidRules).at(error.position())
            }
            RuleEditError::Needed { .. }
            | RuleEditError::DefaultPosition
            | RuleEditError::NoDefault
            | RuleEditError::Empty
            | RuleEditError::Unfit(_) => report(ErrorCode::InvalidRules),
        }
    }

    /// Makes the report of a call that could not be decoded, from the status and text that the HTTP
    /// library gave it. Names the parameter or field at fault if the cause `why` does.
    pub fn of_rejection(status: u16, message: String, why: &(dyn Error + 'static)) -> ErrorReport {
        let code = ErrorCode::of_status(status);
        let at = match code {
            ErrorCode::UnsupportedMediaType => Some("Content-Type".into()),
            _ => path_of(why),
        };
        ErrorReport { at, ..ErrorReport::new(code, message) }
    }

    /// Names what is at fault.
    pub fn at(self, at: impl Into<String>) -> ErrorReport {
        ErrorReport { at: Some(at.into()), ..self }
    }
}

/// Returns the path of the value that could not be decoded, such as `user` or `targets.fs.sequence`.
fn path_of(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<PathError<serde::de::value::Error>>() {
            return field_of(&error.path().to_string(), error.inner());
        }
        if let Some(error) = error.downcast_ref::<PathError<serde_json::Error>>() {
            return field_of(&error.path().to_string(), error.inner());
        }
        if let Some(error) = error.downcast_ref::<serde_json::Error>() {
            return field_of(".", error);
        }
        cause = error.source();
    }
    None
}

/// Returns the path of a field. The path of a missing or an unknown one is that of its parent, and
/// serde names it in its text only.
fn field_of(path: &str, error: &dyn Error) -> Option<String> {
    let text = error.to_string();
    let mut kinds = ["missing field `", "unknown field `"].into_iter();
    let name = kinds.find_map(|kind| text.strip_prefix(kind)?.split('`').next());
    let parent = path.trim_end_matches('?').trim_end_matches('.');
    match (parent, name) {
        ("", name) => name.map(str::to_owned),
        (parent, None) => Some(parent.to_owned()),
        (parent, Some(name)) if parent.rsplit('.').next() == Some(name) => Some(parent.to_owned()),
        (parent, Some(name)) => Some(format!("{parent}.{name}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn each_code_has_a_name_of_its_own_a_status_and_a_meaning() {
        let names: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            let name = code.name();
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(serde_json::to_value(code).unwrap(), name);
            assert_eq!(serde_json::from_value::<ErrorCode>(name.into()).unwrap(), *code);
            assert!((400..600).contains(&code.status()), "{name}");
            assert!(code.meaning().ends_with('.') && code.meaning().len() < 120, "{name}");
        }
    }

    #[test]
    fn the_schema_has_the_names_of_json() {
        let schema = serde_json::to_value(<ErrorCode as utoipa::PartialSchema>::schema()).unwrap();
        let names = ErrorCode::ALL.iter().chain(&[ErrorCode::Unknown]).map(|code| code.name());
        assert_eq!(schema["enum"], serde_json::json!(names.collect::<Vec<_>>()));
    }

    #[test]
    fn a_general_code_has_the_status_that_it_is_made_from() {
        for status in 400..600 {
            let code = ErrorCode::of_status(status);
            assert!(code == ErrorCode::Unknown || code.status() == status, "{status} is {code}");
        }
    }

    #[test]
    fn a_code_of_a_newer_server_is_unknown_and_the_rest_is_read() {
        let text = r#"{"code":"too_early","message":"wait","at":"x","more":1}"#;
        let report: ErrorReport = serde_json::from_str(text).unwrap();
        assert_eq!(report, ErrorReport::new(ErrorCode::Unknown, "wait").at("x"));
        let text = serde_json::to_string(&ErrorReport::new(ErrorCode::NotFound, "no")).unwrap();
        assert_eq!(text, r#"{"code":"not_found","message":"no"}"#);
    }

    #[test]
    fn an_error_in_a_message_names_the_field() {
        for (text, at) in [
            (r#"{"job":"a","user":"x"}"#, Some("user")),
            (r#"{"colour":"red"}"#, Some("colour")),
            (r#"{"#, None),
        ] {
            let mut json = serde_json::Deserializer::from_str(text);
            let wrong = serde_path_to_error::deserialize::<_, crate::WhyQuery>(&mut json);
            let wrong = wrong.unwrap_err();
            let report = ErrorReport::of_rejection(422, wrong.to_string(), &wrong);
            assert_eq!((report.code, report.at.as_deref()), (ErrorCode::InvalidMessage, at));
        }
        let wrong = serde_json::from_str::<crate::NewToken>(r#"{"name":"a"}"#).unwrap_err();
        let report = ErrorReport::of_rejection(422, wrong.to_string(), &wrong);
        assert_eq!(report.at.as_deref(), Some("role"));
    }

    #[test]
    fn the_table_in_the_document_has_each_code() {
        let mut table = String::from("| code | HTTP status | meaning |\n|---|---|---|\n");
        for code in ErrorCode::ALL {
            let status = match code {
                ErrorCode::Unreachable | ErrorCode::Io | ErrorCode::Failed => {
                    "command only".to_owned()
                }
                _ => code.status().to_string(),
            };
            writeln!(table, "| `{code}` | {status} | {} |", code.meaning()).unwrap();
        }
        let document = include_str!("../../../docs/CONTROLLER.md");
        assert!(document.contains(&table), "docs/CONTROLLER.md needs this table:\n{table}");
    }
}
