//! Branches: parts of a class that have queues and a reservation of their own.
//!
//! ```text
//!   class ── S, F, weight, slots ──┬─ its own queues ─┐   by share: the head that arrived first,
//!                                  ├─ branch ─────────┤                 of all of them
//!                                  └─ branch ─ R ─────┘   by reservation: each branch by its R
//! ```
//!
//! What a branch is served is charged to the tags of the class, by whichever way it went. So a class
//! whose branch is reserved has no more by share than another one of its weight.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use model::Time;

use super::Lanes;
use super::lane::{DEVICE, LANES};
use super::request::QueuePlace;
use crate::heap::{Heap, HeapPositions};
use crate::index::{ClassIndex, TableIndex as _};
use crate::observation::Observation;

/// The classes that have branches.
#[derive(Debug, Default)]
pub(super) struct BranchedClasses {
    classes: BTreeMap<ClassIndex, Branches>,
    /// By lane the positions in [`Branches::heads`].
    positions: [HeapPositions; 2],
}

/// The branches of one class.
#[derive(Debug, Default)]
struct Branches {
    all: BTreeSet<ClassIndex>,
    /// By lane those that have a ready head, and the class itself, by the arrival of the first one.
    heads: [Heap; 2],
    /// The device slots that the cap of the class left, and D, when they stood by that last.
    room: (u32, u32),
    /// The branch whose wait is counted last when the cap begins or ceases to delay heads.
    counted: Option<ClassIndex>,
}

impl BranchedClasses {
    /// Adds a branch of a class, of as many classes as there are. Returns whether it is the first.
    fn join(&mut self, branch: ClassIndex, class: ClassIndex, classes: usize) -> bool {
        self.positions.iter_mut().for_each(|positions| positions.grow(classes));
        let branches = self.classes.entry(class).or_default();
        branches.all.insert(branch);
        branches.all.len() == 1
    }

    /// Takes a branch without requests from a class. Returns whether it was the last one.
    fn leave(&mut self, branch: ClassIndex, class: ClassIndex) -> bool {
        let Entry::Occupied(mut entry) = self.classes.entry(class) else { return false };
        let branches = entry.get_mut();
        branches.all.remove(&branch);
        let was_last = branches.all.is_empty();
        if was_last {
            let mut branches = entry.remove();
            branches.clear(&mut self.positions);
        }
        was_last
    }

    /// Puts a class or a branch of it where its first ready head of that number belongs.
    fn stand(&mut self, of: ClassIndex, class: ClassIndex, lane: usize, number: Option<u64>) {
        let Some(branches) = self.classes.get_mut(&class) else { return };
        let (heads, positions) = (&mut branches.heads[lane], &mut self.positions[lane]);
        match number {
            Some(number) => heads.put(number.into(), of.raw(), positions),
            None if positions.holds(of.raw()) => heads.remove(of.raw(), positions),
            None => {}
        }
    }

    /// Handles that no requests wait any more.
    pub(super) fn clear(&mut self) {
        self.classes.values_mut().for_each(|branches| branches.clear(&mut self.positions));
    }

    fn of(&self, class: ClassIndex) -> impl Iterator<Item = ClassIndex> {
        self.classes.get(&class).into_iter().flat_map(|branches| &branches.all).copied()
    }

    /// Those branches of a class whose turn to be counted it is.
    fn next_counted(&mut self, class: ClassIndex) -> Vec<ClassIndex> {
        let Some(branches) = self.classes.get_mut(&class) else { return Vec::new() };
        let from = branches.counted.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = branches.all.range((from, Bound::Unbounded));
        let next = rest.chain(&branches.all).take(COUNTED_MAX.min(branches.all.len())).copied();
        let next: Vec<_> = next.collect();
        branches.counted = next.last().copied();
        next
    }
}

impl Branches {
    fn clear(&mut self, positions: &mut [HeapPositions; 2]) {
        self.heads.iter_mut().zip(positions).for_each(|(heads, positions)| heads.clear(positions));
    }
}

impl Lanes {
    /// Makes a class without requests a branch of another one.
    pub(crate) fn join(&mut self, branch: ClassIndex, class: ClassIndex) {
        let own = &mut self.classes[class];
        own.branched = true;
        let id = own.id;
        self.classes[branch].join(class, id);
        if self.branches.join(branch, class, self.classes.span()) {
            (0..LANES.len()).for_each(|lane| self.stand_in_class(class, lane));
        }
    }

    /// Takes a class from the one of which it is a branch, if it is one.
    pub(super) fn leave(&mut self, branch: ClassIndex) {
        let owner = self.owner_of(branch);
        if self.branches.leave(branch, owner) {
            self.classes[owner].branched = false;
        }
    }

    /// A class and its branches.
    pub(super) fn with_branches(&self, class: ClassIndex) -> impl Iterator<Item = ClassIndex> {
        std::iter::once(class).chain(self.branches.of(class))
    }

    /// The queue of a class or its branches whose ready head arrived first.
    #[inline]
    pub(super) fn first_of_all(&self, class: ClassIndex, lane: usize) -> Option<QueuePlace> {
        let class =
            if self.classes[class].branched { self.first_branch(class, lane)? } else { class };
        let queue = self.classes[class].lanes[lane].first(&self.requests)?;
        Some(QueuePlace { class, lane, queue })
    }

