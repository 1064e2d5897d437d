//! How a proxy stands with its controller: for its log, its status and its metrics.
//!
//! ```text
//!   calls: answered | refused | no answer ─► ControllerClientState ─┬─► log: a line for each change
//!                                                                   └─► GET /v1/status, GET /metrics
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{ControllerLink, ControllerReply, ErrorCode};
use http::ClientError;
use model::Time;

/// State of the controller's connection; empty for a proxy without a controller.
#[derive(Debug, Default)]
pub(crate) struct ControllerClientState(Mutex<Option<KnownController>>);

#[derive(Debug)]
struct KnownController {
    /// All but what the last call and the time now say.
    link: ControllerLink,
    last: ReportCall,
    ordered: Option<Time>,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportCall {
    /// None has ended yet.
    Never,
    Answered,
    Refused(ErrorCode),
    Unanswered,
}

impl ControllerClientState {
    /// A controller is to be spoken with, under this name.
    pub(super) fn begin(&self, controller: String, name: &str) {
        let link = ControllerLink { controller, name: name.into(), ..ControllerLink::default() };
        *self.lock() = Some(KnownController { link, last: ReportCall::Never, ordered: None });
    }

    /// A call was answered.
    pub(super) fn answered(&self, order: &ControllerReply, now: Time) {
        let mut locked = self.lock();
        let Some(KnownController { link, last, ordered }) = locked.as_mut() else { return };
        let ControllerLink { controller, name, .. } = &*link;
        if *last != ReportCall::Answered {
            tracing::info!(controller, name, "connected to the controller");
        }
        if order.duplicate && !link.duplicate {
            tracing::error!(
                controller,
                name,
                "two proxies report under this name, and the controller rejects one; change one \
                 name with --name"
            );
        } else if link.duplicate && !order.duplicate {
            tracing::info!(name, "the proxy's name is unique again");
        }
        (*last, *ordered) = (ReportCall::Answered, Some(now));
        (link.problem, link.duplicate) = (None, order.duplicate);
        link.answered += 1;
    }

    /// A call was not. Each other reason is logged once.
    pub(super) fn failed(&self, error: &ClientError) {
        let mut locked = self.lock();
        let Some(KnownController { link, last, .. }) = locked.as_mut() else { return };
        let call = refusal(error).map_or(ReportCall::Unanswered, ReportCall::Refused);
        let ControllerLink { controller, name, .. } = &*link;
        match call {
            _ if call == *last => {}
            ReportCall::Refused(_) => {
                tracing::error!(controller, name, %error, "the controller refuses this proxy");
            }
            _ => {
                tracing::warn!(controller, %error, "the controller does not answer")
            }
        }
        match call {
            ReportCall::Unanswered => link.unanswered += 1,
            _ => link.refused += 1,
        }
        (link.problem, link.duplicate) =
            (Some(error.to_string()), call == ReportCall::Refused(ErrorCode::DuplicateName));
        *last = call;
    }

    /// Whether the last call was answered.
    pub(super) fn is_answered(&self) -> bool {
        self.lock().as_ref().is_some_and(|known| known.last == ReportCall::Answered)
    }

    /// Returns the state for the control API.
    pub(crate) fn report(&self, now: Time) -> Option<ControllerLink> {
        let locked = self.lock();
        let KnownController { link, last, ordered } = locked.as_ref()?;
        let connected = *last == ReportCall::Answered;
        let order_ns_ago = ordered.map(|ordered| now.since(ordered).get());
        Some(ControllerLink { connected, last_reply_ns_ago: order_ns_ago, ..link.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<KnownController>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code with which a controller refused; `None` if none did: a standby reports only that another
/// controller decides, or that none does yet.
pub(super) fn refusal(error: &ClientError) -> Option<ErrorCode> {
    match error {
        ClientError::Refused { code, .. } if !error.is_standby() => Some(*code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ErrorCode, message: &str) -> ClientError {
        ClientError::Refused {
            status: code.status(),
            code,
            message: message.into(),
            at: None,
            refusal: None,
        }
    }

    #[test]
    fn the_last_call_and_the_last_order_are_told_apart() {
        let state = ControllerClientState::default();
        assert_eq!(state.report(Time::ZERO), None, "there is no controller");
        state.begin("http://c:1".into(), "a");
        assert!(!state.is_answered());
        state.answered(&ControllerReply::default(), Time::from_nanos(5));
        assert!(state.is_answered());
        state.failed(&refused(ErrorCode::DuplicateName, "taken"));
        let told = state.report(Time::from_nanos(9)).unwrap();
        assert_eq!((told.connected, told.last_reply_ns_ago), (false, Some(4)));
        assert_eq!((told.problem.as_deref(), told.duplicate), (Some("taken"), true));
        assert_eq!((told.answered, told.refused, told.unanswered), (1, 1, 0));
        state.answered(
            &ControllerReply { duplicate: true, ..ControllerReply::default() },
            Time::ZERO,
        );
        let told = state.report(Time::ZERO).unwrap();
        assert!(told.connected && told.duplicate && told.problem.is_none());
    }

    #[test]
    fn a_controller_that_stands_by_refuses_nobody() {
        let state = ControllerClientState::default();
        state.begin("http://c:1".into(), "a");
        state.failed(&refused(ErrorCode::NotLeader, "it stands by"));
        let told = state.report(Time::ZERO).unwrap();
        assert_eq!((told.connected, told.refused, told.unanswered), (false, 0, 1));
    }
}
