//! Records of a calendar: plain data from which it is built again.
//!
//! ```text
//!   call ─► answer, events ─► take_changed ─► CalendarRecords ─► the caller's store, then its reply
//!   start ─► all records ─► Calendar::restore ─► events of what has changed meanwhile
//! ```
//!
//! Resources are named by kind and name, not by their places in a table. A record of a reservation or
//! a resource replaces the one before it; the reasons of ended reservations are not recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Bytes, Nanos, Ops, Share, Time};
use serde::{Deserialize, Serialize};

use crate::ceilings::CeilingSubject;
use crate::demand::{DemandError, ResourceKind};
use crate::load::{Capacity, Load};
use crate::request::{ReservationClass, ReservationOwner};
use crate::reservation::{ReservationId, Stage};
use crate::resources::{ResourceError, Span};

/// All records of a calendar, or those that have changed since they were taken last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarRecords {
    /// The time of the calendar.
    pub at: Time,
    /// The greatest number that a reservation was given.
    pub last: ReservationId,
    /// Whether compression has nothing left to try.
    pub is_settled: bool,
    /// The resources, in the order of their places.
    pub resources: Vec<ResourceRecord>,
    /// The reservations that have not ended.
    pub reservations: Vec<ReservationRecord>,
    /// Those that have ended; none if these are all records.
    pub ended: Vec<ReservationId>,
    /// The balances of credits.
    pub credits: Vec<CreditRecord>,
}

/// A resource with its capacities ahead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRecord {
    pub(crate) kind: ResourceKind,
    #[serde(with = "text")]
    pub(crate) name: Arc<str>,
    /// The whole capacity from each time on.
    pub(crate) capacities: Vec<(Time, Capacity)>,
    #[serde(with = "billionths")]
    pub(crate) unseen: Share,
    pub(crate) rules: Load,
}

/// A reservation that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRecord {
    pub(crate) id: ReservationId,
    pub(crate) owner: ReservationOwner,
    pub(crate) class: ReservationClass,
    pub(crate) demand: Vec<LoadRecord>,
    pub(crate) release: Time,
    pub(crate) duration: Nanos,
    pub(crate) claim_window: Nanos,
    pub(crate) deadline: Option<Time>,
    pub(crate) has_paid: bool,
    pub(crate) requested: Time,
    pub(crate) stage: Stage,
    pub(crate) is_head: bool,
    pub(crate) place: Span,
    pub(crate) guaranteed: Option<Time>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) scaled: Vec<ScaledRecord>,
    pub(crate) extended: Nanos,
    pub(crate) bytes: Bytes,
    pub(crate) ops: Ops,
    pub(crate) parent: Option<ReservationId>,
}

/// The load of one resource in a demand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadRecord {
    pub(crate) kind: ResourceKind,
    #[serde(with = "text")]
    pub(crate) name: Arc<str>,
    pub(crate) load: Load,
}

/// A load that is lower during a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScaledRecord {
    pub(crate) span: Span,
    pub(crate) of: LoadRecord,
}

/// The balance of a credit at a time, from which it decays; zero bytes: there is none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditRecord {
    pub(crate) subject: CeilingSubject,
    pub(crate) bytes: Bytes,
    pub(crate) at: Time,
}

