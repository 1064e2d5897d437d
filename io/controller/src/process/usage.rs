//! The thread of the ledger: what proxies counted goes in, tables come out.
//!
//! ```text
//!   usage of a report ─► bounded queue ─► Ledger ─► taken: life and number, told with an order
//!   GET /v1/usage     ─►               ─► sums by subject
//!   GET /v1/ledger/…  ─►               ─► what a controller that stands by has not copied
//! ```
//!
//! A commit may take more than a second, so no order waits for this thread. A report that does
//! not fit into the queue is dropped: counters are cumulative, and the proxy tells them again
//! until it hears that they were taken.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::{CountersForm, UsageReport, WrongMessage};
use model::{Kind, Time};
use tokio::sync::oneshot;

use super::counts::Counts;
use super::queue::Inbox;
use crate::ledger::{
    Copied, Counters, Cursor, Ledger, LedgerError, Payer, Report, ReportLine, SubjectKind,
};

/// What this thread is asked.
pub(crate) enum Ask {
    Report(Box<Counted>),
    Table {
        by: SubjectKind,
        from: Time,
        to: Time,
        answer: oneshot::Sender<Result<BTreeMap<String, Counters>, LedgerError>>,
    },
    /// What came since a standing controller's cursor.
    Changes {
        since: Cursor,
        answer: oneshot::Sender<Result<Copied, LedgerError>>,
    },
    /// The whole ledger as a new file.
    Whole {
        path: PathBuf,
        answer: oneshot::Sender<Result<(), LedgerError>>,
    },
    Stop,
}

/// What one proxy counted.
pub(crate) struct Counted {
    proxy: Arc<str>,
    epoch: u64,
    sequence: u64,
    total: Counters,
    lines: Vec<ReportLine>,
    gone: Vec<u64>,
}

/// The last usage report of each proxy that was counted: life and number.
#[derive(Debug, Default)]
pub(crate) struct Taken(Mutex<BTreeMap<Arc<str>, (u64, u64)>>);

impl Taken {
    /// The number of the last one of this life.
    pub(crate) fn of(&self, proxy: &str, epoch: u64) -> Option<u64> {
        let (life, sequence) = *self.lock().get(proxy)?;
        (life == epoch).then_some(sequence)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// A proxy's usage as it came over the wire.
    pub(crate) fn new(
        proxy: &Arc<str>,
        epoch: u64,
        usage: UsageReport,
    ) -> Result<Counted, WrongMessage> {
        let line = |line: api::UsageLine| {
            let payer = Payer {
                job: line.job,
                uid: line.uid,
                gid: line.gid,
                project: line.project,
                ..Payer::default()
            };
            let counters = counters(&line.counters)?;
            Ok(ReportLine { id: line.id, payer: Some(payer), counters })
        };
        Ok(Counted {
            proxy: proxy.clone(),
            epoch,
            sequence: usage.sequence,
            total: counters(&usage.total)?,
            lines: usage.lines.into_iter().map(line).collect::<Result<Vec<_>, WrongMessage>>()?,
            gone: usage.gone,
        })
    }
}

/// The thread: until it is told to stop.
pub(crate) fn run(mut ledger: Ledger, asked: &Inbox<Ask>, taken: &Taken, counts: &Counts) {
    let mut next = Instant::now() + TICK;
    loop {
        match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Ask::Report(counted)) => count(&mut ledger, &counted, taken, counts),
            Ok(Ask::Table { by, from, to, answer }) => drop(answer.send(ledger.by(by, from, to))),
            Ok(Ask::Changes { since, answer }) => drop(answer.send(ledger.copy_since(&since))),
            Ok(Ask::Whole { path, answer }) => drop(answer.send(ledger.save_to(&path))),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Ask::Stop) | Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= next {
            next = Instant::now() + TICK;
            match ledger.tick(wall_clock()) {
                Ok(written) => counts.written.add(written.into()),
                Err(error) => {
                    tracing::error!(%error, "cannot write what was used; it is tried again");
                    counts.unwritten.add(1);
                }
            }
            counts.set_held(ledger.held());
        }
    }
    if let Err(error) = ledger.flush(wall_clock()) {
        tracing::error!(%error, "cannot write what was used in the last minute");
    }
}

fn count(ledger: &mut Ledger, counted: &Counted, taken: &Taken, counts: &Counts) {
    let report = Report {
        proxy: &counted.proxy,
        epoch_ns: counted.epoch,
        sequence: counted.sequence,
        total: Some(&counted.total),
        lines: &counted.lines,
        gone: &counted.gone,
    };
    match ledger.report(&report, wall_clock()) {
        Ok(received) if received.stale => counts.stale.add(1),
        Ok(_) => {
            counts.counted.add(1);
            let last = (counted.epoch, counted.sequence);
            taken.lock().insert(counted.proxy.clone(), last);
        }
        Err(error) => {
            tracing::error!(%error, "usage was not counted");
            counts.failed.add(1);
        }
    }
}

/// Now, since 1970.
pub(crate) fn wall_clock() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// As people read them.
pub(crate) fn form(counters: &Counters) -> CountersForm {
    let ops = Kind::ALL.iter().map(|kind| (kind.name().to_string(), counters.ops_of(*kind)));
    CountersForm {
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        cost_ns: counters.cost_ns,
        delayed: counters.delayed,
        delayed_ns: counters.delayed_ns,
        delayed_bytes: counters.delayed_bytes,
        ops: ops.filter(|(_, count)| *count > 0).collect(),
    }
}

fn counters(form: &CountersForm) -> Result<Counters, WrongMessage> {
    let mut counters = Counters {
        read_bytes: form.read_bytes,
        written_bytes: form.written_bytes,
        cost_ns: form.cost_ns,
        delayed: form.delayed,
        delayed_ns: form.delayed_ns,
        delayed_bytes: form.delayed_bytes,
        ..Counters::default()
    };
    for (kind, count) in &form.ops {
        let known = kind.parse::<Kind>();
        let kind = known.map_err(|_| WrongMessage::new(kind, "a kind of request"))?;
        counters.ops[kind as usize] = *count;
    }
    Ok(counters)
}

/// How often it is looked whether a minute is over.
const TICK: Duration = Duration::from_secs(1);
