//! Keys: what identifies a class or a meter across changes of the rules and reuse.
//!
//! ```text
//!   class: target, rule, values of its `per`     meter: section, which of its limits, values of its `per`
//!   branch of a class: the same, and that of     limit of a row: its number
//!                      a group of rows
//! ```

use std::sync::Arc;

use model::{JobId, KeyValue, KindSet, Nanos, Rate, Scope, SectionKind, TargetId};
use rules::{DecayRule, EntitlementId, Limit, LimitMode, Rule, RuleSet};

use crate::pacer::RESERVATION_CATCH_UP_NS;

/// The key that identifies a class across changes of rules and reuse. In order, those of one
/// combination of values at several targets follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassKey {
    pub(crate) rule: Arc<str>,
    pub(crate) values: Box<[KeyValue]>,
    /// Of a branch of a class: the group of rows that reserves for it, by the lowest of their numbers.
    pub(crate) branch: Option<EntitlementId>,
    pub(crate) target: TargetId,
}

/// The key that identifies a meter across changes of rules and reuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MeterKey {
    pub(crate) owner: MeterOwner,
    pub(crate) in_bytes: bool,
    pub(crate) key: Vec<KeyValue>,
}

/// The section whose limit a meter enforces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeterOwner {
    /// The n-th limit of a rule with these kinds and this unit.
    Rule { name: String, kinds: KindSet, nth: usize },
    /// A `[[meter]]` section of the rules.
    Meter { name: String },
    /// A `[[decay]]` section of the rules.
    Decay { name: String },
    /// A row of the entitlements.
    Row { id: EntitlementId },
}

impl ClassKey {
    /// The key of the class of a scope at a target.
    pub(crate) fn of_scope(target: TargetId, scope: &Scope) -> ClassKey {
        let values = scope.key.iter().cloned().collect();
        ClassKey { target, rule: scope.name.clone(), values, branch: None }
    }

    /// The class as people see it: its rule, and the values of that rule's `per`.
    pub(crate) fn name(&self) -> Arc<str> {
        let values = self.values.iter().map(|value| format!(" {value}"));
        (self.rule.to_string() + &values.collect::<String>()).into()
    }

    /// Whether it differs from another key in the target at most.
    pub(crate) fn is_combination_of(&self, other: &ClassKey) -> bool {
        self.rule == other.rule && self.values == other.values && self.branch == other.branch
    }

    /// Whether it counts towards the most classes that its rule may have.
    pub(crate) fn counts(&self) -> bool {
        !self.values.is_empty() && self.branch.is_none()
    }

    /// The value of its job, if all its requests are of one.
    pub(crate) fn job(&self) -> Option<&JobId> {
        self.values.iter().find_map(|value| match value {
            KeyValue::Jobid(job) => Some(job),
            _ => None,
        })
    }

    /// The value of its user, if all its requests are of one.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.values.iter().find_map(|value| match value {
            KeyValue::Uid(uid) => Some(*uid),
            _ => None,
        })
    }

    /// The scope of the class, which is the same at every target and for all its branches.
    pub(crate) fn scope(&self) -> Scope {
        Scope::rule(&self.rule, &self.values)
    }
}

impl MeterKey {
    /// The key of a rule's limit: of its kinds and unit the `nth`.
    pub(crate) fn of_rule(class: &ClassKey, kinds: KindSet, rate: Rate, nth: usize) -> MeterKey {
        let name = class.rule.to_string();
        let owner = MeterOwner::Rule { name, kinds, nth };
        MeterKey { owner, in_bytes: rate.is_bytes(), key: class.values.to_vec() }
    }

    /// The key of a `[[meter]]`.
    pub(crate) fn of_meter(name: &str, rate: Rate, key: Vec<KeyValue>) -> MeterKey {
        MeterKey { owner: MeterOwner::Meter { name: name.into() }, in_bytes: rate.is_bytes(), key }
    }

