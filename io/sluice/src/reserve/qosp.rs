//! `qosp`: the command line of QoSPlanner, for a link of that name to this program.
//!
//! ```text
//!   qosp reserve -throughput 100 -duration 100 -filenames /path -id=ID ─► sluice reserve add
//!   qosp delete -id=ID ─► each reservation of that job ─► sluice reserve remove
//! ```
//!
//! Source: QoSPlanner, "bandwidth reservations" (JGU Mainz, LUG'17). Its throughput is a number of
//! RPCs per second. A Lustre RPC carries 1 MiB by default, and the targets here have capacities in
//! bytes, so one unit is 1 MB/s. RPCs have no direction there; here reads and writes share a
//! target by r/R + w/W ≤ 1, so that a rate for each of both would take it twice. What the talk
//! reserves for are checkpoints: `-direction` is `write` unless it is given.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use anyhow::Context as _;
use api::{ErrorCode, ErrorReport, NewReservation};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use model::{Nanos, Rate};

use super::path::ExportPath;
use super::request::{ReservedDirection, rates};
use super::{CallArgs, all_reservations, show};
use crate::failure::CommandError;
use crate::log;

/// Reserve bandwidth with the command line of QoSPlanner; like `sluice reserve`
///
/// Options have one dash or two. The exit status is that of `sluice reserve`: 0 done, 3 not now but
/// later, 4 never, 2 invalid command line, 1 another error.
#[derive(Debug, Parser)]
#[command(name = NAME, version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  qosp reserve -throughput 100 -duration 100 -filenames \
                        /mnt/scratch/run7 -id=4711\n\nA throughput of 1 is 1 MB/s (10^6 bytes per \
                        second): the RPCs of QoSPlanner are of 1 MiB.")]
struct QospCli {
    #[command(subcommand)]
    action: QospAction,
}

