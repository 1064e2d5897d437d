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

mod folding;
mod holders;
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
use ninep::dialect::{LeaseGrant, SessionEvent};

use crate::config::ProxyConfig;
use crate::export::ExportNode;
use crate::gate::ProxyClock;
use crate::sessions::MountSession;

use folding::NameFolding;
pub(crate) use parked::ParkedRequest;
pub(crate) use record::{HolderKey, RecordError};
use record::{LeaseRecord, RecordEntry};

/// The leases of one proxy.
pub(crate) struct ProxyLeases {
    /// Locked while a holder is recorded.
    record: Mutex<LeaseRecord>,
    state: Mutex<LeaseState>,
    /// How many requests are parked.
    parked: AtomicUsize,
    /// Whether a parked request may be ready.
    changed: AtomicBool,
    /// When one may be ready without a message: not later than the table says.
    deadline: AtomicU64,
    /// Whether there may be holders: those that join, or those of before a restart.
    is_needed: AtomicBool,
    term: Nanos,
    clock: ProxyClock,
    folding: NameFolding,
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
    /// What was recalled for accesses, from their beginning to their end.
    recalled: BTreeMap<AccessId, RecalledAccess>,
    /// Whether holders are on record that are none any more.
    record_is_old: bool,
    recalls: u64,
    returned: u64,
    recall_max: Nanos,
}

struct ProxyHolder {
    key: HolderKey,
    /// The term that it is recorded with.
    term: Nanos,
    session: Weak<MountSession>,
    /// For each device of which it has leases, what makes an inode number the path of a qid.
    mixes: Vec<(u64, u64)>,
}

/// An access for which leases were recalled.
struct RecalledAccess {
    at: Time,
    /// The name that it changes, if it does.
    name: Box<[u8]>,
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
    /// The leases of a proxy that begins, which records holders at `path`. One that grants none waits for
    /// those that are recorded there.
    pub(crate) fn open(
        config: &ProxyConfig,
        path: &Path,
        grants: bool,
        clock: ProxyClock,
    ) -> Result<ProxyLeases, RecordError> {
        let (record, recorded) = LeaseRecord::open(path, grants)?;
        Ok(ProxyLeases::new(config, record, &recorded, clock))
    }

    /// The leases of a proxy that begins, grants none and waits for no holder.
    pub(crate) fn unused(config: &ProxyConfig, clock: ProxyClock) -> ProxyLeases {
        ProxyLeases::new(config, LeaseRecord::Unused, &[], clock)
    }

    fn new(
        config: &ProxyConfig,
        record: LeaseRecord,
        recorded: &[RecordEntry],
        clock: ProxyClock,
    ) -> ProxyLeases {
        let terms = LeaseTerms {
            term: config.lease_term,
            recall_limit: config.lease_recall_limit,
            // There is no other proxy.
            peer_limit: Nanos::ZERO,
            leases_max: config.leases_max as usize,
            holder_max: config.mount_leases_max as usize,
            ..LeaseTerms::default()
        };
        let mut table = match recorded.is_empty() {
            true => LeaseTable::new(terms),
            false => {
                LeaseTable::restarted(terms, recorded.iter().map(|one| one.known), clock.now())
            }
        };
        // It is the only proxy of its files.
        table.confirm(Time::MAX);
        if let LeaseRecord::Own(own) = &record {
            table.number_from(own.first_number());
        }
        let holder = |RecordEntry { known, key }: &RecordEntry| {
            let (key, term) = (*key, known.term);
            (known.holder, ProxyHolder { key, term, session: Weak::new(), mixes: Vec::new() })
        };
        let ids = || recorded.iter().map(|one| one.known.holder);
        let state = LeaseState {
            table,
            holders: recorded.iter().map(holder).collect(),
            by_key: recorded.iter().map(|one| (one.key, one.known.holder)).collect(),
            last_holder: ids().map(|id| id.0).max().unwrap_or(0),
            busy_names: BTreeSet::new(),
            parked: BTreeMap::new(),
            last_parked: 0,
            recalled: BTreeMap::new(),
            record_is_old: false,
            recalls: 0,
            returned: 0,
            recall_max: Nanos::ZERO,
        };
        ProxyLeases {
            is_needed: AtomicBool::new(!matches!(record, LeaseRecord::Unused)),
            record: Mutex::new(record),
            state: Mutex::new(state),
            parked: AtomicUsize::new(0),
            changed: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            term: terms.term,
            clock,
            folding: NameFolding::default(),
        }
    }

