//! The shares of each scope that is in use, and how they move.
//!
//! ```text
//!   usage ─► wants ─► split ─► targets ─┬─ lower: sent at once
//!                                       └─ higher: as far as what the others may still be using
//!   acknowledged: less in use ─────────────┘  leaves it
//! ```
//!
//! Invariant: over the proxies, the most that each may be using adds up to no more than the whole.
//! The exception is what a proxy brings along that was away; then no share is raised until the sum
//! is below the whole. The share of unlisted scopes moves by the same steps, and so does the
//! fallback.
//!
//! The slots of the target are a scope that is listed while a proxy claims a reservation, and for
//! [`SLOTS_KEPT`] after. Unlisted, each proxy has all of them: its share counts from nothing when
//! they begin to be divided.

mod listed;

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, ReservationLag, Scope, ScopeUsage, SectionKind, Share, SlotsClaim, Time};
use rules::RuleSet;

use crate::in_use::InUseBound;
use crate::proxies::{ProxyProgress, ProxyTable};
use crate::split::Want;
use crate::squeeze::Squeeze;
use listed::{
    ListedScope, ProxyShare, ProxyShares, ShareRow, TICK, least_part, rounded_claim, steps, wanted,
};

/// The table of all listed scopes.
#[derive(Debug, Default)]
pub(crate) struct ShareTable {
    /// An index is used again once its scope leaves the list.
    listed: Vec<Option<ListedScope>>,
    indices: BTreeMap<Scope, ScopeIndex>,
    free: Vec<ScopeIndex>,
    /// Scopes to be divided again, and the index from which the search goes on.
    stale: BTreeSet<ScopeIndex>,
    next: ScopeIndex,
    /// Scopes of which a raise waits for an acknowledgement.
    moving: BTreeSet<ScopeIndex>,
    /// Like `stale` and `moving`, for the share of unlisted scopes.
    unlisted_stale: bool,
    unlisted_moves: bool,
    /// Of the slots.
    squeeze: Squeeze,
}

/// The index of a listed scope: reports name thousands of scopes, mostly the same ones again.
pub(crate) type ScopeIndex = u32;

/// Where an acknowledgement makes room.
#[derive(Debug, Default)]
pub(crate) struct FreedShare {
    scopes: Vec<ScopeIndex>,
    unlisted: bool,
}

impl ShareTable {
    /// Handles the usage of a proxy's last report: replaces the scopes that the proxy uses. New
    /// scopes are listed, if there is room.
    pub(crate) fn record_usage(
        &mut self,
        id: u32,
        uses: &[(Scope, ScopeUsage)],
        members: &mut ProxyTable,
        bounds: ShareBounds<'_>,
        idle: Nanos,
        now: Time,
    ) {
        let member = members.get_mut(id);
        let (report, before) = (member.sequence, std::mem::take(&mut member.active));
        let mut active = Vec::with_capacity(uses.len());
        let mut expected = 0;
        for (scope, what) in uses {
            if scope.section == SectionKind::Slots {
                continue;
            }
            // Reports name scopes in the same order as before.
            let near = before.iter().skip(expected).take(NEAR);
            let same = |place: &ScopeIndex| self.get(*place).is_some_and(|of| of.scope == *scope);
            let place = match near.clone().position(same) {
                Some(at) => {
                    expected += at + 1;
                    before[expected - 1]
                }
                None => match self.list(scope, members, bounds, now) {
                    Some(place) => place,
                    None => continue,
                },
            };
            if self.used(id, place, what, report, now) {
                active.push(place);
            }
        }
        for place in before {
            if !self.is_idle(id, place, report, idle, now) {
                active.push(place);
            }
        }
        members.get_mut(id).active = active;
    }

