//! How many requests for reservations a controller admits, each durable before it is answered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::{NewReservation, WireRate};
use http::{ApiClient, Endpoints};
use rustix::thread::CpuSet;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::bed::{QosSetup, QosTestBed};
use super::super::controllers::{QosController, wait_for_rules};
use super::super::etcd::QosEtcd;
use super::SLUICE;

pub(super) fn rows() -> Vec<FigureRow> {
    let row = |id: &str, store: &str| {
        let what = format!(
            "16 clients request reservations for later, each as soon as the last is answered; the \
             controller has one processor, and {store}"
        );
        FigureRow::new(id, &what, &[SLUICE]).rounds(3, 10.0)
    };
    let least = FigureBound::Least(1000.0);
    vec![
        row("reserve/admissions", "SQLite").goal(SLUICE, "admissions_per_s", least),
        row(
            "reserve/admissions-etcd",
            "three members of etcd share the other one with the clients",
        ),
    ]
}

pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    for row in rows() {
        if !sink.wants(&row.id) {
            continue;
        }
        sink.round_of(&row, |_| {
            let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
            let etcd = row.id.ends_with("etcd").then(|| QosEtcd::start(&bed)).transpose()?;
            let store = etcd.as_ref().map_or("sqlite".into(), QosEtcd::store);
            let mut controller = QosController::with(&bed, "admissions", &store)?;
            let client = &controller.client;
            controller.process.wait_until(|| client.set_rules("").is_ok())?;
            let version = controller.client.set_rules("")?.version;
            let top = format!("controller = \"{}\"\nproxy_name = \"n0\"", controller.url);
            let target = "capacity_read = \"100GB/s\"\ncapacity_write = \"100GB/s\"";
            let setup = QosSetup { top: &top, target, ..QosSetup::default() };
            let proxies = [bed.proxy("n0", &setup)?];
            wait_for_rules(&bed, &proxies, &version)?;
            controller.process.keep_on(&one_processor())?;
            admit(&controller, run.time(&row))
        })?;
    }
    Ok(())
}

fn admit(controller: &QosController, span: Duration) -> anyhow::Result<FigureSample> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let cpu = controller.process.cpu()?;
    let began = Instant::now();
    let client = |number: usize| -> anyhow::Result<()> {
        let api = ApiClient::at(&controller.url.parse::<Endpoints>()?)?;
        while !stop.load(Ordering::Relaxed) {
            let nth = count.fetch_add(1, Ordering::Relaxed);
            api.reserve(&NewReservation {
                write: Some(WireRate::Bytes(10_000_000)),
                duration_ns: 10_000_000_000,
                not_before_ns: Some(in_an_hour(nth)),
                job: Some(format!("{number}.{nth}")),
                // A user has a ceiling of 4,096.
                user: Some((nth / 1_000) as u32),
                export: Some("x".into()),
                ..NewReservation::default()
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..CLIENTS).map(|at| scope.spawn(move || client(at))).collect();
        while began.elapsed() < span && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|one| one.join().expect("a client does not panic"))
    })?;
    let took_s = began.elapsed().as_secs_f64();
    let admitted = count.load(Ordering::Relaxed) as f64;
    Ok(sample([
        ("admissions_per_s", admitted / took_s),
        ("cpu_cores", (controller.process.cpu()? - cpu).as_secs_f64() / took_s),
    ]))
}

/// A start that is an hour away, and some seconds later with each.
fn in_an_hour(nth: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos() as u64);
    now + 3_600_000_000_000 + nth % 3_600 * 1_000_000_000
}

fn one_processor() -> CpuSet {
    let mut set = CpuSet::new();
    set.set(0);
    set
}

const CLIENTS: usize = 16;
