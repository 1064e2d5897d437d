//! The proxy's page of metrics, made at each scrape.
//!
//! ```text
//!   GET /metrics ─► subjects, 512 at a time ─► what is new ─► Lines of jobs, users of each target
//!                                gate's Times ─► histograms by target, kind and lane
//!                   all together: tally, threads, connections ─────────► Page
//! ```
//!
//! Nothing is kept up to date between scrapes. What is remembered is each subject's sums at
//! the last one, by its place in the dispatcher: 80 bytes for each that there ever was at a
//! time, and an account for each job and user of now. The gate is held for 512 subjects and
//! given to requests in between, so tens of thousands of jobs hold nobody up.

mod lines;
mod space;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::MetricsPage;
use api::metrics as names;
use model::{JobId, Lane, Ops};
use sched::{Dispatcher, SubjectId, Usage};

use crate::bounds::SharedBound;
use crate::gate::Gate;
use crate::leases::LeaseFigures;
use crate::server::Server;
use crate::target::Target;
use lines::{FIGURES, Lines, MetricSums};
use space::Space;

/// State that lasts from scrape to scrape.
#[derive(Debug, Default)]
pub(crate) struct ProxyMetrics {
    /// By the id of the target.
    targets: Vec<MetricAccounts>,
    /// Totals by the subjects' places, with the id of the subject that was there.
    seen: Vec<(Option<SubjectId>, MetricSums)>,
    space: Arc<Space>,
    /// How long the last page took.
    render_time: Duration,
}

/// Service of the subjects of one target.
#[derive(Debug)]
struct MetricAccounts {
    /// The sum over all subjects, as it is read.
    served: MetricSums,
    jobs: Lines<JobId>,
    users: Lines<u32>,
    settled: Instant,
}

/// Jobs, and users, that have a line of their own.
const LINES: usize = 50;
/// Maximum number of subjects that are read while the gate is locked.
const AT_ONCE: usize = 512;
/// The label of all others.
const OTHER: &str = "other";
/// The label of what belongs to no job. An empty label would be none.
const NO_JOB: &str = "none";

/// The metrics of a job and of a user, in the order of [`MetricSums`].
const JOB: [&names::Metric; FIGURES] = [
    &names::JOB_READ_BYTES,
    &names::JOB_WRITTEN_BYTES,
    &names::JOB_OPERATIONS,
    &names::JOB_METADATA,
    &names::JOB_REQUESTS,
    &names::JOB_QUEUE,
    &names::JOB_SERVICE,
    &names::JOB_COST,
];
const USER: [&names::Metric; FIGURES] = [
    &names::USER_READ_BYTES,
    &names::USER_WRITTEN_BYTES,
    &names::USER_OPERATIONS,
    &names::USER_METADATA,
    &names::USER_REQUESTS,
    &names::USER_QUEUE,
    &names::USER_SERVICE,
    &names::USER_COST,
];

impl Server {
    /// The page of now.
    pub(crate) fn metrics_page(&self) -> String {
        // Two scrapes at once get pages of their own, one after the other.
        let mut metrics = self.metrics.lock().expect("not poisoned");
        let began = Instant::now();
        let mut page = MetricsPage::new();
        self.write_process(&mut page, metrics.render_time);
        self.write_proxy(&mut page);
        let targets = self.targets();
        metrics.update(&self.gate);
        write_times(&mut page, &targets);
        write_targets(&mut page, &targets, &metrics);
        self.write_space(&mut page, &targets, &metrics.space);
        write_jobs(&mut page, &targets, &metrics);
        write_users(&mut page, &targets, &metrics);
        metrics.render_time = began.elapsed();
        page.finish()
    }

    fn write_process(&self, page: &mut MetricsPage, took: Duration) {
        page.family(&names::INFO).line(&["proxy", env!("CARGO_PKG_VERSION")], 1);
        api::write_process_metrics(page);
        page.single(&names::SCRAPE, took.as_nanos() as u64);
    }

