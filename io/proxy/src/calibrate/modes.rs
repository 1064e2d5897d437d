//! Throughput of each write mode, and its effect on a neighbour.
//!
//! Some writers of one job fill new files in large pieces, by the same code that the
//! proxy uses and with one dirty budget; beside them a victim appends 4 KiB
//! and waits for fdatasync, again and again. Throughput alone would make `cached`
//! the best mode everywhere, and so would the neighbour in a test as short as this:
//! the kernel begins to write back only when a tenth of the memory is dirty.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use model::{Bytes, Nanos};
use rules::WriteMode;

use super::load::LoadWindow;
use super::scratch::{ScratchFiles, write_whole};
use super::{CalibrateError, Steps};
use crate::writes::{
    Aligned, Backing, DIRTY_BUDGET, DirtyAccount, WriteFile, WriteRequest, Writes,
};

/// Result of one write mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeFigures {
    /// The mode; `None` is the victim alone.
    pub mode: Option<WriteMode>,
    /// Throughput of all writers together, in bytes per second.
    pub written_per_sec: u64,
    /// How often the victim's fdatasync came back.
    pub syncs: u64,
    /// Mean time of a sync.
    pub mean: Nanos,
    /// Half of the victim's syncs took at most this.
    pub median: Nanos,
    /// 99 of 100 did.
    pub p99: Nanos,
    /// Longest of the victim's syncs.
    pub longest: Nanos,
}

/// Everything that the measurements of all modes share.
struct ModeBench<'a> {
    scratch: &'a ScratchFiles,
    backing: Backing,
    time: Duration,
    /// Maximum that all writers of one mode may write, so that `cached` leaves no hours of
    /// write-back.
    most: Bytes,
}

const WRITERS: u64 = 8;
const BULLY: DirtyAccount = DirtyAccount(0);
const PIECE: usize = 1 << 20;
const FREE_PART: u64 = 10;

/// Figures of the victim alone and then of every mode that the probe allows.
pub(super) fn measure(
    scratch: &ScratchFiles,
    backing: Backing,
    time: Duration,
    device_per_sec: f64,
    steps: &mut Steps<'_>,
) -> Result<Vec<ModeFigures>, CalibrateError> {
    let modes = backing.modes();
    let each = time / (modes.len() as u32 + 1);
    let most = Bytes::new((2.0 * each.as_secs_f64() * device_per_sec) as u64);
    let most = most.min(Bytes::new(scratch.free()?.get() / FREE_PART)).max(Bytes::mib(16));
    let bench = ModeBench { scratch, backing, time: each, most };
    steps.report_progress("fdatasync alone");
    let mut figures = vec![bench.run(None, steps)?];
    for mode in modes {
        steps.report_progress(&format!("fdatasync beside {WRITERS} writers, mode {mode}"));
        figures.push(bench.run(Some(mode), steps)?);
    }
    Ok(figures)
}

/// The mode to use: of those that keep the promise, the one beside which a neighbour
/// waits least in the mean (a second sees too few syncs for a percentile); where
/// several are within a half of that, the fastest of them. `None` is the mode that
/// suits the size of each write, which for the large ones here is `Direct`.
pub(super) fn recommend(figures: &[ModeFigures]) -> Option<WriteMode> {
    let keeps = |figures: &&ModeFigures| !matches!(figures.mode, None | Some(WriteMode::Cached));
    let least = figures.iter().filter(keeps).map(|figures| figures.mean.get()).min();
    let near =
        |figures: &&ModeFigures| least.is_some_and(|least| figures.mean.get() <= least * 3 / 2);
    let best = figures.iter().filter(keeps).filter(near).max_by_key(|f| f.written_per_sec);
    best.and_then(|figures| figures.mode).filter(|mode| *mode != WriteMode::Direct)
}

impl ModeBench<'_> {
    fn run(
        &self,
        mode: Option<WriteMode>,
        steps: &Steps<'_>,
    ) -> Result<ModeFigures, CalibrateError> {
        let writes =
            Writes::start(self.backing, mode, DIRTY_BUDGET).map_err(CalibrateError::Backend)?;
        let victim = self.scratch.empty_file()?;
        let count = if mode.is_some() { WRITERS } else { 0 };
        let files = (0..count).map(|_| self.scratch.empty_file()).collect::<Result<Vec<_>, _>>()?;
        let sides: Vec<_> = files.iter().map(|_| WriteFile::default()).collect();
        let left = AtomicU64::new(self.most.get());
        let mut writers: Vec<_> = files
            .iter()
            .zip(&sides)
            .map(|(file, side)| writer(&writes, file, side, &left))
            .collect();
        let (over, begun) = (AtomicBool::new(false), Instant::now());
        let window = LoadWindow::of(self.time, steps.stop);
        let (took, waits) = thread::scope(|scope| {
            let waits = scope.spawn(|| sync_repeatedly(&victim, window, &over));
            let rate = if count == 0 { idle(window) } else { window.rate(&mut writers) };
            let took = rate.map(|_| begun.elapsed());
            over.store(true, Ordering::Relaxed);
            (took, waits.join().expect("the victim returns its errors"))
        });
        // Not the window's rate: a mode that has used up its bytes ends before the window does.
        let bytes = self.most.get() - left.load(Ordering::Relaxed);
        let written = (bytes as f64 / took?.as_secs_f64()) as u64;
        Ok(ModeFigures::new(mode, written, waits.map_err(CalibrateError::Backend)?))
    }
}

