//! The leases that a proxy has granted, and the accesses that wait for some to be returned.
//!
//! ```text
//!   begin(object, access) ─┬─ nobody has a lease that it breaks ─► ready
//!                          └─ recall to each holder ─┬─ returned ───────────────► ready ─► executed ─► end
//!                                                    └─ limit: expelled ─ term ──►
//!   acquire(holder, object, kinds): not while an access of another that breaks them is between begin and end
//! ```
//!
//! After a restart the proxy knows whose leases there may be, but not which: until each holder has joined
//! again, or its term is over, every access waits and nothing is granted.
//!
//! Invariant: two grants of one object that exclude each other are never of two holders that may believe
//! them.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Time};

use crate::{HolderId, LeaseKinds, LeaseTerms, NameId, ObjectAccess, ObjectId};

/// The leases of the objects whose home this proxy is.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    terms: LeaseTerms,
    /// No holder's term reaches beyond this: until then the proxy is surely the home.
    confirmed: Time,
    /// No holder is missing from then on.
    grace_until: Time,
    /// Nothing is granted before: another proxy may execute what it was let to before a restart.
    grants_from: Time,
    grants: BTreeMap<(ObjectId, HolderId), LeaseGrant>,
    holders: BTreeMap<HolderId, LeaseHolder>,
    accesses: BTreeMap<AccessId, OpenAccess>,
    by_object: BTreeSet<(ObjectId, AccessId)>,
    /// Accesses that are not known to be ready.
    waiting: BTreeSet<AccessId>,
    recalls: Vec<LeaseRecall>,
    /// How often a holder was expelled.
    expelled: u64,
    /// The last number of a grant, a holder's life or an access.
    last_number: u64,
    /// Where the search for grants without a holder goes on.
    swept: Option<(ObjectId, HolderId)>,
}

/// An access from its beginning to its end; also the number of its recalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessId(pub u64);

/// A holder is to return leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecall {
    /// The mount that has them.
    pub holder: HolderId,
    /// What waits for them, to be named in the return.
    pub access: AccessId,
    /// Of which object they are.
    pub object: ObjectId,
    /// What is not to be believed any more.
    pub kinds: LeaseKinds,
    /// Of names: only this one.
    pub name: Option<NameId>,
}

/// A holder of before a restart, as the proxy has it on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedHolder {
    /// The mount that may believe something.
    pub holder: HolderId,
    /// The longest term under which it may do so.
    pub term: Nanos,
}

/// Why a holder is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// It has not joined, its term is over, or it did not return a lease in time.
    #[error("the holder's leases are over; it has to drop what it believes and join again")]
    Over,
    /// A later life of the holder has joined.
    #[error("life {life} of the holder is over: {known} has joined")]
    OldLife {
        /// The life that was named.
        life: u64,
        /// The life that is known.
        known: u64,
    },
    /// The proxy may not be the home for so long.
    #[error("the proxy grants nothing: its place in the group is not confirmed")]
    NotConfirmed,
}

#[derive(Clone, Copy, Debug)]
struct LeaseGrant {
    number: u64,
    kinds: LeaseKinds,
}

#[derive(Clone, Copy, Debug)]
struct LeaseHolder {
    /// The holder's own count of how often it began without leases.
    life: u64,
    /// Grants with a lower number are of an earlier life.
    first: u64,
    /// What it was granted may be believed until then.
    until: Time,
    grants: usize,
    phase: HolderPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderPhase {
    /// It renews its term.
    Joined,
    /// It returned a lease too late, and is not renewed.
    Expelled,
    /// It had leases before the proxy's restart.
    Missing,
}

#[derive(Clone, Debug)]
struct OpenAccess {
    object: ObjectId,
    access: ObjectAccess,
    by: Option<HolderId>,
    waits: Vec<RecallWait>,
}

#[derive(Clone, Copy, Debug)]
struct RecallWait {
    holder: HolderId,
    /// The holder's life of which the lease is.
    first: u64,
    expel_at: Time,
    /// How long that may be put off, if the holder works on it.
    expel_by: Time,
}

impl LeaseTable {
    /// An empty table, of a proxy that has never granted a lease. Nothing is granted before
    /// [`confirm`](LeaseTable::confirm).
    pub fn new(terms: LeaseTerms) -> LeaseTable {
        LeaseTable {
            terms,
            confirmed: Time::ZERO,
            grace_until: Time::ZERO,
            grants_from: Time::ZERO,
            grants: BTreeMap::new(),
            holders: BTreeMap::new(),
            accesses: BTreeMap::new(),
            by_object: BTreeSet::new(),
            waiting: BTreeSet::new(),
            recalls: Vec::new(),
            expelled: 0,
            last_number: 0,
            swept: None,
        }
    }

