//! The errors of calls: a code for programs and a sentence for people.

use std::error::Error;
use std::fmt;

use api::{CredentialsError, ErrorCode, ErrorReport, WireRefusal};

/// The codes of `sluice.h`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum CallErrorCode {
    /// An argument is invalid.
    InvalidArgument = -1,
    /// A setting is invalid: an address, a certificate or a token file.
    Settings = -2,
    /// No controller can be reached.
    Unreachable = -3,
    /// The time limit has passed.
    TimedOut = -4,
    /// Another thread has cancelled the call.
    Cancelled = -5,
    /// The reservation does not fit.
    DoesNotFit = -6,
    /// A ceiling of reservations is reached.
    LimitReached = -7,
    /// The reservation does not exist, or has ended.
    NotFound = -8,
    /// A token is required, or this one is invalid.
    Unauthenticated = -9,
    /// The token does not permit the call.
    PermissionDenied = -10,
    /// The controller refused the call for another reason.
    Refused = -11,
    /// The reply is not one of a controller.
    Protocol = -12,
    /// No controller leads, or the leader is overloaded.
    Unavailable = -13,
    /// The other side is not the controller that was expected.
    Untrusted = -14,
    /// The connection broke: it is unknown whether the call was executed.
    InDoubt = -15,
    /// The reservation ended before it was active.
    Ended = -16,
    /// The library or the controller failed.
    Internal = -17,
    /// The buffer of the caller is too small.
    BufferTooSmall = -18,
}

impl CallErrorCode {
    /// Every code, in the order of its number.
    pub(crate) const ALL: [CallErrorCode; 18] = [
        CallErrorCode::InvalidArgument,
        CallErrorCode::Settings,
        CallErrorCode::Unreachable,
        CallErrorCode::TimedOut,
        CallErrorCode::Cancelled,
        CallErrorCode::DoesNotFit,
        CallErrorCode::LimitReached,
        CallErrorCode::NotFound,
        CallErrorCode::Unauthenticated,
        CallErrorCode::PermissionDenied,
        CallErrorCode::Refused,
        CallErrorCode::Protocol,
        CallErrorCode::Unavailable,
        CallErrorCode::Untrusted,
        CallErrorCode::InDoubt,
        CallErrorCode::Ended,
        CallErrorCode::Internal,
        CallErrorCode::BufferTooSmall,
    ];
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) code: CallErrorCode,
    pub(crate) text: String,
    pub(crate) refusal: Option<Box<WireRefusal>>,
    /// The parameter that the controller names as being at fault.
    pub(crate) at: Option<String>,
    /// Whether the call may have been executed before the one that this is the reply to.
    pub(crate) is_of_second: bool,
}

impl CallError {
    pub(crate) fn new(code: CallErrorCode, text: impl fmt::Display) -> CallError {
        CallError { code, text: text.to_string(), refusal: None, at: None, is_of_second: false }
    }

    pub(crate) fn argument(text: impl fmt::Display) -> CallError {
        CallError::new(CallErrorCode::InvalidArgument, text)
    }

    pub(crate) fn settings(text: impl fmt::Display) -> CallError {
        CallError::new(CallErrorCode::Settings, text)
    }

    /// The error of a reply with this status.
    pub(crate) fn of_reply(status: u16, body: &[u8]) -> CallError {
        let Ok(report) = serde_json::from_slice::<ErrorReport>(body) else {
            let text = format!("HTTP status {status} without the reason that a controller gives");
            return CallError::new(code_without_report(status), text);
        };
        let code = match report.code {
            ErrorCode::InvalidArgument | ErrorCode::InvalidMessage => {
                CallErrorCode::InvalidArgument
            }
            ErrorCode::Unauthenticated => CallErrorCode::Unauthenticated,
            ErrorCode::PermissionDenied => CallErrorCode::PermissionDenied,
            ErrorCode::NotFound => CallErrorCode::NotFound,
            ErrorCode::DoesNotFit => CallErrorCode::DoesNotFit,
            ErrorCode::LimitReached => CallErrorCode::LimitReached,
            ErrorCode::NotLeader
            | ErrorCode::NoLeader
            | ErrorCode::Overloaded
            | ErrorCode::Contended => CallErrorCode::Unavailable,
            // It may have been executed, or be executed later: the reply is lost.
            ErrorCode::Timeout | ErrorCode::ShuttingDown => CallErrorCode::InDoubt,
            ErrorCode::Internal | ErrorCode::StoreFailed => CallErrorCode::Internal,
            _ => CallErrorCode::Refused,
        };
        let ErrorReport { message, at, refusal, .. } = report;
        CallError { code, text: message, refusal, at, is_of_second: false }
    }
}

/// With its cause, such as the error of the system.
impl From<CredentialsError> for CallError {
    fn from(error: CredentialsError) -> CallError {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        CallError::settings(text)
    }
}

/// The code of a status alone: of what stands before a controller, or of no controller at all.
fn code_without_report(status: u16) -> CallErrorCode {
    match status {
        421 | 429 | 503 => CallErrorCode::Unavailable,
        // A gateway has passed it on.
        408 | 502 | 504 => CallErrorCode::InDoubt,
        500.. => CallErrorCode::Internal,
        _ => CallErrorCode::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_alone_is_no_refusal_of_a_controller() {
        let of = |status: u16, body: &str| CallError::of_reply(status, body.as_bytes()).code;
        for status in [301, 400, 401, 403, 404, 409] {
            assert_eq!(of(status, "<html>"), CallErrorCode::Protocol, "{status}");
        }
        for status in [421, 429, 503] {
            assert_eq!(of(status, ""), CallErrorCode::Unavailable, "{status}");
        }
        for status in [408, 502, 504] {
            assert_eq!(of(status, "{}"), CallErrorCode::InDoubt, "{status}");
        }
        assert_eq!(of(500, ""), CallErrorCode::Internal);
        let report = |code: &str| format!(r#"{{"code":"{code}","message":"why"}}"#);
        assert_eq!(of(404, &report("not_found")), CallErrorCode::NotFound);
        assert_eq!(of(408, &report("timeout")), CallErrorCode::InDoubt);
        assert_eq!(of(503, &report("shutting_down")), CallErrorCode::InDoubt);
        assert_eq!(of(503, &report("overloaded")), CallErrorCode::Unavailable);
        assert_eq!(of(409, &report("of_a_later_version")), CallErrorCode::Refused);
    }
}
