//! What the product costs: scheduling, memory and metrics, in one table.

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::descriptors::raise_descriptor_limit;
use super::{cost, memory, scrape, write_modes};

/// Processor time and memory.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "cost",
    title: "Costs",
    what: "Processor time of the server for each operation, and memory. `more` is the median of the \
           ratios of neighbouring half seconds of both contenders. `sluice-paced` and the like write in \
           that mode; `sluice` chooses by size.",
    sources: &["bench/src/qos/costs.rs"],
    programs: &[FigureProgram::Proxy],
    rows: || [cost::rows(), memory::rows(), scrape::rows(), write_modes::rows()].concat(),
    measure,
};

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    raise_descriptor_limit();
    cost::measure(run, sink)?;
    memory::measure(run, sink)?;
    scrape::measure(run, sink)?;
    write_modes::measure(run, sink)
}