    /// Handles a proxy's claim of the target's slots; `None`: it has no requests. To be called before
    /// its usage is recorded.
    pub(crate) fn record_claim(
        &mut self,
        id: u32,
        claim: Option<SlotsClaim>,
        members: &mut ProxyTable,
        bounds: ShareBounds<'_>,
        idle: Nanos,
        now: Time,
    ) {
        let member = members.get_mut(id);
        let report = member.sequence;
        let rounded = claim.map_or(member.slots, rounded_claim);
        let has_changed = std::mem::replace(&mut member.slots, rounded) != rounded;
        let is_reserved = claim.is_some_and(|claim| claim.reserved > Share::ZERO);
        let is_needed = is_reserved && members.count() > 1;
        let place = match is_needed {
            true => self.list(&Scope::slots(), members, bounds, now),
            false => self.indices.get(&Scope::slots()).copied(),
        };
        let Some(place) = place else { return };
        self.squeeze.record(id, claim.unwrap_or_default().lag);
        if has_changed {
            self.stale.insert(place);
        }
        let before = self.get(place).map(|listed| listed.used);
        match claim {
            Some(SlotsClaim { used, waiting, .. }) => {
                self.used(id, place, &ScopeUsage { used: Some(used), waiting }, report, now);
            }
            None => {
                self.is_idle(id, place, report, idle, now);
                self.note_named(id, place, report);
            }
        }
        // Requests without a reservation do not keep them divided.
        if let (false, Some(before), Some(listed)) = (is_needed, before, self.get_mut(place)) {
            listed.used = before;
        }
    }

    /// Notes that a report said of a scope what there is to say.
    fn note_named(&mut self, id: u32, place: ScopeIndex, report: u64) {
        let share = self.get_mut(place).and_then(|listed| listed.shares.get_mut(id));
        share.into_iter().for_each(|share| share.sequence = report);
    }

    /// Notes that a proxy used a scope: true if the report had not named it already.
    fn used(
        &mut self,
        id: u32,
        place: ScopeIndex,
        what: &ScopeUsage,
        report: u64,
        now: Time,
    ) -> bool {
        let Some(listed) = self.get_mut(place) else { return false };
        listed.used = now;
        let share = listed.shares.get_mut(id).expect("each proxy has a share of each listed scope");
        let first = share.sequence != report;
        let want = wanted(what, share, now.since(share.used).get() / TICK.get());
        (share.used, share.sequence) = (now, report);
        if share.want != want {
            share.want = want;
            self.stale.insert(place);
        }
        first
    }

    /// Whether a proxy has not used a scope for so long that it is idle there now. False if the
    /// report named it: that is noted.
    fn is_idle(&mut self, id: u32, place: ScopeIndex, report: u64, idle: Nanos, now: Time) -> bool {
        let share = self.get_mut(place).and_then(|listed| listed.shares.get_mut(id));
        let Some(share) = share.filter(|share| share.sequence != report) else { return true };
        let want = match now.since(share.used) {
            span if span >= idle => Want::Idle,
            _ => wanted(&ScopeUsage { used: Some(Share::ZERO), waiting: false }, share, 1),
        };
        if share.want != want {
            share.want = want;
            self.stale.insert(place);
        }
        want == Want::Idle
    }

    /// Lists a scope and keeps it listed without usage, or no longer.
    pub(crate) fn keep(
        &mut self,
        scope: &Scope,
        is_kept: bool,
        members: &ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) {
        let place = match is_kept {
            true => self.list(scope, members, bounds, now),
            false => self.indices.get(scope).copied(),
        };
        if let Some(listed) = place.and_then(|place| self.get_mut(place)) {
            (listed.is_kept, listed.used) = (is_kept, now);
        }
    }

    /// Squeezes what goes by weight of the slots while reservations lag: the step of a tick.
    pub(crate) fn squeeze(&mut self, members: &ProxyTable, now: Time) {
        let Some(place) = self.indices.get(&Scope::slots()) else { return };
        if self.squeeze.step(|id| members.get(id).is_present(), now) {
            self.stale.insert(*place);
        }
    }

