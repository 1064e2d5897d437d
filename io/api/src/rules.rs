//! The rules in force, as the control API returns them.
//!
//! ```text
//!   GET ─► text + version ─► edited ─► PUT, If-Match: version ─► in force
//!            ▲                              │ 409: changed by others
//!            └──────────────────────────────┘
//! ```

use std::collections::BTreeMap;

use rules::{
    DecayMode, DecayRule, KeyField, Limit, LimitMode, MeterRule, Rule, RuleDependency, RuleSet,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The rules and meters in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRules {
    /// Identifies this text. Send it as `If-Match` to change the rules only if they still have this
    /// version.
    pub version: String,
    /// The text of the rules, with its comments.
    pub text: String,
    /// The proxy's own rule file; absent if it has none.
    pub file: Option<String>,
    /// Whether the rule file held this text when the proxy last read or wrote it.
    pub saved: bool,
    /// The rules in their order: the first that matches takes the request.
    pub rules: Vec<WireRule>,
    /// The meters in their order: a request pays each one that matches.
    pub meters: Vec<WireMeter>,
    /// The decays in their order: each one that matches counts and throttles.
    #[serde(default)]
    pub decays: Vec<DecayRuleReport>,
    /// The files of which `projid` is known, for each export; empty unless rules use it at a proxy.
    #[serde(default)]
    pub projid: Vec<ExportProjects>,
    /// The load that matches none of the rules, on each target.
    pub unmatched: Vec<RuleLoad>,
    /// The part of the reserved rates that could not be served in the last second, in parts per
    /// million, by target: above 0 if the reservations exceed what the target can do.
    pub reservation_shortfall_ppm: BTreeMap<String, u64>,
}

/// The files of an export of which the project quota id is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportProjects {
    /// The name of the export.
    pub export: String,
    /// The files whose project quota id is known.
    pub known: ProjectsKnown,
}

/// The files of which a project quota id is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProjectsKnown {
    /// All files, open or not.
    Files,
    /// Open files only: the proxy's kernel cannot read it of other files without an open.
    OpenFiles,
    /// No files: the file system has no projects.
    NoProjects,
}

/// One rule: a condition and what it grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRule {
    /// The name, unique among the rules.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide its requests into classes.
    pub per: Vec<String>,
    /// The weight against other classes.
    pub weight: u32,
    /// The reserved rate of each class, such as `500MB/s`.
    pub reservation: Option<String>,
    /// The part of the device time of that rate, in parts per million, for requests without bytes
    /// that go before weights; absent if no bytes are reserved.
    pub reservation_metadata_ppm: Option<u32>,
    /// The limits of each class.
    pub limits: Vec<LimitReport>,
    /// The meaning of the one limit: `realtime`: also a reservation; `spare`: a reservation and not
    /// a limit; absent: a limit.
    pub limit_mode: Option<String>,
    /// The rule on which its one limit depends, and how.
    pub depends_on: Option<WireRuleDependency>,
    /// The most device slots of each class.
    pub slots: Option<u32>,
    /// Device slots that are left free for its reservation.
    pub reserved_slots: Option<u32>,
    /// The minimum, in parts per million, of its share here that service from other proxies leaves
    /// a class.
    pub min_local_service_ppm: Option<u32>,
    /// How its writes reach the backend; absent: as configured for the target.
    pub write_mode: Option<String>,
    /// The most classes it makes.
    pub max_classes: Option<u32>,
    /// The name of an earlier rule that takes all requests of this one; absent if this rule can
    /// match.
    pub shadowed_by: Option<String>,
    /// Its current state on each target; empty for the rules of a file.
    pub targets: Vec<RuleLoad>,
}

/// The dependency of a rule's limit, which moves between `min` and the limit itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRuleDependency {
    /// The name of the other rule.
    pub rule: String,
    /// `follow`, `remainder_of` or `when_idle`.
    pub kind: String,
    /// The value of that kind: a part, a rate or a time.
    pub value: String,
    /// The minimum of the limit.
    pub min: String,
}

/// The current state of one rule on one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleLoad {
    /// The name of the target.
    pub target: String,
    /// The current limit, if it depends on another rule; absent otherwise.
    pub effective_limit: Option<String>,
    /// Its classes, including recently idle ones.
    pub classes: u64,
    /// The number of requests that wait.
    pub queued: u64,
    /// Its requests at the backend.
    pub running: u64,
}

