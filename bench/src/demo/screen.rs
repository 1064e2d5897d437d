//! What a person sees: a table drawn in place while the demo runs, or plain lines
//! where stdout is not a terminal, and the same table with its conclusions at the end.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use super::DemoPhase;
use super::figures::DemoFigures;
use super::job::DemoJob;
use super::summary::DemoSummary;

/// Draws on stdout; the demo goes on if stdout is closed.
pub(super) struct DemoScreen {
    kind: ScreenKind,
    /// Lines of the table on the screen, to be drawn over.
    drawn: usize,
    ticks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScreenKind {
    InPlace,
    Lines,
    Silent,
}

impl DemoScreen {
    pub(super) fn new(silent: bool) -> DemoScreen {
        let kind = match (silent, std::io::stdout().is_terminal()) {
            (true, _) => ScreenKind::Silent,
            (false, true) => ScreenKind::InPlace,
            (false, false) => ScreenKind::Lines,
        };
        DemoScreen { kind, drawn: 0, ticks: 0 }
    }

    /// A line of its own, above what is drawn in place.
    pub(super) fn say(&mut self, what: &str) {
        match self.kind {
            ScreenKind::Silent => {}
            ScreenKind::Lines => put(&format!("{what}\n")),
            ScreenKind::InPlace => {
                let erase = self.erase();
                put(&format!("{erase}{what}\n"));
            }
        }
    }

    /// What each job gets: `elapsed` of `seconds` of the phase `running` are over.
    pub(super) fn show(
        &mut self,
        rows: &[(DemoPhase, DemoFigures)],
        running: DemoPhase,
        elapsed: f64,
        seconds: f64,
    ) {
        match self.kind {
            ScreenKind::Silent => {}
            ScreenKind::InPlace => {
                let name = running.name();
                let table = table(rows, Some(running));
                let text = format!("{table}\n  {name}: {elapsed:.0} s of {seconds:.0} s\n");
                let erase = self.erase();
                self.drawn = text.lines().count();
                put(&format!("{erase}{text}"));
            }
            ScreenKind::Lines => {
                self.ticks += 1;
                // Four times a second is for eyes; a log is read later.
                if self.ticks.is_multiple_of(LINE_TICKS) {
                    put(&line(rows, running, elapsed));
                }
            }
        }
    }

    /// The phase has ended; its figures are drawn once more with the next table.
    pub(super) fn phase_over(&mut self, phase: DemoPhase) {
        if self.kind == ScreenKind::Lines {
            put(&format!("{}: over\n", phase.name()));
        }
        if self.kind == ScreenKind::InPlace && phase == DemoPhase::WithRules {
            let erase = self.erase();
            put(&erase);
        }
    }

