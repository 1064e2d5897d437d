//! The thread of the ledger: takes the usage of proxies, returns tables.
//!
//! ```text
//!   usage of a report ─► bounded queue ─► Ledger ─► taken: epoch and number, sent with a reply
//!                                           └─ what grew ─► Accounts ─► rates, events
//!   GET /v1/usage     ─►               ─► sums by subject
//!   GET /v1/ledger/…  ─►               ─► changes that a standby controller has not copied
//! ```
//!
//! A commit may take more than a second, so no reply waits for this thread. A report that does not
//! fit into the queue is dropped: counters are cumulative, and the proxy reports them until they
//! are acknowledged.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::usage::UsageReport;
use model::{AccountSubject, Service, Time};
use tokio::sync::oneshot;

use super::accounts::DecayAccounting;
use super::counts::Counts;
use super::queue::MsgInbox;
use super::records::PublishedRules;
use super::report::{self, FoundOwners, JobOwners};
use crate::clock::WallClock;
use crate::ledger::{
    Ledger, LedgerError, LedgerPoint, Minute, ReplicationBatch, ReplicationCursor, SubjectKind,
};

/// A message to this thread.
pub(crate) enum UsageMsg {
    Report(Box<UsageUpdate>),
    Table {
        by: SubjectKind,
        from: Time,
        to: Time,
        answer: oneshot::Sender<Result<BTreeMap<String, Service>, LedgerError>>,
    },
    /// Reads the points of some subjects in a span, together and in no order.
    Series {
        kind: SubjectKind,
        names: Vec<String>,
        from: Time,
        to: Time,
        answer: oneshot::Sender<Result<Vec<LedgerPoint>, LedgerError>>,
    },
    /// Reads the usage of one job in a span.
    Job {
        job: String,
        from: Time,
        to: Time,
        answer: oneshot::Sender<Result<FoundOwners, LedgerError>>,
    },
    /// The rules in force have changed.
    Rules(Arc<PublishedRules>),
    /// Reads the decays with their accounts, of one subject if it is named.
    Decays {
        subject: Option<String>,
        answer: oneshot::Sender<api::WireDecayAccounts>,
    },
    /// Reads the changes since the cursor of a standby controller.
    Changes {
        since: ReplicationCursor,
        answer: oneshot::Sender<Result<ReplicationBatch, LedgerError>>,
    },
    /// Writes the whole ledger to a new file.
    Whole {
        path: PathBuf,
        answer: oneshot::Sender<Result<(), LedgerError>>,
    },
    Stop,
}

/// The usage of one proxy.
pub(crate) struct UsageUpdate {
    pub(crate) proxy: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) report: UsageReport,
    /// The version of the rules that the proxy has.
    pub(crate) rules: Option<String>,
    pub(crate) contended: bool,
}

/// The last counted usage report of each proxy: epoch and number.
#[derive(Debug, Default)]
pub(crate) struct UsageAcks(Mutex<BTreeMap<Arc<str>, (u64, u64)>>);

impl UsageAcks {
    /// Returns the number of the last one of this epoch.
    pub(crate) fn of(&self, proxy: &str, epoch: u64) -> Option<u64> {
        let (life, sequence) = *self.lock().get(proxy)?;
        (life == epoch).then_some(sequence)
    }

