//! A job: connections that keep a load on the proxy until the job is dropped.
//!
//!   start ─► connected and loaded ─► cut ─► span ─► cut ─► … ─► drop: sockets close
//!
//! Where `load` measures a span of its own, jobs compete: the span is the bench's, and
//! all of them are loaded before it begins and after it ends. A cut hands over what
//! was completed since the last one. Dropping a job abandons what it has in flight,
//! which behind a limit of 1 MB/s may be minutes of work.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::{Timespec, epoll};

use super::super::files::BenchFiles;
use super::super::link::{PeerConnection, Score};
use super::super::load::connect;
use super::super::plan::PeerPlan;

/// One load of a job; the file that is read and the directory of what is written exist.
#[derive(Clone, Debug)]
pub(crate) struct QosJobPart {
    pub(crate) plan: PeerPlan,
    /// Directory in the export; connection n writes the file `written<n>` in it.
    pub(crate) dir: String,
    /// File in the export that is read.
    pub(crate) data: String,
}

/// A job that runs in a thread of its own.
pub(crate) struct QosJob {
    shared: Arc<QosJobState>,
    cuts: Receiver<Cut>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// What a job achieved between two cuts.
pub(crate) struct Cut {
    pub(crate) score: Score,
    pub(crate) span: Duration,
    /// The longest time without a completion on any of its connections, in it or under way.
    pub(crate) gap: Duration,
}

#[derive(Default)]
struct QosJobState {
    stop: AtomicBool,
    cuts_asked: AtomicU64,
}

impl QosJob {
    /// Connects all parts and lets them load the proxy, on a thread that goes before its own.
    pub(crate) fn start(parts: &[QosJobPart]) -> anyhow::Result<QosJob> {
        QosJob::start_as(parts, FIRST, None)
    }

    /// The same, but it begins `per_s` operations per second, as long as its depth allows.
    pub(crate) fn start_paced(parts: &[QosJobPart], per_s: f64) -> anyhow::Result<QosJob> {
        QosJob::start_as(parts, FIRST, Some(per_s))
    }

    /// The same on a thread that goes behind the proxy's, as if it were on another machine.
    pub(crate) fn start_behind(parts: &[QosJobPart]) -> anyhow::Result<QosJob> {
        QosJob::start_as(parts, BEHIND, None)
    }

    fn start_as(parts: &[QosJobPart], nice: i32, per_s: Option<f64>) -> anyhow::Result<QosJob> {
        let mut links = Vec::new();
        for part in parts {
            part.plan.check()?;
            let data = part.plan.op.reads().then(|| part.data.clone());
            let files = BenchFiles { dir: part.dir.clone(), data, unlinkat: true };
            for index in 0..part.plan.connections {
                links.push(connect(&part.plan, &files, index)?);
            }
        }
        let shared = Arc::new(QosJobState::default());
        let (sender, cuts) = mpsc::channel();
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            set_nice(nice);
            let pace = per_s.map(|per_s| QosJobPace { per_s, begun: 0 });
            QosJobLoop::new(seen, links, pace, sender)?.run()
        });
        Ok(QosJob { shared, cuts, thread: Some(thread) })
    }

    /// What was achieved since the last cut or the start.
    pub(crate) fn cut(&mut self) -> anyhow::Result<Cut> {
        self.shared.cuts_asked.fetch_add(1, Ordering::Relaxed);
        match self.cuts.recv_timeout(CUT_MAX) {
            Ok(cut) => Ok(cut),
            Err(_) => match self.end() {
                Ok(()) => bail!("a job's thread does not answer"),
                Err(error) => Err(error),
            },
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().expect("a job's thread does not panic")
    }
}

impl Drop for QosJob {
    fn drop(&mut self) {
        // Whoever wanted its result has asked for a cut.
        let _ = self.end();
    }
}

/// Operations that are begun by the clock and not by those that end.
struct QosJobPace {
    per_s: f64,
    begun: u64,
}

struct QosJobLoop {
    shared: Arc<QosJobState>,
    links: Vec<PeerConnection>,
    pace: Option<QosJobPace>,
    /// Links whose socket took not everything.
    blocked: Vec<bool>,
    epoll: OwnedFd,
    cuts: Sender<Cut>,
    cuts_done: u64,
    start: Instant,
    began: Instant,
    /// When the job's last operation ended.
    last: Instant,
    gap: Duration,
}

