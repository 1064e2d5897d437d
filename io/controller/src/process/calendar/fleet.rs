//! The targets that can be reserved, by what proxies describe.
//!
//! ```text
//!   ProxyDescription of each proxy ─► of each target: configured? the least of these
//!                                                     else the least calibrated ─► capacity
//! ```
//!
//! The network of a target is the sum of those of its proxies, if all have one: what is reserved is
//! divided over them.
//!
//! What a proxy described stays until the proxy is removed or describes itself again: a proxy that is
//! not there for an hour does not make its target another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{DescribedCapacity, ProxyDescription, TargetDescription};
use model::Share;
use reserve::{Calendar, Capacity, Load, ResourceId, ResourceKind, Span};

/// The descriptions of proxies, with what each call needs of them.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    proxies: BTreeMap<String, Arc<ProxyDescription>>,
    /// Of each target its description by each proxy.
    targets: BTreeMap<String, BTreeMap<String, TargetDescription>>,
    /// Of each export its targets, with the number of proxies that have it there.
    exports: BTreeMap<String, BTreeMap<String, usize>>,
    /// Of each target its exports.
    exports_of: BTreeMap<String, BTreeSet<String>>,
    /// Targets whose descriptions have changed since they were applied.
    changed: BTreeSet<String>,
    /// Targets whose proxies have configured different capacities, which was logged.
    differ: BTreeSet<String>,
}

/// Why an export has no one target.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("no proxy has described its exports: reservations need a proxy of this version")]
    NoExports,
    #[error("{name:?} is not an export of a proxy; the exports are {exports}")]
    Unknown { name: String, exports: String },
    #[error("the exports have several targets: name one of {exports}")]
    SeveralTargets { exports: String },
    #[error("export {name:?} has several targets, {targets}: rename it at one of their proxies")]
    Ambiguous { name: String, targets: String },
}

/// What a target is by all of its proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TargetFigures {
    bytes: Option<DescribedCapacity>,
    metadata: Option<DescribedCapacity>,
    unseen_ppm: u32,
    /// Of all proxies together; none if one has none.
    network: Option<u64>,
}

impl Fleet {
    pub(super) fn new(proxies: BTreeMap<String, ProxyDescription>) -> Fleet {
        let mut fleet = Fleet::default();
        for (name, description) in proxies {
            fleet.insert(&name, Arc::new(description));
        }
        fleet
    }

    /// Takes a description; true if it is another one. Beyond the most proxies it is ignored.
    pub(super) fn describe(&mut self, proxy: &str, description: &Arc<ProxyDescription>) -> bool {
        let known = self.proxies.get(proxy);
        let is_full = known.is_none() && self.proxies.len() >= PROXIES_MAX;
        if is_full || known.is_some_and(|known| known == description) {
            return false;
        }
        self.forget(proxy);
        self.insert(proxy, description.clone());
        true
    }

    /// Removes a proxy; false if there is none of that name.
    pub(super) fn forget(&mut self, proxy: &str) -> bool {
        let Some(description) = self.proxies.remove(proxy) else { return false };
        for target in &description.targets {
            if let Some(of) = self.targets.get_mut(&target.name) {
                of.remove(proxy);
                if of.is_empty() {
                    self.targets.remove(&target.name);
                }
            }
            self.changed.insert(target.name.clone());
        }
        for export in &description.exports {
            self.forget_export(&export.name, &export.target);
        }
        true
    }

    /// Sets the capacities of the calendar to what the proxies describe now. A target that is not
    /// described any more keeps its capacity. O(proxies of the targets that have changed).
    pub(super) fn apply(&mut self, calendar: &mut Calendar, now: model::Time) {
        for name in std::mem::take(&mut self.changed) {
            let figures = self.figures(&name);
            let kinds =
                [(ResourceKind::Target, figures.bytes), (ResourceKind::Metadata, figures.metadata)];
            for (kind, capacity) in kinds {
                let Some(capacity) = capacity else { continue };
                let unseen = Share::ratio(u64::from(figures.unseen_ppm), 1_000_000);
                if let Err(error) = set(calendar, &name, kind, capacity, unseen, now) {
                    tracing::error!(target = name, %error, "cannot set the capacity of a target");
                }
            }
            if let Err(error) = set_network(calendar, &name, figures.network, now) {
                tracing::error!(target = name, %error, "cannot set the network of a target");
            }
        }
    }

