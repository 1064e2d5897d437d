//! Leases that mounts hold of this proxy's files, and the changes that wait for them.
//!
//! ```text
//!   Trenew JOIN ─► record on disk ─► holder           look-up, getattr, list, open ─► acquire ─► reply
//!   a change ─► start ─┬─ ready: executed ─► end                            (BegunAccesses dropped)
//!                      └─ recalls go out; parked ─ returned, or over ─► the gate again ─► start
//! ```
//!
//! What conflicts with what is decided by `core/leases`. A file is an object by device and inode, so two
//! exports that overlap share it. A change that is parked holds neither a slot nor a thread. Two changes
//! of one name go one after the other, so that the file behind a name stays the one that was looked up.
//!
//! Lock order: a connection's session, then the state here. Nothing is sent, and no request is dropped,
//! while the state is locked.

mod parked;
mod record;
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use leases::{
    AccessId, HolderId, LeaseKinds, LeaseRecall, LeaseTable, LeaseTerms, NameId, ObjectAccess,
    ObjectId,
};
use model::{Nanos, Time};
use ninep::dialect::{
    LeaseGrant, RENEW_DONE, RENEW_OVER, RENEW_REFUSED, ReturnedLease, SessionEvent,
};

use crate::config::ProxyConfig;
use crate::export::ExportNode;
use crate::gate::ProxyClock;
use crate::sessions::MountSession;

pub(crate) use parked::ParkedRequest;
use record::HolderRecord;
pub(crate) use record::{HolderKey, RecordError};

/// The leases of one proxy.
pub(crate) struct ProxyLeases {
    /// Held while a holder is recorded; `None` where none is granted.
    record: Mutex<Option<HolderRecord>>,
    state: Mutex<LeaseState>,
    /// How many requests are parked.
    parked: AtomicUsize,
    /// Whether a parked request may be ready.
    changed: AtomicBool,
    /// When one may be ready without a message: not later than the table says.
    deadline: AtomicU64,
    /// Whether holders may join.
    is_open: AtomicBool,
    term: Nanos,
    clock: ProxyClock,
}

struct LeaseState {
    table: LeaseTable,
    holders: BTreeMap<HolderId, ProxyHolder>,
    by_key: BTreeMap<HolderKey, HolderId>,
    last_holder: u32,
    /// Names that a request is changing now.
    busy_names: BTreeSet<(ObjectId, NameId)>,
    parked: BTreeMap<u64, ParkedRequest>,
    last_parked: u64,
    /// When the leases were recalled that an access waits for.
    recalled: BTreeMap<AccessId, Time>,
    /// Whether holders are on record that are none any more.
    record_is_old: bool,
    recalls: u64,
    returned: u64,
    recall_max: Nanos,
}

struct ProxyHolder {
    key: HolderKey,
    session: Weak<MountSession>,
    /// For each device of which it has leases, what makes an inode number the path of a qid.
    mixes: Vec<(u64, u64)>,
}

/// Something that a request does to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededAccess {
    object: ObjectId,
    access: ObjectAccess,
    name: Box<[u8]>,
}

/// The accesses of one request, from their beginning until this is dropped.
pub(crate) struct BegunAccesses {
    leases: Arc<ProxyLeases>,
    accesses: Vec<(AccessId, NeededAccess)>,
    /// Whether its names are among those that are being changed.
    has_names: bool,
}

/// A recall on its way to a session.
pub(crate) struct RecallToSend {
    pub(crate) session: Arc<MountSession>,
    pub(crate) event: Vec<u8>,
}

/// Figures of the leases of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseFigures {
    /// Leases that are held.
    pub(crate) leases: u64,
    /// Mounts that may hold some.
    pub(crate) holders: u64,
    /// Recalls that were sent.
    pub(crate) recalls: u64,
    /// Recalls that were answered.
    pub(crate) returned: u64,
    /// How often a mount did not answer in time.
    pub(crate) expelled: u64,
    /// Requests that wait for leases.
    pub(crate) waiting: u64,
    /// The longest time from a recall to its answer.
    pub(crate) recall_max: Nanos,
}

