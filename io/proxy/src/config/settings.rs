//! Macro that generates a table of the configuration and its documentation from one text.
//!
//! ```text
//!   settings! { /// why…  pub threads: u32 = 0, "count"; }
//!        ├─► struct field, with that doc comment
//!        ├─► Deserialize: unknown keys are errors, an absent key takes the default,
//!        │                a key without a default is required
//!        └─► KEYS: name, form, default as TOML text, doc   ─► docs/CONFIG.md
//! ```
//!
//! The default is written once, as a value: its text in the documentation is that
//! value serialised, so the two cannot differ.

/// One key of the configuration, as docs/CONFIG.md shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigKey {
    /// The name of the key.
    pub(crate) name: &'static str,
    /// The form of its values, in words.
    pub(crate) form: &'static str,
    /// The default as TOML text, `none` for a key that may be absent; `None` if the key is
    /// required.
    pub(crate) default: fn() -> Option<String>,
    /// The lines of the doc comment.
    pub(crate) doc: &'static [&'static str],
}

/// Formats a value as TOML text; an absent value is `none`.
pub(crate) fn toml_text<T: serde::Serialize>(value: T) -> String {
    toml::Value::try_from(value).map_or_else(|_| "none".into(), |value| value.to_string())
}

/// Defines a table of the configuration; see the module's documentation.
macro_rules! settings {
    (@value $key:ident) => {
        return Err(serde::de::Error::missing_field(stringify!($key)))
    };
    (@value $key:ident $default:expr) => { $default };
    (@text $type:ty) => { None };
    (@text $type:ty = $default:expr) => {{
        let default: $type = $default;
        Some($crate::config::settings::toml_text(default))
    }};
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                pub $key:ident: $type:ty $(= $default:expr)?, $form:literal;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct $name {
            $($(#[doc = $doc])* pub $key: $type,)*
        }

        impl $name {
            /// Description of the table in docs/CONFIG.md.
            pub(crate) const ABOUT: &'static [&'static str] = &[$($about),*];
            /// The keys, in the order of the documentation.
            pub(crate) const KEYS: &'static [$crate::config::settings::ConfigKey] = &[
                $($crate::config::settings::ConfigKey {
                    name: stringify!($key),
                    form: $form,
                    default: || $crate::config::settings::settings!(@text $type $(= $default)?),
                    doc: &[$($doc),*],
                },)*
            ];
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Given { $($key: Option<$type>,)* }
                let given = Given::deserialize(from)?;
                Ok($name {
                    $($key: match given.$key {
                        Some(value) => value,
                        None => $crate::config::settings::settings!(@value $key $($default)?),
                    },)*
                })
            }
        }
    };
}
pub(crate) use settings;
