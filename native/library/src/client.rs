//! A handle: the controllers of a file system, and one call to whichever of them leads.
//!
//! ```text
//!   call ─► controller 1 ─ cannot connect, is a standby ─► controller 2 ─ … ─► all tried
//!             │ replied: the next call begins there          │ all unreachable: error at once
//!             ▼                                              │ else a pause, and again
//!           reply lost: again if the call may be repeated    ▼ until the deadline
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::credentials::no_ca;
use api::{Credentials, Endpoint, Endpoints};
use rustls::ClientConfig;
use rustls::client::Resumption;
use serde::de::DeserializeOwned;

use crate::cancel::CallsUnderWay;
use crate::deadline::Deadline;
use crate::endpoint::ResolvedEndpoint;
use crate::error::{CallError, CallErrorCode};
use crate::exchange::{ExchangeError, HttpRequest, exchange};

/// What a handle is opened with; what is absent comes from the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct LibrarySettings {
    pub(crate) controller: Option<String>,
    /// The token is in a file only.
    pub(crate) credentials: Credentials,
}

/// The controllers of one file system, and the caller's credentials.
pub(crate) struct ControllerClient {
    endpoints: Vec<ResolvedEndpoint>,
    /// The index of the endpoint that is tried first.
    first: AtomicUsize,
    token: Option<String>,
    tls: Option<Arc<ClientConfig>>,
    pub(crate) calls: CallsUnderWay,
}

/// Whether a call whose reply was lost may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// Twice is the same as once.
    Harmless,
    /// Twice is not the same as once.
    Never,
}

/// A reply, and whether the call may have been executed before the one that it answers.
#[derive(Debug)]
pub(crate) struct CallReply<T> {
    pub(crate) value: T,
    pub(crate) may_be_second: bool,
}

impl LibrarySettings {
    /// Fills in from `SLUICE_CONTROLLER`, `SLUICE_CA` and `SLUICE_TOKEN_FILE`.
    pub(crate) fn with_environment(self) -> Result<LibrarySettings, CallError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let file = |set: Option<PathBuf>, name| set.or_else(|| variable(name).map(PathBuf::from));
        let controller = match (self.controller, variable("SLUICE_CONTROLLER")) {
            (Some(controller), _) => Some(controller),
            (None, Some(value)) => Some(value.into_string().map_err(|value| {
                CallError::settings(format!("SLUICE_CONTROLLER={value:?} is not UTF-8"))
            })?),
            (None, None) => None,
        };
        let Credentials { ca, token_file, .. } = self.credentials.clone();
        let credentials = Credentials {
            ca: file(ca, "SLUICE_CA"),
            token_file: file(token_file, "SLUICE_TOKEN_FILE"),
            ..self.credentials
        };
        Ok(LibrarySettings { controller, credentials })
    }
}

impl ControllerClient {
    /// Reads the credentials and resolves the names of the controllers; connects to none.
    pub(crate) fn open(settings: LibrarySettings) -> Result<ControllerClient, CallError> {
        let LibrarySettings { controller, credentials } = settings;
        let named = controller.as_deref().map(str::parse::<Endpoints>).transpose();
        let endpoints = credentials.controllers(named.map_err(CallError::settings)?)?;
        let (token, tls) = (credentials.token_for(&endpoints)?, tls_of(&credentials)?);
        let needs_tls = |at: &&Endpoint| matches!(at, Endpoint::Https { .. });
        if let Some(unverified) = endpoints.all().iter().find(needs_tls).filter(|_| tls.is_none()) {
            return Err(no_ca(unverified).into());
        }
        let resolved = endpoints.all().iter().map(ResolvedEndpoint::find);
        Ok(ControllerClient {
            endpoints: resolved.collect::<Result<_, _>>()?,
            first: AtomicUsize::new(0),
            token,
            tls,
            calls: CallsUnderWay::default(),
        })
    }

    /// Whether the controller knows the caller by a token or certificate.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The number of controllers, 1 to 16.
    pub(crate) fn controllers(&self) -> u32 {
        self.endpoints.len() as u32
    }

