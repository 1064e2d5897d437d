//! Mounts beside the directory itself, a bare program, sshfs and GlusterFS: a group of figures.
//!
//! ```text
//!   contenders (server + mount) ─► cases × contenders ─► a sample each
//! ```
//!
//! They run in the namespaces of the bench: the kernel takes along what runs and is mounted there,
//! however it ends.

mod bare;
mod case;
mod fio;
mod names;
mod peers;
mod tool;
mod who;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use model::Bytes;
use rustix::thread::CpuSet;

use super::figures::groups::{FigureGroup, FigureRun};
use super::figures::row::FigureSample;
use super::figures::sink::FigureSink;
use super::figures::sources::FigureProgram;
use super::files::make_file;
use super::programs;
use super::servers::DATA;
use case::{METADATA, MountAmounts, MountCase, MountLoad};
use names::NamesSource;
use tool::MountTools;
use who::{BenchDirs, MountContender, ServerUnderTest};

pub(super) use bare::{Args as BareArgs, run as run_bare};

/// Mounts beside their peers.
pub(super) const GROUP: FigureGroup = FigureGroup {
    name: "mount",
    title: "The mount beside its peers",
    what: "Programs (fio, find, ls, tar) on mounts of the same files. `sluice-unix` and `sluice-tcp` \
           are mounts of a proxy at a Unix socket and on TCP, `sluice-uring` takes the kernel's \
           requests over io_uring, `native` is the directory without a mount, `bare` the least that \
           can serve one file. `buffered 1` marks a contender that refuses O_DIRECT and was \
           measured through the page cache.",
    sources: &["bench/src/mount"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount],
    rows: || case::table().into_iter().map(|case| case.row).collect(),
    measure,
};

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let place = BenchDirs { dir: run.dir.into(), sluice: run.sluice.into(), own: programs::own()? };
    let amounts = if run.is_quick { MountAmounts::QUICK } else { MountAmounts::FULL };
    let cases: Vec<MountCase> =
        case::table().into_iter().filter(|case| sink.wants(&case.row.id)).collect();
    let is_wanted = |who: ServerUnderTest| {
        cases.iter().any(|case| case.is_for(who) && sink.measures(&case.row.id, who.word()))
    };
    let wanted: Vec<ServerUnderTest> =
        ServerUnderTest::ALL.into_iter().filter(|who| is_wanted(*who)).collect();
    let tools = MountTools { stop: run.stop, one_cpu: false };
    for who in [ServerUnderTest::Native, ServerUnderTest::Glusterfs] {
        if who == ServerUnderTest::Native || wanted.contains(&who) {
            fill(&place.behind(who), &cases, amounts, run)?;
        }
    }
    let mut contenders = Vec::new();
    for who in wanted {
        sink.version(who.word(), &who.version());
        let started = MountContender::start(who, &place).map_err(|error| format!("{error:#}"));
        contenders.push((who, started));
        if run.is_stopped() {
            bail!("interrupted");
        }
    }
    let source = match has(&cases, MountLoad::Source) {
        true => Some(NamesSource::make(&place.dir, amounts.source, &tools)?),
        false => None,
    };
    let mut bench = MountBench { run, place: &place, contenders, source, amounts };
    bench.settle(&cases)?;
    for case in &cases {
        sink.round_of(&case.row, |who| bench.measure(case, who))?;
    }
    Ok(())
}

