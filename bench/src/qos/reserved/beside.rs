//! A reserved writer and a reserved reader beside 32 jobs that ask for all, over two proxies.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::{NewReservation, WireRate, WireReservation};
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::super::work::WorkOp;
use super::super::backend::{BackendKind, ColdFile, MANY_THREADS, QosBackend};
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::super::controllers::{QosController, wait_for_rules};
use super::super::job::{QosJob, QosJobPart};
use super::{SLUICE, wait_until_active};

const WITHOUT: &str = "without";

/// The rows: their names and D, of which calibration would find another in each pass. The second one is more
/// than the backend serves at once, so slots alone keep nothing for a reservation.
const ROWS: [(&str, u32); 2] = [("reserve/live", 64), ("reserve/live-wide", 1_024)];

pub(super) fn rows() -> Vec<FigureRow> {
    ROWS.iter().map(|(id, slots)| row(id, *slots)).collect()
}

fn row(id: &str, slots: u32) -> FigureRow {
    let what = format!(
        "150 MB/s, D = {slots}: a writer of 8 files with 100 MB/s and a reader with 20 MB/s reserved, each at \
         one of two proxies, beside 32 jobs; without: the same jobs and no reservation"
    );
    FigureRow::new(id, &what, &[SLUICE, WITHOUT])
        .rounds(3, 30.0)
        .goal(SLUICE, "writer_least_of_5s_percent", FigureBound::Least(98.0))
        .goal(SLUICE, "reader_least_of_5s_percent", FigureBound::Least(98.0))
        .beside(SLUICE, "total_mb_per_s", FigureBound::TimesLeast(0.95), &[WITHOUT])
}

pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    for (id, slots) in ROWS {
        if sink.wants(id) {
            measure_row(id, slots, run, sink)?;
        }
    }
    Ok(())
}

fn measure_row(
    id: &str,
    slots: u32,
    run: &FigureRun<'_>,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let row = row(id, slots);
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let mut backend = QosBackend::start(&bed, BackendKind::Slow)?;
    backend.calibrate(run)?;
    backend.file("data", backend.cold_len())?;
    for name in jobs().map(|job| job.name) {
        std::fs::create_dir_all(backend.dir().join(&name)).context("cannot make a directory")?;
    }
    for at in 0..WRITER_FILES {
        backend.file(&format!("writer/written{at}"), WRITTEN_LEN)?;
    }
    for at in (0..OTHERS).filter(|at| at % 2 == 0) {
        backend.file(&format!("other{at}/written0"), WRITTEN_LEN)?;
    }
    let controller = QosController::start(&bed, "reserve")?;
    let version = controller.client.set_rules(RULES)?.version;
    let start = |at: usize| {
        let top =
            format!("{MANY_THREADS}\ncontroller = \"{}\"\nproxy_name = \"n{at}\"", controller.url);
        let target = format!("{TARGET}\nslots_max = {slots}");
        let setup = QosSetup { top: &top, target: &target, ..QosSetup::default() };
        backend.proxy(&format!("n{at}"), &setup)
    };
    let proxies = (0..PROXIES).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_rules(&bed, &proxies, &version)?;
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    sink.round_of(&row, |who| {
        let mut jobs = jobs()
            .map(|job| job.start(&proxies[job.proxy], &backend))
            .collect::<anyhow::Result<Vec<_>>>()?;
        bed.wait(SETTLE)?;
        let mut reserved = Vec::new();
        if who == SLUICE {
            for (job, rate, is_write) in [("writer", WRITER, true), ("reader", READER, false)] {
                reserved.push(reserve(&controller, job, rate, is_write, run.time(&row))?);
            }
        }
        let series = Series::take(&bed, &proxies, run.time(&row))?;
        for one in reserved {
            controller.client.remove_reservation(one.id).context("a reservation")?;
        }
        jobs.iter_mut().try_for_each(|job| job.cut()?.check())?;
        Ok(series.figures())
    })
}

/// Requests a reservation and waits until it is active.
fn reserve(
    controller: &QosController,
    job: &str,
    rate: u64,
    is_write: bool,
    span: Duration,
) -> anyhow::Result<WireReservation> {
    let rate = Some(WireRate::Bytes(rate));
    let new = NewReservation {
        read: rate.filter(|_| !is_write),
        write: rate.filter(|_| is_write),
        // Longer than what is measured; it is removed after that.
        duration_ns: (span + Duration::from_secs(60)).as_nanos() as u64,
        job: Some(job.into()),
        export: Some("x".into()),
        ..NewReservation::default()
    };
    let accepted = controller.client.reserve(&new)?;
    let active = wait_until_active(&controller.client, accepted.id)?;
    ensure!(active.reduced.is_none(), "reduced: {active:?}");
    Ok(active)
}

/// A job of the row.
struct BesideJob {
    name: String,
    proxy: usize,
    is_write: bool,
    /// Each has a file of its own, if it writes.
    connections: usize,
    /// Requests in flight of each.
    depth: usize,
}

