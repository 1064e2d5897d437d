//! Threads that were answered `ESTALE`, and are expected again.
//!
//! ```text
//!   lookup n in D, D is gone ─► ESTALE: the thread is expected at D and on the way there
//!     the kernel walks again, looking every name up (LOOKUP_REVAL):
//!       D was found by its name ─► that is asked for, and leads elsewhere or nowhere
//!       D is open, or where the program works ─► lookup n in D again: no such file, as on a local disk
//!
//!   open F, found as D/n, which it is not ─► ESTALE: expected at F and on the way there
//!       lookup n in D ─► F': expected there ─► open F': that is what n meant during this call
//! ```
//!
//! Linux walks once again. A second `ESTALE` goes to the program, and programs do not expect it of
//! a local file system. The kernel does not say that it walks again, but the request comes from the
//! same thread.
//!
//! Bounded: in inodes for a thread, of which the oldest is forgotten, and in threads: when there are too many
//! that may still come, all are forgotten, and their second answer is `ESTALE`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuse::InodeId;
use rustc_hash::FxHashMap;

use crate::session::lock;

/// Which threads are expected again, and where.
#[derive(Debug, Default)]
pub(crate) struct StaleRetries {
    /// Whether the table may have entries: otherwise it need not be searched.
    any: AtomicBool,
    table: Mutex<RetryTable>,
}

#[derive(Debug, Default)]
struct RetryTable {
    /// Where each thread is expected; the newest is the last.
    threads: FxHashMap<u32, Vec<ExpectedRetry>>,
    /// When something was added last.
    newest: Option<Instant>,
}

/// A thread at an inode.
#[derive(Clone, Copy, Debug)]
struct ExpectedRetry {
    inode: InodeId,
    since: Instant,
    call: RetriedCall,
    /// The name led here, and nothing below was asked for since.
    found: bool,
}

/// The call of a thread that got `ESTALE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetriedCall {
    /// A file was to be opened or changed: that comes once more, and ends the call.
    OfFile,
    /// Any other call of the thread.
    Other,
}

impl StaleRetries {
    /// Notes that a thread got `ESTALE` for a file that it may have reached through this inode.
    pub(crate) fn expect(&self, thread: u32, inode: InodeId, call: RetriedCall) {
        self.add(thread, ExpectedRetry { inode, since: Instant::now(), call, found: false });
    }

    /// Notes that an expected thread was led here by a name, or named it without one.
    pub(crate) fn found(&self, thread: u32, inode: InodeId, call: RetriedCall) {
        let found = call == RetriedCall::OfFile;
        self.add(thread, ExpectedRetry { inode, since: Instant::now(), call, found });
    }

    /// The call with which a thread returns to this inode, if one is expected.
    pub(crate) fn call_at(&self, thread: u32, inode: InodeId) -> Option<RetriedCall> {
        self.at(thread, inode, Instant::now()).map(|expected| expected.call)
    }

    /// Like `call_at`, for a directory in which the thread goes on to a name.
    pub(crate) fn call_through(&self, thread: u32, inode: InodeId) -> Option<RetriedCall> {
        let through = self.at(thread, inode, Instant::now())?;
        if through.found {
            self.add(thread, ExpectedRetry { found: false, ..through });
        }
        Some(through.call)
    }

    /// Whether a thread that opens or changes a file was led to it after it got `ESTALE`. That ends
    /// its call.
    pub(crate) fn end_if_found(&self, thread: u32, inode: InodeId) -> bool {
        let expected = self.at(thread, inode, Instant::now());
        self.end_call(thread);
        expected.is_some_and(|expected| expected.found)
    }

    /// The call in which a thread was to open or change a file has ended: what it finds from now on is not
    /// that file.
    pub(crate) fn end_call(&self, thread: u32) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        for expected in lock(&self.table).threads.get_mut(&thread).into_iter().flatten() {
            (expected.call, expected.found) = (RetriedCall::Other, false);
        }
    }

    fn add(&self, thread: u32, retry: ExpectedRetry) {
        let now = retry.since;
        let mut table = lock(&self.table);
        if table.threads.len() >= THREADS_MAX && !table.threads.contains_key(&thread) {
            let is_expected = |at: &Vec<ExpectedRetry>| at.iter().any(|it| is_young(it.since, now));
            table.threads.retain(|_, at| is_expected(at));
            if table.threads.len() >= THREADS_MAX {
                table.threads.clear();
            }
        }
        let at = table.threads.entry(thread).or_default();
        at.retain(|expected| expected.inode != retry.inode);
        if at.len() >= INODES_MAX {
            at.remove(0);
        }
        at.push(retry);
        table.newest = table.newest.max(Some(now));
        self.any.store(true, Ordering::Release);
    }

    fn at(&self, thread: u32, inode: InodeId, now: Instant) -> Option<ExpectedRetry> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut table = lock(&self.table);
        if !table.newest.is_some_and(|newest| is_young(newest, now)) {
            table.threads.clear();
            self.any.store(false, Ordering::Release);
            return None;
        }
        let expected = table.threads.get(&thread)?.iter().find(|expected| expected.inode == inode);
        expected.copied().filter(|expected| is_young(expected.since, now))
    }
}

