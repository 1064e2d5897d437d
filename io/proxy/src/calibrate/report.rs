//! A calibration as tables for people and as JSON for programs.

use std::fmt::{self, Write as _};

use model::Nanos;
use rules::WriteMode;
use serde_json::{Value, json};

use super::{Calibration, ModeFigures, SizeFigures};

/// Above this the 3 % that D is chosen by drown in noise.
const SPREAD_WARN_PERCENT: f64 = 10.0;

impl Calibration {
    /// Everything as JSON: sizes in bytes, times in nanoseconds, rates per second.
    pub fn to_json(&self) -> Value {
        let costs: serde_json::Map<_, _> = self
            .operations
            .iter()
            .map(|(kind, cost)| (kind.name().into(), cost.get().into()))
            .collect();
        json!({
            "dir": self.dir,
            "direct": self.backing.direct.is_some(),
            "memory_fs": self.backing.memory_fs,
            "slots_max": self.slots_max,
            "write_mode": self.write_mode.map(|mode| mode.to_string()),
            "sizes": self.sizes.iter().map(size_json).collect::<Vec<_>>(),
            "operation_cost_ns": costs,
            "modes": self.modes.iter().map(mode_json).collect::<Vec<_>>(),
            "slots": self.losses,
            "spread_percent": self.spread_percent,
            "warnings": self.warnings(),
        })
    }

    /// Returns warnings about the figures; empty if all is well.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.backing.memory_fs {
            warnings
                .push("the file system is in memory: its device costs are costs of memory".into());
        } else if self.backing.direct.is_none() {
            warnings.push(
                "the file system refuses O_DIRECT: its device costs are costs of the page cache"
                    .into(),
            );
        }
        if self.spread_percent > SPREAD_WARN_PERCENT {
            warnings.push(format!(
                "repeated measurements differ by {:.0} %: other load uses this machine or its \
                 backend, and slots_max is uncertain; repeat with a longer --time",
                self.spread_percent
            ));
        }
        warnings
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for warning in self.warnings() {
            writeln!(f, "note: {warning}\n")?;
        }
        f.write_str(&self.size_table(false)?)?;
        f.write_str(&self.size_table(true)?)?;
        f.write_str(&self.operation_table()?)?;
        f.write_str(&self.mode_table()?)?;
        f.write_str(&self.slot_table()?)?;
        let mode = self.write_mode.map_or("by size".into(), |mode| mode.to_string());
        writeln!(f, "slots_max {}, write_mode {mode}", self.slots_max)
    }
}

impl Calibration {
    fn size_table(&self, cached: bool) -> Result<String, fmt::Error> {
        let lane = if cached { "page cache" } else { "device" };
        let mut text = format!(
            "{lane:<10}{:>8}{:>12}{:>12}{:>12}{:>8}{:>12}\n",
            "size", "1 at a time", "saturated", "", "needs", "cost"
        );
        for figures in self.sizes.iter().filter(|figures| figures.cached == cached) {
            let what = if figures.write { "write" } else { "read" };
            let size = figures.size.to_string();
            let SizeFigures { single_per_sec: single, saturated_per_sec: full, .. } = *figures;
            let moved = bytes_per_sec(full * figures.size.get() as f64);
            let cost = span(figures.cost);
            writeln!(
                text,
                "{what:<10}{size:>8}{single:>10.0}/s{full:>10.0}/s{moved:>12}{:>8}{cost:>12}",
                figures.outstanding
            )?;
        }
        text.push('\n');
        Ok(text)
    }

    fn operation_table(&self) -> Result<String, fmt::Error> {
        let mut text = format!("{:<10}{:>14}{:>12}\n", "metadata", "saturated", "cost");
        for (kind, cost) in &self.operations {
            let rate = 1e9 / cost.get() as f64;
            writeln!(text, "{kind:<10}{rate:>12.0}/s{:>12}", span(*cost))?;
        }
        text.push('\n');
        Ok(text)
    }

    fn mode_table(&self) -> Result<String, fmt::Error> {
        let mut text = format!(
            "{:<10}{:>12}   a neighbour's fdatasync{:>9}{:>10}{:>10}{:>10}{:>10}\n",
            "write mode", "written", "count", "mean", "median", "p99", "longest"
        );
        for figures in &self.modes {
            let mode = figures.mode.map_or_else(|| "(alone)".into(), |mode| mode.to_string());
            let written = bytes_per_sec(figures.written_per_sec as f64);
            let ModeFigures { syncs, mean, median, p99, longest, .. } = *figures;
            let waits = [mean, median, p99, longest].map(span);
            writeln!(
                text,
                "{mode:<10}{written:>12}{syncs:>35}{:>10}{:>10}{:>10}{:>10}",
                waits[0], waits[1], waits[2], waits[3]
            )?;
        }
        text.push('\n');
        Ok(text)
    }

    fn slot_table(&self) -> Result<String, fmt::Error> {
        let mut text = format!("{:<10}{:>10}  {}\n", "slots_max", "loss", "of");
        for loss in &self.losses {
            let what = if loss.write { "writes" } else { "reads" };
            let size = model::Bytes::new(loss.size_bytes);
            let (slots, percent) = (loss.slots_max, loss.loss_percent.max(0.0));
            writeln!(text, "{slots:<10}{percent:>8.1} %  {what} of {size}")?;
        }
        text.push('\n');
        Ok(text)
    }
}

fn size_json(figures: &SizeFigures) -> Value {
    json!({
        "lane": if figures.cached { "cached" } else { "device" },
        "kind": if figures.write { "write" } else { "read" },
        "size_bytes": figures.size.get(),
        "single_per_sec": figures.single_per_sec,
        "saturated_per_sec": figures.saturated_per_sec,
        "outstanding": figures.outstanding,
        "cost_ns": figures.cost.get(),
    })
}

fn mode_json(figures: &ModeFigures) -> Value {
    json!({
        "mode": figures.mode.map(|mode: WriteMode| mode.to_string()),
        "written_per_sec": figures.written_per_sec,
        "syncs": figures.syncs,
        "mean_ns": figures.mean.get(),
        "median_ns": figures.median.get(),
        "p99_ns": figures.p99.get(),
        "longest_ns": figures.longest.get(),
    })
}

/// Three digits are enough for a measured time.
fn span(time: Nanos) -> String {
    let nanos = time.get() as f64;
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e4 => format!("{:.2} µs", n / 1e3),
        n if n < 1e6 => format!("{:.1} µs", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

fn bytes_per_sec(rate: f64) -> String {
    if rate >= 1e9 { format!("{:.2} GB/s", rate / 1e9) } else { format!("{:.0} MB/s", rate / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_rates_read_at_a_glance() {
        let spans = [950, 7_692, 76_920, 7_692_000, 7_692_000_000].map(Nanos::new).map(span);
        assert_eq!(spans, ["950 ns", "7.69 µs", "76.9 µs", "7.69 ms", "7.69 s"]);
        assert_eq!([12.3e6, 2.01e9].map(bytes_per_sec), ["12 MB/s", "2.01 GB/s"]);
    }
}
