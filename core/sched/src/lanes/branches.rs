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

use model::Time;

use super::Lanes;
use super::lane::DEVICE;
use super::request::QueuePlace;
use crate::index::ClassIndex;
use crate::observation::Observation;

impl Lanes {
    /// Makes a class without requests a branch of another one.
    pub(crate) fn join(&mut self, branch: ClassIndex, class: ClassIndex) {
        let id = self.classes[class].id;
        let own = &mut self.classes[branch];
        (own.owner, own.branched, own.id) = (class, true, id);
        let class = &mut self.classes[class];
        class.branches.push(branch);
        class.branched = true;
    }

    /// Takes a class from the one of which it is a branch, if it is one.
    pub(super) fn leave(&mut self, branch: ClassIndex) {
        let owner = self.classes[branch].owner;
        if owner == branch {
            return;
        }
        let own = &mut self.classes[owner];
        own.branches.retain(|of| *of != branch);
        own.branched = !own.branches.is_empty();
    }

    /// A class and its branches.
    pub(super) fn with_branches(&self, class: ClassIndex) -> impl Iterator<Item = ClassIndex> {
        std::iter::once(class).chain(self.classes[class].branches.iter().copied())
    }

    /// The queue of a class or its branches whose ready head arrived first.
    pub(super) fn first_of_all(&self, class: ClassIndex, lane: usize) -> Option<QueuePlace> {
        let firsts = self.with_branches(class).filter_map(|class| {
            let queue = self.classes[class].lanes[lane].first(&self.requests)?;
            Some(QueuePlace { class, lane, queue })
        });
        firsts.min_by_key(|place| self.requests[self.head(*place)].number)
    }

    /// Size and number of the head that arrived first of a class and its branches, if it is within
    /// the cap on slots.
    pub(super) fn first_fitting(&self, class: ClassIndex, lane: usize) -> Option<(u8, u64)> {
        let own = &self.classes[class];
        let head = &self.requests[self.head(self.first_of_all(class, lane)?)];
        let slots = self.targets[own.target].states[lane].slots(head.size);
        (lane != DEVICE || own.cap_allows(slots)).then_some((head.size, head.number))
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
        let class = self.classes[class].owner;
        if lane == DEVICE {
            self.prepare_refresh(class, now, seen);
        }
        let head = self.first_fitting(class, lane);
        let own = &mut self.classes[class];
        self.targets[own.target].states[lane].stand(class, &mut own.lanes[lane], head);
        for class in self.with_branches(class).collect::<Vec<_>>() {
            if self.classes[class].reserved {
                self.refresh_reserve(class, lane, now);
            }
        }
    }
}