/// Appends to one file until all writers together have written what they may.
fn writer<'a>(
    writes: &'a Writes,
    file: &'a OwnedFd,
    side: &'a WriteFile,
    left: &'a AtomicU64,
) -> impl FnMut() -> io::Result<Option<u64>> + Send + 'a {
    let buffer = Aligned::new(PIECE, 4096);
    let mut offset = 0;
    move || {
        let take = |left: u64| left.checked_sub(PIECE as u64);
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Ok(None);
        }
        let request = WriteRequest { account: BULLY, mode: None, offset, data: &buffer };
        let done = writes.write(file.as_fd(), side, request)? as u64;
        offset += done;
        Ok(Some(done))
    }
}

/// The victim: how long each fdatasync took.
fn sync_repeatedly(
    file: &OwnedFd,
    window: LoadWindow<'_>,
    over: &AtomicBool,
) -> io::Result<Vec<Nanos>> {
    let (begin, mut waits, mut offset) = (Instant::now() + window.warm, Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        write_whole(file.as_fd(), &[1; 4096], offset)?;
        offset += 4096;
        let started = Instant::now();
        rustix::fs::fdatasync(file)?;
        if Instant::now() >= begin {
            waits.push(Nanos::new(started.elapsed().as_nanos() as u64));
        }
    }
    waits.sort_unstable();
    Ok(waits)
}

/// Lets the window pass without writers.
fn idle(window: LoadWindow<'_>) -> Result<f64, CalibrateError> {
    let pause = Duration::from_millis(5);
    let mut nobody = [|| {
        thread::sleep(pause);
        Ok(Some(0))
    }];
    window.rate(&mut nobody)
}

impl ModeFigures {
    /// Figures from sorted waits.
    fn new(mode: Option<WriteMode>, written_per_sec: u64, waits: Vec<Nanos>) -> ModeFigures {
        let at = |percent: usize| {
            let place = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            waits.get(place).copied().unwrap_or_default()
        };
        let syncs = waits.len() as u64;
        let (median, p99, longest) = (at(50), at(99), at(100));
        let sum = waits.iter().fold(Nanos::ZERO, |sum, wait| sum + *wait);
        let mean = Nanos::new(sum.get() / syncs.max(1));
        ModeFigures { mode, written_per_sec, syncs, mean, median, p99, longest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(mode: WriteMode, mb_per_sec: u64, mean_ms: u64) -> ModeFigures {
        let mean = Nanos::from_millis(mean_ms);
        let written_per_sec = mb_per_sec * 1_000_000;
        ModeFigures { mode: Some(mode), written_per_sec, mean, ..ModeFigures::new(None, 0, vec![]) }
    }

    #[test]
    fn percentiles_are_of_what_was_seen() {
        let waits = (1..=200).map(Nanos::from_millis).collect();
        let seen = ModeFigures::new(None, 0, waits);
        let millis = [seen.median, seen.p99, seen.longest].map(|wait| wait.get() / 1_000_000);
        assert_eq!((seen.syncs, millis), (200, [100, 198, 200]));
        assert_eq!(seen.mean, Nanos::from_micros(100_500));
        assert_eq!(ModeFigures::new(None, 0, vec![]).longest, Nanos::ZERO);
    }

    #[test]
    fn the_mode_that_spares_the_neighbour_is_recommended_and_among_equals_the_fastest() {
        let cached = figures(WriteMode::Cached, 5000, 800);
        let paced = figures(WriteMode::Paced, 1500, 30);
        let dontcache = |mean| figures(WriteMode::Dontcache, 1000, mean);
        assert_eq!(recommend(&[cached, paced, dontcache(25)]), Some(WriteMode::Paced));
        assert_eq!(recommend(&[cached, paced, dontcache(10)]), Some(WriteMode::Dontcache));
        let direct = figures(WriteMode::Direct, 1600, 25);
        assert_eq!(recommend(&[cached, direct, paced, dontcache(25)]), None);
        assert_eq!(recommend(&[cached]), None);
    }
}
