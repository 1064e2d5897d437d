//! The rows of entitlements that a proxy's dispatcher was given, and what they grant a request.
//!
//! ```text
//!   given, with the proxy's clock ─► in force from its begin until its end ─► limits, the narrowest
//!                                                                reservations, the narrowest weight
//! ```
//!
//! It looks at every row for every request, and knows no indices. Rows that decays make are not
//! here: their limits are checked with the usage.

use std::collections::BTreeMap;

use model::{Identity, KeyValue, OpKind, Rate, Scope, Time};
use rules::{Entitlement, EntitlementId};

use super::InvariantChecks;
use crate::scheduler::EntitlementChanges;
use crate::world::{SimOwner, SimRequest};

/// What changes the rows of a proxy.
#[derive(Debug)]
pub(crate) enum RowsEvent {
    /// It was given others, whose spans count from a time of its clock.
    Given(EntitlementChanges, Time),
    /// Some may begin or end by its clock.
    Passed,
}

/// The rows of one proxy.
#[derive(Debug, Default)]
pub(super) struct ProxyRows {
    rows: BTreeMap<EntitlementId, GivenRow>,
    /// The latest time that its clock has shown: its dispatcher's time never goes back.
    clock: Time,
}

/// A row with its times by the proxy's clock.
#[derive(Clone, Debug)]
pub(crate) struct GivenRow {
    pub(crate) row: Entitlement,
    pub(crate) begins: Time,
    pub(crate) ends: Option<Time>,
    in_force: bool,
}

/// A request as rows see it: the class is that of its rule, whatever a row reserves.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRequest<'a> {
    pub(super) who: &'a Identity,
    pub(super) class: &'a Scope,
    pub(super) target: &'a str,
}

impl InvariantChecks {
    /// Changes the rows of a proxy at a time of its clock and of the world, perhaps not at once for all
    /// requests. `waiting` are its waiting requests with their owners, in order of arrival.
    pub(crate) fn rows_changed<'a>(
        &mut self,
        proxy: u32,
        change: RowsEvent,
        spreading: bool,
        waiting: impl FnOnce() -> Vec<(&'a SimRequest, u32, &'a SimOwner)>,
        clock: Time,
        now: Time,
    ) {
        let began = match change {
            RowsEvent::Given(rows, since) => self.known.change_rows(proxy, rows, since, clock),
            RowsEvent::Passed => self.known.pass_row_edges(proxy, clock),
        };
        let Some(began) = began.filter(|_| self.policy.is_ours()) else { return };
        self.whole.iter_mut().for_each(|whole| whole.rows_changed(proxy, &began));
        self.reserved.iter_mut().for_each(|of| of.recount(Some(proxy), now));
        let watch = &mut self.proxies[proxy as usize];
        watch.order.clear();
        watch.note_spreading(spreading);
        watch.before_rows = watch.arrived;
        watch.waiting.recount();
        watch.fairness.restart();
        watch.windows.rows_changed(proxy, &began);
        let before = watch.windows.recount_reservations();
        for (r, identity, owner) in waiting() {
            self.arrived(r, identity, owner, now);
        }
        self.proxies[proxy as usize].windows.resume_reservations(before);
    }

    /// The rows that a proxy was given and that have not ended by its clock.
    pub(crate) fn current_rows(
        &self,
        proxy: u32,
        clock: Time,
    ) -> impl Iterator<Item = (EntitlementId, &GivenRow)> {
        self.known.current_rows(proxy, clock)
    }
}

impl ProxyRows {
    /// Puts, replaces or removes rows. Returns those that are in force now and were not, or not so;
    /// `None` if nothing changes.
    pub(super) fn change(
        &mut self,
        changes: EntitlementChanges,
        since: Time,
        clock: Time,
    ) -> Option<Vec<EntitlementId>> {
        let mut is_changed = false;
        for (id, row) in changes {
            let before = self.rows.remove(&id);
            is_changed |= before.is_some_and(|before| before.in_force);
            let Some(row) = row else { continue };
            let (begins, ends) = (since + row.from(), row.until().map(|until| since + until));
            self.rows.insert(id, GivenRow { row, begins, ends, in_force: false });
        }
        let began = self.advance(clock);
        (is_changed || began.is_some()).then(|| began.unwrap_or_default())
    }

