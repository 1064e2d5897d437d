//! Rules: which requests form a class, and what the class is granted.
//!
//! ```text
//!   identity, kind, path set ─► first [[rule]] that matches ─► class (weight, reservation, limit, slots)
//!                            ├► every [[meter]] that matches ─► one more meter to pay
//!                            └► every [[decay]] that matches ─► an account, and a meter by it
//! ```
//!
//! A [`RuleSet`] is parsed from the TOML text that an administrator writes and
//! is never changed afterwards: a new text makes a new set.

mod analysis;
mod decay;
mod dependency;
mod edit;
mod entitlement;
mod error;
mod export;
mod file;
mod glob;
mod index;
mod language;
mod limit;
mod limit_mode;
mod matcher;
mod nid;
mod path;
mod section;
mod sheet;
#[cfg(test)]
mod tests;
mod words;

use model::{Amount, Identity, KindSet, Nanos, OpKind, PathSet, Rate, Weight};

pub use analysis::Shadowed;
pub use decay::{DecayMode, DecayRule};
pub use edit::{KeyEdit, RuleEdit, RuleEditError, RulePosition};
pub use entitlement::{
    Entitlement, EntitlementError, EntitlementId, EntitlementScope, EntitlementSource, Grantable,
    TimedEntitlement,
};
pub use error::{Excerpt, RuleFileError, RuleProblem};
use index::RuleIndex;
pub use limit_mode::LimitMode;
pub use matcher::{Match, MatchError};
use path::PathPattern;
pub use words::{DecayWindow, KeyField, ParseWordError, Resource, WriteMode, key_of};

/// A ceiling on some kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The kinds that pay it.
    pub kinds: KindSet,
    /// The rate, in bytes or operations per second.
    pub rate: Rate,
    /// The most let through at once after idleness, in the rate's unit; `None` lets the dispatcher
    /// choose.
    pub burst: Option<u64>,
}

/// One `[[rule]]`: a condition and what it grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique among the rules.
    pub name: String,
    /// The condition of the requests that it takes.
    pub matcher: Match,
    /// One class for each distinct key of these fields; empty: one class.
    pub per: Vec<KeyField>,
    /// The weight of each class.
    pub weight: Weight,
    /// The reserved rate of each class.
    pub reservation: Option<Rate>,
    /// The part of a reservation in bytes, in parts per million of its device time, by which
    /// requests without bytes go before shares; `None`: [`Rule::RESERVATION_METADATA_PPM`].
    pub reservation_metadata_ppm: Option<u32>,
    /// Ceilings for each class, meters of the rule's own, unless `limit_mode` says otherwise.
    pub limits: Vec<Limit>,
    /// The meaning of its one limit; each of several is a ceiling.
    pub limit_mode: LimitMode,
    /// The rule that its one limit depends on.
    pub depends_on: Option<RuleDependency>,
    /// The most device slots each class may use at once.
    pub slots: Option<u32>,
    /// Device slots that are left free for the rule's reservation.
    pub reserved_slots: Option<u32>,
    /// The minimum local service of a class, in parts per million of its share here: remote service
    /// never takes more away.
    pub min_local_service_ppm: Option<u32>,
    /// How its writes reach the backend; `None`: as the target says.
    pub write_mode: Option<WriteMode>,
    /// The most classes that the rule makes; required beside `reservation` with a `per`. A key beyond
    /// it falls to the class of the empty key, without reservation.
    pub max_classes: Option<u32>,
}

/// A rule's dependency on a parent: its limit is between `min` and the limit itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDependency {
    /// The name of the parent.
    pub rule: String,
    /// The kind of the dependency.
    pub kind: DependencyKind,
    /// The least value of the limit, in the limit's unit.
    pub min: Rate,
}

/// How a rule's limit depends on another rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyKind {
    /// A percentage, in parts per million, of the parent's limit in force.
    Follow {
        /// The percentage, from 1 to 100,000,000 millionths.
        part_ppm: u32,
    },
    /// The rest that all classes of the parent together leave of a rate in the limit's unit.
    Remainder {
        /// The rate that both share.
        total: Rate,
    },
    /// The limit while the parent has had no request for a time, else the least.
    WhenIdle {
        /// The length of that time.
        idle: Nanos,
    },
}

/// One `[[meter]]`: a ceiling that applies beside the class's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterRule {
    /// Unique among the meters.
    pub name: String,
    /// The condition of the requests that pay it.
    pub matcher: Match,
    /// One meter for each distinct key of these fields; empty: one meter for all.
    pub per: Vec<KeyField>,
    /// Rate, kinds and burst.
    pub limit: Limit,
}

/// All rules, meters and decays of one file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Classes: the first rule that matches takes the request.
    pub rules: Vec<Rule>,
    /// Meters: each one that matches is paid.
    pub meters: Vec<MeterRule>,
    /// Decays: each one that matches is paid.
    pub decays: Vec<DecayRule>,
    /// The directories that `path={…}` names, in the order of their bits in a [`PathSet`].
    paths: Vec<PathPattern>,
    index: Index,
}

/// The index of a set that was read from a file. A set that was built by hand, or copied to be
/// changed, has none and is searched rule by rule.
#[derive(Debug, Default)]
struct Index(Option<RuleIndex>);

