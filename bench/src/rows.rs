//! Loads on 9P servers that are compared, and their targets: the throughput figures of the project.
//!
//! A load is run by each contender in turn; the names of contenders are those of what runs, so a
//! proxy with another setting is another contender.

use model::Bytes;

use super::figures::row::{FigureBound, FigureRow};
use super::work::WorkOp;

/// One load with its row.
#[derive(Clone, Debug)]
pub(crate) struct PeerRow {
    pub(crate) row: FigureRow,
    pub(crate) load: PeerShape,
}

/// The load of a row, without its contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerShape {
    pub(crate) op: WorkOp,
    /// `None` for all that fits.
    pub(crate) size: Option<Bytes>,
    /// What is asked for; a server may grant less, and then gets as much more requests at once.
    pub(crate) msize: Bytes,
    pub(crate) connections: usize,
    pub(crate) depth: usize,
    pub(crate) unix: bool,
    /// Generator and server share one processor.
    pub(crate) one_cpu: bool,
}

/// The same work by system calls, without any server.
pub(crate) const BACKEND: &str = "backend";

/// Returns the rows of the whole comparison.
pub(crate) fn table() -> Vec<PeerRow> {
    let mut rows = small();
    rows.extend(streams());
    rows.extend(large());
    rows
}

/// 4 KiB reads and metadata.
fn small() -> Vec<PeerRow> {
    let read = PeerShape { depth: 64, ..SHAPE };
    let four = PeerShape { connections: 4, ..SHAPE };
    let all = &[&PEERS[..], &[SOCKET, BACKEND]].concat();
    let cpu = |row: FigureRow| row.goal(SLUICE, "server_us", FigureBound::Most(2.5));
    vec![
        PeerRow {
            row: cpu(row("read-4k-1x64", "4 KiB cached random read, 1 × 64", all))
                .beside(SLUICE, "ops_per_s", FigureBound::TimesLeast(3.5), &[DIOD])
                .beside(SLUICE, "ops_per_s", FigureBound::TimesLeast(6.0), &[GANESHA]),
            load: read,
        },
        PeerRow {
            row: cpu(row("read-4k-4x16", "4 KiB cached random read, 4 × 16", all)).beside(
                SLUICE,
                "ops_per_s",
                FigureBound::TimesLeast(3.5),
                &[DIOD],
            ),
            load: four,
        },
        PeerRow {
            row: row("read-4k-1x64-unix", "the same, 1 × 64, Unix socket", &[SLUICE, DIOD, SOCKET]),
            load: PeerShape { unix: true, ..read },
        },
        PeerRow {
            row: row("read-4k-4x16-unix", "the same, 4 × 16, Unix socket", &[SLUICE, DIOD, SOCKET]),
            load: PeerShape { unix: true, ..four },
        },
        PeerRow {
            row: row(
                "read-4k-depth1-onecpu",
                "4 KiB cached random read, one at a time, all on one processor",
                &[SLUICE, DIOD, GANESHA, SOCKET],
            )
            .beside(SLUICE, "ops_per_s", FigureBound::TimesLeast(1.4), &[DIOD]),
            load: PeerShape { depth: 1, one_cpu: true, ..SHAPE },
        },
        PeerRow {
            row: row("getattr-1x16", "getattr, 1 × 16", all).beside(
                SLUICE,
                "ops_per_s",
                FigureBound::TimesLeast(5.0),
                &[DIOD],
            ),
            load: PeerShape { op: WorkOp::Getattr, ..SHAPE },
        },
        PeerRow {
            row: row(
                "create-1x16",
                "cycles of create, stat, close and unlink, 1 × 16",
                &[&PEERS[..], &[BACKEND]].concat(),
            )
            .beside(SLUICE, "ops_per_s", FigureBound::TimesLeast(3.0), &[DIOD]),
            load: PeerShape { op: WorkOp::Create, ..SHAPE },
        },
    ]
}

