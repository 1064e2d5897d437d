//! Class, meters and ceilings of a request, derived from the rules alone.
//!
//! ```text
//!   identity + kind ─► class (rule, key) ─► plain? reserved?
//!                  └─► ceilings: each limit of the rule, each meter, by key
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{KeyValue, KindSet, OpKind, PathSet, Rate};
use rules::{LimitMode, Rule, RuleSet};

use super::windows::CATCH_UP;
use crate::world::SimOwner;

/// The class and ceilings of an identity's requests of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ClassOf {
    pub(crate) class: u32,
    pub(crate) weight: u64,
    /// Whether no limit, meter or cap on slots applies.
    pub(crate) plain: bool,
    /// Whether the class has a weight and nothing else, for requests of every kind.
    pub(crate) by_weight: bool,
    /// The reserved rate, where only slots can delay its class.
    pub(crate) reservation: Option<Rate>,
    pub(crate) gauges: Arc<[u32]>,
    /// Whether it pays a limit or a meter, also one that is not seen from here.
    pub(crate) pays: bool,
    /// Whether what its requests that are never delayed cost is paid by this class, up to a bound
    /// that the rules say.
    pub(crate) defers: bool,
    /// The ceiling that alone can delay the request while slots are free.
    pub(crate) single_gauge: Option<u32>,
}

/// A ceiling for a key.
#[derive(Clone, Debug)]
pub(crate) struct RateCeiling {
    /// Its rule's or meter's name.
    pub(crate) name: String,
    pub(crate) rate: Rate,
    pub(crate) burst: Option<u64>,
    pub(crate) kinds: KindSet,
}

type CheckedKey = (bool, usize, usize, Vec<KeyValue>);

/// The classes and ceilings of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleView {
    rules: Arc<RuleSet>,
    /// Whether a rule keeps slots free.
    pub(crate) reserves_slots: bool,
    classifications: Vec<[Option<u32>; OpKind::COUNT]>,
    class_table: Vec<ClassOf>,
    classes: BTreeMap<(usize, Vec<KeyValue>), u32>,
    gauge_keys: BTreeMap<CheckedKey, u32>,
    pub(crate) gauges: Vec<RateCeiling>,
}

