//! The servers of a comparison: started on one directory, stopped with their guard.
//!
//! Each gets what reference manuals and measurements say it runs best with, the same
//! directory, and a port and a socket of its own. Whoever holds a [`Server`] may drop
//! it at any time; the process is gone when drop returns.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::time::ClockId;
use nix::unistd::Pid;
use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::socket::Address;

/// What can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// This program's proxy as it comes.
    Sluice,
    /// The proxy with `--no-schedule`.
    Unscheduled,
    /// The proxy with a rule that makes a class for each job.
    Ruled,
    /// diod.
    Diod,
    /// NFS-Ganesha.
    Ganesha,
    /// Request → splice → reply.
    Bare,
    /// Request → reply from memory: the raw socket.
    Memory,
}

/// Where servers find the directory and put what they need.
pub(crate) struct Place {
    /// Everything is in here.
    pub(crate) dir: PathBuf,
    /// The program itself.
    pub(crate) program: PathBuf,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) tcp: Address,
    pub(crate) unix: Option<Address>,
    /// What to attach to.
    pub(crate) aname: String,
    child: Child,
}

impl Place {
    /// The directory that all servers export.
    pub(crate) fn export(&self) -> PathBuf {
        self.dir.join("export")
    }

    fn socket(&self, kind: Kind) -> PathBuf {
        self.dir.join(format!("{kind}.sock"))
    }

    fn log(&self, kind: Kind) -> PathBuf {
        self.dir.join(format!("{kind}.log"))
    }
}

impl Server {
    /// Starts `kind` and waits until it takes connections.
    pub(crate) fn start(kind: Kind, place: &Place) -> anyhow::Result<Server> {
        let tcp = Address::Tcp(format!("127.0.0.1:{}", kind.port()));
        let unix = (kind != Kind::Ganesha).then(|| Address::Unix(place.socket(kind)));
        let arguments = kind.command(place, &tcp)?;
        let log = File::create(place.log(kind)).context("cannot write a server's log")?;
        // A server must not outlive a bench that is killed, which runs no guard.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot write a server's log")?)
            .stderr(log)
            .spawn()
            .context("cannot start setpriv")?;
        let mut server = Server { kind, tcp, unix, aname: kind.aname(place), child };
        server.wait_until_ready(place)?;
        Ok(server)
    }

    /// Processor time that the server has used so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.child.id() as i32));
        let now = clock.and_then(ClockId::now);
        let now =
            now.with_context(|| format!("cannot read the processor time of {}", self.kind))?;
        Ok(Duration::from(now))
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

