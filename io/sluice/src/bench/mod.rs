//! Measuring: a 9P load generator, a comparison with the peers, and the ceilings
//! beside every figure.
//!
//!   p9     ─► load ─► link (one connection) ─► work (what to ask next)
//!   peers  ─► servers (sluice, diod, ganesha, bare) + load + ceilings ─► report
//!   mount  ─► mounts (sluice, bare, sshfs, glusterfs) + fio, find, tar … ─► report
//!   qos    ─► one proxy for each promise, jobs that compete ─► the promise and what was kept
//!   bare   the least a server can do: request → splice → reply
//!
//! The generator must cost less than what it measures, so requests leave and
//! replies are taken in batches, nothing is allocated per request, and of a reply
//! only the first bytes are looked at.

mod bare;
mod ceilings;
pub(crate) mod files;
pub(crate) mod link;
pub(crate) mod load;
mod mount;
mod p9;
mod peers;
pub(crate) mod plan;
mod process;
mod qos;
mod report;
mod rows;
mod servers;
mod session;
pub(crate) mod socket;
pub(crate) mod work;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;

/// Measure any 9P server, or the proxy beside its peers
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Box<What>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    P9(p9::Args),
    Peers(peers::Args),
    Qos(qos::Args),
    Mount(mount::Args),
    #[command(hide = true)]
    Bare(bare::Args),
    #[command(hide = true)]
    MountBare(mount::BareArgs),
}

/// Runs one of the measurements.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match *args.what {
        What::P9(args) => p9::run(args),
        What::Peers(args) => peers::run(args),
        What::Qos(args) => qos::run(args),
        What::Mount(args) => mount::run(args),
        What::Bare(args) => bare::run(args),
        What::MountBare(args) => mount::run_bare(args),
    }
}

/// A flag that SIGINT and SIGTERM raise, so that a run ends through its guards
/// and leaves neither servers nor files behind.
pub(crate) fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    Ok(stop)
}
