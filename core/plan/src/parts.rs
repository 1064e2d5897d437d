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

use model::{Grant, Nanos, Part, Rate, RuleSet, Scope, SectionKind, Time, Use};

use crate::held::Held;
use crate::members::{Member, Members};
use crate::split::{Want, split};

/// Every scope that is listed.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    listed: BTreeMap<Scope, Listed>,
    /// Scopes to be divided anew.
    stale: BTreeSet<Scope>,
    /// Scopes of which a raise waits for an acknowledgement.
    moving: BTreeSet<Scope>,
    /// The same of what is not listed.
    unlisted_stale: bool,
    unlisted_moves: bool,
}

#[derive(Debug)]
struct Listed {
    shares: BTreeMap<u32, Share>,
    /// One unit a second, as a part of the limit.
    least: Part,
    /// The rate to which a decay holds it.
    rate: Option<Rate>,
    /// When somebody used it last.
    used: Time,
}

/// One member's part of one scope.
#[derive(Debug)]
struct Share {
    held: Held,
    /// Whether the member has it listed.
    explicit: bool,
    want: Want,
    /// When the member used it last.
    used: Time,
    target: Part,
}

/// One member's place in a division.
#[derive(Clone, Copy, Debug)]
struct Row {
    most: Part,
    sent: Part,
    /// What it counts for at least.
    floor: Part,
    /// What it is to have; `None` if it cannot be told.
    target: Option<Part>,
}

impl Parts {
    /// A member did something with a scope. Lists it, if there is room.
    pub(crate) fn used(
        &mut self,
        id: u32,
        (scope, what): &(Scope, Use),
        members: &Members,
        bounds: Bounds<'_>,
        now: Time,
    ) {
        if !self.list(scope, members, bounds, now) {
            return;
        }
        let listed = self.listed.get_mut(scope).expect("it was listed just now");
        listed.used = now;
        let share = listed.shares.get_mut(&id).expect("each member has a share of what is listed");
        share.used = now;
        let want = wanted(what, share);
        if share.want != want {
            share.want = want;
            self.stale.insert(scope.clone());
        }
    }

    /// A member's report said nothing of a scope that it used. True if it is idle now.
    pub(crate) fn unused(&mut self, id: u32, scope: &Scope, idle: Nanos, now: Time) -> bool {
        let share = self.listed.get_mut(scope).and_then(|listed| listed.shares.get_mut(&id));
        let Some(share) = share else { return true };
        let want = match now.since(share.used) {
            span if span >= idle => Want::Nothing,
            // It acknowledged something between two looks at what it does.
            span if span < RECENT => return false,
            _ => wanted(&Use { used: Some(Part::ZERO), waiting: false }, share),
        };
        if share.want != want {
            share.want = want;
            self.stale.insert(scope.clone());
        }
        want == Want::Nothing
    }

    /// A decay holds a scope to a rate, or no longer.
    pub(crate) fn set_rate(
        &mut self,
        (scope, rate): (&Scope, Option<Rate>),
        members: &mut Members,
        bounds: Bounds<'_>,
        now: Time,
    ) {
        if rate.is_some() && !self.list(scope, members, bounds, now) {
            return;
        }
        let Some(listed) = self.listed.get_mut(scope).filter(|listed| listed.rate != rate) else {
            return;
        };
        listed.rate = rate;
        listed.used = now;
        for (_, member) in members.iter_mut() {
            member.change_scope(scope);
        }
    }

    /// Divides every scope that something changed for, and what is not listed.
    pub(crate) fn divide(&mut self, members: &mut Members, may_raise: bool) {
        if std::mem::take(&mut self.unlisted_stale) {
            self.grant_unlisted(members, may_raise);
        }
        for scope in std::mem::take(&mut self.stale) {
            let Some(listed) = self.listed.get_mut(&scope) else { continue };
            listed.aim(members);
            self.grant(&scope, members, may_raise);
        }
    }

    /// Raises what waited for room.
    pub(crate) fn go_on(&mut self, members: &mut Members, may_raise: bool) {
        if self.unlisted_moves {
            self.grant_unlisted(members, may_raise);
        }
        for scope in std::mem::take(&mut self.moving) {
            self.grant(&scope, members, may_raise);
        }
    }

    /// A member has come to a revision. True if others may be raised for it.
    pub(crate) fn acknowledge(&mut self, id: u32, members: &mut Members, revision: u64) -> bool {
        let member = members.get_mut(id);
        if revision <= member.acknowledged || revision > member.revision {
            return false;
        }
        member.acknowledged = revision;
        let mut less = member.unlisted.acknowledge(revision);
        less |= member.fallback.acknowledge(revision);
        let reached = |(_, at): &(&Scope, &u64)| **at <= revision;
        let scopes: Vec<Scope> =
            member.unacknowledged.iter().filter(reached).map(|(scope, _)| scope.clone()).collect();
        // A scope whose last change is later may have come down a step nevertheless.
        for scope in member.unacknowledged.keys() {
            let share = self.listed.get_mut(scope).and_then(|listed| listed.shares.get_mut(&id));
            less |= share.is_some_and(|share| share.held.acknowledge(revision));
        }
        for scope in scopes {
            member.unacknowledged.remove(&scope);
        }
        less
    }

