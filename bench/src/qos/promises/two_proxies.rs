//! A dependent limit whose two rules are used at two proxies of one controller.
//!
//! A proxy computes a dependent limit from what the rule it depends on is served there. So with the
//! parent at another proxy it does not see it, which docs/algorithms/dependent.md says and this row
//! shows.

use std::time::Duration;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::super::figures::sink::FigureSink;
use super::super::backend::{ColdFile, QosBackend};
use super::super::bed::QosSetup;
use super::super::controllers::{QosController, wait_for_rules};
use super::PromiseJob;
use super::cases::backlogged;

pub(super) fn row() -> FigureRow {
    let what = "150 MB/s: a has 60 MB/s at one proxy, b at another what a leaves of 70";
    FigureRow::new("live/dependent-two-proxies", what, &["sluice"])
        .rounds(3, 15.0)
        .goal("sluice", "a_mb_per_s", FigureBound::Near { value: 60.0, percent: 2.0 })
        .goal("sluice", "b_mb_per_s", FigureBound::Near { value: 10.0, percent: 2.0 })
}

pub(super) fn measure(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    if !sink.wants(&row().id) {
        return Ok(());
    }
    let bed = backend.bed();
    for name in JOBS {
        std::fs::create_dir_all(backend.dir().join(name))?;
    }
    let controller = QosController::start(bed, "two-proxies")?;
    let version = controller.client.set_rules(RULES)?.version;
    let start = |name: &str| {
        let top = format!("controller = \"{}\"\nproxy_name = \"of-{name}\"", controller.url);
        backend.proxy(&format!("of-{name}"), &QosSetup { top: &top, ..QosSetup::default() })
    };
    let proxies = JOBS.map(start).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_rules(bed, &proxies, &version)?;
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    sink.round_of(&row(), |_| {
        let start = |(at, name): (usize, &'static str)| {
            let job: PromiseJob = backlogged(name);
            job.start(&proxies[at], backend.cold_len())
        };
        let jobs = JOBS.into_iter().enumerate().map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let mut jobs: Vec<_> = jobs.into_iter().flatten().collect();
        bed.wait(SETTLE)?;
        for job in &mut jobs {
            job.cut()?;
        }
        bed.wait(run.time(&row()))?;
        let mut sample = FigureSample::new();
        for (job, measure) in jobs.iter_mut().zip(["a_mb_per_s", "b_mb_per_s"]) {
            let cut = job.cut()?;
            cut.check()?;
            sample.insert(measure.into(), cut.mb_per_sec());
        }
        Ok(sample)
    })
}

const JOBS: [&str; 2] = ["a", "b"];
const RULES: &str = "\
[[rule]]
name = \"a\"
match = \"jobid={a}\"
limit = \"60MB/s\"

[[rule]]
name = \"b\"
match = \"jobid={b}\"
limit = \"70MB/s\"
depends_on = { rule = \"a\", remainder_of = \"70MB/s\", min = \"5MB/s\" }
";
/// Until the controller's shares follow what each proxy asks for.
const SETTLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    #[test]
    fn the_rules_are_rules() {
        assert_eq!(rules::RuleSet::parse(super::RULES).unwrap().rules.len(), 2);
    }
}
