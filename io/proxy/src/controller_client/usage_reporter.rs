//! Service of each payer in each class, as lines that a controller counts once.
//!
//! ```text
//!   dispatchers' subjects ─► what is new ─► by class ─► lines: number, payer, class, export, sums
//!                                               and what the controller has of them
//!                                                └─ differ? ─► report n ─► taken n ─► it has them
//!                                                                └─ nothing heard for RETRY:
//!                                                                   sent again, as n + 1
//! ```
//!
//! Sums only grow, so a report that is lost or counted twice is corrected by the next. A controller
//! that has started again receives every line. A line stays for some minutes after its last change,
//! so that a controller that lost its last minute receives it.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use api::{UsageLine, UsageReport, WireSubjectId};
use model::{Identity, Nanos, PathSet, RuleSet, Time};
use sched::SubjectReport;

use super::usage_totals::UsageTotals;
use crate::server::Server;

/// All lines of this life.
#[derive(Debug, Default)]
pub(super) struct UsageReporter {
    /// Totals of each subject at its last check, and the time of that check.
    seen: BTreeMap<SubjectKey, (UsageTotals, Time)>,
    lines: BTreeMap<(SubjectKey, String), UsageEntry>,
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
    lines: Vec<((SubjectKey, String), UsageTotals)>,
    dropped_lines: Vec<u64>,
}

impl UsageReporter {
    /// The report to be sent now; `None` if there is nothing to say yet.
    pub(super) fn next_report(&mut self, server: &Server, now: Time) -> Option<UsageReport> {
        let targets = server.targets();
        let decays = targets.iter().any(|target| !target.rules().set.decays.is_empty());
        let look = if decays { SWEEP_INTERVAL_WITH_DECAYS } else { SWEEP_INTERVAL };
        if self.last_sweep.is_some_and(|looked| now.since(looked) < look) {
            return None;
        }
        for target in targets {
            let rules = target.rules().set;
            let subjects = target.with_dispatcher(|d, now| {
                d.count_activity(now);
                d.subjects().collect::<Vec<_>>()
            });
            for subject in subjects.into_iter().flatten() {
                self.note(target.index, &rules, &subject, now);
            }
        }
        self.forget_unseen(now);
        self.report(now)
    }