    fn write_proxy(&self, page: &mut MetricsPage) {
        let tally = self.tally();
        page.single(&names::CONNECTIONS, self.connections().len() as u64);
        self.write_bounds(page);
        page.single(&names::THREADS, self.crew.threads() as u64);
        page.single(&names::THREADS_MAX, self.settings().threads_max.into());
        page.single(&names::DRAINING, self.is_draining().into());
        self.write_controller_client(page);
        self.write_leases(page);
        page.single(&names::REQUESTS, tally.requests);
        page.single(&names::ERRORS, tally.errors);
        page.single(&names::CANCELLED, tally.cancelled);
        page.single(&names::READ_BYTES, tally.read_bytes);
        page.single(&names::WRITTEN_BYTES, tally.written_bytes);
        page.single(&names::OPERATIONS, tally.ops);
    }

    fn write_bounds(&self, page: &mut MetricsPage) {
        let limits = self.limits();
        let tables = [
            ("connections", self.connections().len(), limits.connections),
            ("sessions", self.mounts.all().len(), limits.sessions),
        ];
        let shared = SharedBound::ALL.map(|what| (what.name(), self.shared.figures(what)));
        for (metric, at) in [(&names::BOUND_USED, 0), (&names::BOUND_MAX, 1)] {
            let mut family = page.family(metric);
            for (name, used, max) in tables {
                family.line(&[name], [used, max][at] as u64);
            }
            shared.iter().for_each(|(name, figures)| family.line(&[name], figures[at]));
        }
        let (connections, sessions) = (self.accepting.counts(), self.mounts.counts());
        let mut family = page.family(&names::BOUND_REFUSED);
        family.line(&["connections"], connections[0]);
        family.line(&["sessions"], sessions[0]);
        shared.iter().for_each(|(name, figures)| family.line(&[name], figures[2]));
        let mut family = page.family(&names::RECLAIMED);
        family.line(&["connections"], connections[1]);
        family.line(&["sessions"], sessions[1]);
    }

    fn write_leases(&self, page: &mut MetricsPage) {
        let LeaseFigures { leases, holders, recalls, returned, expelled, waiting, recall_max } =
            self.leases.figures();
        page.single(&names::LEASES, leases);
        page.single(&names::LEASE_HOLDERS, holders);
        page.single(&names::LEASE_RECALLS, recalls);
        page.single(&names::LEASE_RETURNS, returned);
        page.single(&names::LEASE_EXPELLED, expelled);
        page.single(&names::LEASE_RECALL_MAX, recall_max.get());
        page.single(&names::LEASE_WAITING, waiting);
    }

    fn write_controller_client(&self, page: &mut MetricsPage) {
        let Some(link) = self.link.report(self.clock.now()) else { return };
        page.single(&names::LINK_UP, link.connected.into());
        if let Some(age) = link.last_reply_ns_ago {
            page.single(&names::CONTROLLER_REPLY_AGE, age);
        }
        let mut calls = page.family(&names::LINK_CALLS);
        calls.line(&["answered"], link.answered);
        calls.line(&["refused"], link.refused);
        calls.line(&["unanswered"], link.unanswered);
        page.single(&names::LINK_DUPLICATE, link.duplicate.into());
    }

    fn write_space(&self, page: &mut MetricsPage, targets: &[Arc<Target>], space: &Arc<Space>) {
        let exports = self.exports();
        let dir_of = |target: &Arc<Target>| {
            let export = exports.iter().find(|export| Arc::ptr_eq(&export.target, target))?;
            Some((target.name.clone(), export.dir.clone()))
        };
        let mut known: Vec<_> =
            space.get_or_refresh(targets.iter().filter_map(dir_of).collect()).into_iter().collect();
        known.sort_by(|a, b| a.0.cmp(&b.0));
        let mut tell = |metric, of: fn(&space::SpaceFigures) -> u64| {
            let mut family = page.family(metric);
            known.iter().for_each(|(target, figures)| family.line(&[target], of(figures)));
        };
        tell(&names::TARGET_SIZE, |figures| figures.size_bytes);
        tell(&names::TARGET_FREE, |figures| figures.free_bytes);
        tell(&names::TARGET_FILES, |figures| figures.files_max);
        tell(&names::TARGET_FILES_FREE, |figures| figures.files_free);
        tell(&names::TARGET_SPACE_AGE, |figures| figures.queried_at.elapsed().as_nanos() as u64);
    }
}