    /// Goes back to where the table began, and wipes what is below.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

/// The table, what the rules changed, and where the picture is, if there is one.
pub(super) fn ending(summary: &DemoSummary, picture: Option<&Path>) -> String {
    let mut text = format!("\n{}\n", table(&summary.figures, None));
    if let Some(factors) = summary.factors() {
        text += &format!(
            "What the rules changed for the victim: {:.1} times the operations, median {}, p99 {}.\n\
             The bully keeps {:.0} % of its rate.\n",
            factors.victim_ops,
            change(factors.victim_p50),
            change(factors.victim_p99),
            factors.bully_mb * 100.0
        );
    }
    let errors: u64 = summary.figures.iter().map(|(_, figures)| figures.errors).sum();
    if errors > 0 {
        text += &format!("{errors} requests were answered with an error or with wrong data.\n");
    }
    if let Some(others) = summary.others.filter(|others| *others >= OTHERS_WORTH_TELLING) {
        text += &format!(
            "Other programs took {:.0} % of the processors meanwhile: on a quiet machine the figures differ.\n",
            others * 100.0
        );
    }
    if let Some(picture) = picture {
        text += &format!("The picture is {}.\n", picture.display());
    }
    text
}

/// `3.2 times shorter`, or longer if it is.
fn change(factor: f64) -> String {
    match factor {
        factor if factor >= 1.0 => format!("{factor:.1} times shorter"),
        factor if factor > 0.0 => format!("{:.1} times longer", 1.0 / factor),
        _ => "unknown".into(),
    }
}

/// Rows by job, then by phase; the running phase's are marked.
fn table(rows: &[(DemoPhase, DemoFigures)], running: Option<DemoPhase>) -> String {
    let mut text = format!(
        "  {:<8}{:<15}{:>9}{:>10}{:>11}{:>11}\n",
        "job", "", "MB/s", "ops/s", "median", "p99"
    );
    for job in [DemoJob::Victim, DemoJob::Shell, DemoJob::Bully] {
        for (phase, figures) in rows.iter().filter(|(_, figures)| figures.job == job) {
            let mark = if running == Some(*phase) { "▸" } else { " " };
            let DemoFigures { mb_per_sec, ops_per_sec, p50_us, p99_us, .. } = figures;
            text += &format!(
                "{mark} {:<8}{:<15}{mb_per_sec:>9.1}{ops_per_sec:>10.0}{:>11}{:>11}\n",
                job.name(),
                phase.name(),
                span_text(*p50_us),
                span_text(*p99_us),
            );
        }
    }
    text
}

/// The running phase in one line.
fn line(rows: &[(DemoPhase, DemoFigures)], running: DemoPhase, elapsed: f64) -> String {
    let mut text = format!("{:<14}{elapsed:>4.0} s", running.name());
    for (_, figures) in rows.iter().filter(|(phase, _)| *phase == running) {
        let DemoFigures { mb_per_sec, ops_per_sec, p50_us, p99_us, .. } = figures;
        text += &format!(
            "   {} {mb_per_sec:.1} MB/s {ops_per_sec:.0} ops/s median {} p99 {}",
            figures.job.name(),
            span_text(*p50_us),
            span_text(*p99_us),
        );
    }
    text + "\n"
}

/// Microseconds in the unit that leaves two or three digits.
pub(super) fn span_text(us: f64) -> String {
    match us {
        us if us >= 99_500.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 9_950.0 => format!("{:.1} ms", us / 1e3),
        us if us >= 995.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.0} µs"),
    }
}

fn put(text: &str) {
    let mut out = std::io::stdout();
    // See [`DemoScreen`].
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Below this, what others took is less than what differs from run to run.
const OTHERS_WORTH_TELLING: f64 = 0.1;
/// Ticks from one plain line to the next.
const LINE_TICKS: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(phase: DemoPhase, job: DemoJob) -> (DemoPhase, DemoFigures) {
        let figures = DemoFigures {
            job,
            seconds: 1.0,
            ops: 5000,
            mb_per_sec: 16.04,
            ops_per_sec: 5000.4,
            p50_us: 148.2,
            p99_us: 3021.0,
            max_us: 9e4,
            errors: 0,
        };
        (phase, figures)
    }

    #[test]
    fn the_table_is_ordered_by_job_and_marks_what_runs() {
        let rows = [
            row(DemoPhase::WithoutRules, DemoJob::Victim),
            row(DemoPhase::WithoutRules, DemoJob::Bully),
            row(DemoPhase::WithRules, DemoJob::Victim),
        ];
        let text = "  job                         MB/s     ops/s     median        p99\n\
                    \x20 victim  without rules       16.0      5000     148 µs    3.02 ms\n\
                    ▸ victim  with rules          16.0      5000     148 µs    3.02 ms\n\
                    \x20 bully   without rules       16.0      5000     148 µs    3.02 ms\n";
        assert_eq!(table(&rows, Some(DemoPhase::WithRules)), text);
    }

    #[test]
    fn drawing_again_goes_back_over_exactly_what_was_drawn() {
        let mut screen = DemoScreen { kind: ScreenKind::Silent, drawn: 7, ticks: 0 };
        assert_eq!(screen.erase(), "\x1b[7A\x1b[J");
        assert_eq!(screen.erase(), "");
    }

    #[test]
    fn spans_keep_three_digits_and_changes_their_direction() {
        let spans = [148.2, 3021.0, 12_345.0, 123_456.0].map(span_text);
        assert_eq!(spans, ["148 µs", "3.02 ms", "12.3 ms", "123 ms"]);
        assert_eq!(change(3.24), "3.2 times shorter");
        assert_eq!(change(0.5), "2.0 times longer");
    }
}