    fn wait_until_ready(&mut self, place: &Place) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            let unix = self.unix.as_ref().map(Address::connect);
            if self.tcp.connect().is_ok() && unix.is_none_or(|connected| connected.is_ok()) {
                return Ok(());
            }
            let ended = self.child.try_wait().context("cannot wait for a server")?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(place.log(self.kind)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(3).collect();
                bail!("{} does not start: {}", self.kind, lines.join(" | "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) else { return };
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

impl Kind {
    /// All that can be started.
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Sluice,
        Kind::Unscheduled,
        Kind::Ruled,
        Kind::Diod,
        Kind::Ganesha,
        Kind::Bare,
        Kind::Memory,
    ];

    /// The load must skip the 9P conversation before it.
    pub(crate) fn is_bare(self) -> bool {
        matches!(self, Kind::Bare | Kind::Memory)
    }

    /// The version of a peer, or why there is none.
    pub(crate) fn version(self) -> anyhow::Result<String> {
        let package = match self {
            Kind::Diod => "diod",
            Kind::Ganesha => "nfs-ganesha",
            _ => return Ok(env!("CARGO_PKG_VERSION").into()),
        };
        find_program(self.program())?;
        let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
        Ok(match output {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            _ => "of unknown version".into(),
        })
    }

    fn program(self) -> &'static str {
        match self {
            Kind::Diod => "diod",
            Kind::Ganesha => "ganesha.nfsd",
            _ => "sluice",
        }
    }

    fn port(self) -> u16 {
        // The bench has a network of its own, so any port is free.
        15_640 + self as u16
    }

    fn aname(self, place: &Place) -> String {
        match self {
            Kind::Diod => place.export().display().to_string(),
            Kind::Ganesha => "/x".into(),
            _ => "x".into(),
        }
    }

    fn command(self, place: &Place, tcp: &Address) -> anyhow::Result<Vec<String>> {
        let export = place.export().display().to_string();
        let unix = place.socket(self);
        Ok(match self {
            Kind::Sluice => proxy(place, &export, tcp, &unix, &[]),
            Kind::Unscheduled => proxy(place, &export, tcp, &unix, &["--no-schedule"]),
            Kind::Ruled => {
                let rules = place.dir.join("rules.toml");
                std::fs::write(&rules, RULES).context("cannot write the rules")?;
                let rules = rules.display().to_string();
                proxy(place, &export, tcp, &unix, &["--rules", &rules])
            }
            Kind::Diod => {
                let program = find_program(self.program())?;
                let port = format!("127.0.0.1:{}", self.port());
                let unix = unix.display().to_string();
                let fixed = ["-c", "/dev/null", "-f", "-n", "-N", "-L", "stderr"];
                let own = ["-l", &port, "-l", &unix, "-e", &export];
                words(&program, fixed.iter().chain(&own))
            }
            Kind::Ganesha => {
                let program = find_program(self.program())?;
                let [config, log, pid] = ["conf", "log2", "pid"]
                    .map(|end| place.dir.join(format!("{self}.{end}")).display().to_string());
                std::fs::write(&config, ganesha_config(&export, self.port()))
                    .context("cannot write ganesha's configuration")?;
                words(&program, ["-F", "-f", &config, "-L", &log, "-p", &pid].iter())
            }
            Kind::Bare | Kind::Memory => {
                let listen = [tcp.to_string(), format!("unix://{}", unix.display())];
                let mut all = vec!["bench", "bare", "--listen", &listen[0], "--listen", &listen[1]];
                let file = place.export().join(DATA).display().to_string();
                if self == Kind::Bare {
                    all.extend(["--file", &file]);
                }
                words(&place.program, all.iter())
            }
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Sluice => "sluice",
            Kind::Unscheduled => "sluice-no-schedule",
            Kind::Ruled => "sluice-rules",
            Kind::Diod => "diod",
            Kind::Ganesha => "ganesha",
            Kind::Bare => "bare",
            Kind::Memory => "socket",
        })
    }
}

fn proxy(place: &Place, export: &str, tcp: &Address, unix: &Path, more: &[&str]) -> Vec<String> {
    let export = format!("x={export}");
    let listen = [tcp.to_string(), format!("unix://{}", unix.display())];
    let api = format!("unix://{}.api", unix.display());
    let fixed = ["proxy", "--export", &export, "--squash", "none", "--api", &api];
    let own = ["--listen", &listen[0], "--listen", &listen[1]];
    words(&place.program, fixed.iter().chain(&own).chain(more))
}

fn words<'w>(program: &Path, arguments: impl Iterator<Item = &'w &'w str>) -> Vec<String> {
    let program = program.display().to_string();
    std::iter::once(program).chain(arguments.map(|word| (*word).to_owned())).collect()
}

/// Looks through PATH, and where Debian puts servers, which is not in everyone's PATH.
fn find_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|file| file.is_file()).with_context(|| format!("{name} is not installed"))
}

fn ganesha_config(export: &str, port: u16) -> String {
    // A larger _9P_TCP_Msize overruns a reply buffer of ganesha 4.3 and kills it.
    format!(
        "NFS_CORE_PARAM {{ Protocols = 9P; mount_path_pseudo = true; }}\n\
         _9P {{ _9P_TCP_Port = {port}; _9P_TCP_Msize = 65560; }}\n\
         EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /x; Access_Type = RW; \
         Squash = No_Root_Squash; Protocols = 9P; FSAL {{ Name = VFS; }} }}\n\
         NFSv4 {{ Graceless = true; }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n"
    )
}

/// The file that is read, beside what loads make for themselves.
pub(crate) const DATA: &str = "bench-data";
/// One class for each job, so that a load with 100 jobs keeps 100 classes busy.
const RULES: &str = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={bench*}\"\nper = [\"jobid\"]\n";
const START_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_the_comparison_are_rules() {
        let rules = model::RuleSet::parse(RULES).unwrap();
        assert_eq!(rules.rules[0].per, [model::KeyField::Jobid]);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = find_program("no-such-server").unwrap_err();
        assert_eq!(error.to_string(), "no-such-server is not installed");
    }
}
