//! The sum of a limited class over its proxies while clients move between them at random, and how
//! soon the share of a proxy that is left is at the other.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::Bytes;

use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::bed::{QosProxy, QosTestBed};
use super::super::controllers::{QosController, proxies};
use super::reader::{JobReaders, ReaderSample, windows};
use super::{Random, SLUICE, most, rules};

pub(super) fn row() -> FigureRow {
    let what = "80 MB/s over 8 proxies, 32 clients that move to another about once a second";
    FigureRow::new("control/moves", what, &[SLUICE])
        .rounds(3, 40.0)
        .goal(SLUICE, "least_of_10s_percent", FigureBound::Least(-2.0))
        .goal(SLUICE, "most_of_10s_percent", FigureBound::Most(2.0))
}

pub(super) fn measure(bed: &QosTestBed, span: Duration) -> anyhow::Result<FigureSample> {
    let (_controller, proxies) = start(bed, 8)?;
    let places: Vec<_> = proxies.iter().map(|proxy| &proxy.address).collect();
    let readers = JobReaders::start(&places, READERS, "f", BLOCK);
    // What was saved at first is used up meanwhile.
    bed.wait(SETTLE)?;

    // There must be a few windows of ten seconds.
    let span = span.max(Duration::from_secs(12));
    let mut random = Random::new();
    let began = Instant::now();
    let mut samples = vec![readers.sample()];
    let (mut moves, mut next) = (0u32, began + random.pause(PAUSE_MIN, PAUSE_SPREAD));
    while began.elapsed() < span {
        bed.wait(RESOLUTION)?;
        samples.push(readers.sample());
        if Instant::now() >= next {
            let to = places[random.below(places.len())];
            readers.move_one(random.below(READERS), to);
            next += random.pause(PAUSE_MIN, PAUSE_SPREAD);
            moves += 1;
        }
    }
    readers.end()?;
    let both = windows(&samples, 10.0, LIMIT).zip(windows(&samples, 1.0, LIMIT));
    let ([slow10, fast10], [slow1, fast1]) = both.context("no ten seconds were measured")?;
    Ok(sample([
        ("least_of_10s_percent", slow10),
        ("most_of_10s_percent", fast10),
        ("least_of_1s_percent", slow1),
        ("most_of_1s_percent", fast1),
        ("moves_count", f64::from(moves)),
    ]))
}

pub(super) fn share_row() -> FigureRow {
    let what = "80 MB/s over 2 busy proxies: the clients of one end, until the other serves 95 %";
    FigureRow::new("control/share-moves", what, &[SLUICE]).rounds(3, 30.0).goal(
        SLUICE,
        "most_s",
        FigureBound::Most(2.0),
    )
}

pub(super) fn measure_share(bed: &QosTestBed, span: Duration) -> anyhow::Result<FigureSample> {
    let (_controller, proxies) = start(bed, 2)?;
    let start = |at: usize| JobReaders::start(&[&proxies[at].address], READERS / 2, "f", BLOCK);
    let mut at = [start(0), start(1)];
    let mut took_s = Vec::new();
    let until = Instant::now() + span;
    while took_s.is_empty() || Instant::now() < until {
        let (left, stays) = (took_s.len() % 2, 1 - took_s.len() % 2);
        bed.wait(SETTLE)?;
        let before = at[stays].sample();
        bed.wait(Duration::from_secs(1))?;
        let part = rate(&before, &at[stays].sample()) / LIMIT;
        ensure!(
            (0.45..0.55).contains(&part),
            "with clients at both proxies one has {:.0} % of the limit",
            part * 100.0
        );
        let began = Instant::now();
        std::mem::take(&mut at[left]).end()?;
        took_s.push(until_all_is_here(bed, &at[stays], began)?);
        at[left] = start(left);
    }
    at.into_iter().try_for_each(|readers| readers.end().map(drop))?;
    let (longest, count) = (most(&took_s), took_s.len() as f64);
    Ok(sample([
        ("most_s", longest),
        ("median_s", median(took_s).unwrap_or(f64::NAN)),
        ("moves_count", count),
    ]))
}

/// How long since `began` until the last [`WINDOW`] had 95 % of the limit, in seconds.
fn until_all_is_here(
    bed: &QosTestBed,
    readers: &JobReaders,
    began: Instant,
) -> anyhow::Result<f64> {
    let mut samples = vec![readers.sample()];
    loop {
        bed.wait(RESOLUTION)?;
        let now = readers.sample();
        samples.push(now);
        let old = samples.iter().rev().find(|old| now.at - old.at >= WINDOW);
        if old.is_some_and(|old| rate(old, &now) >= 0.95 * LIMIT) {
            return Ok((now.at - began).as_secs_f64());
        }
        if began.elapsed() > PATIENCE {
            bail!("the share did not move within {} s", PATIENCE.as_secs());
        }
    }
}

fn rate(from: &ReaderSample, to: &ReaderSample) -> f64 {
    (to.bytes - from.bytes) as f64 / (to.at - from.at).as_secs_f64()
}

fn start(bed: &QosTestBed, count: usize) -> anyhow::Result<(QosController, Vec<QosProxy>)> {
    bed.file("f", Bytes::kib(64))?;
    let controller = QosController::start(bed, "moves")?;
    let version = controller.client.set_rules(&rules("80MB/s"))?.version;
    let proxies = proxies(bed, count, &controller.url, &version)?;
    Ok((controller, proxies))
}

const READERS: usize = 32;
const BLOCK: u32 = 64 << 10;
/// As the rule says.
const LIMIT: f64 = 80e6;
/// A second on average.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_SPREAD: Duration = Duration::from_millis(1_600);
const SETTLE: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_millis(200);
const RESOLUTION: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);
