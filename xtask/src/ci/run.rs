//! Runs one suite: passes its output on, counts its tests, ends it if it hangs.
//!
//!   child (stdout and stderr in one pipe) ─► reader thread ─► lines ─► printed, counted, kept
//!                                                              │
//!        silent for long, or the run's time over: the child and all below it get SIGTERM, five seconds later SIGKILL
//!
//! The children stay in our process group, so Ctrl-C reaches them too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::failures::FailureLog;
use super::parts::SuiteParts;
use super::sizes;
use super::suites::Suite;
use super::tally::TestTally;

/// How long a suite that is ended may take to clean up.
const GRACE: Duration = Duration::from_secs(5);

/// How often a silent suite is looked after.
const TICK: Duration = Duration::from_millis(100);

/// How one suite went.
#[derive(Debug)]
pub(crate) struct SuiteOutcome {
    pub(crate) name: &'static str,
    pub(crate) tally: TestTally,
    /// Its test programs, where cargo names them.
    pub(crate) parts: SuiteParts,
    pub(crate) seconds: f64,
    pub(crate) usual_s: u64,
    pub(crate) verdict: SuiteVerdict,
    /// What it said was skipped, with the reasons.
    pub(crate) skips: Vec<String>,
    /// What its failed tests printed.
    pub(crate) failures: FailureLog,
}

/// The last column of the table.
#[derive(Debug, PartialEq)]
pub(crate) enum SuiteVerdict {
    Passed,
    Failed(String),
    Skipped,
}

impl SuiteOutcome {
    /// Passes a line on and keeps what it tells.
    fn hear(&mut self, line: String) {
        println!("{line}");
        self.tally.read_line(&line);
        self.parts.read_line(&line);
        self.failures.read_line(&line);
        if line.starts_with("skipped: ") {
            self.skips.push(line);
        }
    }

    /// Whether CI may pass with it; what can't run here doesn't fail CI.
    pub(crate) fn passed(&self) -> bool {
        !matches!(self.verdict, SuiteVerdict::Failed(_))
    }
}

/// When a suite is ended. How fast the machine is says nothing about what is tested, so neither is
/// near to what a suite takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// The run as a whole is over then.
    pub(crate) end: Instant,
    /// A suite that says nothing for so long hangs.
    pub(crate) silence: Duration,
}

/// Runs a suite to its end, or to its limits.
pub(crate) fn suite(root: &Path, suite: &Suite, limits: RunLimits) -> Result<SuiteOutcome> {
    println!("\n=== {}: {} (usually {} s)", suite.name, suite.what, suite.usual_s);
    let mut outcome = SuiteOutcome {
        name: suite.name,
        tally: TestTally::default(),
        parts: SuiteParts::default(),
        seconds: 0.0,
        usual_s: suite.usual_s,
        verdict: SuiteVerdict::Passed,
        skips: Vec::new(),
        failures: FailureLog::default(),
    };
    if let Some((program, package)) = suite.needs.iter().find(|(program, _)| !in_path(program)) {
        let skip = format!("skipped: {}: no {program} here (it comes with {package})", suite.name);
        println!("{skip}");
        outcome.skips.push(skip);
        outcome.tally.skipped = 1;
        outcome.verdict = SuiteVerdict::Skipped;
        return Ok(outcome);
    }
    let start = Instant::now();
    if let Some(reason) = run_command(root, &suite.command, limits, &mut outcome)? {
        println!("{}: {reason}", suite.name);
        outcome.verdict = SuiteVerdict::Failed(reason);
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    judge(&mut outcome);
    Ok(outcome)
}

/// A suite without tests of its own counts as one; a failed one counts at least one failed.
fn judge(outcome: &mut SuiteOutcome) {
    if outcome.verdict == SuiteVerdict::Passed && outcome.tally.failed > 0 {
        outcome.verdict = SuiteVerdict::Failed(format!("{} failed", outcome.tally.failed));
    }
    match outcome.verdict {
        SuiteVerdict::Passed if outcome.tally.is_empty() => outcome.tally.passed = 1,
        SuiteVerdict::Failed(_) if outcome.tally.failed == 0 => outcome.tally.failed = 1,
        _ => {}
    }
}

/// Runs one command to its end or its limits; what went wrong, if anything.
fn run_command(
    root: &Path,
    words: &[String],
    limits: RunLimits,
    outcome: &mut SuiteOutcome,
) -> Result<Option<String>> {
    println!("$ {}", words.join(" "));
    let (reader, writer) = io::pipe()?;
    let mut child = crate::as_by_hand(Command::new(&words[0]))
        .args(&words[1..])
        .current_dir(root)
        .env("CARGO_TERM_COLOR", "never")
        .envs(sizes::ALL.iter().map(|size| (size.variable, size.value())))
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot run {}", words[0]))?;
    let lines = lines_of(reader);
    Ok(match watch(&mut child, &lines, limits, outcome)? {
        Ended::By(status) if status.success() => None,
        Ended::By(status) => Some(format!("`{}` ended with {status}", words[0])),
        Ended::Silent => Some(format!("it said nothing for {} s", limits.silence.as_secs())),
        Ended::Late => Some("the time of the whole run is over".to_string()),
    })
}

/// Lines as they come; bytes that are not UTF-8 are replaced.
fn lines_of(pipe: PipeReader) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_string();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// How a child came to its end.
enum Ended {
    By(ExitStatus),
    Silent,
    Late,
}

/// Passes output on until the child has ended, or has to be.
fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    limits: RunLimits,
    outcome: &mut SuiteOutcome,
) -> Result<Ended> {
    let (mut ended, mut heard) = (None, Instant::now());
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                outcome.hear(line);
                heard = Instant::now();
            }
            Err(error) => {
                // the child is gone; what it left behind may hold the pipe, and is not waited for
                if let Some(status) = ended {
                    return Ok(Ended::By(status));
                }
                ended = child.try_wait()?;
                if ended.is_none() && error == RecvTimeoutError::Disconnected {
                    thread::sleep(TICK); // it closed its output and lives on
                }
            }
        }
        let late = Instant::now() >= limits.end;
        if late || heard.elapsed() >= limits.silence {
            if let Some(status) = ended {
                return Ok(Ended::By(status));
            }
            stop(child)?;
            return Ok(if late { Ended::Late } else { Ended::Silent });
        }
    }
}

