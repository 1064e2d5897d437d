//! What each role may do: one table, asked before every call.
//!
//! ```text
//!   call ─► who? 401 ─► row of method and path: its role? 403 ─► handler, with its Caller
//! ```
//!
//! A path without a row is an error when the controller starts ([`Routes::route`]); a method
//! without a row is refused, whatever handler it has. docs/ACCESS.md has the table.

use std::fmt::Write as _;
use std::sync::Arc;

use api::{ErrorCode, Role, path};
use axum::Router;
use axum::extract::{Extension, MatchedPath, Request, State};
use axum::http::Method;
use axum::http::header::WWW_AUTHENTICATE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use http::{Peer, RouteError};

use super::ApiState;
use super::access::ApiCaller;

/// Who may do one thing.
#[derive(Debug)]
pub(crate) struct Right {
    method: &'static str,
    path: &'static str,
    /// The least role of people that may.
    least: Role,
    /// The roles beside those of people that may, too.
    programs: &'static [Role],
    what: &'static str,
}

/// Every call that a controller answers.
pub(crate) const RIGHTS: &[Right] = &[
    row("GET", path::STATUS, Role::User, PROGRAMS, "the controller and its state"),
    row("GET", path::OPENAPI, Role::User, PROGRAMS, "the description of all calls"),
    row("GET", path::USAGE, Role::User, JOBS, "usage; roles `user`, `job`: their own"),
    row("GET", path::DECAYS, Role::User, NONE, "the decay accounts; role `user`: that user's"),
    row("GET", path::WHY, Role::User, JOBS, "what delays jobs; roles `user`, `job`: their own"),
    row(
        "GET",
        path::JOB_REPORT,
        Role::User,
        JOBS,
        "reports of jobs; roles `user`, `job`: their own",
    ),
    row(
        "GET",
        path::RESERVATIONS,
        Role::User,
        BATCHES,
        "reservations; roles `user`, `job`: their own",
    ),
    row("POST", path::RESERVATIONS, Role::User, BATCHES, OWN_RESERVATIONS),
    row(
        "GET",
        path::RESERVATION,
        Role::User,
        BATCHES,
        "a reservation; roles `user`, `job`: their own",
    ),
    row("DELETE", path::RESERVATION, Role::User, BATCHES, OWN_RESERVATIONS),
    row("POST", path::RESERVATION_CLAIM, Role::User, BATCHES, OWN_RESERVATIONS),
    row("POST", path::RESERVATION_PHASES, Role::User, BATCHES, OWN_RESERVATIONS),
    row("POST", path::RESERVATION_EXTEND, Role::User, BATCHES, OWN_RESERVATIONS),
    row("POST", path::RESERVATION_MOVE, Role::User, BATCHES, OWN_RESERVATIONS),
    row("POST", path::RESERVATION_FINISH, Role::User, BATCHES, OWN_RESERVATIONS),
    row("GET", path::CALENDAR, Role::User, BATCHES, CALENDAR),
    row("GET", path::CREDIT, Role::User, BATCHES, "credits; roles `user`, `job`: that user's"),
    row("GET", path::JOBS, Role::User, BATCHES, "registered jobs; roles `user`, `job`: their own"),
    row("GET", path::JOB, Role::User, BATCHES, "a registered job; roles `user`, `job`: their own"),
    row("PUT", path::JOB, Role::User, BATCH, OWN_RUNS),
    row("DELETE", path::JOB, Role::User, BATCH, OWN_RUNS),
    row("POST", path::JOB_TOKEN, Role::User, NODES, JOB_TOKEN),
    row("GET", path::WHY_TOP, Role::Read, NONE, "past delays, the longest first"),
    row("GET", path::LIVE, Role::Read, NONE, "live figures of every proxy"),
    row("GET", path::EVENTS, Role::Read, NONE, "events of decays, proxies, leaders, rules"),
    row("GET", path::RULES, Role::Read, PROXIES, "the rules of all proxies"),
    row("PUT", path::RULES, Role::Operate, NONE, "new rules for all proxies"),
    row("POST", path::RULE_EDITS, Role::Operate, NONE, "starts, changes, stops or moves a rule"),
    row("GET", path::PROXIES, Role::Read, NONE, "the proxies"),
    row("DELETE", path::PROXY, Role::Operate, NONE, "removes a proxy that does not return"),
    row(
        "POST",
        path::REPORT,
        Role::Admin,
        PROXIES,
        "a proxy's report; the reply is its assignment",
    ),
    row("GET", path::LEDGER_CHANGES, Role::Read, NONE, "for standby controllers"),
    row("GET", path::LEDGER_FILE, Role::Read, NONE, "for standby controllers"),
    row("GET", path::METRICS, Role::Read, NONE, "for Prometheus"),
    row("GET", path::TOKENS, Role::Admin, NONE, "the tokens' names and roles"),
    row("POST", path::TOKENS, Role::Admin, NONE, "creates a token"),
    row("DELETE", path::TOKEN, Role::Admin, NONE, "revokes a token"),
    row("GET", path::AUDIT, Role::Admin, NONE, "the changes and their authors"),
];

