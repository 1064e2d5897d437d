//! Counters of the controller's threads, for metrics.
//!
//! ```text
//!   plan:  reports, assignments ────────────┐
//!   usage: results of usage reports, ledger ┼─► Counts ─► GET /metrics
//!   API:   usage dropped at a full queue ───┘
//! ```
//!
//! Each number is written by one thread and read by any other, so a page is made without the
//! ledger's thread, which may be writing a minute.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::LedgerStats;

/// Counters since the process started; the sizes of the ledger are current.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Reports that the plan accepted.
    pub(crate) reports: Count,
    /// Reports rejected because the table of proxies is full.
    pub(crate) refused: Count,
    /// Reports of proxies of which another with the same name started later.
    pub(crate) duplicate: Count,
    /// Assignments, one for each target of a reply.
    pub(crate) assignments: Count,
    /// Usage reports that the ledger counted.
    pub(crate) counted: Count,
    /// Usage reports that it had counted before.
    pub(crate) stale: Count,
    /// Usage reports that it could not count.
    pub(crate) failed: Count,
    /// Usage reports dropped at its full queue.
    pub(crate) dropped: Count,
    /// Minutes that were written.
    pub(crate) written: Count,
    /// Failed attempts to write a minute.
    pub(crate) unwritten: Count,
    pub(crate) ledger_proxies: Count,
    pub(crate) ledger_lines: Count,
    pub(crate) ledger_subjects: Count,
    /// Reservations that were not claimed in their window.
    pub(crate) lapsed: Count,
    /// Events published since the process started.
    pub(crate) events: Count,
    /// Events dropped at a full queue.
    pub(crate) events_dropped: Count,
    /// Published events that are not on disk.
    pub(crate) events_unpersisted: Count,
    /// Events for the command.
    pub(crate) commands: Delivered,
    /// Events for the webhook.
    pub(crate) posts: Delivered,
    /// Keys that decays throttle now.
    pub(crate) throttled: Count,
    /// Keys that have an account.
    pub(crate) accounts: Count,
    /// The time taken to make the last page of metrics.
    pub(crate) scrape_ns: Count,
}

/// Results of event deliveries.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) done: Count,
    pub(crate) failed: Count,
    /// Attempts that were repeated.
    pub(crate) retried: Count,
    /// Events dropped at a full queue.
    pub(crate) dropped: Count,
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Counts {
    /// Sets the current sizes of the ledger.
    pub(crate) fn set_ledger_stats(&self, held: LedgerStats) {
        self.ledger_proxies.set(held.proxies as u64);
        self.ledger_lines.set(held.lines as u64);
        self.ledger_subjects.set(held.subjects as u64);
    }
}

impl Count {
    /// Adds a number to the count.
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
