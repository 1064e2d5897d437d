//! All resources with their step functions, and the search over several of them at once.
//!
//! ```text
//!   demand ─► earliest_fit ─► time ─► book ──┐
//!                └─► the bottleneck          ▼
//!   set_capacity ──────────────────────► step function of each resource ─► overload, peak, used
//! ```
//!
//! Nothing is booked beyond a capacity: callers book what fits. Only a capacity that falls leaves an
//! overload, which the calendar removes before its call returns. What is over stays as it was for some
//! days, to be shown, and is then forgotten.
//!
//! A resource has whole capacities by time. Its step function has what of them may be reserved: less
//! what no proxy sees, the share for best effort, and the load that rules reserve.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Nanos, Share, Time};
use serde::{Deserialize, Serialize};

use crate::demand::{Demand, ResourceId, ResourceKind};
use crate::load::{Capacity, Load};
use crate::record::{ChangedSet, ResourceRecord};
use crate::steps::{FitCursor, StepFunction};

/// The resources of a calendar, by their places.
#[derive(Debug, Default)]
pub struct ResourceTable {
    resources: Vec<Resource>,
    by_name: BTreeMap<ResourceKind, BTreeMap<Arc<str>, ResourceId>>,
    changed: ChangedSet<ResourceId>,
    /// The next resource of which the past is forgotten.
    next_forgotten: usize,
}

#[derive(Debug)]
struct Resource {
    name: Arc<str>,
    kind: ResourceKind,
    unreserved: Unreserved,
    /// The whole capacity from each time on; neighbours differ.
    whole: BTreeMap<Time, Capacity>,
    steps: StepFunction,
}

/// What of the whole capacity of a resource is not for reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreserved {
    /// The share that is used by what no proxy sees.
    pub unseen: Share,
    /// The share of the rest that is left for requests without a reservation.
    pub best_effort: Share,
    /// What rules reserve of the rest.
    pub rules: Load,
}

/// A half-open span of time: from a point until before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first point of it.
    pub from: Time,
    /// The first point after it.
    pub until: Time,
}

/// Where a span may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitWindow {
    /// The earliest start that is permitted.
    pub release: Time,
    /// The latest end that is permitted.
    pub until: Time,
    /// How long the demand is needed, not zero.
    pub length: Nanos,
}

/// Why a resource is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// The table is full.
    #[error("{0:?} is not added: the calendar has {max} resources", max = ResourceTable::MAX_COUNT)]
    Full(Arc<str>),
    /// The name is in use or not a name.
    #[error("{0:?} is not a new resource's name: 1 to {max} bytes that no other one of its kind has", max = ResourceTable::NAME_MAX)]
    Name(Arc<str>),
    /// The resource does not exist.
    #[error("resource {0} does not exist")]
    Unknown(ResourceId),
    /// The step function is full.
    #[error("{0:?} has {max} steps in the calendar: wait until some are over", max = ResourceTable::STEPS_MAX)]
    Steps(Arc<str>),
    /// The span is empty.
    #[error("a capacity from {from} ns until {until} ns: it is to end after its begin",
        from = .0.from.as_nanos(), until = .0.until.as_nanos())]
    Empty(Span),
}

/// Loads above the capacity of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overload {
    /// The first time of it.
    pub(crate) from: Time,
    /// The share of the loads there that fits, rounded down.
    pub(crate) share: Share,
}

impl Span {
    /// A span of that length.
    pub fn new(from: Time, length: Nanos) -> Span {
        Span { from, until: from + length }
    }

    /// How long it is.
    pub fn length(self) -> Nanos {
        self.until.since(self.from)
    }

    /// Whether both have a point in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.from < other.until && other.from < self.until
    }
}

impl Unreserved {
    /// What of a whole capacity may be reserved, rounded down.
    pub fn of(self, whole: Capacity) -> Capacity {
        whole.without(self.unseen).without(self.best_effort).less(self.rules)
    }
}

impl ResourceTable {
    /// The most resources of a table.
    pub const MAX_COUNT: usize = 16_384;
    /// The steps of one resource above which nothing is accepted for it.
    pub const STEPS_MAX: usize = 65_536;
    /// The longest name of a resource in bytes, which is that of a target.
    pub const NAME_MAX: usize = 255;