    /// The target of an export, or the only one.
    pub(super) fn target_of(&self, export: Option<&str>) -> Result<String, ExportError> {
        let mut targets: Box<dyn Iterator<Item = &String>> = match export {
            Some(name) => Box::new(self.exports.get(name).into_iter().flat_map(BTreeMap::keys)),
            None => Box::new(self.exports_of.keys()),
        };
        let first = targets.next();
        if let (Some(target), None) = (first, targets.next()) {
            return Ok(target.clone());
        }
        let exports = listed(self.exports.keys().map(String::as_str));
        Err(match export {
            _ if self.exports.is_empty() => ExportError::NoExports,
            None => ExportError::SeveralTargets { exports },
            Some(name) => match self.exports.get(name) {
                None => ExportError::Unknown { name: name.into(), exports },
                Some(targets) => {
                    let targets = listed(targets.keys().map(String::as_str));
                    ExportError::Ambiguous { name: name.into(), targets }
                }
            },
        })
    }

    /// The targets at whose networks a reservation of a target counts, and by which part: as much of the
    /// networks of its proxies is that of proxies of the other target, too. If one of them has none, by
    /// the number of proxies. O(proxies × their targets).
    ///
    /// So no set of proxies is promised more than the sum of its networks: for targets T whose proxies
    /// have networks N(T) in sum, what is reserved at T counts at each T' by N(T ∩ T') / N(T) and is at
    /// most N(T') there. Let f be the sum of w(T')·1(T') with w ≥ 0 that is nearest to 1 on the proxies of
    /// some targets, weighted by N. By the conditions of that minimum, Σ w(T')·N(T ∩ T') ≥ N(T) for each of
    /// these, and Σ w(T')·N(T') = |f|² ≤ N(all of them). So the sum of what is reserved at them is at
    /// most N(all of them), and by the theorem of Hall it can be divided over the proxies.
    /// What rules reserve at every target is a part of what is reserved at each.
    pub(super) fn networks_of(&self, target: &str) -> Vec<(&str, Share)> {
        let proxies = self.targets.get(target).into_iter().flat_map(BTreeMap::keys);
        let proxies: Vec<_> = proxies.filter_map(|proxy| self.proxies.get(proxy)).collect();
        let are_known = proxies.iter().all(|of| of.network_per_sec.is_some_and(|of| of > 0));
        let (mut all, mut parts) = (0, BTreeMap::<&str, u128>::new());
        for proxy in proxies {
            let part = proxy.network_per_sec.filter(|_| are_known).map_or(1, u128::from);
            all += part;
            for other in &proxy.targets {
                *parts.entry(&other.name).or_default() += part;
            }
        }
        let share = |part: u128| {
            let ppb = (part * u128::from(Share::WHOLE.billionths())).div_ceil(all);
            u32::try_from(ppb).ok().and_then(Share::from_billionths).unwrap_or(Share::WHOLE)
        };
        parts.into_iter().map(|(name, part)| (name, share(part))).collect()
    }

    /// Of each target the sum of the parts by which what is reserved at all targets counts at its network,
    /// in billionths: of what is reserved at every target alike. O(proxies × their targets²).
    pub(super) fn parts_of_networks(&self) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        for (name, part) in self.targets.keys().flat_map(|target| self.networks_of(target)) {
            *sums.entry(name).or_default() += u64::from(part.billionths());
        }
        sums
    }

    /// The exports of a target that have no other one, 256 at most.
    pub(super) fn exports_of(&self, target: &str) -> Vec<String> {
        let exports = self.exports_of.get(target).into_iter().flatten();
        let only_here = |name: &&String| self.exports.get(*name).is_some_and(|of| of.len() == 1);
        exports.filter(only_here).take(EXPORTS_MAX).cloned().collect()
    }

    /// The only export, if there is one.
    pub(super) fn only_export(&self) -> Option<String> {
        let mut names = self.exports.keys();
        names.next().filter(|_| names.next().is_none()).cloned()
    }

    fn insert(&mut self, proxy: &str, description: Arc<ProxyDescription>) {
        for target in &description.targets {
            let of = self.targets.entry(target.name.clone()).or_default();
            of.insert(proxy.into(), target.clone());
            self.changed.insert(target.name.clone());
        }
        for export in &description.exports {
            let targets = self.exports.entry(export.name.clone()).or_default();
            *targets.entry(export.target.clone()).or_default() += 1;
            let exports = self.exports_of.entry(export.target.clone()).or_default();
            exports.insert(export.name.clone());
        }
        self.proxies.insert(proxy.into(), description);
    }

    fn forget_export(&mut self, name: &str, target: &str) {
        let Some(targets) = self.exports.get_mut(name) else { return };
        let Some(count) = targets.get_mut(target) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        targets.remove(target);
        if targets.is_empty() {
            self.exports.remove(name);
        }
        if let Some(exports) = self.exports_of.get_mut(target) {
            exports.remove(name);
            if exports.is_empty() {
                self.exports_of.remove(target);
            }
        }
    }

    fn figures(&mut self, name: &str) -> TargetFigures {
        let (mut figures, mut configured_by) = (TargetFigures::default(), None);
        let mut differs = None;
        let proxies = self.targets.get(name).into_iter().flat_map(BTreeMap::keys);
        let mut networks = proxies.map(|proxy| self.proxies.get(proxy)?.network_per_sec);
        let sum = networks.try_fold(0, |sum: u64, of| Some(sum.saturating_add(of?)));
        let sum = sum.filter(|sum| *sum > 0);
        figures.network = sum.map(|sum| sum.min(Load::PER_SEC_MAX));
        for (proxy, target) in self.targets.get(name).into_iter().flatten() {
            if let Some(bytes) = target.bytes.filter(|bytes| bytes.is_configured) {
                let (first, of) = *configured_by.get_or_insert((proxy, bytes));
                if of != bytes {
                    differs = Some((first.clone(), proxy.clone()));
                }
            }
            figures.bytes = least(figures.bytes, target.bytes);
            figures.metadata = least(figures.metadata, target.metadata);
            figures.unseen_ppm = figures.unseen_ppm.max(target.unseen_ppm);
        }
        match differs {
            None => drop(self.differ.remove(name)),
            Some((first, other)) => {
                if self.differ.insert(name.into()) {
                    tracing::warn!(
                        target = name,
                        proxies = format!("{first}, {other}"),
                        "proxies configure different capacities; the least is taken"
                    );
                }
            }
        }
        figures
    }
}

