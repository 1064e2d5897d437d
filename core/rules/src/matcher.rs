//! The condition of a rule, compiled for matching.
//!
//! ```text
//!   Match ── any of ──► Conjunction ── kinds, then all of ──► Predicate ── one of its items
//!   jobid={dd.* cp.*}&opcode={read} , uid={500}
//!   └────────── Conjunction ──────┘   └ another ┘
//! ```
//!
//! Everything is compiled when the text is parsed (language.rs): kinds are one
//! bitmap and are tested first, globs are cut at their stars, paths are bits of
//! the rule set. [`Match::accepts`] allocates nothing.
//!
//! [`Match::covers`] and [`Match::excludes`] answer "certainly" or "cannot tell",
//! for the checks of a whole rule set (analysis.rs).

use std::fmt;
use std::str::FromStr;

use model::{Identity, KindSet, OpKind, PathSet};

use super::glob::Glob;
use super::language;
use super::nid::{NidParts, NidPattern};
use super::path::PathPattern;

/// A condition on identity, kind and path: the language of docs/RULES.md.
///
/// It parses from and prints as its text. A condition with `path={…}` knows its
/// directories' bits only inside the [`RuleSet`](super::RuleSet) that it was parsed
/// with; on its own, it accepts no path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Alternatives of which one must hold; if empty, every request matches.
    pub(super) any_of: Vec<Conjunction>,
}

/// The error of a text that is not a condition, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MatchError {
    /// The fault, naming the invalid word.
    pub message: String,
    /// The bytes of the text at fault; empty at its end if something is missing there.
    pub at: std::ops::Range<usize>,
}

/// Predicates that must all hold, in the order of [`Predicate::rank`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conjunction {
    /// The kinds that `opcode={…}` leaves; all kinds without it.
    pub(super) kinds: KindSet,
    pub(super) all_of: Vec<Predicate>,
}

/// A field and the items of which one must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Predicate {
    Jobid(Vec<Glob>),
    Uid(Vec<Id>),
    Gid(Vec<Id>),
    Projid(Vec<Id>),
    Nid(Vec<NidPattern>),
    Path(PathList),
}

/// A user, group or project; `None`, written −1, is "not known".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(pub(super) Option<u32>);

/// Directories, and their bits in the rule set.
#[derive(Clone, Debug)]
pub(super) struct PathList {
    pub(super) patterns: Vec<PathPattern>,
    bits: PathSet,
}

impl Match {
    /// The condition that every request satisfies, written `*`.
    pub fn any() -> Match {
        Match::default()
    }

    /// Whether a request satisfies the condition; `paths` is what the rule set's
    /// [`path_set`](super::RuleSet::path_set) says of its file.
    pub fn accepts(&self, who: &Identity, kind: OpKind, paths: PathSet) -> bool {
        self.any_of.is_empty() || self.any_of.iter().any(|c| c.accepts(who, kind, paths))
    }

    /// Why a request does not satisfy the condition: for each alternative the part that does not
    /// hold. Empty if the request satisfies the condition.
    pub fn unmet(&self, who: &Identity, kind: OpKind, paths: PathSet) -> Vec<String> {
        if self.accepts(who, kind, paths) {
            return Vec::new();
        }
        self.any_of.iter().map(|c| c.without_satisfied(who, kind, paths).to_string()).collect()
    }

    /// Whether this is the condition `*`.
    pub fn is_any(&self) -> bool {
        self.any_of.is_empty()
    }

    /// Whether every request that satisfies `other` certainly satisfies this too. `false` may also
    /// mean that it is unknown.
    pub fn covers(&self, other: &Match) -> bool {
        let takes = |its: &Conjunction| self.any_of.iter().any(|mine| mine.covers(its));
        match (self.is_any(), other.is_any()) {
            (true, _) => true,
            (false, true) => takes(&Conjunction::everything()),
            (false, false) => other.any_of.iter().all(takes),
        }
    }

    /// Whether certainly no request satisfies both.
    pub(super) fn excludes(&self, other: &Match) -> bool {
        let apart = |mine: &Conjunction| other.any_of.iter().all(|its| mine.excludes(its));
        !self.is_any() && !other.is_any() && self.any_of.iter().all(apart)
    }

    /// Whether it reads a file's project.
    pub(super) fn has_projid(&self) -> bool {
        let mut predicates = self.any_of.iter().flat_map(|c| &c.all_of);
        predicates.any(|predicate| matches!(predicate, Predicate::Projid(_)))
    }

    /// The kinds of request that may satisfy the condition.
    pub(super) fn kinds(&self) -> KindSet {
        if self.is_any() {
            return KindSet::ALL;
        }
        self.any_of.iter().flat_map(|c| c.kinds.iter()).collect()
    }