#[derive(Debug, Subcommand)]
enum QospAction {
    /// Reserve a rate for a job, from the first time at which it fits
    Reserve {
        /// Rate in MB/s.
        #[arg(long, value_name = "MB/S", value_parser = throughput)]
        throughput: Rate,
        /// Length in seconds.
        #[arg(long, value_name = "SECONDS", value_parser = duration)]
        duration: Nanos,
        /// Files or directories of one export, separated by commas: EXPORT/PATH, or absolute paths
        /// below a mount. The reservation is for their deepest common directory.
        #[arg(long, value_name = "PATH,…", value_delimiter = ',', required = true)]
        filenames: Vec<String>,
        /// Job whose requests the reservation serves.
        #[arg(long)]
        id: String,
        /// What the throughput is for.
        #[arg(long, value_enum, default_value = "write")]
        direction: ReservedDirection,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Remove all reservations of a job
    Delete {
        /// Job.
        #[arg(long)]
        id: String,
        #[command(flatten)]
        call: CallArgs,
    },
    /// List reservations
    List {
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Returns whether the program was called as `qosp`.
pub(crate) fn is_called() -> bool {
    crate::is_called(NAME)
}

/// Runs `qosp` with the arguments of this process.
pub(crate) fn main() -> ExitCode {
    let matches = QospCli::command().get_matches_from(std::env::args_os().map(with_two_dashes));
    let cli = QospCli::from_arg_matches(&matches);
    let cli = cli.unwrap_or_else(|error| error.format(&mut QospCli::command()).exit());
    log::start();
    let status = crate::status(run(cli.action), &matches);
    log::finish();
    status
}

fn run(action: QospAction) -> anyhow::Result<ExitCode> {
    match action {
        QospAction::Reserve { throughput, duration, filenames, id, direction, call } => {
            let place = ExportPath::of_all(&filenames)?;
            let [read, write] = rates(Some(direction), Some(throughput));
            let new = NewReservation {
                read,
                write,
                duration_ns: duration.get(),
                job: Some(id),
                export: place.export,
                directory: place.directory,
                ..NewReservation::default()
            };
            call.add(&new, false)
        }
        QospAction::Delete { id, call } => delete(&id, &call),
        QospAction::List { call } => call.list(&[], true),
    }
}

/// Removes the reservations of a job, with JSON as a list of them.
fn delete(job: &str, call: &CallArgs) -> anyhow::Result<ExitCode> {
    let client = call.controller.client()?;
    let found = all_reservations(&client, &[("job", Some(job.to_owned()))])?;
    if found.reservations.is_empty() {
        let message = format!("job {job:?} has no reservation");
        let report = ErrorReport::new(ErrorCode::NotFound, message).at("-id");
        return Err(CommandError::of_report(report).into());
    }
    let remove = |id| {
        client.remove_reservation(id).with_context(|| format!("cannot remove reservation {id}"))
    };
    // A phase ends with its reservation.
    let ids = found.reservations.iter().filter(|held| held.phase_of.is_none()).map(|held| held.id);
    let removed = ids.map(remove).collect::<anyhow::Result<Vec<_>>>()?;
    call.print(&removed, |removed| removed.iter().map(show::sentence).collect())
}

/// Gives a long option with one dash a second one.
fn with_two_dashes(word: OsString) -> OsString {
    let bytes = word.as_encoded_bytes();
    let is_long = bytes.len() > 2 && bytes[0] == b'-' && bytes[1].is_ascii_alphabetic();
    if !is_long {
        return word;
    }
    let mut long = OsString::from("-");
    long.push::<&OsStr>(&word);
    long
}

fn throughput(text: &str) -> Result<Rate, String> {
    let units: Option<u64> = text.parse().ok();
    let rate = units.and_then(|units| units.checked_mul(1_000_000)).and_then(Rate::bytes_per_sec);
    rate.ok_or_else(|| "not a whole number of MB/s, 1 or more".into())
}

fn duration(text: &str) -> Result<Nanos, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("a reservation of 0 s is empty; give its length in seconds".into()),
        Ok(seconds) if seconds <= u64::MAX / 1_000_000_000 => Ok(Nanos::from_secs(seconds)),
        _ => Err("not a whole number of seconds".into()),
    }
}

/// The name of the link.
const NAME: &str = "qosp";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<QospAction, clap::Error> {
        let words = line.split(' ').map(|word| with_two_dashes(word.into()));
        Ok(QospCli::try_parse_from(words)?.action)
    }

    #[test]
    fn the_line_of_the_talk_is_understood() {
        QospCli::command().debug_assert();
        let line = "qosp reserve -throughput 100 -duration 100 -filenames s/a,s/b -id=4711";
        let QospAction::Reserve { throughput, duration, filenames, id, direction, .. } =
            parsed(line).unwrap()
        else {
            panic!("not a request")
        };
        assert_eq!(throughput, Rate::bytes_per_sec(100_000_000).unwrap());
        assert_eq!((duration, id.as_str()), (Nanos::from_secs(100), "4711"));
        assert_eq!((filenames.len(), direction), (2, ReservedDirection::Write));
        assert!(matches!(parsed("qosp delete --id 7"), Ok(QospAction::Delete { .. })));
        assert!(matches!(parsed("qosp list -json"), Ok(QospAction::List { .. })));
    }

    #[test]
    fn what_cannot_be_is_refused_on_the_command_line() {
        for (throughput, duration) in [
            ("0", "100"),
            ("1.5", "100"),
            ("18446744073710", "100"),
            ("100", "0"),
            ("100", "1m"),
            ("100", "18446744074"),
        ] {
            let line = format!(
                "qosp reserve -throughput {throughput} -duration {duration} -filenames s -id=4711"
            );
            assert!(parsed(&line).is_err(), "{line}");
        }
        let none = "qosp reserve -throughput 1 -duration 1 -id=4711";
        assert!(parsed(none).is_err());
    }
}
