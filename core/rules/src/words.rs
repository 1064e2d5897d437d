//! Words of rule text that choose one of a few values.

use std::fmt;
use std::str::FromStr;

use model::{Identity, KeyValue, OpKind};

/// A field of `per`, of the key that divides a rule into classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyField {
    /// The batch job of the request.
    Jobid,
    /// The user of the request.
    Uid,
    /// The group of the request.
    Gid,
    /// The project quota id.
    Projid,
    /// The node of the request.
    Nid,
    /// The kind of request.
    Opcode,
}

/// How a write reaches the backend, and when it counts as done
/// (docs/ARCHITECTURE.md, "A write counts until it is clean").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteMode {
    /// O_DIRECT where offset and length are aligned, else as `paced`.
    Direct,
    /// RWF_DONTCACHE: through the page cache, written back and dropped at once.
    Dontcache,
    /// Page cache with a bounded budget of dirty bytes, kept by sync_file_range.
    Paced,
    /// Page cache without a bound.
    Cached,
}

/// The resource that a decay counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Bytes that reads move.
    Read,
    /// Bytes that writes move.
    Write,
    /// Operations that move no bytes.
    Metadata,
}

/// The beginning of a decay's period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DecayWindow {
    /// At whole multiples of its length since 1970, at the same time for every key.
    #[default]
    Fixed,
    /// The time up to now.
    Sliding,
}

/// The values of these fields for a request: the key of its class or meter.
pub fn key_of(per: &[KeyField], who: &Identity, kind: OpKind) -> Vec<KeyValue> {
    let value = |field: &KeyField| match field {
        KeyField::Jobid => KeyValue::Jobid(who.job.clone()),
        KeyField::Uid => KeyValue::Uid(who.uid),
        KeyField::Gid => KeyValue::Gid(who.gid),
        KeyField::Projid => KeyValue::Projid(who.projid),
        KeyField::Nid => KeyValue::Nid(who.nid.clone()),
        KeyField::Opcode => KeyValue::Opcode(kind),
    };
    per.iter().map(value).collect()
}

/// The error of a word that is not one of the allowed ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}; use one of {words}")]
pub struct ParseWordError {
    text: String,
    what: &'static str,
    words: String,
}

macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $name:literal,)*) => {
        impl $type {
            /// Every value, in order.
            pub const ALL: &'static [$type] = &[$($type::$variant,)*];

            /// The word for it in rules, tables and metrics.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = ParseWordError;
            fn from_str(text: &str) -> Result<$type, ParseWordError> {
                let found = $type::ALL.iter().find(|word| word.name() == text).copied();
                found.ok_or_else(|| ParseWordError {
                    text: text.into(),
                    what: $what,
                    words: [$($name,)*].join(", "),
                })
            }
        }

        model::serde_as_text!($type, $what);
    };
}

words! {
    KeyField, "a field that divides classes",
    Jobid = "jobid",
    Uid = "uid",
    Gid = "gid",
    Projid = "projid",
    Nid = "nid",
    Opcode = "opcode",
}

words! {
    WriteMode, "a write mode",
    Direct = "direct",
    Dontcache = "dontcache",
    Paced = "paced",
    Cached = "cached",
}

words! {
    Resource, "something that a decay counts",
    Read = "read",
    Write = "write",
    Metadata = "metadata",
}

words! {
    DecayWindow, "a window",
    Fixed = "fixed",
    Sliding = "sliding",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_parse_and_print_both_ways() {
        for field in KeyField::ALL {
            assert_eq!(field.to_string().parse::<KeyField>().unwrap(), *field);
        }
        for mode in WriteMode::ALL {
            assert_eq!(mode.to_string().parse::<WriteMode>().unwrap(), *mode);
        }
    }

    #[test]
    fn a_wrong_word_is_named_with_the_right_ones() {
        assert_eq!(
            "Direct".parse::<WriteMode>().unwrap_err().to_string(),
            "\"Direct\" is not a write mode; use one of direct, dontcache, paced, cached"
        );
    }

    #[test]
    fn words_and_conditions_are_texts_to_serde() {
        type Config = std::collections::BTreeMap<String, (WriteMode, KeyField, crate::Match)>;
        let text = "k = [\"paced\", \"uid\", \"uid={1 2}\"]\n";
        let config: Config = toml::from_str(text).unwrap();
        let condition = "uid={1,2}".parse().unwrap();
        assert_eq!(config["k"], (WriteMode::Paced, KeyField::Uid, condition));
        assert_eq!(toml::to_string(&config).unwrap(), text);
        assert!(toml::from_str::<Config>("k = [\"fast\", \"uid\", \"*\"]").is_err());
    }
}
