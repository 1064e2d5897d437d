//! Byte ranges under lock, as one owner holds them: what the kernel knows, in a form
//! that can be named.
//!
//! A new range replaces whatever it covers of the owner's old ones (a lock can be
//! made stronger or weaker in part, and given back in part), and neighbours of one
//! kind become one, as the kernel joins them.
//!
//! Invariant: the ranges of an owner lie in order and apart, and two that touch are
//! of different kinds.

use ninep::LockKind;

use crate::sys::LockRange;

/// A lock as the protocol says it: `len` 0 is "to the end of the file".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedRange {
    pub(crate) kind: LockKind,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// Ranges that one owner has locked on one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockedRanges(Vec<WantedRange>);

/// One past the last byte that a file can have: the kernel's offsets are signed.
const END: u64 = 1 << 63;

impl WantedRange {
    fn end(&self) -> u64 {
        if self.len == 0 { END } else { self.start.saturating_add(self.len) }
    }

    fn overlaps(&self, other: &WantedRange) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    fn conflicts(&self, held: &WantedRange) -> bool {
        self.overlaps(held) && (self.kind == LockKind::Write || held.kind == LockKind::Write)
    }

    fn between(kind: LockKind, start: u64, end: u64) -> WantedRange {
        WantedRange { kind, start, len: if end == END { 0 } else { end - start } }
    }

    pub(super) fn to_kernel(self) -> LockRange {
        let kind = match self.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        LockRange { kind: kind as i16, start: self.start, len: self.len }
    }

    /// Converts a range that the kernel reports as locked.
    pub(super) fn from_kernel(range: LockRange) -> WantedRange {
        let read = range.kind == libc::F_RDLCK as i16;
        let kind = if read { LockKind::Read } else { LockKind::Write };
        WantedRange { kind, start: range.start, len: range.len }
    }
}

impl LockedRanges {
    /// Returns the locked ranges after the kernel has applied `new`.
    pub(super) fn with(&self, new: WantedRange) -> LockedRanges {
        let mut parts = Vec::with_capacity(self.0.len() + 2);
        for old in &self.0 {
            if !old.overlaps(&new) {
                parts.push(*old);
                continue;
            }
            if old.start < new.start {
                parts.push(WantedRange::between(old.kind, old.start, new.start));
            }
            if old.end() > new.end() {
                parts.push(WantedRange::between(old.kind, new.end(), old.end()));
            }
        }
        if new.kind != LockKind::Unlock {
            parts.push(WantedRange::between(new.kind, new.start, new.end()));
        }
        parts.sort_by_key(|range| range.start);
        let mut joined: Vec<WantedRange> = Vec::with_capacity(parts.len());
        for range in parts {
            match joined.last_mut() {
                Some(last) if last.kind == range.kind && last.end() == range.start => {
                    *last = WantedRange::between(last.kind, last.start, range.end());
                }
                _ => joined.push(range),
            }
        }
        LockedRanges(joined)
    }

    /// The first of them that another owner's `wanted` would have to wait for.
    pub(super) fn conflict(&self, wanted: &WantedRange) -> Option<WantedRange> {
        self.0.iter().find(|range| wanted.conflicts(range)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, Mode, OFlags};

    use super::*;
    use crate::sys;

    const LAST: u64 = END - 1;

    fn wanted(kind: LockKind, start: u64, len: u64) -> WantedRange {
        WantedRange { kind, start, len }
    }

    fn held(steps: &[WantedRange]) -> Vec<WantedRange> {
        steps.iter().fold(LockedRanges::default(), |ranges, step| ranges.with(*step)).0
    }

    #[test]
    fn a_part_given_back_made_stronger_or_weaker_leaves_the_rest_as_it_was() {
        use LockKind::{Read, Unlock, Write};
        let all = wanted(Write, 0, 0);
        let part = |kind| wanted(kind, 10, 10);
        let ends = [wanted(Write, 0, 10), wanted(Write, 20, 0)];
        assert_eq!(held(&[all, part(Unlock)]), ends);
        assert_eq!(held(&[all, part(Read)]), [ends[0], part(Read), ends[1]]);
        assert_eq!(held(&[all, part(Read), part(Write)]), [all]);
        assert_eq!(held(&[part(Read), all]), [all]);
        assert_eq!(held(&[part(Read), wanted(Unlock, 0, 0)]), []);
    }

    #[test]
    fn neighbours_of_one_kind_become_one_in_whatever_order_they_came() {
        use LockKind::Write;
        let steps = [wanted(Write, 20, 0), wanted(Write, 0, 10), wanted(Write, 10, 10)];
        assert_eq!(held(&steps), [wanted(Write, 0, 0)]);
    }

    #[test]
    fn the_last_byte_of_all_is_the_end_however_it_is_written() {
        use LockKind::{Unlock, Write};
        assert_eq!(held(&[wanted(Write, 1, 0), wanted(Unlock, 1, LAST)]), []);
        assert_eq!(held(&[wanted(Write, 1, LAST), wanted(Unlock, 1, 0)]), []);
        assert_eq!(held(&[wanted(Write, 1, LAST)]), [wanted(Write, 1, 0)]);
        let cut = held(&[wanted(Write, 1, 0), wanted(Unlock, LAST, 1)]);
        assert_eq!(cut, [wanted(Write, 1, LAST - 1)]);
    }

    /// Another open file description of the same file.
    fn again(file: &OwnedFd) -> OwnedFd {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn steps() -> impl Strategy<Value = Vec<WantedRange>> {
        let kind = prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)];
        let start = prop_oneof![0..24u64, Just(LAST - 3), Just(LAST)];
        let step = (kind, start, 0..12u64).prop_map(|(kind, start, len)| WantedRange {
            kind,
            start,
            len: len.min(END - start),
        });
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_mirror_says_what_the_kernel_says(steps in steps()) {
            let file = rustix::fs::memfd_create("mirror", MemfdFlags::CLOEXEC).unwrap();
            let (one, other) = (again(&file), again(&file));
            let mut ranges = LockedRanges::default();
            for step in steps {
                sys::ofd_lock(one.as_fd(), step.to_kernel()).unwrap();
                ranges = ranges.with(step);
                for at in (0..40).chain([LAST - 4, LAST - 1, LAST]) {
                    let byte = WantedRange { kind: LockKind::Write, start: at, len: 1 };
                    let found = sys::ofd_test(other.as_fd(), byte.to_kernel()).unwrap();
                    prop_assert_eq!(ranges.conflict(&byte), found.map(WantedRange::from_kernel));
                }
            }
        }
    }
}
