//! `sluice rule check`: errors of a file, rules that never match, and the grant of a request.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use api::{ExportProjects, ProjectsKnown, WireRules};
use http::{ApiClient, ServerAddress};
use rules::{DependencyKind, RuleSet};
use serde_json::{Value, json};

use super::list::{never_matches, shadowed};
use super::request::{RequestSpec, RuleGrant};
use super::source::read_text;
use crate::failure::CommandError;

/// The flags of `sluice rule check`.
#[derive(Debug, clap::Args)]
pub(super) struct RuleCheck {
    /// Rule file; - for standard input [default: the rules in force]
    file: Option<PathBuf>,
    /// Control socket of the proxy whose rules in force are checked.
    #[arg(
        long,
        value_name = "unix:///PATH",
        default_value = crate::top::DEFAULT_API,
        conflicts_with = "file"
    )]
    proxy: ServerAddress,
    /// Request whose grant is shown: FIELD=VALUE of jobid, uid, gid, projid, nid, opcode, path,
    /// bytes, ops, with spaces between them.
    #[arg(long, value_name = "REQUEST")]
    request: Option<RequestSpec>,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

pub(super) const AFTER_HELP: &str = "\
Defaults of a request: unknown uid, gid and projid, the nid of this machine, opcode=read, and
bytes=1MiB for a read or write.

Examples:
  sluice rule check rules.toml
  sluice rule check rules.toml --request 'jobid=dd.500 uid=1000 opcode=write bytes=4MiB'
  sluice rule check --request 'jobid=dd.500 nid=10.0.0.1@tcp opcode=create path=/scratch/a'";

impl RuleCheck {
    /// Checks the rules and returns the text to print.
    ///
    /// # Errors
    /// If the rules are wrong; the error shows the line.
    pub(super) fn run(&self) -> anyhow::Result<String> {
        let (name, rules) = match &self.file {
            Some(file) => (file.display().to_string(), self.rules_of(file)?),
            None => ("the rules in force".into(), ApiClient::new(&self.proxy)?.rules()?),
        };
        let set = RuleSet::parse(&rules.text)
            .map_err(|error| anyhow::anyhow!("the proxy has another version: {error}"))?;
        let grant = self.request.as_ref().map(|asked| RuleGrant::of(asked, &set, &rules));
        if self.json {
            return Ok(accepted_json(&rules, &set, grant.as_ref()));
        }
        let mut text = accepted(&name, &rules);
        text.push_str(&needs_controller(&name, &set));
        if set.has_projids() {
            text.push_str(&unknown_projects(&name, &rules.projid));
        }
        if let Some(grant) = grant {
            let _ = write!(text, "\n{grant}");
        }
        Ok(text)
    }

    fn rules_of(&self, file: &Path) -> anyhow::Result<WireRules> {
        let text = read_text(file)?;
        match RuleSet::parse(&text) {
            Ok(set) => Ok(WireRules::of(&text, &set)),
            Err(error) => {
                if self.json {
                    let answer = json!({
                        "ok": false,
                        "line": error.excerpt.line,
                        "column": error.excerpt.column,
                        "message": error.problem.to_string(),
                    });
                    writeln!(std::io::stdout(), "{answer:#}")?;
                }
                Err(CommandError::rules(&error, file.display()).into())
            }
        }
    }
}

fn accepted(name: &str, rules: &WireRules) -> String {
    let mut text = String::new();
    for (rule, by) in shadowed(rules) {
        let _ = writeln!(text, "{name}: {}", never_matches(rule, by));
    }
    let count =
        |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let decays = match rules.decays.len() {
        0 => String::new(),
        some => format!(", {}", count(some, "decay")),
    };
    let (rules, meters) = (count(rules.rules.len(), "rule"), count(rules.meters.len(), "meter"));
    let _ = writeln!(text, "{name}: {rules}, {meters}{decays}, no error");
    text
}

/// The rules whose limit depends on what another rule uses at all proxies.
fn with_remote_parents(set: &RuleSet) -> impl Iterator<Item = (&str, &str)> {
    set.rules.iter().filter_map(|rule| {
        let on = rule.depends_on.as_ref()?;
        let is_local = matches!(on.kind, DependencyKind::Follow { .. });
        (!is_local).then_some((rule.name.as_str(), on.rule.as_str()))
    })
}

fn needs_controller(name: &str, set: &RuleSet) -> String {
    let mut text = String::new();
    for (rule, parent) in with_remote_parents(set) {
        let _ = writeln!(
            text,
            "{name}: rule {rule:?}: without a controller each proxy counts only its own requests of {parent:?}"
        );
    }
    text
}

