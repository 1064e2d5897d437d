//! Conversions between the types of `plan` and their wire form.
//!
//! Values from the wire are not trusted: numbers out of range and invalid names are refused with
//! the value at fault. The length of the body bounds their number.

use std::sync::Arc;

use model::{
    Grant, JobId, KeyValue, Nanos, Nid, OpKind, Rate, Scope, ScopeUsage, SectionKind, Share,
};
use plan::{Assignment, Holdings, Membership, RemoteService, ServiceTotal, ShareReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    WireHoldings, WireMembership, WireRemoteService, WireScopeService, WireScopeUsage,
    WireServiceTotal, WireTargetAssignment, WireTargetReport,
};

/// A value that a message may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}{value} is not {want}")]
pub struct WrongMessage {
    field: String,
    value: String,
    want: &'static str,
}

/// A section of the rules, and a key of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireScope {
    /// `rule`, `meter` or `decay`.
    pub section: String,
    /// The name of the section.
    pub name: String,
    /// The values of its `per`, in order.
    pub key: Vec<WireKey>,
}

/// One value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireKey {
    /// The id of the batch job.
    Jobid(String),
    /// The user id of the caller.
    Uid(u32),
    /// The primary group id of the caller.
    Gid(u32),
    /// The project, or none.
    Projid(Option<u32>),
    /// The network name of the node.
    Nid(String),
    /// The kind of request.
    Opcode(String),
}

/// A share of one scope, in billionths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WireWaits {
    /// The scope that is divided.
    pub scope: WireScope,
    /// The share in billionths of the whole.
    pub share_ppb: u32,
}

/// The grant of a scope; with neither share nor rate it is no longer listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireScopeGrant {
    /// The scope of the grant.
    pub scope: WireScope,
    /// The share, in billionths.
    pub share_ppb: Option<u32>,
    /// The rate over all proxies to which a decay limits it.
    pub rate: Option<WireRate>,
}

/// A rate in whole units per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireRate {
    /// A rate in bytes per second.
    Bytes(u64),
    /// A rate in operations per second.
    Ops(u64),
}

impl WrongMessage {
    /// Makes the error: `value` is not `want`.
    pub fn new(value: impl ToString, want: &'static str) -> WrongMessage {
        let mut value = value.to_string();
        if let Some((at, _)) = value.char_indices().nth(VALUE_CHARS_MAX) {
            value.truncate(at);
        }
        WrongMessage { field: String::new(), value: format!("{value:?}"), want }
    }

    /// Adds the name of the target to the error.
    pub(super) fn at(self, target: &str) -> WrongMessage {
        let target: String = target.chars().take(VALUE_CHARS_MAX).collect();
        WrongMessage { field: format!("target {target}: "), ..self }
    }
}

impl WireTargetReport {
    /// Returns the report of the proxy of this name and epoch.
    pub fn to_report(&self, from: &Arc<str>, epoch: u64) -> Result<ShareReport, WrongMessage> {
        let use_of = |of: &WireScopeUsage| {
            let used = of.used.map(part).transpose()?;
            Ok((of.scope.to_scope()?, ScopeUsage { used, waiting: of.waiting }))
        };
        let uses = self.uses.as_ref().map(|uses| uses.iter().map(use_of).collect());
        let served = self.served.iter().map(|of| Ok((of.scope.to_scope()?, of.served.into())));
        Ok(ShareReport {
            from: from.clone(),
            epoch,
            sequence: self.sequence,
            term: self.term.into(),
            last_assignment: self.last_assignment,
            revision: self.revision,
            lease_expired: self.lease_expired,
            holdings: self.holdings.as_ref().map(WireHoldings::to_holdings).transpose()?,
            uses: uses.transpose()?,
            served: served.collect::<Result<Vec<_>, WrongMessage>>()?,
        })
    }
}

