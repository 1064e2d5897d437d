//! How soon a dependent limit follows the use of the rule it depends on, as requests show it.
//!
//! ```text
//!   b's rate  70 ───┐          ┌── 70      a begins: b falls to what a leaves of 80 MB/s
//!                   └── 30 ────┘           a ends: b rises again
//!                ──►│ │◄── delay ──►│ │◄──
//! ```
//!
//! The delay is that of a change at once which would have let b have as much: what b had in the span
//! after a's first or last request, against both rates. `with-controller` has the same rules from a
//! controller.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::super::work::WorkOp;
use super::super::backend::{ColdFile, MANY_THREADS, QosBackend};
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::super::controllers::{QosController, wait_for_rules};
use super::PromiseJob;
use super::cases::{REMAINDER, backlogged};

const SLUICE: &str = "sluice";
const CONTROLLED: &str = "with-controller";

pub(super) fn row() -> FigureRow {
    let what = "150 MB/s: b has what a, of 50 MB/s, leaves of 80; after a begins or ends, until b's rate \
                has changed";
    let row = FigureRow::new("live/dependent-change", what, &[SLUICE, CONTROLLED]).rounds(2, 30.0);
    [SLUICE, CONTROLLED].into_iter().fold(row, |row, who| {
        row.goal(who, "lowered_most_ms", FigureBound::Most(300.0)).goal(
            who,
            "raised_most_ms",
            FigureBound::Most(300.0),
        )
    })
}

pub(super) fn measure(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let bed = backend.bed();
    for name in ["a", "b"] {
        std::fs::create_dir_all(backend.dir().join(name)).context("cannot make a directory")?;
    }
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    let row = row();
    sink.round_of(&row, |who| {
        let controller = match who {
            CONTROLLED => Some(QosController::start(bed, "change")?),
            _ => None,
        };
        let mut top = String::from(MANY_THREADS);
        if let Some(controller) = &controller {
            top.push_str(&format!(
                "\ncontroller = \"{}\"\nproxy_name = \"change\"",
                controller.url
            ));
        }
        let rules = if controller.is_some() { "" } else { REMAINDER };
        let setup = QosSetup { top: &top, rules, ..QosSetup::default() };
        let proxies = [backend.proxy(&format!("change-{who}"), &setup)?];
        if let Some(controller) = &controller {
            let version = controller.client.set_rules(REMAINDER)?.version;
            wait_for_rules(bed, &proxies, &version)?;
        }
        changes(bed, backend, &proxies[0], run.time(&row))
    })
}

fn changes(
    bed: &QosTestBed,
    backend: &QosBackend<'_>,
    proxy: &QosProxy,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    let _b = backlogged("b").start(proxy, backend.cold_len())?;
    bed.wait(SETTLE)?;
    let (mut lowered, mut raised) = (Vec::new(), Vec::new());
    let until = Instant::now() + time;
    while lowered.is_empty() || Instant::now() < until {
        // Little in flight: what a leaves behind when it ends is served in some milliseconds.
        let job = PromiseJob { name: "a", op: WorkOp::Randread, depth: 16, ..backlogged("a") };
        let before = ChangeMoment::take(proxy)?;
        let a = job.start(proxy, backend.cold_len())?;
        let series = watch(bed, proxy)?;
        let begin = series.iter().find(|moment| moment.a > before.a).context("a did not begin")?;
        lowered.push(delay_ms(begin, &series, [HIGH, LOW])?);
        drop(a);
        let series = watch(bed, proxy)?;
        let last = series.last().context("no samples")?.a;
        let end = series.iter().find(|moment| moment.a == last).context("no samples")?;
        raised.push(delay_ms(end, &series, [LOW, HIGH])?);
    }
    let most = |all: &[f64]| all.iter().copied().fold(f64::MIN, f64::max);
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    Ok(sample([
        ("lowered_most_ms", most(&lowered)),
        ("raised_most_ms", most(&raised)),
        ("lowered_mean_ms", mean(&lowered)),
        ("raised_mean_ms", mean(&raised)),
        ("changes_count", lowered.len() as f64),
    ]))
}

/// What both jobs had been served at a moment of the proxy's clock.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeMoment {
    t: f64,
    /// Requests of a.
    a: u64,
    /// Megabytes of b.
    b: f64,
}

impl ChangeMoment {
    fn take(proxy: &QosProxy) -> anyhow::Result<ChangeMoment> {
        let answer = proxy.api.classes()?;
        let mut moment = ChangeMoment { t: answer.t_ns as f64 / 1e9, ..ChangeMoment::default() };
        for class in &answer.classes {
            match class.rule.as_str() {
                "a" => moment.a += class.usage.requests,
                "b" => moment.b += class.usage.read_bytes as f64 / 1e6,
                _ => continue,
            }
        }
        Ok(moment)
    }
}

fn watch(bed: &QosTestBed, proxy: &QosProxy) -> anyhow::Result<Vec<ChangeMoment>> {
    let (mut series, end) = (Vec::new(), Instant::now() + WATCH);
    while Instant::now() < end {
        series.push(ChangeMoment::take(proxy)?);
        bed.wait(EVERY)?;
    }
    Ok(series)
}

/// How much later than `from` a change of b's rate at once would have let it have as much, in
/// milliseconds.
fn delay_ms(
    from: &ChangeMoment,
    series: &[ChangeMoment],
    [old, new]: [f64; 2],
) -> anyhow::Result<f64> {
    let to = series.iter().find(|moment| moment.t >= from.t + SPAN_S);
    let to = to.with_context(|| format!("a changed less than {SPAN_S} s before the end"))?;
    let span = to.t - from.t;
    ensure!(to.b > from.b, "b was not served");
    Ok(((to.b - from.b) - new * span) / (old - new) * 1e3)
}

/// Of b, in MB/s.
const HIGH: f64 = 70.0;
const LOW: f64 = 30.0;
const SETTLE: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(5);
const SPAN_S: f64 = 1.5;
/// With time for a to begin or end.
const WATCH: Duration = Duration::from_millis(2500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_at_once_has_its_delay() {
        let moment = |step: usize, change: f64, [old, new]: [f64; 2]| {
            let t = step as f64 / 100.0;
            let b = old * t.min(change) + new * (t - change).max(0.0);
            ChangeMoment { t, a: 1, b }
        };
        for rates in [[HIGH, LOW], [LOW, HIGH]] {
            for change in [0.0, 0.2, 1.0] {
                let series: Vec<_> = (0..200).map(|step| moment(step, change, rates)).collect();
                let delay = delay_ms(&series[0], &series, rates).unwrap();
                assert!((delay - change * 1e3).abs() < 1.0, "{delay} for {change}");
                assert!(delay_ms(&series[100], &series, rates).is_err());
            }
        }
    }
}
