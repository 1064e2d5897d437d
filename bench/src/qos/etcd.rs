//! Members of etcd, a store that several controllers share.

use std::net::TcpListener;
use std::path::Path;

use super::super::process::BenchProcess;
use super::bed::QosTestBed;

/// Three members on loopback.
pub(super) struct QosEtcd {
    clients: Vec<String>,
    _members: Vec<BenchProcess>,
}

impl QosEtcd {
    /// The store of a controller.
    pub(super) fn store(&self) -> String {
        format!("etcd:{}", self.clients.join(","))
    }

    /// Starts them; controllers wait for them themselves.
    pub(super) fn start(bed: &QosTestBed) -> anyhow::Result<QosEtcd> {
        let free =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let addresses = free.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<_> = addresses.iter().map(|address| format!("http://{address}")).collect();
        drop(free);
        let (clients, peers) = urls.split_at(3);
        let all: Vec<_> = (0..3).map(|at| format!("m{at}={}", peers[at])).collect();
        let member = |at: usize| {
            let (name, data) = (format!("m{at}"), bed.dir().join(format!("etcd{at}")));
            let words = [
                ["etcd", "--name"],
                [&name, "--initial-cluster"],
                [&all.join(","), "--data-dir"],
                [&data.display().to_string(), "--listen-client-urls"],
                [&clients[at], "--advertise-client-urls"],
                [&clients[at], "--listen-peer-urls"],
                [&peers[at], "--initial-advertise-peer-urls"],
                [&peers[at], "--logger"],
            ];
            let mut words: Vec<_> = words.iter().flatten().map(|word| word.to_string()).collect();
            words.push("zap".into());
            BenchProcess::start(&name, &words, &log(bed.dir(), at))
        };
        let members = (0..3).map(member).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(QosEtcd { clients: clients.to_vec(), _members: members })
    }
}

fn log(dir: &Path, at: usize) -> std::path::PathBuf {
    dir.join(format!("etcd{at}.log"))
}
