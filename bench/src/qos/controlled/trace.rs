//! A limit of 200 a second over two proxies: the trace of the global rate control of LIME, on
//! real proxies and in the simulator, as one picture.

use std::path::Path;
use std::time::{Duration, Instant};

use ::sim::{Policy, Scenario, World};
use anyhow::Context as _;
use chart::{JobSeries, job_chart};
use model::Bytes;

use super::super::QosRun;
use super::super::bed::QosProxy;
use super::super::table::{QosRow, QosTable, figures};
use super::reader::{PageReader, PageReaders};
use super::{QosController, proxies, rules};

pub(super) fn measure(
    run: &QosRun<'_>,
    table: &mut QosTable,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    let real = of_proxies(run, table)?;
    table.progress("trace: simulated");
    let scenario = Scenario::parse(SCENARIO, "global-limit")?;
    let report = World::new(&scenario, Policy::Dispatcher, 1).run();
    let simulated: Vec<JobSeries> =
        report.jobs.iter().map(|job| (job.job.clone(), job.series.clone())).collect();
    let spans = [("both", (20, 75), [100.0, 100.0]), ("one", (80, 135), [1.0, 199.0])];
    for (what, jobs) in [("real", &real), ("simulated", &simulated)] {
        for (case, (from, to), expected) in spans {
            let mean = |at: usize| {
                let requests = &jobs[at].1;
                let span = requests.iter().skip(from).take(to - from);
                span.map(|(requests, _)| *requests as f64).sum::<f64>() / (to - from) as f64
            };
            let had = [mean(0), mean(1)];
            // The first has nothing to ask for any more in the second span.
            let of = if case == "both" { 0 } else { 1 };
            let near = |at: usize| (had[at] / expected[at] - 1.0).abs() <= 0.02;
            table.add(QosRow {
                case: format!("trace, {what}, {case} at work"),
                target: format!("{:.0}/{:.0} within 2 %", expected[0], expected[1]),
                reached: format!("{:.1}/{:.1}", had[0], had[1]),
                met: Some(near(1) && (of == 1 || near(0))),
                beside: if of == 1 {
                    "the first is at rest and keeps 1".into()
                } else {
                    String::new()
                },
                figures: figures([("first", had[0]), ("second", had[1])]),
            });
        }
    }
    let Some(out) = out else { return Ok(()) };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let panels = [("two real proxies".into(), real), ("simulated".into(), simulated)];
    let subtitle = "200 operations a second over two proxies; the first stops at 75 s";
    let path = out.join("qos-controller.svg");
    Ok(job_chart(&path, "One limit over two proxies", subtitle, &panels, false)?)
}

/// Requests of each second at each of two real proxies.
fn of_proxies(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<Vec<JobSeries>> {
    let bed = &run.bed;
    bed.file("small", Bytes::kib(4))?;
    let controller = QosController::start(bed, "trace")?;
    let version = controller.client.set_rules(&rules("200ops/s"))?.version;
    let proxies = proxies(bed, 2, &controller.url, &version)?;
    let readers = PageReaders::new();
    let began = Instant::now();
    let mut at: [Vec<PageReader>; 2] = [Vec::new(), Vec::new()];
    let mut counts: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    for second in 0..=160u64 {
        table.progress(&format!("trace: {second} of 160 s"));
        match second {
            15 => {
                for (readers_at, proxy) in at.iter_mut().zip(&proxies) {
                    let start = |_| PageReader::start(&readers, &proxy.address, "small", 4096);
                    *readers_at = (0..DEPTH).map(start).collect();
                }
            }
            75 => end(&mut at[0])?,
            135 => end(&mut at[1])?,
            _ => {}
        }
        for (counts, proxy) in counts.iter_mut().zip(&proxies) {
            counts.push(requests(proxy)?);
        }
        let due = began + Duration::from_secs(second + 1);
        bed.wait(due.saturating_duration_since(Instant::now()))?;
    }
    let series = |counts: &Vec<u64>| counts.windows(2).map(|two| (two[1] - two[0], 0)).collect();
    Ok(vec![("t1".into(), series(&counts[0])), ("t2".into(), series(&counts[1]))])
}

fn end(readers: &mut Vec<PageReader>) -> anyhow::Result<()> {
    readers.drain(..).try_for_each(PageReader::end)
}

/// What the job was served so far.
fn requests(proxy: &QosProxy) -> anyhow::Result<u64> {
    let classes = proxy.api.classes()?.classes;
    Ok(classes.iter().filter(|class| class.rule == "job").map(|class| class.usage.ops).sum())
}

/// As many at a time as in the scenario.
const DEPTH: usize = 16;
const SCENARIO: &str = include_str!("../../../../scenarios/global-limit.toml");
