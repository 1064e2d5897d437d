//! Runs a load: makes its files through the server, drives all connections, adds up.
//!
//!   prepare (session) ─► threads, each an event loop over its links ─► scores ─► outcome
//!                                                                        └─► clean up (session)
//!
//! A thread with one connection waits in recv; with several it waits in epoll. Time is
//! cut into intervals (one, unless asked for more) and a thread hands over its score at
//! the end of each; the outcome is their sum, the warm-up excepted.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::Nanos;
use ninep::{Fid, open};
use rustix::event::{Timespec, epoll};
use rustix::thread::CpuSet;
use rustix::time::ClockId;

use super::files::{BenchFiles, write_name};
use super::link::{PeerConnection, Score};
use super::plan::PeerPlan;
use super::work::{BenchWork, WorkFids, WorkOp, WorkSettings};

/// What a load achieved.
#[derive(Clone, Debug)]
pub(crate) struct LoadOutcome {
    pub(crate) score: Score,
    /// Length of the measured span.
    pub(crate) span: Duration,
    /// Processor time of the generator's threads within it.
    pub(crate) generator_cpu: Duration,
}

/// What a caller may hear while a load runs.
pub(crate) trait LoadWatch {
    /// The measured span begins now.
    fn begins(&mut self) {}
    /// The measured span is over; what is in flight is still being finished.
    fn ends(&mut self) {}
    /// Interval `index`, from 0, brought `score` in `span`.
    fn interval(&mut self, _index: u64, _score: &Score, _span: Duration) {}
}

/// Runs `plan` to its end, or until `stop` is raised, which is an error.
pub(crate) fn run(
    plan: &PeerPlan,
    stop: &Arc<AtomicBool>,
    watch: &mut dyn LoadWatch,
) -> anyhow::Result<LoadOutcome> {
    plan.check()?;
    if plan.bare {
        return drive(plan, None, stop, watch);
    }
    let made = Made { files: BenchFiles::make(plan)?, plan };
    let outcome = drive(plan, Some(&made.files), stop, watch);
    let removed = made.files.remove(plan);
    let outcome = outcome?;
    removed.context("cannot remove the load's files")?;
    Ok(outcome)
}

/// The load's files, which a panic takes along.
struct Made<'p> {
    files: BenchFiles,
    plan: &'p PeerPlan,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic is what is reported.
            let _ = self.files.remove(self.plan);
        }
    }
}

/// Opens connection `index` with everything its load needs.
pub(super) fn connect(
    plan: &PeerPlan,
    files: &BenchFiles,
    index: usize,
) -> anyhow::Result<PeerConnection> {
    let mut session = plan.session()?;
    let mut fids = WorkFids::default();
    let mut next = 1;
    let mut fresh = || {
        next += 1;
        Fid(next - 1)
    };
    for aname in plan.anames() {
        let root = fresh();
        session.attach(root, &aname, &plan.identity())?;
        let dir = fresh();
        session.walk(root, dir, &files.dir)?;
        fids.dirs.push(dir);
        if let Some(data) = &files.data {
            let fid = fresh();
            session.open_file(root, fid, data, open::RDONLY)?;
            fids.read.push(fid);
        }
        if plan.op.writes() {
            let fid = fresh();
            session.open_file(dir, fid, &write_name(index), open::RDWR)?;
            fids.write.push(fid);
        }
    }
    fids.spare = next;
    Ok(link(plan, session.into_fd(), fids, files.unlinkat, index))
}

/// Opens connection `index` to the bare server, which serves one file under any fid.
fn connect_bare(plan: &PeerPlan, index: usize) -> anyhow::Result<PeerConnection> {
    ensure!(plan.op != WorkOp::Create, "the bare server has no directory");
    let one = || vec![Fid(1)];
    let fids = WorkFids { dirs: one(), read: one(), write: one(), spare: 2 };
    Ok(link(plan, plan.server.connect()?, fids, false, index))
}

