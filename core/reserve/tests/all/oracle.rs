//! What the calendar must do, slow and obvious: lists of what was booked, and no other structure.

use model::Time;
use sluice_reserve::{Capacity, Demand, FitWindow, Load, ResourceId, Span};

/// Everything that was booked, and every change of a capacity, in the order of the calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) booked: Vec<(Demand, Span)>,
    pub(crate) capacities: Vec<(ResourceId, Span, Capacity)>,
    /// What rules reserve; the last one of a resource counts.
    pub(crate) rules: Vec<(ResourceId, Load)>,
}

impl Oracle {
    pub(crate) fn used(&self, resource: ResourceId, time: Time) -> (u64, u64) {
        let now = self.booked.iter().filter(|(_, span)| span.from <= time && time < span.until);
        now.fold((0, 0), |(read, write), (demand, _)| {
            let load = demand.load(resource);
            (read + load.read_per_sec(), write + load.write_per_sec())
        })
    }

    pub(crate) fn capacity(&self, resource: ResourceId, time: Time) -> (u64, u64) {
        let mut at = self
            .capacities
            .iter()
            .filter(|(of, span, _)| *of == resource && span.from <= time && time < span.until);
        let (_, _, capacity) = at.next_back().expect("each resource has a capacity at all times");
        let rules = self.rules.iter().rev().find(|(of, _)| *of == resource);
        let capacity = capacity.less(rules.map_or(Load::NONE, |(_, load)| *load));
        (capacity.read_per_sec(), capacity.write_per_sec())
    }

    /// r/R + w/W ≤ 1, as a fraction without a common denominator.
    pub(crate) fn fits_at(&self, resource: ResourceId, load: Load, time: Time) -> bool {
        let (read, write) = self.used(resource, time);
        let (read, write) = (read + load.read_per_sec(), write + load.write_per_sec());
        match self.capacity(resource, time) {
            (0, _) | (_, 0) => read == 0 && write == 0,
            (reads, writes) => {
                let [read, write, reads, writes] = [read, write, reads, writes].map(u128::from);
                read * writes + write * reads <= reads * writes
            }
        }
    }

    /// Every time at which something changes.
    pub(crate) fn times(&self) -> Vec<Time> {
        let spans = self.booked.iter().map(|(_, span)| *span);
        let spans = spans.chain(self.capacities.iter().map(|(_, span, _)| *span));
        let mut times: Vec<Time> = spans.flat_map(|span| [span.from, span.until]).collect();
        times.sort();
        times.dedup();
        times
    }

    pub(crate) fn earliest_fit(&self, demand: &Demand, window: FitWindow) -> Option<Time> {
        let times = self.times();
        let starts = std::iter::once(window.release).chain(times.iter().copied());
        let mut starts =
            starts.filter(|at| *at >= window.release && *at + window.length <= window.until);
        starts.find(|start| {
            let span = Span::new(*start, window.length);
            let inside = times.iter().copied().filter(|at| span.from < *at && *at < span.until);
            std::iter::once(*start)
                .chain(inside)
                .all(|time| demand.loads().all(|(at, load)| self.fits_at(at, load, time)))
        })
    }
}