    /// Notes that a report was counted. If there are too many proxies all are forgotten: a report
    /// without an acknowledgement is repeated.
    fn insert(&self, proxy: &Arc<str>, epoch: u64, sequence: u64) {
        let mut acks = self.lock();
        if acks.len() >= ACKS_MAX && !acks.contains_key(proxy) {
            acks.clear();
        }
        acks.insert(proxy.clone(), (epoch, sequence));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UsageUpdate {
    /// Returns the subject of a line.
    pub(crate) fn subject(&self, nth: usize) -> Option<&AccountSubject> {
        self.report.lines.get(nth).map(|line| &*line.subject)
    }
}

/// Runs the thread until it is stopped.
pub(crate) fn run(
    mut ledger: Ledger,
    mut accounts: DecayAccounting,
    clock: &WallClock,
    asked: &MsgInbox<UsageMsg>,
    taken: &UsageAcks,
    counts: &Counts,
) {
    let mut next = Instant::now() + TICK;
    let mut minute = Minute::of(clock.now());
    let mut owners = JobOwners::default();
    loop {
        let tick = next.saturating_duration_since(Instant::now());
        let asked = asked.recv_timeout(tick.min(accounts.due_in(clock.now())));
        let now = clock.now();
        // A period may end with a minute: that goes before the disk.
        accounts.advance(now);
        // What comes in a minute is written with it, so that accounts made again are the same.
        if Instant::now() >= next || Minute::of(now) != minute {
            (next, minute) = (Instant::now() + TICK, Minute::of(now));
            write(&mut ledger, now, counts);
            accounts.store_levels(now);
        }
        match asked {
            Ok(UsageMsg::Report(counted)) => {
                count(
                    &mut ledger,
                    &mut accounts,
                    &mut owners,
                    &counted,
                    taken,
                    counts,
                    clock.now(),
                );
                accounts.advance(now);
            }
            Ok(UsageMsg::Rules(rules)) => {
                accounts.set_rules(rules, &mut ledger, now);
                accounts.advance(now);
            }
            Ok(UsageMsg::Decays { subject, answer }) => {
                drop(answer.send(accounts.view(subject.as_deref(), now)));
            }
            Ok(UsageMsg::Table { by, from, to, answer }) => {
                drop(answer.send(ledger.sums_by(by, from, to)))
            }
            Ok(UsageMsg::Series { kind, names, from, to, answer }) => {
                let of = |name: &String| ledger.series(kind, name, from, to);
                let points = names.iter().map(of).collect::<Result<Vec<_>, _>>();
                drop(answer.send(points.map(|points| points.concat())));
            }
            Ok(UsageMsg::Job { job, from, to, answer }) => {
                drop(answer.send(report::read(&mut ledger, &job, from, to)));
            }
            Ok(UsageMsg::Changes { since, answer }) => drop(answer.send(ledger.copy_since(&since))),
            Ok(UsageMsg::Whole { path, answer }) => drop(answer.send(ledger.save_to(&path))),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(UsageMsg::Stop) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(error) = ledger.flush(clock.now()) {
        tracing::error!(%error, "cannot write the usage of the last minute");
    }
}

fn write(ledger: &mut Ledger, now: Time, counts: &Counts) {
    match ledger.tick(now) {
        Ok(written) => counts.written.add(written.into()),
        Err(error) => {
            tracing::error!(%error, "cannot write the usage; retrying");
            counts.unwritten.add(1);
        }
    }
    counts.set_ledger_stats(ledger.stats());
}

fn count(
    ledger: &mut Ledger,
    accounts: &mut DecayAccounting,
    owners: &mut JobOwners,
    counted: &UsageUpdate,
    taken: &UsageAcks,
    counts: &Counts,
    now: Time,
) {
    match ledger.report(&counted.proxy, counted.epoch, &counted.report, now) {
        Ok(received) if received.stale => counts.stale.add(1),
        Ok(received) => {
            accounts.count(ledger, counted, &received, now);
            owners.mark(ledger, counted, &received, now);
            counts.counted.add(1);
            taken.insert(&counted.proxy, counted.epoch, counted.report.sequence);
        }
        Err(error) => {
            tracing::error!(%error, "usage was not counted");
            counts.failed.add(1);
        }
    }
}

/// The interval of checks whether a minute is over.
const TICK: Duration = Duration::from_secs(1);
/// The most proxies with an acknowledgement, some times as many as the ledger has.
const ACKS_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_of_proxies_that_never_return_are_bounded() {
        let acks = UsageAcks::default();
        (0..=ACKS_MAX).for_each(|nth| acks.insert(&format!("p{nth}").into(), 1, 2));
        assert_eq!(acks.lock().len(), 1);
        assert_eq!(acks.of("p0", 1), None);
        assert_eq!(acks.of(&format!("p{ACKS_MAX}"), 1), Some(2));
    }
}
