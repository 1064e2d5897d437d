//! Formats tables of plain text: columns as wide as their widest cell, two spaces between.

/// Formats a head and rows as aligned text; the columns of `right` (from 0) are right-aligned.
pub(crate) fn aligned(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut lines = vec![head.iter().map(|cell| cell.to_string()).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".into(), "7".into()], vec!["long".into(), "1234".into()]];
        assert_eq!(aligned(&["N", "OPS"], &[1], rows), "N      OPS\na        7\nlong  1234\n");
    }
}
