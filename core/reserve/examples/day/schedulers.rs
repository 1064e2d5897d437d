//! The schedulers that are compared: the calendar, and three of batch systems as simple as they can be.
//!
//! ```text
//!   FCFS          the first of the queue starts when it fits, and nobody before it
//!   EASY          and others that fit beside the first one's planned start
//!   conservative  each has a planned start from its submission on
//!   calendar      half of the jobs are fixed, the others spontaneous
//! ```
//!
//! EASY promises the start at which a job would start if the queue were planned in its order when it
//! comes, as batch systems show it (`squeue --start`). A queue of more than 500 is not planned to its
//! end (Slurm's `bf_max_job_test`), so it makes no promise then. FCFS makes none.

use std::collections::BTreeMap;

use model::{Bytes, JobId, Nanos, Share, Time};
use sluice_reserve::{
    Calendar, CalendarChange, CalendarSettings, Capacity, Demand, FitWindow, ReservationId,
    ReservationOwner, ReservationRequest, ResourceKind, ResourceTable, Span,
};

use super::jobs::{CAPACITY, Job, TARGETS};

/// Decides when jobs start. It is told the time, and knows estimates only.
pub(crate) trait Scheduler {
    fn submit(&mut self, number: usize, job: &Job, now: Time);
    fn end(&mut self, number: usize, now: Time);
    /// The jobs that start now.
    fn starts(&mut self, now: Time) -> Vec<usize>;
    /// When something happens by time alone.
    fn next_time(&self) -> Option<Time>;
    /// The start that a job was promised at first.
    fn promised(&self, number: usize) -> Option<Time>;
}

/// A job as the baselines know it: what it takes for how long.
#[derive(Clone)]
struct Request {
    number: usize,
    demand: Demand,
    estimate: Nanos,
}

/// First come, first served, with or without EASY backfilling.
pub(crate) struct JobQueue {
    table: ResourceTable,
    queue: Vec<Request>,
    running: BTreeMap<usize, (Demand, Span)>,
    promises: BTreeMap<usize, Time>,
    has_backfilling: bool,
}

impl JobQueue {
    pub(crate) fn first_come_first_served() -> JobQueue {
        JobQueue::new(false)
    }

    /// EASY backfilling: Lifka, "The ANL/IBM SP scheduling system" (JSSPP'95).
    pub(crate) fn easy() -> JobQueue {
        JobQueue::new(true)
    }

    fn new(has_backfilling: bool) -> JobQueue {
        let (queue, running, promises) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        JobQueue { table: targets(), queue, running, promises, has_backfilling }
    }

    /// The start of the last one, if all are planned in order.
    fn plan(&mut self, now: Time) -> Time {
        let mut planned: Vec<Time> = Vec::new();
        for request in &self.queue {
            let start = earliest(&self.table, request, now);
            self.table.book(&request.demand, Span::new(start, request.estimate));
            planned.push(start);
        }
        for (request, start) in self.queue.iter().zip(&planned) {
            self.table.release(&request.demand, Span::new(*start, request.estimate));
        }
        *planned.last().expect("it was submitted")
    }

    fn start(&mut self, at: usize, now: Time) -> usize {
        let Request { number, demand, estimate } = self.queue.remove(at);
        let span = Span::new(now, estimate);
        self.table.book(&demand, span);
        self.running.insert(number, (demand, span));
        number
    }

    fn fits(&self, at: usize, now: Time) -> bool {
        let Request { demand, estimate, .. } = &self.queue[at];
        self.table.check_fit(demand, Span::new(now, *estimate)).is_ok()
    }
}

impl Scheduler for JobQueue {
    fn submit(&mut self, number: usize, job: &Job, now: Time) {
        let (demand, estimate) = (job.demand.clone(), job.estimate);
        self.queue.push(Request { number, demand, estimate });
        if self.has_backfilling && self.queue.len() <= PLANNED_MAX {
            let start = self.plan(now);
            self.promises.insert(number, start);
        }
    }

    fn end(&mut self, number: usize, now: Time) {
        let (demand, span) = self.running.remove(&number).expect("it runs");
        self.table.release(&demand, Span { from: now, ..span });
    }

    fn starts(&mut self, now: Time) -> Vec<usize> {
        self.table.forget_before(now);
        let mut started = Vec::new();
        while !self.queue.is_empty() && self.fits(0, now) {
            started.push(self.start(0, now));
        }
        if !self.has_backfilling || self.queue.is_empty() {
            return started;
        }
        let head = self.queue[0].clone();
        let planned = Span::new(earliest(&self.table, &head, now), head.estimate);
        self.table.book(&head.demand, planned);
        let mut at = 1;
        while at < self.queue.len() {
            if self.fits(at, now) {
                started.push(self.start(at, now));
            } else {
                at += 1;
            }
        }
        self.table.release(&head.demand, planned);
        started
    }

    fn next_time(&self) -> Option<Time> {
        None
    }

    fn promised(&self, number: usize) -> Option<Time> {
        self.promises.get(&number).copied()
    }
}

/// Conservative backfilling with compression: Mu'alem and Feitelson (TPDS 2001).
pub(crate) struct Conservative {
    table: ResourceTable,
    /// Those that wait, in the order of their submission.
    planned: BTreeMap<usize, (Request, Time)>,
    running: BTreeMap<usize, (Demand, Span)>,
    promises: BTreeMap<usize, Time>,
}

