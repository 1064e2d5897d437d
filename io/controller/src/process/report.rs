//! The usage of one job in the ledger, and the job's users.
//!
//! ```text
//!   reports ─► JobOwners ─► ledger: an hour's mark for each user and job
//!   UsageMsg::Job ─► read: the job's points, its owners, all jobs' sums in its time
//!                     └─► summary ─► WireJobReport, without the causes of delay

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use api::{
    ConcurrentJob, JobPattern, JobPoint, UndelayedRate, Why, WhySubject, WireJobReport,
    WireWaitKind,
};
use model::{AccessStats, AccountSubject, Nanos, Service, Time};

use super::usage::UsageUpdate;
use crate::ledger::{Ledger, LedgerError, LedgerPoint, Minute, SubjectKind, UsageOutcome};

/// The users and jobs that are marked in this hour.
#[derive(Default)]
pub(super) struct JobOwners {
    hour: u32,
    marked: BTreeMap<u32, BTreeSet<String>>,
    count: usize,
}

/// The entries of the ledger for a job.
pub(crate) struct FoundOwners {
    pub(crate) points: Vec<LedgerPoint>,
    /// The users that had requests for it, by number.
    pub(crate) users: Vec<u32>,
    /// The usage of every job in the time of its points.
    pub(crate) all: BTreeMap<String, Service>,
}

impl JobOwners {
    /// Marks the jobs of lines that grew.
    pub(super) fn mark(
        &mut self,
        ledger: &mut Ledger,
        counted: &UsageUpdate,
        received: &UsageOutcome,
        now: Time,
    ) {
        let hour = Minute::of(now).number() / 60;
        if hour != self.hour || self.count >= MARKED_MAX {
            *self = JobOwners { hour, ..JobOwners::default() };
        }
        let mark = Service { cost_ns: 1, ..Service::default() };
        for (nth, _) in &received.grown {
            let Some(AccountSubject { identity: who, .. }) = counted.subject(*nth) else {
                continue;
            };
            let jobs = self.marked.entry(who.uid).or_default();
            if !jobs.contains(who.job.as_str()) {
                jobs.insert(who.job.to_string());
                self.count += 1;
                ledger.charge(SubjectKind::Owner, &owner(who.uid, who.job.as_str()), &mark);
            }
        }
    }
}

/// Reads the entries of a job in `[from, to)`.
pub(super) fn read(
    ledger: &mut Ledger,
    job: &str,
    from: Time,
    to: Time,
) -> Result<FoundOwners, LedgerError> {
    let points = ledger.series(SubjectKind::Job, job, from, to)?;
    let points: Vec<_> = points.into_iter().filter(|point| !point.sums.is_zero()).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Ok(FoundOwners { points, users: Vec::new(), all: BTreeMap::new() });
    };
    let span = (first.at, last.at + last.span);
    let all = ledger.sums_by(SubjectKind::Job, span.0, span.1)?;
    // A mark may be as old as its hour.
    let owners = ledger.sums_by(SubjectKind::Owner, span.0.before(HOUR), span.1)?;
    let user = |name: &str| match name.split_once(' ') {
        Some((uid, of)) if of == job => uid.parse().ok(),
        _ => None,
    };
    let users: BTreeSet<u32> = owners.keys().filter_map(|name| user(name)).collect();
    Ok(FoundOwners { points, users: users.into_iter().collect(), all })
}

/// Makes the report of a job that had requests, without the causes of delay.
pub(super) fn summary(job: &str, found: &FoundOwners, now: Time) -> WireJobReport {
    let points = &found.points;
    let mut sums = Service::default();
    points.iter().for_each(|point| sums.add(&point.sums));
    let seconds = |time: Time| time.as_nanos() / 1_000_000_000;
    let (first, last) = (points.first().map(|point| point.at), points.last().map(end_of));
    let at_s = seconds(now);
    // The open point is as long as it is old.
    let length = |point: &LedgerPoint| {
        let until = seconds(end_of(point)).min(at_s.max(seconds(point.at) + 1));
        until - seconds(point.at)
    };
    let timed = job_points(points, length);
    let active_ns = timed.iter().map(|point| point.active_ns).sum();
    let bytes = payload(&sums);
    let ops = sums.all_ops();
    let achieved = (per_second(bytes, active_ns), per_second(ops, active_ns));
    let everybody = found.all.values().fold(0u64, |sum, of| sum.saturating_add(payload(of)));
    let (others, others_count) = concurrent_jobs(job, found, everybody);
    let seen = AccessStats { bytes, ops: sums.ops, reads: sums.reads, writes: sums.writes };
    WireJobReport {
        job: job.into(),
        users: found.users.clone(),
        at_s,
        from_s: seconds(first.unwrap_or(now)),
        to_s: seconds(last.unwrap_or(now)).min(at_s),
        active_ns,
        counters: sums,
        delayed_span_ns: timed.iter().map(|point| point.delayed_span_ns).sum(),
        achieved_per_s: achieved.0,
        achieved_ops_per_s: achieved.1,
        undelayed: undelayed_rate(&timed, achieved),
        others,
        others_count,
        coverage_ppm: part_ppm(bytes, everybody),
        points: merge_points(&timed),
        patterns: seen.patterns().map(JobPattern::from).collect(),
        caveats: caveats(found, &timed, at_s),
        ..WireJobReport::default()
    }
}

