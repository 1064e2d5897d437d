//! Scopes: sections of the rules with one key, the classes of a rule, a meter or a decay.
//!
//! ```text
//!   [[rule]] name = "jobs", per = ["jobid"] ─┐
//!   a request of job dd.500 ─────────────────┴─► scope: rule jobs of jobid=dd.500
//! ```
//!
//! A scope is the same at every proxy that has the same rules. So it is what a controller divides,
//! and the subject of reports and assignments.

use std::fmt;
use std::sync::Arc;

use crate::{JobId, Nid, OpKind};

/// One value of a class's or a meter's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// The name of the batch job.
    Jobid(JobId),
    /// The number of the user.
    Uid(u32),
    /// The number of the group.
    Gid(u32),
    /// The project; none is a value of its own.
    Projid(Option<u32>),
    /// The name of the node.
    Nid(Nid),
    /// The kind of request.
    Opcode(OpKind),
}

/// The sections of a rule file that grant or limit something by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SectionKind {
    /// `[[rule]]`: its classes, with all that they are granted.
    Rule,
    /// A `[[meter]]` and its keys.
    Meter,
    /// A `[[decay]]` and its accounts.
    Decay,
    /// A row of the entitlements, by its number.
    Entitlement,
    /// The slots of a target.
    Slots,
}

/// One section of a rule file and one key of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Which kind of section.
    pub section: SectionKind,
    /// The name of the section.
    pub name: Arc<str>,
    /// The values of the section's `per`, in its order.
    pub key: Arc<[KeyValue]>,
}

impl Scope {
    /// The scope of a rule's class.
    pub fn rule(name: &str, key: &[KeyValue]) -> Scope {
        Scope { section: SectionKind::Rule, name: name.into(), key: key.into() }
    }

    /// The scope of a meter.
    pub fn meter(name: &str, key: &[KeyValue]) -> Scope {
        Scope { section: SectionKind::Meter, name: name.into(), key: key.into() }
    }

    /// The scope of a decay's limit.
    pub fn decay(name: &str, key: &[KeyValue]) -> Scope {
        Scope { section: SectionKind::Decay, name: name.into(), key: key.into() }
    }

    /// The scope of the row of that number.
    pub fn entitlement(number: u64) -> Scope {
        let name = number.to_string().into();
        Scope { section: SectionKind::Entitlement, name, key: Arc::default() }
    }

    /// The scope of a target's slots, which is in the pool of that target.
    pub fn slots() -> Scope {
        let section = SectionKind::Slots;
        Scope { section, name: section.name().into(), key: Arc::default() }
    }
}

impl SectionKind {
    /// Every kind of section.
    pub const ALL: [SectionKind; 5] = [
        SectionKind::Rule,
        SectionKind::Meter,
        SectionKind::Decay,
        SectionKind::Entitlement,
        SectionKind::Slots,
    ];

    /// The word for it in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            SectionKind::Rule => "rule",
            SectionKind::Meter => "meter",
            SectionKind::Decay => "decay",
            SectionKind::Entitlement => "entitlement",
            SectionKind::Slots => "slots",
        }
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Jobid(job) => write!(f, "jobid={job}"),
            KeyValue::Uid(uid) => write!(f, "uid={uid}"),
            KeyValue::Gid(gid) => write!(f, "gid={gid}"),
            KeyValue::Projid(Some(projid)) => write!(f, "projid={projid}"),
            KeyValue::Projid(None) => f.write_str("projid=none"),
            KeyValue::Nid(nid) => write!(f, "nid={nid}"),
            KeyValue::Opcode(kind) => write!(f, "opcode={kind}"),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.section.name(), self.name)?;
        for (at, value) in self.key.iter().enumerate() {
            write!(f, "{}{value}", if at == 0 { " of " } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_reads_as_a_person_would_say_it() {
        let key = [KeyValue::Uid(5), KeyValue::Projid(None)];
        assert_eq!(Scope::meter("users", &key).to_string(), "meter users of uid=5 projid=none");
        assert_eq!(Scope::rule("all", &[]).to_string(), "rule all");
    }
}