    /// The controller has counted a report.
    pub(super) fn acknowledge(&mut self, sequence: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.sequence == sequence) else { return };
        for (key, sums) in sent.lines {
            if let Some(line) = self.lines.get_mut(&key) {
                line.known = sums;
            }
        }
        self.dropped_lines.retain(|id| !sent.dropped_lines.contains(id));
    }

    /// Another controller: it may have anything.
    pub(super) fn reset(&mut self) {
        self.sent = None;
        self.lines.values_mut().for_each(|line| line.known = UsageTotals::default());
    }

    /// This proxy begins a new life, of which nothing was counted yet: it has what was not counted of the
    /// one before.
    pub(super) fn begin_life(&mut self) {
        for line in self.lines.values_mut() {
            line.sums = line.sums.since(&line.known);
            line.known = UsageTotals::default();
        }
        (self.sent, self.closed) = (None, UsageTotals::default());
        self.dropped_lines.clear();
    }

    /// Adds the usage of a subject since its last check to the lines of its classes.
    fn note(&mut self, target: usize, rules: &RuleSet, subject: &SubjectReport, now: Time) {
        let place = (target, subject.id.to_bits());
        let all = UsageTotals::of(subject);
        let (before, looked) = self.seen.entry(place).or_insert((UsageTotals::default(), now));
        *looked = now;
        // The time of a first request that is not served yet is counted with it.
        if *before == all || subject.usage.requests == 0 {
            return;
        }
        let parts = all.since(before).by_class(rules, subject);
        let parts: Vec<_> = parts.into_iter().map(|(class, part)| ((place, class), part)).collect();
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

    /// Forgets what subjects had that the dispatchers have dropped.
    fn forget_unseen(&mut self, now: Time) {
        self.last_sweep = Some(now);
        self.seen.retain(|_, (_, looked)| *looked == now);
    }

    fn report(&mut self, now: Time) -> Option<UsageReport> {
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
        let report = UsageReport {
            sequence: self.sequence,
            total: total.form(),
            lines: changed.iter().map(|((_, class), line)| line.form(class)).collect(),
            dropped_lines: gone.clone(),
        };
        let lines = changed.into_iter().map(|(key, line)| (key.clone(), line.sums)).collect();
        self.sent =
            Some(UnackedReport { sequence: self.sequence, at: now, lines, dropped_lines: gone });
        Some(report)
    }

    /// Drops lines that did not change for long. A payer that returns gets a new line.
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
    fn form(&self, class: &str) -> UsageLine {
        let payer = WireSubjectId {
            job: self.identity.job.to_string(),
            uid: self.identity.uid,
            gid: self.identity.gid,
            project: self.identity.projid,
            nid: self.identity.nid.to_string(),
            paths: self.paths.0,
            class: class.to_string(),
            export: self.export.to_string(),
        };
        UsageLine { id: self.id, subject: payer, counters: self.sums.form() }
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
    use model::{Amount, JobId, Nid, OpKind};
    use sched::{Arrival, Dispatcher, TargetParams};

    use super::*;

    /// A dispatcher and the book of it.
    struct Desk {
        dispatcher: Dispatcher,
        rules: Arc<RuleSet>,
        book: UsageReporter,
        now: Time,
    }

    impl Desk {
        fn new() -> Desk {
            let text = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={a b} & opcode={read}\"\nper = [\"jobid\"]\n";
            let rules: Arc<RuleSet> = RuleSet::parse(text).expect("a valid file").into();
            let target = TargetParams {
                name: "t".into(),
                slots_max: 8,
                threads: 1,
                costs: sched::Costs::default(),
                latency: None,
                recalibrate: false,
            };
            let dispatcher = Dispatcher::new(target, rules.clone());
            Desk { dispatcher, rules, book: UsageReporter::default(), now: Time::ZERO }
        }

        fn read(&mut self, job: &str, bytes: u64) {
            self.ask(job, OpKind::Read, bytes);
        }

        fn ask(&mut self, job: &str, kind: OpKind, bytes: u64) {
            let job = JobId::new(job).unwrap();
            let who = Identity { job, uid: 1, gid: 2, projid: None, nid: Nid::local() };
            let door = Arc::from("home");
            let subject = self.dispatcher.subject_through(&who, PathSet::default(), &door);
            let amount = Amount::new(bytes, 1);
            let lane = model::Lane::Device;
            let arrival = Arrival { subject, kind, amount, lane, token: 0 };
            let id = self.dispatcher.enqueue(arrival, self.now);
            assert_eq!(self.dispatcher.poll_dispatch(self.now).map(|chosen| chosen.id), Some(id));
            self.dispatcher.count_access(id, amount.bytes, false, 0);
            self.dispatcher.complete(id, amount, self.now);
            while self.dispatcher.poll_dispatch(self.now).is_some() {}
            self.dispatcher.release_subject(subject);
        }

        fn report(&mut self, seconds: u64) -> Option<UsageReport> {
            self.now = self.now + Nanos::from_secs(seconds);
            let subjects: Vec<_> = self.dispatcher.subjects().collect();
            for subject in &subjects {
                self.book.note(0, &self.rules, subject, self.now);
            }
            self.book.forget_unseen(self.now);
            self.book.report(self.now)
        }
    }

    fn bytes(report: &UsageReport) -> Vec<(&str, u64)> {
        let lines = report.lines.iter();
        lines.map(|line| (line.subject.job.as_str(), line.counters.read_bytes)).collect()
    }

    #[test]
    fn what_was_taken_is_told_no_more_and_what_was_lost_is_told_again() {
        let mut desk = Desk::new();
        assert_eq!(desk.report(1), None, "nobody was served");
        desk.read("a", 10);
        let first = desk.report(1).unwrap();
        assert_eq!(bytes(&first), [("a", 10)]);
        assert_eq!(first.lines[0].counters.ops.of(OpKind::Read), 1);
        assert_eq!(first.lines[0].counters.reads.sizes, [1, 0, 0, 0]);
        assert_eq!(first.total.read_bytes, 10);
        desk.read("b", 5);
        assert_eq!(desk.report(1), None, "the first may still be taken");
        let second = desk.report(5).unwrap();
        assert_eq!(bytes(&second), [("a", 10), ("b", 5)], "the first was lost");
        desk.book.acknowledge(first.sequence);
        assert_eq!(desk.report(1), None, "an answer to what was given up");
        desk.book.acknowledge(second.sequence);
        assert_eq!(desk.report(1), None);
        desk.read("a", 7);
        let third = desk.report(1).unwrap();
        assert_eq!((bytes(&third), third.total.read_bytes), (vec![("a", 17)], 22));
    }

    #[test]
    fn another_controller_is_told_every_line() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.book.acknowledge(report.sequence);
        assert_eq!(desk.report(1), None);
        desk.book.reset();
        assert_eq!(bytes(&desk.report(1).unwrap()), [("a", 10)]);
    }

    #[test]
    fn a_line_that_the_dispatcher_dropped_is_kept_for_minutes_and_then_told_as_gone() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.book.acknowledge(report.sequence);
        // As if it had been dropped for others.
        desk.dispatcher = Desk::new().dispatcher;
        assert_eq!(desk.report(500), None);
        let last = desk.report(200).unwrap();
        assert_eq!((bytes(&last), &last.dropped_lines), (vec![], &vec![report.lines[0].id]));
        assert_eq!(last.total.read_bytes, 10, "what was served stays served");
        desk.book.acknowledge(last.sequence);
        assert_eq!(desk.report(1), None);
    }

    #[test]
    fn each_class_has_its_line_with_what_came_to_it() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        (0..3).for_each(|_| desk.ask("a", OpKind::Getattr, 0));
        desk.read("c", 5);
        let report = desk.report(1).unwrap();
        let of = |line: &UsageLine| {
            let ops = [OpKind::Read, OpKind::Getattr].map(|kind| line.counters.ops.of(kind));
            (line.subject.class.clone(), line.counters.read_bytes, ops)
        };
        let lines: Vec<_> = report.lines.iter().map(of).collect();
        let class = |name: &str, bytes, ops| (name.to_string(), bytes, ops);
        let (of_a, of_c) = (class("jobs jobid=a", 10, [1, 0]), class("default", 5, [1, 0]));
        assert_eq!(lines, [class("default", 0, [0, 3]), of_a, of_c]);
        assert!(report.lines.iter().all(|line| line.subject.export == "home"), "{report:?}");
        let cost = |line: &UsageLine| line.counters.cost_ns;
        assert_eq!(report.lines.iter().map(cost).sum::<u64>(), report.total.cost_ns);
        // Other rules: what was counted stays where it was, what comes is the new class's.
        desk.book.acknowledge(report.sequence);
        desk.rules = Arc::default();
        desk.read("a", 7);
        let report = desk.report(1).unwrap();
        assert_eq!(of(&report.lines[0]), class("default", 7, [1, 3]));
        assert_eq!((report.lines.len(), report.total.read_bytes), (1, 22));
    }
}
