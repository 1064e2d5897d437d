//! The web page: files that are part of the program, served to everybody.
//!
//! ```text
//!   GET /            ─► index.html ─► page.css, main.js ─► source, rates, chart, table, rules,
//!                                                     dialog, reservations, calendar, report, text
//!   what they show   ◄─ the API, called as the user: with a token, or as anybody
//! ```

use std::sync::Arc;

use api::ErrorCode;
use axum::Router;
use axum::extract::Path;
use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::routing::get;

use super::{ApiState, RouteError, truncated};

/// A file's headers and its text.
type ServedFile = ([(HeaderName, &'static str); 6], &'static str);

/// The page and what belongs to it.
pub(super) fn router() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/", get(|| async { served(HTML, include_str!("../../page/index.html")) }))
        .route("/page/{file}", get(file))
}

async fn file(Path(name): Path<String>) -> Result<ServedFile, RouteError> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    found.map(|(_, kind, text)| served(kind, text)).ok_or_else(|| {
        RouteError::new(ErrorCode::NotFound, format!("/page/{} not found; see /", truncated(&name)))
    })
}

fn served(kind: &'static str, text: &'static str) -> ServedFile {
    let headers = [
        (CONTENT_TYPE, kind),
        // Another version of the program has other files of the same names.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text)
}

const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
/// Nothing from anywhere else, and no script in the page's own text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

const FILES: [(&str, &str, &str); 12] = [
    ("page.css", "text/css; charset=utf-8", include_str!("../../page/page.css")),
    ("main.js", JS, include_str!("../../page/main.js")),
    ("source.js", JS, include_str!("../../page/source.js")),
    ("rates.js", JS, include_str!("../../page/rates.js")),
    ("chart.js", JS, include_str!("../../page/chart.js")),
    ("table.js", JS, include_str!("../../page/table.js")),
    ("report.js", JS, include_str!("../../page/report.js")),
    ("rules.js", JS, include_str!("../../page/rules.js")),
    ("dialog.js", JS, include_str!("../../page/dialog.js")),
    ("reservations.js", JS, include_str!("../../page/reservations.js")),
    ("calendar.js", JS, include_str!("../../page/calendar.js")),
    ("text.js", JS, include_str!("../../page/text.js")),
];
