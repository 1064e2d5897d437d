//! Holders: how they join, renew and leave, what they return, and how they are kept on record.
//!
//! ```text
//!   Trenew JOIN ─► on record with the term of this proxy, or a longer one ─► joined
//!   LEAVE, the term is over ─► record_is_old ─► rewrite_record
//! ```
//!
//! Lock order: the record, then the state.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use leases::{AccessId, HolderId, LeaseKinds, ObjectId, RecordedHolder};
use model::Nanos;
use ninep::dialect::{LeaseGrant, RENEW_DONE, RENEW_OVER, RENEW_REFUSED, ReturnedLease};

use super::record::{HOLDERS_MAX, HolderKey, LeaseRecord, RecordEntry};
use super::{LeaseState, ProxyHolder, ProxyLeases};
use crate::sessions::MountSession;

impl ProxyLeases {
    /// Trenew JOIN: records the session as a holder, and lets it join. May wait for the disk. Returns the
    /// outcome and the term.
    pub(crate) fn join(&self, session: &Arc<MountSession>, life: u32) -> (u8, u64) {
        let record = self.record.lock().expect("not poisoned");
        let LeaseRecord::Own(record) = &*record else { return self.refuse(session, life) };
        if !session.export.leases.grants {
            return self.refuse(session, life);
        }
        let mut state = self.state();
        let Some(id) = state.holder_of(session) else { return (RENEW_REFUSED, 0) };
        let before = state.recorded_term(id);
        if before < self.term {
            state.set_recorded_term(id, self.term);
            let recorded = state.recorded();
            drop(state);
            if let Err(error) = record.write(&recorded) {
                tracing::warn!(%error, "cannot record the holders of leases; none is granted");
                let mut state = self.state();
                match before {
                    Nanos::ZERO => state.forget_holder(id),
                    _ => state.set_recorded_term(id, before),
                }
                return (RENEW_REFUSED, 0);
            }
            state = self.state();
        }
        let joined = state.table.join(id, life.into(), &[], self.clock.now());
        if joined.is_err() {
            return (RENEW_OVER, 0);
        }
        if before > self.term {
            // What it had under the longer term it has dropped.
            state.set_recorded_term(id, self.term);
            state.record_is_old = true;
        }
        if let Some(known) = state.holders.get_mut(&id) {
            known.session = Arc::downgrade(session);
        }
        session.set_lease_holder(id);
        self.note_change();
        (RENEW_DONE, self.term.get())
    }

    /// A session may not join. It has dropped what it believed before it asked, so nobody waits for it.
    fn refuse(&self, session: &MountSession, life: u32) -> (u8, u64) {
        let mut state = self.state();
        if let Some(id) = state.by_key.get(&session.lease_key()).copied() {
            state.table.leave(id, life.into());
            state.record_is_old = true;
            self.note_change();
        }
        (RENEW_REFUSED, 0)
    }

    /// Trenew TERM: has the holder's term begin again. Returns the outcome and the term.
    pub(crate) fn renew(&self, session: &MountSession, life: u32) -> (u8, u64) {
        let Some(holder) = session.lease_holder() else { return (RENEW_OVER, 0) };
        match self.state().table.renew(holder, life.into(), self.clock.now()) {
            Ok(()) => (RENEW_DONE, self.term.get()),
            Err(_) => (RENEW_OVER, 0),
        }
    }

    /// Trenew LEAVE: the holder has dropped what it believed.
    pub(crate) fn leave(&self, session: &MountSession, life: u32) {
        if let Some(holder) = session.lease_holder() {
            let mut state = self.state();
            state.table.leave(holder, life.into());
            state.record_is_old = true;
            self.note_change();
        }
    }

    /// Treturn: what was recalled is free, or is worked on.
    pub(crate) fn returned(&self, session: &MountSession, access: u64, is_done: bool) {
        let Some(holder) = session.lease_holder() else { return };
        let mut state = self.state();
        let (id, now) = (AccessId(access), self.clock.now());
        if !is_done {
            return state.table.progressed(holder, id, now);
        }
        if state.table.recall_of(id, holder).is_some() {
            let took = state.recalled.get(&id).map_or(Nanos::ZERO, |one| now.since(one.at));
            state.recall_max = state.recall_max.max(took);
            state.returned += 1;
        }
        state.table.returned(holder, id);
        self.note_change();
    }

