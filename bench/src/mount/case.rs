//! Cases that are measured, and their targets.
//!
//! ```text
//!   MountCase: a load and who runs it ─► one figure, or several of the same run
//!   MountFigure: its name, its unit, and goals: "at least 2 × the speed of …"
//! ```

use super::fio::FioShape;
use super::names::FLAT_FILES;
use super::who::ServerUnderTest;

/// One load, who runs it, and what it yields.
pub(crate) struct MountCase {
    pub(crate) load: MountLoad,
    pub(crate) who: &'static [ServerUnderTest],
    pub(crate) figures: Vec<MountFigure>,
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

/// One line of the table.
pub(crate) struct MountFigure {
    pub(crate) what: String,
    pub(crate) unit: MountUnit,
    pub(crate) goals: Vec<MountGoal>,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountUnit {
    OpsPerSec,
    MbPerSec,
    /// The less the better.
    Seconds,
}

/// How fast one should be beside others.
pub(crate) struct MountGoal {
    pub(crate) who: ServerUnderTest,
    /// Beside whom; of several the fastest counts.
    pub(crate) beside: &'static [ServerUnderTest],
    /// The least factor of its speed over theirs.
    pub(crate) times: f64,
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

impl MountUnit {
    /// How much faster the first is than the second.
    pub(crate) fn times(self, one: f64, other: f64) -> f64 {
        if self == MountUnit::Seconds { other / one } else { one / other }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            MountUnit::OpsPerSec => "ops/s",
            MountUnit::MbPerSec => "MB/s",
            MountUnit::Seconds => "s",
        }
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            MountUnit::Seconds => format!("{value:.3}"),
            _ => format!("{value:.0}"),
        }
    }
}

impl MountGoal {
    /// The target, in words.
    pub(crate) fn target(&self, unit: MountUnit) -> String {
        let beside: Vec<String> = self.beside.iter().map(ServerUnderTest::to_string).collect();
        let beside = match &beside[..] {
            [one] => one.clone(),
            all => format!("the faster of {}", all.join(" and ")),
        };
        match unit {
            MountUnit::Seconds if self.times < 1.0 => {
                format!("{} ≤ {:.0} × the time of {beside}", self.who, 1.0 / self.times)
            }
            _ => format!("{} ≥ {} × as fast as {beside}", self.who, self.times),
        }
    }

