//! The proxy's half: the service of each account, as lines that a controller counts once.
//!
//! ```text
//!   dispatcher's accounts ─► growth ─► lines: number, subject and class, service
//!                                      and the service that the controller acknowledged
//!                                       └─ differ? ─► report n ─► acknowledged n: equal
//!                                                       └─ no acknowledgement for RETRY:
//!                                                          sent again, as n + 1
//! ```
//!
//! A report has a bounded number of lines; the next one begins with those that did not fit.
//!
//! Sums only grow, so a report that is lost or counted twice is corrected by the next. A controller
//! that has started again receives every line. A line stays for some minutes after its last change,
//! so that a controller that lost its last minute receives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{AccountSubject, Nanos, Service, Time};

/// One account of a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountTotals {
    /// The dispatcher's number of the subject, which it never uses twice.
    pub id: u64,
    /// The subject and its class.
    pub subject: AccountSubject,
    /// The service that it had since the dispatcher first saw it.
    pub service: Service,
}

/// The service that a controller may lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// The number of the report, which grows in an epoch.
    pub sequence: u64,
    /// Total service, with and without a line.
    pub total: Service,
    /// The lines that changed since the last acknowledged report.
    pub lines: Vec<UsageLine>,
    /// The numbers of lines that were dropped.
    pub dropped_lines: Vec<u64>,
}

/// The service of one account since the epoch of the proxy began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageLine {
    /// The number of the line, never used twice in an epoch.
    pub id: u64,
    /// The subject and its class.
    pub subject: Arc<AccountSubject>,
    /// The service since the epoch began, cumulative.
    pub service: Service,
}

/// All lines of a proxy's epoch. It is passed the time and the dispatcher's accounts; its caller sends
/// the reports and passes on acknowledgements.
#[derive(Debug, Default)]
pub struct UsageReporter {
    /// The service of each account at its last check, and the time of that check.
    seen: BTreeMap<AccountKey, (Service, Time)>,
    lines: BTreeMap<AccountKey, UsageEntry>,
    last_id: u64,
    /// Service of lines that were dropped, and service without a line.
    closed: Service,
    /// Of this sweep: the whole service of accounts that come as one sum.
    rest: Service,
    /// Dropped lines of which the controller may not know it.
    dropped_lines: BTreeSet<u64>,
    /// The total that the controller has acknowledged.
    known_total: Service,
    sent: Option<UnackedReport>,
    /// The last line of an acknowledged report that was full: the next report begins after it.
    resume_after: Option<AccountKey>,
    sequence: u64,
    last_sweep: Option<Time>,
}

/// The dispatcher's number of a subject, and its class.
type AccountKey = (u64, Arc<str>);

#[derive(Debug)]
struct UsageEntry {
    id: u64,
    subject: Arc<AccountSubject>,
    sums: Service,
    /// The service that the controller has acknowledged.
    known: Service,
    changed: Time,
}

/// A report that was not taken yet.
#[derive(Debug)]
struct UnackedReport {
    sequence: u64,
    at: Time,
    total: Service,
    lines: Vec<(AccountKey, Service)>,
    dropped_lines: Vec<u64>,
}

impl UsageReporter {
    /// Whether all accounts are to be noted now: more often if decays depend on usage.
    pub fn is_due(&self, with_decays: bool, now: Time) -> bool {
        let interval = if with_decays { SWEEP_INTERVAL_WITH_DECAYS } else { SWEEP_INTERVAL };
        self.last_sweep.is_none_or(|last| now.since(last) >= interval)
    }

