//! Spreading a change of rules: in slices of bounded work, the first one with the change and one
//! more with each poll.
//!
//! ```text
//!   new rules ─► subjects: classifications dropped ─► classes, meters, class meters: new terms
//!                                                                         │
//!   everywhere ◄── visited in order of arrival: to its class and chain ◄── waiting requests
//!       └─ as the classes before go: so many of those that share one ─► classified once more
//! ```
//!
//! What is classified after the change is classified by the new rules. Until its subject's
//! classification is dropped, an arrival still goes to the class that the subject had, and is
//! visited like those that waited before it. A request whose class and meters are the same under the
//! new rules stays in its place. So a change that concerns a few classes costs one classification
//! for each busy subject and kind, whatever waits.
//!
//! Requests that move do so in order of arrival, and what stays in a queue goes behind older requests
//! that moved there. So a queue is in order of arrival after a change of rules that fits into one
//! slice. While a longer one spreads, a request may be served where it waits before an older one that
//! has moved, and an arrival may go to the new class before those that have yet to move. A change of
//! rows visits only what it concerns: requests whose row ended go behind the rest of their class.
//!
//! While requests of the rules before wait and run, their classes count for `max_classes`, so others
//! share one for which there is room later. When such a class goes, a combination that shares is
//! classified once more, with what waits of its subjects: a visit of all waiting requests for each
//! time that classes go, and none in vain.
//!
//! Places of a table are visited in order, and each has a bound on its work. A change that comes
//! while one is spreading starts again at the first place.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use model::SectionKind;

use super::Dispatcher;
use crate::index::{ClassIndex, RequestIndex, SubjectIndex, TableIndex as _};
use crate::lanes::QueuedRequest;
use crate::registry::Classification;

/// A change of rules that is not everywhere yet.
#[derive(Debug)]
pub(super) struct SpreadingChange {
    extent: ChangeExtent,
    phase: ChangePhase,
    /// The place of the phase's table that is visited next.
    place: usize,
    /// The subjects that shared a class and are still to be classified once more.
    sharing: Vec<SubjectIndex>,
    /// The waiting requests that are still to be visited, by number of arrival.
    waiting: BinaryHeap<Reverse<(u64, RequestIndex)>>,
}

/// What differs between the rules.
#[derive(Debug)]
pub(super) enum ChangeExtent {
    /// Values of these sections (rates, bursts, weights), in order: nothing moves.
    Values(Vec<(SectionKind, String)>),
    /// More than values: everything is classified again.
    Structure,
}

/// The table that is visited. The order matters: classes and meters have their new terms before
/// requests move to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangePhase {
    Subjects,
    Classes,
    Meters,
    ClassMeters,
    Sharing,
    Requests,
    Moves,
}

/// Units of work in a slice, of about 0.3 µs each.
pub(super) const SLICE: usize = 1_024;
/// Units of a classification; each 8 sections of the rules are one more.
const CLASSIFICATION: usize = 10;
const SECTIONS_A_UNIT: usize = 8;
/// The most requests that a call which found them visits.
const AT_ONCE_MAX: usize = 32;
/// Units of a request that moves to another queue.
const MOVE: usize = 12;

impl SpreadingChange {
    /// A change that begins, and may begin while `before` is spreading.
    pub(super) fn new(extent: ChangeExtent, before: Option<SpreadingChange>) -> SpreadingChange {
        let (extent, waiting) = match before {
            Some(before) => (extent.and(before.extent), before.waiting),
            None => (extent, BinaryHeap::new()),
        };
        let phase = match extent {
            ChangeExtent::Values(_) => ChangePhase::Classes,
            ChangeExtent::Structure => ChangePhase::Subjects,
        };
        SpreadingChange { extent, phase, place: 0, sharing: Vec::new(), waiting }
    }

    /// A change for subjects that shared a class. A change of values that comes meanwhile makes it
    /// one of everything.
    fn of_sharing(sharing: Vec<SubjectIndex>) -> SpreadingChange {
        let (extent, phase) = (ChangeExtent::Structure, ChangePhase::Sharing);
        SpreadingChange { extent, phase, place: 0, sharing, waiting: BinaryHeap::new() }
    }

