//! What figures depend on: the code, the machine, and what else it does meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::super::neighbours::NeighbourReading;
use super::super::peers::CONGESTION;
use super::groups::FigureGroup;
use super::sources;
use super::store::{Machine, RoundLoad};

/// The code that is measured.
#[derive(Clone, Debug)]
pub(crate) struct CodeId {
    /// What the last commit has at each path of the repository.
    trees: BTreeMap<String, String>,
    root: PathBuf,
    pub(crate) commit: String,
    pub(crate) dirty: bool,
}

impl CodeId {
    /// Reads it from the git repository at the working directory.
    pub(crate) fn read() -> anyhow::Result<CodeId> {
        let measured = MEASURED.iter().map(|path| format!(":/{path}"));
        let measured: Vec<String> = measured.collect();
        let words = ["status", "--porcelain", "--"].into_iter();
        let changes = git(&words.chain(measured.iter().map(String::as_str)).collect::<Vec<_>>())?;
        let listed = git(&["ls-tree", "-r", "-t", "--full-tree", "HEAD"])?;
        let tree = |line: &str| {
            let (kind, path) = line.split_once('\t')?;
            Some((path.to_owned(), kind.to_owned()))
        };
        Ok(CodeId {
            trees: listed.lines().filter_map(tree).collect(),
            root: git(&["rev-parse", "--show-toplevel"])?.into(),
            commit: git(&["rev-parse", "--short", "HEAD"])?,
            dirty: !changes.is_empty(),
        })
    }

    /// The code outside of any repository.
    pub(crate) fn unknown() -> CodeId {
        let (trees, root) = (BTreeMap::new(), PathBuf::new());
        CodeId { trees, root, commit: String::from("no commit"), dirty: false }
    }

    /// Checksums of the sources that a group's figures depend on: of the product, and of the bench.
    pub(crate) fn sums(&self, group: &FigureGroup) -> anyhow::Result<[String; 2]> {
        if self.trees.is_empty() {
            return Ok([String::new(), String::new()]);
        }
        let product = sources::of_programs(&self.root, group.programs)?;
        let bench = sources::of_bench(&self.root, group.sources)?;
        Ok([self.sum(&product), self.sum(&bench)])
    }

    /// A checksum of what the last commit has at these paths.
    fn sum(&self, paths: &BTreeSet<String>) -> String {
        let mut hash = blake3::Hasher::new();
        for path in paths {
            // What is not committed yet is marked as changed anyway.
            let tree = self.trees.get(path).map_or("", String::as_str);
            hash.update(format!("{path} {tree}\n").as_bytes());
        }
        hash.finalize().to_hex()[..12].to_owned()
    }
}

/// The machine, and the file system of `dir`.
pub(crate) fn machine(dir: &Path) -> Machine {
    let info = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info.lines().find_map(|line| line.strip_prefix("model name"));
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let fs = rustix::fs::statfs(dir).map_or("unknown", |found| match found.f_type as u64 {
        0xef53 => "ext4",
        0x0102_1994 => "tmpfs",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        _ => "other",
    });
    let trimmed = |text: &str| text.trim_start_matches(['\t', ' ', ':']).trim().to_owned();
    Machine {
        cpu: cpu.map_or_else(|| "unknown".into(), trimmed),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: kib.unwrap_or(0) >> 20,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        fs: fs.into(),
        tcp: trimmed(&read_to_string(CONGESTION).unwrap_or_default()),
    }
}

/// Readings at the begin of a round, from which its end makes a [`RoundLoad`].
pub(crate) struct LoadReading {
    load: f64,
    began: Option<NeighbourReading>,
}

impl LoadReading {
    /// Reads the machine's clocks now.
    pub(crate) fn take() -> LoadReading {
        let text = read_to_string("/proc/loadavg").unwrap_or_default();
        let load = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        LoadReading { load, began: NeighbourReading::take_all() }
    }

    /// How busy the machine was since then.
    pub(crate) fn end(&self) -> RoundLoad {
        let ended = NeighbourReading::take_all();
        let both = self.began.as_ref().zip(ended.as_ref());
        let round = |part: f64| (part * 1000.0).round() / 1000.0;
        RoundLoad {
            load: self.load,
            others: both.map_or(0.0, |(began, ended)| round(ended.others_since(began))),
            steal: both.map_or(0.0, |(began, ended)| round(ended.steal_since(began))),
        }
    }
}

fn git(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(words).output().context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "git {}: {}; figures are measured from the root of the project's repository",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What figures may depend on.
const MEASURED: &[&str] = &["core", "io", "Cargo.lock", "Cargo.toml", "bench/src"];
