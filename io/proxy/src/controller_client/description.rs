//! What this proxy has, for the controller's calendar of reservations.
//!
//! A configured capacity goes before a calibrated one: the largest measured request of a curve by
//! its time. Built-in costs say nothing about a target. Costs that requests correct are not used:
//! they change all the time, and a capacity is a promise.

use std::sync::Arc;

use api::{DescribedCapacity, ExportDescription, ProxyDescription, TargetDescription};
use model::{Bytes, Nanos, OpKind, Rate};
use sched::{Curve, LaneCosts};

use crate::config::{ProxyConfig, TargetConfig};
use crate::costs_file::CostsFile;
use crate::export::Export;
use crate::target::Target;

/// Describes the targets and exports of this proxy.
pub(super) fn describe(
    config: &ProxyConfig,
    targets: &[Arc<Target>],
    exports: &[Arc<Export>],
) -> ProxyDescription {
    let targets = targets.iter().take(ProxyDescription::TARGETS_MAX).map(|target| {
        let known = config.target.iter().find(|known| known.name == target.name);
        let described = known.map(describe_target).unwrap_or_default();
        TargetDescription { name: target.name.clone(), ..described }
    });
    let exports = exports.iter().take(ProxyDescription::EXPORTS_MAX).map(|export| {
        let (name, target) = (export.name.to_string(), export.target.name.clone());
        ExportDescription { name, target }
    });
    ProxyDescription {
        targets: targets.collect(),
        exports: exports.collect(),
        network_per_sec: config.network.map(Rate::per_sec),
    }
}

/// Logs capacities that may be mistyped: those of targets that had more than twice as much in an
/// earlier description. They count all the same: the controller reduces what is reserved, and
/// restores it when they are corrected.
pub(super) fn warn_of_less(now: &ProxyDescription, before: &ProxyDescription) {
    for (target, what) in lost_by_half(now, before) {
        tracing::warn!(target, what, "less than half of the capacity before; is its unit right?");
    }
}

/// The targets with less than half of what they had, and of what.
fn lost_by_half<'a>(
    now: &'a ProxyDescription,
    before: &ProxyDescription,
) -> Vec<(&'a str, &'static str)> {
    let is_half = |now: Option<DescribedCapacity>, before: Option<DescribedCapacity>| {
        now.zip(before).is_some_and(|(now, before)| {
            now.read_per_sec < before.read_per_sec / 2
                || now.write_per_sec < before.write_per_sec / 2
        })
    };
    let mut lost = Vec::new();
    for target in &now.targets {
        let Some(old) = before.targets.iter().find(|old| old.name == target.name) else { continue };
        if is_half(target.bytes, old.bytes) {
            lost.push((&*target.name, "bytes"));
        }
        if is_half(target.metadata, old.metadata) {
            lost.push((&*target.name, "metadata"));
        }
    }
    lost
}

fn describe_target(config: &TargetConfig) -> TargetDescription {
    // A file that cannot be read was an error when the configuration was put in force.
    let costs = config.costs.as_ref().and_then(|path| CostsFile::load(path).ok());
    let device = costs.as_ref().map(|file| &file.costs.device);
    let configured = |read: Rate, write: Rate| DescribedCapacity {
        read_per_sec: read.per_sec(),
        write_per_sec: write.per_sec(),
        is_configured: true,
    };
    let bytes = config.capacity_read.zip(config.capacity_write);
    let bytes = bytes.map(|(read, write)| configured(read, write));
    let metadata = config.capacity_metadata.map(|rate| configured(rate, rate));
    let calibrated = device.and_then(calibrated_bytes);
    if let Some((configured, measured)) = bytes.zip(calibrated)
        && (configured.read_per_sec < measured.read_per_sec / 10
            || configured.write_per_sec < measured.write_per_sec / 10)
    {
        let target = &*config.name;
        tracing::warn!(target, "the capacity is less than a tenth of what was calibrated");
    }
    TargetDescription {
        name: config.name.clone(),
        bytes: bytes.or(calibrated),
        metadata: metadata.or_else(|| device.and_then(calibrated_metadata)),
        unseen_ppm: config.unseen.ppm(),
    }
}

fn calibrated_bytes(device: &LaneCosts) -> Option<DescribedCapacity> {
    let rate = |curve: &Curve| {
        let (size, time): (Bytes, Nanos) = curve.points().last()?;
        per_sec(size.get(), time)
    };
    let (read_per_sec, write_per_sec) = (rate(&device.read)?, rate(&device.write)?);
    Some(DescribedCapacity { read_per_sec, write_per_sec, is_configured: false })
}

fn calibrated_metadata(device: &LaneCosts) -> Option<DescribedCapacity> {
    let time = METADATA.iter().map(|kind| device.ops[*kind as usize]).max()?;
    let ops = per_sec(1, time)?;
    Some(DescribedCapacity { read_per_sec: ops, write_per_sec: ops, is_configured: false })
}

/// The rate of `count` in that time, per second; `None` below 1 or above 2^60.
fn per_sec(count: u64, time: Nanos) -> Option<u64> {
    let count = u128::from(count) * 1_000_000_000 / u128::from(time.get().max(1));
    u64::try_from(count).ok().filter(|count| (1..=1 << 60).contains(count))
}

/// The kinds of operations that a job needs for each file. The costliest of them is what counts, so
/// that any mix of them fits.
const METADATA: [OpKind; 5] =
    [OpKind::Walk, OpKind::Getattr, OpKind::Open, OpKind::Create, OpKind::Unlink];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_half_of_a_capacity_is_noted() {
        let described = |read_per_sec, ops| {
            let of = |read_per_sec| {
                let write_per_sec = 1_000;
                Some(DescribedCapacity { read_per_sec, write_per_sec, is_configured: true })
            };
            let (bytes, metadata) = (of(read_per_sec), of(ops));
            let target = TargetDescription { name: "fs".into(), bytes, metadata, unseen_ppm: 0 };
            ProxyDescription {
                targets: vec![target],
                exports: Vec::new(),
                ..ProxyDescription::default()
            }
        };
        let before = described(1_000, 50);
        assert_eq!(lost_by_half(&described(1, 50), &before), [("fs", "bytes")]);
        assert_eq!(lost_by_half(&described(500, 24), &before), [("fs", "metadata")]);
        assert_eq!(lost_by_half(&described(1, 1), &ProxyDescription::default()), []);
    }

    #[test]
    fn capacity_is_the_largest_request_by_its_time() {
        assert_eq!(per_sec(1 << 20, Nanos::from_millis(1)), Some(1_048_576_000));
        assert_eq!(per_sec(1, Nanos::from_micros(10)), Some(100_000));
        assert_eq!(per_sec(1, Nanos::from_secs(2)), None);
        assert_eq!(per_sec(u64::MAX, Nanos::new(1)), None);
    }
}
