//! Changing one rule in the text of a rule file: text in, text out.
//!
//! ```text
//!   text ─► read, it must be right ─► outline ─► lines or values exchanged ─► read again ─► text
//!                                                                  └ wrong: refused, with its line
//! ```
//!
//! Everything outside of an edit stays as it was written, to the byte: comments, order, spelling.
//! The new text is compared with the old one as rule sets. A text in which the edit would have
//! another effect is refused.
//!
//! The words are those of Lustre's TBF: start, change, stop, rank. There a change of several values
//! may stop half-way; here an edit is done as a whole or not at all.

use std::ops::Range;

use super::outline::{Outline, OutlinePiece, line_end, line_start};
use super::{RuleFileError, RuleSet, export, file};

/// A change of one rule of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEdit {
    /// Adds a new rule.
    Start {
        /// The name of the rule.
        name: String,
        /// The keys of the rule; those without a value are left out.
        keys: Vec<KeyEdit>,
        /// The position of the rule; a rule named `default` is always the last.
        position: RulePosition,
    },
    /// Changes values of an existing rule.
    Change {
        /// The name of the rule.
        name: String,
        /// The keys to set or to remove; other keys stay.
        keys: Vec<KeyEdit>,
    },
    /// Removes an existing rule.
    Stop {
        /// The name of the rule.
        name: String,
    },
    /// Moves a rule to another position.
    Rank {
        /// The name of the rule.
        name: String,
        /// The new position of the rule.
        position: RulePosition,
    },
}

/// A position among the rules: the first that matches takes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RulePosition {
    /// Before all other rules.
    #[default]
    First,
    /// Behind all other rules except `default`.
    Last,
    /// Directly before the rule of this name.
    Before(String),
}

/// A key of a rule and its value as TOML writes it; `None` removes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEdit {
    /// One of the keys of docs/RULES.md.
    pub key: &'static str,
    /// The value in TOML's form.
    pub value: Option<String>,
}

/// The reason why a rule file is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleEditError {
    /// The rule does not exist.
    #[error("rule {name:?} does not exist; {}", listed(.names))]
    NoRule {
        /// The name that was given.
        name: String,
        /// The names of the existing rules.
        names: Vec<String>,
    },
    /// The name of a new rule exists already.
    #[error("rule {name:?} exists already in line {line}; change it or stop it first")]
    Exists {
        /// The name of the rule.
        name: String,
        /// The line of the existing rule's header.
        line: usize,
    },
    /// Other rules depend on the rule.
    #[error("{name:?} is the parent of {}; stop or change the dependent rules first", .by.join(", "))]
    Needed {
        /// The name of the rule.
        name: String,
        /// The rules that depend on it.
        by: Vec<String>,
    },
    /// The default rule would not be the last.
    #[error("rule \"default\" takes what no other rule matches: it is always the last rule")]
    DefaultPosition,
    /// The default rule does not exist.
    #[error(
        "rule \"default\" does not exist: other requests have weight 1 and no limit; start it first"
    )]
    NoDefault,
    /// The change is empty.
    #[error("no change is given; name a key and its new value")]
    Empty,
    /// The text was wrong already.
    #[error("{0}")]
    Before(Box<RuleFileError>),
    /// The text would be wrong.
    #[error("not changed: the result would be wrong at line {0}")]
    After(Box<RuleFileError>),
    /// The text is valid, but not written in parts that can be replaced.
    #[error("this text cannot be changed by a command: {0}; edit it by hand")]
    Unfit(String),
}

