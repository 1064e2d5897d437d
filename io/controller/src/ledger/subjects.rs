//! Subjects, and the open minute's sums of each.
//!
//! ```text
//!   line of a proxy: job dd.500, uid 7, gid 8, project 9, class, export
//!        └─► slots: job "dd.500", user "7", group "8", project "9", class …, export … + proxy
//!   no slot left ─► "(other)" of that kind: one for each kind, always there
//! ```
//!
//! A slot lives while a line refers to it or its sums are not written. Slots are
//! bounded, so names that clients make up (jobs) cannot fill the memory.

use std::collections::HashMap;
use std::sync::Arc;

use model::{AccountSubject, OpKind, Service};

use super::row::{self, FIELDS};

macro_rules! subject_kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// The kinds of subjects by which usage is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum SubjectKind { $($(#[$doc])* $variant,)* }

        impl SubjectKind {
            /// Every kind, in order.
            pub const ALL: &'static [SubjectKind] = &[$(SubjectKind::$variant,)*];

            /// The word for it in commands, messages and files.
            pub const fn name(self) -> &'static str {
                match self { $(SubjectKind::$variant => $name,)* }
            }
        }
    };
}

subject_kinds! {
    /// A batch job; the empty name stands for requests without one.
    Job = "job";
    /// A user, by number.
    User = "user";
    /// A group, by number.
    Group = "group";
    /// A project quota id, by number.
    Project = "project";
    /// A class of a rule.
    Class = "class";
    /// An export.
    Export = "export";
    /// A proxy.
    Proxy = "proxy";
    /// A kind of operation: its operations, and the payload of reads and writes.
    OpKind = "kind";
    /// A decay's key: its usage.
    Decay = "decay";
    /// A user and a job of that user, as `7 dd.500`, in each hour in which it had requests: a mark
    /// without counts.
    Owner = "owner";
}

/// The name of all subjects that have no slot: memory is bounded.
pub const OTHER: &str = "(other)";

/// The longest name; subjects with a longer one count for the others.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// Subjects of one line: its slots, in the order of [`LINE_KINDS`].
pub(crate) type LineSubjects = [Option<SlotId>; 6];

/// The subjects of a line.
pub(crate) const LINE_KINDS: [SubjectKind; 6] = [
    SubjectKind::Job,
    SubjectKind::User,
    SubjectKind::Group,
    SubjectKind::Project,
    SubjectKind::Class,
    SubjectKind::Export,
];

/// Place of a subject in memory. Never 0, so that an optional one takes no more room.
pub(crate) type SlotId = std::num::NonZeroU32;

/// Every subject that is in use, with the sums that are not written yet.
pub(crate) struct LedgerSubjects {
    /// Slot 0 is never used.
    slots: Vec<SubjectSlot>,
    index: HashMap<(SubjectKind, Arc<str>), SlotId>,
    free: Vec<SlotId>,
    /// Slots that have sums.
    touched: Vec<SlotId>,
    slots_max: usize,
}

/// One subject in memory, with sums that are not yet in the file.
pub(crate) struct SubjectSlot {
    pub(crate) kind: SubjectKind,
    pub(crate) name: Arc<str>,
    /// Its row in the file, once it is known.
    pub(crate) row: Option<i64>,
    pub(crate) sums: [u64; FIELDS],
    has_sums: bool,
    /// Lines and members that refer to it.
    uses: u32,
}

impl SubjectKind {
    /// The kind of that number, as files have it.
    pub(crate) fn from_number(number: u64) -> Option<SubjectKind> {
        usize::try_from(number).ok().and_then(|number| SubjectKind::ALL.get(number)).copied()
    }
}

/// The names of an account's subject in the order of [`LINE_KINDS`].
pub(crate) fn names(of: &AccountSubject) -> [Option<String>; 6] {
    let who = &of.identity;
    [
        Some(who.job.to_string()),
        Some(who.uid.to_string()),
        Some(who.gid.to_string()),
        who.projid.map(|project| project.to_string()),
        Some(of.class.to_string()),
        Some(of.export.to_string()),
    ]
}

impl LedgerSubjects {
    /// Makes the subjects that are always there: the others, and the kinds of operation.
    pub(crate) fn new(slots_max: usize) -> LedgerSubjects {
        let mut subjects = LedgerSubjects {
            slots: vec![SubjectSlot::new(SubjectKind::Job, Arc::from(""))],
            index: HashMap::new(),
            free: Vec::new(),
            touched: Vec::new(),
            slots_max: usize::MAX,
        };
        for kind in SubjectKind::ALL {
            subjects.acquire(*kind, OTHER);
        }
        for kind in OpKind::ALL {
            subjects.acquire(SubjectKind::OpKind, kind.name());
        }
        subjects.slots_max = slots_max.max(subjects.slots.len());
        subjects
    }

    /// Takes the slot of a subject, for one more user of it.
    pub(crate) fn acquire(&mut self, kind: SubjectKind, name: &str) -> SlotId {
        let id = self.find_or_make(kind, name);
        self.slots[id.get() as usize].uses += 1;
        id
    }

    /// Adds one user of a slot in use.
    pub(crate) fn add_use(&mut self, id: SlotId) {
        self.slots[id.get() as usize].uses += 1;
    }

    /// Removes one user of a slot.
    pub(crate) fn release(&mut self, id: SlotId) {
        let slot = &mut self.slots[id.get() as usize];
        slot.uses = slot.uses.checked_sub(1).expect("each release follows a take");
    }

