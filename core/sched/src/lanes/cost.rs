//! What a request costs: the measure of service that weights divide.
//!
//! ```text
//!   ns │          ╱  beyond the last point: the last slope
//!      │      ●╱
//!      │   ●╱         Curve: points of (size, time), straight lines between
//!      │ ●            before the first point: the first point's time
//!      └──────────── bytes
//! ```
//!
//! Reads and writes follow a curve of their size, every other kind has a time for
//! The two lanes contend for different resources and so have costs of their own. Slots come from
//! the device's costs in either [`CostMode`]: the parallelism that a request takes does not depend
//! on how it is charged.

use model::{Amount, Bytes, Direction, Lane, Nanos, OpKind};

use super::slots::size_of;

/// The costs of one target: what `sluice calibrate` measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Costs of requests that the page cache answers.
    pub cached: LaneCosts,
    /// Costs of requests that the device or the servers answer.
    pub device: LaneCosts,
    /// The unit of charges.
    pub mode: CostMode,
}

/// The costs of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCosts {
    /// The time of reads by size.
    pub read: Curve,
    /// The time of writes by size.
    pub write: Curve,
    /// The time of one operation of each other kind, indexed by `kind as usize`.
    pub ops: [Nanos; OpKind::COUNT],
}

/// The service that weights divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostMode {
    /// The time that calibration measured.
    #[default]
    Calibrated,
    /// Bytes; each operation of another kind counts as 4096.
    Bytes,
}

/// A time for each size: straight lines between points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(u64, u64)>,
}

/// The reasons why points make no curve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    /// The curve has no points.
    #[error("a cost curve needs at least one point")]
    Empty,
    /// A size is not greater than the one before.
    #[error("size {1} of the cost curve must be greater than the size {0} before it")]
    Size(Bytes, Bytes),
    /// A time is less than the one before.
    #[error("time {1} of the cost curve must be at least {0}, the time of a smaller size")]
    Time(Nanos, Nanos),
    /// A request without cost would never let others pass.
    #[error("the first time of the cost curve must be above zero")]
    Zero,
}

const BYTES_PER_OP: u64 = 4096;

impl Curve {
    /// Creates a curve through `points`, sizes rising and times above zero and not falling.
    pub fn new(points: &[(Bytes, Nanos)]) -> Result<Curve, CurveError> {
        let first = points.first().ok_or(CurveError::Empty)?;
        if first.1 == Nanos::ZERO {
            return Err(CurveError::Zero);
        }
        for pair in points.windows(2) {
            if pair[1].0 <= pair[0].0 {
                return Err(CurveError::Size(pair[0].0, pair[1].0));
            }
            if pair[1].1 < pair[0].1 {
                return Err(CurveError::Time(pair[0].1, pair[1].1));
            }
        }
        Ok(Curve { points: points.iter().map(|(size, time)| (size.get(), time.get())).collect() })
    }

    /// The points it was made from.
    pub fn points(&self) -> impl Iterator<Item = (Bytes, Nanos)> {
        self.points.iter().map(|(size, time)| (Bytes::new(*size), Nanos::new(*time)))
    }

    /// Changes the time at a point; smaller sizes take at most that time, larger ones at least.
    pub(crate) fn with_time(&self, point: usize, time: Nanos) -> Curve {
        let mut points = self.points.clone();
        points[point].1 = time.get().max(1);
        let time = points[point].1;
        points[..point].iter_mut().for_each(|(_, before)| *before = time.min(*before));
        points[point..].iter_mut().for_each(|(_, after)| *after = time.max(*after));
        Curve { points }
    }

    /// The time of a request of that size, rounded down to a nanosecond.
    pub fn at(&self, size: Bytes) -> Nanos {
        let size = size.get();
        let after = self.points.partition_point(|(end, _)| *end < size);
        let (low, high) = match after {
            0 => return Nanos::new(self.points[0].1),
            n if n < self.points.len() => (self.points[n - 1], self.points[n]),
            1 => return Nanos::new(self.points[0].1),
            n => (self.points[n - 2], self.points[n - 1]),
        };
        Nanos::new(low.1.saturating_add(slope(size - low.0, high.1 - low.1, high.0 - low.0)))
    }
}

