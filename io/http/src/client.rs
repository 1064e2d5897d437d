//! A small blocking client of the control API.
//!
//! ```text
//!   get::<T>(path) ─► connect ─► one HTTP/1.1 exchange ─► JSON ─► T      all within the time limit
//!                       └ or the connection of the last call, if it is kept
//! ```
//!
//! Each call opens a connection of its own: over a Unix socket that costs less than
//! the exchange, and a viewer that polls once a second then survives a restart of the
//! proxy without any state to repair. A caller with ten calls per second keeps the connection
//! ([`ApiClient::with_connection_reuse`]); if it broke in between, it is opened again once.
//!
//! hyper speaks HTTP, in one runtime of all clients of the process. It runs only inside calls, on
//! the threads of the callers: one of them moves the bytes of all.
//!
//! Of several controllers one leads. A controller that cannot be reached, or that is a standby,
//! is skipped, and later calls begin with the one that replied.

mod error;
mod exchange;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use api::{
    AddedPhase, AuditLines, Connections, ControllerEvents, ControllerReply, ControllerStatus,
    DelayTable, EndedJob, JobToken, LiveUsage, MadeToken, NewJob, NewReservation, NewToken,
    Proxies, ProxyReport, ProxyStatus, REPORT_TYPE, ReservationExtension, ReservationMove, Tokens,
    UsageTable, Why, WhyQuery, WireCalendar, WireClasses, WireCredit, WireDecayAccounts, WireJob,
    WireJobReport, WireJobs, WireReservation, WireReservations, WireRules, WireSubjects, path,
};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::{Credentials, Endpoint, Endpoints, ServerAddress};
use error::refusal;
use exchange::Connected;

pub use error::ClientError;

/// A client of one proxy or controller; each call ends within the time limit.
pub struct ApiClient {
    endpoints: Endpoints,
    /// The index of the endpoint that is tried first.
    first: AtomicUsize,
    time_limit: Duration,
    runtime: &'static Runtime,
    /// `Bearer slc_…`.
    token: Option<HeaderValue>,
    tls: Option<Arc<rustls::ClientConfig>>,
    reuses_connection: bool,
    reused_connection: Mutex<Option<(Endpoint, Connected)>>,
}

impl ApiClient {
    /// The time limit of a call unless [`ApiClient::with_time_limit`] says otherwise.
    pub const TIME_LIMIT: Duration = Duration::from_secs(5);

    /// A client of the proxy whose control socket is at `address`; connects at each call.
    pub fn new(address: &ServerAddress) -> Result<ApiClient, ClientError> {
        match address {
            ServerAddress::Unix(socket) => ApiClient::at(&Endpoint::Unix(socket.clone())),
            ServerAddress::Tcp(_) => Err(ClientError::NotUnix { address: address.clone() }),
        }
    }

    /// Makes a client of these endpoints, of several controllers the leader; connects at each
    /// call.
    pub fn at(places: impl Into<Endpoints>) -> Result<ApiClient, ClientError> {
        Ok(ApiClient {
            endpoints: places.into(),
            first: AtomicUsize::new(0),
            time_limit: ApiClient::TIME_LIMIT,
            runtime: runtime().map_err(ClientError::Setup)?,
            token: None,
            tls: None,
            reuses_connection: false,
            reused_connection: Mutex::default(),
        })
    }

    /// Sets the credentials of the client.
    ///
    /// # Errors
    /// If a file is not valid, or a token would be sent to another machine unencrypted.
    pub fn with(self, credentials: &Credentials) -> Result<ApiClient, ClientError> {
        let token = credentials.token_for(&self.endpoints)?.map(|token| {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.expect("a token is letters, digits, _ and -");
            value.set_sensitive(true);
            value
        });
        Ok(ApiClient { token, tls: credentials.tls()?, ..self })
    }

    /// The same client with another time limit.
    pub fn with_time_limit(self, time_limit: Duration) -> ApiClient {
        ApiClient { time_limit, ..self }
    }