    /// A member is there whose first report says what it holds.
    pub(crate) fn adopt(
        &mut self,
        id: u32,
        held: &[(Scope, Part)],
        members: &mut Members,
        bounds: Bounds<'_>,
        now: Time,
    ) {
        let unlisted = members.get(id).unlisted.clone();
        for listed in self.listed.values_mut() {
            listed.shares.insert(id, Share::new(unlisted.clone(), false, now));
        }
        for (scope, part) in held {
            if !self.list(scope, members, bounds, now) {
                // There is no room to count it: the member is told to hold it no longer.
                members.get_mut(id).change_scope(scope);
                continue;
            }
            let listed = self.listed.get_mut(scope).expect("it was listed just now");
            // Until it says otherwise, it needs what it has.
            let mut share = Share::new(Held::new(*part), true, now);
            share.want = Want::UpTo(*part);
            listed.shares.insert(id, share);
            // It may hold a rate that is none any more.
            if scope.section == SectionKind::Decay {
                members.get_mut(id).change_scope(scope);
            }
        }
        for (scope, listed) in &self.listed {
            if listed.rate.is_some() {
                members.get_mut(id).change_scope(scope);
            }
        }
        self.all_stale();
    }

    /// A member's process is another now, or the member is forgotten and `gone`.
    pub(crate) fn leave(&mut self, id: u32, gone: bool, now: Time) {
        for listed in self.listed.values_mut() {
            listed.shares.remove(&id);
            if !gone {
                listed.shares.insert(id, Share::new(Held::new(Part::ZERO), false, now));
            }
        }
        self.all_stale();
    }

    /// Who is there changed, or the rules: everything is to be divided anew.
    pub(crate) fn all_stale(&mut self) {
        self.stale.extend(self.listed.keys().cloned());
        self.unlisted_stale = true;
    }

    /// Other rules may mean another least part.
    pub(crate) fn set_rules(&mut self, rules: &RuleSet) {
        for (scope, listed) in &mut self.listed {
            let least = least_part(rules, scope);
            if listed.least != least {
                listed.least = least;
                self.stale.insert(scope.clone());
            }
        }
    }

    /// Lists no longer what nobody used for a while, where that changes nobody's part.
    pub(crate) fn drop_unused(&mut self, members: &mut Members, keep: Nanos, now: Time) {
        let unused = |(_, listed): &(&Scope, &Listed)| {
            now.since(listed.used) >= keep && listed.is_as_unlisted(members)
        };
        let unused: Vec<Scope> =
            self.listed.iter().filter(unused).map(|(scope, _)| scope.clone()).collect();
        for scope in unused {
            self.listed.remove(&scope);
            self.stale.remove(&scope);
            self.moving.remove(&scope);
            for (_, member) in members.iter_mut() {
                member.change_scope(&scope);
            }
        }
    }

    /// What a member is granted of a scope.
    pub(crate) fn grant_of(&self, id: u32, scope: &Scope) -> Grant {
        let Some(listed) = self.listed.get(scope) else { return Grant::default() };
        let share = listed.shares.get(&id).filter(|share| share.explicit);
        Grant { part: share.map(|share| share.held.sent()), rate: listed.rate }
    }