    /// The class or the branch of it whose ready head arrived first.
    #[inline(never)]
    fn first_branch(&self, class: ClassIndex, lane: usize) -> Option<ClassIndex> {
        let (_, first) = self.branches.classes.get(&class)?.heads[lane].first()?;
        Some(ClassIndex::new(first))
    }

    /// Size and number of the head that arrived first of a class and its branches, if it is within
    /// the cap on slots.
    #[inline(always)]
    pub(super) fn first_fitting(&self, class: ClassIndex, lane: usize) -> Option<(u8, u64)> {
        let own = &self.classes[class];
        let head = match own.branched {
            true => self.head(self.first_of_all(class, lane)?),
            false => own.lanes[lane].first_head(&self.requests)?,
        };
        own.if_fitting(lane, &self.targets[own.target].states[lane], &self.requests[head])
    }

    /// Puts a class where its first head, or that of its branches, belongs in a lane.
    pub(super) fn stand(&mut self, class: ClassIndex, lane: usize) {
        let head = self.first_fitting(class, lane);
        let own = &mut self.classes[class];
        self.targets[own.target].states[lane].stand(class, &mut own.lanes[lane], head);
    }

    /// Puts a branch, or a class that has branches, among these where its first ready head belongs.
    #[inline(never)]
    pub(super) fn stand_in_class(&mut self, class: ClassIndex, lane: usize) {
        let own = &self.classes[class];
        let first = own.lanes[lane].first_head(&self.requests);
        let number = first.map(|head| self.requests[head].number);
        self.branches.stand(class, own.owner_or(class), lane, number);
    }

    /// Updates the position of a class and its branches in a lane; of one of them is known that its
    /// heads or tags changed. O(log branches), but O(branches) where the cap on the slots of the class
    /// leaves more or fewer than before.
    #[inline(never)]
    pub(super) fn refresh_branched(
        &mut self,
        changed: ClassIndex,
        lane: usize,
        now: Time,
        seen: &mut Observation,
    ) {
        self.stand_in_class(changed, lane);
        let class = self.owner_of(changed);
        if lane == DEVICE {
            self.prepare_refresh(class, now, seen);
        }
        self.stand(class, lane);
        if lane == DEVICE && self.has_other_room(class) {
            for class in self.with_branches(class).collect::<Vec<_>>() {
                self.refresh_if_reserved(class, lane, now);
            }
            return;
        }
        self.refresh_if_reserved(changed, lane, now);
        if class != changed {
            // It has its first head by reservation while it stands with one of them.
            self.refresh_if_reserved(class, lane, now);
        }
    }

    fn refresh_if_reserved(&mut self, class: ClassIndex, lane: usize, now: Time) {
        if self.classes[class].reserved {
            self.refresh_reserve(class, lane, now);
        }
    }

    /// Whether the cap on the slots of a class leaves another number than at the last call.
    fn has_other_room(&mut self, class: ClassIndex) -> bool {
        let own = &self.classes[class];
        let room = match (own.slots_cap, own.slots_in_use) {
            (u32::MAX, _) => (u32::MAX, 0),
            (_, 0) => (u32::MAX, self.slots_max(own.target)),
            (cap, in_use) => (cap.saturating_sub(in_use), self.slots_max(own.target)),
        };
        let branches = self.branches.classes.get_mut(&class);
        branches.is_some_and(|of| std::mem::replace(&mut of.room, room) != room)
    }

    /// Counts how long the ready heads of a class and of its branches have waited: of more than
    /// [`COUNTED_MAX`] branches those whose turn it is.
    pub(super) fn count_heads_of_all(
        &mut self,
        class: ClassIndex,
        now: Time,
        seen: &mut Observation,
    ) {
        self.count_ready_heads(class, now, seen);
        for branch in self.branches.next_counted(class) {
            self.count_ready_heads(branch, now, seen);
        }
    }

    /// Panics unless the ready heads of branches are among those of their class.
    pub(super) fn check_branches(&self) {
        for (class, branches) in &self.branches.classes {
            assert!(self.classes[*class].branched && !branches.all.is_empty(), "{class:?}");
            for (lane, heads) in branches.heads.iter().enumerate() {
                let positions = &self.branches.positions[lane];
                heads.check(positions);
                let mut count = 0;
                for of in self.with_branches(*class) {
                    assert_eq!(self.owner_of(of), *class, "branch {of:?}");
                    let first = self.classes[of].lanes[lane].first_head(&self.requests);
                    let wanted = first.map(|head| u128::from(self.requests[head].number));
                    let is_there = positions.holds(of.raw());
                    let known = is_there.then(|| heads.key_of(of.raw(), positions));
                    assert_eq!(known, wanted, "first head of {of:?} in lane {lane}");
                    count += usize::from(is_there);
                }
                assert_eq!(heads.len(), count, "heads of {class:?} in lane {lane}");
            }
        }
    }
}

/// Of how many branches a cap that begins or ceases to delay them counts the wait at once.
const COUNTED_MAX: usize = 32;