    /// Adds a resource with a capacity from `now` on, all of it for reservations.
    ///
    /// # Errors
    /// If the table is full, or the name is empty, too long or in use.
    pub fn add(
        &mut self,
        name: Arc<str>,
        kind: ResourceKind,
        capacity: Capacity,
        now: Time,
    ) -> Result<ResourceId, ResourceError> {
        if self.resources.len() >= ResourceTable::MAX_COUNT {
            return Err(ResourceError::Full(name));
        }
        if !(1..=ResourceTable::NAME_MAX).contains(&name.len()) || self.find(kind, &name).is_some()
        {
            return Err(ResourceError::Name(name));
        }
        let id = ResourceId::new(self.resources.len() as u32);
        let steps = StepFunction::new(capacity, now.as_nanos());
        self.by_name.entry(kind).or_default().insert(name.clone(), id);
        let (unreserved, whole) = (Unreserved::default(), BTreeMap::from([(now, capacity)]));
        self.resources.push(Resource { name, kind, unreserved, whole, steps });
        self.changed.note(id);
        Ok(id)
    }

    /// Sets the whole capacity of a resource during a span. Loads above it stay booked.
    ///
    /// # Errors
    /// If the resource is unknown, has too many steps, or the span is empty.
    pub fn set_capacity(
        &mut self,
        resource: ResourceId,
        span: Span,
        capacity: Capacity,
    ) -> Result<(), ResourceError> {
        let found = self.resources.get_mut(resource.index());
        let found = found.ok_or(ResourceError::Unknown(resource))?;
        if span.from >= span.until {
            return Err(ResourceError::Empty(span));
        }
        if found.steps.len() + 2 > ResourceTable::STEPS_MAX {
            return Err(ResourceError::Steps(found.name.clone()));
        }
        set_level(&mut found.whole, span, capacity);
        let usable = found.unreserved.of(capacity);
        found.steps.set_capacity(span.from.as_nanos(), span.until.as_nanos(), usable);
        self.changed.note(resource);
        Ok(())
    }

    /// Sets what of a resource is not for reservations, in the step function from a time on piece by
    /// piece. Loads above what is left stay booked.
    ///
    /// # Errors
    /// If the resource is unknown.
    pub(crate) fn set_unreserved(
        &mut self,
        resource: ResourceId,
        unreserved: Unreserved,
        from: Time,
    ) -> Result<(), ResourceError> {
        let pieces = self.whole_pieces(resource, from);
        let found = self.resources.get_mut(resource.index());
        let found = found.ok_or(ResourceError::Unknown(resource))?;
        found.unreserved = unreserved;
        for (span, whole) in pieces {
            let (from, until) = (span.from.as_nanos(), span.until.as_nanos());
            found.steps.set_capacity(from, until, unreserved.of(whole));
        }
        self.changed.note(resource);
        Ok(())
    }

    /// Adds a demand during a span. The caller has checked that it fits.
    ///
    /// # Panics
    /// If a resource does not exist.
    pub fn book(&mut self, demand: &Demand, span: Span) {
        for (resource, load) in demand.loads() {
            self.book_load(resource, load, span);
        }
    }

    /// Removes a demand that was booked during a span; what of it is over is forgotten already.
    ///
    /// # Panics
    /// If it was not booked.
    pub fn release(&mut self, demand: &Demand, span: Span) {
        for (resource, load) in demand.loads() {
            self.release_load(resource, load, span);
        }
    }

    /// Forgets the past of a few resources, in turn, except the last days of what is booked if that
    /// is not many steps. O(blocks of these).
    pub fn forget_before(&mut self, now: Time) {
        for _ in 0..FORGOTTEN_AT_ONCE.min(self.resources.len()) {
            self.next_forgotten = (self.next_forgotten + 1) % self.resources.len();
            let resource = &mut self.resources[self.next_forgotten];
            let is_long = resource.steps.len() > STEPS_WITH_PAST_MAX;
            let kept = if is_long { now } else { now.before(PAST_KEPT) };
            resource.steps.forget_before(kept.as_nanos());
            while resource.whole.keys().nth(1).is_some_and(|next| *next <= now) {
                resource.whole.pop_first();
            }
        }
    }

