//! A server's process: started so that it cannot outlive the bench, gone when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::time::ClockId;
use nix::unistd::Pid;
use rustix::process::Signal;
use rustix::thread::CpuSet;

/// A running server; when drop returns, it is gone.
pub(crate) struct BenchProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl BenchProcess {
    /// Starts `arguments`, whose output goes to the file `log`.
    pub(crate) fn start(
        name: &str,
        arguments: &[String],
        log: &Path,
    ) -> anyhow::Result<BenchProcess> {
        let out = File::create(log).context("cannot write a server's log")?;
        // A server must not outlive a bench that is killed, which runs no guard.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out.try_clone().context("cannot write a server's log")?)
            .stderr(out)
            .spawn()
            .context("cannot start setpriv")?;
        Ok(BenchProcess { name: name.into(), child, log: log.into() })
    }

    /// Waits until `is_ready`; an error shows the last lines of the log.
    pub(crate) fn wait_until(&mut self, is_ready: impl Fn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        while !is_ready() {
            let ended = self.child.try_wait().context("cannot wait for a server")?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(3).collect();
                bail!("{} does not start: {}", self.name, lines.join(" | "));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Ends the server at once, with no chance to clean up.
    pub(crate) fn kill(mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }

    /// Processor time that the server has used so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.child.id() as i32));
        let now = clock.and_then(ClockId::now);
        let now =
            now.with_context(|| format!("cannot read the processor time of {}", self.name))?;
        Ok(Duration::from(now))
    }

    /// Memory that the server holds now (VmRSS), in bytes.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{path} has no VmRSS"))? << 10)
    }

    /// Lets all threads of the server run on `cpus` only.
    pub(crate) fn keep_on(&self, cpus: &CpuSet) -> anyhow::Result<()> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for task in tasks.context("cannot list a server's threads")? {
            let name = task.context("cannot list a server's threads")?.file_name();
            let id = name.to_str().and_then(|name| name.parse().ok());
            let id = id.and_then(rustix::process::Pid::from_raw);
            // A thread may end between the listing and the call.
            if id.is_some_and(|id| rustix::thread::sched_setaffinity(Some(id), cpus).is_err()) {
                continue;
            }
        }
        Ok(())
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        // The number of one that has ended may be another's by now.
        let has_ended = matches!(self.child.try_wait(), Ok(Some(_)));
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32);
        let Some(pid) = pid.filter(|_| !has_ended) else { return };
        // Both fail only when the process is gone already.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + STOP_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How often it is looked whether something has come about.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
const START_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(3);
