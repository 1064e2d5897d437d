//! A checked report in the types of `plan`, from either form.
//!
//! ```text
//!   JSON ─► ProxyReport ──────────────────────────┐
//!   postcard ─► names still bytes ─► Named ─► ────┴─► CheckedReport: plan::Report by target, usage
//!                                      └ the same bytes are the same scope or subject: read once
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Scope, ScopeUsage};
use plan::ShareReport;
use rustc_hash::FxHashMap;
use serde::{Deserialize, de::DeserializeOwned};

use super::forms::part;
use super::{
    ProxyReport, UsageLine, UsageReport, WireCounters, WireHoldings, WireMembership, WireScope,
    WireScopeService, WireSubjectId, WireTargetReport, WrongMessage,
};
use crate::why::ProxyReply;

/// A report with checked values.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedReport {
    /// The epoch of the proxy.
    pub epoch: u64,
    /// The version of the rules from the controller.
    pub rules: Option<String>,
    /// The reports of its targets.
    pub targets: Vec<(Arc<str>, ShareReport)>,
    /// The usage of its subjects, if the report has it.
    pub usage: Option<CheckedUsage>,
    /// Whether requests of several classes wait for one another at any target.
    pub contended: bool,
    /// Replies to pending queries of the controller.
    pub replies: Vec<ProxyReply>,
}

/// A [`UsageReport`] with checked values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedUsage {
    /// The number of the usage report, which grows in an epoch.
    pub sequence: u64,
    /// Total service, with and without a line.
    pub total: WireCounters,
    /// The lines that changed since the last report.
    pub lines: Vec<CheckedLine>,
    /// Lines that it has dropped.
    pub dropped_lines: Vec<u64>,
}

/// A [`UsageLine`] with a checked subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedLine {
    /// The number of the line at the proxy.
    pub id: u64,
    /// The subject of the line.
    pub subject: Arc<WireSubjectId>,
    /// The cumulative counters of the line.
    pub counters: WireCounters,
}

/// The scopes and subjects of recent reports, by their bytes: a thousand proxies name the same ones
/// each second, and memory for their names was a third of the cost of a report.
#[derive(Debug, Default)]
pub struct ScopeInterner {
    scopes: FxHashMap<Box<[u8]>, Scope>,
    payers: FxHashMap<Box<[u8]>, Arc<WireSubjectId>>,
}

/// [`ProxyReport`] in its compact form, which borrows from the body.
#[derive(Deserialize)]
struct Compact<'a> {
    epoch: u64,
    rules: Option<String>,
    #[serde(borrow)]
    targets: BTreeMap<&'a str, CompactTarget<'a>>,
    #[serde(borrow)]
    usage: Option<CompactUsage<'a>>,
    contended: bool,
    answers: Vec<ProxyReply>,
}

/// [`UsageReport`] in its compact form.
#[derive(Deserialize)]
struct CompactUsage<'a> {
    sequence: u64,
    total: WireCounters,
    #[serde(borrow)]
    lines: Vec<CompactLine<'a>>,
    dropped_lines: Vec<u64>,
}

/// [`UsageLine`]: its number, the bytes of the subject, and the counters.
type CompactLine<'a> = (u64, &'a [u8], WireCounters);

/// [`WireScopeUsage`](crate::WireScopeUsage): the bytes of the scope, its usage, and whether
/// requests wait.
type CompactUse<'a> = (&'a [u8], Option<u32>, bool);

/// [`WireTargetReport`] in its compact form.
#[derive(Deserialize)]
struct CompactTarget<'a> {
    sequence: u64,
    term: WireMembership,
    last_assignment: u64,
    revision: u64,
    lease_expired: bool,
    holdings: Option<WireHoldings>,
    #[serde(borrow)]
    uses: Option<Vec<CompactUse<'a>>>,
    served: Vec<WireScopeService>,
}

impl CheckedReport {
    /// Checks the report of the proxy `from`.
    ///
    /// # Errors
    /// If a value is not valid: names the target and the value.
    pub fn new(from: &Arc<str>, said: ProxyReport) -> Result<CheckedReport, WrongMessage> {
        let ProxyReport { epoch, rules, targets, usage, contended, replies: answers } = said;
        let taken = |(target, form): (&String, &WireTargetReport)| {
            let report = form.to_report(from, epoch).map_err(|why| why.at(target))?;
            Ok((target.as_str().into(), report))
        };
        let targets = targets.iter().map(taken).collect::<Result<_, WrongMessage>>()?;
        let usage = usage.map(CheckedUsage::from);
        Ok(CheckedReport { epoch, rules, targets, usage, contended, replies: answers })
    }
}

impl From<UsageReport> for CheckedUsage {
    fn from(said: UsageReport) -> CheckedUsage {
        let UsageReport { sequence, total, lines, dropped_lines: gone } = said;
        let line = |line: UsageLine| CheckedLine {
            id: line.id,
            subject: line.subject.into(),
            counters: line.counters,
        };
        CheckedUsage {
            sequence,
            total,
            lines: lines.into_iter().map(line).collect(),
            dropped_lines: gone,
        }
    }
}

