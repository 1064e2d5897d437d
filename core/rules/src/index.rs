//! An index that finds rules among thousands without testing each.
//!
//! ```text
//!   jobid={dd.1 dd.2}      ─► by value: "dd.1" ─► 3        a request: the numbers under its job,
//!   uid={500}&path={/a}    ─► by value: 500    ─► 7        user, group and project, and those of
//!   jobid={io*}, nid={…}   ─► others           ─► 9        the others, in one ascending order
//! ```
//!
//! A rule is indexed under the values that one of its predicates names, if each of its alternatives
//! has a predicate that names whole values only. Any other rule is tested each time. A lookup gives
//! candidates: the condition itself decides.

use std::collections::BTreeMap;
use std::iter;

use model::Identity;

use super::glob::Glob;
use super::matcher::{Conjunction, Id, Predicate};
use super::{Match, Rule};

/// The rules of one set, by name and by the values that they name.
#[derive(Debug)]
pub(super) struct RuleIndex {
    names: BTreeMap<Box<str>, u32>,
    jobs: BTreeMap<Box<str>, Vec<u32>>,
    /// By user, group and project.
    ids: [BTreeMap<Id, Vec<u32>>; 3],
    others: Vec<u32>,
}

impl RuleIndex {
    pub(super) fn new(rules: &[Rule]) -> RuleIndex {
        let mut index = RuleIndex {
            names: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ids: Default::default(),
            others: Vec::new(),
        };
        for (number, rule) in rules.iter().enumerate() {
            let number = u32::try_from(number).expect("RULES_MAX is less");
            // If two rules have one name, which only rules built by hand can have, the first
            // counts.
            index.names.entry(rule.name.as_str().into()).or_insert(number);
            index.add(number, &rule.matcher);
        }
        index
    }

    /// The rule of that name.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        self.names.get(name).map(|number| *number as usize)
    }

    /// The rules that may match an identity, in order.
    pub(super) fn of(&self, who: &Identity) -> impl Iterator<Item = usize> {
        let [users, groups, projects] = &self.ids;
        merge(vec![
            list(self.jobs.get(who.job.as_str())),
            list(users.get(&Id::known(who.uid))),
            list(groups.get(&Id::known(who.gid))),
            list(projects.get(&Id(who.projid))),
            &self.others,
        ])
    }

    /// The rules that may take everything that an alternative of a condition takes, in order:
    /// they would have to take the first value that it names.
    pub(super) fn of_alternative(&self, wanted: &Conjunction) -> impl Iterator<Item = usize> {
        let first = |predicate: &Predicate| match predicate {
            Predicate::Jobid(globs) => {
                let name = globs.iter().find_map(Glob::whole);
                list(name.and_then(|name| self.jobs.get(name)))
            }
            Predicate::Uid(ids) => list(self.ids[0].get(&ids[0])),
            Predicate::Gid(ids) => list(self.ids[1].get(&ids[0])),
            Predicate::Projid(ids) => list(self.ids[2].get(&ids[0])),
            Predicate::Nid(_) | Predicate::Path(_) => &[],
        };
        let named = wanted.all_of.iter().map(first);
        let lists = iter::once(self.others.as_slice()).chain(named).collect();
        merge(lists)
    }

    fn add(&mut self, number: u32, matcher: &Match) {
        let values: Option<Vec<&Predicate>> = matcher.any_of.iter().map(values_of).collect();
        let Some(values) = values.filter(|values| !values.is_empty()) else {
            self.others.push(number);
            return;
        };
        for predicate in values {
            match predicate {
                Predicate::Jobid(globs) => {
                    for name in globs.iter().filter_map(Glob::whole) {
                        push(self.jobs.entry(name.into()).or_default(), number);
                    }
                }
                Predicate::Uid(ids) => self.add_ids(0, ids, number),
                Predicate::Gid(ids) => self.add_ids(1, ids, number),
                Predicate::Projid(ids) => self.add_ids(2, ids, number),
                Predicate::Nid(_) | Predicate::Path(_) => {}
            }
        }
    }

    fn add_ids(&mut self, field: usize, ids: &[Id], number: u32) {
        for id in ids {
            push(self.ids[field].entry(*id).or_default(), number);
        }
    }
}

/// A predicate of an alternative that names whole values only.
fn values_of(alternative: &Conjunction) -> Option<&Predicate> {
    alternative.all_of.iter().find(|predicate| match predicate {
        Predicate::Jobid(globs) => globs.iter().all(|glob| glob.whole().is_some()),
        Predicate::Uid(_) | Predicate::Gid(_) | Predicate::Projid(_) => true,
        Predicate::Nid(_) | Predicate::Path(_) => false,
    })
}

fn list(found: Option<&Vec<u32>>) -> &[u32] {
    found.map_or(&[], Vec::as_slice)
}

fn push(list: &mut Vec<u32>, number: u32) {
    if list.last() != Some(&number) {
        list.push(number);
    }
}

/// Ascending lists read as one: each number once.
fn merge(mut lists: Vec<&[u32]>) -> impl Iterator<Item = usize> {
    iter::from_fn(move || {
        let least = lists.iter().filter_map(|list| list.first().copied()).min()?;
        for list in &mut lists {
            if list.first() == Some(&least) {
                *list = &list[1..];
            }
        }
        Some(least as usize)
    })
}
