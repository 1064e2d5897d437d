//! `sluice-bench mount`: the mount beside the directory itself, a bare program, sshfs and
//! GlusterFS.
//!
//! ```text
//!   outside  ─ makes a directory, starts ─► unshare: own network, processes, mounts and /run
//!                                             │
//!   inside   contenders (server + mount) ─► rounds × cases × contenders ─► report
//! ```
//!
//! The namespaces end with the process inside, and the kernel takes along what runs and is
//! mounted there, however the bench ends. A round runs each contender of each case once, with
//! another one first each time.

mod bare;
mod case;
mod fio;
mod names;
mod peers;
mod report;
mod tool;
mod who;

use std::fs::{self, File};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::{Bytes, Nanos};
use rustix::thread::CpuSet;

use super::files::make_file;
use super::inside;
use super::place::RunDir;
use super::programs;
use super::servers::DATA;
use case::{MountAmounts, MountCase, MountLoad};
use names::NamesSource;
use report::MountBenchReport;
use tool::MountTools;
use who::{BenchDirs, MountContender, ServerUnderTest};

pub(super) use bare::{Args as BareArgs, run as run_bare};

/// Compare a mount with the directory itself, a bare program, sshfs and GlusterFS
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each case runs on each contender
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each case of fio runs
    #[arg(long, default_value = "3s")]
    time: Nanos,
    /// One short round over fewer files, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Only the cases with a name that contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only these, with commas between them
    #[arg(long, value_enum, value_delimiter = ',')]
    who: Vec<ServerUnderTest>,
    /// Where the table (mount.md), all samples (mount.json) and the chart (mount.svg) go
    /// [default: nowhere, the table is printed]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where to make the directory that is served; its file system is what is measured
    /// [default: TMPDIR, or else /var/tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The directory, made by the outer process
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// Runs the comparison and writes its report.
pub(super) fn run(args: Args, sluice: &Path) -> anyhow::Result<()> {
    let stop = super::stop_on_signals()?;
    match args.inside.clone() {
        None => inside::run(RunDir::make(args.dir.as_deref(), "bench-mount")?, &stop),
        Some(dir) => compare(&args, dir, sluice, &stop),
    }
}

/// What the inner process does.
fn compare(args: &Args, dir: PathBuf, sluice: &Path, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    inside::own_the_place()?;
    let place = BenchDirs { dir, sluice: sluice.into(), own: programs::own()? };
    let amounts = args.amounts();
    let cases: Vec<MountCase> =
        case::table(amounts).into_iter().filter(|case| args.wants(case)).collect();
    ensure!(!cases.is_empty(), "no case has such a name");
    let mut report = MountBenchReport::new(&place.dir);
    let wanted: Vec<ServerUnderTest> =
        ServerUnderTest::ALL.into_iter().filter(|who| args.wants_who(*who, &cases)).collect();
    let tools = MountTools { stop, one_cpu: false };
    eprintln!("making files");
    for who in [ServerUnderTest::Native, ServerUnderTest::Glusterfs] {
        if who == ServerUnderTest::Native || wanted.contains(&who) {
            fill(&place.behind(who), &cases, amounts, stop)?;
        }
    }
    let mut contenders = Vec::new();
    for who in wanted {
        match MountContender::start(who, &place) {
            Ok(contender) => {
                report.who.push(who);
                contenders.push(contender);
            }
            Err(error) => report.note(format!("{who}: {error:#}")),
        }
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    let source = match has(&cases, MountLoad::Source) {
        true => Some(NamesSource::make(&place.dir, amounts.source, &tools)?),
        false => None,
    };
    let time = args.time();
    let mut bench = MountBench { args, place: &place, contenders, source, amounts, stop, time };
    bench.settle(&cases, &mut report)?;
    bench.run(&cases, &mut report)?;
    drop(bench);
    report.command = args.command_line();
    (report.rounds, report.time) = (args.rounds(), time);
    report.write(&cases, args.out.as_deref())
}

/// Makes what the cases look for, behind the mounts.
fn fill(
    behind: &Path,
    cases: &[MountCase],
    amounts: MountAmounts,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    fs::create_dir(behind).context("cannot make the directory to serve")?;
    let reads = cases.iter().any(|case| matches!(case.load, MountLoad::Fio { .. }));
    let len = if reads { Bytes::new(fio::FILE_LEN) } else { Bytes::mib(1) };
    make_file(&behind.join(DATA), len)?;
    if has(cases, MountLoad::Find) {
        names::make_tree(behind, amounts.tree)?;
    }
    if has(cases, MountLoad::List) {
        names::make_flat(behind)?;
    }
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    flush(behind)
}

/// Writes to the device what the file system below has in memory.
fn flush(dir: &Path) -> anyhow::Result<()> {
    let dir = File::open(dir).context("cannot open the directory of the bench")?;
    rustix::fs::syncfs(&dir).context("cannot flush what was written")
}

fn has(cases: &[MountCase], load: MountLoad) -> bool {
    cases.iter().any(|case| case.load == load)
}

impl Args {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.max(1) }
    }

    fn time(&self) -> Duration {
        if self.quick { QUICK_TIME } else { self.time.to_duration() }
    }

    fn amounts(&self) -> MountAmounts {
        match self.quick {
            true => MountAmounts { metadata: 400, tree: 10_000, source: 1_000 },
            false => MountAmounts { metadata: 2_000, tree: 100_000, source: 10_000 },
        }
    }

    fn wants(&self, case: &MountCase) -> bool {
        let only = self.only.as_deref().unwrap_or_default();
        case.figures.iter().any(|figure| figure.what.contains(only))
    }

    fn wants_who(&self, who: ServerUnderTest, cases: &[MountCase]) -> bool {
        let is_chosen = self.who.is_empty() || self.who.contains(&who);
        is_chosen && cases.iter().any(|case| case.who.contains(&who))
    }

    fn command_line(&self) -> String {
        let mut line = "sluice-bench mount".to_owned();
        match self.quick {
            true => line.push_str(" --quick"),
            false => line.push_str(&format!(" --rounds {} --time {}", self.rounds, self.time)),
        }
        if let Some(only) = &self.only {
            line.push_str(&format!(" --only {only:?}"));
        }
        if !self.who.is_empty() {
            let words: Vec<&str> = self.who.iter().map(|who| who.word()).collect();
            line.push_str(&format!(" --who {}", words.join(",")));
        }
        line
    }
}

