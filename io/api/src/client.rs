//! A small blocking client of the control API.
//!
//! ```text
//!   get::<T>(path) ─► connect ─► one HTTP/1.1 exchange ─► JSON ─► T      all within the time limit
//! ```
//!
//! Each call opens a connection of its own: over a Unix socket that costs less than
//! the exchange, and a viewer that polls once a second then survives a restart of the
//! proxy without any state to repair. hyper speaks HTTP; its runtime runs only inside
//! the call, on the caller's thread.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::{Address, Classes, Connections, ErrorReport, Rules, Status, Subjects, path};

/// Asks one proxy over its control socket; each call ends within the time limit.
pub struct Client {
    socket: PathBuf,
    time_limit: Duration,
    runtime: tokio::runtime::Runtime,
}

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Control sockets are Unix sockets.
    #[error("{address} is no control socket: give unix:///path as in sluice proxy --api")]
    NotUnix {
        /// What was given.
        address: Address,
    },
    /// The client itself could not be set up.
    #[error("cannot set up a client")]
    Setup(#[source] io::Error),
    /// Nobody answers there, or we may not ask.
    #[error("cannot connect to {}{}", .socket.display(), hint(.source))]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No whole answer came in time.
    #[error("{} gave no answer within {} s", .socket.display(), .limit.as_secs_f32())]
    TimedOut {
        /// The socket.
        socket: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// The answer was a refusal.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason, for people.
        message: String,
    },
    /// The exchange broke off or was no HTTP.
    #[error("the exchange with {} failed: {reason}", .socket.display())]
    Exchange {
        /// The socket.
        socket: PathBuf,
        /// What broke.
        reason: String,
    },
    /// The answer is not what this version expects.
    #[error("{} answered {path} with something else", .socket.display())]
    Decode {
        /// The socket.
        socket: PathBuf,
        /// What was asked for.
        path: String,
        /// Where the JSON departs.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Whether what was to be replaced had been replaced already: read it again.
    pub fn is_stale(&self) -> bool {
        matches!(self, ClientError::Refused { status: 409, .. })
    }
}

impl Client {
    /// The time limit of a call unless [`Client::with_time_limit`] says otherwise.
    pub const TIME_LIMIT: Duration = Duration::from_secs(5);

    /// A client of the proxy whose control socket is at `address`; connects at each call.
    pub fn new(address: &Address) -> Result<Client, ClientError> {
        let Address::Unix(socket) = address else {
            return Err(ClientError::NotUnix { address: address.clone() });
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ClientError::Setup)?;
        Ok(Client { socket: socket.clone(), time_limit: Client::TIME_LIMIT, runtime })
    }

    /// The same client with another time limit.
    pub fn with_time_limit(self, time_limit: Duration) -> Client {
        Client { time_limit, ..self }
    }

    /// What the proxy is and how it fares.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get(path::STATUS)
    }

    /// The classes and what each was served.
    pub fn classes(&self) -> Result<Classes, ClientError> {
        self.get(path::CLASSES)
    }

    /// The payers and what each was served.
    pub fn subjects(&self) -> Result<Subjects, ClientError> {
        self.get(path::SUBJECTS)
    }

    /// The connections of now.
    pub fn connections(&self) -> Result<Connections, ClientError> {
        self.get(path::CONNECTIONS)
    }

    /// The rules in force.
    pub fn rules(&self) -> Result<Rules, ClientError> {
        self.get(path::RULES)
    }

    /// Puts the TOML text of a rule file in force and returns the rules as they are
    /// then; a refusal names the line and leaves the old rules in force.
    pub fn set_rules(&self, text: &str) -> Result<Rules, ClientError> {
        self.replace_rules(text, None, false)
    }

    /// The same, but only in place of the rules of this version, if one is given
    /// ([`ClientError::is_stale`]), and with `save` written to the proxy's rule file too.
    pub fn replace_rules(
        &self,
        text: &str,
        over: Option<&str>,
        save: bool,
    ) -> Result<Rules, ClientError> {
        let path = if save { format!("{}?save=true", path::RULES) } else { path::RULES.into() };
        self.call(Method::PUT, &path, text.to_owned(), over)
    }

    /// GETs `path` and reads its JSON; the path is one of [`crate::path`].
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
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sluice")
            .header("connection", "close");
        if let Some(version) = over {
            request = request.header("if-match", format!("\"{version}\""));
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| broken(&self.socket, &error))?;
        let (status, body) = self.runtime.block_on(async {
            let exchange = exchange(&self.socket, request);
            match tokio::time::timeout(self.time_limit, exchange).await {
                Ok(outcome) => outcome,
                Err(_) => Err(ClientError::TimedOut {
                    socket: self.socket.clone(),
                    limit: self.time_limit,
                }),
            }
        })?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        serde_json::from_slice(&body).map_err(|source| ClientError::Decode {
            socket: self.socket.clone(),
            path: path.into(),
            source,
        })
    }
}

