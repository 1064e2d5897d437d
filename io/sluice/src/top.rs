//! `sluice top`: who gets what from a proxy right now.
//!
//! ```text
//!   proxy's control socket ─► sample ─┐
//!                             sample ─┴► rates ─► rows ─► screen (view) | table (--once) | JSON
//! ```
//!
//! The proxy keeps counters only; the rates are made here, from two samples and the
//! proxy's own clock, so a viewer that is late or slow shows right figures all the same.

mod rates;
mod screen;
pub(crate) mod table;
mod view;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use api::{Address, Client, Status};
use model::Nanos;
use nix::unistd::{Uid, User};
use serde::Serialize;

use rates::{By, Row, Sample, Sort};

/// Where a proxy's control socket is unless it was told otherwise.
pub(crate) const DEFAULT_API: &str = "unix:///run/sluice/proxy.sock";

/// Shows what each job, user, class or client gets: a live table, in place.
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
    /// The proxy's control socket.
    #[arg(long, value_name = "unix:///PATH", default_value = DEFAULT_API)]
    api: Address,
    /// What the rows stand for.
    #[arg(long, value_enum, default_value = "job")]
    by: By,
    /// What the rows are ordered by.
    #[arg(long, value_enum, default_value = "load")]
    sort: Sort,
    /// The time between two samples, such as 500ms or 2s.
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Nanos,
    /// Print one table over one interval and end.
    #[arg(long)]
    once: bool,
    /// Print JSON instead: one object for each interval, one to a line.
    #[arg(long)]
    json: bool,
}

/// What one interval showed.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    by: By,
    /// When the interval ended, in nanoseconds since the proxy started.
    t_ns: u64,
    rows: Vec<Row>,
    /// Device slots held now, by target.
    slots: BTreeMap<String, u64>,
    /// What the rows do not say, and why.
    note: Option<&'static str>,
    status: Status,
}

/// What there is to say where nothing is scheduled.
const NOT_SCHEDULING: &str = "not scheduling (--no-schedule): connections stand for the user and \
                              job that attached first; nothing is known of queue, latency, slots \
                              and classes";

/// Runs `sluice top`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut watch = Watch::new(&args.api)?;
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
fn print(args: &Args, watch: &mut Watch) -> anyhow::Result<()> {
    let interval = args.interval.to_duration();
    let mut due = Instant::now();
    watch.sample()?;
    loop {
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let status = watch.sample()?;
        let report = watch.report(status, args.by, args.sort, false);
        let mut text = if args.json {
            serde_json::to_string(&report).context("cannot write JSON")?
        } else {
            view::plain(&report)
        };
        if args.json {
            text.push('\n');
        }
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if args.once {
            return Ok(());
        }
    }
}

/// A proxy under watch: its last two samples and the names of its users.
pub(crate) struct Watch {
    client: Client,
    earlier: Sample,
    now: Sample,
    users: BTreeMap<u32, String>,
}

impl Watch {
    /// How long one call may take: a viewer that hangs for longer looks dead.
    const TIME_LIMIT: Duration = Duration::from_secs(2);

    fn new(address: &Address) -> anyhow::Result<Watch> {
        let client = Client::new(address)?.with_time_limit(Watch::TIME_LIMIT);
        let (earlier, now) = (Sample::default(), Sample::default());
        Ok(Watch { client, earlier, now, users: BTreeMap::new() })
    }

    /// Takes a sample: what was `now` is `earlier` then.
    fn sample(&mut self) -> anyhow::Result<Status> {
        let status = self.client.status()?;
        let now = if status.scheduling {
            let (subjects, classes) = (self.client.subjects()?, self.client.classes()?);
            Sample { subjects, classes, of_connections: false }
        } else {
            Sample::of_connections(self.client.connections()?)
        };
        self.earlier = std::mem::replace(&mut self.now, now);
        Ok(status)
    }

    /// The rows between the last two samples, in order.
    fn report(&mut self, status: Status, by: By, sort: Sort, reversed: bool) -> Report {
        let users = &mut self.users;
        let mut name = |uid| users.entry(uid).or_insert_with(|| user_name(uid)).clone();
        let mut rows = rates::rows(&self.earlier, &self.now, by, &mut name);
        rates::order(&mut rows, sort, reversed);
        let mut slots = BTreeMap::new();
        for class in &self.now.classes.classes {
            *slots.entry(class.target.clone()).or_default() += class.usage.slots;
        }
        let note = (!status.scheduling).then_some(NOT_SCHEDULING);
        Report { by, t_ns: self.now.subjects.t_ns, rows, slots, note, status }
    }
}

/// The user's name here, or the number: the proxy's machine may know others.
fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// An interval that neither spins nor seems to hang.
fn interval(text: &str) -> Result<Nanos, String> {
    let span = text.parse::<Nanos>().map_err(|error| error.to_string())?;
    let bounds = Nanos::from_millis(50)..=Nanos::from_secs(3600);
    bounds.contains(&span).then_some(span).ok_or_else(|| "give 50ms to 1h".into())
}
