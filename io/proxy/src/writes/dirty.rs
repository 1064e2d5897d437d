//! Dirty bytes: how much each account has written that is not yet known to be clean.
//!
//! ```text
//!   a write of [start, end) ─► extent, newest ┐
//!                                             │  write-back begins when a quarter of the budget
//!                                             │  has gathered: the device gets long runs
//!                                             ▼
//!   above the budget: the writer takes extents, oldest ─► syncs them while it holds its slots
//! ```
//!
//! Invariant: the bytes listed for an account are at most its budget when
//! [`DirtyTracker::add`] returns; what is above it stands in [`WritebackWork::finish`] of some
//! writer that still holds its request's slots. Overlapping writes may be counted
//! twice, never too little.
//!
//! Nothing here touches a file: the caller does the [`WritebackWork`] without the lock.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Bytes, Nanos, Time};

/// Whose dirty budget a write counts against: one account for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DirtyAccount(pub u64);

/// A descriptor of our own, read-only, by which a file's extents are synced after
/// the client has closed it: it holds no lock, does not keep the file from being
/// executed, and takes no write-back error away from the client's next fsync.
#[derive(Debug)]
pub(super) struct SyncFile {
    pub(super) fd: OwnedFd,
    id: u64,
    /// Extents older than this number must not be enlarged: an fsync has begun.
    sealed: AtomicU64,
    /// Extents older than this number are clean: an fsync has ended.
    clean: AtomicU64,
    /// No client has it open any more.
    pub(super) closed: AtomicBool,
}

/// A part of a file that is to be written back.
#[derive(Clone, Debug)]
pub(super) struct DirtyPiece {
    pub(super) file: Arc<SyncFile>,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Actions for the caller of [`DirtyTracker::add`], after it has released the lock.
#[derive(Debug, Default)]
pub(super) struct WritebackWork {
    /// Begin the write-back of these and do not wait.
    pub(super) begin: Vec<DirtyPiece>,
    /// Wait until these are clean.
    pub(super) finish: Vec<DirtyPiece>,
}

/// One write that has reached the page cache.
pub(super) struct DirtyWrite {
    pub(super) account: DirtyAccount,
    pub(super) piece: DirtyPiece,
    /// Its write-back has begun already (RWF_DONTCACHE).
    pub(super) begun: bool,
}

/// All accounts of one target.
#[derive(Debug)]
pub(super) struct DirtyTracker {
    budget: u64,
    accounts: BTreeMap<DirtyAccount, DirtyExtents>,
    /// The number of the next extent; it never repeats.
    next: u64,
}

#[derive(Debug, Default)]
struct DirtyExtents {
    /// By number, which is by age.
    extents: BTreeMap<u64, DirtyExtent>,
    /// The newest extent of each file, which a following write may enlarge.
    tails: BTreeMap<u64, u64>,
    /// Extents before this number have had their write-back begun.
    begun_before: u64,
    bytes: u64,
    bytes_not_begun: u64,
}

#[derive(Debug)]
struct DirtyExtent {
    piece: DirtyPiece,
    begun: bool,
    since: Time,
}

/// The longest extent made of several writes.
const MERGED_MAX: u64 = 1 << 20;
/// The most extents in one account, whatever their size: each may hold a descriptor.
const EXTENTS_MAX: usize = 1024;
/// This many accounts may use their whole budget at once; more divide the sum, or a
/// thousand jobs would queue gigabytes before the device.
const WHOLE_BUDGETS: u64 = 4;

impl SyncFile {
    pub(super) fn new(fd: OwnedFd) -> SyncFile {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sealed, clean) = (AtomicU64::new(0), AtomicU64::new(0));
        SyncFile { fd, id, sealed, clean, closed: AtomicBool::new(false) }
    }
}

impl DirtyTracker {
    pub(super) fn new(budget: Bytes) -> DirtyTracker {
        DirtyTracker { budget: budget.get(), accounts: BTreeMap::new(), next: 1 }
    }

    pub(super) fn set_budget(&mut self, budget: Bytes) {
        self.budget = budget.get();
    }

    /// Lists a write; what is then above the budget, oldest first, is the caller's to finish.
    pub(super) fn add(&mut self, written: DirtyWrite, now: Time) -> WritebackWork {
        let account = written.account;
        let number = self.next;
        self.next += 1;
        self.accounts.entry(account).or_default().push(written, number, now);

        let sharers = self.accounts.len() as u64;
        let budget = self.budget.min(self.budget.saturating_mul(WHOLE_BUDGETS) / sharers);
        let ledger = self.accounts.get_mut(&account).expect("made above");
        let finish = ledger.take_above(budget);
        let begin = if ledger.bytes_not_begun > budget / 4 { ledger.begin() } else { Vec::new() };
        if ledger.extents.is_empty() {
            self.accounts.remove(&account);
        }
        WritebackWork { begin, finish }
    }

    /// Notes that an fsync of `file` begins; the number goes to [`DirtyTracker::synced`].
    pub(super) fn seal(&mut self, file: &SyncFile) -> u64 {
        let number = self.next;
        self.next += 1;
        file.sealed.store(number, Ordering::Relaxed);
        number
    }

