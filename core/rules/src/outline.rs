//! The positions of each rule and each of its keys in a rule file's text, so that one of them can
//! be changed and the rest stays as it was written.
//!
//! ```text
//!   # about the rule                ┐ the lines of a piece: its head and its keys, the comments
//!   [[rule]]                        │ right above the head and those right below the last key
//!   name = "a"                      │
//!   limit = "1MB/s"       # why     │
//!   # while the old array is used   ┘
//!   └ at ─────────┘
//!           └ value ┘
//! ```
//!
//! Blank lines and separate comments between pieces belong to no rule and stay where they are.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The `[[rule]]` sections of a file, in its order.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) rules: Vec<OutlinePiece>,
}

/// One section of a rule file.
#[derive(Debug)]
pub(super) struct OutlinePiece {
    pub(super) name: String,
    /// Byte range of the section in the file, rounded to whole lines.
    pub(super) lines: Range<usize>,
    pub(super) keys: Vec<OutlineKey>,
    /// From the head's first byte to the last value's last one.
    content: Range<usize>,
}

/// One key of a section.
#[derive(Debug)]
pub(super) struct OutlineKey {
    pub(super) name: String,
    /// From the key's first byte to the value's last one.
    pub(super) at: Range<usize>,
    pub(super) value: Range<usize>,
    /// Whether it is written `key = value`: not as `key.part = value`, and not as a table of its
    /// own.
    pub(super) plain: bool,
}

impl Outline {
    /// The outline of a text that is a rule file.
    ///
    /// # Errors
    /// If a section is not a run of lines, with the way in which it is written.
    pub(super) fn of(source: &str) -> Result<Outline, &'static str> {
        let Ok(document) = DeTable::parse(source) else { return Err("the file is not TOML") };
        let mut rules = pieces(source, document.get_ref(), "rule")?;
        let mut meters = pieces(source, document.get_ref(), "meter")?;
        let mut decays = pieces(source, document.get_ref(), "decay")?;
        let others = meters.iter_mut().chain(&mut decays);
        let mut all: Vec<&mut OutlinePiece> = rules.iter_mut().chain(others).collect();
        all.sort_by_key(|piece| piece.content.start);
        let mut above = 0;
        for piece in &mut all {
            if piece.content.start < above {
                return Err("a section continues after another one");
            }
            piece.lines.start =
                comments_above(source, line_start(source, piece.content.start), above);
            above = line_end(source, piece.content.end);
        }
        for at in 0..all.len() {
            let below = all.get(at + 1).map_or(source.len(), |next| next.lines.start);
            all[at].lines.end =
                comments_below(source, line_end(source, all[at].content.end), below);
        }
        Ok(Outline { rules })
    }

    pub(super) fn position_of(&self, name: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.name == name)
    }
}

impl OutlinePiece {
    pub(super) fn key(&self, name: &str) -> Option<&OutlineKey> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The beginning of the line that contains `at`.
pub(super) fn line_start(source: &str, at: usize) -> usize {
    source[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The end of the line that contains `at`, its newline included.
pub(super) fn line_end(source: &str, at: usize) -> usize {
    source[at..].find('\n').map_or(source.len(), |newline| at + newline + 1)
}

fn pieces(source: &str, file: &DeTable<'_>, key: &str) -> Result<Vec<OutlinePiece>, &'static str> {
    let Some(all) = file.get(key).and_then(|value| value.get_ref().as_array()) else {
        return Ok(Vec::new());
    };
    all.iter().map(|section| piece(source, section)).collect()
}

fn piece(source: &str, section: &Spanned<DeValue<'_>>) -> Result<OutlinePiece, &'static str> {
    let head = section.span();
    let Some(table) = section.get_ref().as_table() else { return Err("a section is not a table") };
    if !source[head.clone()].starts_with("[[") {
        return Err("its sections are in one list and not below headers such as [[rule]]");
    }
    let name = table.get("name").and_then(|name| name.get_ref().as_str()).unwrap_or_default();
    let keys = table.iter().map(|(key, value)| {
        let at = value.span();
        let inline = !value.get_ref().is_table() || source[at.clone()].starts_with('{');
        let name: &str = key.get_ref();
        OutlineKey { name: name.into(), at: key.span().start..at.end, value: at, plain: inline }
    });
    let content = head.start..end_of(section);
    Ok(OutlinePiece { name: name.into(), lines: content.clone(), keys: keys.collect(), content })
}

/// The last byte of a value and of all its parts, which may be written in other places.
fn end_of(value: &Spanned<DeValue<'_>>) -> usize {
    let within = match value.get_ref() {
        DeValue::Table(table) => table.iter().map(|(_, inner)| end_of(inner)).max(),
        _ => None,
    };
    value.span().end.max(within.unwrap_or(0))
}

/// Where the lines of comment begin that end at `from`; not before `limit`.
fn comments_above(source: &str, mut from: usize, limit: usize) -> usize {
    while from > limit {
        let above = line_start(source, from - 1);
        if !is_comment(&source[above..from]) {
            break;
        }
        from = above;
    }
    from
}

/// Where the lines of comment end that begin at `from`; not behind `limit`.
fn comments_below(source: &str, mut from: usize, limit: usize) -> usize {
    while from < limit {
        let below = line_end(source, from);
        if !is_comment(&source[from..below]) {
            break;
        }
        from = below;
    }
    from
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}