impl RuleEdit {
    /// The text of a rule file after this change.
    ///
    /// # Errors
    /// If the change is not possible or the result would be wrong, with its line.
    pub fn apply(&self, text: &str) -> Result<String, RuleEditError> {
        let mut text = text.to_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push_str(newline(&text));
        }
        let old = RuleSet::parse(&text).map_err(|e| RuleEditError::Before(Box::new(e)))?;
        let sheet = Sheet { outline: outline(&text)?, text };
        let new_text = match self {
            RuleEdit::Start { name, keys, position } => sheet.start_rule(name, keys, position)?,
            RuleEdit::Change { name, keys } => sheet.change_rule(name, keys)?,
            RuleEdit::Stop { name } => sheet.stop_rule(name, &old)?,
            RuleEdit::Rank { name, position } => sheet.rank_rule(name, position)?,
        };
        let new = RuleSet::parse(&new_text).map_err(|e| RuleEditError::After(Box::new(e)))?;
        if self.without_edited(&old) != self.without_edited(&new) || !self.is_done(&old, &new) {
            return Err(RuleEditError::Unfit("other rules would change too".into()));
        }
        Ok(new_text)
    }

    /// The rule that is changed.
    pub fn name(&self) -> &str {
        match self {
            RuleEdit::Start { name, .. }
            | RuleEdit::Change { name, .. }
            | RuleEdit::Stop { name }
            | RuleEdit::Rank { name, .. } => name,
        }
    }

    /// A rule set without the rule that is changed.
    fn without_edited(
        &self,
        set: &RuleSet,
    ) -> (Vec<super::Rule>, Vec<super::MeterRule>, Vec<super::DecayRule>) {
        let others = set.rules.iter().filter(|rule| rule.name != self.name());
        (others.cloned().collect(), set.meters.clone(), set.decays.clone())
    }

    /// Whether the edit had its effect: the rule exists, is gone, or kept its index or content.
    fn is_done(&self, old: &RuleSet, new: &RuleSet) -> bool {
        let place = |set: &RuleSet| set.rules.iter().position(|rule| rule.name == self.name());
        let rule = |set: &RuleSet| place(set).map(|at| set.rules[at].clone());
        match self {
            RuleEdit::Start { .. } => rule(new).is_some(),
            RuleEdit::Change { .. } => place(old) == place(new),
            RuleEdit::Stop { .. } => rule(new).is_none(),
            RuleEdit::Rank { .. } => rule(old) == rule(new),
        }
    }
}

/// A text and the positions of its rules.
struct Sheet {
    text: String,
    outline: Outline,
}

