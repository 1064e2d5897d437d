//! Which rows are meant: by a name, by the name of a group, or by either with `*` for any text.

use anyhow::bail;

use super::row::FigureRow;

/// Returns the rows that one of `patterns` means, in their order; all if there is no pattern.
///
/// # Errors
/// If a pattern means no row: the error has names that are like it.
pub(crate) fn choose(
    mut rows: Vec<FigureRow>,
    patterns: &[String],
) -> anyhow::Result<Vec<FigureRow>> {
    for pattern in patterns {
        if !rows.iter().any(|row| is_meant(row, pattern)) {
            bail!(
                "no row and no group is named {pattern}; like it are {}. `*` stands for any text, \
                 `sluice-bench figures list` names all",
                near(&rows, pattern).join(", ")
            );
        }
    }
    rows.retain(|row| patterns.is_empty() || patterns.iter().any(|one| is_meant(row, one)));
    Ok(rows)
}

fn is_meant(row: &FigureRow, pattern: &str) -> bool {
    [row.id.as_str(), row.group()].iter().any(|name| matches(pattern, name))
}

/// Whether `name` is the pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.any(|at| matches(rest, &name[at..]))
}

/// Names of rows and groups that contain the pattern's text, or else those that are spelled
/// most like it.
fn near<'r>(rows: &'r [FigureRow], pattern: &str) -> Vec<&'r str> {
    let text = pattern.replace('*', "");
    let mut names: Vec<&str> = rows.iter().flat_map(|row| [row.group(), row.id.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    let likeness = |name: &str| match name.contains(text.as_str()) {
        true => 1.0,
        false => strsim::normalized_damerau_levenshtein(&text, name),
    };
    names.sort_by(|one, other| likeness(other).total_cmp(&likeness(one)));
    names.truncate(NEAR);
    names
}

/// Names in an error.
const NEAR: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<FigureRow> {
        let ids = ["peers/read-4k", "peers/read-4k-unix", "mount/read-4k", "cost/scrape"];
        ids.iter().map(|id| FigureRow::new(id, "", &[])).collect()
    }

    fn chosen(patterns: &[&str]) -> Vec<String> {
        let patterns: Vec<String> = patterns.iter().map(|one| (*one).into()).collect();
        choose(rows(), &patterns).unwrap().into_iter().map(|row| row.id).collect()
    }

    #[test]
    fn a_name_means_its_row_and_no_other_that_begins_like_it() {
        assert_eq!(chosen(&["peers/read-4k"]), ["peers/read-4k"]);
        assert_eq!(chosen(&["cost", "mount/read-4k"]), ["mount/read-4k", "cost/scrape"]);
        assert_eq!(chosen(&[]).len(), 4);
    }

    #[test]
    fn a_star_stands_for_any_text_and_for_none() {
        assert_eq!(chosen(&["peers/*"]), ["peers/read-4k", "peers/read-4k-unix"]);
        assert_eq!(chosen(&["peers/read-4k*"]), ["peers/read-4k", "peers/read-4k-unix"]);
        assert_eq!(chosen(&["*4k"]), ["peers/read-4k", "mount/read-4k"]);
        assert_eq!(chosen(&["p*4k*x"]), ["peers/read-4k-unix"]);
        assert!(!matches("aa*aa", "aaa") && matches("*", "") && matches("a**b", "ab"));
    }

    #[test]
    fn a_name_of_nothing_is_an_error_with_names_that_are_like_it() {
        let error = |pattern: &str| choose(rows(), &[pattern.into()]).unwrap_err().to_string();
        let said = error("read-4k-unix");
        assert!(said.contains("named read-4k-unix; like it are peers/read-4k-unix,"), "{said}");
        assert!(error("coast").contains("like it are cost,"), "{}", error("coast"));
        assert!(error("limits/*").starts_with("no row and no group is named limits/*"));
    }
}