impl From<&ShareReport> for WireTargetReport {
    fn from(report: &ShareReport) -> WireTargetReport {
        let use_of = |(scope, what): &(Scope, ScopeUsage)| WireScopeUsage {
            scope: scope.into(),
            used: what.used.map(Share::billionths),
            waiting: what.waiting,
        };
        let served_of = |(scope, served): &(Scope, ServiceTotal)| WireScopeService {
            scope: scope.into(),
            served: (*served).into(),
        };
        WireTargetReport {
            sequence: report.sequence,
            term: report.term.into(),
            last_assignment: report.last_assignment,
            revision: report.revision,
            lease_expired: report.lease_expired,
            holdings: report.holdings.as_ref().map(WireHoldings::from),
            uses: report.uses.as_ref().map(|uses| uses.iter().map(use_of).collect()),
            served: report.served.iter().map(served_of).collect(),
        }
    }
}

impl WireTargetAssignment {
    /// Returns the assignment for the proxy of this name and epoch.
    pub fn to_assignment(&self, to: &Arc<str>, epoch: u64) -> Result<Assignment, WrongMessage> {
        let grants = self.grants.iter().map(|of| {
            let rate = of.rate.map(Rate::try_from).transpose()?;
            Ok((of.scope.to_scope()?, Grant { part: of.share_ppb.map(part).transpose()?, rate }))
        });
        let told = self.remote_service.iter().map(|of| {
            let told = RemoteService { total: of.total.into(), own: of.local.into() };
            Ok((of.scope.to_scope()?, told))
        });
        Ok(Assignment {
            to: to.clone(),
            epoch,
            term: self.term.into(),
            number: self.number,
            in_reply_to: self.in_reply_to,
            learning: self.learning,
            base: self.base,
            revision: self.revision,
            proxies: self.proxies,
            unlisted: part(self.unlisted)?,
            fallback: part(self.fallback)?,
            grants: grants.collect::<Result<Vec<_>, WrongMessage>>()?,
            remote_service: told.collect::<Result<Vec<_>, WrongMessage>>()?,
        })
    }
}

impl From<&Assignment> for WireTargetAssignment {
    fn from(order: &Assignment) -> WireTargetAssignment {
        let grant_of = |(scope, grant): &(Scope, Grant)| WireScopeGrant {
            scope: scope.into(),
            share_ppb: grant.part.map(Share::billionths),
            rate: grant.rate.map(WireRate::from),
        };
        let told_of = |(scope, told): &(Scope, RemoteService)| WireRemoteService {
            scope: scope.into(),
            total: told.total.into(),
            local: told.own.into(),
        };
        WireTargetAssignment {
            term: order.term.into(),
            number: order.number,
            in_reply_to: order.in_reply_to,
            learning: order.learning,
            base: order.base,
            revision: order.revision,
            proxies: order.proxies,
            unlisted: order.unlisted.billionths(),
            fallback: order.fallback.billionths(),
            grants: order.grants.iter().map(grant_of).collect(),
            remote_service: order.remote_service.iter().map(told_of).collect(),
        }
    }
}

impl WireHoldings {
    fn to_holdings(&self) -> Result<Holdings, WrongMessage> {
        let listed = self.listed.iter().map(|of| Ok((of.scope.to_scope()?, part(of.share_ppb)?)));
        Ok(Holdings {
            unlisted: part(self.unlisted)?,
            fallback: part(self.fallback)?,
            listed: listed.collect::<Result<Vec<_>, WrongMessage>>()?,
        })
    }
}

impl From<&Holdings> for WireHoldings {
    fn from(held: &Holdings) -> WireHoldings {
        let form = |(scope, part): &(Scope, Share)| WireWaits {
            scope: scope.into(),
            share_ppb: part.billionths(),
        };
        WireHoldings {
            unlisted: held.unlisted.billionths(),
            fallback: held.fallback.billionths(),
            listed: held.listed.iter().map(form).collect(),
        }
    }
}

