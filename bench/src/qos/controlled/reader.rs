//! One client of a job: a thread that reads as fast as it may, at one proxy and then another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use ninep::{Fid, Reply, Request};

use super::super::super::session::{BenchIdentity, BenchSession};
use super::super::super::socket::BenchAddress;

/// What all readers of a case have in common.
#[derive(Debug)]
pub(super) struct PageReaders {
    /// Payload that came, in bytes.
    bytes: AtomicU64,
}

/// A reader; it ends when dropped.
pub(super) struct PageReader {
    /// Set, and it reads there from its next request on.
    place: Arc<std::sync::Mutex<Option<BenchAddress>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// How much came until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderSample {
    pub(super) at: Instant,
    pub(super) bytes: u64,
}

impl PageReaders {
    pub(super) fn new() -> Arc<PageReaders> {
        Arc::new(PageReaders { bytes: AtomicU64::new(0) })
    }

    pub(super) fn sample(&self) -> ReaderSample {
        let at = Instant::now();
        ReaderSample { at, bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl PageReader {
    /// Reads blocks of `size` of the file `name` as the job `job`.
    pub(super) fn start(
        shared: &Arc<PageReaders>,
        at: &BenchAddress,
        name: &'static str,
        size: u32,
    ) -> PageReader {
        let (place, stop) =
            (Arc::new(std::sync::Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (moved, stopped, counted) = (place.clone(), stop.clone(), shared.clone());
        let mut at = at.clone();
        let thread = std::thread::spawn(move || {
            let over = || stopped.load(Ordering::Relaxed);
            while !over() {
                let mut session = BenchSession::open(&at, size + 4096)?;
                session.attach(
                    Fid(1),
                    "x?job=job",
                    &BenchIdentity { uname: "root".into(), uid: 0 },
                )?;
                session.open_file(Fid(1), Fid(2), name, ninep::open::RDONLY)?;
                while !over() {
                    if let Some(next) = moved.lock().ok().and_then(|mut moved| moved.take()) {
                        at = next;
                        break;
                    }
                    let read = Request::Read { fid: Fid(2), offset: 0, count: size };
                    let Reply::Read { data } = session.call(&read)? else { continue };
                    counted.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        PageReader { place, stop, thread: Some(thread) }
    }

    /// Goes on at another proxy.
    pub(super) fn move_to(&self, at: &BenchAddress) {
        if let Ok(mut place) = self.place.lock() {
            *place = Some(at.clone());
        }
    }

    /// Ends it; an error if it met one.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().ok().context("a reader panicked")?.context("a reader")
    }
}

impl Drop for PageReader {
    fn drop(&mut self) {
        // Whoever wanted its error has called end.
        let _ = self.join();
    }
}

/// Of all windows of `seconds` between samples, the least and the greatest rate, in parts of
/// `per_sec`.
pub(super) fn windows(samples: &[ReaderSample], seconds: f64, per_sec: f64) -> Option<(f64, f64)> {
    let mut found: Option<(f64, f64)> = None;
    let mut from = 0;
    for to in samples {
        let span = |from: &ReaderSample| (to.at - from.at).as_secs_f64();
        while samples.get(from + 1).is_some_and(|next| span(next) >= seconds) {
            from += 1;
        }
        let first = &samples[from];
        if span(first) >= seconds {
            let rate = (to.bytes - first.bytes) as f64 / span(first) / per_sec;
            let (least, most) = found.unwrap_or((rate, rate));
            found = Some((least.min(rate), most.max(rate)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn windows_find_the_slowest_and_the_fastest_second() {
        let began = Instant::now();
        let bytes = [0, 100, 200, 250, 250, 450, 550];
        let sample = |(at, bytes): (usize, &u64)| ReaderSample {
            at: began + Duration::from_millis(500 * at as u64),
            bytes: *bytes,
        };
        let samples: Vec<_> = bytes.iter().enumerate().map(sample).collect();
        assert_eq!(windows(&samples, 1.0, 200.0), Some((0.25, 1.5)));
        assert_eq!(windows(&samples[..2], 1.0, 200.0), None);
    }
}
