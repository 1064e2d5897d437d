//! The class of a request, for the schedulers that are not ours.
//!
//! ```text
//!   subject + kind ─► first rule that matches ─► (rule, values of `per`) ─► class, its grant
//! ```
//!
//! A class keeps its number forever. When rules change it has its new grant from its next request
//! on, as in Lustre.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Identity, KeyValue, OpKind, PathSet, Rate};
use rules::{LimitMode, RuleSet};

/// The grant of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaselineGrant {
    pub(crate) weight: u64,
    pub(crate) reservation: Option<Rate>,
    pub(crate) limit: Option<Rate>,
    /// Whether service that its limit missed is made up for later.
    pub(crate) realtime: bool,
}

/// The subjects and classes of a baseline scheduler, by the rules.
#[derive(Debug)]
pub(crate) struct BaselineClasses {
    rules: Arc<RuleSet>,
    /// The version of the rules, incremented with each change.
    pub(crate) generation: u32,
    subjects: Vec<(Identity, PathSet, [u32; OpKind::COUNT])>,
    known: BTreeMap<(Identity, PathSet), u32>,
    classes: BTreeMap<(String, Vec<KeyValue>), u32>,
    pub(crate) grants: Vec<BaselineGrant>,
}

const UNKNOWN: u32 = u32::MAX;

impl BaselineClasses {
    pub(crate) fn new(rules: Arc<RuleSet>) -> BaselineClasses {
        BaselineClasses {
            rules,
            generation: 0,
            subjects: Vec::new(),
            known: BTreeMap::new(),
            classes: BTreeMap::new(),
            grants: Vec::new(),
        }
    }

    pub(crate) fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        let number = self.subjects.len() as u32;
        let known = *self.known.entry((who.clone(), paths)).or_insert(number);
        if known == number {
            self.subjects.push((who.clone(), paths, [UNKNOWN; OpKind::COUNT]));
        }
        known.into()
    }

    /// The class of a subject's requests of one kind.
    pub(crate) fn class(&mut self, subject: u64, kind: OpKind) -> usize {
        let (who, paths, ways) = &mut self.subjects[subject as usize];
        let way = &mut ways[kind as usize];
        if *way == UNKNOWN {
            let rule = self.rules.rule_for(who, kind, *paths).map(|i| &self.rules.rules[i]);
            let name = rule.map_or(RuleSet::DEFAULT, |rule| rule.name.as_str());
            let per = rule.map_or(&[][..], |rule| &rule.per[..]);
            let values = rules::key_of(per, who, kind);
            let grant = BaselineGrant {
                weight: rule.map_or(1, |rule| rule.effective_weight().get().into()),
                reservation: rule.and_then(|rule| rule.reserved_rate()),
                limit: rule.and_then(|rule| rule.limits.first()).map(|limit| limit.rate),
                realtime: rule.is_some_and(|rule| rule.limit_mode == LimitMode::Realtime),
            };
            let number = self.grants.len() as u32;
            *way = *self.classes.entry((name.into(), values)).or_insert(number);
            match self.grants.get_mut(*way as usize) {
                Some(known) => *known = grant,
                None => self.grants.push(grant),
            }
        }
        *way as usize
    }

    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        self.rules = rules;
        self.generation += 1;
        for (_, _, ways) in &mut self.subjects {
            *ways = [UNKNOWN; OpKind::COUNT];
        }
    }
}
