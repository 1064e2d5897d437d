//! Scopes, keys and rates as people and other programs read them.
//!
//! Values from the wire are not trusted: numbers out of range and invalid names are refused with
//! the value at fault. The length of the body bounds their number.

use model::{JobId, KeyValue, Nid, OpKind, Rate, Scope, SectionKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    pub(crate) fn at(self, target: &str) -> WrongMessage {
        let target: String = target.chars().take(VALUE_CHARS_MAX).collect();
        WrongMessage { field: format!("target {target}: "), ..self }
    }
}

impl WireScope {
    /// Returns the scope; an error names the invalid value.
    pub fn to_scope(&self) -> Result<Scope, WrongMessage> {
        let section = SectionKind::ALL.into_iter().find(|section| section.name() == self.section);
        let one_of = "one of rule, meter, decay, entitlement, slots";
        let section = section.ok_or_else(|| WrongMessage::new(&self.section, one_of))?;
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

    #[test]
    fn a_scope_comes_out_as_it_went_in() {
        let text = serde_json::to_string(&WireScope::from(&scope())).unwrap();
        assert_eq!(serde_json::from_str::<WireScope>(&text).unwrap().to_scope(), Ok(scope()));
    }

    #[test]
    fn what_cannot_be_is_named() {
        type Change = fn(&mut WireScope);
        let cases: [(Change, &str); 4] = [
            (|of| of.section = "ruel".into(), "\"ruel\" is not one of rule, meter, decay"),
            (|of| of.name.clear(), "\"\" is not a section's name"),
            (|of| of.key[0] = WireKey::Jobid("a\nb".into()), "\"a\\nb\" is not a job"),
            (|of| of.key = vec![WireKey::Uid(1); 7], "\"7\" is not a key's length"),
        ];
        for (change, expected) in cases {
            let mut form = WireScope::from(&scope());
            change(&mut form);
            let error = form.to_scope().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