/// One meter: a limit besides those of classes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireMeter {
    /// The name, unique among the meters.
    pub name: String,
    /// The condition, `*` for any request.
    #[serde(rename = "match")]
    pub condition: String,
    /// The fields that divide its requests into meters.
    pub per: Vec<String>,
    /// Rate, kinds and burst.
    pub limit: LimitReport,
}

/// One decay: a limit that falls with the past usage of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecayRuleReport {
    /// The name, unique among the decays.
    pub name: String,
    /// The match of the requests that count and are throttled, `*` for all.
    #[serde(rename = "match")]
    pub condition: String,
    /// The match of the requests that are exempt; absent if there are none.
    pub exempt: Option<String>,
    /// The fields of which each distinct key has an account.
    pub per: Vec<String>,
    /// `read`, `write` or `metadata`.
    pub resource: String,
    /// `decay` or `period`: by half-life, or by period.
    pub mode: String,
    /// The half-life or the period.
    pub span_ns: u64,
    /// The mean rate to which each key is entitled, as `70MB/s`.
    pub entitlement: String,
    /// The rate at which each key is limited in any case.
    pub max: Option<String>,
    /// The rate below which no key is limited.
    pub floor: String,
    /// Whether it throttles only while requests wait for one another.
    pub contention: bool,
}

/// A limit on some kinds of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitReport {
    /// The kinds of requests that pay.
    pub kinds: Vec<String>,
    /// The rate, as `500MB/s` or `100ops/s`.
    pub rate: String,
    /// The burst: what is admitted at once after idleness, in bytes or operations like the rate;
    /// absent if the dispatcher chooses it.
    pub burst: Option<u64>,
}

impl WireRules {
    /// Returns the rules of a text, without the state of a proxy.
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

    /// Returns the version as the header ETag.
    pub fn tag(&self) -> String {
        format!("\"{}\"", self.version)
    }

    /// Returns the version that the value of a header If-Match names; `None` for `*`.
    ///
    /// # Errors
    /// If it is neither: the expected form.
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

    /// Returns the version of a text: the first 8 bytes of its BLAKE3 in hexadecimal. The same text
    /// has the same version in every process and release, so an edit can begin at one controller
    /// and end at another (the hashes of std may change with each release of Rust).
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
            weight: rule.effective_weight().get(),
            reservation: rule.reserved_rate().map(|rate| rate.to_string()),
            reservation_metadata_ppm: rule.reservation_metadata(),
            limits: rule.limits.iter().map(LimitReport::from).collect(),
            limit_mode: (rule.limit_mode != LimitMode::Hard).then(|| rule.limit_mode.key().into()),
            depends_on: rule.depends_on.as_ref().map(WireRuleDependency::from),
            slots: rule.slots,
            reserved_slots: rule.reserved_slots,
            min_local_service_ppm: rule.min_local_service_ppm,
            write_mode: rule.write_mode.map(|mode| mode.to_string()),
            max_classes: rule.max_classes,
            shadowed_by: None,
            targets: Vec::new(),
        }
    }
}

impl From<&RuleDependency> for WireRuleDependency {
    fn from(dependency: &RuleDependency) -> WireRuleDependency {
        WireRuleDependency {
            rule: dependency.rule.clone(),
            kind: dependency.kind.name().into(),
            value: dependency.kind.to_string(),
            min: dependency.min.to_string(),
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
            DecayMode::Period { period, .. } => ("period", period),
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
            entitlement: decay.entitlement.to_string(),
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
            reservation = "50MB/s"
            max_classes = 3
            limit = "100MB/s"
            slots = 8
            write_mode = "paced"
            [[rule]]
            name = "late"
            match = "jobid={dd.*}"
            limit = "50ops/s"
            depends_on = { rule = "jobs", when_idle = "500ms", min = "5ops/s" }
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
            reservation: Some("50MB/s".into()),
            reservation_metadata_ppm: Some(100_000),
            limits: vec![limit(&["read", "write"], "100MB/s", None)],
            slots: Some(8),
            write_mode: Some("paced".into()),
            max_classes: Some(3),
            ..WireRule::default()
        };
        let all: Vec<_> = model::OpKind::ALL.iter().map(|kind| kind.name()).collect();
        let [rule, kind, value, min] = ["jobs", "when_idle", "500ms", "5ops/s"].map(String::from);
        let late = WireRule {
            name: "late".into(),
            condition: "jobid={dd.*}".into(),
            weight: 1,
            limits: vec![limit(&all, "50ops/s", None)],
            depends_on: Some(WireRuleDependency { rule, kind, value, min }),
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
