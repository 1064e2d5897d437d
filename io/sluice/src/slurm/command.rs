//! Calls of Slurm's commands, and what they print: words `Key=Value`, or columns.
//!
//! ```text
//!   squeue, scontrol ─ TZ=UTC, none of the variables that change what is shown ─► text, or its message
//! ```

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use model::{Nanos, Time};

/// Runs `scontrol` with these arguments, and returns what it prints.
///
/// # Errors
/// If it cannot be run or fails; the message is its own.
pub(super) fn scontrol(args: &[&str]) -> anyhow::Result<String> {
    run("scontrol", args)
}

/// Runs `squeue` with these arguments, and returns what it prints.
///
/// # Errors
/// If it cannot be run or fails; the message is its own.
pub(super) fn squeue(args: &[&str]) -> anyhow::Result<String> {
    run("squeue", args)
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    // Times are then of one zone, whatever the user's environment says.
    command.env("TZ", "UTC").args(args).stdin(Stdio::null());
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| changes_output(name)).for_each(|name| {
        command.env_remove(name);
    });
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let (errors, first) = (String::from_utf8_lossy(&output.stderr), args.first().copied());
        let second = args.get(1).copied().unwrap_or_default();
        bail!("{program} {} {second}: {}", first.unwrap_or_default(), errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a variable would hide jobs, or change the form of the lines.
fn changes_output(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"SQUEUE_")
        || name.starts_with(b"SCONTROL_")
        || [&b"SLURM_CLUSTERS"[..], b"SLURM_TIME_FORMAT", b"SLURM_BITSTR_LEN"].contains(&name)
}

/// Returns the value of `Key=Value` in a line whose values have no blanks.
pub(super) fn value<'t>(line: &'t str, key: &str) -> Option<&'t str> {
    let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words.find(|(found, _)| *found == key).map(|(_, value)| value)
}

/// Formats a time as `scontrol` reads it in UTC, rounded up to its second.
pub(super) fn moment(at: Time) -> String {
    let seconds = at.as_nanos().div_ceil(Nanos::from_secs(1).get());
    let stamp = Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX));
    let civil = TimeZone::UTC.to_datetime(stamp.unwrap_or(Timestamp::MAX));
    civil.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_values_found_by_their_whole_key() {
        let at = Time::from_nanos(1_795_874_400_000_000_001);
        assert_eq!(moment(at), "2026-11-28T14:00:01");
        let line = "LicenseName=lustreqos Total=1000 Used=0 Free=1000";
        assert_eq!((value(line, "Total"), value(line, "Tot")), (Some("1000"), None));
    }

    #[test]
    fn variables_that_change_what_is_shown_are_left_out_and_others_are_kept() {
        for name in ["SQUEUE_FORMAT", "SQUEUE_ARRAY", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS"] {
            assert!(changes_output(OsStr::new(name)), "{name}");
        }
        for name in ["SLURM_CONF", "PATH", "TZ", "SLURM_JOB_ID"] {
            assert!(!changes_output(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_message() {
        let error = format!("{:#}", run("ls", &["-d", "/none/such"]).unwrap_err());
        assert!(error.starts_with("ls -d /none/such: ") && error.len() > 20, "{error}");
        assert_eq!(run("echo", &["x"]).unwrap(), "x\n");
        let error = format!("{:#}", run("none-such-program", &[]).unwrap_err());
        assert!(error.starts_with("cannot run none-such-program"), "{error}");
    }
}