    /// What came of it, in the words of the target.
    pub(crate) fn reached(&self, unit: MountUnit, times: f64) -> String {
        match unit {
            MountUnit::Seconds if self.times < 1.0 => format!("{:.2} × the time", 1.0 / times),
            _ => format!("{times:.2} ×"),
        }
    }
}

/// Returns all cases in the order of the report.
pub(crate) fn table(amounts: MountAmounts) -> Vec<MountCase> {
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
    let shape = FioShape { random: true, writes: false, buffered: false, jobs: 1 };
    cases.push(MountCase {
        load: MountLoad::Fio { shape, one_cpu: true },
        who: &[ServerUnderTest::Native, ServerUnderTest::SluiceUnix, ServerUnderTest::Bare],
        figures: vec![figure(
            format!("{}, one processor", name_of(shape)),
            MountUnit::OpsPerSec,
            [goal(ServerUnderTest::SluiceUnix, &[ServerUnderTest::Bare], 0.9)],
        )],
    });
    let rates = ["create, close", "stat", "open, read 4 KiB, close", "rename", "unlink"];
    let rate = |what: &str| figure(what.into(), MountUnit::OpsPerSec, []);
    cases.push(MountCase {
        load: MountLoad::Metadata,
        who: NAMES,
        figures: rates.into_iter().map(rate).collect(),
    });
    let time = |what: String, factor: f64| {
        figure(
            what,
            MountUnit::Seconds,
            [goal(ServerUnderTest::SluiceUnix, &[ServerUnderTest::Native], 1.0 / factor)],
        )
    };
    let found = time(format!("find -printf %s, {} files, cold", thousands(amounts.tree)), 3.0);
    cases.push(MountCase { load: MountLoad::Find, who: NAMES, figures: vec![found] });
    let listed = time(format!("ls -l, {} files, cold", thousands(FLAT_FILES)), 8.0);
    cases.push(MountCase { load: MountLoad::List, who: NAMES, figures: vec![listed] });
    let source = thousands(amounts.source);
    let unpacked = time(format!("untar, {source} files of 1–20 KiB"), 3.0);
    let looked_at = time(format!("stat storm, {source} files, 5 times each"), 3.0);
    cases.push(MountCase {
        load: MountLoad::Source,
        who: NAMES,
        figures: vec![unpacked, looked_at],
    });
    for case in cases.iter_mut().filter(|case| case.who.contains(&ServerUnderTest::Sshfs)) {
        for figure in &mut case.figures {
            let own = [ServerUnderTest::SluiceUnix, ServerUnderTest::SluiceTcp];
            figure.goals.extend(own.map(|who| goal(who, PEERS, 2.0)));
        }
    }
    cases
}

fn fio(shape: FioShape) -> MountCase {
    let uring = shape.random && !shape.writes && shape.jobs > 1;
    let (unit, goals) = match (shape.random, shape.jobs) {
        _ if uring => (
            MountUnit::OpsPerSec,
            vec![goal(ServerUnderTest::SluiceUring, &[ServerUnderTest::SluiceUnix], 1.5)],
        ),
        (true, _) => (MountUnit::OpsPerSec, vec![]),
        (false, 1) => (
            MountUnit::MbPerSec,
            vec![goal(ServerUnderTest::SluiceUnix, &[ServerUnderTest::Bare], 0.8)],
        ),
        (false, _) => (MountUnit::MbPerSec, vec![]),
    };
    let load = MountLoad::Fio { shape, one_cpu: false };
    let who: &[ServerUnderTest] = if uring { &ServerUnderTest::ALL } else { MOST };
    MountCase { load, who, figures: vec![figure(name_of(shape), unit, goals)] }
}

fn name_of(shape: FioShape) -> String {
    let kind = match (shape.random, shape.writes, shape.buffered) {
        (true, false, _) => "4 KiB random read, direct",
        (true, true, false) => "4 KiB random write, direct",
        (true, true, true) => "4 KiB random write, buffered",
        (false, false, _) => "1 MiB sequential read, cold",
        (false, true, _) => "1 MiB sequential write, fsync",
    };
    let jobs = if shape.jobs == 1 { "1 job".into() } else { format!("{} jobs", shape.jobs) };
    format!("{kind}, {jobs}")
}

fn figure(
    what: String,
    unit: MountUnit,
    goals: impl IntoIterator<Item = MountGoal>,
) -> MountFigure {
    MountFigure { what, unit, goals: goals.into_iter().collect() }
}

fn goal(who: ServerUnderTest, beside: &'static [ServerUnderTest], times: f64) -> MountGoal {
    MountGoal { who, beside, times }
}

fn thousands(count: usize) -> String {
    match (count / 1000, count % 1000) {
        (0, rest) => rest.to_string(),
        (whole, rest) => format!("{whole},{rest:03}"),
    }
}

/// All but who is measured only where several processes read.
const MOST: &[ServerUnderTest] = &[
    ServerUnderTest::Native,
    ServerUnderTest::SluiceUnix,
    ServerUnderTest::SluiceTcp,
    ServerUnderTest::Bare,
    ServerUnderTest::Sshfs,
    ServerUnderTest::Glusterfs,
];
/// Those with whole file systems.
const NAMES: &[ServerUnderTest] = &[
    ServerUnderTest::Native,
    ServerUnderTest::SluiceUnix,
    ServerUnderTest::SluiceTcp,
    ServerUnderTest::Sshfs,
    ServerUnderTest::Glusterfs,
];
const PEERS: &[ServerUnderTest] = &[ServerUnderTest::Sshfs, ServerUnderTest::Glusterfs];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_has_a_name_of_its_own() {
        let cases = table(MountAmounts { metadata: 2_000, tree: 100_000, source: 10_000 });
        let names: Vec<_> = cases.iter().flat_map(|case| &case.figures).map(|f| &f.what).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.contains(&&"find -printf %s, 100,000 files, cold".to_owned()), "{names:?}");
    }

    #[test]
    fn a_target_of_time_is_told_as_time() {
        let goal = goal(ServerUnderTest::SluiceUnix, &[ServerUnderTest::Native], 1.0 / 3.0);
        assert_eq!(goal.target(MountUnit::Seconds), "sluice unix ≤ 3 × the time of native");
        assert_eq!(
            goal.reached(MountUnit::Seconds, MountUnit::Seconds.times(4.0, 2.0)),
            "2.00 × the time"
        );
        let goal = self::goal(ServerUnderTest::SluiceTcp, PEERS, 2.0);
        let told = "sluice tcp ≥ 2 × as fast as the faster of sshfs and glusterfs";
        assert_eq!(
            (goal.target(MountUnit::Seconds), goal.reached(MountUnit::MbPerSec, 2.5)),
            (told.into(), "2.50 ×".into())
        );
    }
}
