//! A hypothetical request and the grant that rules give it.
//!
//! ```text
//!   'jobid=dd.500 uid=1000 opcode=write bytes=4MiB' ─► RequestSpec ─► RuleGrant
//!                                                                       rule, and why none before
//!                                                                       class, weight, reservation, …
//!                                                                       payments to meters
//! ```
//!
//! The lookup uses the same rule set and the same calls as a proxy.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use api::WireRules;
use model::{Amount, Bytes, Identity, JobId, Nid, OpKind, Ops, Rate};
use rules::{KeyField, Limit, Rule, RuleSet};
use serde::Serialize;

use super::list::{effective, percent};
use crate::top::table;

/// A hypothetical request, for which the rules are tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestSpec {
    identity: Identity,
    kind: OpKind,
    /// Path below the export's root; none: outside of the directories of all rules.
    path: Option<String>,
    amount: Amount,
}

/// The grant for a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RuleGrant {
    /// The request, with defaults filled in.
    request: String,
    /// The rules before the matching one, in order.
    passed_over: Vec<PassedOver>,
    /// The matching rule; `default` if none.
    rule: String,
    /// The key of its class; empty for a rule without `per`.
    class: String,
    weight: u32,
    /// The reservation, or a limit that is one.
    reservation: Option<String>,
    /// The part of it for requests without bytes; none without a reservation in bytes.
    reservation_metadata: Option<String>,
    slots: Option<u32>,
    write_mode: Option<String>,
    max_classes: Option<u32>,
    /// The rule that its limit depends on.
    depends_on: Option<String>,
    /// The current value of a limit that depends on another rule, if it is known.
    limit_now: Option<String>,
    /// False for requests that release something: they pay without waiting.
    waits: bool,
    pays: Vec<Payment>,
}

/// A rule that does not match a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PassedOver {
    rule: String,
    /// The term of the condition that does not hold, for each alternative.
    unmet: Vec<String>,
}

/// A request's payment to one meter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Payment {
    /// `rule` for a rule's limit, `meter` for a `[[meter]]`, `decay` for the `max` of a `[[decay]]`.
    of: &'static str,
    name: String,
    /// The key of the meter; empty if there is one for all.
    key: String,
    rate: String,
    burst: Option<String>,
    /// In the rate's unit.
    units: String,
}

/// The fields of a request.
const FIELDS: &str = "jobid, uid, gid, projid, nid, opcode, path, bytes, ops";
/// The number of an unknown user or group, as in the kernel.
const UNKNOWN: u32 = u32::MAX;

impl FromStr for RequestSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestSpec, String> {
        let who = Identity {
            job: JobId::default(),
            uid: UNKNOWN,
            gid: UNKNOWN,
            projid: None,
            nid: Nid::local(),
        };
        let amount = Amount::new(0, 1);
        let mut asked = RequestSpec { identity: who, kind: OpKind::Read, path: None, amount };
        let (mut bytes, mut seen) = (None, Vec::new());
        for (field, value) in fields(text)? {
            if seen.contains(&field) {
                return Err(format!("{field} is given twice"));
            }
            seen.push(field);
            let wrong = |want: &str| format!("{field}={value}: {want}");
            match field {
                "jobid" => {
                    let job = JobId::new(&value);
                    asked.identity.job = job.ok_or_else(|| {
                        wrong("a job's name has up to 128 bytes without control characters")
                    })?;
                }
                "uid" => asked.identity.uid = id(&value).map_err(wrong)?.unwrap_or(UNKNOWN),
                "gid" => asked.identity.gid = id(&value).map_err(wrong)?.unwrap_or(UNKNOWN),
                "projid" => asked.identity.projid = id(&value).map_err(wrong)?,
                "nid" => asked.identity.nid = nid(&value).map_err(wrong)?,
                "opcode" => {
                    asked.kind =
                        value.parse().map_err(|e: model::ParseKindError| wrong(&e.to_string()))?;
                }
                "path" if value.starts_with('/') => asked.path = Some(value),
                "path" => {
                    return Err(wrong("a path starts at the export and begins with /"));
                }
                "bytes" => {
                    let amount: Result<Bytes, _> = value.parse();
                    bytes = Some(amount.map_err(|error| wrong(&error.to_string()))?);
                }
                "ops" => {
                    let count = value.strip_suffix("ops").unwrap_or(&value).parse::<u64>();
                    let count = count.map_err(|_| wrong("a number of operations such as 1"))?;
                    asked.amount.ops = Ops::new(count);
                }
                _ => {
                    return Err(format!(
                        "{field:?} is not a field of a request; the fields are {FIELDS}"
                    ));
                }
            }
        }
        let moves_bytes = matches!(asked.kind, OpKind::Read | OpKind::Write);
        asked.amount.bytes = match bytes {
            Some(some) if !moves_bytes && some != Bytes::ZERO => {
                return Err(format!("bytes={some}: only read and write move bytes"));
            }
            Some(some) => some,
            None if moves_bytes => Bytes::mib(1),
            None => Bytes::ZERO,
        };
        Ok(asked)
    }
}

