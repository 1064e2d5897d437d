//! Everything that was measured, in one file: a row of it is a line.
//!
//! ```text
//!   figures.json ─► FigureStore ─┬─ is a round of this row missing, for this code and machine?
//!                                └─ a round more ─► figures.json.new ─► renamed
//! ```
//!
//! The file has samples and no verdict: what is judged is judged when it is shown, so that a table
//! cannot disagree with its data. All rounds of a row are of one code, one machine and one span;
//! a round of another makes the row begin again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::row::FigureSample;

/// What was measured of every row.
#[derive(Debug, Default)]
pub(crate) struct FigureStore {
    path: Option<PathBuf>,
    rows: BTreeMap<String, StoredRow>,
}

/// Under which conditions a row was measured: rounds of different ones are not mixed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowKey {
    /// A checksum of the product's sources that run in it.
    pub(crate) code: String,
    /// The sources that measure it, by the same checksum.
    pub(crate) bench: String,
    /// The commit, for people.
    pub(crate) commit: String,
    /// There were changes that no commit has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dirty: bool,
    pub(crate) machine: Machine,
    /// How long each contender was measured in a round, in seconds.
    pub(crate) seconds: f64,
}

/// The machine that figures are of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// The file system of the directory that is served.
    pub(crate) fs: String,
    /// TCP congestion control: whether streams on loopback are paced.
    pub(crate) tcp: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cpus, memory_gib, kernel, fs, tcp } = self;
        write!(f, "{cpus} × {cpu}, {memory_gib} GiB, Linux {kernel}, {fs}, TCP {tcp}")
    }
}

/// All rounds of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredRow {
    pub(crate) key: RowKey,
    /// Versions of who was measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) rounds: Vec<StoredRound>,
    /// Rounds that say nothing, and why: a generator that could not keep its queue filled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) void: Vec<StoredFailure>,
    /// Contenders that failed; the last few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<StoredFailure>,
    /// Why the row cannot be measured here, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_applicable: Option<String>,
}

/// One round: a sample of each contender, and how busy the machine was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredRound {
    /// When the round ended, in UTC.
    pub(crate) at: String,
    /// How long it took, in seconds, with what it needs to begin; 0 if that is not known.
    #[serde(default)]
    pub(crate) took_s: f64,
    #[serde(flatten)]
    pub(crate) load: RoundLoad,
    /// The sample of each contender.
    pub(crate) samples: BTreeMap<String, FigureSample>,
}

/// How busy the machine was with other things during a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundLoad {
    /// Load average of a minute at its begin.
    pub(crate) load: f64,
    /// Part of the processors' time in user space that other programs had, 0 to 1.
    pub(crate) others: f64,
    /// Part of the processors' time that a hypervisor gave to others, 0 to 1.
    pub(crate) steal: f64,
}

/// What went wrong, with whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredFailure {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) who: Option<String>,
    pub(crate) at: String,
    pub(crate) why: String,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFile {
    format: u32,
    rows: BTreeMap<String, StoredRow>,
}

impl FigureStore {
    /// Reads the file, or begins one that is not there yet.
    pub(crate) fn open(path: &Path) -> anyhow::Result<FigureStore> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let rows = parse(&text).with_context(|| path.display().to_string())?;
        Ok(FigureStore { path: Some(path.into()), rows })
    }

    /// A row's rounds, if there are any.
    pub(crate) fn row(&self, id: &str) -> Option<&StoredRow> {
        self.rows.get(id)
    }

    /// Every row that was ever measured.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, &StoredRow)> {
        self.rows.iter().map(|(id, row)| (id.as_str(), row))
    }

    /// How many rounds of a row there are under these conditions.
    pub(crate) fn done(&self, id: &str, key: &RowKey) -> usize {
        self.matching(id, key).map_or(0, |row| row.rounds.len())
    }

    /// Whether it makes sense to measure a row under these conditions once more.
    pub(crate) fn can_be_measured(&self, id: &str, key: &RowKey) -> bool {
        self.matching(id, key).is_none_or(|row| row.not_applicable.is_none() && !row.is_given_up())
    }

    /// The row under these conditions; what was measured under others is discarded.
    pub(crate) fn row_mut(&mut self, id: &str, key: &RowKey) -> &mut StoredRow {
        let new = || StoredRow { key: key.clone(), ..StoredRow::default() };
        let row = self.rows.entry(id.into()).or_insert_with(new);
        if !row.key.is_same(key) {
            *row = new();
        }
        row
    }

    /// Discards everything that was measured of a row.
    pub(crate) fn forget(&mut self, id: &str) {
        self.rows.remove(id);
    }

    /// Writes the file, if there is one: whole or not at all.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let new = path.with_extension("json.new");
        let write = || {
            fs::write(&new, self.text()?)?;
            fs::rename(&new, path)?;
            anyhow::Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The samples of these rows as a JSON object, by their ids.
    pub(crate) fn json(&self, ids: &[&str]) -> anyhow::Result<String> {
        let chosen: BTreeMap<&str, &StoredRow> =
            self.rows().filter(|(id, _)| ids.contains(id)).collect();
        serde_json::to_string_pretty(&chosen).context("cannot write JSON")
    }

    fn matching(&self, id: &str, key: &RowKey) -> Option<&StoredRow> {
        self.rows.get(id).filter(|row| row.key.is_same(key))
    }

    fn text(&self) -> anyhow::Result<String> {
        let line = |(id, row): (&String, &StoredRow)| {
            let row = serde_json::to_string(row).context("cannot write JSON")?;
            anyhow::Ok(format!("{id:?}: {row}"))
        };
        let lines: Vec<String> = self.rows.iter().map(line).collect::<Result<_, _>>()?;
        Ok(format!("{{\"format\": {FORMAT}, \"rows\": {{\n{}\n}}}}\n", lines.join(",\n")))
    }
}