    /// Divides the scopes that something changed for, and the share of unlisted scopes: as many as
    /// are [`SHARES_MAX`] shares. The others are next, in turn.
    pub(crate) fn divide(&mut self, members: &mut ProxyTable, may_raise: bool) {
        if std::mem::take(&mut self.unlisted_stale) {
            self.grant_unlisted(members, may_raise);
        }
        let most = (SHARES_MAX / members.count().max(1) as usize).max(1);
        for _ in 0..most {
            let next = self.stale.range(self.next..).next().or_else(|| self.stale.first());
            let Some(place) = next.copied() else { return };
            self.stale.remove(&place);
            self.next = place + 1;
            let by_weight = self.squeeze.part();
            if let Some(listed) = self.get_mut(place) {
                listed.set_targets(by_weight, members);
                self.grant(place, members, may_raise);
            }
        }
    }

    /// Raises what waited for the room that was freed.
    pub(crate) fn raise_waiting(
        &mut self,
        freed: &FreedShare,
        members: &mut ProxyTable,
        may_raise: bool,
    ) {
        if freed.unlisted && self.unlisted_moves {
            self.grant_unlisted(members, may_raise);
        }
        for place in &freed.scopes {
            if self.moving.remove(place) {
                self.grant(*place, members, may_raise);
            }
        }
    }

    /// Handles the acknowledgement of a revision: returns where others may be raised.
    pub(crate) fn acknowledge(
        &mut self,
        id: u32,
        members: &mut ProxyTable,
        revision: u64,
    ) -> FreedShare {
        let mut freed = FreedShare::default();
        let member = members.get_mut(id);
        if revision <= member.acknowledged || revision > member.revision {
            return freed;
        }
        member.acknowledged = revision;
        member.rows.acknowledge(revision);
        freed.unlisted = member.unlisted.acknowledge(revision);
        freed.unlisted |= member.fallback.acknowledge(revision);
        let reached = |(_, at): &(&Scope, &u64)| **at <= revision;
        let scopes: Vec<Scope> =
            member.unacknowledged.iter().filter(reached).map(|(scope, _)| scope.clone()).collect();
        // A scope whose last change is later may have come down a step nevertheless.
        for scope in member.unacknowledged.keys() {
            let Some(place) = self.indices.get(scope) else { continue };
            let listed = self.listed[*place as usize].as_mut();
            let share = listed.and_then(|listed| listed.shares.get_mut(id));
            if share.is_some_and(|share| share.in_use.acknowledge(revision)) {
                freed.scopes.push(*place);
            }
        }
        for scope in scopes {
            member.unacknowledged.remove(&scope);
        }
        freed
    }

    /// Adds a proxy whose first report names what it holds.
    pub(crate) fn adopt(
        &mut self,
        id: u32,
        held: &[(Scope, Share)],
        members: &mut ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) {
        let unlisted = members.get(id).unlisted.clone();
        let has_lost_rows = members.get(id).has_lost_rows();
        for listed in self.listed.iter_mut().flatten() {
            // Others have the shares of rows that were not in force: with the rows it gets its own.
            let is_lost = has_lost_rows && listed.is_of_row();
            let held = match listed.is_of_slots() || is_lost {
                true => InUseBound::new(Share::ZERO),
                false => unlisted.clone(),
            };
            listed.shares.insert(id, ProxyShare::new(held, false, now));
            if is_lost {
                listed.list_explicitly(id, members.get_mut(id));
            }
        }
        let mut active = Vec::new();
        for (scope, part) in held {
            let Some(place) = self.list(scope, members, bounds, now) else {
                // The table has no room for the scope: the proxy is made to give it up.
                members.get_mut(id).change_scope(scope);
                continue;
            };
            active.push(place);
            let listed = self.get_mut(place).expect("it was listed just now");
            if has_lost_rows && listed.is_of_row() {
                continue;
            }
            // Until it reports otherwise, it needs what it has.
            let mut share = ProxyShare::new(InUseBound::new(*part), true, now);
            share.want = Want::AtMost(*part);
            listed.shares.insert(id, share);
        }
        members.get_mut(id).active.extend(active);
        self.all_stale();
    }

    /// Handles that a proxy was restarted, or is forgotten and `gone`.
    pub(crate) fn remove_proxy(&mut self, id: u32, gone: bool, now: Time) {
        self.squeeze.record(id, ReservationLag::None);
        for listed in self.listed.iter_mut().flatten() {
            match gone {
                true => listed.shares.remove(id),
                false => {
                    listed
                        .shares
                        .insert(id, ProxyShare::new(InUseBound::new(Share::ZERO), false, now));
                }
            }
        }
        self.all_stale();
    }