    /// Notes that the fsync that began with `seal` has succeeded: what was listed
    /// before it needs no wait any more.
    pub(super) fn synced(&mut self, file: &SyncFile, seal: u64) {
        file.clean.fetch_max(seal, Ordering::Relaxed);
    }

    /// Takes out every extent that is older than `age`, so that an idle account lets
    /// go of its descriptors; the caller finishes them.
    pub(super) fn take_older(&mut self, age: Nanos, now: Time) -> Vec<DirtyPiece> {
        let mut taken = Vec::new();
        self.accounts.retain(|_, ledger| {
            while let Some(first) = ledger.extents.first_entry() {
                if now.since(first.get().since) < age {
                    break;
                }
                ledger.pop_oldest(&mut taken, u64::MAX);
            }
            !ledger.extents.is_empty()
        });
        taken
    }

    /// Bytes of `account` that are not known to be clean and that have no waiter.
    #[cfg(test)]
    pub(super) fn bytes(&self, account: DirtyAccount) -> Bytes {
        Bytes::new(self.accounts.get(&account).map_or(0, |ledger| ledger.bytes))
    }

    /// Whether any extent is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }
}

impl DirtyExtents {
    fn push(&mut self, written: DirtyWrite, number: u64, now: Time) {
        let DirtyWrite { piece, begun, .. } = written;
        if let Some(growth) = self.enlarge_tail(&piece, begun) {
            self.count(growth, begun);
            return;
        }
        self.count(piece.end - piece.start, begun);
        self.tails.insert(piece.file.id, number);
        self.extents.insert(number, DirtyExtent { piece, begun, since: now });
    }

    fn count(&mut self, bytes: u64, begun: bool) {
        self.bytes += bytes;
        self.bytes_not_begun += if begun { 0 } else { bytes };
    }

    /// Merges a write into the newest extent of its file, if they touch; the bytes gained.
    fn enlarge_tail(&mut self, piece: &DirtyPiece, begun: bool) -> Option<u64> {
        let number = *self.tails.get(&piece.file.id)?;
        let tail = self.extents.get_mut(&number)?;
        let touches = piece.start <= tail.piece.end && piece.end >= tail.piece.start;
        let start = piece.start.min(tail.piece.start);
        let end = piece.end.max(tail.piece.end);
        let sealed = number < piece.file.sealed.load(Ordering::Relaxed);
        if !touches || sealed || tail.begun != begun || end - start > MERGED_MAX {
            return None;
        }
        let growth = (end - start) - (tail.piece.end - tail.piece.start);
        (tail.piece.start, tail.piece.end) = (start, end);
        Some(growth)
    }

    /// Takes the oldest extents out until the rest is inside the budget.
    fn take_above(&mut self, budget: u64) -> Vec<DirtyPiece> {
        let mut taken = Vec::new();
        while self.bytes > budget || self.extents.len() > EXTENTS_MAX {
            let excess = self.bytes.saturating_sub(budget);
            self.pop_oldest(&mut taken, if excess == 0 { u64::MAX } else { excess });
        }
        taken
    }

    /// Takes at most about `wanted` bytes of the oldest extent out. One that an fsync
    /// has cleaned leaves without work.
    fn pop_oldest(&mut self, taken: &mut Vec<DirtyPiece>, wanted: u64) {
        let mut first = self.extents.first_entry().expect("bytes are listed, so an extent is");
        let (number, extent) = (*first.key(), first.get_mut());
        let clean = number < extent.piece.file.clean.load(Ordering::Relaxed);
        let length = extent.piece.end - extent.piece.start;
        let mut piece = extent.piece.clone();
        let begun = extent.begun;
        if clean || length <= wanted {
            first.remove();
            if self.tails.get(&piece.file.id) == Some(&number) {
                self.tails.remove(&piece.file.id);
            }
        } else {
            piece.end = piece.start + wanted;
            extent.piece.start = piece.end;
        }
        let gone = piece.end - piece.start;
        self.bytes -= gone;
        self.bytes_not_begun -= if begun { 0 } else { gone };
        if !clean {
            taken.push(piece);
        }
    }