/// Adds the causes of delay that the proxies report.
pub(super) fn add_delay_causes(report: &mut WireJobReport, why: &Why, silent: &[String]) {
    report.delay_causes_known = !why.subjects.is_empty();
    let mut holders: BTreeMap<String, api::JobDelayCause> = BTreeMap::new();
    for hold in why.waits.iter().filter(|hold| hold.requests > 0 || hold.current) {
        let what = explain::cause(hold);
        let holder = holders.entry(what.clone()).or_default();
        holder.what = what;
        holder.is_limit |= matches!(hold.kind, WireWaitKind::Limit | WireWaitKind::Slots);
        holder.current |= hold.current;
        holder.requests = holder.requests.saturating_add(hold.requests);
        holder.bytes = holder.bytes.saturating_add(hold.bytes);
        holder.wait_ns = holder.wait_ns.saturating_add(hold.wait_ns);
        holder.span_ns = holder.span_ns.saturating_add(hold.span_ns);
    }
    // The proxies' memory is newer than the ledger by the time of a report or two.
    let lately = report.active_ns..=report.active_ns.saturating_add(LATE.get());
    for holder in holders.values_mut().filter(|holder| lately.contains(&holder.span_ns)) {
        holder.span_ns = report.active_ns;
    }
    report.delay_causes = holders.into_values().collect();
    report.delay_causes.sort_by_key(|holder| Reverse((holder.is_limit, holder.span_ns)));
    report.delay_causes.truncate(DELAY_CAUSES_MAX);
    let proxies: BTreeSet<_> = why.subjects.iter().map(WhySubject::proxy_and_target).collect();
    if proxies.len() > 1 {
        report.caveats.push(format!(
            "Its requests were at {} targets of proxies: where several had requests at once, times \
             add up within a minute, so it may have been active for less, at higher rates.",
            proxies.len()
        ));
    }
    if !silent.is_empty() {
        let silent = silent.join(", ");
        report.caveats.push(format!("Causes of delay are not known from: {silent}."));
    }
}

/// Returns the other jobs with the most payload, and their number.
fn concurrent_jobs(job: &str, found: &FoundOwners, everybody: u64) -> (Vec<ConcurrentJob>, u64) {
    let others = found.all.iter().filter(|(name, sums)| *name != job && !sums.is_zero());
    let mut others: Vec<_> = others.map(|(name, sums)| (payload(sums), name)).collect();
    others.sort_by_key(|(bytes, name)| (Reverse(*bytes), *name));
    let count = others.len() as u64;
    let row = |(bytes, name): (u64, &String)| ConcurrentJob {
        job: name.clone(),
        bytes,
        traffic_ppm: part_ppm(bytes, everybody),
    };
    (others.into_iter().take(OTHERS_MAX).map(row).collect(), count)
}

/// Returns the points with their active times.
///
/// The times of several proxies add up, so a point is no longer active than it is long. It may be
/// by [`LATE`] if the point before has room for it: a report brings that much from before a minute.
fn job_points(points: &[LedgerPoint], length: impl Fn(&LedgerPoint) -> u64) -> Vec<JobPoint> {
    let mut before = (Time::ZERO, LATE.get());
    let one = |point: &LedgerPoint| {
        let (end, room) = before;
        let room = if end == point.at { room.min(LATE.get()) } else { LATE.get() };
        let (span_s, sums) = (length(point), &point.sums);
        let whole = span_s.saturating_mul(1_000_000_000);
        let active_ns = sums.active_ns.min(whole.saturating_add(room));
        before = (end_of(point), whole.saturating_sub(active_ns));
        JobPoint {
            at_s: point.at.as_nanos() / 1_000_000_000,
            span_s,
            active_ns,
            delayed_span_ns: sums.delayed_span_ns.min(active_ns),
            read_bytes: sums.read_bytes,
            written_bytes: sums.written_bytes,
            ops: sums.ops.iter().fold(0, |sum, ops| sum.saturating_add(*ops)),
            delayed: sums.delayed,
            delayed_bytes: sums.delayed_bytes,
            delayed_ns: sums.delayed_ns,
        }
    };
    points.iter().map(one).collect()
}

