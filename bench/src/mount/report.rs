//! What was measured: medians beside each other, targets, JSON and a chart.
//!
//! Whether a target is met is decided by the median of the ratios within each round: what slows
//! the machine for a minute slows both sides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::super::figures::judge::median;
use super::super::figures::machine::machine;
use super::case::{MountCase, MountFigure, MountGoal};
use super::who::ServerUnderTest;
use chart::{Bar, BarChart, BarGroup, bar_chart};

/// Everything that was measured, and what to say about it.
pub(crate) struct MountBenchReport {
    machine: String,
    /// The servers that were measured.
    pub(crate) who: Vec<ServerUnderTest>,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    notes: Vec<String>,
    /// By figure and contender; a run that failed leaves a gap in its round.
    samples: BTreeMap<(String, ServerUnderTest), BTreeMap<usize, f64>>,
    /// Requests to the proxy for each name, by figure and contender.
    round_trips: BTreeMap<(String, ServerUnderTest), f64>,
}

impl MountBenchReport {
    pub(crate) fn new(dir: &Path) -> MountBenchReport {
        MountBenchReport {
            machine: machine(dir).to_string(),
            who: Vec::new(),
            command: String::new(),
            rounds: 0,
            time: Duration::ZERO,
            notes: Vec::new(),
            samples: BTreeMap::new(),
            round_trips: BTreeMap::new(),
        }
    }

