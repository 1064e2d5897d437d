//! What a hundred changes of entitlement rows a second cost one controller of a thousand proxies, and
//! how many messages they are.
//!
//! ```text
//!   10 changes a tick ─► ShareAllocator ─ assignment, encoded ─► 1,000 ControllerSessions
//!                             ▲                                          │ each reports what it has,
//!                             └──────────────────────────────────────────┘ and waits for more
//! ```
//!
//! No program and no network: the calls of the allocator and the encoding of replies are timed, in
//! processor time, and the tick of 100 ms is simulated. So `cores` is the part of a second that a
//! second of changes takes. The sessions, which are work of the proxies, are not timed.

use std::time::Duration;

use anyhow::Context as _;
use api::{ALL_TARGETS, ControllerReply};
use model::{JobId, KindSet, Nanos, Rate, Time};
use plan::{AllocatorSettings, Assignment, ControllerSession, SessionSettings, ShareAllocator};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, RuleSet};
use rustix::time::{ClockId, clock_gettime};

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::SLUICE;

pub(super) fn row() -> FigureRow {
    let what = "1,000 proxies, 10,000 rows of entitlements, 100 changes of rows a second";
    FigureRow::new("control/row-changes", what, &[SLUICE])
        .rounds(3, 10.0)
        .goal(SLUICE, "used_cores", FigureBound::Most(0.5))
        .goal(SLUICE, "messages_most_count", FigureBound::Most(1.0))
}

pub(super) fn measure(run: &FigureRun<'_>) -> anyhow::Result<FigureSample> {
    let proxies = if run.is_quick { 100 } else { PROXIES };
    let mut fleet = RowFleet::start(proxies);
    fleet.change((0..ROWS).map(|id| (id, 1)))?;
    // Every proxy has registered and has all rows.
    (0..SETTLE).for_each(|_| fleet.tick());
    let before = RowCounts { most: 0, ..fleet.counts };
    fleet.counts.most = 0;
    let ticks = (run.time(&row()).as_nanos() as u64 / TICK.get()).max(1);
    for tick in 0..ticks {
        let ids = (0..CHANGES).map(|nth| ((tick * CHANGES + nth) % ROWS, 2 + tick));
        fleet.change(ids)?;
        fleet.tick();
    }
    let counts = fleet.counts.since(before);
    let of_each = (ticks * proxies) as f64;
    let seconds = ticks as f64 * TICK.get() as f64 / 1e9;
    Ok(sample([
        ("used_cores", counts.time.as_secs_f64() / seconds),
        ("messages_count", counts.messages as f64 / of_each),
        ("messages_most_count", fleet.counts.most as f64),
        ("each_bytes", counts.bytes as f64 / counts.messages.max(1) as f64),
        ("rows_count", counts.rows as f64 / of_each),
    ]))
}

/// An allocator and the sessions of its proxies.
struct RowFleet {
    allocator: ShareAllocator,
    sessions: Vec<ControllerSession>,
    /// Of each proxy whose report waits for an answer, the revision that it named.
    waits: Vec<Option<u64>>,
    now: Time,
    counts: RowCounts,
}

#[derive(Clone, Copy, Default)]
struct RowCounts {
    /// Processor time of the allocator and of encoding.
    time: Duration,
    messages: u64,
    bytes: u64,
    rows: u64,
    /// The most messages to one proxy in a tick.
    most: u64,
}

impl RowCounts {
    fn since(self, before: RowCounts) -> RowCounts {
        RowCounts {
            time: self.time - before.time,
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
            rows: self.rows - before.rows,
            most: self.most,
        }
    }
}

impl RowFleet {
    fn start(proxies: u64) -> RowFleet {
        let now = Time::ZERO + TICK;
        let settings = SessionSettings::default();
        let session = |at| ControllerSession::new(&format!("proxy-{at}"), 1, settings, now);
        let rules = RuleSet::default().into();
        RowFleet {
            allocator: ShareAllocator::new(AllocatorSettings::default(), 1, &[], rules, now),
            sessions: (0..proxies).map(session).collect(),
            waits: vec![None; proxies as usize],
            now,
            counts: RowCounts::default(),
        }
    }

    /// Sets the rates of some rows.
    fn change(&mut self, rates: impl Iterator<Item = (u64, u64)>) -> anyhow::Result<()> {
        let row = |(id, rate)| anyhow::Ok((EntitlementId(id), Some(row_of(id, rate)?)));
        let changes = rates.map(row).collect::<anyhow::Result<Vec<_>>>()?;
        let used = thread_time();
        self.allocator.set_rows(changes, self.now);
        self.counts.time += thread_time() - used;
        Ok(())
    }

    /// Sends what the changes bring to the proxies whose report waits for an answer; those report
    /// again.
    fn tick(&mut self) {
        self.now = self.now + TICK;
        let mut received = vec![0; self.sessions.len()];
        self.answer(&mut received);
        for at in 0..self.sessions.len() {
            if self.waits[at].is_some() {
                continue;
            }
            let Some(report) = self.sessions[at].report(Some(Vec::new()), self.now) else {
                continue;
            };
            self.waits[at] = Some(report.revision);
            let used = thread_time();
            self.allocator.report(&report, self.now);
            self.counts.time += thread_time() - used;
        }
        self.answer(&mut received);
        self.counts.most = received.into_iter().max().unwrap_or(0).max(self.counts.most);
    }

    /// Answers the reports for which there is something new, as a controller does.
    fn answer(&mut self, received: &mut [u64]) {
        loop {
            let used = thread_time();
            let Some(order) = self.allocator.poll_assignment(self.now) else { break };
            let of = order.to.strip_prefix("proxy-").and_then(|of| of.parse::<usize>().ok());
            let Some(of) = of.filter(|of| *of < received.len()) else { continue };
            let is_new = |revision| {
                order.learning
                    || order.revision > revision
                    || !order.grants.is_empty()
                    || !order.rows.is_empty()
            };
            let is_sent = self.waits[of].is_some_and(is_new);
            let bytes = if is_sent { encoded(&order) } else { 0 };
            self.counts.time += thread_time() - used;
            if !is_sent {
                continue;
            }
            self.waits[of] = None;
            received[of] += 1;
            self.counts.messages += 1;
            self.counts.bytes += bytes as u64;
            self.counts.rows += order.rows.len() as u64;
            self.sessions[of].receive(&order, self.now);
            while self.sessions[of].poll_rows(self.now).is_some() {}
        }
    }
}

fn encoded(order: &Assignment) -> usize {
    let targets = vec![(ALL_TARGETS.into(), order.clone())];
    ControllerReply { term: 1, targets, ..ControllerReply::default() }.encode().len()
}

fn row_of(id: u64, rate: u64) -> anyhow::Result<Entitlement> {
    let job = JobId::new(&format!("job.{id}")).context("a short name")?;
    let scope = EntitlementScope { job: Some(job), ..EntitlementScope::default() };
    let rate = Rate::ops_per_sec(rate).context("above zero")?;
    let grants = Grantable::Reservation(rate);
    Ok(Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Reservation)?)
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

const PROXIES: u64 = 1_000;
const ROWS: u64 = 10_000;
/// In a tick; ten ticks are a second.
const CHANGES: u64 = 10;
const TICK: Nanos = Nanos::from_millis(100);
/// Ticks after which every proxy has registered and has all rows: the allocator learns for 2.5 s.
const SETTLE: u64 = 40;
