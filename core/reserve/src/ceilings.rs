//! Ceilings: how much a user, group, account or project may have reserved and not used up.
//!
//! ```text
//!   request of owner (uid, gid, account, project) ─► below each of four ceilings? ─► charged until it ends
//! ```
//!
//! A ceiling is of bytes and operations (rate × duration with the claim window, which is occupied,
//! too) and of a number of reservations. Without a bound on the product, one owner could book all
//! bandwidth for a month.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use model::{Amount, Bytes, Ops};
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

/// What may be outstanding; `None` without a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// Reserved bytes of reservations that have not ended.
    pub bytes: Option<Bytes>,
    /// Reserved operations of reservations that have not ended.
    pub ops: Option<Ops>,
    /// Reservations that have not ended.
    pub count: Option<u32>,
}

/// What reservations that have not ended count for their ceilings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// The bytes that they reserve.
    pub bytes: Bytes,
    /// The operations that they reserve.
    pub ops: Ops,
    /// How many they are.
    pub count: u32,
}

/// The ceilings that hold for subjects without one of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultCeilings {
    /// The ceiling of each user.
    pub user: Ceiling,
    /// The ceiling of each group.
    pub group: Ceiling,
    /// The ceiling of each account.
    pub account: Ceiling,
    /// The ceiling of each project.
    pub project: Ceiling,
}

impl Default for DefaultCeilings {
    /// A user has at most 4,096 reservations, so that no single one fills a calendar of 131,072. What
    /// of the capacity may be reserved depends on the site.
    fn default() -> DefaultCeilings {
        let user = Ceiling { count: Some(4_096), ..Ceiling::default() };
        let [group, account, project] = [Ceiling::default(); 3];
        DefaultCeilings { user, group, account, project }
    }
}

#[derive(Debug)]
pub(crate) struct Ceilings {
    defaults: DefaultCeilings,
    own: BTreeMap<CeilingSubject, Ceiling>,
    outstanding: BTreeMap<CeilingSubject, Sums>,
}

/// What a subject has. The sums are exact: each reservation's amounts fit 64 bits, their sum may not.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: u128,
    ops: u128,
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

    /// Checks a request of some amounts and a number of reservations.
    pub(crate) fn check(
        &self,
        owner: &ReservationOwner,
        more: Amount,
        count: u32,
    ) -> Result<(), ReservationError> {
        for subject in subjects(owner) {
            let (has, most) = (self.sums(&subject), self.ceiling(&subject));
            let of = |has, more: u64, most: Option<u64>, unit| (has, more, most, unit);
            let sums = [
                of(has.bytes, more.bytes.get(), most.bytes.map(Bytes::get), "bytes"),
                of(has.ops, more.ops.get(), most.ops.map(Ops::get), "operations"),
                of(has.count.into(), count.into(), most.count.map(u64::from), "reservations"),
            ];
            for (has, more, most, unit) in sums {
                if let Some(most) = most.filter(|most| has + u128::from(more) > u128::from(*most)) {
                    let has = u64::try_from(has).unwrap_or(u64::MAX);
                    return Err(ReservationError::Ceiling { subject, unit, has, more, most });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn charge(&mut self, owner: &ReservationOwner, more: Amount, count: u32) {
        for subject in subjects(owner) {
            let has = self.outstanding.entry(subject).or_default();
            has.bytes += u128::from(more.bytes.get());
            has.ops += u128::from(more.ops.get());
            has.count += count;
        }
    }

    /// Releases what one reservation was charged.
    pub(crate) fn release(&mut self, owner: &ReservationOwner, reserved: Amount) {
        for subject in subjects(owner) {
            let has = self.outstanding.get_mut(&subject).expect("charged at the request");
            has.bytes -= u128::from(reserved.bytes.get());
            has.ops -= u128::from(reserved.ops.get());
            has.count -= 1;
            if has.count == 0 {
                self.outstanding.remove(&subject);
            }
        }
    }

    /// What a subject has, with at most 2^64 - 1 of each.
    pub(crate) fn outstanding(&self, subject: &CeilingSubject) -> Outstanding {
        let Sums { bytes, ops, count } = self.sums(subject);
        let [bytes, ops] = [bytes, ops].map(|sum| u64::try_from(sum).unwrap_or(u64::MAX));
        Outstanding { bytes: Bytes::new(bytes), ops: Ops::new(ops), count }
    }

    fn sums(&self, subject: &CeilingSubject) -> Sums {
        self.outstanding.get(subject).copied().unwrap_or_default()
    }

    fn ceiling(&self, subject: &CeilingSubject) -> Ceiling {
        let default = match subject {
            CeilingSubject::User(_) => self.defaults.user,
            CeilingSubject::Group(_) => self.defaults.group,
            CeilingSubject::Account(_) => self.defaults.account,
            CeilingSubject::Project(_) => self.defaults.project,
        };
        self.own.get(subject).copied().unwrap_or(default)
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
