//! The macro that makes a table of the configuration and its documentation from one text.
//!
//! ```text
//!   settings! { /// why…  pub threads: u32 = 0, "count"; }
//!        ├─► struct field, with that doc comment
//!        ├─► Deserialize: unknown keys are errors, an absent key takes the default,
//!        │                a key without a default must be given
//!        └─► KEYS: name, form, default as TOML text, doc   ─► docs/CONFIG.md
//! ```
//!
//! The default is written once, as a value: its text in the documentation is that
//! value serialised, so the two cannot part.

/// One key of the configuration, as docs/CONFIG.md shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigKey {
    /// The key.
    pub(crate) name: &'static str,
    /// What may stand there, in words.
    pub(crate) form: &'static str,
    /// The default as TOML text, `none` for a key that may be absent; `None` if the
    /// key must be given.
    pub(crate) default: fn() -> Option<String>,
    /// The lines of the doc comment.
    pub(crate) doc: &'static [&'static str],
}

/// A value as TOML text; `none` for an absent one.
pub(crate) fn toml_text<T: serde::Serialize>(value: T) -> String {
    toml::Value::try_from(value).map_or_else(|_| "none".into(), |value| value.to_string())
}

/// Makes a table of the configuration; see the file's essay.
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
            /// What docs/CONFIG.md says about the table.
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
