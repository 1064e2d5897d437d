//! Invariants that hold between the owners, and those of each, in one place.
//!
//! Debug builds check them after a public call, often while little has happened and occasionally
//! later; property tests check them after each step.

use super::Dispatcher;
use crate::index::{ChainIndex, TableIndex as _};
use crate::lanes::{LANES, QUEUES, QueuePlace};

impl Dispatcher {
    /// Panics if the dispatcher contradicts itself. O(everything).
    pub fn check_invariants(&self) {
        self.lanes.check(self.registry.classes());
        self.registry.check(|class| self.lanes.has_requests(class));
        let mut passed = Vec::new();
        for class in self.registry.classes() {
            for (lane, queue) in
                (0..LANES.len()).flat_map(|lane| (0..QUEUES).map(move |q| (lane, q)))
            {
                let place = QueuePlace { class, lane, queue };
                let waits = self.meters.holds(lane, place.waiter());
                assert_eq!(waits, self.lanes.is_waiting(place), "line of {place:?}");
                if !self.lanes.is_empty(place) && !waits {
                    let line = self.line_of(place);
                    passed
                        .extend(self.lanes.passed(place).map(|(chain, bits)| (line, chain, bits)));
                }
            }
        }
        let mut chains: Vec<u32> = Vec::new();
        let mut count = |chain: ChainIndex| {
            let at = chain.raw() as usize;
            chains.resize(chains.len().max(at + 1), 0);
            chains[at] += 1;
        };
        self.registry.ways().filter_map(|way| way.chain.get()).for_each(&mut count);
        self.lanes.requests().filter_map(|request| request.chain.get()).for_each(&mut count);
        let refs = |chain: ChainIndex| chains.get(chain.raw() as usize).copied().unwrap_or(0);
        self.meters.check(refs, &passed, self.now);
        let loads = self.registry.classes().map(|class| {
            let (queued, running, _) = self.lanes.load_of(class);
            (self.lanes.watched(class), queued + running)
        });
        self.terms.check(loads);
    }
}
