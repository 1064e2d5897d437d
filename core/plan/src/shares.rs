//! The parts of each scope that is in use, and how they move.
//!
//! ```text
//!   uses ─► wants ─► split ─► targets ─┬─ lower: sent at once
//!                                      └─ higher: as far as what the others may still be using
//!   acknowledged: less in use ────────────┘  leaves it
//! ```
//!
//! Invariant: over the members, the most that each may be using adds up to no more than the whole,
//! but for what somebody brings along who was away; then nobody is raised until it does. The part
//! of everything that is not listed moves by the same steps, and so does what members fall back to.

use std::collections::{BTreeMap, BTreeSet};

use model::{Grant, Nanos, Rate, RuleSet, Scope, ScopeUsage, SectionKind, Share, Time};

use crate::in_use::InUseBound;
use crate::proxies::{ProxyProgress, ProxyTable};
use crate::split::{Want, split};

/// Every scope that is listed.
#[derive(Debug, Default)]
pub(crate) struct ShareTable {
    /// A place is used again once its scope is listed no longer.
    listed: Vec<Option<ListedScope>>,
    places: BTreeMap<Scope, ScopeIndex>,
    free: Vec<ScopeIndex>,
    /// Scopes to be divided anew, and from where on they are looked at.
    stale: BTreeSet<ScopeIndex>,
    next: ScopeIndex,
    /// Scopes of which a raise waits for an acknowledgement.
    moving: BTreeSet<ScopeIndex>,
    /// The same of what is not listed.
    unlisted_stale: bool,
    unlisted_moves: bool,
}

/// Where a listed scope is: reports name thousands of scopes, and mostly the same ones again.
pub(crate) type ScopeIndex = u32;

/// Where an acknowledgement makes room.
#[derive(Debug, Default)]
pub(crate) struct FreedShare {
    places: Vec<ScopeIndex>,
    unlisted: bool,
}

#[derive(Debug)]
struct ListedScope {
    scope: Scope,
    shares: ProxyShares,
    /// One unit a second, as a part of the limit.
    least: Share,
    /// The rate to which a decay holds it.
    rate: Option<Rate>,
    /// When somebody used it last.
    used: Time,
}

/// By the members' numbers, which are small.
#[derive(Debug, Default)]
struct ProxyShares(Vec<Option<ProxyShare>>);

/// One member's part of one scope.
#[derive(Debug)]
struct ProxyShare {
    held: InUseBound,
    /// Whether the member has it listed.
    explicit: bool,
    want: Want,
    /// When the member used it last, and in which report.
    used: Time,
    sequence: u64,
    target: Share,
}

/// One member's place in a division.
#[derive(Clone, Copy, Debug)]
struct ShareRow {
    most: Share,
    sent: Share,
    /// What it counts for at least.
    floor: Share,
    /// What it is to have; `None` if it cannot be told.
    target: Option<Share>,
}