/// What changes reservations.
const OWN_RESERVATIONS: &str = "changes reservations; roles `user`, `job`: their own";

/// What registers and ends jobs.
const OWN_RUNS: &str =
    "registers or ends a job; role `user`: its own, with a name that begins with `run.`";

/// Who gets the token of a job.
const JOB_TOKEN: &str = "the token of a job; role `user`: of its own jobs; role `proxy`: by certificate, of jobs on that node";

/// Programs that may do nothing.
const NONE: &[Role] = &[];
/// Proxies only.
const PROXIES: &[Role] = &[Role::Proxy];
/// Jobs only.
const JOBS: &[Role] = &[Role::Job];
/// Batch systems only.
const BATCH: &[Role] = &[Role::Batch];
/// Batch systems, and jobs for themselves.
const BATCHES: &[Role] = &[Role::Batch, Role::Job];
/// Batch systems, and the nodes of jobs, whose certificates have role proxy.
const NODES: &[Role] = &[Role::Batch, Role::Proxy];
/// All programs.
const PROGRAMS: &[Role] = &[Role::Proxy, Role::Batch, Role::Job];

/// What of the calendar is for whom: sums are for everybody, names are not.
const CALENDAR: &str = "what is promised and used of each target; roles `user`, `batch`, `job`: without names of rules";

const fn row(
    method: &'static str,
    path: &'static str,
    least: Role,
    programs: &'static [Role],
    what: &'static str,
) -> Right {
    Right { method, path, least, programs, what }
}

/// Routes of which each has a row.
pub(super) struct Routes(Router<Arc<ApiState>>);

impl Routes {
    pub(super) fn new() -> Routes {
        Routes(Router::new())
    }

    /// As of axum's router.
    pub(super) fn route(self, path: &'static str, to: MethodRouter<Arc<ApiState>>) -> Routes {
        assert!(RIGHTS.iter().any(|row| row.path == path), "no row of RIGHTS is of {path}");
        Routes(self.0.route(path, to))
    }

    pub(super) fn into_router(self) -> Router<Arc<ApiState>> {
        self.0
    }
}

