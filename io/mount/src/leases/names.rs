//! The names of one directory: what they lead to, which of them the kernel believes, and its entries.
//!
//! ```text
//!   keep ─► leads to ─► believe ─► the kernel may use the name until then, without asking
//!             │ forgotten            │ recalled meanwhile: a notice has to end that
//!             ▼                      ▼
//!           asked for again        ended, or over
//! ```
//!
//! A change of this mount goes through the kernel, which then knows: what the mount kept is forgotten,
//! what the kernel believes is still counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Time};
use rustc_hash::FxHashMap;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeptName {
    /// There is no such name.
    Absent,
    /// A file: the path of its qid, and its handle.
    File(u64, Arc<[u8]>),
}

/// Names and entries of a directory.
#[derive(Debug, Default)]
pub(super) struct LeasedNames {
    names: FxHashMap<Arc<[u8]>, NameBelief>,
    /// Entries, by the offset after which they come.
    listing: BTreeMap<u64, Arc<[u8]>>,
    listing_asked: u64,
    /// Until then the kernel believes no name of it: other nodes change names here as this one does.
    shared_until: Time,
    /// Until then the kernel believes names of it for a short time only: this mount changes some.
    changed_until: Time,
    /// The names of which it is known what they lead to.
    kept: usize,
    /// The number of names at which those that are over are dropped.
    sweep_at: usize,
}

#[derive(Debug)]
struct NameBelief {
    leads_to: Option<KeptName>,
    /// The kernel may use the name without asking until then; no two beliefs of a name end at one time.
    kernel_until: Time,
    /// Whether it is a directory, or may be one, and when the kernel may have asked last whether it still is.
    is_directory: bool,
    revalidated: Time,
}

/// How the kernel comes to a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NameFound {
    /// It is a directory, or may be one.
    pub(super) is_directory: bool,
    /// The kernel may have had the name, and has asked without a lock whether it still is what it was.
    pub(super) by_revalidation: bool,
}

/// What the names of a directory take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NamesSize {
    /// Names of which it is known what they lead to.
    pub(super) kept: usize,
    /// All names, also those that the kernel may use only.
    pub(super) all: usize,
    /// The bytes of its entries.
    pub(super) listing: usize,
}

/// A name that the kernel may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsedName {
    pub(super) name: Arc<[u8]>,
    pub(super) until: Time,
    /// Of a directory: when the kernel may have asked last whether it still is.
    pub(super) directory: Option<Time>,
}

impl NameBelief {
    const NONE: NameBelief = NameBelief {
        leads_to: None,
        kernel_until: Time::ZERO,
        is_directory: false,
        revalidated: Time::ZERO,
    };
}

impl LeasedNames {
    pub(super) fn leads_to(&self, name: &[u8]) -> Option<&KeptName> {
        self.names.get(name)?.leads_to.as_ref()
    }

    pub(super) fn keep(&mut self, name: Arc<[u8]>, leads_to: KeptName) {
        let kept = self.names.entry(name).or_insert(NameBelief::NONE);
        self.kept += usize::from(kept.leads_to.is_none());
        kept.leads_to = Some(leads_to);
    }

    /// Entries after an offset, and when they were asked for.
    pub(super) fn listing(&self, offset: u64) -> Option<(Arc<[u8]>, u64)> {
        Some((self.listing.get(&offset)?.clone(), self.listing_asked))
    }

    pub(super) fn keep_listing(&mut self, offset: u64, data: &[u8], asked: u64) {
        self.listing_asked = match self.listing.is_empty() {
            true => asked,
            false => self.listing_asked.min(asked),
        };
        self.listing.insert(offset, data.into());
    }

    /// Forgets what one name leads to, or with an empty name what all do, and the entries.
    pub(super) fn forget(&mut self, name: &[u8], now: Time) {
        self.listing.clear();
        match name.is_empty() {
            true => {
                self.kept = 0;
                self.names.retain(|_, kept| {
                    kept.leads_to = None;
                    kept.kernel_until > now
                });
            }
            false => {
                if let Some(kept) = self.names.get_mut(name) {
                    self.kept -= usize::from(kept.leads_to.take().is_some());
                    self.drop_if_unused(name, now);
                }
            }
        }
    }

