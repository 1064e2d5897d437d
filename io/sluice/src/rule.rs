//! `sluice rule`: the rules in force, others in their place, and a look at a rule file before.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::{Address, Client, LimitReport, Rules};
use clap::Subcommand;
use model::RuleSet;
use serde_json::json;

use crate::top::table;

/// Shows the rules in force, puts others in force, or checks a rule file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists the rules and meters that a running proxy has in force, in their order.
    List {
        /// The proxy's control socket.
        #[arg(long, value_name = "unix:///PATH", default_value = crate::top::DEFAULT_API)]
        api: Address,
        /// Print them as JSON.
        #[arg(long, conflicts_with = "toml")]
        json: bool,
        /// Print them as the rule file they could have come from.
        #[arg(long)]
        toml: bool,
    },
    /// Reads a rule file and reports what is wrong with it, and rules that can never match.
    ///
    /// Exit status 1 if the proxy would refuse the file.
    Check {
        /// The rule file.
        file: PathBuf,
        /// Print the outcome as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Puts a rule file in force in a running proxy at once, for what is queued too.
    ///
    /// A file with an error leaves the old rules in force; exit status 1. When it starts or
    /// gets SIGHUP, the proxy reads the file of its own `--rules` again.
    Load {
        /// The rule file.
        file: PathBuf,
        /// The proxy's control socket.
        #[arg(long, value_name = "unix:///PATH", default_value = crate::top::DEFAULT_API)]
        api: Address,
        /// Print the rules that are in force then as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `sluice rule`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.action {
        Action::List { api, json, toml } => {
            let rules = Client::new(&api)?.rules()?;
            match (json, toml) {
                (true, _) => serde_json::to_string_pretty(&rules)? + "\n",
                (_, true) => rules.text,
                _ => list(&rules),
            }
        }
        Action::Check { file, json } => check(&file, json)?,
        Action::Load { file, api, json } => {
            // What is wrong with the file is told with its line before the proxy is asked.
            check(&file, false)?;
            let rules = Client::new(&api)?.set_rules(&read(&file)?)?;
            if json { serde_json::to_string_pretty(&rules)? + "\n" } else { list(&rules) }
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The rules as tables for people.
fn list(rules: &Rules) -> String {
    if rules.rules.is_empty() && rules.meters.is_empty() {
        return "no rules: every request is in the class \"default\"\n".into();
    }
    let mut text = String::new();
    if !rules.rules.is_empty() {
        let head = ["RULE", "MATCH", "PER", "WEIGHT", "RESERVE", "LIMIT", "SLOTS", "WRITES"];
        let rows = rules.rules.iter().map(|rule| {
            let limits: Vec<_> = rule.limits.iter().map(limit).collect();
            vec![
                rule.name.clone(),
                rule.condition.clone(),
                rule.per.join(" "),
                rule.weight.to_string(),
                rule.reserve.clone().unwrap_or_default(),
                limits.join(", "),
                rule.slots.map(|slots| slots.to_string()).unwrap_or_default(),
                rule.write_mode.clone().unwrap_or_default(),
            ]
        });
        text += &table::aligned(&head, &[3, 6], rows);
        for rule in &rules.rules {
            if let Some(by) = &rule.shadowed_by {
                let _ = writeln!(text, "{}", never_matches(&rule.name, by));
            }
        }
    }
    if !rules.meters.is_empty() {
        let head = ["METER", "MATCH", "PER", "RATE"];
        let rows = rules.meters.iter().map(|meter| {
            let per = meter.per.join(" ");
            vec![meter.name.clone(), meter.condition.clone(), per, limit(&meter.limit)]
        });
        if !text.is_empty() {
            text.push('\n');
        }
        text += &table::aligned(&head, &[], rows);
    }
    text
}

/// A ceiling in one cell: `100MB/s read write`.
fn limit(limit: &LimitReport) -> String {
    let all = model::Kind::ALL.len();
    match limit.kinds.len() {
        kinds if kinds == all => limit.rate.clone(),
        kinds if kinds > 3 => format!("{} of {kinds} kinds", limit.rate),
        _ => format!("{} {}", limit.rate, limit.kinds.join(" ")),
    }
}

fn never_matches(rule: &str, by: &str) -> String {
    format!("rule {rule:?} never takes a request: {by:?} takes all that it could")
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Reads the file; an error of it becomes the error of the command.
fn check(file: &Path, as_json: bool) -> anyhow::Result<String> {
    let text = read(file)?;
    let name = file.display();
    match RuleSet::parse(&text) {
        Ok(set) => {
            let rules = Rules::from(&set);
            Ok(if as_json { accepted_json(&rules) } else { accepted(&name.to_string(), &rules) })
        }
        Err(error) => {
            if as_json {
                let answer = json!({
                    "ok": false,
                    "line": error.excerpt.line,
                    "column": error.excerpt.column,
                    "message": error.problem.to_string(),
                });
                writeln!(std::io::stdout(), "{answer:#}")?;
            }
            anyhow::bail!("{}", error.in_file(name))
        }
    }
}

fn accepted(name: &str, rules: &Rules) -> String {
    let mut text = String::new();
    let shadowed = rules.rules.iter().filter_map(|r| Some((&r.name, r.shadowed_by.as_ref()?)));
    for (rule, by) in shadowed {
        let _ = writeln!(text, "{name}: {}", never_matches(rule, by));
    }
    let count =
        |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let (rules, meters) = (count(rules.rules.len(), "rule"), count(rules.meters.len(), "meter"));
    let _ = writeln!(text, "{name}: {rules}, {meters}, no error");
    text
}

fn accepted_json(rules: &Rules) -> String {
    let shadowed = rules
        .rules
        .iter()
        .filter_map(|rule| Some(json!({ "rule": rule.name, "by": rule.shadowed_by.as_ref()? })));
    let shadowed: Vec<_> = shadowed.collect();
    let answer = json!({ "ok": true, "shadowed": shadowed, "rules": rules });
    format!("{answer:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::from(&RuleSet::parse(text).unwrap())
    }

    #[test]
    fn rules_and_meters_are_listed_in_their_order() {
        let rules = rules(
            "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={dd.*}\"\nper = [\"jobid\"]\nweight = 4\n\
             limit = \"100MB/s\"\n\
             [[rule]]\nname = \"rest\"\nslots = 8\n\
             [[rule]]\nname = \"late\"\nmatch = \"uid={500}\"\n\
             [[meter]]\nname = \"opens\"\nkinds = [\"open\"]\nrate = \"100ops/s\"\n",
        );
        assert_eq!(
            list(&rules),
            "RULE  MATCH         PER    WEIGHT  RESERVE  LIMIT               SLOTS  WRITES\n\
             jobs  jobid={dd.*}  jobid       4           100MB/s read write\n\
             rest  *                         1                                   8\n\
             late  uid={500}                 1\n\
             rule \"late\" never takes a request: \"rest\" takes all that it could\n\
             \n\
             METER  MATCH  PER  RATE\n\
             opens  *           100ops/s open\n"
        );
    }

    #[test]
    fn no_rules_are_said_in_words() {
        assert_eq!(list(&rules("")), "no rules: every request is in the class \"default\"\n");
    }

    #[test]
    fn a_good_file_is_summed_up_with_what_it_shadows() {
        let rules = rules("[[rule]]\nname = \"a\"\n[[rule]]\nname = \"b\"\n");
        assert_eq!(
            accepted("r.toml", &rules),
            "r.toml: rule \"b\" never takes a request: \"a\" takes all that it could\n\
             r.toml: 2 rules, 0 meters, no error\n"
        );
    }

    #[test]
    fn a_bad_file_is_an_error_with_its_line() {
        let file = std::env::temp_dir().join(format!("sluice-check-{}", std::process::id()));
        std::fs::write(&file, "[[rule]]\nname = \"a\"\nweight = 0\n").unwrap();
        let error = check(&file, false).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(error.starts_with(&format!("{}:3:10: ", file.display())), "{error}");
        assert!(error.ends_with("\n  3 | weight = 0\n    |          ^"), "{error}");
    }
}