impl QosJobLoop {
    fn new(
        shared: Arc<QosJobState>,
        links: Vec<PeerConnection>,
        pace: Option<QosJobPace>,
        cuts: Sender<Cut>,
    ) -> anyhow::Result<QosJobLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        for (index, link) in links.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, link, data, epoll::EventFlags::IN).context("epoll")?;
        }
        let blocked = vec![false; links.len()];
        let now = Instant::now();
        let (start, began, last) = (now, now, now);
        let gap = Duration::ZERO;
        Ok(QosJobLoop {
            shared,
            links,
            pace,
            blocked,
            epoll,
            cuts,
            cuts_done: 0,
            start,
            began,
            last,
            gap,
        })
    }

    fn run(mut self) -> anyhow::Result<()> {
        for index in 0..self.links.len() {
            match self.pace {
                None => self.links[index].start(0),
                Some(_) => self.links[index].finish(),
            }
            self.flush(index)?;
        }
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.turn()?;
            self.begin_due()?;
            if self.shared.cuts_asked.load(Ordering::Relaxed) > self.cuts_done {
                self.cut();
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let none = epoll::EventFlags::empty();
        let mut events = [epoll::Event { flags: none, data: epoll::EventData::new_u64(0) }; EVENTS];
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        let count = match epoll::wait(&self.epoll, &mut events, Some(&tick)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error).context("epoll"),
        };
        for event in &events[..count] {
            let index = event.data.u64() as usize;
            let start = self.start;
            let link = &mut self.links[index];
            let before = link.score.ops;
            link.receive(false, || start.elapsed().as_nanos() as u64)?;
            if link.score.ops > before {
                self.note_completion();
            }
            self.flush(index)?;
        }
        Ok(())
    }

    /// Begins the operations that are due by now, in turn on all connections.
    fn begin_due(&mut self) -> anyhow::Result<()> {
        let Some(pace) = &mut self.pace else { return Ok(()) };
        let elapsed = self.start.elapsed();
        let due = (elapsed.as_secs_f64() * pace.per_s) as u64;
        while pace.begun < due {
            let index = (pace.begun % self.links.len() as u64) as usize;
            if !self.links[index].begin_one(elapsed.as_nanos() as u64) {
                break;
            }
            pace.begun += 1;
        }
        (0..self.links.len()).try_for_each(|index| self.flush(index))
    }

    fn note_completion(&mut self) {
        let now = Instant::now();
        self.gap = self.gap.max(now - self.last);
        self.last = now;
    }

    fn cut(&mut self) {
        let now = Instant::now();
        let mut score = Score::new();
        for link in &mut self.links {
            score.add(&std::mem::replace(&mut link.score, Score::new()));
        }
        let gap = self.gap.max(now - self.last);
        let span = now - self.began;
        (self.began, self.gap) = (now, Duration::ZERO);
        self.cuts_done += 1;
        // Nobody listens only when the job is being dropped.
        let _ = self.cuts.send(Cut { score, span, gap });
    }

    /// Sends what `index` has ready, and asks to be woken when its socket is full.
    fn flush(&mut self, index: usize) -> anyhow::Result<()> {
        let blocked = !self.links[index].flush()?;
        if blocked != self.blocked[index] {
            self.blocked[index] = blocked;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, blocked);
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &self.links[index], data, flags).context("epoll")?;
        }
        Ok(())
    }
}

impl Cut {
    /// An error unless every operation succeeded and some did.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if !self.score.errors.is_empty() || self.score.wrong > 0 {
            bail!("refused by errno: {:?}, wrong: {}", self.score.errors, self.score.wrong);
        }
        Ok(())
    }

    /// Returns the throughput in megabytes (10⁶ bytes) per second.
    pub(crate) fn mb_per_sec(&self) -> f64 {
        self.score.bytes as f64 / 1e6 / self.span.as_secs_f64()
    }

    /// The latency that all but one in 1 / (1 - `quantile`) stay below, in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.score.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Without the privilege the result is only noisier.
fn set_nice(nice: i32) {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
}

const EVENTS: usize = 64;
/// Before the proxy's threads: who asks late has nothing queued, and on few processors would
/// measure the kernel's shares instead of the proxy's.
const FIRST: i32 = -19;
const BEHIND: i32 = 10;
/// How often a waiting thread looks for a cut or its end.
const TICK: Duration = Duration::from_millis(5);
const CUT_MAX: Duration = Duration::from_secs(10);