struct MountBench<'a> {
    args: &'a Args,
    place: &'a BenchDirs,
    contenders: Vec<MountContender>,
    source: Option<NamesSource>,
    amounts: MountAmounts,
    stop: &'a Arc<AtomicBool>,
    time: Duration,
}

/// What one run found: a value for each figure of its case.
struct MountBenchFound {
    values: Vec<f64>,
    /// Requests to the proxy for each name that was seen.
    round_trips: Option<f64>,
    note: Option<&'static str>,
}

impl MountBench<'_> {
    /// GlusterFS marks what was put into its brick when it first sees it, which is not part of
    /// what is measured.
    fn settle(&self, cases: &[MountCase], report: &mut MountBenchReport) -> anyhow::Result<()> {
        let Some(gluster) = self.contenders.iter().find(|c| c.who == ServerUnderTest::Glusterfs)
        else {
            return Ok(());
        };
        let tools = MountTools { stop: self.stop, one_cpu: false };
        if has(cases, MountLoad::Find) || has(cases, MountLoad::List) {
            eprintln!("letting glusterfs see its files");
            let seen = tools.run(Command::new("find").arg(&gluster.root).args(["-printf", "%s"]));
            if let Err(error) = seen {
                report.note(format!("{}: {error:#}", gluster.who));
            }
        }
        Ok(())
    }

    fn run(&mut self, cases: &[MountCase], report: &mut MountBenchReport) -> anyhow::Result<()> {
        let (rounds, began) = (self.args.rounds(), Instant::now());
        let all: Vec<ServerUnderTest> =
            self.contenders.iter().map(|contender| contender.who).collect();
        let runs = |case: &MountCase| all.iter().filter(|who| case.who.contains(who)).count();
        let total = rounds * cases.iter().map(runs).sum::<usize>();
        let mut done = 0;
        for round in 0..rounds {
            for case in cases {
                // Whoever goes first finds another machine than whoever goes last.
                for turn in 0..all.len() {
                    let index = (round + turn) % all.len();
                    let who = all[index];
                    if !case.who.contains(&who) {
                        continue;
                    }
                    let what = &case.figures[0].what;
                    progress(done, total, began, &format!("{what} · {who}"));
                    done += 1;
                    // What the one before has written is not to be paid by this one.
                    flush(&self.place.dir)?;
                    let found = self.measure(case, index);
                    if self.stop.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    match found {
                        Ok(found) => put(report, case, who, round, &found),
                        Err(error) => report.note(format!("{what}: {who}: {error:#}")),
                    }
                }
            }
        }
        progress(done, total, began, "done\n");
        Ok(())
    }

    /// One run of a case's load.
    fn measure(&mut self, case: &MountCase, index: usize) -> anyhow::Result<MountBenchFound> {
        let tools = MountTools { stop: self.stop, one_cpu: false };
        let (place, amounts) = (self.place, self.amounts);
        if matches!(case.load, MountLoad::Find | MountLoad::List) {
            self.contenders[index].remount(place)?;
            forget_names()?;
        }
        let contender = &self.contenders[index];
        let root = &contender.root;
        let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect();
        match case.load {
            MountLoad::Fio { shape, one_cpu: false } => self.fio(shape, contender, &tools),
            MountLoad::Fio { shape, one_cpu: true } => {
                let tools = MountTools { one_cpu: true, ..tools };
                let all = rustix::thread::sched_getaffinity(None).context("which processors?")?;
                let mut one = CpuSet::new();
                one.set(0);
                contender.keep_on(&one)?;
                let found = self.fio(shape, contender, &tools);
                contender.keep_on(&all)?;
                // Its threads may have chosen processors of their own.
                self.contenders[index].remount(place)?;
                found
            }
            MountLoad::Metadata => {
                Ok(MountBenchFound::values(names::metadata(root, amounts.metadata)?))
            }
            MountLoad::Find => {
                let (answer, trips) =
                    counted(contender, || names::find(root, amounts.tree, &tools))?;
                Ok(MountBenchFound {
                    round_trips: trips,
                    ..MountBenchFound::values(seconds(&[answer]))
                })
            }
            MountLoad::List => {
                let (answer, trips) = counted(contender, || names::list(root, &tools))?;
                Ok(MountBenchFound {
                    round_trips: trips,
                    ..MountBenchFound::values(seconds(&[answer]))
                })
            }
            MountLoad::Source => {
                let source = self.source.as_ref().context("no archive was made")?;
                Ok(MountBenchFound::values(seconds(&source.measure(root, &tools)?)))
            }
        }
    }

    fn fio(
        &self,
        shape: fio::FioShape,
        contender: &MountContender,
        tools: &MountTools<'_>,
    ) -> anyhow::Result<MountBenchFound> {
        // What is native has no server that could have the file in its memory.
        let prepare = || match contender.who {
            ServerUnderTest::Native => Ok(()),
            who => warm(&self.place.behind(who).join(DATA)),
        };
        let file = contender.root.join(DATA);
        let outcome = fio::run(shape, &file, self.time, tools, &prepare)?;
        let note =
            outcome.buffered_instead.then_some("O_DIRECT is refused: through the page cache");
        Ok(MountBenchFound { note, ..MountBenchFound::values(vec![outcome.rate]) })
    }
}

