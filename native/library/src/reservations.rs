//! The calls about reservations, one function each.
//!
//! ```text
//!   sync = add, then: claim ─ SCHEDULED ─► long poll until it is active or ended ─► claim …
//!                       └ ACTIVE: its time runs, and the call returns
//! ```
//!
//! A test claims, as otherwise a reservation with a claim window could end between two tests of a
//! program that uses it only when a test says ACTIVE.

use std::time::Duration;

use api::{
    AddedPhase, NewReservation, ReservationExtension, WireReservation, WireReservationState, path,
};
use rustix::process::getuid;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;

use crate::client::{CallReply, ControllerClient, Repetition};
use crate::deadline::Deadline;
use crate::error::{CallError, CallErrorCode};
use crate::exchange::HttpRequest;

impl ControllerClient {
    /// Requests a reservation; with a key, so that a lost reply leaves one reservation.
    pub(crate) fn add(
        &self,
        mut new: NewReservation,
        deadline: Deadline<'_>,
    ) -> Result<WireReservation, CallError> {
        if new.idempotency_key.is_none() {
            new.idempotency_key = Some(random_key()?);
        }
        let send = |new: &NewReservation| {
            let request = post(path::RESERVATIONS.into(), new)?;
            self.call::<WireReservation>(&request, Repetition::Harmless, deadline)
        };
        let reply = match send(&new) {
            Err(error) if new.user.is_none() && is_unknown_user(&error) && !self.has_token() => {
                new.user = Some(getuid().as_raw());
                send(&new)
            }
            reply => reply,
        };
        reply.map(|reply| reply.value)
    }

    /// Waits until a reservation is active, and claims it. If it is known to exist, a controller that
    /// cannot be reached is waited for from the first test on.
    pub(crate) fn wait(
        &self,
        id: u64,
        mut is_known: bool,
        deadline: Deadline<'_>,
    ) -> Result<WaitEnd, CallError> {
        loop {
            let state = match self.test(id, deadline) {
                Err(error) if error.code == CallErrorCode::TimedOut => {
                    return Ok(WaitEnd::TimedOut);
                }
                // It was there before: it is being restarted, or another takes over.
                Err(error) if error.code == CallErrorCode::Unreachable && is_known => {
                    match deadline.pause(UNREACHABLE_PAUSE) {
                        Err(error) if error.code == CallErrorCode::TimedOut => {
                            return Ok(WaitEnd::TimedOut);
                        }
                        paused => paused?,
                    }
                    continue;
                }
                tested => tested?,
            };
            is_known = true;
            match state {
                WireReservationState::Active => return Ok(WaitEnd::Active),
                WireReservationState::Undefined => return Ok(WaitEnd::Ended),
                WireReservationState::Scheduled if deadline.is_over() => {
                    return Ok(WaitEnd::TimedOut);
                }
                WireReservationState::Scheduled => self.poll(id, deadline)?,
            }
        }
    }

    /// Waits at the controller for some seconds at most. Whatever the network and an election do
    /// meanwhile, the next test finds out.
    pub(crate) fn poll(&self, id: u64, deadline: Deadline<'_>) -> Result<(), CallError> {
        let limit = deadline.remaining().min(POLL_MAX);
        // Each controller has its part of the time, and the half of it is for connecting.
        let wait = (limit / (2 * self.controllers())).as_millis();
        let at = path::reservation(path::RESERVATION, id);
        let request = HttpRequest::get(format!("{at}?until=active&wait={wait}ms"));
        let within = deadline.within(limit);
        match self.call::<WireReservation>(&request, Repetition::Harmless, within) {
            Err(CallError {
                code:
                    CallErrorCode::NotFound
                    | CallErrorCode::TimedOut
                    | CallErrorCode::Unreachable
                    | CallErrorCode::Unavailable
                    | CallErrorCode::InDoubt,
                ..
            }) => Ok(()),
            reply => reply.map(drop),
        }
    }

