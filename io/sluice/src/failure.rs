//! The failure of a command: a line for people, or with `--json` one line of JSON with a code.
//!
//! ```text
//!   anyhow::Error ─► its chain: CommandError, ClientError, rules, file, … ─► ErrorReport
//!                                      `sluice: message` or {"code":…,"message":…,"at":…} ◄─┘
//! ```

use std::fmt;
use std::io;
use std::process::ExitCode;

use api::{ErrorCode, ErrorReport};
use clap::ArgMatches;
use controller::TokenFailed;
use http::{ClientError, CredentialsError, ParseEndpointError};
use rules::{RuleEditError, RuleFileError};

use crate::{log, reserve};

/// An error of a command that has a code of its own.
#[derive(Debug)]
pub(crate) struct CommandError(ErrorReport);

impl CommandError {
    /// Makes the error of a flag or variable.
    pub(crate) fn argument(at: &str, message: impl Into<String>) -> CommandError {
        CommandError(ErrorReport::new(ErrorCode::InvalidArgument, message).at(at))
    }

    /// Makes the error of a report.
    pub(crate) fn of_report(report: ErrorReport) -> CommandError {
        CommandError(report)
    }

    /// Makes the error of rules in a file; the message shows file and line.
    pub(crate) fn rules(error: &RuleFileError, name: impl fmt::Display) -> CommandError {
        CommandError(ErrorReport { message: error.in_file(name), ..ErrorReport::of_rules(error) })
    }

    /// Makes the error of an edit of rules in a file.
    pub(crate) fn edit(error: &RuleEditError, name: &str) -> CommandError {
        let message = match error {
            RuleEditError::Before(error) => error.in_file(name),
            error => format!("{name}: {error}"),
        };
        CommandError(ErrorReport { message, ..ErrorReport::of_edit(error) })
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for CommandError {}

/// Returns whether the command line asks for JSON: whether the innermost subcommand has a flag
/// `--json` and it is given.
pub(crate) fn wants_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false)
}

/// Writes a failure to stderr.
pub(crate) fn say(error: &anyhow::Error, json: bool) {
    match json {
        true => {
            log::print_line(&serde_json::to_string(&report(error)).expect("a report is plain data"))
        }
        false => log::print_line(&format!("sluice: {error:#}")),
    }
}

/// Returns the exit status of a failure: 1, or what a refusal of a reservation says of later.
pub(crate) fn status(error: &anyhow::Error) -> ExitCode {
    match report(error).refusal {
        Some(refusal) if refusal.next_start_ns.is_some() => ExitCode::from(reserve::LATER),
        Some(_) => ExitCode::from(reserve::NEVER),
        None => ExitCode::FAILURE,
    }
}

/// Makes the report of an error: the outermost cause with a code decides.
fn report(error: &anyhow::Error) -> ErrorReport {
    let found = error.chain().find_map(|cause| {
        if let Some(CommandError(report)) = cause.downcast_ref() {
            return Some(report.clone());
        }
        if let Some(error) = cause.downcast_ref() {
            return Some(of_client(error));
        }
        if let Some(error) = cause.downcast_ref::<RuleFileError>() {
            return Some(ErrorReport::of_rules(error));
        }
        if let Some(error) = cause.downcast_ref::<RuleEditError>() {
            return Some(ErrorReport::of_edit(error));
        }
        if let Some(error) = cause.downcast_ref::<TokenFailed>() {
            return Some(error.report());
        }
        if let Some(error) = cause.downcast_ref::<CredentialsError>() {
            let code = match error {
                CredentialsError::Read { .. } => ErrorCode::Io,
                _ => ErrorCode::InvalidArgument,
            };
            return Some(ErrorReport::new(code, ""));
        }
        if cause.is::<ParseEndpointError>() {
            return Some(ErrorReport::new(ErrorCode::InvalidArgument, ""));
        }
        cause.is::<io::Error>().then(|| ErrorReport::new(ErrorCode::Io, ""))
    });
    let report = found.unwrap_or_else(|| ErrorReport::new(ErrorCode::Failed, ""));
    ErrorReport { message: format!("{error:#}"), ..report }
}

/// Makes the report of a failed call, without its message.
pub(crate) fn of_client(error: &ClientError) -> ErrorReport {
    let leader = match error {
        ClientError::Governed { controller, .. } => Some(controller.clone()),
        _ => None,
    };
    let at = error.at().map(str::to_owned);
    let refusal = error.refusal().cloned().map(Box::new);
    ErrorReport { at, leader, refusal, ..ErrorReport::new(error.code(), "") }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use clap::{CommandFactory as _, FromArgMatches as _};
    use rules::RuleSet;

    use super::*;
    use crate::Cli;

    fn code(error: impl Into<anyhow::Error>) -> (ErrorCode, Option<String>) {
        let ErrorReport { code, at, .. } = report(&error.into());
        (code, at)
    }

    #[test]
    fn the_outermost_cause_with_a_code_decides() {
        let refused = || ClientError::Connect {
            at: "http://127.0.0.1:1".parse().unwrap(),
            source: io::ErrorKind::ConnectionRefused.into(),
        };
        assert_eq!(code(refused()), (ErrorCode::Unreachable, None));
        let wrapped = Err::<(), _>(refused()).context("cannot read the usage").unwrap_err();
        assert_eq!(report(&wrapped).code, ErrorCode::Unreachable);
        assert!(report(&wrapped).message.starts_with("cannot read the usage: cannot connect to"));
        let file = Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)).context("cannot read x");
        assert_eq!(code(file.unwrap_err()), (ErrorCode::Io, None));
        assert_eq!(code(anyhow::anyhow!("no")), (ErrorCode::Failed, None));
        let wrong = RuleSet::parse("[[rule]]\nname = 3\n").unwrap_err();
        assert_eq!(
            code(CommandError::rules(&wrong, "f")),
            (ErrorCode::InvalidRules, Some("2:8".into()))
        );
        let until = CommandError::argument("--until", "too early");
        assert_eq!(code(until), (ErrorCode::InvalidArgument, Some("--until".into())));
    }

    #[test]
    fn json_is_asked_for_by_the_flag_of_the_innermost_command() {
        let asks = |line: &str| {
            let matches = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
            Cli::from_arg_matches(&matches).unwrap();
            wants_json(&matches)
        };
        for (line, json) in [
            ("sluice usage --json", true),
            ("sluice usage", false),
            ("sluice rule list --json", true),
            ("sluice rule stop x", false),
            ("sluice token revoke x", false),
            ("sluice docs metrics", false),
        ] {
            assert_eq!(asks(line), json, "{line}");
        }
    }
}
