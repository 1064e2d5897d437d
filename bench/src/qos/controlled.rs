//! What a controller promises: one limit over many proxies, whatever moves or dies.
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

use super::super::process::Process;
use super::Run;
use super::bed::{Bed, Proxy, Setup};
use super::table::Table;

/// Measures each of them.
pub(crate) fn measure(run: &Run<'_>, table: &mut Table, out: Option<&Path>) -> anyhow::Result<()> {
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
pub(super) struct Controller {
    pub(super) client: ApiClient,
    process: Process,
    pub(super) url: String,
}

impl Controller {
    /// Starts one that decides alone.
    pub(super) fn start(bed: &Bed, name: &str) -> anyhow::Result<Controller> {
        Controller::with(bed, name, "sqlite")
    }

    /// Starts one with a store; it may stand by.
    fn with(bed: &Bed, name: &str, store: &str) -> anyhow::Result<Controller> {
        let socket = bed.dir().join(format!("{name}.sock"));
        Controller::at(bed, name, format!("unix://{}", socket.display()), store)
    }

    /// Starts one that listens there.
    fn at(bed: &Bed, name: &str, url: String, store: &str) -> anyhow::Result<Controller> {
        let data = bed.dir().join(name).display().to_string();
        let words =
            [&bed.sluice(), "controller", "--data", &data, "--listen", &url, "--store", store];
        let words = words.map(String::from);
        let mut process = Process::start(name, &words, &bed.dir().join(format!("{name}.log")))?;
        let client = ApiClient::at(&url.parse::<Endpoints>()?)?;
        process.wait_until(|| client.controller_status().is_ok())?;
        Ok(Controller { client, process, url })
    }
}

/// Starts proxies n0, n1, … of the controllers at `urls`, and waits until each has been given
/// the rules of that version.
pub(super) fn proxies(
    bed: &Bed,
    count: usize,
    urls: &str,
    version: &str,
) -> anyhow::Result<Vec<Proxy>> {
    let start = |at: usize| {
        let top = format!("controller = \"{urls}\"\nnode = \"n{at}\"");
        bed.proxy(&format!("n{at}"), &Setup { top: &top, ..Setup::default() })
    };
    let proxies = (0..count).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    wait_for_rules(bed, &proxies, version)?;
    Ok(proxies)
}

/// Waits until each proxy has been given the rules of that version.
fn wait_for_rules(bed: &Bed, proxies: &[Proxy], version: &str) -> anyhow::Result<()> {
    let have = |proxy: &Proxy| proxy.api.rules().is_ok_and(|rules| rules.version == version);
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
