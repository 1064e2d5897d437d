//! `[[expect]]`: the claims of a scenario, and whether they hold.
//!
//! ```text
//!   what = "rate small"             a job's figure
//!   what = "rate a / b"             the quotient of two jobs' figures
//!   what = "rate a", against = "fifo"   the quotient of two schedulers' figures
//!   between = ["20s", "75s"]            the figure over this time only
//!        value and within, or least, or most ─► ScenarioVerdict: what was found, and whether it is met
//! ```
//!
//! Every claim has a kind: the number of a publication, a consequence of theory, or the project's
//! own number. An own number beside a published one says which conditions are unknown.

use std::fmt;
use std::ops::Range;

use model::Nanos;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{JobResult, RunResult};
use crate::scenario::WrongValue;
use crate::scheduler::Policy;
use crate::workloads::JobSpec;

/// An `[[expect]]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawExpect {
    what: Spanned<String>,
    kind: ExpectKind,
    policy: Option<Spanned<String>>,
    against: Option<Spanned<String>>,
    between: Option<Spanned<(Nanos, Nanos)>>,
    value: Option<Spanned<f64>>,
    within: Option<Spanned<String>>,
    least: Option<f64>,
    most: Option<f64>,
    published: Option<Spanned<f64>>,
    unknown: Option<Spanned<String>>,
    source: String,
}

/// The origin of a claim's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectKind {
    /// The number is printed in a publication.
    Published,
    /// The number follows from a formula, which the source states.
    Theory,
    /// The number is that of a run of this project. It shows a change, and no agreement with
    /// anybody.
    Own,
}

impl ExpectKind {
    /// The name in scenarios and reports.
    pub const fn name(self) -> &'static str {
        match self {
            ExpectKind::Published => "published",
            ExpectKind::Theory => "theory",
            ExpectKind::Own => "own",
        }
    }
}

/// A claim of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Expect {
    text: String,
    kind: ExpectKind,
    figure: ExpectedFigure,
    job: Option<String>,
    over: Option<String>,
    policy: Policy,
    against: Option<Policy>,
    /// The seconds that count; the measured span if none.
    between: Option<Range<usize>>,
    /// The least and the greatest accepted value.
    bounds: (f64, f64),
    wanted: String,
    published: Option<f64>,
    unknown: Option<String>,
    source: String,
}

/// The verdict on one claim of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioVerdict {
    /// The claim, in the scenario's words, with its time if it is not the whole measured span.
    pub what: String,
    /// The origin of the number.
    pub kind: ExpectKind,
    /// The scheduler, and the one it is compared with.
    pub policy: String,
    /// The values that are accepted.
    pub wanted: String,
    /// The value that was found; none if that scheduler was not run.
    pub found: Option<f64>,
    /// Whether the claim holds.
    pub met: bool,
    /// The number as it is printed in the publication, if there is one.
    pub published: Option<f64>,
    /// The conditions of the published number that the publication does not state.
    pub unknown: Option<String>,
    /// The source of the claim.
    pub source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedFigure {
    Rate,
    Bytes,
    Requests,
    Share,
    Mean,
    Median,
    P99,
    Max,
    Finish,
    Cut,
    Violations,
}

const FIGURES: [(&str, ExpectedFigure); 11] = [
    ("rate", ExpectedFigure::Rate),
    ("bytes", ExpectedFigure::Bytes),
    ("requests", ExpectedFigure::Requests),
    ("share", ExpectedFigure::Share),
    ("latency_mean", ExpectedFigure::Mean),
    ("latency_median", ExpectedFigure::Median),
    ("latency_p99", ExpectedFigure::P99),
    ("latency_max", ExpectedFigure::Max),
    ("finish", ExpectedFigure::Finish),
    ("cut", ExpectedFigure::Cut),
    ("violations", ExpectedFigure::Violations),
];

impl ExpectedFigure {
    /// The figure of a job, in requests/s, bytes/s, percent, milliseconds or seconds.
    fn of(self, job: &JobResult) -> Option<f64> {
        let ms = |ns: u64| ns as f64 / 1e6;
        Some(match self {
            ExpectedFigure::Rate => job.requests_per_sec,
            ExpectedFigure::Bytes => job.bytes_per_sec,
            ExpectedFigure::Requests => job.requests as f64,
            ExpectedFigure::Share => job.share * 100.0,
            ExpectedFigure::Mean => ms(job.latency_ns.mean),
            ExpectedFigure::Median => ms(job.latency_ns.median),
            ExpectedFigure::P99 => ms(job.latency_ns.p99),
            ExpectedFigure::Max => ms(job.latency_ns.max),
            ExpectedFigure::Finish => job.finished_ns? as f64 / 1e9,
            ExpectedFigure::Cut | ExpectedFigure::Violations => return None,
        })
    }

