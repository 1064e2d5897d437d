//! The proxy's half: the service of each subject in each class, as lines that a controller counts once.
//!
//! ```text
//!   dispatchers' subjects ─► growth ─► by class ─► lines: number, subject, class, export, totals
//!                                           and the totals that the controller acknowledged
//!                                            └─ differ? ─► report n ─► acknowledged n: equal
//!                                                            └─ no acknowledgement for RETRY:
//!                                                               sent again, as n + 1
//! ```
//!
//! Sums only grow, so a report that is lost or counted twice is corrected by the next. A controller
//! that has started again receives every line. A line stays for some minutes after its last change,
//! so that a controller that lost its last minute receives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Identity, Nanos, PathSet, RuleSet, Time, UsageTotals};

use crate::classes::by_class;

/// The totals of one subject of a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectTotals {
    /// The dispatcher's number of the subject, which it never uses twice.
    pub id: u64,
    /// The identity of the subject.
    pub identity: Identity,
    /// The export that it uses; empty for none.
    pub export: Arc<str>,
    /// The rule directories that it works in, as bits of the rules in force.
    pub paths: PathSet,
    /// The number of its completed requests.
    pub requests: u64,
    /// The service that it had since the dispatcher first saw it.
    pub totals: UsageTotals,
}

/// The totals that a controller may lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TotalsReport {
    /// The number of the report, which grows in an epoch.
    pub sequence: u64,
    /// Total service, with and without a line.
    pub total: UsageTotals,
    /// The lines that changed since the last acknowledged report.
    pub lines: Vec<TotalsLine>,
    /// The numbers of lines that were dropped.
    pub dropped_lines: Vec<u64>,
}

/// The service of one subject in one class since the epoch of the proxy began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalsLine {
    /// The number of the line, never used twice in an epoch.
    pub id: u64,
    /// The identity of the subject.
    pub identity: Identity,
    /// The export that it uses; empty for none.
    pub export: Arc<str>,
    /// The rule directories that it works in.
    pub paths: PathSet,
    /// The class in which it was served: its rule, and the values of that rule's `per`.
    pub class: Arc<str>,
    /// The service of all its requests in this class, cumulative.
    pub totals: UsageTotals,
}

/// All lines of a proxy's epoch. It is passed the time and the totals of subjects; its caller sends
/// the reports and passes on acknowledgements.
#[derive(Debug, Default)]
pub struct UsageReporter {
    /// Totals of each subject at its last check, and the time of that check.
    seen: BTreeMap<SubjectKey, (UsageTotals, Time)>,
    lines: BTreeMap<LineKey, UsageEntry>,
    last_id: u64,
    /// Totals of the lines that were dropped.
    closed: UsageTotals,
    /// Dropped lines of which the controller may not know it.
    dropped_lines: BTreeSet<u64>,
    sent: Option<UnackedReport>,
    sequence: u64,
    last_sweep: Option<Time>,
}

/// A target, and its dispatcher's number for a subject, which is never used twice.
type SubjectKey = (usize, u64);
/// A subject and its class.
type LineKey = (SubjectKey, Arc<str>);

#[derive(Debug)]
struct UsageEntry {
    id: u64,
    identity: Identity,
    /// The export that it came through.
    export: Arc<str>,
    /// Of the rules in force.
    paths: PathSet,
    sums: UsageTotals,
    /// Totals that the controller has acknowledged.
    known: UsageTotals,
    changed: Time,
}

/// A report that was not taken yet.
#[derive(Debug)]
struct UnackedReport {
    sequence: u64,
    at: Time,
    lines: Vec<(LineKey, UsageTotals)>,
    dropped_lines: Vec<u64>,
}

impl UsageReporter {
    /// Whether the subjects of all dispatchers are to be noted now: more often if decays depend on
    /// usage.
    pub fn is_due(&self, with_decays: bool, now: Time) -> bool {
        let interval = if with_decays { SWEEP_INTERVAL_WITH_DECAYS } else { SWEEP_INTERVAL };
        self.last_sweep.is_none_or(|last| now.since(last) >= interval)
    }