    /// The kernel may use a name that is kept until `end`, or for a while: returns until when; `None` if
    /// it has to ask each time.
    pub(super) fn believe(
        &mut self,
        name: &[u8],
        found: NameFound,
        end: Time,
        now: Time,
    ) -> Option<Time> {
        let kept = self.names.get_mut(name).filter(|kept| kept.leads_to.is_some())?;
        if self.shared_until > now {
            return None;
        }
        let most = if self.changed_until > now { CHANGED_NAME_MAX } else { KERNEL_NAME_MAX };
        let until = end.min(now + most);
        let another = kept.kernel_until + Nanos::new(1);
        kept.kernel_until = another.max(until);
        kept.is_directory = found.is_directory;
        if found.by_revalidation {
            kept.revalidated = now;
        }
        Some(until)
    }

    /// The kernel uses this name until then: it has moved there what it believed of another.
    pub(super) fn believed_since_move(&mut self, name: &Arc<[u8]>, moved: &UsedName) {
        let kept = self.names.entry(name.clone()).or_insert(NameBelief::NONE);
        kept.kernel_until = (kept.kernel_until + Nanos::new(1)).max(moved.until);
        if let Some(revalidated) = moved.directory {
            kept.is_directory = true;
            kept.revalidated = kept.revalidated.max(revalidated);
        }
    }

    /// The names that the kernel may use now: this one, or with an empty name all of them.
    pub(super) fn believed(&self, name: &[u8], now: Time) -> Vec<UsedName> {
        let believed = |(name, kept): (&Arc<[u8]>, &NameBelief)| {
            (kept.kernel_until > now).then(|| UsedName {
                name: name.clone(),
                until: kept.kernel_until,
                directory: kept.is_directory.then_some(kept.revalidated),
            })
        };
        match name.is_empty() {
            true => self.names.iter().filter_map(believed).collect(),
            false => self.names.get_key_value(name).and_then(believed).into_iter().collect(),
        }
    }

    /// The kernel was made to ask for a name that it could use until then, if it has not received it once more.
    pub(super) fn ended(&mut self, name: &[u8], until: Time, now: Time) {
        if let Some(kept) = self.names.get_mut(name).filter(|kept| kept.kernel_until == until) {
            kept.kernel_until = Time::ZERO;
        }
        self.drop_if_unused(name, now);
    }

    /// A call of this mount changes a name here.
    pub(super) fn note_changed(&mut self, now: Time) {
        self.changed_until = now + CHANGED;
        if self.names.len() > self.sweep_at {
            self.names.retain(|_, kept| kept.leads_to.is_some() || kept.kernel_until > now);
            self.sweep_at = self.names.len() * 2 + SWEEP_MIN;
        }
    }

    /// Another node changes names here, and so does this one.
    pub(super) fn note_shared(&mut self, now: Time) {
        self.shared_until = now + SHARED;
    }

    /// The names that are kept, those that the kernel may use among them, and bytes of entries.
    pub(super) fn size(&self) -> NamesSize {
        let listing = self.listing.values().map(|data| data.len()).sum();
        NamesSize { kept: self.kept, all: self.names.len(), listing }
    }

    /// Whether the kernel may use a name now.
    pub(super) fn is_believed(&self, now: Time) -> bool {
        self.names.values().any(|kept| kept.kernel_until > now)
    }

    fn drop_if_unused(&mut self, name: &[u8], now: Time) {
        let kept = self.names.get(name);
        if kept.is_some_and(|kept| kept.leads_to.is_none() && kept.kernel_until <= now) {
            self.names.remove(name);
        }
    }
}