    /// A change that concerns single requests, which are still to be named.
    fn of_requests() -> SpreadingChange {
        let (extent, phase) = (ChangeExtent::Values(Vec::new()), ChangePhase::Moves);
        let (sharing, waiting) = (Vec::new(), BinaryHeap::new());
        SpreadingChange { extent, phase, place: 0, sharing, waiting }
    }

    /// Goes on to the next table; false if there is none.
    fn begin_next_phase(&mut self) -> bool {
        let is_structure = matches!(self.extent, ChangeExtent::Structure);
        let next = match self.phase {
            ChangePhase::Subjects => ChangePhase::Classes,
            ChangePhase::Classes => ChangePhase::Meters,
            ChangePhase::Meters if is_structure => ChangePhase::ClassMeters,
            ChangePhase::Meters if !self.waiting.is_empty() => ChangePhase::Moves,
            ChangePhase::ClassMeters | ChangePhase::Sharing => ChangePhase::Requests,
            ChangePhase::Requests => ChangePhase::Moves,
            ChangePhase::Meters | ChangePhase::Moves => return false,
        };
        (self.phase, self.place) = (next, 0);
        true
    }
}

impl ChangeExtent {
    fn and(self, before: ChangeExtent) -> ChangeExtent {
        match (self, before) {
            (ChangeExtent::Values(mut sections), ChangeExtent::Values(before)) => {
                sections.extend(before);
                sections.sort();
                sections.dedup();
                ChangeExtent::Values(sections)
            }
            _ => ChangeExtent::Structure,
        }
    }

    fn concerns(&self, kind: SectionKind, name: &str) -> bool {
        let ChangeExtent::Values(sections) = self else { return true };
        let of = |(k, n): &(SectionKind, String)| (*k, n.as_str()).cmp(&(kind, name));
        sections.binary_search_by(of).is_ok()
    }
}

impl Dispatcher {
    /// Does the next slice of a change of rules.
    pub(super) fn spread_change(&mut self) {
        let Some(mut change) = self.change.take().or_else(|| self.unshare()) else { return };
        let mut left = self.change_slice;
        while left > 0 {
            match self.spread_step(&mut change) {
                Some(units) => left = left.saturating_sub(units),
                None if change.begin_next_phase() => {}
                // Parents of other rules that had no place while those that are gone had theirs.
                None if self.terms.settle_dependents() => {
                    (change.phase, change.place) = (ChangePhase::Classes, 0);
                }
                None => return,
            }
        }
        self.change = Some(change);
    }

    /// The change for those that share a class since the last change of structure, as many as there is
    /// room for since classes went that were there for requests of the rules before.
    fn unshare(&mut self) -> Option<SpreadingChange> {
        if !self.unshares {
            return None;
        }
        let sharing = self.registry.unshare(SLICE);
        self.unshares = self.registry.has_unreferenced() || self.registry.has_freed();
        (!sharing.is_empty()).then(|| SpreadingChange::of_sharing(sharing))
    }

    /// Visits waiting requests, by number of arrival, whose classifications were dropped: at once, or
    /// with the next polls, if there are more than a call that found them should visit.
    pub(super) fn visit_all(&mut self, waiting: impl Iterator<Item = (u64, RequestIndex)>) {
        let change = self.change.get_or_insert_with(SpreadingChange::of_requests);
        change.waiting.extend(waiting.map(Reverse));
        if change.waiting.len() <= AT_ONCE_MAX {
            self.spread_change();
        }
    }