    /// Handles that the controller has counted a report.
    pub fn acknowledge(&mut self, sequence: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.sequence == sequence) else { return };
        let is_full = sent.lines.len() >= REPORT_LINES_MAX;
        self.resume_after = sent.lines.last().filter(|_| is_full).map(|(key, _)| key.clone());
        self.known_total = sent.total;
        for (key, sums) in sent.lines {
            if let Some(line) = self.lines.get_mut(&key) {
                line.known = sums;
            }
        }
        self.dropped_lines.retain(|id| !sent.dropped_lines.contains(id));
    }

    /// Handles that another controller leads, which may have counted anything.
    pub fn reset(&mut self) {
        (self.sent, self.known_total) = (None, Service::default());
        self.lines.values_mut().for_each(|line| line.known = Service::default());
    }

    /// Begins a new epoch of the same process, which has what was not acknowledged of the one before.
    pub fn begin_epoch(&mut self) {
        for line in self.lines.values_mut() {
            line.sums = line.sums.since(&line.known);
            line.known = Service::default();
        }
        (self.sent, self.closed) = (None, Service::default());
        self.known_total = Service::default();
        self.dropped_lines.clear();
    }

    /// Adds the service of an account since its last check to its line. Of a sweep, to be called for
    /// each account that the dispatcher has.
    pub fn note(&mut self, account: AccountTotals, now: Time) {
        let AccountTotals { id, subject, service } = account;
        let key = (id, subject.class.clone());
        let (before, looked) = self.seen.entry(key.clone()).or_insert((Service::default(), now));
        *looked = now;
        if *before == service {
            return;
        }
        let growth = service.since(before);
        if !self.lines.contains_key(&key) && self.lines.len() >= LINES_MAX {
            // The account may never come again: it is in the total only.
            *before = service;
            self.closed.add(&growth);
            return;
        }
        *before = service;
        let line = self.lines.entry(key).or_insert_with(|| {
            self.last_id += 1;
            UsageEntry {
                id: self.last_id,
                subject: Arc::new(subject.clone()),
                sums: Service::default(),
                known: Service::default(),
                changed: now,
            }
        });
        line.sums.add(&growth);
        line.changed = now;
        if *line.subject != subject {
            // Under other rules the directories have other bits.
            line.subject = Arc::new(subject);
        }
    }

    /// Adds the service of an account whose subject the dispatcher has forgotten: it comes once.
    pub fn note_closed(&mut self, account: AccountTotals, now: Time) {
        let key = (account.id, account.subject.class.clone());
        self.note(account, now);
        self.seen.remove(&key);
    }

    /// Adds the service of accounts that are closed and come as one sum, since the dispatcher
    /// first saw them: what is not in their lines goes into the total.
    pub fn add_rest(&mut self, service: &Service) {
        self.rest.add(service);
    }

    /// Ends a sweep: forgets the accounts that were not noted, and returns the report
    /// to be sent; `None` if the controller has everything, or may still acknowledge the last one.
    pub fn end_sweep(&mut self, now: Time) -> Option<UsageReport> {
        self.last_sweep = Some(now);
        // Of these the rest is made up: closed accounts have left, and all others were noted.
        let mut known = Service::default();
        self.seen.retain(|_, (service, noted)| {
            let is_noted = *noted == now;
            if !is_noted {
                known.add(service);
            }
            is_noted
        });
        self.closed.add(&std::mem::take(&mut self.rest).since(&known));
        self.report(now)
    }

    fn report(&mut self, now: Time) -> Option<UsageReport> {
        if self.sent.as_ref().is_some_and(|sent| now.since(sent.at) < RETRY) {
            return None;
        }
        self.drop_old(now);
        // Round robin: lines that did not fit in the last report come before those that did.
        let first = |key: &AccountKey| self.resume_after.as_ref().is_none_or(|last| key > last);
        let changed = self.lines.iter().filter(|(_, line)| line.sums != line.known);
        let begin = changed.clone().filter(|(key, _)| first(key));
        let changed = begin.chain(changed.filter(|(key, _)| !first(key)));
        let changed: Vec<_> = changed.take(REPORT_LINES_MAX).collect();
        let mut total = self.closed;
        self.lines.values().for_each(|line| total.add(&line.sums));
        if changed.is_empty() && self.dropped_lines.is_empty() && total == self.known_total {
            self.sent = None;
            return None;
        }
        self.sequence += 1;
        let gone: Vec<_> = self.dropped_lines.iter().copied().collect();
        let line = |line: &UsageEntry| UsageLine {
            id: line.id,
            subject: line.subject.clone(),
            service: line.sums,
        };
        let report = UsageReport {
            sequence: self.sequence,
            total,
            lines: changed.iter().map(|(_, entry)| line(entry)).collect(),
            dropped_lines: gone.clone(),
        };
        let lines = changed.into_iter().map(|(key, line)| (key.clone(), line.sums)).collect();
        self.sent = Some(UnackedReport {
            sequence: self.sequence,
            at: now,
            total,
            lines,
            dropped_lines: gone,
        });
        Some(report)
    }

    /// Drops lines that did not change for long. A subject that returns gets a new line.
    fn drop_old(&mut self, now: Time) {
        let (gone, closed) = (&mut self.dropped_lines, &mut self.closed);
        self.lines.retain(|_, line| {
            let stays = line.sums != line.known || now.since(line.changed) < LINE_IDLE_MAX;
            if !stays {
                gone.insert(line.id);
                closed.add(&line.sums);
            }
            stays
        });
    }
}

