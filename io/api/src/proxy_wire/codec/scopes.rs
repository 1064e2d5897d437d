//! The form of a proxy's scopes in a report: what it has of that which rows of entitlements name.

use std::sync::Arc;

use model::{JobId, is_export_name};
use plan::{ProxyScopes, ScopeName};
use serde::{Deserialize, Serialize};

use super::NAME_BYTES_MAX;
use crate::scope::WrongMessage;

/// Jobs, users, targets and exports; or all.
#[derive(Serialize, Deserialize)]
pub(super) enum ScopesForm<'a> {
    All,
    #[serde(borrow)]
    Named(Vec<NameForm<'a>>),
}

#[derive(Serialize, Deserialize)]
pub(super) enum NameForm<'a> {
    Job(&'a str),
    User(u32),
    Target(&'a str),
    Export(&'a str),
}

impl ScopesForm<'_> {
    pub(super) fn of(scopes: &ProxyScopes) -> ScopesForm<'_> {
        let name = |name| match name {
            &ScopeName::User(uid) => NameForm::User(uid),
            ScopeName::Job(job) => NameForm::Job(job.as_str()),
            ScopeName::Target(target) => NameForm::Target(target),
            ScopeName::Export(export) => NameForm::Export(export),
        };
        match scopes {
            ProxyScopes::All => ScopesForm::All,
            ProxyScopes::Named(names) => ScopesForm::Named(names.iter().map(name).collect()),
        }
    }

    /// Too many names are all: the proxy gets all rows.
    pub(super) fn scopes(&self) -> Result<Arc<ProxyScopes>, WrongMessage> {
        let forms = match self {
            ScopesForm::Named(forms) if forms.len() <= ProxyScopes::NAMES_MAX => forms,
            ScopesForm::Named(_) | ScopesForm::All => return Ok(Arc::new(ProxyScopes::All)),
        };
        let name = |form: &NameForm<'_>| {
            Ok(match *form {
                NameForm::Job(name) => ScopeName::Job(job(name)?),
                NameForm::User(uid) => ScopeName::User(uid),
                NameForm::Target(name) => ScopeName::Target(target(name)?),
                NameForm::Export(name) if is_export_name(name) => ScopeName::Export(name.into()),
                NameForm::Export(name) => {
                    return Err(WrongMessage::new(name, "the name of an export"));
                }
            })
        };
        let names: Vec<_> = forms.iter().map(name).collect::<Result<_, WrongMessage>>()?;
        Ok(Arc::new(ProxyScopes::named(names)))
    }
}

pub(super) fn job(name: &str) -> Result<JobId, WrongMessage> {
    const JOB: &str = "a job: at most 128 bytes and no control characters";
    JobId::new(name).ok_or_else(|| WrongMessage::new(name, JOB))
}

pub(super) fn target(name: &str) -> Result<Arc<str>, WrongMessage> {
    const TARGET: &str = "a target's name: 1 to 255 bytes and no control characters";
    let valid = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
    if valid { Ok(name.into()) } else { Err(WrongMessage::new(name, TARGET)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_come_out_as_they_went_in_and_wrong_names_are_named() {
        let names = [
            ScopeName::Job(JobId::new("dd.500").unwrap()),
            ScopeName::User(u32::MAX),
            ScopeName::Target("a fs".into()),
            ScopeName::Export("home".into()),
        ];
        for scopes in [ProxyScopes::named(names), ProxyScopes::named([]), ProxyScopes::All] {
            assert_eq!(*ScopesForm::of(&scopes).scopes().unwrap(), scopes);
        }
        let wrong = |name| ScopesForm::Named(vec![name]).scopes().unwrap_err().to_string();
        assert!(wrong(NameForm::Job("a\nb")).contains("\"a\\nb\" is not a job"));
        assert!(wrong(NameForm::Target("")).contains("\"\" is not a target's name"));
        assert!(wrong(NameForm::Export("a/b")).contains("\"a/b\" is not the name of an export"));
    }

    #[test]
    fn more_names_than_a_report_may_have_are_all() {
        let many = ScopesForm::Named((0..10_000).map(NameForm::User).collect());
        assert_eq!(*many.scopes().unwrap(), ProxyScopes::All);
    }
}