    /// Lets rows begin and end. Returns those that began; `None` if nothing changes.
    pub(super) fn advance(&mut self, clock: Time) -> Option<Vec<EntitlementId>> {
        self.clock = self.clock.max(clock);
        let clock = self.clock;
        let (mut began, mut is_changed) = (Vec::new(), false);
        for (id, given) in &mut self.rows {
            let in_force = given.begins <= clock && given.ends.is_none_or(|ends| clock < ends);
            if in_force != given.in_force {
                is_changed = true;
                began.extend(in_force.then_some(*id));
            }
            given.in_force = in_force;
        }
        is_changed.then_some(began)
    }

    /// All rows that it was given and that have not ended.
    pub(super) fn current(&self, clock: Time) -> impl Iterator<Item = (EntitlementId, &GivenRow)> {
        let clock = self.clock.max(clock);
        let current = move |given: &GivenRow| given.ends.is_none_or(|ends| clock < ends);
        self.rows.iter().filter(move |(_, given)| current(given)).map(|(id, given)| (*id, given))
    }

    /// A row, while it is in force.
    pub(super) fn row(&self, id: EntitlementId) -> Option<&Entitlement> {
        self.rows.get(&id).filter(|given| given.in_force).map(|given| &given.row)
    }

    /// The limits that a request of a kind pays, in order of their numbers.
    pub(super) fn limits(&self, of: RowRequest<'_>, kind: OpKind) -> Vec<EntitlementId> {
        let limits = self.holding(of, kind).filter(|(_, row)| row.limit().is_some());
        limits.map(|(id, _)| id).take(Entitlement::LIMITS_MAX).collect()
    }

    /// What rows reserve for a request of a kind: the narrowest one, or of several the newest, with all
    /// that are for the same requests in the same unit. The lowest number stands for these.
    pub(super) fn reservation(
        &self,
        of: RowRequest<'_>,
        kind: OpKind,
    ) -> Option<(EntitlementId, Rate)> {
        let reserves = self.holding(of, kind).filter(|(_, row)| row.reservation().is_some());
        let (_, newest) = narrowest(reserves)?;
        let like = |row: &Entitlement| {
            let unit = row.reservation().map(Rate::is_bytes);
            (row.scope().clone(), row.kinds(), unit)
        };
        let together = self.in_force().filter(|(_, row)| like(row) == like(newest));
        let rates = together.filter_map(|(id, row)| Some((id, row.reservation()?)));
        rates.reduce(|(lowest, sum), (_, rate)| {
            (lowest, sum.with_per_sec(sum.per_sec() + rate.per_sec()).expect("above zero"))
        })
    }

    /// The weight of a class. A row for a job or user holds for it if the class's key names that one.
    pub(super) fn weight(&self, class: &Scope, target: &str) -> Option<u64> {
        let weights = self.in_force().filter(|(_, row)| {
            let scope = row.scope();
            let has = |value: KeyValue| class.key.contains(&value);
            row.weight().is_some()
                && scope.job.as_ref().is_none_or(|job| has(KeyValue::Jobid(job.clone())))
                && scope.uid.is_none_or(|uid| has(KeyValue::Uid(uid)))
                && scope.class.as_ref().is_none_or(|of| of == class)
                && scope.target.as_deref().is_none_or(|of| of == target)
        });
        let (_, row) = narrowest(weights)?;
        row.weight().map(|weight| weight.get().into())
    }

    fn in_force(&self) -> impl Iterator<Item = (EntitlementId, &Entitlement)> {
        let rows = self.rows.iter().filter(|(_, given)| given.in_force);
        rows.map(|(id, given)| (*id, &given.row))
    }

    fn holding<'a>(
        &'a self,
        of: RowRequest<'a>,
        kind: OpKind,
    ) -> impl Iterator<Item = (EntitlementId, &'a Entitlement)> {
        self.in_force().filter(move |(_, row)| {
            let scope = row.scope();
            row.kinds().contains(kind)
                && scope.directory.is_none()
                && scope.job.as_ref().is_none_or(|job| *job == of.who.job)
                && scope.uid.is_none_or(|uid| uid == of.who.uid)
                && scope.class.as_ref().is_none_or(|class| class == of.class)
                && scope.target.as_deref().is_none_or(|target| target == of.target)
        })
    }
}

/// The row with most conditions; of several the newest.
fn narrowest<'a>(
    rows: impl Iterator<Item = (EntitlementId, &'a Entitlement)>,
) -> Option<(EntitlementId, &'a Entitlement)> {
    rows.max_by_key(|(id, row)| {
        let scope = row.scope();
        let conditions = [
            scope.job.is_some(),
            scope.uid.is_some(),
            scope.class.is_some(),
            scope.target.is_some(),
        ];
        (conditions.into_iter().filter(|has| *has).count(), *id)
    })
}