impl MountBenchFound {
    fn values(values: Vec<f64>) -> MountBenchFound {
        MountBenchFound { values, round_trips: None, note: None }
    }
}

fn put(
    report: &mut MountBenchReport,
    case: &MountCase,
    who: ServerUnderTest,
    round: usize,
    found: &MountBenchFound,
) {
    for (figure, value) in case.figures.iter().zip(&found.values) {
        report.add(figure, who, round, *value);
        if let Some(trips) = found.round_trips {
            report.add_round_trips(figure, who, trips);
        }
    }
    if let Some(note) = found.note {
        report.note(format!("{}: {who}: {note}", case.figures[0].what));
    }
}

/// Looks at names, and tells how many requests each of them cost the proxy, if there is one.
fn counted(
    contender: &MountContender,
    look: impl FnOnce() -> anyhow::Result<(Duration, u64)>,
) -> anyhow::Result<(Duration, Option<f64>)> {
    let requests = || match &contender.api {
        Some(api) => Ok(Some(api.status()?.totals.requests)),
        None => anyhow::Ok(None),
    };
    let before = requests()?;
    let (took, names) = look()?;
    let trips = before.zip(requests()?).map(|(before, after)| (after - before) as f64);
    Ok((took, trips.map(|trips| trips / names.max(1) as f64)))
}

/// Reads what is behind a mount into memory: the page cache of a virtual machine is thinned out
/// from outside even when memory is free.
fn warm(path: &Path) -> anyhow::Result<()> {
    let mut file = File::open(path).context("warming")?;
    std::io::copy(&mut file, &mut std::io::sink()).context("warming")?;
    Ok(())
}

/// Makes the kernel forget names and attributes, those behind the mounts too: so that nobody has
/// what the one before has fetched.
fn forget_names() -> anyhow::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("cannot drop cached names")
}

fn progress(done: usize, total: usize, began: Instant, what: &str) {
    if !std::io::stderr().is_terminal() {
        eprintln!("{done}/{total} {}", what.trim_end());
        return;
    }
    let left = match done {
        0 => String::new(),
        _ => {
            let left = began.elapsed() * (total - done) as u32 / done as u32;
            format!("{}:{:02} left", left.as_secs() / 60, left.as_secs() % 60)
        }
    };
    eprint!("\r\x1b[K{done}/{total} {left}  {what}");
    let _ = std::io::stderr().flush();
}

const QUICK_TIME: Duration = Duration::from_millis(300);