    /// Visits the next place. Returns the units of work; `None` behind the last place of a phase.
    fn spread_step(&mut self, change: &mut SpreadingChange) -> Option<usize> {
        let place = change.place;
        change.place += 1;
        match change.phase {
            ChangePhase::Subjects => {
                if place >= self.registry.subjects_end() {
                    return None;
                }
                let subject = self.registry.subject_at(place);
                Some(subject.map_or(1, |subject| 1 + 2 * self.drop_classifications(subject)))
            }
            ChangePhase::Classes => {
                if place >= self.registry.class_places() {
                    return None;
                }
                if let Some(class) = self.registry.class_at(place) {
                    self.spread_to_class(class, &change.extent);
                }
                Some(1)
            }
            ChangePhase::Meters => {
                let terms = &self.terms;
                self.meters.set_limit_at(place, self.now, |key| {
                    let (kind, name) = key.section()?;
                    change.extent.concerns(kind, name).then(|| terms.limit_of(key)).flatten()
                })
            }
            ChangePhase::ClassMeters => self.meters.forgive_deferred_at(place),
            ChangePhase::Sharing => {
                let subject = change.sharing.pop()?;
                // Another one may be at its place by now, which costs that one a classification.
                let known = self.registry.subject_at(subject.raw() as usize);
                Some(known.map_or(1, |subject| 1 + 2 * self.drop_classifications(subject)))
            }
            ChangePhase::Requests => {
                let found = self.lanes.waiting_at(place)?;
                change.waiting.extend(found.map(Reverse));
                Some(1)
            }
            ChangePhase::Moves => {
                let Reverse((number, index)) = change.waiting.pop()?;
                Some(if self.lanes.waits(index, number) { self.visit(index) } else { 1 })
            }
        }
    }

    fn spread_to_class(&mut self, class: ClassIndex, extent: &ChangeExtent) {
        if !extent.concerns(SectionKind::Rule, &self.registry.key(class).rule) {
            return;
        }
        self.set_terms(class);
        if let ChangeExtent::Structure = extent {
            self.lanes.replace_cap(class, self.now, &mut self.observation);
        }
    }

    /// Moves a waiting request to its class and meters under the rules in force. Returns the units
    /// of work.
    fn visit(&mut self, index: RequestIndex) -> usize {
        let QueuedRequest { subject, kind, class, chain, .. } = *self.lanes.request(index);
        let (way, units) = match self.registry.way(subject, kind) {
            Some(way) => (way, 1),
            None => {
                let sections = self.terms.sections() / SECTIONS_A_UNIT;
                (self.classify(subject, kind, chain.get()), CLASSIFICATION + sections)
            }
        };
        let has_paid = self.lanes.request(index).has_paid();
        if way.class != class || self.lanes.is_before_older(index) {
            self.move_request(index, way);
        } else if !has_paid && !self.meters.are_same(chain, way.chain) {
            self.replace_meters(index, way);
        } else {
            return units;
        }
        units + MOVE
    }

    /// Moves a waiting request to the end of its queue in the class that it belongs to.
    fn move_request(&mut self, index: RequestIndex, way: Classification) {
        let before = self.lanes.request(index).class;
        self.unqueue(index);
        self.reclassify(index, way);
        self.queue_up(index);
        if way.class != before {
            self.count_dependents(self.lanes.watched(way.class), 1);
            self.count_dependents(self.lanes.watched(before), -1);
            self.rest_unused(before);
        }
    }

    /// Lets a waiting request pay other meters of its class; it keeps its place in its queue.
    fn replace_meters(&mut self, index: RequestIndex, way: Classification) {
        if !self.lanes.is_head(index) {
            return self.reclassify(index, way);
        }
        let place = self.lanes.request(index).place();
        self.withdraw(place);
        self.reclassify(index, way);
        self.admit(place);
        self.lanes.refresh(place.class, place.lane, self.now, &mut self.observation);
    }

    /// Gives a request its class and the reference on its chain. One that has paid keeps its chain.
    fn reclassify(&mut self, index: RequestIndex, way: Classification) {
        let request = self.lanes.request(index);
        let chain = if request.has_paid() { request.chain } else { way.chain };
        self.retain_chain(chain);
        let before = self.lanes.reclassify(index, way.class, chain);
        self.drop_chain(before);
    }
}