impl Conservative {
    pub(crate) fn new() -> Conservative {
        let (planned, running) = (BTreeMap::new(), BTreeMap::new());
        Conservative { table: targets(), planned, running, promises: BTreeMap::new() }
    }
}

impl Scheduler for Conservative {
    fn submit(&mut self, number: usize, job: &Job, now: Time) {
        let (demand, estimate) = (job.demand.clone(), job.estimate);
        let request = Request { number, demand, estimate };
        let start = earliest(&self.table, &request, now);
        self.table.book(&request.demand, Span::new(start, estimate));
        self.promises.insert(number, start);
        self.planned.insert(number, (request, start));
    }

    fn end(&mut self, number: usize, now: Time) {
        let (demand, span) = self.running.remove(&number).expect("it runs");
        self.table.release(&demand, Span { from: now, ..span });
        if now >= span.until {
            return;
        }
        for (request, start) in self.planned.values_mut() {
            let span = Span::new(*start, request.estimate);
            self.table.release(&request.demand, span);
            *start = earliest(&self.table, request, now);
            self.table.book(&request.demand, Span::new(*start, request.estimate));
        }
    }

    fn starts(&mut self, now: Time) -> Vec<usize> {
        self.table.forget_before(now);
        let due = self.planned.iter().filter(|(_, (_, start))| *start <= now);
        let started: Vec<usize> = due.map(|(number, _)| *number).collect();
        for number in &started {
            let (request, start) = self.planned.remove(number).expect("it was planned");
            let span = Span::new(start, request.estimate);
            self.running.insert(*number, (request.demand, span));
        }
        started
    }

    fn next_time(&self) -> Option<Time> {
        self.planned.values().map(|(_, start)| *start).min()
    }

    fn promised(&self, number: usize) -> Option<Time> {
        self.promises.get(&number).copied()
    }
}

/// The calendar of this crate. Spontaneous ones have a promise when they have aged.
pub(crate) struct CalendarScheduler {
    calendar: Calendar,
    numbers: BTreeMap<ReservationId, usize>,
    ids: BTreeMap<usize, ReservationId>,
    promises: BTreeMap<usize, Time>,
}

impl CalendarScheduler {
    pub(crate) fn new() -> CalendarScheduler {
        let (best_effort, install_lead) = (Share::ZERO, Nanos::ZERO);
        let settings = CalendarSettings { best_effort, install_lead, ..Default::default() };
        let mut calendar = Calendar::new(settings);
        for number in 0..TARGETS {
            let (name, capacity) = (format!("target{number}").into(), capacity());
            let added = calendar.add_resource(name, ResourceKind::Target, capacity, Time::ZERO);
            added.expect("a new name");
        }
        let (numbers, ids, promises) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        CalendarScheduler { calendar, numbers, ids, promises }
    }
}

impl Scheduler for CalendarScheduler {
    fn submit(&mut self, number: usize, job: &Job, now: Time) {
        // some users, so that none reaches a ceiling
        let owner = ReservationOwner {
            job: JobId::default(),
            uid: number as u32 % 100,
            gid: 100,
            account: None,
            project: None,
        };
        let request = ReservationRequest::new(owner, job.demand.clone(), job.estimate);
        let request = if job.wants_promise { request } else { request.spontaneous() };
        let id = self.calendar.request(request, now).expect("all of it fits at some time");
        self.numbers.insert(id, number);
        self.ids.insert(number, id);
    }

    fn end(&mut self, number: usize, now: Time) {
        // one that reached its estimate has expired
        self.calendar.finish(self.ids[&number], Bytes::ZERO, now);
    }

    fn starts(&mut self, now: Time) -> Vec<usize> {
        self.calendar.advance(now);
        let mut started = Vec::new();
        while let Some(event) = self.calendar.poll_event() {
            let number = self.numbers[&event.id];
            match event.change {
                CalendarChange::Scheduled { span, is_guaranteed: true } => {
                    self.promises.insert(number, span.from);
                }
                CalendarChange::Install { .. } => {
                    self.calendar.installed(event.id, now);
                }
                CalendarChange::Active { .. } => started.push(number),
                _ => {}
            }
        }
        started
    }

    fn next_time(&self) -> Option<Time> {
        self.calendar.next_deadline()
    }

    fn promised(&self, number: usize) -> Option<Time> {
        self.promises.get(&number).copied()
    }
}

/// How many of a queue are planned.
const PLANNED_MAX: usize = 500;

fn capacity() -> Capacity {
    Capacity::per_sec(CAPACITY, CAPACITY).expect("in range")
}

fn targets() -> ResourceTable {
    let mut table = ResourceTable::default();
    for number in 0..TARGETS {
        let name = format!("target{number}").into();
        let added = table.add(name, ResourceKind::Target, capacity(), Time::ZERO);
        added.expect("a new name");
    }
    table
}

fn earliest(table: &ResourceTable, request: &Request, release: Time) -> Time {
    let until = Time::from_nanos(u64::MAX / 2);
    let window = FitWindow { release, until, length: request.estimate };
    table.earliest_fit(&request.demand, window).expect("no latest end")
}
