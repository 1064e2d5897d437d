//! Entitlements: what single jobs, users, classes or directories are granted for a time, a row each.
//!
//! ```text
//!   row 17   job 4711, directory scratch/a   reservation 10 GB/s of writes   from 0 s until 100 s
//!   row 18   user 1000                       limit 200 ops/s                 until it is removed
//! ```
//!
//! Rules are text for people; rows are for machines and change one at a time
//! (docs/decisions/0019-entitlements-are-rows.md). Where several rows hold for a request, it pays all
//! limits, goes by the narrowest reservation, and its class has the narrowest weight. Rows that reserve for
//! the same requests add up.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use model::{Directory, JobId, KindSet, Nanos, Rate, Scope, Time, Weight};

use crate::Limit;

/// The number of a row, which no other row gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntitlementId(pub u64);

/// To which requests a row applies: to those that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntitlementScope {
    /// The job of the request.
    pub job: Option<JobId>,
    /// The user of the request.
    pub uid: Option<u32>,
    /// The class: a rule and its key.
    pub class: Option<Scope>,
    /// The directory of the file, or one above it.
    pub directory: Option<Directory>,
    /// The name of the target.
    pub target: Option<Arc<str>>,
}

/// What a row grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grantable {
    /// A rate that is served before others.
    Reservation(Rate),
    /// A rate that is not exceeded, and the most that is let through at once after idleness, in its
    /// unit.
    Limit(Rate, Option<u64>),
    /// The weight of a class.
    Weight(Weight),
}

/// Who made a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntitlementSource {
    /// A decay of past usage.
    Decay,
    /// The calendar of reservations.
    Reservation,
    /// An operator, by a command.
    Operator,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entitlement {
    scope: EntitlementScope,
    grants: Grantable,
    kinds: KindSet,
    source: EntitlementSource,
    from: Nanos,
    until: Option<Nanos>,
}

/// A row with the times of its begin and end by one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEntitlement {
    /// The row; its own span says nothing.
    pub row: Entitlement,
    /// The first point at which it applies.
    pub from: Time,
    /// The first point after it.
    pub until: Time,
}

/// Why something is not a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntitlementError {
    /// It applies to no kind of request.
    #[error("an entitlement without any kind of request: name reads, writes, metadata or all")]
    NoKinds,
    /// It ends before it begins.
    #[error("an entitlement from {0} until {1}: it is to end after its begin")]
    Empty(Nanos, Nanos),
    /// A weight for a part of a class.
    #[error("a weight for {0}: a class has one weight, so name a class, job, user or target only")]
    PartOfClass(&'static str),
}

impl Entitlement {
    /// The most limits of rows that one request pays; of more, those with the lowest numbers.
    pub const LIMITS_MAX: usize = 8;

    /// A row of `kinds` of request, from its receipt on and without end.
    ///
    /// # Errors
    /// If it applies to no kind, or is a weight for a part of a class.
    pub fn new(
        scope: EntitlementScope,
        grants: Grantable,
        kinds: KindSet,
        source: EntitlementSource,
    ) -> Result<Entitlement, EntitlementError> {
        if kinds == KindSet::NONE {
            return Err(EntitlementError::NoKinds);
        }
        if let Grantable::Weight(_) = grants {
            if kinds != KindSet::ALL {
                return Err(EntitlementError::PartOfClass("some kinds of request"));
            }
            if scope.directory.is_some() {
                return Err(EntitlementError::PartOfClass("a directory"));
            }
        }
        Ok(Entitlement { scope, grants, kinds, source, from: Nanos::ZERO, until: None })
    }

    /// The row for a span: durations since the proxy sent the report that is answered with it.
    ///
    /// # Errors
    /// If the span is empty.
    pub fn during(
        self,
        from: Nanos,
        until: Option<Nanos>,
    ) -> Result<Entitlement, EntitlementError> {
        match until {
            Some(until) if until <= from => Err(EntitlementError::Empty(from, until)),
            until => Ok(Entitlement { from, until, ..self }),
        }
    }

    /// To which requests it applies.
    pub fn scope(&self) -> &EntitlementScope {
        &self.scope
    }

    /// What the row grants.
    pub fn grants(&self) -> Grantable {
        self.grants
    }

    /// The kinds of request to which it applies.
    pub fn kinds(&self) -> KindSet {
        self.kinds
    }

    /// Who made the row.
    pub fn source(&self) -> EntitlementSource {
        self.source
    }

    /// When it begins, since the report that it answers was sent.
    pub fn from(&self) -> Nanos {
        self.from
    }

    /// When it ends; `None`: when it is removed.
    pub fn until(&self) -> Option<Nanos> {
        self.until
    }

    /// The limit, if it is one.
    pub fn limit(&self) -> Option<Limit> {
        match self.grants {
            Grantable::Limit(rate, burst) => Some(Limit { kinds: self.kinds, rate, burst }),
            Grantable::Reservation(_) | Grantable::Weight(_) => None,
        }
    }

    /// The reserved rate, if it is a reservation.
    pub fn reservation(&self) -> Option<Rate> {
        match self.grants {
            Grantable::Reservation(rate) => Some(rate),
            Grantable::Limit(..) | Grantable::Weight(_) => None,
        }
    }

    /// The weight, if it is one.
    pub fn weight(&self) -> Option<Weight> {
        match self.grants {
            Grantable::Weight(weight) => Some(weight),
            Grantable::Reservation(_) | Grantable::Limit(..) => None,
        }
    }

