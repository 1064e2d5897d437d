//! A server that answers as a controller would, by a function of the test; the page is the real one.
//!
//! ```text
//!   a command, Chromium ─► StubController ─┬─► /, /page/…: the files of io/controller
//!                                          └─► recorded, answered by the test's function
//! ```

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::routing::get;
use http::{ConnectionLimits, Endpoint, HttpListener, HttpServer};
use serde_json::Value;

use crate::common::SLUICE;

/// A server whose answers a test makes.
pub(crate) struct StubController {
    _server: HttpServer,
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
}

impl StubController {
    /// Answers each call, as `GET /path?query`, with a status and JSON.
    pub(crate) fn start(
        answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> StubController {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let page = Router::new().route("/", get(|| async { page_file("index.html") }));
        let page = page
            .route("/page/{file}", get(|Path(name): Path<String>| async move { page_file(&name) }));
        let router = page.fallback(move |method: Method, uri: Uri, body: String| {
            let call = format!("{method} {uri}");
            let (status, reply) = answer(&call);
            let body = serde_json::from_str(&body).unwrap_or_default();
            seen.lock().unwrap().push((call, body));
            async move { (StatusCode::from_u16(status).unwrap(), reply.to_string()) }
        });
        let at: Endpoint = "http://127.0.0.1:0".parse().unwrap();
        let listener = HttpListener::bind(&at, None).unwrap();
        let url = format!("http://{}", listener.endpoint().name());
        let limits = ConnectionLimits::one_exchange(64);
        let server = HttpServer::start("stub", [listener], limits, router).unwrap();
        StubController { _server: server, url, calls }
    }

    pub(crate) fn run_as(&self, name: &str, words: &str) -> Output {
        let mut command = Command::new(SLUICE);
        command.arg0(name).args(words.split(' ')).env("SLUICE_CONTROLLER", &self.url);
        command.env_remove("SLUICE_TOKEN").output().unwrap()
    }

    /// Runs `sluice reserve`; its status, its stdout and its stderr.
    pub(crate) fn reserve(&self, words: &str) -> (i32, String, String) {
        let output = self.run_as("sluice", &format!("reserve {words}"));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    /// The calls since the last time, with their bodies.
    pub(crate) fn calls(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.calls().into_iter().map(|(line, _)| line).collect()
    }
}

fn page_file(name: &str) -> ([(HeaderName, &'static str); 1], String) {
    let kind = match name.rsplit_once('.').map(|(_, end)| end) {
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        _ => "text/html",
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../controller/src/page");
    ([(CONTENT_TYPE, kind)], fs::read_to_string(format!("{folder}/{name}")).unwrap())
}
