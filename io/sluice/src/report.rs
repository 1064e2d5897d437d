//! `sluice report`: a job's usage, delays and patterns as text, JSON or a picture.
//!
//! ```text
//!   GET /v1/report of a controller ─► WireJobReport ─┬─► text: when, how much, delayed by what, advice
//!                                                    ├─► JSON
//!                                                    └─► picture.rs: its rate by minute, as SVG
//! ```

mod picture;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use api::{JobDelayCause, WireJobReport};
use explain::{amount, per_second, percent, span};
use model::{Accesses, OpKind, Service};

use crate::credentials::ControllerArgs;
use crate::when::{self, MomentArg, forms_of_time, utc};

/// Report on a job: usage, delays by limits, and advice
///
/// Includes the sizes and the order of the job's reads and writes, and the other jobs of that time.
/// Only requests that reached a proxy are counted. docs/REPORT.md explains each line.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Name of the job; '' for requests without a job.
    #[arg(long)]
    job: String,
    /// Start of the time span, such as 15m or 24h.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = when::since,
          allow_hyphen_values = true)]
    since: MomentArg,
    /// JSON output.
    #[arg(long)]
    json: bool,
    /// SVG file for a picture of the job's rate over time.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const AFTER_HELP: &str = concat!(
    forms_of_time!(),
    "\n\nExamples:
  sluice report --job 1234
  sluice report --job 1234 --since 30d --svg 1234.svg"
);

/// Runs `sluice report`: prints or draws the report of one job.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let query = format!("from={}", args.since.parameter());
    let report = args.controller.client()?.job_report(&args.job, &query)?;
    if let Some(file) = &args.svg {
        picture::draw(file, &report)?;
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).context("cannot write JSON")? + "\n",
        false => format_report(&report),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Formats the report for people: a heading, then one sentence for each fact.
fn format_report(report: &WireJobReport) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} to {}, active for {}.",
        job_text(report),
        utc(report.from_s),
        utc(report.to_s),
        span(report.active_ns)
    );
    write_amounts(&mut out, report);
    write_delays(&mut out, report);
    write_accesses(&mut out, "read", &report.counters.reads);
    write_accesses(&mut out, "write", &report.counters.writes);
    write_other_jobs(&mut out, report);
    for pattern in &report.patterns {
        let _ = writeln!(out, "Pattern {}: {}", pattern.name, pattern.what);
        if !pattern.advice.is_empty() {
            let _ = writeln!(out, "  {}\n  ({})", pattern.advice, pattern.source);
        }
    }
    for doubt in &report.caveats {
        let _ = writeln!(out, "Note: {doubt}");
    }
    out
}

fn job_text(report: &WireJobReport) -> String {
    let job = match report.job.as_str() {
        "" => "Requests without a job".into(),
        job => format!("Job {job}"),
    };
    match report.users[..] {
        [user] => format!("{job} of user {user}"),
        _ => job,
    }
}

