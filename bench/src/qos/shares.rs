//! What two jobs a and b were served by their weights, and whether both always had a backlog.
//!
//!   rules: a has weight w, b has 1 ─► watch: usage, sampled ─► SharesSample ─► row: w : 1, within 1 %
//!
//! Weights guarantee a division of the service only while both sides ask for more than they get.
//! So the length of the dispatcher's queue is sampled all through the span, and the least
//! sample is reported beside the result.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::WireUsage;

use super::QosRun;
use super::bed::QosProxy;
use super::table::{QosRow, figures};

/// What the weights divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharesResult {
    /// What requests are charged.
    Cost,
    /// Payload, where `cost = "bytes"`.
    Bytes,
}

/// What two classes were served within the span, and their least backlogs.
pub(crate) struct SharesSample {
    usage: [WireUsage; 2],
    queued_min: [u64; 2],
    seconds: f64,
}

/// Looks at the jobs a and b for as long as a case is measured.
pub(crate) fn watch(run: &QosRun<'_>, proxy: &QosProxy) -> anyhow::Result<SharesSample> {
    let time = run.time(30, 5);
    let start = Instant::now();
    let end = start + time;
    let began = usage(proxy)?;
    let mut queued_min = began.map(|usage| usage.queued);
    while Instant::now() < end {
        run.bed.wait((time / SAMPLES).min(end.saturating_duration_since(Instant::now())))?;
        let now = usage(proxy)?;
        for (least, now) in queued_min.iter_mut().zip(now) {
            *least = (*least).min(now.queued);
        }
    }
    let ended = usage(proxy)?;
    let usage = [ended[0].since(&began[0]), ended[1].since(&began[1])];
    Ok(SharesSample { usage, queued_min, seconds: start.elapsed().as_secs_f64() })
}

/// Both classes at one moment.
fn usage(proxy: &QosProxy) -> anyhow::Result<[WireUsage; 2]> {
    let classes = proxy.api.classes()?.classes;
    let of = |job: &str| {
        let key = format!("jobid={job}");
        let class = classes.iter().find(|class| class.key == key);
        class.map(|class| class.usage).with_context(|| format!("no class of job {job}"))
    };
    Ok([of("a")?, of("b")?])
}

impl SharesSample {
    /// The row of the table for `weight` : 1 at a target with this number of slots.
    pub(crate) fn row(&self, name: &str, shared: SharesResult, weight: u32, slots: u64) -> QosRow {
        let [a, b] = self.usage.map(|usage| shared.of(&usage));
        let ratio = a / b.max(1.0);
        let error = (ratio / f64::from(weight) - 1.0) * 100.0;
        let (within, unit) = match shared {
            SharesResult::Bytes => (2.0, "bytes"),
            SharesResult::Cost => (1.0, "charged cost"),
        };
        let [queued_a, queued_b] = self.queued_min;
        let backlogged = queued_a.min(queued_b) > 2 * slots;
        let mut beside = format!("least queued {queued_a} and {queued_b}, D {slots}");
        if !backlogged {
            beside.push_str(": not always backlogged");
        }
        let payload = self.usage.map(|usage| SharesResult::Bytes.of(&usage));
        QosRow {
            case: format!("{name}, {weight} : 1"),
            target: format!("within {within} % in {unit}"),
            reached: format!("{ratio:.3} : 1, {error:+.2} %"),
            met: Some(error.abs() <= within),
            beside,
            figures: figures([
                ("weight", weight.into()),
                ("ratio", ratio),
                ("error_percent", error),
                ("queued_min_a", queued_a as f64),
                ("queued_min_b", queued_b as f64),
                ("slots_max", slots as f64),
                ("requests_a", self.usage[0].requests as f64),
                ("requests_b", self.usage[1].requests as f64),
                ("cost_ns_a", self.usage[0].cost_ns as f64),
                ("cost_ns_b", self.usage[1].cost_ns as f64),
                ("bytes_a", payload[0]),
                ("bytes_b", payload[1]),
            ]),
        }
    }

    /// What each job moved, in MB/s.
    pub(crate) fn mb_per_sec(&self) -> [f64; 2] {
        self.usage.map(|usage| SharesResult::Bytes.of(&usage) / self.seconds / 1e6)
    }
}

impl SharesResult {
    fn of(self, usage: &WireUsage) -> f64 {
        match self {
            SharesResult::Cost => usage.cost_ns as f64,
            SharesResult::Bytes => (usage.read_bytes + usage.written_bytes) as f64,
        }
    }
}

/// A rule for each job.
pub(crate) fn rules(weight: u32) -> String {
    let rule = |job, weight| {
        format!(
            "[[rule]]\nname = \"{job}\"\nmatch = \"jobid={{{job}}}\"\nper = [\"jobid\"]\n\
             weight = {weight}\n\n"
        )
    };
    rule("a", weight) + &rule("b", 1)
}

/// The weights that are measured, each against 1.
pub(crate) const WEIGHTS: [u32; 5] = [2, 4, 8, 16, 32];
/// New weights count from the next request on; what is queued by the old ones goes first.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
const SAMPLES: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cost_ns: [u64; 2], queued: u64) -> SharesSample {
        let usage = cost_ns.map(|cost_ns| WireUsage { cost_ns, ..WireUsage::default() });
        SharesSample { usage, queued_min: [queued, 100], seconds: 1.0 }
    }

    #[test]
    fn a_share_is_met_within_one_percent_of_the_charged_cost() {
        let row = seen([4_036, 1_000], 17).row("case", SharesResult::Cost, 4, 8);
        assert_eq!((row.reached.as_str(), row.met), ("4.036 : 1, +0.90 %", Some(true)));
        assert_eq!(row.beside, "least queued 17 and 100, D 8");
        let row = seen([4_044, 1_000], 16).row("case", SharesResult::Cost, 4, 8);
        assert_eq!(row.met, Some(false));
        assert_eq!(row.beside, "least queued 16 and 100, D 8: not always backlogged");
    }

    #[test]
    fn the_rules_are_rules() {
        let rules = model::RuleSet::parse(&rules(8)).unwrap();
        assert_eq!(rules.rules[0].weight.get(), 8);
        assert_eq!(rules.rules[1].weight.get(), 1);
    }
}
