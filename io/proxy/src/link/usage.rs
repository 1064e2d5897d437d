//! What each payer was served, as lines that a controller counts once.
//!
//! ```text
//!   dispatchers' subjects ─► lines: number, payer, sums, what the controller has of them
//!                              └─ differ? ─► report n ─► taken n ─► it has them
//!                                              └─ nothing heard for RETRY: told again, as n + 1
//! ```
//!
//! Sums only grow, so a report that is lost or counted twice is put right by the next. A
//! controller that begins anew is told every line. A line stays for some minutes after its last
//! change, so that a controller that lost its last minute finds it.

use std::collections::{BTreeMap, BTreeSet};

use api::{CountersForm, OpsForm, UsageLine, UsageReport};
use model::{Accesses, Identity, Kind, Nanos, PathSet, Time};
use sched::SubjectReport;

use crate::server::Server;

/// All lines of this life.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// By target and the dispatcher's number for the subject, which is never used twice.
    lines: BTreeMap<(usize, u64), Line>,
    last_id: u64,
    /// What lines had that are dropped.
    closed: Sums,
    /// Dropped lines of which the controller may not know it.
    gone: BTreeSet<u64>,
    sent: Option<Sent>,
    sequence: u64,
    looked: Option<Time>,
}

#[derive(Debug)]
struct Line {
    id: u64,
    who: Identity,
    /// Of the rules in force.
    paths: PathSet,
    sums: Sums,
    /// What the controller has.
    known: Sums,
    changed: Time,
    /// When the dispatcher had it last.
    seen: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    read_bytes: u64,
    written_bytes: u64,
    cost_ns: u64,
    delayed: u64,
    delayed_ns: u64,
    delayed_bytes: u64,
    ops: [u64; Kind::COUNT],
    reads: Accesses,
    writes: Accesses,
}

/// A report that was not taken yet.
#[derive(Debug)]
struct Sent {
    sequence: u64,
    at: Time,
    lines: Vec<((usize, u64), Sums)>,
    gone: Vec<u64>,
}

impl Book {
    /// The report to be sent now; `None` if there is nothing to say yet.
    pub(super) fn next_report(&mut self, server: &Server, now: Time) -> Option<UsageReport> {
        if self.looked.is_some_and(|looked| now.since(looked) < LOOK) {
            return None;
        }
        self.looked = Some(now);
        for target in server.targets() {
            let subjects = target.with_dispatcher(|d, _| d.subjects().collect::<Vec<_>>());
            for subject in subjects.into_iter().flatten() {
                self.note(target.index, &subject, now);
            }
        }
        self.report(now)
    }