    /// Adds a note for the reader, unless it was added before.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            eprintln!("\nsluice-bench: {note}");
            self.notes.push(note);
        }
    }

    pub(crate) fn add(
        &mut self,
        figure: &MountFigure,
        who: ServerUnderTest,
        round: usize,
        value: f64,
    ) {
        self.samples.entry((figure.what.clone(), who)).or_default().insert(round, value);
    }

    pub(crate) fn add_round_trips(
        &mut self,
        figure: &MountFigure,
        who: ServerUnderTest,
        for_each_name: f64,
    ) {
        self.round_trips.insert((figure.what.clone(), who), for_each_name);
    }

    /// Prints the tables, and writes them, all samples and the chart into `out`.
    pub(crate) fn write(&self, cases: &[MountCase], out: Option<&Path>) -> anyhow::Result<()> {
        let markdown = self.markdown(cases);
        println!("{markdown}");
        let Some(out) = out else { return Ok(()) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let put = |name: &str, content: &str| {
            let path = out.join(name);
            std::fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        let json = serde_json::to_string_pretty(&self.json(cases)).context("cannot write JSON")?;
        put("mount.json", &format!("{json}\n"))?;
        let chart = self.chart(cases);
        if chart.groups.is_empty() {
            return put("mount.md", &markdown);
        }
        put("mount.md", &format!("{markdown}\n![ratios](mount.svg)\n"))?;
        Ok(bar_chart(&out.join("mount.svg"), &chart)?)
    }

    fn of(&self, figure: &MountFigure, who: ServerUnderTest) -> Option<&BTreeMap<usize, f64>> {
        self.samples.get(&(figure.what.clone(), who))
    }

    fn median(&self, figure: &MountFigure, who: ServerUnderTest) -> Option<f64> {
        median(self.of(figure, who)?.values().copied().collect())
    }

    /// How many times as fast one was as another: the median over the rounds.
    fn times(
        &self,
        figure: &MountFigure,
        who: ServerUnderTest,
        other: ServerUnderTest,
    ) -> Option<f64> {
        let (who, other) = (self.of(figure, who)?, self.of(figure, other)?);
        let pairs = who.iter().filter_map(|(round, value)| {
            Some(figure.unit.times(*value, *other.get(round)?)).filter(|times| times.is_finite())
        });
        median(pairs.collect())
    }

    /// The same beside the fastest of a goal's.
    fn reached(&self, figure: &MountFigure, goal: &MountGoal) -> Option<f64> {
        let times = goal.beside.iter().filter_map(|other| self.times(figure, goal.who, *other));
        times.min_by(f64::total_cmp)
    }

    fn markdown(&self, cases: &[MountCase]) -> String {
        let mut text = String::from("# The mount beside the directory itself and its peers\n\n");
        let mut line = |line: &str| writeln!(text, "{line}").expect("writing to memory succeeds");
        line(&format!("- machine: {}", self.machine));
        let versions = self.who.iter().map(|who| format!("{who} {}", who.version()));
        line(&format!("- measured: {}", versions.collect::<Vec<_>>().join(", ")));
        line(&format!(
            "- {} interleaved rounds, {} s for each case of fio; ratios are medians of the rounds' ratios",
            self.rounds,
            self.time.as_secs_f64()
        ));
        line(&format!("- to repeat: `{}`", self.command));
        self.notes.iter().for_each(|note| line(&format!("- note: {note}")));
        line(
            "\n## Figures\n\nMedians. `native` is the directory without any mount, `bare` the least that can serve one file.\n",
        );
        let names: Vec<String> = self.who.iter().map(ServerUnderTest::to_string).collect();
        line(&format!("| what | unit | {} |", names.join(" | ")));
        line(&format!("|---|---|{}", "---:|".repeat(names.len())));
        let figures = || cases.iter().flat_map(|case| &case.figures);
        for figure in figures() {
            let shown = self.who.iter().map(|who| self.shown(figure, *who)).collect::<Vec<_>>();
            line(&format!("| {} | {} | {} |", figure.what, figure.unit.name(), shown.join(" | ")));
        }
        if !self.round_trips.is_empty() {
            line("\nRequests to the proxy for each name that was seen:\n");
            for ((what, who), trips) in &self.round_trips {
                line(&format!("- {what}: {who} {trips:.3}"));
            }
        }
        let goals =
            figures().flat_map(|figure| figure.goals.iter().map(move |goal| (figure, goal)));
        let judged: Vec<_> =
            goals.map(|(figure, goal)| (figure, goal, self.reached(figure, goal))).collect();
        let measured = judged.iter().filter_map(|(_, goal, times)| Some((*times)? >= goal.times));
        let (all, met) = (measured.clone().count(), measured.filter(|met| *met).count());
        let left = judged.len() - all;
        line(&format!("\n## Targets\n\n{met} of {all} met; {left} could not be measured.\n"));
        line("| what | target | reached | |\n|---|---|---:|---|");
        for (figure, goal, times) in judged {
            let Some(times) = times else { continue };
            let (target, reached) = (goal.target(figure.unit), goal.reached(figure.unit, times));
            let verdict = if times >= goal.times { "met" } else { "missed" };
            line(&format!("| {} | {target} | {reached} | {verdict} |", figure.what));
        }
        text
    }

    fn shown(&self, figure: &MountFigure, who: ServerUnderTest) -> String {
        self.median(figure, who).map_or("–".into(), |value| figure.unit.show(value))
    }

    fn json(&self, cases: &[MountCase]) -> Value {
        let figure = |figure: &MountFigure| {
            let goal = |goal: &MountGoal| {
                let times = self.reached(figure, goal);
                json!({
                    "target": goal.target(figure.unit),
                    "times": goal.times,
                    "reached_times": times,
                    "met": times.map(|times| times >= goal.times),
                })
            };
            let by_who = |value: &dyn Fn(ServerUnderTest) -> Option<Value>| {
                let all = self.who.iter().filter_map(|who| Some((who.word().into(), value(*who)?)));
                all.collect::<Map<String, Value>>()
            };
            let trips = |who| self.round_trips.get(&(figure.what.clone(), who)).map(|n| json!(n));
            let samples =
                |who| self.of(figure, who).map(|all| all.values().copied().collect::<Value>());
            json!({
                "what": figure.what,
                "unit": figure.unit.name(),
                "medians": by_who(&|who| self.median(figure, who).map(|value| json!(value))),
                "samples": by_who(&samples),
                "requests_per_name": by_who(&trips),
                "goals": figure.goals.iter().map(goal).collect::<Vec<_>>(),
            })
        };
        let who = self.who.iter().map(|who| (who.word().to_owned(), json!(who.version())));
        json!({
            "machine": self.machine,
            "who": who.collect::<Map<String, Value>>(),
            "command": self.command,
            "rounds": self.rounds,
            "seconds": self.time.as_secs_f64(),
            "notes": self.notes,
            "figures": cases.iter().flat_map(|case| &case.figures).map(figure).collect::<Vec<_>>(),
        })
    }

    /// Over TCP, as the peers are.
    fn chart(&self, cases: &[MountCase]) -> BarChart {
        let legend = [ServerUnderTest::Sshfs, ServerUnderTest::Glusterfs];
        let mut groups = Vec::new();
        for figure in cases.iter().flat_map(|case| &case.figures) {
            let bars = legend.iter().enumerate().filter_map(|(series, other)| {
                let value = self.times(figure, ServerUnderTest::SluiceTcp, *other)?;
                Some(Bar { series, value, target: Some(2.0) })
            });
            let bars: Vec<Bar> = bars.collect();
            if !bars.is_empty() {
                groups.push(BarGroup { label: figure.what.clone(), bars });
            }
        }
        BarChart {
            title: "Sluice's mount over TCP: how many times as fast as others".into(),
            subtitle: format!(
                "median of {} interleaved rounds; a black mark is the target",
                self.rounds
            ),
            unit: " ×".into(),
            series: legend.iter().map(|who| format!("beside {who}")).collect(),
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::MountUnit;
    use super::*;

    fn figure(unit: MountUnit) -> MountFigure {
        let beside: &[ServerUnderTest] = &[ServerUnderTest::Sshfs, ServerUnderTest::Glusterfs];
        let goals = vec![MountGoal { who: ServerUnderTest::SluiceTcp, beside, times: 2.0 }];
        MountFigure { what: "row".into(), unit, goals }
    }

    fn report(figure: &MountFigure, runs: &[(ServerUnderTest, &[f64])]) -> MountBenchReport {
        let mut report = MountBenchReport::new(Path::new("/"));
        for (who, values) in runs {
            report.who.push(*who);
            for (round, value) in values.iter().enumerate() {
                report.add(figure, *who, round, *value);
            }
        }
        report
    }

    #[test]
    fn a_goal_beside_two_counts_the_faster_one_of_the_same_rounds() {
        let figure = figure(MountUnit::Seconds);
        let runs: [(ServerUnderTest, &[f64]); 3] = [
            (ServerUnderTest::SluiceTcp, &[1.0, 2.0, 2.0]),
            (ServerUnderTest::Sshfs, &[9.0, 18.0, 9.0]),
            (ServerUnderTest::Glusterfs, &[3.0, 6.0, 9.0]),
        ];
        let report = report(&figure, &runs);
        assert_eq!(report.reached(&figure, &figure.goals[0]), Some(3.0));
    }

    #[test]
    fn who_is_missing_leaves_a_gap_and_no_verdict() {
        let figure = figure(MountUnit::OpsPerSec);
        let report = report(&figure, &[(ServerUnderTest::SluiceTcp, &[5.0])]);
        let who: &[ServerUnderTest] = &[ServerUnderTest::SluiceTcp];
        let load = super::super::case::MountLoad::Metadata;
        let cases = [MountCase { load, who, figures: vec![figure] }];
        assert!(report.markdown(&cases).contains("0 of 0 met; 1 could not be measured."));
        let json = report.json(&cases);
        assert_eq!(json["figures"][0]["medians"], json!({ "sluice-tcp": 5.0 }));
        assert_eq!(json["figures"][0]["goals"][0]["met"], Value::Null);
    }
}
