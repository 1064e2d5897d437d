//! A real etcd of three members on loopback, for one test.
//!
//! ```text
//!   Cluster::start ─► 3 × etcd, data in memory, ports that were free ─► all healthy
//!   kill_member(i), start_member(i) ─► what a machine's death looks like    drop ─► all killed
//! ```

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{PATIENCE, TestFolder, skip};

/// Three members, killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TestFolder,
    members: Vec<EtcdMember>,
}

#[derive(Debug)]
struct EtcdMember {
    client: String,
    peer: String,
    child: Option<Child>,
}

impl Cluster {
    /// Starts three members and waits until each serves; `None` where etcd is not installed.
    pub fn start() -> Option<Cluster> {
        if let Err(error) = Command::new("etcd").arg("--version").stdout(Stdio::null()).status() {
            skip(&format!("etcd: {error}; Debian's etcd-server has it"));
            return None;
        }
        // another program may take a port between its choice and its use: then choose again
        (0..5).find_map(|_| Cluster::try_start()).or_else(|| panic!("etcd did not start"))
    }

    fn try_start() -> Option<Cluster> {
        let free: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = |i: usize| free[i].local_addr().unwrap().to_string();
        let members = (0..3)
            .map(|i| EtcdMember { client: address(i), peer: address(i + 3), child: None })
            .collect();
        drop(free);
        let mut cluster = Cluster { folder: TestFolder::in_memory(), members };
        (0..3).for_each(|at| cluster.spawn(at));
        (0..3).all(|at| cluster.becomes_healthy(at)).then_some(cluster)
    }

    /// The client URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://{}", member.client)).collect()
    }

    /// Kills one member as a machine dies.
    pub fn kill_member(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts a member, on the data that it had, and returns once it answers its clients, if only
    /// that it has no leader. Another program may have its port for a moment: then it tries again.
    pub fn start_member(&mut self, at: usize) {
        let deadline = Instant::now() + PATIENCE;
        self.spawn(at);
        while TcpStream::connect(&self.members[at].client).is_err() {
            assert!(Instant::now() < deadline, "member {at} of etcd does not listen");
            if self.has_ended(at) {
                self.spawn(at);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The member that leads the others, if one of them says so of itself.
    pub fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| leads(&member.client).unwrap_or(false))
    }

    fn spawn(&mut self, at: usize) {
        let url = |address: &str| format!("http://{address}");
        let all = self.members.iter().enumerate();
        let all: Vec<String> = all.map(|(i, m)| format!("m{i}={}", url(&m.peer))).collect();
        let (client, peer) = (url(&self.members[at].client), url(&self.members[at].peer));
        let log = self.folder.path().join(format!("m{at}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
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

    /// False if one of them has ended, or none answers in time.
    fn becomes_healthy(&mut self, at: usize) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while !healthy(&self.members[at].client) {
            let ended = (0..self.members.len()).any(|i| self.has_ended(i));
            if ended || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    fn has_ended(&mut self, at: usize) -> bool {
        self.members[at].child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill_member(at));
    }
}

/// Whether a member says of itself that it has a leader and can write.
fn healthy(address: &str) -> bool {
    answer(address, "GET /health", "").is_some_and(|said| said.contains("\"health\":\"true\""))
}

/// Whether a member leads, by the numbers in its status.
fn leads(address: &str) -> Option<bool> {
    let status = answer(address, "POST /v3/maintenance/status", "{}")?;
    let number = |key: &str| Some(status.split(key).nth(1)?.split('"').next()?.to_owned());
    Some(number("\"member_id\":\"")? == number("\"leader\":\"")?)
}

/// What a member answers to one request.
fn answer(address: &str, call: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let request = format!(
        "{call} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
