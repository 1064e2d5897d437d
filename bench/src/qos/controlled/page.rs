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

use anyhow::{Context as _, bail, ensure};
use http::ApiClient;
use model::Bytes;
use ninep::Fid;
use rustix::thread::CpuSet;
use serde_json::{Value, json};

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::process::BenchProcess;
use super::super::super::servers::find_program;
use super::super::super::session::{BenchIdentity, BenchSession};
use super::super::super::work::WorkOp;
use super::super::bed::{QosProxy, QosTestBed};
use super::super::controllers::{QosController, proxies};
use super::{SLUICE, most};

pub(super) fn row() -> FigureRow {
    let what = "the page with 1,000 jobs at each of 2 proxies, in a Chromium on one processor";
    FigureRow::new("control/page", what, &[SLUICE])
        .rounds(3, 45.0)
        .goal(SLUICE, "paint_most_ms", FigureBound::Most(1_000.0))
        .goal(SLUICE, "update_most_ms", FigureBound::Most(50.0))
}

pub(super) fn measure(run: &FigureRun<'_>, bed: &QosTestBed) -> anyhow::Result<FigureSample> {
    let (chromium, driver) = (find_program("chromium")?, find_program("chromedriver")?);
    let controller = QosController::at(bed, "page", format!("http://{}", free_port()?), "sqlite")?;
    let version = controller.client.set_rules(RULES)?.version;
    let proxies = proxies(bed, PROXIES, &controller.url, &version)?;
    let browser = PageBrowser::start(bed, &chromium, &driver)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(&proxies, &stop));
        let looked = look(run, bed, &browser, &controller);
        stop.store(true, Ordering::Relaxed);
        crowd.join().ok().context("a crowd panicked")??;
        looked
    })
}

fn look(
    run: &FigureRun<'_>,
    bed: &QosTestBed,
    browser: &PageBrowser,
    controller: &QosController,
) -> anyhow::Result<FigureSample> {
    let all_are_there = || -> anyhow::Result<bool> {
        let jobs: usize =
            controller.client.live()?.samples.iter().map(|one| one.subjects.subjects.len()).sum();
        Ok(jobs >= PROXIES * JOBS as usize)
    };
    wait_until(bed, "all jobs are at work", all_are_there)?;
    let (mut paints, mut first_figures) = (Vec::new(), Vec::new());
    for _ in 0..OPENED {
        browser.open("about:blank")?;
        browser.open(&controller.url)?;
        wait_until(bed, "the page shows figures", || {
            Ok(browser.run(FIRST)?.as_array().is_some_and(|times| times.len() == 2))
        })?;
        let times: [f64; 2] = serde_json::from_value(browser.run(FIRST)?)?;
        paints.push(times[0]);
        first_figures.push(times[1]);
    }
    // What the first figures did is not an update.
    browser.run("performance.clearMeasures()")?;
    let busy = browser.busy()?;
    bed.wait(run.time(&row()).max(Duration::from_secs(10)))?;
    let busy = browser.busy()? - busy;
    let updates = "return performance.getEntriesByName('update').map((one) => one.duration)";
    let updates: Vec<f64> = serde_json::from_value(browser.run(updates)?)?;
    ensure!(updates.len() >= 2, "the page made {} updates in that time", updates.len());
    let count = updates.len() as f64;
    let middle = |times: Vec<f64>| median(times).unwrap_or(f64::NAN);
    Ok(sample([
        ("paint_most_ms", most(&paints)),
        ("paint_median_ms", middle(paints)),
        ("first_figures_most_ms", most(&first_figures)),
        ("update_most_ms", most(&updates)),
        ("update_median_ms", middle(updates)),
        ("busy_by_update_ms", busy / count),
        ("updates_count", count),
    ]))
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
        let client = ApiClient::at(&format!("http://{at}").parse::<http::Endpoint>()?)?;
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

/// How often the page is opened.
const OPENED: usize = 5;
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
