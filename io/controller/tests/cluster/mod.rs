//! A real etcd of three members on loopback, for one test.
//!
//! ```text
//!   Cluster::start ─► 3 × etcd, data in a temporary folder, ports that were free ─► healthy
//!   kill(i), start again(i) ─► what a machine's death looks like       drop ─► all killed
//! ```

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use controller::Etcd;
use controller::store::{EtcdStore, Revision, Store};

#[path = "../../src/test_folder.rs"]
mod test_folder;
pub(crate) use test_folder::TestFolder;

/// Three members, killed when dropped.
pub(crate) struct Cluster {
    folder: TestFolder,
    members: Vec<Member>,
}

struct Member {
    client: String,
    peer: String,
    child: Option<Child>,
}

/// How long anything that must happen may take here before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    /// Starts three members and waits until they serve; `None` where etcd is not installed.
    pub(crate) fn start() -> Option<Cluster> {
        if let Err(error) = Command::new("etcd").arg("--version").stdout(Stdio::null()).status() {
            let why = format!("skipped: etcd: {error}; Debian's etcd-server has it");
            let _ = writeln!(std::io::stdout(), "\n{why}");
            return None;
        }
        // another program may take a port between its choice and its use: then choose again
        (0..5).find_map(|_| Cluster::try_start()).or_else(|| panic!("etcd did not start"))
    }

    fn try_start() -> Option<Cluster> {
        let free: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let url = |i: usize| format!("http://{}", free[i].local_addr().unwrap());
        let members =
            (0..3).map(|i| Member { client: url(i), peer: url(i + 3), child: None }).collect();
        drop(free);
        let mut cluster = Cluster { folder: TestFolder::new(), members };
        (0..3).for_each(|i| cluster.start_member(i));
        let deadline = Instant::now() + PATIENCE;
        let mut store = EtcdStore::open(&cluster.etcd("/health"), None).unwrap();
        while store.newest(Revision::ZERO, Duration::ZERO).is_err() {
            let dead = |member: &mut Member| {
                member.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
            };
            if cluster.members.iter_mut().any(dead) || Instant::now() > deadline {
                return None;
            }
        }
        Some(cluster)
    }

    /// The configuration for a store of its own below `prefix`.
    pub(crate) fn etcd(&self, prefix: &str) -> Etcd {
        let endpoints = self.members.iter().map(|member| member.client.clone()).collect();
        Etcd { endpoints, prefix: prefix.to_string(), user: None }
    }

    /// Kills one member as a machine dies.
    pub(crate) fn kill_member(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts a member, on the data that it had.
    pub(crate) fn start_member(&mut self, at: usize) {
        let all: Vec<String> =
            self.members.iter().enumerate().map(|(i, m)| format!("m{i}={}", m.peer)).collect();
        let (client, peer) = (self.members[at].client.clone(), self.members[at].peer.clone());
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("m{at}.log")))
            .unwrap();
        let child = Command::new("etcd")
            .args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(",")])
            .args(["--data-dir", self.folder.path().join(format!("m{at}")).to_str().unwrap()])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster-state", "new", "--logger", "zap"])
            .env_remove("ETCD_UNSUPPORTED_ARCH")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.members[at].child = Some(child);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill_member(at));
    }
}
