//! Where the time of a suite of cargo's goes: its test programs, by what cargo says of each.
//!
//!   `Running unittests src/lib.rs (target/debug/deps/proxy-1f2e)`   the crate's name
//!   `Running tests/all/main.rs (target/debug/deps/all-3c4d)`        of the crate named last
//!   `test result: ok. 3 passed; …; finished in 12.34s`              its seconds

/// Programs that took less are not worth a line.
const WORTH_S: f64 = 5.0;

/// The test programs of one suite, in the order that they ran.
#[derive(Debug, Default)]
pub(crate) struct SuiteParts {
    krate: String,
    running: Option<String>,
    done: Vec<(String, f64)>,
}

impl SuiteParts {
    /// Takes what one line of output says; lines that say nothing change nothing.
    pub(crate) fn read_line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(what) = line.strip_prefix("Running ") {
            self.start(what);
        } else if let (Some(name), Some(seconds)) = (&self.running, seconds_of(line)) {
            self.done.push((name.clone(), seconds));
            self.running = None;
        }
    }

    /// Those that took five seconds or more, the longest first.
    pub(crate) fn longest(&self) -> Vec<(&str, f64)> {
        let worth = self.done.iter().filter(|(_, seconds)| *seconds >= WORTH_S);
        let mut longest: Vec<_> = worth.map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        longest.sort_by(|a, b| b.1.total_cmp(&a.1));
        longest
    }

    fn start(&mut self, what: &str) {
        if what.starts_with("unittests ") {
            let program = what.rsplit_once('/').map_or("", |(_, name)| name);
            self.krate = program.rsplit_once('-').map_or(program, |(name, _)| name).to_owned();
            self.running = Some(self.krate.clone());
        } else {
            let file = what.split(' ').next().unwrap_or_default();
            let file = file.trim_end_matches("/main.rs");
            self.running = Some(format!("{} {file}", self.krate));
        }
    }
}

fn seconds_of(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("test result: ")?;
    rest.split_once("finished in ")?.1.strip_suffix('s')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_take_long_are_named_by_their_crate() {
        let mut parts = SuiteParts::default();
        let said = "\
     Running unittests src/lib.rs (target/debug/deps/proxy-1f2e)
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 5.00s
     Running tests/all/main.rs (target/debug/deps/all-3c4d)
test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 71.20s
     Running unittests src/lib.rs (target/debug/deps/sluice_sched-9a)
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.31s";
        said.lines().for_each(|line| parts.read_line(line));
        assert_eq!(parts.longest(), [("proxy tests/all", 71.2), ("proxy", 5.0)]);
    }
}