impl RuleGrant {
    /// Computes the grant of a rule set for a request; `rules` has the load of a proxy.
    pub(super) fn of(asked: &RequestSpec, set: &RuleSet, rules: &WireRules) -> RuleGrant {
        let RequestSpec { identity: who, kind, path, .. } = asked;
        let path = path.as_deref().unwrap_or_default();
        let paths =
            if path.is_empty() { Default::default() } else { set.path_set(path.as_bytes()) };
        let taken = set.rule_for(who, *kind, paths);
        let before = &set.rules[..taken.unwrap_or(set.rules.len())];
        let passed_over = before.iter().map(|rule| PassedOver {
            rule: rule.name.clone(),
            unmet: rule.matcher.unmet(who, *kind, paths),
        });
        let rule = taken.map(|at| &set.rules[at]);
        let key = |per: &[KeyField]| key(per, who, *kind);
        let class = rule.map_or(String::new(), |rule| key(&rule.per));
        let limits = rule.into_iter().flat_map(Rule::ceilings);
        let own = limits.filter(|limit| limit.kinds.contains(*kind)).map(|limit| {
            let name = rule.map_or(String::new(), |rule| rule.name.clone());
            Payment::of("rule", name, class.clone(), limit, asked)
        });
        let meters = set.meters_for(who, *kind, paths).map(|at| &set.meters[at]);
        let others = meters.map(|meter| {
            let (name, key) = (meter.name.clone(), key(&meter.per));
            Payment::of("meter", name, key, &meter.limit, asked)
        });
        let decays = set.decays_for(who, *kind, paths).map(|at| &set.decays[at]);
        let held = decays.filter_map(|decay| {
            let (name, key) = (decay.name.clone(), key(&decay.per));
            let limit = Limit { kinds: decay.resource.kinds(), rate: decay.max?, burst: None };
            Some(Payment::of("decay", name, key, &limit, asked))
        });
        let now = taken.map(|at| effective(&rules.rules[at].targets));
        RuleGrant {
            request: asked.to_string(),
            passed_over: passed_over.collect(),
            rule: rule.map_or(RuleSet::DEFAULT.into(), |rule| rule.name.clone()),
            weight: rule.map_or(1, |rule| rule.effective_weight().get()),
            reservation: text_of(rule, Rule::reserved_rate),
            reservation_metadata: rule.and_then(Rule::reservation_metadata).map(percent),
            slots: rule.and_then(|rule| rule.slots),
            write_mode: text_of(rule, |rule| rule.write_mode),
            max_classes: rule.and_then(|rule| rule.max_classes),
            depends_on: text_of(rule, |rule| rule.depends_on.clone()),
            limit_now: now.filter(|now| !now.is_empty()),
            waits: !kind.never_delayed(),
            pays: own.chain(others).chain(held).collect(),
            class,
        }
    }
}

impl Payment {
    fn of(
        of: &'static str,
        name: String,
        key: String,
        limit: &Limit,
        asked: &RequestSpec,
    ) -> Payment {
        let units = |units: u64| match limit.rate {
            Rate::Bytes(_) => Bytes::new(units).to_string(),
            Rate::Ops(_) => Ops::new(units).to_string(),
        };
        let pays = units(limit.units_of(asked.kind, asked.amount));
        let (rate, burst) = (limit.rate.to_string(), limit.burst.map(units));
        Payment { of, name, key, rate, burst, units: pays }
    }
}

impl fmt::Display for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: Option<u32>| match id {
            Some(UNKNOWN) | None => "-1".to_owned(),
            Some(id) => id.to_string(),
        };
        let Identity { job, uid, gid, projid, nid } = &self.identity;
        let job = job.as_str();
        let job = if job.is_empty() || job.contains(' ') { format!("'{job}'") } else { job.into() };
        write!(f, "jobid={job} uid={} gid={}", id(Some(*uid)), id(Some(*gid)))?;
        write!(f, " projid={} nid={nid} opcode={}", id(*projid), self.kind)?;
        if let Some(path) = &self.path {
            write!(f, " path={path}")?;
        }
        write!(f, " bytes={} ops={}", self.amount.bytes, self.amount.ops.get())
    }
}

