//! Calls of `scontrol`, and what it prints: words `Key=Value`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use model::{Nanos, Time};

/// Runs `scontrol` with these arguments, and returns what it prints.
///
/// # Errors
/// If it cannot be run or fails; the message is its own.
pub(super) fn run(args: &[&str]) -> anyhow::Result<String> {
    let mut scontrol = Command::new("scontrol");
    // Times are then of one zone, whatever the user's environment says.
    scontrol.env("TZ", "UTC").env_remove("SLURM_TIME_FORMAT").args(args).stdin(Stdio::null());
    let said = scontrol.output().context("cannot run scontrol")?;
    if !said.status.success() {
        let errors = String::from_utf8_lossy(&said.stderr);
        bail!("scontrol {}: {}", args.join(" "), errors.trim());
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
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
}