fn write_amounts(out: &mut String, report: &WireJobReport) {
    let service = &report.counters;
    let (reads, writes) = (service.ops_of(OpKind::Read), service.ops_of(OpKind::Write));
    let _ = writeln!(
        out,
        "It read {} in {reads} operations and wrote {} in {writes}.",
        amount(service.read_bytes),
        amount(service.written_bytes)
    );
    let mut others: Vec<_> =
        service.kinds().filter(|(kind, _)| !matches!(kind, OpKind::Read | OpKind::Write)).collect();
    others.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), kind.name()));
    if !others.is_empty() {
        let all: u64 = others.iter().map(|(_, count)| *count).sum();
        let named = others.iter().take(KINDS_NAMED).map(|(kind, count)| format!("{count} {kind}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if others.len() > KINDS_NAMED { ", …" } else { "" };
        let _ = writeln!(out, "It did {all} other operations: {named}{more}.");
    }
    let in_bytes = report.achieved_per_s > 0;
    let rate = |bytes, ops| per_second(if in_bytes { bytes } else { ops }, in_bytes);
    let achieved = rate(report.achieved_per_s, report.achieved_ops_per_s);
    let _ = match (report.counters.delayed, report.undelayed) {
        (0, _) => writeln!(out, "It achieved {achieved}, and no limit delayed it."),
        (_, None) => writeln!(out, "It achieved {achieved}."),
        (_, Some(free)) => writeln!(
            out,
            "It achieved {achieved}. It moved {} without limits at {}.",
            rate(free.bytes_per_s, free.ops_per_s),
            utc(free.at_s)
        ),
    };
}

fn write_delays(out: &mut String, report: &WireJobReport) {
    let Service { delayed, delayed_ns, delayed_bytes, .. } = report.counters;
    if delayed == 0 {
        return;
    }
    let bytes = report.counters.read_bytes.saturating_add(report.counters.written_bytes);
    let _ = writeln!(
        out,
        "Limits delayed it for {}: {delayed} requests ({}, {} of its bytes), {} each.",
        of_active_time(report, report.delayed_span_ns),
        amount(delayed_bytes),
        percent(delayed_bytes, bytes),
        span(delayed_ns / delayed)
    );
    let (limits, others): (Vec<_>, Vec<_>) =
        report.delay_causes.iter().partition(|cause| cause.is_limit);
    if limits.is_empty() {
        let _ = writeln!(out, "  The limits are unknown: no proxy has a record of them.");
    }
    limits.into_iter().for_each(|cause| write_cause(out, report, cause));
    if !others.is_empty() {
        let _ = writeln!(out, "Other waits:");
        others.into_iter().for_each(|cause| write_cause(out, report, cause));
    }
    if !report.delay_causes.is_empty() {
        let _ = writeln!(
            out,
            "  (causes are those of its classes, counted since the start of each proxy)"
        );
    }
}

fn write_cause(out: &mut String, report: &WireJobReport, cause: &JobDelayCause) {
    let now = if cause.current { "; delaying it now" } else { "" };
    let _ = writeln!(
        out,
        "  {}: {}; {} requests ({}){now}.",
        cause.what,
        of_active_time(report, cause.span_ns),
        cause.requests,
        amount(cause.bytes)
    );
}

/// A span of time with its part of the active time. A longer one is not a part of it: a cause may
/// have delayed other jobs of the class, or this one before the time of the report.
fn of_active_time(report: &WireJobReport, span_ns: u64) -> String {
    match span_ns <= report.active_ns {
        true => {
            format!("{} of its active time ({})", percent(span_ns, report.active_ns), span(span_ns))
        }
        false => span(span_ns),
    }
}

fn write_accesses(out: &mut String, what: &str, accesses: &Accesses) {
    let all = accesses.all();
    if all == 0 {
        return;
    }
    let sizes = SIZES.iter().zip(accesses.sizes).filter(|(_, count)| *count > 0);
    let sizes = sizes.map(|(size, count)| format!("{} {size}", percent(count, all)));
    let _ = writeln!(
        out,
        "Of {all} {what}s with data {}; {} began at the end of a previous one.",
        sizes.collect::<Vec<_>>().join(", "),
        percent(all.saturating_sub(accesses.random), all)
    );
}

fn write_other_jobs(out: &mut String, report: &WireJobReport) {
    const WHOLE: u64 = 1_000_000;
    let own = percent(report.coverage_ppm.into(), WHOLE);
    if report.others_count == 0 {
        let _ = writeln!(out, "No other job had requests at the time.");
        return;
    }
    let named = report.others.iter().map(|other| {
        let name = if other.job.is_empty() { "requests without a job" } else { other.job.as_str() };
        format!("{name} {}", percent(other.traffic_ppm.into(), WHOLE))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if report.others_count > report.others.len() as u64 { ", …" } else { "" };
    let jobs = if report.others_count == 1 { "job" } else { "jobs" };
    let _ = writeln!(
        out,
        "Of all bytes at the time {own} were its own; {} other {jobs}: {named}{more}.",
        report.others_count
    );
}

const SIZES: [&str; Accesses::SIZES] =
    ["below 4 KiB", "below 64 KiB", "below 1 MiB", "of 1 MiB or more"];
/// Number of kinds of operation that are named besides reads and writes.
const KINDS_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use api::{ConcurrentJob, JobPattern, UndelayedRate};

    use super::*;

    fn report() -> WireJobReport {
        let mut ops = [0; OpKind::COUNT];
        let counts =
            [(OpKind::Read, 20_000), (OpKind::Open, 3), (OpKind::Clunk, 3), (OpKind::Getattr, 9)];
        counts.iter().for_each(|(kind, count)| ops[*kind as usize] = *count);
        let counters = Service {
            read_bytes: 1_200_000_000,
            delayed: 18_000,
            delayed_ns: 720_000_000_000,
            delayed_bytes: 1_080_000_000,
            ops,
            reads: Accesses { sizes: [0, 20_000, 0, 0], random: 19_000 },
            ..Service::default()
        };
        let holder = JobDelayCause {
            what: "the limit of rule jobs (jobid=dd.1)".into(),
            current: true,
            requests: 18_000,
            bytes: 1_080_000_000,
            wait_ns: 720_000_000_000,
            span_ns: 470_400_000_000,
            is_limit: true,
        };
        let own = JobDelayCause {
            what: "its own load".into(),
            is_limit: false,
            current: false,
            requests: 10,
            bytes: 40_000,
            wait_ns: 9_000_000_000,
            span_ns: 481_000_000_000,
        };
        let other =
            ConcurrentJob { job: "sh.a".into(), bytes: 2_800_000_000, traffic_ppm: 700_000 };
        WireJobReport {
            job: "dd.1".into(),
            users: vec![1000],
            from_s: 1_767_225_600,
            to_s: 1_767_226_080,
            active_ns: 480_000_000_000,
            counters,
            achieved_per_s: 2_500_000,
            delayed_span_ns: 471_000_000_000,
            undelayed: Some(UndelayedRate {
                at_s: 1_767_225_660,
                bytes_per_s: 9_000_000,
                ops_per_s: 2_200,
            }),
            delay_causes: vec![holder, own],
            delay_causes_known: true,
            others: vec![other],
            others_count: 1,
            coverage_ppm: 300_000,
            patterns: vec![JobPattern::from(model::Pattern::SmallReads)],
            caveats: vec!["The last minute is not over.".into()],
            ..WireJobReport::default()
        }
    }

    #[test]
    fn a_report_is_a_page_that_says_one_thing_a_line() {
        let pattern = model::Pattern::SmallReads;
        let wanted = format!(
            "Job dd.1 of user 1000: 2026-01-01T00:00:00Z to 2026-01-01T00:08:00Z, active for 8 min 00 s.\n\
             It read 1.20 GB in 20000 operations and wrote 0 B in 0.\n\
             It did 15 other operations: 9 getattr, 3 clunk, 3 open.\n\
             It achieved 2.50 MB/s. It moved 9.00 MB/s without limits at 2026-01-01T00:01:00Z.\n\
             Limits delayed it for 98 % of its active time (7 min 51 s): 18000 requests (1.08 GB, 90 % of its bytes), 40.0 ms each.\n  \
             the limit of rule jobs (jobid=dd.1): 98 % of its active time (7 min 50 s); 18000 requests (1.08 GB); delaying it now.\n\
             Other waits:\n  \
             its own load: 8 min 01 s; 10 requests (40.0 kB).\n  \
             (causes are those of its classes, counted since the start of each proxy)\n\
             Of 20000 reads with data 100 % below 64 KiB; 5 % began at the end of a previous one.\n\
             Of all bytes at the time 30 % were its own; 1 other job: sh.a 70 %.\n\
             Pattern small-reads: {}\n  {}\n  ({})\n\
             Note: The last minute is not over.\n",
            pattern.what(),
            pattern.advice(),
            pattern.source(),
        );
        assert_eq!(format_report(&report()), wanted);
    }

    #[test]
    fn what_no_limit_delayed_and_what_nobody_remembers_is_said() {
        let mut alone = report();
        (alone.others, alone.others_count, alone.delay_causes) = (vec![], 0, vec![]);
        assert!(
            format_report(&alone).contains("The limits are unknown"),
            "{}",
            format_report(&alone)
        );
        assert!(format_report(&alone).contains("No other job had requests at the time."));
        alone.counters = Service::default();
        (alone.achieved_per_s, alone.achieved_ops_per_s) = (0, 150);
        let text = format_report(&alone);
        assert!(text.contains("It achieved 150 ops/s, and no limit delayed it."), "{text}");
        assert!(!text.contains("Limits delayed") && !text.contains("without limits"), "{text}");
    }
}
