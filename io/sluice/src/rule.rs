//! `sluice rule`: the rules of a running proxy or of a file, shown, tried and changed.
//!
//! ```text
//!   list, export, check ◄─────────────── text ◄─┐         ┌─ --api: GET, PUT If-Match
//!   start, change, stop, rank ─► RuleEdit ─► text ├─ Source ┤
//!   import ────────────────────────────────► text ┘         └─ --file: locked, then renamed over
//! ```
//!
//! The edit itself is one and the same for both ([`model::RuleEdit`]): text in, text out.

mod check;
mod keys;
mod list;
mod request;
mod source;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use api::WireRules;
use clap::Subcommand;
use model::{RuleEdit, RulePosition, RuleSet};
use serde_json::json;

use keys::RuleKeyArgs;
use source::RuleSource;

/// Shows, tries and changes rules: of a running proxy, at once, or in a rule file.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: RuleSubcommand,
}

const AFTER_HELP: &str = "\
Rules stand in an order, and the first whose --match fits takes a request. Without --file the
rules are those of the proxy that listens at --api; a change is in force at once, also for what
is queued, and lasts until the proxy ends or reads its rule file again, or for good with --save.
With --controller, or $SLUICE_CONTROLLER, they are those of a controller: for all its proxies, and
on record there. With --file they are those of a file, whose comments and order stay. \"-\" is standard input,
and standard output for what is changed there.

Examples:
  sluice rule start backup --match 'uid={34}' --limit 200MB/s
  sluice rule change backup --limit 50MB/s --weight 2
  sluice rule rank backup --before jobs
  sluice rule stop backup
  sluice rule export > rules.toml; $EDITOR rules.toml; sluice rule import rules.toml --save
  sluice rule check rules.toml --request 'jobid=dd.500 opcode=write bytes=4MiB'

docs/RULES.md has the language of conditions and every key.";

