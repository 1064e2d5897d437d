//! What is told when a key's standing with a decay changes.
//!
//! ```text
//!   free ─► near (80 %) ─► held ─► floor      one event for each change of stage, none between
//!     ▲───────┴─ released ───┴───────┘
//! ```

use std::fmt;
use std::sync::Arc;

use model::{Nanos, Rate, Scope, Time};

/// How far a key has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecayLevel {
    /// It had less than four fifths of its entitlement.
    #[default]
    Free,
    /// It had four fifths of it.
    Near,
    /// It is held to less.
    Held,
    /// It is held to the floor.
    Floor,
}

/// A change of stage: what a user is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayEvent {
    /// The decay and whom it is about.
    pub scope: Scope,
    /// When.
    pub at: Time,
    /// The stage before.
    pub before: DecayLevel,
    /// The stage now.
    pub stage: DecayLevel,
    /// What it had, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// What it is entitled to, likewise.
    pub entitled: u64,
    /// What it is held to; `None`: to nothing but the decay's `max`.
    pub limit: Option<Rate>,
    /// The part of `max` that this is, in millionths; `None` without a limit or a `max`.
    pub factor_ppm: Option<u32>,
    /// When it is free again if it uses nothing until then; `None` if it is free.
    pub release: Option<Time>,
    /// The pattern in its requests for which its entitlement is another, and by how much.
    pub behaviour: Option<(Arc<str>, u32)>,
}

impl DecayEvent {
    /// Whether a limit that was there is gone.
    pub fn is_release(&self) -> bool {
        self.before >= DecayLevel::Held && self.stage < DecayLevel::Held
    }
}

/// A sentence for the user.
impl fmt::Display for DecayEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = u128::from(self.used) * 100 / u128::from(self.entitled.max(1));
        write!(f, "{}: {percent}% of the entitlement used", self.scope)?;
        match (self.stage, self.limit) {
            _ if self.is_release() => f.write_str(", no longer throttled")?,
            (DecayLevel::Held, Some(limit)) => write!(f, ", limited to {limit}")?,
            (DecayLevel::Floor, Some(limit)) => write!(f, ", limited to the floor of {limit}")?,
            _ => {}
        }
        if let Some(release) = self.release {
            let left = release.since(self.at).get() / 1_000_000_000;
            write!(f, ", limit ends in {}", Nanos::from_secs(left))?;
        }
        if let Some((pattern, ppm)) = &self.behaviour {
            let (whole, rest) = (ppm / 1_000_000, ppm / 10_000 % 100);
            write!(f, "; entitlement × {whole}.{rest:02} for {pattern}")?;
        }
        Ok(())
    }
}
