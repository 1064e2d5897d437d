//! The servers of a comparison: started on one directory, stopped with their guard.
//!
//! Each gets what reference manuals and measurements say it runs best with, the same
//! directory, and a port and a socket of its own. A [`BenchServer`] may be dropped
//! at any time; its process has ended when drop returns.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use rustix::thread::CpuSet;

use super::process::BenchProcess;
use super::programs;
use super::socket::BenchAddress;

/// What can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServerKind {
    /// The proxy as it comes.
    Sluice,
    /// The proxy with writes left in the page cache, as the other servers leave theirs.
    Cached,
    /// The 9P server diod.
    Diod,
    /// The NFS and 9P server NFS-Ganesha.
    Ganesha,
    /// Request → splice → reply: the least that serves a file.
    Bare,
    /// Request → reply from memory: the raw socket.
    Memory,
}

/// Where servers find the directory and put what they need.
pub(crate) struct ServerDirs {
    /// Everything is in here.
    pub(crate) dir: PathBuf,
    /// The path of the `sluice` program.
    pub(crate) sluice: PathBuf,
    /// The path of this program.
    pub(crate) own: PathBuf,
}

/// A server process with its addresses; dropping it ends the process.
pub(crate) struct BenchServer {
    pub(crate) kind: ServerKind,
    pub(crate) tcp: BenchAddress,
    pub(crate) unix: Option<BenchAddress>,
    /// What to attach to.
    pub(crate) aname: String,
    process: BenchProcess,
}

impl ServerDirs {
    /// The directory that all servers export.
    pub(crate) fn export(&self) -> PathBuf {
        self.dir.join("export")
    }

    fn socket(&self, kind: ServerKind) -> PathBuf {
        self.dir.join(format!("{kind}.sock"))
    }

    fn log(&self, kind: ServerKind) -> PathBuf {
        self.dir.join(format!("{kind}.log"))
    }
}

impl BenchServer {
    /// Starts `kind` and waits until it takes connections.
    pub(crate) fn start(kind: ServerKind, place: &ServerDirs) -> anyhow::Result<BenchServer> {
        let tcp = BenchAddress::Tcp(format!("127.0.0.1:{}", kind.port()));
        let unix = (kind != ServerKind::Ganesha).then(|| BenchAddress::Unix(place.socket(kind)));
        let arguments = kind.command(place, &tcp)?;
        let mut process = BenchProcess::start(&kind.to_string(), &arguments, &place.log(kind))?;
        process.wait_until(|| {
            let unix = unix.as_ref().map(BenchAddress::connect);
            tcp.connect().is_ok() && unix.is_none_or(|connected| connected.is_ok())
        })?;
        Ok(BenchServer { kind, tcp, unix, aname: kind.aname(place), process })
    }

    /// Processor time that the server has used so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.process.cpu()
    }

    /// Lets all threads of the server run on `cpus` only.
    pub(crate) fn keep_on(&self, cpus: &CpuSet) -> anyhow::Result<()> {
        self.process.keep_on(cpus)
    }
}

impl ServerKind {
    /// All that can be started.
    pub(crate) const ALL: [ServerKind; 6] = [
        ServerKind::Sluice,
        ServerKind::Cached,
        ServerKind::Diod,
        ServerKind::Ganesha,
        ServerKind::Bare,
        ServerKind::Memory,
    ];

    /// The load must skip the 9P conversation before it.
    pub(crate) fn is_bare(self) -> bool {
        matches!(self, ServerKind::Bare | ServerKind::Memory)
    }

    /// The version of whom is measured, or why there is none.
    pub(crate) fn version(self, place: &ServerDirs) -> anyhow::Result<String> {
        let package = match self {
            ServerKind::Diod => "diod",
            ServerKind::Ganesha => "nfs-ganesha",
            ServerKind::Bare | ServerKind::Memory => return Ok(env!("CARGO_PKG_VERSION").into()),
            _ => return programs::version_of(&place.sluice),
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
            ServerKind::Diod => "diod",
            ServerKind::Ganesha => "ganesha.nfsd",
            _ => "sluice",
        }
    }