    /// Whether something is to be divided anew.
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty() || self.unlisted_stale
    }

    /// How many scopes are listed.
    pub(crate) fn count(&self) -> usize {
        self.listed.len()
    }

    /// Lists a scope; false if there is no room.
    fn list(&mut self, scope: &Scope, members: &Members, bounds: Bounds<'_>, now: Time) -> bool {
        if self.listed.contains_key(scope) {
            return true;
        }
        if self.listed.len() >= bounds.scopes_max {
            return false;
        }
        let share = |member: &Member| Share::new(member.unlisted.clone(), false, now);
        let shares = members.iter().map(|(id, member)| (id, share(member))).collect();
        let least = least_part(bounds.rules, scope);
        self.listed.insert(scope.clone(), Listed { shares, least, rate: None, used: now });
        self.stale.insert(scope.clone());
        true
    }

    fn grant(&mut self, scope: &Scope, members: &mut Members, may_raise: bool) {
        let Some(listed) = self.listed.get_mut(scope) else { return };
        let ids: Vec<u32> = listed.shares.keys().copied().collect();
        let row = |id: &u32| {
            let (share, member) = (&listed.shares[id], members.get(*id));
            let target = member.is_present().then_some(share.target);
            Row { most: share.held.most(), sent: share.held.sent(), floor: member.floor(), target }
        };
        let rows: Vec<Row> = ids.iter().map(row).collect();
        let (changes, waits) = steps(&rows, may_raise);
        for (at, part) in changes {
            let revision = members.get_mut(ids[at]).change_scope(scope);
            let share = listed.shares.get_mut(&ids[at]).expect("its number is of this table");
            share.held.send(revision, part);
            share.explicit = true;
        }
        for id in ids {
            let member = members.get_mut(id);
            if member.is_present() {
                listed.say(id, scope, member);
            }
        }
        if waits {
            self.moving.insert(scope.clone());
        }
    }

    fn grant_unlisted(&mut self, members: &mut Members, may_raise: bool) {
        let equal = Part::equal(members.count());
        let present = members.iter().filter(|(_, member)| member.is_present()).count() as u32;
        let away = members.iter().filter(|(_, member)| !member.is_present());
        let kept = away.fold(Part::ZERO, |sum, (_, m)| sum.plus(m.unlisted.most().max(m.floor())));
        let unlisted = Part::WHOLE.less(kept).shared_by(present).min(equal);
        let away = members.iter().filter(|(_, member)| !member.is_present());
        let kept = away.fold(Part::ZERO, |sum, (_, m)| sum.plus(m.fallback.most()));
        let fallback = Part::WHOLE.less(kept).shared_by(present).min(equal);
        let rows = |held: fn(&Member) -> &Held, target| -> Vec<Row> {
            let row = |(_, member): (u32, &Member)| {
                let target = member.is_present().then_some(target);
                let (most, sent) = (held(member).most(), held(member).sent());
                Row { most, sent, floor: member.floor(), target }
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
            for (scope, listed) in &mut self.listed {
                listed.say(ids[at], scope, member);
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
pub(crate) struct Bounds<'b> {
    pub(crate) rules: &'b RuleSet,
    pub(crate) scopes_max: usize,
}

impl Listed {
    /// Says what each member is to have.
    fn aim(&mut self, members: &Members) {
        let (mut pool, mut wants) = (Part::WHOLE, Vec::new());
        for (id, share) in &self.shares {
            let member = members.get(*id);
            match member.is_present() {
                true => wants.push(share.want),
                false => pool = pool.less(share.held.most().max(member.floor())),
            }
        }
        let mut parts = split(pool, self.least, &wants).into_iter();
        for (id, share) in &mut self.shares {
            if members.get(*id).is_present() {
                share.target = parts.next().expect("each that is present has a part");
            }
        }
    }

    /// Has a member list the scope with the part that it holds, or a change of what is not listed
    /// would change this too.
    fn say(&mut self, id: u32, scope: &Scope, member: &mut Member) {
        let share = self.shares.get_mut(&id).expect("each member has a share of what is listed");
        if !share.explicit {
            share.explicit = true;
            member.change_scope(scope);
        }
    }

    /// Whether nobody's part changes if it is listed no longer.
    fn is_as_unlisted(&self, members: &Members) -> bool {
        let same = |(id, share): (&u32, &Share)| {
            let unlisted = &members.get(*id).unlisted;
            let settled = share.held.is_settled() && unlisted.is_settled();
            settled && share.want == Want::Nothing && share.held.most() == unlisted.most()
        };
        self.rate.is_none() && self.shares.iter().all(same)
    }
}

impl Share {
    fn new(held: Held, explicit: bool, now: Time) -> Share {
        let target = held.sent();
        Share { held, explicit, want: Want::Nothing, used: now, target }
    }
}

/// The steps that are possible now: who is sent which part; and whether a raise waits.
fn steps(rows: &[Row], may_raise: bool) -> (Vec<(usize, Part)>, bool) {
    let mut changes = Vec::new();
    let mut free = Part::WHOLE;
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

/// What a member wants after a report. What it is content with falls by a quarter with each
/// report, so that a short pause gives nothing away, and is a whole number of 64ths or a power of two
/// below, so that not every breath moves parts.
fn wanted(what: &Use, share: &Share) -> Want {
    let Some(used) = what.used.filter(|_| !what.waiting) else { return Want::More };
    let held = u64::from(share.held.sent().billionths());
    let used = u64::from(used.billionths());
    if used > 0 && used * 8 >= held * 7 {
        return Want::More;
    }
    let before = match share.want {
        Want::Nothing => 0,
        Want::UpTo(part) => u64::from(part.billionths()) * 3 / 4,
        Want::More => held * 3 / 4,
    };
    let need = before.max(used + used / 4);
    let need = if need < STEP { need.next_power_of_two() } else { need.div_ceil(STEP) * STEP };
    Want::UpTo(Part::ratio(need, 64 * STEP))
}

/// Members look at what they do more often than this.
const RECENT: Nanos = Nanos::from_millis(200);
/// A 64th of the whole.
const STEP: u64 = 1_000_000_000 / 64;

/// One unit a second as a part of what a scope's rule grants. Bytes come in so many that 0.5 % of
/// them is always more.
fn least_part(rules: &RuleSet, scope: &Scope) -> Part {
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
    least.map_or(Part::ZERO, |rate| Part::ratio(1, rate))
}