    /// Whether another row differs in nothing but its rate, burst or weight.
    pub fn differs_in_value_only(&self, other: &Entitlement) -> bool {
        let same_unit = |a: Rate, b: Rate| a.is_bytes() == b.is_bytes();
        let same_kind = match (self.grants, other.grants) {
            (Grantable::Reservation(a), Grantable::Reservation(b)) => same_unit(a, b),
            (Grantable::Limit(a, _), Grantable::Limit(b, _)) => same_unit(a, b),
            (Grantable::Weight(_), Grantable::Weight(_)) => true,
            _ => false,
        };
        let rest = |row: &Entitlement| (row.kinds, row.from, row.until);
        same_kind && self.scope == other.scope && rest(self) == rest(other)
    }
}

impl EntitlementId {
    /// How many numbers the rows of one reservation have: one for each direction, and one to spare.
    pub const OF_RESERVATION: u64 = 4;

    /// A row of a reservation, by their numbers.
    pub const fn of_reservation(reservation: u64, row: u64) -> EntitlementId {
        EntitlementId(reservation * EntitlementId::OF_RESERVATION + row)
    }

    /// The number of the reservation of a row that is of one.
    pub const fn reservation(self) -> u64 {
        self.0 / EntitlementId::OF_RESERVATION
    }
}

impl TimedEntitlement {
    /// The row with its span from a time on; `None` if it has ended by then.
    pub fn since(&self, now: Time) -> Option<Entitlement> {
        let (from, until) = (self.from.since(now), self.until.since(now));
        self.row.clone().during(from, Some(until)).ok()
    }

    /// The row by another clock, which shows `there` when this one shows `here`.
    pub fn moved(self, here: Time, there: Time) -> TimedEntitlement {
        let moved = |time: Time| match time >= here {
            true => there + time.since(here),
            false => there.before(here.since(time)),
        };
        TimedEntitlement { from: moved(self.from), until: moved(self.until), row: self.row }
    }
}

impl EntitlementScope {
    /// How many conditions it has.
    fn conditions(&self) -> usize {
        let EntitlementScope { job, uid, class, directory, target } = self;
        [job.is_some(), uid.is_some(), class.is_some(), directory.is_some(), target.is_some()]
            .into_iter()
            .map(usize::from)
            .sum()
    }

    /// Which of two scopes that hold for one request is narrower: the one with more conditions;
    /// among as many, the one with the deeper directory.
    pub fn narrowness(&self, other: &EntitlementScope) -> Ordering {
        let key = |of: &EntitlementScope| {
            // Both are above the same file, so the deeper one is the longer one.
            (of.conditions(), of.directory.as_ref().map_or(0, |of| of.as_bytes().len()))
        };
        key(self).cmp(&key(other))
    }
}

/// `job=4711 directory=scratch/a`; `everything` without a condition.
impl fmt::Display for EntitlementScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntitlementScope { job, uid, class, directory, target } = self;
        let words = [
            job.as_ref().map(|job| format!("job={job}")),
            uid.map(|uid| format!("uid={uid}")),
            class.as_ref().map(|class| format!("class={class}")),
            directory.as_ref().map(|directory| format!("directory={directory}")),
            target.as_ref().map(|target| format!("target={target}")),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(if words.is_empty() { "everything" } else { "" })?;
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(grants: Grantable, scope: EntitlementScope) -> Result<Entitlement, EntitlementError> {
        Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Operator)
    }

    fn in_directory(text: &str) -> EntitlementScope {
        let directory = Directory::new(text.as_bytes());
        EntitlementScope { directory, ..EntitlementScope::default() }
    }

    #[test]
    fn a_row_that_says_nothing_or_too_much_is_none() {
        let rate = Rate::bytes_per_sec(10).unwrap();
        let all = EntitlementScope::default();
        let none = Entitlement::new(
            all.clone(),
            Grantable::Reservation(rate),
            KindSet::NONE,
            EntitlementSource::Decay,
        );
        assert_eq!(none.unwrap_err(), EntitlementError::NoKinds);
        let in_directory = in_directory("x/a");
        let heavy = row(Grantable::Weight(Weight::ONE), in_directory);
        assert_eq!(heavy.unwrap_err(), EntitlementError::PartOfClass("a directory"));
        let whole = row(Grantable::Limit(rate, None), all).unwrap();
        let second = Nanos::from_secs(1);
        let error = whole.during(second, Some(second)).unwrap_err();
        assert!(error.to_string().contains("from 1s until 1s"), "{error}");
    }

    #[test]
    fn more_conditions_are_narrower_than_a_deeper_directory() {
        let job = EntitlementScope { job: JobId::new("a.1"), ..EntitlementScope::default() };
        let both = EntitlementScope { uid: Some(5), ..job.clone() };
        let [above, deep] = ["x/a", "x/a/b"].map(in_directory);
        assert_eq!(both.narrowness(&deep), Ordering::Greater);
        assert_eq!(job.narrowness(&deep), Ordering::Less);
        assert_eq!(deep.narrowness(&above), Ordering::Greater);
        assert_eq!(
            (job.to_string(), above.to_string()),
            ("job=a.1".into(), "directory=x/a".into())
        );
    }

    #[test]
    fn another_rate_is_another_value_and_another_unit_is_another_row() {
        let reserved = |rate| row(Grantable::Reservation(rate), EntitlementScope::default());
        let [ten, twenty] = [10, 20].map(|rate| reserved(Rate::bytes_per_sec(rate).unwrap()));
        let in_operations = reserved(Rate::ops_per_sec(10).unwrap()).unwrap();
        let ten = ten.unwrap();
        assert!(ten.differs_in_value_only(&twenty.unwrap()));
        assert!(!ten.differs_in_value_only(&in_operations));
    }
}