/// Lets a call through if its caller may make it.
pub(super) async fn check(
    State(shared): State<Arc<ApiState>>,
    Extension(peer): Extension<Peer>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match shared.access.identify(&peer, request.headers()) {
        Ok(caller) => caller,
        Err(why) => {
            let answer = RouteError::new(ErrorCode::Unauthenticated, why).at("Authorization");
            return ([(WWW_AUTHENTICATE, "Bearer")], answer).into_response();
        }
    };
    if let Some(matched) = matched {
        // What answers GET answers HEAD.
        let method = match request.method() {
            &Method::HEAD => "GET",
            method => method.as_str(),
        };
        let mut rows = RIGHTS.iter().filter(|row| row.path == matched.as_str());
        match rows.find(|row| row.method == method) {
            Some(row) if row.allows(caller.role) => {}
            Some(row) => {
                let message = row.refuse(request.uri().path(), &caller);
                return RouteError::new(ErrorCode::PermissionDenied, message).into_response();
            }
            None => {
                let message =
                    format!("{method} is not for {}; see {}", matched.as_str(), path::OPENAPI);
                return RouteError::new(ErrorCode::MethodNotAllowed, message).into_response();
            }
        }
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

impl Right {
    /// Whether a role may. Role `read` only reads, whatever those before it may change.
    fn allows(&self, role: Role) -> bool {
        let may_change = self.method == "GET" || role != Role::Read;
        role.includes(self.least) && may_change || self.programs.contains(&role)
    }

    fn refuse(&self, path: &str, caller: &ApiCaller) -> String {
        let changes = self.least == Role::User && self.method != "GET";
        let operate = Some(Role::Operate).filter(|_| changes);
        let or: String =
            operate.iter().chain(self.programs).map(|or| format!(" or {or}")).collect();
        let path: String = path.chars().take(80).collect();
        format!(
            "{} {path} needs role {}{or}, and {} has role {}",
            self.method, self.least, caller.name, caller.role
        )
    }
}

/// Returns the text of docs/ACCESS.md, with the table of rights.
pub fn markdown() -> String {
    let mut table =
        String::from("| call | user | read | operate | admin | proxy | batch | job | meaning |\n");
    table += "|---|---|---|---|---|---|---|---|---|\n";
    for row in RIGHTS {
        let _ = write!(table, "| `{} {}` |", row.method, row.path);
        for role in Role::ALL {
            table += if row.allows(role) { " yes |" } else { " |" };
        }
        let _ = writeln!(table, " {} |", row.what);
    }
    include_str!("rights.md").replace("[rights]\n", &table)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_described_call_has_a_row_and_each_row_a_description() {
        let description: serde_json::Value =
            serde_json::from_str(&crate::openapi()).expect("it is JSON");
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        // The description does not describe itself.
        described.insert(format!("GET {}", path::OPENAPI));
        let rows: BTreeSet<_> =
            RIGHTS.iter().map(|row| format!("{} {}", row.method, row.path)).collect();
        assert_eq!(rows, described);
        assert_eq!(rows.len(), RIGHTS.len(), "no row is there twice");
    }

    #[test]
    fn what_changes_anything_is_for_those_who_operate_and_for_no_proxy() {
        for row in RIGHTS.iter().filter(|row| row.method != "GET" && row.path != path::REPORT) {
            // Of reservations and jobs, the calendar checks whose they are.
            let is_own = [OWN_RESERVATIONS, OWN_RUNS, JOB_TOKEN].contains(&row.what);
            assert!(row.least >= Role::Operate || is_own, "{row:?}");
            // The token of a job is read by its nodes.
            assert!(!row.allows(Role::Proxy) || row.what == JOB_TOKEN, "{row:?}");
        }
    }

    #[test]
    fn batch_systems_and_jobs_have_calls_of_reservations_and_jobs_only() {
        let of = |role| {
            let rows = RIGHTS.iter().filter(move |row| row.allows(role));
            rows.map(|row| row.path).collect::<BTreeSet<_>>()
        };
        let mut both: BTreeSet<_> = [
            path::STATUS,
            path::OPENAPI,
            path::RESERVATIONS,
            path::RESERVATION,
            path::RESERVATION_CLAIM,
            path::RESERVATION_PHASES,
            path::RESERVATION_EXTEND,
            path::RESERVATION_MOVE,
            path::RESERVATION_FINISH,
            path::CALENDAR,
            path::CREDIT,
            path::JOBS,
            path::JOB,
        ]
        .into();
        let mut batch = both.clone();
        batch.insert(path::JOB_TOKEN);
        assert_eq!(of(Role::Batch), batch);
        both.extend([path::USAGE, path::WHY, path::JOB_REPORT]);
        assert_eq!(of(Role::Job), both);
        for row in RIGHTS.iter().filter(|row| row.path == path::JOB && row.method != "GET") {
            assert!(!row.allows(Role::Job) && !row.allows(Role::Read), "{row:?}");
        }
    }

    #[test]
    fn a_proxy_that_was_taken_over_tells_nobody_what_others_used() {
        let open: Vec<_> =
            RIGHTS.iter().filter(|row| row.allows(Role::Proxy)).map(|row| row.path).collect();
        assert_eq!(open, [path::STATUS, path::OPENAPI, path::JOB_TOKEN, path::RULES, path::REPORT]);
    }

    #[test]
    fn the_document_has_every_row() {
        let text = markdown();
        assert!(text.contains("| `PUT /v1/rules` | | | yes | yes | | | | new rules"), "{text}");
        assert!(!text.contains("[rights]"));
    }
}
