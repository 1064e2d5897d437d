//! The rules in force, as the control API shows them.

use model::{KeyField, Limit, MeterRule, Rule, RuleSet};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The rules and meters in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rules {
    /// The whole as the TOML text that a rule file would hold.
    pub text: String,
    /// Rules in their order: the first that matches takes the request.
    pub rules: Vec<RuleReport>,
    /// Meters in their order: each one that matches is paid.
    pub meters: Vec<MeterReport>,
}

/// One rule: a condition and what it grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleReport {
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
    /// Ceilings of each class.
    pub limits: Vec<LimitReport>,
    /// The most device slots of each class.
    pub slots: Option<u32>,
    /// How its writes reach the backend; absent: as the target says.
    pub write_mode: Option<String>,
    /// The most classes it makes.
    pub max_classes: Option<u32>,
    /// Names the earlier rule that leaves nothing for this one; absent: it can match.
    pub shadowed_by: Option<String>,
}

/// One meter: a ceiling beside the classes' own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeterReport {
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

impl From<&RuleSet> for Rules {
    fn from(set: &RuleSet) -> Rules {
        let mut rules: Vec<_> = set.rules.iter().map(RuleReport::from).collect();
        for shadowed in set.shadowed() {
            rules[shadowed.rule].shadowed_by = Some(set.rules[shadowed.by].name.clone());
        }
        let meters = set.meters.iter().map(MeterReport::from).collect();
        Rules { text: set.to_toml(), rules, meters }
    }
}

impl From<&Rule> for RuleReport {
    fn from(rule: &Rule) -> RuleReport {
        RuleReport {
            name: rule.name.clone(),
            condition: rule.matcher.to_string(),
            per: words(&rule.per),
            weight: rule.share().get(),
            reserve: rule.promised().map(|rate| rate.to_string()),
            limits: rule.limits.iter().map(LimitReport::from).collect(),
            slots: rule.slots,
            write_mode: rule.write_mode.map(|mode| mode.to_string()),
            max_classes: rule.max_classes,
            shadowed_by: None,
        }
    }
}

impl From<&MeterRule> for MeterReport {
    fn from(meter: &MeterRule) -> MeterReport {
        MeterReport {
            name: meter.name.clone(),
            condition: meter.matcher.to_string(),
            per: words(&meter.per),
            limit: LimitReport::from(&meter.limit),
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
        let set = RuleSet::parse(
            r#"
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
            [[meter]]
            name = "opens"
            kinds = ["open"]
            rate = "100ops/s"
            burst = "5ops"
            "#,
        )
        .unwrap();
        let rules = Rules::from(&set);
        assert_eq!(RuleSet::parse(&rules.text).unwrap(), set);
        let limit = |kinds: &[&str], rate: &str, burst| LimitReport {
            kinds: kinds.iter().map(|kind| kind.to_string()).collect(),
            rate: rate.into(),
            burst,
        };
        let jobs = RuleReport {
            name: "jobs".into(),
            condition: "jobid={dd.*}".into(),
            per: vec!["jobid".into(), "uid".into()],
            weight: 4,
            reserve: Some("50MB/s".into()),
            limits: vec![limit(&["read", "write"], "100MB/s", None)],
            slots: Some(8),
            write_mode: Some("paced".into()),
            max_classes: Some(3),
            shadowed_by: None,
        };
        let late = RuleReport {
            name: "late".into(),
            condition: "jobid={dd.*}".into(),
            weight: 1,
            shadowed_by: Some("jobs".into()),
            ..RuleReport::default()
        };
        assert_eq!(rules.rules, [jobs, late]);
        let opens = MeterReport {
            name: "opens".into(),
            condition: "*".into(),
            per: vec![],
            limit: limit(&["open"], "100ops/s", Some(5)),
        };
        assert_eq!(rules.meters, [opens]);
    }
}