    /// The figure of a job over whole seconds; none of a figure without a series.
    fn between(self, job: &JobResult, span: Range<usize>) -> Option<f64> {
        let seconds = job.series.get(span.clone())?;
        let (requests, bytes) =
            seconds.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let span = span.len() as f64;
        Some(match self {
            ExpectedFigure::Rate => requests as f64 / span,
            ExpectedFigure::Bytes => bytes as f64 / span,
            ExpectedFigure::Requests => requests as f64,
            _ => return None,
        })
    }

    fn has_series(self) -> bool {
        matches!(self, ExpectedFigure::Rate | ExpectedFigure::Bytes | ExpectedFigure::Requests)
    }

    fn needs_job(self) -> bool {
        !matches!(self, ExpectedFigure::Cut | ExpectedFigure::Violations)
    }
}

impl RawExpect {
    pub(crate) fn build(
        self,
        jobs: &[JobSpec],
        policies: &[Policy],
        duration: Nanos,
    ) -> Result<Expect, WrongValue> {
        let (figure, job, over) = figure_and_jobs(&self.what, jobs)?;
        let between = self.between.as_ref().map(|span| whole_seconds(span, figure, duration));
        let published = published(&self)?;
        let policy_of = |name: &Option<Spanned<String>>| match name {
            None => Ok(None),
            Some(name) => match name.get_ref().parse() {
                Err(error) => Err(WrongValue::new(name.span(), format!("{error}"))),
                Ok(policy) if policies.contains(&policy) => Ok(Some(policy)),
                Ok(policy) => {
                    let problem = format!("{policy} is not among the scenario's policies");
                    Err(WrongValue::new(name.span(), problem))
                }
            },
        };
        let policy = policy_of(&self.policy)?.unwrap_or(policies[0]);
        let bounds = bounds(&self)?;
        let wanted = match (self.value.as_ref(), self.within.as_ref()) {
            (Some(value), Some(within)) => {
                format!("{} within {}", value.get_ref(), within.get_ref())
            }
            _ => match (self.least, self.most) {
                (Some(least), Some(most)) => format!("{least} to {most}"),
                (Some(least), None) => format!("at least {least}"),
                _ => format!("at most {}", bounds.1),
            },
        };
        Ok(Expect {
            text: self.what.get_ref().clone(),
            kind: self.kind,
            between: between.transpose()?,
            published,
            unknown: self.unknown.map(Spanned::into_inner),
            figure,
            job,
            over,
            policy,
            against: policy_of(&self.against)?,
            bounds,
            wanted,
            source: self.source,
        })
    }
}

type ExpectedJobs = (ExpectedFigure, Option<String>, Option<String>);

fn figure_and_jobs(what: &Spanned<String>, jobs: &[JobSpec]) -> Result<ExpectedJobs, WrongValue> {
    let fault = |problem: String| WrongValue::new(what.span(), problem);
    let (name, rest) = what.get_ref().split_once(' ').unwrap_or((what.get_ref(), ""));
    let figure = FIGURES.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure);
    let Some(figure) = figure else {
        let known = FIGURES.map(|(name, _)| name).join(", ");
        return Err(fault(format!("{name:?} is not a figure; use one of {known}")));
    };
    if !figure.needs_job() {
        return match rest.is_empty() {
            true => Ok((figure, None, None)),
            false => Err(fault(format!("{name} is of the whole run; remove {rest:?}"))),
        };
    }
    let (job, over) = match rest.split_once(" / ") {
        Some((job, over)) => (job.trim(), Some(over.trim())),
        None => (rest.trim(), None),
    };
    for job in [Some(job), over].into_iter().flatten() {
        if !jobs.iter().any(|known| known.name == job) {
            let known: Vec<_> = jobs.iter().map(|known| known.name.as_str()).collect();
            return Err(fault(format!(
                "job {job:?} does not exist; use one of {}",
                known.join(", ")
            )));
        }
    }
    Ok((figure, Some(job.into()), over.map(Into::into)))
}

/// The seconds of a span of time of a figure that has a series.
fn whole_seconds(
    span: &Spanned<(Nanos, Nanos)>,
    figure: ExpectedFigure,
    duration: Nanos,
) -> Result<Range<usize>, WrongValue> {
    let (from, to) = *span.get_ref();
    let wrong = |problem: String| Err(WrongValue::new(span.span(), problem));
    if !figure.has_series() {
        return wrong("only rate, bytes and requests have between".into());
    }
    let second = Nanos::from_secs(1).get();
    let is_whole = |time: Nanos| time.get().is_multiple_of(second);
    if !is_whole(from) || !is_whole(to) || from >= to || to > duration {
        return wrong(format!(
            "{from} to {to} is not a span of whole seconds within the duration of {duration}"
        ));
    }
    Ok((from.get() / second) as usize..(to.get() / second) as usize)
}

