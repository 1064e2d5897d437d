//! What a controller grants this proxy: a share of each limit, and of each target a share of its
//! reservations and weights.
//!
//! ```text
//!   grants of limits ────► meters: rate · share                      what is owed and saved stays,
//!   grants of a target ─┬► class: φ · share · proxies, reservation · share     in units
//!                       ├► branch: reservation of each of its rows · share of the row, summed up
//!                       ├► dormant class: reservation · share
//!                       └► slots of the device lane: D · share, if they are divided
//! ```
//!
//! Without a controller every share is the whole and there is one proxy. Each rule is then granted
//! as written, and the lookup is one test of an empty table.

use std::collections::BTreeMap;

use model::{Grants, Scope, Share, SharePool, TargetId};
use rules::EntitlementId;

use crate::keys::{ClassKey, MeterKey};

/// The grants of this proxy.
#[derive(Debug, Default)]
pub(super) struct GrantTable {
    limits: PoolGrants,
    targets: Vec<PoolGrants>,
}

/// What is granted of one pool.
#[derive(Debug)]
struct PoolGrants {
    proxies: u32,
    unlisted: Share,
    listed: BTreeMap<Scope, Share>,
}

impl Default for PoolGrants {
    fn default() -> PoolGrants {
        PoolGrants { proxies: 1, unlisted: Share::WHOLE, listed: BTreeMap::new() }
    }
}

impl GrantTable {
    /// Adds a target, of which everything is granted.
    pub(super) fn add_target(&mut self) {
        self.targets.push(PoolGrants::default());
    }

    /// The number of proxies of a target.
    pub(super) fn proxies(&self, target: TargetId) -> u32 {
        self.targets[target.index()].proxies
    }

    pub(super) fn part_of_class(&self, key: &ClassKey) -> Share {
        self.targets[key.target.index()].part_of(|| key.scope())
    }

    /// The share of a target's slots: all, where they are not divided.
    pub(super) fn part_of_slots(&self, target: TargetId) -> Share {
        let listed = &self.targets[target.index()].listed;
        listed.get(&Scope::slots()).copied().unwrap_or(Share::WHOLE)
    }

    /// The share of what a row reserves at a target.
    pub(super) fn part_of_row(&self, row: EntitlementId, target: TargetId) -> Share {
        self.targets[target.index()].part_of(|| Scope::entitlement(row.0))
    }

    pub(super) fn part_of_meter(&self, key: &MeterKey) -> Share {
        self.limits.part_of(|| key.scope())
    }

    /// Takes a change in. Returns whether every class or meter of the pool is concerned, and not only
    /// what the change lists.
    pub(super) fn change(&mut self, pool: SharePool, grants: &Grants) -> bool {
        match pool {
            SharePool::Limits => self.limits.change(grants),
            SharePool::Target(target) => self.targets[target.index()].change(grants),
        }
    }
}

impl PoolGrants {
    fn part_of(&self, scope: impl FnOnce() -> Scope) -> Share {
        match self.listed.is_empty() {
            true => self.unlisted,
            false => self.listed.get(&scope()).copied().unwrap_or(self.unlisted),
        }
    }

    fn change(&mut self, grants: &Grants) -> bool {
        for (scope, part) in &grants.listed {
            match part {
                None => self.listed.remove(scope),
                Some(part) => self.listed.insert(scope.clone(), *part),
            };
        }
        let base = (grants.proxies.max(1), grants.unlisted);
        let concerns_all = (self.proxies, self.unlisted) != base;
        (self.proxies, self.unlisted) = base;
        concerns_all
    }
}
