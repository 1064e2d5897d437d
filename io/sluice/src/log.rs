//! The log of this process and messages for people; a failed write never ends the process.
//!
//! ```text
//!   tracing event ─► level (SLUICE_LOG) ─► repeats: BURST a window ─► one line ─► stderr
//!                                             │ the rest is counted        │ full disk, closed or
//!                                             ▼                            ▼ stuck pipe: counted
//!                                  "omitted repeated lines"            "log lines lost"
//! ```
//!
//! `eprintln!` panics if stderr cannot be written, which ends the thread that logs. So the binary
//! does not use it: [`print_line`] is for errors and hints, and [`announce`] for lines on stdout that the
//! starter of a process waits for.

mod repeats;
mod writer;

use std::io::{self, IsTerminal, Write as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use repeats::RepeatLimiter;
use writer::LogWriter;

/// Starts logging to stderr, panics included.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // The count of omitted lines passes every filter.
    let filter = match repeats::DIRECTIVE.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| LogWriter)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(RepeatLimiter).with(lines).init();
    std::panic::set_hook(Box::new(|panic| {
        // Not through tracing: the panicking thread may hold one of its locks.
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{trace}\n"),
            _ => String::new(),
        };
        print_line(&format!("sluice: thread {name} {panic}\n{trace}"));
    }));
}

/// Logs the counts that were not reported yet, before the process ends.
pub(crate) fn finish() {
    repeats::report();
}

/// Writes a line for people to stderr; a line that cannot be written is lost.
pub(crate) fn print_line(line: &str) {
    writer::write(format!("{}\n", line.trim_end()).as_bytes());
}

/// Writes a line on stdout for the process that started this one and may not read it.
pub(crate) fn announce(line: &str) {
    let mut out = io::stdout();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        tracing::warn!(%error, line, "cannot write to stdout");
    }
}
