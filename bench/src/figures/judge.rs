//! What the samples of a row say of its goals: the median of the rounds, and how far they differ.
//!
//! A ratio is judged within each round, and the median of these is what was reached: what slows the
//! machine for a minute slows both sides.

use super::row::{FigureGoal, FigureRow};
use super::store::StoredRow;

/// What came of a goal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FigureVerdict {
    /// The median is within the bound.
    Met(Spread),
    /// The median is outside the bound.
    Missed(Spread),
    /// There is no value, and this is why.
    NotMeasured(String),
    /// It has no meaning on this machine, and this is why.
    NotApplicable(String),
}

/// Values of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The number of rounds with a value.
    pub(crate) rounds: usize,
    /// How many of them are within the bound by themselves.
    pub(crate) met: usize,
}

impl FigureVerdict {
    /// The values, if there are any.
    pub(crate) fn spread(&self) -> Option<Spread> {
        match self {
            FigureVerdict::Met(spread) | FigureVerdict::Missed(spread) => Some(*spread),
            _ => None,
        }
    }

    /// The verdict in a word or two.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            FigureVerdict::Met(_) => "met",
            FigureVerdict::Missed(_) => "**missed**",
            FigureVerdict::NotMeasured(_) => "not measured",
            FigureVerdict::NotApplicable(_) => "not applicable",
        }
    }
}

/// Judges a goal by what is stored of its row.
pub(crate) fn judge(goal: &FigureGoal, stored: Option<&StoredRow>) -> FigureVerdict {
    let Some(stored) = stored else {
        return FigureVerdict::NotMeasured("never measured".into());
    };
    if let Some(why) = &stored.not_applicable {
        return FigureVerdict::NotApplicable(why.clone());
    }
    let rounds = stored.rounds.iter();
    let values: Vec<f64> = rounds.filter_map(|round| goal.value_of(&round.samples)).collect();
    let met = values.iter().filter(|value| goal.holds(**value)).count();
    match spread(values) {
        None => FigureVerdict::NotMeasured(reason(goal, stored)),
        Some(spread) if goal.holds(spread.median) => FigureVerdict::Met(Spread { met, ..spread }),
        Some(spread) => FigureVerdict::Missed(Spread { met, ..spread }),
    }
}

/// The spread of a contender's measure; `None` where there is no sample of it.
pub(crate) fn measured(stored: &StoredRow, who: &str, measure: &str) -> Option<Spread> {
    let rounds = stored.rounds.iter();
    let values = rounds.filter_map(|round| round.samples.get(who)?.get(measure).copied());
    spread(values.collect())
}

/// The value in the middle, or the mean of the two there.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn spread(values: Vec<f64>) -> Option<Spread> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    let rounds = values.len();
    Some(Spread { median: median(values)?, least, most, rounds, met: 0 })
}

/// Why a goal has no value: what failed with those that it needs.
fn reason(goal: &FigureGoal, stored: &StoredRow) -> String {
    let needs = |who: &str| who == goal.who || goal.beside.iter().any(|name| name == who);
    let failed = stored.failed.iter().rev();
    let mut failed = failed.filter(|failure| failure.who.as_deref().is_none_or(needs));
    if let Some(failure) = failed.next() {
        let who = failure.who.as_deref().unwrap_or("the round");
        return format!("{who}: {}", failure.why);
    }
    match stored.void.last() {
        Some(void) => format!("{} void rounds, the last one: {}", stored.void.len(), void.why),
        None => "no round has all that it compares".into(),
    }
}

/// Whether a row has all the rounds that it is to have.
pub(crate) fn is_complete(row: &FigureRow, stored: Option<&StoredRow>) -> bool {
    stored
        .is_some_and(|stored| stored.not_applicable.is_some() || stored.rounds.len() >= row.rounds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::figures::row::{FigureBound, FigureSample};
    use crate::figures::store::{StoredFailure, StoredRound};

    fn stored(rounds: &[&[(&str, f64)]]) -> StoredRow {
        let one = |(who, value): &(&str, f64)| {
            ((*who).to_owned(), FigureSample::from([("ops_per_s".to_owned(), *value)]))
        };
        let round = |values: &&[(&str, f64)]| StoredRound {
            samples: values.iter().map(one).collect::<BTreeMap<_, _>>(),
            ..StoredRound::default()
        };
        StoredRow { rounds: rounds.iter().map(round).collect(), ..StoredRow::default() }
    }

    fn goal() -> FigureGoal {
        let row = FigureRow::new("a/b", "", &["sluice", "diod"]);
        row.beside("sluice", "ops_per_s", FigureBound::TimesLeast(3.5), &["diod"]).goals.remove(0)
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_and_not_of_the_figures() {
        // The machine runs at half speed in the second round, for both.
        let rounds: [&[(&str, f64)]; 3] = [
            &[("sluice", 400.0), ("diod", 100.0)],
            &[("sluice", 200.0), ("diod", 50.0)],
            &[("sluice", 200.0), ("diod", 100.0)],
        ];
        let spread = Spread { median: 4.0, least: 2.0, most: 4.0, rounds: 3, met: 2 };
        assert_eq!(judge(&goal(), Some(&stored(&rounds))), FigureVerdict::Met(spread));
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let not = |why: &str| FigureVerdict::NotMeasured(why.into());
        assert_eq!(judge(&goal(), None), not("never measured"));
        let mut row = stored(&[&[("sluice", 400.0)]]);
        assert_eq!(judge(&goal(), Some(&row)), not("no round has all that it compares"));
        let failure = |who: Option<&str>, why: &str| StoredFailure {
            who: who.map(String::from),
            at: String::new(),
            why: why.into(),
        };
        row.void.push(failure(None, "the generator ran dry"));
        let told = not("1 void rounds, the last one: the generator ran dry");
        assert_eq!(judge(&goal(), Some(&row)), told);
        row.failed.push(failure(Some("diod"), "diod is not installed"));
        row.failed.push(failure(Some("ganesha"), "no port"));
        assert_eq!(judge(&goal(), Some(&row)), not("diod: diod is not installed"));
        row.not_applicable = Some("too slow".into());
        assert_eq!(judge(&goal(), Some(&row)), FigureVerdict::NotApplicable("too slow".into()));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
