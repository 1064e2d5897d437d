//! Markdown as the chores read it: links, headings, and what stands in backquotes.
//!
//!   text ─► prose(): fenced blocks and code spans become spaces ─► links, headings
//!        └► spans(): code spans of the prose
//!
//! Not a parser: no indented code (a list's second paragraph looks like it), no HTML, no
//! reference links.

/// The text with fenced blocks overwritten by spaces; newlines stay.
pub(super) fn without_fences(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        let inside = fence.is_some();
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
        if inside || mark.is_some() {
            out.extend(line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            out.push_str(line);
        }
    }
    out
}

/// Code spans outside of fences: where each begins and what it holds.
pub(super) fn spans(text: &str) -> Vec<(usize, String)> {
    let prose = without_fences(text);
    code_ranges(&prose).into_iter().map(|(start, end)| (start, prose[start..end].into())).collect()
}

/// Inline links outside of code: where each begins, and its target.
pub(super) fn links(text: &str) -> Vec<(usize, String)> {
    let prose = prose(text);
    let found = prose.match_indices("](").filter_map(|(at, _)| {
        let target = &prose[at + 2..];
        let target = target[..target.find(')')?].split_whitespace().next()?;
        Some((at, target.trim_matches(['<', '>']).to_string()))
    });
    found.collect()
}

/// The anchors of a document's headings, as GitHub makes them.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let prose = without_fences(text);
    let headings = prose.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        ((1..=6).contains(&level) && title.starts_with(' ')).then(|| slug(title.trim()))
    });
    let mut found: Vec<String> = Vec::new();
    for heading in headings {
        let again = (1..).map(|count| format!("{heading}-{count}"));
        let free = std::iter::once(heading.clone()).chain(again).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// Letters, digits, `-` and `_` stay, a space is a `-`, the rest goes.
fn slug(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(super) fn prose(text: &str) -> String {
    let mut prose = without_fences(text);
    for (start, end) in code_ranges(&prose).into_iter().rev() {
        let blank: String =
            prose[start..end].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect();
        prose.replace_range(start..end, &blank);
    }
    prose
}

/// Where code spans of one backquote begin and end; one that no line of its paragraph closes is none.
fn code_ranges(prose: &str) -> Vec<(usize, usize)> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Some(open) = prose[at..].find('`').map(|found| at + found + 1) {
        let rest = &prose[open..];
        let end = rest.find("\n\n").unwrap_or(rest.len());
        match rest[..end].find('`') {
            Some(length) => {
                ranges.push((open, open + length));
                at = open + length + 1;
            }
            None => at = open,
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) ![p](p.png \"title\")\n`[x](y)`\n```\n[z](w)\n```\n[q](<r.md>)\n";
        let targets: Vec<_> = links(text).into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, ["b.md#c", "p.png", "r.md"]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text =
            "# Why is it slow here?\n## `[[rule]]`: a, b_c\n### x\n### x\n```\n# not\n```\n#no\n";
        assert_eq!(anchors(text), ["why-is-it-slow-here", "rule-a-b_c", "x", "x-1"]);
    }

    #[test]
    fn code_spans_have_their_place_and_may_span_lines() {
        let text = "a `b` ``\n`c\nd` ` e\n\nf ` g\n";
        let found: Vec<_> = spans(text).into_iter().map(|(_, span)| span).collect();
        assert_eq!(found, ["b", "", "c\nd"]);
        assert_eq!(spans(text)[0].0, 3);
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n~~~\nb\n~~~\nc\n";
        assert_eq!(without_fences(text).matches('\n').count(), 5);
        assert!(!without_fences(text).contains('b'));
    }
}
