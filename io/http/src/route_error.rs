//! The error of a handler: its code decides the HTTP status, the report is the body. And the
//! version that a call may replace.

use api::{ErrorCode, ErrorReport, WireRules};
use axum::Json;
use axum::extract::rejection::{
    BytesRejection, JsonRejection, PathRejection, QueryRejection, StringRejection,
};
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// The error reply of a refused call: its status and body.
#[derive(Debug)]
pub struct RouteError(ErrorReport);

impl RouteError {
    /// Makes a refusal with this code, and the reason for people.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> RouteError {
        ErrorReport::new(code, message).into()
    }

    /// Names the parameter, header, name in the path or field at fault.
    pub fn at(self, at: impl Into<String>) -> RouteError {
        self.0.at(at).into()
    }
}

impl IntoResponse for RouteError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status());
        (status.expect("each code has an HTTP status"), Json(self.0)).into_response()
    }
}

impl From<ErrorReport> for RouteError {
    fn from(report: ErrorReport) -> RouteError {
        RouteError(report)
    }
}

/// Returns the one version that `If-Match` names; `None` without the header or for `*`.
///
/// # Errors
/// If the header is something else: the refusal names it.
pub fn version_to_match(headers: &HeaderMap) -> Result<Option<&str>, RouteError> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let named = WireRules::version_named(value.to_str().unwrap_or_default());
    named.map_err(|why| RouteError::new(ErrorCode::InvalidArgument, why).at("If-Match"))
}

/// What axum refuses, each by its status.
macro_rules! rejections {
    ($($rejection:ty)*) => {
        $(impl From<$rejection> for RouteError {
            fn from(why: $rejection) -> RouteError {
                let (status, text) = (why.status().as_u16(), why.body_text());
                ErrorReport::of_rejection(status, text, &why).into()
            }
        })*
    };
}

rejections! { BytesRejection JsonRejection PathRejection QueryRejection StringRejection }