    /// Marks everything to be divided again, after a change of the proxies or the rules.
    pub(crate) fn all_stale(&mut self) {
        self.stale.extend(self.indices.values());
        self.unlisted_stale = true;
    }

    /// Updates the least shares, since other rules may change them.
    pub(crate) fn set_rules(&mut self, rules: &RuleSet) {
        for (place, listed) in self.listed.iter_mut().enumerate() {
            let Some(listed) = listed else { continue };
            let least = least_part(rules, &listed.scope);
            if listed.least != least {
                listed.least = least;
                self.stale.insert(place as ScopeIndex);
            }
        }
    }

    /// Ends the listing of scopes unused for a while, where that changes no share.
    pub(crate) fn drop_unused(&mut self, members: &mut ProxyTable, keep: Nanos, now: Time) {
        let unused = |place: &&ScopeIndex| {
            let listed = self.get(**place);
            listed.is_some_and(|of| match of.is_of_slots() {
                true => now.since(of.used) >= SLOTS_KEPT && of.is_settled(members),
                false => now.since(of.used) >= keep && of.is_as_unlisted(members),
            })
        };
        let unused: Vec<ScopeIndex> = self.indices.values().filter(unused).copied().collect();
        for place in unused {
            let Some(listed) = self.listed[place as usize].take() else { continue };
            if listed.is_of_slots() {
                self.squeeze = Squeeze::default();
            }
            self.indices.remove(&listed.scope);
            self.stale.remove(&place);
            self.moving.remove(&place);
            self.free.push(place);
            for (id, member) in members.iter_mut() {
                if let Some(share) = listed.shares.get(id).filter(|_| listed.is_of_slots()) {
                    member.former_slots = share.in_use.clone();
                }
                member.change_scope(&listed.scope);
            }
        }
    }

    /// The most of the target's slots that a proxy may be using: all, where they are not divided or
    /// it has no share of them.
    pub(crate) fn slots_in_use(&self, id: u32, member: &ProxyProgress) -> Share {
        let place = self.indices.get(&Scope::slots());
        let listed = place.and_then(|place| self.get(*place));
        let share = listed.and_then(|listed| listed.shares.get(id)).filter(|share| share.explicit);
        share.map_or(Share::WHOLE, |share| share.in_use.most().max(member.floor()))
    }

    /// What a proxy is granted of a scope.
    pub(crate) fn grant_of(&self, id: u32, scope: &Scope) -> Option<Share> {
        let listed = self.indices.get(scope).and_then(|place| self.get(*place))?;
        let share = listed.shares.get(id).filter(|share| share.explicit)?;
        Some(share.in_use.sent())
    }