    /// How many items are named in all: two conditions are compared in about the product
    /// of their sizes.
    pub(super) fn size(&self) -> u64 {
        let predicates = self.any_of.iter().flat_map(|c| &c.all_of);
        predicates.map(|p| p.len() as u64 + 1).sum::<u64>() + 1
    }

    /// Gives each directory named here its bit in `known`, adding new ones. Returns the first
    /// directory for which no bit is left.
    pub(super) fn resolve(&mut self, known: &mut Vec<PathPattern>) -> Result<(), String> {
        let predicates = self.any_of.iter_mut().flat_map(|c| &mut c.all_of);
        for predicate in predicates {
            if let Predicate::Path(list) = predicate {
                list.resolve(known)?;
            }
        }
        Ok(())
    }
}

impl Conjunction {
    pub(super) fn everything() -> Conjunction {
        Conjunction { kinds: KindSet::ALL, all_of: Vec::new() }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.kinds == KindSet::ALL && self.all_of.is_empty()
    }

    fn accepts(&self, who: &Identity, kind: OpKind, paths: PathSet) -> bool {
        self.kinds.contains(kind) && self.all_of.iter().all(|p| p.accepts(who, paths))
    }

    /// The condition without all that holds for a request.
    fn without_satisfied(&self, who: &Identity, kind: OpKind, paths: PathSet) -> Conjunction {
        let kinds = if self.kinds.contains(kind) { KindSet::ALL } else { self.kinds };
        let unmet = self.all_of.iter().filter(|predicate| !predicate.accepts(who, paths));
        Conjunction { kinds, all_of: unmet.cloned().collect() }
    }

    fn covers(&self, other: &Conjunction) -> bool {
        let implied = |mine: &Predicate| {
            mine.is_everything() || other.all_of.iter().any(|its| mine.covers(its))
        };
        other.kinds.iter().all(|kind| self.kinds.contains(kind)) && self.all_of.iter().all(implied)
    }

    fn excludes(&self, other: &Conjunction) -> bool {
        let apart = |mine: &Predicate| other.all_of.iter().any(|its| mine.excludes(its));
        !self.kinds.iter().any(|kind| other.kinds.contains(kind)) || self.all_of.iter().any(apart)
    }
}

impl Predicate {
    /// The position of the field in the printed condition; `opcode` comes before `path`.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Predicate::Jobid(_) => 0,
            Predicate::Uid(_) => 1,
            Predicate::Gid(_) => 2,
            Predicate::Projid(_) => 3,
            Predicate::Nid(_) => 4,
            Predicate::Path(_) => 5,
        }
    }

    fn len(&self) -> usize {
        match self {
            Predicate::Jobid(globs) => globs.len(),
            Predicate::Uid(ids) | Predicate::Gid(ids) | Predicate::Projid(ids) => ids.len(),
            Predicate::Nid(patterns) => patterns.len(),
            Predicate::Path(list) => list.patterns.len(),
        }
    }

    fn accepts(&self, who: &Identity, paths: PathSet) -> bool {
        match self {
            Predicate::Jobid(globs) => {
                globs.iter().any(|glob| glob.matches(who.job.as_str().as_bytes()))
            }
            Predicate::Uid(ids) => ids.contains(&Id::known(who.uid)),
            Predicate::Gid(ids) => ids.contains(&Id::known(who.gid)),
            Predicate::Projid(ids) => ids.contains(&Id(who.projid)),
            Predicate::Nid(patterns) => {
                let nid = NidParts::of(who.nid.as_str());
                patterns.iter().any(|pattern| pattern.matches(&nid))
            }
            Predicate::Path(list) => list.bits.0 & paths.0 != 0,
        }
    }

    fn covers(&self, other: &Predicate) -> bool {
        match (self, other) {
            (Predicate::Jobid(mine), Predicate::Jobid(its)) => all_covered(its, mine, Glob::covers),
            (Predicate::Uid(mine), Predicate::Uid(its))
            | (Predicate::Gid(mine), Predicate::Gid(its))
            | (Predicate::Projid(mine), Predicate::Projid(its)) => all_covered(its, mine, Id::eq),
            (Predicate::Nid(mine), Predicate::Nid(its)) => {
                all_covered(its, mine, NidPattern::covers)
            }
            (Predicate::Path(mine), Predicate::Path(its)) => {
                all_covered(&its.patterns, &mine.patterns, PathPattern::covers)
            }
            _ => false,
        }
    }

    fn excludes(&self, other: &Predicate) -> bool {
        match (self, other) {
            (Predicate::Jobid(mine), Predicate::Jobid(its)) => {
                all_exclude(mine, its, Glob::excludes)
            }
            (Predicate::Uid(mine), Predicate::Uid(its))
            | (Predicate::Gid(mine), Predicate::Gid(its))
            | (Predicate::Projid(mine), Predicate::Projid(its)) => all_exclude(mine, its, Id::ne),
            (Predicate::Nid(mine), Predicate::Nid(its)) => {
                all_exclude(mine, its, NidPattern::excludes)
            }
            (Predicate::Path(mine), Predicate::Path(its)) => {
                all_exclude(&mine.patterns, &its.patterns, PathPattern::excludes)
            }
            _ => false,
        }
    }

    fn is_everything(&self) -> bool {
        match self {
            Predicate::Jobid(globs) => globs.iter().any(Glob::is_everything),
            Predicate::Nid(patterns) => patterns.iter().any(NidPattern::is_everything),
            // Not even `/`: a request whose file is not known lies in no directory.
            Predicate::Path(_) => false,
            Predicate::Uid(_) | Predicate::Gid(_) | Predicate::Projid(_) => false,
        }
    }
}

