//! `sluice rule`: shows, tests and changes the rules of a running proxy, a controller or a file.
//!
//! ```text
//!   list, export, check ◄─────────────── text ◄─┐             ┌─ --proxy: GET, PUT If-Match
//!   start, change, stop, rank ─► RuleEdit ─► text ├─ RuleSource ┤
//!   import ────────────────────────────────► text ┘             └─ --file: locked, then renamed over
//! ```
//!
//! Both use the same edit, from text to text ([`rules::RuleEdit`]).

mod check;
mod keys;
mod list;
mod request;
mod source;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use api::WireRules;
use clap::Subcommand;
use rules::{RuleEdit, RulePosition, RuleSet};
use serde_json::json;

use keys::RuleKeyArgs;
use source::RuleSource;

use crate::failure::CommandError;

/// Show, test and change rules of a proxy, a controller or a rule file
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: RuleSubcommand,
}

const AFTER_HELP: &str = "\
Rules are ordered: a request belongs to the first rule whose --match holds. The rules are those of:
- a running proxy (--proxy, the default). A change is in force at once, also for queued requests,
  until the proxy ends or reloads its rule file; --save makes it permanent.
- a controller (--controller or $SLUICE_CONTROLLER). It stores the rules and gives them to all its
  proxies.
- a rule file (--file). Comments and order stay. \"-\" is standard input and, for changes, standard
  output.

Examples:
  sluice rule start backup --match 'uid={34}' --limit 200MB/s
  sluice rule change backup --limit 50MB/s --weight 2
  sluice rule rank backup --before jobs
  sluice rule stop backup
  sluice rule export > rules.toml; $EDITOR rules.toml; sluice rule import rules.toml --save
  sluice rule check rules.toml --request 'jobid=dd.500 opcode=write bytes=4MiB'

docs/RULES.md describes conditions and every key.";

#[derive(Debug, Subcommand)]
enum RuleSubcommand {
    /// List rules and meters in their order, with their load
    ///
    /// For a running proxy it shows the current value of limits that depend on other rules (NOW),
    /// the number of classes of each rule, and their requests in the queue (QUEUED) and at the
    /// backend (RUNNING). Empty columns are omitted.
    List {
        #[command(flatten)]
        source: RuleSource,
        /// JSON output.
        #[arg(long)]
        json: bool,
    },
    /// Start a rule, first in the order or at a given position
    ///
    /// Without a position the rule is placed first. A rule named `default` gets the requests that
    /// no other rule matches and is always last.
    #[command(after_help = START_HELP)]
    Start {
        /// Name of the new rule: letters, digits, _ - and . only.
        name: String,
        #[command(flatten)]
        position: RulePositionArgs,
        #[command(flatten)]
        writing: RuleWriteArgs,
        // Last, since its heading applies to all flags that follow.
        #[command(flatten)]
        keys: RuleKeyArgs,
    },
    /// Change keys of a rule; after an error none is changed
    ///
    /// Keys that are not given keep their values. `none` removes a key, so that its default
    /// applies. A change never refills a meter: classes and meters keep their debt or balance.
    #[command(after_help = CHANGE_HELP)]
    Change {
        /// Name of the rule.
        name: String,
        #[command(flatten)]
        writing: RuleWriteArgs,
        #[command(flatten)]
        keys: RuleKeyArgs,
    },
    /// Stop a rule; its requests move to the next rule that matches
    ///
    /// Fails if the rule does not exist, or if other rules depend on it.
    #[command(after_help = "Example:\n  sluice rule stop backup --save")]
    Stop {
        /// Name of the rule.
        name: String,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Move a rule to another position in the order
    #[command(after_help = "Examples:\n  sluice rule rank backup --before jobs\n  \
                            sluice rule rank backup --last --file rules.toml")]
    Rank {
        /// Name of the rule.
        name: String,
        #[command(flatten)]
        position: RulePositionArgs,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Replace all rules and meters by those of a file
    ///
    /// If the file has an error, the rules in force stay, and the exit status is 1.
    #[command(
        after_help = "Examples:\n  sluice rule import rules.toml\n  sluice rule export | sed \
                            s/500MB/600MB/ | sluice rule import -"
    )]
    Import {
        /// Rule file; - for standard input.
        from: PathBuf,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Print the rules as a rule file for `import`, with comments
    #[command(after_help = "Example:\n  sluice rule export > rules.toml")]
    Export {
        #[command(flatten)]
        source: RuleSource,
        /// JSON output: the text of the rules and its version.
        #[arg(long)]
        json: bool,
    },
    /// Check a rule file, and show what a given request would get
    ///
    /// Lists errors and rules that never match. The exit status is 1 if a proxy would refuse the
    /// file. Without FILE it checks the rules in force at a running proxy.
    #[command(after_help = check::AFTER_HELP)]
    Check(check::RuleCheck),
}

const START_HELP: &str = "\
Examples:
  sluice rule start backup --match 'uid={34}' --limit 200MB/s
  sluice rule start ckpt --match 'jobid={ckpt.*}&opcode={write}' --weight 8 --save
  sluice rule start jobs --match '*' --per jobid --last
  sluice rule start storm --match '*' --per jobid --limit metadata=1kops/s,create=50ops/s
  sluice rule start ana --match 'jobid={ana.*}' --limit 2GB/s \\
                        --depends-on ckpt,remainder_of=2GB/s,min=50MB/s
  sluice rule start backup --match 'uid={34}' --before jobs --file /etc/sluice/rules.toml";

const CHANGE_HELP: &str = "\
Examples:
  sluice rule change backup --limit 50MB/s
  sluice rule change backup --limit none --weight 2 --slots 4
  sluice rule change jobs --per jobid,uid --file rules.toml";

/// The position among the rules.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct RulePositionArgs {
    /// Position before this rule.
    #[arg(long, value_name = "RULE")]
    before: Option<String>,
    /// Position before all other rules.
    #[arg(long)]
    first: bool,
    /// Position after all other rules except `default`.
    #[arg(long)]
    last: bool,
}