    /// Handles that the controller has counted a report.
    pub fn acknowledge(&mut self, sequence: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.sequence == sequence) else { return };
        for (key, sums) in sent.lines {
            if let Some(line) = self.lines.get_mut(&key) {
                line.known = sums;
            }
        }
        self.dropped_lines.retain(|id| !sent.dropped_lines.contains(id));
    }

    /// Handles that another controller leads, which may have counted anything.
    pub fn reset(&mut self) {
        self.sent = None;
        self.lines.values_mut().for_each(|line| line.known = UsageTotals::default());
    }

    /// Begins a new epoch of the same process, which has what was not acknowledged of the one before.
    pub fn begin_epoch(&mut self) {
        for line in self.lines.values_mut() {
            line.sums = line.sums.since(&line.known);
            line.known = UsageTotals::default();
        }
        (self.sent, self.closed) = (None, UsageTotals::default());
        self.dropped_lines.clear();
    }

    /// Adds the usage of a subject since its last check to the lines of its classes.
    /// Of a sweep, to be called for each subject of each target, by the target's index.
    pub fn note(&mut self, target: usize, rules: &RuleSet, subject: &SubjectTotals, now: Time) {
        let place = (target, subject.id);
        let all = subject.totals;
        let (before, looked) = self.seen.entry(place).or_insert((UsageTotals::default(), now));
        *looked = now;
        // The time of a first request that is not served yet is counted with it.
        if *before == all || subject.requests == 0 {
            return;
        }
        let parts = by_class(&all.since(before), rules, subject);
        let parts: Vec<_> =
            parts.into_iter().map(|(class, part)| ((place, class.into()), part)).collect();
        let new = parts.iter().filter(|(key, _)| !self.lines.contains_key(key)).count();
        if self.lines.len() + new > LINES_MAX {
            // It is counted with what comes later, if there is room then.
            return;
        }
        *before = all;
        for (key, part) in parts {
            let line = self.lines.entry(key).or_insert_with(|| {
                self.last_id += 1;
                UsageEntry {
                    id: self.last_id,
                    identity: subject.identity.clone(),
                    export: subject.export.clone(),
                    paths: subject.paths,
                    sums: UsageTotals::default(),
                    known: UsageTotals::default(),
                    changed: now,
                }
            });
            line.sums.add(&part);
            (line.paths, line.changed) = (subject.paths, now);
        }
    }

    /// Ends a sweep: forgets the subjects that the dispatchers have dropped, and returns the report
    /// to be sent; `None` if the controller has everything, or may still acknowledge the last one.
    pub fn end_sweep(&mut self, now: Time) -> Option<TotalsReport> {
        self.last_sweep = Some(now);
        self.seen.retain(|_, (_, noted)| *noted == now);
        self.report(now)
    }

    fn report(&mut self, now: Time) -> Option<TotalsReport> {
        if self.sent.as_ref().is_some_and(|sent| now.since(sent.at) < RETRY) {
            return None;
        }
        self.drop_old(now);
        let changed = self.lines.iter().filter(|(_, line)| line.sums != line.known);
        let changed: Vec<_> = changed.take(REPORT_LINES_MAX).collect();
        if changed.is_empty() && self.dropped_lines.is_empty() {
            self.sent = None;
            return None;
        }
        self.sequence += 1;
        let mut total = self.closed;
        self.lines.values().for_each(|line| total.add(&line.sums));
        let gone: Vec<_> = self.dropped_lines.iter().copied().collect();
        let report = TotalsReport {
            sequence: self.sequence,
            total,
            lines: changed.iter().map(|((_, class), line)| line.line_of(class)).collect(),
            dropped_lines: gone.clone(),
        };
        let lines = changed.into_iter().map(|(key, line)| (key.clone(), line.sums)).collect();
        self.sent =
            Some(UnackedReport { sequence: self.sequence, at: now, lines, dropped_lines: gone });
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

impl UsageEntry {
    fn line_of(&self, class: &Arc<str>) -> TotalsLine {
        TotalsLine {
            id: self.id,
            identity: self.identity.clone(),
            export: self.export.clone(),
            paths: self.paths,
            class: class.clone(),
            totals: self.sums,
        }
    }
}

/// Interval of checks of subjects: the ledger's finest sums are of minutes.
const SWEEP_INTERVAL: Nanos = Nanos::from_secs(5);
/// Interval of checks if decays depend on usage.
const SWEEP_INTERVAL_WITH_DECAYS: Nanos = Nanos::from_secs(1);
/// A report that was not taken for so long is lost.
const RETRY: Nanos = Nanos::from_secs(5);
/// A line that did not change for so long may be dropped.
const LINE_IDLE_MAX: Nanos = Nanos::from_secs(600);
/// Maximum number of lines; further classes are not counted.
const LINES_MAX: usize = 262_144;
/// Lines of one report: some megabytes.
const REPORT_LINES_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use model::{JobId, Nid, OpKind};

    use super::*;

    /// A dispatcher's subjects, and their reporter.
    struct Desk {
        subjects: BTreeMap<&'static str, SubjectTotals>,
        rules: RuleSet,
        reporter: UsageReporter,
        now: Time,
    }

    impl Desk {
        fn new() -> Desk {
            let text = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={a b} & opcode={read}\"\nper = [\"jobid\"]\n";
            Desk {
                subjects: BTreeMap::new(),
                rules: RuleSet::parse(text).expect("a valid file"),
                reporter: UsageReporter::default(),
                now: Time::ZERO,
            }
        }

        fn read(&mut self, job: &'static str, bytes: u64) {
            self.serve(job, OpKind::Read, bytes);
        }

        fn serve(&mut self, job: &'static str, kind: OpKind, bytes: u64) {
            let id = self.subjects.len() as u64;
            let subject = self.subjects.entry(job).or_insert_with(|| SubjectTotals {
                id,
                identity: Identity {
                    job: JobId::new(job).unwrap(),
                    uid: 1,
                    gid: 2,
                    projid: None,
                    nid: Nid::local(),
                },
                export: "home".into(),
                paths: PathSet::default(),
                requests: 0,
                totals: UsageTotals::default(),
            });
            subject.requests += 1;
            subject.totals.cost_ns += 7;
            subject.totals.ops[kind as usize] += 1;
            subject.totals.read_bytes += bytes;
            if kind == OpKind::Read {
                subject.totals.reads.count(bytes, false);
            }
        }

        fn report(&mut self, seconds: u64) -> Option<TotalsReport> {
            self.now = self.now + Nanos::from_secs(seconds);
            for subject in self.subjects.values() {
                self.reporter.note(0, &self.rules, subject, self.now);
            }
            self.reporter.end_sweep(self.now)
        }
    }

    fn bytes(report: &TotalsReport) -> Vec<(String, u64)> {
        let lines = report.lines.iter();
        lines.map(|line| (line.identity.job.to_string(), line.totals.read_bytes)).collect()
    }

    fn of(job: &str, bytes: u64) -> (String, u64) {
        (job.to_string(), bytes)
    }

    #[test]
    fn acknowledged_service_is_not_reported_again_and_lost_reports_are_repeated() {
        let mut desk = Desk::new();
        assert_eq!(desk.report(1), None, "nobody was served");
        desk.read("a", 10);
        let first = desk.report(1).unwrap();
        assert_eq!(bytes(&first), [of("a", 10)]);
        assert_eq!(first.lines[0].totals.ops_of(OpKind::Read), 1);
        assert_eq!(first.lines[0].totals.reads.sizes, [1, 0, 0, 0]);
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
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        assert_eq!(desk.report(1), None);
        desk.reporter.reset();
        assert_eq!(bytes(&desk.report(1).unwrap()), [of("a", 10)]);
    }

    #[test]
    fn line_of_a_dropped_subject_is_kept_for_minutes_and_then_reported_as_dropped() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        desk.subjects.clear();
        assert_eq!(desk.report(500), None);
        let last = desk.report(200).unwrap();
        assert_eq!((bytes(&last), &last.dropped_lines), (vec![], &vec![report.lines[0].id]));
        assert_eq!(last.total.read_bytes, 10, "what was served stays served");
        desk.reporter.acknowledge(last.sequence);
        assert_eq!(desk.report(1), None);
    }

    #[test]
    fn a_new_epoch_has_what_was_not_acknowledged_in_the_last() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.reporter.acknowledge(report.sequence);
        desk.read("a", 5);
        desk.reporter.begin_epoch();
        let report = desk.report(6).unwrap();
        assert_eq!((bytes(&report), report.total.read_bytes), (vec![of("a", 5)], 5));
    }

    #[test]
    fn subjects_are_noted_each_second_with_decays_and_else_each_five() {
        let mut desk = Desk::new();
        assert!(desk.reporter.is_due(false, desk.now));
        desk.report(1);
        let later = |seconds| desk.now + Nanos::from_secs(seconds);
        let due = |decays, seconds| desk.reporter.is_due(decays, later(seconds));
        assert_eq!([due(false, 1), due(false, 4), due(false, 5)], [false, false, true]);
        assert_eq!([due(true, 0), due(true, 1)], [false, true]);
    }

    #[test]
    fn each_class_has_its_line_with_its_service() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        (0..3).for_each(|_| desk.serve("a", OpKind::Getattr, 0));
        desk.read("c", 5);
        let report = desk.report(1).unwrap();
        let of = |line: &TotalsLine| {
            let ops = [OpKind::Read, OpKind::Getattr].map(|kind| line.totals.ops_of(kind));
            (line.class.to_string(), line.totals.read_bytes, ops)
        };
        let lines: Vec<_> = report.lines.iter().map(of).collect();
        let class = |name: &str, bytes, ops| (name.to_string(), bytes, ops);
        let (of_a, of_c) = (class("jobs jobid=a", 10, [1, 0]), class("default", 5, [1, 0]));
        assert_eq!(lines, [class("default", 0, [0, 3]), of_a, of_c]);
        assert!(report.lines.iter().all(|line| &*line.export == "home"), "{report:?}");
        let cost = |line: &TotalsLine| line.totals.cost_ns;
        assert_eq!(report.lines.iter().map(cost).sum::<u64>(), report.total.cost_ns);
        // Under other rules, what was counted stays in its class, and new service goes to the new one.
        desk.reporter.acknowledge(report.sequence);
        desk.rules = RuleSet::default();
        desk.read("a", 7);
        let report = desk.report(1).unwrap();
        assert_eq!(of(&report.lines[0]), class("default", 7, [1, 3]));
        assert_eq!((report.lines.len(), report.total.read_bytes), (1, 22));
    }
}
