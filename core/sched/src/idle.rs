//! Unreferenced items that are kept for a while, so that a key that returns finds its tags and debts.

use std::collections::BTreeMap;

use crate::index::TableIndex;

/// How many idle classes and meters are kept, each: enough for the jobs of a day, and some tens of
/// megabytes at most.
pub(crate) const IDLE_MAX: usize = 65_536;

/// Unreferenced items, longest idle first.
#[derive(Debug)]
pub(crate) struct IdleList<I> {
    order: BTreeMap<u64, I>,
    last: u64,
}

impl<I> Default for IdleList<I> {
    fn default() -> IdleList<I> {
        IdleList { order: BTreeMap::new(), last: 0 }
    }
}

impl<I: TableIndex> IdleList<I> {
    /// Adds an item as the last to be dropped; its number is never 0.
    pub(crate) fn enter(&mut self, index: I) -> u64 {
        self.last += 1;
        self.order.insert(self.last, index);
        self.last
    }

    /// Takes an item out if it is in.
    pub(crate) fn remove(&mut self, number: &mut u64) {
        if *number != 0 {
            self.order.remove(number);
            *number = 0;
        }
    }

    /// The longest idle item if there are more than `most`.
    pub(crate) fn surplus(&self, most: usize) -> Option<I> {
        if self.order.len() <= most {
            return None;
        }
        self.order.first_key_value().map(|(_, index)| *index)
    }

    /// The items, longest idle first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = I> {
        self.order.values().copied()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}