impl ScopeInterner {
    /// Checks the report of the proxy `from` in the compact form.
    ///
    /// # Errors
    /// If the bytes are not exactly one such message, or a value is not valid.
    pub fn report(&mut self, from: &Arc<str>, bytes: &[u8]) -> Result<CheckedReport, WrongMessage> {
        const WANT: &str = "a report in the form of its content type";
        let said = match postcard::take_from_bytes::<Compact<'_>>(bytes) {
            Ok((said, [])) => said,
            Ok((_, rest)) => {
                return Err(WrongMessage::new(format!("{} bytes after the end", rest.len()), WANT));
            }
            Err(why) => return Err(WrongMessage::new(why, WANT)),
        };
        if !said.answers.is_empty() {
            return Err(WrongMessage::new("a report with answers", WANT));
        }
        let Compact { epoch, rules, targets, usage, contended, answers } = said;
        let mut taken = Vec::with_capacity(targets.len());
        for (target, said) in targets {
            let use_of = |(scope, used, waiting): &CompactUse<'_>| {
                let used = used.map(part).transpose()?;
                Ok((self.scope(scope)?, ScopeUsage { used, waiting: *waiting }))
            };
            let uses = said.uses.as_ref().map(|uses| uses.iter().map(use_of).collect());
            let uses: Result<Option<Vec<_>>, WrongMessage> = uses.transpose();
            let form = WireTargetReport {
                sequence: said.sequence,
                term: said.term,
                last_assignment: said.last_assignment,
                revision: said.revision,
                lease_expired: said.lease_expired,
                holdings: said.holdings,
                uses: None,
                served: said.served,
            };
            let report = form.to_report(from, epoch).map_err(|why| why.at(target))?;
            let uses = uses.map_err(|why| why.at(target))?;
            taken.push((target.into(), ShareReport { uses, ..report }));
        }
        let usage = usage.map(|said| self.usage(said)).transpose()?;
        Ok(CheckedReport { epoch, rules, targets: taken, usage, contended, replies: answers })
    }

    fn usage(&mut self, said: CompactUsage<'_>) -> Result<CheckedUsage, WrongMessage> {
        let CompactUsage { sequence, total, lines, dropped_lines: gone } = said;
        let line = |(id, payer, counters): CompactLine<'_>| {
            Ok(CheckedLine { id, subject: self.payer(payer)?, counters })
        };
        let lines = lines.into_iter().map(line).collect::<Result<_, WrongMessage>>()?;
        Ok(CheckedUsage { sequence, total, lines, dropped_lines: gone })
    }

    fn scope(&mut self, bytes: &[u8]) -> Result<Scope, WrongMessage> {
        if let Some(scope) = self.scopes.get(bytes) {
            return Ok(scope.clone());
        }
        let scope = read::<WireScope>(bytes, "a scope")?.to_scope()?;
        Ok(intern(&mut self.scopes, bytes, scope))
    }

    fn payer(&mut self, bytes: &[u8]) -> Result<Arc<WireSubjectId>, WrongMessage> {
        if let Some(payer) = self.payers.get(bytes) {
            return Ok(payer.clone());
        }
        let payer = read::<WireSubjectId>(bytes, "a subject")?;
        Ok(intern(&mut self.payers, bytes, payer.into()))
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T, WrongMessage> {
    postcard::from_bytes(bytes).map_err(|why| WrongMessage::new(why, what))
}

fn intern<T: Clone>(known: &mut FxHashMap<Box<[u8]>, T>, bytes: &[u8], what: T) -> T {
    if known.len() >= NAMED_MAX {
        known.clear();
    }
    known.insert(bytes.into(), what.clone());
    what
}

/// The most entries of each kind, as many as a controller lists; more are decoded again each time.
const NAMED_MAX: usize = 131_072;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy_wire::compact::tests::report;

    #[test]
    fn both_forms_say_the_same() {
        let (from, mut named) = ("a".into(), ScopeInterner::default());
        let json = serde_json::from_slice(&serde_json::to_vec(&report()).unwrap()).unwrap();
        let plain = CheckedReport::new(&from, json).unwrap();
        let compact = report().to_compact().unwrap();
        for _ in 0..2 {
            assert_eq!(named.report(&from, &compact).unwrap(), plain);
        }
        assert_eq!((named.scopes.len(), named.payers.len()), (1, 1));
    }

    #[test]
    fn bytes_that_are_no_report_are_refused() {
        let (from, mut named) = ("a".into(), ScopeInterner::default());
        let bytes = report().to_compact().unwrap();
        for short in 0..bytes.len() {
            let error = named.report(&from, &bytes[..short]).unwrap_err().to_string();
            assert!(error.contains("is not a report in the form"), "{error}");
        }
        let long = [bytes.as_slice(), b"x"].concat();
        let error = named.report(&from, &long).unwrap_err().to_string();
        assert!(error.contains("1 bytes after the end"), "{error}");
        // Lengths that nothing follows.
        assert!(named.report(&from, &[0xff; 64]).is_err());
        assert!(named.report(&from, &[0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }

    #[test]
    fn a_value_that_cannot_be_is_named_with_its_target() {
        let (from, mut named) = ("a".into(), ScopeInterner::default());
        let mut wrong = report();
        wrong.targets.get_mut("fs").unwrap().uses.as_mut().unwrap()[0].scope.section =
            "ruel".into();
        let compact = named.report(&from, &wrong.to_compact().unwrap()).unwrap_err();
        let plain = CheckedReport::new(&from, wrong).unwrap_err();
        for error in [compact, plain] {
            let expected = "target fs: \"ruel\" is not one of rule, meter, decay";
            assert_eq!(error.to_string(), expected);
        }
    }
}
