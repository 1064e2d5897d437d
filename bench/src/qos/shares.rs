//! What two jobs a and b are served by their weights, and whether both always had a backlog.
//!
//! ```text
//!   rules: a has weight w, b has 1 ─► watch until b was served 50 (D / s + 1) requests ─► ratios
//! ```
//!
//! The error of SFQ(D) is bounded by D / s requests of s slots: at most that many are in service at
//! once, and at most that many overtake a request that does not fit. A ratio means something once
//! the lighter class was served many times as many. In service are no more than there are threads.
//!
//! Weights guarantee a division of the service only while both sides ask for more than they get. So
//! the length of the dispatcher's queue is sampled all through the span: where it was no longer than
//! 2 n, the generator ran dry and the round is void, whatever its ratio is.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{TargetReport, WireUsage};
use model::{Bytes, Nanos};

use super::super::figures::row::FigureSample;
use super::bed::{QosProxy, QosTestBed};

/// What one of the jobs asks for, and how many of its largest requests are in service at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharesJob {
    /// D / s.
    fitting: u64,
    in_service: u64,
    /// Requests that keep it backlogged, with some to spare for a generator that comes late.
    in_flight: u64,
}

/// When a round has seen enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharesRule {
    jobs: [SharesJob; 2],
    /// Requests that the lighter job is to be served.
    light_requests: u64,
    /// After this the round ends in any case.
    time_max: Duration,
}

/// What two classes were served within the span, and their least backlogs.
pub(crate) struct SharesSample {
    rule: SharesRule,
    usage: [WireUsage; 2],
    queued_min: [u64; 2],
    seconds: f64,
}

impl SharesJob {
    /// Of a job whose largest requests are of `size`, on device slots.
    pub(crate) fn on_slots(
        target: &TargetReport,
        size: Bytes,
        writes: bool,
    ) -> anyhow::Result<SharesJob> {
        let costs = if writes { &target.write_costs } else { &target.read_costs };
        let cost = costs.iter().find(|point| point.bytes == size.get());
        let cost = cost.with_context(|| format!("the proxy has no cost of {size}"))?.cost_ns;
        let unit = target.read_costs.first().map_or(0, |point| point.cost_ns);
        let slots =
            sched::slots_needed(Nanos::new(cost), Nanos::new(unit), target.slots_max.max(1));
        let fitting = (u64::from(target.slots_max) / u64::from(slots)).max(1);
        let in_service = fitting.min(THREADS_MAX);
        Ok(SharesJob { fitting, in_service, in_flight: (8 * in_service).max(64) })
    }

    /// Of a job whose requests one thread executes, in microseconds each.
    pub(crate) fn on_one_thread() -> SharesJob {
        SharesJob { fitting: 1, in_service: 1, in_flight: 4 * 4096 }
    }

    /// Returns the number of requests that it keeps under way.
    pub(crate) fn in_flight(self) -> usize {
        self.in_flight as usize
    }
}

impl SharesRule {
    /// The rule for a heavy and a light job; a tenth of it if `is_quick`.
    pub(crate) fn new(heavy: SharesJob, light: SharesJob, is_quick: bool) -> SharesRule {
        let times = if is_quick { 5 } else { 50 };
        let light_requests = times * (light.fitting + 1);
        let time_max = if is_quick { TIME_MAX / 30 } else { TIME_MAX };
        SharesRule { jobs: [heavy, light], light_requests, time_max }
    }
}

/// Waits until both jobs have the backlog that a round needs: many threads take their time to begin.
/// Without it the round is void, which says why.
pub(crate) fn wait_for_backlog(
    bed: &QosTestBed,
    proxy: &QosProxy,
    rule: SharesRule,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + BACKLOG_MAX;
    while Instant::now() < deadline {
        // Before its first request a job has no class.
        let queued = usage(proxy).map_or([0; 2], |usage| usage.map(|usage| usage.queued));
        if (0..2).all(|job| queued[job] > 2 * rule.jobs[job].in_service) {
            break;
        }
        bed.wait(SAMPLE_EVERY)?;
    }
    Ok(())
}

/// Watches the jobs a and b until the lighter one was served as the rule wants.
pub(crate) fn watch(
    bed: &QosTestBed,
    proxy: &QosProxy,
    rule: SharesRule,
) -> anyhow::Result<SharesSample> {
    let start = Instant::now();
    let began = usage(proxy)?;
    let mut queued_min = began.map(|usage| usage.queued);
    loop {
        bed.wait(SAMPLE_EVERY)?;
        let now = usage(proxy)?;
        for (least, now) in queued_min.iter_mut().zip(now) {
            *least = (*least).min(now.queued);
        }
        let usage = [now[0].since(&began[0]), now[1].since(&began[1])];
        if usage[1].requests >= rule.light_requests || start.elapsed() >= rule.time_max {
            let seconds = start.elapsed().as_secs_f64();
            return Ok(SharesSample { rule, usage, queued_min, seconds });
        }
    }
}

/// Both classes at one moment.
fn usage(proxy: &QosProxy) -> anyhow::Result<[WireUsage; 2]> {
    let classes = proxy.api.classes()?.classes;
    let of = |job: &str| {
        let key = format!("jobid={job}");
        let class = classes.iter().find(|class| class.key == key);
        class.map(|class| class.usage).with_context(|| format!("no class of job {job}"))
    };
    Ok([of("a")?, of("b")?])
}

