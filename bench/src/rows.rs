//! What is compared, and what is promised: the throughput figures of the project.
//!
//! A row is one load; its contenders run it in turn. A goal sets one contender's
//! figure against others' of the same row.

use model::Bytes;

use super::servers::Kind;
use super::work::Op;

/// One load and who runs it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) load: Shape,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) goals: Vec<Goal>,
}

/// The load itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) op: Op,
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
pub(crate) enum Contender {
    /// A server.
    Server(Kind),
    /// The same work by system calls, without any server.
    Backend,
}

/// What a contender should reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) who: Kind,
    /// Beside whom; of several the best one counts.
    pub(crate) beside: &'static [Kind],
    pub(crate) bound: Bound,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// Operations per second, as a multiple of the other's.
    Times(f64),
    /// Processor time of the server per operation, in microseconds.
    CpuMicros(f64),
    /// Processor time of the server per operation beyond the other's, in per cent.
    CpuPercentMore(f64),
}

impl Contender {
    pub(crate) fn name(self) -> String {
        match self {
            Contender::Server(kind) => kind.to_string(),
            Contender::Backend => "backend".into(),
        }
    }
}

/// All rows.
pub(crate) fn table() -> Vec<Row> {
    let mut rows = small().to_vec();
    rows.extend(large());
    rows.extend(one_cpu());
    rows.extend(scheduling());
    rows
}

fn small() -> [Row; 4] {
    let read = Shape { depth: 64, ..SHAPE };
    let four = Shape { connections: 4, ..SHAPE };
    let getattr = Shape { op: Op::Getattr, ..SHAPE };
    let create = Shape { op: Op::Create, ..SHAPE };
    let with_socket = [&PEERS[..], &[Contender::Server(Kind::Memory), Contender::Backend]].concat();
    let without = [&PEERS[..], &[Contender::Backend]].concat();
    [
        Row {
            what: "4 KiB random read, 1 × 64",
            load: read,
            contenders: with_socket.clone(),
            goals: vec![
                times(&[Kind::Diod], 3.5),
                times(&[Kind::Ganesha], 6.0),
                Goal { who: Kind::Sluice, beside: &[], bound: Bound::CpuMicros(2.5) },
            ],
        },
        Row {
            what: "4 KiB random read, 4 × 16",
            load: four,
            contenders: with_socket.clone(),
            goals: vec![times(&[Kind::Diod], 3.5)],
        },
        Row {
            what: "getattr, 1 × 16",
            load: getattr,
            contenders: with_socket,
            goals: vec![times(&[Kind::Diod], 4.0)],
        },
        Row {
            what: "create + stat + unlink cycles, 1 × 16",
            load: create,
            contenders: without,
            goals: vec![times(&[Kind::Diod], 3.0)],
        },
    ]
}

fn large() -> Vec<Row> {
    let peers = [&PEERS[..], &[Contender::Server(Kind::Memory), Contender::Backend]].concat();
    let sequential = Shape { size: None, depth: 4, ..SHAPE };
    let read = Shape { op: Op::Read, ..sequential };
    let write = Shape { op: Op::Write, ..sequential };
    // The peers leave writes to the kernel's flusher; the proxy does so only when told.
    let cached = [&[Contender::Server(Kind::Cached)], &peers[..]].concat();
    let as_peers = Goal { who: Kind::Cached, ..times(&[Kind::Diod, Kind::Ganesha], 1.4) };
    let mut rows = vec![
        Row {
            what: "sequential read, msize 64 KiB, 1 × 4",
            load: read,
            contenders: peers.clone(),
            goals: vec![times(&[Kind::Diod, Kind::Ganesha], 1.3)],
        },
        Row {
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
        let servers = [Kind::Sluice, Kind::Bare, Kind::Memory].map(Contender::Server);
        rows.push(Row {
            what,
            load: Shape { msize: Bytes::mib(1), connections, unix, ..read },
            contenders: [&servers[..], &[Contender::Backend]].concat(),
            goals: vec![times(&[Kind::Bare], 0.9)],
        });
    }
    rows
}

fn one_cpu() -> [Row; 1] {
    [Row {
        what: "4 KiB random read, depth 1, all on one processor",
        load: Shape { depth: 1, one_cpu: true, ..SHAPE },
        contenders: [&PEERS[..], &[Contender::Server(Kind::Memory)]].concat(),
        goals: vec![times(&[Kind::Diod], 1.4)],
    }]
}

fn scheduling() -> [Row; 2] {
    let contenders = vec![Contender::Server(Kind::Ruled), Contender::Server(Kind::Unscheduled)];
    let goal = |percent| Goal {
        who: Kind::Ruled,
        beside: &[Kind::Unscheduled],
        bound: Bound::CpuPercentMore(percent),
    };
    [
        Row {
            what: "scheduling: cached 4 KiB reads of 100 jobs, 1 × 64",
            load: Shape { depth: 64, jobs: 100, ..SHAPE },
            contenders: contenders.clone(),
            goals: vec![goal(10.0)],
        },
        Row {
            what: "scheduling: cached 64 KiB reads of 100 jobs, 1 × 16",
            load: Shape { size: Some(Bytes::kib(64)), msize: Bytes::kib(128), jobs: 100, ..SHAPE },
            contenders,
            goals: vec![goal(1.0)],
        },
    ]
}

fn times(beside: &'static [Kind], factor: f64) -> Goal {
    Goal { who: Kind::Sluice, beside, bound: Bound::Times(factor) }
}

const PEERS: [Contender; 3] = [
    Contender::Server(Kind::Sluice),
    Contender::Server(Kind::Diod),
    Contender::Server(Kind::Ganesha),
];
const SHAPE: Shape = Shape {
    op: Op::Randread,
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
                    assert!(row.contenders.contains(&Contender::Server(*kind)), "{}", row.what);
                }
            }
        }
    }
}