impl ShareTable {
    /// Takes a report's uses in: `before` are the scopes that the member used until now, and what
    /// is returned those that it uses now. What is new is listed, if there is room.
    pub(crate) fn take_uses(
        &mut self,
        (id, sequence, uses): (u32, u64, &[(Scope, ScopeUsage)]),
        before: &[ScopeIndex],
        (members, bounds): (&ProxyTable, ShareBounds<'_>),
        (idle, now): (Nanos, Time),
    ) -> Vec<ScopeIndex> {
        let mut active = Vec::with_capacity(uses.len());
        let mut expected = 0;
        for (scope, what) in uses {
            // Reports name what they named before, in the same order.
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
            if self.used(id, place, what, (sequence, now)) {
                active.push(place);
            }
        }
        for place in before {
            if !self.is_idle(id, *place, (sequence, idle), now) {
                active.push(*place);
            }
        }
        active
    }

    /// A member did something with a scope: true if the report had not said so already.
    fn used(
        &mut self,
        id: u32,
        place: ScopeIndex,
        what: &ScopeUsage,
        (report, now): (u64, Time),
    ) -> bool {
        let Some(listed) = self.get_mut(place) else { return false };
        listed.used = now;
        let share = listed.shares.get_mut(id).expect("each member has a share of what is listed");
        let first = share.sequence != report;
        let want = wanted(what, share, now.since(share.used).get() / TICK.get());
        (share.used, share.sequence) = (now, report);
        if share.want != want {
            share.want = want;
            self.stale.insert(place);
        }
        first
    }

    /// Whether a member has not used a scope for so long that it is idle there now. False if the
    /// report said that it did: that is noted.
    fn is_idle(
        &mut self,
        id: u32,
        place: ScopeIndex,
        (report, idle): (u64, Nanos),
        now: Time,
    ) -> bool {
        let share = self.get_mut(place).and_then(|listed| listed.shares.get_mut(id));
        let Some(share) = share.filter(|share| share.sequence != report) else { return true };
        let want = match now.since(share.used) {
            span if span >= idle => Want::Nothing,
            _ => wanted(&ScopeUsage { used: Some(Share::ZERO), waiting: false }, share, 1),
        };
        if share.want != want {
            share.want = want;
            self.stale.insert(place);
        }
        want == Want::Nothing
    }

    /// A decay holds a scope to a rate, or no longer.
    pub(crate) fn set_rate(
        &mut self,
        (scope, rate): (&Scope, Option<Rate>),
        members: &mut ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) {
        let place = match rate {
            Some(_) => self.list(scope, members, bounds, now),
            None => self.places.get(scope).copied(),
        };
        let listed = place.and_then(|place| self.get_mut(place));
        let Some(listed) = listed.filter(|listed| listed.rate != rate) else { return };
        listed.rate = rate;
        listed.used = now;
        for (_, member) in members.iter_mut() {
            member.change_scope(scope);
        }
    }

    /// Divides the scopes that something changed for, and what is not listed: as many as are
    /// [`SHARES_MAX`] shares. The others are next, in turn.
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
            if let Some(listed) = self.get_mut(place) {
                listed.aim(members);
                self.grant(place, members, may_raise);
            }
        }
    }

    /// Raises what waited for the room that was freed.
    pub(crate) fn go_on(&mut self, freed: &FreedShare, members: &mut ProxyTable, may_raise: bool) {
        if freed.unlisted && self.unlisted_moves {
            self.grant_unlisted(members, may_raise);
        }
        for place in &freed.places {
            if self.moving.remove(place) {
                self.grant(*place, members, may_raise);
            }
        }
    }

    /// A member has come to a revision: where others may be raised for it.
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
        freed.unlisted = member.unlisted.acknowledge(revision);
        freed.unlisted |= member.fallback.acknowledge(revision);
        let reached = |(_, at): &(&Scope, &u64)| **at <= revision;
        let scopes: Vec<Scope> =
            member.unacknowledged.iter().filter(reached).map(|(scope, _)| scope.clone()).collect();
        // A scope whose last change is later may have come down a step nevertheless.
        for scope in member.unacknowledged.keys() {
            let Some(place) = self.places.get(scope) else { continue };
            let listed = self.listed[*place as usize].as_mut();
            let share = listed.and_then(|listed| listed.shares.get_mut(id));
            if share.is_some_and(|share| share.held.acknowledge(revision)) {
                freed.places.push(*place);
            }
        }
        for scope in scopes {
            member.unacknowledged.remove(&scope);
        }
        freed
    }

    /// A member is there whose first report says what it holds.
    pub(crate) fn adopt(
        &mut self,
        id: u32,
        held: &[(Scope, Share)],
        members: &mut ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) {
        let unlisted = members.get(id).unlisted.clone();
        for listed in self.listed.iter_mut().flatten() {
            listed.shares.insert(id, ProxyShare::new(unlisted.clone(), false, now));
        }
        let mut active = Vec::new();
        for (scope, part) in held {
            let Some(place) = self.list(scope, members, bounds, now) else {
                // There is no room to count it: the member is told to hold it no longer.
                members.get_mut(id).change_scope(scope);
                continue;
            };
            active.push(place);
            let listed = self.get_mut(place).expect("it was listed just now");
            // Until it says otherwise, it needs what it has.
            let mut share = ProxyShare::new(InUseBound::new(*part), true, now);
            share.want = Want::UpTo(*part);
            listed.shares.insert(id, share);
            // It may hold a rate that is none any more.
            if scope.section == SectionKind::Decay {
                members.get_mut(id).change_scope(scope);
            }
        }
        for listed in self.listed.iter().flatten().filter(|listed| listed.rate.is_some()) {
            members.get_mut(id).change_scope(&listed.scope);
        }
        members.get_mut(id).active.extend(active);
        self.all_stale();
    }

    /// A member's process is another now, or the member is forgotten and `gone`.
    pub(crate) fn leave(&mut self, id: u32, gone: bool, now: Time) {
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

    /// Who is there changed, or the rules: everything is to be divided anew.
    pub(crate) fn all_stale(&mut self) {
        self.stale.extend(self.places.values());
        self.unlisted_stale = true;
    }

    /// Other rules may mean another least part.
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

    /// Lists no longer what nobody used for a while, where that changes nobody's part.
    pub(crate) fn drop_unused(&mut self, members: &mut ProxyTable, keep: Nanos, now: Time) {
        let unused = |place: &&ScopeIndex| {
            let listed = self.get(**place);
            listed.is_some_and(|of| now.since(of.used) >= keep && of.is_as_unlisted(members))
        };
        let unused: Vec<ScopeIndex> = self.places.values().filter(unused).copied().collect();
        for place in unused {
            let Some(listed) = self.listed[place as usize].take() else { continue };
            self.places.remove(&listed.scope);
            self.stale.remove(&place);
            self.moving.remove(&place);
            self.free.push(place);
            for (_, member) in members.iter_mut() {
                member.change_scope(&listed.scope);
            }
        }
    }

    /// What a member is granted of a scope.
    pub(crate) fn grant_of(&self, id: u32, scope: &Scope) -> Grant {
        let listed = self.places.get(scope).and_then(|place| self.get(*place));
        let Some(listed) = listed else { return Grant::default() };
        let share = listed.shares.get(id).filter(|share| share.explicit);
        Grant { part: share.map(|share| share.held.sent()), rate: listed.rate }
    }

    /// Whether something is to be divided anew.
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty() || self.unlisted_stale
    }

    /// How many scopes are listed.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    fn get(&self, place: ScopeIndex) -> Option<&ListedScope> {
        self.listed.get(place as usize)?.as_ref()
    }

    fn get_mut(&mut self, place: ScopeIndex) -> Option<&mut ListedScope> {
        self.listed.get_mut(place as usize)?.as_mut()
    }

    /// Lists a scope, unless it is: its place. `None` if there is no room.
    fn list(
        &mut self,
        scope: &Scope,
        members: &ProxyTable,
        bounds: ShareBounds<'_>,
        now: Time,
    ) -> Option<ScopeIndex> {
        if let Some(place) = self.places.get(scope) {
            return Some(*place);
        }
        if self.places.len() >= bounds.scopes_max {
            return None;
        }
        let mut shares = ProxyShares::default();
        for (id, member) in members.iter() {
            shares.insert(id, ProxyShare::new(member.unlisted.clone(), false, now));
        }
        let least = least_part(bounds.rules, scope);
        let listed = ListedScope { scope: scope.clone(), shares, least, rate: None, used: now };
        let place = self.free.pop().unwrap_or_else(|| {
            self.listed.push(None);
            (self.listed.len() - 1) as ScopeIndex
        });
        self.listed[place as usize] = Some(listed);
        self.places.insert(scope.clone(), place);
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
            let (most, sent) = (share.held.most(), share.held.sent());
            (id, ShareRow { most, sent, floor: member.floor(), target })
        };
        let (ids, rows): (Vec<u32>, Vec<ShareRow>) = listed.shares.iter().map(row).unzip();
        let (changes, waits) = steps(&rows, may_raise);
        for (at, part) in changes {
            let revision = members.get_mut(ids[at]).change_scope(&listed.scope);
            let share = listed.shares.get_mut(ids[at]).expect("its number is of this table");
            share.held.send(revision, part);
            share.explicit = true;
        }
        for id in ids {
            let member = members.get_mut(id);
            if member.is_present() {
                listed.say(id, member);
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
                listed.say(ids[at], member);
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

/// What listing a scope needs to know beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareBounds<'b> {
    pub(crate) rules: &'b RuleSet,
    pub(crate) scopes_max: usize,
}

impl ListedScope {
    /// Says what each member is to have.
    fn aim(&mut self, members: &ProxyTable) {
        let (mut pool, mut wants) = (Share::WHOLE, Vec::new());
        for (id, share) in self.shares.iter() {
            let member = members.get(id);
            match member.is_present() {
                true => wants.push(share.want),
                false => pool = pool.less(share.held.most().max(member.floor())),
            }
        }
        let mut parts = split(pool, self.least, &wants).into_iter();
        for (id, share) in self.shares.iter_mut() {
            if members.get(id).is_present() {
                share.target = parts.next().expect("each that is present has a part");
            }
        }
    }

    /// Has a member list the scope with the part that it holds, or a change of what is not listed
    /// would change this too.
    fn say(&mut self, id: u32, member: &mut ProxyProgress) {
        let share = self.shares.get_mut(id).expect("each member has a share of what is listed");
        if !share.explicit {
            share.explicit = true;
            member.change_scope(&self.scope);
        }
    }

    /// Whether nobody's part changes if it is listed no longer.
    fn is_as_unlisted(&self, members: &ProxyTable) -> bool {
        let same = |(id, share): (u32, &ProxyShare)| {
            let unlisted = &members.get(id).unlisted;
            let settled = share.held.is_settled() && unlisted.is_settled();
            settled && share.want == Want::Nothing && share.held.most() == unlisted.most()
        };
        self.rate.is_none() && self.shares.iter().all(same)
    }
}

impl ProxyShares {
    fn get(&self, id: u32) -> Option<&ProxyShare> {
        self.0.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut ProxyShare> {
        self.0.get_mut(id as usize)?.as_mut()
    }

    fn insert(&mut self, id: u32, share: ProxyShare) {
        if self.0.len() <= id as usize {
            self.0.resize_with(id as usize + 1, || None);
        }
        self.0[id as usize] = Some(share);
    }

    fn remove(&mut self, id: u32) {
        if let Some(share) = self.0.get_mut(id as usize) {
            *share = None;
        }
    }

    /// In the order of the members' numbers.
    fn iter(&self) -> impl Iterator<Item = (u32, &ProxyShare)> {
        self.0.iter().enumerate().filter_map(|(id, share)| Some((id as u32, share.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut ProxyShare)> {
        self.0.iter_mut().enumerate().filter_map(|(id, share)| Some((id as u32, share.as_mut()?)))
    }
}

impl ProxyShare {
    fn new(held: InUseBound, explicit: bool, now: Time) -> ProxyShare {
        let target = held.sent();
        ProxyShare { held, explicit, want: Want::Nothing, used: now, sequence: 0, target }
    }
}

/// The steps that are possible now: who is sent which part; and whether a raise waits.
fn steps(rows: &[ShareRow], may_raise: bool) -> (Vec<(usize, Share)>, bool) {
    let mut changes = Vec::new();
    let mut free = Share::WHOLE;
    for (at, row) in rows.iter().enumerate() {
        // What is lowered now is free when that is acknowledged.
        free = free.less(row.most.max(row.floor));
        if let Some(target) = row.target.filter(|target| *target < row.sent) {
            changes.push((at, target));
        }
    }
    let mut waits = false;
    for (at, row) in rows.iter().enumerate() {
        let Some(target) = row.target.filter(|target| *target > row.sent) else { continue };
        let room = if may_raise { row.most.plus(free) } else { row.most };
        let part = target.min(room);
        if part > row.sent {
            changes.push((at, part));
            free = free.less(part.less(row.most));
        }
        waits |= part < target;
    }
    (changes, waits)
}

/// What a member wants after a report. What it is content with falls by a quarter with each of
/// the ticks that the report is about, so that a short pause gives nothing away, and is a whole
/// number of 64ths or a power of two below, so that not every breath moves parts.
fn wanted(what: &ScopeUsage, share: &ProxyShare, ticks: u64) -> Want {
    let Some(used) = what.used.filter(|_| !what.waiting) else { return Want::More };
    let held = u64::from(share.held.sent().billionths());
    let used = u64::from(used.billionths());
    if used > 0 && used * 8 >= held * 7 {
        return Want::More;
    }
    let before = match share.want {
        Want::Nothing => 0,
        Want::UpTo(part) => u64::from(part.billionths()),
        Want::More => held,
    };
    let before = (0..ticks.clamp(1, 10)).fold(before, |part, _| part * 3 / 4);
    let need = before.max(used + used / 4);
    let need = if need < STEP { need.next_power_of_two() } else { need.div_ceil(STEP) * STEP };
    Want::UpTo(Share::ratio(need, 64 * STEP))
}

/// Shares that are divided in a tick: a tenth of its time. Of more, as when a member joins a
/// thousand others with a thousand scopes, a part waits for the next.
const SHARES_MAX: usize = 100_000;
/// So far ahead of where it is expected a scope is looked for.
const NEAR: usize = 8;
/// How often members look at what they do.
const TICK: Nanos = Nanos::from_millis(100);
/// A 64th of the whole.
const STEP: u64 = 1_000_000_000 / 64;

/// One unit a second as a part of what a scope's rule grants. Bytes come in so many that 0.5 % of
/// them is always more.
fn least_part(rules: &RuleSet, scope: &Scope) -> Share {
    let named = |name: &str| name == &*scope.name;
    let rates: Vec<Rate> = match scope.section {
        SectionKind::Rule => {
            let rule = rules.rule(&scope.name);
            let limits =
                rule.into_iter().flat_map(|rule| rule.limits.iter().map(|limit| limit.rate));
            limits.chain(rule.and_then(|rule| rule.reserve)).collect()
        }
        SectionKind::Meter => {
            let meter = rules.meters.iter().find(|meter| named(&meter.name));
            meter.map(|meter| meter.limit.rate).into_iter().collect()
        }
        SectionKind::Decay => Vec::new(),
    };
    let least = rates.iter().filter(|rate| !rate.is_bytes()).map(|rate| rate.per_sec()).min();
    least.map_or(Share::ZERO, |rate| Share::ratio(1, rate))
}
