//! One table of a rule file, read key by key: every value has its position.
//!
//! toml's own tree is walked instead of deriving `Deserialize`: serde's errors contain the position
//! of a value, but not the position of the fault inside a text.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::error::{RuleFault, RuleProblem};

/// A table, its name for messages and its position in the file.
pub(super) struct Section<'t> {
    pub(super) name: &'static str,
    pub(super) at: Range<usize>,
    table: &'t DeTable<'t>,
}

/// A value out of a table, with the key that leads to it.
#[derive(Clone, Copy)]
pub(super) struct SectionEntry<'t> {
    pub(super) key: &'t str,
    value: &'t Spanned<DeValue<'t>>,
}

impl<'t> Section<'t> {
    /// Creates a section from a table that has only the `known` keys.
    pub(super) fn new(
        name: &'static str,
        table: &'t DeTable<'t>,
        at: Range<usize>,
        known: &[&str],
    ) -> Result<Section<'t>, RuleFault> {
        let unknown = table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|(key, _)| key.span().start) {
            None => Ok(Section { name, at, table }),
            Some((key, _)) => {
                let known = known.join(", ");
                let key_text = key.get_ref().to_string();
                let problem = RuleProblem::UnknownKey { section: name, key: key_text, known };
                Err(RuleFault::new(problem, key.span()))
            }
        }
    }

    pub(super) fn get(&self, key: &'static str) -> Option<SectionEntry<'t>> {
        self.table.get(key).map(|value| SectionEntry { key, value })
    }

    pub(super) fn need(&self, key: &'static str) -> Result<SectionEntry<'t>, RuleFault> {
        let problem = RuleProblem::Missing { section: self.name, key };
        self.get(key).ok_or_else(|| RuleFault::new(problem, self.at.clone()))
    }
}

impl<'t> SectionEntry<'t> {
    pub(super) fn at(&self) -> Range<usize> {
        self.value.span()
    }

    pub(super) fn as_table(&self) -> Option<&'t DeTable<'t>> {
        self.value.get_ref().as_table()
    }

    pub(super) fn as_array(&self) -> Option<&'t DeArray<'t>> {
        self.value.get_ref().as_array()
    }

    pub(super) fn is_text(&self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(super) fn text(&self, want: &'static str) -> Result<&'t str, RuleFault> {
        self.value.get_ref().as_str().ok_or_else(|| self.wrong_type(want))
    }

    pub(super) fn table(&self, want: &'static str) -> Result<&'t DeTable<'t>, RuleFault> {
        self.as_table().ok_or_else(|| self.wrong_type(want))
    }

    /// The elements of a list, each under the list's own key.
    pub(super) fn list(&self, want: &'static str) -> Result<Vec<SectionEntry<'t>>, RuleFault> {
        let array = self.as_array().ok_or_else(|| self.wrong_type(want))?;
        Ok(array.iter().map(|value| SectionEntry { key: self.key, value }).collect())
    }

    pub(super) fn truth(&self) -> Result<bool, RuleFault> {
        self.value.get_ref().as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// A whole number, as TOML allows it to be written.
    pub(super) fn whole(&self, want: &'static str) -> Result<i128, RuleFault> {
        let number = self.value.get_ref().as_integer().and_then(integer);
        number.ok_or_else(|| self.wrong_type(want))
    }

    pub(super) fn fault(&self, problem: RuleProblem) -> RuleFault {
        RuleFault::new(problem, self.at())
    }

    pub(super) fn wrong_type(&self, want: &'static str) -> RuleFault {
        let found = match self.value.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fault(RuleProblem::WrongType { key: self.key.into(), want, found })
    }
}

/// The entries of a table in the order they were written, which toml's map does not keep.
pub(super) fn in_order<'t>(table: &'t DeTable<'t>) -> Vec<(Range<usize>, SectionEntry<'t>)> {
    let entry = |(key, value): (&'t Spanned<_>, &'t Spanned<DeValue<'t>>)| {
        let name: &toml::de::DeString<'t> = key.get_ref();
        (key.span(), SectionEntry { key: name, value })
    };
    let mut entries: Vec<_> = table.iter().map(entry).collect();
    entries.sort_by_key(|(at, _)| at.start);
    entries
}

fn integer(number: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

/// The position in the file of the byte `offset` of a text's value, if the text is written at `at`.
///
/// In `"a\tb"` the value's third byte is the file's fifth: escapes are longer than what
/// they stand for. An offset at the value's end gives the closing quote.
pub(super) fn position_in_text(source: &str, at: &Range<usize>, offset: usize) -> usize {
    let written = &source[at.clone()];
    let mark = &written[..written.len().min(1)];
    let quotes = if written.len() >= 6 && written.starts_with(&mark.repeat(3)) { 3 } else { 1 };
    let mut body = &written[quotes..];
    if quotes == 3 {
        // TOML drops a newline right behind the opening quotes.
        body = body.strip_prefix("\r\n").or(body.strip_prefix('\n')).unwrap_or(body);
    }
    let mut value_at = 0;
    while value_at < offset && !body.is_empty() {
        let (raw, value) = if mark == "\"" { escape(body) } else { plain(body) };
        value_at += value;
        body = &body[raw..];
    }
    at.end - body.len()
}

/// The bytes that the first character takes in the file, and in the value.
fn plain(body: &str) -> (usize, usize) {
    let length = body.chars().next().map_or(0, char::len_utf8);
    (length, length)
}

/// Like [`plain`], where a backslash begins an escape.
fn escape(body: &str) -> (usize, usize) {
    let Some(escaped) = body.strip_prefix('\\') else { return plain(body) };
    let digits = match escaped.as_bytes().first() {
        Some(b'x') => 2,
        Some(b'u') => 4,
        Some(b'U') => 8,
        Some(c) if c.is_ascii_whitespace() => {
            return (body.len() - escaped.trim_ascii_start().len(), 0);
        }
        _ => return (body.len().min(2), 1),
    };
    let code = escaped.get(1..1 + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let length = code.and_then(char::from_u32).map_or(1, char::len_utf8);
    (body.len().min(2 + digits), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value's every `!` must be found where the file has it.
    fn finds_the_mark(source: &str) {
        let table = DeTable::parse(source).unwrap();
        let value = &table.get_ref()["k"];
        let text = value.get_ref().as_str().unwrap();
        let offset = text.find('!').unwrap();
        let place = position_in_text(source, &value.span(), offset);
        assert_eq!(place, source.find('!').unwrap(), "{source:?}");
    }

    #[test]
    fn a_place_in_a_text_is_found_in_the_file() {
        for source in [
            "k = \"ab!\"",
            "k = 'a\\b!'",
            "k = \"a\\tb\\\"c!d\"",
            "k = \"\\u00e9\\U0001F600!\"",
            "k = \"é!\"",
            "k = \"\"\"\nab!\"\"\"",
            "k = '''\nab\n!'''",
            "k = \"\"\"a\\\n   b!\"\"\"",
            "k = \"!\"",
        ] {
            finds_the_mark(source);
        }
    }

    #[test]
    fn the_end_of_a_text_is_its_closing_quote() {
        assert_eq!(position_in_text("k = \"ab\"", &(4..8), 2), 7);
        assert_eq!(position_in_text("k = \"\"", &(4..6), 0), 5);
    }
}