impl ProxyLeases {
    /// The leases of a proxy that begins; `path`: where it records holders, or none if it grants nothing.
    pub(crate) fn open(
        config: &ProxyConfig,
        path: Option<&Path>,
        clock: ProxyClock,
    ) -> Result<ProxyLeases, RecordError> {
        let terms = LeaseTerms {
            term: config.lease_term,
            recall_limit: config.lease_recall_limit,
            // There is no other proxy.
            peer_limit: Nanos::ZERO,
            leases_max: config.leases_max as usize,
            holder_max: config.mount_leases_max as usize,
            ..LeaseTerms::default()
        };
        let (record, recorded) = match path.map(HolderRecord::open).transpose()? {
            Some((record, recorded)) => (Some(record), recorded),
            None => (None, Vec::new()),
        };
        let mut table = match recorded.is_empty() {
            true => LeaseTable::new(terms),
            false => LeaseTable::restarted(terms, recorded.iter().map(|(id, _)| *id), clock.now()),
        };
        // It is the only proxy of its files.
        table.confirm(Time::MAX);
        let holder = |key| ProxyHolder { key, session: Weak::new(), mixes: Vec::new() };
        let state = LeaseState {
            table,
            holders: recorded.iter().map(|(id, key)| (*id, holder(*key))).collect(),
            by_key: recorded.iter().map(|(id, key)| (*key, *id)).collect(),
            last_holder: recorded.iter().map(|(id, _)| id.0).max().unwrap_or(0),
            busy_names: BTreeSet::new(),
            parked: BTreeMap::new(),
            last_parked: 0,
            recalled: BTreeMap::new(),
            record_is_old: false,
            recalls: 0,
            returned: 0,
            recall_max: Nanos::ZERO,
        };
        Ok(ProxyLeases {
            is_open: AtomicBool::new(record.is_some()),
            record: Mutex::new(record),
            state: Mutex::new(state),
            parked: AtomicUsize::new(0),
            changed: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            term: terms.term,
            clock,
        })
    }