impl Sheet {
    fn start_rule(
        &self,
        name: &str,
        keys: &[KeyEdit],
        position: &RulePosition,
    ) -> Result<String, RuleEditError> {
        if let Some(at) = self.outline.position_of(name) {
            let key = self.outline.rules[at].key("name");
            let start = key.map_or(self.outline.rules[at].lines.start, |key| key.at.start);
            let line = self.text[..start].matches('\n').count() + 1;
            return Err(RuleEditError::Exists { name: name.into(), line });
        }
        let nl = newline(&self.text);
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
            (RuleSet::DEFAULT, _) => self.outline.rules.len(),
            _ => self.position_index(position)?,
        };
        Ok(self.insert(at, &section))
    }

    fn change_rule(&self, name: &str, keys: &[KeyEdit]) -> Result<String, RuleEditError> {
        let piece = &self.outline.rules[self.existing_index(name)?];
        if keys.is_empty() {
            return Err(RuleEditError::Empty);
        }
        let mut swaps: Vec<(Range<usize>, String)> = Vec::new();
        for KeyEdit { key, value } in in_file_order(keys) {
            swaps.extend(self.swap(piece, key, value.as_deref())?);
        }
        swaps.sort_by_key(|(at, _)| at.start);
        let mut text = self.text.clone();
        // From the end, so that earlier positions stay valid; of those at one position the last
        // first.
        for (at, new) in swaps.into_iter().rev() {
            text.replace_range(at, &new);
        }
        Ok(text)
    }

    fn stop_rule(&self, name: &str, rules: &RuleSet) -> Result<String, RuleEditError> {
        let piece = &self.outline.rules[self.existing_index(name)?];
        let on_it = |rule: &&super::Rule| rule.depends_on.as_ref().is_some_and(|p| p.rule == name);
        let by: Vec<String> = rules.rules.iter().filter(on_it).map(|r| r.name.clone()).collect();
        if !by.is_empty() {
            return Err(RuleEditError::Needed { name: name.into(), by });
        }
        Ok(self.without(piece))
    }

    fn rank_rule(&self, name: &str, position: &RulePosition) -> Result<String, RuleEditError> {
        let piece = &self.outline.rules[self.existing_index(name)?];
        match position {
            RulePosition::Before(next) if next == name => return Ok(self.text.clone()),
            RulePosition::Before(next) => {
                self.existing_index(next)?;
            }
            RulePosition::First | RulePosition::Last => {}
        }
        if name == RuleSet::DEFAULT {
            let stays = *position == RulePosition::Last;
            return if stays { Ok(self.text.clone()) } else { Err(RuleEditError::DefaultPosition) };
        }
        let text = self.without(piece);
        let rest = Sheet { outline: outline(&text)?, text };
        Ok(rest.insert(rest.position_index(position)?, &self.text[piece.lines.clone()]))
    }

    /// The index of a rule that must exist.
    fn existing_index(&self, name: &str) -> Result<usize, RuleEditError> {
        if let Some(at) = self.outline.position_of(name) {
            return Ok(at);
        }
        if name == RuleSet::DEFAULT {
            return Err(RuleEditError::NoDefault);
        }
        let names = self.outline.rules.iter().map(|rule| rule.name.clone()).collect();
        Err(RuleEditError::NoRule { name: name.into(), names })
    }

    /// The number of rules before a position.
    fn position_index(&self, position: &RulePosition) -> Result<usize, RuleEditError> {
        match position {
            RulePosition::First => Ok(0),
            RulePosition::Before(next) => self.existing_index(next),
            RulePosition::Last => {
                let end = self.outline.rules.len();
                Ok(self.outline.position_of(RuleSet::DEFAULT).unwrap_or(end))
            }
        }
    }

    /// The text with an additional section.
    fn insert(&self, index: usize, section: &str) -> String {
        let (text, nl) = (&self.text, newline(&self.text));
        if let Some(next) = self.outline.rules.get(index) {
            let at = next.lines.start;
            return format!("{}{section}{nl}{}", &text[..at], &text[at..]);
        }
        let at = self.outline.rules.last().map_or(text.len(), |last| last.lines.end);
        let between = if at == 0 { "" } else { nl };
        format!("{}{between}{section}{}", &text[..at], &text[at..])
    }

    /// The text without a section, and without one of the gaps around it.
    fn without(&self, piece: &OutlinePiece) -> String {
        let nl = newline(&self.text);
        let (before, after) = (&self.text[..piece.lines.start], &self.text[piece.lines.end..]);
        let gap = before.is_empty() || before.ends_with(&format!("{nl}{nl}"));
        let after = if gap { after.trim_start_matches(['\r', '\n']) } else { after };
        match (before.trim_end(), after.trim_start()) {
            ("", _) => after.into(),
            (before, "") => format!("{before}{nl}"),
            _ => format!("{before}{after}"),
        }
    }

    /// The replacement that gives a key another value.
    fn swap(
        &self,
        piece: &OutlinePiece,
        key: &str,
        value: Option<&str>,
    ) -> Result<Option<(Range<usize>, String)>, RuleEditError> {
        let known = piece.key(key);
        if known.is_some_and(|known| !known.plain) {
            let name = &piece.name;
            let why = format!("rule {name:?} does not write {key} as {key} = …");
            return Err(RuleEditError::Unfit(why));
        }
        Ok(match (known, value) {
            (Some(known), Some(value)) => Some((known.value.clone(), value.into())),
            (Some(known), None) => {
                let lines =
                    line_start(&self.text, known.at.start)..line_end(&self.text, known.at.end);
                Some((lines, String::new()))
            }
            (None, Some(value)) => {
                let at = line_end(&self.text, self.end_before(piece, key));
                Some((at..at, format!("{key} = {value}{}", newline(&self.text))))
            }
            (None, None) => None,
        })
    }

    /// The end of the last key that usually stands before this one.
    fn end_before(&self, piece: &OutlinePiece, key: &str) -> usize {
        let rank = key_rank(key);
        let before =
            piece.keys.iter().filter(|other| other.plain && self::key_rank(&other.name) < rank);
        let last = before.max_by_key(|other| self::key_rank(&other.name)).or(piece.key("name"));
        last.map_or(piece.lines.start, |key| key.at.end)
    }
}

fn outline(text: &str) -> Result<Outline, RuleEditError> {
    Outline::of(text).map_err(|why| RuleEditError::Unfit(why.into()))
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

/// How the text ends its lines.
fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "the file has no rules".into(),
        [one] => format!("the only rule is {one}"),
        _ if names.len() <= NAMED_MAX => format!("the rules are {}", names.join(", ")),
        _ => format!(
            "the rules are {} and {} more",
            names[..NAMED_MAX].join(", "),
            names.len() - NAMED_MAX
        ),
    }
}

/// The most rules that an error names.
const NAMED_MAX: usize = 32;
