//! Bounds that all callers share, with a fair part for each ([`FairBound`]): connections, bytes of
//! long bodies, event streams.
//!
//! ```text
//!   accept ─► connection ─► call ─► its body, if long ─► handler ─► stream of events
//!             or closed             or 503                          or 503
//! ```
//!
//! So a caller that connects, sends or reads as much as it can does not keep others out. Short
//! bodies are not counted: those of all connections together need little memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::ErrorCode;
use axum::body::HttpBody;
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bounds::{FairBound, Holder};
use http::{Peer, RouteError};
use model::Nid;

/// A resource that is bounded for all callers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounded {
    Connections,
    BodyBytes,
    EventStreams,
}

/// The bounds of all shared resources.
pub(crate) struct ControllerBounds([Mutex<FairBound>; Bounded::ALL.len()]);

/// The units of a bound that a caller holds until this is dropped.
pub(crate) struct BoundPermit {
    of: Arc<ControllerBounds>,
    what: Bounded,
    holder: Holder,
    amount: u64,
}

impl Bounded {
    pub(crate) const ALL: [Bounded; 3] =
        [Bounded::Connections, Bounded::BodyBytes, Bounded::EventStreams];

    /// Returns its name in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bounded::Connections => "connections",
            Bounded::BodyBytes => "body_bytes",
            Bounded::EventStreams => "event_streams",
        }
    }
}

impl ControllerBounds {
    /// Makes the bounds of a process with this many descriptors.
    pub(crate) fn new(descriptors: u64) -> Arc<ControllerBounds> {
        let connections = CONNECTIONS_MAX.min(descriptors.saturating_sub(OWN_DESCRIPTORS)).max(1);
        let of = |what| match what {
            Bounded::Connections => connections,
            Bounded::BodyBytes => BODY_BYTES_MAX,
            Bounded::EventStreams => EVENT_STREAMS_MAX,
        };
        Arc::new(ControllerBounds(Bounded::ALL.map(|what| Mutex::new(FairBound::new(of(what))))))
    }

    /// Takes units for a holder; `None`, and a line in the log, if its part is used up.
    pub(crate) fn acquire(
        self: &Arc<ControllerBounds>,
        what: Bounded,
        holder: &Holder,
        amount: u64,
    ) -> Option<BoundPermit> {
        let taken = self.lock(what).acquire(holder, amount);
        if let Err(bound) = taken {
            let (peer, what) = (&holder.peer, what.name());
            tracing::warn!(%peer, uid = holder.uid, what, ?bound, "a caller exceeds its bound");
            return None;
        }
        Some(BoundPermit { of: self.clone(), what, holder: holder.clone(), amount })
    }

    /// Returns the amount in use, the bound, and the count of refusals.
    pub(crate) fn figures(&self, what: Bounded) -> [u64; 3] {
        let bound = self.lock(what);
        [bound.used(), bound.max(), bound.refused()]
    }

    fn lock(&self, what: Bounded) -> MutexGuard<'_, FairBound> {
        self.0[what as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BoundPermit {
    fn drop(&mut self) {
        self.of.lock(self.what).release(&self.holder, self.amount);
    }
}

impl fmt::Debug for ControllerBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(Bounded::ALL.map(|what| (what, self.figures(what)))).finish()
    }
}

/// Returns the holder of what a caller uses: its address, or its user on this machine.
pub(super) fn holder(peer: &Peer) -> Holder {
    Holder { peer: peer.ip().map_or_else(Nid::local, Nid::tcp), uid: peer.uid() }
}

/// Holds the bytes of a call's body until the reply, before any of them is read.
pub(super) async fn acquire_body(
    State(bounds): State<Arc<ControllerBounds>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    // A body without a length may be as long as the path allows.
    let expected = request.body().size_hint().upper().unwrap_or(BODY_MAX).min(BODY_MAX);
    if expected <= SHORT {
        return next.run(request).await;
    }
    let Some(_part) = bounds.acquire(Bounded::BodyBytes, &holder(&peer), expected) else {
        let message = "too many long bodies of this address or user are in transfer; retry in 1 s";
        return RouteError::new(ErrorCode::Overloaded, message).into_response();
    };
    next.run(request).await
}

/// The longest body of any path.
pub(super) const BODY_MAX: u64 = 32 << 20;
/// The longest body that is not counted.
const SHORT: u64 = 64 << 10;
/// The most bytes of longer bodies at a time.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// The most connections at a time: two of each of a thousand proxies, and those of people.
const CONNECTIONS_MAX: u64 = 4_096;
/// Descriptors of the controller itself: listeners, files of its directory, connections to etcd and
/// others.
const OWN_DESCRIPTORS: u64 = 256;
/// The most event streams.
const EVENT_STREAMS_MAX: u64 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(peer: &str) -> Holder {
        Holder { peer: Nid::new(peer).unwrap(), uid: None }
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_others_theirs_and_gives_it_back() {
        let bounds = ControllerBounds::new(1_024);
        let [_, max, _] = bounds.figures(Bounded::Connections);
        assert_eq!(max, 768, "its own files find descriptors");
        let greedy: Vec<_> =
            std::iter::from_fn(|| bounds.acquire(Bounded::Connections, &holder("a"), 1)).collect();
        assert_eq!(greedy.len() as u64, max / 3);
        let others: Vec<_> = ["b", "c", "d"]
            .map(|peer| bounds.acquire(Bounded::Connections, &holder(peer), 1).unwrap())
            .into();
        assert_eq!(bounds.figures(Bounded::Connections), [max / 3 + 3, max, 1]);
        drop((greedy, others));
        assert_eq!(bounds.figures(Bounded::Connections), [0, max, 1]);
    }

    #[test]
    fn there_is_always_a_place_for_one() {
        assert_eq!(ControllerBounds::new(100).figures(Bounded::Connections), [0, 1, 0]);
    }
}
