//! Changing one rule in the text of a rule file: text in, text out.
//!
//! ```text
//!   text ─► read, it must be right ─► sheet ─► lines or values exchanged ─► read again ─► text
//!                                                                └ wrong: refused, with its line
//! ```
//!
//! Everything outside of an edit stays as it was written, to the byte: comments, order, spelling.
//! The new text is compared with the old one as rule sets. A text in which the edit would have
//! another effect is refused.
//!
//! The words are those of Lustre's TBF: start, change, stop, rank. There a change of several values
//! may stop half-way; here an edit is done as a whole or not at all.

use toml::de::DeTable;

use super::sheet::{Sheet, newline};
use super::{RuleFileError, RuleSet};

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
        // A byte order mark is not part of the first section.
        let body = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mark = &text[..text.len() - body.len()];
        let mut text = body.to_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push_str(newline(&text));
        }
        let old = RuleSet::parse(&text).map_err(|e| RuleEditError::Before(Box::new(e)))?;
        let new_text = self.edited(&text, &old)?;
        let new = RuleSet::parse(&new_text).map_err(|e| RuleEditError::After(Box::new(e)))?;
        if !self.is_done(&old, &new) {
            return Err(RuleEditError::Unfit("other rules would change too".into()));
        }
        Ok(format!("{mark}{new_text}"))
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

    fn edited(&self, text: &str, set: &RuleSet) -> Result<String, RuleEditError> {
        let document = DeTable::parse(text).expect("a rule file is TOML");
        let sheet = Sheet::new(text, document.get_ref())?;
        match self {
            RuleEdit::Start { name, keys, position } => sheet.start(name, keys, position),
            RuleEdit::Change { name, keys } => sheet.change(name, keys),
            RuleEdit::Stop { name } => sheet.stop(name, set),
            RuleEdit::Rank { name, position } => sheet.rank(name, position),
        }
    }

    /// Whether the edit had its effect (the rule exists, is gone, or kept its index or content) and
    /// no other.
    fn is_done(&self, old: &RuleSet, new: &RuleSet) -> bool {
        let index = |set: &RuleSet| set.rules.iter().position(|rule| rule.name == self.name());
        let done = match self {
            RuleEdit::Start { .. } => new.rule(self.name()).is_some(),
            RuleEdit::Change { .. } => index(old) == index(new),
            RuleEdit::Stop { .. } => new.rule(self.name()).is_none(),
            RuleEdit::Rank { .. } => old.rule(self.name()) == new.rule(self.name()),
        };
        let [others, others_now] =
            [old, new].map(|set| set.rules.iter().filter(|rule| rule.name != self.name()));
        done && others.eq(others_now) && old.meters == new.meters && old.decays == new.decays
    }
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