    /// Marks every extent as begun and returns those whose write-back had not.
    fn begin(&mut self) -> Vec<DirtyPiece> {
        let mut pieces = Vec::new();
        let mut last = self.begun_before;
        for (number, extent) in self.extents.range_mut(self.begun_before..) {
            if !extent.begun {
                extent.begun = true;
                pieces.push(extent.piece.clone());
            }
            last = number + 1;
        }
        self.begun_before = last;
        self.bytes_not_begun = 0;
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DirtyAccount = DirtyAccount(1);
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn file() -> Arc<SyncFile> {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        Arc::new(SyncFile::new(fd))
    }

    fn write(
        dirty: &mut DirtyTracker,
        account: DirtyAccount,
        file: &Arc<SyncFile>,
        start: u64,
        end: u64,
    ) -> WritebackWork {
        let piece = DirtyPiece { file: file.clone(), start, end };
        dirty.add(DirtyWrite { account, piece, begun: false }, Time::ZERO)
    }

    fn ranges(pieces: &[DirtyPiece]) -> Vec<(u64, u64)> {
        pieces.iter().map(|p| (p.start, p.end)).collect()
    }

    #[test]
    fn writes_inside_the_budget_wait_for_nothing_and_begin_at_a_quarter() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(4)), file());
        let first = write(&mut dirty, A, &file, 0, MIB);
        assert_eq!((ranges(&first.begin), ranges(&first.finish)), (vec![], vec![]));
        let second = write(&mut dirty, A, &file, MIB, 2 * MIB);
        assert_eq!(ranges(&second.begin), [(0, MIB), (MIB, 2 * MIB)]);
        assert_eq!(ranges(&second.finish), []);
        assert_eq!(dirty.bytes(A), Bytes::mib(2));
    }

    #[test]
    fn a_writer_above_the_budget_finishes_as_much_as_it_is_above_it_oldest_first() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(2)), file());
        write(&mut dirty, A, &file, 10 * MIB, 11 * MIB);
        write(&mut dirty, A, &file, 0, MIB);
        let small = write(&mut dirty, A, &file, 50 * MIB, 50 * MIB + 4 * KIB);
        assert_eq!(ranges(&small.finish), [(10 * MIB, 10 * MIB + 4 * KIB)]);
        assert_eq!(dirty.bytes(A), Bytes::mib(2));
        let large = write(&mut dirty, A, &file, 60 * MIB, 62 * MIB);
        let rest = [(10 * MIB + 4 * KIB, 11 * MIB), (0, MIB), (50 * MIB, 50 * MIB + 4 * KIB)];
        assert_eq!(ranges(&large.finish), rest);
        assert_eq!(dirty.bytes(A), Bytes::mib(2));
    }

    #[test]
    fn no_budget_makes_every_write_wait_for_itself() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::ZERO), file());
        assert_eq!(ranges(&write(&mut dirty, A, &file, 5, 9).finish), [(5, 9)]);
        assert!(dirty.is_empty());
    }

    #[test]
    fn adjoining_and_repeated_small_writes_become_one_extent() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(16)), file());
        for block in 0..16 {
            write(&mut dirty, A, &file, block * 4 * KIB, (block + 1) * 4 * KIB);
        }
        write(&mut dirty, A, &file, 0, 4 * KIB);
        assert_eq!(dirty.bytes(A), Bytes::kib(64));
        let pieces = dirty.take_older(Nanos::ZERO, Time::ZERO);
        assert_eq!(ranges(&pieces), [(0, 64 * KIB)]);
        assert!(dirty.is_empty());
    }

    #[test]
    fn scattered_small_writes_hold_a_bounded_number_of_extents() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(1024)), file());
        let mut finished = 0;
        for block in 0..2000 {
            finished += write(&mut dirty, A, &file, block * MIB, block * MIB + 1).finish.len();
        }
        assert_eq!(finished, 2000 - EXTENTS_MAX);
        assert_eq!(dirty.bytes(A), Bytes::new(EXTENTS_MAX as u64));
    }

    #[test]
    fn what_an_fsync_has_cleaned_is_never_waited_for_but_later_writes_are() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(1)), file());
        write(&mut dirty, A, &file, 0, 512 * KIB);
        let seal = dirty.seal(&file);
        write(&mut dirty, A, &file, 512 * KIB, MIB);
        dirty.synced(&file, seal);
        assert_eq!(
            ranges(&write(&mut dirty, A, &file, 8 * MIB, 9 * MIB).finish),
            [(512 * KIB, MIB)]
        );
        assert_eq!(dirty.bytes(A), Bytes::mib(1));
    }

    #[test]
    fn many_accounts_divide_the_budget_and_an_idle_one_gives_its_part_back() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(1)), file());
        for account in 0..8 {
            write(&mut dirty, DirtyAccount(account), &file, 0, 4 * KIB);
        }
        write(&mut dirty, A, &file, 2 * MIB, 3 * MIB);
        assert_eq!(dirty.bytes(A), Bytes::kib(512));
        dirty.take_older(Nanos::ZERO, Time::ZERO);
        write(&mut dirty, A, &file, 2 * MIB, 3 * MIB);
        assert_eq!(dirty.bytes(A), Bytes::mib(1));
    }

    #[test]
    fn only_old_extents_are_swept() {
        let (mut dirty, file) = (DirtyTracker::new(Bytes::mib(16)), file());
        write(&mut dirty, A, &file, 0, KIB);
        let piece = DirtyPiece { file: file.clone(), start: MIB, end: MIB + KIB };
        let now = Time::from_nanos(1_000_000_000);
        dirty.add(DirtyWrite { account: A, piece, begun: true }, now);
        assert_eq!(ranges(&dirty.take_older(Nanos::from_secs(1), now)), [(0, KIB)]);
        assert_eq!(dirty.bytes(A), Bytes::kib(1));
    }
}
