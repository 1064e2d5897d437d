//! A change of one rule, said in a few words and not as a whole rule file.
//!
//! ```text
//!   "100MB/s"                       limit = "100MB/s"
//!   "100MB/s,5kops/s"               limit = ["100MB/s", "5kops/s"]
//!   "read=100MB/s,burst=1s"         limit = { read = "100MB/s", burst = "1s" }
//!   "ckpt,gate=500ms,min=10MB/s"    parent = { rule = "ckpt", gate = "500ms", min = "10MB/s" }
//!   "[ "1MB/s", … ]"                as it is: what begins with [ or { is TOML
//! ```
//!
//! So values are given to `sluice rule` and to `POST /v1/rules/edits` alike. Nothing is judged
//! here: what the values mean, and what is wrong with them, is said by the parser of rule files,
//! with the line that the value would have made.

use std::collections::BTreeMap;

use model::{KeyEdit, RuleEdit, RulePosition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleChange {
    /// What is done.
    pub action: RuleAction,
    /// The rule's name.
    pub name: String,
    /// For `start` and `change`: values by key, as `sluice rule` takes them; `none` takes a key
    /// away. Keys that are not named stay.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// For `start` and `rank`: the place; before all others if none is named.
    #[serde(default)]
    pub place: WireRulePosition,
}

/// What is done to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// A new one begins.
    Start,
    /// Some of its keys are set or taken away.
    Change,
    /// It ends.
    Stop,
    /// It gets another place.
    Rank,
}

/// A place among the rules: the first that matches takes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WireRulePosition {
    /// Before all others.
    #[default]
    First,
    /// Behind all others but `default`.
    Last,
    /// Right before the rule of this name.
    Before(String),
}

impl RuleChange {
    /// What it does to a rule file.
    ///
    /// # Errors
    /// A key that rules do not have, for people.
    pub fn to_edit(&self) -> Result<RuleEdit, String> {
        let known = || KEYS.map(|(key, _)| key).join(", ");
        let keys = self.keys.iter().map(|(key, value)| {
            key_edit(key, value).ok_or_else(|| format!("{key:?} is no key of a rule: {}", known()))
        });
        let (name, keys) = (self.name.clone(), keys.collect::<Result<Vec<_>, _>>()?);
        let place = match &self.place {
            WireRulePosition::First => RulePosition::First,
            WireRulePosition::Last => RulePosition::Last,
            WireRulePosition::Before(other) => RulePosition::Before(other.clone()),
        };
        Ok(match self.action {
            RuleAction::Start => RuleEdit::Start { name, keys, place },
            RuleAction::Change => RuleEdit::Change { name, keys },
            RuleAction::Stop => RuleEdit::Stop { name },
            RuleAction::Rank => RuleEdit::Rank { name, place },
        })
    }
}

/// A key's value as a rule file writes it; `none` takes the key away. `None` for what is no key
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
    ("reserve", text),
    ("reserve_metadata", text),
    ("limit", limits),
    ("realtime", truth),
    ("spare", truth),
    ("parent", parent_table),
    ("slots", number),
    ("keep_slots", number),
    ("min_share", text),
    ("write_mode", text),
    ("max_classes", number),
];

/// Writes a value as TOML.
type RuleWrite = fn(&str) -> String;

/// A text as TOML writes it, which takes all that JSON does.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// A whole number; what is none stays a text, for the parser to say so.
fn number(value: &str) -> String {
    if value.parse::<i128>().is_ok() { value.into() } else { text(value) }
}

/// True or false; what is neither stays a text, for the parser to say so.
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

fn parent_table(value: &str) -> String {
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
                "place": {"before": "y"}}"#,
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
        let error = RuleChange { action, name, keys, place: WireRulePosition::First }
            .to_edit()
            .unwrap_err();
        assert!(error.starts_with("\"limits\" is no key of a rule: match, per, "), "{error}");
    }
}