fn jobs() -> impl Iterator<Item = BesideJob> {
    let reserved = [("writer", 0, true, WRITER_FILES), ("reader", 1, false, 1)];
    let reserved = reserved.map(|(name, proxy, is_write, connections)| BesideJob {
        name: name.into(),
        proxy,
        is_write,
        connections,
        depth: 512 / connections,
    });
    let others = (0..OTHERS).map(|at| BesideJob {
        name: format!("other{at}"),
        // Writers and readers at both.
        proxy: at / 2 % PROXIES,
        is_write: at % 2 == 0,
        connections: 1,
        depth: 64,
    });
    reserved.into_iter().chain(others)
}

impl BesideJob {
    fn start(&self, proxy: &QosProxy, backend: &QosBackend<'_>) -> anyhow::Result<QosJob> {
        let op = if self.is_write { WorkOp::Randwrite } else { WorkOp::Randread };
        let mut plan = proxy.plan("x", &self.name, op, Bytes::kib(64));
        (plan.connections, plan.depth) = (self.connections, self.depth);
        plan.file_size = if self.is_write { WRITTEN_LEN } else { backend.cold_len() };
        let data = if self.is_write { String::new() } else { "data".into() };
        QosJob::start(&[QosJobPart { plan, dir: self.name.clone(), data }])
    }
}

/// What the reserved jobs and all jobs together were served, over both proxies.
struct Series {
    /// Seconds since the first one, megabytes of the writer, of the reader, of all.
    moments: Vec<(f64, [f64; 3])>,
}

impl Series {
    fn take(bed: &QosTestBed, proxies: &[QosProxy], span: Duration) -> anyhow::Result<Series> {
        let began = Instant::now();
        let mut moments = Vec::new();
        loop {
            let at = began.elapsed();
            let mut sums = [0.0; 3];
            for proxy in proxies {
                for class in proxy.api.classes()?.classes {
                    let mb = (class.usage.read_bytes + class.usage.written_bytes) as f64 / 1e6;
                    sums[2] += mb;
                    match class.key.strip_prefix("jobid=") {
                        Some("writer") => sums[0] += mb,
                        Some("reader") => sums[1] += mb,
                        _ => continue,
                    }
                }
            }
            moments.push((at.as_secs_f64(), sums));
            if at >= span {
                return Ok(Series { moments });
            }
            bed.wait(EVERY)?;
        }
    }

    fn figures(&self) -> FigureSample {
        let rate = |of: usize, from: f64, to: f64| {
            let at = |when: f64| self.moments.iter().find(|(t, _)| *t >= when);
            let (Some((began, before)), Some((ended, after))) = (at(from), at(to)) else {
                return f64::NAN;
            };
            (after[of] - before[of]) / (ended - began)
        };
        let last = self.moments.last().map_or(0.0, |(t, _)| *t);
        let least = |of: usize, reserved: u64| {
            let froms = self.moments.iter().map(|(t, _)| *t);
            let froms = froms.filter(|from| *from >= 1.0 && from + WINDOW_S <= last);
            let rates = froms.map(|from| rate(of, from, from + WINDOW_S));
            rates.fold(f64::INFINITY, f64::min) * 1e8 / reserved as f64
        };
        sample([
            ("writer_least_of_5s_percent", least(0, WRITER)),
            ("reader_least_of_5s_percent", least(1, READER)),
            ("writer_mb_per_s", rate(0, 1.0, last)),
            ("reader_mb_per_s", rate(1, 1.0, last)),
            ("writer_first_second_mb_per_s", rate(0, 0.0, 1.0)),
            ("reader_first_second_mb_per_s", rate(1, 0.0, 1.0)),
            ("total_mb_per_s", rate(2, 1.0, last)),
        ])
    }
}

const PROXIES: usize = 2;
const OTHERS: usize = 32;
/// In bytes per second.
const WRITER: u64 = 100_000_000;
const READER: u64 = 20_000_000;
/// The kernel lets one direct write of a file at a time through to a FUSE backend.
const WRITER_FILES: usize = 8;
const TARGET: &str =
    "write_mode = \"direct\"\ncapacity_read = \"150MB/s\"\ncapacity_write = \"150MB/s\"";
const WRITTEN_LEN: Bytes = Bytes::mib(64);
const RULES: &str = "[[rule]]\nname = \"each\"\nper = [\"jobid\"]\n";
const SETTLE: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(100);
const WINDOW_S: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_five_seconds_are_found_beside_what_is_reserved() {
        // 100 MB/s but for half of the eighth second; 20 MB/s all the time.
        let writer = |at: usize| if at > 80 { at as f64 * 10.0 - 50.0 } else { at as f64 * 10.0 };
        let moment = |at: usize| (at as f64 / 10.0, [writer(at), at as f64 * 2.0, 0.0]);
        let series = Series { moments: (0..=300).map(moment).collect() };
        let figures = series.figures();
        assert!((figures["writer_least_of_5s_percent"] - 90.0).abs() < 0.5, "{figures:?}");
        assert!((figures["reader_least_of_5s_percent"] - 100.0).abs() < 1e-6);
    }

    #[test]
    fn the_rules_are_rules() {
        assert_eq!(rules::RuleSet::parse(RULES).unwrap().rules.len(), 1);
    }
}
