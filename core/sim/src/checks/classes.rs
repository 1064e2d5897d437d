//! Class, meters and ceilings of a request, derived from the rules and a proxy's rows alone.
//!
//! ```text
//!   identity + kind ─► class (rule, key, rows that reserve) ─► plain? reserved?
//!                  └─► ceilings: each limit of the rule, each meter, by key; each row of a limit
//! ```
//!
//! What a row reserves for is a class of its own, with an order and a reservation of its own; by
//! weight it is part of the class of its rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{KeyValue, KindSet, OpKind, PathSet, Rate, Scope, Time};
use rules::{Entitlement, EntitlementId, LimitMode, Rule, RuleSet};

use super::rows::{GivenRow, ProxyRows, RowRequest};
use super::windows::CATCH_UP;
use crate::scheduler::EntitlementChanges;
use crate::world::SimOwner;

/// The class and ceilings of an identity's requests of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ClassOf {
    pub(crate) class: u32,
    /// The class of its rule, which is another one if a row reserves for it.
    pub(crate) owner: u32,
    pub(crate) weight: u64,
    /// Whether no limit, meter or cap on slots applies.
    pub(crate) plain: bool,
    /// Whether the class has a weight and nothing else, for requests of every kind.
    pub(crate) by_weight: bool,
    /// The rows that reserve for it, by the lowest of their numbers.
    pub(crate) row: Option<EntitlementId>,
    /// The reserved rate, where only slots can delay its class.
    pub(crate) reservation: Option<Rate>,
    pub(crate) gauges: Arc<[u32]>,
    /// Whether it pays a limit or a meter, also one that is not seen from here.
    pub(crate) pays: bool,
    /// Whether it pays a limit of a row, which others of its class may not pay.
    pub(crate) row_limited: bool,
    /// Whether what its requests that are never delayed cost is paid by this class, up to a bound
    /// that the rules say.
    pub(crate) defers: bool,
    /// The ceiling that alone can delay the request while slots are free.
    pub(crate) single_gauge: Option<u32>,
}

/// A ceiling for a key.
#[derive(Clone, Debug)]
pub(crate) struct RateCeiling {
    /// Its rule's or meter's name, or the number of its row.
    pub(crate) name: String,
    pub(crate) rate: Rate,
    pub(crate) burst: Option<u64>,
    pub(crate) kinds: KindSet,
    /// Whether it is of a row, of which no burst but its own may be used at any time.
    pub(crate) of_row: bool,
}

/// A rule, a class's key, and the rows that reserve, by the lowest of their numbers.
type ClassKeyParts = (usize, Vec<KeyValue>, Option<EntitlementId>);

type CheckedKey = (bool, usize, usize, Vec<KeyValue>);

/// The classes and ceilings of the rules in force, and of each proxy's rows.
#[derive(Debug)]
pub(crate) struct RuleView {
    rules: Arc<RuleSet>,
    /// Whether a rule keeps slots free.
    pub(crate) reserves_slots: bool,
    /// By proxy.
    views: Vec<ProxyView>,
    class_table: Vec<ClassOf>,
    classes: BTreeMap<ClassKeyParts, u32>,
    gauge_keys: BTreeMap<CheckedKey, u32>,
    /// The ceilings of rows: each row that a number has had has its own.
    row_gauges: BTreeMap<EntitlementId, Vec<(Entitlement, u32)>>,
    pub(crate) gauges: Vec<RateCeiling>,
}

/// The classes of requests at one proxy, by identity and kind, with its rows.
#[derive(Debug)]
struct ProxyView {
    target: Arc<str>,
    rows: ProxyRows,
    classifications: Vec<[Option<u32>; OpKind::COUNT]>,
}

impl RuleView {
    /// The view of the proxies of these targets, without any row.
    pub(crate) fn new(rules: Arc<RuleSet>, targets: impl Iterator<Item = Arc<str>>) -> RuleView {
        let view = |target| {
            let (rows, classifications) = Default::default();
            ProxyView { target, rows, classifications }
        };
        RuleView::with_views(rules, targets.map(view).collect())
    }

