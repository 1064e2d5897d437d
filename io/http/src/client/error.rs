//! The errors of a call, and the refusals in replies.

use std::io;
use std::time::Duration;

use api::{ErrorCode, ErrorReport, WireRefusal, WrongMessage};
use hyper::StatusCode;

use crate::{CredentialsError, Endpoint, ListenerError, ServerAddress};

/// An error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that is not a Unix socket.
    #[error("{address} is not a control socket; give unix:///path as in sluice proxy --api")]
    NotUnix {
        /// The address that was given.
        address: ServerAddress,
    },
    /// The client itself could not be set up.
    #[error("cannot set up a client")]
    Setup(#[source] io::Error),
    /// Credentials that cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A connection that could not be opened.
    #[error("cannot connect to {}{}", .at.name(), hint(.at, .source))]
    Connect {
        /// The endpoint to connect to.
        at: Endpoint,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A listener that is not trusted.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// A reply that was not complete within the time limit.
    #[error("{} did not reply within {} s", .at.name(), .limit.as_secs_f32())]
    TimedOut {
        /// The endpoint that did not reply.
        at: Endpoint,
        /// The time limit of the call.
        limit: Duration,
    },
    /// A call that the server refused.
    #[error("{message}")]
    Refused {
        /// The HTTP status of the reply.
        status: u16,
        /// The reason, for programs; from the status if the reply has none.
        code: ErrorCode,
        /// The reason, for people.
        message: String,
        /// The parameter, field or position at fault, if the server named it.
        at: Option<String>,
        /// Why a reservation does not fit, and what would.
        refusal: Option<Box<WireRefusal>>,
    },
    /// Rules that cannot be changed at the proxy, because they come from its controller.
    #[error("{message}")]
    Governed {
        /// Where the controller answers.
        controller: String,
        /// The reason, for people.
        message: String,
    },
    /// An exchange that broke off or was not HTTP.
    #[error("the exchange with {} failed: {reason}", .at.name())]
    Exchange {
        /// The endpoint of the exchange.
        at: Endpoint,
        /// The step that failed and its error.
        reason: String,
    },
    /// A reply that is not what this version expects.
    #[error("{} sent an unexpected reply to {path}", .at.name())]
    Decode {
        /// The endpoint that sent the reply.
        at: Endpoint,
        /// The path of the call.
        path: String,
        /// Where the JSON departs.
        #[source]
        source: serde_json::Error,
    },
    /// A reply to a report that is not what this version expects.
    #[error("{} sent an unexpected reply to a report", .at.name())]
    Message {
        /// The endpoint that sent the reply.
        at: Endpoint,
        /// The value at fault.
        #[source]
        source: WrongMessage,
    },
}

impl ClientError {
    /// Returns whether the rules were changed in between; read them again.
    pub fn is_stale(&self) -> bool {
        self.code() == ErrorCode::VersionConflict
    }

    /// Returns whether the server is a standby controller.
    pub fn is_standby(&self) -> bool {
        matches!(self.code(), ErrorCode::NotLeader | ErrorCode::NoLeader)
    }

    /// Returns the kind of the error: the code of a refusal, or one of this machine's.
    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::Refused { code, .. } => *code,
            ClientError::Governed { .. } => ErrorCode::RulesManaged,
            ClientError::NotUnix { .. } => ErrorCode::InvalidArgument,
            ClientError::Connect { .. } | ClientError::Exchange { .. } => ErrorCode::Unreachable,
            ClientError::TimedOut { .. } => ErrorCode::Timeout,
            ClientError::Credentials(CredentialsError::Read { .. }) => ErrorCode::Io,
            ClientError::Credentials(_) => ErrorCode::InvalidArgument,
            ClientError::Setup(_)
            | ClientError::Listener(_)
            | ClientError::Decode { .. }
            | ClientError::Message { .. } => ErrorCode::Failed,
        }
    }

    /// Returns what a refusal names as being at fault: a parameter, a field, `line:column`.
    pub fn at(&self) -> Option<&str> {
        match self {
            ClientError::Refused { at, .. } => at.as_deref(),
            _ => None,
        }
    }

    /// Returns why a reservation does not fit, if that is the error, and what would.
    pub fn refusal(&self) -> Option<&WireRefusal> {
        match self {
            ClientError::Refused { refusal, .. } => refusal.as_deref(),
            _ => None,
        }
    }
}

/// Makes the error of a refusal from its body, if it has one.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    let report = serde_json::from_slice(body).unwrap_or_else(|_| {
        let code = ErrorCode::of_status(status.as_u16());
        ErrorReport::new(code, format!("the server refused: {status}"))
    });
    match report {
        ErrorReport {
            code: ErrorCode::RulesManaged, message, leader: Some(controller), ..
        } => ClientError::Governed { controller, message },
        ErrorReport { code, message, at, refusal, .. } => {
            ClientError::Refused { status: status.as_u16(), code, message, at, refusal }
        }
    }
}

/// Explains the common failures to connect.
fn hint(at: &Endpoint, error: &io::Error) -> &'static str {
    match (error.kind(), at) {
        (io::ErrorKind::ConnectionRefused, Endpoint::Http { .. } | Endpoint::Https { .. }) => {
            " (nothing listens there)"
        }
        (io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused, Endpoint::Unix(_)) => {
            " (nothing listens there)"
        }
        (io::ErrorKind::PermissionDenied, Endpoint::Unix(_)) => {
            " (only the user of the server and root may connect)"
        }
        _ => "",
    }
}