impl Id {
    /// An id of the kernel, where −1 (all ones) means none.
    pub(super) fn known(id: u32) -> Id {
        Id((id != u32::MAX).then_some(id))
    }
}

impl PathList {
    pub(super) fn new(patterns: Vec<PathPattern>) -> PathList {
        PathList { patterns, bits: PathSet::default() }
    }

    fn resolve(&mut self, known: &mut Vec<PathPattern>) -> Result<(), String> {
        self.bits = PathSet::default();
        for pattern in &self.patterns {
            let bit = known.iter().position(|k| k == pattern).unwrap_or(known.len());
            if bit >= super::RuleSet::PATHS_MAX {
                return Err(pattern.to_string());
            }
            if bit == known.len() {
                known.push(pattern.clone());
            }
            self.bits.0 |= 1 << bit;
        }
        Ok(())
    }
}

/// Two lists are equal if they name the same directories: the bits are positions in a rule set and
/// not part of the condition.
impl PartialEq for PathList {
    fn eq(&self, other: &PathList) -> bool {
        self.patterns == other.patterns
    }
}
impl Eq for PathList {}

fn all_covered<T>(items: &[T], list: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    items.iter().all(|item| list.iter().any(|wider| covers(wider, item)))
}

fn all_exclude<T>(left: &[T], right: &[T], excludes: impl Fn(&T, &T) -> bool) -> bool {
    left.iter().all(|item| right.iter().all(|other| excludes(item, other)))
}

// ---- text form ----

impl FromStr for Match {
    type Err = MatchError;
    fn from_str(text: &str) -> Result<Match, MatchError> {
        language::parse(text)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return f.write_str("*");
        }
        for (i, conjunction) in self.any_of.iter().enumerate() {
            write!(f, "{}{conjunction}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Conjunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_path = |p: &&Predicate| matches!(p, Predicate::Path(_));
        let mut between = "";
        for predicate in self.all_of.iter().filter(|p| !is_path(p)) {
            write!(f, "{between}{predicate}")?;
            between = "&";
        }
        if self.kinds != KindSet::ALL {
            write!(f, "{between}opcode={{")?;
            write_items(f, self.kinds.iter().map(|kind| kind.name()))?;
            between = "&";
        }
        for predicate in self.all_of.iter().filter(is_path) {
            write!(f, "{between}{predicate}")?;
            between = "&";
        }
        Ok(())
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Predicate::Jobid(globs) => {
                f.write_str("jobid={")?;
                write_items(f, globs.iter().map(|glob| language::quote(&glob.to_string())))
            }
            Predicate::Uid(ids) => write_ids(f, "uid", ids),
            Predicate::Gid(ids) => write_ids(f, "gid", ids),
            Predicate::Projid(ids) => write_ids(f, "projid", ids),
            Predicate::Nid(patterns) => {
                f.write_str("nid={")?;
                write_items(f, patterns)
            }
            Predicate::Path(list) => {
                f.write_str("path={")?;
                write_items(f, list.patterns.iter().map(|path| language::quote(&path.to_string())))
            }
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => id.fmt(f),
            None => f.write_str("-1"),
        }
    }
}

fn write_ids(f: &mut fmt::Formatter<'_>, field: &str, ids: &[Id]) -> fmt::Result {
    write!(f, "{field}={{")?;
    write_items(f, ids)
}

/// The items with spaces between them, as Lustre wants them, and the closing brace.
fn write_items<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        write!(f, "{}{item}", if i == 0 { "" } else { " " })?;
    }
    f.write_str("}")
}

model::serde_as_text!(Match, "a condition such as jobid={dd.*}&opcode={read}");

#[cfg(test)]
mod tests {
    use model::{JobId, Nid};