#[derive(Debug, Subcommand)]
enum RuleSubcommand {
    /// Lists rules and meters in their order, with what is under way.
    ///
    /// Of a running proxy also what limits with a parent are NOW, how many classes each rule
    /// has and how many of their requests wait. Columns in which nothing stands are left out.
    List {
        #[command(flatten)]
        source: RuleSource,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Starts a rule: before all others, or where you say.
    ///
    /// A rule of the name `default` is what no other takes and comes last.
    #[command(after_help = START_HELP)]
    Start {
        /// The new rule: letters, digits, _ - and . only.
        name: String,
        #[command(flatten)]
        position: RulePositionArgs,
        #[command(flatten)]
        writing: RuleWriteArgs,
        // The last, as its heading is that of all that follows.
        #[command(flatten)]
        keys: RuleKeyArgs,
    },
    /// Changes keys of a rule, all of them or, with an error, none.
    ///
    /// Keys that are not named stay. `none` takes a key away, so that its default holds. What
    /// a class or meter owes or has saved stays: no change refills a meter.
    #[command(after_help = CHANGE_HELP)]
    Change {
        /// The rule.
        name: String,
        #[command(flatten)]
        writing: RuleWriteArgs,
        #[command(flatten)]
        keys: RuleKeyArgs,
    },
    /// Stops a rule: its requests fall to the next that matches.
    ///
    /// A rule that is not there is an error, which names those that are. So is one that is the
    /// parent of others.
    #[command(after_help = "Example:\n  sluice rule stop backup --save")]
    Stop {
        /// The rule.
        name: String,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Moves a rule to another place in the order.
    #[command(after_help = "Examples:\n  sluice rule rank backup --before jobs\n  \
                            sluice rule rank backup --last --file rules.toml")]
    Rank {
        /// The rule.
        name: String,
        #[command(flatten)]
        position: RulePositionArgs,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Replaces all rules and meters by those of a file.
    ///
    /// A file with an error leaves the old rules; exit status 1.
    #[command(
        after_help = "Examples:\n  sluice rule import rules.toml\n  sluice rule export | sed \
                            s/500MB/600MB/ | sluice rule import -"
    )]
    Import {
        /// The rule file; - for standard input.
        from: PathBuf,
        #[command(flatten)]
        writing: RuleWriteArgs,
    },
    /// Prints the rules as the rule file that `import` takes, comments included.
    #[command(after_help = "Example:\n  sluice rule export > rules.toml")]
    Export {
        #[command(flatten)]
        source: RuleSource,
        /// Print text and version as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Says what is wrong with a rule file, which rules never match, and what a request gets.
    ///
    /// Exit status 1 if a proxy would refuse the file. Without FILE it looks at the rules that
    /// a running proxy has in force.
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
                        --parent ckpt,complement=2GB/s,min=50MB/s
  sluice rule start backup --match 'uid={34}' --before jobs --file /etc/sluice/rules.toml";

const CHANGE_HELP: &str = "\
Examples:
  sluice rule change backup --limit 50MB/s
  sluice rule change backup --limit none --weight 2 --slots 4
  sluice rule change jobs --per jobid,uid --file rules.toml";

/// Where among the rules.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct RulePositionArgs {
    /// Right before this rule.
    #[arg(long, value_name = "RULE")]
    before: Option<String>,
    /// Before all others.
    #[arg(long)]
    first: bool,
    /// Behind all others but `default`.
    #[arg(long)]
    last: bool,
}

/// Whose rules are changed, and how that is told.
#[derive(Debug, clap::Args)]
struct RuleWriteArgs {
    #[command(flatten)]
    source: RuleSource,
    /// Also write the rule file of the proxy (its --rules), so that the change outlives it.
    #[arg(long, conflicts_with = "file")]
    save: bool,
    /// Print the rules as they are then as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice rule`.
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
            let edit = start(name, &keys, position.place())?;
            writing.change(&edit)?
        }
        RuleSubcommand::Change { name, keys, writing } => {
            writing.change(&RuleEdit::Change { name, keys: keys.edits() })?
        }
        RuleSubcommand::Stop { name, writing } => writing.change(&RuleEdit::Stop { name })?,
        RuleSubcommand::Rank { name, position, writing } => {
            let place = position.place();
            let place = place.context("say where to: --before RULE, --first or --last")?;
            writing.change(&RuleEdit::Rank { name, place })?
        }
        RuleSubcommand::Import { from, writing } => writing.import(&from)?,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// A new rule; only `default` may do without a condition, as it cannot have one.
fn start(
    name: String,
    keys: &RuleKeyArgs,
    place: Option<RulePosition>,
) -> anyhow::Result<RuleEdit> {
    ensure!(
        keys.has_condition() || name == RuleSet::DEFAULT,
        "say which requests it takes: --match 'jobid={{dd.*}}', or --match '*' for all that reach it"
    );
    Ok(RuleEdit::Start { name, keys: keys.edits(), place: place.unwrap_or_default() })
}

impl RulePositionArgs {
    fn place(self) -> Option<RulePosition> {
        match self {
            RulePositionArgs { before: Some(rule), .. } => Some(RulePosition::Before(rule)),
            RulePositionArgs { first: true, .. } => Some(RulePosition::First),
            RulePositionArgs { last: true, .. } => Some(RulePosition::Last),
            _ => None,
        }
    }
}

impl RuleWriteArgs {
    /// Makes a change and tells of it.
    fn change(&self, edit: &RuleEdit) -> anyhow::Result<String> {
        let rules = self.source.change(self.save, |text| edit.apply(text))?;
        self.told(&rules, || done(edit, &rules))
    }

    /// Replaces all rules and shows them.
    fn import(&self, from: &Path) -> anyhow::Result<String> {
        // What is wrong with the file is told with its own lines, before anybody is asked.
        let new = source::read_text(from)?;
        source::parse(&from.display().to_string(), &new)?;
        let rules = self.source.replace(self.save, &new)?;
        self.told(&rules, || list::list(&WireRules { saved: true, ..rules.clone() }))
    }

    /// What is printed after a change.
    fn told(&self, rules: &WireRules, what: impl Fn() -> String) -> anyhow::Result<String> {
        if self.source.is_standard() {
            // The text itself is what was asked for.
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
                "in force until the proxy ends or reads {file} again (SIGHUP); --save writes it there"
            ),
            (None, true) => "in force at every proxy, and on record at the controller".into(),
            (None, false) => "in force until the proxy ends: it has no rule file (--rules)".into(),
        };
        let _ = writeln!(text, "{lasts}");
        Ok(text)
    }
}

/// A change in words, with the rules that can never match.
fn done(edit: &RuleEdit, rules: &WireRules) -> String {
    let name = edit.name();
    let mut text = match edit {
        RuleEdit::Start { .. } => format!("rule {name:?} is started, {}\n", place(name, rules)),
        RuleEdit::Rank { .. } => format!("rule {name:?} is {} now\n", place(name, rules)),
        RuleEdit::Change { .. } => format!("rule {name:?} is changed\n"),
        RuleEdit::Stop { .. } => format!("rule {name:?} is stopped\n"),
    };
    for (rule, by) in list::shadowed(rules) {
        let _ = writeln!(text, "{}", list::never_matches(rule, by));
    }
    text
}

/// Where a rule stands: `the first, before "jobs"`.
fn place(name: &str, rules: &WireRules) -> String {
    let at = rules.rules.iter().position(|rule| rule.name == name).unwrap_or_default();
    match (at, rules.rules.get(at + 1)) {
        (0, None) => "the only one".into(),
        (0, Some(next)) => format!("the first, before {:?}", next.name),
        (_, Some(next)) => format!("before {:?}", next.name),
        (_, None) => "the last".into(),
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
        let edit = RuleEdit::Rank { name: "all".into(), place: RulePosition::First };
        assert_eq!(
            done(&edit, &all),
            "rule \"all\" is the first, before \"a\" now\n\
             rule \"a\" never takes a request: \"all\" takes all that it could\n"
        );
        assert_eq!(place("a", &all), "the last");
        assert_eq!(place("b", &rules("[[rule]]\nname = \"b\"\n")), "the only one");
    }
}
