//! Cases that are measured, and their targets.
//!
//! ```text
//!   MountCase: a load, who runs it, and its row ─► one measure, or several of the same run
//! ```

use super::super::figures::row::{FigureBound, FigureRow};
use super::fio::FioShape;
use super::who::ServerUnderTest;

/// One load, who runs it, and what it yields.
pub(crate) struct MountCase {
    pub(crate) load: MountLoad,
    pub(crate) row: FigureRow,
}

/// A load on a mounted directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountLoad {
    Fio {
        shape: FioShape,
        /// Server, mount and fio share one processor.
        one_cpu: bool,
    },
    /// Create, stat, read, rename and unlink of many files.
    Metadata,
    /// find over a tree, with a new mount.
    Find,
    /// ls -l of one directory, with a new mount.
    List,
    /// An archive unpacked, and five stat(2) of each file.
    Source,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountAmounts {
    /// Number of files that are created, read, renamed and removed.
    pub(crate) metadata: usize,
    /// Files of the tree that find walks.
    pub(crate) tree: usize,
    /// Files of the archive.
    pub(crate) source: usize,
}

impl MountAmounts {
    /// What the texts of the rows say.
    pub(crate) const FULL: MountAmounts =
        MountAmounts { metadata: 2_000, tree: 100_000, source: 10_000 };
    /// Enough to see that everything works.
    pub(crate) const QUICK: MountAmounts =
        MountAmounts { metadata: 400, tree: 10_000, source: 1_000 };
}

impl MountCase {
    fn new(load: MountLoad, name: &str, what: &str, who: &[ServerUnderTest]) -> MountCase {
        let words: Vec<&str> = who.iter().map(|who| who.word()).collect();
        let row = FigureRow::new(&format!("mount/{name}"), what, &words).rounds(3, 3.0);
        MountCase { load, row }
    }

    /// Whether this contender runs the load.
    pub(crate) fn is_for(&self, who: ServerUnderTest) -> bool {
        self.row.contenders.iter().any(|name| name == who.word())
    }
}

/// Returns all cases in the order of the document.
pub(crate) fn table() -> Vec<MountCase> {
    let mut cases = Vec::new();
    for (random, writes, buffered) in [
        (true, false, false),
        (true, true, false),
        (true, true, true),
        (false, false, true),
        (false, true, true),
    ] {
        for jobs in [1, 4] {
            cases.push(fio(FioShape { random, writes, buffered, jobs }));
        }
    }
    cases.push(one_cpu());
    cases.extend(names());
    cases
}

fn fio(shape: FioShape) -> MountCase {
    let (name, what) = names_of(shape);
    let has_uring = shape.random && !shape.writes && shape.jobs > 1;
    let mut who = MOST.to_vec();
    if has_uring {
        who.push(ServerUnderTest::SluiceUring);
    }
    let measure = if shape.random { "ops_per_s" } else { "mb_per_s" };
    let load = MountLoad::Fio { shape, one_cpu: false };
    let mut case = MountCase::new(load, &name, &what, &who);
    let least = FigureBound::TimesLeast;
    if has_uring {
        case.row = case.row.beside(URING, measure, least(1.5), &[UNIX]);
    }
    if !shape.random && shape.jobs == 1 {
        case.row = case.row.beside(UNIX, measure, least(0.8), &[BARE]);
    }
    case.row = beside_peers(case.row, measure, least(2.0));
    case
}

fn one_cpu() -> MountCase {
    let shape = FioShape { random: true, writes: false, buffered: false, jobs: 1 };
    let (name, what) = names_of(shape);
    let who = [ServerUnderTest::SluiceUnix, ServerUnderTest::Native, ServerUnderTest::Bare];
    let mut case = MountCase::new(
        MountLoad::Fio { shape, one_cpu: true },
        &format!("{name}-onecpu"),
        &format!("{what}, all on one processor"),
        &who,
    );
    case.row = case.row.beside(UNIX, "ops_per_s", FigureBound::TimesLeast(0.9), &[BARE]);
    case
}

