//! Invariants of the meters.

use model::Time;

use super::Meters;
use super::meter::Meter;
use crate::index::{ChainIndex, MeterIndex, TableIndex as _};
use crate::tags::time_key;

impl Meters {
    /// Whether a queue waits at a meter.
    pub(crate) fn holds(&self, lane: usize, waiter: u32) -> bool {
        self.lanes[lane].waiting_positions.holds(waiter)
    }

    /// Panics unless the references on chains and the counts of heads that passed, which the
    /// dispatcher knows, are right, and meters are at their due time in the lanes where they have a
    /// waiter to release.
    pub(crate) fn check(
        &self,
        chain_refs: impl Fn(ChainIndex) -> u32,
        passed: &[(usize, ChainIndex, u8)],
        now: Time,
    ) {
        let mut links = vec![0u32; self.links.span()];
        for (index, chain) in self.chains.iter() {
            assert_eq!(chain.refs, chain_refs(index), "references on chain {index:?}");
            chain.links().iter().for_each(|link| links[link.raw() as usize] += 1);
        }
        let mut meters = vec![0u32; self.meters.span()];
        for (index, link) in self.links.iter() {
            assert_eq!(link.refs, links[index.raw() as usize], "references on link {index:?}");
            meters[link.meter.raw() as usize] += 1;
        }
        let mut held = vec![[0u32; 2]; self.meters.span()];
        for (lane, chain, passed) in passed {
            for (at, link) in self.chains[*chain].links().iter().enumerate() {
                held[self.links[*link].meter.raw() as usize][*lane] += u32::from(passed >> at & 1);
            }
        }
        for (index, meter) in self.meters.iter() {
            let at = index.raw() as usize;
            assert_eq!(meter.refs, meters[at], "references on meter {index:?}");
            assert_eq!(meter.refs == 0, meter.idle != 0, "meter {index:?} idle and used");
            assert_eq!(meter.passed_heads(), held[at], "heads that meter {index:?} let go");
            self.check_lines(index, meter, now);
        }
    }

    fn check_lines(&self, index: MeterIndex, meter: &Meter, now: Time) {
        for (at, lane) in self.lanes.iter().enumerate() {
            meter.waiting[at].check(&lane.waiting_positions);
            lane.deadlines.check(&lane.deadline_positions);
            let wanted = !meter.waiting[at].is_empty();
            let raw = index.raw();
            assert_eq!(lane.deadline_positions.holds(raw), wanted, "deadline of {index:?}");
            if wanted {
                let key = lane.deadlines.key_of(raw, &lane.deadline_positions);
                let due = meter.release_at(at);
                assert_eq!(key, time_key(due, u64::from(raw)));
                assert!(due > now, "meter {index:?} could release and keeps waiters");
            }
        }
    }
}