    /// Grants no more and frees the record for another proxy: this one has ended.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        *self.record.lock().expect("not poisoned") = None;
    }

    /// Whether leases are granted, for the exports that are to have them.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    // ---- holders ----

    /// Trenew JOIN: records the session as a holder, and lets it join. May wait for the disk. Returns the
    /// outcome and the term.
    pub(crate) fn join(&self, session: &Arc<MountSession>, life: u32) -> (u8, u64) {
        if !session.export.leases.grants {
            return (RENEW_REFUSED, 0);
        }
        let record = self.record.lock().expect("not poisoned");
        let Some(record) = &*record else { return (RENEW_REFUSED, 0) };
        let mut state = self.state();
        let (id, is_new) = state.holder_of(session);
        if is_new {
            let recorded = state.recorded();
            drop(state);
            if let Err(error) = record.write(&recorded) {
                tracing::warn!(%error, "cannot record the holders of leases; none is granted");
                self.state().forget_holder(id);
                return (RENEW_REFUSED, 0);
            }
            state = self.state();
        }
        let joined = state.table.join(id, life.into(), &[], self.clock.now());
        if joined.is_err() {
            return (RENEW_OVER, 0);
        }
        if let Some(known) = state.holders.get_mut(&id) {
            known.session = Arc::downgrade(session);
        }
        session.set_lease_holder(id);
        self.note_change();
        (RENEW_DONE, self.term.get())
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
            let took = state.recalled.get(&id).map_or(Nanos::ZERO, |at| now.since(*at));
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
        let record = self.record.lock().expect("not poisoned");
        let Some(record) = &*record else { return };
        let mut state = self.state();
        let known: BTreeSet<HolderId> = state.table.holders().collect();
        let gone: Vec<HolderId> =
            state.holders.keys().copied().filter(|id| !known.contains(id)).collect();
        gone.into_iter().for_each(|id| state.forget_holder(id));
        state.record_is_old = false;
        let recorded = state.recorded();
        drop(state);
        if let Err(error) = record.write(&recorded) {
            // More are listed than there are: a restart waits longer.
            tracing::debug!(%error, "cannot shorten the record of leases");
        }
    }

    // ---- grants and accesses ----

    /// Grants leases of a file to a holder that asked for them in this life, before the file is read.
    pub(crate) fn acquire(
        &self,
        holder: HolderId,
        life: u32,
        node: &ExportNode,
        kinds: LeaseKinds,
    ) -> LeaseGrant {
        let mut state = self.state();
        let now = self.clock.now();
        let number = state.table.acquire(holder, life.into(), object_of(node), kinds, now);
        let Some(number) = number else { return LeaseGrant::NONE };
        if let Some(known) = state.holders.get_mut(&holder) {
            let mix = (node.dev, node.qid.path ^ node.ino);
            if !known.mixes.contains(&mix) {
                known.mixes.push(mix);
            }
        }
        LeaseGrant { kinds: kinds.bits(), number }
    }

    /// No accesses yet, to [`start`](ProxyLeases::start) some.
    pub(crate) fn begun(self: &Arc<ProxyLeases>) -> Box<BegunAccesses> {
        let leases = self.clone();
        Box::new(BegunAccesses { leases, accesses: Vec::new(), has_names: false })
    }

    /// Begins what a request needs and has not begun, and ends what it does not need any more. Returns
    /// whether it may be executed now, and what is to be sent in any case.
    pub(crate) fn start(
        &self,
        begun: &mut BegunAccesses,
        needed: &[NeededAccess],
        by: Option<HolderId>,
    ) -> (bool, Vec<RecallToSend>) {
        let mut guard = self.state();
        let (state, now) = (&mut *guard, self.clock.now());
        // Those that it still needs are taken again below, with no other request between.
        let had_names = begun.release_names(state);
        begun.accesses.retain(|(id, access)| {
            let is_needed = needed.contains(access);
            if !is_needed {
                state.table.end(*id);
                state.recalled.remove(id);
            }
            is_needed
        });
        for access in needed {
            if !begun.accesses.iter().any(|(_, known)| known == access) {
                let id = state.table.begin(access.object, access.access, by, now);
                begun.accesses.push((id, access.clone()));
            }
        }
        let recalls = state.table.take_recalls();
        let recalls = recalls.iter().filter_map(|recall| {
            let (_, access) = begun.accesses.iter().find(|(id, _)| *id == recall.access)?;
            state.recalled.entry(recall.access).or_insert(now);
            state.recalls += 1;
            state.event_of(recall, &access.name)
        });
        let recalls = recalls.collect();
        let is_ready = begun.is_ready(state, now);
        if is_ready {
            state.busy_names.extend(begun.changed_names());
            begun.has_names = true;
        }
        if had_names {
            self.note_change();
        }
        (is_ready, recalls)
    }

    /// What a session has not returned yet, to be sent over a new connection.
    pub(crate) fn outstanding(&self, session: &Arc<MountSession>) -> Vec<RecallToSend> {
        let Some(holder) = session.lease_holder().filter(|_| self.any_parked()) else {
            return Vec::new();
        };
        let state = self.state();
        let accesses = state.parked.values().flat_map(|parked| parked.accesses());
        let recalls = accesses.filter_map(|(id, access)| {
            let recall = state.table.recall_of(*id, holder)?;
            state.event_of(&recall, &access.name)
        });
        recalls.filter(|recall| Arc::ptr_eq(&recall.session, session)).collect()
    }

    /// Whether a parked request may be ready.
    pub(crate) fn has_changes(&self) -> bool {
        self.any_parked() && self.changed.load(Ordering::SeqCst)
    }

    /// Returns the figures for metrics.
    pub(crate) fn figures(&self) -> LeaseFigures {
        let state = self.state();
        LeaseFigures {
            leases: state.table.len() as u64,
            holders: state.table.holders().count() as u64,
            recalls: state.recalls,
            returned: state.returned,
            expelled: state.table.expelled(),
            waiting: state.parked.len() as u64,
            recall_max: state.recall_max,
        }
    }

    fn note_change(&self) {
        if self.any_parked() {
            self.changed.store(true, Ordering::SeqCst);
        }
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().expect("not poisoned")
    }
}

