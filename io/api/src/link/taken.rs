//! A report as a controller takes it in: plan's own types, whatever form it came in.
//!
//! ```text
//!   JSON ─► ProxyReport ──────────────────────────┐
//!   postcard ─► names still bytes ─► Scopes ─► ───┴─► TakenReport: plan::Report by target, usage
//!                                      └ the same bytes are the same scope: read once
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::{Scope, Use};
use plan::Report;
use serde::Deserialize;

use super::forms::part;
use super::{
    HoldingsForm, ProxyReport, ScopeForm, ServedOf, TargetReportForm, TermForm, UsageReport,
    WrongMessage,
};
use crate::why::ProxyAnswer;

/// A report, read and found to be possible.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenReport {
    /// Which of the proxy's lives.
    pub epoch: u64,
    /// The version of the rules that a controller gave it.
    pub rules: Option<String>,
    /// Its standing with each target.
    pub targets: Vec<(Arc<str>, Report)>,
    /// What was used.
    pub usage: Option<UsageReport>,
    /// Whether requests of several classes wait for one another somewhere.
    pub contended: bool,
    /// Answers to what was asked.
    pub answers: Vec<ProxyAnswer>,
}

/// The scopes that reports named lately, by the bytes that stood for them: a thousand proxies
/// name the same ones each second.
#[derive(Debug, Default)]
pub struct Scopes(HashMap<Box<[u8]>, Scope>);

/// [`ProxyReport`] in its compact form, of which it borrows.
#[derive(Deserialize)]
struct Compact<'a> {
    epoch: u64,
    rules: Option<String>,
    #[serde(borrow)]
    targets: BTreeMap<&'a str, CompactTarget<'a>>,
    usage: Option<UsageReport>,
    contended: bool,
    answers: Vec<ProxyAnswer>,
}

/// [`UseOf`](crate::UseOf): the scope's bytes, what was used of it, and whether somebody waits.
type CompactUse<'a> = (&'a [u8], Option<u32>, bool);

/// [`TargetReportForm`], likewise.
#[derive(Deserialize)]
struct CompactTarget<'a> {
    sequence: u64,
    term: TermForm,
    heard: u64,
    revision: u64,
    lapsed: bool,
    holdings: Option<HoldingsForm>,
    #[serde(borrow)]
    uses: Option<Vec<CompactUse<'a>>>,
    served: Vec<ServedOf>,
}

impl TakenReport {
    /// What the proxy `from` said.
    ///
    /// # Errors
    /// Names the target and the value that cannot be.
    pub fn new(from: &Arc<str>, said: ProxyReport) -> Result<TakenReport, WrongMessage> {
        let ProxyReport { epoch, rules, targets, usage, contended, answers } = said;
        let taken = |(target, form): (&String, &TargetReportForm)| {
            let report = form.to_report(from, epoch).map_err(|why| why.at(target))?;
            Ok((target.as_str().into(), report))
        };
        let targets = targets.iter().map(taken).collect::<Result<_, WrongMessage>>()?;
        Ok(TakenReport { epoch, rules, targets, usage, contended, answers })
    }
}

impl Scopes {
    /// What the proxy `from` said in the compact form.
    ///
    /// # Errors
    /// If the bytes are no such message, or more than one; or names the value that cannot be.
    pub fn report(&mut self, from: &Arc<str>, bytes: &[u8]) -> Result<TakenReport, WrongMessage> {
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
                Ok((self.scope(scope)?, Use { used, waiting: *waiting }))
            };
            let uses = said.uses.as_ref().map(|uses| uses.iter().map(use_of).collect());
            let uses: Result<Option<Vec<_>>, WrongMessage> = uses.transpose();
            let form = TargetReportForm {
                sequence: said.sequence,
                term: said.term,
                heard: said.heard,
                revision: said.revision,
                lapsed: said.lapsed,
                holdings: said.holdings,
                uses: None,
                served: said.served,
            };
            let report = form.to_report(from, epoch).map_err(|why| why.at(target))?;
            let uses = uses.map_err(|why| why.at(target))?;
            taken.push((target.into(), Report { uses, ..report }));
        }
        Ok(TakenReport { epoch, rules, targets: taken, usage, contended, answers })
    }

    fn scope(&mut self, bytes: &[u8]) -> Result<Scope, WrongMessage> {
        if let Some(scope) = self.0.get(bytes) {
            return Ok(scope.clone());
        }
        let form = postcard::from_bytes::<ScopeForm>(bytes);
        let scope = form.map_err(|why| WrongMessage::new(why, "a scope"))?.to_scope()?;
        if self.0.len() >= SCOPES_MAX {
            self.0.clear();
        }
        self.0.insert(bytes.into(), scope.clone());
        Ok(scope)
    }
}

/// As many as a controller lists; with more, reading them anew is what they cost.
const SCOPES_MAX: usize = 131_072;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::compact::tests::report;

    #[test]
    fn both_forms_say_the_same() {
        let (from, mut scopes) = ("a".into(), Scopes::default());
        let json = serde_json::from_slice(&serde_json::to_vec(&report()).unwrap()).unwrap();
        let plain = TakenReport::new(&from, json).unwrap();
        let compact = report().to_compact().unwrap();
        for _ in 0..2 {
            assert_eq!(scopes.report(&from, &compact).unwrap(), plain);
        }
        assert_eq!((plain.targets[0].1.uses.as_ref().unwrap().len(), scopes.0.len()), (1, 1));
    }

    #[test]
    fn bytes_that_are_no_report_are_refused() {
        let (from, mut scopes) = ("a".into(), Scopes::default());
        let bytes = report().to_compact().unwrap();
        for short in 0..bytes.len() {
            let error = scopes.report(&from, &bytes[..short]).unwrap_err().to_string();
            assert!(error.contains("is not a report in the form"), "{error}");
        }
        let long = [bytes.as_slice(), b"x"].concat();
        let error = scopes.report(&from, &long).unwrap_err().to_string();
        assert!(error.contains("1 bytes after the end"), "{error}");
        // Lengths that nothing follows.
        assert!(scopes.report(&from, &[0xff; 64]).is_err());
        assert!(scopes.report(&from, &[0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }

    #[test]
    fn a_value_that_cannot_be_is_named_with_its_target() {
        let (from, mut scopes) = ("a".into(), Scopes::default());
        let mut wrong = report();
        wrong.targets.get_mut("fs").unwrap().uses.as_mut().unwrap()[0].scope.section =
            "ruel".into();
        let compact = scopes.report(&from, &wrong.to_compact().unwrap()).unwrap_err();
        let plain = TakenReport::new(&from, wrong).unwrap_err();
        for error in [compact, plain] {
            let expected = "target fs: \"ruel\" is not one of rule, meter, decay";
            assert_eq!(error.to_string(), expected);
        }
    }
}
