//! One scope in the table of shares: what each proxy has of it, is to have, and needs.
//!
//! ```text
//!   usage ─► wanted ─► set_targets (split) ─► steps: which proxy is sent which share now
//! ```

use model::{Nanos, Rate, ReservationLag, Scope, ScopeUsage, SectionKind, Share, SlotsClaim, Time};
use rules::RuleSet;

use crate::in_use::InUseBound;
use crate::proxies::{ProxyProgress, ProxyTable};
use crate::split::{Want, round_up, split, split_slots};

#[derive(Debug)]
pub(super) struct ListedScope {
    pub(super) scope: Scope,
    pub(super) shares: ProxyShares,
    /// One unit a second, as a fraction of the limit.
    pub(super) least: Share,
    /// Whether it stays listed without usage: a decay limits it.
    pub(super) is_kept: bool,
    /// When a proxy used it last.
    pub(super) used: Time,
}

/// Shares by the proxies' numbers, which are small.
#[derive(Debug, Default)]
pub(super) struct ProxyShares(Vec<Option<ProxyShare>>);

/// One proxy's share of one scope.
#[derive(Debug)]
pub(super) struct ProxyShare {
    pub(super) in_use: InUseBound,
    /// Whether the proxy has the scope listed.
    pub(super) explicit: bool,
    pub(super) want: Want,
    /// When the proxy used it last, and in which report.
    pub(super) used: Time,
    pub(super) sequence: u64,
    pub(super) target: Share,
}

/// One proxy's row in a division.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareRow {
    pub(super) most: Share,
    pub(super) sent: Share,
    /// The least that the proxy counts for.
    pub(super) floor: Share,
    /// The target of the share; `None` if it cannot be sent.
    pub(super) target: Option<Share>,
}

impl ListedScope {
    /// Sets the target of each proxy; `by_weight` is the part of slots that go by weight.
    pub(super) fn set_targets(&mut self, by_weight: Share, members: &ProxyTable) {
        let (mut pool, mut wants, mut claims) = (Share::WHOLE, Vec::new(), Vec::new());
        for (id, share) in self.shares.iter() {
            let member = members.get(id);
            match member.is_present() {
                true if self.is_of_slots() => claims.push((share.want, member.slots)),
                true => wants.push(share.want),
                false => {
                    let (most, floor) = self.held(share, member);
                    pool = pool.less(most.max(floor));
                }
            }
        }
        let parts = match self.is_of_slots() {
            true => split_slots(pool, by_weight, &claims),
            false => split(pool, self.least, &wants),
        };
        let mut parts = parts.into_iter();
        for (id, share) in self.shares.iter_mut() {
            if members.get(id).is_present() {
                share.target = parts.next().expect("each present proxy has a share");
            }
        }
    }

    /// Makes a proxy list the scope with the share that it holds. Otherwise a change of the share
    /// of unlisted scopes would change this one too.
    pub(super) fn list_explicitly(&mut self, id: u32, member: &mut ProxyProgress) {
        let is_of_slots = self.is_of_slots();
        let share = self.shares.get_mut(id).expect("each proxy has a share of each listed scope");
        let has_all = is_of_slots && share.in_use.sent() == Share::ZERO;
        if !share.explicit && !has_all {
            share.explicit = true;
            member.change_scope(&self.scope);
        }
    }

    /// The most that a proxy may be using, and the least that it counts for. No row is in force at one
    /// whose lease is over.
    pub(super) fn held(&self, share: &ProxyShare, member: &ProxyProgress) -> (Share, Share) {
        match self.is_of_row() && member.has_lapsed() {
            true => (Share::ZERO, Share::ZERO),
            false => (share.in_use.most(), member.floor()),
        }
    }

    /// Whether it is of a row of the entitlements.
    pub(super) fn is_of_row(&self) -> bool {
        self.scope.section == SectionKind::Entitlement
    }

    /// Whether it is of the target's slots.
    pub(super) fn is_of_slots(&self) -> bool {
        self.scope.section == SectionKind::Slots
    }

    /// Whether every proxy can be reached and has the share that it was sent last.
    pub(super) fn is_settled(&self, members: &ProxyTable) -> bool {
        let settled = |(id, share): (u32, &ProxyShare)| {
            members.get(id).is_present() && share.in_use.is_settled()
        };
        self.shares.iter().all(settled)
    }