    /// The first start in a window at which a demand fits for the whole length.
    ///
    /// The resources are asked in turn for their first clear window at or after the latest of the
    /// answers, until all agree. One that refuses is asked first from then on, as it mostly refuses
    /// again. Each reads its steps forward only: O(steps in the window · width) at worst.
    ///
    /// # Errors
    /// The resource that refused the last start.
    ///
    /// # Panics
    /// If a resource does not exist.
    pub fn earliest_fit(&self, demand: &Demand, window: FitWindow) -> Result<Time, ResourceId> {
        let width = demand.width();
        let mut cursors = vec![FitCursor::default(); width];
        let length = window.length.get();
        let latest = window.until.as_nanos().checked_sub(length);
        let latest = latest.ok_or(demand.nth(0).0)?;
        let mut order: Vec<usize> = (0..width).collect();
        let (mut start, mut at) = (window.release.as_nanos(), 0);
        while at < width {
            let (resource, load) = demand.nth(order[at]);
            let steps = &self.resources[resource.index()].steps;
            let next = steps.next_window(&mut cursors[order[at]], start, latest, length, load);
            let next = next.ok_or(resource)?;
            if next > start {
                // it is clear at its own start, so the others are asked, those that refused last first
                order[..=at].rotate_right(1);
                (start, at) = (next, 0);
            }
            at += 1;
        }
        Ok(Time::from_nanos(start))
    }

    /// Whether a demand fits during a span.
    ///
    /// # Errors
    /// The first resource that it does not fit on.
    pub fn check_fit(&self, demand: &Demand, span: Span) -> Result<(), ResourceId> {
        let window = FitWindow { release: span.from, until: span.until, length: span.length() };
        self.earliest_fit(demand, window).map(|_| ())
    }

    /// The greatest share of a demand that fits during a span, and the resource that has the least.
    pub fn share_that_fits(&self, demand: &Demand, span: Span) -> (Share, ResourceId) {
        let least = demand.loads().map(|(resource, load)| {
            let mut share = Share::WHOLE;
            self.each_step(resource, span, |_, used, capacity| {
                share = share.min(capacity.share_that_fits(used, load));
                share == Share::ZERO
            });
            (share, resource)
        });
        least.min().expect("a demand has a load")
    }

    /// The greatest share of a resource's capacity that is used during a span; the whole if it is
    /// closed at a time.
    pub fn peak(&self, resource: ResourceId, span: Span) -> Share {
        let mut peak = Share::ZERO;
        self.each_step(resource, span, |_, used, capacity| {
            let share = if capacity.whole() == 0 { Share::WHOLE } else { capacity.used_by(used) };
            peak = peak.max(share);
            peak.is_whole()
        });
        peak
    }

    /// What is booked of a resource at a time, and its capacity then.
    pub fn used(&self, resource: ResourceId, time: Time) -> (Load, Capacity) {
        let mut found = (Load::NONE, Capacity::CLOSED);
        self.each_step(resource, Span::new(time, Nanos::new(1)), |_, used, capacity| {
            found = (used, capacity);
            true
        });
        found
    }

    /// What is booked of a resource in a span, from each time on, at most `most` steps: of the past
    /// as far back as it is kept. O(steps in the span).
    pub fn levels(&self, resource: ResourceId, span: Span, most: usize) -> Vec<(Time, Load)> {
        let mut levels: Vec<(Time, Load)> = Vec::new();
        self.each_step(resource, span, |at, used, _| {
            if levels.last().is_none_or(|(_, last)| *last != used) {
                levels.push((Time::from_nanos(at), used));
            }
            levels.len() >= most
        });
        levels
    }

    /// The whole capacity of a resource at a time, with what is not for reservations.
    pub fn whole(&self, resource: ResourceId, time: Time) -> Capacity {
        let found = self.resources.get(resource.index());
        let level = found.and_then(|found| found.whole.range(..=time).next_back());
        level.map_or(Capacity::CLOSED, |(_, capacity)| *capacity)
    }

    /// What of the capacity of a resource is not for reservations: nothing of one that is unknown.
    pub fn unreserved(&self, resource: ResourceId) -> Unreserved {
        self.resources.get(resource.index()).map(|found| found.unreserved).unwrap_or_default()
    }

    /// The place of a resource by its kind and name.
    pub fn find(&self, kind: ResourceKind, name: &str) -> Option<ResourceId> {
        self.by_name.get(&kind)?.get(name).copied()
    }

    /// The name and kind of a resource.
    pub fn describe(&self, resource: ResourceId) -> Option<(&Arc<str>, ResourceKind)> {
        self.resources.get(resource.index()).map(|found| (&found.name, found.kind))
    }

