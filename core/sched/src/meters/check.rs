//! Invariants of the meters.

use std::collections::BTreeMap;

use model::{TargetId, Time};

use super::Meters;
use super::meter::{Meter, MeterLine};
use crate::index::{ChainIndex, LanePlace, MeterBits, MeterIndex, TableIndex as _};
use crate::tags::time_key;

impl Meters {
    /// Whether a queue waits at a meter.
    pub(crate) fn holds(&self, lane: usize, waiter: u32) -> bool {
        self.waiting_positions[lane].holds(waiter)
    }

    /// Panics unless the references on chains and the counts of heads that passed, which the
    /// dispatcher knows, are right, and meters are at their due time in the lanes where they have a
    /// waiter to release.
    pub(crate) fn check(
        &self,
        chain_refs: impl Fn(ChainIndex) -> u32,
        passed: &[(LanePlace, ChainIndex, MeterBits)],
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
        let mut held: BTreeMap<(u32, LanePlace), u32> = BTreeMap::new();
        for (line, chain, passed) in passed {
            for (at, link) in self.chains[*chain].links().iter().enumerate() {
                let meter = self.links[*link].meter.raw();
                *held.entry((meter, *line)).or_default() += u32::from(passed >> at & 1);
            }
        }
        for (index, meter) in self.meters.iter() {
            let at = index.raw() as usize;
            assert_eq!(meter.refs, meters[at], "references on meter {index:?}");
            assert_eq!(meter.refs == 0, meter.idle != 0, "meter {index:?} idle and used");
            for (at, line) in placed(meter) {
                let held = held.get(&(index.raw(), at)).copied().unwrap_or(0);
                assert_eq!(line.passed_heads, held, "heads that meter {index:?} let go");
            }
            self.check_lines(index, meter, now);
        }
    }

    fn check_lines(&self, index: MeterIndex, meter: &Meter, now: Time) {
        let waiting: usize = placed(meter).map(|(_, line)| line.waiting.len()).sum();
        assert_eq!(meter.waiting_heads(), waiting, "waiters of meter {index:?}");
        for (at, line) in placed(meter) {
            let of = &self.deadlines[at.target.index()][at.lane];
            line.waiting.check(&self.waiting_positions[at.lane]);
            of.meters.check(&of.positions);
            let wanted = !line.waiting.is_empty();
            let raw = index.raw();
            assert_eq!(of.positions.holds(raw), wanted, "deadline of {index:?}");
            if wanted {
                let key = of.meters.key_of(raw, &of.positions);
                let due = meter.release_at(line);
                assert_eq!(key, time_key(due, u64::from(raw)));
                assert!(due > now, "meter {index:?} could release and keeps waiters");
            }
        }
    }
}

/// The lines of a meter with their places.
fn placed(meter: &Meter) -> impl Iterator<Item = (LanePlace, &MeterLine)> {
    (0..meter.targets()).map(|target| (target, meter.lines_of(target))).flat_map(
        |(target, lines)| {
            let place = move |lane| LanePlace { target: TargetId::new(target), lane };
            lines.iter().enumerate().map(move |(lane, line)| (place(lane), line))
        },
    )
}