    fn port(self) -> u16 {
        // The bench has a network of its own, so any port is free.
        15_640 + self as u16
    }

    fn aname(self, place: &ServerDirs) -> String {
        match self {
            ServerKind::Diod => place.export().display().to_string(),
            ServerKind::Ganesha => "/x".into(),
            _ => "x".into(),
        }
    }

    fn command(self, place: &ServerDirs, tcp: &BenchAddress) -> anyhow::Result<Vec<String>> {
        let export = place.export().display().to_string();
        let unix = place.socket(self);
        Ok(match self {
            ServerKind::Sluice => proxy(place, &export, tcp, &unix, &[]),
            ServerKind::Cached => {
                let rules = place.dir.join(format!("{self}.toml"));
                std::fs::write(&rules, CACHED).context("cannot write the rules")?;
                let rules = rules.display().to_string();
                proxy(place, &export, tcp, &unix, &["--rules", &rules])
            }
            ServerKind::Diod => {
                let program = find_program(self.program())?;
                let port = format!("127.0.0.1:{}", self.port());
                let unix = unix.display().to_string();
                let fixed = ["-c", "/dev/null", "-f", "-n", "-N", "-L", "stderr"];
                let own = ["-l", &port, "-l", &unix, "-e", &export];
                words(&program, fixed.iter().chain(&own))
            }
            ServerKind::Ganesha => {
                let program = find_program(self.program())?;
                let [config, log, pid] = ["conf", "log2", "pid"]
                    .map(|end| place.dir.join(format!("{self}.{end}")).display().to_string());
                std::fs::write(&config, ganesha_config(&export, self.port()))
                    .context("cannot write ganesha's configuration")?;
                words(&program, ["-F", "-f", &config, "-L", &log, "-p", &pid].iter())
            }
            ServerKind::Bare | ServerKind::Memory => {
                let listen = [tcp.to_string(), format!("unix://{}", unix.display())];
                let mut all = vec!["bare", "--listen", &listen[0], "--listen", &listen[1]];
                let file = place.export().join(DATA).display().to_string();
                if self == ServerKind::Bare {
                    all.extend(["--file", &file]);
                }
                words(&place.own, all.iter())
            }
        })
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerKind::Sluice => "sluice",
            ServerKind::Cached => "sluice-cached",
            ServerKind::Diod => "diod",
            ServerKind::Ganesha => "ganesha",
            ServerKind::Bare => "bare",
            ServerKind::Memory => "socket",
        })
    }
}

fn proxy(
    place: &ServerDirs,
    export: &str,
    tcp: &BenchAddress,
    unix: &Path,
    more: &[&str],
) -> Vec<String> {
    let export = format!("x={export}");
    let listen = [tcp.to_string(), format!("unix://{}", unix.display())];
    let api = format!("unix://{}.api", unix.display());
    let fixed = ["proxy", "--export", &export, "--squash", "none", "--api", &api];
    let own = ["--listen", &listen[0], "--listen", &listen[1]];
    words(&place.sluice, fixed.iter().chain(&own).chain(more))
}

fn words<'w>(program: &Path, arguments: impl Iterator<Item = &'w &'w str>) -> Vec<String> {
    let program = program.display().to_string();
    std::iter::once(program).chain(arguments.map(|word| (*word).to_owned())).collect()
}

/// Looks through PATH, and where Debian puts servers, which is not in everyone's PATH.
pub(crate) fn find_program(name: &str) -> anyhow::Result<PathBuf> {
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
/// Every write ends in the page cache.
const CACHED: &str = "[[rule]]\nname = \"cached\"\nwrite_mode = \"cached\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_the_comparison_are_rules() {
        assert!(rules::RuleSet::parse(CACHED).is_ok());
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = find_program("no-such-server").unwrap_err();
        assert_eq!(error.to_string(), "no-such-server is not installed");
    }
}