fn is_young(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) <= EXPECTED_FOR
}

/// The kernel walks again as soon as it has the reply; its thread may have to wait for a processor.
const EXPECTED_FOR: Duration = Duration::from_secs(10);
/// Threads at a time.
const THREADS_MAX: usize = 1024;
/// Inodes of a thread: several deep paths.
const INODES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(7);

    #[test]
    fn a_thread_is_expected_where_it_was_told() {
        let retries = StaleRetries::default();
        assert_eq!(retries.call_at(1, DIR), None);
        retries.expect(1, DIR, RetriedCall::Other);
        assert_eq!(retries.call_at(1, DIR), Some(RetriedCall::Other));
        assert_eq!(retries.call_at(2, DIR), None, "another thread");
        assert_eq!(retries.call_at(1, InodeId(8)), None, "another inode");
    }

    #[test]
    fn what_a_name_led_to_is_opened_once_wherever_it_is() {
        let retries = StaleRetries::default();
        retries.expect(1, DIR, RetriedCall::OfFile);
        assert!(!retries.end_if_found(1, DIR), "it was on the way");
        retries.found(1, DIR, RetriedCall::OfFile);
        assert!(retries.end_if_found(1, DIR));
        assert!(!retries.end_if_found(1, DIR));
    }

    #[test]
    fn what_is_found_after_the_call_is_not_what_it_was_about() {
        let retries = StaleRetries::default();
        retries.expect(1, DIR, RetriedCall::OfFile);
        retries.end_call(1);
        assert_eq!(retries.call_through(1, DIR), Some(RetriedCall::Other));
        retries.found(1, InodeId(8), RetriedCall::OfFile);
        assert!(!retries.end_if_found(1, InodeId(9)), "another file ends it as well");
        assert!(!retries.end_if_found(1, InodeId(8)));
    }

    #[test]
    fn a_directory_that_was_gone_through_is_not_what_the_name_led_to() {
        let retries = StaleRetries::default();
        retries.found(1, DIR, RetriedCall::OfFile);
        assert_eq!(retries.call_through(1, DIR), Some(RetriedCall::OfFile));
        assert_eq!(retries.call_through(1, DIR), Some(RetriedCall::OfFile), "the call goes on");
        assert!(!retries.end_if_found(1, DIR));
        assert_eq!(retries.call_through(1, DIR), Some(RetriedCall::Other), "it has ended");
    }

    #[test]
    fn a_file_that_was_only_looked_at_is_not_opened_by_an_old_name() {
        let retries = StaleRetries::default();
        retries.found(1, DIR, RetriedCall::Other);
        assert!(!retries.end_if_found(1, DIR));
    }

    #[test]
    fn who_does_not_come_is_not_expected_for_ever() {
        let (retries, now) = (StaleRetries::default(), Instant::now());
        let call = RetriedCall::Other;
        let retry = ExpectedRetry { inode: DIR, since: now, call, found: false };
        retries.add(1, retry);
        retries.add(2, ExpectedRetry { since: now + EXPECTED_FOR, ..retry });
        let later = now + EXPECTED_FOR + Duration::from_nanos(1);
        assert!(retries.at(1, DIR, later).is_none());
        assert!(retries.at(2, DIR, later).is_some());
        assert!(retries.at(2, DIR, later + EXPECTED_FOR).is_none());
        assert!(!retries.any.load(Ordering::Acquire), "nobody needs to look any more");
    }

    #[test]
    fn the_table_is_bounded() {
        let retries = StaleRetries::default();
        let threads = THREADS_MAX as u32 + 1;
        (0..threads).for_each(|thread| retries.expect(thread, DIR, RetriedCall::Other));
        assert!(lock(&retries.table).threads.len() <= THREADS_MAX);
        assert!(retries.call_at(threads - 1, DIR).is_some(), "the newest is there");
        let inodes = INODES_MAX as u64 + 10;
        (10..inodes).for_each(|inode| retries.expect(9, InodeId(inode), RetriedCall::Other));
        assert_eq!(lock(&retries.table).threads[&9].len(), INODES_MAX);
        assert!(retries.call_at(9, InodeId(inodes - 1)).is_some(), "the newest is there");
    }
}
