//! The ledger counts reports as `usage::UsageCollector` does, which the simulator runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, OpKind, Service, Time};
use testkit::{TestFolder, account_subject};
use usage::{AccountTotals, CollectedLine, UsageCollector, UsageReport, UsageReporter};

use crate::proxies::{Xorshift, open, time};

/// A proxy: what it served, its reporter, and reports in transit.
struct ReportingProxy {
    name: Arc<str>,
    epoch: u64,
    accounts: BTreeMap<u64, AccountTotals>,
    reporter: UsageReporter,
    in_transit: Vec<(u64, UsageReport)>,
}

impl ReportingProxy {
    fn new(name: &str, epoch: u64) -> ReportingProxy {
        ReportingProxy {
            name: name.into(),
            epoch,
            accounts: BTreeMap::new(),
            reporter: UsageReporter::default(),
            in_transit: Vec::new(),
        }
    }

    fn serve(&mut self, job: u64, chance: &mut Xorshift) {
        let account = self.accounts.entry(job).or_insert_with(|| AccountTotals {
            id: job,
            subject: account_subject(&format!("job{job}"), 1000),
            service: Service::default(),
        });
        let (totals, bytes) = (&mut account.service, chance.below(1 << 20));
        totals.cost_ns += chance.below(1_000_000);
        let kind = OpKind::ALL[chance.below(OpKind::COUNT as u64) as usize];
        totals.ops[kind as usize] += 1;
        match kind {
            OpKind::Read => {
                totals.read_bytes += bytes;
                totals.reads.count(bytes, chance.below(2) == 0);
            }
            OpKind::Write => totals.written_bytes += bytes,
            _ => {}
        }
    }

    fn report(&mut self, now: Time) {
        for account in self.accounts.values() {
            self.reporter.note(account.clone(), now);
        }
        let report = self.reporter.end_sweep(now);
        self.in_transit.extend(report.map(|report| (self.epoch, report)));
    }
}

#[test]
fn ledger_counts_as_the_collector_of_the_simulator_does() {
    let folder = TestFolder::new();
    let mut ledger = open(&folder.path().join("l"));
    let (mut collector, mut chance) = (UsageCollector::default(), Xorshift(7));
    let first = time(0).as_nanos() + 1_000;
    let mut proxies = ["p1", "p2", "p3"].map(|name| ReportingProxy::new(name, first));
    let (mut counted, mut stale) = (0, 0);
    for step in 0..20_000 {
        let now = time(0) + Nanos::from_secs(step / 20);
        let proxy = &mut proxies[chance.below(3) as usize];
        match chance.below(100) {
            0 => {
                // Its reports in transit may still arrive.
                let in_transit = std::mem::take(&mut proxy.in_transit);
                *proxy = ReportingProxy::new(&proxy.name.clone(), proxy.epoch + 1);
                proxy.in_transit = in_transit;
            }
            1 => proxy.reporter.reset(),
            2..60 => proxy.serve(chance.below(20), &mut chance),
            60..80 => proxy.report(now),
            _ if proxy.in_transit.is_empty() => {}
            way => {
                let at = chance.below(proxy.in_transit.len() as u64) as usize;
                let (epoch, report) = match way {
                    80..85 => proxy.in_transit[at].clone(),
                    _ => proxy.in_transit.remove(at),
                };
                if way == 99 {
                    continue;
                }
                let outcome = ledger.report(&proxy.name, epoch, &report, now).unwrap();
                let grown = collector.receive(&proxy.name, epoch, &report);
                assert_eq!(outcome.stale, grown.is_none(), "step {step}");
                let grown = grown.unwrap_or_default().into_iter();
                let grown: Vec<_> =
                    grown.map(|CollectedLine { nth, growth }| (nth, growth)).collect();
                assert_eq!(outcome.grown, grown, "step {step}");
                match outcome.stale {
                    true => stale += 1,
                    false => counted += 1,
                }
                if epoch == proxy.epoch && chance.below(4) > 0 {
                    let last = collector.last_counted(&proxy.name, epoch);
                    last.into_iter().for_each(|last| proxy.reporter.acknowledge(last));
                }
            }
        }
    }
    assert!(counted > 100 && stale > 100, "{counted} counted, {stale} stale");
}
