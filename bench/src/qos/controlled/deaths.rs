//! The leader of three controllers is killed under load, again and again: how long until another
//! decides, and whether the limit held meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use http::{ApiClient, Endpoints};
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::process::LOOK;
use super::super::super::servers::find_program;
use super::super::bed::QosTestBed;
use super::super::controllers::{QosController, proxies};
use super::super::etcd::QosEtcd;
use super::reader::{JobReaders, ReaderSample, windows};
use super::{SLUICE, most, rules};

pub(super) fn row() -> FigureRow {
    let what = "the leader of three controllers is killed 20 times, 80 MB/s over 4 proxies";
    FigureRow::new("control/deaths", what, &[SLUICE])
        .rounds(1, 20.0 * BETWEEN.as_secs_f64())
        .goal(SLUICE, "leaderless_most_s", FigureBound::Most(5.0))
        .goal(SLUICE, "miscounted_bytes", FigureBound::Most(0.0))
        .goal(SLUICE, "least_of_10s_percent", FigureBound::Least(-2.0))
        .goal(SLUICE, "most_of_10s_percent", FigureBound::Most(2.0))
}

pub(super) fn measure(run: &FigureRun<'_>, bed: &QosTestBed) -> anyhow::Result<FigureSample> {
    find_program("etcd").context("Debian's etcd-server has it")?;
    bed.file("f", Bytes::kib(64))?;
    let etcd = QosEtcd::start(bed)?;
    let store = etcd.store();
    let mut all = Deaths { bed, store, controllers: Vec::new() };
    for at in 0..3 {
        let controller = all.controller(at)?;
        all.controllers.push(Some(controller));
    }
    let urls: Vec<_> = all.controllers.iter().flatten().map(|one| one.url.clone()).collect();
    let urls = urls.join(",");
    let client = ApiClient::at(&urls.parse::<Endpoints>()?)?;
    all.wait_for_leader()?;
    let version = client.set_rules(&rules("80MB/s"))?.version;
    let proxies = proxies(bed, PROXIES, &urls, &version)?;
    let places: Vec<_> = proxies.iter().map(|proxy| &proxy.address).collect();
    let readers = JobReaders::start(&places, READERS, "f", 64 << 10);
    bed.wait(Duration::from_secs(5))?;

    let mut samples = vec![readers.sample()];
    let mut took_s: Vec<f64> = Vec::new();
    // There must be a few windows of ten seconds.
    let kills = run.time(&row()).div_duration_f64(BETWEEN).round().max(3.0);
    while (took_s.len() as f64) < kills {
        took_s.push(all.kill_leader(&readers, &mut samples)?);
    }
    ensure!(client.rules()?.version == version, "the rules are not those that were set");
    let miscounted = wait_for_usage(bed, &client, readers.end()?)?;
    let [slow, fast] = windows(&samples, 10.0, 80e6).context("no ten seconds were measured")?;
    Ok(sample([
        ("leaderless_most_s", most(&took_s)),
        ("leaderless_median_s", median(took_s).unwrap_or(f64::NAN)),
        ("kills_count", kills),
        ("miscounted_bytes", miscounted as f64),
        ("least_of_10s_percent", slow),
        ("most_of_10s_percent", fast),
    ]))
}

/// Three controllers with one store, some of them dead for a moment.
struct Deaths<'a> {
    bed: &'a QosTestBed,
    store: String,
    controllers: Vec<Option<QosController>>,
}

impl Deaths<'_> {
    fn controller(&self, at: usize) -> anyhow::Result<QosController> {
        QosController::with(self.bed, &format!("controller{at}"), &self.store)
    }

    /// How long until another leads, in seconds; then the dead one is started again.
    fn kill_leader(
        &mut self,
        readers: &JobReaders,
        samples: &mut Vec<ReaderSample>,
    ) -> anyhow::Result<f64> {
        let leader = self.wait_for_leader()?;
        let victim = self.controllers[leader].take().context("it leads")?;
        let began = Instant::now();
        victim.process.kill().context("cannot kill a controller")?;
        while leader_of(&self.controllers).is_none() {
            if began.elapsed() > PATIENCE {
                bail!("nobody leads {} s after the leader's death", PATIENCE.as_secs());
            }
            samples.push(readers.sample());
            self.bed.wait(RESOLUTION)?;
        }
        let took_s = began.elapsed().as_secs_f64();
        self.controllers[leader] = Some(self.controller(leader)?);
        let until = Instant::now() + BETWEEN;
        while Instant::now() < until {
            samples.push(readers.sample());
            self.bed.wait(RESOLUTION)?;
        }
        Ok(took_s)
    }

    fn wait_for_leader(&self) -> anyhow::Result<usize> {
        let began = Instant::now();
        loop {
            if let Some(leader) = leader_of(&self.controllers) {
                return Ok(leader);
            }
            if began.elapsed() > PATIENCE {
                bail!("no controller leads within {} s", PATIENCE.as_secs());
            }
            self.bed.wait(LOOK)?;
        }
    }
}

fn leader_of(all: &[Option<QosController>]) -> Option<usize> {
    let leads = |one: &Option<QosController>| {
        let status = one.as_ref().and_then(|one| one.client.controller_status().ok());
        status.is_some_and(|status| status.is_leader)
    };
    all.iter().position(leads)
}

/// How far the ledger is from what the readers had, in bytes, once it agrees or after 20 s.
fn wait_for_usage(bed: &QosTestBed, client: &ApiClient, read: u64) -> anyhow::Result<u64> {
    let mut off = u64::MAX;
    for _ in 0..200 {
        let rows = client.usage("by=job&from=-2h")?.rows;
        let counted = rows.iter().find(|row| row.name == "job");
        off = read.abs_diff(counted.map_or(0, |row| row.service.read_bytes));
        if off == 0 {
            break;
        }
        bed.wait(Duration::from_millis(100))?;
    }
    Ok(off)
}

const PROXIES: usize = 4;
const READERS: usize = 16;
/// After another leads, until it is killed as well.
const BETWEEN: Duration = Duration::from_secs(4);
const RESOLUTION: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);
