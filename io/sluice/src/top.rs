//! `sluice top`: the current service of each job, user, class or client.
//!
//! ```text
//!   proxy, controller, recording ─► sample ─┐
//!                         (source)  sample ─┴► rates ─► rows ─► screen (view) | table (--once) | JSON
//! ```
//!
//! The proxy has only counters; rates are computed here from two samples and the proxy's clock, so
//! a slow viewer shows correct figures.

mod rates;
mod screen;
mod source;
pub(crate) mod table;
mod view;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::ProxyStatus;
use model::Nanos;
use nix::unistd::{Uid, User};
use serde::Serialize;

use crate::server_args::ServerArgs;
use rates::{TopBy, TopRow, TopSample, TopSort};
use source::{TopFrame, TopPlayer, TopRecorder, TopSource};

/// Default control socket of a proxy.
pub(crate) const DEFAULT_API: &str = "unix:///run/sluice/proxy.sock";

/// Show the current service of jobs, users, classes or clients
///
/// Shows a live table of one proxy, or of all proxies of a controller.
///
/// Columns: MB/s read and written, backend operations per second (OPS/s), the mean time of a
/// request in the queue (QUEUE) and until its reply (LATENCY, which includes the queue), requests
/// in the queue (WAITING) and at the backend (RUNNING), slots in use, and whether a limit throttles
/// the row. A proxy with --no-schedule shows only the counters of connections.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keys: j, u, c, n show rows by job, user, class, client node; left and right \
                        choose the column to sort by, r reverses the order; up, down, page up, \
                        page down move; q quits."
)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Grouping of the rows.
    #[arg(long, value_enum, default_value = "job")]
    by: TopBy,
    /// Order of the rows.
    #[arg(long, value_enum, default_value = "load")]
    sort: TopSort,
    /// Time between two samples, 50ms to 1h.
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = interval)]
    interval: Nanos,
    /// One table over one interval instead of a live table.
    #[arg(long)]
    once: bool,
    /// JSON output: one line with an object for each interval.
    #[arg(long)]
    json: bool,
    /// File for a recording of the samples; it must not exist.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Recording to show instead of live samples; with --once, one table over all of it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["proxy", "controller", "record"])]
    play: Option<PathBuf>,
    /// Speed of --play relative to the original, 0.1 to 100.
    #[arg(long, value_name = "N", requires = "play", default_value = "1", value_parser = speed)]
    speed: f64,
}

/// The figures of one interval.
#[derive(Debug, Serialize)]
pub(crate) struct TopReport {
    by: TopBy,
    /// When the interval ended, in nanoseconds since the proxy started.
    t_ns: u64,
    rows: Vec<TopRow>,
    /// Device slots in use now, by target.
    slots: BTreeMap<String, u64>,
    /// What is missing in the rows, and why.
    note: Option<String>,
    status: ProxyStatus,
}

/// Runs `sluice top`: shows the table on the terminal, or prints tables or JSON.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut watch = TopWatch::new(&args)?;
    if args.json || args.once {
        return print(&args, &mut watch);
    }
    anyhow::ensure!(
        std::io::stdout().is_terminal(),
        "stdout is not a terminal; use --once for a table or --json"
    );
    screen::run(watch, args.by, args.sort, args.interval.to_duration())
}

/// Prints tables or JSON, one for each interval; with `--once` a single one.
fn print(args: &Args, watch: &mut TopWatch) -> anyhow::Result<()> {
    let interval = args.interval.to_duration();
    let mut due = Instant::now();
    watch.sample()?.context("the recording contains no frame")?;
    if args.once && args.play.is_some() {
        let first = watch.now.clone();
        let mut last = None;
        while let Some(status) = watch.sample()? {
            last = Some(status);
        }
        watch.earlier = first;
        let status = last.context("the recording contains only one frame: no rates")?;
        return write_report(args, &watch.report(status, args.by, args.sort, false));
    }
    loop {
        due = (due + watch.pause(interval)).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let Some(status) = watch.sample()? else { return Ok(()) };
        write_report(args, &watch.report(status, args.by, args.sort, false))?;
        if args.once {
            return Ok(());
        }
    }
}

fn write_report(args: &Args, report: &TopReport) -> anyhow::Result<()> {
    let text = match args.json {
        true => serde_json::to_string(report).context("cannot write JSON")? + "\n",
        false => view::plain(report),
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// The source with its last two samples and the names of users.
pub(crate) struct TopWatch {
    source: TopSource,
    recorder: Option<TopRecorder>,
    earlier: TopSample,
    now: TopSample,
    note: Option<String>,
    users: BTreeMap<u32, String>,
}

impl TopWatch {
    /// Time limit of one call; the screen does not change during a call. A controller waits for
    /// its proxies for 2 s.
    const TIME_LIMIT: Duration = Duration::from_secs(3);

    fn new(args: &Args) -> anyhow::Result<TopWatch> {
        let source = match &args.play {
            Some(path) => TopSource::Recording(TopPlayer::open(path, args.speed)?),
            None => TopSource::Live(args.server.connect()?.with_time_limit(TopWatch::TIME_LIMIT)),
        };
        let recorder = args.record.as_deref().map(TopRecorder::new).transpose()?;
        let (earlier, now) = (TopSample::default(), TopSample::default());
        Ok(TopWatch { source, recorder, earlier, now, note: None, users: BTreeMap::new() })
    }

    /// Takes a sample and moves `now` to `earlier`. Returns `None` at the end of a recording.
    fn sample(&mut self) -> anyhow::Result<Option<ProxyStatus>> {
        let Some(frame) = self.source.next()? else { return Ok(None) };
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&frame)?;
        }
        let TopFrame { status, sample, note } = frame;
        self.earlier = std::mem::replace(&mut self.now, sample);
        self.note = note;
        Ok(Some(status))
    }

    /// Returns the time to wait before the next sample.
    fn pause(&self, interval: Duration) -> Duration {
        self.source.pause(self.now.subjects.t_ns, interval)
    }

    /// Computes the rows between the last two samples, in order.
    fn report(
        &mut self,
        status: ProxyStatus,
        by: TopBy,
        sort: TopSort,
        reversed: bool,
    ) -> TopReport {
        let users = &mut self.users;
        let mut name = |uid| users.entry(uid).or_insert_with(|| user_name(uid)).clone();
        let mut rows = rates::rows(&self.earlier, &self.now, by, &mut name);
        rates::order(&mut rows, sort, reversed);
        let mut slots = BTreeMap::new();
        for class in &self.now.classes.classes {
            *slots.entry(class.target.clone()).or_default() += class.usage.slots;
        }
        let note = self.note.clone();
        TopReport { by, t_ns: self.now.subjects.t_ns, rows, slots, note, status }
    }
}

/// Returns the user's name on this machine, or the number.
fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// Parses a speed in bounds that are useful to watch.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().map_err(|error| error.to_string())?;
    (0.1..=100.0)
        .contains(&speed)
        .then_some(speed)
        .ok_or_else(|| format!("{text:?} is not a speed from 0.1 to 100"))
}

/// Parses an interval, neither too short nor too long to watch.
fn interval(text: &str) -> Result<Nanos, String> {
    let span = text.parse::<Nanos>().map_err(|error| error.to_string())?;
    let bounds = Nanos::from_millis(50)..=Nanos::from_secs(3600);
    bounds
        .contains(&span)
        .then_some(span)
        .ok_or_else(|| format!("{text:?} is not an interval from 50ms to 1h"))
}