impl WireScope {
    /// Returns the scope; an error names the invalid value.
    pub fn to_scope(&self) -> Result<Scope, WrongMessage> {
        let section = [SectionKind::Rule, SectionKind::Meter, SectionKind::Decay]
            .into_iter()
            .find(|section| section.name() == self.section)
            .ok_or_else(|| WrongMessage::new(&self.section, "one of rule, meter, decay"))?;
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(WrongMessage::new(&self.name, "a section's name: 1 to 255 bytes"));
        }
        if self.key.len() > KEY_MAX {
            return Err(WrongMessage::new(self.key.len(), "a key's length: at most 6 values"));
        }
        let key = self.key.iter().map(WireKey::to_value).collect::<Result<Vec<_>, _>>()?;
        Ok(Scope { section, name: self.name.as_str().into(), key: key.into() })
    }
}

impl From<&Scope> for WireScope {
    fn from(scope: &Scope) -> WireScope {
        WireScope {
            section: scope.section.name().into(),
            name: scope.name.to_string(),
            key: scope.key.iter().map(WireKey::from).collect(),
        }
    }
}

impl WireKey {
    fn to_value(&self) -> Result<KeyValue, WrongMessage> {
        const JOB: &str = "a job: at most 128 bytes and no control characters";
        const NID: &str = "a node's network name: 1 to 128 bytes and no control characters";
        Ok(match self {
            WireKey::Jobid(job) => {
                KeyValue::Jobid(JobId::new(job).ok_or_else(|| WrongMessage::new(job, JOB))?)
            }
            WireKey::Uid(uid) => KeyValue::Uid(*uid),
            WireKey::Gid(gid) => KeyValue::Gid(*gid),
            WireKey::Projid(projid) => KeyValue::Projid(*projid),
            WireKey::Nid(nid) => {
                KeyValue::Nid(Nid::new(nid).ok_or_else(|| WrongMessage::new(nid, NID))?)
            }
            WireKey::Opcode(kind) => {
                let parsed = kind.parse::<OpKind>();
                KeyValue::Opcode(parsed.map_err(|_| WrongMessage::new(kind, "a kind of request"))?)
            }
        })
    }
}

impl From<&KeyValue> for WireKey {
    fn from(value: &KeyValue) -> WireKey {
        match value {
            KeyValue::Jobid(job) => WireKey::Jobid(job.to_string()),
            KeyValue::Uid(uid) => WireKey::Uid(*uid),
            KeyValue::Gid(gid) => WireKey::Gid(*gid),
            KeyValue::Projid(projid) => WireKey::Projid(*projid),
            KeyValue::Nid(nid) => WireKey::Nid(nid.to_string()),
            KeyValue::Opcode(kind) => WireKey::Opcode(kind.to_string()),
        }
    }
}

impl TryFrom<WireRate> for Rate {
    type Error = WrongMessage;

    fn try_from(form: WireRate) -> Result<Rate, WrongMessage> {
        let (rate, count) = match form {
            WireRate::Bytes(count) => (Rate::bytes_per_sec(count), count),
            WireRate::Ops(count) => (Rate::ops_per_sec(count), count),
        };
        rate.ok_or_else(|| WrongMessage::new(count, "a rate: 1 per second at least"))
    }
}

impl From<Rate> for WireRate {
    fn from(rate: Rate) -> WireRate {
        match rate.is_bytes() {
            true => WireRate::Bytes(rate.per_sec()),
            false => WireRate::Ops(rate.per_sec()),
        }
    }
}

impl From<WireMembership> for Membership {
    fn from(form: WireMembership) -> Membership {
        Membership { controller: form.controller, joined: form.registration }
    }
}

impl From<Membership> for WireMembership {
    fn from(term: Membership) -> WireMembership {
        WireMembership { controller: term.controller, registration: term.joined }
    }
}

impl From<WireServiceTotal> for ServiceTotal {
    fn from(form: WireServiceTotal) -> ServiceTotal {
        ServiceTotal { generation: form.generation, cost: Nanos::new(form.cost_ns) }
    }
}

impl From<ServiceTotal> for WireServiceTotal {
    fn from(served: ServiceTotal) -> WireServiceTotal {
        WireServiceTotal { generation: served.generation, cost_ns: served.cost.get() }
    }
}

pub(super) fn part(billionths: u32) -> Result<Share, WrongMessage> {
    let part = Share::from_billionths(billionths);
    part.ok_or_else(|| WrongMessage::new(billionths, "a part: 1000000000 billionths at most"))
}

