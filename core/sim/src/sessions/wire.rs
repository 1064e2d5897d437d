//! Connections between mounts and proxies, and what travels on them.
//!
//! ```text
//!   mount ── ToProxy, in order, delayed ──► proxy        cut: what is in transit is lost,
//!         ◄─ ToMount, in order, delayed ───               each end learns of it by itself
//! ```

use model::{Nanos, Time};
use ninep::Tag;
use ninep::dialect::ReplyHeader;
use session::server::IdempotencyKey;

use super::backend::{SimOp, SimOutcome};
use crate::prng::Prng;

/// A connection of a mount's channel to a proxy.
#[derive(Debug)]
pub(super) struct SimWire {
    pub(super) mount: usize,
    pub(super) channel: usize,
    pub(super) proxy: usize,
    /// Whether messages arrive that are in transit or sent from now on.
    pub(super) carries: bool,
    /// Arrival of the last message at the proxy, and at the mount: later ones come later.
    last: [Time; 2],
}

/// A message of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToProxy {
    /// Begins or resumes a session on the connection; `epoch` counts the sessions of the mount.
    Session { id: u128 },
    /// A call; the same tag and key each time it is sent on a session.
    Call { tag: Tag, key: Option<IdempotencyKey>, call: usize, op: SimOp, epoch: u64 },
    /// Cancels the call with the tag `old`.
    Flush { tag: Tag, old: Tag },
    /// Asks for a sign of life.
    Ping,
    /// The mount has closed the connection.
    Closed,
}

/// A message of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToMount {
    /// The connection is bound to its channel of the session.
    Session { slots: u16, resumed: bool, header: ReplyHeader },
    /// The session was refused.
    Refused,
    /// The reply to a call, as it is kept in the reply cache.
    Reply(Vec<u8>),
    /// The call was cancelled, or has been answered before.
    Flushed { tag: Tag },
    /// A sign of life.
    Pong,
    /// The proxy has closed the connection.
    Closed,
}

/// The content of a reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimReply {
    pub(super) tag: Tag,
    pub(super) header: ReplyHeader,
    pub(super) call: usize,
    pub(super) outcome: SimOutcome,
    /// The number of a write, from 1; 0 for other calls.
    pub(super) number: u64,
}

impl SimWire {
    pub(super) fn new(mount: usize, channel: usize, proxy: usize) -> SimWire {
        SimWire { mount, channel, proxy, carries: true, last: [Time::ZERO; 2] }
    }

    /// When a message arrives that is sent now: after those before it.
    pub(super) fn arrival(&mut self, to_mount: bool, prng: &mut Prng, now: Time) -> Time {
        let delay = match prng.below(50) {
            0 => prng.between(100, 3_000),
            _ => prng.between(1, 30),
        };
        let last = &mut self.last[usize::from(to_mount)];
        *last = (*last).max(now + Nanos::from_millis(delay));
        *last
    }
}

impl SimReply {
    /// The bytes that a reply cache keeps: a frame of the dialect's shape, with tag and header.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut frame = vec![0; 5];
        frame.extend_from_slice(&self.tag.0.to_le_bytes());
        let words = [
            self.header.verifier,
            self.header.commit_watermark,
            self.call as u64,
            u64::from(self.outcome == SimOutcome::Done),
            self.number,
        ];
        words.iter().for_each(|word| frame.extend_from_slice(&word.to_le_bytes()));
        frame
    }

    /// Reads what [`SimReply::encode`] has written.
    pub(super) fn decode(frame: &[u8]) -> SimReply {
        let word = |at: usize| {
            let bytes = frame[7 + 8 * at..][..8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        SimReply {
            tag: Tag(u16::from_le_bytes([frame[5], frame[6]])),
            header: ReplyHeader {
                verifier: word(0),
                commit_watermark: word(1),
                ..ReplyHeader::default()
            },
            call: word(2) as usize,
            outcome: if word(3) == 1 { SimOutcome::Done } else { SimOutcome::Refused },
            number: word(4),
        }
    }
}
