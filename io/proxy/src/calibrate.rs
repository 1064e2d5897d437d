//! Calibration: what requests cost a backend directory, measured.
//!
//! ```text
//!   DIR ─► sizes     reads and writes with direct I/O, by number outstanding ─► device curves, D
//!        ├ metadata  every kind by many threads ─► cost of an operation
//!        ├ cached    reads and writes that the page cache answers ─► cached curves
//!        └ modes     each write mode, and a neighbour's fdatasync ─► write_mode
//!                                                       │
//!                     a TOML file for `[[target]] costs` ◄┘
//! ```
//!
//! A cost is the time that one request costs the saturated backend, 1 / rate: that
//! is what weights divide. D is the smallest number of slots that costs no request
//! size more than 3 % of its saturated rate.
//!
//! Everything that is made in DIR is removed before [`calibrate`] returns, also
//! when it is stopped. Nothing should use the backend meanwhile; what does so is
//! measured along.

mod cached;
mod ladder;
mod load;
mod metadata;
mod modes;
mod report;
mod scratch;
mod sizes;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use model::{Bytes, Nanos, OpKind};
use rules::WriteMode;
use sched::{CostMode, Costs, Curve, LaneCosts};

pub use self::ladder::SlotLoss;
use self::ladder::{Ladder, curve_points};
pub use self::modes::ModeFigures;
use self::scratch::ScratchFiles;
use crate::costs_file::CostsFile;
use crate::writes::Backing;

/// Results of a calibration, and settings that follow from them.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The directory that was measured.
    pub dir: PathBuf,
    /// Write capabilities of the backend.
    pub backing: Backing,
    /// Costs for the dispatcher.
    pub costs: Costs,
    /// Device slots to use: D of SFQ(D).
    pub slots_max: u32,
    /// The write mode to use; `None` is what is best for the size of each write.
    pub write_mode: Option<WriteMode>,
    /// Reads and writes by size.
    pub sizes: Vec<SizeFigures>,
    /// Kinds that were measured; the others take the cost of the one most like them.
    pub operations: Vec<(OpKind, Nanos)>,
    /// Write modes, after the victim alone.
    pub modes: Vec<ModeFigures>,
    /// Losses with other numbers of slots.
    pub losses: Vec<SlotLoss>,
    /// How far measurements that should be equal lay apart, in percent.
    pub spread_percent: f64,
}

/// Figures of requests of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeFigures {
    /// Writes, or else reads.
    pub write: bool,
    /// The page cache answered, or else the device.
    pub cached: bool,
    /// Size of each request.
    pub size: Bytes,
    /// Requests per second with one outstanding.
    pub single_per_sec: f64,
    /// Requests per second when more outstanding gain nothing.
    pub saturated_per_sec: f64,
    /// The fewest outstanding that come within 3 % of that.
    pub outstanding: u32,
    /// Cost of one operation.
    pub cost: Nanos,
}

/// Reason why a calibration ended.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The calibration was stopped.
    #[error("stopped; the scratch files are removed")]
    Stopped,
    /// The directory cannot be used.
    #[error("{}: cannot create a scratch directory", .path.display())]
    Directory {
        /// The directory that was given.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Too little space for a file that says anything about a device.
    #[error("{}: {free} are free, a calibration needs 256MiB", .path.display())]
    Space {
        /// The directory that was given.
        path: PathBuf,
        /// Free space of its file system.
        free: Bytes,
    },
    /// The backend answered an operation with an error.
    #[error("the backend failed")]
    Backend(#[source] io::Error),
    /// A thread could not be started, and the like.
    #[error("cannot run the measurement")]
    Machine(#[from] io::Error),
}

/// Progress of the measurements, and the flag that ends them.
pub(super) struct Steps<'a> {
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&str),
    begun: Instant,
    time: Duration,
}

/// Measures `dir` within about `time`, longer if the backend takes seconds for one operation or for
/// removing some thousand files. `stop` ends the measurement from another thread or a signal
/// handler. `progress` receives a line of text at each step.
///
/// # Errors
/// When the directory cannot be written to or has too little space, when the backend
/// fails, and when it is stopped.
pub fn calibrate(
    dir: &Path,
    time: Duration,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str),
) -> Result<Calibration, CalibrateError> {
    let mut steps = Steps { stop, progress, begun: Instant::now(), time };
    let scratch = ScratchFiles::make(dir)?;
    let backing = Backing::probe(scratch.own()).map_err(CalibrateError::Backend)?;
    steps.report_progress("filling a file");
    let file = scratch.full_file(time.mul_f64(SHARE_FILL), stop)?;
    let (reads, writes) = sizes::measure(&file, time.mul_f64(SHARE_SIZES), &mut steps)?;
    let cached = cached::measure(&file, time.mul_f64(SHARE_CACHED), &mut steps)?;
    drop(file);
    let operations = metadata::measure(&scratch, time.mul_f64(SHARE_METADATA), &mut steps)?;
    let largest = writes.last().expect("every size was measured");
    let device_per_sec = largest.saturated() * largest.size.get() as f64;
    let share = time.mul_f64(SHARE_MODES);
    let modes = modes::measure(&scratch, backing, share, device_per_sec, &mut steps)?;
    steps.report_progress("removing the scratch files");
    drop(scratch);

    let spreads: Vec<_> = reads.iter().chain(&writes).map(|ladder| ladder.spread).collect();
    let (slots_max, losses) = ladder::slots_max(&reads, &writes);
    let ops = every_kind(&operations);
    let costs = Costs {
        device: LaneCosts { read: curve(&reads), write: curve(&writes), ops },
        cached: LaneCosts { read: curve(&cached.0), write: curve(&cached.1), ops },
        mode: CostMode::Calibrated,
    };
    let sides = [(&reads, false, false), (&writes, true, false)];
    let sides = sides.into_iter().chain([(&cached.0, false, true), (&cached.1, true, true)]);
    let of = |(ladders, write, cached): (&Vec<Ladder>, bool, bool)| {
        let figures = |ladder| SizeFigures::of(ladder, write, cached);
        ladders.iter().map(figures).collect::<Vec<_>>()
    };
    Ok(Calibration {
        dir: dir.into(),
        backing,
        costs,
        slots_max,
        write_mode: modes::recommend(&modes),
        sizes: sides.flat_map(of).collect(),
        operations,
        modes,
        losses,
        spread_percent: 100.0 * ladder::median(&spreads),
    })
}

