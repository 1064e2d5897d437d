//! How soon a reservation is in force at all proxies, and how soon an early end serves the next.

use std::time::{Duration, Instant};

use anyhow::ensure;
use api::{NewReservation, WireRate, WireReservationState};
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::super::controllers::{QosController, wait_for_rules};
use super::super::job::{QosJob, QosJobPart};
use super::{PATIENCE, SLUICE, wait_until_active};
use crate::work::WorkOp;

pub(super) fn row() -> FigureRow {
    let what = "8 proxies that all have the job: from accepted to ACTIVE; from an early end until the \
                next reservation is promised, and until it is ACTIVE";
    FigureRow::new("reserve/active", what, &[SLUICE])
        .rounds(3, 20.0)
        .goal(SLUICE, "active_most_ms", FigureBound::Most(300.0))
        .goal(SLUICE, "promised_most_ms", FigureBound::Most(500.0))
}

pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let row = row();
    sink.round_of(&row, |_| {
        let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
        bed.file("f", Bytes::kib(64))?;
        let controller = QosController::start(&bed, "active")?;
        let version = controller.client.set_rules("")?.version;
        let start = |at: usize| {
            let top = format!("controller = \"{}\"\nproxy_name = \"n{at}\"", controller.url);
            let target = "capacity_read = \"100MB/s\"\ncapacity_write = \"100MB/s\"";
            bed.proxy(&format!("n{at}"), &QosSetup { top: &top, target, ..QosSetup::default() })
        };
        let proxies = (0..PROXIES).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        wait_for_rules(&bed, &proxies, &version)?;
        // Each proxy has requests of both jobs, so each gets the rows.
        let jobs = proxies.iter().flat_map(|proxy| ["a", "b"].map(|name| load(proxy, name)));
        let jobs = jobs.collect::<anyhow::Result<Vec<_>>>()?;
        bed.wait(SETTLE)?;
        let figures = changes(&controller, run.time(&row));
        drop(jobs);
        figures
    })
}

fn changes(controller: &QosController, time: Duration) -> anyhow::Result<FigureSample> {
    let client = &controller.client;
    let request = |job: &str| NewReservation {
        read: Some(WireRate::Bytes(RATE)),
        duration_ns: 600_000_000_000,
        job: Some(job.into()),
        export: Some("x".into()),
        spontaneous: true,
        ..NewReservation::default()
    };
    let (mut active_ms, mut promised_ms, mut next_ms) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + time;
    while active_ms.is_empty() || Instant::now() < until {
        let first = client.reserve(&request("a"))?;
        let began = Instant::now();
        wait_until_active(client, first.id)?;
        active_ms.push(began.elapsed().as_secs_f64() * 1e3);
        // As much again does not fit beside it.
        let next = client.reserve(&request("b"))?;
        ensure!(next.state == WireReservationState::Scheduled, "active at once: {next:?}");
        let before = client.reservation(next.id, "")?.start_ns;
        client.finish_reservation(first.id)?;
        let began = Instant::now();
        while client.reservation(next.id, "")?.start_ns == before {
            ensure!(began.elapsed() < PATIENCE, "not promised: {before:?}");
        }
        promised_ms.push(began.elapsed().as_secs_f64() * 1e3);
        wait_until_active(client, next.id)?;
        next_ms.push(began.elapsed().as_secs_f64() * 1e3);
        client.remove_reservation(next.id)?;
    }
    let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    Ok(sample([
        ("active_most_ms", most(&active_ms)),
        ("promised_most_ms", most(&promised_ms)),
        ("next_active_most_ms", most(&next_ms)),
        ("changes_count", active_ms.len() as f64),
        ("active_median_ms", median(active_ms).unwrap_or(f64::NAN)),
        ("promised_median_ms", median(promised_ms).unwrap_or(f64::NAN)),
        ("next_active_median_ms", median(next_ms).unwrap_or(f64::NAN)),
    ]))
}

/// A few requests each second, so that the job is known there and the processors are free.
fn load(proxy: &QosProxy, name: &str) -> anyhow::Result<QosJob> {
    let mut plan = proxy.plan("x", name, WorkOp::Randread, Bytes::kib(4));
    plan.file_size = Bytes::kib(64);
    let part = QosJobPart { plan, dir: String::new(), data: "f".into() };
    QosJob::start_paced(&[part], 20.0)
}

const PROXIES: usize = 8;
/// More than half of what can be reserved.
const RATE: u64 = 60_000_000;
const SETTLE: Duration = Duration::from_secs(3);
