//! The log of this process, and lines for people: neither ever ends anything.
//!
//! ```text
//!   tracing event ─► level (SLUICE_LOG) ─► repeats: BURST a window ─► one line ─► stderr
//!                                             │ the rest is counted        │ full disk, closed or
//!                                             ▼                            ▼ stuck pipe: counted
//!                            "repeated lines were left out"     "lines of the log were lost"
//! ```
//!
//! `eprintln!` panics where stderr cannot be written, and ends the thread that only wanted to log.
//! So nothing in the binary uses it: [`say`] is for errors and hints, and [`announce`] for what a
//! process reports to its starter on stdout.

mod repeats;
mod writer;

use std::io::{self, IsTerminal, Write as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use repeats::RepeatLimiter;
use writer::LogWriter;

/// Begins to log to stderr, panics included.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // With a filter for some lines only, the count of those left out is shown all the same.
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
        // Not through tracing, whose locks the panic may have found held.
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{trace}\n"),
            _ => String::new(),
        };
        say(&format!("sluice: thread {name} {panic}\n{trace}"));
    }));
}

/// Logs what was counted and not reported yet: the process is about to end.
pub(crate) fn finish() {
    repeats::report();
}

/// Writes a line for people to stderr; one that cannot be written is lost.
pub(crate) fn say(line: &str) {
    writer::write(format!("{}\n", line.trim_end()).as_bytes());
}

/// Writes a line on stdout for whoever started this process, who may not read it.
pub(crate) fn announce(line: &str) {
    let mut out = io::stdout();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        tracing::warn!(%error, line, "cannot write to stdout");
    }
}
