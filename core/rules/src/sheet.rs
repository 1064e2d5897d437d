//! A rule file's text with the positions of its rules and keys, so that one of them can be changed
//! and the rest stays as it was written.
//!
//! ```text
//!   # about the rule                ┐ the lines of a rule: its head and its keys, the comments
//!   [[rule]]                        │ right above the head and those right below the last key
//!   name = "a"                      │
//!   limit = "1MB/s"       # why     │
//!   # while the old array is used   ┘
//! ```
//!
//! Blank lines and separate comments between sections belong to no rule and stay where they are.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{KeyEdit, RuleEditError, RulePosition, RuleSet, export, file};

/// A text and its `[[rule]]` sections, in its order.
pub(super) struct Sheet<'t> {
    text: &'t str,
    nl: &'static str,
    rules: Vec<SheetRule<'t>>,
}

/// One rule of a rule file.
struct SheetRule<'t> {
    name: &'t str,
    /// Byte range of the section in the file, rounded to whole lines.
    lines: Range<usize>,
    table: &'t DeTable<'t>,
}

impl<'t> Sheet<'t> {
    /// The sheet of a text that is a rule file.
    ///
    /// # Errors
    /// [`RuleEditError::Unfit`] if a section is not a run of lines.
    pub(super) fn new(
        text: &'t str,
        document: &'t DeTable<'t>,
    ) -> Result<Sheet<'t>, RuleEditError> {
        let sections = |kind: &'static str| {
            let list = document.get(kind).and_then(|list| list.get_ref().as_array());
            list.into_iter().flat_map(|list| list.iter()).map(move |section| (kind, section))
        };
        let mut sections: Vec<_> =
            ["rule", "meter", "decay"].into_iter().flat_map(sections).collect();
        if sections.iter().any(|(_, section)| !text[section.span()].starts_with("[[")) {
            return Err(unfit(
                "its sections are in one list and not below headers such as [[rule]]",
            ));
        }
        sections.sort_by_key(|(_, section)| section.span().start);
        let (mut lines, mut above) = (Vec::new(), 0);
        for (_, section) in &sections {
            let start = line_start(text, section.span().start);
            if start < above {
                return Err(unfit("a section continues after another one"));
            }
            let comments = comments(text[above..start].split_inclusive('\n').rev());
            above = line_end(text, end_of(section));
            lines.push(start - comments..above);
        }
        for at in 0..lines.len() {
            let below = lines.get(at + 1).map_or(text.len(), |next| next.start);
            lines[at].end += comments(text[lines[at].end..below].split_inclusive('\n'));
        }
        let rules = sections.into_iter().zip(lines).filter(|((kind, _), _)| *kind == "rule");
        let rules = rules.filter_map(|((_, section), lines)| {
            let table = section.get_ref().as_table()?;
            let name = table.get("name")?.get_ref().as_str()?;
            Some(SheetRule { name, lines, table })
        });
        Ok(Sheet { text, nl: newline(text), rules: rules.collect() })
    }

    pub(super) fn start(
        &self,
        name: &str,
        keys: &[KeyEdit],
        position: &RulePosition,
    ) -> Result<String, RuleEditError> {
        if let Some(rule) = self.rules.iter().find(|rule| rule.name == name) {
            let before = &self.text[..rule.table["name"].span().start];
            let line = before.matches('\n').count() + 1;
            return Err(RuleEditError::Exists { name: name.into(), line });
        }
        let nl = self.nl;
        let mut section = format!("[[rule]]{nl}name = {}{nl}", export::text(name));
        for KeyEdit { key, value } in in_file_order(keys) {
            if let Some(value) = value {
                section += &format!("{key} = {value}{nl}");
            }
        }
        let at = match (name, position) {
            (RuleSet::DEFAULT, RulePosition::Before(_)) => {
                return Err(RuleEditError::DefaultPosition);
            }
            (RuleSet::DEFAULT, _) => self.rules.len(),
            _ => self.position_index(position)?,
        };
        Ok(self.insert(at, &section))
    }

    pub(super) fn change(&self, name: &str, keys: &[KeyEdit]) -> Result<String, RuleEditError> {
        let rule = &self.rules[self.index_of(name)?];
        if keys.is_empty() {
            return Err(RuleEditError::Empty);
        }
        let mut swaps: Vec<(Range<usize>, String)> = Vec::new();
        for KeyEdit { key, value } in in_file_order(keys) {
            swaps.extend(self.swap(rule, key, value.as_deref())?);
        }
        swaps.sort_by_key(|(at, _)| at.start);
        let mut text = self.text.to_owned();
        // From the end, so that earlier positions stay valid; of those at one position the last
        // first.
        for (at, new) in swaps.into_iter().rev() {
            text.replace_range(at, &new);
        }
        Ok(text)
    }

    pub(super) fn stop(&self, name: &str, set: &RuleSet) -> Result<String, RuleEditError> {
        let rule = &self.rules[self.index_of(name)?];
        let depends =
            |rule: &&super::Rule| rule.depends_on.as_ref().is_some_and(|d| d.rule == name);
        let by: Vec<String> = set.rules.iter().filter(depends).map(|r| r.name.clone()).collect();
        if !by.is_empty() {
            return Err(RuleEditError::Needed { name: name.into(), by });
        }
        Ok(self.without(rule))
    }

    pub(super) fn rank(
        &self,
        name: &str,
        position: &RulePosition,
    ) -> Result<String, RuleEditError> {
        let rule = &self.rules[self.index_of(name)?];
        // With this rule still among them, so that an error lists every rule.
        self.position_index(position)?;
        match (name, position) {
            (_, RulePosition::Before(next)) if next == name => return Ok(self.text.into()),
            (RuleSet::DEFAULT, RulePosition::Last) => return Ok(self.text.into()),
            (RuleSet::DEFAULT, _) => return Err(RuleEditError::DefaultPosition),
            _ => {}
        }
        let text = self.without(rule);
        let document = DeTable::parse(&text).map_err(|_| unfit("the rest would not be TOML"))?;
        let rest = Sheet::new(&text, document.get_ref())?;
        Ok(rest.insert(rest.position_index(position)?, &self.text[rule.lines.clone()]))
    }

    /// The index of a rule that must exist.
    fn index_of(&self, name: &str) -> Result<usize, RuleEditError> {
        let index = self.rules.iter().position(|rule| rule.name == name);
        index.ok_or_else(|| match name {
            RuleSet::DEFAULT => RuleEditError::NoDefault,
            _ => {
                let names = self.rules.iter().map(|rule| rule.name.into()).collect();
                RuleEditError::NoRule { name: name.into(), names }
            }
        })
    }

    /// The number of rules before a position.
    fn position_index(&self, position: &RulePosition) -> Result<usize, RuleEditError> {
        match position {
            RulePosition::First => Ok(0),
            RulePosition::Before(next) => self.index_of(next),
            RulePosition::Last => Ok(self.index_of(RuleSet::DEFAULT).unwrap_or(self.rules.len())),
        }
    }

    /// The text with an additional section.
    fn insert(&self, index: usize, section: &str) -> String {
        let (text, nl) = (self.text, self.nl);
        if let Some(next) = self.rules.get(index) {
            let (before, after) = text.split_at(next.lines.start);
            return format!("{before}{section}{nl}{after}");
        }
        let at = self.rules.last().map_or(text.len(), |last| last.lines.end);
        let between = if at == 0 { "" } else { nl };
        format!("{}{between}{section}{}", &text[..at], &text[at..])
    }

    /// The text without a section, and without one of the gaps around it.
    fn without(&self, rule: &SheetRule<'_>) -> String {
        let nl = self.nl;
        let (before, after) = (&self.text[..rule.lines.start], &self.text[rule.lines.end..]);
        let gap = before.is_empty() || before.ends_with(&format!("{nl}{nl}"));
        let after = if gap { after.trim_start_matches(['\r', '\n']) } else { after };
        match (before.trim_end(), after.trim_start()) {
            ("", _) => after.into(),
            (kept, "") => before[..line_end(before, kept.len())].into(),
            _ => format!("{before}{after}"),
        }
    }

    /// The replacement that gives a key another value.
    fn swap(
        &self,
        rule: &SheetRule<'_>,
        key: &str,
        value: Option<&str>,
    ) -> Result<Option<(Range<usize>, String)>, RuleEditError> {
        let known = self.value_of(rule, key);
        if known.is_none() && rule.table.contains_key(key) {
            let name = rule.name;
            return Err(unfit(&format!("rule {name:?} does not write {key} as {key} = …")));
        }
        Ok(match (known, value) {
            (Some(known), Some(value)) => Some((known, value.into())),
            (Some(known), None) => {
                let lines = line_start(self.text, known.start)..line_end(self.text, known.end);
                Some((lines, String::new()))
            }
            (None, Some(value)) => {
                // Behind the last key that usually stands before this one.
                let before = &file::rule_keys()[..key_rank(key)];
                let last = before.iter().rev().find_map(|key| self.value_of(rule, key));
                let at = line_end(self.text, last.expect("every rule has a name").end);
                Some((at..at, format!("{key} = {value}{}", self.nl)))
            }
            (None, None) => None,
        })
    }

    /// The bytes of a value that is written `key = value`, in one line with its key: not as
    /// `key.part = value`, and not below a header of its own.
    fn value_of(&self, rule: &SheetRule<'_>, key: &str) -> Option<Range<usize>> {
        let (key, value) = rule.table.get_key_value(key)?;
        let between = self.text.get(key.span().end..value.span().start)?;
        (between.trim() == "=").then(|| value.span())
    }
}

