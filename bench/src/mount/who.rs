//! Who is measured: a directory of this machine, and mounts of it with the server behind each.
//!
//! ```text
//!   native        DIR/export
//!   sluice unix   DIR/export ─ sluice proxy ─ Unix socket ─ sluice mount ─ DIR/at-sluice-unix
//!   sluice tcp    the same over TCP
//!   sluice uring  as sluice unix, with the kernel's requests over io_uring
//!   bare          one file of it ─ bare ─ Unix socket ─ bare ─ DIR/at-bare
//!   sshfs         DIR/export ─ sshd ─ sshfs ─ DIR/at-sshfs
//!   glusterfs     DIR/brick ─ glusterfsd ─ glusterfs ─ DIR/at-glusterfs
//! ```
//!
//! All run in the bench's own namespaces, where every port and all of /run is its own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mount::URING_SWITCH;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::CpuSet;

use super::super::process::BenchProcess;
use super::super::servers::DATA;
use super::super::socket::BenchAddress;
use super::peers;

/// A server whose mount is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerUnderTest {
    /// The directory itself, without a mount
    Native,
    /// `sluice mount` of a proxy at a Unix socket
    SluiceUnix,
    /// `sluice mount` of a proxy at a TCP port
    SluiceTcp,
    /// `sluice mount -o uring` of a proxy at a Unix socket
    SluiceUring,
    /// The least that can serve one file
    Bare,
    /// sshfs and an sshd on loopback
    Sshfs,
    /// One brick of GlusterFS on loopback
    Glusterfs,
}

/// The directories and programs of a run.
pub(crate) struct BenchDirs {
    /// On the file system that is measured.
    pub(crate) dir: PathBuf,
    /// The path of the `sluice` program.
    pub(crate) sluice: PathBuf,
    /// The path of this program.
    pub(crate) own: PathBuf,
}

/// One who is ready to be measured; when drop returns, nothing of it is mounted or runs.
pub(crate) struct MountContender {
    pub(crate) who: ServerUnderTest,
    /// Where its files are.
    pub(crate) root: PathBuf,
    /// What a proxy tells.
    pub(crate) api: Option<http::ApiClient>,
    client: Option<BenchProcess>,
    server: Option<BenchProcess>,
    _uring: Option<UringSwitch>,
}

/// Lets the kernel use io_uring for mounts that begin, as before when this is dropped.
struct UringSwitch(String);

impl BenchDirs {
    /// The directory that all but GlusterFS serve.
    pub(crate) fn export(&self) -> PathBuf {
        self.dir.join("export")
    }

    /// What is behind a mount. GlusterFS marks every file, so it gets a directory of its own.
    pub(crate) fn behind(&self, who: ServerUnderTest) -> PathBuf {
        if who == ServerUnderTest::Glusterfs { self.dir.join("brick") } else { self.export() }
    }

    fn at(&self, who: ServerUnderTest) -> PathBuf {
        match who {
            ServerUnderTest::Native => self.export(),
            _ => self.dir.join(format!("at-{}", who.word())),
        }
    }

    fn log(&self, who: ServerUnderTest, part: &str) -> PathBuf {
        self.dir.join(format!("{}-{part}.log", who.word()))
    }
}

impl MountContender {
    /// Starts the server and mounts what it serves; the data file must be there.
    pub(crate) fn start(who: ServerUnderTest, place: &BenchDirs) -> anyhow::Result<MountContender> {
        let uring = (who == ServerUnderTest::SluiceUring).then(UringSwitch::set).transpose()?;
        let root = place.at(who);
        let mut contender =
            MountContender { who, root, api: None, client: None, server: None, _uring: uring };
        let Some(server) = server(who, place)? else { return Ok(contender) };
        let name = format!("{who}'s server");
        let mut process = BenchProcess::start(&name, &server.command, &place.log(who, "server"))?;
        process.wait_until(|| server.address.connect().is_ok())?;
        contender.server = Some(process);
        if let Some(api) = server.api {
            contender.api = Some(http::ApiClient::new(&api.parse()?)?);
        }
        fs::create_dir(&contender.root).context("cannot make a directory to mount at")?;
        contender.mount(place)?;
        Ok(contender)
    }

