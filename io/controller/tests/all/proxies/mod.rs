//! Proxies that count what they are told to serve, and a ledger to report to.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use controller::ledger::{Ledger, LedgerBounds, Retention, SubjectKind, UsageOutcome};
use model::{AccountSubject, OpKind, Service, Time};
use testkit::account_subject;
use usage::{UsageLine, UsageReport};

/// The first minute of the tests: a whole number of 60-hour chunks after 1970.
pub(crate) const START: u64 = 3_600 * 8_000;
pub(crate) const MINUTE_NS: u64 = 60_000_000_000;

/// The beginning of a minute, counted from [`START`].
pub(crate) fn time(minute: u64) -> Time {
    Time::from_nanos((START + minute) * MINUTE_NS)
}

/// Writes each minute of a row.
pub(crate) fn tick_through(ledger: &mut Ledger, minutes: impl Iterator<Item = u64>) {
    for minute in minutes {
        ledger.tick(time(minute)).unwrap();
    }
}

pub(crate) fn open(path: &Path) -> Ledger {
    Ledger::open(path, Retention::default(), LedgerBounds::default(), time(0)).unwrap()
}

/// A proxy: cumulative counters by job.
pub(crate) struct Proxy {
    pub(crate) name: String,
    pub(crate) epoch_ns: u64,
    pub(crate) sequence: u64,
    pub(crate) total: Service,
    pub(crate) lines: BTreeMap<u64, (AccountSubject, Service)>,
    pub(crate) gone: Vec<u64>,
}

impl Proxy {
    pub(crate) fn new(name: &str) -> Proxy {
        Proxy {
            name: name.into(),
            epoch_ns: time(0).as_nanos(),
            sequence: 0,
            total: Service::default(),
            lines: BTreeMap::new(),
            gone: Vec::new(),
        }
    }

    /// Reads bytes for a job, in one operation.
    pub(crate) fn serve(&mut self, job: u64, bytes: u64) {
        let mut more = Service { read_bytes: bytes, cost_ns: 10 * bytes, ..Service::default() };
        more.ops[OpKind::Read as usize] = 1;
        let mut subject = account_subject(&format!("job{job}"), 1_000 + (job % 3) as u32);
        subject.identity.projid = job.is_multiple_of(2).then_some(7);
        self.total.add(&more);
        self.lines.entry(job).or_insert((subject, Service::default())).1.add(&more);
    }

    /// Drops a line, as for a job that has ended.
    pub(crate) fn drop_line(&mut self, job: u64) {
        self.lines.remove(&job);
        self.gone.push(job);
    }

    /// Begins anew, as a proxy that was started again.
    pub(crate) fn restart(&mut self) {
        *self = Proxy { epoch_ns: self.epoch_ns + 1, ..Proxy::new(&self.name) };
    }

    /// Reports everything.
    pub(crate) fn report(&mut self, ledger: &mut Ledger, now: Time) -> UsageOutcome {
        self.sequence += 1;
        self.report_again(ledger, now)
    }

    /// Reports with the sequence of the last report.
    pub(crate) fn report_again(&self, ledger: &mut Ledger, now: Time) -> UsageOutcome {
        let line = |(id, (subject, service)): (&u64, &(AccountSubject, Service))| UsageLine {
            id: *id,
            subject: subject.clone().into(),
            service: *service,
        };
        let report = UsageReport {
            sequence: self.sequence,
            total: self.total,
            lines: self.lines.iter().map(line).collect(),
            dropped_lines: self.gone.clone(),
        };
        ledger.report(&self.name, self.epoch_ns, &report, now).unwrap()
    }
}

/// Bytes read by subject of a kind, over all time.
pub(crate) fn bytes_by(ledger: &mut Ledger, kind: SubjectKind) -> BTreeMap<String, u64> {
    let sums = ledger.sums_by(kind, Time::ZERO, time(1_000_000_000 / 60)).unwrap();
    sums.into_iter().map(|(name, sums)| (name, sums.read_bytes)).collect()
}

pub(crate) fn bytes_of_all(ledger: &mut Ledger, kind: SubjectKind) -> u64 {
    bytes_by(ledger, kind).values().sum()
}

/// Numbers that look random and are the same each time.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
