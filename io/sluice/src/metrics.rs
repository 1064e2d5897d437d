//! `sluice metrics`: metrics of a running process, for systems other than Prometheus.
//!
//! ```text
//!   proxy, mount, controller ◄─ GET /metrics ─┐
//!                                             ├─ show ─────► the page
//!                                             ├─ collectd ─► PUTVAL lines, for its exec plugin
//!                                             └─ influx ───► line protocol, POST /write
//! ```
//!
//! Page and names are those of docs/METRICS.md, so there is one table of names for all formats. A
//! failed call is retried at the next interval: the process may be restarting.

mod collectd;
mod influx;
mod samples;

use std::io::{self, Write as _};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use http::{ApiClient, Endpoint};
use model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::credentials::CredentialArgs;
use collectd::CollectdOrigin;
use samples::{MetricSample, samples};

/// Show the metrics of a process, or send them to collectd or InfluxDB
///
/// The process is a proxy, a mount or a controller. The options below precede the subcommand.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: MetricsCommand,
    #[command(flatten)]
    credentials: CredentialArgs,
}

const AFTER_HELP: &str = "\
Names are those of docs/METRICS.md. collectd and InfluxDB get the count and sum of a histogram, and
not its buckets.

Examples:
  sluice metrics show unix:///run/sluice/proxy.sock
  sluice metrics --token-file prom.token show http://127.0.0.1:5650
  sluice metrics influx http://127.0.0.1:9400 --to http://127.0.0.1:8086 --database sluice

In collectd's configuration:
  LoadPlugin exec
  <Plugin exec>
    Exec \"USER\" \"sluice\" \"metrics\" \"collectd\" \"http://127.0.0.1:9400\"
  </Plugin>";

#[derive(Clone, Debug, Subcommand)]
enum MetricsCommand {
    /// Print the current metrics as Prometheus text
    Show {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
    },
    /// Print PUTVAL lines at each interval, for collectd's exec plugin
    Collectd {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
        #[command(flatten)]
        pace: PushInterval,
        /// Name that distinguishes the processes of one host [default: the process's role]
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
    },
    /// Write metrics to InfluxDB, version 1, at each interval
    Influx {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
        /// URL of InfluxDB.
        #[arg(long, value_name = "http://HOST:PORT")]
        to: Endpoint,
        /// Name of an existing database.
        #[arg(long, default_value = "sluice")]
        database: String,
        #[command(flatten)]
        pace: PushInterval,
    },
}

const FROM: &str = "URL of the metrics: --metrics of a proxy, -o metrics of a mount, or the API of \
                    a proxy or controller";

#[derive(Clone, Debug, clap::Args)]
struct PushInterval {
    /// Interval between reads [default: $COLLECTD_INTERVAL, or 10s]
    #[arg(long, value_name = "SPAN")]
    every: Option<Nanos>,
    /// Host name of the values [default: $COLLECTD_HOSTNAME, or this machine's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// One reading instead of a loop.
    #[arg(long)]
    once: bool,
}

/// Runs `sluice metrics`: prints metrics, or sends them to InfluxDB.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let asked =
        |from: &Endpoint| ApiClient::at(from)?.with(&args.credentials.credentials_for(from));
    match args.command {
        MetricsCommand::Show { from } => {
            let page = asked(&from)?.metrics()?;
            Ok(io::stdout().write_all(page.as_bytes())?)
        }
        MetricsCommand::Collectd { from, pace, instance } => {
            let (client, host, every) = (asked(&from)?, pace.host()?, pace.every()?);
            let interval_s = every.as_secs_f64();
            run_at_intervals(every, pace.once, || {
                if !has_reader() {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                }
                let page = client.metrics()?;
                let samples = samples(&page);
                let instance = instance.clone().unwrap_or_else(|| role(&samples));
                let origin = CollectdOrigin { host: host.clone(), instance, interval_s };
                let lines = samples.iter().filter_map(|sample| collectd::line(sample, &origin));
                Ok(lines.collect())
            })
        }
        MetricsCommand::Influx { from, to, database, pace } => {
            ensure!(
                is_database(&database),
                "{database:?} is not a database name of letters, digits, _ and -"
            );
            let (client, host, every) = (asked(&from)?, pace.host()?, pace.every()?);
            let (server, path) = (ApiClient::at(&to)?, format!("/write?precision=s&db={database}"));
            run_at_intervals(every, pace.once, || {
                let page = client.metrics()?;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
                let samples = samples(&page);
                let text: String = samples.iter().map(|s| influx::line(s, &host, now)).collect();
                let failed = || format!("cannot write to {to}, database {database}");
                server.post_text(&path, &text).with_context(failed)?;
                Ok(String::new())
            })
        }
    }
}