fn set(
    calendar: &mut Calendar,
    name: &str,
    kind: ResourceKind,
    capacity: DescribedCapacity,
    unseen: Share,
    now: model::Time,
) -> Result<(), reserve::ReservationError> {
    let DescribedCapacity { read_per_sec, write_per_sec, .. } = capacity;
    let capacity = Capacity::per_sec(read_per_sec, write_per_sec).expect("checked on receipt");
    let resource: ResourceId = match calendar.resources().find(kind, name) {
        None => calendar.add_resource(name.into(), kind, capacity, now)?,
        Some(known) => {
            let is = calendar.resources().whole(known, now);
            if is != capacity {
                if !capacity.contains(is) {
                    tracing::warn!(
                        target = name,
                        read_per_sec = format!("{} -> {read_per_sec}", is.read_per_sec()),
                        write_per_sec = format!("{} -> {write_per_sec}", is.write_per_sec()),
                        kind = kind.name(),
                        "a target has less capacity: reservations that do not fit are reduced"
                    );
                }
                let span = Span { from: now, until: model::Time::MAX };
                calendar.set_capacity(known, span, capacity, now)?;
            }
            known
        }
    };
    if calendar.resources().unreserved(resource).unseen != unseen {
        calendar.set_unseen(resource, unseen, now)?;
    }
    Ok(())
}

/// Sets what the proxies of a target move; one that bounded it and does not any more is boundless.
fn set_network(
    calendar: &mut Calendar,
    name: &str,
    network: Option<u64>,
    now: model::Time,
) -> Result<(), reserve::ReservationError> {
    let is_known = calendar.resources().find(ResourceKind::ProxyNetwork, name).is_some();
    let per_sec = match network {
        None if !is_known => return Ok(()),
        None => Load::PER_SEC_MAX,
        Some(per_sec) => per_sec,
    };
    let (read_per_sec, write_per_sec) = (per_sec, per_sec);
    let capacity = DescribedCapacity { read_per_sec, write_per_sec, is_configured: true };
    set(calendar, name, ResourceKind::ProxyNetwork, capacity, Share::ZERO, now)
}

/// The least of both in each direction; one that is configured goes before one that is not.
fn least(
    one: Option<DescribedCapacity>,
    other: Option<DescribedCapacity>,
) -> Option<DescribedCapacity> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    match (one.is_configured, other.is_configured) {
        (true, false) => Some(one),
        (false, true) => Some(other),
        _ => Some(DescribedCapacity {
            read_per_sec: one.read_per_sec.min(other.read_per_sec),
            write_per_sec: one.write_per_sec.min(other.write_per_sec),
            is_configured: one.is_configured,
        }),
    }
}

/// The first of some names, for a message.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.take(LISTED_MAX).collect::<Vec<_>>().join(", ")
}

