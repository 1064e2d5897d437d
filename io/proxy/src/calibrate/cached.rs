//! Costs of reads and writes that the page cache answers: memory and processor.
//!
//! One thread is measured and its rate taken times the processors. Several threads
//! would write the one file by turns, each waiting for the lock of its inode, and
//! that is not what different clients' files cost.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::Bytes;

use super::ladder::Ladder;
use super::load::LoadWindow;
use super::scratch::{TestFile, read_whole};
use super::sizes::{SizeSubject, rate};
use super::{CalibrateError, Steps};

/// Beyond 1 MiB the copy dominates and the curve is a straight line.
const SIZES: [Bytes; 5] =
    [Bytes::kib(4), Bytes::kib(16), Bytes::kib(64), Bytes::kib(256), Bytes::mib(1)];
/// Larger than the processors' caches, and far below where the kernel begins to
/// write back or to make room.
const WITHIN: Bytes = Bytes::mib(64);

/// Reads and writes as all processors together would do them, within about `time`.
pub(super) fn measure(
    file: &TestFile,
    time: Duration,
    steps: &mut Steps<'_>,
) -> Result<(Vec<Ladder>, Vec<Ladder>), CalibrateError> {
    let each = time / (2 * SIZES.len() as u32);
    let mut sides = [false, true].map(|write| (write, Vec::new()));
    for (write, ladders) in &mut sides {
        for size in SIZES {
            let what = if *write { "writes" } else { "reads" };
            steps.report_progress(&format!("cached {what} of {size}"));
            warm(file, steps)?;
            let target = file.cached.as_fd();
            let subject = SizeSubject { file, target, write: *write, size, within: WITHIN };
            let rate = rate(subject, 1, LoadWindow::of(each, steps.stop))?;
            ladders.push(Ladder::new(size, &[(1, vec![rate * processors()])]));
        }
    }
    rustix::fs::fdatasync(&file.cached).map_err(|error| CalibrateError::Backend(error.into()))?;
    let [(_, reads), (_, writes)] = sides;
    Ok((reads, writes))
}

/// Brings the part that is used into the page cache, from which memory pressure may
/// have taken it since the last time.
fn warm(file: &TestFile, steps: &Steps<'_>) -> Result<(), CalibrateError> {
    let mut buffer = file.buffer(1 << 20);
    for at in (0..WITHIN.get()).step_by(buffer.len()) {
        if steps.stop.load(Ordering::Relaxed) {
            return Err(CalibrateError::Stopped);
        }
        read_whole(file.cached.as_fd(), &mut buffer, at).map_err(CalibrateError::Backend)?;
    }
    Ok(())
}

fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64)
}