/// Describes the files whose `projid` is unknown; without exports, for any proxy.
fn unknown_projects(name: &str, exports: &[ExportProjects]) -> String {
    const OPENED: &str = "projid is known of open files; for a file that is not open it is -1";
    if exports.is_empty() {
        return format!("{name}: {OPENED} if the proxy's kernel is older than Linux 6.17\n");
    }
    let mut text = String::new();
    for ExportProjects { export, known } in exports {
        let said = match known {
            ProjectsKnown::Files => continue,
            ProjectsKnown::OpenFiles => {
                format!("{OPENED}: this kernel has no file_getattr(2), which is new in Linux 6.17")
            }
            ProjectsKnown::NoProjects => {
                "its file system has no projects: projid is -1 for every file".into()
            }
        };
        let _ = writeln!(text, "{name}: export {export}: {said}");
    }
    text
}

fn accepted_json(rules: &WireRules, set: &RuleSet, grant: Option<&RuleGrant>) -> String {
    let shadowed = shadowed(rules).map(|(rule, by)| json!({ "rule": rule, "by": by }));
    let shadowed: Vec<Value> = shadowed.collect();
    let remote: Vec<&str> = with_remote_parents(set).map(|(rule, _)| rule).collect();
    let mut answer =
        json!({ "ok": true, "shadowed": shadowed, "needs_controller": remote, "rules": rules });
    if let Some(grant) = grant {
        answer["request"] = json!(grant);
    }
    format!("{answer:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &Path, request: &str) -> anyhow::Result<String> {
        let proxy = crate::top::DEFAULT_API.parse()?;
        let request = (!request.is_empty()).then(|| request.parse()).transpose();
        let request = request.map_err(anyhow::Error::msg)?;
        RuleCheck { file: Some(file.into()), proxy, request, json: false }.run()
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn a_good_file_is_summed_up_with_what_it_shadows() {
        let file = file("good", "[[rule]]\nname = \"a\"\n[[rule]]\nname = \"b\"\n");
        let name = file.display();
        assert_eq!(
            check(&file, "").unwrap(),
            format!(
                "{name}: rule \"b\" never matches: \"a\" takes all of its requests\n\
                 {name}: 2 rules, 0 meters, no error\n"
            )
        );
        let asked = check(&file, "uid=7").unwrap();
        assert!(asked.contains("no error\n\njobid='' uid=7 "), "{asked}");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_rule_that_needs_a_controller_over_several_proxies_is_named() {
        let child = |name: &str, how: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\nlimit = \"9ops/s\"\n\
                 depends_on = {{ rule = \"a\", {how}, min = \"1ops/s\" }}\n"
            )
        };
        let text = "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\nlimit = \"9ops/s\"\n".to_owned()
            + &child("b", "when_idle = \"1s\"").replacen("name", "match = \"uid={2}\"\nname", 1)
            + &child("c", "follow = \"50%\"");
        let file = file("parents", &text);
        let told = check(&file, "").unwrap();
        std::fs::remove_file(&file).unwrap();
        let named =
            "rule \"b\": without a controller each proxy counts only its own requests of \"a\"";
        assert!(told.contains(named) && !told.contains("rule \"c\""), "{told}");
    }

    #[test]
    fn the_projid_of_a_file_that_is_only_looked_up_is_said_to_be_unknown_where_it_is() {
        let file =
            file("projid", "[[meter]]\nname = \"a\"\nmatch = \"projid={7}\"\nrate = \"1MB/s\"\n");
        let text = check(&file, "").unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.contains("for a file that is not open it is -1"), "{text}");
        let export = |known| ExportProjects { export: "x".into(), known };
        let said = |known| unknown_projects("rules", &[export(known)]);
        assert_eq!(said(ProjectsKnown::Files), "");
        assert!(said(ProjectsKnown::OpenFiles).contains("export x: projid is known of open files"));
        assert!(
            said(ProjectsKnown::NoProjects).contains("export x: its file system has no projects")
        );
    }

    #[test]
    fn a_bad_file_is_an_error_with_its_line() {
        let file = file("bad", "[[rule]]\nname = \"a\"\nweight = 0\n");
        let error = check(&file, "").unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(error.starts_with(&format!("{}:3:10: ", file.display())), "{error}");
        assert!(error.ends_with("\n  3 | weight = 0\n    |          ^"), "{error}");
    }
}