/// A record that no calendar makes, and what was done with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreRepair {
    /// A resource cannot be added.
    #[error("left out the record of a resource: {0}")]
    Resource(#[from] ResourceError),
    /// A resource has no capacity or its times are not in order.
    #[error("left out the record of {kind} {name:?}, without capacities in the order of time", kind = .0.name(), name = .1)]
    Capacities(ResourceKind, Arc<str>),
    /// Two reservations have one number.
    #[error("left out the second of two records with the number {0}")]
    Duplicate(ReservationId),
    /// The loads are not a demand.
    #[error("left out the record of reservation {0}: {1}")]
    Demand(ReservationId, DemandError),
    /// Another value is not valid.
    #[error("left out the record of reservation {0}, which has {1} that is not valid")]
    Value(ReservationId, &'static str),
    /// The queue has another head, or the reservation has begun.
    #[error("reservation {0} is not the head of the queue any more")]
    Head(ReservationId),
}

/// What has changed since it was recorded. Nothing is noted before the first time.
#[derive(Debug)]
pub(crate) struct ChangedSet<K>(Option<BTreeSet<K>>);

impl CalendarRecords {
    /// Whether nothing has changed but the time.
    pub fn is_empty(&self) -> bool {
        let CalendarRecords { resources, reservations, ended, credits, .. } = self;
        resources.len() + reservations.len() + ended.len() + credits.len() == 0
    }

    /// Applies what has changed to all records, which are in the order of numbers and of subjects as
    /// they are in what a calendar returns. O(log n) for each record, O(n) if something has ended.
    pub fn merge(&mut self, changed: CalendarRecords) {
        (self.at, self.last, self.is_settled) = (changed.at, changed.last, changed.is_settled);
        for new in changed.resources {
            let is_same =
                |old: &&mut ResourceRecord| (old.kind, &old.name) == (new.kind, &new.name);
            match self.resources.iter_mut().find(is_same) {
                Some(old) => *old = new,
                None => self.resources.push(new),
            }
        }
        for new in changed.reservations {
            match self.reservations.binary_search_by_key(&new.id, |old| old.id) {
                Ok(at) => self.reservations[at] = new,
                Err(at) => self.reservations.insert(at, new),
            }
        }
        if !changed.ended.is_empty() {
            self.reservations.retain(|one| changed.ended.binary_search(&one.id).is_err());
        }
        for new in changed.credits {
            match self.credits.binary_search_by(|old| old.subject.cmp(&new.subject)) {
                Ok(at) => self.credits[at] = new,
                Err(at) => self.credits.insert(at, new),
            }
        }
        self.credits.retain(|credit| !credit.is_empty());
    }
}

impl ReservationRecord {
    /// The number of the reservation.
    pub fn id(&self) -> ReservationId {
        self.id
    }

    /// The owner of the reservation.
    pub fn owner(&self) -> &ReservationOwner {
        &self.owner
    }

    /// The reservation of which it is a phase.
    pub fn parent(&self) -> Option<ReservationId> {
        self.parent
    }
}

impl CreditRecord {
    /// Whether there is no balance any more, so that the record can be dropped.
    fn is_empty(&self) -> bool {
        self.bytes == Bytes::ZERO
    }
}

impl<K: Ord> ChangedSet<K> {
    /// Notes that something has changed.
    pub(crate) fn note(&mut self, key: K) {
        if let Some(changed) = &mut self.0 {
            changed.insert(key);
        }
    }

    /// Returns what was noted, and notes from now on.
    pub(crate) fn take(&mut self) -> BTreeSet<K> {
        self.0.replace(BTreeSet::new()).unwrap_or_default()
    }
}

impl<K> Default for ChangedSet<K> {
    fn default() -> ChangedSet<K> {
        ChangedSet(None)
    }
}

/// The two amounts of a load or a capacity.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AmountsRecord {
    read: u64,
    write: u64,
}

impl AmountsRecord {
    fn too_much(self) -> String {
        let (most, more) = (Load::PER_SEC_MAX, self.read.max(self.write));
        format!("{more} per second is more than a resource can have: {most}")
    }
}

impl TryFrom<AmountsRecord> for Load {
    type Error = String;

    fn try_from(amounts: AmountsRecord) -> Result<Load, String> {
        Load::per_sec(amounts.read, amounts.write).ok_or_else(|| amounts.too_much())
    }
}

impl From<Load> for AmountsRecord {
    fn from(load: Load) -> AmountsRecord {
        AmountsRecord { read: load.read_per_sec(), write: load.write_per_sec() }
    }
}

impl TryFrom<AmountsRecord> for Capacity {
    type Error = String;

    fn try_from(amounts: AmountsRecord) -> Result<Capacity, String> {
        Capacity::per_sec(amounts.read, amounts.write).ok_or_else(|| amounts.too_much())
    }
}

impl From<Capacity> for AmountsRecord {
    fn from(capacity: Capacity) -> AmountsRecord {
        AmountsRecord { read: capacity.read_per_sec(), write: capacity.write_per_sec() }
    }
}

/// The serde form of shared text.
pub(crate) mod text {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

/// The serde form of shared text that may be absent.
pub(crate) mod optional_text {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        text: &Option<Arc<str>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Arc<str>>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(Arc::from))
    }
}

/// The serde form of a share.
mod billionths {
    use model::Share;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(share: &Share, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(share.billionths())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Share, D::Error> {
        let count = u32::deserialize(from)?;
        let share = Share::from_billionths(count);
        share.ok_or_else(|| D::Error::custom(format!("{count} billionths are not a share")))
    }
}
