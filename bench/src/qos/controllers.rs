//! Controllers of a test bed, and proxies that they have.

use std::path::Path;

use anyhow::Context as _;
use http::{ApiClient, Endpoints};

use super::super::process::{BenchProcess, LOOK};
use super::bed::{QosProxy, QosSetup, QosTestBed};

/// A controller of the bed.
pub(super) struct QosController {
    pub(super) client: ApiClient,
    pub(super) process: BenchProcess,
    pub(super) url: String,
}

impl QosController {
    /// Starts one that decides alone.
    pub(super) fn start(bed: &QosTestBed, name: &str) -> anyhow::Result<QosController> {
        QosController::with(bed, name, "sqlite")
    }

    /// Starts one with a store; it may stand by.
    pub(super) fn with(bed: &QosTestBed, name: &str, store: &str) -> anyhow::Result<QosController> {
        let socket = bed.dir().join(format!("{name}.sock"));
        QosController::at(bed, name, format!("unix://{}", socket.display()), store)
    }

    /// Starts one that listens there.
    pub(super) fn at(
        bed: &QosTestBed,
        name: &str,
        url: String,
        store: &str,
    ) -> anyhow::Result<QosController> {
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
    proxies_of(bed, &bed.export(), count, urls, version)
}

/// The same over another directory than the bed's.
pub(super) fn proxies_of(
    bed: &QosTestBed,
    dir: &Path,
    count: usize,
    urls: &str,
    version: &str,
) -> anyhow::Result<Vec<QosProxy>> {
    let start = |at: usize| {
        let top = format!("controller = \"{urls}\"\nproxy_name = \"n{at}\"");
        let dir = Some(dir.to_path_buf());
        bed.proxy(&format!("n{at}"), &QosSetup { top: &top, dir, ..QosSetup::default() })
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
        bed.wait(LOOK)?;
    }
    None.context("the proxies were not given the rules")
}