impl ProxyMetrics {
    /// Takes in what subjects were served since the last time.
    fn update(&mut self, gate: &Gate) {
        // Before the subjects: a subject that is forgotten meanwhile is in this at the next scrape,
        // and no subject is counted twice.
        let forgotten = gate.with_dispatcher(|dispatcher, _| {
            let of = |target| dispatcher.forgotten_usage(target);
            dispatcher.targets().map(of).collect::<Vec<_>>()
        });
        // Without scheduling subjects are not distinguished.
        let Some(forgotten) = forgotten else { return };
        while self.targets.len() < forgotten.len() {
            self.targets.push(MetricAccounts::new());
        }
        for (account, (usage, metadata)) in self.targets.iter_mut().zip(&forgotten) {
            account.served = sums(usage, *metadata);
        }
        let mut part = Vec::with_capacity(AT_ONCE);
        let mut places = AT_ONCE;
        let mut from = 0;
        while from < places {
            let look = |dispatcher: &mut Dispatcher, _| {
                let subjects = dispatcher.sums(from..from + AT_ONCE);
                part.extend(subjects.map(|(id, target, who, usage, metadata)| {
                    (id, target, who.job.clone(), who.uid, sums(&usage, metadata))
                }));
                dispatcher.subject_index_end()
            };
            places = gate.with_dispatcher(look).unwrap_or(0);
            for (id, target, job, uid, sums) in part.drain(..) {
                // A target that was added meanwhile has its first scrape later.
                if target.index() < self.targets.len() {
                    let fresh = self.fresh(id, &sums);
                    self.targets[target.index()].add(&job, uid, &sums, &fresh);
                }
            }
            from += AT_ONCE;
        }
        self.targets.iter_mut().for_each(MetricAccounts::end_scrape);
    }

    /// Returns the service of a subject since its last scrape.
    fn fresh(&mut self, id: SubjectId, now: &MetricSums) -> MetricSums {
        let place = id.to_bits() as u32 as usize;
        if self.seen.len() <= place {
            self.seen.resize(place + 1, Default::default());
        }
        let (was, before) = std::mem::replace(&mut self.seen[place], (Some(id), *now));
        if was != Some(id) {
            return *now;
        }
        std::array::from_fn(|at| now[at] - before[at])
    }

    /// The accounts of a target, if it was scraped.
    fn of(&self, target: &Target) -> Option<&MetricAccounts> {
        self.targets.get(target.id.index())
    }
}

impl MetricAccounts {
    fn new() -> MetricAccounts {
        let (jobs, users) = (Lines::new(LINES), Lines::new(LINES));
        MetricAccounts { served: MetricSums::default(), jobs, users, settled: Instant::now() }
    }

    /// Adds a subject: its totals, and what is new of them.
    fn add(&mut self, job: &JobId, uid: u32, sums: &MetricSums, fresh: &MetricSums) {
        self.jobs.add(job, fresh);
        self.users.add(&uid, fresh);
        lines::add(&mut self.served, sums);
    }

    fn end_scrape(&mut self) {
        let since = self.settled.elapsed();
        self.settled += since;
        let served = &self.served;
        self.jobs.end_scrape(served, since, |job| ![OTHER, NO_JOB].contains(&job.as_str()));
        self.users.end_scrape(served, since, |_| true);
    }
}

