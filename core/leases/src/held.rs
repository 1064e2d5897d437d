//! What a mount believes: the leases that it holds at one proxy.
//!
//! ```text
//!   begin_request ─► sent ─► reply ─► granted ─► may be kept ─► believes, for the rest of the term
//!                      │                │
//!                      │ recall, or a change of ours, meanwhile: what the reply says is older, and is not kept
//!                      ▼
//!   the last renewal that was answered was sent at t ─► all leases are over at t + term
//! ```
//!
//! Replies and recalls come by several connections, in any order. So a reply counts as older than a
//! recall if its request was under way when that came.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Time};

use crate::{LeaseKinds, LeaseTerms, ObjectId};

/// The leases of a mount at one proxy.
#[derive(Clone, Debug)]
pub struct HeldLeases {
    terms: LeaseTerms,
    /// How often it began without leases.
    life: u64,
    /// When the last renewal that was answered was sent; none while it has not joined.
    renewed: Option<Time>,
    leases: BTreeMap<ObjectId, HeldLease>,
    /// The leases in the order of their use.
    by_use: BTreeSet<(u64, ObjectId)>,
    uses: u64,
    last_request: u64,
    under_way: BTreeSet<LeaseRequestId>,
    /// For each object, the kinds of which requests up to this one say what is older.
    outdated: BTreeMap<ObjectId, Vec<(LeaseRequestId, LeaseKinds)>>,
}

/// A request whose reply may bring leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseRequestId(u64);

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    kinds: LeaseKinds,
    number: u64,
    used: u64,
}

impl HeldLeases {
    /// Holds nothing, and has not joined.
    pub fn new(terms: LeaseTerms) -> HeldLeases {
        HeldLeases {
            terms,
            life: 1,
            renewed: None,
            leases: BTreeMap::new(),
            by_use: BTreeSet::new(),
            uses: 0,
            last_request: 0,
            under_way: BTreeSet::new(),
            outdated: BTreeMap::new(),
        }
    }

    /// The life to join, and to be renewed, with.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// A request to join or to be renewed was answered, of this life and sent at that time.
    pub fn renewed(&mut self, life: u64, sent: Time) {
        if life == self.life {
            self.renewed = self.renewed.max(Some(sent));
        }
    }

    /// The term that the proxy said it has; to be set before the answer that says so is counted.
    pub fn set_term(&mut self, term: Nanos) {
        self.terms.term = term;
    }

    /// When the next renewal is due; none before it has joined.
    pub fn next_renewal(&self) -> Option<Time> {
        self.renewed.map(|sent| sent + self.terms.renew_after())
    }

    /// Drops everything: the term is over, the proxy says so, or a request to join was not answered. Returns
    /// what it held, for what is kept under WRITE; a new life begins, which has to join.
    pub fn lapse(&mut self) -> Vec<(ObjectId, LeaseKinds)> {
        (self.life, self.renewed) = (self.life + 1, None);
        self.by_use.clear();
        // What is under way was asked for by the life before.
        self.under_way.clear();
        self.outdated.clear();
        let held = std::mem::take(&mut self.leases);
        held.into_iter().map(|(object, lease)| (object, lease.kinds)).collect()
    }

    /// A request that may bring leases begins.
    pub fn begin_request(&mut self) -> LeaseRequestId {
        self.last_request += 1;
        let id = LeaseRequestId(self.last_request);
        self.under_way.insert(id);
        id
    }

    /// The reply to a request granted these kinds, perhaps none. Returns the kinds under which what it
    /// says of the object may be kept: never those of an earlier reply, as one name may be changing while
    /// the lease of the others stays.
    pub fn granted(
        &mut self,
        request: LeaseRequestId,
        object: ObjectId,
        kinds: LeaseKinds,
        number: u64,
    ) -> LeaseKinds {
        if self.renewed.is_none() || !self.under_way.contains(&request) {
            return LeaseKinds::NONE;
        }
        let outdated = self.outdated.get(&object).map_or(LeaseKinds::NONE, |marks| {
            let later = marks.iter().filter(|(last, _)| request <= *last);
            later.fold(LeaseKinds::NONE, |all, (_, kinds)| all.and(*kinds))
        });
        let fresh = kinds.without(outdated);
        if fresh.is_empty() {
            return LeaseKinds::NONE;
        }
        let none = HeldLease { kinds: LeaseKinds::NONE, number: 0, used: 0 };
        let held = self.leases.entry(object).or_insert(none);
        held.kinds = held.kinds.and(fresh);
        held.number = held.number.max(number);
        self.touch(object);
        fresh
    }