    /// A table after a restart: `recorded` are all that may have had leases before. Each is waited for as
    /// long as its own term, which may be longer than that of `terms`.
    pub fn restarted(
        terms: LeaseTerms,
        recorded: impl IntoIterator<Item = RecordedHolder>,
        now: Time,
    ) -> LeaseTable {
        let (life, first, grants, phase) = (0, 0, 0, HolderPhase::Missing);
        let missing = |RecordedHolder { holder, term }| {
            let until = now + terms.outlasts(term);
            (holder, LeaseHolder { life, first, until, grants, phase })
        };
        let holders: BTreeMap<_, _> = recorded.into_iter().map(missing).collect();
        let grace_until = holders.values().map(|holder| holder.until).max().unwrap_or(now);
        let grants_from = now + terms.outlasts(terms.peer_limit);
        LeaseTable { holders, grace_until, grants_from, ..LeaseTable::new(terms) }
    }

    /// Numbers grants and accesses from `start` on. If those of earlier tables were below, what a holder says
    /// about them frees nothing here.
    pub fn number_from(&mut self, start: u64) {
        self.last_number = self.last_number.max(start.saturating_sub(1));
    }

    /// The proxy is surely the home of its objects until then.
    pub fn confirm(&mut self, until: Time) {
        self.confirmed = self.confirmed.max(until);
    }

    /// A holder begins without leases, but for those that it had when the proxy was restarted and
    /// names: those of kind WRITE, under which it has what it did not tell yet. `life` increases each time.
    ///
    /// # Errors
    /// If a later life is known, or the proxy's place is not confirmed.
    pub fn join(
        &mut self,
        holder: HolderId,
        life: u64,
        reclaimed: &[(ObjectId, LeaseKinds)],
        now: Time,
    ) -> Result<(), LeaseError> {
        let before = self.holders.get(&holder).copied();
        let until = self.may_renew(now)?;
        if let Some(LeaseHolder { life: known, .. }) = before.filter(|before| before.life >= life) {
            return Err(LeaseError::OldLife { life, known });
        }
        let was_missing =
            before.is_some_and(|one| one.phase == HolderPhase::Missing && one.until > now);
        let first = self.next_number();
        let new = LeaseHolder { life, first, until, grants: 0, phase: HolderPhase::Joined };
        self.holders.insert(holder, new);
        if !was_missing {
            return Ok(());
        }
        for (object, kinds) in reclaimed {
            self.insert(*object, holder, *kinds);
        }
        // What waited for this holder waits for what it has reclaimed.
        let waiting: Vec<AccessId> = self.waiting.iter().copied().collect();
        for id in waiting {
            self.recall_from(id, holder, now);
        }
        Ok(())
    }

    /// A holder's renewal came, which the answer confirms.
    ///
    /// # Errors
    /// If it has to join again, or the proxy's place is not confirmed.
    pub fn renew(&mut self, holder: HolderId, life: u64, now: Time) -> Result<(), LeaseError> {
        let until = self.may_renew(now)?;
        let known = self.holders.get_mut(&holder).ok_or(LeaseError::Over)?;
        if known.life != life {
            return Err(LeaseError::OldLife { life, known: known.life });
        }
        if known.phase != HolderPhase::Joined || known.until <= now {
            return Err(LeaseError::Over);
        }
        known.until = until;
        Ok(())
    }

    /// A holder has dropped all that it believed, and leaves.
    pub fn leave(&mut self, holder: HolderId, life: u64) {
        if self.holders.get(&holder).is_some_and(|known| known.life <= life) {
            self.holders.remove(&holder);
        }
    }