/// Returns the points, merged if there are too many.
fn merge_points(points: &[JobPoint]) -> Vec<JobPoint> {
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    let add = |sum: JobPoint, point: &JobPoint| JobPoint {
        at_s: sum.at_s,
        span_s: sum.span_s + point.span_s,
        active_ns: sum.active_ns.saturating_add(point.active_ns),
        delayed_span_ns: sum.delayed_span_ns.saturating_add(point.delayed_span_ns),
        read_bytes: sum.read_bytes.saturating_add(point.read_bytes),
        written_bytes: sum.written_bytes.saturating_add(point.written_bytes),
        ops: sum.ops.saturating_add(point.ops),
        delayed: sum.delayed.saturating_add(point.delayed),
        delayed_bytes: sum.delayed_bytes.saturating_add(point.delayed_bytes),
        delayed_ns: sum.delayed_ns.saturating_add(point.delayed_ns),
    };
    points.chunks(together).map(|of| of[1..].iter().fold(of[0], add)).collect()
}

/// Returns the highest rate of a point without delays, if it says something about the others: some
/// have delays, and it is above the achieved rates of bytes, or of operations where no bytes moved.
fn undelayed_rate(points: &[JobPoint], achieved: (u64, u64)) -> Option<UndelayedRate> {
    if points.iter().all(|point| point.delayed == 0) {
        return None;
    }
    let free = points.iter().filter(|point| point.delayed == 0);
    let free = free.filter(|point| point.active_ns >= UNDELAYED_MIN.get());
    let rates = free.map(|point| UndelayedRate {
        at_s: point.at_s,
        bytes_per_s: per_second(
            point.read_bytes.saturating_add(point.written_bytes),
            point.active_ns,
        ),
        ops_per_s: per_second(point.ops, point.active_ns),
    });
    let best = rates.max_by_key(|rate| (rate.bytes_per_s, rate.ops_per_s))?;
    let is_more = match achieved {
        (0, ops) => best.ops_per_s > ops,
        (bytes, _) => best.bytes_per_s > bytes,
    };
    is_more.then_some(best)
}

fn caveats(found: &FoundOwners, timed: &[JobPoint], at_s: u64) -> Vec<String> {
    let mut doubts = Vec::new();
    let (Some(first), Some(last)) = (found.points.first(), found.points.last()) else {
        return doubts;
    };
    let untimed = timed.iter().filter(|point| point.active_ns == 0 && point.ops > 0).count();
    if untimed > 0 {
        doubts.push(format!(
            "In {untimed} of {} points its active time is not known: the rates are too high.",
            timed.len()
        ));
    }
    let coarse = found.points.iter().map(|point| point.span).max().unwrap_or(MINUTE);
    if coarse > MINUTE {
        doubts.push(format!(
            "For that time points of {coarse} are kept: a job that had requests in the same points \
             before or after it counts as concurrent."
        ));
    }
    let whole = end_of(last).since(first.at).get() / MINUTE.get();
    let there: u64 = found.points.iter().map(|point| point.span.get() / MINUTE.get()).sum();
    if there < whole {
        let gap = whole - there;
        doubts.push(format!(
            "In {gap} of {whole} minutes it had no requests, or they were not counted."
        ));
    }
    if end_of(last).as_nanos() / 1_000_000_000 > at_s {
        doubts.push("The last minute is not over yet.".into());
    }
    if found.users.len() > 1 {
        let users = found.users.len();
        doubts.push(format!(
            "{users} users gave this name to their jobs; they are reported as one job."
        ));
    }
    if found.all.contains_key(crate::ledger::OTHER) {
        doubts.push("Some requests could not be counted by job: they are (other).".into());
    }
    doubts
}

fn end_of(point: &LedgerPoint) -> Time {
    point.at + point.span
}

fn payload(sums: &Service) -> u64 {
    sums.read_bytes.saturating_add(sums.written_bytes)
}