    /// The same client, which keeps its connection from one call to the next. A call may reach
    /// the other side twice then: for calls that change nothing by that.
    pub fn with_connection_reuse(self) -> ApiClient {
        ApiClient { reuses_connection: true, ..self }
    }

    // ---- a proxy's ----

    /// Reads the status of the proxy.
    pub fn status(&self) -> Result<ProxyStatus, ClientError> {
        self.get(path::STATUS)
    }

    /// Reads the classes and the service of each.
    pub fn classes(&self) -> Result<WireClasses, ClientError> {
        self.get(path::CLASSES)
    }

    /// Reads the subjects and the service of each.
    pub fn subjects(&self) -> Result<WireSubjects, ClientError> {
        self.get(path::SUBJECTS)
    }

    /// Reads the open connections.
    pub fn connections(&self) -> Result<Connections, ClientError> {
        self.get(path::CONNECTIONS)
    }

    // ---- a proxy's and a controller's ----

    /// The rules in force.
    pub fn rules(&self) -> Result<WireRules, ClientError> {
        self.get(path::RULES)
    }

    /// Puts the TOML text of a rule file in force and returns the rules as they are
    /// then; a refusal names the line and leaves the old rules in force.
    pub fn set_rules(&self, text: &str) -> Result<WireRules, ClientError> {
        self.replace_rules(text, None, false)
    }

    /// The same, but only in place of the rules of this version, if one is given
    /// ([`ClientError::is_stale`]), and with `save` written to the proxy's rule file too.
    pub fn replace_rules(
        &self,
        text: &str,
        over: Option<&str>,
        save: bool,
    ) -> Result<WireRules, ClientError> {
        let path = if save { format!("{}?save=true", path::RULES) } else { path::RULES.into() };
        let body = text.to_owned().into();
        self.answer(&HttpCall { method: Method::PUT, path: &path, kind: None, body, over })
    }

    /// Reads what delays the subjects of the query.
    pub fn why(&self, query: &WhyQuery) -> Result<Why, ClientError> {
        self.get(&format!("{}?{}", path::WHY, query.text()))
    }

    // ---- a controller's ----

    /// Reads which subjects were delayed; `query` as in `by=job&since=1h`.
    pub fn why_top(&self, query: &str) -> Result<DelayTable, ClientError> {
        self.get(&format!("{}?{query}", path::WHY_TOP))
    }

    /// Reads the report of one job; `query` as in `from=-24h&to=now`, or empty.
    pub fn job_report(&self, job: &str, query: &str) -> Result<WireJobReport, ClientError> {
        let job = WhyQuery { job: Some(job.into()), ..WhyQuery::default() }.text();
        let and = if query.is_empty() { "" } else { "&" };
        self.get(&format!("{}?{job}{and}{query}", path::JOB_REPORT))
    }

    /// Reads a live sample of all proxies.
    pub fn live(&self) -> Result<LiveUsage, ClientError> {
        self.get(path::LIVE)
    }

    /// Reads the status of the controller.
    pub fn controller_status(&self) -> Result<ControllerStatus, ClientError> {
        self.get(path::STATUS)
    }

    /// Reads the table of proxies.
    pub fn proxies(&self) -> Result<Proxies, ClientError> {
        self.get(path::PROXIES)
    }

    /// Removes a proxy at once, even if it may still be using its share.
    pub fn forget_proxy(&self, name: &str) -> Result<Proxies, ClientError> {
        self.call(Method::DELETE, &path::proxy(name), String::new(), None)
    }

    /// Sends the report of a proxy and returns its assignments.
    pub fn report(&self, name: &str, report: &ProxyReport) -> Result<ControllerReply, ClientError> {
        let path = path::report(name);
        let (method, body) = (Method::POST, report.encode().into());
        let call = HttpCall { method, path: &path, kind: Some(REPORT_TYPE), body, over: None };
        let (at, body) = self.send(&call)?;
        let reply = ControllerReply::decode(&name.into(), report.epoch, &body);
        reply.map_err(|source| ClientError::Message { at: at.clone(), source })
    }