fn write_times(page: &mut MetricsPage, targets: &[Arc<Target>]) {
    let times = targets.iter().map(|target| (&target.name, target.gate.times(target.id)));
    let times: Vec<_> = times.collect();
    let cells = || {
        times.iter().flat_map(|(target, times)| {
            let labels =
                |kind: model::OpKind, lane| [target.as_str(), kind.name(), lane_name(lane)];
            times.cells().map(move |(kind, lane, cell)| (labels(kind, lane), cell))
        })
    };
    let mut requests = page.family(&names::TARGET_REQUESTS);
    cells().for_each(|(labels, cell)| requests.line(&labels, cell.requests));
    let mut operations = page.family(&names::TARGET_OPERATIONS);
    cells().for_each(|(labels, cell)| operations.line(&labels, cell.ops));
    let mut bytes = page.family(&names::TARGET_BYTES);
    let moving = cells().filter(|(_, cell)| cell.bytes > 0);
    moving.for_each(|(labels, cell)| bytes.line(&labels, cell.bytes));
    let mut queue = page.family(&names::TARGET_QUEUE);
    cells().for_each(|(labels, cell)| {
        let times = &cell.queue;
        queue.histogram(&labels, &times.buckets(), times.beyond(), times.sum_ns());
    });
    let mut service = page.family(&names::TARGET_SERVICE);
    cells().for_each(|(labels, cell)| {
        let times = &cell.service;
        service.histogram(&labels, &times.buckets(), times.beyond(), times.sum_ns());
    });
}

/// Figures of a target's dispatcher at one moment: queued, slots in use, slots, cut reservations,
/// jobs.
type MetricsNow = [u64; 5];

fn write_targets(page: &mut MetricsPage, targets: &[Arc<Target>], metrics: &ProxyMetrics) {
    let figures_of = |target: &Arc<Target>| -> Option<MetricsNow> {
        let (id, jobs) = (target.id, metrics.of(target)?.jobs.len() as u64);
        target.gate.with_dispatcher(|d, now| {
            let (held, max) = (d.slots_in_use(id).into(), d.slots_max(id).into());
            [d.queued_at(id) as u64, held, max, d.reservation_shortfall_ppm(id, now), jobs]
        })
    };
    let figures: Vec<_> = targets.iter().map(|target| (target, figures_of(target))).collect();
    let metrics = [
        &names::TARGET_QUEUED,
        &names::TARGET_SLOTS,
        &names::TARGET_SLOTS_MAX,
        &names::TARGET_CUT,
        &names::TARGET_JOBS,
    ];
    for (at, metric) in metrics.into_iter().enumerate() {
        let mut family = page.family(metric);
        for (target, figures) in &figures {
            if let Some(figures) = figures {
                family.line(&[&target.name], figures[at]);
            }
        }
    }
}

fn write_jobs(page: &mut MetricsPage, targets: &[Arc<Target>], metrics: &ProxyMetrics) {
    for (at, metric) in JOB.into_iter().enumerate() {
        let mut family = page.family(metric);
        for target in targets {
            let Some(MetricAccounts { jobs, .. }) = metrics.of(target) else { continue };
            for (job, sums) in jobs.shown() {
                let label = if job.as_str().is_empty() { NO_JOB } else { job.as_str() };
                family.line(&[&target.name, label], sums[at]);
            }
            family.line(&[&target.name, OTHER], jobs.other()[at]);
        }
    }
}

fn write_users(page: &mut MetricsPage, targets: &[Arc<Target>], metrics: &ProxyMetrics) {
    for (at, metric) in USER.into_iter().enumerate() {
        let mut family = page.family(metric);
        for target in targets {
            let Some(MetricAccounts { users, .. }) = metrics.of(target) else { continue };
            for (uid, sums) in users.shown() {
                family.line(&[&target.name, &uid.to_string()], sums[at]);
            }
            family.line(&[&target.name, OTHER], users.other()[at]);
        }
    }
}

fn sums(usage: &Usage, metadata: Ops) -> MetricSums {
    [
        usage.read.get(),
        usage.written.get(),
        usage.ops.get(),
        metadata.get(),
        usage.requests,
        usage.queue_time.get(),
        usage.service_time.get(),
        usage.cost.get(),
    ]
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Cached => "cached",
        Lane::Device => "device",
    }
}
