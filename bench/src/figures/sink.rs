//! Where a group puts what it measures: one round of a row at a time.
//!
//! ```text
//!   wants(row)? ─► begin ─► sample, sample, failed … ─► end ─► stored
//!                      └──► void(why) ─────────────────────► stored as a round that says nothing
//! ```
//!
//! A round that is dropped on the way, by an error or a signal, is as if it had never begun.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::bail;

use super::machine::LoadReading;
use super::row::{FigureRow, FigureSample, unit_of};
use super::store::{FigureStore, RowKey, StoredFailure, StoredRound};

/// The rows of a group that are to be measured now, and where their rounds go.
pub(crate) struct FigureSink {
    store: FigureStore,
    /// Rows and the conditions of each; the first `pass` rounds are wanted.
    rows: BTreeMap<String, (FigureRow, RowKey)>,
    pass: usize,
    tried: BTreeMap<String, usize>,
    /// By contender.
    versions: BTreeMap<String, String>,
    stop: Arc<AtomicBool>,
    until: Option<Instant>,
}

/// One round of a row on its way into the store.
pub(crate) struct FigureRound<'a> {
    sink: &'a mut FigureSink,
    id: String,
    number: usize,
    began: Instant,
    load: LoadReading,
    samples: BTreeMap<String, FigureSample>,
    failures: Vec<StoredFailure>,
}

impl FigureSink {
    /// Makes a sink for the chosen rows, each with its conditions.
    pub(crate) fn new(
        store: FigureStore,
        rows: Vec<(FigureRow, RowKey)>,
        stop: &Arc<AtomicBool>,
        until: Option<Instant>,
    ) -> FigureSink {
        let rows = rows.into_iter().map(|(row, key)| (row.id.clone(), (row, key))).collect();
        FigureSink {
            store,
            rows,
            pass: 0,
            tried: BTreeMap::new(),
            versions: BTreeMap::new(),
            stop: Arc::clone(stop),
            until,
        }
    }

    /// Begins the next pass: every row is to have `pass` rounds at its end, or all of its own.
    pub(crate) fn begin_pass(&mut self, pass: usize) {
        self.pass = pass;
        self.tried.clear();
    }

    /// Whether a round of this row is to be measured in this pass.
    pub(crate) fn wants(&self, id: &str) -> bool {
        let Some((row, key)) = self.rows.get(id) else { return false };
        let is_tried = self.tried.get(id).is_some_and(|times| *times >= TRIES);
        !is_tried
            && !self.is_over()
            && self.store.done(id, key) < row.rounds.min(self.pass)
            && self.store.can_be_measured(id, key)
    }

    /// Whether a contender of this row is to be measured.
    pub(crate) fn measures(&self, id: &str, who: &str) -> bool {
        self.rows.get(id).is_some_and(|(row, _)| row.contenders.iter().any(|name| name == who))
    }