impl SharesSample {
    /// Why nothing follows from it, if so.
    pub(crate) fn void(&self) -> Option<String> {
        let names = ["heavy", "light"];
        let dry = (0..2).find(|job| self.queued_min[*job] <= 2 * self.rule.jobs[*job].in_service);
        if let Some(job) = dry {
            let (queued, in_service) = (self.queued_min[job], self.rule.jobs[job].in_service);
            return Some(format!(
                "generator dry: the {} job had {queued} requests queued, with {in_service} in service",
                names[job]
            ));
        }
        let (served, wanted) = (self.usage[1].requests, self.rule.light_requests);
        (served < wanted).then(|| {
            format!(
                "the light job was served {served} of {wanted} requests in {:.0} s",
                self.seconds
            )
        })
    }

    /// All that was measured; the error of the device is what bytes say of the charge, where the
    /// device's time follows from bytes.
    pub(crate) fn figures(&self, weight: u32, slots: u64, is_by_bytes: bool) -> FigureSample {
        let ratio = |of: fn(&WireUsage) -> f64| of(&self.usage[0]) / of(&self.usage[1]).max(1.0);
        let rate = |job: usize| payload(&self.usage[job]) / self.seconds / 1e6;
        let mut figures = vec![
            ("charged_ratio", ratio(|usage| usage.cost_ns as f64)),
            ("payload_ratio", ratio(payload)),
            ("heavy_mb_per_s", rate(0)),
            ("light_mb_per_s", rate(1)),
            ("heavy_requests", self.usage[0].requests as f64),
            ("light_requests", self.usage[1].requests as f64),
            ("heavy_queued_min_count", self.queued_min[0] as f64),
            ("light_queued_min_count", self.queued_min[1] as f64),
            ("heavy_in_service_count", self.rule.jobs[0].in_service as f64),
            ("light_in_service_count", self.rule.jobs[1].in_service as f64),
            ("slots_count", slots as f64),
            ("span_s", self.seconds),
        ];
        if is_by_bytes {
            let error = ratio(payload) / f64::from(weight) - 1.0;
            figures.push(("device_error_percent", error * 100.0));
        }
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn payload(usage: &WireUsage) -> f64 {
    (usage.read_bytes + usage.written_bytes) as f64
}

/// A rule for each job.
pub(crate) fn rules(weight: u32) -> String {
    let rule = |job, weight| {
        format!(
            "[[rule]]\nname = \"{job}\"\nmatch = \"jobid={{{job}}}\"\nper = [\"jobid\"]\n\
             weight = {weight}\n\n"
        )
    };
    rule("a", weight) + &rule("b", 1)
}

/// The weights that are measured, each against 1.
pub(crate) const WEIGHTS: [u32; 5] = [2, 4, 8, 16, 32];
/// New weights count from the next request on; what is queued by the old ones goes first.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
const BACKLOG_MAX: Duration = Duration::from_secs(30);
const TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// A little less than `threads_max` of the proxies: some threads read the sockets.
const THREADS_MAX: u64 = 250;

#[cfg(test)]
mod tests {
    use api::CostPoint;

    use super::*;

    fn rule(heavy: u64, light: u64) -> SharesRule {
        let job = |fitting| SharesJob { fitting, in_service: fitting, in_flight: 64 };
        SharesRule::new(job(heavy), job(light), false)
    }

    fn sample(queued_min: [u64; 2], requests: u64) -> SharesSample {
        let usage = [(8_080, 600), (1_000, 100)].map(|(cost_ns, read_bytes)| WireUsage {
            cost_ns,
            read_bytes,
            requests,
            ..WireUsage::default()
        });
        SharesSample { rule: rule(8, 4), usage, queued_min, seconds: 2.0 }
    }

    #[test]
    fn the_lighter_job_is_served_fifty_times_what_fits_the_slots() {
        assert_eq!(rule(8, 4).light_requests, 250);
        let costs = [(4096, 10), (65536, 100)];
        let points = costs.map(|(bytes, cost_ns)| CostPoint { bytes, cost_ns }).to_vec();
        let target =
            TargetReport { slots_max: 64, read_costs: points.clone(), ..TargetReport::default() };
        let of = |size| SharesJob::on_slots(&target, Bytes::kib(size), false).unwrap().in_service;
        // 64 KiB are 10 small ones, so 16 slots.
        assert_eq!([of(4), of(64)], [64, 4]);
        let deep = TargetReport { slots_max: 4096, ..target.clone() };
        let job = SharesJob::on_slots(&deep, Bytes::kib(4), false).unwrap();
        assert_eq!((job.in_service, job.fitting), (250, 4096), "no more than threads");
        assert_eq!(SharesRule::new(job, job, false).light_requests, 50 * 4097);
        assert!(SharesJob::on_slots(&target, Bytes::kib(5), false).is_err());
    }

    #[test]
    fn a_round_without_a_backlog_or_with_too_few_requests_is_void() {
        assert_eq!(sample([17, 9], 250).void(), None);
        assert!(sample([16, 9], 250).void().unwrap().contains("the heavy job had 16"));
        assert!(sample([17, 8], 250).void().unwrap().contains("the light job had 8"));
        assert!(sample([17, 9], 249).void().unwrap().contains("249 of 250"));
    }

    #[test]
    fn ratios_are_of_the_charge_and_of_the_payload() {
        let figures = sample([17, 9], 250).figures(8, 64, true);
        assert_eq!((figures["charged_ratio"], figures["payload_ratio"]), (8.08, 6.0));
        assert_eq!(figures["device_error_percent"], -25.0);
    }

    #[test]
    fn the_rules_are_rules() {
        let rules = rules::RuleSet::parse(&rules(8)).unwrap();
        assert_eq!(rules.rules[0].weight.get(), 8);
        assert_eq!(rules.rules[1].weight.get(), 1);
    }
}