fn part_ppm(part: u64, whole: u64) -> u32 {
    let ppm = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u32::try_from(ppm).unwrap_or(u32::MAX).min(1_000_000)
}

/// Units a second; 0 where there is no time.
fn per_second(units: u64, active_ns: u64) -> u64 {
    let per_s = u128::from(units) * 1_000_000_000 / u128::from(active_ns.max(1));
    if active_ns == 0 { 0 } else { u64::try_from(per_s).unwrap_or(u64::MAX) }
}

fn owner(uid: u32, job: &str) -> String {
    format!("{uid} {job}")
}

const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(3_600);
/// The most marks that are remembered: some megabytes.
const MARKED_MAX: usize = 65_536;
/// How much active time the first report of a minute may bring from before it: proxies report every
/// 5 s, and again after 5 s if a report was lost.
const LATE: Nanos = Nanos::from_secs(10);
/// A point without delays says nothing if it has less active time.
const UNDELAYED_MIN: Nanos = Nanos::from_secs(1);
const OTHERS_MAX: usize = 5;
const DELAY_CAUSES_MAX: usize = 16;
/// The most points of one report.
const POINTS_MAX: usize = 1_500;

#[cfg(test)]
mod tests {
    use api::{WhySubject, WireWait, WireWaitKind};
    use model::{Accesses, OpKind};

    use super::*;

    fn point(minute: u64, minutes: u64, mb: u64, delayed: u64) -> LedgerPoint {
        let mut sums = Service {
            read_bytes: mb * 1_000_000,
            delayed,
            delayed_ns: delayed * 1_000_000,
            delayed_bytes: delayed * 10_000,
            active_ns: minutes * MINUTE.get() / 2,
            delayed_span_ns: delayed * 4_000_000,
            reads: Accesses { sizes: [0, mb * 100, 0, 0], random: mb * 90 },
            ..Service::default()
        };
        sums.ops[OpKind::Read as usize] = mb * 100;
        let (at, span) = (Time::from_nanos(minute * MINUTE.get()), Nanos::from_secs(60 * minutes));
        LedgerPoint { at, span, sums }
    }

    fn found(points: Vec<LedgerPoint>, others: &[(&str, u64)]) -> FoundOwners {
        let of = |mb: u64| Service { written_bytes: mb * 1_000_000, ..Service::default() };
        let mut all: BTreeMap<_, _> =
            others.iter().map(|(name, mb)| (name.to_string(), of(*mb))).collect();
        let mut own = Service::default();
        points.iter().for_each(|point| own.add(&point.sums));
        all.insert("j".into(), own);
        FoundOwners { points, users: vec![7], all }
    }

    #[test]
    fn rates_are_of_the_time_in_which_there_were_requests() {
        let found = found(vec![point(10, 1, 60, 0), point(12, 1, 60, 6_000)], &[("k", 360)]);
        let report = summary("j", &found, Time::from_nanos(20 * MINUTE.get()));
        assert_eq!((report.from_s, report.to_s, report.active_ns), (600, 780, MINUTE.get()));
        assert_eq!((report.achieved_per_s, report.achieved_ops_per_s), (2_000_000, 200));
        assert_eq!((report.delayed_span_ns, report.undelayed), (24_000_000_000, None));
        assert_eq!(report.coverage_ppm, 250_000);
        let beside = ConcurrentJob { job: "k".into(), bytes: 360_000_000, traffic_ppm: 750_000 };
        assert_eq!((report.others, report.others_count), (vec![beside], 1));
        let names: Vec<_> = report.patterns.iter().map(|pattern| pattern.name.as_str()).collect();
        assert_eq!(names, ["small-random-reads", "small-reads"]);
        assert_eq!(
            report.caveats,
            ["In 1 of 3 minutes it had no requests, or they were not counted."]
        );
        assert_eq!(report.points.len(), 2);
        assert_eq!(report.points[1].delayed_bytes, 60_000_000);
    }

    #[test]
    fn what_makes_figures_uncertain_is_said() {
        let mut short = found(vec![point(10, 1, 1, 0)], &[("(other)", 1)]);
        short.users = vec![7, 8];
        let report = summary("j", &short, Time::from_nanos(10 * MINUTE.get() + 20_000_000_000));
        assert_eq!(
            (report.active_ns, report.to_s),
            (30_000_000_000, 620),
            "20 s and a late report"
        );
        let doubts = report.caveats.join("\n");
        for what in ["not over", "2 users", "(other)"] {
            assert!(doubts.contains(what), "{what}: {doubts}");
        }
        let old = found(vec![point(10, 10, 1, 0)], &[]);
        let report = summary("j", &old, Time::from_nanos(99 * MINUTE.get()));
        assert!(report.caveats[0].contains("points of 10min are kept"), "{:?}", report.caveats);
    }