/// The length of a wrong value that a message repeats.
const VALUE_CHARS_MAX: usize = 60;
/// The longest name of a rule or meter.
const NAME_BYTES_MAX: usize = 255;
/// The most values of a key: each field once.
const KEY_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        let key = [
            KeyValue::Jobid(JobId::new("dd.500").unwrap()),
            KeyValue::Uid(5),
            KeyValue::Gid(6),
            KeyValue::Projid(None),
            KeyValue::Nid(Nid::local()),
            KeyValue::Opcode(OpKind::Write),
        ];
        Scope::rule("jobs", &key)
    }

    fn through_json<T: Serialize + serde::de::DeserializeOwned>(form: &T) -> T {
        serde_json::from_str(&serde_json::to_string(form).unwrap()).unwrap()
    }

    #[test]
    fn a_report_comes_out_as_it_went_in() {
        let third = Share::ratio(1, 3);
        let report = ShareReport {
            from: "a".into(),
            epoch: u64::MAX,
            sequence: 7,
            term: Membership { controller: 2, joined: 3 },
            last_assignment: 4,
            revision: 5,
            lease_expired: true,
            holdings: Some(Holdings {
                unlisted: Share::WHOLE,
                fallback: Share::ZERO,
                listed: vec![(scope(), third)],
            }),
            uses: Some(vec![
                (scope(), ScopeUsage { used: Some(third), waiting: true }),
                (Scope::meter("m", &[]), ScopeUsage { used: None, waiting: false }),
            ]),
            served: vec![(scope(), ServiceTotal { generation: 1, cost: Nanos::new(u64::MAX) })],
        };
        let form = through_json(&WireTargetReport::from(&report));
        assert_eq!(form.to_report(&"a".into(), u64::MAX).unwrap(), report);
    }

    #[test]
    fn an_order_comes_out_as_it_went_in() {
        let sum = |lap| ServiceTotal { generation: lap, cost: Nanos::new(9) };
        let rate = Rate::bytes_per_sec(6_666_667);
        let order = Assignment {
            to: "a".into(),
            epoch: 1,
            term: Membership { controller: 2, joined: 3 },
            number: 4,
            in_reply_to: 5,
            learning: true,
            base: 6,
            revision: 7,
            proxies: 8,
            unlisted: Share::equal(3),
            fallback: Share::equal(7),
            grants: vec![
                (scope(), Grant { part: Some(Share::equal(3)), rate }),
                (Scope::decay("d", &[]), Grant { part: None, rate: Rate::ops_per_sec(3) }),
                (Scope::meter("m", &[]), Grant::default()),
            ],
            remote_service: vec![(scope(), RemoteService { total: sum(1), own: sum(2) })],
        };
        let form = through_json(&WireTargetAssignment::from(&order));
        assert_eq!(form.to_assignment(&"a".into(), 1).unwrap(), order);
    }

    #[test]
    fn what_cannot_be_is_named() {
        type Change = fn(&mut WireScopeUsage);
        let form = |change: Change| {
            let mut of = WireScopeUsage {
                scope: (&scope()).into(),
                used: Some(1_000_000_000),
                waiting: false,
            };
            change(&mut of);
            let report = WireTargetReport { uses: Some(vec![of]), ..WireTargetReport::default() };
            report.to_report(&"a".into(), 1).map_err(|error| error.to_string())
        };
        assert!(form(|_| {}).is_ok());
        let cases: [(Change, &str); 5] = [
            (|of| of.used = Some(1_000_000_001), "\"1000000001\" is not a part"),
            (|of| of.scope.section = "ruel".into(), "\"ruel\" is not one of rule, meter, decay"),
            (|of| of.scope.name.clear(), "\"\" is not a section's name"),
            (|of| of.scope.key[0] = WireKey::Jobid("a\nb".into()), "\"a\\nb\" is not a job"),
            (|of| of.scope.key = vec![WireKey::Uid(1); 7], "\"7\" is not a key's length"),
        ];
        for (change, expected) in cases {
            let error = form(change).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
