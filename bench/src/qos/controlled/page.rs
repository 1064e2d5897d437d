//! The controller's page while a thousand jobs are at work: how soon it is there, and what an
//! update takes, in a Chromium that has one core.
//!
//! ```text
//!   1,000 jobs ─► 2 proxies ─► controller ◄─ page ◄─ Chromium ◄─ chromedriver ◄─ WebDriver
//! ```
//!
//! An update is what the page measures itself (`performance.measure`): from the figures of a
//! moment to tables and pictures. Beside it stands all that the page's thread did, divided by
//! the updates: layout, painting, reading JSON and the slower questions too.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::ApiClient;
use model::Bytes;
use ninep::Fid;
use rustix::thread::CpuSet;
use serde_json::{Value, json};

use super::super::super::process::BenchProcess;
use super::super::super::servers::find_program;
use super::super::super::session::{BenchIdentity, BenchSession};
use super::super::super::work::WorkOp;
use super::super::QosRun;
use super::super::bed::{QosProxy, QosTestBed};
use super::super::table::{QosRow, QosTable, figures};
use super::{QosController, proxies};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let found = find_program("chromium").and_then(|one| Ok((one, find_program("chromedriver")?)));
    let (chromium, driver) = match found {
        Ok(programs) => programs,
        Err(why) => {
            table.note(format!("page: left out, for {why:#}"));
            return Ok(());
        }
    };
    let bed = &run.bed;
    let controller = QosController::at(bed, "page", format!("http://{}", free_port()?), "sqlite")?;
    let version = controller.client.set_rules(RULES)?.version;
    let proxies = proxies(bed, PROXIES, &controller.url, &version)?;
    let browser = PageBrowser::start(bed, &chromium, &driver)?;
    let stop = AtomicBool::new(false);
    let looked = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(&proxies, &stop));
        let looked = look(run, table, &browser, &controller);
        stop.store(true, Ordering::Relaxed);
        crowd.join().ok().context("a crowd panicked")??;
        looked
    })?;
    table.add(paint(&looked));
    table.add(updates(&looked));
    Ok(())
}

/// What was seen, in milliseconds.
#[derive(Default)]
struct Looked {
    /// Of each time that the page was opened.
    paints: Vec<f64>,
    first_figures: Vec<f64>,
    updates: Vec<f64>,
    /// What the page's thread did in all while the updates were counted.
    busy: f64,
}

fn look(
    run: &QosRun<'_>,
    table: &QosTable,
    browser: &PageBrowser,
    controller: &QosController,
) -> anyhow::Result<Looked> {
    let mut looked = Looked::default();
    let all_are_there = || -> anyhow::Result<bool> {
        let jobs: usize =
            controller.client.live()?.samples.iter().map(|one| one.subjects.subjects.len()).sum();
        Ok(jobs >= PROXIES * JOBS as usize)
    };
    wait_until(&run.bed, "all jobs are at work", all_are_there)?;
    for round in 0..run.rounds(5, 2) {
        table.progress(&format!("page: opened, time {round}"));
        browser.open("about:blank")?;
        browser.open(&controller.url)?;
        wait_until(&run.bed, "the page shows figures", || {
            Ok(browser.run(FIRST)?.as_array().is_some_and(|times| times.len() == 2))
        })?;
        let times: [f64; 2] = serde_json::from_value(browser.run(FIRST)?)?;
        looked.paints.push(times[0]);
        looked.first_figures.push(times[1]);
    }
    // What the first figures did is not an update.
    browser.run("performance.clearMeasures()")?;
    let busy = browser.busy()?;
    table.progress("page: updates");
    let updates =
        || browser.run("return performance.getEntriesByName('update').map((one) => one.duration)");
    run.bed.wait(run.time(90, 10))?;
    looked.busy = browser.busy()? - busy;
    looked.updates = serde_json::from_value(updates()?)?;
    if looked.updates.len() < 2 {
        bail!("the page made {} updates in that time", looked.updates.len());
    }
    Ok(looked)
}

fn paint(looked: &Looked) -> QosRow {
    let [painted, first] = [&looked.paints, &looked.first_figures].map(|times| most(times));
    QosRow {
        case: format!("page: opened with {JOBS} jobs at {PROXIES} proxies"),
        target: "first paint under 1 s".into(),
        reached: format!("{painted:.0} ms at most"),
        met: Some(painted < 1_000.0),
        beside: format!(
            "median {:.0} ms of {} times; the first figures after {first:.0} ms at most",
            median(&looked.paints),
            looked.paints.len()
        ),
        figures: figures([
            ("first_paint_ms_max", painted),
            ("first_paint_ms_median", median(&looked.paints)),
            ("first_figures_ms_max", first),
        ]),
    }
}