fn names() -> Vec<MountCase> {
    let new = MountCase::new;
    let mut metadata = new(
        MountLoad::Metadata,
        "metadata",
        "2,000 files: create, stat, read, rename, unlink",
        NAMES,
    );
    for measure in METADATA {
        metadata.row = beside_peers(metadata.row, measure, FigureBound::TimesLeast(2.0));
    }
    let timed = |mut case: MountCase, bounds: &[(&'static str, f64)]| {
        for (measure, most) in bounds {
            let most = FigureBound::TimesMost(*most);
            let row = case.row.beside(UNIX, measure, most, &[NATIVE]);
            case.row = beside_peers(row, measure, FigureBound::TimesMost(0.5));
        }
        case
    };
    let find = new(MountLoad::Find, "find", "find -printf %s, 100,000 files, a new mount", NAMES);
    let list = new(MountLoad::List, "ls-l", "ls -l, 10,000 files, a new mount", NAMES);
    let source = new(
        MountLoad::Source,
        "source",
        "untar of 10,000 files of 1–20 KiB, then five stat(2) of each",
        NAMES,
    );
    vec![
        metadata,
        timed(find, &[("s", 3.0)]),
        timed(list, &[("s", 8.0)]),
        timed(source, &[("untar_s", 3.0), ("stat_s", 3.0)]),
    ]
}

/// Over a Unix socket and over TCP, which the peers use.
fn beside_peers(row: FigureRow, measure: &'static str, bound: FigureBound) -> FigureRow {
    row.beside(UNIX, measure, bound, PEERS).beside(TCP, measure, bound, PEERS)
}

fn names_of(shape: FioShape) -> (String, String) {
    let (name, what) = match (shape.random, shape.writes, shape.buffered) {
        (true, false, _) => ("randread-4k", "4 KiB random read, direct"),
        (true, true, false) => ("randwrite-4k", "4 KiB random write, direct"),
        (true, true, true) => ("randwrite-4k-buffered", "4 KiB random write, buffered"),
        (false, false, _) => ("seqread-1m", "1 MiB sequential read, cold"),
        (false, true, _) => ("seqwrite-1m", "1 MiB sequential write, fsync"),
    };
    let jobs = if shape.jobs == 1 { "1 job".into() } else { format!("{} jobs", shape.jobs) };
    (format!("{name}-{}", shape.jobs), format!("{what}, {jobs}"))
}

/// Measures of [`MountLoad::Metadata`], in the order in which they are taken.
pub(crate) const METADATA: [&str; 5] = [
    "create_ops_per_s",
    "stat_ops_per_s",
    "read_ops_per_s",
    "rename_ops_per_s",
    "unlink_ops_per_s",
];
/// All but the one that is measured only where several processes read.
const MOST: &[ServerUnderTest] = &[
    ServerUnderTest::SluiceUnix,
    ServerUnderTest::SluiceTcp,
    ServerUnderTest::Native,
    ServerUnderTest::Bare,
    ServerUnderTest::Sshfs,
    ServerUnderTest::Glusterfs,
];
/// Those with whole file systems.
const NAMES: &[ServerUnderTest] = &[
    ServerUnderTest::SluiceUnix,
    ServerUnderTest::SluiceTcp,
    ServerUnderTest::Native,
    ServerUnderTest::Sshfs,
    ServerUnderTest::Glusterfs,
];
const UNIX: &str = "sluice-unix";
const TCP: &str = "sluice-tcp";
const URING: &str = "sluice-uring";
const NATIVE: &str = "native";
const BARE: &str = "bare";
const PEERS: &[&str] = &["sshfs", "glusterfs"];

#[cfg(test)]
mod tests {
    use super::super::names::FLAT_FILES;
    use super::*;

    #[test]
    fn every_contender_can_be_started() {
        for MountCase { row, .. } in table() {
            for name in &row.contenders {
                assert!(ServerUnderTest::ALL.iter().any(|who| who.word() == name), "{name}");
            }
        }
    }

    #[test]
    fn the_texts_of_rows_say_how_much_there_is() {
        let MountAmounts { metadata, tree, source } = MountAmounts::FULL;
        assert_eq!((metadata, tree, source, FLAT_FILES), (2_000, 100_000, 10_000, 10_000));
    }
}