    /// Makes a call and decodes the JSON of its reply.
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        request: &HttpRequest,
        repetition: Repetition,
        deadline: Deadline<'_>,
    ) -> Result<CallReply<T>, CallError> {
        let CallReply { value: body, may_be_second } =
            self.call_bytes(request, repetition, deadline)?;
        let value = serde_json::from_slice(&body).map_err(|error| {
            let path = &request.path;
            let text = format!("an unexpected reply to {} {path}: {error}", request.method);
            CallError::new(CallErrorCode::Protocol, text)
        })?;
        Ok(CallReply { value, may_be_second })
    }

    /// Makes a call and returns the body of its reply.
    pub(crate) fn call_bytes(
        &self,
        request: &HttpRequest,
        repetition: Repetition,
        deadline: Deadline<'_>,
    ) -> Result<CallReply<Vec<u8>>, CallError> {
        let mut pause = PAUSE_MIN;
        let mut may_be_second = false;
        loop {
            let mut worth_again = may_be_second;
            let mut failed: Option<CallError> = None;
            let first = self.first.load(Ordering::Relaxed);
            for step in 0..self.endpoints.len() {
                let turn = (first + step) % self.endpoints.len();
                let left = (self.endpoints.len() - step) as u32;
                let part = deadline.within(deadline.remaining() / left);
                let replied_by = match repetition {
                    Repetition::Harmless => part,
                    // Once it is sent no other controller is asked.
                    Repetition::Never => deadline,
                };
                let error = match self.exchange_with(turn, request, part, replied_by) {
                    Ok((status, body)) if (200..300).contains(&status) => {
                        self.first.store(turn, Ordering::Relaxed);
                        return Ok(CallReply { value: body, may_be_second });
                    }
                    Ok((status, body)) => {
                        let error = CallError::of_reply(status, &body);
                        let is_lost = error.code == CallErrorCode::InDoubt;
                        let is_harmless = repetition == Repetition::Harmless;
                        if error.code != CallErrorCode::Unavailable && !(is_lost && is_harmless) {
                            self.first.store(turn, Ordering::Relaxed);
                            return Err(CallError { is_of_second: may_be_second, ..error });
                        }
                        may_be_second |= is_lost;
                        worth_again = true;
                        error
                    }
                    Err(ExchangeError::NotSent(error)) => self.not_sent(error, turn, deadline),
                    Err(ExchangeError::Sent(error)) => {
                        let is_final = [CallErrorCode::Protocol, CallErrorCode::Untrusted]
                            .contains(&error.code);
                        if repetition == Repetition::Never || is_final {
                            return Err(error);
                        }
                        (may_be_second, worth_again) = (true, true);
                        error
                    }
                };
                if error.code == CallErrorCode::Cancelled || deadline.is_over() {
                    return Err(timed_out(error, may_be_second));
                }
                // The reply of a standby says more than a failed connection.
                if failed.as_ref().is_none_or(|_| error.code == CallErrorCode::Unavailable) {
                    failed = Some(error);
                }
            }
            let failed = failed.ok_or_else(|| CallError::argument("no controller"))?;
            if !worth_again {
                return Err(failed);
            }
            if let Err(ended) = deadline.pause(pause) {
                return Err(match ended.code {
                    CallErrorCode::TimedOut => timed_out(failed, may_be_second),
                    _ => ended,
                });
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The error of a controller to which nothing was sent, while other controllers have theirs.
    fn not_sent(&self, error: CallError, turn: usize, deadline: Deadline<'_>) -> CallError {
        match error.code {
            // Only its part of the time is over.
            CallErrorCode::TimedOut if !deadline.is_over() => {
                let name = self.endpoints[turn].endpoint.name();
                let text = format!("{name} did not accept a connection in its part of the time");
                CallError::new(CallErrorCode::Unreachable, text)
            }
            _ => error,
        }
    }

    fn exchange_with(
        &self,
        turn: usize,
        request: &HttpRequest,
        connected_by: Deadline<'_>,
        replied_by: Deadline<'_>,
    ) -> Result<(u16, Vec<u8>), ExchangeError> {
        let (at, tls, token) = (&self.endpoints[turn], self.tls.as_ref(), self.token.as_deref());
        exchange(at, tls, token, request, connected_by, replied_by)
    }
}

/// The configuration of TLS; none without a CA.
fn tls_of(credentials: &Credentials) -> Result<Option<Arc<ClientConfig>>, CallError> {
    let mut tls = credentials.tls()?;
    if let Some(config) = &mut tls {
        // A ticket would be state that calls and a forked child share.
        Arc::make_mut(config).resumption = Resumption::disabled();
    }
    Ok(tls)
}

/// The time limit is over: what a controller said last may still be of use, unless the call may have
/// been executed by another.
fn timed_out(last: CallError, may_be_second: bool) -> CallError {
    match last.code {
        CallErrorCode::TimedOut | CallErrorCode::Cancelled => last,
        CallErrorCode::Unavailable if !may_be_second => last,
        _ => CallError { code: CallErrorCode::TimedOut, ..last },
    }
}

/// The pauses between two tries of all controllers.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