    /// The key of the meter of a `[[decay]]`.
    pub(crate) fn of_decay(decay: &DecayRule, key: Vec<KeyValue>) -> MeterKey {
        let owner = MeterOwner::Decay { name: decay.name.clone() };
        MeterKey { owner, in_bytes: decay.resource.is_bytes(), key }
    }

    /// The key of the limit of a row.
    pub(crate) fn of_row(id: EntitlementId, rate: Rate) -> MeterKey {
        MeterKey { owner: MeterOwner::Row { id }, in_bytes: rate.is_bytes(), key: Vec::new() }
    }

    /// The section of the rules that it is of, if it is of any.
    pub(crate) fn section(&self) -> Option<(SectionKind, &str)> {
        match &self.owner {
            MeterOwner::Rule { name, .. } => Some((SectionKind::Rule, name)),
            MeterOwner::Meter { name } => Some((SectionKind::Meter, name)),
            MeterOwner::Decay { name } => Some((SectionKind::Decay, name)),
            MeterOwner::Row { .. } => None,
        }
    }

    /// The scope of the meter.
    pub(crate) fn scope(&self) -> Scope {
        match &self.owner {
            MeterOwner::Rule { name, .. } => Scope::rule(name, &self.key),
            MeterOwner::Meter { name } => Scope::meter(name, &self.key),
            MeterOwner::Decay { name } => Scope::decay(name, &self.key),
            MeterOwner::Row { id } => Scope::entitlement(id.0),
        }
    }

    /// The limit of this key in `rules`, if there still is one.
    pub(crate) fn limit_in(&self, rules: &RuleSet) -> Option<Limit> {
        let same_unit = |limit: &Limit| limit.rate.is_bytes() == self.in_bytes;
        match &self.owner {
            MeterOwner::Rule { name, kinds, nth } => {
                let rule = rules.rule(name)?;
                ceilings(rule).filter(same_unit).filter(|l| l.kinds == *kinds).nth(*nth)
            }
            MeterOwner::Meter { name } => {
                let meter = rules.meters.iter().find(|meter| meter.name == *name)?;
                Some(meter.limit).filter(same_unit)
            }
            MeterOwner::Decay { name } => {
                let decay = rules.decays.iter().find(|decay| decay.name == *name)?;
                Some(decay_ceiling(decay)).filter(same_unit)
            }
            MeterOwner::Row { .. } => None,
        }
    }
}

/// The ceilings of a rule. One that is also a reservation lets as much through after a pause as the
/// reservation makes up for.
pub(crate) fn ceilings(rule: &Rule) -> impl Iterator<Item = Limit> {
    let promised = rule.limit_mode == LimitMode::Realtime;
    rule.ceilings().iter().map(move |limit| {
        let made_up = || limit.rate.amount_in(Nanos::new(RESERVATION_CATCH_UP_NS), 0).0.max(1);
        Limit { burst: limit.burst.or_else(|| promised.then(made_up)), ..*limit }
    })
}

/// The rate below which a decay never limits a key.
pub(crate) fn decay_ceiling(decay: &DecayRule) -> Limit {
    let free = decay.entitlement.with_per_sec(u64::MAX).expect("it is above zero");
    Limit { kinds: decay.resource.kinds(), rate: decay.max.unwrap_or(free), burst: None }
}

/// The limits of a rule, each with its number among those of the same kinds and unit.
pub(crate) fn limits_of(rule: &Rule) -> impl Iterator<Item = (Limit, usize)> {
    let alike = |a: &Limit, b: &Limit| a.kinds == b.kinds && a.rate.is_bytes() == b.rate.is_bytes();
    let before =
        move |i, limit: &Limit| rule.ceilings()[..i].iter().filter(|l| alike(l, limit)).count();
    ceilings(rule).enumerate().map(move |(i, limit)| (limit, before(i, &limit)))
}