    /// Reads the usage; `query` as in `by=job&from=-1h&to=now`.
    pub fn usage(&self, query: &str) -> Result<UsageTable, ClientError> {
        self.get(&format!("{}?{query}", path::USAGE))
    }

    /// Lists the tokens on record.
    pub fn tokens(&self) -> Result<Tokens, ClientError> {
        self.get(path::TOKENS)
    }

    /// Creates a token; its secret is only in this reply.
    pub fn make_token(&self, new: &NewToken) -> Result<MadeToken, ClientError> {
        let body = serde_json::to_string(new).expect("a token's record is plain data");
        self.call(Method::POST, path::TOKENS, body, None)
    }

    /// Revokes a token at once; returns the remaining ones.
    pub fn revoke_token(&self, name: &str) -> Result<Tokens, ClientError> {
        self.call(Method::DELETE, &path::token(name), String::new(), None)
    }

    /// Reads the audit log; `query` as in `since=-1h&limit=100`.
    pub fn audit(&self, query: &str) -> Result<AuditLines, ClientError> {
        self.get(&format!("{}?{query}", path::AUDIT))
    }

    /// Reads the decays in force with their accounts; those of one subject if it is named.
    pub fn decays(&self, subject: Option<&str>) -> Result<WireDecayAccounts, ClientError> {
        let Some(subject) = subject else { return self.get(path::DECAYS) };
        self.get(&format!("{}?subject={}", path::DECAYS, api::escaped(subject)))
    }

    /// Reads events; `query` as in `since=17&limit=100`. With `wait`, set a longer time limit
    /// than that.
    pub fn events(&self, query: &str) -> Result<ControllerEvents, ClientError> {
        self.get(&format!("{}?{query}", path::EVENTS))
    }

    /// Requests a reservation; a refusal says what would fit ([`ClientError::refusal`]).
    pub fn reserve(&self, new: &NewReservation) -> Result<WireReservation, ClientError> {
        let body = serde_json::to_string(new).expect("a request is plain data");
        self.call(Method::POST, path::RESERVATIONS, body, None)
    }

    /// Reads the reservations; `query` as in `user=1000&ended=true`, or empty.
    pub fn reservations(&self, query: &str) -> Result<WireReservations, ClientError> {
        self.get(&with_query(path::RESERVATIONS, query))
    }

    /// Reads one reservation; `query` as in `until=active&wait=30s`, or empty. With `wait`, set a
    /// longer time limit than that.
    pub fn reservation(&self, id: u64, query: &str) -> Result<WireReservation, ClientError> {
        self.get(&with_query(&path::reservation(path::RESERVATION, id), query))
    }

    /// Tests a reservation: the first test that finds it active begins its time.
    pub fn claim_reservation(&self, id: u64) -> Result<WireReservation, ClientError> {
        let path = path::reservation(path::RESERVATION_CLAIM, id);
        self.call(Method::POST, &path, String::new(), None)
    }

    /// Extends an active reservation.
    pub fn extend_reservation(
        &self,
        id: u64,
        by: &ReservationExtension,
    ) -> Result<WireReservation, ClientError> {
        let body = serde_json::to_string(by).expect("an extension is plain data");
        self.call(Method::POST, &path::reservation(path::RESERVATION_EXTEND, id), body, None)
    }

    /// Has a reservation that has not begun start at another time.
    pub fn move_reservation(
        &self,
        id: u64,
        to: &ReservationMove,
    ) -> Result<WireReservation, ClientError> {
        let body = serde_json::to_string(to).expect("a move is plain data");
        self.call(Method::POST, &path::reservation(path::RESERVATION_MOVE, id), body, None)
    }

    /// Registers a job, or a later attempt of it.
    pub fn register_job(&self, job: &str, new: &NewJob) -> Result<WireJob, ClientError> {
        let body = serde_json::to_string(new).expect("a job is plain data");
        self.call(Method::PUT, &path::job(path::JOB, job), body, None)
    }

