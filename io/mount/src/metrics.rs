//! The mount's page of metrics, made at each scrape.
//!
//! ```text
//!   GET /metrics ─► the export, if it is mounted still ─► its files, nodes, write-behind
//!                                                    └──► sessions ─► channels: calls, connections
//! ```
//!
//! Channels count what their own lock covers; everything else is looked up. Nothing is kept for
//! metrics alone, and a scrape does not keep the mount alive.

use std::collections::BTreeMap;
use std::sync::Weak;

use api::MetricsPage;
use api::metrics as names;
use session::client::ChannelStats;

use crate::filesystem::MountFsState;
use crate::options::MountSettings;

/// The metrics of a mount.
pub(crate) struct MountMetrics {
    export: Weak<MountFsState>,
    source: String,
    at: String,
}

impl MountMetrics {
    /// Of what is about to be mounted.
    pub(crate) fn of(export: Weak<MountFsState>, settings: &MountSettings) -> MountMetrics {
        let at = settings.at.display().to_string();
        MountMetrics { export, source: settings.source.clone(), at }
    }

    /// The page of now.
    pub(crate) fn page(&self) -> String {
        let mut page = MetricsPage::new();
        page.family(&names::INFO).line(&["mount", env!("CARGO_PKG_VERSION")], 1);
        api::write_process_metrics(&mut page);
        page.family(&names::MOUNT_INFO).line(&[&self.source, &self.at], 1);
        let Some(export) = self.export.upgrade() else { return page.finish() };
        let links = tallies(&export);
        let mut sum = ChannelStats::default();
        links.values().for_each(|tally| sum += *tally);
        let mut calls = page.family(&names::MOUNT_CALLS);
        calls.line(&["ok"], sum.ok);
        calls.line(&["error"], sum.errors);
        let mut connected = page.family(&names::MOUNT_CONNECTED);
        links.iter().for_each(|(source, tally)| connected.line(&[source], tally.connected));
        let mut lost = page.family(&names::MOUNT_LOST);
        links.iter().for_each(|(source, tally)| lost.line(&[source], tally.connections_down));
        let shared = &export.homes.shared;
        page.single(&names::MOUNT_FILES, shared.files.count() as u64);
        page.single(&names::MOUNT_NODES, export.nodes.count() as u64);
        page.single(&names::MOUNT_BEHIND, shared.write_behind.bytes());
        let leases = shared.leases.stats();
        page.single(&names::MOUNT_LEASES, leases.held);
        page.single(&names::MOUNT_RECALLS, leases.recalls);
        page.single(&names::MOUNT_RECALL_MAX, leases.recall_max.get());
        let mut local = page.family(&names::MOUNT_LOCAL);
        local.line(&["lookup"], leases.lookups);
        local.line(&["getattr"], leases.attributes);
        local.line(&["list"], leases.listings);
        local.line(&["open"], leases.opens);
        page.finish()
    }
}

/// Returns the counters of the sessions with each proxy, by its name.
pub(crate) fn tallies(export: &MountFsState) -> BTreeMap<String, ChannelStats> {
    let mut tallies: BTreeMap<String, ChannelStats> = BTreeMap::new();
    for link in &export.homes.links {
        *tallies.entry(link.name()).or_default() += link.tally();
    }
    tallies
}
