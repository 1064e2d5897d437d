//! The epoch of each proxy's process, and whether two processes report under one name.
//!
//! ```text
//!   report of (name, epoch) ─┬─ the newest known ─► current; `duplicate` if an older one reports, too
//!                            ├─ newer ─► replaces it: the proxy was restarted
//!                            └─ older ─┬─ the newest reports ─► superseded: the name is in use
//!                                      └─ it no longer does ──► superseded, and may start a new epoch
//! ```
//!
//! An epoch is when a process began, so a restarted proxy has a greater epoch than before. Reports
//! of an ended epoch may arrive late, but not for long. An older epoch that reports [`LATE`] after
//! the newer began is alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Time};

/// The epochs of proxies, by name.
#[derive(Debug)]
pub struct ProxyEpochs {
    by_name: BTreeMap<Arc<str>, KnownEpoch>,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct KnownEpoch {
    epoch: u64,
    began: Time,
    last_report: Time,
    /// When an older epoch that is alive reported last.
    older_reported: Option<Time>,
}

/// The result of checking a report's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochCheck {
    /// The report is of the proxy of that name.
    Current {
        /// Another process reports under the same name.
        duplicate: bool,
    },
    /// A newer epoch has the name: this report is to be rejected.
    Superseded {
        /// The newer one no longer reports: this one may start a new epoch.
        may_restart: bool,
        /// Whether this is the first sign in a while that the older process is alive.
        first_sign: bool,
    },
}

impl ProxyEpochs {
    /// Creates a table of `most` names; names without recent reports give way.
    pub fn new(most: usize) -> ProxyEpochs {
        ProxyEpochs { by_name: BTreeMap::new(), most }
    }

    /// Checks a report's epoch; `None` if its name does not fit. O(log names), or O(names)
    /// where a new name finds no room.
    pub fn check(&mut self, name: &Arc<str>, epoch: u64, now: Time) -> Option<EpochCheck> {
        if self.by_name.len() >= self.most && !self.by_name.contains_key(name) {
            self.by_name.retain(|_, life| now.since(life.last_report) < DEAD_AFTER);
            if self.by_name.len() >= self.most {
                return None;
            }
        }
        let new = KnownEpoch { epoch, began: now, last_report: now, older_reported: None };
        let life = self.by_name.entry(name.clone()).or_insert(new);
        if epoch > life.epoch {
            *life = new;
        }
        if epoch == life.epoch {
            life.last_report = now;
            return Some(EpochCheck::Current { duplicate: life.has_duplicate(now) });
        }
        let alive = now.since(life.began) >= LATE;
        let may_restart = now.since(life.last_report) >= DEAD_AFTER;
        let first_sign = alive && !may_restart && !life.has_duplicate(now);
        if alive && !may_restart {
            life.older_reported = Some(now);
        }
        Some(EpochCheck::Superseded { may_restart, first_sign })
    }

    /// Whether two processes report under a name.
    pub fn has_duplicate(&self, name: &str, now: Time) -> bool {
        self.by_name.get(name).is_some_and(|life| life.has_duplicate(now))
    }

    /// Forgets a name and its epochs.
    pub fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
    }
}

impl KnownEpoch {
    fn has_duplicate(&self, now: Time) -> bool {
        self.older_reported.is_some_and(|other| now.since(other) < DEAD_AFTER)
    }
}

/// How long reports of an ended epoch may arrive.
const LATE: Nanos = Nanos::from_secs(5);
/// A proxy without a report for this time is gone: proxies report at least once a second.
const DEAD_AFTER: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const ONLY: Option<EpochCheck> = Some(EpochCheck::Current { duplicate: false });

    fn at(secs: u64) -> Time {
        Time::ZERO + Nanos::from_secs(secs)
    }

    fn superseded(may_restart: bool, first_sign: bool) -> Option<EpochCheck> {
        Some(EpochCheck::Superseded { may_restart, first_sign })
    }

    #[test]
    fn a_proxy_that_was_started_again_takes_its_own_place_and_late_reports_say_nothing() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        assert_eq!(lives.check(&a, 1, at(0)), ONLY);
        assert_eq!(lives.check(&a, 1, at(1)), ONLY);
        assert_eq!(lives.check(&a, 2, at(1)), ONLY);
        assert_eq!(lives.check(&a, 1, at(2)), superseded(false, false));
        assert_eq!(lives.check(&a, 2, at(2)), ONLY);
    }

    #[test]
    fn of_two_that_speak_both_are_told_and_the_newer_one_counts() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        lives.check(&a, 1, at(0));
        lives.check(&a, 2, at(10));
        assert_eq!(lives.check(&a, 1, at(14)), superseded(false, false));
        assert_eq!(lives.check(&a, 1, at(15)), superseded(false, true));
        assert_eq!(lives.check(&a, 1, at(16)), superseded(false, false), "reported once");
        assert_eq!(lives.check(&a, 2, at(16)), Some(EpochCheck::Current { duplicate: true }));
        assert!(lives.has_duplicate("a", at(16)) && !lives.has_duplicate("b", at(16)));
        assert_eq!(lives.check(&a, 2, at(26)), ONLY, "the older one has another name now");
        assert_eq!(lives.check(&a, 1, at(27)), superseded(false, true), "again");
    }

    #[test]
    fn the_older_one_may_begin_anew_once_the_newer_is_gone() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        lives.check(&a, 1, at(0));
        lives.check(&a, 2, at(10));
        lives.check(&a, 1, at(19));
        assert_eq!(lives.check(&a, 1, at(20)), superseded(true, false));
        assert_eq!(lives.check(&a, 3, at(20)), ONLY);
        lives.forget("a");
        assert_eq!(lives.check(&a, 1, at(21)), ONLY, "no epoch is known");
    }

    #[test]
    fn names_are_bounded_and_who_is_gone_gives_way() {
        let mut lives = ProxyEpochs::new(2);
        let [a, b, c] = ["a", "b", "c"].map(Arc::from);
        lives.check(&a, 1, at(0));
        lives.check(&b, 1, at(5));
        assert_eq!(lives.check(&c, 1, at(9)), None);
        assert_eq!(lives.check(&b, 1, at(9)), ONLY);
        assert_eq!(lives.check(&c, 1, at(10)), ONLY);
        assert_eq!(lives.check(&a, 1, at(10)), None);
    }
}
