//! What each mode of writing gives one stream: one write after the other, and four at a time.

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::groups::FigureRun;
use super::super::figures::row::{FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::work::WorkOp;
use super::bed::{QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};

/// A row for each size and depth.
pub(super) fn rows() -> Vec<FigureRow> {
    shapes().map(|(kib, depth)| row(kib, depth)).collect()
}

fn row(kib: u64, depth: usize) -> FigureRow {
    let id = format!("cost/write-{kib}k-1x{depth}");
    let what = format!("sequential writes of {kib} KiB, 1 × {depth}, by mode of writing");
    FigureRow::new(&id, &what, &MODES).rounds(3, 1.0)
}

fn shapes() -> impl Iterator<Item = (u64, usize)> {
    SIZES_KIB.into_iter().flat_map(|kib| DEPTHS.map(|depth| (kib, depth)))
}

/// Measures the modes in turn on one proxy, each as the job of a rule.
pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    if !sink.wants_any(&rows()) {
        return Ok(());
    }
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let rules = rules();
    let proxy = bed.proxy("modes", &QosSetup { rules: &rules, ..QosSetup::default() })?;
    for mode in MODES {
        bed.file(&format!("{mode}/written0"), FILE_LEN)?;
    }
    for (kib, depth) in shapes() {
        let row = row(kib, depth);
        sink.round_of(&row, |mode| {
            let mut plan = proxy.plan("x", mode, WorkOp::Write, Bytes::kib(kib));
            (plan.depth, plan.file_size) = (depth, FILE_LEN);
            let part = QosJobPart { plan, dir: mode.into(), data: String::new() };
            let mut job = QosJob::start(&[part])?;
            bed.wait(run.time(&row) / 5)?;
            let (before, _) = (proxy.process.cpu()?, job.cut()?);
            bed.wait(run.time(&row))?;
            let (after, cut) = (proxy.process.cpu()?, job.cut()?);
            cut.check()?;
            let ops = cut.score.ops as f64;
            let flushed = std::fs::File::open(bed.dir()).context("cannot open the bed")?;
            drop(job);
            rustix::fs::syncfs(&flushed).context("cannot flush what was written")?;
            Ok(FigureSample::from([
                ("mb_per_s".into(), ops * kib as f64 * 1024.0 / 1e6 / cut.span.as_secs_f64()),
                ("p50_us".into(), cut.latency_us(0.5)),
                ("server_us".into(), (after - before).as_secs_f64() * 1e6 / ops.max(1.0)),
            ]))
        })?;
    }
    Ok(())
}

/// A rule for each mode; `sluice` is the default.
fn rules() -> String {
    let rule = |mode: &&str| {
        let key = match mode.strip_prefix("sluice-") {
            Some(mode) => format!("write_mode = \"{mode}\"\n"),
            None => String::new(),
        };
        format!("[[rule]]\nname = \"{mode}\"\nmatch = \"jobid={{{mode}}}\"\n{key}")
    };
    MODES.iter().map(rule).collect()
}

const MODES: [&str; 5] =
    ["sluice", "sluice-paced", "sluice-dontcache", "sluice-direct", "sluice-cached"];
const SIZES_KIB: [u64; 6] = [4, 16, 60, 128, 512, 1020];
const DEPTHS: [usize; 2] = [1, 4];
const FILE_LEN: Bytes = Bytes::mib(256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_all_modes_are_rules() {
        let rules = rules::RuleSet::parse(&rules()).unwrap();
        assert_eq!(rules.rules.len(), MODES.len());
        assert_eq!(rules.rules.iter().filter(|rule| rule.write_mode.is_some()).count(), 4);
    }
}
