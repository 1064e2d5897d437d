//! docs/FIGURES.md: every target with what was reached, and everything that was measured.
//!
//! ```text
//!   rows + figures.json + causes.toml ─► missed ─ not measured ─ group by group: targets, samples
//! ```
//!
//! The misses come first. No row is left out: one that was never measured says so.

use std::fmt::Write as _;

use super::causes::FigureCauses;
use super::groups::FigureGroup;
use super::judge::{FigureVerdict, Spread, is_complete, judge, measured};
use super::row::{FigureGoal, FigureRow, named, number};
use super::store::{FigureStore, StoredRow};

/// Everything that a document of figures is made from.
pub(crate) struct FigureDocument<'a> {
    groups: &'a [FigureGroup],
    rows: Vec<FigureRow>,
    store: &'a FigureStore,
    causes: &'a FigureCauses,
}

/// A goal with its row and what came of it.
struct JudgedGoal<'a> {
    row: &'a FigureRow,
    goal: &'a FigureGoal,
    stored: Option<&'a StoredRow>,
    verdict: FigureVerdict,
}

impl<'a> FigureDocument<'a> {
    pub(crate) fn new(
        groups: &'a [FigureGroup],
        rows: Vec<FigureRow>,
        store: &'a FigureStore,
        causes: &'a FigureCauses,
    ) -> FigureDocument<'a> {
        FigureDocument { groups, rows, store, causes }
    }

    /// The whole document, in Markdown.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        push(&mut text, HEAD);
        let judged = self.judged();
        push(&mut text, &self.summary(&judged));
        push(&mut text, HOW_TO_READ);
        let missed = |goal: &&JudgedGoal<'_>| matches!(goal.verdict, FigureVerdict::Missed(_));
        let misses: Vec<_> = judged.iter().filter(missed).collect();
        if !misses.is_empty() {
            push(&mut text, "\n## Missed\n");
            self.causes_table(&mut text, &misses);
        }
        let without = |goal: &&JudgedGoal<'_>| goal.verdict.spread().is_none();
        let without: Vec<_> = judged.iter().filter(without).collect();
        if !without.is_empty() {
            push(&mut text, "\n## Not measured\n");
            self.reasons_table(&mut text, &without);
        }
        for group in self.groups {
            self.group(&mut text, group, &judged);
        }
        text
    }

    /// The tables without any text around them, for a terminal.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let judged = self.judged();
        if !judged.is_empty() {
            self.goals_table(&mut text, &judged.iter().collect::<Vec<_>>());
            push(&mut text, "");
        }
        self.measures_table(&mut text, self.rows.iter());
        text
    }

    /// What is wrong with the form: rows that nothing knows, misses without a cause, causes of what
    /// is not missed; and, where all are to be measured, rows that lack rounds and were not given up.
    pub(crate) fn faults(&self, are_all_measured: bool) -> Vec<String> {
        let judged = self.judged();
        let mut faults = Vec::new();
        for (id, _) in self.store.rows() {
            if !self.rows.iter().any(|row| row.id == id) {
                faults.push(format!("{id}: measured, and no row has this name"));
            }
        }
        for row in self.rows.iter().filter(|_| are_all_measured) {
            let stored = self.store.row(&row.id);
            let done = stored.map_or(0, |stored| stored.rounds.len());
            if !is_complete(row, stored) && !stored.is_some_and(StoredRow::is_given_up) {
                let (id, rounds) = (&row.id, row.rounds);
                faults.push(format!("{id}: {done} of {rounds} rounds: make figures ROW={id}"));
            }
        }
        let mut missed = Vec::new();
        for goal in &judged {
            let (id, target) = (&goal.row.id, goal.goal.target());
            if !matches!(goal.verdict, FigureVerdict::Missed(_)) {
                continue;
            }
            if self.causes.of(id, &target).is_none() {
                faults.push(format!("{id}: {target}: missed, and {CAUSES} has no cause"));
            }
            missed.push((id.clone(), target));
        }
        for cause in self.causes.unused(&missed) {
            let rows = cause.rows.join(", ");
            faults.push(format!("{CAUSES}: {rows}: not all of these are missed"));
        }
        faults
    }

    fn judged(&self) -> Vec<JudgedGoal<'_>> {
        let goals = self.rows.iter().flat_map(|row| row.goals.iter().map(move |goal| (row, goal)));
        let judged = goals.map(|(row, goal)| {
            let stored = self.store.row(&row.id);
            JudgedGoal { row, goal, stored, verdict: judge(goal, stored) }
        });
        judged.collect()
    }

    fn summary(&self, judged: &[JudgedGoal<'_>]) -> String {
        let count =
            |is: fn(&FigureVerdict) -> bool| judged.iter().filter(|goal| is(&goal.verdict)).count();
        let met = count(|verdict| matches!(verdict, FigureVerdict::Met(_)));
        let missed = count(|verdict| matches!(verdict, FigureVerdict::Missed(_)));
        let without = judged.len() - met - missed;
        let mut machines: Vec<String> = Vec::new();
        for row in self.rows.iter().filter_map(|row| self.store.row(&row.id)) {
            let line = row.key.machine.to_string();
            if !machines.contains(&line) {
                machines.push(line);
            }
        }
        let complete =
            self.rows.iter().filter(|row| is_complete(row, self.store.row(&row.id))).count();
        let mut text = format!(
            "{} targets: {met} met, {missed} missed, {without} without a value. {complete} of {} \
             rows have all their rounds.",
            judged.len(),
            self.rows.len()
        );
        for machine in machines {
            let _ = write!(text, "\n\nMachine: {machine}.");
        }
        text
    }

    fn causes_table(&self, text: &mut String, goals: &[&JudgedGoal<'_>]) {
        push(text, "| figure | target | reached | cause | evidence | command |");
        push(text, "|---|---|---|---|---|---|");
        for goal in goals {
            let cause = self.causes.of(&goal.row.id, &goal.goal.target());
            let (cause, evidence) =
                cause.map_or(("not known yet", "–"), |cause| (&cause.text, &cause.evidence));
            push(
                text,
                &format!(
                    "| {} | {} | {} | {cause} | {evidence} | {} |",
                    goal.row.what,
                    goal.goal.target(),
                    goal.reached(),
                    command(goal.row)
                ),
            );
        }
    }

    fn reasons_table(&self, text: &mut String, goals: &[&JudgedGoal<'_>]) {
        push(text, "| figure | target | why | command |\n|---|---|---|---|");
        for goal in goals {
            let why = match &goal.verdict {
                FigureVerdict::NotApplicable(why) => format!("not applicable: {why}"),
                FigureVerdict::NotMeasured(why) => why.clone(),
                _ => continue,
            };
            let (what, target) = (&goal.row.what, goal.goal.target());
            push(text, &format!("| {what} | {target} | {} | {} |", cell(&why), command(goal.row)));
        }
    }

    fn goals_table(&self, text: &mut String, goals: &[&JudgedGoal<'_>]) {
        push(
            text,
            "| figure | target | reached | | conditions | command |\n|---|---|---|---|---|---|",
        );
        for goal in goals {
            push(
                text,
                &format!(
                    "| {} | {} | {} | {} | {} | {} |",
                    goal.row.what,
                    goal.goal.target(),
                    goal.reached(),
                    goal.verdict.word(),
                    self.conditions(goal.row, goal.stored),
                    command(goal.row)
                ),
            );
        }
    }

    fn group(&self, text: &mut String, group: &FigureGroup, judged: &[JudgedGoal<'_>]) {
        push(text, &format!("\n## {}\n\n{}\n", group.title, group.what));
        let of_group: Vec<_> =
            judged.iter().filter(|goal| goal.row.group() == group.name).collect();
        if !of_group.is_empty() {
            self.goals_table(text, &of_group);
            push(text, "");
        }
        self.measures_table(text, self.rows.iter().filter(|row| row.group() == group.name));
    }

    fn measures_table<'r>(&self, text: &mut String, rows: impl Iterator<Item = &'r FigureRow>) {
        push(text, "| row | who | medians (least–most) | conditions |\n|---|---|---|---|");
        for row in rows {
            let stored = self.store.row(&row.id);
            let conditions = self.conditions(row, stored);
            for (at, who) in row.contenders.iter().enumerate() {
                let what = if at == 0 { row.what.as_str() } else { "" };
                let conditions = if at == 0 { conditions.as_str() } else { "" };
                let all = stored.map_or_else(|| "–".into(), |stored| measures(stored, who));
                push(text, &format!("| {what} | {who} | {all} | {conditions} |"));
            }
        }
    }

    /// When and on what a row was measured, and what is unusual about it.
    fn conditions(&self, row: &FigureRow, stored: Option<&StoredRow>) -> String {
        let Some(stored) = stored else { return "never measured".into() };
        let mut words = vec![format!("{}", stored.key.commit)];
        if stored.key.dirty {
            words.push("with changes".into());
        }
        if let Some(last) = stored.rounds.last() {
            words.push(last.at.chars().take(10).collect());
        }
        if stored.rounds.len() < row.rounds && stored.not_applicable.is_none() {
            words.push(format!("{} of {} rounds", stored.rounds.len(), row.rounds));
        }
        if !stored.void.is_empty() {
            words.push(format!("{} void", stored.void.len()));
        }
        let most = |of: fn(&super::store::RoundLoad) -> f64| {
            stored.rounds.iter().map(|round| of(&round.load)).fold(0.0, f64::max)
        };
        words.push(format!("load ≤ {}", number(most(|load| load.load))));
        for (part, who) in
            [(most(|load| load.others), "others"), (most(|load| load.steal), "steal")]
        {
            if part > BUSY {
                words.push(format!("{who} ≤ {:.0} %", part * 100.0));
            }
        }
        words.join(", ")
    }
}

impl JudgedGoal<'_> {
    /// The median, the spread, and how many rounds are within the bound by themselves.
    fn reached(&self) -> String {
        let Some(spread) = self.verdict.spread() else { return "–".into() };
        let Spread { median, least, most, rounds, met } = spread;
        let shown = self.goal.show(median);
        match rounds {
            1 => shown,
            _ => format!("{shown} ({}–{}; {met} of {rounds})", number(least), number(most)),
        }
    }
}

/// Each measure of a contender: `ops/s 250,345 (40,905–297,094)`.
fn measures(stored: &StoredRow, who: &str) -> String {
    let mut names: Vec<&String> = stored
        .rounds
        .iter()
        .filter_map(|round| round.samples.get(who))
        .flat_map(|s| s.keys())
        .collect();
    names.sort();
    names.dedup();
    let one = |name: &&String| {
        let spread = measured(stored, who, name)?;
        let value = match spread.rounds {
            1 => number(spread.median),
            _ => format!(
                "{} ({}–{})",
                number(spread.median),
                number(spread.least),
                number(spread.most)
            ),
        };
        Some(named(name, &value))
    };
    let all: Vec<String> = names.iter().filter_map(one).collect();
    if all.is_empty() { "–".into() } else { all.join(", ") }
}

fn command(row: &FigureRow) -> String {
    format!("`make figures ROW={}`", row.id)
}

/// Text that may stand in a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to memory succeeds");
}

/// The file that causes stand in.
pub(crate) const CAUSES: &str = "bench/causes.toml";
/// Parts of the processors' time from which a round is shown as one of a busy machine.
const BUSY: f64 = 0.05;
const HEAD: &str = "\
<!-- Made by `cargo xtask docs` from bench/results/figures.json and bench/causes.toml. Do not edit. -->

# Figures

Every measured figure of the project with its target. `make figures` measures what is missing and
goes on where it was stopped; [bench/README.md](../bench/README.md) says how it measures.
";
const HOW_TO_READ: &str = "
A contender is named by what ran. *Reached* is the median of the rounds, then the least and the
greatest, and in how many rounds the target was met. Ratios are taken within a round. *Conditions*
are the commit, the day, the greatest load average at the begin of a round, and, above 5 %, the
part of the processors that other programs or the hypervisor had.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::{FigureBound, FigureSample};
    use crate::figures::store::{RowKey, StoredFailure, StoredRound};

    const GROUPS: &[FigureGroup] = &[FigureGroup {
        name: "a",
        title: "Letters",
        what: "About letters.",
        sources: &[],
        programs: &[],
        rows: Vec::new,
        measure: |_, _| Ok(()),
    }];

    fn rows() -> Vec<FigureRow> {
        let row = |id: &str, what| {
            let row = FigureRow::new(id, what, &["sluice", "diod"]).rounds(2, 1.0);
            row.beside("sluice", "ops_per_s", FigureBound::TimesLeast(2.0), &["diod"])
        };
        vec![row("a/fast", "fast reads"), row("a/slow", "slow reads"), row("a/none", "no reads")]
    }

    fn store(slow: &[f64]) -> FigureStore {
        let mut store = FigureStore::default();
        let key = RowKey { commit: "abc1234".into(), ..RowKey::default() };
        let mut add = |id: &str, values: &[f64]| {
            for value in values {
                let one = |value: f64| FigureSample::from([("ops_per_s".to_owned(), value)]);
                let samples = [("sluice".into(), one(*value)), ("diod".into(), one(100.0))].into();
                let at = "2026-11-26T01:02:03Z".into();
                let round = StoredRound { at, samples, ..StoredRound::default() };
                store.row_mut(id, &key).rounds.push(round);
            }
        };
        add("a/fast", &[300.0, 250.0]);
        add("a/slow", slow);
        store
    }

    #[test]
    fn misses_come_first_and_no_row_is_left_out() {
        let (store, causes) = (store(&[150.0]), FigureCauses::default());
        let text = FigureDocument::new(GROUPS, rows(), &store, &causes).text();
        assert!(
            text.contains("3 targets: 1 met, 1 missed, 1 without a value. 1 of 3 rows"),
            "{text}"
        );
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words} in {text}"));
        assert!(
            at("| slow reads | sluice ≥ 2 × diod | 1.5 × | not known yet") < at("never measured")
        );
        assert!(
            at("## Letters")
                < at("| fast reads | sluice ≥ 2 × diod | 2.75 × (2.5–3; 2 of 2) | met |")
        );
        assert!(text.contains("abc1234, 2026-11-26, 1 of 2 rounds"), "{text}");
        assert!(text.contains("`make figures ROW=a/slow`"), "{text}");
    }

    #[test]
    fn faults_of_form_are_named() {
        let (mut store, causes) = (store(&[150.0]), FigureCauses::default());
        store.row_mut("a/gone", &RowKey::default());
        let faults = FigureDocument::new(GROUPS, rows(), &store, &causes).faults(true);
        assert_eq!(
            faults,
            [
                "a/gone: measured, and no row has this name",
                "a/slow: 1 of 2 rounds: make figures ROW=a/slow",
                "a/none: 0 of 2 rounds: make figures ROW=a/none",
                "a/slow: sluice ≥ 2 × diod: missed, and bench/causes.toml has no cause",
            ]
        );
        let void = StoredFailure { who: None, at: String::new(), why: "dry".into() };
        for _ in 0..3 {
            store.row_mut("a/none", &RowKey::default()).add_void(void.clone());
        }
        let faults = FigureDocument::new(GROUPS, rows(), &store, &causes).faults(true);
        assert!(!faults.iter().any(|fault| fault.starts_with("a/none")), "{faults:?}");
    }
}
