//! A network interface: messages go one after another at its rate, and each arrives a latency
//! later.
//!
//! ```text
//!   node ── its NIC ──►  ── the proxy's NIC ──► proxy         a write carries its payload there,
//!        ◄────────────  ◄────────────────────               a read's reply carries it back
//! ```
//!
//! Both directions of an interface are independent. The position of a message in its queue is
//! decided when it is sent.

use model::{Bytes, Nanos, Rate, Time};

/// The properties of an interface; the default has no latency and no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NicSpec {
    pub(crate) latency: Nanos,
    /// The rate in bytes per second.
    pub(crate) bandwidth: Option<Rate>,
}

/// An interface and when each of its directions is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nic {
    spec: NicSpec,
    free: [Time; 2],
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NicDirection {
    ToProxy,
    ToClient,
}

impl Nic {
    pub(crate) fn new(spec: NicSpec) -> Nic {
        Nic { spec, free: [Time::ZERO; 2] }
    }

    /// When a message that is sent at `now` is at the other end.
    pub(crate) fn pass(&mut self, way: NicDirection, payload: Bytes, now: Time) -> Time {
        let Some(rate) = self.spec.bandwidth else { return now + self.spec.latency };
        let free = &mut self.free[way as usize];
        *free = (*free).max(now) + rate.time_for(payload.get());
        *free + self.spec.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_direction_go_one_after_another() {
        let rate = Rate::bytes_per_sec(1_000_000_000);
        let mut wire = Nic::new(NicSpec { latency: Nanos::new(50), bandwidth: rate });
        let mut pass = |way, bytes, now| wire.pass(way, Bytes::new(bytes), Time::from_nanos(now));
        let got = [
            pass(NicDirection::ToProxy, 1000, 0),
            pass(NicDirection::ToProxy, 1000, 10),
            pass(NicDirection::ToClient, 1000, 10),
            pass(NicDirection::ToProxy, 0, 5000),
        ];
        assert_eq!(got.map(Time::as_nanos), [1050, 2050, 1060, 5050]);
    }
}
