//! A map that forgets what was not asked for the longest.
//!
//! ```text
//!   get, insert ─► the newest tick          by_tick: 3 ─► b, 7 ─► a, 9 ─► c
//!   one above the bound ─► the oldest tick goes       └─ goes next
//! ```
//!
//! Invariant: both maps have the same entries.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// Map of the most recently used entries, with a bound.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    by_tick: BTreeMap<u64, K>,
    tick: u64,
    max: usize,
}

impl<K: Ord + Clone, V> Lru<K, V> {
    pub(super) fn new(max: usize) -> Lru<K, V> {
        Lru { entries: BTreeMap::new(), by_tick: BTreeMap::new(), tick: 0, max }
    }

    /// The entry, which is the newest from now on.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        let (tick, value) = self.entries.get_mut(key)?;
        self.by_tick.remove(tick);
        self.tick += 1;
        *tick = self.tick;
        self.by_tick.insert(self.tick, key.clone());
        Some(value)
    }

    /// Adds an entry in place of one with its key; gives the one that had to go, if any.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let before = self.remove(&key).map(|value| (key.clone(), value));
        self.tick += 1;
        self.by_tick.insert(self.tick, key.clone());
        self.entries.insert(key, (self.tick, value));
        if self.entries.len() <= self.max {
            return before;
        }
        let (_, oldest) = self.by_tick.first_key_value()?;
        let oldest = oldest.clone();
        self.remove(&oldest).map(|value| (oldest, value))
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (tick, value) = self.entries.remove(key)?;
        self.by_tick.remove(&tick);
        Some(value)
    }

    /// Takes all entries of a range out.
    pub(super) fn remove_range(&mut self, range: impl RangeBounds<K>) -> Vec<V> {
        let keys: Vec<K> = self.entries.range(range).map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_not_used_for_the_longest_makes_room() {
        let mut lru = Lru::new(2);
        assert_eq!(lru.insert(1, "a"), None);
        assert_eq!(lru.insert(2, "b"), None);
        assert_eq!(lru.get(&1), Some(&mut "a"));
        assert_eq!(lru.insert(3, "c"), Some((2, "b")));
        assert_eq!(lru.insert(3, "d"), Some((3, "c")), "one with the same key goes first");
        assert_eq!(lru.get(&1), Some(&mut "a"));
        assert_eq!(lru.get(&2), None);
        assert_eq!(lru.by_tick.len(), lru.entries.len());
    }

    #[test]
    fn a_range_is_taken_out_whole() {
        let mut lru = Lru::new(9);
        for key in [(1, 1), (2, 1), (2, 7), (3, 0)] {
            lru.insert(key, key);
        }
        assert_eq!(lru.remove_range((2, 0)..(3, 0)), [(2, 1), (2, 7)]);
        assert_eq!((lru.entries.len(), lru.by_tick.len()), (2, 2));
    }
}
