//! Programs that a load consists of (fio, find, ls, tar): run to their end and timed, or killed
//! on Ctrl-C.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Settings for running the programs of a load.
pub(crate) struct MountTools<'a> {
    /// Set when Ctrl-C was pressed: running programs are killed.
    pub(crate) stop: &'a Arc<AtomicBool>,
    /// Programs share processor 0 with whatever they ask.
    pub(crate) one_cpu: bool,
}

/// What a program did.
pub(crate) struct ToolRun {
    pub(crate) text: String,
    pub(crate) took: Duration,
}

impl MountTools<'_> {
    /// Runs it; an error shows what it said.
    pub(crate) fn run(&self, command: &mut Command) -> anyhow::Result<ToolRun> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut pinned;
        let command = if self.one_cpu {
            pinned = Command::new("taskset");
            pinned.args(["-c", "0"]).arg(command.get_program()).args(command.get_args())
        } else {
            command
        };
        let began = Instant::now();
        let child = command
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("pidfd")?;
        let done = AtomicBool::new(false);
        let (output, took) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if self.stop.load(Ordering::Relaxed) {
                        // It fails only when the program has ended.
                        let _ = pidfd_send_signal(&process, Signal::KILL);
                        return;
                    }
                    std::thread::park_timeout(LOOK_EVERY);
                }
            });
            let output = child.wait_with_output();
            let took = began.elapsed();
            done.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            (output, took)
        });
        let output = output.with_context(|| format!("cannot wait for {name}"))?;
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let all: Vec<&str> = errors.lines().chain(text.lines().take(3)).take(4).collect();
            bail!("{name}: {}: {}", output.status, all.join(" | "));
        }
        Ok(ToolRun { text, took })
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_an_error_with_its_words_and_stop_kills_it() {
        let stop = Arc::new(AtomicBool::new(false));
        let tools = MountTools { stop: &stop, one_cpu: false };
        assert_eq!(tools.run(Command::new("echo").arg("a")).unwrap().text, "a\n");
        let told = tools.run(Command::new("ls").arg("/no-such-place")).err().unwrap().to_string();
        assert!(told.contains("/no-such-place"), "{told}");
        stop.store(true, Ordering::Relaxed);
        let told = tools.run(Command::new("sleep").arg("1000")).err().unwrap().to_string();
        assert_eq!(told, "interrupted");
    }
}
