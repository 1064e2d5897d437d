//! Reads and writes of each size at random places, by number outstanding.
//!
//! The first round climbs: 1, 2, 4, … outstanding until two steps in a row gain
//! nothing. The following rounds measure the same steps again, all sizes in turn,
//! so that a disturbance of a second hits one sample of many and the median
//! passes over it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use model::Bytes;

use super::ladder::{LOSS_MAX, Ladder};
use super::load::LoadWindow;
use super::scratch::{Numbers, TestFile, fill_with_noise, read_whole, write_whole};
use super::{CalibrateError, Steps};

/// Direction and lane of a measurement of sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeSubject<'a> {
    pub(super) file: &'a TestFile,
    pub(super) target: BorrowedFd<'a>,
    pub(super) write: bool,
    pub(super) size: Bytes,
    /// Only this much of the file, from its beginning.
    pub(super) within: Bytes,
}

#[derive(Debug)]
struct Climb<'a> {
    subject: SizeSubject<'a>,
    samples: Vec<(u32, Vec<f64>)>,
}

/// From 4 KiB, what a page is, to 4 MiB, the largest message.
pub(super) const SIZES: [Bytes; 6] =
    [Bytes::kib(4), Bytes::kib(16), Bytes::kib(64), Bytes::kib(256), Bytes::mib(1), Bytes::mib(4)];
/// The most requests outstanding, as the proxy has at most some hundred threads; and
/// the most bytes, beyond which a longer queue is only latency.
const OUTSTANDING_MAX: u64 = 128;
const OUTSTANDING_BYTES: Bytes = Bytes::mib(32);
const ROUNDS: u32 = 3;
/// Steps that a climb takes on the devices we know, to divide the time beforehand.
const STEPS_EXPECTED: u32 = 6;

/// Ladders of reads and of writes, one for each of [`SIZES`], within about `time`.
pub(super) fn measure(
    file: &TestFile,
    time: Duration,
    steps: &mut Steps<'_>,
) -> Result<(Vec<Ladder>, Vec<Ladder>), CalibrateError> {
    let subject = |write| {
        move |size| SizeSubject { file, target: file.best(), write, size, within: file.length }
    };
    let subjects = SIZES.map(subject(false)).into_iter().chain(SIZES.map(subject(true)));
    let mut climbs: Vec<_> =
        subjects.map(|subject| Climb { subject, samples: Vec::new() }).collect();

    let end = Instant::now() + time;
    let first = time / (climbs.len() as u32 * STEPS_EXPECTED * ROUNDS);
    for climb in &mut climbs {
        climb.climb(first, steps)?;
    }
    let taken: u32 = climbs.iter().map(|climb| climb.samples.len() as u32).sum();
    let rest = end.saturating_duration_since(Instant::now()) / (taken * (ROUNDS - 1));
    for _ in 1..ROUNDS {
        for climb in &mut climbs {
            climb.resample(rest.max(Duration::from_millis(1)), steps)?;
        }
    }
    let mut reads: Vec<_> = climbs.iter().map(Climb::ladder).collect();
    let writes = reads.split_off(SIZES.len());
    Ok((reads, writes))
}

/// The rate of reads or writes with that many outstanding.
pub(super) fn rate(
    subject: SizeSubject<'_>,
    outstanding: u32,
    window: LoadWindow<'_>,
) -> Result<f64, CalibrateError> {
    let worker = |thread: u32| {
        let SizeSubject { file, target, write, size, within } = subject;
        let mut numbers = Numbers::new(u64::from(thread) + 1);
        let mut buffer = file.buffer(size.get() as usize);
        if write {
            fill_with_noise(&mut buffer, u64::from(thread) + 1);
        }
        move || -> io::Result<Option<u64>> {
            let offset = numbers.offset(size, within);
            if write {
                write_whole(target, &buffer, offset)?;
            } else {
                read_whole(target, &mut buffer, offset)?;
            }
            Ok(Some(1))
        }
    };
    let mut workers: Vec<_> = (0..outstanding).map(worker).collect();
    window.rate(&mut workers)
}

impl Climb<'_> {
    fn climb(&mut self, each: Duration, steps: &mut Steps<'_>) -> Result<(), CalibrateError> {
        let (mut best, mut idle_steps, mut outstanding) = (0.0, 0, 1);
        let most = OUTSTANDING_MAX.min(OUTSTANDING_BYTES.get() / self.subject.size.get());
        while u64::from(outstanding) <= most && idle_steps < 2 {
            let rate = self.sample(outstanding, each, steps)?;
            self.samples.push((outstanding, vec![rate]));
            idle_steps = if rate > best * (1.0 + LOSS_MAX) { 0 } else { idle_steps + 1 };
            best = rate.max(best);
            outstanding *= 2;
        }
        Ok(())
    }

    fn resample(&mut self, each: Duration, steps: &mut Steps<'_>) -> Result<(), CalibrateError> {
        for step in 0..self.samples.len() {
            let rate = self.sample(self.samples[step].0, each, steps)?;
            self.samples[step].1.push(rate);
        }
        Ok(())
    }

    fn sample(
        &self,
        outstanding: u32,
        each: Duration,
        steps: &mut Steps<'_>,
    ) -> Result<f64, CalibrateError> {
        let SizeSubject { write, size, .. } = self.subject;
        let what = if write { "writes" } else { "reads" };
        steps.report_progress(&format!("{what} of {size}, {outstanding} outstanding"));
        rate(self.subject, outstanding, LoadWindow::of(each, steps.stop))
    }

    fn ladder(&self) -> Ladder {
        Ladder::new(self.subject.size, &self.samples)
    }
}
