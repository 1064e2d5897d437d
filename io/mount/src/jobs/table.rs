//! Cache of the jobs of threads: bounded, the oldest out.

use std::collections::HashMap;

/// A value for each of at most `bound` threads.
#[derive(Debug)]
pub(super) struct JobTable<V> {
    entries: Vec<(u32, V)>,
    index_of: HashMap<u32, usize>,
    /// The place that was filled first, once all are.
    oldest: usize,
    bound: usize,
}

impl<V> JobTable<V> {
    /// An empty table for `bound` threads, at least one.
    pub(super) fn new(bound: usize) -> JobTable<V> {
        let bound = bound.max(1);
        JobTable { entries: Vec::new(), index_of: HashMap::new(), oldest: 0, bound }
    }

    /// Puts a value in the place of the thread's former one, or else of the oldest of all;
    /// returns what was there.
    pub(super) fn put(&mut self, thread: u32, value: V) -> Option<V> {
        if let Some(place) = self.index_of.get(&thread) {
            return Some(std::mem::replace(&mut self.entries[*place].1, value));
        }
        if self.entries.len() < self.bound {
            self.index_of.insert(thread, self.entries.len());
            self.entries.push((thread, value));
            return None;
        }
        let place = self.oldest;
        self.oldest = (place + 1) % self.bound;
        let (former, out) = std::mem::replace(&mut self.entries[place], (thread, value));
        self.index_of.remove(&former);
        self.index_of.insert(thread, place);
        Some(out)
    }

    /// Returns the value of the thread, if the table has it.
    pub(super) fn get(&self, thread: u32) -> Option<&V> {
        self.index_of.get(&thread).map(|place| &self.entries[*place].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_forgets_the_oldest_thread() {
        let mut table = JobTable::new(2);
        assert_eq!(table.put(1, 'a'), None);
        assert_eq!(table.put(2, 'b'), None);
        assert_eq!(table.put(3, 'c'), Some('a'));
        assert_eq!((table.get(1), table.get(2), table.get(3)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(table.put(4, 'd'), Some('b'));
        assert_eq!(table.put(5, 'e'), Some('c'));
        assert_eq!((table.get(4), table.get(5)), (Some(&'d'), Some(&'e')));
    }

    #[test]
    fn a_thread_that_is_read_again_keeps_its_place() {
        let mut table = JobTable::new(2);
        table.put(1, 'a');
        table.put(2, 'b');
        assert_eq!(table.put(1, 'A'), Some('a'));
        assert_eq!(table.put(3, 'c'), Some('A'));
        assert_eq!(table.get(2), Some(&'b'));
    }
}
