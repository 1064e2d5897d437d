//! Calls of an etcd: its members are tried one after another until one replies.
//!
//! ```text
//!   ask ─► member 1 ─ refused, no reply in 2 s, no leader ─► member 2 ─► … ─► member 1 … until patience ends
//!             └─ replied, or refused for good (no permission, no space) ─► the caller
//! ```
//!
//! There is one connection to one member at a time. A balancing connection to all would send each
//! call to any of them, and half of the calls would meet a dead member while it is dead.
//!
//! A call may be executed by a member whose reply is lost, and then again by the next: callers make
//! their calls idempotent.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

/// The endpoints of etcd, and the prefix of our keys.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdClient {
    /// Client addresses of its members, as `http://192.0.2.7:2379`; at least one.
    pub endpoints: Vec<String>,
    /// The prefix of all our keys, such as `/sluice/lustre1`; no two file systems share one.
    pub prefix: String,
    /// Name and password, if etcd requires them.
    pub user: Option<(String, String)>,
}

/// An error of a call of etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A configuration that is not valid.
    #[error("{value:?} is not {want}")]
    Config {
        /// The value that was given.
        value: String,
        /// The expected form, with an example.
        want: &'static str,
    },
    /// No member replied in time.
    #[error(
        "{endpoints}: cannot {what}: no member replied within {} ms; last error: {last}; check that a quorum of its members runs",
        waited.as_millis()
    )]
    Unavailable {
        /// The endpoints and the prefix of keys.
        endpoints: String,
        /// The call as a verb phrase, such as `read the leader`.
        what: &'static str,
        /// The time that was waited.
        waited: Duration,
        /// The error of the last attempt.
        last: String,
    },
    /// A member refused, and so would the others.
    #[error("{endpoint}: cannot {what}: {source}")]
    Refused {
        /// The endpoint that refused.
        endpoint: String,
        /// The call as a verb phrase.
        what: &'static str,
        /// The error of etcd.
        #[source]
        source: Box<Error>,
    },
    /// This process has no resources for a connection.
    #[error("cannot start the runtime of a connection to etcd: {source}")]
    Runtime {
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Shows the name of the user, not the password.
impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClient")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish()
    }
}

impl EtcdClient {
    /// Makes the configuration, if it has an endpoint and a prefix.
    pub(crate) fn checked(&self) -> Result<EtcdClient, EtcdError> {
        let wrong = |value: &str, want| Err(EtcdError::Config { value: value.to_string(), want });
        if self.endpoints.is_empty() {
            return wrong("", "a list of etcd endpoints such as http://192.0.2.7:2379");
        }
        for endpoint in &self.endpoints {
            let address = endpoint.strip_prefix("http://");
            if address.is_none_or(|address| address.is_empty() || address.contains(['/', ' '])) {
                return wrong(endpoint, "an etcd endpoint such as http://192.0.2.7:2379");
            }
        }
        let prefix = self.prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return wrong(&self.prefix, "a prefix of keys such as /sluice/lustre1");
        }
        Ok(EtcdClient { prefix: prefix.to_string(), ..self.clone() })
    }

    /// Returns the full name of our key `name`.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Returns its name in messages.
    pub(crate) fn description(&self) -> String {
        format!("etcd at {}, {}", self.endpoints.join(", "), self.prefix)
    }
}

/// A connection to the first member that replies.
pub(crate) struct EtcdMembers {
    etcd: EtcdClient,
    /// The member that replied last, or is to be tried next.
    at: usize,
    client: Option<Client>,
}

impl EtcdMembers {
    /// Makes it without a connection.
    pub(crate) fn new(etcd: &EtcdClient) -> Result<EtcdMembers, EtcdError> {
        Ok(EtcdMembers { etcd: etcd.checked()?, at: 0, client: None })
    }

    /// Returns the endpoints and the prefix of keys.
    pub(crate) fn etcd(&self) -> &EtcdClient {
        &self.etcd
    }

    /// Makes the call at one member after another until one replies or `patience` is over. `call`
    /// gets the number of attempts before it.
    pub(crate) async fn call<T>(
        &mut self,
        what: &'static str,
        patience: Duration,
        mut call: impl AsyncFnMut(Client, u32) -> Result<T, Error>,
    ) -> Result<T, EtcdError> {
        let deadline = Instant::now() + patience;
        let mut tries = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // half of what is left, so that a member that swallows calls leaves time for another
            let each = (left / 2).clamp(TRY_MIN, TRY);
            let last = match timeout(each, self.try_once(&mut call, tries)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if is_final(&error) => {
                    let place = self.etcd.endpoints[self.at].clone();
                    return Err(EtcdError::Refused {
                        endpoint: place,
                        what,
                        source: Box::new(error),
                    });
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "nothing".to_string(),
            };
            tracing::debug!(endpoint = self.etcd.endpoints[self.at], what, %last, "next member");
            self.next_member();
            tries += 1;
            if Instant::now() >= deadline {
                return Err(EtcdError::Unavailable {
                    endpoints: self.etcd.description(),
                    what,
                    waited: patience,
                    last,
                });
            }
            if self.at == 0 {
                sleep(PAUSE).await;
            }
        }
    }