    /// Tgiveback: leases that were not recalled are free.
    pub(crate) fn give_back(&self, session: &MountSession, lease: ReturnedLease) {
        let Some(holder) = session.lease_holder() else { return };
        let mut state = self.state();
        let ReturnedLease { file, grant: LeaseGrant { kinds, number } } = lease;
        let Some(known) = state.holders.get(&holder) else { return };
        // The path of a qid is of one of these devices; of the others there is no such inode.
        for (dev, mix) in known.mixes.clone() {
            let object = ObjectId([dev, file ^ mix]);
            state.table.give_back(holder, object, LeaseKinds::from_bits(kinds), number);
        }
    }

    /// Forgets holders whose term is over; whether the record is to be written again.
    pub(crate) fn sweep(&self) -> bool {
        let mut state = self.state();
        let now = self.clock.now();
        state.table.sweep(SWEPT_AT_ONCE, now);
        let known: BTreeSet<HolderId> = state.table.holders().collect();
        let gone = |id: &HolderId| !known.contains(id);
        let gone: Vec<HolderId> = state.holders.keys().copied().filter(gone).collect();
        state.record_is_old |= !gone.is_empty();
        state.record_is_old
    }

    /// Writes the record again, without those that hold nothing any more. May wait for the disk.
    pub(crate) fn rewrite_record(&self) {
        let mut record = self.record.lock().expect("not poisoned");
        let mut state = self.state();
        let known: BTreeSet<HolderId> = state.table.holders().collect();
        let gone: Vec<HolderId> =
            state.holders.keys().copied().filter(|id| !known.contains(id)).collect();
        gone.into_iter().for_each(|id| state.forget_holder(id));
        state.record_is_old = false;
        let recorded = state.recorded();
        drop(state);
        match &*record {
            LeaseRecord::Own(own) => {
                if let Err(error) = own.write(&recorded) {
                    // More are listed than there are: a restart waits longer.
                    tracing::debug!(%error, "cannot shorten the record of leases");
                }
            }
            LeaseRecord::Former(former) if recorded.is_empty() => {
                match former.clear() {
                    Ok(()) => tracing::info!("the leases of before the restart are over"),
                    Err(error) => tracing::warn!(%error, "cannot clear the record of leases"),
                }
                *record = LeaseRecord::Unused;
                self.is_needed.store(false, Ordering::Relaxed);
            }
            LeaseRecord::Former(_) | LeaseRecord::Unused => {}
        }
    }
}

impl LeaseState {
    /// The holder that a session is, perhaps a new one. None if there are too many.
    fn holder_of(&mut self, session: &Arc<MountSession>) -> Option<HolderId> {
        let key = session.lease_key();
        if let Some(known) = self.by_key.get(&key) {
            return Some(*known);
        }
        if self.holders.len() >= HOLDERS_MAX {
            return None;
        }
        loop {
            self.last_holder = self.last_holder.wrapping_add(1).max(1);
            if !self.holders.contains_key(&HolderId(self.last_holder)) {
                break;
            }
        }
        let id = HolderId(self.last_holder);
        self.by_key.insert(key, id);
        let (session, term) = (Weak::new(), Nanos::ZERO);
        self.holders.insert(id, ProxyHolder { key, term, session, mixes: Vec::new() });
        Some(id)
    }

    fn forget_holder(&mut self, id: HolderId) {
        if let Some(gone) = self.holders.remove(&id) {
            self.by_key.remove(&gone.key);
        }
    }

    /// The term that a holder is recorded with; zero if it is not.
    fn recorded_term(&self, id: HolderId) -> Nanos {
        self.holders.get(&id).map_or(Nanos::ZERO, |known| known.term)
    }

    fn set_recorded_term(&mut self, id: HolderId, term: Nanos) {
        if let Some(known) = self.holders.get_mut(&id) {
            known.term = term;
        }
    }

    fn recorded(&self) -> Vec<RecordEntry> {
        let entry = |(id, of): (&HolderId, &ProxyHolder)| {
            let key: HolderKey = of.key;
            RecordEntry { known: RecordedHolder { holder: *id, term: of.term }, key }
        };
        self.holders.iter().map(entry).collect()
    }
}

/// Grants that are checked in one sweep.
const SWEPT_AT_ONCE: usize = 10_000;