// Of the whole time; the rest goes into starting threads, making and removing files.
const SHARE_FILL: f64 = 0.06;
const SHARE_SIZES: f64 = 0.44;
const SHARE_CACHED: f64 = 0.05;
const SHARE_METADATA: f64 = 0.10;
const SHARE_MODES: f64 = 0.20;

impl Steps<'_> {
    /// Says what is measured next, and how far the whole is.
    fn report_progress(&mut self, what: &str) {
        let part = self.begun.elapsed().as_secs_f64() / self.time.as_secs_f64();
        (self.progress)(&format!("{:3.0} %  {what}", (part * 100.0).min(99.0)));
    }
}

impl Calibration {
    /// Makes the file that `[[target]] costs` reads.
    pub fn costs_file(&self) -> CostsFile {
        CostsFile {
            costs: self.costs.clone(),
            slots_max: self.slots_max,
            write_mode: self.write_mode,
        }
    }
}

impl SizeFigures {
    fn of(ladder: &Ladder, write: bool, cached: bool) -> SizeFigures {
        SizeFigures {
            write,
            cached,
            size: ladder.size,
            single_per_sec: ladder.single(),
            saturated_per_sec: ladder.saturated(),
            outstanding: ladder.enough(),
            cost: ladder.cost(),
        }
    }
}

fn curve(ladders: &[Ladder]) -> Curve {
    Curve::new(&curve_points(ladders)).expect("points rise in size and never fall in time")
}

/// A cost for every kind: what could not be measured costs what is most like it.
fn every_kind(measured: &[(OpKind, Nanos)]) -> [Nanos; OpKind::COUNT] {
    let cost = |kind: OpKind| measured.iter().find(|(k, _)| *k == kind).map(|(_, cost)| *cost);
    let getattr = cost(OpKind::Getattr).unwrap_or(Nanos::from_micros(1));
    let create = cost(OpKind::Create).unwrap_or(getattr);
    let like = |kind: OpKind| match kind {
        OpKind::Mkdir
        | OpKind::Symlink
        | OpKind::Mknod
        | OpKind::Link
        | OpKind::Unlink
        | OpKind::Rename => create,
        OpKind::Setattr | OpKind::Setxattr | OpKind::Fsync => create,
        OpKind::Readlink | OpKind::Open | OpKind::Attach => cost(OpKind::Walk).unwrap_or(getattr),
        OpKind::Unlock => cost(OpKind::Lock).unwrap_or(getattr),
        _ => getattr,
    };
    let mut costs = [getattr; OpKind::COUNT];
    for kind in OpKind::ALL {
        costs[*kind as usize] = cost(*kind).unwrap_or_else(|| like(*kind));
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;
    use std::sync::atomic::Ordering;

    fn empty_dir(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_kind_that_was_not_measured_costs_what_is_most_like_it() {
        let micros = Nanos::from_micros;
        let costs = every_kind(&[(OpKind::Getattr, micros(2)), (OpKind::Create, micros(30))]);
        assert_eq!(costs[OpKind::Mknod as usize], micros(30));
        assert_eq!(costs[OpKind::Clunk as usize], micros(2));
        assert_eq!(costs[OpKind::Create as usize], micros(30));
    }

    #[test]
    fn a_short_calibration_measures_everything_and_leaves_nothing() {
        let dir = empty_dir("calibrate");
        let stop = AtomicBool::new(false);
        let told = Cell::new(0);
        let time = Duration::from_millis(200);
        let found = calibrate(&dir, time, &stop, &mut |_| told.set(told.get() + 1)).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
        assert!(told.get() > 50);
        assert_eq!(found.sizes.len(), 2 * (sizes::SIZES.len() + 5));
        assert_eq!(found.modes.len(), found.backing.modes().len() + 1);
        assert!(found.slots_max >= 1);
    }

    #[test]
    fn a_stopped_calibration_leaves_nothing() {
        let dir = empty_dir("calibrate-stopped");
        let stop = AtomicBool::new(false);
        let mut stop_at_metadata = |what: &str| {
            if what.contains("create") {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let time = Duration::from_millis(200);
        let ended = calibrate(&dir, time, &stop, &mut stop_at_metadata);
        assert!(matches!(ended, Err(CalibrateError::Stopped)));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let stop = AtomicBool::new(false);
        let dir = Path::new("/nonexistent/dir");
        let error = calibrate(dir, Duration::from_secs(1), &stop, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/dir: cannot create a scratch directory");
    }
}
