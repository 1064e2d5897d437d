//! Where the name of a request's job is looked for, and the text people write for it.
//!
//! `cgroup+env`: one or more sources with `+` between them, asked in this order; the first that has
//! a name wins.

use std::fmt;
use std::str::FromStr;

use model::JobId;

use super::cgroup::{self, CgroupPattern};

/// Where the name of a request's job is looked for, in order. The text form is `cgroup`,
/// `cgroup:PATTERN`, `env`, `env:NAME` or `fixed:ID`, with `+` between several; by default
/// `cgroup+env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSources(Vec<JobSource>);

/// One place where the name may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobSource {
    /// In the control group's path, where batch systems and Kubernetes put it.
    Known,
    /// In the control group's path, where the pattern says.
    Cgroup(CgroupPattern),
    /// In a variable of the process's environment: the one of a batch system that is set.
    KnownVariable,
    /// In this variable of the process's environment.
    Variable(String),
    /// Every request has this one.
    Fixed(JobId),
}

/// Text that names no source of jobs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a source of job IDs: {want}")]
pub struct ParseSourceError {
    text: String,
    want: &'static str,
}

impl JobSources {
    pub(super) fn as_slice(&self) -> &[JobSource] {
        &self.0
    }
}

impl Default for JobSources {
    fn default() -> JobSources {
        JobSources(vec![JobSource::Known, JobSource::KnownVariable])
    }
}

impl FromStr for JobSources {
    type Err = ParseSourceError;

    fn from_str(text: &str) -> Result<JobSources, ParseSourceError> {
        text.split('+').map(JobSource::from_str).collect::<Result<_, _>>().map(JobSources)
    }
}

impl FromStr for JobSource {
    type Err = ParseSourceError;

    fn from_str(text: &str) -> Result<JobSource, ParseSourceError> {
        let wrong = |want| ParseSourceError { text: text.into(), want };
        match text.split_once(':') {
            None if text == "cgroup" => Ok(JobSource::Known),
            None if text == "env" => Ok(JobSource::KnownVariable),
            Some(("cgroup", pattern)) => {
                let pattern = CgroupPattern::new(pattern).ok_or_else(|| wrong(cgroup::WANT))?;
                Ok(JobSource::Cgroup(pattern))
            }
            Some(("env", name)) if is_variable(name) => Ok(JobSource::Variable(name.into())),
            Some(("env", _)) => {
                Err(wrong("env: needs the name of a variable, such as env:SLURM_JOB_ID"))
            }
            Some(("fixed", id)) => {
                let id = JobId::new(id).filter(|id| !id.as_str().is_empty());
                id.map(JobSource::Fixed).ok_or_else(|| wrong(WANT_ID))
            }
            _ => Err(wrong("use cgroup, cgroup:PATTERN, env, env:NAME or fixed:ID")),
        }
    }
}

impl fmt::Display for JobSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, source) in self.0.iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "+" })?;
            match source {
                JobSource::Known => f.write_str("cgroup")?,
                JobSource::Cgroup(pattern) => write!(f, "cgroup:{pattern}")?,
                JobSource::KnownVariable => f.write_str("env")?,
                JobSource::Variable(name) => write!(f, "env:{name}")?,
                JobSource::Fixed(id) => write!(f, "fixed:{id}")?,
            }
        }
        Ok(())
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Variables that Slurm, PBS, LSF and `sluice run` set for each task, in the order in which they are
/// looked for.
pub(super) const KNOWN_VARIABLES: [&str; 4] =
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SLUICE_JOB_ID"];
const WANT_ID: &str = "a job ID has 1 to 128 bytes without control characters, such as fixed:42";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_and_print_both_ways() {
        for text in [
            "cgroup",
            "cgroup+env:SLURM_JOB_ID",
            "env:PBS_JOBID",
            "cgroup:/pbs/jobs/{}+env:PBS_JOBID+fixed:login",
            "fixed:node:7",
        ] {
            assert_eq!(text.parse::<JobSources>().unwrap().to_string(), text);
        }
        assert_eq!(JobSources::default().to_string(), "cgroup+env");
        assert_eq!("cgroup+env".parse(), Ok(JobSources::default()));
    }

    #[test]
    fn what_is_no_source_is_named_with_what_would_be_right() {
        for (text, fault, want) in [
            ("", "\"\"", "use cgroup, "),
            ("cgroup+", "\"\"", "use cgroup, "),
            ("cgroup+environ:A", "\"environ:A\"", "use cgroup, "),
            ("env:", "\"env:\"", "env: needs the name"),
            ("env:A=B", "\"env:A=B\"", "env: needs the name"),
            ("cgroup:/a+cgroup", "\"cgroup:/a\"", "a pattern is an absolute"),
            ("fixed:", "\"fixed:\"", "a job ID has 1 to 128 bytes"),
        ] {
            let error = text.parse::<JobSources>().unwrap_err().to_string();
            assert!(error.starts_with(fault) && error.contains(want), "{text}: {error}");
        }
    }
}