    fn mount(&mut self, place: &BenchDirs) -> anyhow::Result<()> {
        let command = client(self.who, place, &self.root)?;
        let name = format!("{}'s mount", self.who);
        let mut process = BenchProcess::start(&name, &command, &place.log(self.who, "mount"))?;
        let data = self.root.join(DATA);
        // A server may refuse for a moment what it will have.
        let ready = process.wait_until(|| is_mounted(&self.root) && data.metadata().is_ok());
        self.client = Some(process);
        ready
    }

    /// Mounts again, so that the client has nothing cached.
    pub(crate) fn remount(&mut self, place: &BenchDirs) -> anyhow::Result<()> {
        if self.client.is_none() {
            return Ok(());
        }
        self.unmount()?;
        self.mount(place)
    }

    /// Takes it away and waits until the process behind it is gone.
    fn unmount(&mut self) -> anyhow::Result<()> {
        let Some(process) = self.client.take() else { return Ok(()) };
        let deadline = Instant::now() + UNMOUNT_MAX;
        while is_mounted(&self.root) {
            match unmount(&self.root, UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::INVAL) => break,
                Err(Errno::BUSY) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => {
                    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
                    let detached = unmount(&self.root, flags);
                    drop(process);
                    detached.with_context(|| format!("unmounting {}", self.who))?;
                    bail!("unmounting {}: {error}", self.who);
                }
            }
        }
        drop(process);
        Ok(())
    }

    /// Lets the server and the mount run on `cpus` only.
    pub(crate) fn keep_on(&self, cpus: &CpuSet) -> anyhow::Result<()> {
        [&self.client, &self.server].into_iter().flatten().try_for_each(|all| all.keep_on(cpus))
    }
}

impl UringSwitch {
    fn set() -> anyhow::Result<UringSwitch> {
        let was = fs::read_to_string(URING_SWITCH);
        let was = was.with_context(|| format!("left out: cannot read {URING_SWITCH}"))?;
        fs::write(URING_SWITCH, "Y")
            .with_context(|| format!("left out: cannot set {URING_SWITCH} to Y"))?;
        Ok(UringSwitch(was))
    }
}

impl Drop for UringSwitch {
    fn drop(&mut self) {
        if let Err(error) = fs::write(URING_SWITCH, self.0.trim()) {
            eprintln!("sluice-bench: cannot restore {URING_SWITCH}: {error}");
        }
    }
}

impl Drop for MountContender {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("sluice-bench: {error:#}");
        }
    }
}

/// Whether something is mounted there; asks nobody who may not answer.
fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(at))
}

/// How a server is started, and where it then listens.
struct MountServer {
    command: Vec<String>,
    address: BenchAddress,
    api: Option<String>,
}

fn server(who: ServerUnderTest, place: &BenchDirs) -> anyhow::Result<Option<MountServer>> {
    let address = match who.address() {
        Some(address) => address,
        None => return Ok(None),
    };
    let (mut command, mut api) = (vec![place.sluice.display().to_string()], None);
    match who {
        ServerUnderTest::Sshfs => command = peers::sshd(place, PORT_SSHD)?,
        ServerUnderTest::Glusterfs => command = peers::glusterfsd(place, PORT_GLUSTERFSD)?,
        ServerUnderTest::Bare => {
            let file = place.export().join(DATA).display().to_string();
            let words = ["mount-bare", "--socket", BARE_SOCKET, "--file", &file];
            command = own(&place.own, &words);
        }
        _ => {
            let own_api = format!("unix:///run/{}.api", who.word());
            let config = place.dir.join(format!("{}.toml", who.word()));
            fs::write(&config, proxy_config(who, place))
                .context("cannot write its configuration")?;
            let config = config.display().to_string();
            let words = ["proxy", "--config", &config, "--squash", "none", "--api", &own_api];
            command.extend(words.map(String::from));
            command.extend(["--listen".into(), address.to_string()]);
            api = Some(own_api);
        }
    }
    Ok(Some(MountServer { command, address, api }))
}

/// A proxy whose mounts hold leases. The contenders' proxies serve one directory, each while the others are idle,
/// and a contender leaves it as it was.
fn proxy_config(who: ServerUnderTest, place: &BenchDirs) -> String {
    format!(
        "lease_state = {:?}\n[[export]]\nname = \"x\"\ndir = {:?}\nleases = \"read\"\n",
        place.dir.join(format!("{}.leases", who.word())),
        place.export(),
    )
}

/// A command line of a program of ours.
fn own(program: &Path, words: &[&str]) -> Vec<String> {
    let program = program.display().to_string();
    std::iter::once(program.as_str()).chain(words.iter().copied()).map(String::from).collect()
}