/// The rules to change, and the form of the output.
#[derive(Debug, clap::Args)]
struct RuleWriteArgs {
    #[command(flatten)]
    source: RuleSource,
    /// Permanent change, written to the proxy's rule file (its --rules); a controller saves every
    /// change.
    #[arg(long, conflicts_with = "file")]
    save: bool,
    /// JSON output of the changed rules.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice rule`: prints, tests or changes rules.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.action {
        RuleSubcommand::List { source, json } => {
            let rules = source.read()?;
            if json { pretty(&rules)? } else { list::list(&rules) }
        }
        RuleSubcommand::Export { source, json } => {
            let rules = source.read()?;
            let whole = json!({ "version": rules.version, "text": rules.text });
            if json { pretty(&whole)? } else { rules.text }
        }
        RuleSubcommand::Check(check) => check.run()?,
        RuleSubcommand::Start { name, keys, position, writing } => {
            let edit = start(name, &keys, position.position())?;
            writing.change(&edit)?
        }
        RuleSubcommand::Change { name, keys, writing } => {
            writing.change(&RuleEdit::Change { name, keys: keys.edits() })?
        }
        RuleSubcommand::Stop { name, writing } => writing.change(&RuleEdit::Stop { name })?,
        RuleSubcommand::Rank { name, position, writing } => {
            let place = position.position();
            let none = "no position; give --before RULE, --first or --last";
            let place = place.ok_or_else(|| CommandError::argument("--before", none))?;
            writing.change(&RuleEdit::Rank { name, position: place })?
        }
        RuleSubcommand::Import { from, writing } => writing.import(&from)?,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Builds the edit for a new rule; all rules but `default` need a condition.
fn start(
    name: String,
    keys: &RuleKeyArgs,
    place: Option<RulePosition>,
) -> anyhow::Result<RuleEdit> {
    if !keys.has_condition() && name != RuleSet::DEFAULT {
        let message = "no condition; give --match 'jobid={dd.*}', or --match '*' for all requests \
                       that reach it";
        return Err(CommandError::argument("--match", message).into());
    }
    Ok(RuleEdit::Start { name, keys: keys.edits(), position: place.unwrap_or_default() })
}

impl RulePositionArgs {
    fn position(self) -> Option<RulePosition> {
        match self {
            RulePositionArgs { before: Some(rule), .. } => Some(RulePosition::Before(rule)),
            RulePositionArgs { first: true, .. } => Some(RulePosition::First),
            RulePositionArgs { last: true, .. } => Some(RulePosition::Last),
            _ => None,
        }
    }
}

impl RuleWriteArgs {
    /// Makes a change and returns its description.
    fn change(&self, edit: &RuleEdit) -> anyhow::Result<String> {
        let rules = self.source.change(self.save, |text| edit.apply(text))?;
        self.change_output(&rules, || describe_change(edit, &rules))
    }

