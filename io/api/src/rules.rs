//! The rules in force, as the control API shows them.
//!
//! ```text
//!   GET ─► text + version ─► edited ─► PUT, If-Match: version ─► in force
//!            ▲                              │ 409: somebody else was faster
//!            └──────────────────────────────┘
//! ```

use std::collections::BTreeMap;

use model::{
    DecayMode, DecayRule, KeyField, Limit, LimitMode, MeterRule, Rule, RuleDependency, RuleSet,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The rules and meters in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRules {
    /// Tells this text from others. Give it back as `If-Match` to change the rules only if
    /// they are still these.
    pub version: String,
    /// The text that they were read from, with its comments.
    pub text: String,
    /// The proxy's own rule file; absent: it has none.
    pub file: Option<String>,
    /// Whether the rule file held this text when the proxy last read or wrote it.
    pub saved: bool,
    /// Rules in their order: the first that matches takes the request.
    pub rules: Vec<WireRule>,
    /// Meters in their order: each one that matches is paid.
    pub meters: Vec<WireMeter>,
    /// Decays in their order: each one that matches counts and holds back.
    #[serde(default)]
    pub decays: Vec<DecayRuleReport>,
    /// Of which files `projid` is known, for each export; empty unless rules ask a proxy for it.
    #[serde(default)]
    pub projid: Vec<ExportProjects>,
    /// What is under way that no rule takes, on each target.
    pub unmatched: Vec<RuleLoad>,
    /// The part of the reserved rates that could not be kept in the last second, in parts per
    /// million, by target: above 0 where more is reserved than the target gives.
    pub promises_cut_ppm: BTreeMap<String, u64>,
}

/// Of which files of an export the project quota id is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportProjects {
    /// The export's name.
    pub export: String,
    /// Of which files.
    pub known: ProjectsKnown,
}

/// Of which files a project quota id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProjectsKnown {
    /// Of all.
    Files,
    /// Of those that are open: the proxy's kernel cannot tell it of others without an open.
    OpenFiles,
    /// Of none: the file system has no projects.
    Nothing,
}

/// One rule: a condition and what it grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRule {
    /// Unique among the rules.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide it into classes.
    pub per: Vec<String>,
    /// The part of the service beside other classes.
    pub weight: u32,
    /// The promised rate of each class, as `500MB/s`.
    pub reserve: Option<String>,
    /// The part of that rate's device time, in parts per million, by which requests without bytes
    /// go before shares; absent: nothing is promised in bytes.
    pub reserve_metadata_ppm: Option<u32>,
    /// Ceilings of each class.
    pub limits: Vec<LimitReport>,
    /// What the one limit means: `realtime`, a promise too; `spare`, a promise and no
    /// ceiling; absent: a ceiling.
    pub limit_mode: Option<String>,
    /// The rule that its one limit depends on, and how.
    pub parent: Option<WireRuleDependency>,
    /// The most device slots of each class.
    pub slots: Option<u32>,
    /// Device slots that are left free for what it is promised.
    pub keep_slots: Option<u32>,
    /// The least part, in parts per million, that service had elsewhere leaves a class of its
    /// share here.
    pub min_share_ppm: Option<u32>,
    /// How its writes reach the backend; absent: as the target says.
    pub write_mode: Option<String>,
    /// The most classes it makes.
    pub max_classes: Option<u32>,
    /// Names the earlier rule that leaves nothing for this one; absent: it can match.
    pub shadowed_by: Option<String>,
    /// What there is of it on each target; empty for the rules of a file.
    pub targets: Vec<RuleLoad>,
}

/// What a rule's limit depends on: between `min` and the limit itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRuleDependency {
    /// The rule.
    pub rule: String,
    /// `follow`, `complement` or `gate`.
    pub kind: String,
    /// The part, rate or time that stands behind it.
    pub value: String,
    /// The least that the limit becomes.
    pub min: String,
}

/// What there is of one rule on one target now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleLoad {
    /// The target.
    pub target: String,
    /// What a limit with a parent is now; absent: the rule has no parent.
    pub effective_limit: Option<String>,
    /// Its classes, those lately idle included.
    pub classes: u64,
    /// Requests of theirs that wait.
    pub queued: u64,
    /// Requests of theirs at the backend.
    pub running: u64,
}