/// Interval of checks of accounts: the ledger's finest sums are of minutes.
const SWEEP_INTERVAL: Nanos = Nanos::from_secs(5);
/// Interval of checks if decays depend on usage.
const SWEEP_INTERVAL_WITH_DECAYS: Nanos = Nanos::from_secs(1);
/// A report that was not taken for so long is lost.
const RETRY: Nanos = Nanos::from_secs(5);
/// A line that did not change for so long may be dropped.
const LINE_IDLE_MAX: Nanos = Nanos::from_secs(600);
/// Maximum number of lines; further accounts are not counted.
const LINES_MAX: usize = 262_144;
/// Lines of one report: some megabytes. Further lines are in the next reports.
const REPORT_LINES_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use model::{Identity, JobId, Nid, OpKind, PathSet};

    use super::*;
    use crate::UsageCollector;

    /// A dispatcher's accounts, and their reporter.
    #[derive(Default)]
    struct Desk {
        accounts: BTreeMap<(&'static str, &'static str), AccountTotals>,
        reporter: UsageReporter,
        now: Time,
    }

    impl Desk {
        fn read(&mut self, job: &'static str, bytes: u64) {
            self.serve(job, "default", bytes);
        }

        fn serve(&mut self, job: &'static str, class: &'static str, bytes: u64) {
            let id = job.bytes().map(u64::from).sum();
            let account = self.accounts.entry((job, class)).or_insert_with(|| AccountTotals {
                id,
                subject: AccountSubject {
                    identity: Identity {
                        job: JobId::new(job).unwrap(),
                        uid: 1,
                        gid: 2,
                        projid: None,
                        nid: Nid::local(),
                    },
                    paths: PathSet::default(),
                    export: "home".into(),
                    class: class.into(),
                },
                service: Service::default(),
            });
            account.service.cost_ns += 7;
            account.service.ops[OpKind::Read as usize] += 1;
            account.service.read_bytes += bytes;
            account.service.reads.count(bytes, false);
        }

        fn report(&mut self, seconds: u64) -> Option<UsageReport> {
            self.now = self.now + Nanos::from_secs(seconds);
            for account in self.accounts.values() {
                self.reporter.note(account.clone(), self.now);
            }
            self.reporter.end_sweep(self.now)
        }
    }

    #[test]
    fn accounts_that_close_are_counted_once_also_those_of_one_sum() {
        let mut desk = Desk::default();
        (0..3).for_each(|_| ["a", "b", "c"].into_iter().for_each(|job| desk.read(job, 10)));
        let first = desk.report(1).unwrap();
        assert_eq!(first.total.read_bytes, 90);
        desk.reporter.acknowledge(first.sequence);
        ["a", "b", "c"].into_iter().for_each(|job| desk.read(job, 1));
        // The dispatcher forgets a and b: a comes by itself, b in the sum with others that never came.
        let [closed, together] =
            ["a", "b"].map(|job| desk.accounts.remove(&(job, "default")).unwrap());
        desk.now = desk.now + Nanos::from_secs(10);
        desk.reporter.note(desk.accounts[&("c", "default")].clone(), desk.now);
        desk.reporter.note_closed(closed, desk.now);
        desk.reporter.add_rest(&Service { read_bytes: 100, ..together.service });
        let report = desk.reporter.end_sweep(desk.now).unwrap();
        // 90 and one byte of each; of b and the others 100, of which 30 have a line.
        assert_eq!(report.total.read_bytes, 90 + 2 + 70);
        assert_eq!(bytes(&report), [("a".into(), 31), ("c".into(), 31)]);
        desk.read("c", 1);
        let report = desk.report(10).unwrap();
        assert_eq!(report.total.read_bytes, 163);
        desk.reporter.acknowledge(report.sequence);
        // A total that grows alone is reported, too.
        desk.reporter.add_rest(&Service { read_bytes: 7, ..Service::default() });
        let report = desk.report(10).unwrap();
        assert_eq!((bytes(&report), report.total.read_bytes), (vec![], 170));
        desk.reporter.acknowledge(report.sequence);
        assert_eq!(desk.report(10), None);
    }

    fn bytes(report: &UsageReport) -> Vec<(String, u64)> {
        let lines = report.lines.iter();
        lines.map(|line| (line.subject.identity.job.to_string(), line.service.read_bytes)).collect()
    }

    fn of(job: &str, bytes: u64) -> (String, u64) {
        (job.to_string(), bytes)
    }

    #[test]
    fn acknowledged_service_is_not_reported_again_and_lost_reports_are_repeated() {
        let mut desk = Desk::default();
        assert_eq!(desk.report(1), None, "nobody was served");
        desk.read("a", 10);
        let first = desk.report(1).unwrap();
        assert_eq!(bytes(&first), [of("a", 10)]);
        assert_eq!(first.lines[0].service.ops_of(OpKind::Read), 1);
        assert_eq!(first.lines[0].service.reads.sizes, [1, 0, 0, 0]);
        assert_eq!(first.total.read_bytes, 10);
        desk.read("b", 5);
        assert_eq!(desk.report(1), None, "the first may still be acknowledged");
        let second = desk.report(5).unwrap();
        assert_eq!(bytes(&second), [of("a", 10), of("b", 5)], "the first was lost");
        desk.reporter.acknowledge(first.sequence);
        assert_eq!(desk.report(1), None, "an acknowledgement of what was given up");
        desk.reporter.acknowledge(second.sequence);
        assert_eq!(desk.report(1), None);
        desk.read("a", 7);
        let third = desk.report(1).unwrap();
        assert_eq!((bytes(&third), third.total.read_bytes), (vec![of("a", 17)], 22));
    }

    #[test]
    fn another_controller_receives_every_line() {
        let mut desk = Desk::default();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        assert_eq!(desk.report(1), None);
        desk.reporter.reset();
        assert_eq!(bytes(&desk.report(1).unwrap()), [of("a", 10)]);
    }

    #[test]
    fn line_of_a_dropped_account_is_kept_for_minutes_and_then_reported_as_dropped() {
        let mut desk = Desk::default();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        desk.accounts.clear();
        assert_eq!(desk.report(500), None);
        let last = desk.report(200).unwrap();
        assert_eq!((bytes(&last), &last.dropped_lines), (vec![], &vec![report.lines[0].id]));
        assert_eq!(last.total.read_bytes, 10, "what was served stays served");
        desk.reporter.acknowledge(last.sequence);
        assert_eq!(desk.report(1), None);
    }

    #[test]
    fn a_new_epoch_has_what_was_not_acknowledged_in_the_last() {
        let mut desk = Desk::default();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        desk.read("a", 5);
        desk.reporter.begin_epoch();
        let report = desk.report(6).unwrap();
        assert_eq!((bytes(&report), report.total.read_bytes), (vec![of("a", 5)], 5));
    }

    #[test]
    fn accounts_are_noted_each_second_with_decays_and_else_each_five() {
        let mut desk = Desk::default();
        assert!(desk.reporter.is_due(false, desk.now));
        desk.report(1);
        let later = |seconds| desk.now + Nanos::from_secs(seconds);
        let due = |decays, seconds| desk.reporter.is_due(decays, later(seconds));
        assert_eq!([due(false, 1), due(false, 4), due(false, 5)], [false, false, true]);
        assert_eq!([due(true, 0), due(true, 1)], [false, true]);
    }

    #[test]
    fn each_class_of_a_subject_has_its_line_and_the_rest_is_in_the_total() {
        let mut desk = Desk::default();
        desk.serve("a", "jobs jobid=a", 10);
        desk.serve("a", "default", 3);
        let closed = Service { read_bytes: 100, ..Service::default() };
        desk.reporter.add_rest(&closed);
        let report = desk.report(1).unwrap();
        let class = |line: &UsageLine| (line.subject.class.to_string(), line.service.read_bytes);
        let lines: Vec<_> = report.lines.iter().map(class).collect();
        assert_eq!(lines, [of("default", 3), of("jobs jobid=a", 10)]);
        assert_eq!(report.total.read_bytes, 113);
    }

    #[test]
    fn every_account_is_acknowledged_in_a_round_of_reports() {
        for (accounts, lost) in [
            (REPORT_LINES_MAX, 0),
            (REPORT_LINES_MAX + 7, 2),
            (2 * REPORT_LINES_MAX + 1, 1),
            (3 * REPORT_LINES_MAX - 1, 3),
        ] {
            report_in_rounds(accounts, lost);
        }
    }

    #[test]
    fn fifty_thousand_lines_that_all_change_are_each_reported_within_three_reports() {
        report_in_rounds(50_000, 0);
    }

    /// Accounts that all grow in every interval, with as many reports as their lines take and one
    /// more if one is lost.
    fn report_in_rounds(accounts: usize, lost: usize) {
        let mut all = AccountRounds {
            accounts,
            reporter: UsageReporter::default(),
            collector: UsageCollector::default(),
            counted: vec![0; accounts],
            intervals: 0,
        };
        let rounds = accounts.div_ceil(REPORT_LINES_MAX);
        let reports = rounds + usize::from((1..=rounds).contains(&lost));
        (1..=reports).for_each(|nth| all.interval(nth as u64, nth == lost));
        let missed = all.counted.iter().filter(|bytes| **bytes == 0).count();
        assert_eq!(missed, 0, "after {reports} reports");
        // The load ends: everything is counted, and once.
        (0..=rounds).for_each(|_| all.interval(reports as u64, false));
        assert!(all.counted.iter().all(|bytes| *bytes == reports as u64));
    }

    /// More accounts than one report has lines, with their controller.
    struct AccountRounds {
        accounts: usize,
        reporter: UsageReporter,
        collector: UsageCollector,
        counted: Vec<u64>,
        intervals: u64,
    }

    impl AccountRounds {
        fn interval(&mut self, read_bytes: u64, is_lost: bool) {
            self.intervals += 1;
            let now = Time::from_nanos(self.intervals * RETRY.get());
            for id in 0..self.accounts as u64 {
                let identity = Identity {
                    job: JobId::new("a").unwrap(),
                    uid: id as u32,
                    gid: 2,
                    projid: None,
                    nid: Nid::local(),
                };
                let (export, class) = ("home".into(), "default".into());
                let paths = PathSet::default();
                let subject = AccountSubject { identity, paths, export, class };
                let service = Service { read_bytes, ..Service::default() };
                self.reporter.note(AccountTotals { id, subject, service }, now);
            }
            let Some(report) = self.reporter.end_sweep(now).filter(|_| !is_lost) else { return };
            assert!(report.lines.len() <= REPORT_LINES_MAX);
            let grown = self.collector.receive(&"p".into(), 1, &report).expect("a new report");
            for line in grown {
                let uid = report.lines[line.nth].subject.identity.uid;
                self.counted[uid as usize] += line.growth.read_bytes;
            }
            self.reporter.acknowledge(report.sequence);
        }
    }
}
