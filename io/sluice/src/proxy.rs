//! `sluice proxy`: starts a proxy from flags and file, and handles its signals.
//!
//! ```text
//!   SIGTERM, SIGINT ─► drain: no new connections, what is in flight is answered ─► exit 0
//!     again         ─► exit 1 at once
//!   SIGHUP          ─► reload file, flags and rules; after an error the old ones stay in force
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use ::proxy::config::{ApiSocket, ExportConfig, GroupConfig, ProxyConfig, Squash};
use ::proxy::control::{self, ProxyControl as _};
use ::proxy::{ControllerClient, Server};
use anyhow::Context;
use http::{Endpoints, MetricsAddress, MetricsServer, ServerAddress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use crate::credentials::CredentialArgs;
use crate::log;

/// Serve directories over 9P2000.L and schedule every request by job
///
/// Prints `listening on ADDRESS` for each listener, `metrics at ADDRESS` with --metrics, and then
/// `ready`. On SIGTERM it answers the requests in flight and exits; on SIGHUP it reloads
/// configuration and rules.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  sluice proxy --export scratch=/mnt/scratch --listen \
                        tcp://127.0.0.1:5640 --rules rules.toml\n  mount -t 9p -o \
                        trans=tcp,port=5640,version=9p2000.L,aname=scratch 127.0.0.1 /mnt\n\n\
                        Flags take precedence over the configuration file (docs/CONFIG.md).")]
pub(crate) struct Args {
    /// Directory to serve and its name for clients; may be repeated.
    #[arg(long, value_name = "NAME=DIR", value_parser = export)]
    export: Vec<(String, PathBuf)>,
    /// Address for clients, tcp://IP:PORT or unix:///path, in place of the configured list; may be
    /// repeated [default: tcp://127.0.0.1:5640]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<ServerAddress>,
    /// Users that are mapped to nobody: root, all or none [default: root]
    #[arg(long, value_name = "USERS")]
    squash: Option<Squash>,
    /// Rule file (docs/RULES.md) [default: none, one class for all requests]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// URL of the controller, which then provides the rules: https://HOST:PORT,
    /// http://127.0.0.1:PORT or unix:///path, with commas between several (docs/CONTROLLER.md).
    #[arg(long, value_name = "URL")]
    controller: Option<Endpoints>,
    /// The credentials at the controller (docs/ACCESS.md).
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Name of the proxy at the controller [default: this machine's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Names of all proxies of this one's group, with commas between them; `--name` is one of them
    /// [default: none, the proxy is alone]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    group: Vec<String>,
    /// Configuration file (docs/CONFIG.md) [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket of the control API: unix:///path, off, or auto for unix:///run/sluice/proxy.sock
    /// [default: auto]
    #[arg(long, value_name = "unix:///PATH")]
    api: Option<ApiSocket>,
    /// Address of metrics as Prometheus text, besides the control API: http://IP:PORT or
    /// unix:///path [default: none]
    #[arg(long, value_name = "http://IP:PORT")]
    metrics: Option<MetricsAddress>,
    /// File for a compact trace of every request (see `sluice trace`).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Dispatch in order of arrival, to measure the cost of scheduling.
    #[arg(long)]
    no_schedule: bool,
    /// Name of an export in which every change is refused; may be repeated.
    #[arg(long, value_name = "NAME")]
    readonly: Vec<String>,
}

/// Runs the proxy until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.config()?;
    // Before any thread starts and before `ready`: a signal must not find the default action.
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let (api, metrics) = (config.api.clone(), config.metrics.clone());
    let server = Server::start(config)?;
    let link = ControllerClient::start(&server)?;
    let control = control::start(&api, server.clone())?;
    let metrics = metrics.map(|at| show_metrics(&at, server.clone())).transpose()?;
    for address in server.addresses() {
        log::announce(&format!("listening on {address}"));
    }
    if let Some(metrics) = &metrics {
        log::announce(&format!("metrics at {}", metrics.address()));
    }
    log::announce("ready");
    for signal in signals.forever() {
        match signal {
            SIGHUP => reload(&args, &server),
            _ => break,
        }
    }
    info!("draining; a second signal exits at once");
    let ends_at_once = api::critical(move || {
        if signals.forever().any(|signal| signal != SIGHUP) {
            std::process::exit(1);
        }
    });
    std::thread::Builder::new().name("signals".into()).spawn(ends_at_once)?;
    if !server.drain() {
        warn!("requests left unanswered after drain_timeout");
    }
    drop((control, metrics, link));
    Ok(())
}

fn show_metrics(at: &MetricsAddress, server: Arc<Server>) -> anyhow::Result<MetricsServer> {
    if at.is_open_to_others() {
        warn!("anybody who can connect to {at} can read names of jobs and numbers of users");
    }
    Ok(MetricsServer::start(at, move || server.metrics())?)
}

/// Reloads configuration and rules; after an error the old ones stay in force.
fn reload(args: &Args, server: &Server) {
    let outcome = args.config().and_then(|config| Ok(server.reload(config)?));
    match outcome {
        Ok(()) => info!("reloaded configuration and rules"),
        Err(error) => {
            error!("reload failed; the old configuration and rules stay in force: {error:#}")
        }
    }
}

impl Args {
    /// Merges the file, if there is one, and the flags, which take precedence.
    fn config(&self) -> anyhow::Result<ProxyConfig> {
        let mut config = match &self.config {
            Some(path) => ProxyConfig::load(path)?,
            None => ProxyConfig::default(),
        };
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        for (name, dir) in &self.export {
            match config.export.iter_mut().find(|export| export.name == *name) {
                Some(export) => export.dir.clone_from(dir),
                None => config.export.push(ExportConfig::new(name, dir)),
            }
        }
        for name in &self.readonly {
            let export = config.export.iter_mut().find(|export| export.name == *name);
            let export = export.with_context(|| format!("--readonly: no export {name:?}"))?;
            export.readonly = true;
        }
        config.squash = self.squash.unwrap_or(config.squash);
        config.schedule &= !self.no_schedule;
        config.api = self.api.clone().unwrap_or(config.api);
        config.metrics = self.metrics.clone().or(config.metrics);
        config.rules = self.rules.clone().or(config.rules);
        config.controller = self.controller.clone().or(config.controller);
        let shown = self.credentials.files();
        config.controller_ca = shown.ca.or(config.controller_ca);
        config.controller_token_file = shown.token_file.or(config.controller_token_file);
        config.controller_cert = shown.cert.or(config.controller_cert);
        config.controller_key = shown.key.or(config.controller_key);
        config.proxy_name = self.name.clone().or(config.proxy_name);
        if !self.group.is_empty() {
            let group = config.group.get_or_insert_with(|| GroupConfig::new(Vec::new()));
            group.proxies.clone_from(&self.group);
        }
        config.trace = self.trace.clone().or(config.trace);
        Ok(config)
    }
}

/// Parses `NAME=DIR`.
fn export(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => Ok((name.into(), dir.into())),
        _ => Err(format!("{text:?} is not NAME=DIR such as scratch=/mnt/scratch")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ProxyCli {
        #[command(flatten)]
        args: Args,
    }

    fn config(flags: &[&str]) -> anyhow::Result<ProxyConfig> {
        ProxyCli::try_parse_from(["proxy"].iter().chain(flags))?.args.config()
    }

    #[test]
    fn flags_are_written_over_the_file() {
        let file = std::env::temp_dir().join(format!("sluice-flags-{}", std::process::id()));
        let text = "listen = [\"tcp://[::1]:1\"]\nsquash = \"all\"\nthreads = 3\nrules = \"/old\"\n\
                    [[export]]\nname = \"a\"\ndir = \"/old\"\nreadonly = true\n";
        std::fs::write(&file, text).unwrap();
        let path = file.display().to_string();
        let flags = "--export a=/new --export b=/b --listen tcp://127.0.0.1:0 --listen unix:///s \
                     --squash none --api off --metrics http://127.0.0.1:0 --trace /t --no-schedule \
                     --readonly b --controller http://127.0.0.1:1 --name n --group m,n --config";
        let flags: Vec<_> = flags.split(' ').filter(|flag| !flag.is_empty()).collect();
        let config = config(&[&flags[..], &[&path]].concat()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let export = |name: &str, dir: &str| ExportConfig {
            readonly: true,
            ..ExportConfig::new(name, dir.as_ref())
        };
        let expected = ProxyConfig {
            listen: vec!["tcp://127.0.0.1:0".parse().unwrap(), "unix:///s".parse().unwrap()],
            squash: Squash::None,
            threads: 3,
            api: ApiSocket::Off,
            metrics: Some("http://127.0.0.1:0".parse().unwrap()),
            rules: Some("/old".into()),
            controller: Some("http://127.0.0.1:1".parse().unwrap()),
            proxy_name: Some("n".into()),
            group: Some(GroupConfig::new(vec!["m".into(), "n".into()])),
            trace: Some("/t".into()),
            schedule: false,
            export: vec![export("a", "/new"), export("b", "/b")],
            ..ProxyConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_read_only_export_that_is_not_there_is_an_error_and_not_a_writable_one() {
        let error = config(&["--export", "a=/", "--readonly", "b"]).unwrap_err();
        assert_eq!(error.to_string(), "--readonly: no export \"b\"");
    }

    #[test]
    fn flags_that_cannot_be_are_refused() {
        for flags in [
            ["--export", "a"],
            ["--export", "=/"],
            ["--listen", "localhost:1"],
            ["--squash", "some"],
            ["--api", "tcp://127.0.0.1:1"],
            ["--controller", "127.0.0.1:1"],
            ["--metrics", "127.0.0.1:9400"],
        ] {
            assert!(config(&flags).is_err(), "{flags:?}");
        }
    }
}
