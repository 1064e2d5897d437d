//! `sluice metrics`: metrics of a running process, for those who do not ask as Prometheus does.
//!
//! ```text
//!   proxy, mount, controller ◄─ GET /metrics ─┐
//!                                             ├─ show ─────► the page
//!                                             ├─ collectd ─► PUTVAL lines, for its exec plugin
//!                                             └─ influx ───► line protocol, POST /write
//! ```
//!
//! Page and names are those of docs/METRICS.md, so there is one table of names for all ways. A
//! process that cannot be asked is asked again at the next interval: it may be starting anew.

mod collectd;
mod influx;
mod samples;

use std::io::{self, Write as _};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use api::{ApiClient, Endpoint};
use clap::Subcommand;
use model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::credentials::CredentialArgs;
use collectd::CollectdOrigin;
use samples::{MetricSample, samples};

/// Shows the metrics of a proxy, a mount or a controller, or hands them to collectd or InfluxDB.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    way: MetricsCommand,
    #[command(flatten)]
    credentials: CredentialArgs,
}

const AFTER_HELP: &str = "\
Names are those of docs/METRICS.md; of histograms number and sum are told, no buckets.

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
    /// Prints the page of now.
    Show {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
    },
    /// Prints PUTVAL lines at each interval: for collectd's exec plugin.
    Collectd {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
        #[command(flatten)]
        pace: PushInterval,
        /// What tells processes of one host apart [default: the process's role]
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
    },
    /// Writes to InfluxDB 1 at each interval.
    Influx {
        #[arg(value_name = "URL", help = FROM)]
        from: Endpoint,
        /// Where InfluxDB answers.
        #[arg(long, value_name = "http://HOST:PORT")]
        to: Endpoint,
        /// The database, which must be there.
        #[arg(long, default_value = "sluice")]
        database: String,
        #[command(flatten)]
        pace: PushInterval,
    },
}

const FROM: &str = "Where the process shows its metrics: --metrics of a proxy, -o metrics of a \
                    mount, or their control API or a controller's";

#[derive(Clone, Debug, clap::Args)]
struct PushInterval {
    /// How often [default: $COLLECTD_INTERVAL, or 10s]
    #[arg(long, value_name = "TIME")]
    every: Option<Nanos>,
    /// Which host the values are of [default: $COLLECTD_HOSTNAME, or this machine's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Once, instead of for ever.
    #[arg(long)]
    once: bool,
}

/// Shows or hands over.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let asked =
        |from: &Endpoint| ApiClient::at(from)?.with(&args.credentials.credentials_for(from));
    match args.way {
        MetricsCommand::Show { from } => {
            let page = asked(&from)?.metrics()?;
            Ok(io::stdout().write_all(page.as_bytes())?)
        }
        MetricsCommand::Collectd { from, pace, instance } => {
            let (client, host, every) = (asked(&from)?, pace.host()?, pace.every()?);
            let interval_s = every.as_secs_f64();
            at_each(every, pace.once, || {
                if !is_read() {
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
                "{database:?} is no database: letters, digits, _ and -"
            );
            let (client, host, every) = (asked(&from)?, pace.host()?, pace.every()?);
            let (server, path) = (ApiClient::at(&to)?, format!("/write?precision=s&db={database}"));
            at_each(every, pace.once, || {
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

/// Does it at each interval and prints what it gives, until nobody reads any more. What else fails
/// is done again at the next interval, unless it is to be done once.
fn at_each(
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
        // What took too long leaves intervals out.
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Whether somebody still reads our output. A collectd that was killed tells nobody, and while
/// there is nothing to print no write would find out.
fn is_read() -> bool {
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
        ensure!(every >= EVERY_MIN, "every {every:?} is too often: {EVERY_MIN:?} or more");
        Ok(every)
    }

    fn host(&self) -> anyhow::Result<String> {
        let told = || std::env::var("COLLECTD_HOSTNAME").ok().filter(|name| !name.is_empty());
        if let Some(host) = self.host.clone().or_else(told) {
            return Ok(host);
        }
        let uname = rustix::system::uname();
        Ok(uname.nodename().to_str().context("this machine's name is no text: give --host")?.into())
    }
}

/// `10.000`, as collectd says it.
fn seconds(text: &str) -> anyhow::Result<Duration> {
    let wrong = || format!("COLLECTD_INTERVAL={text:?} is no number of seconds such as 10.000");
    Duration::try_from_secs_f64(text.parse().with_context(wrong)?).with_context(wrong)
}

/// What the process is.
fn role(samples: &[MetricSample<'_>]) -> String {
    let info = samples.iter().find(|sample| sample.name == api::metrics::INFO.name);
    let role = info.and_then(|info| info.labels.iter().find(|(name, _)| *name == "role"));
    role.map_or_else(|| "process".into(), |(_, role)| role.clone())
}

fn is_database(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.bytes().all(plain)
}

/// Each costs the process a page.
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
            run(Args { way: MetricsCommand::Influx { from, to, database, pace }, credentials })
                .unwrap_err();
        assert_eq!(error.to_string(), "\"a&b\" is no database: letters, digits, _ and -");
    }
}
