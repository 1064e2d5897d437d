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

use model::Time;

use super::Lanes;
use super::lane::DEVICE;
use super::request::QueuePlace;
use crate::index::ClassIndex;
use crate::observation::Observation;

impl Lanes {
    /// Makes a class without requests a branch of another one.
    pub(crate) fn join(&mut self, branch: ClassIndex, class: ClassIndex) {
        let own = &mut self.classes[class];
        own.branched = true;
        let id = own.id;
        self.classes[branch].join(class, id);
        self.branches.entry(class).or_default().push(branch);
    }

    /// Takes a class from the one of which it is a branch, if it is one.
    pub(super) fn leave(&mut self, branch: ClassIndex) {
        let owner = self.owner_of(branch);
        let Entry::Occupied(mut branches) = self.branches.entry(owner) else { return };
        branches.get_mut().retain(|of| *of != branch);
        if branches.get().is_empty() {
            branches.remove();
            self.classes[owner].branched = false;
        }
    }

    /// A class and its branches.
    pub(super) fn with_branches(&self, class: ClassIndex) -> impl Iterator<Item = ClassIndex> {
        let branches = self.branches.get(&class).into_iter().flatten();
        std::iter::once(class).chain(branches.copied())
    }

    /// The queue of a class or its branches whose ready head arrived first.
    #[inline]
    pub(super) fn first_of_all(&self, class: ClassIndex, lane: usize) -> Option<QueuePlace> {
        if self.classes[class].branched {
            return self.first_of_branches(class, lane);
        }
        let queue = self.classes[class].lanes[lane].first(&self.requests)?;
        Some(QueuePlace { class, lane, queue })
    }

    #[inline(never)]
    fn first_of_branches(&self, class: ClassIndex, lane: usize) -> Option<QueuePlace> {
        let firsts = self.with_branches(class).filter_map(|class| {
            let queue = self.classes[class].lanes[lane].first(&self.requests)?;
            Some(QueuePlace { class, lane, queue })
        });
        firsts.min_by_key(|place| self.requests[self.head(*place)].number)
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

    /// Updates the position of a class and its branches in a lane; of one of them is known that its
    /// heads or tags changed.
    #[inline(never)]
    pub(super) fn refresh_branched(
        &mut self,
        class: ClassIndex,
        lane: usize,
        now: Time,
        seen: &mut Observation,
    ) {
        let class = self.owner_of(class);
        if lane == DEVICE {
            self.prepare_refresh(class, now, seen);
        }
        self.stand(class, lane);
        for class in self.with_branches(class).collect::<Vec<_>>() {
            if self.classes[class].reserved {
                self.refresh_reserve(class, lane, now);
            }
        }
    }
}
