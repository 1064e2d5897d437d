//! What a figure is: a load, who runs it, and what is to be reached.
//!
//! ```text
//!   FigureRow: a load and its contenders ─► a FigureSample of each, in every round
//!   FigureGoal: one measure of one contender ─► a bound, alone or beside others of the row
//! ```
//!
//! Contenders are known by the name of what runs: where two of them differ in one setting, they
//! differ in their name. Measures are named with their unit, which ends the name
//! (`ops_per_s`, `server_us`, `error_percent`).

use std::collections::BTreeMap;

/// What one contender came to in one round: a value for each measure.
pub(crate) type FigureSample = BTreeMap<String, f64>;

/// Makes a sample of these measures.
pub(crate) fn sample<const N: usize>(measures: [(&str, f64); N]) -> FigureSample {
    measures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// One load and everyone who runs it: what is measured, stored and resumed as one.
#[derive(Clone, Debug)]
pub(crate) struct FigureRow {
    /// `group/name`, in lower case letters, digits and hyphens.
    pub(crate) id: String,
    /// The load and its conditions, in a line.
    pub(crate) what: String,
    /// Names of who runs it, the one that it is about first.
    pub(crate) contenders: Vec<String>,
    /// How often all of them are measured.
    pub(crate) rounds: usize,
    /// How long one of them is measured in a round, in seconds.
    pub(crate) seconds: f64,
    /// What is to be reached; a row without goals is here to be seen.
    pub(crate) goals: Vec<FigureGoal>,
}

/// What one measure of a contender is to reach.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FigureGoal {
    /// The contender that it is about.
    pub(crate) who: String,
    /// The name of the measure.
    pub(crate) measure: &'static str,
    /// What it is to reach.
    pub(crate) bound: FigureBound,
    /// Contenders of the same row that it is compared with; of several, the best one counts.
    pub(crate) beside: Vec<String>,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FigureBound {
    /// At least this value.
    Least(f64),
    /// At most this value.
    Most(f64),
    /// At most this far from zero.
    Within(f64),
    /// At most this many per cent away from the value.
    Near { value: f64, percent: f64 },
    /// At least this many times the greatest of the others.
    TimesLeast(f64),
    /// At most this many times the least of the others.
    TimesMost(f64),
}

impl FigureRow {
    /// Makes a row of five rounds of a second each, without goals.
    pub(crate) fn new(id: &str, what: &str, contenders: &[&str]) -> FigureRow {
        FigureRow {
            id: id.into(),
            what: what.into(),
            contenders: contenders.iter().map(|name| (*name).into()).collect(),
            rounds: 5,
            seconds: 1.0,
            goals: Vec::new(),
        }
    }

    /// Adds a goal of a contender alone.
    pub(crate) fn goal(
        mut self,
        who: &str,
        measure: &'static str,
        bound: FigureBound,
    ) -> FigureRow {
        self.goals.push(FigureGoal { who: who.into(), measure, bound, beside: Vec::new() });
        self
    }

    /// Adds a goal of a contender beside others.
    pub(crate) fn beside(
        mut self,
        who: &str,
        measure: &'static str,
        bound: FigureBound,
        beside: &[&str],
    ) -> FigureRow {
        let beside = beside.iter().map(|name| (*name).into()).collect();
        self.goals.push(FigureGoal { who: who.into(), measure, bound, beside });
        self
    }

    /// Sets how often all contenders are measured, and how many seconds each.
    pub(crate) fn rounds(self, rounds: usize, seconds: f64) -> FigureRow {
        FigureRow { rounds, seconds, ..self }
    }

    /// Leaves out contenders that are not among `names`, and goals that need one of these.
    pub(crate) fn keep(&mut self, names: &[String]) {
        self.contenders.retain(|name| names.contains(name));
        let is_kept = |name: &String| names.contains(name);
        self.goals.retain(|goal| is_kept(&goal.who) && goal.beside.iter().all(is_kept));
    }

    /// How long a round takes by its span, in seconds; what it needs to begin comes on top.
    pub(crate) fn round_s(&self) -> f64 {
        self.seconds * self.contenders.len() as f64
    }

    /// The contenders in the order of a round: each goes first in its turn, because the first one
    /// finds another machine than the last one.
    pub(crate) fn in_turn(&self, round: usize) -> impl Iterator<Item = &str> {
        let all = self.contenders.len();
        (0..all).map(move |at| self.contenders[(round + at) % all].as_str())
    }

    /// The part of the id before the slash.
    pub(crate) fn group(&self) -> &str {
        self.id.split('/').next().unwrap_or_default()
    }
}

impl FigureGoal {
    /// The target in words; it begins with whom it is about.
    pub(crate) fn target(&self) -> String {
        let who = &self.who;
        let (name, unit) = name_and_unit(self.measure);
        let name = if name.is_empty() { String::new() } else { format!(" {name}") };
        let beside = |better: &str| match self.beside.as_slice() {
            [one] => one.clone(),
            all => format!("the {better} of {}", all.join(", ")),
        };
        match self.bound {
            FigureBound::Least(least) => format!("{who}{name} ≥ {}", shown(least, unit)),
            FigureBound::Most(most) => format!("{who}{name} ≤ {}", shown(most, unit)),
            FigureBound::Within(most) => format!("{who}{name} within ± {}", shown(most, unit)),
            FigureBound::Near { value, percent } => {
                format!("{who}{name} {} ± {percent} %", shown(value, unit))
            }
            FigureBound::TimesLeast(times) => {
                format!("{who}{name} ≥ {} × {}", number(times), beside("best"))
            }
            FigureBound::TimesMost(times) => {
                format!("{who}{name} ≤ {} × {}", number(times), beside("least"))
            }
        }
    }

    /// What is judged, of one round's samples by contender; `None` where one of them is missing.
    pub(crate) fn value_of(&self, samples: &BTreeMap<String, FigureSample>) -> Option<f64> {
        let of = |who: &String| samples.get(who)?.get(self.measure).copied();
        let own = of(&self.who)?;
        let others: Option<Vec<f64>> = self.beside.iter().map(of).collect();
        let others = others?;
        let most = others.iter().copied().max_by(f64::total_cmp);
        let least = others.iter().copied().min_by(f64::total_cmp);
        let value = match self.bound {
            FigureBound::Least(_)
            | FigureBound::Most(_)
            | FigureBound::Within(_)
            | FigureBound::Near { .. } => own,
            FigureBound::TimesLeast(_) => own / most?,
            FigureBound::TimesMost(_) => own / least?,
        };
        value.is_finite().then_some(value)
    }

    /// Whether a value is within the bound.
    pub(crate) fn holds(&self, value: f64) -> bool {
        match self.bound {
            FigureBound::Least(least) | FigureBound::TimesLeast(least) => value >= least,
            FigureBound::Most(most) | FigureBound::TimesMost(most) => value <= most,
            FigureBound::Within(most) => value.abs() <= most,
            FigureBound::Near { value: near, percent } => {
                (value - near).abs() <= near.abs() * percent / 100.0
            }
        }
    }

    /// A judged value, in the unit of its bound.
    pub(crate) fn show(&self, value: f64) -> String {
        match self.bound {
            FigureBound::Least(_)
            | FigureBound::Most(_)
            | FigureBound::Within(_)
            | FigureBound::Near { .. } => shown(value, name_and_unit(self.measure).1),
            FigureBound::TimesLeast(_) | FigureBound::TimesMost(_) => shown(value, "×"),
        }
    }
}

/// A measure in words: `p99_us` is the p99 in µs; `None` if its name ends in no known unit.
pub(crate) fn unit_of(measure: &str) -> Option<(String, &'static str)> {
    UNITS.iter().find_map(|(end, unit)| {
        let before = measure.strip_suffix(end)?;
        let name = match before {
            "" => "",
            _ => before.strip_suffix('_')?,
        };
        Some((name.replace('_', " "), *unit))
    })
}

/// A value with its unit.
pub(crate) fn shown(value: f64, unit: &str) -> String {
    match unit {
        "" => number(value),
        _ => format!("{} {unit}", number(value)),
    }
}

/// A measure with its value, as in `p99 515 µs`.
pub(crate) fn named(measure: &str, value: &str) -> String {
    let (name, unit) = name_and_unit(measure);
    let words = [name.as_str(), value, unit];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// A number with three digits that count, and commas between thousands.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size < 999.5 {
        let digits = match size {
            size if size >= 99.95 => 0,
            size if size >= 9.995 => 1,
            size if size >= 0.1 || size == 0.0 => 2,
            _ => 4,
        };
        let text = format!("{value:.digits$}");
        if !text.contains('.') {
            return text;
        }
        return text.trim_end_matches('0').trim_end_matches('.').into();
    }
    let whole = format!("{size:.0}");
    let groups: Vec<&str> = whole
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|digits| std::str::from_utf8(digits).expect("digits are text"))
        .collect();
    format!("{}{}", if value < 0.0 { "-" } else { "" }, groups.join(","))
}