    /// A request has ended: no reply to it will be read.
    pub fn end_request(&mut self, request: LeaseRequestId) {
        let was_first = self.under_way.first() == Some(&request);
        self.under_way.remove(&request);
        if was_first && !self.outdated.is_empty() {
            let first = self.under_way.first().copied();
            self.outdated.retain(|_, marks| {
                marks.retain(|(last, _)| first.is_some_and(|first| first <= *last));
                !marks.is_empty()
            });
        }
    }

    /// A recall came, of these kinds or of one name alone. Returns what it held of them, to be dropped
    /// before the recall is answered. With `is_one_name` the lease of the names stays.
    pub fn recalled(
        &mut self,
        object: ObjectId,
        kinds: LeaseKinds,
        is_one_name: bool,
    ) -> LeaseKinds {
        self.outdate(object, kinds);
        let dropped = if is_one_name { kinds.without(LeaseKinds::NAMES) } else { kinds };
        self.shrink(object, dropped).common(kinds)
    }

    /// An own request has changed the object and was answered: what is under way may be older.
    pub fn changed(&mut self, object: ObjectId, kinds: LeaseKinds) {
        self.outdate(object, kinds);
    }

    /// For how long it may believe all these kinds of an object; none if it may not. Counts as a use.
    pub fn believes(&mut self, object: ObjectId, kinds: LeaseKinds, now: Time) -> Option<Nanos> {
        let rest = self.rest(now)?;
        if !self.held(object).contains(kinds) {
            return None;
        }
        self.touch(object);
        Some(rest)
    }

    /// The kinds that it holds of an object, while its term lasts.
    pub fn held(&self, object: ObjectId) -> LeaseKinds {
        self.leases.get(&object).map_or(LeaseKinds::NONE, |held| held.kinds)
    }

    /// What is left of the term; none if it is over or has not begun.
    pub fn rest(&self, now: Time) -> Option<Nanos> {
        let end = self.renewed? + self.terms.term;
        (now < end).then(|| end.since(now))
    }

    /// Takes the leases out that were not used for longest, to be given back: object, kinds, and the
    /// number to give them back with.
    pub fn least_used(&mut self, most: usize) -> Vec<(ObjectId, LeaseKinds, u64)> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((_, object)) = self.by_use.pop_first()
        {
            if let Some(held) = self.leases.remove(&object) {
                // a reply under way may bring an earlier grant, which goes with this one
                self.outdate(object, held.kinds);
                taken.push((object, held.kinds, held.number));
            }
        }
        taken
    }

    /// Returns the number of objects of which it holds leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn outdate(&mut self, object: ObjectId, kinds: LeaseKinds) {
        if let Some(last) = self.under_way.last() {
            let marks = self.outdated.entry(object).or_default();
            // A later mark of the same kinds says all that an earlier one does.
            marks.retain(|(_, earlier)| !kinds.contains(*earlier));
            marks.push((*last, kinds));
            if self.outdated.len() > OUTDATED_MAX {
                // A request is under way for long: what it and those beside it say is not kept.
                self.under_way.clear();
                self.outdated.clear();
            }
        }
    }

    fn shrink(&mut self, object: ObjectId, kinds: LeaseKinds) -> LeaseKinds {
        let Some(held) = self.leases.get_mut(&object) else { return LeaseKinds::NONE };
        let before = held.kinds;
        held.kinds = before.without(kinds);
        if held.kinds.is_empty() {
            let used = held.used;
            self.leases.remove(&object);
            self.by_use.remove(&(used, object));
        }
        before
    }

    fn touch(&mut self, object: ObjectId) {
        let Some(held) = self.leases.get_mut(&object) else { return };
        self.by_use.remove(&(held.used, object));
        self.uses += 1;
        held.used = self.uses;
        self.by_use.insert((held.used, object));
    }
}

