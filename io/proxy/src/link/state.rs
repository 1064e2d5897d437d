//! How a proxy stands with its controller: for its log, its status and its metrics.
//!
//! ```text
//!   calls: answered | refused | no answer ─► LinkState ─┬─► a line of the log for each change
//!                                                       └─► GET /v1/status, GET /metrics
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{ClientError, ControllerLink, ProxyOrder};
use model::{Nanos, Time};

/// What is known of it; empty for a proxy without a controller.
#[derive(Debug, Default)]
pub(crate) struct LinkState(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    controller: String,
    name: String,
    last: Call,
    ordered: Option<Time>,
    problem: Option<String>,
    duplicate: bool,
    answered: u64,
    refused: u64,
    unanswered: u64,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// None has ended yet.
    Never,
    Answered,
    /// The HTTP status.
    Refused(u16),
    Unanswered,
}

impl LinkState {
    /// A controller is to be spoken with, under this name.
    pub(super) fn begin(&self, controller: String, name: &str) {
        *self.lock() = Some(Known {
            controller,
            name: name.to_owned(),
            last: Call::Never,
            ordered: None,
            problem: None,
            duplicate: false,
            answered: 0,
            refused: 0,
            unanswered: 0,
        });
    }

    /// A call was answered.
    pub(super) fn answered(&self, order: &ProxyOrder, now: Time) {
        let mut locked = self.lock();
        let Some(known) = locked.as_mut() else { return };
        let Known { controller, name, .. } = &*known;
        if known.last != Call::Answered {
            tracing::info!(controller, name, "heard of the controller");
        }
        if order.duplicate && !known.duplicate {
            tracing::error!(
                controller,
                name,
                "another proxy reports under this name; its reports are not taken: give one of \
                 them another name (--node)"
            );
        } else if known.duplicate && !order.duplicate {
            tracing::info!(name, "no other proxy reports under this name any more");
        }
        (known.last, known.ordered, known.problem) = (Call::Answered, Some(now), None);
        known.duplicate = order.duplicate;
        known.answered += 1;
    }

    /// A call was not. Each other reason is logged once.
    pub(super) fn failed(&self, error: &ClientError) {
        let mut locked = self.lock();
        let Some(known) = locked.as_mut() else { return };
        let call = match error {
            ClientError::Refused { status, .. } => Call::Refused(*status),
            _ => Call::Unanswered,
        };
        let Known { controller, name, .. } = &*known;
        match call {
            _ if call == known.last => {}
            Call::Refused(_) => {
                tracing::error!(controller, name, %error, "the controller refuses this proxy; serving on");
            }
            _ => tracing::warn!(controller, %error, "the controller does not answer; serving on"),
        }
        known.refused += u64::from(call != Call::Unanswered);
        known.unanswered += u64::from(call == Call::Unanswered);
        (known.last, known.problem) = (call, Some(error.to_string()));
        known.duplicate = call == Call::Refused(CONFLICT);
    }

    /// Whether the last call was answered.
    pub(super) fn is_heard(&self) -> bool {
        self.lock().as_ref().is_some_and(|known| known.last == Call::Answered)
    }

    /// What people may know of it.
    pub(crate) fn report(&self, now: Time) -> Option<ControllerLink> {
        let locked = self.lock();
        let known = locked.as_ref()?;
        Some(ControllerLink {
            controller: known.controller.clone(),
            name: known.name.clone(),
            connected: known.last == Call::Answered,
            order_ns_ago: known.ordered.map(|ordered| now.since(ordered).get()),
            problem: known.problem.clone(),
            duplicate: known.duplicate,
            answered: known.answered,
            refused: known.refused,
            unanswered: known.unanswered,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a refused proxy waits until it asks again: somebody has to do something first.
pub(super) const REFUSED_PAUSE: Nanos = Nanos::from_secs(1);
/// The HTTP status of a proxy whose name another one has.
const CONFLICT: u16 = 409;
/// That one is not heard any more.
pub(super) const GONE: u16 = 410;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_and_the_last_order_are_told_apart() {
        let state = LinkState::default();
        assert_eq!(state.report(Time::ZERO), None, "there is no controller");
        state.begin("http://c:1".into(), "a");
        assert!(!state.is_heard());
        state.answered(&ProxyOrder::default(), Time::from_nanos(5));
        assert!(state.is_heard());
        let refused = ClientError::Refused { status: CONFLICT, message: "taken".into() };
        state.failed(&refused);
        let told = state.report(Time::from_nanos(9)).unwrap();
        assert_eq!((told.connected, told.order_ns_ago), (false, Some(4)));
        assert_eq!((told.problem.as_deref(), told.duplicate), (Some("taken"), true));
        assert_eq!((told.answered, told.refused, told.unanswered), (1, 1, 0));
        state.answered(&ProxyOrder { duplicate: true, ..ProxyOrder::default() }, Time::ZERO);
        let told = state.report(Time::ZERO).unwrap();
        assert!(told.connected && told.duplicate && told.problem.is_none());
    }
}