fn updates(looked: &Looked) -> QosRow {
    let (worst, middle) = (most(&looked.updates), median(&looked.updates));
    let busy = looked.busy / looked.updates.len() as f64;
    QosRow {
        case: format!("page: an update with {JOBS} jobs at {PROXIES} proxies, on one core"),
        target: "under 50 ms".into(),
        reached: format!("{worst:.1} ms at most"),
        met: Some(worst < 50.0),
        beside: format!(
            "median {middle:.1} ms of {}; {busy:.1} ms an update for all that its thread did",
            looked.updates.len()
        ),
        figures: figures([
            ("update_ms_max", worst),
            ("update_ms_median", middle),
            ("busy_ms_per_update", busy),
            ("updates", looked.updates.len() as f64),
        ]),
    }
}

fn most(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A request of each job at each proxy, a few times a second.
fn crowd(proxies: &[QosProxy], stop: &AtomicBool) -> anyhow::Result<()> {
    let session = |proxy: &QosProxy| -> anyhow::Result<BenchSession> {
        let mut session = proxy.plan("x", "any", WorkOp::Read, Bytes::kib(64)).session()?;
        for job in 0..JOBS {
            let who = BenchIdentity { uname: "root".into(), uid: job / JOBS_PER_USER };
            session.attach(Fid(job), &format!("x?job=job.{job}"), &who)?;
        }
        Ok(session)
    };
    let mut sessions = proxies.iter().map(session).collect::<anyhow::Result<Vec<_>>>()?;
    while !stop.load(Ordering::Relaxed) {
        for session in &mut sessions {
            (0..JOBS).try_for_each(|job| session.size(Fid(job)).map(drop))?;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn wait_until(
    bed: &QosTestBed,
    what: &str,
    is: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is()? {
        if Instant::now() > deadline {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        bed.wait(Duration::from_millis(50))?;
    }
    Ok(())
}

/// An address of this machine at which nobody listens.
fn free_port() -> anyhow::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    listener.local_addr().context("cannot listen on loopback")
}

/// A Chromium and its driver, all on one core.
struct PageBrowser {
    client: ApiClient,
    session: String,
    /// Ends what it started.
    _driver: BenchProcess,
}

impl PageBrowser {
    fn start(bed: &QosTestBed, chromium: &Path, driver: &Path) -> anyhow::Result<PageBrowser> {
        let at = free_port()?;
        let words = [driver.display().to_string(), format!("--port={}", at.port())];
        let mut driver =
            BenchProcess::start("chromedriver", &words, &bed.dir().join("driver.log"))?;
        let client = ApiClient::at(&format!("http://{at}").parse::<api::Endpoint>()?)?;
        let client = client.with_time_limit(PATIENCE);
        driver.wait_until(|| client.get::<Value>("/status").is_ok())?;
        let mut one = CpuSet::new();
        one.set(0);
        driver.keep_on(&one)?;
        let options = json!({ "binary": chromium, "args": FLAGS });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } }).to_string();
        let answer: Value = client.post("/session", &wanted).context("Chromium does not start")?;
        let session = answer["value"]["sessionId"].as_str().context("no session")?.to_owned();
        let browser = PageBrowser { client, session, _driver: driver };
        browser.devtools("Performance.enable")?;
        Ok(browser)
    }

    fn open(&self, url: &str) -> anyhow::Result<()> {
        self.ask("url", json!({ "url": url })).map(drop)
    }

    /// What a script's `return` gives.
    fn run(&self, script: &str) -> anyhow::Result<Value> {
        self.ask("execute/sync", json!({ "script": script, "args": [] }))
    }

    /// For how long the page's thread has been at work so far, in milliseconds.
    fn busy(&self) -> anyhow::Result<f64> {
        let answer = self.devtools("Performance.getMetrics")?;
        let metrics = answer["metrics"].as_array().context("no metrics")?;
        let busy = metrics.iter().find(|metric| metric["name"] == "TaskDuration");
        let busy = busy.and_then(|metric| metric["value"].as_f64());
        Ok(busy.context("no TaskDuration")? * 1e3)
    }

    fn devtools(&self, command: &str) -> anyhow::Result<Value> {
        self.ask("goog/cdp/execute", json!({ "cmd": command, "params": {} }))
    }

    fn ask(&self, command: &str, body: Value) -> anyhow::Result<Value> {
        let path = format!("/session/{}/{command}", self.session);
        let answer = self.client.post::<Value>(&path, &body.to_string());
        Ok(answer.with_context(|| format!("the browser does not {command}"))?["value"].take())
    }
}

impl Drop for PageBrowser {
    fn drop(&mut self) {
        // Where that fails, it ends with its driver.
        let _ = self.devtools("Browser.close");
    }
}

const PROXIES: usize = 2;
const JOBS: u32 = 1_000;
const JOBS_PER_USER: u32 = 40;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\nlimit = \"1GB/s\"\n";
const PATIENCE: Duration = Duration::from_secs(60);
/// When something was painted and when the first figures were shown, once both are known.
const FIRST: &str = "\
const painted = performance.getEntriesByName('first-contentful-paint')[0]; \
const first = performance.getEntriesByName('update')[0]; \
return painted && first ? [painted.startTime, first.startTime + first.duration] : [];";
/// No sandbox for root, and no calls to anywhere else.
const FLAGS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
];
