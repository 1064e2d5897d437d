//! What the rules in force reserve of each target, beside the calendar.
//!
//! A rule's reservation may be of reads or writes, so it counts as the costlier of both. It holds at
//! every target to which its requests go, so it counts at each. A rule with `per` has a reservation
//! for each of its classes: it counts as many times as it may have classes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use api::Role;
use model::{Rate, Share};
use reserve::{Calendar, Load, ResourceId, ResourceKind};
use rules::{Rule, RuleSet};

use super::fleet::Fleet;
use crate::process::access::ApiCaller;

/// The reservations of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleReservations(Vec<RuleReservation>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleReservation {
    /// Empty for the sum of all.
    name: String,
    /// Of each class.
    rate: Rate,
    /// The most classes.
    classes: u32,
}

impl RuleReservations {
    pub(super) fn of(rules: &RuleSet) -> RuleReservations {
        let reserved = |rule: &Rule| {
            let rate = rule.reserved_rate()?;
            // `per` with a reservation requires it.
            let classes = if rule.per.is_empty() { 1 } else { rule.max_classes? };
            Some(RuleReservation { name: rule.name.clone(), rate, classes })
        };
        RuleReservations(rules.rules.iter().filter_map(reserved).collect())
    }

    /// What they reserve of every resource of the calendar. What they reserve at each target counts at a
    /// network by the part of that target, as what is reserved there.
    pub(super) fn loads(
        &self,
        calendar: &Calendar,
        fleet: &Fleet,
        now: model::Time,
    ) -> Vec<(ResourceId, Load)> {
        let has_bytes = self.0.iter().any(|of| of.rate.is_bytes());
        let parts = if has_bytes { fleet.parts_of_networks() } else { BTreeMap::new() };
        let load = |resource| {
            let (name, kind) = calendar.resources().describe(resource)?;
            let parts = parts.get(&**name).filter(|_| kind == ResourceKind::ProxyNetwork);
            let whole = u128::from(Share::WHOLE.billionths());
            let parts = parts.map_or(whole, |parts| u128::from(*parts));
            let sum = self.of_kind(kind).map(RuleReservation::per_sec).sum::<u128>();
            let sum = sum.saturating_mul(parts).div_ceil(whole);
            let sum = u64::try_from(sum).unwrap_or(u64::MAX).min(Load::PER_SEC_MAX);
            let capacity = calendar.resources().whole(resource, now);
            let is_write = capacity.write_per_sec() < capacity.read_per_sec();
            let (read, write) = if is_write { (0, sum) } else { (sum, 0) };
            Some((resource, Load::per_sec(read, write)?))
        };
        calendar.resources().ids().filter_map(load).collect()
    }

    /// What of them a caller may see: role `user` does not see the rules, so it sees their sums.
    pub(super) fn visible_to(&self, by: &ApiCaller) -> Cow<'_, RuleReservations> {
        if by.role.includes(Role::Read) {
            return Cow::Borrowed(self);
        }
        let sum = |kind, rate: fn(u64) -> Option<Rate>| {
            let sum = self.of_kind(kind).map(RuleReservation::per_sec).sum::<u128>();
            let rate = rate(u64::try_from(sum).unwrap_or(u64::MAX))?;
            Some(RuleReservation { name: String::new(), rate, classes: 1 })
        };
        let bytes = sum(ResourceKind::Target, Rate::bytes_per_sec);
        let ops = sum(ResourceKind::Metadata, Rate::ops_per_sec);
        Cow::Owned(RuleReservations(bytes.into_iter().chain(ops).collect()))
    }

    /// Those of one kind of resource, as `rule NAME: RATE`, or `rules: RATE` for the sum of all.
    pub(super) fn named(&self, kind: ResourceKind) -> Vec<String> {
        self.of_kind(kind).take(NAMED_MAX).map(RuleReservation::to_string).collect()
    }

    fn of_kind(&self, kind: ResourceKind) -> impl Iterator<Item = &RuleReservation> {
        self.0
            .iter()
            .filter(move |of| kind.has_best_effort() && kind.is_bytes() == of.rate.is_bytes())
    }
}