    #[test]
    fn a_short_job_has_its_seconds_and_several_targets_no_more_than_the_minute() {
        let active = |seconds: &[(u64, u64)]| {
            let point = |(minute, active): &(u64, u64)| {
                let mut point = point(*minute, 1, 750, 0);
                point.sums.active_ns = active * 1_000_000_000;
                point
            };
            let found = found(seconds.iter().map(point).collect(), &[]);
            let report = summary("j", &found, Time::from_nanos(99 * MINUTE.get()));
            (report.active_ns / 1_000_000_000, report.achieved_per_s)
        };
        assert_eq!(active(&[(10, 3)]), (3, 250_000_000), "a job of three seconds");
        assert_eq!(active(&[(10, 58), (11, 62)]).0, 120, "two seconds came late");
        assert_eq!(active(&[(10, 60), (11, 120), (12, 120)]).0, 180, "two targets at once");
        assert_eq!(active(&[(10, 120), (20, 120)]).0, 140, "nothing is known of the time before");
        assert_eq!(active(&[(10, 0)]), (0, 0), "of an older proxy");
    }

    #[test]
    fn a_rate_without_limits_is_told_only_where_it_was_seen() {
        let of = |points: Vec<LedgerPoint>| {
            summary("j", &found(points, &[]), Time::from_nanos(99 * MINUTE.get())).undelayed
        };
        let (held, free, idle) = (point(10, 1, 30, 9), point(11, 1, 60, 0), point(12, 1, 6, 0));
        let seen = UndelayedRate { at_s: 660, bytes_per_s: 2_000_000, ops_per_s: 200 };
        assert_eq!(of(vec![held, free, idle]), Some(seen));
        assert_eq!(of(vec![held]), None, "no minute was without delays");
        assert_eq!(of(vec![free, idle]), None, "no limit delayed it");
        assert_eq!(of(vec![held, idle]), None, "it wanted less in that minute");
        let mut brief = free;
        brief.sums.active_ns = 999_999_999;
        assert_eq!(of(vec![held, brief]), None, "too short");
    }

    #[test]
    fn many_points_are_taken_together_and_none_is_lost() {
        let points: Vec<_> = (0..4_000).map(|minute| point(minute, 1, 1, 1)).collect();
        let report = summary("j", &found(points, &[]), Time::from_nanos(5_000 * MINUTE.get()));
        assert!(report.points.len() <= POINTS_MAX, "{}", report.points.len());
        assert_eq!(report.points.iter().map(|point| point.delayed).sum::<u64>(), 4_000);
        assert_eq!(report.points.iter().map(|point| point.span_s).sum::<u64>(), 240_000);
    }

    #[test]
    fn holders_of_several_proxies_are_one_and_the_longest_is_first() {
        let hold = |kind, span_ns, now| WireWait {
            kind,
            rule: "jobs".into(),
            requests: 2,
            wait_ns: 2 * span_ns,
            span_ns,
            current: now,
            ..WireWait::default()
        };
        let holds = vec![
            hold(WireWaitKind::Weight, 50, false),
            hold(WireWaitKind::Slots, 3, false),
            hold(WireWaitKind::Slots, 4, true),
        ];
        let of = |proxy: &str| WhySubject { proxy: proxy.into(), ..WhySubject::default() };
        let subjects = vec![of("a"), of("c"), of("a")];
        let why = Why { waits: holds, subjects, ..Why::default() };
        let mut report = WireJobReport { active_ns: 6, ..WireJobReport::default() };
        add_delay_causes(&mut report, &why, &["b".into()]);
        let holders: Vec<_> = report
            .delay_causes
            .iter()
            .map(|h| (h.what.as_str(), h.is_limit, h.requests, h.span_ns, h.current))
            .collect();
        let share = "its weight: other classes are served by theirs";
        let slots = ("the slots of rule jobs", true, 4, 6, true);
        assert_eq!(holders, [slots, (share, false, 2, 6, false)], "limits come first");
        assert!(report.caveats[0].contains("at 2 targets of proxies"), "{:?}", report.caveats);
        assert!(report.delay_causes_known && report.caveats[1].ends_with("from: b."));
    }
}
