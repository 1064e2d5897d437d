//! What a comparison found: medians, goals, a Markdown table, JSON and a chart.
//!
//! Ratios are medians of the ratios within each round, so that a machine that slows
//! down for a minute slows both sides; the figures beside them are medians of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use super::p9::NinepFigures;
use super::peers::CONGESTION;
use super::rows::{PeerBound, PeerContender, PeerGoal, PeerRow};
use super::servers::{ServerDirs, ServerKind};
use chart::{Bar, BarChart, BarGroup, bar_chart};

/// Figures of one run against one server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeerSample {
    pub(crate) ops_per_sec: f64,
    pub(crate) mb_per_sec: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// Processor time of the server per operation.
    pub(crate) server_cpu_us: Option<f64>,
    /// Processor time of the generator per operation.
    pub(crate) generator_cpu_us: Option<f64>,
    pub(crate) errors: u64,
}

/// All runs, by row and contender; a run that failed leaves a gap in its round.
#[derive(Default)]
pub(crate) struct PeerResults {
    samples: BTreeMap<(String, PeerContender), BTreeMap<usize, PeerSample>>,
    notes: Vec<String>,
}

/// A comparison and what to say about it.
pub(crate) struct PeerReport {
    pub(crate) servers: Vec<(ServerKind, String)>,
    pub(crate) results: PeerResults,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    machine: String,
}

impl PeerSample {
    pub(crate) fn new(figures: &NinepFigures, server_cpu: Option<Duration>) -> PeerSample {
        let ops = figures.ops.max(1) as f64;
        PeerSample {
            ops_per_sec: figures.ops_per_sec,
            mb_per_sec: figures.mb_per_sec,
            p50_us: Some(figures.p50_us),
            p99_us: Some(figures.p99_us),
            server_cpu_us: server_cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / ops),
            generator_cpu_us: figures.generator_cpu_us_per_op,
            errors: figures.errors + figures.wrong,
        }
    }

    /// Work done without a server, moving `size` bytes each time.
    pub(crate) fn raw(ops_per_sec: f64, size: u64) -> PeerSample {
        PeerSample {
            ops_per_sec,
            mb_per_sec: ops_per_sec * size as f64 / 1e6,
            p50_us: None,
            p99_us: None,
            server_cpu_us: None,
            generator_cpu_us: None,
            errors: 0,
        }
    }
}

impl PeerResults {
    pub(crate) fn add(&mut self, row: &str, who: PeerContender, round: usize, sample: PeerSample) {
        if sample.errors > 0 {
            let errors = sample.errors;
            self.note(format!("{row}: {}: {errors} wrong or refused operations", who.name()));
        }
        self.samples.entry((row.into(), who)).or_default().insert(round, sample);
    }

    pub(crate) fn fail(&mut self, row: &str, who: PeerContender, error: &anyhow::Error) {
        self.note(format!("{row}: {}: {error:#}", who.name()));
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn of(&self, row: &str, who: PeerContender) -> Vec<&PeerSample> {
        let samples = self.samples.get(&(row.to_owned(), who));
        samples.map_or(Vec::new(), |by_round| by_round.values().collect())
    }

    fn median(
        &self,
        row: &str,
        who: PeerContender,
        figure: impl Fn(&PeerSample) -> Option<f64>,
    ) -> Option<f64> {
        median(self.of(row, who).into_iter().filter_map(figure).collect())
    }

    /// The median over the rounds of `who`'s figure divided by the other's.
    fn ratio(
        &self,
        row: &str,
        who: ServerKind,
        other: ServerKind,
        figure: impl Fn(&PeerSample) -> Option<f64>,
    ) -> Option<f64> {
        let [who, other] = [who, other]
            .map(|kind| self.samples.get(&(row.to_owned(), PeerContender::Server(kind))));
        let (who, other) = (who?, other?);
        let pairs = who.iter().filter_map(|(round, sample)| {
            let (above, below) = (figure(sample)?, figure(other.get(round)?)?);
            (below > 0.0).then(|| above / below)
        });
        median(pairs.collect())
    }

    /// What a goal's figure came to, in the unit of its bound, and beside whom.
    fn reached(&self, row: &str, goal: &PeerGoal) -> Option<(f64, Option<ServerKind>)> {
        match goal.bound {
            PeerBound::Times(_) => {
                let ratio = |other: &ServerKind| {
                    let ratio = self.ratio(row, goal.who, *other, |s| Some(s.ops_per_sec))?;
                    Some((ratio, Some(*other)))
                };
                goal.beside.iter().filter_map(ratio).min_by(|a, b| a.0.total_cmp(&b.0))
            }
            PeerBound::CpuMicros(_) => {
                let who = PeerContender::Server(goal.who);
                Some((self.median(row, who, |s| s.server_cpu_us)?, None))
            }
            PeerBound::CpuPercentMore(_) => {
                let other = *goal.beside.first()?;
                let ratio = self.ratio(row, goal.who, other, |s| s.server_cpu_us)?;
                Some(((ratio - 1.0) * 100.0, Some(other)))
            }
        }
    }
}

impl PeerGoal {
    fn holds(&self, reached: f64) -> bool {
        match self.bound {
            PeerBound::Times(least) => reached >= least,
            PeerBound::CpuMicros(most) | PeerBound::CpuPercentMore(most) => reached <= most,
        }
    }

