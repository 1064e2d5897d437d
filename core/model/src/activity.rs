//! The activity of a rule on which other rules depend.

use crate::Nanos;

/// What requests under a rule do at one proxy, or at several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleActivity {
    /// Requests dispatched per second, over the last windows of 100 ms.
    pub ops_per_sec: u64,
    /// Bytes of them per second.
    pub bytes_per_sec: u64,
    /// For how long there has been no request; `None` while one waits or runs.
    pub idle: Option<Nanos>,
}

impl RuleActivity {
    /// The activity of a rule that never had a request.
    pub const NONE: RuleActivity =
        RuleActivity { ops_per_sec: 0, bytes_per_sec: 0, idle: Some(Nanos::new(u64::MAX)) };

    /// The activity at both places.
    pub fn with(self, other: RuleActivity) -> RuleActivity {
        RuleActivity {
            ops_per_sec: self.ops_per_sec.saturating_add(other.ops_per_sec),
            bytes_per_sec: self.bytes_per_sec.saturating_add(other.bytes_per_sec),
            idle: self.idle.zip(other.idle).map(|(a, b)| a.min(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_idle_for_as_long_as_it_is_everywhere() {
        let here = RuleActivity { ops_per_sec: 3, idle: Some(Nanos::new(7)), ..RuleActivity::NONE };
        assert_eq!(here.with(RuleActivity::NONE), here);
        let there = RuleActivity { ops_per_sec: 4, idle: Some(Nanos::new(5)), ..here };
        let both = here.with(there);
        assert_eq!((both.ops_per_sec, both.idle), (7, Some(Nanos::new(5))));
        assert_eq!(both.with(RuleActivity { idle: None, ..here }).idle, None);
    }
}