    /// Whether something is to be divided again.
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty() || self.unlisted_stale || self.squeeze.is_active()
    }

    /// How many scopes are listed.
    pub(crate) fn count(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, place: ScopeIndex) -> Option<&ListedScope> {
        self.listed.get(place as usize)?.as_ref()
    }

    fn get_mut(&mut self, place: ScopeIndex) -> Option<&mut ListedScope> {
        self.listed.get_mut(place as usize)?.as_mut()
    }

    /// Lists a scope, unless it is listed. Returns its index; `None` if the table is full.
    fn list(
        &mut self,
        scope: &Scope,
        members: &ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) -> Option<ScopeIndex> {
        if let Some(place) = self.indices.get(scope) {
            return Some(*place);
        }
        let is_of_slots = scope.section == SectionKind::Slots;
        if self.indices.len() >= bounds.scopes_max && !is_of_slots {
            return None;
        }
        let mut shares = ProxyShares::default();
        for (id, member) in members.iter() {
            let held = match is_of_slots {
                true => member.begin_slots(),
                false => member.unlisted.clone(),
            };
            shares.insert(id, ProxyShare::new(held, false, now));
        }
        let least = least_part(bounds.rules, scope);
        let listed = ListedScope { scope: scope.clone(), shares, least, is_kept: false, used: now };
        let place = self.free.pop().unwrap_or_else(|| {
            self.listed.push(None);
            (self.listed.len() - 1) as ScopeIndex
        });
        self.listed[place as usize] = Some(listed);
        self.indices.insert(scope.clone(), place);
        self.stale.insert(place);
        Some(place)
    }

    fn grant(&mut self, place: ScopeIndex, members: &mut ProxyTable, may_raise: bool) {
        let Some(listed) = self.listed.get_mut(place as usize).and_then(Option::as_mut) else {
            return;
        };
        let row = |(id, share): (u32, &ProxyShare)| {
            let member = members.get(id);
            let target = member.is_present().then_some(share.target);
            let (most, floor) = listed.held(share, member);
            (id, ShareRow { most, sent: share.in_use.sent(), floor, target })
        };
        let (ids, rows): (Vec<u32>, Vec<ShareRow>) = listed.shares.iter().map(row).unzip();
        let (changes, waits) = steps(&rows, may_raise);
        for (at, part) in changes {
            let revision = members.get_mut(ids[at]).change_scope(&listed.scope);
            let share = listed.shares.get_mut(ids[at]).expect("its number is of this table");
            share.in_use.send(revision, part);
            share.explicit = true;
        }
        for id in ids {
            let member = members.get_mut(id);
            if member.is_present() {
                listed.list_explicitly(id, member);
            }
        }
        if waits {
            self.moving.insert(place);
        }
    }

    fn grant_unlisted(&mut self, members: &mut ProxyTable, may_raise: bool) {
        let equal = Share::equal(members.count());
        let present = members.iter().filter(|(_, member)| member.is_present()).count() as u32;
        let away = members.iter().filter(|(_, member)| !member.is_present());
        let kept = away.fold(Share::ZERO, |sum, (_, m)| sum.plus(m.unlisted.most().max(m.floor())));
        let unlisted = Share::WHOLE.less(kept).shared_by(present).min(equal);
        let away = members.iter().filter(|(_, member)| !member.is_present());
        let kept = away.fold(Share::ZERO, |sum, (_, m)| sum.plus(m.fallback.most()));
        let fallback = Share::WHOLE.less(kept).shared_by(present).min(equal);
        let rows = |held: fn(&ProxyProgress) -> &InUseBound, target| -> Vec<ShareRow> {
            let row = |(_, member): (u32, &ProxyProgress)| {
                let target = member.is_present().then_some(target);
                let (most, sent) = (held(member).most(), held(member).sent());
                ShareRow { most, sent, floor: member.floor(), target }
            };
            members.iter().map(row).collect()
        };
        let (unlisted, waits) = steps(&rows(|member| &member.unlisted, unlisted), may_raise);
        let (fallback, too) = steps(&rows(|member| &member.fallback, fallback), may_raise);
        let ids: Vec<u32> = members.iter().map(|(id, _)| id).collect();
        for (at, part) in unlisted {
            let member = members.get_mut(ids[at]);
            let revision = member.change();
            member.unlisted.send(revision, part);
            for listed in self.listed.iter_mut().flatten() {
                listed.list_explicitly(ids[at], member);
            }
        }
        for (at, part) in fallback {
            let member = members.get_mut(ids[at]);
            let revision = member.change();
            member.fallback.send(revision, part);
        }
        self.unlisted_moves = waits || too;
    }
}

/// Context that the listing of a scope needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareBounds<'b> {
    pub(crate) rules: &'b RuleSet,
    pub(crate) scopes_max: usize,
}

/// How long slots stay divided after the last claim of a reservation: a job may pause that long.
const SLOTS_KEPT: Nanos = Nanos::from_secs(10);
/// Shares that are divided in a tick: a tenth of its time. Of more, as when a proxy joins a
/// thousand others with a thousand scopes, a part waits for the next tick.
const SHARES_MAX: usize = 100_000;
/// How far ahead of its expected index a scope is searched for.
const NEAR: usize = 8;
