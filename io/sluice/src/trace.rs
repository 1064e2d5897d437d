//! `sluice trace`: prints the requests of a trace and sums them up.
//!
//! ```text
//!   file ─► proxy::TraceReader ─► filter by job ─┬─► one line each (lines)
//!                                                └─► sums by job, user, … (sums) ─► tables
//! ```
//!
//! It is one pass, a line at a time: a trace of any length can be piped, and sums need memory only
//! for the names of their rows.

pub(crate) mod lines;
mod sums;

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use ::proxy::TraceReader;
use anyhow::Context;
use serde::Serialize;

use sums::{TraceBy, TraceRow, TraceSums};

/// Print a trace of `sluice proxy --trace`: its requests and their sums
///
/// Each line is a request, and its first column is its time in seconds since the proxy's start.
/// QUEUE is how long it waited in the queue, and SERVICE how long it was at the backend. OFFSET is
/// the position of a read or write relative to those before it in its open file. END is the error
/// in the reply, or `cancelled` if the client cancelled it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sluice trace t.slt --summary\n  sluice trace t.slt --job \
                        dd.500 --limit 20\n  sluice trace t.slt --json | jq 'select(.errno)'")]
pub(crate) struct Args {
    /// Trace file.
    file: PathBuf,
    /// Sums only, without the requests.
    #[arg(long)]
    summary: bool,
    /// Grouping of the sums.
    #[arg(long, value_enum, default_value = "job")]
    by: TraceBy,
    /// Maximum number of requests to print; the sums include all.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Job whose requests are printed and summed; '' for requests without a job.
    #[arg(long)]
    job: Option<String>,
    /// JSON output: one line with an object for each request, and one with the sums.
    #[arg(long)]
    json: bool,
}

/// The sums of a trace and the number of missing requests.
#[derive(Debug, Serialize)]
struct TraceSummary {
    by: TraceBy,
    /// Number of requests in the sums.
    requests: u64,
    /// Number of requests of all jobs that the proxy could not record.
    dropped: u64,
    /// The end of the trace is missing: the proxy was killed or is still writing it.
    cut: bool,
    /// When the proxy's clock showed zero, in nanoseconds since 1970.
    origin_unix_ns: u64,
    rows: Vec<TraceRow>,
}

/// Runs `sluice trace`: prints the requests of a trace, or sums of them.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let name = args.file.display().to_string();
    let mut reader = TraceReader::open(&args.file).context(name.clone())?;
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let mut sums = TraceSums::new(args.by);
    let mut left = if args.summary { 0 } else { args.limit.unwrap_or(u64::MAX) };
    if left > 0 && !args.json {
        lines::head(&mut out)?;
    }
    let mut damage = None;
    for record in reader.by_ref() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                damage = Some(error);
                break;
            }
        };
        if args.job.as_ref().is_some_and(|job| record.subject.identity.job.as_str() != job) {
            continue;
        }
        sums.add(&record);
        if left > 0 {
            left -= 1;
            match args.json {
                true => lines::json(&mut out, &record)?,
                false => lines::plain(&mut out, &record)?,
            }
        }
    }
    let summary = TraceSummary {
        by: args.by,
        requests: sums.requests(),
        dropped: reader.dropped(),
        cut: reader.cut(),
        origin_unix_ns: reader.origin_unix_ns(),
        rows: sums.rows(|target, class| reader.class(target, class)),
    };
    if args.json {
        let object = serde_json::json!({ "summary": summary });
        serde_json::to_writer(&mut out, &object).map_err(std::io::Error::from)?;
        out.write_all(b"\n")?;
    } else {
        if !args.summary && args.limit != Some(0) {
            out.write_all(b"\n")?;
        }
        out.write_all(sums::tables(&summary).as_bytes())?;
    }
    out.flush()?;
    // The readable part is shown, and the damage is an error.
    damage.map_or(Ok(()), |error| Err(error).context(name))
}
