//! One limit over many proxies, whatever moves or fails: a group of figures.
//!
//! ```text
//!   readers ─► proxies n0 … n7 ─► controller        news        how soon another limit is in force
//!      └ each moves at random                       moves       the sum of all beside the limit
//!                                                   share-moves a proxy that is left, and the other
//!                                                   trace       100/100, 1/199: real and simulated
//!                                                   metadata    four servers, two jobs
//!                                                   scale       1,000 proxies × 1,000 classes
//!                                                   page        1,000 jobs on the page for people
//!                                                   deaths      the leader of three is killed
//! ```

mod deaths;
mod metadata;
mod moves;
mod news;
mod page;
mod reader;
mod scale;
mod trace;

use std::time::Duration;

use anyhow::Context as _;
use api::{ApiClient, Endpoints};

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::process::{BenchProcess, LOOK};
use super::bed::{QosProxy, QosSetup, QosTestBed};

/// One limit over many proxies.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "control",
    title: "One limit over many proxies",
    what: "Proxies of one controller on this machine, with clients that ask for more than the limit \
           lets through. `least of 10s` and `most of 10s` are the slowest and the fastest ten \
           seconds beside the limit. `simulator` runs the same rules and the same code of controller \
           and dispatcher in virtual time; a proxy without work shows its share of the limit. \
           metadata: four servers of one directory, weights 2 : 1; `least` is what the job that got \
           less of its part of all service had of it. scale: `full rate` is what the controller \
           needs for a report of each proxy a second by what a report costs. page: `busy` is all \
           that the page's thread did, by update. deaths: `miscounted` is the difference of what \
           clients read and what the ledger has at the end.",
    sources: &[
        "bench/src/qos/controlled.rs",
        "bench/src/qos/controlled",
        "bench/src/qos/metadata_server.rs",
        "bench/src/qos/bed.rs",
        "bench/src/session.rs",
        "scenarios/global-limit.toml",
    ],
    rows,
    measure,
};

fn rows() -> Vec<FigureRow> {
    let before = [news::row(), moves::row(), moves::share_row(), trace::row()];
    let after = [scale::row(), page::row(), deaths::row()];
    before.into_iter().chain(metadata::rows()).chain(after).collect()
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let (row, share_row) = (moves::row(), moves::share_row());
    sink.round_of(&news::row(), |_| news::measure(run, &bed(run)?))?;
    sink.round_of(&row, |_| moves::measure(&bed(run)?, run.time(&row)))?;
    sink.round_of(&share_row, |_| moves::measure_share(&bed(run)?, run.time(&share_row)))?;
    sink.round_of(&trace::row(), |who| trace::measure(run, &bed(run)?, who))?;
    metadata::measure(run, sink)?;
    sink.round_of(&scale::row(), |_| scale::measure(run, &bed(run)?))?;
    sink.round_of(&page::row(), |_| page::measure(run, &bed(run)?))?;
    sink.round_of(&deaths::row(), |_| deaths::measure(run, &bed(run)?))
}

/// An export of its own for each row.
fn bed(run: &FigureRun<'_>) -> anyhow::Result<QosTestBed> {
    QosTestBed::make(Some(run.dir), run.sluice, run.stop)
}

/// A sample of these measures.
pub(super) fn sample<const N: usize>(pairs: [(&str, f64); N]) -> FigureSample {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The greatest of some values, 0 if there are none.
fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// A controller of the bed.
pub(super) struct QosController {
    pub(super) client: ApiClient,
    process: BenchProcess,
    pub(super) url: String,
}

impl QosController {
    /// Starts one that decides alone.
    pub(super) fn start(bed: &QosTestBed, name: &str) -> anyhow::Result<QosController> {
        QosController::with(bed, name, "sqlite")
    }

    /// Starts one with a store; it may stand by.
    fn with(bed: &QosTestBed, name: &str, store: &str) -> anyhow::Result<QosController> {
        let socket = bed.dir().join(format!("{name}.sock"));
        QosController::at(bed, name, format!("unix://{}", socket.display()), store)
    }

    /// Starts one that listens there.
    fn at(bed: &QosTestBed, name: &str, url: String, store: &str) -> anyhow::Result<QosController> {
        let data = bed.dir().join(name).display().to_string();
        let words =
            [&bed.sluice(), "controller", "--data", &data, "--listen", &url, "--store", store];
        let words = words.map(String::from);
        let mut process =
            BenchProcess::start(name, &words, &bed.dir().join(format!("{name}.log")))?;
        let client = ApiClient::at(&url.parse::<Endpoints>()?)?;
        process.wait_until(|| client.controller_status().is_ok())?;
        Ok(QosController { client, process, url })
    }
}

/// Starts proxies n0, n1, … of the controllers at `urls`, and waits until each has been given
/// the rules of that version.
pub(super) fn proxies(
    bed: &QosTestBed,
    count: usize,
    urls: &str,
    version: &str,
) -> anyhow::Result<Vec<QosProxy>> {
    let start = |at: usize| {
        let top = format!("controller = \"{urls}\"\nproxy_name = \"n{at}\"");
        bed.proxy(&format!("n{at}"), &QosSetup { top: &top, ..QosSetup::default() })
    };
    let proxies = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_rules(bed, &proxies, version)?;
    Ok(proxies)
}

/// Waits until each proxy has been given the rules of that version.
pub(super) fn wait_for_rules(
    bed: &QosTestBed,
    proxies: &[QosProxy],
    version: &str,
) -> anyhow::Result<()> {
    let have = |proxy: &QosProxy| proxy.api.rules().is_ok_and(|rules| rules.version == version);
    for _ in 0..500 {
        if proxies.iter().all(have) {
            return Ok(());
        }
        bed.wait(LOOK)?;
    }
    None.context("the proxies were not given the rules")
}

/// One rule for all that the readers ask.
fn rules(limit: &str) -> String {
    format!("[[rule]]\nname = \"job\"\nmatch = \"jobid={{job}}\"\nlimit = \"{limit}\"\n")
}

/// Xorshift: a bench needs no better.
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A span from `least` to `spread` more.
    fn pause(&mut self, least: Duration, spread: Duration) -> Duration {
        least + Duration::from_millis(self.below(spread.as_millis() as usize) as u64)
    }
}

pub(super) const SLUICE: &str = "sluice";