/// One meter: a ceiling beside the classes' own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireMeter {
    /// Unique among the meters.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide it into meters.
    pub per: Vec<String>,
    /// Rate, kinds and burst.
    pub limit: LimitReport,
}

/// One decay: a ceiling that falls with what a key had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayRuleReport {
    /// Unique among the decays.
    pub name: String,
    /// Whose requests count and are held back, `*` for anybody's.
    #[serde(rename = "match")]
    pub condition: String,
    /// Whose do not; absent: nobody's.
    pub exempt: Option<String>,
    /// The fields of which each distinct key has an account.
    pub per: Vec<String>,
    /// `read`, `write` or `metadata`.
    pub resource: String,
    /// `decay` or `step`.
    pub mode: String,
    /// The half-life or the period.
    pub span_ns: u64,
    /// The mean rate to which each key is entitled, as `70MB/s`.
    pub entitled: String,
    /// The rate at which each is held in any case.
    pub max: Option<String>,
    /// The rate below which none is held.
    pub floor: String,
    /// Whether it holds back only while requests wait for one another.
    pub contention: bool,
}

/// A ceiling on some kinds of request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitReport {
    /// The kinds that pay.
    pub kinds: Vec<String>,
    /// The rate, as `500MB/s` or `100ops/s`.
    pub rate: String,
    /// The most let through at once after idleness, in bytes or operations as the
    /// rate counts; absent: the dispatcher chooses.
    pub burst: Option<u64>,
}

impl WireRules {
    /// The rules of a text; nothing is known of a proxy that has them in force.
    pub fn of(text: &str, set: &RuleSet) -> WireRules {
        let mut rules: Vec<_> = set.rules.iter().map(WireRule::from).collect();
        for shadowed in set.shadowed() {
            rules[shadowed.rule].shadowed_by = Some(set.rules[shadowed.by].name.clone());
        }
        let meters = set.meters.iter().map(WireMeter::from).collect();
        let decays = set.decays.iter().map(DecayRuleReport::from).collect();
        let version = WireRules::version_of(text);
        WireRules { version, text: text.into(), rules, meters, decays, ..WireRules::default() }
    }

    /// The version as the header ETag has it.
    pub fn tag(&self) -> String {
        format!("\"{}\"", self.version)
    }

    /// The one version that the value of a header If-Match names; `None` for `*`.
    ///
    /// # Errors
    /// What it must be, if it is something else.
    pub fn version_named(value: &str) -> Result<Option<&str>, String> {
        let text = value.trim();
        if text == "*" {
            return Ok(None);
        }
        let version = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let version = version.filter(|version| !version.contains('"'));
        let wrong = || format!("If-Match must be one version in quotes or *, not {text:?}");
        version.map(Some).ok_or_else(wrong)
    }

    /// The version of a text: the first 8 bytes of its BLAKE3 in hexadecimal. The same text has
    /// the same one in every process and release, so an edit that began at one controller ends
    /// at another (std's hashes may change with each release of Rust).
    pub fn version_of(text: &str) -> String {
        let hash = blake3::hash(text.as_bytes());
        hash.to_hex()[..16].to_string()
    }
}

impl From<&Rule> for WireRule {
    fn from(rule: &Rule) -> WireRule {
        WireRule {
            name: rule.name.clone(),
            condition: rule.matcher.to_string(),
            per: words(&rule.per),
            weight: rule.share().get(),
            reserve: rule.promised().map(|rate| rate.to_string()),
            reserve_metadata_ppm: rule.reserve_metadata(),
            limits: rule.limits.iter().map(LimitReport::from).collect(),
            limit_mode: (rule.limit_mode != LimitMode::Hard).then(|| rule.limit_mode.key().into()),
            parent: rule.parent.as_ref().map(WireRuleDependency::from),
            slots: rule.slots,
            keep_slots: rule.keep_slots,
            min_share_ppm: rule.min_share_ppm,
            write_mode: rule.write_mode.map(|mode| mode.to_string()),
            max_classes: rule.max_classes,
            shadowed_by: None,
            targets: Vec::new(),
        }
    }
}

impl From<&RuleDependency> for WireRuleDependency {
    fn from(parent: &RuleDependency) -> WireRuleDependency {
        WireRuleDependency {
            rule: parent.rule.clone(),
            kind: parent.kind.name().into(),
            value: parent.kind.to_string(),
            min: parent.min.to_string(),
        }
    }
}