    /// Ends a job with its reservations; with an attempt only if no later one is registered.
    pub fn end_job(&self, job: &str, attempt: Option<u32>) -> Result<EndedJob, ClientError> {
        let query = attempt.map_or(String::new(), |attempt| format!("attempt={attempt}"));
        let path = with_query(&path::job(path::JOB, job), &query);
        self.call(Method::DELETE, &path, String::new(), None)
    }

    /// Reads one registered job.
    pub fn job(&self, job: &str) -> Result<WireJob, ClientError> {
        self.get(&path::job(path::JOB, job))
    }

    /// Reads a page of the registered jobs; `query` as in `after=4711`, or empty.
    pub fn jobs(&self, query: &str) -> Result<WireJobs, ClientError> {
        self.get(&with_query(path::JOBS, query))
    }

    /// Fetches the token of a registered job.
    pub fn job_token(&self, job: &str) -> Result<JobToken, ClientError> {
        self.call(Method::POST, &path::job(path::JOB_TOKEN, job), String::new(), None)
    }

    /// Adds a phase to a reservation, and returns the phase.
    pub fn add_phase(&self, id: u64, phase: &AddedPhase) -> Result<WireReservation, ClientError> {
        let body = serde_json::to_string(phase).expect("a phase is plain data");
        self.call(Method::POST, &path::reservation(path::RESERVATION_PHASES, id), body, None)
    }

    /// Ends a reservation early, for a credit.
    pub fn finish_reservation(&self, id: u64) -> Result<WireReservation, ClientError> {
        let path = path::reservation(path::RESERVATION_FINISH, id);
        self.call(Method::POST, &path, String::new(), None)
    }

    /// Removes a reservation, without a credit.
    pub fn remove_reservation(&self, id: u64) -> Result<WireReservation, ClientError> {
        let path = path::reservation(path::RESERVATION, id);
        self.call(Method::DELETE, &path, String::new(), None)
    }

    /// Reads the calendar; `query` as in `from=…&to=…&target=NAME`.
    pub fn calendar(&self, query: &str) -> Result<WireCalendar, ClientError> {
        self.get(&with_query(path::CALENDAR, query))
    }

    /// Reads a credit; `query` as in `account=NAME`, or empty for the caller's.
    pub fn credit(&self, query: &str) -> Result<WireCredit, ClientError> {
        self.get(&with_query(path::CREDIT, query))
    }

    /// Reads the changes of the ledger after the cursor of `query`, for a standby controller;
    /// 410 if the cursor is too old and the whole ledger must be copied.
    pub fn ledger_changes(&self, query: &str) -> Result<Vec<u8>, ClientError> {
        let path = format!("{}?{query}", path::LEDGER_CHANGES);
        Ok(self.send(&HttpCall::get(&path))?.1.into())
    }

    /// Copies the whole ledger into a file.
    pub fn ledger_file(&self, into: &mut File) -> Result<(), ClientError> {
        let at =
            &self.endpoints.all()[self.first.load(Ordering::Relaxed) % self.endpoints.all().len()];
        let request = HttpCall::get(path::LEDGER_FILE).request(at, false, self.token.as_ref())?;
        let tls = self.tls.as_ref();
        let exchange = async { Connected::to(at, tls).await?.send(at, request, Some(into)).await };
        self.complete(at, exchange).map(drop)
    }

    // ---- everybody's ----

    /// Reads the metrics as Prometheus text.
    pub fn metrics(&self) -> Result<String, ClientError> {
        let (_, body) = self.send(&HttpCall::get(path::METRICS))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// GETs `path` and reads its JSON; the path is one of [`api::path`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, String::new(), None)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
        over: Option<&str>,
    ) -> Result<T, ClientError> {
        let kind = [Method::POST, Method::PUT].contains(&method).then_some(JSON);
        self.answer(&HttpCall { method, path, kind, body: body.into(), over })
    }