    /// The group has changed: holders with a lease of an object whose home is another proxy now are not
    /// renewed any more. The new home waits for the end of their terms.
    pub fn keep_only(&mut self, is_own: impl Fn(ObjectId) -> bool) {
        for ((object, holder), grant) in &self.grants {
            if let Some(known) = self.holders.get_mut(holder)
                && known.phase == HolderPhase::Joined
                && grant.number >= known.first
                && !is_own(*object)
            {
                known.phase = HolderPhase::Expelled;
            }
        }
    }

    /// Grants leases beside an access of the holder to the object, before that is executed, to the life in
    /// which the holder asked. Returns the number of the grant, or `None`: the holder gets what it asked
    /// for without a lease.
    pub fn acquire(
        &mut self,
        holder: HolderId,
        life: u64,
        object: ObjectId,
        kinds: LeaseKinds,
        now: Time,
    ) -> Option<u64> {
        let known = *self.holders.get(&holder)?;
        let is_there =
            known.phase == HolderPhase::Joined && known.life == life && known.until > now;
        let is_complete = now >= self.grants_from && self.missing(now).next().is_none();
        let is_quiet = self
            .open_of(object)
            .all(|open| open.by == Some(holder) || open.access.breaks().common(kinds).is_empty());
        let is_free = self.granted(object).all(|(other, grant)| {
            other == holder
                || !self.is_believed(other, grant, now)
                || grant.kinds.common(kinds.excludes()).is_empty()
        });
        let has_room = self.grants.contains_key(&(object, holder)) || self.has_room(&known);
        (is_there && is_complete && is_quiet && is_free && has_room)
            .then(|| self.insert(object, holder, kinds))
    }

    /// A holder gives leases back without being asked, up to the grant of this number.
    pub fn give_back(
        &mut self,
        holder: HolderId,
        object: ObjectId,
        kinds: LeaseKinds,
        number: u64,
    ) {
        if self.grants.get(&(object, holder)).is_some_and(|grant| grant.number <= number) {
            self.shrink(object, holder, kinds);
        }
    }

    /// An access begins; leases that it breaks are recalled from all but `by`. Leases of other proxies are not
    /// known here: [`HomeGroup::not_before`](crate::HomeGroup::not_before) says until when they may be
    /// believed, and the access must wait for that, too.
    pub fn begin(
        &mut self,
        object: ObjectId,
        access: ObjectAccess,
        by: Option<HolderId>,
        now: Time,
    ) -> AccessId {
        let id = AccessId(self.next_number());
        self.accesses.insert(id, OpenAccess { object, access, by, waits: Vec::new() });
        self.by_object.insert((object, id));
        let holders = self.granted(object).map(|(holder, _)| holder);
        let holders: BTreeSet<HolderId> = holders.chain(self.missing(now)).collect();
        for holder in holders {
            self.recall_from(id, holder, now);
        }
        self.waiting.insert(id);
        id
    }

    /// Whether an access may be executed.
    pub fn is_ready(&mut self, id: AccessId, now: Time) -> bool {
        if !self.waiting.contains(&id) {
            return self.accesses.contains_key(&id);
        }
        let Some(open) = self.accesses.get_mut(&id) else { return false };
        let mut waits = std::mem::take(&mut open.waits);
        waits.retain(|wait| {
            let known = self.holders.get(&wait.holder);
            known.is_some_and(|known| known.first == wait.first && known.until > now)
        });
        for wait in waits.iter().filter(|wait| wait.expel_at <= now) {
            if let Some(known) = self.holders.get_mut(&wait.holder)
                && known.phase == HolderPhase::Joined
            {
                known.phase = HolderPhase::Expelled;
                self.expelled += 1;
            }
        }
        let is_ready = waits.is_empty();
        open.waits = waits;
        if is_ready {
            self.waiting.remove(&id);
        }
        is_ready
    }

    /// Returns the accesses that have become ready.
    pub fn poll(&mut self, now: Time) -> Vec<AccessId> {
        let waiting: Vec<AccessId> = self.waiting.iter().copied().collect();
        waiting.into_iter().filter(|id| self.is_ready(*id, now)).collect()
    }

