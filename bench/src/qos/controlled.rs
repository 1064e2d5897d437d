//! The guarantees of a controller: one limit over many proxies, whatever moves or fails.
//!
//! ```text
//!   readers ─► proxies n0 … n7 ─► controller        news   how soon other rules are in force
//!      └ each moves at random                       moves  the sum of all beside the limit
//!                                                   trace  100/100, 1/199: real beside simulated
//!                                                   metadata  four servers, two jobs
//!                                                   deaths the leader of three is killed
//!                                                   scale  1,000 proxies × 1,000 classes
//!                                                   page   1,000 jobs on the page for people
//! ```

mod deaths;
mod metadata;
mod moves;
mod news;
mod page;
mod reader;
mod scale;
mod trace;

use std::path::Path;

use anyhow::Context as _;
use api::{ApiClient, Endpoints};

use super::super::process::BenchProcess;
use super::QosRun;
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::table::QosTable;

/// Measures each of them.
pub(crate) fn measure(
    run: &QosRun<'_>,
    table: &mut QosTable,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    if run.wants("news") {
        news::measure(run, table)?;
    }
    if run.wants("moves") {
        moves::measure(run, table)?;
    }
    if run.wants("trace") {
        trace::measure(run, table, out)?;
    }
    if run.wants("metadata") {
        metadata::measure(run, table)?;
    }
    if run.wants("scale") {
        scale::measure(run, table)?;
    }
    if run.wants("page") {
        page::measure(run, table)?;
    }
    if run.wants("deaths") {
        deaths::measure(run, table)?;
    }
    Ok(())
}

/// A controller of the bed.
pub(super) struct QosController {
    pub(super) client: ApiClient,
    process: BenchProcess,
    pub(super) url: String,
}

impl QosController {
    /// Starts one that decides alone.
    pub(super) fn start(bed: &QosTestBed, name: &str) -> anyhow::Result<QosController> {
        QosController::with(bed, name, "sqlite")
    }

    /// Starts one with a store; it may stand by.
    fn with(bed: &QosTestBed, name: &str, store: &str) -> anyhow::Result<QosController> {
        let socket = bed.dir().join(format!("{name}.sock"));
        QosController::at(bed, name, format!("unix://{}", socket.display()), store)
    }

    /// Starts one that listens there.
    fn at(bed: &QosTestBed, name: &str, url: String, store: &str) -> anyhow::Result<QosController> {
        let data = bed.dir().join(name).display().to_string();
        let words =
            [&bed.sluice(), "controller", "--data", &data, "--listen", &url, "--store", store];
        let words = words.map(String::from);
        let mut process =
            BenchProcess::start(name, &words, &bed.dir().join(format!("{name}.log")))?;
        let client = ApiClient::at(&url.parse::<Endpoints>()?)?;
        process.wait_until(|| client.controller_status().is_ok())?;
        Ok(QosController { client, process, url })
    }
}

/// Starts proxies n0, n1, … of the controllers at `urls`, and waits until each has been given
/// the rules of that version.
pub(super) fn proxies(
    bed: &QosTestBed,
    count: usize,
    urls: &str,
    version: &str,
) -> anyhow::Result<Vec<QosProxy>> {
    let start = |at: usize| {
        let top = format!("controller = \"{urls}\"\nproxy_name = \"n{at}\"");
        bed.proxy(&format!("n{at}"), &QosSetup { top: &top, ..QosSetup::default() })
    };
    let proxies = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_rules(bed, &proxies, version)?;
    Ok(proxies)
}

/// Waits until each proxy has been given the rules of that version.
pub(super) fn wait_for_rules(
    bed: &QosTestBed,
    proxies: &[QosProxy],
    version: &str,
) -> anyhow::Result<()> {
    let have = |proxy: &QosProxy| proxy.api.rules().is_ok_and(|rules| rules.version == version);
    for _ in 0..500 {
        if proxies.iter().all(have) {
            return Ok(());
        }
        bed.wait(super::super::process::LOOK)?;
    }
    None.context("the proxies were not given the rules")
}

/// One rule for all that the readers ask.
fn rules(limit: &str) -> String {
    format!("[[rule]]\nname = \"job\"\nmatch = \"jobid={{job}}\"\nlimit = \"{limit}\"\n")
}