    fn answer<T: DeserializeOwned>(&self, call: &HttpCall<'_>) -> Result<T, ClientError> {
        let (at, body) = self.send(call)?;
        serde_json::from_slice(&body).map_err(|source| ClientError::Decode {
            at: at.clone(),
            path: call.path.into(),
            source,
        })
    }

    /// POSTs plain text to a server of another kind; the body of its reply is ignored.
    pub fn post_text(&self, path: &str, text: &str) -> Result<(), ClientError> {
        let body = text.to_owned().into();
        let kind = Some(JSON);
        self.send(&HttpCall { method: Method::POST, path, kind, body, over: None }).map(drop)
    }

    /// POSTs JSON to a server of another kind, and reads its reply.
    pub fn post<T: DeserializeOwned>(&self, path: &str, json: &str) -> Result<T, ClientError> {
        self.call(Method::POST, path, json.to_owned(), None)
    }

    /// Tries one endpoint after the other, beginning with the one that replied last. A call that
    /// may have been executed is not repeated; the next call begins with the next endpoint.
    fn send(&self, call: &HttpCall<'_>) -> Result<(&Endpoint, Bytes), ClientError> {
        let places = self.endpoints.all();
        let first = self.first.load(Ordering::Relaxed);
        let mut failed: Option<ClientError> = None;
        for step in 0..places.len() {
            let turn = (first + step) % places.len();
            self.first.store(turn, Ordering::Relaxed);
            let error = match self.send_to(&places[turn], call) {
                Ok(body) => return Ok((&places[turn], body)),
                Err(error) => error,
            };
            let unreached = matches!(error, ClientError::Connect { .. } | ClientError::Listener(_));
            let passed_over = unreached || error.is_standby();
            let was_heard = matches!(error, ClientError::Refused { .. }) && !error.is_standby();
            if !passed_over {
                let next = if was_heard { turn } else { turn + 1 };
                self.first.store(next % places.len(), Ordering::Relaxed);
                return Err(error);
            }
            // The reply of a standby says more than a failed connection.
            if failed.as_ref().is_none_or(|before| !before.is_standby()) {
                failed = Some(error);
            }
        }
        Err(failed.expect("there is a place"))
    }

    fn send_to(&self, at: &Endpoint, call: &HttpCall<'_>) -> Result<Bytes, ClientError> {
        let request = call.request(at, self.reuses_connection, self.token.as_ref())?;
        self.complete(at, self.exchange(at, request))
    }

    /// Waits for an exchange within the time limit; returns the body of a successful reply.
    fn complete(
        &self,
        at: &Endpoint,
        exchange: impl Future<Output = Result<(StatusCode, Bytes), ClientError>>,
    ) -> Result<Bytes, ClientError> {
        let limit = self.time_limit;
        let timed = self.runtime.block_on(async { tokio::time::timeout(limit, exchange).await });
        let (status, body) =
            timed.map_err(|_| ClientError::TimedOut { at: at.clone(), limit })??;
        match status.is_success() {
            true => Ok(body),
            false => Err(refusal(status, &body)),
        }
    }

    async fn exchange(
        &self,
        at: &Endpoint,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let kept = self.reused_connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        let again = match kept {
            Some((of, mut kept)) if of == *at => {
                kept.send(at, request.clone(), None).await.ok().map(|answer| (kept, answer))
            }
            _ => None,
        };
        let (connected, answer) = match again {
            Some(done) => done,
            None => {
                let mut connected = Connected::to(at, self.tls.as_ref()).await?;
                let answer = connected.send(at, request, None).await?;
                (connected, answer)
            }
        };
        if self.reuses_connection && connected.is_open() {
            let kept = Some((at.clone(), connected));
            *self.reused_connection.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        }
        Ok(answer)
    }
}

/// One call, independent of its endpoint.
struct HttpCall<'a> {
    method: Method,
    path: &'a str,
    /// The content type of the body; none for the text of rules.
    kind: Option<&'static str>,
    body: Bytes,
    over: Option<&'a str>,
}

