//! The event that is published when a key's level in a decay changes.
//!
//! ```text
//!   free ─► warned (80 %) ─► throttled ─► floor     one event for each change of level, none between
//!     ▲───────┴─ released ────┴──────────┘
//! ```

use std::fmt;
use std::sync::Arc;

use model::{Nanos, Rate, Scope, Time};

/// The level of a key in a decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecayLevel {
    /// It had less than four fifths of its entitlement.
    #[default]
    Free,
    /// It had four fifths of it.
    Warned,
    /// It is limited to less than `max`.
    Throttled,
    /// It is limited to the floor.
    Floor,
}

/// A change of a key's level, for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayEvent {
    /// The decay and the key.
    pub scope: Scope,
    /// When the level changed.
    pub at: Time,
    /// The level before the change.
    pub before: DecayLevel,
    /// The level after the change.
    pub stage: DecayLevel,
    /// The past usage, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// The entitlement, in the same unit.
    pub entitlement: u64,
    /// The rate that it is limited to; `None`: to the decay's `max` only.
    pub limit: Option<Rate>,
    /// That rate as a fraction of `max`, in millionths; `None` without a limit or a `max`.
    pub factor_ppm: Option<u32>,
    /// When the limit ends if nothing is used until then; `None` if it has ended.
    pub release: Option<Time>,
    /// The pattern in its requests that changes its entitlement, and the factor.
    pub pattern_factor: Option<(Arc<str>, u32)>,
}

impl DecayEvent {
    /// Whether a limit that was in force has ended.
    pub fn is_release(&self) -> bool {
        self.before >= DecayLevel::Throttled && self.stage < DecayLevel::Throttled
    }
}

/// Writes a sentence for the user.
impl fmt::Display for DecayEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = u128::from(self.used) * 100 / u128::from(self.entitlement.max(1));
        write!(f, "{}: {percent} % of the entitlement used", self.scope)?;
        match (self.stage, self.limit) {
            _ if self.is_release() => f.write_str(", no longer throttled")?,
            (DecayLevel::Throttled, Some(limit)) => {
                write!(f, ", limited to {}", three_digits(limit))?;
            }
            (DecayLevel::Floor, Some(limit)) => write!(f, ", limited to the floor of {limit}")?,
            _ => {}
        }
        if let Some(release) = self.release {
            let left = release.since(self.at).get() / 1_000_000_000;
            write!(f, ", limit ends in {}", Nanos::from_secs(left))?;
        }
        if let Some((pattern, ppm)) = &self.pattern_factor {
            let (whole, rest) = (ppm / 1_000_000, ppm / 10_000 % 100);
            write!(f, "; entitlement × {whole}.{rest:02} for {pattern}")?;
        }
        Ok(())
    }
}

/// Rounds a rate down to three digits: its exact value is in [`DecayEvent::limit`].
fn three_digits(rate: Rate) -> Rate {
    let mut unit = 1;
    while rate.per_sec() / unit >= 1000 {
        unit *= 10;
    }
    rate.with_per_sec(rate.per_sec() / unit * unit).unwrap_or(rate)
}