/// Ends a child and everything below it: first asked, then made to.
fn stop(child: &mut Child) -> Result<()> {
    let tree = tree_below(child.id());
    signal_all(&tree, Signal::TERM);
    let start = Instant::now();
    while start.elapsed() < GRACE {
        if child.try_wait()?.is_some()
            && !tree.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists())
        {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    signal_all(&tree, Signal::KILL);
    child.wait()?;
    Ok(())
}

fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            // one that has ended meanwhile needs no signal
            let _ = kill_process(pid, signal);
        }
    }
}

/// A process and everything it started that is still alive.
fn tree_below(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        tree.extend(children.get(&tree[next]).into_iter().flatten());
        next += 1;
    }
    tree
}

/// The parent in /proc/PID/stat: the second field after the name, which may hold anything but ends at the last `)`.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn run(needs: &'static [(&'static str, &'static str)], script: &str) -> SuiteOutcome {
        run_for(LONG, LONG, needs, script)
    }

    /// With so much time in all, and for silence.
    fn run_for(
        all: Duration,
        silence: Duration,
        needs: &'static [(&'static str, &'static str)],
        script: &str,
    ) -> SuiteOutcome {
        let command = ["bash", "-c", script].map(String::from).to_vec();
        let one = Suite { name: "s", what: "w", usual_s: 1, needs, command };
        suite(Path::new("/"), &one, RunLimits { end: Instant::now() + all, silence }).unwrap()
    }

    #[test]
    fn a_suite_counts_its_tests_from_both_streams() {
        let outcome = run(
            &[],
            "echo '2 passed, 0 failed, 1 skipped'; echo 't: 1 passed, 0 failed' >&2; echo 'skipped: x: y'",
        );
        assert_eq!(outcome.verdict, SuiteVerdict::Passed);
        assert_eq!(outcome.tally, TestTally { passed: 3, failed: 0, skipped: 1 });
        assert_eq!(outcome.skips, ["skipped: x: y"]);
    }

    #[test]
    fn a_suite_without_counts_is_one_test() {
        assert_eq!(run(&[], "true").tally, TestTally { passed: 1, failed: 0, skipped: 0 });
        let failed = run(&[], "exit 3");
        assert_eq!(failed.tally, TestTally { passed: 0, failed: 1, skipped: 0 });
        assert_eq!(failed.verdict, SuiteVerdict::Failed("`bash` ended with exit status: 3".into()));
    }

    #[test]
    fn a_counted_failure_fails_the_suite_even_with_status_0() {
        assert_eq!(
            run(&[], "echo '2 passed, 1 failed'").verdict,
            SuiteVerdict::Failed("1 failed".into())
        );
    }

    #[test]
    fn a_suite_that_says_nothing_is_ended_with_everything_below_it() {
        let script = "sleep 1000 & echo pid $! >&2; wait";
        for script in [script, "exec >&- 2>&-; sleep 1000"] {
            let outcome = run_for(LONG, Duration::from_secs(1), &[], script);
            assert_eq!(outcome.verdict, SuiteVerdict::Failed("it said nothing for 1 s".into()));
            assert!(outcome.seconds < 600.0, "{}", outcome.seconds);
        }
    }

    #[test]
    fn no_flood_of_output_hides_the_end_of_the_run() {
        let outcome = run_for(Duration::from_secs(1), LONG, &[], "while :; do echo; done");
        let over = SuiteVerdict::Failed("the time of the whole run is over".into());
        assert_eq!(outcome.verdict, over);
    }

    #[test]
    fn descendants_are_found_through_their_parents() {
        let mut child = Command::new("bash")
            .args(["-c", "echo; sleep 1000 & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while tree_below(child.id()).len() < 2 && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(tree_below(child.id()).len(), 2);
        stop(&mut child).unwrap();
        assert_eq!(parent_of(child.id()), None);
    }

    #[test]
    fn what_is_missing_skips_the_suite_and_says_so() {
        let outcome = run(&[("no-such-program", "none")], "exit 1");
        assert_eq!(outcome.verdict, SuiteVerdict::Skipped);
        assert!(outcome.passed());
        assert_eq!(outcome.skips, ["skipped: s: no no-such-program here (it comes with none)"]);
    }
}