impl fmt::Display for RuleGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        for PassedOver { rule, unmet } in &self.passed_over {
            writeln!(f, "  not matched by {rule}: not {}", unmet.join(", not "))?;
        }
        match self.rule.as_str() {
            RuleSet::DEFAULT => writeln!(f, "  not matched by any rule: default")?,
            rule => writeln!(f, "  matched by rule {rule}")?,
        }
        let class = match self.class.as_str() {
            "" => format!("{}, the only class", self.rule),
            key => format!("{} of {key}", self.rule),
        };
        let mut line = |name: &str, value: Option<&dyn fmt::Display>| match value {
            Some(value) => writeln!(f, "{name:<11} {value}"),
            None => Ok(()),
        };
        line("class", Some(&class))?;
        line("weight", Some(&self.weight))?;
        let metadata = self.reservation_metadata.as_ref().map(|part| format!(", metadata {part}"));
        let reservation =
            self.reservation.as_ref().map(|rate| rate.clone() + &metadata.unwrap_or_default());
        line("reservation", reservation.as_ref().map(|v| v as _))?;
        line("slots", self.slots.as_ref().map(|v| v as _))?;
        line("write_mode", self.write_mode.as_ref().map(|v| v as _))?;
        line("max_classes", self.max_classes.as_ref().map(|v| v as _))?;
        line("depends_on", self.depends_on.as_ref().map(|v| v as _))?;
        line("limit now", self.limit_now.as_ref().map(|v| v as _))?;
        if self.pays.is_empty() {
            return writeln!(f, "pays no meter");
        }
        let rows = self.pays.iter().map(|payment| {
            let Payment { of, name, key, rate, burst, units } = payment;
            let whom = if *of == "rule" { "limit of rule" } else { "meter" };
            let burst = burst.clone().unwrap_or_default();
            vec![units.clone(), format!("{whom} {name}"), key.clone(), rate.clone(), burst]
        });
        f.write_str(&table::aligned(&["PAYS", "TO", "OF", "RATE", "BURST"], &[0], rows))?;
        if !self.waits {
            writeln!(f, "pays without waiting, as it releases something")?;
        }
        Ok(())
    }
}

/// Parses `FIELD=VALUE` words; a value with spaces is in quotes.
fn fields(text: &str) -> Result<Vec<(&str, String)>, String> {
    let mut fields = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let word = rest.split_whitespace().next().unwrap_or_default();
        let Some((field, value)) =
            rest.split_once('=').filter(|(field, _)| word.len() > field.len())
        else {
            return Err(format!("{word:?} is not FIELD=VALUE; the fields are {FIELDS}"));
        };
        let quote = value.chars().next().filter(|first| matches!(first, '\'' | '"'));
        let (value, behind) = match quote {
            Some(quote) => value[1..]
                .split_once(quote)
                .ok_or_else(|| format!("{field}={value}: the closing {quote} is missing"))?,
            None => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
        };
        fields.push((field, value.to_owned()));
        rest = behind.trim_start();
    }
    Ok(fields)
}

/// Parses a user, group or project; `None` for −1, which is unknown.
fn id(text: &str) -> Result<Option<u32>, &'static str> {
    match text {
        "-1" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| "a number such as 1000, or -1 for unknown"),
    }
}

fn nid(text: &str) -> Result<Nid, &'static str> {
    const WANT: &str = "a node's name such as 10.0.0.1@tcp, 2001:db8::7@tcp or 0@lo";
    if text == "0@lo" {
        return Ok(Nid::local());
    }
    let address: Option<IpAddr> = text.strip_suffix("@tcp").and_then(|ip| ip.parse().ok());
    address.map(Nid::tcp).ok_or(WANT)
}