impl From<&MeterRule> for WireMeter {
    fn from(meter: &MeterRule) -> WireMeter {
        WireMeter {
            name: meter.name.clone(),
            condition: meter.matcher.to_string(),
            per: words(&meter.per),
            limit: LimitReport::from(&meter.limit),
        }
    }
}

impl From<&DecayRule> for DecayRuleReport {
    fn from(decay: &DecayRule) -> DecayRuleReport {
        let (mode, span) = match &decay.mode {
            DecayMode::Period { period, .. } => ("step", period),
            DecayMode::HalfLife { half_life, .. } => ("decay", half_life),
        };
        DecayRuleReport {
            name: decay.name.clone(),
            condition: decay.matcher.to_string(),
            exempt: decay.exempt.as_ref().map(ToString::to_string),
            per: words(&decay.per),
            resource: decay.resource.to_string(),
            mode: mode.into(),
            span_ns: span.get(),
            entitled: decay.entitled.to_string(),
            max: decay.max.map(|max| max.to_string()),
            floor: decay.floor.to_string(),
            contention: decay.contention,
        }
    }
}

impl From<&Limit> for LimitReport {
    fn from(limit: &Limit) -> LimitReport {
        LimitReport {
            kinds: limit.kinds.iter().map(|kind| kind.to_string()).collect(),
            rate: limit.rate.to_string(),
            burst: limit.burst,
        }
    }
}

fn words(per: &[KeyField]) -> Vec<String> {
    per.iter().map(|field| field.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_set_is_shown_whole() {
        let text = r#"
            # as it was written
            [[rule]]
            name = "jobs"
            match = "jobid={dd.*}"
            per = ["jobid", "uid"]
            weight = 4
            reserve = "50MB/s"
            max_classes = 3
            limit = "100MB/s"
            slots = 8
            write_mode = "paced"
            [[rule]]
            name = "late"
            match = "jobid={dd.*}"
            limit = "50ops/s"
            parent = { rule = "jobs", gate = "500ms", min = "5ops/s" }
            [[meter]]
            name = "opens"
            kinds = ["open"]
            rate = "100ops/s"
            burst = "5ops"
            "#;
        let rules = WireRules::of(text, &RuleSet::parse(text).unwrap());
        assert_eq!(rules.text, text);
        let limit = |kinds: &[&str], rate: &str, burst| LimitReport {
            kinds: kinds.iter().map(|kind| kind.to_string()).collect(),
            rate: rate.into(),
            burst,
        };
        let jobs = WireRule {
            name: "jobs".into(),
            condition: "jobid={dd.*}".into(),
            per: vec!["jobid".into(), "uid".into()],
            weight: 4,
            reserve: Some("50MB/s".into()),
            reserve_metadata_ppm: Some(100_000),
            limits: vec![limit(&["read", "write"], "100MB/s", None)],
            slots: Some(8),
            write_mode: Some("paced".into()),
            max_classes: Some(3),
            ..WireRule::default()
        };
        let all: Vec<_> = model::OpKind::ALL.iter().map(|kind| kind.name()).collect();
        let [rule, kind, value, min] = ["jobs", "gate", "500ms", "5ops/s"].map(String::from);
        let late = WireRule {
            name: "late".into(),
            condition: "jobid={dd.*}".into(),
            weight: 1,
            limits: vec![limit(&all, "50ops/s", None)],
            parent: Some(WireRuleDependency { rule, kind, value, min }),
            shadowed_by: Some("jobs".into()),
            ..WireRule::default()
        };
        assert_eq!(rules.rules, [jobs, late]);
        let opens = WireMeter {
            name: "opens".into(),
            condition: "*".into(),
            per: vec![],
            limit: limit(&["open"], "100ops/s", Some(5)),
        };
        assert_eq!(rules.meters, [opens]);
    }

    #[test]
    fn the_version_is_that_of_the_text_and_nothing_else() {
        let version = WireRules::version_of;
        assert_eq!(version("a"), version("a"));
        assert_ne!(version("a"), version("a "));
        assert_ne!(version(""), version("\n"));
    }

    #[test]
    fn the_version_is_the_same_in_every_release() {
        // The first of BLAKE3's own test vectors, and a text hashed by another implementation.
        assert_eq!(WireRules::version_of(""), "af1349b9f5f9a1a6");
        assert_eq!(
            WireRules::version_of("[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n"),
            "0c22fea12004a390"
        );
    }
}