impl RuleView {
    pub(crate) fn new(rules: Arc<RuleSet>) -> RuleView {
        RuleView {
            reserves_slots: rules.rules.iter().any(|rule| rule.reserved_slots.is_some()),
            rules,
            classifications: Vec::new(),
            class_table: Vec::new(),
            classes: BTreeMap::new(),
            gauge_keys: BTreeMap::new(),
            gauges: Vec::new(),
        }
    }

    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        *self = RuleView::new(rules);
    }

    /// The class and ceilings of an identity's requests.
    pub(crate) fn class_of(&mut self, identity: u32, kind: OpKind, owner: &SimOwner) -> ClassOf {
        let identity = identity as usize;
        if identity >= self.classifications.len() {
            self.classifications.resize(identity + 1, [None; OpKind::COUNT]);
        }
        let index = match self.classifications[identity][kind as usize] {
            Some(index) => index,
            None => {
                let fresh = self.find(owner, kind);
                self.class_table.push(fresh);
                let index = (self.class_table.len() - 1) as u32;
                self.classifications[identity][kind as usize] = Some(index);
                index
            }
        };
        self.class_table[index as usize].clone()
    }

    fn find(&mut self, owner: &SimOwner, kind: OpKind) -> ClassOf {
        let rules = self.rules.clone();
        let who = &owner.identity;
        let paths = owner.path.as_ref();
        let paths = paths.map_or(PathSet::default(), |path| rules.path_set(path.as_bytes()));
        let number = rules.rule_for(who, kind, paths);
        let rule = number.map(|number| &rules.rules[number]);
        let number = number.unwrap_or(usize::MAX);
        let per = rule.map_or(&[][..], |rule| &rule.per[..]);
        let key = rules::key_of(per, who, kind);
        let next = self.classes.len() as u32;
        let class = *self.classes.entry((number, key.clone())).or_insert(next);
        let mut gauges = Vec::new();
        // Beyond `max_classes` keys share a class, which cannot be seen from here.
        for (place, limit) in rule.map_or(&[][..], |rule| rule.ceilings()).iter().enumerate() {
            let shared = rule.is_some_and(|rule| rule.max_classes.is_some());
            if limit.kinds.contains(kind) && !shared {
                let name = rule.map_or(String::new(), |rule| rule.name.clone());
                let (rate, kinds) = (limit.rate, limit.kinds);
                let caught_up = rate.amount_in(CATCH_UP, 0).0;
                let realtime = rule.is_some_and(|rule| rule.limit_mode == LimitMode::Realtime);
                let burst = limit.burst.or(realtime.then_some(caught_up));
                let gauge = RateCeiling { name, rate, burst, kinds };
                gauges.push(self.ceiling_index((false, number, place, key.clone()), gauge));
            }
        }
        for meter in rules.meters_for(who, kind, paths) {
            let of = &rules.meters[meter];
            let key = rules::key_of(&of.per, who, kind);
            let (rate, burst, kinds) = (of.limit.rate, of.limit.burst, of.limit.kinds);
            let gauge = RateCeiling { name: of.name.clone(), rate, burst, kinds };
            gauges.push(self.ceiling_index((true, meter, 0, key), gauge));
        }
        // A queue is delayed by any request in it: all kinds of its direction.
        let mut beside = OpKind::ALL.iter().filter(|other| other.direction() == kind.direction());
        let metered = beside.any(|other| {
            rule.is_some_and(|rule| {
                rule.ceilings().iter().any(|limit| limit.kinds.contains(*other))
            }) || rules.meters_for(who, *other, paths).next().is_some()
                || rules.decays_for(who, *other, paths).next().is_some()
        });
        let capped = rule.is_some_and(|rule| rule.slots.is_some());
        let decays = rules.decays_for(who, kind, paths).next().is_some();
        let any_meter = || {
            OpKind::ALL.iter().any(|kind| {
                rules.meters_for(who, *kind, paths).next().is_some()
                    || rules.decays_for(who, *kind, paths).next().is_some()
            })
        };
        // Keys beyond `max_classes` share a class and its queues.
        let shares_class = rule.is_some_and(|rule| rule.max_classes.is_some());
        let depends = rule.is_some_and(|rule| rule.depends_on.is_some());
        let single = gauges.len() == 1 && !capped && !shares_class && !depends && !decays;
        // A class whose other kinds are limited still has its reserved rate, of what it requests.
        let bare = rule.is_none_or(|rule| rule.ceilings().is_empty() && rule.slots.is_none());
        let reservation = rule.filter(|rule| bare && rule.max_classes.is_none());
        ClassOf {
            class,
            weight: rule.map_or(1, |rule| rule.effective_weight().get().into()),
            plain: !metered && !capped,
            by_weight: rule.is_none_or(is_by_weight) && !any_meter(),
            reservation: reservation
                .and_then(|rule| rule.reserved_rate())
                .filter(|_| rules.meters.is_empty() && rules.decays.is_empty()),
            pays: decays
                || !gauges.is_empty()
                || rule.is_some_and(|rule| {
                    rule.ceilings().iter().any(|limit| limit.kinds.contains(kind))
                }),
            defers: !shares_class && !depends,
            single_gauge: gauges.first().copied().filter(|_| single),
            gauges: gauges.into(),
        }
    }

    fn ceiling_index(&mut self, key: CheckedKey, gauge: RateCeiling) -> u32 {
        let next = self.gauges.len() as u32;
        let index = *self.gauge_keys.entry(key).or_insert(next);
        if index == next {
            self.gauges.push(gauge);
        }
        index
    }
}

/// Whether a rule grants a weight and nothing else.
fn is_by_weight(rule: &Rule) -> bool {
    let bare = rule.ceilings().is_empty() && rule.slots.is_none();
    bare && rule.reserved_rate().is_none() && rule.max_classes.is_none()
}
