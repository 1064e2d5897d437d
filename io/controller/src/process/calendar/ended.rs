//! The reservations that ended last, so that their owners read why.
//!
//! ```text
//!   end ─► noted ─ on record ─► kept, the oldest is forgotten
//!             └─── not stored ─► never happened
//! ```

use std::collections::{BTreeMap, VecDeque};

use api::WireReservation;

/// The last reservations that have ended.
#[derive(Debug, Default)]
pub(super) struct EndedReservations {
    by_id: BTreeMap<u64, WireReservation>,
    /// Their numbers, in the order in which they ended.
    order: VecDeque<u64>,
    /// How many of the last ones are not on record yet.
    unstored: usize,
}

impl EndedReservations {
    /// Notes one that has ended.
    pub(super) fn note(&mut self, ended: WireReservation) {
        self.order.push_back(ended.id);
        self.by_id.insert(ended.id, ended);
        self.unstored += 1;
    }

    /// Keeps what was noted, as it is on record now, and forgets the oldest.
    pub(super) fn keep(&mut self) {
        self.unstored = 0;
        while self.order.len() > ENDED_MAX {
            self.order.pop_front().map(|oldest| self.by_id.remove(&oldest));
        }
    }

    /// Takes back what is not on record.
    pub(super) fn roll_back(&mut self) {
        for id in self.order.drain(self.order.len() - self.unstored..) {
            self.by_id.remove(&id);
        }
        self.unstored = 0;
    }

    pub(super) fn get(&self, id: u64) -> Option<&WireReservation> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut WireReservation> {
        self.by_id.get_mut(&id)
    }

    /// Those that are kept, the last one first.
    pub(super) fn newest(&self) -> impl Iterator<Item = &WireReservation> {
        self.order.iter().rev().filter_map(|id| self.by_id.get(id))
    }
}

/// The most ended ones that can be read.
pub(super) const ENDED_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_record_has_not_ended_and_the_oldest_is_forgotten() {
        let mut ended = EndedReservations::default();
        let one = |id| WireReservation { id, ..WireReservation::default() };
        ended.note(one(7));
        ended.keep();
        ended.note(one(3));
        ended.note(one(9));
        ended.roll_back();
        let kept: Vec<u64> = ended.newest().map(|one| one.id).collect();
        assert_eq!((kept, ended.get(3)), (vec![7], None));
        (10..10 + ENDED_MAX as u64).for_each(|id| ended.note(one(id)));
        assert!(ended.get(7).is_some(), "it is on record, and the others are not");
        ended.keep();
        assert_eq!((ended.newest().count(), ended.get(7)), (ENDED_MAX, None));
    }
}
