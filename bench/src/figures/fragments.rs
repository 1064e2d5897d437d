//! Figures within other documents: tables between two comments, made from what is stored.
//!
//! ```text
//!   <!-- figures: peers/read-4k-1x64 ops_per_s p99_us -->
//!   …
//!   <!-- end of figures -->
//! ```
//!
//! A line for each contender of the row, a column for each measure: the median and the spread.

use anyhow::{Context as _, bail};

use super::judge::measured;
use super::row::{FigureRow, number, unit_of};
use super::store::FigureStore;

/// The document with its tables made again.
///
/// # Errors
/// If a table names a row or a measure that is not there, or has no end.
pub(crate) fn fill(
    document: &str,
    rows: &[FigureRow],
    store: &FigureStore,
) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(named) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        text.push_str(&table(named, rows, store).with_context(|| line.to_owned())?);
        let end = lines.find(|line| *line == END);
        text.push_str(end.with_context(|| format!("{line} without {END}"))?);
        text.push('\n');
    }
    Ok(text)
}

fn table(named: &str, rows: &[FigureRow], store: &FigureStore) -> anyhow::Result<String> {
    let words: Vec<&str> = named.split(' ').collect();
    let [id, measures @ ..] = words.as_slice() else { bail!("no row is named") };
    let row = rows.iter().find(|row| row.id == *id);
    let row = row.with_context(|| format!("no row is named {id}"))?;
    let mut text = String::from("\n|");
    for measure in measures {
        let (name, unit) = unit_of(measure).with_context(|| format!("{measure} has no unit"))?;
        let words = [name.as_str(), unit];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        text.push_str(&format!(" | {}", words.join(", ")));
    }
    text.push_str(&format!(" |\n|---|{}\n", "---:|".repeat(measures.len())));
    for who in &row.contenders {
        text.push_str(&format!("| {who}"));
        for measure in measures {
            let found = store.row(id).and_then(|stored| measured(stored, who, measure));
            let cell = match found {
                None => "–".into(),
                Some(spread) if spread.rounds == 1 => number(spread.median),
                Some(spread) => format!(
                    "{} ({}–{})",
                    number(spread.median),
                    number(spread.least),
                    number(spread.most)
                ),
            };
            text.push_str(&format!(" | {cell}"));
        }
        text.push_str(" |\n");
    }
    text.push('\n');
    Ok(text)
}

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

#[cfg(test)]
mod tests {
    use super::super::row::FigureSample;
    use super::super::store::{RowKey, StoredRound};
    use super::*;

    fn filled(document: &str) -> anyhow::Result<String> {
        let rows = [FigureRow::new("a/b", "", &["sluice", "diod"])];
        let mut store = FigureStore::default();
        for value in [3.0, 1.0, 2.0] {
            let sample = FigureSample::from([("ops_per_s".into(), value)]);
            let samples = [("sluice".into(), sample)].into();
            let round = StoredRound { samples, ..StoredRound::default() };
            store.row_mut("a/b", &RowKey::default()).rounds.push(round);
        }
        fill(document, &rows, &store)
    }

    #[test]
    fn a_table_is_made_again_and_the_rest_is_left() {
        let document = |table: &str| {
            format!(
                "before\n<!-- figures: a/b ops_per_s -->\n{table}<!-- end of figures -->\nafter\n"
            )
        };
        let made = filled(&document("old\n")).unwrap();
        let table = "\n| | ops/s |\n|---|---:|\n| sluice | 2 (1–3) |\n| diod | – |\n\n";
        assert_eq!(made, document(table));
        assert_eq!(filled(&made).unwrap(), made);
    }

    #[test]
    fn a_table_that_cannot_be_made_is_named() {
        let error =
            filled("<!-- figures: a/c ops_per_s -->\n<!-- end of figures -->\n").unwrap_err();
        let told = "<!-- figures: a/c ops_per_s -->: no row is named a/c";
        assert_eq!(format!("{error:#}"), told);
        assert!(filled("<!-- figures: a/b ops_per_s -->\n").is_err());
    }
}