/// The most bytes of an answer that are taken: a hundred thousand subjects fit.
const ANSWER_BYTES_MAX: usize = 128 << 20;

async fn exchange(
    socket: &Path,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), ClientError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| ClientError::Connect { socket: socket.into(), source })?;
    let broken = |error: &dyn std::error::Error| broken(socket, error);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| broken(&*error))?.to_bytes()))
    };
    // The connection must be driven for the answer to come; when it ends first, the
    // answer still waits in the channel between them, or reports what broke.
    tokio::pin!(answer);
    tokio::select! {
        outcome = &mut answer => outcome,
        _ = connection => answer.await,
    }
}

fn broken(socket: &Path, error: &dyn std::error::Error) -> ClientError {
    ClientError::Exchange { socket: socket.into(), reason: error.to_string() }
}

/// A refusal in its own words where it has any.
fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    let message = match serde_json::from_slice::<ErrorReport>(body) {
        Ok(report) => report.message,
        Err(_) => format!("the proxy refused: {status}"),
    };
    ClientError::Refused { status: status.as_u16(), message }
}

/// What to do about the two failures that everybody meets.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ", no proxy runs with this --api"
        }
        io::ErrorKind::PermissionDenied => ", only the proxy's own user and root may ask",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers one call with the given bytes and hands back the request's head.
    fn answer_once(name: &str, answer: &'static [u8]) -> (Client, std::thread::JoinHandle<String>) {
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
        (Client::new(&Address::Unix(socket)).unwrap(), server)
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
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 23\r\n\r\n{\"message\":\"rules:1:1\"} ",
        );
        let error = client.set_rules("x").unwrap_err();
        assert!(matches!(&error, ClientError::Refused { status: 400, .. }));
        assert_eq!(error.to_string(), "rules:1:1");
        server.join().unwrap();
    }

    #[test]
    fn what_replaces_a_version_names_it_and_hears_when_it_is_stale() {
        let (client, server) = answer_once(
            "stale",
            b"HTTP/1.1 409 Conflict\r\ncontent-length: 18\r\n\r\n{\"message\":\"late\"}",
        );
        let error = client.replace_rules("x", Some("0a"), true).unwrap_err();
        assert!(error.is_stale());
        let head = server.join().unwrap();
        assert!(head.starts_with("PUT /v1/rules?save=true HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nif-match: \"0a\"\r\n"), "{head}");
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
        let client = Client::new(&Address::Unix(socket.clone())).unwrap();
        let limit = Duration::from_millis(50);
        let error = client.with_time_limit(limit).status().unwrap_err();
        assert!(matches!(error, ClientError::TimedOut { limit: l, .. } if l == limit));
        drop(listener);
        std::fs::remove_file(socket).unwrap();
    }

    #[test]
    fn a_missing_proxy_is_named_with_its_socket() {
        let address: Address = "unix:///nonexistent/api".parse().unwrap();
        let error = Client::new(&address).unwrap().status().unwrap_err().to_string();
        assert_eq!(error, "cannot connect to /nonexistent/api, no proxy runs with this --api");
    }
}
