//! All groups of figures: which rows each has, and how it measures them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::row::FigureRow;
use super::sink::FigureSink;
use super::sources::FigureProgram;

/// Rows that are measured on one test bed.
pub(crate) struct FigureGroup {
    /// The part of their ids before the slash.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What they are about, for the document.
    pub(crate) what: &'static str,
    /// Files and folders of the repository that measure them: what is changed there, or in a module
    /// that they use, makes the group's figures old.
    pub(crate) sources: &'static [&'static str],
    /// What runs meanwhile: a change in it makes them old, too.
    pub(crate) programs: &'static [FigureProgram],
    pub(crate) rows: fn() -> Vec<FigureRow>,
    /// Measures a round of each row that the sink wants.
    pub(crate) measure: fn(&FigureRun<'_>, &mut FigureSink) -> anyhow::Result<()>,
}

/// What a group is given to measure with.
pub(crate) struct FigureRun<'a> {
    /// An empty directory; its file system is what is measured.
    pub(crate) dir: &'a Path,
    /// Where costs of backends stand that were measured in this pass.
    pub(crate) costs: &'a Path,
    /// The program `sluice` that is measured.
    pub(crate) sluice: &'a Path,
    /// Raised by a signal.
    pub(crate) stop: &'a Arc<AtomicBool>,
    /// Short spans and small amounts, to see that everything works.
    pub(crate) is_quick: bool,
    /// How long each contender is measured, if not as long as its row says.
    pub(crate) span: Option<Duration>,
}

impl FigureRun<'_> {
    /// How long a contender of the row is measured.
    pub(crate) fn time(&self, row: &FigureRow) -> Duration {
        let quick = (row.seconds / 10.0).max(0.3).min(row.seconds);
        let own = if self.is_quick { quick } else { row.seconds };
        self.span.unwrap_or(Duration::from_secs_f64(own))
    }

    /// How long the costs of a backend are measured.
    pub(crate) fn calibration(&self) -> Duration {
        Duration::from_secs(if self.is_quick { 5 } else { 40 })
    }

    /// Whether a signal came.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Returns every row of every group.
pub(crate) fn all_rows() -> Vec<FigureRow> {
    GROUPS.iter().flat_map(|group| (group.rows)()).collect()
}

/// Every group, in the order of the document.
pub(crate) const GROUPS: &[FigureGroup] = &[
    crate::demo::GROUP,
    crate::peers::GROUP,
    crate::mount::GROUP,
    crate::qos::weights::GROUP,
    crate::qos::limits::GROUP,
    crate::qos::promises::GROUP,
    crate::qos::neighbour::GROUP,
    crate::qos::victim::GROUP,
    crate::qos::blocked::GROUP,
    crate::qos::returns::GROUP,
    crate::qos::total::GROUP,
    crate::qos::patterns::GROUP,
    crate::qos::node::GROUP,
    crate::qos::controlled::GROUP,
    crate::qos::decayed::GROUP,
    crate::qos::reserved::GROUP,
    crate::qos::reserved_jobs::GROUP,
    crate::qos::costs::GROUP,
    crate::scheduler_costs::GROUP,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::row::unit_of;
    use super::*;

    #[test]
    fn every_row_has_an_id_of_its_own_in_its_group() {
        let mut seen = BTreeSet::new();
        for group in GROUPS {
            for row in (group.rows)() {
                assert_eq!(row.group(), group.name, "{}", row.id);
                let plain =
                    |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-/".contains(c);
                assert!(row.id.chars().all(plain), "{}", row.id);
                assert!(seen.insert(row.id.clone()), "{} is there twice", row.id);
                assert!(row.rounds > 0 && row.seconds > 0.0 && !row.contenders.is_empty());
            }
        }
    }

    #[test]
    fn every_goal_is_about_contenders_of_its_row_and_a_measure_with_a_unit() {
        for row in all_rows() {
            let mut targets = BTreeSet::new();
            for goal in &row.goals {
                let is_there = |name: &String| row.contenders.contains(name);
                assert!(is_there(&goal.who) && goal.beside.iter().all(is_there), "{}", row.id);
                assert!(unit_of(goal.measure).is_some(), "{}: {}", row.id, goal.measure);
                assert!(goal.target().starts_with(&goal.who), "{}", row.id);
                assert!(targets.insert(goal.target()), "{}: {} twice", row.id, goal.target());
            }
        }
    }
}