impl RuleSet {
    /// The most meters that one request may have to pay, the rule's own included.
    pub const METERS_MAX: usize = 8;
    /// The most directories that the rules and meters may name: the bits of a [`PathSet`].
    pub const PATHS_MAX: usize = 64;
    /// The most `[[rule]]` sections. Those with wildcards are tested one by one, for each new
    /// identity and kind of request.
    pub const RULES_MAX: usize = 16_384;
    /// The most `[[meter]]` sections; each pair of them is compared when the file is read.
    pub const METER_RULES_MAX: usize = 256;
    /// The most `[[decay]]` sections.
    pub const DECAYS_MAX: usize = 64;
    /// The longest name of a rule, meter or decay in bytes.
    pub const NAME_LEN_MAX: usize = 63;
    /// The name for requests without a rule; a rule of this name configures them.
    pub const DEFAULT: &'static str = "default";

    /// Reads a rule file (docs/RULES.md).
    ///
    /// # Errors
    /// The first fault, with its line and a caret under the characters at fault.
    pub fn parse(text: &str) -> Result<RuleSet, RuleFileError> {
        file::parse(text)
    }

    /// The set as a rule file: reading it gives the same set.
    pub fn to_toml(&self) -> String {
        self.to_string()
    }

    /// Rules that never take a request, since an earlier rule certainly takes all they could.
    pub fn shadowed(&self) -> Vec<Shadowed> {
        match &self.index.0 {
            Some(index) => analysis::shadowed(&self.rules, index),
            None => analysis::shadowed(&self.rules, &RuleIndex::new(&self.rules)),
        }
    }

    /// The directories of the rules that contain a file.
    ///
    /// `path` is counted from the export's root and begins with `/`; it need not be UTF-8.
    pub fn path_set(&self, path: &[u8]) -> PathSet {
        let bits = self.paths.iter().enumerate().filter(|(_, pattern)| pattern.matches(path));
        PathSet(bits.fold(0, |set, (bit, _)| set | 1 << bit))
    }

    /// The first rule that takes a request; `None` when no rule matches.
    pub fn rule_for(&self, who: &Identity, kind: OpKind, paths: PathSet) -> Option<usize> {
        let accepts = |rule: &usize| self.rules[*rule].matcher.accepts(who, kind, paths);
        match &self.index.0 {
            Some(index) => index.of(who).find(accepts),
            None => (0..self.rules.len()).find(accepts),
        }
    }

    /// The rule of that name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        match &self.index.0 {
            Some(index) => index.named(name).map(|rule| &self.rules[rule]),
            None => self.rules.iter().find(|rule| rule.name == name),
        }
    }

    /// The meters (indices into `meters`) that a request pays besides its rule's own.
    pub fn meters_for(
        &self,
        who: &Identity,
        kind: OpKind,
        paths: PathSet,
    ) -> impl Iterator<Item = usize> {
        let applies = move |meter: &MeterRule| {
            meter.limit.kinds.contains(kind) && meter.matcher.accepts(who, kind, paths)
        };
        self.meters.iter().enumerate().filter(move |(_, m)| applies(m)).map(|(i, _)| i)
    }

    /// The decays (indices into `decays`) that count a request and throttle it.
    pub fn decays_for(
        &self,
        who: &Identity,
        kind: OpKind,
        paths: PathSet,
    ) -> impl Iterator<Item = usize> {
        let applies = move |decay: &DecayRule| {
            let exempt = || decay.exempt.as_ref().is_some_and(|m| m.accepts(who, kind, paths));
            let counts = decay.resource.kinds().contains(kind);
            counts && !exempt() && decay.matcher.accepts(who, kind, paths)
        };
        self.decays.iter().enumerate().filter(move |(_, d)| applies(d)).map(|(i, _)| i)
    }

    /// Whether any rule tests the path of a file.
    pub fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether any condition or key uses the project of a file.
    pub fn has_projids(&self) -> bool {
        let asks = |matcher: &Match, per: &[KeyField]| {
            matcher.has_projid() || per.contains(&KeyField::Projid)
        };
        self.rules.iter().any(|rule| asks(&rule.matcher, &rule.per))
            || self.meters.iter().any(|meter| asks(&meter.matcher, &meter.per))
            || self.decays.iter().any(|decay| {
                asks(&decay.matcher, &decay.per)
                    || decay.exempt.as_ref().is_some_and(Match::has_projid)
            })
    }

    /// Builds the index of the rules by the values that they name.
    fn indexed(self) -> RuleSet {
        let index = Index(Some(RuleIndex::new(&self.rules)));
        RuleSet { index, ..self }
    }
}

impl Clone for Index {
    fn clone(&self) -> Index {
        Index::default()
    }
}

impl PartialEq for Index {
    fn eq(&self, _: &Index) -> bool {
        true
    }
}
impl Eq for Index {}

impl Rule {
    /// A rule of weight 1 that grants nothing else.
    pub fn new(name: &str, matcher: Match) -> Rule {
        Rule {
            name: name.into(),
            matcher,
            per: Vec::new(),
            weight: Weight::ONE,
            reservation: None,
            reservation_metadata_ppm: None,
            limits: Vec::new(),
            limit_mode: LimitMode::Hard,
            depends_on: None,
            slots: None,
            reserved_slots: None,
            min_local_service_ppm: None,
            write_mode: None,
            max_classes: None,
        }
    }
}

impl DependencyKind {
    /// The key of the kind in `depends_on`.
    pub fn name(&self) -> &'static str {
        match self {
            DependencyKind::Follow { .. } => "follow",
            DependencyKind::Remainder { .. } => "remainder_of",
            DependencyKind::WhenIdle { .. } => "when_idle",
        }
    }
}

impl Limit {
    /// The units that a request of this amount pays, in the rate's unit.
    pub fn units_of(&self, kind: OpKind, amount: Amount) -> u64 {
        if self.kinds.contains(kind) { self.rate.units_of(amount) } else { 0 }
    }
}
