//! The list of rows and groups: which rounds there are, and how long all of them take.

use std::fmt::Write as _;

use super::judge::median;
use super::row::FigureRow;
use super::store::FigureStore;

/// What a group's rows come to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct GroupTimes {
    rows: usize,
    /// Of all rounds, in seconds.
    all_s: f64,
    /// Of the rounds that are missing, in seconds.
    missing_s: f64,
}

/// A line for each row and then one for each group.
pub(crate) fn text(rows: &[FigureRow], store: &FigureStore) -> String {
    let mut text = String::from("rounds  minutes  row\n");
    let mut groups: Vec<(&str, GroupTimes)> = Vec::new();
    for row in rows {
        let done = store.row(&row.id).map_or(0, |stored| stored.rounds.len());
        let times = row_times(row, done, round_s(row, store));
        let count = format!("{done}/{}", row.rounds);
        push(
            &mut text,
            &format!("{count:6}  {:>7.1}  {}  {}", times.all_s / 60.0, row.id, row.what),
        );
        match groups.last_mut() {
            Some((group, sum)) if *group == row.group() => sum.add(times),
            _ => groups.push((row.group(), times)),
        }
    }
    push(&mut text, "\ngroup       rows  minutes  missing");
    let mut all = GroupTimes::default();
    for (name, times) in &groups {
        all.add(*times);
        push(&mut text, &times.line(name));
    }
    push(&mut text, &all.line("all"));
    text
}

/// How long a round of a row takes, in seconds: as it did, or what its span comes to.
fn round_s(row: &FigureRow, store: &FigureStore) -> f64 {
    let rounds = store.row(&row.id).into_iter().flat_map(|stored| &stored.rounds);
    let took = rounds.map(|round| round.took_s).filter(|took| *took > 0.0);
    median(took.collect()).unwrap_or_else(|| row.round_s())
}

fn row_times(row: &FigureRow, done: usize, round_s: f64) -> GroupTimes {
    let of = |rounds: usize| rounds as f64 * round_s;
    let missing = row.rounds.saturating_sub(done);
    GroupTimes { rows: 1, all_s: of(row.rounds), missing_s: of(missing) }
}

impl GroupTimes {
    fn add(&mut self, other: GroupTimes) {
        self.rows += other.rows;
        self.all_s += other.all_s;
        self.missing_s += other.missing_s;
    }

    fn line(&self, name: &str) -> String {
        let [all, missing] = [self.all_s, self.missing_s].map(|seconds| seconds / 60.0);
        format!("{name:10}  {:4}  {all:7.1}  {missing:7.1}", self.rows)
    }
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to memory succeeds");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::store::{RowKey, StoredRound};

    #[test]
    fn times_are_those_of_the_span_until_a_round_was_measured() {
        let row = |id: &str| FigureRow::new(id, "words", &["x", "y"]).rounds(3, 60.0);
        let mut store = FigureStore::default();
        let round = StoredRound { took_s: 300.0, ..StoredRound::default() };
        store.row_mut("a/two", &RowKey::default()).rounds.push(round);
        let text = text(&[row("a/one"), row("a/two"), row("b/one")], &store);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "0/3         6.0  a/one  words");
        assert_eq!(lines[2], "1/3        15.0  a/two  words");
        assert_eq!(lines[6], "a              2     21.0     16.0");
        assert_eq!(lines[8], "all            3     27.0     22.0");
    }
}
