//! Markdown links: the file is there, and so is the heading.
//!
//! ```text
//!   [text](target#anchor) ─┬─ https:, mailto: ─► not checked
//!                          ├─ target: a file or folder, as seen from the document's folder
//!                          └─ anchor: a heading of that document, as GitHub names it
//! ```

use super::markdown::{anchors, links};
use super::tree::{TidyTree, folder_of, join};
use crate::source::line_of;

/// Links that lead nowhere, a line each.
pub(super) fn check(tree: &TidyTree) -> Vec<String> {
    let documents = tree.texts.iter().filter(|(name, _)| name.ends_with(".md"));
    let found = documents.flat_map(|(name, text)| {
        let judged = links(text).into_iter().filter_map(move |(at, target)| {
            let why = judge(tree, name, &target)?;
            Some(format!("{name}:{}: {why}", line_of(text, at)))
        });
        judged.collect::<Vec<_>>()
    });
    found.collect()
}

fn judge(tree: &TidyTree, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => from.to_string(),
        path => join(folder_of(from), path).unwrap_or_default(),
    };
    if !tree.has(&file) {
        return Some(format!("link to {path}, which does not exist"));
    }
    let headings = tree.texts.get(&file).map(|text| anchors(text)).unwrap_or_default();
    (!anchor.is_empty() && !headings.iter().any(|heading| heading == anchor))
        .then(|| format!("link to {target}: {file} has no such heading"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_folders_and_headings_are_let_through() {
        let text = "[a](b.md) [b](b.md#one-two) [c](../README.md) [d](algorithms/) [e](#here)\n# Here\n\
                    [f](https://example.org/x) `[g](none.md)`";
        let tree = TidyTree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", "## One two\n"),
            ("README.md", ""),
            ("docs/algorithms/x.md", ""),
        ]);
        assert_eq!(check(&tree), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_named_with_their_line() {
        let text = "\n[a](none.md)\n[b](b.md#two) [c](../../x.md)";
        let tree = TidyTree::of(&[("docs/a.md", text), ("docs/b.md", "# One\n")]);
        assert_eq!(
            check(&tree),
            [
                "docs/a.md:2: link to none.md, which does not exist",
                "docs/a.md:3: link to b.md#two: docs/b.md has no such heading",
                "docs/a.md:3: link to ../../x.md, which does not exist",
            ]
        );
    }
}
