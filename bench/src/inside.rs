//! A bench within namespaces of its own: the outer process starts the inner one and waits.
//!
//! ```text
//!   outer: RunDir ─► setpriv ─► unshare (network, processes, mounts) ─► inner: --inside DIR
//!     └ a signal ────────────── SIGTERM ─────────────────────────────────► ends by its guards
//! ```
//!
//! Ports, mounts and servers of the inner one are nobody else's, and go with it however it
//! ends: if it is killed the namespaces end, and with them everything in them.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::place::RunDir;
use super::programs;

/// Runs this program once more, with the same words and `--inside DIR`, to its end.
pub(crate) fn run(dir: RunDir, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut inner = InsideCommand::start(dir.path())?;
    let mut asked = None;
    let status = loop {
        if let Some(status) = inner.0.try_wait().context("cannot wait for unshare")? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            inner.ask_to_end();
            if asked.get_or_insert_with(Instant::now).elapsed() > GRACE {
                break inner.kill().context("cannot end unshare")?;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    drop(inner);
    drop(dir);
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if !status.success() {
        bail!("not finished ({status}): the lines above say why; namespaces of its own need root");
    }
    Ok(())
}

/// A loopback interface, and a /run of the bench's own: sockets have short paths there, and
/// whatever servers leave goes with it.
pub(crate) fn own_the_place() -> anyhow::Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    let up = up.context("cannot run ip, which brings up the loopback interface")?;
    ensure!(up.success(), "cannot bring up the loopback interface");
    rustix::mount::mount("bench", "/run", "tmpfs", MountFlags::empty(), None)
        .context("cannot mount a tmpfs on /run")
}

/// The unshare around the inner process; both are gone when it is dropped.
struct InsideCommand(Child);

impl InsideCommand {
    fn start(dir: &Path) -> anyhow::Result<InsideCommand> {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(programs::own()?)
            .args(std::env::args_os().skip(1))
            .arg("--inside")
            .arg(dir)
            .spawn()
            .context("cannot start unshare, which gives the bench namespaces of its own")?;
        Ok(InsideCommand(child))
    }

    /// unshare itself heeds no signal that could be heeded by whom it started.
    fn ask_to_end(&self) {
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?))
        {
            // It fails only when that one is gone.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn kill(&mut self) -> std::io::Result<std::process::ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for InsideCommand {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.kill();
        }
    }
}

const GRACE: Duration = Duration::from_secs(5);
