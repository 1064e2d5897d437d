//! Ceilings: how much a user, group, account or project may have reserved and not used up.
//!
//! ```text
//!   request of owner (uid, gid, account, project) ─► below each of four ceilings? ─► charged until it ends
//! ```
//!
//! A ceiling is of bytes (rate × duration with the claim window, which is occupied, too) and of a
//! number of reservations. Without a bound on the product, one owner could book all bandwidth for a
//! month.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use model::Bytes;
use serde::{Deserialize, Serialize};

use crate::request::{ReservationError, ReservationOwner};

/// A user, group, account or project: the subject of a ceiling or a credit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingSubject {
    /// A user by number.
    User(u32),
    /// A group by number.
    Group(u32),
    /// An account of the batch system.
    Account(#[serde(with = "crate::record::text")] Arc<str>),
    /// A project by number.
    Project(u32),
}

/// What may be outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Reserved bytes of reservations that have not ended.
    pub bytes: Bytes,
    /// Reservations that have not ended.
    pub count: u32,
}

/// The ceilings that hold for subjects without one of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultCeilings {
    /// The ceiling of each user.
    pub user: Option<Ceiling>,
    /// The ceiling of each group.
    pub group: Option<Ceiling>,
    /// The ceiling of each account.
    pub account: Option<Ceiling>,
    /// The ceiling of each project.
    pub project: Option<Ceiling>,
}

#[derive(Debug)]
pub(crate) struct Ceilings {
    defaults: DefaultCeilings,
    own: BTreeMap<CeilingSubject, Ceiling>,
    outstanding: BTreeMap<CeilingSubject, Outstanding>,
}

/// What a subject has. The bytes are exact: each reservation's fit 64 bits, their sum may not.
#[derive(Clone, Copy, Debug, Default)]
struct Outstanding {
    bytes: u128,
    count: u32,
}

impl Ceilings {
    pub(crate) fn new(defaults: DefaultCeilings) -> Ceilings {
        Ceilings { defaults, own: BTreeMap::new(), outstanding: BTreeMap::new() }
    }

    /// Sets or removes a subject's own ceiling; false if there are too many.
    pub(crate) fn set(&mut self, subject: CeilingSubject, ceiling: Option<Ceiling>) -> bool {
        let Some(ceiling) = ceiling else {
            self.own.remove(&subject);
            return true;
        };
        let has_room = self.own.len() < OWN_MAX || self.own.contains_key(&subject);
        if has_room {
            self.own.insert(subject, ceiling);
        }
        has_room
    }

    /// Checks a request of some bytes and a number of reservations.
    pub(crate) fn check(
        &self,
        owner: &ReservationOwner,
        more: Bytes,
        count: u32,
    ) -> Result<(), ReservationError> {
        for subject in subjects(owner) {
            let Some(ceiling) = self.ceiling(&subject) else { continue };
            let has = self.outstanding(&subject);
            if has.bytes + more > ceiling.bytes || has.count.saturating_add(count) > ceiling.count {
                let (bytes_max, count_max) = (ceiling.bytes, ceiling.count);
                let (bytes, count) = (has.bytes, has.count);
                let error =
                    ReservationError::Ceiling { subject, bytes, count, more, bytes_max, count_max };
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn charge(&mut self, owner: &ReservationOwner, bytes: Bytes, count: u32) {
        for subject in subjects(owner) {
            let has = self.outstanding.entry(subject).or_default();
            has.bytes += u128::from(bytes.get());
            has.count += count;
        }
    }

    pub(crate) fn release(&mut self, owner: &ReservationOwner, bytes: Bytes) {
        for subject in subjects(owner) {
            let has = self.outstanding.get_mut(&subject).expect("charged at the request");
            has.bytes -= u128::from(bytes.get());
            has.count -= 1;
            if has.count == 0 {
                self.outstanding.remove(&subject);
            }
        }
    }

    /// What a subject has, with at most 2^64 - 1 bytes of it.
    pub(crate) fn outstanding(&self, subject: &CeilingSubject) -> Ceiling {
        let has = self.outstanding.get(subject).copied().unwrap_or_default();
        let bytes = u64::try_from(has.bytes).unwrap_or(u64::MAX);
        Ceiling { bytes: Bytes::new(bytes), count: has.count }
    }

    fn ceiling(&self, subject: &CeilingSubject) -> Option<Ceiling> {
        let default = match subject {
            CeilingSubject::User(_) => self.defaults.user,
            CeilingSubject::Group(_) => self.defaults.group,
            CeilingSubject::Account(_) => self.defaults.account,
            CeilingSubject::Project(_) => self.defaults.project,
        };
        self.own.get(subject).copied().or(default)
    }
}

/// What an owner's reservations count for.
fn subjects(owner: &ReservationOwner) -> impl Iterator<Item = CeilingSubject> {
    let always = [CeilingSubject::User(owner.uid), CeilingSubject::Group(owner.gid)];
    let account = owner.account.clone().map(CeilingSubject::Account);
    always.into_iter().chain(account).chain(owner.project.map(CeilingSubject::Project))
}

impl fmt::Display for CeilingSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CeilingSubject::User(uid) => write!(f, "user {uid}"),
            CeilingSubject::Group(gid) => write!(f, "group {gid}"),
            CeilingSubject::Account(name) => write!(f, "account {name:?}"),
            CeilingSubject::Project(projid) => write!(f, "project {projid}"),
        }
    }
}

/// How many subjects may have a ceiling of their own.
const OWN_MAX: usize = 65_536;