impl RowKey {
    /// Whether rounds under both may stand in one row. The commit does not matter: one of
    /// documents changes nothing that is measured.
    fn is_same(&self, other: &RowKey) -> bool {
        let of = |key: &RowKey| RowKey { commit: String::new(), ..key.clone() };
        of(self) == of(other)
    }
}

impl StoredRow {
    /// Whether no round was had of it, however often that was tried.
    pub(crate) fn is_given_up(&self) -> bool {
        let often = self.void.len() >= VOIDS_MAX || self.failed.len() >= FAILURES_MAX;
        self.rounds.is_empty() && often
    }

    /// Adds a failure; of many only the last few are kept.
    pub(crate) fn add_failure(&mut self, failure: StoredFailure) {
        self.failed.push(failure);
        let extra = self.failed.len().saturating_sub(FAILURES_MAX);
        self.failed.drain(..extra);
    }

    /// Adds a round that says nothing; of many only the last few are kept.
    pub(crate) fn add_void(&mut self, void: StoredFailure) {
        self.void.push(void);
        let extra = self.void.len().saturating_sub(VOIDS_MAX);
        self.void.drain(..extra);
    }
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<String, StoredRow>> {
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    let file: StoredFile = serde_json::from_str(text).context("not a file of figures")?;
    ensure!(file.format == FORMAT, "format {} is not known; {FORMAT} is", file.format);
    Ok(file.rows)
}

const FORMAT: u32 = 1;
/// Void rounds after which a row without any other is left alone.
const VOIDS_MAX: usize = 3;
/// Failures after which a row without rounds is left alone.
const FAILURES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: &str) -> RowKey {
        RowKey { code: code.into(), seconds: 1.0, ..RowKey::default() }
    }

    fn round(value: f64) -> StoredRound {
        let sample = FigureSample::from([("ops_per_s".into(), value)]);
        StoredRound { samples: [("sluice".into(), sample)].into(), ..StoredRound::default() }
    }

    #[test]
    fn what_is_written_is_read_and_a_row_is_a_line() {
        let here = testkit::TestFolder::new();
        let path = here.path().join("figures.json");
        let mut store = FigureStore::open(&path).unwrap();
        store.row_mut("peers/b", &key("1")).rounds.push(round(2.5));
        store.row_mut("peers/a", &key("1")).rounds.push(round(1e6));
        store.save().unwrap();
        let again = FigureStore::open(&path).unwrap();
        assert_eq!(again.rows, store.rows);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(text.lines().nth(1).unwrap().starts_with("\"peers/a\": {"), "{text}");
    }

    #[test]
    fn rounds_of_other_code_are_not_mixed_with_those_of_this_one() {
        let mut store = FigureStore::default();
        store.row_mut("a/b", &key("1")).rounds.push(round(1.0));
        assert_eq!(store.done("a/b", &key("1")), 1);
        let commit = RowKey { commit: "other".into(), ..key("1") };
        assert_eq!(store.done("a/b", &commit), 1);
        assert_eq!(store.done("a/b", &key("2")), 0);
        store.row_mut("a/b", &key("2")).rounds.push(round(3.0));
        assert_eq!(store.row("a/b").unwrap().rounds, [round(3.0)]);
    }

    #[test]
    fn a_row_that_is_always_void_is_left_alone_until_its_code_changes() {
        let mut store = FigureStore::default();
        for _ in 0..9 {
            assert_eq!(
                store.can_be_measured("a/b", &key("1")),
                store.row("a/b").is_none_or(|row| row.void.len() < 3)
            );
            let void = StoredFailure { who: None, at: String::new(), why: "dry".into() };
            store.row_mut("a/b", &key("1")).add_void(void);
        }
        assert_eq!(store.row("a/b").unwrap().void.len(), 3);
        assert!(store.can_be_measured("a/b", &key("2")));
    }

    #[test]
    fn another_format_is_refused_with_its_number() {
        let error = parse("{\"format\": 9, \"rows\": {}}").unwrap_err();
        assert_eq!(error.to_string(), "format 9 is not known; 1 is");
    }
}