fn client(who: ServerUnderTest, place: &BenchDirs, at: &Path) -> anyhow::Result<Vec<String>> {
    let at = at.display().to_string();
    let sluice = |words: &[&str]| own(&place.sluice, words);
    Ok(match who {
        ServerUnderTest::Native => bail!("nothing is mounted for {who}"),
        ServerUnderTest::SluiceUnix => {
            sluice(&["mount", "--foreground", "unix:///run/sluice-unix.sock//x", &at])
        }
        ServerUnderTest::SluiceUring => sluice(&[
            "mount",
            "--foreground",
            "-o",
            "uring",
            "unix:///run/sluice-uring.sock//x",
            &at,
        ]),
        ServerUnderTest::SluiceTcp => {
            let source = format!("tcp://127.0.0.1:{PORT_SLUICE}/x");
            sluice(&["mount", "--foreground", &source, &at])
        }
        ServerUnderTest::Bare => {
            own(&place.own, &["mount-bare", "--socket", BARE_SOCKET, "--at", &at])
        }
        ServerUnderTest::Sshfs => peers::sshfs(place, PORT_SSHD, &at)?,
        ServerUnderTest::Glusterfs => peers::glusterfs(place, PORT_GLUSTERFSD, &at)?,
    })
}

impl ServerUnderTest {
    /// In the order of the table.
    pub(crate) const ALL: [ServerUnderTest; 7] = [
        ServerUnderTest::Native,
        ServerUnderTest::SluiceUnix,
        ServerUnderTest::SluiceTcp,
        ServerUnderTest::SluiceUring,
        ServerUnderTest::Bare,
        ServerUnderTest::Sshfs,
        ServerUnderTest::Glusterfs,
    ];

    /// Its name among the contenders.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ServerUnderTest::Native => "native",
            ServerUnderTest::SluiceUnix => "sluice-unix",
            ServerUnderTest::SluiceTcp => "sluice-tcp",
            ServerUnderTest::SluiceUring => "sluice-uring",
            ServerUnderTest::Bare => "bare",
            ServerUnderTest::Sshfs => "sshfs",
            ServerUnderTest::Glusterfs => "glusterfs",
        }
    }

    /// Where its server listens.
    fn address(self) -> Option<BenchAddress> {
        let tcp = |port: u16| BenchAddress::Tcp(format!("127.0.0.1:{port}"));
        match self {
            ServerUnderTest::Native => None,
            ServerUnderTest::SluiceUnix => Some(BenchAddress::Unix("/run/sluice-unix.sock".into())),
            ServerUnderTest::SluiceUring => {
                Some(BenchAddress::Unix("/run/sluice-uring.sock".into()))
            }
            ServerUnderTest::SluiceTcp => Some(tcp(PORT_SLUICE)),
            ServerUnderTest::Bare => Some(BenchAddress::Unix(BARE_SOCKET.into())),
            ServerUnderTest::Sshfs => Some(tcp(PORT_SSHD)),
            ServerUnderTest::Glusterfs => Some(tcp(PORT_GLUSTERFSD)),
        }
    }

    /// What is measured there, with the version of Debian's packages.
    pub(crate) fn version(self) -> String {
        let packages: &[&str] = match self {
            ServerUnderTest::Native | ServerUnderTest::Bare => return "–".into(),
            ServerUnderTest::SluiceUnix
            | ServerUnderTest::SluiceTcp
            | ServerUnderTest::SluiceUring => {
                return env!("CARGO_PKG_VERSION").into();
            }
            ServerUnderTest::Sshfs => &["sshfs", "openssh-server"],
            ServerUnderTest::Glusterfs => &["glusterfs-server"],
        };
        let version = |package: &&str| {
            let output =
                Command::new("dpkg-query").args(["-W", "-f", "${Version}", *package]).output();
            match output {
                Ok(output) if output.status.success() => {
                    String::from_utf8_lossy(&output.stdout).into_owned()
                }
                _ => "of unknown version".into(),
            }
        };
        packages.iter().map(version).collect::<Vec<_>>().join(" + sshd ")
    }
}

impl fmt::Display for ServerUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

const PORT_SLUICE: u16 = 15_700;
const PORT_SSHD: u16 = 15_701;
const PORT_GLUSTERFSD: u16 = 15_702;
const BARE_SOCKET: &str = "/run/bare.sock";
const UNMOUNT_MAX: Duration = Duration::from_secs(2);
