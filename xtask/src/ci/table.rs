//! The table at the end of CI, and the one line that machines read.

use std::time::Duration;

use super::run::{SuiteOutcome, SuiteVerdict};
use super::sizes;
use super::tally::TestTally;

/// Prints the table, what was skipped, what failed tests printed, and `N passed, N failed, N skipped`.
pub(crate) fn print(outcomes: &[SuiteOutcome], total: Duration) {
    print!("\n{}", text(outcomes, total));
}

fn text(outcomes: &[SuiteOutcome], total: Duration) -> String {
    let mut text = format!(
        "{:<12} {:>6} {:>6} {:>7} {:>8} {:>7}  result\n",
        "suite", "passed", "failed", "skipped", "seconds", "usual"
    );
    let mut sum = TestTally::default();
    for outcome in outcomes {
        let TestTally { passed, failed, skipped } = outcome.tally;
        let result = match &outcome.verdict {
            SuiteVerdict::Passed if outcome.seconds > outcome.usual_s as f64 => {
                "ok, longer than usual"
            }
            SuiteVerdict::Passed => "ok",
            SuiteVerdict::Skipped => "skipped",
            SuiteVerdict::Failed(reason) => &format!("FAILED: {reason}"),
        };
        text += &format!(
            "{:<12} {passed:>6} {failed:>6} {skipped:>7} {:>8.1} {:>7}  {result}\n",
            outcome.name, outcome.seconds, outcome.usual_s
        );
        for (program, seconds) in outcome.parts.longest() {
            text += &format!("  {program:<33} {seconds:>8.1}\n");
        }
        sum.add(outcome.tally);
    }
    let usual: u64 = outcomes.iter().map(|outcome| outcome.usual_s).sum();
    text += &format!(
        "{:<12} {:>6} {:>6} {:>7} {:>8.1} {usual:>7}\n\n",
        "all",
        sum.passed,
        sum.failed,
        sum.skipped,
        total.as_secs_f64()
    );
    text += &sizes::text();
    for skip in outcomes.iter().flat_map(|outcome| &outcome.skips) {
        text += &format!("{skip}\n");
    }
    for line in outcomes.iter().flat_map(|outcome| outcome.failures.lines()) {
        text += &format!("{line}\n");
    }
    text + &format!("{} passed, {} failed, {} skipped\n", sum.passed, sum.failed, sum.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::failures::FailureLog;
    use crate::ci::parts::SuiteParts;

    #[test]
    fn the_table_ends_with_the_sums_the_skips_and_the_plain_line() {
        let outcome = |name, usual_s, tally, verdict, skips: &[&str]| SuiteOutcome {
            name,
            tally,
            parts: SuiteParts::default(),
            seconds: 1.26,
            usual_s,
            verdict,
            skips: skips.iter().map(ToString::to_string).collect(),
            failures: FailureLog::default(),
        };
        let one = outcome(
            "fmt",
            1,
            TestTally { passed: 1, failed: 0, skipped: 0 },
            SuiteVerdict::Passed,
            &[],
        );
        let mut two = outcome(
            "v9fs",
            30,
            TestTally { passed: 30, failed: 5, skipped: 1 },
            SuiteVerdict::Failed("5 failed".into()),
            &["skipped: x: y"],
        );
        two.failures.read_line("---- why stdout ----");
        let expected = "\
suite        passed failed skipped  seconds   usual  result
fmt               1      0       0      1.3       1  ok, longer than usual
v9fs             30      5       1      1.3      30  FAILED: 5 failed
all              31      5       1      2.5      31

SIZES
skipped: x: y
---- why stdout ----
31 passed, 5 failed, 1 skipped
";
        let expected = expected.replace("SIZES\n", &sizes::text());
        assert_eq!(text(&[one, two], Duration::from_millis(2520)), expected);
    }
}