    /// Every resource, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = ResourceId> + use<> {
        (0..self.resources.len() as u32).map(ResourceId::new)
    }

    /// How many resources there are.
    pub fn count(&self) -> usize {
        self.resources.len()
    }

    /// How many steps a resource has.
    pub fn steps_of(&self, resource: ResourceId) -> usize {
        self.resources.get(resource.index()).map_or(0, |found| found.steps.len())
    }

    /// The record of a resource from a time on.
    pub(crate) fn record(&self, resource: ResourceId, from: Time) -> Option<ResourceRecord> {
        let Resource { name, kind, unreserved, .. } = self.resources.get(resource.index())?;
        let pieces = self.whole_pieces(resource, from).into_iter();
        Some(ResourceRecord {
            kind: *kind,
            name: name.clone(),
            capacities: pieces.map(|(span, whole)| (span.from, whole)).collect(),
            unseen: unreserved.unseen,
            rules: unreserved.rules,
        })
    }

    /// The resources that were added or set since the last call. Nothing is noted before the first
    /// one.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<ResourceId> {
        self.changed.take()
    }

    /// The spans with one whole capacity from a time on; none of a resource that is unknown.
    pub(crate) fn whole_pieces(&self, resource: ResourceId, from: Time) -> Vec<(Span, Capacity)> {
        let Some(found) = self.resources.get(resource.index()) else { return Vec::new() };
        let later = found.whole.range(from..).map(|(at, _)| *at).filter(|at| *at > from);
        let begins: Vec<Time> = std::iter::once(from).chain(later).collect();
        let ends = begins.iter().skip(1).copied().chain([Time::MAX]);
        let spans = begins.iter().zip(ends).map(|(from, until)| Span { from: *from, until });
        spans.map(|span| (span, self.whole(resource, span.from))).collect()
    }

    /// The times after one at which the whole capacity of a resource changes.
    pub(crate) fn whole_changes(&self, resource: ResourceId, after: Time) -> Vec<Time> {
        let pieces = self.whole_pieces(resource, after);
        pieces.iter().skip(1).map(|(span, _)| span.from).collect()
    }

    /// The first time in a span at which what is booked exceeds a capacity.
    pub(crate) fn first_beyond(
        &self,
        resource: ResourceId,
        span: Span,
        capacity: Capacity,
    ) -> Option<Time> {
        let mut found = None;
        self.each_step(resource, span, |at, used, _| {
            found = (!capacity.fits(used)).then(|| Time::from_nanos(at));
            found.is_some()
        });
        found
    }

    /// Whether the sum of loads stays within what one load may be, if one is added in a span.
    pub(crate) fn has_room_for(&self, resource: ResourceId, load: Load, span: Span) -> bool {
        let mut has_room = true;
        self.each_step(resource, span, |_, used, _| {
            let sum = |used: u64, more: u64| used.saturating_add(more) <= Load::PER_SEC_MAX;
            has_room = sum(used.read_per_sec(), load.read_per_sec())
                && sum(used.write_per_sec(), load.write_per_sec());
            !has_room
        });
        has_room
    }

    /// The error of a demand on a resource that does not exist, or has too many steps for some
    /// reservations more.
    pub(crate) fn check_room(&self, demand: &Demand, more: usize) -> Result<(), ResourceError> {
        for (resource, _) in demand.loads() {
            let found = self.resources.get(resource.index());
            let found = found.ok_or(ResourceError::Unknown(resource))?;
            if found.steps.len() + 2 * more > ResourceTable::STEPS_MAX {
                return Err(ResourceError::Steps(found.name.clone()));
            }
        }
        Ok(())
    }

    pub(crate) fn book_load(&mut self, resource: ResourceId, load: Load, span: Span) {
        let steps = &mut self.resources[resource.index()].steps;
        steps.add(span.from.as_nanos(), span.until.as_nanos(), load);
    }

    pub(crate) fn release_load(&mut self, resource: ResourceId, load: Load, span: Span) {
        let steps = &mut self.resources[resource.index()].steps;
        steps.remove(span.from.as_nanos(), span.until.as_nanos(), load);
    }

    /// The overload of a resource during a span: its first time and the least share that fits.
    pub(crate) fn overload(&self, resource: ResourceId, span: Span) -> Option<Overload> {
        let mut found: Option<Overload> = None;
        self.each_step(resource, span, |at, used, capacity| {
            if !capacity.fits(used) {
                let share = capacity.share_of_cost(capacity.cost(used));
                let from = found.map_or(Time::from_nanos(at), |found| found.from);
                let share = found.map_or(share, |found| found.share.min(share));
                found = Some(Overload { from, share });
            }
            false
        });
        found
    }

    /// Where a load does not fit during a span: from the first such time until after the last, and
    /// the least share of it that fits there.
    pub(crate) fn shortfall(
        &self,
        resource: ResourceId,
        load: Load,
        span: Span,
    ) -> Option<(Span, Share)> {
        let mut found: Option<(Span, Share)> = None;
        let mut is_short = false;
        self.each_step(resource, span, |at, used, capacity| {
            let at = Time::from_nanos(at);
            if let Some((short, _)) = found.as_mut().filter(|_| is_short) {
                short.until = at;
            }
            let share = capacity.share_that_fits(used, load);
            is_short = !share.is_whole();
            if is_short {
                let (from, least) = found.map_or((at, share), |(short, least)| (short.from, least));
                found = Some((Span { from, until: span.until }, least.min(share)));
            }
            false
        });
        found
    }

    /// Whether a capacity is more than what may be reserved of a resource at a time of a span.
    pub(crate) fn rises(&self, resource: ResourceId, span: Span, to: Capacity) -> bool {
        let mut rises = false;
        if self.describe(resource).is_some() {
            self.each_step(resource, span, |_, _, is| {
                rises = !is.contains(to);
                rises
            });
        }
        rises
    }

    fn each_step(
        &self,
        resource: ResourceId,
        span: Span,
        visit: impl FnMut(u64, Load, Capacity) -> bool,
    ) {
        let steps = &self.resources[resource.index()].steps;
        steps.each_step(span.from.as_nanos(), span.until.as_nanos(), visit);
    }
}

