//! What the tests of the running proxy share: a proxy in a directory of its own, and
//! a 9P client that says exactly what it is told to.
//!
//! ```text
//!   Setup ─► Proxy (a `sluice proxy` process, killed when dropped)
//!               ▲ TCP or Unix socket
//!            Client ── send any message, wait for any reply by its tag
//! ```
//!
//! Nothing here waits without a deadline: a socket that stays silent for `PATIENCE`
//! and a condition that does not come true fail the test.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, unused_imports)]

mod controller;
mod copies;
mod place;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use controller::Controller;
pub use copies::{LET_GO, is_mounted, making_copies, umount};
pub use testkit::p9::{P9Client, P9Entry, P9Frame, errno, names};
pub use testkit::{PATIENCE, copy_program, everybodys, root_here, skip, until};

pub use place::{HangingOpens, Image, Tmpfs};

/// The variable that, with the value `read`, has every export `x` of `data` grant leases.
const LEASES: &str = "SLUICE_TEST_LEASES";
const READ_LEASES: &str = "leases = \"read\"\n";
const LEASE_STATE: &str = "lease_state = \"@/leases\"\n";

pub const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
/// An ordinary user, who owns what the tests make.
pub const USER: u32 = 1000;

/// A proxy yet to be started. `@` stands for its directory in all texts.
pub struct Setup {
    name: String,
    top: String,
    tables: String,
    group: String,
    rules: String,
    api: bool,
    fresh: bool,
    under: Vec<String>,
}

/// A running proxy, killed and its directory removed at the end.
pub struct Proxy {
    pub dir: PathBuf,
    pub child: Child,
    pub tcp: SocketAddr,
    /// Where it shows its metrics, if it does.
    metrics: Option<SocketAddr>,
    stderr: Mutex<Receiver<String>>,
    keep: bool,
}