impl<'a> HttpCall<'a> {
    fn get(path: &'a str) -> HttpCall<'a> {
        HttpCall { method: Method::GET, path, kind: None, body: Bytes::new(), over: None }
    }

    fn request(
        &self,
        at: &Endpoint,
        keeps: bool,
        token: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let host = match at {
            Endpoint::Http { .. } | Endpoint::Https { .. } => at.name(),
            Endpoint::Unix(_) => "sluice".into(),
        };
        let mut request =
            Request::builder().method(&self.method).uri(self.path).header("host", host);
        if !keeps {
            request = request.header("connection", "close");
        }
        if let Some(kind) = self.kind {
            request = request.header("content-type", kind);
        }
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        if let Some(version) = self.over {
            request = request.header("if-match", format!("\"{version}\""));
        }
        let request = request.body(Full::new(self.body.clone()));
        request.map_err(|error| exchange::exchange_error(at, &error))
    }
}

fn with_query(path: &str, query: &str) -> String {
    if query.is_empty() { path.into() } else { format!("{path}?{query}") }
}

/// The content type of a body, unless the call sets another.
const JSON: &str = "application/json";

/// Returns the runtime of all clients of the process.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    match RUNTIME.get() {
        Some(runtime) => Ok(runtime),
        None => {
            let new = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(RUNTIME.get_or_init(|| new))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use api::ErrorCode;

    use super::*;

    /// Answers one call with the given bytes and hands back the request's head.
    fn answer_once(
        name: &str,
        answer: &'static [u8],
    ) -> (ApiClient, std::thread::JoinHandle<String>) {
        let socket = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn({
            let socket = socket.clone();
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                stream.write_all(answer).unwrap();
                std::fs::remove_file(socket).unwrap();
                String::from_utf8(head).unwrap()
            }
        });
        (ApiClient::new(&ServerAddress::Unix(socket)).unwrap(), server)
    }

    #[test]
    fn an_answer_becomes_its_message() {
        let (client, server) = answer_once(
            "ok",
            b"HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n{\"t_ns\":7,\"connections\":[]}",
        );
        let answer = client.connections().unwrap();
        assert_eq!(answer, Connections { t_ns: 7, connections: vec![] });
        assert!(server.join().unwrap().starts_with("GET /v1/connections HTTP/1.1\r\n"));
    }

    #[test]
    fn an_answer_without_length_ends_with_the_connection() {
        let (client, server) =
            answer_once("eof", b"HTTP/1.1 200 OK\r\n\r\n{\"t_ns\":1,\"classes\":[]}");
        assert_eq!(client.classes().unwrap().t_ns, 1);
        server.join().unwrap();
    }

    #[test]
    fn a_refusal_is_told_in_its_own_words() {
        let (client, server) = answer_once(
            "refused",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 57\r\n\r\n\
              {\"code\":\"invalid_rules\",\"message\":\"rules:1:1\",\"at\":\"1:1\"}",
        );
        let error = client.set_rules("x").unwrap_err();
        assert_eq!((error.code(), error.at()), (ErrorCode::InvalidRules, Some("1:1")));
        assert_eq!(error.to_string(), "rules:1:1");
        server.join().unwrap();
    }

    #[test]
    fn what_replaces_a_version_names_it_and_hears_when_it_is_stale() {
        let (client, server) = answer_once(
            "stale",
            b"HTTP/1.1 409 Conflict\r\ncontent-length: 44\r\n\r\n\
              {\"code\":\"version_conflict\",\"message\":\"late\"}",
        );
        let error = client.replace_rules("x", Some("0a"), true).unwrap_err();
        assert!(error.is_stale());
        let head = server.join().unwrap();
        assert!(head.starts_with("PUT /v1/rules?save=true HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nif-match: \"0a\"\r\n"), "{head}");
    }

    #[test]
    fn a_refusal_without_a_report_has_the_code_of_its_status() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
        let (client, server) = answer_once("busy", answer);
        let error = client.status().unwrap_err();
        assert!(matches!(&error, ClientError::Refused { status: 503, .. }), "{error}");
        assert_eq!(error.code(), ErrorCode::Overloaded);
        server.join().unwrap();
    }