    /// Whether a round of any of these rows is to be measured in this pass.
    pub(crate) fn wants_any<'r>(&self, rows: impl IntoIterator<Item = &'r FigureRow>) -> bool {
        rows.into_iter().any(|row| self.wants(&row.id))
    }

    /// Whether nothing more is to be begun: a signal came, or the time is used up.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() > until)
    }

    /// Begins a round of a row.
    ///
    /// # Panics
    /// If the row is not wanted.
    pub(crate) fn begin(&mut self, id: &str) -> FigureRound<'_> {
        let (row, key) = self.rows.get(id).expect("only rows that are wanted are begun");
        let number = self.store.done(id, key);
        *self.tried.entry(id.into()).or_default() += 1;
        progress(&format!("{id} · round {} of {}", number + 1, row.rounds));
        FigureRound {
            id: id.into(),
            number,
            began: Instant::now(),
            load: LoadReading::take(),
            samples: BTreeMap::new(),
            failures: Vec::new(),
            sink: self,
        }
    }

    /// Measures a round of a row if it is wanted: each contender once, in the order of the round.
    /// A contender that fails leaves a gap.
    ///
    /// # Errors
    /// If it was interrupted, or the file cannot be written.
    pub(crate) fn round_of(
        &mut self,
        row: &FigureRow,
        mut measure: impl FnMut(&str) -> anyhow::Result<FigureSample>,
    ) -> anyhow::Result<()> {
        if !self.wants(&row.id) {
            return Ok(());
        }
        let row = self.rows[&row.id].0.clone();
        let mut round = self.begin(&row.id);
        for who in row.in_turn(round.number()) {
            round.shows(who);
            match measure(who) {
                Ok(sample) => round.sample(who, sample),
                Err(error) => round.failed(who, &error),
            }
            if round.sink.stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
        }
        round.end()
    }

    /// Notes why a whole row cannot be measured on this machine.
    pub(crate) fn not_applicable(&mut self, id: &str, why: &str) -> anyhow::Result<()> {
        let Some((_, key)) = self.rows.get(id) else { return Ok(()) };
        let key = key.clone();
        self.store.row_mut(id, &key).not_applicable = Some(why.into());
        eprintln!("{id}: not applicable: {why}");
        self.store.save()
    }

    /// Remembers the version of a contender, for the rows that it is in.
    pub(crate) fn version(&mut self, who: &str, version: &str) {
        self.versions.insert(who.into(), version.into());
    }

    /// Everything that was measured.
    pub(crate) fn store(&self) -> &FigureStore {
        &self.store
    }
}

impl FigureRound<'_> {
    /// The number of the round, from 0.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Shows who is being measured.
    pub(crate) fn shows(&self, who: &str) {
        progress(&format!("{} · round {} · {who}", self.id, self.number + 1));
    }

    /// Adds what a contender came to.
    ///
    /// # Panics
    /// If a measure's name does not end in a unit, or the contender is not one of the row's.
    pub(crate) fn sample(&mut self, who: &str, sample: FigureSample) {
        for measure in sample.keys() {
            assert!(unit_of(measure).is_some(), "{measure} ends in no unit");
        }
        let (row, _) = &self.sink.rows[&self.id];
        assert!(row.contenders.iter().any(|name| name == who), "{}: who is {who}?", self.id);
        let sample = sample.into_iter().filter(|(_, value)| value.is_finite());
        let sample = sample.map(|(measure, value)| (measure, six_digits(value))).collect();
        self.samples.insert(who.into(), sample);
    }

    /// Adds that a contender could not be measured.
    pub(crate) fn failed(&mut self, who: &str, error: &anyhow::Error) {
        let why = format!("{error:#}");
        eprintln!("\n{}: {who}: {why}", self.id);
        self.failures.push(StoredFailure { who: Some(who.into()), at: now(), why });
    }

    /// Ends it as a round that says nothing, and says why: it is measured again.
    pub(crate) fn void(self, why: &str) -> anyhow::Result<()> {
        eprintln!("\n{}: round {} is void: {why}", self.id, self.number + 1);
        let (_, key) = &self.sink.rows[&self.id];
        let key = key.clone();
        let void = StoredFailure { who: None, at: now(), why: why.into() };
        self.sink.store.row_mut(&self.id, &key).add_void(void);
        self.sink.store.save()
    }

    /// Ends it: the round is stored, unless whom the row is about failed.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let (row, key) = self.sink.rows[&self.id].clone();
        let versions = self.sink.versions.iter().filter(|(who, _)| self.samples.contains_key(*who));
        let versions: BTreeMap<String, String> =
            versions.map(|(who, version)| (who.clone(), version.clone())).collect();
        let subject = self.samples.get(&row.contenders[0]);
        let is_whole = subject.is_some_and(|sample| !sample.is_empty());
        let stored = self.sink.store.row_mut(&self.id, &key);
        self.failures.into_iter().for_each(|failure| stored.add_failure(failure));
        stored.versions.extend(versions);
        if is_whole {
            let (at, load) = (now(), self.load.end());
            let took_s = (self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
            tell(&row, &self.samples);
            stored.rounds.push(StoredRound { at, took_s, load, samples: self.samples });
        }
        self.sink.store.save()
    }
}

