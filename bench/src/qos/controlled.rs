//! One limit over many proxies, whatever moves or fails: a group of figures.
//!
//! ```text
//!   readers ─► proxies n0 … n7 ─► controller        news        how soon another limit is in force
//!      └ each moves at random                       moves       the sum of all beside the limit
//!                                                   share-moves a proxy that is left, and the other
//!                                                   trace       100/100, 1/199: real and simulated
//!                                                   metadata    four servers, two jobs
//!                                                   scale       1,000 proxies × 1,000 classes
//!                                                   row-changes 100 changes of rows a second
//!                                                   page        1,000 jobs on the page for people
//!                                                   deaths      the leader of three is killed
//! ```

mod deaths;
mod metadata;
mod moves;
mod news;
mod page;
mod reader;
mod row_changes;
mod scale;
mod trace;

use std::time::Duration;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::FigureRow;
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::bed::QosTestBed;

/// One limit over many proxies.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "control",
    title: "One limit over many proxies",
    what: "Proxies of one controller on this machine, with clients that ask for more than the limit \
           lets through. `least of 10s` and `most of 10s` are the slowest and the fastest ten \
           seconds beside the limit. `simulator` runs the same rules and the same code of controller \
           and dispatcher in virtual time; a proxy without work shows its share of the limit. \
           metadata: four servers of one directory, weights 2 : 1; `least` is what the job that got \
           less of its part of all service had of it. scale: `full rate` is what the controller \
           needs for a report of each proxy a second by what a report costs. row-changes: the \
           allocator and the encoding of replies alone; `messages` are of one proxy in a tick of \
           100 ms, `each` is one of them. page: `busy` is all \
           that the page's thread did, by update. deaths: `miscounted` is the difference of what \
           clients read and what the ledger has at the end.",
    sources: &["bench/src/qos/controlled.rs", "scenarios/global-limit.toml"],
    programs: &[FigureProgram::Proxy, FigureProgram::Controller, FigureProgram::Simulator],
    rows,
    measure,
};

fn rows() -> Vec<FigureRow> {
    let before = [news::row(), news::command_row(), moves::row(), moves::share_row(), trace::row()];
    let after = [scale::row(), row_changes::row(), page::row(), deaths::row()];
    before.into_iter().chain(metadata::rows()).chain(after).collect()
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let (row, share_row) = (moves::row(), moves::share_row());
    sink.round_of(&news::row(), |_| news::measure(run, &bed(run)?))?;
    sink.round_of(&news::command_row(), |_| news::measure_command(run, &bed(run)?))?;
    sink.round_of(&row, |_| moves::measure(&bed(run)?, run.time(&row)))?;
    sink.round_of(&share_row, |_| moves::measure_share(&bed(run)?, run.time(&share_row)))?;
    sink.round_of(&trace::row(), |who| trace::measure(run, &bed(run)?, who))?;
    metadata::measure(run, sink)?;
    sink.round_of(&scale::row(), |_| scale::measure(run, &bed(run)?))?;
    sink.round_of(&row_changes::row(), |_| row_changes::measure(run))?;
    sink.round_of(&page::row(), |_| page::measure(run, &bed(run)?))?;
    sink.round_of(&deaths::row(), |_| deaths::measure(run, &bed(run)?))
}

/// An export of its own for each row.
fn bed(run: &FigureRun<'_>) -> anyhow::Result<QosTestBed> {
    QosTestBed::make(Some(run.dir), run.sluice, run.stop)
}

/// The greatest of some values, 0 if there are none.
fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// One rule for all that the readers ask.
fn rules(limit: &str) -> String {
    format!("[[rule]]\nname = \"job\"\nmatch = \"jobid={{job}}\"\nlimit = \"{limit}\"\n")
}

/// Xorshift: a bench needs no better.
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A span from `least` to `spread` more.
    fn pause(&mut self, least: Duration, spread: Duration) -> Duration {
        least + Duration::from_millis(self.below(spread.as_millis() as usize) as u64)
    }
}

const SLUICE: &str = "sluice";