    /// Grants no more and frees the record for another proxy: this one has ended.
    pub(crate) fn close(&self) {
        *self.record.lock().expect("not poisoned") = LeaseRecord::Unused;
    }

    /// Whether changes may have to wait: leases are granted, or were before the proxy was started.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    // ---- grants and accesses ----

    /// Whether names of a directory that differ in bytes may be one to its file system. The calling thread
    /// acts for the user of the request.
    pub(crate) fn may_fold_names(&self, dir: &ExportNode) -> bool {
        self.folding.may_fold(dir)
    }

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
            let name = access.name.clone();
            state.recalled.entry(recall.access).or_insert(RecalledAccess { at: now, name });
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
        let Some(holder) = session.lease_holder() else { return Vec::new() };
        let state = self.state();
        let events =
            state.unreturned(holder).filter_map(|(recall, name)| state.event_of(&recall, name));
        events.filter(|recall| Arc::ptr_eq(&recall.session, session)).collect()
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
    /// What a holder has not returned yet, with the names that are changed: also for requests that are
    /// not parked yet.
    fn unreturned(&self, holder: HolderId) -> impl Iterator<Item = (LeaseRecall, &[u8])> {
        self.table.recalls_of(holder).filter_map(|recall| {
            let RecalledAccess { name, .. } = self.recalled.get(&recall.access)?;
            Some((recall, &name[..]))
        })
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

    /// A change of a name in a directory. Where names fold, all of the directory go one after the other.
    pub(crate) fn of_name(dir: &ExportNode, name: &[u8], may_fold: bool) -> NeededAccess {
        let access = ObjectAccess::ChangeName(NameId::of(if may_fold { b"" } else { name }));
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: ObjectId = ObjectId([1, 2]);
    const HOLDER: HolderId = HolderId(1);

    /// Leases with a holder that has the names of a directory.
    fn leases() -> Arc<ProxyLeases> {
        let config = ProxyConfig::parse("test", "[[export]]\nname = \"x\"\ndir = \"/\"\n").unwrap();
        let leases = ProxyLeases::unused(&config, ProxyClock::start());
        let (mut state, now) = (leases.state(), leases.clock.now());
        state.table.join(HOLDER, 1, &[], now).unwrap();
        state.table.acquire(HOLDER, 1, DIRECTORY, LeaseKinds::NAMES, now).unwrap();
        drop(state);
        Arc::new(leases)
    }

    #[test]
    fn what_is_recalled_can_be_sent_again_from_the_beginning_of_the_access_to_its_end() {
        let leases = leases();
        let (access, name) = (ObjectAccess::ChangeName(NameId::of(b"f")), Box::from(*b"f"));
        let needed = [NeededAccess { object: DIRECTORY, access, name }];
        let unreturned = || {
            let state = leases.state();
            let all = state.unreturned(HOLDER).map(|(recall, name)| (recall.access, name.to_vec()));
            all.collect::<Vec<_>>()
        };
        let mut begun = leases.begun();
        assert!(!leases.start(&mut begun, &needed, None).0);
        let (id, _) = begun.accesses[0];
        assert_eq!(unreturned(), [(id, b"f".to_vec())], "its request is not parked yet");
        leases.state().table.returned(HOLDER, id);
        assert!(unreturned().is_empty());
        let mut other = leases.begun();
        assert!(!leases.start(&mut other, &needed, None).0);
        assert_eq!(unreturned().len(), 1);
        drop(other);
        assert!(unreturned().is_empty(), "nobody waits for it");
        assert_eq!(leases.state().recalled.len(), 1);
        drop(begun);
        assert!(leases.state().recalled.is_empty());
    }
}
