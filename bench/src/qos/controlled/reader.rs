//! Clients of one job: threads that read as fast as they may, each at one proxy and then another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use ninep::{Fid, Reply, Request};

use super::super::super::session::{BenchIdentity, BenchSession};
use super::super::super::socket::BenchAddress;

/// Clients of the job `job` that begin and end together; they end when this is dropped.
#[derive(Default)]
pub(super) struct JobReaders {
    shared: Arc<ReadersState>,
    readers: Vec<ReaderThread>,
}

/// How much came until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderSample {
    pub(super) at: Instant,
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
struct ReadersState {
    stop: AtomicBool,
    /// Payload that came, in bytes.
    bytes: AtomicU64,
}

struct ReaderThread {
    /// Set, and it reads there from its next request on.
    place: Arc<Mutex<Option<BenchAddress>>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl JobReaders {
    /// Starts `count` of them, one request at a time each, over the proxies at `places`: blocks of
    /// `size` bytes from the begin of the file `name`.
    pub(super) fn start(
        places: &[&BenchAddress],
        count: usize,
        name: &'static str,
        size: u32,
    ) -> JobReaders {
        let shared = Arc::new(ReadersState::default());
        let start = |at: usize| {
            let place = Arc::new(Mutex::new(None));
            let (moved, shared) = (Arc::clone(&place), Arc::clone(&shared));
            let first = places[at % places.len()].clone();
            let thread = std::thread::spawn(move || read(first, &moved, name, size, &shared));
            ReaderThread { place, thread: Some(thread) }
        };
        let readers = (0..count).map(start).collect();
        JobReaders { shared, readers }
    }

    /// How much all of them had until now.
    pub(super) fn sample(&self) -> ReaderSample {
        let at = Instant::now();
        ReaderSample { at, bytes: self.shared.bytes.load(Ordering::Relaxed) }
    }

    /// Lets the one with this number go on at another proxy.
    pub(super) fn move_one(&self, number: usize, to: &BenchAddress) {
        if let Ok(mut place) = self.readers[number].place.lock() {
            *place = Some(to.clone());
        }
    }

    /// Ends all of them at once, and gives the bytes that they had; an error if one met one.
    pub(super) fn end(mut self) -> anyhow::Result<u64> {
        self.join()?;
        Ok(self.sample().bytes)
    }

    fn join(&mut self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut all = Ok(());
        for reader in &mut self.readers {
            let Some(thread) = reader.thread.take() else { continue };
            let ended = thread.join().ok().context("a reader panicked");
            all = all.and(ended.and_then(|ended| ended.context("a reader")));
        }
        all
    }
}

impl Drop for JobReaders {
    fn drop(&mut self) {
        // Whoever wanted an error has called end.
        let _ = self.join();
    }
}

fn read(
    mut at: BenchAddress,
    moved: &Mutex<Option<BenchAddress>>,
    name: &str,
    size: u32,
    shared: &ReadersState,
) -> anyhow::Result<()> {
    let over = || shared.stop.load(Ordering::Relaxed);
    while !over() {
        let mut session = open(&at, size + 4096)?;
        session.open_file(Fid(1), Fid(2), name, ninep::open::RDONLY)?;
        while !over() {
            if let Some(next) = moved.lock().ok().and_then(|mut moved| moved.take()) {
                at = next;
                break;
            }
            let read = Request::Read { fid: Fid(2), offset: 0, count: size };
            let Reply::Read { data } = session.call(&read)? else { continue };
            shared.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// A session of the job `job`, whose directory is fid 1.
pub(super) fn open(at: &BenchAddress, msize: u32) -> anyhow::Result<BenchSession> {
    let mut session = BenchSession::open(at, msize)?;
    let root = BenchIdentity { uname: "root".into(), uid: 0 };
    session.attach(Fid(1), "x?job=job", &root)?;
    Ok(session)
}

/// Of all windows of `seconds` between samples, how far the slowest and the fastest are from the
/// rate `per_sec`, in per cent.
pub(super) fn windows(samples: &[ReaderSample], seconds: f64, per_sec: f64) -> Option<[f64; 2]> {
    let mut found: Option<[f64; 2]> = None;
    let mut from = 0;
    for to in samples {
        let span = |from: &ReaderSample| (to.at - from.at).as_secs_f64();
        while samples.get(from + 1).is_some_and(|next| span(next) >= seconds) {
            from += 1;
        }
        let first = &samples[from];
        if span(first) >= seconds {
            let rate = (to.bytes - first.bytes) as f64 / span(first);
            let off = (rate / per_sec - 1.0) * 100.0;
            let [least, most] = found.unwrap_or([off, off]);
            found = Some([least.min(off), most.max(off)]);
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
        assert_eq!(windows(&samples, 1.0, 200.0), Some([-75.0, 50.0]));
        assert_eq!(windows(&samples[..2], 1.0, 200.0), None);
    }
}
