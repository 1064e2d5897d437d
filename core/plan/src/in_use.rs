//! The most that a proxy may be using of one scope.
//!
//! ```text
//!   acknowledged ─► 50% ──► 20% ──► 5%        sent since, not acknowledged
//!                    │                └ what it holds when it has received everything
//!                    └ what it may still be using: the largest
//! ```
//!
//! Assignments are absolute, and a proxy acknowledges revisions. So it uses what was in force at
//! some revision from the acknowledged one on. A value that is not above a later one says nothing
//! about the most. So the kept values fall from the first to the last.

use model::Share;

/// The shares that were sent to one proxy, as far as they may still matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InUseBound {
    /// The largest: it may be in force.
    first: (u64, Share),
    /// Smaller ones that were sent later, each with the revision that brought it.
    later: Vec<(u64, Share)>,
}

impl InUseBound {
    /// A bound at a value that is in force at an acknowledged revision.
    pub(crate) fn new(part: Share) -> InUseBound {
        InUseBound { first: (0, part), later: Vec::new() }
    }

    /// The most that the proxy may be using.
    pub(crate) fn most(&self) -> Share {
        self.first.1
    }

    /// What the proxy uses when it has received everything.
    pub(crate) fn sent(&self) -> Share {
        self.later.last().map_or(self.first.1, |(_, part)| *part)
    }

    /// Whether no lower share waits for its acknowledgement.
    pub(crate) fn is_settled(&self) -> bool {
        self.later.is_empty()
    }

    /// Adds a share that is in force from a revision on.
    pub(crate) fn send(&mut self, revision: u64, part: Share) {
        while self.later.pop_if(|(_, later)| *later <= part).is_some() {}
        if self.first.1 <= part {
            self.first = (revision, part);
            return;
        }
        self.later.push((revision, part));
        if self.later.len() > LATER_MAX {
            // Forgetting a value between counts the larger one before it for longer.
            self.later.remove(LATER_MAX - 1);
        }
    }

    /// Handles the acknowledgement of a revision. Returns true if the proxy may now use less.
    pub(crate) fn acknowledge(&mut self, revision: u64) -> bool {
        let reached = self.later.iter().take_while(|(at, _)| *at <= revision).count();
        if reached > 0 {
            self.first = self.later[reached - 1];
            self.later.drain(..reached);
        }
        reached > 0
    }
}

/// The most lower shares in a row that are remembered one by one.
const LATER_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn part(percent: u64) -> Share {
        Share::ratio(percent, 100)
    }

    #[test]
    fn the_most_is_the_largest_that_may_still_be_in_force() {
        let mut held = InUseBound::new(part(50));
        held.send(1, part(20));
        held.send(2, part(5));
        held.send(3, part(10));
        assert_eq!((held.most(), held.sent()), (part(50), part(10)));
        assert!(held.acknowledge(1));
        assert_eq!(held.most(), part(20));
        assert!(!held.acknowledge(2), "the 10 % of the third may be in force");
        assert_eq!(held.most(), part(20));
        assert!(held.acknowledge(3) && held.is_settled());
        assert_eq!(held.most(), part(10));
    }

    #[test]
    fn a_late_acknowledgement_changes_nothing() {
        let mut held = InUseBound::new(part(50));
        held.send(7, part(90));
        held.send(9, part(40));
        assert!(!held.acknowledge(6));
        assert_eq!(held.most(), part(90));
    }

    #[test]
    fn a_member_that_acknowledges_nothing_costs_no_memory_without_bound() {
        let mut held = InUseBound::new(part(100));
        for step in 1..90 {
            held.send(step, part(100 - step));
        }
        assert_eq!(held.later.len(), LATER_MAX);
        assert_eq!((held.most(), held.sent()), (part(100), part(11)));
        held.acknowledge(88);
        assert!(held.most() >= part(12), "what is forgotten is counted as more, never as less");
    }
}