    /// Leaves the current member: the next call goes to the next one.
    pub(crate) fn next_member(&mut self) {
        self.client = None;
        self.at = (self.at + 1) % self.etcd.endpoints.len();
    }

    /// Returns the client that replied last.
    pub(crate) fn client(&self) -> Option<Client> {
        self.client.clone()
    }

    async fn try_once<T>(
        &mut self,
        call: &mut impl AsyncFnMut(Client, u32) -> Result<T, Error>,
        tries: u32,
    ) -> Result<T, Error> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let endpoint = &self.etcd.endpoints[self.at];
                let client = Client::connect([endpoint], Some(self.connect_options())).await?;
                self.client.insert(client).clone()
            }
        };
        call(client, tries).await
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(TRY / 2)
            .with_keep_alive(TRY / 2, TRY / 2)
            .with_require_leader(true);
        match &self.etcd.user {
            Some((name, password)) => options.with_user(name, password),
            None => options,
        }
    }
}

/// Makes a runtime for one connection: its calls block the thread that makes them.
pub(crate) fn runtime() -> Result<Runtime, EtcdError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| EtcdError::Runtime { source })
}

/// Waits for `work` on `runtime`.
pub(crate) fn wait_for<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work)
}

/// The longest time of one member: an election among the members takes about as long, and a member
/// that cannot be reached costs as much.
const TRY: Duration = Duration::from_secs(2);
/// The shortest time of one member.
const TRY_MIN: Duration = Duration::from_millis(100);
/// The pause between two rounds of all members.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns whether every member would give the same error.
fn is_final(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => !TRANSIENT.contains(&(status.code() as i32)),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => true,
        _ => false,
    }
}

/// Codes of gRPC that mean "not now" or "not here": cancelled, unknown (a broken connection is
/// reported so), deadline exceeded, aborted, internal (as unknown), unavailable.
const TRANSIENT: [i32; 6] = [1, 2, 4, 10, 13, 14];

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(endpoint: &str, prefix: &str) -> EtcdClient {
        EtcdClient { endpoints: vec![endpoint.into()], prefix: prefix.into(), user: None }
    }

    #[test]
    fn a_configuration_that_leads_nowhere_is_refused_with_the_value_at_fault() {
        for (wrong, told) in [
            (etcd("127.0.0.1:2379", "/sluice"), "127.0.0.1:2379"),
            (etcd("http://127.0.0.1:2379/x", "/sluice"), "127.0.0.1:2379/x"),
            (etcd("http://127.0.0.1:2379", "/"), "\"/\""),
            (etcd("http://127.0.0.1:2379", "/a b"), "/a b"),
        ] {
            let error = wrong.checked().unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("such as"), "{error}");
        }
        let none = EtcdClient { endpoints: Vec::new(), ..etcd("", "/sluice") };
        assert!(none.checked().unwrap_err().to_string().contains("http://192.0.2.7:2379"));
    }

    #[test]
    fn the_password_is_not_printed() {
        let user = Some(("sluice".to_owned(), "hidden".to_owned()));
        let shown = format!("{:?}", EtcdClient { user, ..etcd("http://127.0.0.1:2379", "/x") });
        assert!(shown.contains("sluice") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn a_slash_at_the_end_of_the_prefix_makes_no_other_key() {
        let key = etcd("http://127.0.0.1:2379", "/sluice/").checked().unwrap().key("head");
        assert_eq!(key, "/sluice/head");
    }

    #[test]
    fn an_etcd_that_is_not_there_is_named_with_what_was_asked() {
        // port 1 of loopback: there is never a listener, so the connection is refused at once
        let mut members = EtcdMembers::new(&etcd("http://127.0.0.1:1", "/sluice")).unwrap();
        let asked =
            members.call("read a key", Duration::from_millis(100), async |mut client, _| {
                client.get("key", None).await
            });
        let error = wait_for(&runtime().unwrap(), asked).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, EtcdError::Unavailable { .. }), "{told}");
        assert!(told.contains("127.0.0.1:1") && told.contains("read a key"), "{told}");
    }
}