    /// The controller has counted a report.
    pub(super) fn note_taken(&mut self, sequence: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.sequence == sequence) else { return };
        for (key, sums) in sent.lines {
            if let Some(line) = self.lines.get_mut(&key) {
                line.known = sums;
            }
        }
        self.gone.retain(|id| !sent.gone.contains(id));
    }

    /// Another controller: it may have anything.
    pub(super) fn begin_anew(&mut self) {
        self.sent = None;
        self.lines.values_mut().for_each(|line| line.known = Sums::default());
    }

    fn note(&mut self, target: usize, subject: &SubjectReport, now: Time) {
        let sums = Sums::of(subject);
        let key = (target, subject.id.to_bits());
        if let Some(line) = self.lines.get_mut(&key) {
            (line.seen, line.paths) = (now, subject.paths);
            if line.sums != sums {
                (line.sums, line.changed) = (sums, now);
            }
        } else if sums != Sums::default() && self.lines.len() < LINES_MAX {
            self.last_id += 1;
            let (id, who, known) = (self.last_id, subject.who.clone(), Sums::default());
            let paths = subject.paths;
            self.lines.insert(key, Line { id, who, paths, sums, known, changed: now, seen: now });
        }
    }

    fn report(&mut self, now: Time) -> Option<UsageReport> {
        if self.sent.as_ref().is_some_and(|sent| now.since(sent.at) < RETRY) {
            return None;
        }
        self.drop_old(now);
        let changed = self.lines.iter().filter(|(_, line)| line.sums != line.known);
        let changed: Vec<_> = changed.take(REPORT_LINES_MAX).collect();
        if changed.is_empty() && self.gone.is_empty() {
            self.sent = None;
            return None;
        }
        self.sequence += 1;
        let mut total = self.closed;
        self.lines.values().for_each(|line| total.add(&line.sums));
        let gone: Vec<_> = self.gone.iter().copied().collect();
        let report = UsageReport {
            sequence: self.sequence,
            total: total.form(),
            lines: changed.iter().map(|(_, line)| line.form()).collect(),
            gone: gone.clone(),
        };
        let lines = changed.into_iter().map(|(key, line)| (*key, line.sums)).collect();
        self.sent = Some(Sent { sequence: self.sequence, at: now, lines, gone });
        Some(report)
    }

    /// Drops lines that the dispatcher has dropped and that did not change for long. One that it
    /// still has would come back with all its sums and be counted twice.
    fn drop_old(&mut self, now: Time) {
        let (gone, closed, looked) = (&mut self.gone, &mut self.closed, self.looked);
        self.lines.retain(|_, line| {
            let here = Some(line.seen) == looked;
            let stays = here || line.sums != line.known || now.since(line.changed) < KEEP;
            if !stays {
                gone.insert(line.id);
                closed.add(&line.sums);
            }
            stays
        });
    }
}

impl Line {
    fn form(&self) -> UsageLine {
        UsageLine {
            id: self.id,
            job: self.who.job.to_string(),
            uid: self.who.uid,
            gid: self.who.gid,
            project: self.who.projid,
            nid: self.who.nid.to_string(),
            paths: self.paths.0,
            counters: self.sums.form(),
        }
    }
}

impl Sums {
    fn of(subject: &SubjectReport) -> Sums {
        Sums {
            read_bytes: subject.usage.read.get(),
            written_bytes: subject.usage.written.get(),
            cost_ns: subject.usage.cost.get(),
            delayed: subject.usage.delayed,
            delayed_ns: subject.usage.delayed_time.get(),
            delayed_bytes: subject.usage.delayed_bytes.get(),
            ops: subject.ops.map(|ops| ops.get()),
            reads: subject.reads,
            writes: subject.writes,
        }
    }

    fn add(&mut self, other: &Sums) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.cost_ns += other.cost_ns;
        self.delayed += other.delayed;
        self.delayed_ns += other.delayed_ns;
        self.delayed_bytes += other.delayed_bytes;
        self.ops.iter_mut().zip(other.ops).for_each(|(sum, more)| *sum += more);
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
    }

    fn form(&self) -> CountersForm {
        CountersForm {
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            cost_ns: self.cost_ns,
            delayed: self.delayed,
            delayed_ns: self.delayed_ns,
            delayed_bytes: self.delayed_bytes,
            ops: OpsForm(self.ops),
            reads: self.reads.into(),
            writes: self.writes.into(),
        }
    }
}

