//! Counts tests by the closing lines that test runners print.
//!
//!   `test result: ok. 3 passed; 0 failed; 1 ignored; …`   cargo, once a binary
//!   `fstest: 30 passed, 5 failed`, `12 passed, 0 failed, 2 skipped`   everything else
//!   `skipped: NAME: why`   one test or part that could not run here

/// Tests of one suite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TestTally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl TestTally {
    /// Adds what one line of output says; lines that say nothing change nothing.
    pub(crate) fn read_line(&mut self, line: &str) {
        if let Some(more) = closing_line(line) {
            self.add(more);
        }
    }

    /// Adds another suite's tests.
    pub(crate) fn add(&mut self, other: TestTally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Whether no closing line was seen at all.
    pub(crate) fn is_empty(&self) -> bool {
        *self == TestTally::default()
    }
}

fn closing_line(line: &str) -> Option<TestTally> {
    let line = line.trim();
    let (counts, separator) = match line.strip_prefix("test result: ") {
        Some(rest) => (rest.split_once(". ")?.1, ';'),
        None => (without_label(line), ','),
    };
    let mut tally = TestTally::default();
    let mut seen = (false, false);
    for part in counts.split(separator) {
        let (number, word) = part.trim().split_once(' ')?;
        match (number.parse(), word) {
            (Ok(count), "passed") => (tally.passed, seen.0) = (count, true),
            (Ok(count), "failed") => (tally.failed, seen.1) = (count, true),
            (Ok(count), "skipped" | "ignored") => tally.skipped = count,
            _ if separator == ';' => {}
            _ => return None,
        }
    }
    (seen.0 && seen.1).then_some(tally)
}

/// `fstest: 3 passed` without its label, which is one word and a colon.
fn without_label(line: &str) -> &str {
    match line.split_once(": ") {
        Some((label, rest)) if !label.contains(' ') => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> TestTally {
        let mut tally = TestTally::default();
        text.lines().for_each(|line| tally.read_line(line));
        tally
    }

    #[test]
    fn closing_lines_of_cargo_add_up() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
                    test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.2s";
        assert_eq!(counted(text), TestTally { passed: 7, failed: 2, skipped: 1 });
    }

    #[test]
    fn plain_closing_lines_are_read_with_and_without_a_label() {
        assert_eq!(
            counted("fstest: 30 passed, 5 failed"),
            TestTally { passed: 30, failed: 5, skipped: 0 }
        );
        assert_eq!(
            counted("12 passed, 0 failed, 2 skipped"),
            TestTally { passed: 12, failed: 0, skipped: 2 }
        );
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in [
            "3 passed",
            "all 3 passed, 0 failed",
            "ok 3",
            "",
            "a b: 1 passed, 0 failed",
            "-1 passed, 0 failed",
        ] {
            assert_eq!(counted(line), TestTally::default(), "{line}");
        }
    }
}
