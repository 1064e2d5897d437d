//! The blocks of a document: indented by four spaces, or fenced, each under its heading.

/// A block of text that stands apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The text of the last heading of the second level before it.
    pub(crate) section: String,
    /// Its first line's number in the document.
    pub(crate) line: usize,
    /// What a fence says it is; none of an indented block.
    pub(crate) language: Option<String>,
    pub(crate) text: String,
}

/// The blocks of a document in their order.
pub(crate) fn blocks(document: &str) -> Vec<Block> {
    let (mut blocks, mut section): (Vec<Block>, _) = (Vec::new(), String::new());
    let mut open: Option<Block> = None;
    let mut after_empty = true;
    for (nth, line) in document.lines().enumerate() {
        let fenced = open.as_ref().is_some_and(|block| block.language.is_some());
        let begin = |language: Option<&str>, line| {
            let (section, language) = (section.clone(), language.map(str::to_owned));
            Block { section, line, language, text: String::new() }
        };
        match (line.strip_prefix("```"), line.strip_prefix("    "), &mut open) {
            (Some(_), _, Some(_)) if fenced => blocks.extend(open.take()),
            (_, _, Some(block)) if fenced => block.text += &format!("{line}\n"),
            (Some(language), ..) => open = Some(begin(Some(language), nth + 2)),
            (_, Some(line), Some(block)) => block.text += &format!("{line}\n"),
            (_, Some(line), None) if after_empty => {
                let text = format!("{line}\n");
                open = Some(Block { text, ..begin(None, nth + 1) });
            }
            (_, None, Some(block)) if line.is_empty() => block.text.push('\n'),
            _ => blocks.extend(open.take()),
        }
        if let (Some(heading), None) = (line.strip_prefix("## "), &open) {
            section = heading.into();
        }
        after_empty = line.is_empty();
    }
    blocks.extend(open.take());
    blocks.iter_mut().for_each(|block| block.text.truncate(block.text.trim_end().len()));
    blocks
}

#[test]
fn blocks_are_found_with_their_sections_and_lines() {
    let document =
        "# T\n\nText\n    no block\n\n    a\n\n      b\n\n## S\n\n```toml\nx = 1\n```\nend\n";
    let found = blocks(document);
    let told: Vec<_> =
        found.iter().map(|b| (b.section.as_str(), b.line, b.text.as_str())).collect();
    assert_eq!(told, [("", 6, "a\n\n  b"), ("S", 13, "x = 1")]);
    assert_eq!(found[1].language.as_deref(), Some("toml"));
}
