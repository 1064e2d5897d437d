//! `reserved_slots`: how long a reserved job's small reads take beside large writes that fill the
//! device, with slots that are left free for them and without, and what that costs the writes.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::super::figures::sink::FigureSink;
use super::super::super::work::WorkOp;
use super::super::backend::{BackendKind, ColdFile, QosBackend};
use super::super::bed::QosSetup;
use super::super::job::{QosJob, QosJobPart};

/// A row for each backend.
pub(super) fn rows() -> Vec<FigureRow> {
    vec![row(BackendKind::Slow), row(BackendKind::Disk)]
}

/// One request's slots are enough to begin at once; those of a large request leave as much as the
/// writer next in turn would take.
pub(super) fn row(backend: BackendKind) -> FigureRow {
    let id = format!("live/reserved-slots-{}", backend.name());
    let what = format!(
        "{}: 4 KiB reads of a job with a reservation, one in flight, beside 32 × 1 MiB writes",
        backend.name()
    );
    FigureRow::new(&id, &what, &[RESERVED, WITHOUT])
        .rounds(3, 10.0)
        .beside(RESERVED, "p99_us", FigureBound::TimesMost(1.0), &[WITHOUT])
        .beside(RESERVED, "others_mb_per_s", FigureBound::TimesLeast(0.88), &[WITHOUT])
}

pub(super) fn measure(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    row: &FigureRow,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    backend.file("others/written0", WRITTEN_LEN)?;
    std::fs::create_dir_all(backend.dir().join("small")).context("cannot make a directory")?;
    let target = "write_mode = \"direct\"";
    let proxy = backend.proxy("reserved-slots", &QosSetup { target, ..QosSetup::default() })?;
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    let time = run.time(row);
    sink.round_of(row, |who| {
        let slots = if who == RESERVED { "reserved_slots = 1\n" } else { "" };
        proxy.api.set_rules(&rules(slots))?;
        let mut plan = proxy.plan("x", "others", WorkOp::Randwrite, Bytes::mib(1));
        (plan.depth, plan.file_size) = (32, WRITTEN_LEN);
        let part = QosJobPart { plan, dir: "others".into(), data: String::new() };
        let mut others = QosJob::start_behind(&[part])?;
        let mut plan = proxy.plan("x", "small", WorkOp::Randread, Bytes::kib(4));
        plan.file_size = backend.cold_len();
        let part = QosJobPart { plan, dir: "small".into(), data: "data".into() };
        let mut small = QosJob::start(&[part])?;
        backend.bed().wait(SETTLE)?;
        others.cut()?;
        small.cut()?;
        backend.bed().wait(time)?;
        let (others, small) = (others.cut()?, small.cut()?);
        others.check().context("the writes")?;
        small.check().context("the reads")?;
        let values = [
            ("p50_us", small.latency_us(0.5)),
            ("p99_us", small.latency_us(0.99)),
            ("ops_per_s", small.score.ops as f64 / small.span.as_secs_f64()),
            ("others_mb_per_s", others.mb_per_sec()),
        ];
        Ok(values
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<FigureSample>())
    })
}

fn rules(slots: &str) -> String {
    format!(
        "[[rule]]\nname = \"small\"\nmatch = \"jobid={{small}}\"\nreservation = \"4MB/s\"\n{slots}\n\
         [[rule]]\nname = \"others\"\nmatch = \"jobid={{others}}\"\n"
    )
}

const RESERVED: &str = "reserved-slots";
const WITHOUT: &str = "without";
const WRITTEN_LEN: Bytes = Bytes::mib(512);
const SETTLE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    #[test]
    fn the_rules_are_rules() {
        for slots in ["", "reserved_slots = 1\n"] {
            assert_eq!(rules::RuleSet::parse(&super::rules(slots)).unwrap().rules.len(), 2);
        }
    }
}