/// Runs `act` at each interval and prints its output, until the output has no reader. Other
/// errors are retried at the next interval, except with `once`.
fn run_at_intervals(
    every: Duration,
    once: bool,
    mut act: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut out = io::stdout();
    let mut next = Instant::now();
    loop {
        match act() {
            Ok(text) => out.write_all(text.as_bytes()).and_then(|()| out.flush())?,
            Err(error) if once || error.is::<io::Error>() => return Err(error),
            Err(error) => warn!("{error:#}"),
        }
        if once {
            return Ok(());
        }
        // Intervals that passed during a slow call are skipped.
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Returns whether stdout still has a reader. Without output no write would fail after collectd
/// was killed.
fn has_reader() -> bool {
    let out = io::stdout();
    let mut at = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut at, Some(&now)).is_err() || !at[0].revents().contains(PollFlags::ERR)
}

impl PushInterval {
    fn every(&self) -> anyhow::Result<Duration> {
        let given = match self.every {
            Some(every) => Some(Duration::from_nanos(every.get())),
            None => {
                std::env::var("COLLECTD_INTERVAL").ok().map(|text| seconds(&text)).transpose()?
            }
        };
        let every = given.unwrap_or(Duration::from_secs(10));
        ensure!(every >= EVERY_MIN, "interval {every:?} is too short; give {EVERY_MIN:?} or more");
        Ok(every)
    }

    fn host(&self) -> anyhow::Result<String> {
        let told = || std::env::var("COLLECTD_HOSTNAME").ok().filter(|name| !name.is_empty());
        if let Some(host) = self.host.clone().or_else(told) {
            return Ok(host);
        }
        let uname = rustix::system::uname();
        Ok(uname
            .nodename()
            .to_str()
            .context("this machine's name is not UTF-8; give --host")?
            .into())
    }
}

/// Parses a number of seconds as collectd writes it: `10.000`.
fn seconds(text: &str) -> anyhow::Result<Duration> {
    let wrong = || format!("COLLECTD_INTERVAL={text:?} is not a number of seconds such as 10.000");
    Duration::try_from_secs_f64(text.parse().with_context(wrong)?).with_context(wrong)
}

/// Returns the role of the process.
fn role(samples: &[MetricSample<'_>]) -> String {
    let info = samples.iter().find(|sample| sample.name == api::metrics::INFO.name);
    let role = info.and_then(|info| info.labels.iter().find(|(name, _)| *name == "role"));
    role.map_or_else(|| "process".into(), |(_, role)| role.clone())
}

fn is_database(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.bytes().all(plain)
}

/// Shortest interval: each reading costs the process a page.
const EVERY_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_as_collectd_says_and_what_is_none_is_named() {
        assert_eq!(seconds("10.000").unwrap(), Duration::from_secs(10));
        for text in ["", "x", "-1", "1e300"] {
            let error = seconds(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        let pace = |every: &str| PushInterval { every: every.parse().ok(), host: None, once: true };
        assert!(pace("1ms").every().is_err());
        assert_eq!(pace("1s").every().unwrap(), Duration::from_secs(1));
    }

    #[test]
    fn what_is_no_database_is_refused_before_anything_is_asked() {
        let from: Endpoint = "unix:///nonexistent".parse().unwrap();
        let pace = PushInterval { every: None, host: None, once: true };
        let (database, credentials) = ("a&b".to_owned(), CredentialArgs::default());
        let to = "http://127.0.0.1:1".parse().unwrap();
        let error =
            run(Args { command: MetricsCommand::Influx { from, to, database, pace }, credentials })
                .unwrap_err();
        assert_eq!(error.to_string(), "\"a&b\" is not a database name of letters, digits, _ and -");
    }
}
