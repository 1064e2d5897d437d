//! A change of one rule, in a few words instead of a whole rule file.
//!
//! ```text
//!   "100MB/s"                       limit = "100MB/s"
//!   "100MB/s,5kops/s"               limit = ["100MB/s", "5kops/s"]
//!   "read=100MB/s,burst=1s"         limit = { read = "100MB/s", burst = "1s" }
//!   "ckpt,when_idle=500ms,min=10MB/s"    depends_on = { rule = "ckpt", when_idle = "500ms", min = "10MB/s" }
//!   "[ "1MB/s", … ]"                unchanged: a value that begins with [ or { is TOML
//! ```
//!
//! `sluice rule` and `POST /v1/rules/edits` take values in this form. Values are not checked
//! here: the parser of rule files reports what is wrong with a value, with the line that it
//! would have made.

use std::collections::BTreeMap;

use rules::{KeyEdit, RuleEdit, RulePosition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleChange {
    /// The action on the rule.
    pub action: RuleAction,
    /// The name of the rule to change.
    pub name: String,
    /// For `start` and `change`: values by key, as `sluice rule` takes them; `none` removes a
    /// key. Other keys do not change.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// For `start` and `rank`: the position; before all others by default.
    #[serde(default)]
    pub position: WireRulePosition,
}

/// An action on a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// Adds a rule at a position.
    Start,
    /// Sets or removes some of its keys.
    Change,
    /// Removes the rule from the list.
    Stop,
    /// Moves the rule to another position.
    Rank,
}

/// A position in the order of rules: the first rule that matches takes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireRulePosition {
    /// Before all other rules.
    #[default]
    First,
    /// After all others except `default`.
    Last,
    /// Right before the rule of this name.
    Before(String),
}

impl RuleChange {
    /// Returns the edit of a rule file.
    ///
    /// # Errors
    /// If a key is not a key of a rule: a message for people.
    pub fn to_edit(&self) -> Result<RuleEdit, String> {
        let known = || KEYS.map(|(key, _)| key).join(", ");
        let keys = self.keys.iter().map(|(key, value)| {
            key_edit(key, value)
                .ok_or_else(|| format!("{key:?} is not a key of a rule: {}", known()))
        });
        let (name, keys) = (self.name.clone(), keys.collect::<Result<Vec<_>, _>>()?);
        let place = match &self.position {
            WireRulePosition::First => RulePosition::First,
            WireRulePosition::Last => RulePosition::Last,
            WireRulePosition::Before(other) => RulePosition::Before(other.clone()),
        };
        Ok(match self.action {
            RuleAction::Start => RuleEdit::Start { name, keys, position: place },
            RuleAction::Change => RuleEdit::Change { name, keys },
            RuleAction::Stop => RuleEdit::Stop { name },
            RuleAction::Rank => RuleEdit::Rank { name, position: place },
        })
    }
}

/// Formats a key's value for a rule file; `none` removes the key. `None` if the key is not a key
/// of a rule.
pub fn key_edit(key: &str, value: &str) -> Option<KeyEdit> {
    let (key, write) = KEYS.into_iter().find(|(known, _)| *known == key)?;
    let value = value.trim();
    Some(KeyEdit { key, value: (value != "none").then(|| write(value)) })
}

/// The keys of a rule, in the order of a rule file, and how each is written.
const KEYS: [(&str, RuleWrite); 14] = [
    ("match", text),
    ("per", list),
    ("weight", number),
    ("reservation", text),
    ("reservation_metadata", text),
    ("limit", limits),
    ("realtime", truth),
    ("spare", truth),
    ("depends_on", dependency_table),
    ("slots", number),
    ("reserved_slots", number),
    ("min_local_service", text),
    ("write_mode", text),
    ("max_classes", number),
];

/// Writes a value as TOML.
type RuleWrite = fn(&str) -> String;

/// A text as TOML writes it, which takes all that JSON does.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// Formats a whole number; other text stays a string, which the parser refuses.
fn number(value: &str) -> String {
    if value.parse::<i128>().is_ok() { value.into() } else { text(value) }
}

/// Formats true or false; other text stays a string, which the parser refuses.
fn truth(value: &str) -> String {
    if value.parse::<bool>().is_ok() { value.into() } else { text(value) }
}

fn list(value: &str) -> String {
    if is_toml(value) {
        return value.into();
    }
    let items: Vec<_> = items(value).map(text).collect();
    format!("[{}]", items.join(", "))
}

fn limits(value: &str) -> String {
    if is_toml(value) {
        return value.into();
    }
    if value.contains('=') {
        return table(value, "all");
    }
    if value.contains(',') { list(value) } else { text(value) }
}

fn dependency_table(value: &str) -> String {
    if is_toml(value) { value.into() } else { table(value, "rule") }
}

/// `a=1,b=2` as a table; `unnamed` is the key of an item without one.
fn table(value: &str, unnamed: &str) -> String {
    let pairs = items(value).map(|item| {
        let (key, value) = item.split_once('=').unwrap_or((unnamed, item));
        let (key, value) = (key.trim(), text(value.trim()));
        let bare = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let is_bare = !key.is_empty() && key.bytes().all(bare);
        let key = if is_bare { key.to_owned() } else { text(key) };
        format!("{key} = {value}")
    });
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

fn is_toml(value: &str) -> bool {
    value.starts_with(['[', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_does_to_a_text_what_it_says() {
        let change: RuleChange = serde_json::from_str(
            r#"{"action": "start", "name": "x", "keys": {"match": "uid={5}", "limit": "1MB/s,5ops/s"},
                "position": {"before": "y"}}"#,
        )
        .unwrap();
        let text = change.to_edit().unwrap().apply("[[rule]]\nname = \"y\"\n").unwrap();
        let first =
            "[[rule]]\nname = \"x\"\nmatch = \"uid={5}\"\nlimit = [\"1MB/s\", \"5ops/s\"]\n";
        assert!(text.starts_with(first), "{text}");
        let stop = RuleChange { action: RuleAction::Stop, ..change };
        assert!(!stop.to_edit().unwrap().apply(&text).unwrap().contains("\"x\""));
    }

    #[test]
    fn a_key_that_rules_do_not_have_is_named() {
        let keys = BTreeMap::from([("limits".to_owned(), "1MB/s".to_owned())]);
        let (action, name) = (RuleAction::Change, "x".into());
        let error = RuleChange { action, name, keys, position: WireRulePosition::First }
            .to_edit()
            .unwrap_err();
        assert!(error.starts_with("\"limits\" is not a key of a rule: match, per, "), "{error}");
    }
}