/// How often subjects are looked at.
const LOOK: Nanos = Nanos::from_secs(1);
/// A report that was not taken for so long is lost.
const RETRY: Nanos = Nanos::from_secs(5);
/// A line that did not change for so long may be dropped.
const KEEP: Nanos = Nanos::from_secs(600);
/// Lines at most; whoever comes on top is not counted.
const LINES_MAX: usize = 262_144;
/// Lines of one report: some megabytes.
const REPORT_LINES_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use model::{Amount, JobId, Nid};
    use sched::{Arrival, Dispatcher, Target};

    use super::*;

    /// A dispatcher and the book of it.
    struct Desk {
        dispatcher: Dispatcher,
        book: Book,
        now: Time,
    }

    impl Desk {
        fn new() -> Desk {
            let target = Target {
                name: "t".into(),
                slots_max: 8,
                threads: 1,
                costs: sched::Costs::default(),
                latency: None,
                recalibrate: false,
            };
            let dispatcher = Dispatcher::new(target, std::sync::Arc::default());
            Desk { dispatcher, book: Book::default(), now: Time::ZERO }
        }

        fn read(&mut self, job: &str, bytes: u64) {
            let job = JobId::new(job).unwrap();
            let who = Identity { job, uid: 1, gid: 2, projid: None, nid: Nid::local() };
            let subject = self.dispatcher.subject(&who, PathSet::default());
            let amount = Amount::new(bytes, 1);
            let (kind, lane) = (Kind::Read, model::Lane::Device);
            let arrival = Arrival { subject, kind, amount, lane, token: 0 };
            let id = self.dispatcher.enqueue(arrival, self.now);
            assert_eq!(self.dispatcher.poll_dispatch(self.now).map(|chosen| chosen.id), Some(id));
            self.dispatcher.count_access(id, amount.bytes, false);
            self.dispatcher.complete(id, amount, self.now);
            while self.dispatcher.poll_dispatch(self.now).is_some() {}
            self.dispatcher.release_subject(subject);
        }

        fn report(&mut self, seconds: u64) -> Option<UsageReport> {
            self.now = self.now + Nanos::from_secs(seconds);
            self.book.looked = Some(self.now);
            let subjects: Vec<_> = self.dispatcher.subjects().collect();
            subjects.iter().for_each(|subject| self.book.note(0, subject, self.now));
            self.book.report(self.now)
        }
    }

    fn bytes(report: &UsageReport) -> Vec<(&str, u64)> {
        let of = |line| {
            let UsageLine { job, counters, .. }: &UsageLine = line;
            (job.as_str(), counters.read_bytes)
        };
        report.lines.iter().map(of).collect()
    }

    #[test]
    fn what_was_taken_is_told_no_more_and_what_was_lost_is_told_again() {
        let mut desk = Desk::new();
        assert_eq!(desk.report(1), None, "nobody was served");
        desk.read("a", 10);
        let first = desk.report(1).unwrap();
        assert_eq!(bytes(&first), [("a", 10)]);
        assert_eq!(first.lines[0].counters.ops.of(Kind::Read), 1);
        assert_eq!(first.lines[0].counters.reads.sizes, [1, 0, 0, 0]);
        assert_eq!(first.total.read_bytes, 10);
        desk.read("b", 5);
        assert_eq!(desk.report(1), None, "the first may still be taken");
        let second = desk.report(5).unwrap();
        assert_eq!(bytes(&second), [("a", 10), ("b", 5)], "the first was lost");
        desk.book.note_taken(first.sequence);
        assert_eq!(desk.report(1), None, "an answer to what was given up");
        desk.book.note_taken(second.sequence);
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
        desk.book.note_taken(report.sequence);
        assert_eq!(desk.report(1), None);
        desk.book.begin_anew();
        assert_eq!(bytes(&desk.report(1).unwrap()), [("a", 10)]);
    }

    #[test]
    fn a_line_that_the_dispatcher_dropped_is_kept_for_minutes_and_then_told_as_gone() {
        let mut desk = Desk::new();
        desk.read("a", 10);
        let report = desk.report(1).unwrap();
        desk.book.note_taken(report.sequence);
        // As if it had been dropped for others.
        desk.dispatcher = Desk::new().dispatcher;
        assert_eq!(desk.report(500), None);
        let last = desk.report(200).unwrap();
        assert_eq!((bytes(&last), &last.gone), (vec![], &vec![report.lines[0].id]));
        assert_eq!(last.total.read_bytes, 10, "what was served stays served");
        desk.book.note_taken(last.sequence);
        assert_eq!(desk.report(1), None);
    }
}
