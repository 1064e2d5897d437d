//! Rows that are compared, and their targets: the throughput figures of the project.
//!
//! A row is one load; its contenders run it in turn. A goal sets one contender's
//! figure against others' of the same row.

use model::Bytes;

use super::servers::ServerKind;
use super::work::WorkOp;

/// One load and who runs it.
#[derive(Clone, Debug)]
pub(crate) struct PeerRow {
    pub(crate) what: &'static str,
    pub(crate) load: PeerShape,
    pub(crate) contenders: Vec<PeerContender>,
    pub(crate) goals: Vec<PeerGoal>,
}

/// The load of a row, without its contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerShape {
    pub(crate) op: WorkOp,
    /// `None` for all that fits.
    pub(crate) size: Option<Bytes>,
    pub(crate) msize: Bytes,
    pub(crate) connections: usize,
    pub(crate) depth: usize,
    pub(crate) jobs: usize,
    pub(crate) unix: bool,
    /// Generator and server share one processor.
    pub(crate) one_cpu: bool,
}

/// Who runs a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerContender {
    /// A server of this kind.
    Server(ServerKind),
    /// The same work by system calls, without any server.
    Backend,
}

/// What a contender should reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerGoal {
    pub(crate) who: ServerKind,
    /// Beside whom; of several the best one counts.
    pub(crate) beside: &'static [ServerKind],
    pub(crate) bound: PeerBound,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PeerBound {
    /// Operations per second, as a multiple of the other's.
    Times(f64),
    /// Processor time of the server per operation, in microseconds.
    CpuMicros(f64),
    /// Processor time of the server per operation beyond the other's, in per cent.
    CpuPercentMore(f64),
}

impl PeerContender {
    pub(crate) fn name(self) -> String {
        match self {
            PeerContender::Server(kind) => kind.to_string(),
            PeerContender::Backend => "backend".into(),
        }
    }
}

/// Returns the rows of the whole comparison.
pub(crate) fn table() -> Vec<PeerRow> {
    let mut rows = small().to_vec();
    rows.extend(large());
    rows.extend(one_cpu());
    rows.extend(scheduling());
    rows
}

fn small() -> [PeerRow; 4] {
    let read = PeerShape { depth: 64, ..SHAPE };
    let four = PeerShape { connections: 4, ..SHAPE };
    let getattr = PeerShape { op: WorkOp::Getattr, ..SHAPE };
    let create = PeerShape { op: WorkOp::Create, ..SHAPE };
    let with_socket =
        [&PEERS[..], &[PeerContender::Server(ServerKind::Memory), PeerContender::Backend]].concat();
    let without = [&PEERS[..], &[PeerContender::Backend]].concat();
    [
        PeerRow {
            what: "4 KiB random read, 1 × 64",
            load: read,
            contenders: with_socket.clone(),
            goals: vec![
                times(&[ServerKind::Diod], 3.5),
                times(&[ServerKind::Ganesha], 6.0),
                PeerGoal { who: ServerKind::Sluice, beside: &[], bound: PeerBound::CpuMicros(2.5) },
            ],
        },
        PeerRow {
            what: "4 KiB random read, 4 × 16",
            load: four,
            contenders: with_socket.clone(),
            goals: vec![times(&[ServerKind::Diod], 3.5)],
        },
        PeerRow {
            what: "getattr, 1 × 16",
            load: getattr,
            contenders: with_socket,
            goals: vec![times(&[ServerKind::Diod], 4.0)],
        },
        PeerRow {
            what: "create + stat + unlink cycles, 1 × 16",
            load: create,
            contenders: without,
            goals: vec![times(&[ServerKind::Diod], 3.0)],
        },
    ]
}