/// The printed number of a claim, and whether its kind allows the keys.
fn published(raw: &RawExpect) -> Result<Option<f64>, WrongValue> {
    let own = raw.kind == ExpectKind::Own;
    let value = raw.value.as_ref().map(|value| *value.get_ref());
    match (&raw.published, &raw.unknown) {
        (Some(number), _) if raw.kind == ExpectKind::Published => {
            let problem = "of kind published, the expected number is the published one; \
                           remove published, or use kind theory or own";
            Err(WrongValue::new(number.span(), problem.into()))
        }
        (Some(number), None) if own => {
            let problem = "an own number beside a published one needs unknown: \
                           the conditions that the publication does not state";
            Err(WrongValue::new(number.span(), problem.into()))
        }
        (None, Some(unknown)) => {
            let problem = "unknown needs published, the number whose conditions are unknown";
            Err(WrongValue::new(unknown.span(), problem.into()))
        }
        _ if own && value.is_none() => {
            let problem = "an own number needs value and within: the result of a run";
            Err(WrongValue::new(raw.what.span(), problem.into()))
        }
        (None, None) if raw.kind == ExpectKind::Published => Ok(value.or(raw.least).or(raw.most)),
        (published, _) => Ok(published.as_ref().map(|number| *number.get_ref())),
    }
}

fn bounds(raw: &RawExpect) -> Result<(f64, f64), WrongValue> {
    let fault = |problem: &str| Err(WrongValue::new(raw.what.span(), problem.into()));
    match (&raw.value, &raw.within) {
        (Some(value), Some(within)) => {
            let text = within.get_ref();
            let percent = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
            let Some(percent) = percent.filter(|percent| *percent >= 0.0) else {
                let problem = format!("{text:?} is not a tolerance such as \"3%\"");
                return Err(WrongValue::new(within.span(), problem));
            };
            if raw.least.is_some() || raw.most.is_some() {
                return fault("value and within exclude least and most; use one of the pairs");
            }
            let slack = value.get_ref().abs() * percent / 100.0;
            Ok((value.get_ref() - slack, value.get_ref() + slack))
        }
        (None, None) if raw.least.is_some() || raw.most.is_some() => {
            Ok((raw.least.unwrap_or(f64::NEG_INFINITY), raw.most.unwrap_or(f64::INFINITY)))
        }
        (Some(_), None) => fault("value needs within, a tolerance such as \"3%\""),
        (None, Some(_)) => fault("within needs value"),
        (None, None) => fault("an expectation needs value and within, or least, or most"),
    }
}

impl Expect {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn measured_value(&self, reports: &[RunResult]) -> Option<f64> {
        let under = |policy: Policy| {
            let report = reports.iter().find(|report| report.policy == policy.name())?;
            let of_job = |name: &String| match &self.between {
                None => self.figure.of(report.job(name)?),
                Some(seconds) => self.figure.between(report.job(name)?, seconds.clone()),
            };
            let value = match self.figure {
                ExpectedFigure::Cut => report.reservation_shortfall_ppm as f64 / 1e4,
                ExpectedFigure::Violations => report.violations.len() as f64,
                _ => of_job(self.job.as_ref()?)?,
            };
            match &self.over {
                None => Some(value),
                Some(over) => Some(value / of_job(over)?),
            }
        };
        let value = under(self.policy)?;
        match self.against {
            None => Some(value),
            Some(policy) => Some(value / under(policy)?),
        }
    }
}

/// Judges a scenario's expectations, one verdict for each of its claims.
///
/// `reports` are the scenario's runs, one for each of its policies.
pub fn judge(scenario: &crate::Scenario, reports: &[RunResult]) -> Vec<ScenarioVerdict> {
    let verdict = |expect: &Expect| {
        let found = expect.measured_value(reports).filter(|found| found.is_finite());
        let (least, most) = expect.bounds;
        ScenarioVerdict {
            what: match &expect.between {
                None => expect.text.clone(),
                Some(span) => format!("{}, {} to {} s", expect.text, span.start, span.end),
            },
            kind: expect.kind,
            published: expect.published,
            unknown: expect.unknown.clone(),
            policy: match expect.against {
                None => expect.policy.to_string(),
                Some(against) => format!("{} / {against}", expect.policy),
            },
            wanted: expect.wanted.clone(),
            found,
            met: found.is_some_and(|found| found >= least && found <= most),
            source: expect.source.clone(),
        }
    };
    scenario.expects.iter().map(verdict).collect()
}

impl fmt::Display for ScenarioVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.met { "ok" } else { "NOT" };
        write!(f, "{mark} {} ({}): ", self.what, self.policy)?;
        match self.found {
            Some(found) => write!(f, "{found:.4}")?,
            None => f.write_str("nothing")?,
        }
        write!(f, ", wanted {} ({})", self.wanted, self.kind.name())?;
        match (self.published, &self.unknown) {
            (Some(published), Some(unknown)) => {
                write!(f, "; published {published}, unknown: {unknown}")
            }
            (Some(published), None) => write!(f, "; published {published}"),
            (None, _) => Ok(()),
        }
    }
}