/// How the text ends its lines.
pub(super) fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

fn unfit(why: &str) -> RuleEditError {
    RuleEditError::Unfit(why.into())
}

/// The keys in the order in which a rule file usually has them.
fn in_file_order(keys: &[KeyEdit]) -> Vec<&KeyEdit> {
    let mut keys: Vec<&KeyEdit> = keys.iter().collect();
    keys.sort_by_key(|edit| key_rank(edit.key));
    keys
}

fn key_rank(key: &str) -> usize {
    let keys = file::rule_keys();
    keys.iter().position(|known| *known == key).unwrap_or(keys.len())
}

/// The beginning of the line that contains `at`.
fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The end of the line that contains `at`, its newline included.
fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1)
}

/// The last byte of a value and of all its parts, which may be written in other places.
fn end_of(value: &Spanned<DeValue<'_>>) -> usize {
    let within = match value.get_ref() {
        DeValue::Table(table) => table.values().map(end_of).max(),
        DeValue::Array(list) => list.iter().map(end_of).max(),
        _ => None,
    };
    value.span().end.max(within.unwrap_or(0))
}

/// The length of the comments with which these lines begin.
fn comments<'t>(lines: impl Iterator<Item = &'t str>) -> usize {
    lines.take_while(|line| line.trim_start().starts_with('#')).map(str::len).sum()
}