fn slope(run: u64, rise: u64, over: u64) -> u64 {
    match run.checked_mul(rise) {
        Some(product) => product / over,
        None => {
            let product = u128::from(run) * u128::from(rise) / u128::from(over);
            u64::try_from(product).unwrap_or(u64::MAX)
        }
    }
}

impl Costs {
    /// The charge for a request, at least 1 ns.
    pub fn charge(&self, lane: Lane, kind: OpKind, amount: Amount) -> Nanos {
        match self.mode {
            CostMode::Calibrated => self.time(lane, kind, amount),
            CostMode::Bytes => by_bytes(kind, amount),
        }
    }

    /// The charge for a request of the device lane, and its size there.
    pub(crate) fn charge_and_size(
        &self,
        kind: OpKind,
        amount: Amount,
        slots_max: u32,
    ) -> (Nanos, u8) {
        let time = self.time(Lane::Device, kind, amount);
        let size = size_of(time.get(), self.device.read.points[0].1, slots_max);
        match self.mode {
            CostMode::Calibrated => (time, size),
            CostMode::Bytes => (by_bytes(kind, amount), size),
        }
    }

    /// The charge for the smallest read from the device, in ns.
    pub(crate) fn unit_cost(&self) -> u64 {
        let (bytes, time) = self.device.read.points[0];
        match self.mode {
            CostMode::Calibrated => time,
            CostMode::Bytes => bytes.max(1),
        }
    }

    /// The bytes that the largest measured read moves in the time that a request takes the device,
    /// rounded up.
    pub(crate) fn device_bytes(&self, kind: OpKind, amount: Amount) -> u64 {
        let cost = self.charge(Lane::Device, kind, amount).get();
        let (bytes, time) = self.device.read.points[self.device.read.points.len() - 1];
        match self.mode {
            CostMode::Bytes => cost,
            CostMode::Calibrated => {
                let bytes = u128::from(cost) * u128::from(bytes.max(1));
                u64::try_from(bytes.div_ceil(time.into())).unwrap_or(u64::MAX)
            }
        }
    }

    /// The device's time for a charge of the device lane, in ns: where bytes are charged, that of the
    /// largest measured read.
    pub(crate) fn device_time(&self, charge: u64) -> u64 {
        let (bytes, time) = self.largest_read();
        match self.mode {
            CostMode::Calibrated => charge,
            CostMode::Bytes => slope(charge, time, bytes.max(1)),
        }
    }

    /// The bytes of the largest measured read, and its time on the device in ns.
    pub(crate) fn largest_read(&self) -> (u64, u64) {
        self.device.read.points[self.device.read.points.len() - 1]
    }

    /// The device's time of the smallest read, in ns.
    pub(crate) fn smallest_time(&self) -> u64 {
        self.device.read.points[0].1
    }

    /// How much longer a request takes from the device alone than the smallest read, in ns.
    pub(crate) fn beyond_smallest(&self, kind: OpKind, amount: Amount) -> u64 {
        self.time(Lane::Device, kind, amount).get().saturating_sub(self.smallest_time())
    }

    fn time(&self, lane: Lane, kind: OpKind, amount: Amount) -> Nanos {
        let costs = match lane {
            Lane::Cached => &self.cached,
            Lane::Device => &self.device,
        };
        match kind {
            OpKind::Read => costs.read.at(amount.bytes),
            OpKind::Write => costs.write.at(amount.bytes),
            _ => {
                let each = costs.ops[kind as usize].get().max(1);
                Nanos::new(each.saturating_mul(amount.ops.get().max(1)))
            }
        }
    }
}

fn by_bytes(kind: OpKind, amount: Amount) -> Nanos {
    Nanos::new(match kind.direction() {
        Direction::Metadata => amount.ops.get().max(1).saturating_mul(BYTES_PER_OP),
        Direction::Read | Direction::Write => amount.bytes.get().max(1),
    })
}

impl Default for Costs {
    /// Costs of a middling NVMe device and of memory, for a target that was never calibrated.
    fn default() -> Costs {
        // 1.2 µs a call and 6 GB/s: a page-cache read on a current server processor.
        let memory = curve(&[(0, 1_200), (6_000_000, 1_001_200)]);
        let device = curve(&[
            (4 << 10, 20_000),
            (16 << 10, 27_000),
            (64 << 10, 52_000),
            (256 << 10, 152_000),
            (1 << 20, 550_000),
        ]);
        Costs {
            cached: LaneCosts {
                read: memory.clone(),
                write: memory,
                ops: [Nanos::new(2_000); OpKind::COUNT],
            },
            device: LaneCosts { read: device.clone(), write: device, ops: device_ops() },
            mode: CostMode::Calibrated,
        }
    }
}

