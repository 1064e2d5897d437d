//! Which life of a proxy speaks under its name, and whether two do.
//!
//! ```text
//!   report of (name, life) ─┬─ the newest that is known ─► heard; `duplicate` if an older one speaks, too
//!                           ├─ newer ─► takes its place: a proxy that was started again
//!                           └─ older ─┬─ the newest is heard ─► superseded: another one has this name
//!                                     └─ it is not any more ─► superseded, and may begin anew
//! ```
//!
//! A life is when a process began, so a proxy that was started again is newer than it was before. What
//! an ended life had sent may come late, but not for long: an older one that speaks [`LATE`] after
//! the newer began is alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Time};

/// The lives of proxies, by name.
#[derive(Debug)]
pub struct ProxyEpochs {
    by_name: BTreeMap<Arc<str>, KnownEpoch>,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct KnownEpoch {
    epoch: u64,
    began: Time,
    heard: Time,
    /// When an older one spoke last that is alive.
    other: Option<Time>,
}

/// What a report means for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochCheck {
    /// It is of the proxy of that name.
    Current {
        /// Another process reports under the same name.
        duplicate: bool,
    },
    /// A newer one has the name: this is not to be taken.
    Superseded {
        /// The newer one is not heard any more: this one may begin a new life.
        again: bool,
        /// That this one is alive beside it shows for the first time in a while.
        news: bool,
    },
}

impl ProxyEpochs {
    /// Keeps `most` names; those that are not heard any more give way.
    pub fn new(most: usize) -> ProxyEpochs {
        ProxyEpochs { by_name: BTreeMap::new(), most }
    }

    /// A report has come; `None` if its name is one too many. O(log names), or O(names) where a new name
    /// finds no room.
    pub fn hear(&mut self, name: &Arc<str>, epoch: u64, now: Time) -> Option<EpochCheck> {
        if self.by_name.len() >= self.most && !self.by_name.contains_key(name) {
            self.by_name.retain(|_, life| now.since(life.heard) < GONE);
            if self.by_name.len() >= self.most {
                return None;
            }
        }
        let new = KnownEpoch { epoch, began: now, heard: now, other: None };
        let life = self.by_name.entry(name.clone()).or_insert(new);
        if epoch > life.epoch {
            *life = new;
        }
        if epoch == life.epoch {
            life.heard = now;
            return Some(EpochCheck::Current { duplicate: life.has_duplicate(now) });
        }
        let alive = now.since(life.began) >= LATE;
        let again = now.since(life.heard) >= GONE;
        let news = alive && !again && !life.has_duplicate(now);
        if alive && !again {
            life.other = Some(now);
        }
        Some(EpochCheck::Superseded { again, news })
    }

    /// Whether two processes report under a name.
    pub fn has_duplicate(&self, name: &str, now: Time) -> bool {
        self.by_name.get(name).is_some_and(|life| life.has_duplicate(now))
    }

    /// Forgets a name.
    pub fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
    }
}

impl KnownEpoch {
    fn has_duplicate(&self, now: Time) -> bool {
        self.other.is_some_and(|other| now.since(other) < GONE)
    }
}

/// What an ended life had sent comes within this time.
const LATE: Nanos = Nanos::from_secs(5);
/// Who has not been heard for so long is gone: proxies report at least once a second.
const GONE: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const ONLY: Option<EpochCheck> = Some(EpochCheck::Current { duplicate: false });

    fn at(secs: u64) -> Time {
        Time::ZERO + Nanos::from_secs(secs)
    }

    fn superseded(again: bool, news: bool) -> Option<EpochCheck> {
        Some(EpochCheck::Superseded { again, news })
    }

    #[test]
    fn a_proxy_that_was_started_again_takes_its_own_place_and_late_reports_say_nothing() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        assert_eq!(lives.hear(&a, 1, at(0)), ONLY);
        assert_eq!(lives.hear(&a, 1, at(1)), ONLY);
        assert_eq!(lives.hear(&a, 2, at(1)), ONLY);
        assert_eq!(lives.hear(&a, 1, at(2)), superseded(false, false));
        assert_eq!(lives.hear(&a, 2, at(2)), ONLY);
    }

    #[test]
    fn of_two_that_speak_both_are_told_and_the_newer_one_counts() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        lives.hear(&a, 1, at(0));
        lives.hear(&a, 2, at(10));
        assert_eq!(lives.hear(&a, 1, at(14)), superseded(false, false));
        assert_eq!(lives.hear(&a, 1, at(15)), superseded(false, true));
        assert_eq!(lives.hear(&a, 1, at(16)), superseded(false, false), "told once");
        assert_eq!(lives.hear(&a, 2, at(16)), Some(EpochCheck::Current { duplicate: true }));
        assert!(lives.has_duplicate("a", at(16)) && !lives.has_duplicate("b", at(16)));
        assert_eq!(lives.hear(&a, 2, at(26)), ONLY, "the older one has another name now");
        assert_eq!(lives.hear(&a, 1, at(27)), superseded(false, true), "again");
    }

    #[test]
    fn the_older_one_may_begin_anew_once_the_newer_is_gone() {
        let (mut lives, a) = (ProxyEpochs::new(10), "a".into());
        lives.hear(&a, 1, at(0));
        lives.hear(&a, 2, at(10));
        lives.hear(&a, 1, at(19));
        assert_eq!(lives.hear(&a, 1, at(20)), superseded(true, false));
        assert_eq!(lives.hear(&a, 3, at(20)), ONLY);
        lives.forget("a");
        assert_eq!(lives.hear(&a, 1, at(21)), ONLY, "nobody is known");
    }

    #[test]
    fn names_are_bounded_and_who_is_gone_gives_way() {
        let mut lives = ProxyEpochs::new(2);
        let [a, b, c] = ["a", "b", "c"].map(Arc::from);
        lives.hear(&a, 1, at(0));
        lives.hear(&b, 1, at(5));
        assert_eq!(lives.hear(&c, 1, at(9)), None);
        assert_eq!(lives.hear(&b, 1, at(9)), ONLY);
        assert_eq!(lives.hear(&c, 1, at(10)), ONLY);
        assert_eq!(lives.hear(&a, 1, at(10)), None);
    }
}
