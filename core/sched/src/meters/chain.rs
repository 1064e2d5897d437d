//! Who pays which meters: chains of subjects, and a class's state at each meter.
//!
//! ```text
//!   subject, kind ─► MeterChain ─► ClassMeter ─► Meter
//!                       one for each class and meter ┘
//! ```

use model::Time;
use rules::{Entitlement, RuleSet};

use super::deferred::DeferredCharge;
use super::meter::Meter;
use super::{MeterTerms, Meters};
use crate::idle::IDLE_MAX;
use crate::index::{ChainIndex, ClassIndex, LinkIndex, MeterIndex, OptionalIndex, TableIndex as _};
use crate::tags::{EffectiveWeight, VirtualTime};

/// The most meters that one request pays: of rules, and of rows.
const CHAIN_MAX: usize = RuleSet::METERS_MAX + Entitlement::LIMITS_MAX;

/// A class's state at a meter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassMeter {
    pub(crate) class: ClassIndex,
    pub(crate) meter: MeterIndex,
    /// Finish tag of its last passage, in the meter's virtual time.
    pub(crate) finish: VirtualTime,
    /// Units of its requests that were never delayed.
    pub(crate) deferred: DeferredCharge,
    /// Meter chains that use it.
    pub(crate) refs: u32,
}

/// The meters that one subject's requests of one kind pay, in rule order. Most chains are short, so
/// that a call reads the begin alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MeterChain {
    /// References by kinds of subjects and by requests.
    pub(crate) refs: u32,
    len: u8,
    /// Those up to `len`.
    links: [LinkIndex; CHAIN_MAX],
}

impl ClassMeter {
    /// A class that has not passed the meter yet.
    pub(crate) fn new(class: ClassIndex, meter: MeterIndex) -> ClassMeter {
        let (finish, deferred) = (VirtualTime::ZERO, DeferredCharge::NONE);
        ClassMeter { class, meter, finish, deferred, refs: 0 }
    }

    /// Takes the next turn at a meter whose virtual time is `v`: the start tag of a request
    /// of that cost.
    pub(crate) fn reserve_turn(
        &mut self,
        v: VirtualTime,
        cost: u64,
        weight: EffectiveWeight,
    ) -> VirtualTime {
        let start = self.finish.max(v);
        self.finish = start.after(cost, weight);
        start
    }

    /// Gives a turn back, if no later one was taken.
    pub(crate) fn refund_turn(&mut self, start: VirtualTime, cost: u64, weight: EffectiveWeight) {
        if self.finish == start.after(cost, weight) {
            self.finish = start;
        }
    }
}

impl MeterChain {
    /// Creates a chain of these meters; more than the model's bound cannot be configured.
    pub(crate) fn new(links: &[LinkIndex]) -> MeterChain {
        let mut chain =
            MeterChain { links: [LinkIndex::new(0); CHAIN_MAX], len: links.len() as u8, refs: 0 };
        chain.links[..links.len()].copy_from_slice(links);
        chain
    }

    pub(crate) fn links(&self) -> &[LinkIndex] {
        &self.links[..usize::from(self.len)]
    }
}

impl Meters {
    /// The chain of a class over these meters, with one more reference: one of `known` or a new
    /// one; none without meters.
    pub(crate) fn chain_for(
        &mut self,
        class: ClassIndex,
        terms: Vec<MeterTerms>,
        mut known: impl Iterator<Item = ChainIndex>,
    ) -> OptionalIndex<ChainIndex> {
        if terms.is_empty() {
            return OptionalIndex::NONE;
        }
        let index = known.find(|chain| self.is_of(*chain, class, &terms));
        let index = index.unwrap_or_else(|| self.new_chain(class, terms));
        self.chains[index].refs += 1;
        index.into()
    }

    /// Whether two chains are of the same class at the same meters.
    pub(crate) fn are_same(
        &self,
        one: OptionalIndex<ChainIndex>,
        other: OptionalIndex<ChainIndex>,
    ) -> bool {
        let links = |chain: ChainIndex| self.chains[chain].links();
        one == other || one.get().map(links) == other.get().map(links)
    }

    /// Adds a reference on a chain.
    #[inline]
    pub(crate) fn retain_chain(&mut self, index: ChainIndex) {
        self.chains[index].refs += 1;
    }