    /// Whether no share changes if the scope leaves the list.
    pub(super) fn is_as_unlisted(&self, members: &ProxyTable) -> bool {
        let same = |(id, share): (u32, &ProxyShare)| {
            let unlisted = &members.get(id).unlisted;
            let settled = share.in_use.is_settled() && unlisted.is_settled();
            settled && share.want == Want::Idle && share.in_use.most() == unlisted.most()
        };
        !self.is_kept && self.shares.iter().all(same)
    }
}

impl ProxyShares {
    pub(super) fn get(&self, id: u32) -> Option<&ProxyShare> {
        self.0.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut ProxyShare> {
        self.0.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, id: u32, share: ProxyShare) {
        if self.0.len() <= id as usize {
            self.0.resize_with(id as usize + 1, || None);
        }
        self.0[id as usize] = Some(share);
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(share) = self.0.get_mut(id as usize) {
            *share = None;
        }
    }

    /// The shares in the order of the proxies' numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &ProxyShare)> {
        self.0.iter().enumerate().filter_map(|(id, share)| Some((id as u32, share.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut ProxyShare)> {
        self.0.iter_mut().enumerate().filter_map(|(id, share)| Some((id as u32, share.as_mut()?)))
    }
}

impl ProxyShare {
    pub(super) fn new(held: InUseBound, explicit: bool, now: Time) -> ProxyShare {
        let target = held.sent();
        ProxyShare { in_use: held, explicit, want: Want::Idle, used: now, sequence: 0, target }
    }
}

/// The steps that are possible now: which proxy is sent which share, and whether a raise waits.
pub(super) fn steps(rows: &[ShareRow], may_raise: bool) -> (Vec<(usize, Share)>, bool) {
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

/// What a proxy wants after a report. A need falls by a quarter with each of the ticks that the
/// report covers, so that a short pause gives nothing away. It is a whole number of 64ths, or a
/// power of two below, so that small changes move no shares.
pub(super) fn wanted(what: &ScopeUsage, share: &ProxyShare, ticks: u64) -> Want {
    let Some(used) = what.used.filter(|_| !what.waiting) else { return Want::Unbounded };
    let held = u64::from(share.in_use.sent().billionths());
    let used = u64::from(used.billionths());
    if used > 0 && used * 8 >= held * 7 {
        return Want::Unbounded;
    }
    let before = match share.want {
        Want::Idle => 0,
        Want::AtMost(part) => u64::from(part.billionths()),
        Want::Unbounded => held,
    };
    let before = (0..ticks.clamp(1, 10)).fold(before, |part, _| part * 3 / 4);
    let need = before.max(used + used / 4);
    let need = if need < STEP { need.next_power_of_two() } else { need.div_ceil(STEP) * STEP };
    Want::AtMost(Share::ratio(need, 64 * STEP))
}

/// A claim as the shares are computed from it. Weights above 2^40 count as 2^40.
pub(super) fn rounded_claim(claim: SlotsClaim) -> SlotsClaim {
    let weight = |weight: u64| round_up(weight.min(1 << 40));
    let reserved = round_up(claim.reserved.billionths().into());
    SlotsClaim {
        reserved: Share::ratio(reserved, Share::WHOLE.billionths().into()),
        reserved_weight: weight(claim.reserved_weight),
        weight: weight(claim.weight),
        used: Share::ZERO,
        waiting: false,
        lag: ReservationLag::None,
    }
}

/// One unit a second as a fraction of what a scope's rule grants. Rates in bytes are so large that
/// 0.5 % of them is always more.
pub(super) fn least_part(rules: &RuleSet, scope: &Scope) -> Share {
    let named = |name: &str| name == &*scope.name;
    let rates: Vec<Rate> = match scope.section {
        SectionKind::Rule => {
            let rule = rules.rule(&scope.name);
            let limits =
                rule.into_iter().flat_map(|rule| rule.limits.iter().map(|limit| limit.rate));
            limits.chain(rule.and_then(|rule| rule.reservation)).collect()
        }
        SectionKind::Meter => {
            let meter = rules.meters.iter().find(|meter| named(&meter.name));
            meter.map(|meter| meter.limit.rate).into_iter().collect()
        }
        SectionKind::Decay | SectionKind::Entitlement | SectionKind::Slots => Vec::new(),
    };
    let least = rates.iter().filter(|rate| !rate.is_bytes()).map(|rate| rate.per_sec()).min();
    least.map_or(Share::ZERO, |rate| Share::ratio(1, rate))
}

/// How often proxies read their usage.
pub(super) const TICK: Nanos = Nanos::from_millis(100);

/// A 64th of the whole.
const STEP: u64 = 1_000_000_000 / 64;
