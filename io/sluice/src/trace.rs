//! `sluice trace`: what a recorded proxy was asked, request by request and summed up.
//!
//! ```text
//!   file ─► proxy::TraceReader ─► of the chosen job? ─┬─► one line each (lines)
//!                                                     └─► sums by job, user, … (sums) ─► tables
//! ```
//!
//! One pass, a line at a time: a trace of any length goes through a pipe, and sums need
//! memory only for the names that they are made by.

pub(crate) mod lines;
mod sums;

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use ::proxy::TraceReader;
use anyhow::Context;
use serde::Serialize;

use sums::{TraceBy, TraceRow, TraceSums};

/// Prints what `sluice proxy --record` wrote, one request to a line, and sums it up.
///
/// Times are in seconds since the proxy's start. QUEUE is how long a request waited for
/// its turn, SERVICE how long it was worked on, OFFSET how a read or write follows the
/// last one that was asked for through its open file, END the error it was answered with,
/// or that its client gave it up.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sluice trace t.slt --summary\n  sluice trace t.slt --job \
                        dd.500 --limit 20\n  sluice trace t.slt --json | jq 'select(.errno)'")]
pub(crate) struct Args {
    /// The trace.
    file: PathBuf,
    /// Print the sums only.
    #[arg(long)]
    summary: bool,
    /// What the sums are made by.
    #[arg(long, value_enum, default_value = "job")]
    by: TraceBy,
    /// Print only so many requests; the sums are of all.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only the requests of this job; an empty name means those of none.
    #[arg(long)]
    job: Option<String>,
    /// Print JSON: an object for each request, one to a line, and one with the sums.
    #[arg(long)]
    json: bool,
}

/// The sums of a trace and what is missing in them.
#[derive(Debug, Serialize)]
struct TraceSummary {
    by: TraceBy,
    /// Requests that are summed up.
    requests: u64,
    /// Requests that the proxy could not record, of whatever job.
    lost: u64,
    /// The proxy was killed, or still writes: the trace lacks its end.
    cut: bool,
    /// When the proxy's clock showed zero, in nanoseconds since 1970.
    origin_unix_ns: u64,
    rows: Vec<TraceRow>,
}

/// Runs `sluice trace`.
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
        if args.job.as_ref().is_some_and(|job| record.who.who.job.as_str() != job) {
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
        lost: reader.lost(),
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
    // What could be read is worth showing, and the rest is an error all the same.
    damage.map_or(Ok(()), |error| Err(error).context(name))
}