/// Sets the level of a function in a span; equal neighbours are one.
fn set_level(levels: &mut BTreeMap<Time, Capacity>, span: Span, capacity: Capacity) {
    let after = levels.range(..=span.until).next_back().map(|(_, level)| *level);
    let inside: Vec<Time> = levels.range(span.from..span.until).map(|(at, _)| *at).collect();
    inside.iter().for_each(|at| _ = levels.remove(at));
    let before = levels.range(..span.from).next_back().map(|(_, level)| *level);
    if before != Some(capacity) {
        levels.insert(span.from, capacity);
    }
    match after.filter(|_| span.until < Time::MAX) {
        Some(after) if after != capacity => _ = levels.insert(span.until, after),
        _ => _ = levels.remove(&span.until),
    }
}

/// How much of the past is kept of what is booked, to be shown.
const PAST_KEPT: Nanos = Nanos::from_secs(7 * 86_400);
/// The steps of a resource above which nothing of its past is kept.
const STEPS_WITH_PAST_MAX: usize = 8_192;
/// Of how many resources the past is forgotten in one call.
const FORGOTTEN_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_long_as_those_of_targets() {
        let mut table = ResourceTable::default();
        let mut add = |length: usize| {
            table.add("n".repeat(length).into(), ResourceKind::Target, Capacity::CLOSED, Time::ZERO)
        };
        assert!(add(255).is_ok());
        assert!(matches!(add(256), Err(ResourceError::Name(_))));
    }

    #[test]
    fn bound_on_steps_counts_all_reservations_of_a_group() {
        let mut table = ResourceTable::default();
        let capacity = Capacity::per_sec(9, 9).expect("small");
        let resource = table.add("ost0".into(), ResourceKind::Target, capacity, Time::ZERO);
        let load = Load::per_sec(1, 0).expect("small");
        let demand = Demand::new(&[(resource.expect("the first"), load)]).expect("a load");
        let at = |number: u64| Time::ZERO + Nanos::new(number);
        // one step at the begin and two for each
        for number in 0..(ResourceTable::STEPS_MAX as u64 / 2 - 8) {
            table.book(&demand, Span { from: at(2 * number + 1), until: at(2 * number + 2) });
        }
        assert_eq!(table.check_room(&demand, 7), Ok(()));
        assert_eq!(table.check_room(&demand, 8), Err(ResourceError::Steps("ost0".into())));
    }
}
