//! What the rules in force reserve of each target, beside the calendar.
//!
//! A rule's reservation may be of reads or writes, so it counts as the costlier of both. It holds at
//! every target to which its requests go, so it counts at each. A rule with `per` has a reservation
//! for each of its classes that exists, which the calendar does not know: it does not count.

use model::Rate;
use reserve::{Calendar, Load, ResourceId, ResourceKind};
use rules::RuleSet;

/// The reservations of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleReservations(Vec<(String, Rate)>);

impl RuleReservations {
    pub(super) fn of(rules: &RuleSet) -> RuleReservations {
        let counted = rules.rules.iter().filter(|rule| rule.per.is_empty());
        let reserved = counted.filter_map(|rule| Some((rule.name.clone(), rule.reserved_rate()?)));
        RuleReservations(reserved.collect())
    }

    /// What they reserve of every resource of the calendar.
    pub(super) fn loads(&self, calendar: &Calendar, now: model::Time) -> Vec<(ResourceId, Load)> {
        let load = |resource| {
            let (_, kind) = calendar.resources().describe(resource)?;
            let sum = self.rates(kind).map(|(_, rate)| u128::from(rate.per_sec())).sum::<u128>();
            let sum = u64::try_from(sum).unwrap_or(u64::MAX).min(Load::PER_SEC_MAX);
            let capacity = calendar.resources().whole(resource, now);
            let is_write = capacity.write_per_sec() < capacity.read_per_sec();
            let (read, write) = if is_write { (0, sum) } else { (sum, 0) };
            Some((resource, Load::per_sec(read, write)?))
        };
        calendar.resources().ids().filter_map(load).collect()
    }

    /// Those of one kind of resource, as `rule NAME: RATE`.
    pub(super) fn named(&self, kind: ResourceKind) -> Vec<String> {
        self.rates(kind)
            .take(NAMED_MAX)
            .map(|(name, rate)| format!("rule {name}: {rate}"))
            .collect()
    }

    fn rates(&self, kind: ResourceKind) -> impl Iterator<Item = &(String, Rate)> {
        self.0.iter().filter(move |(_, rate)| match kind {
            ResourceKind::Target => rate.is_bytes(),
            ResourceKind::Metadata => !rate.is_bytes(),
            _ => false,
        })
    }
}

/// The most rules that are named.
const NAMED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use model::Time;
    use reserve::{CalendarSettings, Capacity};

    use super::*;

    #[test]
    fn rules_count_as_the_costlier_direction_and_those_with_per_do_not() {
        let text = "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\nreservation = \"30MB/s\"\n\
                    [[rule]]\nname = \"b\"\nmatch = \"uid={2}\"\nlimit = \"20MB/s\"\nrealtime = true\n\
                    [[rule]]\nname = \"c\"\nmatch = \"uid={3}\"\nreservation = \"500ops/s\"\n\
                    [[rule]]\nname = \"d\"\nper = [\"jobid\"]\nreservation = \"1GB/s\"\nmax_classes = 9\n";
        let rules = RuleReservations::of(&RuleSet::parse(text).unwrap());
        let mut calendar = Calendar::new(CalendarSettings::default());
        let capacity = |read, write| Capacity::per_sec(read, write).unwrap();
        let mut add = |kind, capacity| {
            calendar.add_resource("fs".into(), kind, capacity, Time::ZERO).unwrap()
        };
        let bytes = add(ResourceKind::Target, capacity(2_000_000_000, 1_000_000_000));
        let metadata = add(ResourceKind::Metadata, capacity(9_000, 9_000));
        let loads = rules.loads(&calendar, Time::ZERO);
        let of = |read, write| Load::per_sec(read, write).unwrap();
        assert_eq!(loads, [(bytes, of(0, 50_000_000)), (metadata, of(500, 0))]);
        assert_eq!(rules.named(ResourceKind::Metadata), ["rule c: 500ops/s"]);
        assert_eq!(rules.named(ResourceKind::Target).len(), 2);
    }
}