/// Reads and writes beside the peers, in messages as large as each of them takes.
fn streams() -> Vec<PeerRow> {
    let mut rows = Vec::new();
    let all = &[&PEERS[..], &[SOCKET, BACKEND]].concat();
    for (size, text, msize) in
        [("64k", "64 KiB", Bytes::kib(64)), ("1m", "1 MiB (the peers take 64 KiB)", Bytes::mib(1))]
    {
        for (name, op, words, target) in [
            ("read", WorkOp::Read, "sequential read", [1.3, 1.3]),
            ("write", WorkOp::Write, "sequential write", [1.1, 1.4]),
            ("randread", WorkOp::Randread, "random read", [0.0, 0.0]),
            ("randwrite", WorkOp::Randwrite, "random write", [0.0, 0.0]),
        ] {
            // What a proxy loses by its default mode of writing is to be seen beside it.
            let contenders = match op.writes() {
                true => &[&PEERS[..], &[CACHED, SOCKET, BACKEND]].concat(),
                false => all,
            };
            let what = format!("{words}, messages of {text}, 1 × 4");
            let mut row = row(&format!("{name}-{size}"), &what, contenders);
            let is_sequential = matches!(op, WorkOp::Read | WorkOp::Write);
            if is_sequential {
                row = row
                    .beside(SLUICE, "mb_per_s", FigureBound::TimesLeast(target[0]), &[DIOD])
                    .beside(
                        SLUICE,
                        "mb_per_s",
                        FigureBound::TimesLeast(target[1]),
                        &[DIOD, GANESHA],
                    );
            }
            let load = PeerShape { op, size: None, msize, depth: 4, ..SHAPE };
            rows.push(PeerRow { row, load });
        }
    }
    rows
}

/// Large messages beside the least that can be done with them.
fn large() -> Vec<PeerRow> {
    let mut rows = Vec::new();
    for (connections, unix) in [(1, false), (4, false), (1, true), (4, true)] {
        let (name, words) = if unix { ("unix", "Unix socket") } else { ("tcp", "TCP") };
        let row = row(
            &format!("read-1m-{connections}x4-{name}"),
            &format!("sequential read, messages of 1 MiB, {connections} × 4, {words}"),
            &[SLUICE, BARE, SOCKET, BACKEND],
        )
        .beside(SLUICE, "mb_per_s", FigureBound::TimesLeast(0.9), &[BARE]);
        let load = PeerShape { msize: Bytes::mib(1), connections, unix, ..STREAM };
        rows.push(PeerRow { row, load });
    }
    for (name, op, words) in [
        ("read", WorkOp::Read, "sequential read"),
        ("write", WorkOp::Write, "sequential write"),
        ("randread", WorkOp::Randread, "random read"),
        ("randwrite", WorkOp::Randwrite, "random write"),
    ] {
        let row = row(
            &format!("{name}-4m"),
            &format!("{words}, messages of 4 MiB, 1 × 4"),
            &[SLUICE, SOCKET, BACKEND],
        );
        rows.push(PeerRow { row, load: PeerShape { op, msize: Bytes::mib(4), ..STREAM } });
    }
    rows
}

fn row(name: &str, what: &str, contenders: &[&str]) -> FigureRow {
    FigureRow::new(&format!("peers/{name}"), what, contenders).rounds(5, 1.0)
}

const SLUICE: &str = "sluice";
const CACHED: &str = "sluice-cached";
const DIOD: &str = "diod";
const GANESHA: &str = "ganesha";
const BARE: &str = "bare";
const SOCKET: &str = "socket";
const PEERS: [&str; 3] = [SLUICE, DIOD, GANESHA];
const SHAPE: PeerShape = PeerShape {
    op: WorkOp::Randread,
    size: Some(Bytes::kib(4)),
    msize: Bytes::kib(64),
    connections: 1,
    depth: 16,
    unix: false,
    one_cpu: false,
};
const STREAM: PeerShape = PeerShape { op: WorkOp::Read, size: None, depth: 4, ..SHAPE };

#[cfg(test)]
mod tests {
    use super::super::servers::ServerKind;
    use super::*;

    #[test]
    fn every_contender_is_a_server_or_the_backend() {
        let is_server = |name: &str| ServerKind::ALL.iter().any(|kind| kind.to_string() == name);
        for PeerRow { row, .. } in table() {
            for name in &row.contenders {
                assert!(name == BACKEND || is_server(name), "{}: {name}", row.id);
            }
        }
    }
}
