//! Text of docs/CONFIG.md, generated from the doc comments of the configuration.

use super::settings::ConfigKey;
use super::{ExportConfig, GroupConfig, ProxyConfig, TargetConfig};

/// The text of docs/CONFIG.md.
pub fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    section(&mut text, "Top-level keys", ProxyConfig::ABOUT, ProxyConfig::KEYS);
    section(&mut text, "`[group]`", GroupConfig::ABOUT, GroupConfig::KEYS);
    section(&mut text, "`[[export]]`", ExportConfig::ABOUT, ExportConfig::KEYS);
    section(&mut text, "`[[target]]`", TargetConfig::ABOUT, TargetConfig::KEYS);
    text
}

fn section(text: &mut String, title: &str, about: &[&str], keys: &[ConfigKey]) {
    *text += &format!("\n## {title}\n\n{}\n", paragraph(about));
    for key in keys {
        let default = match (key.default)().as_deref() {
            None => "required".into(),
            Some("none") => "optional".into(),
            Some("[]") => "empty by default".into(),
            Some(text) => format!("default `{text}`"),
        };
        *text += &format!(
            "\n### `{}`\n\n*{}; {default}.*\n\n{}\n",
            key.name,
            key.form,
            paragraph(key.doc)
        );
    }
}

/// The lines of a doc comment, each of which begins with the space after `///`.
fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n")
}

const INTRODUCTION: &str = "\
<!-- Made from io/proxy/src/config by `sluice docs config`. Do not edit. -->

# Configuration of the proxy

`sluice proxy --config FILE` reads one TOML file. Unknown keys are errors, and every
error names its line:

    sluice.toml:7:13: \"64\" is not an amount of data such as 64KiB, 4MiB or 1GB
      7 | msize_max = \"64\"
        |             ^^^^

An amount of data is a number with a unit: `B`, `kB`, `MB`, `GB`, `TB`, `PB` (powers of 1000) or
`KiB`, `MiB`, `GiB`, `TiB`, `PiB` (powers of 1024). Units of a span of time are `ns`, `us`, `ms`,
`s`, `min`, `h`, `d` and `w`. Both are quoted: `\"4MiB\"`, `\"200us\"`.

Flags take precedence over the file: `--listen` replaces the whole list. `--export` adds an export
or changes the directory of the export with the same name. On SIGHUP the proxy reads the file
again; if the file has an error, the old configuration stays active.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_in_the_repository_is_the_one_made_from_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
        let stored = std::fs::read_to_string(path).unwrap();
        assert!(
            stored == markdown(),
            "docs/CONFIG.md is out of date; run sluice docs config > docs/CONFIG.md"
        );
    }

    #[test]
    fn each_key_says_why() {
        let tables = [ProxyConfig::KEYS, GroupConfig::KEYS, ExportConfig::KEYS, TargetConfig::KEYS];
        for key in tables.concat() {
            assert!(key.doc.concat().trim().len() > 20, "{} has no documentation", key.name);
        }
    }
}
