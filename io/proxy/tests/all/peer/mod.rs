//! What the tests of the dialect share: a server in a directory of its own, and a client
//! that says exactly what it is told to.
//!
//! ```text
//!   Setup ─► Served ── a `Server` in this process, ended when dropped or started again
//!               ▲ Door: TCP from some address, or a Unix socket as some user
//!           Channel ── a session's channel: any message, any loss of the connection
//! ```
//!
//! Nothing here waits without a deadline: a socket that stays silent for `PATIENCE` and a
//! condition that does not come true fail the test.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, unused_imports)]

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::ServerAddress;
use ninep::Attributes;
use ninep::dialect::PLAIN_FILE;
use rustix::fs::{AtFlags, CWD, StatxFlags, StatxTimestamp, statx};
use sluice_proxy::config::ProxyConfig;
use sluice_proxy::control::ProxyControl;
use sluice_proxy::{ControllerClient, Server};

pub use testkit::p9::{
    P9Address, P9Channel, P9Client, P9File, P9Frame, P9Listed, P9Opened, P9Recall, P9Session,
    appended, errno, lock_request, open_request, opened, rename_request,
};
pub use testkit::{Dice, PATIENCE, everybodys, root_here, skip, until};

/// An ordinary user, who owns what the tests make, and its number in the sessions.
pub const USER: u32 = 1000;
pub const IDENTITY: u32 = 1;
/// Holds the job `slow` back for as long as any test runs, once it has owed for
/// [`P9Channel::owe`].
pub const SLOW: &str = "[[rule]]\nname = \"slow\"\nmatch = \"jobid={slow}\"\n\
                        limit = { metadata = \"1ops/s\", burst = \"1ops\" }\n";

/// A server yet to be started. `@` stands for its directory in all texts.
pub struct Setup {
    name: String,
    top: String,
    tables: String,
    rules: String,
    files: Vec<(String, String)>,
}

/// A running server; it ends and its directory is removed when this is dropped.
pub struct Served {
    pub dir: PathBuf,
    config: String,
    server: Option<Arc<Server>>,
}

impl Setup {
    pub fn new(name: &str) -> Setup {
        let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\n".into();
        let (top, rules, files) = (String::new(), String::new(), Vec::new());
        Setup { name: name.into(), top, tables, rules, files }
    }

    /// Lines for the top of the configuration.
    pub fn top(mut self, text: &str) -> Setup {
        self.top.push_str(text);
        self.top.push('\n');
        self
    }

    /// The tables of the configuration, in place of one export `x` of `data`.
    pub fn tables(mut self, text: &str) -> Setup {
        self.tables = text.into();
        self
    }

    pub fn rules(mut self, text: &str) -> Setup {
        self.rules = text.into();
        self
    }

    /// A file in the server's directory.
    pub fn file(mut self, name: &str, text: &str) -> Setup {
        self.files.push((name.into(), text.into()));
        self
    }

    pub fn start(self) -> Served {
        // Tests of several files may use one name.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (count, process) = (COUNT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let dir = std::env::temp_dir().join(format!("sluice-{process}-{count}-{}", self.name));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("data")).unwrap();
        everybodys(&dir.join("data"));
        let here = dir.display().to_string();
        fs::write(dir.join("rules.toml"), self.rules).unwrap();
        self.files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
        let listen = "listen = [\"tcp://127.0.0.1:0\", \"unix://@/9p\"]\napi = \"off\"\n";
        let files = "rules = \"@/rules.toml\"\nhandle_key = \"@/key\"\n";
        // A test that ends leaves things queued, and nobody waits for them.
        // Who starts one again does not wait for locks, but where a test is about that.
        let grace = if self.top.contains("lock_grace") { "" } else { "lock_grace = \"0s\"\n" };
        let top = format!("{listen}{files}{grace}drain_timeout = \"200ms\"\n{}", self.top);
        let config = format!("{top}\n{}", self.tables).replace('@', &here);
        let mut served = Served { dir, config, server: None };
        served.start_again();
        served
    }
}

impl Served {
    /// A server with one export `x` of an empty directory.
    pub fn plain(name: &str) -> Served {
        Setup::new(name).start()
    }

    /// Ends the server, if it runs, and starts another with the same configuration.
    pub fn start_again(&mut self) {
        self.stop();
        let config = ProxyConfig::parse("test", &self.config).unwrap();
        // Whoever starts a server loses capabilities, and the test needs its own.
        let start = move || Server::start(config).unwrap_or_else(|error| panic!("{error}"));
        self.server = Some(std::thread::spawn(start).join().unwrap());
    }