fn key(per: &[KeyField], who: &Identity, kind: OpKind) -> String {
    let values = rules::key_of(per, who, kind);
    values.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

fn text_of<T: ToString>(rule: Option<&Rule>, part: impl Fn(&Rule) -> Option<T>) -> Option<String> {
    rule.and_then(part).map(|part| part.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\
        [[rule]]\nname = \"ckpt\"\nmatch = \"jobid={ckpt.*}&opcode={write},uid={0}\"\n\
        [[rule]]\nname = \"old\"\nmatch = \"path={/old}\"\n\
        [[rule]]\nname = \"jobs\"\nper = [\"jobid\", \"uid\"]\nweight = 4\nreservation = \"5MB/s\"\n\
        max_classes = 8\nslots = 2\n\
        limit = { write = \"50MB/s\", all = \"500ops/s\", create = \"9ops/s\", burst = \"1s\" }\n\
        [[meter]]\nname = \"node\"\nper = [\"nid\"]\nrate = \"1GB/s\"\n\
        [[meter]]\nname = \"other\"\nmatch = \"uid={7}\"\nrate = \"1GB/s\"\n";

    fn grant(request: &str) -> RuleGrant {
        let set = RuleSet::parse(RULES).unwrap();
        RuleGrant::of(&request.parse().unwrap(), &set, &WireRules::of(RULES, &set))
    }

    #[test]
    fn a_request_is_told_its_rule_its_class_and_all_that_it_pays() {
        let request = "jobid=dd.500 uid=1000 nid=10.0.0.1@tcp opcode=write path=/a/b bytes=4MiB";
        assert_eq!(
            grant(request).to_string(),
            "jobid=dd.500 uid=1000 gid=-1 projid=-1 nid=10.0.0.1@tcp opcode=write path=/a/b \
             bytes=4MiB ops=1\n\
             \x20 not matched by ckpt: not jobid={ckpt.*}, not uid={0}\n\
             \x20 not matched by old: not path={/old}\n\
             \x20 matched by rule jobs\n\
             class       jobs of jobid=dd.500 uid=1000\n\
             weight      4\n\
             reservation 5MB/s, metadata 10%\n\
             slots       2\n\
             max_classes 8\n\
             PAYS  TO                  OF                     RATE      BURST\n\
             4MiB  limit of rule jobs  jobid=dd.500 uid=1000  50MB/s    50MB\n\
             1ops  limit of rule jobs  jobid=dd.500 uid=1000  500ops/s  500ops\n\
             4MiB  meter node          nid=10.0.0.1@tcp       1GB/s\n"
        );
    }

    #[test]
    fn the_example_in_docs_is_what_is_printed() {
        const DOCS: &str = include_str!("../../../../docs/RULES.md");
        let text = "[[rule]]\nname = \"checkpoint\"\nmatch = \"jobid={ckpt.*}\"\nweight = 8\n\
                    [[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\nweight = 2\nlimit = \"500MB/s\"\n\
                    [[meter]]\nname = \"each-user\"\nper = [\"uid\"]\nrate = \"1GB/s\"\n";
        let set = RuleSet::parse(text).unwrap();
        let asked =
            DOCS.split("rules.toml --request '").nth(1).unwrap().split('\'').next().unwrap();
        let grant = RuleGrant::of(&asked.parse().unwrap(), &set, &WireRules::of(text, &set));
        assert!(DOCS.contains(&grant.to_string()), "{grant}");
    }

    #[test]
    fn what_no_rule_takes_is_in_default_and_what_gives_back_never_waits() {
        let set = RuleSet::parse("[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\n").unwrap();
        let grant = RuleGrant::of(&"opcode=clunk".parse().unwrap(), &set, &WireRules::default());
        assert_eq!((grant.rule.as_str(), grant.weight, grant.waits), ("default", 1, false));
        assert!(grant.to_string().ends_with("weight      1\npays no meter\n"), "{grant}");
        let clunk = self::grant("opcode=clunk");
        assert!(clunk.to_string().ends_with("pays without waiting, as it releases something\n"));
    }

    #[test]
    fn a_value_with_spaces_stands_in_quotes() {
        let asked: RequestSpec = " path='/My Data'  jobid=\"a b\" ops=5".parse().unwrap();
        assert_eq!((asked.path.as_deref(), asked.identity.job.as_str()), (Some("/My Data"), "a b"));
        assert_eq!((asked.amount.ops.get(), asked.amount.bytes), (5, Bytes::mib(1)));
        let asked: RequestSpec = "opcode=walk projid=5".parse().unwrap();
        assert_eq!((asked.identity.projid, asked.amount.bytes), (Some(5), Bytes::ZERO));
    }

    #[test]
    fn a_wrong_field_is_named_with_the_right_ones() {
        for (request, expected) in [
            (
                "user=5",
                "\"user\" is not a field of a request; the fields are jobid, uid, gid, projid, nid, opcode, path",
            ),
            ("uid", "\"uid\" is not FIELD=VALUE; the fields are jobid,"),
            ("uid gid=5", "\"uid\" is not FIELD=VALUE"),
            ("uid=ann", "uid=ann: a number such as 1000"),
            ("uid=1 uid=2", "uid is given twice"),
            ("nid=10.0.0.1", "nid=10.0.0.1: a node's name such as 10.0.0.1@tcp"),
            (
                "opcode=ost_read",
                "opcode=ost_read: \"ost_read\" is not a kind of request; use one of read,",
            ),
            ("path=a", "path=a: a path starts at the export and begins with /"),
            ("bytes=4MiB opcode=walk", "bytes=4MiB: only read and write move bytes"),
            ("bytes=much", "bytes=much: "),
            ("ops=-1", "ops=-1: a number of operations"),
            ("jobid='a", "jobid='a: the closing ' is missing"),
        ] {
            let error = request.parse::<RequestSpec>().unwrap_err();
            assert!(error.starts_with(expected), "{request}: {error}");
        }
    }
}
