//! What a run of sessions gives: counts, and the first violated invariant.

use std::fmt;

use model::{Nanos, Time};

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRunResult {
    /// Events, up to the end of faults and of new calls.
    pub steps: u64,
    /// Calls that were answered with their result.
    pub answered: u64,
    /// Calls that ended in doubt: whether they were executed is not known.
    pub in_doubt: u64,
    /// Calls that were interrupted.
    pub interrupted: u64,
    /// Replies from a reply cache.
    pub replayed: u64,
    /// Connections that waited for the calls of the one before.
    pub waited: u64,
    /// Moves of a session to another proxy.
    pub moved: u64,
    /// Sessions that expired without a connection.
    pub expired: u64,
    /// Writes that were executed once more because they had been lost.
    pub rewritten: u64,
    /// The first violated invariant.
    pub violation: Option<SessionViolation>,
}

/// A violated invariant, with the events before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionViolation {
    /// The seed of the world.
    pub seed: u64,
    /// When it was found.
    pub at: Time,
    /// Description of what is wrong.
    pub what: String,
    /// The last events, oldest first.
    pub events: Vec<String>,
}

impl fmt::Display for SessionViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionViolation { seed, at, what, events } = self;
        let at = Nanos::new(at.as_nanos());
        write!(f, "seed {seed}, at {at}: {what}; the last events:\n{}", events.join("\n"))
    }
}
