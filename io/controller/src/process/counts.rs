//! What the controller's threads count, for metrics.
//!
//! ```text
//!   plan:  reports, orders ─────────────────┐
//!   usage: what became of usage, ledger ────┼─► Counts ─► GET /metrics
//!   API:   usage that found no room ────────┘
//! ```
//!
//! Each number is written by one thread and read by whoever asks, so a page is made without
//! asking the ledger's thread, which may be writing a minute.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::LedgerStats;

/// Counted since the process began; the ledger's sizes are of now.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Reports that were decided upon.
    pub(crate) reports: Count,
    /// Reports of proxies that are one too many.
    pub(crate) refused: Count,
    /// Reports of proxies whose name another one has that began later.
    pub(crate) duplicate: Count,
    /// Orders, one for each target of an answer.
    pub(crate) orders: Count,
    /// Usage reports that the ledger counted,
    pub(crate) counted: Count,
    /// that it had counted before,
    pub(crate) stale: Count,
    /// that it could not count, and
    pub(crate) failed: Count,
    /// that found no room before it.
    pub(crate) dropped: Count,
    /// Minutes that were written, and
    pub(crate) written: Count,
    /// attempts to write one that failed.
    pub(crate) unwritten: Count,
    pub(crate) ledger_proxies: Count,
    pub(crate) ledger_lines: Count,
    pub(crate) ledger_subjects: Count,
    /// Events that were told,
    pub(crate) events: Count,
    /// that found no room, and
    pub(crate) events_lost: Count,
    /// that are not on disk.
    pub(crate) events_unkept: Count,
    /// Events for the command.
    pub(crate) commands: Delivered,
    /// Events for the webhook.
    pub(crate) posts: Delivered,
    /// Keys that decays hold back now, and
    pub(crate) held: Count,
    /// all that have an account.
    pub(crate) accounts: Count,
    /// How long the last page of metrics took.
    pub(crate) scrape_ns: Count,
}

/// What became of events that are passed on.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) done: Count,
    pub(crate) failed: Count,
    /// Attempts that were made again.
    pub(crate) again: Count,
    /// Events that found no room.
    pub(crate) dropped: Count,
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Counts {
    /// What the ledger holds now.
    pub(crate) fn set_held(&self, held: LedgerStats) {
        self.ledger_proxies.set(held.proxies as u64);
        self.ledger_lines.set(held.lines as u64);
        self.ledger_subjects.set(held.subjects as u64);
    }
}

impl Count {
    /// Counts one more.
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
