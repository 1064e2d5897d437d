//! The controller's half in its plainest form: the growth of each line is counted once.
//!
//! ```text
//!   report: proxy, epoch, sequence ── not newer than the last one? ─► nothing
//!       │ newer epoch ─► all lines begin at zero
//!       └─ lines ─► growth = service − service here
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Service;

use crate::reporter::{UsageLine, UsageReport};

/// The last service of every line of every proxy, in its current epoch. It grows with the lines that
/// are reported: its caller bounds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageCollector {
    proxies: BTreeMap<Arc<str>, CollectedEpoch>,
}

/// The growth of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedLine {
    /// The index of the line in its report.
    pub nth: usize,
    /// The growth of its service, which is above zero.
    pub growth: Service,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CollectedEpoch {
    epoch: u64,
    sequence: u64,
    lines: BTreeMap<u64, Service>,
}

impl UsageCollector {
    /// Counts a report of a proxy in its epoch: the lines that grew. `None` if it is a duplicate, or
    /// older than what is known: it is not acknowledged.
    pub fn receive(
        &mut self,
        proxy: &Arc<str>,
        epoch: u64,
        report: &UsageReport,
    ) -> Option<Vec<CollectedLine>> {
        let own = self.proxies.entry(proxy.clone()).or_default();
        if (epoch, report.sequence) <= (own.epoch, own.sequence) {
            return None;
        }
        if epoch != own.epoch {
            *own = CollectedEpoch { epoch, ..CollectedEpoch::default() };
        }
        own.sequence = report.sequence;
        let grow = |(nth, line): (usize, &UsageLine)| {
            let before = own.lines.entry(line.id).or_default();
            let growth = line.service.since(before);
            before.add(&growth);
            (!growth.is_zero()).then_some(CollectedLine { nth, growth })
        };
        let grown = report.lines.iter().enumerate().filter_map(grow).collect();
        for id in &report.dropped_lines {
            own.lines.remove(id);
        }
        Some(grown)
    }

    /// The number of the last report of a proxy's epoch that was counted, if any: the
    /// acknowledgement of it.
    pub fn last_counted(&self, proxy: &str, epoch: u64) -> Option<u64> {
        let own = self.proxies.get(proxy).filter(|own| own.epoch == epoch)?;
        Some(own.sequence)
    }
}

#[cfg(test)]
mod tests {
    use model::{AccountSubject, Identity, JobId, Nid, PathSet};

    use super::*;

    fn report(sequence: u64, read_bytes: u64) -> UsageReport {
        let identity = Identity {
            job: JobId::new("a").unwrap(),
            uid: 1,
            gid: 2,
            projid: None,
            nid: Nid::local(),
        };
        let service = Service { read_bytes, ..Service::default() };
        let (export, class, paths) = ("home".into(), "default".into(), PathSet::default());
        let subject = AccountSubject { identity, paths, export, class }.into();
        let line = UsageLine { id: 1, subject, service };
        UsageReport { sequence, total: service, lines: vec![line], dropped_lines: vec![] }
    }

    #[test]
    fn growth_is_counted_once_whatever_is_lost_late_or_duplicated() {
        let (mut collector, proxy) = (UsageCollector::default(), "p".into());
        let mut grown = |epoch, sequence, bytes| {
            let lines = collector.receive(&proxy, epoch, &report(sequence, bytes));
            lines.map(|lines| lines.iter().map(|line| line.growth.read_bytes).sum::<u64>())
        };
        assert_eq!(grown(1, 1, 10), Some(10));
        assert_eq!(grown(1, 1, 10), None, "a duplicate");
        assert_eq!(grown(1, 3, 25), Some(15), "the second was lost");
        assert_eq!(grown(1, 2, 17), None, "or late");
        assert_eq!(grown(1, 4, 25), Some(0));
        assert_eq!(grown(2, 1, 4), Some(4), "a restarted proxy begins at zero");
        assert_eq!(grown(1, 5, 30), None, "its former epoch has ended");
    }
}