    use super::*;

    fn ann() -> Identity {
        let nid = Nid::tcp("192.168.1.7".parse().unwrap());
        Identity { job: JobId::new("dd.500").unwrap(), uid: 500, gid: 100, projid: None, nid }
    }

    fn accepts(text: &str, kind: OpKind) -> bool {
        text.parse::<Match>().unwrap().accepts(&ann(), kind, PathSet::default())
    }

    #[test]
    fn a_request_must_fit_one_item_of_every_predicate_of_one_conjunction() {
        for text in [
            "*",
            "jobid={cp.* dd.*}",
            "jobid={dd.500}&uid={1,500}&gid={0x64}",
            "uid={1},opcode={write read}",
            "nid={192.168.1.[1-128]@tcp}&opcode={read}",
            "projid={-1}",
        ] {
            assert!(accepts(text, OpKind::Read), "{text}");
        }
        for text in [
            "jobid={dd}",
            "jobid={dd.*}&uid={501}",
            "jobid={dd.*}&opcode={write}",
            "nid={0@lo},gid={0}",
            "projid={0}",
            "uid={-1}",
            "path={/}",
        ] {
            assert!(!accepts(text, OpKind::Read), "{text}");
        }
    }

    #[test]
    fn an_unknown_id_is_minus_one() {
        let nobody = Identity { uid: u32::MAX, projid: Some(7), ..ann() };
        let takes = |text: &str| {
            text.parse::<Match>().unwrap().accepts(&nobody, OpKind::Open, PathSet::default())
        };
        let unknown = ann();
        let takes_unknown = |text: &str| {
            let matcher: Match = text.parse().unwrap();
            matcher.accepts(&unknown, OpKind::Read, PathSet::default())
        };
        assert!(takes_unknown("projid={-1}") && !takes_unknown("projid={0}"), "−1 alone");
        assert!(takes("uid={-1}&projid={7}") && !takes("projid={-1}") && !takes("gid={-1}"));
    }

    #[test]
    fn a_missing_job_is_the_empty_name() {
        let free = Identity { job: JobId::default(), ..ann() };
        let takes = |text: &str| {
            text.parse::<Match>().unwrap().accepts(&free, OpKind::Open, PathSet::default())
        };
        assert!(takes("jobid={''}") && takes("jobid={*}") && !takes("jobid={dd.*}"));
    }

    #[test]
    fn what_does_not_hold_is_named_for_each_alternative() {
        let unmet = |text: &str| {
            text.parse::<Match>().unwrap().unmet(&ann(), OpKind::Read, PathSet::default())
        };
        assert_eq!(unmet("jobid={cp.*}&uid={500}"), ["jobid={cp.*}"]);
        assert_eq!(
            unmet("uid={1}&opcode={write}&jobid={dd.*},path={/a}"),
            ["uid={1}&opcode={write}", "path={/a}"]
        );
        assert_eq!(unmet("uid={1},gid={100}"), [""; 0]);
        assert_eq!(unmet("*"), [""; 0]);
    }

    #[test]
    fn wider_conditions_cover_narrower_ones() {
        for (wide, narrow) in [
            ("*", "uid={1}"),
            ("jobid={*}", "*"),
            ("uid={1}", "uid={1}&opcode={read}"),
            ("uid={1 2}", "uid={2}"),
            ("uid={1},gid={2}", "gid={2}&jobid={a}"),
            ("opcode={read write}", "opcode={read}"),
            ("path={/a}", "path={/a/b}"),
        ] {
            let (wide, narrow): (Match, Match) = (wide.parse().unwrap(), narrow.parse().unwrap());
            assert!(wide.covers(&narrow), "{wide} should cover {narrow}");
        }
        for (a, b) in [("uid={1}", "*"), ("uid={1}", "gid={1}"), ("path={/}", "*")] {
            assert!(!a.parse::<Match>().unwrap().covers(&b.parse().unwrap()), "{a} {b}");
        }
    }

    #[test]
    fn conditions_exclude_each_other_only_when_that_is_certain() {
        let excludes = |a: &str, b: &str| {
            let (a, b): (Match, Match) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(a.excludes(&b), b.excludes(&a), "{a} {b}");
            a.excludes(&b)
        };
        assert!(excludes("uid={1}", "uid={2}&gid={3}"));
        assert!(excludes("opcode={read}", "opcode={write},opcode={open}"));
        assert!(excludes("path={/a}", "path={/b /c}"));
        assert!(!excludes("uid={1}", "gid={2}"));
        assert!(!excludes("uid={1 2}", "uid={2 3}"));
        assert!(!excludes("uid={1},gid={2}", "uid={2}"));
        assert!(!excludes("*", "uid={2}"));
    }
}