    /// Adds to the sums of a subject. `mask` has a bit for each of `values`.
    pub(crate) fn add(&mut self, id: SlotId, mask: u64, values: &[u64]) {
        let slot = &mut self.slots[id.get() as usize];
        if !slot.has_sums {
            slot.has_sums = true;
            self.touched.push(id);
        }
        let mut bits = mask;
        for value in values {
            let field = &mut slot.sums[bits.trailing_zeros() as usize];
            *field = field.saturating_add(*value);
            bits &= bits - 1;
        }
    }

    /// Adds to the sums of a subject that no line refers to.
    pub(crate) fn add_named(&mut self, kind: SubjectKind, name: &str, sums: &Service) {
        let id = self.find_or_make(kind, name);
        self.add_all(id, sums);
    }

    /// Adds to every field.
    pub(crate) fn add_all(&mut self, id: SlotId, sums: &Service) {
        if !sums.is_zero() {
            self.add(id, (1 << FIELDS) - 1, &row::fields(sums));
        }
    }

    /// Splits sums by kind of operation.
    pub(crate) fn add_kinds(&mut self, sums: &Service) {
        for kind in OpKind::ALL {
            let part = sums.part_of(*kind);
            if !part.is_zero() {
                self.add_named(SubjectKind::OpKind, kind.name(), &part);
            }
        }
    }

    /// Returns subjects with sums that are not written.
    pub(crate) fn touched(&self) -> impl Iterator<Item = (SlotId, &SubjectSlot)> + Clone {
        self.touched.iter().map(|id| (*id, self.slot(*id)))
    }

    pub(crate) fn slot(&self, id: SlotId) -> &SubjectSlot {
        &self.slots[id.get() as usize]
    }

    pub(crate) fn set_row(&mut self, id: SlotId, row: i64) {
        self.slots[id.get() as usize].row = Some(row);
    }

    /// Drops the rows of subjects in the file: rows were removed.
    pub(crate) fn forget_rows(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.row = None);
    }

    /// Sets all sums to zero: they are written, or replaced by others.
    pub(crate) fn clear_sums(&mut self) {
        for id in self.touched.drain(..) {
            let slot = &mut self.slots[id.get() as usize];
            slot.sums = [0; FIELDS];
            slot.has_sums = false;
        }
    }

    /// Frees the slots without users.
    pub(crate) fn sweep(&mut self) {
        for number in 1..self.slots.len() {
            let slot = &mut self.slots[number];
            let id = SlotId::new(number as u32).expect("from 1");
            if slot.uses == 0 && !slot.has_sums && self.index.get(&slot.key()) == Some(&id) {
                self.index.remove(&slot.key());
                *slot = SubjectSlot::new(SubjectKind::Job, Arc::from(""));
                self.free.push(id);
            }
        }
    }

    /// Returns the slots in use.
    pub(crate) fn count(&self) -> usize {
        self.index.len()
    }

    fn find_or_make(&mut self, kind: SubjectKind, name: &str) -> SlotId {
        let name: Arc<str> = match name.len() {
            0..=NAME_BYTES_MAX => name.into(),
            _ => OTHER.into(),
        };
        if let Some(id) = self.index.get(&(kind, name.clone())) {
            return *id;
        }
        if self.index.len() >= self.slots_max {
            return self.index[&(kind, Arc::from(OTHER))];
        }
        let slot = SubjectSlot::new(kind, name.clone());
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id.get() as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).ok().and_then(SlotId::new).expect("bounded")
            }
        };
        self.index.insert((kind, name), id);
        id
    }
}

impl SubjectSlot {
    fn new(kind: SubjectKind, name: Arc<str>) -> SubjectSlot {
        SubjectSlot { kind, name, row: None, sums: [0; FIELDS], has_sums: false, uses: 0 }
    }

    fn key(&self) -> (SubjectKind, Arc<str>) {
        (self.kind, self.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_read() -> Service {
        let mut sums = Service { read_bytes: 10, written_bytes: 3, ..Service::default() };
        sums.ops[OpKind::Read as usize] = 1;
        sums
    }

    #[test]
    fn above_the_bound_subjects_are_the_others_of_their_kind() {
        let always = SubjectKind::ALL.len() + OpKind::COUNT;
        let mut subjects = LedgerSubjects::new(always + 1);
        let first = subjects.acquire(SubjectKind::Job, "a");
        let second = subjects.acquire(SubjectKind::Job, "b");
        assert_eq!(subjects.slot(second).name.as_ref(), OTHER);
        assert_ne!(first, second);
        subjects.release(first);
        subjects.sweep();
        let third = subjects.acquire(SubjectKind::User, "7");
        assert_eq!(subjects.slot(third).name.as_ref(), "7");
    }

    #[test]
    fn a_slot_is_not_freed_while_its_sums_are_not_written() {
        let mut subjects = LedgerSubjects::new(1_000);
        let id = subjects.acquire(SubjectKind::Job, "a");
        subjects.add_all(id, &one_read());
        subjects.release(id);
        subjects.sweep();
        assert_eq!(subjects.touched().next().unwrap().1.sums[0], 10);
        let count = subjects.count();
        subjects.clear_sums();
        subjects.sweep();
        assert_eq!(subjects.count(), count - 1);
    }

    #[test]
    fn a_kind_has_its_operations_and_its_own_payload() {
        let mut subjects = LedgerSubjects::new(1_000);
        subjects.add_kinds(&one_read());
        let told: Vec<_> = subjects
            .touched()
            .map(|(_, slot)| (slot.name.to_string(), slot.sums[0], slot.sums[1]))
            .collect();
        assert_eq!(told, [("read".to_string(), 10, 0), ("write".to_string(), 0, 3)]);
    }
}
