//! How soon a limit that is set at the controller is in force on all proxies, as requests show it.
//!
//! ```text
//!   ───── 80 MB/s ─────┐ lowered: the last reply     one client at each proxy, one request at a time
//!    a reply each 6 ms │
//!                      └──── 16 B/s: none for hours ────┐ raised: the first reply
//! ```
//!
//! Under the lower limit the next request of a proxy is due in nine hours. So a reply says under
//! which of the two limits its request was served.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::super::controllers::{QosController, proxies};
use super::reader::JobReaders;
use super::{Random, SLUICE, most, rules};

pub(super) fn row() -> FigureRow {
    let what = "another limit at the controller, until requests at all of 8 proxies show it";
    FigureRow::new("control/news", what, &[SLUICE]).rounds(3, 30.0).goal(
        SLUICE,
        "most_ms",
        FigureBound::Most(200.0),
    )
}

pub(super) fn command_row() -> FigureRow {
    let what =
        "`sluice rule change` at a proxy, from the start of the command until requests show it";
    let row = FigureRow::new("control/rule-command", what, &[SLUICE]).rounds(3, 20.0);
    row.goal(SLUICE, "most_ms", FigureBound::Most(1_000.0))
}

pub(super) fn measure(run: &FigureRun<'_>, bed: &QosTestBed) -> anyhow::Result<FigureSample> {
    let controller = QosController::start(bed, "news")?;
    let first = controller.client.set_rules(&rules(HIGH))?;
    let proxies = proxies(bed, PROXIES, &controller.url, &first.version)?;
    changes(bed, &proxies, run.time(&row()), &|limit| {
        Ok(controller.client.set_rules(&rules(limit)).map(drop)?)
    })
}

/// The same by the command, at one proxy without a controller.
pub(super) fn measure_command(
    run: &FigureRun<'_>,
    bed: &QosTestBed,
) -> anyhow::Result<FigureSample> {
    let proxy = bed.proxy("alone", &QosSetup { rules: &rules(HIGH), ..QosSetup::default() })?;
    let socket = format!("unix://{}", bed.dir().join("alone.api").display());
    changes(bed, &[proxy], run.time(&command_row()), &|limit| {
        let words = ["rule", "change", "job", "--limit", limit, "--proxy", &socket];
        let output = Command::new(bed.sluice()).args(words).output();
        let output = output.context("cannot run sluice rule")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "sluice rule change: {}", said.trim());
        Ok(())
    })
}

fn changes(
    bed: &QosTestBed,
    proxies: &[QosProxy],
    time: Duration,
    set: &dyn Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<FigureSample> {
    bed.file("f", Bytes::kib(64))?;
    let start = |proxy: &QosProxy| JobReaders::start(&[&proxy.address], 1, "f", 64 << 10);
    let news = News { bed, set, readers: proxies.iter().map(start).collect() };
    news.wait_for_all(Instant::now())?;
    bed.wait(Duration::from_secs(3))?;
    let mut random = Random::new();
    let (mut lowered, mut raised) = (Vec::new(), Vec::new());
    let until = Instant::now() + time;
    while lowered.is_empty() || Instant::now() < until {
        lowered.push(news.lower()?);
        raised.push(news.raise()?);
        // The proxies report each 100 ms: a change may come at any time between two reports.
        bed.wait(random.pause(Duration::from_millis(200), Duration::from_millis(100)))?;
    }
    let all = [lowered.clone(), raised.clone()].concat();
    let middle = |times: Vec<f64>| median(times).unwrap_or(f64::NAN);
    let counted = all.len() as f64;
    let sample = sample([
        ("most_ms", most(&all)),
        ("lowered_most_ms", most(&lowered)),
        ("raised_most_ms", most(&raised)),
        ("lowered_median_ms", middle(lowered)),
        ("raised_median_ms", middle(raised)),
        ("changes_count", counted),
    ]);
    news.readers.into_iter().try_for_each(|readers| readers.end().map(drop))?;
    Ok(sample)
}

struct News<'a> {
    bed: &'a QosTestBed,
    /// Puts another limit in force.
    set: &'a dyn Fn(&str) -> anyhow::Result<()>,
    /// One client at each proxy.
    readers: Vec<JobReaders>,
}

impl News<'_> {
    /// Lowers the limit; how long until no proxy served any more, in milliseconds.
    fn lower(&self) -> anyhow::Result<f64> {
        let began = Instant::now();
        (self.set)(LOW)?;
        let (mut counts, mut last) = (self.counts(), Instant::now());
        while last.elapsed() < QUIET {
            if began.elapsed() > PATIENCE {
                bail!("requests are served {} s after the limit was lowered", PATIENCE.as_secs());
            }
            self.bed.wait(RESOLUTION)?;
            let now = self.counts();
            if now != counts {
                (counts, last) = (now, Instant::now());
            }
        }
        Ok(millis(last - began))
    }

    /// Raises the limit; how long until each proxy has served, in milliseconds.
    fn raise(&self) -> anyhow::Result<f64> {
        let before = self.counts();
        let began = Instant::now();
        (self.set)(HIGH)?;
        self.wait_for_more(&before, began)
    }

    fn wait_for_all(&self, began: Instant) -> anyhow::Result<f64> {
        self.wait_for_more(&vec![0; self.readers.len()], began)
    }

    fn wait_for_more(&self, before: &[u64], began: Instant) -> anyhow::Result<f64> {
        while self.counts().iter().zip(before).any(|(now, before)| now == before) {
            if began.elapsed() > PATIENCE {
                bail!("not all proxies serve {} s after the limit was raised", PATIENCE.as_secs());
            }
            self.bed.wait(RESOLUTION)?;
        }
        Ok(millis(began.elapsed()))
    }

    fn counts(&self) -> Vec<u64> {
        self.readers.iter().map(|readers| readers.sample().bytes).collect()
    }
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

const PROXIES: usize = 8;
/// A request of 64 KiB each 6.6 ms at each proxy.
const HIGH: &str = "80MB/s";
/// A request of 64 KiB each nine hours at each proxy.
const LOW: &str = "16B/s";
/// After that long without a reply nothing is served any more.
const QUIET: Duration = Duration::from_millis(400);
const RESOLUTION: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(10);