/// Makes what the cases look for, behind the mounts.
fn fill(
    behind: &Path,
    cases: &[MountCase],
    amounts: MountAmounts,
    run: &FigureRun<'_>,
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
    if run.is_stopped() {
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

struct MountBench<'a> {
    run: &'a FigureRun<'a>,
    place: &'a BenchDirs,
    /// Those that were started, or why they were not.
    contenders: Vec<(ServerUnderTest, Result<MountContender, String>)>,
    source: Option<NamesSource>,
    amounts: MountAmounts,
}

impl MountBench<'_> {
    /// GlusterFS marks what was put into its brick when it first sees it, which is not part of
    /// what is measured.
    fn settle(&self, cases: &[MountCase]) -> anyhow::Result<()> {
        let gluster = self.contenders.iter().find(|(who, _)| *who == ServerUnderTest::Glusterfs);
        let Some((_, Ok(gluster))) = gluster else { return Ok(()) };
        if has(cases, MountLoad::Find) || has(cases, MountLoad::List) {
            let tools = MountTools { stop: self.run.stop, one_cpu: false };
            tools.run(Command::new("find").arg(&gluster.root).args(["-printf", "%s"]))?;
        }
        Ok(())
    }

    /// One run of a case's load.
    fn measure(&mut self, case: &MountCase, who: &str) -> anyhow::Result<FigureSample> {
        // What the one before has written is not to be paid by this one.
        flush(&self.place.dir)?;
        let tools = MountTools { stop: self.run.stop, one_cpu: false };
        let (place, amounts, time) = (self.place, self.amounts, self.run.time(&case.row));
        let found = self.contenders.iter_mut().find(|(kind, _)| kind.word() == who);
        let (_, contender) = found.with_context(|| format!("no contender is named {who}"))?;
        let contender = contender.as_mut().map_err(|why| anyhow::anyhow!("{why}"))?;
        if matches!(case.load, MountLoad::Find | MountLoad::List) {
            contender.remount(place)?;
            forget_names()?;
        }
        let root = contender.root.clone();
        match case.load {
            MountLoad::Fio { shape, one_cpu: false } => fio(shape, contender, place, time, &tools),
            MountLoad::Fio { shape, one_cpu: true } => {
                let tools = MountTools { one_cpu: true, ..tools };
                let all = rustix::thread::sched_getaffinity(None).context("which processors?")?;
                let mut one = CpuSet::new();
                one.set(0);
                contender.keep_on(&one)?;
                let found = fio(shape, contender, place, time, &tools);
                contender.keep_on(&all)?;
                // Its threads may have chosen processors of their own.
                contender.remount(place)?;
                found
            }
            MountLoad::Metadata => {
                let rates = names::metadata(&root, amounts.metadata)?;
                Ok(METADATA.iter().map(|name| (*name).to_owned()).zip(rates).collect())
            }
            MountLoad::Find => counted(contender, || names::find(&root, amounts.tree, &tools)),
            MountLoad::List => counted(contender, || names::list(&root, &tools)),
            MountLoad::Source => {
                let source = self.source.as_ref().context("no archive was made")?;
                let times = source.measure(&root, &tools)?.map(|time| time.as_secs_f64());
                let names = ["untar_s", "stat_s"].map(String::from);
                Ok(names.into_iter().zip(times).collect())
            }
        }
    }
}

fn fio(
    shape: fio::FioShape,
    contender: &MountContender,
    place: &BenchDirs,
    time: Duration,
    tools: &MountTools<'_>,
) -> anyhow::Result<FigureSample> {
    // What is native has no server that could have the file in its memory.
    let prepare = || match contender.who {
        ServerUnderTest::Native => Ok(()),
        who => warm(&place.behind(who).join(DATA)),
    };
    let outcome = fio::run(shape, &contender.root.join(DATA), time, tools, &prepare)?;
    let measure = if shape.random { "ops_per_s" } else { "mb_per_s" };
    let mut sample = FigureSample::from([(measure.to_owned(), outcome.rate)]);
    if outcome.buffered_instead {
        sample.insert("buffered_count".into(), 1.0);
    }
    Ok(sample)
}

/// Looks at names: how long it takes, and how many requests each of them costs the proxy, if there
/// is one.
fn counted(
    contender: &MountContender,
    look: impl FnOnce() -> anyhow::Result<(Duration, u64)>,
) -> anyhow::Result<FigureSample> {
    let requests = || match &contender.api {
        Some(api) => Ok(Some(api.status()?.totals.requests)),
        None => anyhow::Ok(None),
    };
    let before = requests()?;
    let (took, names) = look()?;
    let mut sample = FigureSample::from([("s".to_owned(), took.as_secs_f64())]);
    if let Some((before, after)) = before.zip(requests()?) {
        let each = (after - before) as f64 / names.max(1) as f64;
        sample.insert("requests_per_name_ratio".into(), each);
    }
    Ok(sample)
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