impl Setup {
    pub fn new(name: &str) -> Setup {
        let export = "[[export]]\nname = \"x\"\ndir = \"data\"\n";
        let leases = std::env::var(LEASES).is_ok_and(|leases| leases == "read");
        Setup {
            name: name.into(),
            top: if leases { LEASE_STATE.into() } else { String::new() },
            tables: if leases { format!("{export}{READ_LEASES}") } else { export.into() },
            group: String::new(),
            rules: String::new(),
            api: false,
            fresh: true,
            under: Vec::new(),
        }
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

    /// Called `name` in a group of these proxies, in its first epoch.
    pub fn group(self, name: &str, proxies: &[&str]) -> Setup {
        self.group_in(1, name, proxies)
    }

    /// Called `name` in a group of these proxies.
    pub fn group_in(mut self, epoch: u64, name: &str, proxies: &[&str]) -> Setup {
        self.group = format!("[group]\nname = {name:?}\nproxies = {proxies:?}\nepoch = {epoch}\n");
        self
    }

    /// The export `x` of `data` grants leases.
    pub fn leases(mut self) -> Setup {
        if !self.tables.contains(READ_LEASES) {
            self.tables.push_str(READ_LEASES);
            self.top.push_str(LEASE_STATE);
        }
        self
    }

    pub fn rules(mut self, text: &str) -> Setup {
        self.rules = text.into();
        self
    }

    /// With a control API at `@/api`.
    pub fn api(mut self) -> Setup {
        self.api = true;
        self
    }

    /// Over the directory of the proxy of this name that was killed.
    pub fn again(mut self) -> Setup {
        self.fresh = false;
        self
    }

    /// Started by a command that runs what comes behind its own words.
    pub fn under(mut self, words: &[&str]) -> Setup {
        self.under = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The directory that the proxy will have; `data` in it is everybody's.
    pub fn dir(&self) -> PathBuf {
        testkit::place(&self.name)
    }

    pub fn start(self) -> Proxy {
        let dir = self.dir();
        if self.fresh {
            let _ = fs::remove_dir_all(&dir);
        }
        fs::create_dir_all(dir.join("data")).unwrap();
        everybodys(&dir.join("data"));
        let here = dir.display().to_string();
        let api = if self.api { "unix://@/api" } else { "off" };
        let top = format!("api = \"{api}\"\nrules = \"rules.toml\"\n{}", self.top);
        // The machine's key is older than a fresh proxy, which nobody has had locks at.
        let is_told = top.contains("lock_grace");
        let grace = if self.fresh && !is_told { "lock_grace = \"0s\"\n" } else { "" };
        let config = format!("{top}{grace}\n{}{}", self.group, self.tables).replace('@', &here);
        fs::write(dir.join("sluice.toml"), config).unwrap();
        fs::write(dir.join("rules.toml"), self.rules.replace('@', &here)).unwrap();
        let socket = format!("unix://{here}/9p");
        let mut words = self.under.iter().map(String::as_str).chain([SLUICE, "proxy", "--config"]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).arg(dir.join("sluice.toml"));
        match self.top.split_once("listen = [\"") {
            Some((_, at)) => testkit::until_free(at.split('"').next().unwrap_or_default()),
            None => drop(command.args(["--listen", "tcp://127.0.0.1:0", "--listen", &socket])),
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = Mutex::new(lines(child.stderr.take().unwrap()));
        let mut proxy =
            Proxy { dir, child, tcp: ([0, 0, 0, 0], 0).into(), metrics: None, stderr, keep: false };
        while let Ok(line) = stdout.recv_timeout(PATIENCE) {
            if let Some(at) = line.strip_prefix("listening on tcp://") {
                proxy.tcp = at.parse().unwrap();
            }
            if let Some(at) = line.strip_prefix("metrics at http://") {
                proxy.metrics = Some(at.parse().unwrap());
            }
            if line == "ready" {
                return proxy;
            }
        }
        panic!("the proxy did not get ready: {}", proxy.rest_of_stderr());
    }
}

impl Proxy {
    /// A proxy with one export `x` of an empty directory.
    pub fn plain(name: &str) -> Proxy {
        Setup::new(name).start()
    }

    /// The exported directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("9p")
    }

    /// `HOST:PORT` of its metrics.
    pub fn metrics(&self) -> String {
        self.metrics.expect("it shows metrics").to_string()
    }

    /// A TCP connection, with nothing said yet.
    pub fn connect(&self) -> P9Client {
        P9Client::tcp(self.tcp)
    }

    /// A connection with a session, attached to `x` as [`USER`] with fid 0.
    pub fn client(&self) -> P9Client {
        self.client_of("x", USER)
    }

    pub fn client_of(&self, aname: &str, uid: u32) -> P9Client {
        let mut client = self.connect();
        client.version(1 << 20);
        client.attach(0, aname, uid).unwrap();
        client
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process until it is sent [`Signal::CONT`]. A thread that hangs in a call to the
    /// backend stops when that returns.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let rests = |task: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'D']))
        };
        until("the proxy is stopped", || fs::read_dir(&tasks).unwrap().all(rests));
    }

    /// The next line of stderr that contains `text`.
    pub fn told(&self, text: &str) -> String {
        loop {
            let line = self.stderr.lock().unwrap().recv_timeout(PATIENCE).expect("the line comes");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// What is left of stderr, to its end.
    pub fn rest_of_stderr(&self) -> String {
        self.stderr.lock().unwrap().iter().collect::<Vec<_>>().join("\n")
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the proxy ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Kills the proxy with no chance to clean up, and leaves its directory to the next.
    pub fn crash(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.keep = true;
    }

    /// A line of `/proc/PID/status`, without its name.
    pub fn status(&self, key: &str) -> String {
        status_of(&format!("/proc/{}/status", self.child.id()), key)
    }

    /// Memory in use, in bytes.
    pub fn rss(&self) -> u64 {
        resident(self.child.id())
    }

    /// How many descriptors the proxy has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// How many connections the proxy has: the sockets of its table besides listeners.
    pub fn sockets(&self) -> usize {
        let all = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let is_socket = |path: PathBuf| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        };
        all.filter(|entry| is_socket(entry.as_ref().unwrap().path())).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let stderr = self.stderr.lock().unwrap();
            eprintln!("the proxy said: {}", stderr.try_iter().collect::<Vec<_>>().join("\n"));
        }
        if !self.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Memory in use by a process, in bytes.
pub fn resident(process: u32) -> u64 {
    let line = status_of(&format!("/proc/{process}/status"), "VmRSS:");
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

pub fn status_of(path: &str, key: &str) -> String {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().to_owned()
}

/// The lines of a stream as they come.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Whoever reads may be done; the stream must be drained all the same.
            let _ = to.send(line);
        }
    });
    lines
}
