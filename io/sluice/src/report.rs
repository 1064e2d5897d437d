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
use api::why::{amount, per_second, percent, span};
use api::{WireAccesses, WireCounters, WireJobReport};
use model::{Accesses, OpKind};

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
    let WireCounters { read_bytes, written_bytes, ops, .. } = &report.counters;
    let (reads, writes) = (ops.of(OpKind::Read), ops.of(OpKind::Write));
    let _ = writeln!(
        out,
        "It read {} in {reads} operations and wrote {} in {writes}.",
        amount(*read_bytes),
        amount(*written_bytes)
    );
    let mut others: Vec<_> =
        ops.any().filter(|(kind, _)| !matches!(kind, OpKind::Read | OpKind::Write)).collect();
    others.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), kind.name()));
    if !others.is_empty() {
        let all: u64 = others.iter().map(|(_, count)| *count).sum();
        let named = others.iter().take(KINDS_NAMED).map(|(kind, count)| format!("{count} {kind}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if others.len() > KINDS_NAMED { ", …" } else { "" };
        let _ = writeln!(out, "It did {all} other operations: {named}{more}.");
    }
    let (achieved, asked) = match report.achieved_per_s {
        0 => (
            per_second(report.achieved_ops_per_s, false),
            per_second(report.requested_ops_per_s, false),
        ),
        bytes => (per_second(bytes, true), per_second(report.requested_per_s, true)),
    };
    let _ = match report.counters.delayed {
        0 => writeln!(out, "It achieved {achieved}, and no limit delayed it."),
        _ => writeln!(out, "It achieved {achieved} and requested about {asked}."),
    };
}

fn write_delays(out: &mut String, report: &WireJobReport) {
    let WireCounters { delayed, delayed_ns, delayed_bytes, .. } = report.counters;
    if delayed == 0 {
        return;
    }
    let bytes = report.counters.read_bytes.saturating_add(report.counters.written_bytes);
    let _ = writeln!(
        out,
        "Limits delayed {delayed} requests ({}, {} of its bytes), {} each, {} in all.",
        amount(delayed_bytes),
        percent(delayed_bytes, bytes),
        span(delayed_ns / delayed),
        span(delayed_ns)
    );
    for holder in &report.delay_causes {
        let now = if holder.current { "; delaying it now" } else { "" };
        let _ = writeln!(
            out,
            "  {}: {} requests ({}), {} in all{now}.",
            holder.what,
            holder.requests,
            amount(holder.bytes),
            span(holder.wait_ns)
        );
    }
    if report.delay_causes.is_empty() {
        let _ = writeln!(out, "  The limits are unknown: no proxy has a record of them.");
    } else {
        let _ = writeln!(out, "  (causes are counted since the start of each proxy)");
    }
}

fn write_accesses(out: &mut String, what: &str, accesses: &WireAccesses) {
    let accesses = Accesses::from(*accesses);
    let all = accesses.all();
    if all == 0 {
        return;
    }
    let sizes = SIZES.iter().zip(accesses.sizes).filter(|(_, count)| *count > 0);
    let sizes = sizes.map(|(size, count)| format!("{} {size}", percent(count, all)));
    let _ = writeln!(
        out,
        "Of {all} {what}s with data {}; {} began at the end of the previous one.",
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

const SIZES: [&str; Accesses::SIZES] = ["below 4 KiB", "below 64 KiB", "below 1 MiB", "larger"];
/// Number of kinds of operation that are named besides reads and writes.
const KINDS_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use api::{ConcurrentJob, JobDelayCause, JobPattern, WireOps};

    use super::*;

    fn report() -> WireJobReport {
        let mut ops = WireOps::default();
        let counts =
            [(OpKind::Read, 20_000), (OpKind::Open, 3), (OpKind::Clunk, 3), (OpKind::Getattr, 9)];
        counts.iter().for_each(|(kind, count)| ops.0[*kind as usize] = *count);
        let counters = WireCounters {
            read_bytes: 1_200_000_000,
            delayed: 18_000,
            delayed_ns: 720_000_000_000,
            delayed_bytes: 1_080_000_000,
            ops,
            reads: WireAccesses { sizes: [0, 20_000, 0, 0], random: 19_000 },
            ..WireCounters::default()
        };
        let holder = JobDelayCause {
            what: "the limit of rule jobs (jobid=dd.1)".into(),
            current: true,
            requests: 18_000,
            bytes: 1_080_000_000,
            wait_ns: 720_000_000_000,
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
            requested_per_s: 4_750_000,
            delay_causes: vec![holder],
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
             It achieved 2.50 MB/s and requested about 4.75 MB/s.\n\
             Limits delayed 18000 requests (1.08 GB, 90 % of its bytes), 40.0 ms each, 12 min 00 s in all.\n  \
             the limit of rule jobs (jobid=dd.1): 18000 requests (1.08 GB), 12 min 00 s in all; delaying it now.\n  \
             (causes are counted since the start of each proxy)\n\
             Of 20000 reads with data 100 % below 64 KiB; 5 % began at the end of the previous one.\n\
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
        alone.counters = WireCounters::default();
        (alone.achieved_per_s, alone.achieved_ops_per_s) = (0, 150);
        let text = format_report(&alone);
        assert!(text.contains("It achieved 150 ops/s, and no limit delayed it."), "{text}");
        assert!(!text.contains("Limits delayed"), "{text}");
    }
}