    /// Replaces all rules and returns their list.
    fn import(&self, from: &Path) -> anyhow::Result<String> {
        // Errors in the file are shown with its own lines before the server is called.
        let new = source::read_text(from)?;
        source::parse(&from.display().to_string(), &new)?;
        let rules = self.source.replace(self.save, &new)?;
        self.change_output(&rules, || list::list(&WireRules { saved: true, ..rules.clone() }))
    }

    /// Returns the output after a change.
    fn change_output(
        &self,
        rules: &WireRules,
        what: impl Fn() -> String,
    ) -> anyhow::Result<String> {
        if self.source.is_standard() {
            // The text itself is the output.
            return Ok(rules.text.clone());
        }
        if self.json {
            return pretty(rules);
        }
        let mut text = what();
        let lasts = match (&rules.file, rules.saved) {
            _ if self.source.is_file() => return Ok(text),
            (Some(file), true) => format!("in force and in {file}"),
            (Some(file), false) => format!(
                "in force until the proxy ends or reloads {file} (SIGHUP); --save writes it there"
            ),
            (None, true) => "in force at every proxy and stored at the controller".into(),
            (None, false) => "in force until the proxy ends: it has no rule file (--rules)".into(),
        };
        let _ = writeln!(text, "{lasts}");
        Ok(text)
    }
}

/// Describes a change, with the rules that can never match.
fn describe_change(edit: &RuleEdit, rules: &WireRules) -> String {
    let name = edit.name();
    let mut text = match edit {
        RuleEdit::Start { .. } => {
            format!("started rule {name:?}, {}\n", describe_position(name, rules))
        }
        RuleEdit::Rank { .. } => {
            format!("moved rule {name:?}, now {}\n", describe_position(name, rules))
        }
        RuleEdit::Change { .. } => format!("changed rule {name:?}\n"),
        RuleEdit::Stop { .. } => format!("stopped rule {name:?}\n"),
    };
    for (rule, by) in list::shadowed(rules) {
        let _ = writeln!(text, "{}", list::never_matches(rule, by));
    }
    text
}

/// Describes the position of a rule: `first, before "jobs"`.
fn describe_position(name: &str, rules: &WireRules) -> String {
    let at = rules.rules.iter().position(|rule| rule.name == name).unwrap_or_default();
    match (at, rules.rules.get(at + 1)) {
        (0, None) => "the only rule".into(),
        (0, Some(next)) => format!("first, before {:?}", next.name),
        (_, Some(next)) => format!("before {:?}", next.name),
        (_, None) => "last".into(),
    }
}

fn pretty(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> WireRules {
        WireRules::of(text, &RuleSet::parse(text).unwrap())
    }

    #[test]
    fn a_change_is_told_with_its_place_and_what_it_hides() {
        let all = rules("[[rule]]\nname = \"all\"\n[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\n");
        let start = start("all".into(), &RuleKeyArgs::default(), None);
        assert!(start.unwrap_err().to_string().contains("--match '*'"));
        let edit = RuleEdit::Rank { name: "all".into(), position: RulePosition::First };
        assert_eq!(
            describe_change(&edit, &all),
            "moved rule \"all\", now first, before \"a\"\n\
             rule \"a\" never matches: \"all\" takes all of its requests\n"
        );
        assert_eq!(describe_position("a", &all), "last");
        assert_eq!(describe_position("b", &rules("[[rule]]\nname = \"b\"\n")), "the only rule");
    }
}
