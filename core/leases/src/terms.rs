//! How long leases last, and how many there may be.

use model::Nanos;

/// The same values at every proxy of a group; a mount gets them when it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a holder believes after it sent a renewal that was answered. 1 s to 1 h.
    pub term: Nanos,
    /// How long a holder that answers may take for a recall before it is expelled.
    pub recall_limit: Nanos,
    /// How long after it asked a proxy may begin what the home of an object has let it execute.
    pub peer_limit: Nanos,
    /// The most by which the rate of a clock is wrong, in millionths. Up to 100,000.
    pub drift_ppm: u64,
    /// The most leases of a table.
    pub leases_max: usize,
    /// The most leases of one holder.
    pub holder_max: usize,
}

impl LeaseTerms {
    /// The longest term that a proxy may have.
    pub const TERM_MAX: Nanos = Nanos::from_secs(3600);

    /// How long a proxy waits for leases of a holder that is not heard.
    pub const fn waits(&self) -> Nanos {
        self.outlasts(self.term)
    }

    /// A span that is not over, by any clock, before `span` is by another one: span × (1 + r) / (1 - r) at
    /// least, with r up to 0.1.
    pub const fn outlasts(&self, span: Nanos) -> Nanos {
        let ppm = self.drift_ppm;
        let more = span.get().div_ceil(1_000_000) * (2 * ppm + (4 * ppm * ppm).div_ceil(1_000_000));
        Nanos::new(span.get().saturating_add(more))
    }

    /// When a holder renews: with time for three attempts before the end.
    pub const fn renew_after(&self) -> Nanos {
        Nanos::new(self.term.get() / 4)
    }
}

impl Default for LeaseTerms {
    fn default() -> LeaseTerms {
        LeaseTerms {
            term: Nanos::from_secs(20),
            recall_limit: Nanos::from_secs(10),
            peer_limit: Nanos::from_secs(5),
            drift_ppm: 1_000,
            leases_max: 1_000_000,
            holder_max: 100_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_with_a_fast_clock_waits_longer_than_a_slow_clock_believes() {
        for drift_ppm in [0, 1, 200, 1_000, 50_000, 100_000] {
            let terms = LeaseTerms { drift_ppm, ..LeaseTerms::default() };
            let [wait, term] = [terms.waits(), terms.term].map(|span| u128::from(span.get()));
            let (fast, slow) =
                (1_000_000 + u128::from(drift_ppm), 1_000_000 - u128::from(drift_ppm));
            assert!(wait * slow >= term * fast, "{drift_ppm}: {wait}");
        }
    }
}