fn link(
    plan: &PeerPlan,
    fd: OwnedFd,
    fids: WorkFids,
    unlinkat: bool,
    connection: usize,
) -> PeerConnection {
    let size = plan.size().get() as u32;
    let work = BenchWork::new(WorkSettings {
        op: plan.op,
        size,
        file_size: plan.file_size.get(),
        connection,
        connections: plan.connections,
        name: plan.aname.clone(),
        unlinkat,
        pattern: !plan.bare,
        fids,
    });
    PeerConnection::new(fd, work, plan.depth, vec![0x5a; size as usize].into())
}

/// What all threads of a load share.
struct LoadState<'a> {
    plan: &'a PeerPlan,
    stop: &'a AtomicBool,
    /// Everyone is connected; the load begins.
    barrier: Barrier,
    failed: AtomicBool,
}

enum LoadNews {
    Began,
    Ended,
    Interval(u64, Box<Score>),
}

fn drive(
    plan: &PeerPlan,
    files: Option<&BenchFiles>,
    stop: &Arc<AtomicBool>,
    watch: &mut dyn LoadWatch,
) -> anyhow::Result<LoadOutcome> {
    let mut links = Vec::new();
    for index in 0..plan.connections {
        links.push(match files {
            Some(files) => connect(plan, files, index)?,
            None => connect_bare(plan, index)?,
        });
    }
    let threads = plan.threads;
    let mut groups: Vec<Vec<PeerConnection>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, link) in links.into_iter().enumerate() {
        groups[index % threads].push(link);
    }
    let barrier = Barrier::new(threads);
    let shared = &LoadState { plan, stop, barrier, failed: AtomicBool::new(false) };
    let (sender, receiver) = mpsc::channel();
    let mut totals = LoadTotals::new(plan, watch);
    let generator_cpu = std::thread::scope(|scope| {
        let spawn = |group| {
            let sender = sender.clone();
            scope.spawn(move || drive_thread(shared, group, &sender))
        };
        let handles: Vec<_> = groups.into_iter().map(spawn).collect();
        drop(sender);
        for news in receiver {
            totals.take(news);
        }
        let mut generator_cpu = Duration::ZERO;
        for handle in handles {
            generator_cpu += handle.join().expect("a load thread does not panic")?;
        }
        anyhow::Ok(generator_cpu)
    })?;
    let span = Duration::from_nanos(plan.time.get());
    Ok(LoadOutcome { score: totals.total, span, generator_cpu })
}

/// Adds up what the threads hand over and tells the watch.
struct LoadTotals<'w> {
    total: Score,
    /// Intervals of which some threads have not reported yet, from `first` on.
    open: Vec<(usize, Score)>,
    first: u64,
    began: usize,
    ended: usize,
    threads: usize,
    span: Duration,
    watch: &'w mut dyn LoadWatch,
}

impl<'w> LoadTotals<'w> {
    fn new(plan: &PeerPlan, watch: &'w mut dyn LoadWatch) -> LoadTotals<'w> {
        let span = Duration::from_nanos(plan.every.unwrap_or(plan.time).get());
        let (total, threads) = (Score::new(), plan.threads);
        LoadTotals { total, open: Vec::new(), first: 0, began: 0, ended: 0, threads, span, watch }
    }

    fn take(&mut self, news: LoadNews) {
        match news {
            LoadNews::Began => {
                self.began += 1;
                if self.began == self.threads {
                    self.watch.begins();
                }
            }
            LoadNews::Ended => {
                self.ended += 1;
                if self.ended == self.threads {
                    self.watch.ends();
                }
            }
            LoadNews::Interval(index, score) => self.take_interval(index, &score),
        }
    }

    fn take_interval(&mut self, index: u64, score: &Score) {
        self.total.add(score);
        let at = (index - self.first) as usize;
        while self.open.len() <= at {
            self.open.push((0, Score::new()));
        }
        self.open[at].0 += 1;
        self.open[at].1.add(score);
        while self.open.first().is_some_and(|(reported, _)| *reported == self.threads) {
            let (_, whole) = self.open.remove(0);
            self.watch.interval(self.first, &whole, self.span);
            self.first += 1;
        }
    }
}

fn drive_thread(
    shared: &LoadState<'_>,
    mut links: Vec<PeerConnection>,
    news: &Sender<LoadNews>,
) -> anyhow::Result<Duration> {
    let pinned = shared.plan.pin.map_or(Ok(()), pin_to);
    shared.barrier.wait();
    let result = pinned.and_then(|()| LoadLoop::new(shared, &mut links, news)?.run());
    if result.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    result
}

/// Keeps the calling thread on processor `cpu`.
pub(crate) fn pin_to(cpu: usize) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus)
        .with_context(|| format!("cannot stay on processor {cpu}"))
}

