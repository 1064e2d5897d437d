//! Rules: which requests form a class, and what the class is granted.
//!
//! ```text
//!   identity, kind, path set ─► first [[rule]] that matches ─► class (weight, reserve, limit, slots)
//!                            └► every [[meter]] that matches ─► one more meter to pay
//! ```
//!
//! A [`RuleSet`] is parsed from the TOML text that an administrator writes and
//! is never changed afterwards: a new text makes a new set.

mod matcher;

use crate::{Amount, Identity, Kind, KindSet, Rate, Weight};
pub use matcher::{Match, PathSet};

/// What `per` may name: a field of the key that divides a rule into classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyField {
    /// The batch job.
    Jobid,
    /// The user.
    Uid,
    /// The group.
    Gid,
    /// The project quota id.
    Projid,
    /// The node.
    Nid,
    /// The kind of request.
    Opcode,
}

/// How a write reaches the backend, and when it counts as done
/// (design/architecture.md section 4, "a write counts until it is clean").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteMode {
    /// O_DIRECT where offset and length are aligned, else as `paced`.
    Direct,
    /// RWF_DONTCACHE: through the page cache, written back and dropped at once.
    Dontcache,
    /// Page cache with a bounded budget of dirty bytes, kept by sync_file_range.
    Paced,
    /// Page cache, no promise.
    Cached,
}

/// A ceiling on some kinds of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The kinds that pay.
    pub kinds: KindSet,
    /// Bytes or operations per second.
    pub rate: Rate,
    /// The most let through at once after idleness, in the rate's unit; `None`
    /// lets the dispatcher choose.
    pub burst: Option<u64>,
}

/// One `[[rule]]`: a condition and what it grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique among the rules.
    pub name: String,
    /// Which requests it takes.
    pub matcher: Match,
    /// One class for each distinct key of these fields; empty: one class.
    pub per: Vec<KeyField>,
    /// The part of the service beside other classes.
    pub weight: Weight,
    /// A promised rate for each class.
    pub reserve: Option<Rate>,
    /// Ceilings for each class: meters of the rule's own.
    pub limits: Vec<Limit>,
    /// The most device slots each class may hold at once.
    pub slots: Option<u32>,
    /// How its writes reach the backend; `None`: as the target says.
    pub write_mode: Option<WriteMode>,
    /// The most classes that the rule makes; required beside `reserve` with a `per`.
    /// A key beyond it falls to the class of the empty key, without reservation.
    pub max_classes: Option<u32>,
}

/// One `[[meter]]`: a ceiling that applies beside the class's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterRule {
    /// Unique among the meters.
    pub name: String,
    /// Which requests pay it.
    pub matcher: Match,
    /// One meter for each distinct key of these fields; empty: one meter for all.
    pub per: Vec<KeyField>,
    /// Rate, kinds and burst.
    pub limit: Limit,
}

/// All rules and meters of one file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Classes: the first rule that matches takes the request.
    pub rules: Vec<Rule>,
    /// Meters: each one that matches is paid.
    pub meters: Vec<MeterRule>,
    /// The directories that `path={…}` names, in the order of their bits in a [`PathSet`].
    pub(crate) paths: Vec<String>,
}

impl RuleSet {
    /// The most meters that one request may have to pay, the rule's own included.
    pub const METERS_MAX: usize = 8;

    /// The first rule that takes a request; `None` when no rule matches.
    pub fn rule_for(&self, who: &Identity, kind: Kind, paths: PathSet) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matcher.accepts(who, kind, paths))
    }

    /// The meters (indices into `meters`) that a request pays besides its rule's own.
    pub fn meters_for(
        &self,
        who: &Identity,
        kind: Kind,
        paths: PathSet,
    ) -> impl Iterator<Item = usize> {
        let applies = move |meter: &MeterRule| {
            meter.limit.kinds.contains(kind) && meter.matcher.accepts(who, kind, paths)
        };
        self.meters.iter().enumerate().filter(move |(_, m)| applies(m)).map(|(i, _)| i)
    }

    /// Whether any rule asks for the path of a file.
    pub fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }
}

impl Limit {
    /// What a request of this amount pays here, in the rate's unit.
    pub fn units_of(&self, kind: Kind, amount: Amount) -> u64 {
        if self.kinds.contains(kind) { self.rate.units_of(amount) } else { 0 }
    }
}
