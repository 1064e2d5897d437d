//! What a controller grants this proxy: a share of each limit, reservation and weight, and the
//! rates to which decays limit single keys.
//!
//! ```text
//!   grants ─► table ─┬─► class: φ · share · proxies, reservation · share
//!                    ├─► its meters, and [[meter]]s: rate · share     what is owed and saved stays,
//!                    └─► dormant class: reservation · share           in units
//! ```
//!
//! Without a controller every share is the whole and there is one proxy. Each rule is then granted
//! as written, and the lookup is one test of an empty table.

use std::collections::BTreeMap;

use model::{Grant, Grants, Rate, Scope, Share};

use crate::keys::{ClassKey, MeterKey};

/// The grants of this proxy.
#[derive(Debug)]
pub(super) struct GrantTable {
    proxies: u32,
    unlisted: Share,
    listed: BTreeMap<Scope, Grant>,
}

/// The grant of one meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeterGrant {
    pub(super) part: Share,
    pub(super) rate: Option<Rate>,
}

impl Default for GrantTable {
    fn default() -> GrantTable {
        GrantTable { proxies: 1, unlisted: Share::WHOLE, listed: BTreeMap::new() }
    }
}

impl GrantTable {
    pub(super) fn proxies(&self) -> u32 {
        self.proxies
    }

    pub(super) fn part_of_class(&self, key: &ClassKey) -> Share {
        match self.listed.is_empty() {
            true => self.unlisted,
            false => self.of(&Scope::rule(&key.rule, &key.values)).part,
        }
    }

    pub(super) fn of_meter(&self, key: &MeterKey) -> MeterGrant {
        match self.listed.is_empty() {
            true => MeterGrant { part: self.unlisted, rate: None },
            false => self.of(&key.scope()),
        }
    }

    fn of(&self, scope: &Scope) -> MeterGrant {
        let Grant { part, rate } = self.listed.get(scope).copied().unwrap_or_default();
        MeterGrant { part: part.unwrap_or(self.unlisted), rate }
    }

    /// Takes a change in. Returns whether every class and meter is concerned, and not only what the
    /// change lists.
    pub(super) fn change(&mut self, grants: &Grants) -> bool {
        for (scope, grant) in &grants.listed {
            match grant.is_empty() {
                true => self.listed.remove(scope),
                false => self.listed.insert(scope.clone(), *grant),
            };
        }
        let base = (grants.proxies.max(1), grants.unlisted);
        let concerns_all = (self.proxies, self.unlisted) != base;
        (self.proxies, self.unlisted) = base;
        concerns_all
    }
}