impl RuleReservation {
    /// What all its classes reserve.
    fn per_sec(&self) -> u128 {
        u128::from(self.rate.per_sec()) * u128::from(self.classes)
    }
}

impl fmt::Display for RuleReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "" => write!(f, "rules: ")?,
            name => write!(f, "rule {name}: ")?,
        }
        match self.classes {
            1 => self.rate.fmt(f),
            classes => write!(f, "{classes} classes of {}", self.rate),
        }
    }
}

/// The most rules that are named.
const NAMED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use api::{ProxyDescription, TargetDescription};
    use model::Time;
    use reserve::{CalendarSettings, Capacity};

    use super::*;

    #[test]
    fn rules_count_as_the_costlier_direction_and_those_with_per_as_often_as_they_have_classes() {
        let text = "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\nreservation = \"30MB/s\"\n\
                    [[rule]]\nname = \"b\"\nmatch = \"uid={2}\"\nlimit = \"20MB/s\"\nrealtime = true\n\
                    [[rule]]\nname = \"c\"\nmatch = \"uid={3}\"\nreservation = \"500ops/s\"\n\
                    [[rule]]\nname = \"d\"\nper = [\"jobid\"]\nreservation = \"10MB/s\"\nmax_classes = 9\n";
        let rules = RuleReservations::of(&RuleSet::parse(text).unwrap());
        let mut calendar = Calendar::new(CalendarSettings::default());
        let capacity = |read, write| Capacity::per_sec(read, write).unwrap();
        let mut add = |kind, capacity| {
            calendar.add_resource("fs".into(), kind, capacity, Time::ZERO).unwrap()
        };
        let bytes = add(ResourceKind::Target, capacity(2_000_000_000, 1_000_000_000));
        let metadata = add(ResourceKind::Metadata, capacity(9_000, 9_000));
        let loads = rules.loads(&calendar, &Fleet::default(), Time::ZERO);
        let of = |read, write| Load::per_sec(read, write).unwrap();
        assert_eq!(loads, [(bytes, of(0, 140_000_000)), (metadata, of(500, 0))]);
        assert_eq!(rules.named(ResourceKind::Metadata), ["rule c: 500ops/s"]);
        assert_eq!(rules.named(ResourceKind::Target)[2], "rule d: 9 classes of 10MB/s");
        assert!(rules.named(ResourceKind::Pool).is_empty());
    }
    #[test]
    fn rules_count_at_a_network_for_each_target_that_its_proxies_have() {
        let text = "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\nreservation = \"4MB/s\"\n";
        let rules = RuleReservations::of(&RuleSet::parse(text).unwrap());
        let mut calendar = Calendar::new(CalendarSettings::default());
        let proxy = |name: &str, targets: &[&str]| {
            let of = |name: &&str| TargetDescription { name: (*name).into(), ..Default::default() };
            let targets = targets.iter().map(of).collect();
            let network_per_sec = Some(10_000_000);
            (name.to_owned(), ProxyDescription { targets, exports: vec![], network_per_sec })
        };
        let proxies = [proxy("a", &["x", "y"]), proxy("b", &["y"]), proxy("c", &["z"])];
        let mut fleet = Fleet::new(proxies.into());
        fleet.apply(&mut calendar, Time::ZERO);
        let loads = rules.loads(&calendar, &fleet, Time::ZERO);
        let at = |name| {
            let network = calendar.resources().find(ResourceKind::ProxyNetwork, name).unwrap();
            loads.iter().find(|(of, _)| *of == network).unwrap().1.read_per_sec()
        };
        // All of what goes to x and half of that to y goes by a; and all of both by a or b.
        assert_eq!(["x", "y", "z"].map(at), [6_000_000, 8_000_000, 4_000_000]);
    }
}
