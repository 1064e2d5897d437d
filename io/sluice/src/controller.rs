//! `sluice controller`: rules, limits and usage over all proxies.
//!
//! ```text
//!   --data DIR, locked ─► ledger ─► listen ─► (etcd: standby) ─► records ─► `ready`
//!                                                     SIGTERM: write usage, exit ◄─┘
//! ```

mod config;
mod reservations;

use std::path::PathBuf;
use std::time::Duration;

use ::controller::{EtcdClient, StandbyController, StorePlace, Webhook};
use anyhow::Context;
use http::{Endpoint, HostName};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::credentials::CredentialArgs;
use crate::log;

/// Run a controller: rules, limits and usage over many proxies
///
/// Prints `listening on URL` for each address, and `ready` each time it becomes the leader. On
/// SIGTERM it writes the usage to the ledger and exits; proxies continue with their shares.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example:\n  sluice controller --data /var/lib/sluice/controller\n  sluice \
                        proxy --export scratch=/mnt/scratch --controller http://127.0.0.1:5650 \
                        --name a\n  sluice rule start jobs --controller http://127.0.0.1:5650 \
                        --match '*' --per jobid --limit 200MB/s\n\nWithout tokens it serves every user of \
                        this machine and no other machine; see docs/ACCESS.md.\nA standby \
                        connects to its leader with --ca, --token-file, --cert and --key."
)]
pub(crate) struct Args {
    /// TOML file with a key for each flag, such as `on_event` for --on-event, `allowed_hosts`, and
    /// `[reservations]`; flags take precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// State directory, one per controller; required here or in --config.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address to listen on: http://IP:PORT of loopback, unix:///path or, with tokens and a
    /// certificate, https://IP:PORT; may be repeated. For port 0 the system chooses a port
    /// [default: http://127.0.0.1:5650]
    #[arg(long, value_name = "URL")]
    listen: Vec<Endpoint>,
    /// Host name to accept at a loopback address besides localhost, for a reverse proxy that
    /// forwards its own name; may be repeated.
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<HostName>,
    /// URL of this controller for the other controllers of its etcd [default: where it listens]
    #[arg(long, value_name = "URL")]
    advertise: Option<Endpoint>,
    /// Store of rules, tokens and proxies: `sqlite`, or `etcd:http://HOST:PORT,…` for one leader
    /// with standbys [default: sqlite]
    #[arg(long, value_name = "STORE", value_parser = store)]
    store: Option<StorePlace>,
    /// Server certificate for https:// addresses (`sluice cert`).
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, readable by its owner only.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Certificate authority of proxies: a proxy with a certificate that it signed needs no token.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// The credentials of a standby at its leader.
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Command to run for each event (see `sluice events`), with the event as JSON on standard
    /// input. A shell runs it if it contains shell syntax. It is killed after 10 s.
    #[arg(long, value_name = "COMMAND")]
    on_event: Option<String>,
    /// URL to post each event to as JSON; up to five retries within 30 s.
    #[arg(long, value_name = "http://HOST:PORT/PATH")]
    webhook: Option<Webhook>,
}

/// Runs the controller until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut settings = config::settings(args)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    api::raise_descriptor_limit();
    let mut ends = || signals.pending().next().is_some();
    loop {
        let standing = StandbyController::begin(&settings)?;
        for place in standing.listeners() {
            log::announce(&format!("listening on {place}"));
        }
        // As a standby after lost leadership it keeps the ports that the system chose.
        let places = standing.listeners().iter().map(|place| place.parse());
        settings.listen = places.collect::<Result<_, _>>()?;
        let Some(controller) = standing.lead(&mut ends)? else { return Ok(()) };
        log::announce("ready");
        while controller.leads_after(SIGNAL_CHECK_INTERVAL) {
            if ends() {
                info!("shutting down; proxies continue with their shares");
                return Ok(());
            }
        }
        warn!("lost leadership; continuing as a standby");
    }
}

/// Parses `sqlite` or `etcd:URL,URL`.
pub(crate) fn store(text: &str) -> Result<StorePlace, String> {
    if text == "sqlite" {
        return Ok(StorePlace::Data);
    }
    let endpoints: Vec<_> = text.strip_prefix("etcd:").unwrap_or_default().split(',').collect();
    match endpoints.iter().all(|endpoint| endpoint.parse::<Endpoint>().is_ok()) {
        true => {
            let endpoints = endpoints.into_iter().map(str::to_owned).collect();
            Ok(StorePlace::Etcd(EtcdClient { endpoints, prefix: PREFIX.into(), user: None }))
        }
        false => Err(format!("{text:?} is not sqlite or etcd:http://HOST:PORT,http://HOST:PORT")),
    }
}

/// Prefix of the controller's keys in etcd.
const PREFIX: &str = "/sluice";
/// Interval between checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Default address of a controller.
pub(crate) const DEFAULT_LISTEN: &str = http::credentials::DEFAULT_CONTROLLER;