/// One thread's event loop.
struct LoadLoop<'a> {
    shared: &'a LoadState<'a>,
    links: &'a mut [PeerConnection],
    news: &'a Sender<LoadNews>,
    epoll: OwnedFd,
    /// Links whose socket took not everything.
    blocked: Vec<bool>,
    start: Instant,
    last_reply_ns: u64,
}

impl<'a> LoadLoop<'a> {
    fn new(
        shared: &'a LoadState<'a>,
        links: &'a mut [PeerConnection],
        news: &'a Sender<LoadNews>,
    ) -> anyhow::Result<LoadLoop<'a>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        for (index, link) in links.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, link, data, epoll::EventFlags::IN).context("epoll")?;
            let timeout = Some(TICK);
            rustix::net::sockopt::set_socket_timeout(
                link,
                rustix::net::sockopt::Timeout::Recv,
                timeout,
            )
            .context("cannot set a time limit")?;
        }
        let blocked = vec![false; links.len()];
        Ok(LoadLoop {
            shared,
            links,
            news,
            epoll,
            blocked,
            start: Instant::now(),
            last_reply_ns: 0,
        })
    }

    fn run(mut self) -> anyhow::Result<Duration> {
        let plan = self.shared.plan;
        for index in 0..self.links.len() {
            self.links[index].start(0);
            self.flush(index)?;
        }
        let begin = plan.warmup.get();
        self.turn_until(begin)?;
        self.reset();
        self.tell(LoadNews::Began);
        let cpu = thread_cpu();
        let every = plan.every.unwrap_or(plan.time).get().max(1);
        let intervals = plan.time.get().div_ceil(every);
        for index in 0..intervals {
            self.turn_until((begin + (index + 1) * every).min(begin + plan.time.get()))?;
            let mut score = Box::new(Score::new());
            for link in self.links.iter_mut() {
                score.add(&std::mem::replace(&mut link.score, Score::new()));
            }
            self.tell(LoadNews::Interval(index, score));
        }
        let cpu = thread_cpu().saturating_sub(cpu);
        self.tell(LoadNews::Ended);
        self.drain()?;
        Ok(cpu)
    }

    fn reset(&mut self) {
        for link in self.links.iter_mut() {
            link.score = Score::new();
        }
    }

    /// Finishes what is in flight, so that no half-done operation leaves a file behind.
    fn drain(&mut self) -> anyhow::Result<()> {
        for link in self.links.iter_mut() {
            link.finish();
        }
        let begin = Instant::now();
        while !self.links.iter().all(PeerConnection::is_idle) {
            self.turn()?;
            let stop = self.shared.stop.load(Ordering::Relaxed);
            if stop && begin.elapsed() > DRAIN_MAX {
                bail!("interrupted");
            }
        }
        Ok(())
    }

    fn turn_until(&mut self, end_ns: u64) -> anyhow::Result<()> {
        while self.now_ns() < end_ns {
            self.turn()?;
            if self.shared.stop.load(Ordering::Relaxed) {
                // diod 1.0.24 dies of connections that end with many requests in flight.
                self.drain()?;
                bail!("interrupted");
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let taken = if self.links.len() == 1 && !self.blocked[0] {
            let taken = self.links[0].receive(true, || self.start.elapsed().as_nanos() as u64)?;
            self.flush(0)?;
            taken
        } else {
            self.turn_many()?
        };
        if taken > 0 {
            self.last_reply_ns = self.now_ns();
        }
        if self.shared.failed.load(Ordering::Relaxed) {
            bail!("another thread of the load failed");
        }
        let silent = self.now_ns() - self.last_reply_ns;
        if silent > self.shared.plan.patience.get() {
            bail!("no reply for {}", Nanos::new(silent));
        }
        Ok(())
    }

    fn turn_many(&mut self) -> anyhow::Result<usize> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        let count = match epoll::wait(&self.epoll, &mut events, Some(&tick)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error).context("epoll"),
        };
        let mut taken = 0;
        for event in &events[..count] {
            let index = event.data.u64() as usize;
            taken += self.links[index].receive(false, || self.start.elapsed().as_nanos() as u64)?;
            self.flush(index)?;
        }
        Ok(taken)
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

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn tell(&self, news: LoadNews) {
        // Nobody listens only after another thread has failed, which ends this one too.
        let _ = self.news.send(news);
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How often a waiting thread looks at the time and at the stop flag.
const TICK: Duration = Duration::from_millis(50);
/// How long an interrupted load waits for what it has in flight.
const DRAIN_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::super::work::WorkOp;
    use super::super::{bare, socket::BenchAddress};
    use super::*;

    /// A plan for a server of memory that takes `connections` connections and then ends.
    fn plan(name: &str, connections: usize) -> PeerPlan {
        let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        let address = BenchAddress::Unix(path.clone());
        let listener = address.listen().unwrap();
        std::thread::spawn(move || {
            for _ in 0..connections {
                let socket = listener.accept().unwrap();
                std::thread::spawn(move || bare::serve(socket, None));
            }
            std::fs::remove_file(path).unwrap();
        });
        let millis = |count: u64| Nanos::new(count * 1_000_000);
        let plan = PeerPlan::new(address);
        PeerPlan { bare: true, connections, time: millis(200), warmup: millis(5), ..plan }
    }

    #[derive(Default)]
    struct LoadReplies {
        began: usize,
        ended: usize,
        ops: Vec<u64>,
    }

    impl LoadWatch for LoadReplies {
        fn begins(&mut self) {
            self.began += 1;
        }
        fn ends(&mut self) {
            self.ended += 1;
        }
        fn interval(&mut self, index: u64, score: &Score, _span: Duration) {
            assert_eq!(index as usize, self.ops.len());
            self.ops.push(score.ops);
        }
    }

    #[test]
    fn the_total_is_the_sum_of_all_intervals_of_all_threads() {
        let every = Some(Nanos::new(50_000_000));
        let plan = PeerPlan { threads: 2, depth: 8, every, ..plan("intervals", 3) };
        let mut heard = LoadReplies::default();
        let outcome = run(&plan, &Arc::default(), &mut heard).unwrap();
        assert_eq!((heard.began, heard.ended, heard.ops.len()), (1, 1, 4));
        assert!(outcome.score.ops > 0);
        assert_eq!(outcome.score.ops, heard.ops.iter().sum::<u64>());
        assert_eq!(outcome.score.bytes, outcome.score.ops * 4096);
        assert_eq!(outcome.score.latency_ns.len(), outcome.score.ops);
        assert!(outcome.score.errors.is_empty() && outcome.score.wrong == 0);
    }

    #[test]
    fn large_writes_and_reads_get_through_in_both_directions() {
        for op in [WorkOp::Write, WorkOp::Mixed] {
            let size = Some(model::Bytes::kib(512));
            let msize = model::Bytes::mib(1);
            let plan = PeerPlan { op, size, msize, depth: 16, ..plan("large", 1) };
            let outcome = run(&plan, &Arc::default(), &mut LoadReplies::default()).unwrap();
            assert!(outcome.score.ops > 0 && outcome.score.wrong == 0, "{op:?}");
        }
    }

    #[test]
    fn a_raised_stop_ends_the_load_as_interrupted() {
        let plan = PeerPlan { time: Nanos::new(60_000_000_000), ..plan("stop", 1) };
        let stop = Arc::new(AtomicBool::new(true));
        let error = run(&plan, &stop, &mut LoadReplies::default()).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    }

    #[test]
    fn a_silent_server_ends_the_load_after_the_given_patience() {
        let path = std::env::temp_dir().join(format!("sluice-silent-{}", std::process::id()));
        let address = BenchAddress::Unix(path.clone());
        let _listener = address.listen().unwrap();
        let plan = PeerPlan { bare: true, patience: Nanos::new(1), ..PeerPlan::new(address) };
        let error =
            run(&plan, &Arc::default(), &mut LoadReplies::default()).unwrap_err().to_string();
        std::fs::remove_file(path).unwrap();
        assert!(error.starts_with("no reply for "), "{error}");
    }
}