/// For how long the kernel may use a name: a notice that ends it takes the directory's lock, which a
/// request of this mount may hold while it waits, so others wait no longer than this.
pub(super) const KERNEL_NAME_MAX: Nanos = Nanos::from_secs(5);
/// The same in a directory in which this mount changes names.
const CHANGED_NAME_MAX: Nanos = Nanos::from_secs(1);
/// Names beside which those that are over do not matter.
const SWEEP_MIN: usize = 64;
/// For how long it counts as one after such a change.
const CHANGED: Nanos = Nanos::from_secs(10);
/// For how long the kernel asks for each name of a directory in which other nodes change names, too.
const SHARED: Nanos = Nanos::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: NameFound = NameFound { is_directory: false, by_revalidation: false };

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn with(name: &[u8]) -> LeasedNames {
        let mut names = LeasedNames::default();
        names.keep(name.into(), KeptName::Absent);
        names
    }

    #[test]
    fn kernel_believes_a_name_for_a_while_and_not_beyond_the_term() {
        let mut names = with(b"a");
        assert_eq!(names.believe(b"a", FILE, at(20), at(1)), Some(at(6)));
        assert_eq!(names.believe(b"a", FILE, at(8), at(4)), Some(at(8)));
        let used = UsedName { name: b"a"[..].into(), until: at(8), directory: None };
        assert_eq!(names.believed(b"", at(7)), [used]);
        assert!(names.believed(b"b", at(7)).is_empty() && !names.is_believed(at(8)));
        assert_eq!(names.believe(b"b", FILE, at(20), at(1)), None, "it is not kept");
    }

    #[test]
    fn forgotten_name_is_counted_until_the_kernel_asks_again() {
        let mut names = with(b"a");
        names.believe(b"a", FILE, at(20), at(1));
        names.forget(b"", at(2));
        assert_eq!(names.leads_to(b"a"), None);
        assert_eq!(names.size(), NamesSize { kept: 0, all: 1, listing: 0 });
        names.ended(b"a", at(5), at(2));
        assert!(names.is_believed(at(2)), "that was an earlier belief");
        names.ended(b"a", at(6), at(2));
        assert_eq!(names.size(), NamesSize::default());
        names.keep(b"a"[..].into(), KeptName::Absent);
        names.forget(b"a", at(2));
        assert_eq!(names.size(), NamesSize::default());
    }

    #[test]
    fn name_of_a_directory_that_others_change_is_asked_for_each_time() {
        let mut names = with(b"a");
        names.note_shared(at(1));
        assert_eq!(names.believe(b"a", FILE, at(20), at(2)), None);
        assert!(names.believe(b"a", FILE, at(1000), at(601)).is_some());
    }

    #[test]
    fn name_of_a_directory_that_this_mount_changes_is_believed_for_a_short_time() {
        let mut names = with(b"a");
        names.note_changed(at(1));
        assert_eq!(names.believe(b"a", FILE, at(20), at(2)), Some(at(3)));
        assert_eq!(names.believe(b"a", FILE, at(20), at(11)), Some(at(16)));
    }

    #[test]
    fn moved_name_is_believed_for_as_long_as_it_was_at_its_old_place() {
        let mut names = with(b"a");
        names.believe(b"a", NameFound { is_directory: true, by_revalidation: true }, at(20), at(1));
        let moved = names.believed(b"a", at(2)).remove(0);
        assert_eq!((moved.until, moved.directory), (at(6), Some(at(1))));
        names.believed_since_move(&b"b"[..].into(), &moved);
        let there = names.believed(b"b", at(2)).remove(0);
        assert_eq!((there.until, there.directory), (at(6), Some(at(1))));
        assert_eq!(names.leads_to(b"b"), None);
    }

    #[test]
    fn each_belief_of_a_name_has_an_end_of_its_own() {
        let mut names = with(b"a");
        names.believe(b"a", FILE, at(4), at(1));
        let first = names.believed(b"a", at(1)).remove(0);
        names.believe(b"a", FILE, at(4), at(2));
        names.ended(b"a", first.until, at(2));
        assert!(names.is_believed(at(2)), "it was received once more");
    }

    #[test]
    fn names_that_are_over_do_not_stay() {
        let mut names = LeasedNames::default();
        for number in 0..1_000u64 {
            let name: Arc<[u8]> = number.to_le_bytes()[..].into();
            names.keep(name.clone(), KeptName::Absent);
            names.believe(&name, FILE, at(number * 10 + 9), at(number * 10));
            names.note_changed(at(number * 10));
            names.forget(&name, at(number * 10));
        }
        assert!(names.size().all <= SWEEP_MIN + 3, "{:?}", names.size());
    }
}