/// Objects of which it is known which requests say what is older.
const OUTDATED_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: ObjectId = ObjectId([1, 2]);
    const OTHER: ObjectId = ObjectId([1, 3]);
    const READ: LeaseKinds = LeaseKinds::READ;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn joined() -> HeldLeases {
        let mut held = HeldLeases::new(LeaseTerms::default());
        held.renewed(1, at(0));
        held
    }

    fn granted(held: &mut HeldLeases, object: ObjectId, number: u64) -> LeaseKinds {
        let request = held.begin_request();
        let kinds = held.granted(request, object, READ, number);
        held.end_request(request);
        kinds
    }

    #[test]
    fn a_lease_is_believed_until_the_term_after_the_renewal_was_sent() {
        let mut held = joined();
        assert_eq!(granted(&mut held, FILE, 1), READ);
        assert_eq!(held.believes(FILE, READ, at(5)), Some(Nanos::from_secs(15)));
        assert_eq!(held.believes(FILE, READ, at(20)), None);
        held.renewed(1, at(12));
        assert!(held.believes(FILE, READ, at(20)).is_some());
        held.renewed(1, at(3));
        assert!(held.believes(FILE, READ, at(31)).is_some(), "an answer that is late ends nothing");
        assert_eq!(held.believes(FILE, LeaseKinds::WRITE, at(20)), None);
        assert_eq!(held.lapse(), [(FILE, READ)]);
        held.renewed(1, at(20));
        assert!(held.rest(at(20)).is_none(), "that was of the life before");
    }

    #[test]
    fn what_was_under_way_when_a_recall_came_is_not_kept() {
        let mut held = joined();
        let early = held.begin_request();
        assert_eq!(held.recalled(FILE, READ, false), LeaseKinds::NONE);
        let late = held.begin_request();
        assert_eq!(held.granted(late, FILE, READ, 9), READ);
        assert_eq!(held.granted(early, FILE, READ, 5), LeaseKinds::NONE, "it is older");
        assert_eq!(held.granted(early, OTHER, READ, 6), READ);
        held.end_request(early);
        held.end_request(late);
        assert!(held.outdated.is_empty(), "nothing is under way");
        assert_eq!(held.recalled(FILE, READ, false), READ);
        assert_eq!(held.believes(FILE, READ, at(1)), None);
    }

    #[test]
    fn one_recalled_name_leaves_the_others_and_is_not_kept_from_older_replies() {
        let mut held = joined();
        let first = held.begin_request();
        held.granted(first, FILE, LeaseKinds::NAMES, 1);
        held.end_request(first);
        let lookup = held.begin_request();
        assert_eq!(held.recalled(FILE, LeaseKinds::NAMES, true), LeaseKinds::NAMES);
        assert!(held.believes(FILE, LeaseKinds::NAMES, at(1)).is_some());
        assert_eq!(held.granted(lookup, FILE, LeaseKinds::NONE, 0), LeaseKinds::NONE);
    }

    #[test]
    fn request_that_is_under_way_for_ever_costs_bounded_memory_and_is_not_kept() {
        let mut held = joined();
        let slow = held.begin_request();
        for number in 0..1_000 {
            let other = held.begin_request();
            held.recalled(FILE, if number % 2 == 0 { READ } else { LeaseKinds::NAMES }, false);
            held.end_request(other);
        }
        assert_eq!(held.outdated[&FILE].len(), 2, "one mark for each kind");
        assert_eq!(held.granted(slow, FILE, READ, 1), LeaseKinds::NONE);
        assert_eq!(held.granted(slow, OTHER, READ, 1), READ);
        for number in 0..=OUTDATED_MAX as u64 {
            held.changed(ObjectId([number, 9]), READ);
        }
        assert!(held.outdated.is_empty());
        assert_eq!(held.granted(slow, ObjectId([3, 9]), READ, 1), LeaseKinds::NONE);
    }

    #[test]
    fn those_unused_for_longest_are_given_back() {
        let mut held = joined();
        for number in 1..=3 {
            granted(&mut held, ObjectId([number, 0]), number);
        }
        held.believes(ObjectId([1, 0]), READ, at(1));
        assert_eq!(held.least_used(1), [(ObjectId([2, 0]), READ, 2)]);
        assert_eq!(held.len(), 2);
    }
}