impl LeaseState {
    /// The holder that a session is; whether it is a new one.
    fn holder_of(&mut self, session: &Arc<MountSession>) -> (HolderId, bool) {
        let key = session.lease_key();
        if let Some(known) = self.by_key.get(&key) {
            return (*known, false);
        }
        loop {
            self.last_holder = self.last_holder.wrapping_add(1).max(1);
            if !self.holders.contains_key(&HolderId(self.last_holder)) {
                break;
            }
        }
        let id = HolderId(self.last_holder);
        self.by_key.insert(key, id);
        let session = Arc::downgrade(session);
        self.holders.insert(id, ProxyHolder { key, session, mixes: Vec::new() });
        (id, true)
    }

    fn forget_holder(&mut self, id: HolderId) {
        if let Some(gone) = self.holders.remove(&id) {
            self.by_key.remove(&gone.key);
        }
    }

    fn recorded(&self) -> Vec<(HolderId, HolderKey)> {
        self.holders.iter().map(|(id, holder)| (*id, holder.key)).collect()
    }

    /// A recall in the words of the holder's session; none if the session is over.
    fn event_of(&self, recall: &LeaseRecall, name: &[u8]) -> Option<RecallToSend> {
        let known = self.holders.get(&recall.holder)?;
        let session = known.session.upgrade()?;
        let ObjectId([dev, ino]) = recall.object;
        let mix = known.mixes.iter().find(|(of, _)| *of == dev).map_or(0, |(_, mix)| *mix);
        let name = if recall.name.is_some() { name } else { &[] };
        let (access, kinds) = (recall.access.0, recall.kinds.bits());
        let mut event = Vec::new();
        SessionEvent::Recall { access, file: ino ^ mix, kinds, name }.encode(&mut event);
        Some(RecallToSend { session, event })
    }
}

impl NeededAccess {
    /// An access to a file.
    pub(crate) fn of(node: &ExportNode, access: ObjectAccess) -> NeededAccess {
        NeededAccess { object: object_of(node), access, name: Box::default() }
    }

    /// A change of a name in a directory.
    pub(crate) fn of_name(dir: &ExportNode, name: &[u8]) -> NeededAccess {
        let access = ObjectAccess::ChangeName(NameId::of(name));
        NeededAccess { object: object_of(dir), access, name: name.into() }
    }

    fn changed_name(&self) -> Option<(ObjectId, NameId)> {
        self.access.name().map(|name| (self.object, name))
    }
}

impl BegunAccesses {
    /// Whether all it waits for is over.
    fn is_ready(&self, state: &mut LeaseState, now: Time) -> bool {
        let LeaseState { table, busy_names, .. } = state;
        let is_free = |access: &NeededAccess| {
            access.changed_name().is_none_or(|name| !busy_names.contains(&name))
        };
        // Each is checked: one that is ready has no deadline any more.
        self.accesses.iter().fold(true, |is_ready, (id, access)| {
            table.is_ready(*id, now) && is_free(access) && is_ready
        })
    }

    fn changed_names(&self) -> impl Iterator<Item = (ObjectId, NameId)> {
        self.accesses.iter().filter_map(|(_, access)| access.changed_name())
    }

    /// Lets other requests change its names. Returns whether they could not.
    fn release_names(&mut self, state: &mut LeaseState) -> bool {
        let had_names = std::mem::take(&mut self.has_names);
        if had_names {
            self.changed_names().for_each(|name| {
                state.busy_names.remove(&name);
            });
        }
        had_names
    }
}

impl Drop for BegunAccesses {
    fn drop(&mut self) {
        let leases = self.leases.clone();
        let mut state = leases.state();
        for (id, _) in &self.accesses {
            state.table.end(*id);
            state.recalled.remove(id);
        }
        let had_names = self.release_names(&mut state);
        drop(state);
        if had_names {
            leases.note_change();
        }
    }
}

fn object_of(node: &ExportNode) -> ObjectId {
    ObjectId([node.dev, node.ino])
}

/// Default path of the record.
pub(crate) const RECORD_PATH: &str = "/var/lib/sluice/leases";
/// Grants that are checked in one sweep.
const SWEPT_AT_ONCE: usize = 10_000;