    fn with_views(rules: Arc<RuleSet>, mut views: Vec<ProxyView>) -> RuleView {
        views.iter_mut().for_each(|view| view.classifications.clear());
        RuleView {
            reserves_slots: rules.rules.iter().any(|rule| rule.reserved_slots.is_some()),
            rules,
            views,
            class_table: Vec::new(),
            classes: BTreeMap::new(),
            gauge_keys: BTreeMap::new(),
            row_gauges: BTreeMap::new(),
            gauges: Vec::new(),
        }
    }

    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        *self = RuleView::with_views(rules, std::mem::take(&mut self.views));
    }

    /// Changes the rows of a proxy. Returns the ceilings of those that are in force now and were not,
    /// or not so; `None` if nothing changes.
    pub(crate) fn change_rows(
        &mut self,
        proxy: u32,
        changes: EntitlementChanges,
        since: Time,
        clock: Time,
    ) -> Option<Vec<u32>> {
        let began = self.views[proxy as usize].rows.change(changes, since, clock)?;
        Some(self.rows_changed(proxy, began))
    }

    /// Lets the rows of a proxy begin and end, as [`RuleView::change_rows`] does.
    pub(crate) fn pass_row_edges(&mut self, proxy: u32, clock: Time) -> Option<Vec<u32>> {
        let began = self.views[proxy as usize].rows.advance(clock)?;
        Some(self.rows_changed(proxy, began))
    }

    /// Forgets the rows of a proxy that crashed.
    pub(crate) fn forget_rows(&mut self, proxy: u32) {
        let view = &mut self.views[proxy as usize];
        (view.rows, view.classifications) = Default::default();
    }

    /// The rows that a proxy was given and that have not ended by its clock.
    pub(crate) fn current_rows(
        &self,
        proxy: u32,
        clock: Time,
    ) -> impl Iterator<Item = (EntitlementId, &GivenRow)> {
        self.views[proxy as usize].rows.current(clock)
    }

    fn rows_changed(&mut self, proxy: u32, began: Vec<EntitlementId>) -> Vec<u32> {
        self.views[proxy as usize].classifications.clear();
        began.into_iter().filter_map(|id| self.gauge_of_row(proxy, id)).collect()
    }

    /// The ceiling of a row of a proxy, if it is a limit in force.
    fn gauge_of_row(&mut self, proxy: u32, id: EntitlementId) -> Option<u32> {
        let row = self.views[proxy as usize].rows.row(id)?;
        let limit = row.limit()?;
        let row = row.clone().during(model::Nanos::ZERO, None).expect("without an end");
        let versions = self.row_gauges.entry(id).or_default();
        if let Some((_, gauge)) = versions.iter().find(|(known, _)| *known == row) {
            return Some(*gauge);
        }
        let gauge = self.gauges.len() as u32;
        versions.push((row, gauge));
        let (name, of_row) = (format!("row {}", id.0), true);
        let (rate, burst, kinds) = (limit.rate, limit.burst, limit.kinds);
        self.gauges.push(RateCeiling { name, rate, burst, kinds, of_row });
        Some(gauge)
    }

    /// The class and ceilings of an identity's requests at a proxy.
    pub(crate) fn class_of(
        &mut self,
        proxy: u32,
        identity: u32,
        kind: OpKind,
        owner: &SimOwner,
    ) -> ClassOf {
        let identity = identity as usize;
        let known = &mut self.views[proxy as usize].classifications;
        if identity >= known.len() {
            known.resize(identity + 1, [None; OpKind::COUNT]);
        }
        let index = match known[identity][kind as usize] {
            Some(index) => index,
            None => {
                let fresh = self.find(proxy, owner, kind);
                self.class_table.push(fresh);
                let index = (self.class_table.len() - 1) as u32;
                self.views[proxy as usize].classifications[identity][kind as usize] = Some(index);
                index
            }
        };
        self.class_table[index as usize].clone()
    }

    fn find(&mut self, proxy: u32, owner: &SimOwner, kind: OpKind) -> ClassOf {
        let rules = self.rules.clone();
        let who = &owner.identity;
        let paths = owner.path.as_ref();
        let paths = paths.map_or(PathSet::default(), |path| rules.path_set(path.as_bytes()));
        let number = rules.rule_for(who, kind, paths);
        let rule = number.map(|number| &rules.rules[number]);
        let number = number.unwrap_or(usize::MAX);
        let per = rule.map_or(&[][..], |rule| &rule.per[..]);
        let key = rules::key_of(per, who, kind);
        let scope = Scope::rule(rule.map_or(RuleSet::DEFAULT, |rule| &rule.name), &key);
        let ProxyView { target, rows, .. } = &self.views[proxy as usize];
        let of = RowRequest { who, class: &scope, target };
        let row_limits = rows.limits(of, kind);
        let (branch, row_rate) = rows.reservation(of, kind).unzip();
        let row_weight = rows.weight(&scope, target);
        let any_row = OpKind::ALL.iter().any(|kind| {
            rows.reservation(of, *kind).is_some() || !rows.limits(of, *kind).is_empty()
        });
        let class = self.class_index((number, key.clone(), branch));
        let own_class = self.class_index((number, key.clone(), None));
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
                let gauge = RateCeiling { name, rate, burst, kinds, of_row: false };
                gauges.push(self.ceiling_index((false, number, place, key.clone()), gauge));
            }
        }
        for meter in rules.meters_for(who, kind, paths) {
            let of = &rules.meters[meter];
            let key = rules::key_of(&of.per, who, kind);
            let (rate, burst, kinds) = (of.limit.rate, of.limit.burst, of.limit.kinds);
            let gauge = RateCeiling { name: of.name.clone(), rate, burst, kinds, of_row: false };
            gauges.push(self.ceiling_index((true, meter, 0, key), gauge));
        }
        let row_limited = !row_limits.is_empty();
        gauges.extend(row_limits.into_iter().filter_map(|id| self.gauge_of_row(proxy, id)));
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
        let bare = bare && rules.meters.is_empty() && rules.decays.is_empty();
        // No limit delays what rows reserve; a cap on slots does.
        let bare = if branch.is_some() { !capped } else { bare && !row_limited };
        let reservation = match branch {
            Some(_) => row_rate,
            None => rule.filter(|rule| rule.max_classes.is_none()).and_then(Rule::reserved_rate),
        };
        let weight = rule.map_or(1, |rule| rule.effective_weight().get().into());
        ClassOf {
            class,
            owner: own_class,
            weight: row_weight.unwrap_or(weight),
            plain: !metered && !capped && !row_limited,
            by_weight: rule.is_none_or(is_by_weight) && !any_meter() && !any_row,
            row: branch,
            reservation: reservation.filter(|_| bare),
            row_limited,
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

    fn class_index(&mut self, key: ClassKeyParts) -> u32 {
        let next = self.classes.len() as u32;
        *self.classes.entry(key).or_insert(next)
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