/// The most proxies whose descriptions are kept.
const PROXIES_MAX: usize = 16_384;
/// The most exports of a target whose usage is added up.
const EXPORTS_MAX: usize = 256;
/// The most names in a message.
const LISTED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use api::ExportDescription;
    use model::Time;
    use reserve::CalendarSettings;

    use super::*;

    fn proxy(read: u64, is_configured: bool, exports: &[(&str, &str)]) -> Arc<ProxyDescription> {
        let of = DescribedCapacity { read_per_sec: read, write_per_sec: 7, is_configured };
        let target = TargetDescription {
            name: "fs".into(),
            bytes: Some(of),
            metadata: None,
            unseen_ppm: 200_000,
        };
        let export = |(name, target): &(&str, &str)| ExportDescription {
            name: (*name).into(),
            target: (*target).into(),
        };
        let exports = exports.iter().map(export).collect();
        Arc::new(ProxyDescription { targets: vec![target], exports, network_per_sec: None })
    }

    #[test]
    fn configured_capacity_goes_before_calibrated_ones_and_the_least_is_taken() {
        let mut fleet = Fleet::default();
        let mut calendar = Calendar::new(CalendarSettings::default());
        let now = Time::from_nanos(5);
        let mut read = |fleet: &mut Fleet| {
            fleet.apply(&mut calendar, now);
            let id = calendar.resources().find(ResourceKind::Target, "fs").unwrap();
            assert_eq!(calendar.resources().unreserved(id).unseen, Share::ratio(1, 5));
            calendar.resources().whole(id, now).read_per_sec()
        };
        assert!(fleet.describe("a", &proxy(50, false, &[])));
        assert_eq!(read(&mut fleet), 50);
        assert!(fleet.describe("b", &proxy(40, false, &[])));
        assert!(!fleet.describe("b", &proxy(40, false, &[])));
        assert_eq!(read(&mut fleet), 40);
        fleet.describe("c", &proxy(90, true, &[]));
        assert_eq!(read(&mut fleet), 90);
        fleet.describe("d", &proxy(80, true, &[]));
        assert_eq!(read(&mut fleet), 80);
        assert!(fleet.forget("d") && !fleet.forget("d"));
        assert_eq!(read(&mut fleet), 90);
    }

    #[test]
    fn a_target_has_the_networks_of_all_its_proxies_if_all_have_one() {
        let mut fleet = Fleet::default();
        let mut calendar = Calendar::new(CalendarSettings::default());
        let mut describe = |fleet: &mut Fleet, proxy: &str, targets: &[&str], network| {
            let of = |name: &&str| TargetDescription { name: (*name).into(), ..Default::default() };
            let targets = targets.iter().map(of).collect();
            let of = ProxyDescription { targets, exports: vec![], network_per_sec: network };
            fleet.describe(proxy, &Arc::new(of));
            fleet.apply(&mut calendar, Time::ZERO);
            let read = |name| {
                let id = calendar.resources().find(ResourceKind::ProxyNetwork, name)?;
                Some(calendar.resources().whole(id, Time::ZERO).read_per_sec())
            };
            ["x", "y"].map(read)
        };
        assert_eq!(describe(&mut fleet, "a", &["x", "y"], Some(10)), [Some(10), Some(10)]);
        let parts = |fleet: &Fleet, of: &str| -> Vec<(String, u32)> {
            let parts = fleet.networks_of(of).into_iter();
            parts.map(|(name, part)| (name.into(), part.billionths())).collect()
        };
        let is = |x, y| vec![("x".to_owned(), x), ("y".to_owned(), y)];
        assert_eq!(parts(&fleet, "x"), is(1_000_000_000, 1_000_000_000));
        assert_eq!(describe(&mut fleet, "b", &["y"], Some(5)), [Some(10), Some(15)]);
        // What goes to x goes through a, which is a proxy of y; of what goes to y two thirds do.
        assert_eq!(parts(&fleet, "x"), is(1_000_000_000, 1_000_000_000));
        assert_eq!(parts(&fleet, "y"), is(666_666_667, 1_000_000_000));
        let most = Some(Load::PER_SEC_MAX);
        assert_eq!(describe(&mut fleet, "b", &["y"], None), [Some(10), most]);
        assert_eq!(parts(&fleet, "y"), is(500_000_000, 1_000_000_000), "by number");
        assert_eq!(describe(&mut fleet, "c", &["x"], most), [most, most]);
        assert_eq!(parts(&fleet, "nothing"), []);
    }

    #[test]
    fn export_has_a_target_or_the_message_names_the_exports() {
        let mut fleet = Fleet::default();
        assert!(matches!(fleet.target_of(None), Err(ExportError::NoExports)));
        fleet.describe("a", &proxy(1, true, &[("home", "fs")]));
        assert_eq!(fleet.target_of(None).unwrap(), "fs");
        assert_eq!(fleet.only_export().as_deref(), Some("home"));
        let error = fleet.target_of(Some("hom")).unwrap_err().to_string();
        assert!(error.contains("\"hom\"") && error.contains("home"), "{error}");
        fleet.describe("b", &proxy(1, true, &[("work", "fs2"), ("both", "fs2")]));
        assert!(matches!(fleet.target_of(None), Err(ExportError::SeveralTargets { .. })));
        assert_eq!(fleet.target_of(Some("work")).unwrap(), "fs2");
        assert_eq!(fleet.only_export(), None);
        fleet.describe("c", &proxy(1, true, &[("both", "fs")]));
        assert!(matches!(fleet.target_of(Some("both")), Err(ExportError::Ambiguous { .. })));
    }
}