    /// Tests a reservation, which claims it if it is active.
    pub(crate) fn test(
        &self,
        id: u64,
        deadline: Deadline<'_>,
    ) -> Result<WireReservationState, CallError> {
        let request = post_nothing(path::reservation(path::RESERVATION_CLAIM, id));
        let reply = self.call::<WireReservation>(&request, Repetition::Harmless, deadline);
        match reply {
            Ok(reply) => Ok(reply.value.state),
            Err(error) if error.code == CallErrorCode::NotFound => {
                Ok(WireReservationState::Undefined)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a reservation without claiming it.
    pub(crate) fn details(
        &self,
        id: u64,
        deadline: Deadline<'_>,
    ) -> Result<WireReservation, CallError> {
        let request = HttpRequest::get(path::reservation(path::RESERVATION, id));
        Ok(self.call(&request, Repetition::Harmless, deadline)?.value)
    }

    /// Removes a reservation; false if there is none that has not ended.
    pub(crate) fn remove(&self, id: u64, deadline: Deadline<'_>) -> Result<bool, CallError> {
        let at = path::reservation(path::RESERVATION, id);
        let request = HttpRequest { method: "DELETE", path: at, body: String::new() };
        self.ended(&request, id, deadline).map(|ended| ended.is_some())
    }

    /// Ends a reservation or a phase early; returns the credit in bytes.
    pub(crate) fn finish(&self, id: u64, deadline: Deadline<'_>) -> Result<u64, CallError> {
        let request = post_nothing(path::reservation(path::RESERVATION_FINISH, id));
        let ended = self.ended(&request, id, deadline)?;
        let ended = ended.ok_or_else(|| {
            let text = format!("reservation {id} does not exist, or has ended");
            CallError::new(CallErrorCode::NotFound, text)
        })?;
        Ok(ended.credit.unwrap_or(0))
    }

    /// Makes a call that ends a reservation. After a lost reply the second one finds that it has
    /// ended, which is what the first did.
    fn ended(
        &self,
        request: &HttpRequest,
        id: u64,
        deadline: Deadline<'_>,
    ) -> Result<Option<WireReservation>, CallError> {
        match self.call::<WireReservation>(request, Repetition::Harmless, deadline) {
            Ok(CallReply { value, .. }) => Ok(Some(value)),
            Err(error) if error.code == CallErrorCode::NotFound => {
                match self.details(id, deadline) {
                    Err(error) if error.code == CallErrorCode::NotFound => Ok(None),
                    found => Ok(Some(found?).filter(|found| {
                        let how = found.ended.as_deref().unwrap_or_default();
                        error.is_of_second && ["completed", "removed"].contains(&how)
                    })),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Lets a claimed reservation end later; returns the new end.
    pub(crate) fn extend(
        &self,
        id: u64,
        more_ns: u64,
        deadline: Deadline<'_>,
    ) -> Result<u64, CallError> {
        let at = path::reservation(path::RESERVATION_EXTEND, id);
        let request = post(at, &ReservationExtension { more_ns })?;
        // Twice is twice as long.
        let reply = self.call::<WireReservation>(&request, Repetition::Never, deadline)?;
        Ok(reply.value.end_ns.unwrap_or(0))
    }

    /// Adds a phase to a reservation; returns the phase.
    pub(crate) fn add_phase(
        &self,
        id: u64,
        mut phase: AddedPhase,
        deadline: Deadline<'_>,
    ) -> Result<WireReservation, CallError> {
        if phase.idempotency_key.is_none() {
            phase.idempotency_key = Some(random_key()?);
        }
        let request = post(path::reservation(path::RESERVATION_PHASES, id), &phase)?;
        Ok(self.call(&request, Repetition::Harmless, deadline)?.value)
    }
}

/// How a wait for a reservation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Active,
    Ended,
    TimedOut,
}

/// Whether the controller does not know the caller and asks for whom the call is.
pub(crate) fn is_unknown_user(error: &CallError) -> bool {
    error.code == CallErrorCode::InvalidArgument && error.at.as_deref() == Some("user")
}

fn post(path: String, body: &impl Serialize) -> Result<HttpRequest, CallError> {
    let body = serde_json::to_string(body)
        .map_err(|error| CallError::new(CallErrorCode::Internal, error))?;
    Ok(HttpRequest { method: "POST", path, body })
}

fn post_nothing(path: String) -> HttpRequest {
    HttpRequest { method: "POST", path, body: String::new() }
}

/// A key that no other request has: 128 random bits.
fn random_key() -> Result<String, CallError> {
    let mut bits = [0_u8; 16];
    let filled = getrandom(&mut bits, GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bits.len() => Ok(format!("lib-{:032x}", u128::from_ne_bytes(bits))),
        _ => Err(CallError::new(CallErrorCode::Internal, "the system has no random numbers")),
    }
}

/// The longest wait at one controller, with what a new connection takes.
const POLL_MAX: Duration = Duration::from_secs(10);
/// The pause after a controller that was reached before could not be.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(200);