fn curve(points: &[(u64, u64)]) -> Curve {
    Curve { points: points.to_vec() }
}

/// Lookups and attributes are mostly answered from memory. Changes of a directory go to the
/// journal, and a flush waits for the device.
fn device_ops() -> [Nanos; OpKind::COUNT] {
    let mut ops = [Nanos::from_micros(5); OpKind::COUNT];
    for kind in OpKind::ALL {
        let micros = match kind {
            OpKind::Create | OpKind::Mkdir | OpKind::Symlink | OpKind::Mknod | OpKind::Link => 20,
            OpKind::Unlink | OpKind::Rename | OpKind::Setattr | OpKind::Setxattr => 20,
            OpKind::Fsync => 30,
            OpKind::Open | OpKind::Getxattr => 8,
            _ => continue,
        };
        ops[*kind as usize] = Nanos::from_micros(micros);
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(curve: &Curve, bytes: u64) -> u64 {
        curve.at(Bytes::new(bytes)).get()
    }

    #[test]
    fn a_curve_is_straight_between_its_points_and_keeps_its_last_slope() {
        let points =
            [(4096, 20), (8192, 40), (16384, 60)].map(|(b, n)| (Bytes::new(b), Nanos::new(n)));
        let curve = Curve::new(&points).unwrap();
        assert_eq!([0, 4096, 6144, 8192, 12288].map(|b| ns(&curve, b)), [20, 20, 30, 40, 50]);
        assert_eq!([16384, 24576, 16384 + 81920].map(|b| ns(&curve, b)), [60, 80, 260]);
        assert_eq!(ns(&Curve::new(&points[..1]).unwrap(), 1 << 40), 20);
    }

    #[test]
    fn points_that_make_no_curve_are_named() {
        let at = |b, n| (Bytes::new(b), Nanos::new(n));
        let error = |points: &[(Bytes, Nanos)]| Curve::new(points).unwrap_err().to_string();
        assert_eq!(
            error(&[at(4096, 5), at(4096, 6)]),
            "size 4KiB of the cost curve must be greater than the size 4KiB before it"
        );
        assert_eq!(
            error(&[at(1, 5), at(2, 4)]),
            "time 4ns of the cost curve must be at least 5ns, the time of a smaller size"
        );
        assert_eq!(error(&[]), "a cost curve needs at least one point");
        assert_eq!(error(&[at(0, 0)]), "the first time of the cost curve must be above zero");
    }

    #[test]
    fn built_in_costs_are_the_documented_ones() {
        let costs = Costs::default();
        let charge = |lane, kind, bytes| costs.charge(lane, kind, Amount::new(bytes, 1)).get();
        assert_eq!(charge(Lane::Cached, OpKind::Read, 6_000_000), 1_001_200);
        assert_eq!(charge(Lane::Device, OpKind::Read, 4096), 20_000);
        assert_eq!(charge(Lane::Device, OpKind::Write, 1 << 20), 550_000);
        assert_eq!(costs.charge(Lane::Device, OpKind::Readdir, Amount::new(0, 10)).get(), 50_000);
        assert_eq!(costs.charge_and_size(OpKind::Read, Amount::new(1 << 20, 1), 64).1, 5);
        assert_eq!(costs.charge_and_size(OpKind::Read, Amount::new(1 << 20, 1), 8).1, 3);
    }

    #[test]
    fn by_bytes_an_operation_counts_as_one_page() {
        let costs = Costs { mode: CostMode::Bytes, ..Costs::default() };
        assert_eq!(
            costs.charge(Lane::Device, OpKind::Read, Amount::new(100_000, 1)).get(),
            100_000
        );
        assert_eq!(costs.charge(Lane::Device, OpKind::Getattr, Amount::new(0, 1)).get(), 4096);
        assert_eq!(costs.charge_and_size(OpKind::Read, Amount::new(1 << 20, 1), 64).1, 5);
    }
}