/// A line for each round: goals with their value, or the first measures.
fn tell(row: &FigureRow, samples: &BTreeMap<String, FigureSample>) {
    let goal = |goal: &super::row::FigureGoal| {
        let value = goal.value_of(samples)?;
        Some(format!("{} ({})", goal.show(value), goal.target()))
    };
    let mut said: Vec<String> = row.goals.iter().filter_map(goal).collect();
    if said.is_empty() {
        let first = samples.get(&row.contenders[0]).into_iter().flatten();
        said.extend(
            first.map(|(name, value)| super::row::named(name, &super::row::number(*value))),
        );
    }
    clear();
    eprintln!("{}: {}", row.id, said.join("; "));
}

fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
        let _ = std::io::stderr().flush();
    }
}

fn clear() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// More digits would be of no meaning, and of some length.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().expect("a number is a number")
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// How often a row is tried in one pass, if its rounds are void or fail.
const TRIES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::FigureBound;

    fn sink(rounds: usize) -> FigureSink {
        let row = FigureRow::new("a/b", "", &["x", "y"]).rounds(rounds, 1.0).goal(
            "x",
            "ops_per_s",
            FigureBound::Least(1.0),
        );
        let stop = Arc::new(AtomicBool::new(false));
        FigureSink::new(FigureStore::default(), vec![(row, RowKey::default())], &stop, None)
    }

    fn sample(value: f64) -> FigureSample {
        FigureSample::from([("ops_per_s".into(), value)])
    }

    fn row(sink: &FigureSink) -> FigureRow {
        sink.rows["a/b"].0.clone()
    }

    #[test]
    fn a_row_is_wanted_until_the_pass_has_its_round() {
        let mut sink = sink(2);
        let row = row(&sink);
        assert!(!sink.wants("a/b"));
        for pass in 1..=3 {
            sink.begin_pass(pass);
            assert_eq!(sink.wants("a/b"), pass < 3);
            sink.round_of(&row, |_| Ok(sample(1.0))).unwrap();
            assert!(!sink.wants("a/b"));
        }
        assert_eq!(sink.store.row("a/b").unwrap().rounds.len(), 2);
    }

    #[test]
    fn a_contender_that_fails_leaves_a_gap_and_the_subject_none() {
        let mut sink = sink(1);
        let row = row(&sink);
        sink.begin_pass(1);
        sink.round_of(&row, |who| match who {
            "x" => Err(anyhow::anyhow!("gone")),
            _ => Ok(sample(2.0)),
        })
        .unwrap();
        assert!(sink.store.row("a/b").unwrap().rounds.is_empty());
        sink.round_of(&row, |who| match who {
            "y" => Err(anyhow::anyhow!("gone")),
            _ => Ok(sample(2.0)),
        })
        .unwrap();
        let stored = sink.store.row("a/b").unwrap();
        assert_eq!(stored.rounds[0].samples.len(), 1);
        assert_eq!(stored.failed.len(), 2);
    }

    #[test]
    fn a_void_round_is_tried_again_and_then_left() {
        let mut sink = sink(1);
        sink.begin_pass(1);
        let mut tried = 0;
        while sink.wants("a/b") {
            sink.begin("a/b").void("the generator ran dry").unwrap();
            tried += 1;
        }
        assert_eq!(tried, 3);
    }

    #[test]
    fn a_round_that_is_dropped_has_never_begun() {
        let mut sink = sink(1);
        sink.begin_pass(1);
        sink.begin("a/b").sample("x", sample(1.0));
        assert!(sink.store.row("a/b").is_none());
    }

    #[test]
    fn samples_keep_six_digits() {
        assert_eq!(six_digits(1.0 / 3.0), 0.333333);
        assert_eq!(six_digits(250_345.678), 250_346.0);
    }
}