fn large() -> Vec<PeerRow> {
    let peers =
        [&PEERS[..], &[PeerContender::Server(ServerKind::Memory), PeerContender::Backend]].concat();
    let sequential = PeerShape { size: None, depth: 4, ..SHAPE };
    let read = PeerShape { op: WorkOp::Read, ..sequential };
    let write = PeerShape { op: WorkOp::Write, ..sequential };
    // The peers leave writes to the kernel's flusher; the proxy does so only when told.
    let cached = [&[PeerContender::Server(ServerKind::Cached)], &peers[..]].concat();
    let as_peers = PeerGoal {
        who: ServerKind::Cached,
        ..times(&[ServerKind::Diod, ServerKind::Ganesha], 1.4)
    };
    let mut rows = vec![
        PeerRow {
            what: "sequential read, msize 64 KiB, 1 × 4",
            load: read,
            contenders: peers.clone(),
            goals: vec![times(&[ServerKind::Diod, ServerKind::Ganesha], 1.3)],
        },
        PeerRow {
            what: "sequential write, msize 64 KiB, 1 × 4",
            load: write,
            contenders: cached,
            goals: vec![as_peers],
        },
    ];
    for (what, connections, unix) in [
        ("sequential read, msize 1 MiB, 1 × 4, TCP", 1, false),
        ("sequential read, msize 1 MiB, 4 × 4, TCP", 4, false),
        ("sequential read, msize 1 MiB, 1 × 4, Unix", 1, true),
        ("sequential read, msize 1 MiB, 4 × 4, Unix", 4, true),
    ] {
        let servers =
            [ServerKind::Sluice, ServerKind::Bare, ServerKind::Memory].map(PeerContender::Server);
        rows.push(PeerRow {
            what,
            load: PeerShape { msize: Bytes::mib(1), connections, unix, ..read },
            contenders: [&servers[..], &[PeerContender::Backend]].concat(),
            goals: vec![times(&[ServerKind::Bare], 0.9)],
        });
    }
    rows
}

fn one_cpu() -> [PeerRow; 1] {
    [PeerRow {
        what: "4 KiB random read, depth 1, all on one processor",
        load: PeerShape { depth: 1, one_cpu: true, ..SHAPE },
        contenders: [&PEERS[..], &[PeerContender::Server(ServerKind::Memory)]].concat(),
        goals: vec![times(&[ServerKind::Diod], 1.4)],
    }]
}

fn scheduling() -> [PeerRow; 2] {
    let contenders = vec![
        PeerContender::Server(ServerKind::Ruled),
        PeerContender::Server(ServerKind::Unscheduled),
    ];
    let goal = |percent| PeerGoal {
        who: ServerKind::Ruled,
        beside: &[ServerKind::Unscheduled],
        bound: PeerBound::CpuPercentMore(percent),
    };
    [
        PeerRow {
            what: "scheduling: cached 4 KiB reads of 100 jobs, 1 × 64",
            load: PeerShape { depth: 64, jobs: 100, ..SHAPE },
            contenders: contenders.clone(),
            goals: vec![goal(10.0)],
        },
        PeerRow {
            what: "scheduling: cached 64 KiB reads of 100 jobs, 1 × 16",
            load: PeerShape {
                size: Some(Bytes::kib(64)),
                msize: Bytes::kib(128),
                jobs: 100,
                ..SHAPE
            },
            contenders,
            goals: vec![goal(1.0)],
        },
    ]
}

fn times(beside: &'static [ServerKind], factor: f64) -> PeerGoal {
    PeerGoal { who: ServerKind::Sluice, beside, bound: PeerBound::Times(factor) }
}

const PEERS: [PeerContender; 3] = [
    PeerContender::Server(ServerKind::Sluice),
    PeerContender::Server(ServerKind::Diod),
    PeerContender::Server(ServerKind::Ganesha),
];
const SHAPE: PeerShape = PeerShape {
    op: WorkOp::Randread,
    size: Some(Bytes::kib(4)),
    msize: Bytes::kib(64),
    connections: 1,
    depth: 16,
    jobs: 0,
    unix: false,
    one_cpu: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_speaks_of_contenders_of_its_row() {
        for row in table() {
            for goal in &row.goals {
                let all = goal.beside.iter().chain([&goal.who]);
                for kind in all {
                    assert!(row.contenders.contains(&PeerContender::Server(*kind)), "{}", row.what);
                }
            }
        }
    }
}
