//! The commit watermark: which of a session's writes are durable, as one number.
//!
//! Every write that was answered has a number, counted over all files in the order of execution.
//! What was answered before a file is made durable is durable with it. The watermark is the highest
//! number up to which all writes are durable, so that a client frees its copies with one
//! comparison. (NFSv3 and later ask by file: RFC 1813, section 3.3.21.)
//!
//! ```text
//!   file A   1     3     5            dirty from 1
//!   file B      2     4               dirty from 2        committed = 0
//!            make A durable           dirty from 2        committed = 1
//!            make B durable           –                   committed = 5
//! ```
//!
//! Invariant: `first` holds (n, f) exactly if file f is dirty from n.

use std::collections::{BTreeMap, BTreeSet};

/// The writes of one session that may not be durable.
#[derive(Clone, Debug, Default)]
pub struct CommitTracker {
    last: u64,
    /// For each file with such writes, a lower bound of their numbers.
    dirty: BTreeMap<u64, u64>,
    first: BTreeSet<(u64, u64)>,
}

impl CommitTracker {
    /// Counts a write to a file that was executed, and returns its number.
    pub fn written(&mut self, file: u64) -> u64 {
        self.last += 1;
        if !self.dirty.contains_key(&file) {
            self.set(file, Some(self.last));
        }
        self.last
    }

    /// The mark for [`CommitTracker::durable`], to be read before the file is made durable.
    pub fn mark(&self) -> u64 {
        self.last
    }

    /// Notes that all of a file's writes up to `mark` are durable.
    pub fn durable(&mut self, file: u64, mark: u64) {
        match self.dirty.get(&file) {
            Some(from) if *from <= mark => {
                // Later writes may have been added meanwhile: they are above the mark.
                self.set(file, (mark < self.last).then_some(mark + 1));
            }
            _ => {}
        }
    }

    /// Notes that all files' writes up to `mark` are durable.
    pub fn all_durable(&mut self, mark: u64) {
        let files: Vec<u64> = self.first.iter().map(|(_, file)| *file).collect();
        files.into_iter().for_each(|file| self.durable(file, mark));
    }

    /// The watermark: writes with a number up to this are durable.
    pub fn committed(&self) -> u64 {
        self.first.first().map_or(self.last, |(from, _)| from - 1)
    }

    /// Files that have been dirty the longest, oldest first.
    pub fn oldest(&self) -> impl Iterator<Item = u64> + '_ {
        self.first.iter().map(|(_, file)| *file)
    }

    /// How many files have writes that may not be durable.
    pub fn files(&self) -> usize {
        self.dirty.len()
    }

    fn set(&mut self, file: u64, from: Option<u64>) {
        let old = match from {
            Some(from) => self.dirty.insert(file, from),
            None => self.dirty.remove(&file),
        };
        if let Some(old) = old {
            self.first.remove(&(old, file));
        }
        self.first.extend(from.map(|from| (from, file)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: u64 = 10;
    const B: u64 = 20;

    #[test]
    fn the_number_stops_before_the_oldest_write_that_may_be_lost() {
        let mut commits = CommitTracker::default();
        assert_eq!(commits.committed(), 0, "nothing written, nothing missing");
        for (file, number) in [(A, 1), (B, 2), (A, 3), (B, 4), (A, 5)] {
            assert_eq!(commits.written(file), number);
        }
        assert_eq!(commits.committed(), 0);
        commits.durable(A, commits.mark());
        assert_eq!(commits.committed(), 1);
        commits.durable(B, commits.mark());
        assert_eq!((commits.committed(), commits.files()), (5, 0));
    }

    #[test]
    fn what_is_written_while_a_file_is_made_durable_is_not() {
        let mut commits = CommitTracker::default();
        commits.written(A);
        let mark = commits.mark();
        commits.written(A);
        commits.durable(A, mark);
        assert_eq!(commits.committed(), 1);
        commits.durable(A, mark);
        assert_eq!(commits.committed(), 1, "an old mark says nothing new");
        assert_eq!(commits.oldest().collect::<Vec<_>>(), [A]);
    }

    proptest! {
        /// Compared with a list of all writes: the watermark is never too high, and is exact once
        /// nothing is written while files are made durable.
        #[test]
        fn it_never_promises_too_much(steps in prop::collection::vec((0u64..4, 0u8..4), 0..200)) {
            let mut commits = CommitTracker::default();
            let mut lost: Vec<(u64, u64)> = Vec::new();
            let mut marks = std::collections::BTreeMap::new();
            for (file, what) in steps {
                match what {
                    0 | 1 => lost.push((commits.written(file), file)),
                    2 => drop(marks.insert(file, commits.mark())),
                    _ => if let Some(mark) = marks.remove(&file) {
                        commits.durable(file, mark);
                        lost.retain(|(number, f)| *f != file || *number > mark);
                    },
                }
                let exact = lost.first().map_or(commits.mark(), |(number, _)| number - 1);
                prop_assert!(commits.committed() <= exact);
            }
            for file in 0..4 {
                commits.durable(file, commits.mark());
            }
            prop_assert_eq!(commits.committed(), commits.mark());
        }
    }
}