    #[test]
    fn an_answer_cut_short_is_an_error_and_not_half_a_message() {
        let (client, server) =
            answer_once("cut", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"t_ns\":1");
        assert!(matches!(client.classes().unwrap_err(), ClientError::Exchange { .. }));
        server.join().unwrap();
    }

    #[test]
    fn a_proxy_that_never_answers_costs_the_time_limit_and_no_more() {
        let socket = std::env::temp_dir().join(format!("sluice-{}-mute", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let client = ApiClient::new(&ServerAddress::Unix(socket.clone())).unwrap();
        let limit = Duration::from_millis(50);
        let error = client.with_time_limit(limit).status().unwrap_err();
        assert!(matches!(error, ClientError::TimedOut { limit: l, .. } if l == limit));
        drop(listener);
        std::fs::remove_file(socket).unwrap();
    }

    #[test]
    fn a_missing_proxy_is_named_with_its_socket() {
        let address: ServerAddress = "unix:///nonexistent/api".parse().unwrap();
        let error = ApiClient::new(&address).unwrap().status().unwrap_err().to_string();
        assert_eq!(error, "cannot connect to /nonexistent/api (nothing listens there)");
    }

    #[test]
    fn a_kept_connection_serves_many_calls_and_one_that_broke_is_made_anew() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let server = std::thread::spawn(move || {
            // Two calls on the first connection, which then breaks, and one on the second.
            for calls in [2, 1] {
                let (mut stream, _) = listener.accept().unwrap();
                for _ in 0..calls {
                    let mut head = Vec::new();
                    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                        let mut byte = [0];
                        stream.read_exact(&mut byte).unwrap();
                        head.push(byte[0]);
                    }
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\n{\"t_ns\":1,\"proxies\":[]}";
                    stream.write_all(answer).unwrap();
                }
            }
        });
        let client = ApiClient::at(&at).unwrap().with_connection_reuse();
        for _ in 0..3 {
            assert_eq!(client.proxies().unwrap(), Proxies { t_ns: 1, proxies: vec![] });
        }
        server.join().unwrap();
    }

    #[test]
    fn clients_of_several_threads_wait_for_their_own_replies_and_not_for_each_other() {
        let socket = std::env::temp_dir().join(format!("sluice-{}-slow", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let _mute = UnixListener::bind(&socket).unwrap();
        let at = ServerAddress::Unix(socket.clone());
        let slow = ApiClient::new(&at).unwrap().with_time_limit(Duration::from_secs(3600));
        // It waits for ever, most likely as the one that moves the bytes of all.
        std::thread::spawn(move || slow.status());
        for n in 0..8 {
            let (client, server) = answer_once(
                &format!("fast-{n}"),
                b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\n{\"t_ns\":1,\"proxies\":[]}",
            );
            let asked = std::thread::spawn(move || client.proxies().unwrap().t_ns);
            assert_eq!(asked.join().unwrap(), 1);
            server.join().unwrap();
        }
        std::fs::remove_file(socket).unwrap();
    }

    #[test]
    fn a_refusal_that_names_a_controller_is_no_reason_to_try_again() {
        let (client, server) = answer_once(
            "governed",
            b"HTTP/1.1 409 Conflict\r\ncontent-length: 61\r\n\r\n\
              {\"code\":\"rules_managed\",\"message\":\"no\",\"leader\":\"http://c:1\"}",
        );
        let error = client.set_rules("x").unwrap_err();
        assert!(!error.is_stale());
        let expected = "http://c:1";
        assert!(
            matches!(&error, ClientError::Governed { controller, .. } if controller == expected)
        );
        server.join().unwrap();
    }
}