    /// Drops one reference on a chain, and with the last one the chain.
    #[inline]
    pub(crate) fn drop_chain(&mut self, index: ChainIndex, now: Time) {
        let refs = &mut self.chains[index].refs;
        *refs -= 1;
        if *refs == 0 {
            self.remove_chain(index, now);
        }
    }

    #[inline(never)]
    fn remove_chain(&mut self, index: ChainIndex, now: Time) {
        let chain = self.chains[index];
        self.chains.remove(index);
        for link in chain.links() {
            self.drop_link(*link, now);
        }
    }

    /// Makes room for queues with numbers below `waiters`.
    pub(crate) fn grow_waiters(&mut self, waiters: usize) {
        for positions in &mut self.waiting_positions {
            positions.grow(waiters);
        }
    }

    fn meter_for(&mut self, terms: MeterTerms) -> MeterIndex {
        let MeterTerms { key, limit, part } = terms;
        if let Some(index) = self.by_key.get(&key) {
            return *index;
        }
        let meter = Meter::new(&limit, part, key.clone(), self.deadlines.len());
        let index = self.meters.insert(meter);
        self.by_key.insert(key, index);
        for of in self.deadlines.iter_mut().flatten() {
            of.positions.grow(self.meters.span());
        }
        index
    }

    fn drop_meter(&mut self, index: MeterIndex) {
        let meter = &mut self.meters[index];
        self.idle.remove(&mut meter.idle);
        self.by_key.remove(&meter.key);
        self.meters.remove(index);
    }

    /// Whether a chain is of that class over these meters.
    fn is_of(&self, chain: ChainIndex, class: ClassIndex, terms: &[MeterTerms]) -> bool {
        let links = self.chains[chain].links().iter().map(|link| &self.links[*link]);
        links.len() == terms.len()
            && links.zip(terms).all(|(link, terms)| {
                link.class == class && self.meters[link.meter].key == terms.key
            })
    }

    fn new_chain(&mut self, class: ClassIndex, terms: Vec<MeterTerms>) -> ChainIndex {
        let meters: Vec<MeterIndex> =
            terms.into_iter().map(|terms| self.meter_for(terms)).collect();
        let links: Vec<LinkIndex> =
            meters.iter().map(|meter| self.link_for(class, *meter)).collect();
        for link in &links {
            self.links[*link].refs += 1;
        }
        self.chains.insert(MeterChain::new(&links))
    }

    fn link_for(&mut self, class: ClassIndex, meter: MeterIndex) -> LinkIndex {
        if let Some(index) = self.by_class.get(&(class, meter)) {
            return *index;
        }
        let index = self.links.insert(ClassMeter::new(class, meter));
        self.by_class.insert((class, meter), index);
        let meter = &mut self.meters[meter];
        meter.refs += 1;
        self.idle.remove(&mut meter.idle);
        index
    }

    fn drop_link(&mut self, index: LinkIndex, now: Time) {
        self.links[index].refs -= 1;
        if self.links[index].refs > 0 {
            return;
        }
        let ClassMeter { class, meter, .. } = self.links[index];
        self.by_class.remove(&(class, meter));
        self.links.remove(index);
        let of = &mut self.meters[meter];
        of.refs -= 1;
        if of.refs == 0 {
            of.idle = self.idle.enter(meter);
            self.forget_idle(now);
        }
    }

    /// Drops idle meters that are as good as new. A meter that still owes is kept, since its key
    /// would return with a full burst. If there are too many, more are searched.
    fn forget_idle(&mut self, now: Time) {
        for look in 0..DEBTORS_MAX {
            let Some(oldest) = self.idle.iter().next() else { return };
            if !self.meters[oldest].has_state(now) {
                self.drop_meter(oldest);
                continue;
            }
            if look > 0 && self.idle.surplus(IDLE_MAX).is_none() {
                return;
            }
            let meter = &mut self.meters[oldest];
            self.idle.remove(&mut meter.idle);
            meter.idle = self.idle.enter(oldest);
        }
    }
}

/// How many idle meters are searched for one that owes nothing. Each call adds at most a few, so
/// this many keep up with them.
const DEBTORS_MAX: usize = 16;
