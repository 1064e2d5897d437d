//! `sluice controller`: one that decides for all proxies.
//!
//! ```text
//!   --data DIR, locked ─► ledger ─► listen ─► (etcd: stand by) ─► records ─► `ready`
//!                                                    SIGTERM: write what was used, end ◄─┘
//! ```

mod config;

use std::path::PathBuf;
use std::time::Duration;

use ::controller::{EtcdClient, StandbyController, StorePlace, Webhook};
use anyhow::Context;
use api::{Endpoint, HostName};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::credentials::CredentialArgs;
use crate::log;

/// Decides for many proxies: rules for all, one limit over all, usage of all.
///
/// Prints a line `listening on URL` for each place, and `ready` each time it begins to decide. SIGTERM writes what was
/// used and ends; proxies serve on with what they hold.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example:\n  sluice controller --data /var/lib/sluice/controller\n  sluice \
                        proxy --export scratch=/mnt/scratch --controller http://127.0.0.1:5650 \
                        --node a\n  sluice rule start jobs --controller http://127.0.0.1:5650 \
                        --match '*' --per jobid --limit 200MB/s\n\nWithout tokens it answers this machine \
                        only, and everybody there; docs/ACCESS.md says how it answers others."
)]
pub(crate) struct Args {
    /// A TOML file with keys of the names below, `on_event` for --on-event; flags are written over
    /// what it says.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where it keeps what it knows; each controller has a directory of its own. It must be given
    /// here or in the file.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where it answers, http://IP:PORT of this machine's loopback, unix:///path, or, with
    /// tokens and a certificate, https://IP:PORT; may be repeated. Port 0 lets the system choose.
    /// http://127.0.0.1:5650, if nothing is said.
    #[arg(long, value_name = "URL")]
    listen: Vec<Endpoint>,
    /// A name under which it answers at a loopback address, besides localhost and loopback
    /// addresses; may be repeated. For a reverse proxy that passes its own name on.
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<HostName>,
    /// Where the other controllers of one etcd reach this one; where it listens, if nothing is
    /// said.
    #[arg(long, value_name = "URL")]
    advertise: Option<Endpoint>,
    /// Where it keeps what people decide: `sqlite`, in its directory, if nothing is said, or
    /// `etcd:http://HOST:PORT,…`: of the controllers with one etcd one leads, and the others wait.
    #[arg(long, value_name = "STORE", value_parser = store)]
    store: Option<StorePlace>,
    /// Its certificate, for https:// places (`sluice cert`).
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, which nobody else may read.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Proxies whose certificate this authority signed need no token.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// What it shows the leader while it stands by.
    #[command(flatten)]
    credentials: CredentialArgs,
    /// A command that is run for each event (`sluice events` shows them), with the event as JSON
    /// on its standard input; killed after 10 s. Words, or a line for the shell.
    #[arg(long, value_name = "COMMAND")]
    on_event: Option<String>,
    /// Where each event is posted as JSON; five times more if that fails, within half a minute.
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
        // Where it stands again, the system is not to choose other ports.
        let places = standing.listeners().iter().map(|place| place.parse());
        settings.listen = places.collect::<Result<_, _>>()?;
        let Some(controller) = standing.lead(&mut ends)? else { return Ok(()) };
        log::announce("ready");
        while controller.leads_after(LOOK) {
            if ends() {
                info!("ending; the proxies serve on with what they hold");
                return Ok(());
            }
        }
        warn!("another controller may lead now; this one stands by again");
    }
}

/// `sqlite` or `etcd:URL,URL`.
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
        false => Err("give sqlite or etcd:http://HOST:PORT,http://HOST:PORT".into()),
    }
}

/// What its keys in etcd begin with.
const PREFIX: &str = "/sluice";
/// How often it is looked for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Where a controller answers unless it was told otherwise.
pub(crate) const DEFAULT_LISTEN: &str = "http://127.0.0.1:5650";