    fn target(&self) -> String {
        let names: Vec<String> = self.beside.iter().map(ServerKind::to_string).collect();
        match self.bound {
            PeerBound::Times(factor) if names.len() > 1 => {
                format!("≥ {factor} × the better of {}", names.join(" and "))
            }
            PeerBound::Times(factor) => format!("≥ {factor} × {}", names.join(", ")),
            PeerBound::CpuMicros(most) => {
                format!("≤ {most} µs of server processor time per operation")
            }
            PeerBound::CpuPercentMore(most) => {
                format!("≤ {most} % more server processor time than {}", names.join(", "))
            }
        }
    }

    fn show(&self, reached: f64, beside: Option<ServerKind>) -> String {
        match (self.bound, beside) {
            (PeerBound::Times(_), Some(kind)) => format!("{reached:.2} × {kind}"),
            (PeerBound::Times(_), None) => format!("{reached:.2} ×"),
            (PeerBound::CpuMicros(_), _) => format!("{reached:.2} µs"),
            (PeerBound::CpuPercentMore(_), _) => format!("{reached:+.1} %"),
        }
    }
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl PeerReport {
    pub(crate) fn new(place: &ServerDirs) -> PeerReport {
        PeerReport {
            servers: Vec::new(),
            results: PeerResults::default(),
            command: String::new(),
            rounds: 0,
            time: Duration::ZERO,
            machine: machine(&place.dir),
        }
    }

    /// Something that the reader should know.
    pub(crate) fn note(&mut self, note: String) {
        eprintln!("sluice-bench: {note}");
        self.results.note(note);
    }

    /// Prints the tables, and writes them, all samples and the chart into `out`.
    pub(crate) fn write(&self, rows: &[PeerRow], out: Option<&Path>) -> anyhow::Result<()> {
        let markdown = self.markdown(rows);
        println!("{markdown}");
        let Some(out) = out else { return Ok(()) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let put = |name: &str, content: &str| {
            let path = out.join(name);
            std::fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        put("peers.md", &format!("{markdown}\n![ratios](peers.svg)\n"))?;
        put("peers.json", &self.json(rows)?)?;
        Ok(bar_chart(&out.join("peers.svg"), &self.chart(rows))?)
    }

    fn markdown(&self, rows: &[PeerRow]) -> String {
        let mut text = String::from("# The proxy beside its peers\n\n");
        for line in self.facts() {
            push(&mut text, &format!("- {line}"));
        }
        push(&mut text, "\n## Targets\n\n| load | target | reached | |\n|---|---|---|---|");
        for row in rows {
            for goal in &row.goals {
                let (reached, verdict) = match self.results.reached(row.what, goal) {
                    Some((reached, beside)) => {
                        let verdict = if goal.holds(reached) { "met" } else { "missed" };
                        (goal.show(reached, beside), verdict)
                    }
                    None => ("–".into(), "not measured"),
                };
                push(
                    &mut text,
                    &format!("| {} | {} | {reached} | {verdict} |", row.what, goal.target()),
                );
            }
        }
        push(
            &mut text,
            "\n## Figures\n\nMedians. `socket` answers from memory, `backend` is the system calls without a server, `bare` does request → splice → reply.\n",
        );
        push(
            &mut text,
            "| load | who | ops/s | MB/s | p50 µs | p99 µs | server µs/op | generator µs/op |",
        );
        push(&mut text, "|---|---|---:|---:|---:|---:|---:|---:|");
        for row in rows {
            for who in &row.contenders {
                push(&mut text, &self.figures_line(row, *who));
            }
        }
        text
    }

    fn figures_line(&self, row: &PeerRow, who: PeerContender) -> String {
        let show = |digits: usize, figure: fn(&PeerSample) -> Option<f64>| {
            let median = self.results.median(row.what, who, figure);
            median.map_or("–".into(), |value| format!("{value:.digits$}"))
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            row.what,
            who.name(),
            show(0, |s| Some(s.ops_per_sec)),
            show(0, |s| Some(s.mb_per_sec).filter(|mb| *mb > 0.0)),
            show(0, |s| s.p50_us),
            show(0, |s| s.p99_us),
            show(2, |s| s.server_cpu_us),
            show(2, |s| s.generator_cpu_us),
        )
    }

    fn facts(&self) -> Vec<String> {
        let servers: Vec<String> =
            self.servers.iter().map(|(kind, version)| format!("{kind} {version}")).collect();
        let mut facts = vec![
            format!("machine: {}", self.machine),
            format!("servers: {}", servers.join(", ")),
            format!(
                "{} interleaved rounds of {} s for each load; ratios are medians of the rounds' ratios",
                self.rounds,
                self.time.as_secs_f64()
            ),
            format!("to repeat: `{}`", self.command),
        ];
        facts.extend(self.results.notes.iter().map(|note| format!("note: {note}")));
        facts
    }

    fn json(&self, rows: &[PeerRow]) -> anyhow::Result<String> {
        let mut loads = Vec::new();
        for row in rows {
            let who = |who: &PeerContender| (who.name(), self.results.of(row.what, *who));
            let samples: BTreeMap<String, Vec<&PeerSample>> =
                row.contenders.iter().map(who).collect();
            let goal = |goal: &PeerGoal| {
                let reached = self.results.reached(row.what, goal).map(|(reached, _)| reached);
                let met = reached.map(|reached| goal.holds(reached));
                serde_json::json!({ "target": goal.target(), "reached": reached, "met": met })
            };
            let goals: Vec<_> = row.goals.iter().map(goal).collect();
            let load = serde_json::json!({ "load": row.what, "goals": goals, "samples": samples });
            loads.push(load);
        }
        let whole = serde_json::json!({
            "machine": self.machine,
            "servers": self.servers.iter().map(|(k, v)| (k.to_string(), v)).collect::<BTreeMap<_, _>>(),
            "command": self.command,
            "rounds": self.rounds,
            "seconds": self.time.as_secs_f64(),
            "notes": self.results.notes,
            "loads": loads,
        });
        let mut text = serde_json::to_string_pretty(&whole).context("cannot write JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn chart(&self, rows: &[PeerRow]) -> BarChart {
        let legend = [ServerKind::Diod, ServerKind::Ganesha, ServerKind::Bare];
        let mut groups = Vec::new();
        for row in rows {
            let bars = legend.iter().enumerate().filter_map(|(series, other)| {
                let rate = |s: &PeerSample| Some(s.ops_per_sec);
                let value = self.results.ratio(row.what, ServerKind::Sluice, *other, rate)?;
                let goal = row.goals.iter().find(|goal| goal.beside.contains(other));
                let target = goal.and_then(|goal| match goal.bound {
                    PeerBound::Times(factor) => Some(factor),
                    _ => None,
                });
                Some(Bar { series, value, target })
            });
            let bars: Vec<Bar> = bars.collect();
            if !bars.is_empty() {
                groups.push(BarGroup { label: row.what.to_owned(), bars });
            }
        }
        BarChart {
            title: "Sluice's rate as a multiple of others'".into(),
            subtitle: format!(
                "median of {} interleaved rounds; a black mark is the target",
                self.rounds
            ),
            unit: " ×".into(),
            series: legend.iter().map(|kind| format!("beside {kind}")).collect(),
            groups,
        }
    }
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to memory succeeds");
}

/// The machine in one line: what figures depend on.
pub(super) fn machine(dir: &Path) -> String {
    let system = rustix::system::uname();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    let kind = rustix::fs::statfs(dir).map_or("unknown", |found| match found.f_type as u64 {
        0xef53 => "ext4",
        0x0102_1994 => "tmpfs",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        _ => "other",
    });
    let kernel = system.release().to_string_lossy();
    // Whether loopback streams are paced: it made a great difference at 1 MiB in some runs.
    let tcp = std::fs::read_to_string(CONGESTION).unwrap_or_default();
    let tcp = tcp.trim();
    format!("{cpus} × {model}, Linux {kernel}, {kind}, TCP {tcp}, load {load} at the start")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLUICE: PeerContender = PeerContender::Server(ServerKind::Sluice);
    const DIOD: PeerContender = PeerContender::Server(ServerKind::Diod);
    const GANESHA: PeerContender = PeerContender::Server(ServerKind::Ganesha);

    fn results(runs: &[(PeerContender, &[f64])]) -> PeerResults {
        let mut results = PeerResults::default();
        for (who, rates) in runs {
            for (round, rate) in rates.iter().enumerate() {
                results.add("row", *who, round, PeerSample::raw(*rate, 0));
            }
        }
        results
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_and_not_of_the_figures() {
        // The machine runs at half speed in the last two rounds, for both.
        let results = results(&[(SLUICE, &[400.0, 200.0, 200.0]), (DIOD, &[100.0, 50.0, 100.0])]);
        let rate = |s: &PeerSample| Some(s.ops_per_sec);
        assert_eq!(results.ratio("row", ServerKind::Sluice, ServerKind::Diod, rate), Some(4.0));
    }

    #[test]
    fn a_goal_beside_two_counts_the_better_one() {
        let results = results(&[(SLUICE, &[300.0]), (DIOD, &[100.0]), (GANESHA, &[200.0])]);
        let beside = &[ServerKind::Diod, ServerKind::Ganesha];
        let goal = PeerGoal { who: ServerKind::Sluice, beside, bound: PeerBound::Times(1.4) };
        assert_eq!(results.reached("row", &goal), Some((1.5, Some(ServerKind::Ganesha))));
        assert!(goal.holds(1.5) && !goal.holds(1.39));
    }

    #[test]
    fn a_missing_peer_leaves_its_goal_unmeasured() {
        let results = results(&[(SLUICE, &[300.0])]);
        let goal = PeerGoal {
            who: ServerKind::Sluice,
            beside: &[ServerKind::Diod],
            bound: PeerBound::Times(3.5),
        };
        assert_eq!(results.reached("row", &goal), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
