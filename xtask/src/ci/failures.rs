//! What failed tests printed, once more at the end of a run.
//!
//! ```text
//!   ---- NAME stdout ----  ─► its lines, without those of a backtrace, 40 at most
//!   failures:              ─► the end of them
//! ```

/// The most lines of a test, and of a suite, that are kept.
const TEST_MAX: usize = 40;
const SUITE_MAX: usize = 400;
/// The most characters of a line.
const LINE_MAX: usize = 2_000;

/// What cargo's failed tests printed, in one suite.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    lines: Vec<String>,
    /// Lines so far of the test whose output this is, if it is one's.
    of_test: Option<usize>,
}

impl FailureLog {
    /// Keeps a line of output if it is of a failed test.
    pub(crate) fn read_line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.of_test = Some(0);
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.of_test = None;
        }
        let Some(so_far) = &mut self.of_test else { return };
        let has_room = *so_far < TEST_MAX && self.lines.len() < SUITE_MAX;
        if has_room && !line.is_empty() && !is_of_backtrace(line) {
            *so_far += 1;
            self.lines.push(line.chars().take(LINE_MAX).collect());
        }
    }

    /// Returns what was kept, in order.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }
}

/// `   3: name` and `  at path` below it.
fn is_of_backtrace(line: &str) -> bool {
    let text = line.trim_start();
    let number = text.split_once(": ").map_or("", |(number, _)| number);
    let is_frame = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    text.len() < line.len() && (is_frame || text.starts_with("at "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> Vec<String> {
        let mut log = FailureLog::default();
        text.lines().for_each(|line| log.read_line(line));
        log.lines().to_vec()
    }

    #[test]
    fn failed_tests_are_kept_without_backtraces() {
        let text = "running 2 tests\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\n\
                    thread 'a' panicked at x.rs:1:2:\nleft: 1\nstack backtrace:\n   0: core::panic\n\
                    \x20            at ./x.rs:1:2\n\n---- b stdout ----\nno\n\n\nfailures:\n    a\n\n\
                    test result: FAILED. 0 passed; 1 failed\nother\n";
        let expected = [
            "---- a stdout ----",
            "thread 'a' panicked at x.rs:1:2:",
            "left: 1",
            "stack backtrace:",
            "---- b stdout ----",
            "no",
        ];
        assert_eq!(kept(text), expected);
    }

    #[test]
    fn a_flood_of_one_test_leaves_room_for_the_next() {
        let text = format!("---- a stdout ----\n{}---- b stdout ----\nno\n", "x\n".repeat(100));
        assert_eq!(kept(&text).len(), TEST_MAX + 2);
    }
}