    /// Puts other words into the configuration, from the next start or reload on.
    pub fn configure(&mut self, before: &str, after: &str) {
        assert!(self.config.contains(before), "{}", self.config);
        self.config = self.config.replace(before, after);
    }

    /// Has the server read its configuration again, as SIGHUP does.
    pub fn reload(&self) {
        let config = ProxyConfig::parse("test", &self.config).unwrap();
        self.server.as_ref().unwrap().reload(config).unwrap();
    }

    /// Has the server read a configuration in which one text was replaced, as SIGHUP does; the error, if
    /// it is refused.
    pub fn reload_with(&mut self, from: &str, to: &str) -> Option<String> {
        assert!(self.config.contains(from), "{from:?}");
        self.config = self.config.replace(from, to);
        let config = ProxyConfig::parse("test", &self.config).unwrap();
        let reloaded = self.server.as_ref().unwrap().reload(config);
        reloaded.err().map(|error| error.to_string())
    }

    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain();
        }
    }

    pub fn set_rules(&self, text: &str) {
        self.server.as_ref().unwrap().set_rules(text, None, false).unwrap();
    }

    /// Begins to report to the controller of the configuration.
    pub fn begin_controller(&self) -> ControllerClient {
        ControllerClient::start(self.server.as_ref().unwrap()).unwrap().unwrap()
    }

    /// What a control API serves.
    pub fn control(&self) -> Arc<dyn ProxyControl> {
        self.server.clone().unwrap()
    }

    /// The exported directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The way in over TCP.
    pub fn tcp(&self) -> P9Address {
        let tcp = |address: &ServerAddress| match address {
            ServerAddress::Tcp(address) => Some(*address),
            ServerAddress::Unix(_) => None,
        };
        P9Address::Tcp(self.server.as_ref().unwrap().addresses().iter().find_map(tcp).unwrap())
    }

    /// The way in over the Unix socket, as a user.
    pub fn unix(&self, uid: u32) -> P9Address {
        P9Address::UnixAs(self.dir.join("9p"), uid)
    }

    /// A connection that has agreed on the dialect and said no more.
    pub fn connect(&self) -> P9Channel {
        let mut client = P9Channel::connect(self.tcp());
        client.begin(1 << 20);
        client
    }

    /// A connection that speaks 9P2000.L, attached to `x` as [`USER`] with fid 0.
    pub fn plain_client(&self) -> P9Client {
        let mut client = P9Client::open_door(&self.tcp());
        client.version(1 << 20);
        client.attach(0, "x", USER).unwrap();
        client
    }

    /// A connection with a session of its own for export `x` and the identity of [`USER`].
    pub fn client(&self) -> P9Channel {
        self.client_of("x", USER, "")
    }

    pub fn client_of(&self, aname: &str, uid: u32, job: &str) -> P9Channel {
        let mut client = self.connect();
        client.session(fresh_id(), 0, 64, aname).unwrap();
        client.identify(IDENTITY, uid, job).unwrap();
        client
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A session's id that no other has.
pub fn fresh_id() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u128::from(std::process::id()) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A file of [`USER`]'s, made here and not through the server.
pub fn write_as_user(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
}

/// Asserts that attributes are those that statx(2) tells, all of them.
pub fn assert_as_stat(told: &Attributes, path: &Path) {
    assert_as_stat_elsewhere(told, path);
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(path).unwrap());
    assert_eq!(told.qid.path, inode, "{}", path.display());
}

/// The same of a file on another file system than the export's root: its number is not the
/// inode's alone.
pub fn assert_as_stat_elsewhere(told: &Attributes, path: &Path) {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME).unwrap();
    let time = |time: &StatxTimestamp| (time.tv_sec as u64, u64::from(time.tv_nsec));
    let rdev = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
    let own = [told.atime, told.mtime, told.ctime, told.btime].map(|t| (t.sec, t.nsec));
    let kernels = [stat.stx_atime, stat.stx_mtime, stat.stx_ctime, stat.stx_btime];
    let at = path.display();
    assert_eq!(told.valid & !PLAIN_FILE & 0x7ff, 0x7ff, "{at}: all that stat needs");
    assert_eq!(told.mode, u32::from(stat.stx_mode), "{at}");
    assert_eq!((told.uid, told.gid), (stat.stx_uid, stat.stx_gid), "{at}");
    assert_eq!((told.nlink, told.rdev), (u64::from(stat.stx_nlink), rdev), "{at}");
    assert_eq!((told.size, told.blocks), (stat.stx_size, stat.stx_blocks), "{at}");
    assert_eq!(told.blksize, u64::from(stat.stx_blksize), "{at}");
    assert_eq!(own, kernels.map(|t| time(&t)), "{at}");
}