fn name_and_unit(measure: &str) -> (String, &'static str) {
    unit_of(measure).unwrap_or_else(|| (measure.replace('_', " "), ""))
}

/// Ends of measures and the unit that each stands for; a longer one comes before its own end.
const UNITS: &[(&str, &str)] = &[
    ("ops_per_s", "ops/s"),
    ("mb_per_s", "MB/s"),
    ("gib_per_s", "GiB/s"),
    ("events_per_s", "events/s"),
    ("reports_per_s", "reports/s"),
    ("admissions_per_s", "admissions/s"),
    ("instructions", "instructions"),
    ("requests", "requests"),
    ("percent", "%"),
    ("bytes", "B"),
    ("kib", "KiB"),
    ("mib", "MiB"),
    ("gib", "GiB"),
    ("cores", "cores"),
    ("ratio", ""),
    ("count", ""),
    ("min", "min"),
    ("ns", "ns"),
    ("us", "µs"),
    ("ms", "ms"),
    ("s", "s"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[(&str, f64)]) -> BTreeMap<String, FigureSample> {
        let one = |(who, value): &(&str, f64)| {
            ((*who).to_owned(), FigureSample::from([("ops_per_s".to_owned(), *value)]))
        };
        values.iter().map(one).collect()
    }

    fn goal(bound: FigureBound, beside: &[&str]) -> FigureGoal {
        FigureRow::new("a/b", "", &[]).beside("sluice", "ops_per_s", bound, beside).goals.remove(0)
    }

    #[test]
    fn a_target_beside_two_counts_the_better_one() {
        let goal = goal(FigureBound::TimesLeast(1.4), &["diod", "ganesha"]);
        let value =
            goal.value_of(&samples(&[("sluice", 300.0), ("diod", 100.0), ("ganesha", 200.0)]));
        assert_eq!(value, Some(1.5));
        assert!(goal.holds(1.5) && !goal.holds(1.39));
        assert_eq!(goal.target(), "sluice ≥ 1.4 × the best of diod, ganesha");
        assert_eq!(goal.show(1.5), "1.5 ×");
    }

    #[test]
    fn whoever_is_missing_leaves_a_target_without_a_value() {
        let goal = goal(FigureBound::TimesLeast(3.5), &["diod"]);
        assert_eq!(goal.value_of(&samples(&[("sluice", 300.0)])), None);
        assert_eq!(goal.value_of(&samples(&[("sluice", 300.0), ("diod", 0.0)])), None);
    }

    #[test]
    fn bounds_hold_up_to_their_own_value() {
        let near = goal(FigureBound::Near { value: 150.0, percent: 2.0 }, &[]);
        assert!(near.holds(153.0) && near.holds(147.0) && !near.holds(153.1));
        assert_eq!(near.target(), "sluice 150 ops/s ± 2 %");
        assert!(goal(FigureBound::TimesMost(0.2), &["off"]).holds(0.2));
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let all = [(250_345.4, "250,345"), (999.6, "1,000"), (4.876, "4.88"), (45.67, "45.7")];
        for (value, text) in all {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(-1234.0), "-1,234");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(0.0123), "0.0123");
        assert_eq!(number(500.0), "500");
    }

    #[test]
    fn a_measure_ends_in_its_unit() {
        assert_eq!(unit_of("heavy_mb_per_s"), Some(("heavy".into(), "MB/s")));
        assert_eq!(unit_of("p99_us"), Some(("p99".into(), "µs")));
        assert_eq!(unit_of("seconds"), None);
        assert_eq!(named("ops_per_s", "12"), "12 ops/s");
    }

    #[test]
    fn each_contender_goes_first_in_its_turn() {
        let row = FigureRow::new("a/b", "", &["x", "y", "z"]);
        assert_eq!(row.in_turn(4).collect::<Vec<_>>(), ["y", "z", "x"]);
    }
}
