//! `sluice top`: who gets what from a proxy right now.
//!
//! ```text
//!   proxy, controller, recording ─► sample ─┐
//!                         (source)  sample ─┴► rates ─► rows ─► screen (view) | table (--once) | JSON
//! ```
//!
//! The proxy keeps counters only; the rates are made here, from two samples and the
//! proxy's own clock, so a viewer that is late or slow shows right figures all the same.

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

/// Where a proxy's control socket is unless it was told otherwise.
pub(crate) const DEFAULT_API: &str = "unix:///run/sluice/proxy.sock";

/// Shows what each job, user, class or client gets: a live table, in place.
///
/// Of one proxy, or over all proxies of a controller.
///
/// MB/s read and written, backend operations per second, the mean time a request waited
/// for its turn (QUEUE) and until its answer (LATENCY, the queue included), requests
/// waiting and at the backend, slots held, and whether a limit holds it back. Without
/// scheduling, what connections know, and why the rest is not there.
#[derive(Debug, clap::Args)]
#[command(after_help = "Keys: j u c n rows by job, user, class, client node; left and right \
                        choose the column to sort by, r turns the order round; up, down, page \
                        up, page down move; q quits.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: ServerArgs,
    /// What the rows stand for.
    #[arg(long, value_enum, default_value = "job")]
    by: TopBy,
    /// What the rows are ordered by.
    #[arg(long, value_enum, default_value = "load")]
    sort: TopSort,
    /// The time between two samples, such as 500ms or 2s.
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Nanos,
    /// Print one table over one interval and end.
    #[arg(long)]
    once: bool,
    /// Print JSON instead: one object for each interval, one to a line.
    #[arg(long)]
    json: bool,
    /// Keep what is shown in this file, which must not be there yet.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Show a recording instead of what is now; with --once one table over all of it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["api", "controller", "record"])]
    play: Option<PathBuf>,
    /// How many times as fast as it was, 0.1 to 100.
    #[arg(long, value_name = "N", requires = "play", default_value = "1", value_parser = speed)]
    speed: f64,
}

/// What one interval showed.
#[derive(Debug, Serialize)]
pub(crate) struct TopReport {
    by: TopBy,
    /// When the interval ended, in nanoseconds since the proxy started.
    t_ns: u64,
    rows: Vec<TopRow>,
    /// Device slots held now, by target.
    slots: BTreeMap<String, u64>,
    /// What the rows do not say, and why.
    note: Option<String>,
    status: ProxyStatus,
}

/// Runs `sluice top`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut watch = TopWatch::new(&args)?;
    if args.json || args.once {
        return print(&args, &mut watch);
    }
    anyhow::ensure!(
        std::io::stdout().is_terminal(),
        "stdout is no terminal: use --once for a table or --json"
    );
    screen::run(watch, args.by, args.sort, args.interval.to_duration())
}

/// Tables or JSON, one for each interval; with `--once` a single one.
fn print(args: &Args, watch: &mut TopWatch) -> anyhow::Result<()> {
    let interval = args.interval.to_duration();
    let mut due = Instant::now();
    watch.sample()?.context("there is no frame in the recording")?;
    if args.once && args.play.is_some() {
        let first = watch.now.clone();
        let mut last = None;
        while let Some(status) = watch.sample()? {
            last = Some(status);
        }
        watch.earlier = first;
        let status = last.context("there is one frame only in the recording: no rates")?;
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

/// What is under watch: the last two samples and the names of users.
pub(crate) struct TopWatch {
    source: TopSource,
    recorder: Option<TopRecorder>,
    earlier: TopSample,
    now: TopSample,
    note: Option<String>,
    users: BTreeMap<u32, String>,
}

impl TopWatch {
    /// How long one call may take: a viewer that hangs for longer looks dead. A controller waits
    /// for its proxies for two seconds.
    const TIME_LIMIT: Duration = Duration::from_secs(3);

    fn new(args: &Args) -> anyhow::Result<TopWatch> {
        let source = match &args.play {
            Some(path) => TopSource::Recording(TopPlayer::open(path, args.speed)?),
            None => TopSource::Live(args.place.answerer()?.with_time_limit(TopWatch::TIME_LIMIT)),
        };
        let recorder = args.record.as_deref().map(TopRecorder::new).transpose()?;
        let (earlier, now) = (TopSample::default(), TopSample::default());
        Ok(TopWatch { source, recorder, earlier, now, note: None, users: BTreeMap::new() })
    }

    /// Takes a sample: what was `now` is `earlier` then. `None` at the end of a recording.
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

    /// How long to wait for the next sample.
    fn pause(&self, interval: Duration) -> Duration {
        self.source.pause(self.now.subjects.t_ns, interval)
    }

    /// The rows between the last two samples, in order.
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

/// The user's name here, or the number: the proxy's machine may know others.
fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// A speed at which something is seen to move.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().map_err(|error| error.to_string())?;
    (0.1..=100.0).contains(&speed).then_some(speed).ok_or_else(|| "give 0.1 to 100".into())
}

/// An interval that neither spins nor seems to hang.
fn interval(text: &str) -> Result<Nanos, String> {
    let span = text.parse::<Nanos>().map_err(|error| error.to_string())?;
    let bounds = Nanos::from_millis(50)..=Nanos::from_secs(3600);
    bounds.contains(&span).then_some(span).ok_or_else(|| "give 50ms to 1h".into())
}
