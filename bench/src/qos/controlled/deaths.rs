//! The leader of three controllers is killed under load, again and again: how long until another
//! decides, and whether the limit held meanwhile.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::{ApiClient, Endpoints};
use model::Bytes;

use super::super::super::process::BenchProcess;
use super::super::QosRun;
use super::super::bed::QosTestBed;
use super::super::table::{QosRow, QosTable, figures};
use super::reader::{PageReader, PageReaders, windows};
use super::{QosController, proxies, rules};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let bed = &run.bed;
    if super::super::super::servers::find_program("etcd").is_err() {
        table.note("deaths: no etcd here; Debian's etcd-server has it");
        return Ok(());
    }
    bed.file("f", Bytes::kib(64))?;
    let etcd = DeathsEtcd::start(bed)?;
    let store = format!("etcd:{}", etcd.clients.join(","));
    let name = |at: usize| format!("controller{at}");
    let mut all = (0..3)
        .map(|at| QosController::with(bed, &name(at), &store).map(Some))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let urls: Vec<_> = all.iter().flatten().map(|one| one.url.clone()).collect();
    let urls = urls.join(",");
    let client = ApiClient::at(&urls.parse::<Endpoints>()?)?;
    wait_for_leader(run, &all)?;
    let version = client.set_rules(&rules("80MB/s"))?.version;
    let proxies = proxies(bed, PROXIES, &urls, &version)?;
    let readers = PageReaders::new();
    let place = |at: usize| &proxies[at % PROXIES].address;
    let threads: Vec<_> =
        (0..READERS).map(|at| PageReader::start(&readers, place(at), "f", 64 << 10)).collect();
    bed.wait(Duration::from_secs(5))?;

    let mut samples = vec![readers.sample()];
    let mut took_s: Vec<f64> = Vec::new();
    let kills = run.rounds(20, 3);
    for kill in 1..=kills {
        table.progress(&format!("deaths: {kill} of {kills}"));
        let leader = wait_for_leader(run, &all)?;
        let victim = all[leader].take().context("it leads")?;
        let began = Instant::now();
        victim.process.kill().context("cannot kill a controller")?;
        while leader_of(&all).is_none() {
            if began.elapsed() > Duration::from_secs(30) {
                bail!("nobody leads 30 s after the leader's death");
            }
            samples.push(readers.sample());
            bed.wait(Duration::from_millis(10))?;
        }
        took_s.push(began.elapsed().as_secs_f64());
        all[leader] = Some(QosController::with(bed, &name(leader), &store)?);
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            samples.push(readers.sample());
            bed.wait(Duration::from_millis(10))?;
        }
    }
    let kept = client.rules()?.version == version;
    threads.into_iter().try_for_each(PageReader::end)?;
    let counted = wait_for_usage(run, &client, readers.sample().bytes)?;
    let most = took_s.iter().copied().fold(0.0, f64::max);
    table.add(QosRow {
        case: format!("deaths: the leader killed {kills} times"),
        target: "the next within 5 s, nothing lost".into(),
        reached: format!("{most:.2} s at most"),
        met: Some(most <= 5.0 && kept && counted == 0),
        beside: format!("rules kept: {kept}; bytes read and not counted: {counted}"),
        figures: figures([("most_s", most), ("bytes_lost", counted as f64)]),
    });
    let Some((slow, fast)) = windows(&samples, 10.0, 80e6) else { return Ok(()) };
    let percent = |part: f64| (part - 1.0) * 100.0;
    table.add(QosRow {
        case: "deaths: the limit over any 10 s meanwhile".into(),
        target: "within 2 %".into(),
        reached: format!("{:+.2} to {:+.2} %", percent(slow), percent(fast)),
        met: Some(slow >= 0.98 && fast <= 1.02),
        beside: format!("{READERS} clients over {PROXIES} proxies, 80 MB/s"),
        figures: figures([("least_percent", percent(slow)), ("most_percent", percent(fast))]),
    });
    Ok(())
}

fn leader_of(all: &[Option<QosController>]) -> Option<usize> {
    let leads = |one: &Option<QosController>| {
        let status = one.as_ref().and_then(|one| one.client.controller_status().ok());
        status.is_some_and(|status| status.is_leader)
    };
    all.iter().position(leads)
}

fn wait_for_leader(run: &QosRun<'_>, all: &[Option<QosController>]) -> anyhow::Result<usize> {
    for _ in 0..1_500 {
        if let Some(leader) = leader_of(all) {
            return Ok(leader);
        }
        run.bed.wait(Duration::from_millis(20))?;
    }
    bail!("no controller leads within 30 s")
}

/// How far the ledger is from what the readers had, once it stands still there or for 20 s.
fn wait_for_usage(run: &QosRun<'_>, client: &ApiClient, read: u64) -> anyhow::Result<i128> {
    let mut off = i128::MAX;
    for _ in 0..200 {
        let rows = client.usage("by=job&from=-2h")?.rows;
        let counted = rows.iter().find(|row| row.name == "job");
        off = i128::from(read) - counted.map_or(0, |row| i128::from(row.counters.read_bytes));
        if off == 0 {
            break;
        }
        run.bed.wait(Duration::from_millis(100))?;
    }
    Ok(off)
}

/// Three members on loopback.
struct DeathsEtcd {
    clients: Vec<String>,
    _members: Vec<BenchProcess>,
}

impl DeathsEtcd {
    fn start(bed: &QosTestBed) -> anyhow::Result<DeathsEtcd> {
        let free =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let addresses = free.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<_> = addresses.iter().map(|address| format!("http://{address}")).collect();
        drop(free);
        let (clients, peers) = urls.split_at(3);
        let all: Vec<_> = (0..3).map(|at| format!("m{at}={}", peers[at])).collect();
        let member = |at: usize| {
            let (name, data) = (format!("m{at}"), bed.dir().join(format!("etcd{at}")));
            let words = [
                ["etcd", "--name"],
                [&name, "--initial-cluster"],
                [&all.join(","), "--data-dir"],
                [&data.display().to_string(), "--listen-client-urls"],
                [&clients[at], "--advertise-client-urls"],
                [&clients[at], "--listen-peer-urls"],
                [&peers[at], "--initial-advertise-peer-urls"],
                [&peers[at], "--logger"],
            ];
            let mut words: Vec<_> = words.iter().flatten().map(|word| word.to_string()).collect();
            words.push("zap".into());
            BenchProcess::start(&name, &words, &log(bed.dir(), at))
        };
        let members = (0..3).map(member).collect::<anyhow::Result<Vec<_>>>()?;
        // The controllers wait for it themselves.
        Ok(DeathsEtcd { clients: clients.to_vec(), _members: members })
    }
}

fn log(dir: &Path, at: usize) -> std::path::PathBuf {
    dir.join(format!("etcd{at}.log"))
}

const PROXIES: usize = 4;
const READERS: usize = 16;