    /// When [`poll`](LeaseTable::poll) may find something without a message before.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadline = |id: &AccessId| {
            let open = &self.accesses[id];
            let of_wait = |wait: &RecallWait| {
                let known = self.holders.get(&wait.holder);
                known.map_or(Time::ZERO, |known| match known.phase {
                    HolderPhase::Joined => known.until.min(wait.expel_at),
                    HolderPhase::Expelled | HolderPhase::Missing => known.until,
                })
            };
            open.waits.iter().map(of_wait).min().unwrap_or(Time::ZERO)
        };
        self.waiting.iter().map(deadline).min()
    }

    /// A holder has returned what an access waits for.
    pub fn returned(&mut self, holder: HolderId, id: AccessId) {
        let Some(open) = self.accesses.get_mut(&id) else { return };
        let first = self.holders.get(&holder).map(|known| known.first);
        let at =
            open.waits.iter().position(|wait| wait.holder == holder && Some(wait.first) == first);
        let Some(at) = at else { return };
        open.waits.swap_remove(at);
        let (object, kinds) = (open.object, returned_kinds(open.access));
        self.shrink(object, holder, kinds);
    }

    /// A holder works on the return of what an access waits for: its limit begins again, for a term
    /// more at most.
    pub fn progressed(&mut self, holder: HolderId, id: AccessId, now: Time) {
        let limit = now + self.terms.recall_limit;
        if let Some(open) = self.accesses.get_mut(&id) {
            let of_holder = open.waits.iter_mut().filter(|wait| wait.holder == holder);
            of_holder.for_each(|wait| wait.expel_at = wait.expel_at.max(limit.min(wait.expel_by)));
        }
    }

    /// An access is executed, or given up.
    pub fn end(&mut self, id: AccessId) {
        if let Some(open) = self.accesses.remove(&id) {
            self.by_object.remove(&(open.object, id));
            self.waiting.remove(&id);
        }
    }

    /// Takes what is to be sent to holders.
    pub fn take_recalls(&mut self) -> Vec<LeaseRecall> {
        std::mem::take(&mut self.recalls)
    }

    /// What a holder has not returned yet that an access waits for, to be sent once more. The kinds are all
    /// that the access breaks.
    pub fn recall_of(&self, id: AccessId, holder: HolderId) -> Option<LeaseRecall> {
        let OpenAccess { object, access, waits, .. } = self.accesses.get(&id)?;
        let known = self.holders.get(&holder)?;
        let waits = waits.iter().any(|wait| wait.holder == holder && wait.first == known.first);
        let (kinds, name) = (access.breaks(), access.name());
        waits.then_some(LeaseRecall { holder, access: id, object: *object, kinds, name })
    }

    /// All that a holder has not returned yet and an access waits for, as [`recall_of`](LeaseTable::recall_of)
    /// has it: to be sent once more when messages to the holder may be lost.
    pub fn recalls_of(&self, holder: HolderId) -> impl Iterator<Item = LeaseRecall> {
        self.waiting.iter().filter_map(move |id| self.recall_of(*id, holder))
    }

    /// All that may believe something, also those of before a restart.
    pub fn holders(&self) -> impl Iterator<Item = HolderId> {
        self.holders.keys().copied()
    }

    /// How often a holder was expelled since the table was made.
    pub fn expelled(&self) -> u64 {
        self.expelled
    }

    /// Returns the number of leases, with those of holders that are gone and not found yet.
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// Whether there is no lease.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Drops holders whose term is over, and looks at some grants for those without a holder. True while
    /// there may be more.
    pub fn sweep(&mut self, most: usize, now: Time) -> bool {
        self.holders.retain(|_, known| known.until > now);
        let from = match self.swept {
            Some(key) => std::ops::Bound::Excluded(key),
            None => std::ops::Bound::Unbounded,
        };
        let looked = self.grants.range((from, std::ops::Bound::Unbounded)).take(most);
        let looked: Vec<_> = looked.map(|(key, grant)| (*key, *grant)).collect();
        self.swept = looked.last().map(|(key, _)| *key);
        for ((object, holder), grant) in looked {
            if !self.is_believed(holder, &grant, now) {
                self.grants.remove(&(object, holder));
            }
        }
        self.swept.is_some()
    }

    /// The end of a term that is renewed now.
    fn may_renew(&self, now: Time) -> Result<Time, LeaseError> {
        let until = now + self.terms.waits();
        (until <= self.confirmed).then_some(until).ok_or(LeaseError::NotConfirmed)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn has_room(&self, known: &LeaseHolder) -> bool {
        known.grants < self.terms.holder_max && self.grants.len() < self.terms.leases_max
    }

    /// Returns the holders of before the restart that have not joined again and may believe something.
    fn missing(&self, now: Time) -> impl Iterator<Item = HolderId> {
        let holders = (now < self.grace_until).then_some(&self.holders).into_iter().flatten();
        let missing = holders.filter(|(_, known)| known.phase == HolderPhase::Missing);
        missing.map(|(holder, _)| *holder)
    }

    fn granted(&self, object: ObjectId) -> impl Iterator<Item = (HolderId, &LeaseGrant)> {
        let of_object = (object, HolderId(0))..=(object, HolderId(u32::MAX));
        self.grants.range(of_object).map(|((_, holder), grant)| (*holder, grant))
    }

    fn open_of(&self, object: ObjectId) -> impl Iterator<Item = &OpenAccess> {
        let of_object = (object, AccessId(0))..=(object, AccessId(u64::MAX));
        self.by_object.range(of_object).map(|(_, id)| &self.accesses[id])
    }

    fn is_believed(&self, holder: HolderId, grant: &LeaseGrant, now: Time) -> bool {
        let known = self.holders.get(&holder);
        known.is_some_and(|known| grant.number >= known.first && known.until > now)
    }

    fn insert(&mut self, object: ObjectId, holder: HolderId, kinds: LeaseKinds) -> u64 {
        let number = self.next_number();
        let known = self.holders.get_mut(&holder).expect("its callers have found the holder");
        let grant = self.grants.entry((object, holder)).or_insert(LeaseGrant { number: 0, kinds });
        if grant.number < known.first {
            (grant.kinds, known.grants) = (LeaseKinds::NONE, known.grants + 1);
        }
        (grant.number, grant.kinds) = (number, grant.kinds.and(kinds));
        number
    }

    fn shrink(&mut self, object: ObjectId, holder: HolderId, kinds: LeaseKinds) {
        let Some(grant) = self.grants.get_mut(&(object, holder)) else { return };
        grant.kinds = grant.kinds.without(kinds);
        if !grant.kinds.is_empty() {
            return;
        }
        let number = grant.number;
        self.grants.remove(&(object, holder));
        if let Some(known) = self.holders.get_mut(&holder).filter(|known| number >= known.first) {
            known.grants -= 1;
        }
    }

    /// Has an access wait for what a holder has, or may have.
    fn recall_from(&mut self, id: AccessId, holder: HolderId, now: Time) {
        let expel_at = now + self.terms.recall_limit;
        let expel_by = expel_at + self.terms.term;
        let Some(open) = self.accesses.get(&id) else { return };
        let (object, access) = (open.object, open.access);
        let Some(known) = self.holders.get(&holder).filter(|known| known.until > now) else {
            return;
        };
        if open.by == Some(holder) {
            return;
        }
        let (first, is_missing) = (known.first, known.phase == HolderPhase::Missing);
        let grant = self.grants.get(&(object, holder)).filter(|grant| grant.number >= first);
        let kinds = grant.map_or(LeaseKinds::NONE, |grant| grant.kinds.common(access.breaks()));
        if kinds.is_empty() && !is_missing {
            return;
        }
        if !is_missing {
            let name = access.name().filter(|_| kinds.contains(LeaseKinds::NAMES));
            self.recalls.push(LeaseRecall { holder, access: id, object, kinds, name });
        }
        let open = self.accesses.get_mut(&id).expect("it was found above");
        open.waits.push(RecallWait { holder, first, expel_at, expel_by });
    }
}

/// What a holder does not have any more after the return: of names one alone was recalled.
fn returned_kinds(access: ObjectAccess) -> LeaseKinds {
    match access.name() {
        Some(_) => access.breaks().without(LeaseKinds::NAMES),
        None => access.breaks(),
    }
}
