//! The file of `sluice reserve add --phases`, and the flags of `sluice reserve phase`: parts of a
//! reservation's time with higher rates.
//!
//! ```text
//!   [[phase]]            in the order of time
//!   start = "10min"      after the start of the reservation
//!   tolerance = "2min"   how much later it may start        [default: 0s]
//!   duration = "60s"
//!   write = "400MB/s"    the whole rate; read, metadata     [default: that of the reservation]
//! ```

use std::path::Path;

use api::{AddedPhase, NewPhase};
use model::{Nanos, Rate};
use serde::Deserialize;
use toml::Spanned;

use super::request::{bandwidth, duration, operations};
use crate::failure::CommandError;
use crate::when::{self, MomentArg};

/// A phase that is added to a reservation.
#[derive(Debug, clap::Args)]
#[group(id = "rates", required = true, multiple = true, args = ["read", "write", "metadata"])]
pub(super) struct PhaseArgs {
    /// Time at which it is to start [default: now]
    #[arg(long, value_name = "TIME", value_parser = when::ahead)]
    at: Option<MomentArg>,
    /// How much later it may start.
    #[arg(long, value_name = "SPAN", default_value = "0s")]
    tolerance: Nanos,
    /// Length.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration)]
    duration: Nanos,
    /// Whole rate of reads in the phase [default: that of the reservation]
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    read: Option<Rate>,
    /// Whole rate of writes in the phase [default: that of the reservation]
    #[arg(long, value_name = "RATE", value_parser = bandwidth)]
    write: Option<Rate>,
    /// Whole rate of metadata operations in the phase [default: that of the reservation]
    #[arg(long, value_name = "RATE", value_parser = operations)]
    metadata: Option<Rate>,
    /// Number of nodes of the job: no more is reserved than they can move.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nodes: Option<u32>,
}

impl PhaseArgs {
    /// Returns the request for the controller.
    pub(super) fn phase(&self) -> AddedPhase {
        AddedPhase {
            not_before_ns: self.at.as_ref().map(MomentArg::nanos),
            tolerance_ns: self.tolerance.get(),
            duration_ns: self.duration.get(),
            read: self.read.map(Into::into),
            write: self.write.map(Into::into),
            metadata: self.metadata.map(Into::into),
            nodes: self.nodes,
            idempotency_key: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseFile {
    #[serde(default)]
    phase: Vec<FilePhase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePhase {
    start: Spanned<Nanos>,
    #[serde(default)]
    tolerance: Nanos,
    duration: Spanned<Nanos>,
    read: Option<Spanned<Rate>>,
    write: Option<Spanned<Rate>>,
    metadata: Option<Spanned<Rate>>,
}

/// A value that is not accepted: its place in the text, and why.
type WrongPhase = (std::ops::Range<usize>, String);

/// Reads the phases of a reservation of that length.
///
/// # Errors
/// If the file cannot be read, or a value in it is not valid: the message has its line.
pub(super) fn read(file: &Path, length: Nanos) -> Result<Vec<NewPhase>, CommandError> {
    let name = file.display();
    let text = std::fs::metadata(file).and_then(|found| match found.len() > BYTES_MAX {
        true => Err(std::io::Error::other(format!("larger than {BYTES_MAX} bytes"))),
        false => std::fs::read_to_string(file),
    });
    let text = text.map_err(|error| {
        CommandError::argument("--phases", format!("cannot read {name}: {error}"))
    })?;
    parse(&text, length).map_err(|(span, why)| {
        let line = text[..span.start].matches('\n').count() + 1;
        CommandError::argument("--phases", format!("{name}:{line}: {why}"))
    })
}

/// Reads the text of such a file.
///
/// # Errors
/// If a value is not valid: the message has its line.
pub(crate) fn of_text(text: &str, length: Nanos) -> anyhow::Result<Vec<NewPhase>> {
    parse(text, length).map_err(|(span, why)| {
        let line = text[..span.start].matches('\n').count() + 1;
        anyhow::anyhow!("line {line}: {why}")
    })
}

fn parse(text: &str, length: Nanos) -> Result<Vec<NewPhase>, WrongPhase> {
    let file: PhaseFile = toml::from_str(text)
        .map_err(|error| (error.span().unwrap_or(0..0), error.message().replace('\n', " ")))?;
    if file.phase.is_empty() || file.phase.len() > PHASES_MAX {
        let count = file.phase.len();
        return Err((0..0, format!("{count} phases; 1 to {PHASES_MAX} are accepted: [[phase]]")));
    }
    let mut free = Nanos::ZERO;
    file.phase.into_iter().map(|phase| phase.checked(&mut free, length)).collect()
}

impl FilePhase {
    /// Checks a phase that may start at `free`, and moves that to its end.
    fn checked(self, free: &mut Nanos, length: Nanos) -> Result<NewPhase, WrongPhase> {
        let (start, duration) = (*self.start.get_ref(), *self.duration.get_ref());
        if duration == Nanos::ZERO {
            return Err((
                self.duration.span(),
                "duration is empty; give a span such as 60s".into(),
            ));
        }
        if start < *free {
            let why = format!(
                "start: {start} is before {free}, the end of the phase before it with its tolerance"
            );
            return Err((self.start.span(), why));
        }
        *free = start + self.tolerance + duration;
        if *free > length {
            let why = format!(
                "start: {start} with tolerance {} and duration {duration} is {free}, and the \
                 reservation ends after {length}",
                self.tolerance
            );
            return Err((self.start.span(), why));
        }
        let rates = [&self.read, &self.write, &self.metadata];
        if rates.iter().all(|rate| rate.is_none()) {
            let why = "no rate: add read, write or metadata, the whole rate of the phase";
            return Err((self.start.span(), why.into()));
        }
        Ok(NewPhase {
            start_ns: start.get(),
            tolerance_ns: self.tolerance.get(),
            duration_ns: duration.get(),
            read: rate("read", self.read, true)?,
            write: rate("write", self.write, true)?,
            metadata: rate("metadata", self.metadata, false)?,
        })
    }
}

fn rate(
    key: &str,
    value: Option<Spanned<Rate>>,
    in_bytes: bool,
) -> Result<Option<api::WireRate>, WrongPhase> {
    let Some(value) = value else { return Ok(None) };
    let rate = *value.get_ref();
    if rate.is_bytes() == in_bytes {
        return Ok(Some(rate.into()));
    }
    let want = if in_bytes { "data such as 500MB/s" } else { "operations such as 1000ops/s" };
    Err((value.span(), format!("{key}: \"{rate}\" is not a rate of {want}")))
}

/// The most phases of a reservation.
const PHASES_MAX: usize = 64;
/// The largest file.
const BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use api::WireRate;

    use super::*;

    const TWO: &str = "[[phase]]\nstart = \"10s\"\ntolerance = \"5s\"\nduration = \"10s\"\n\
                       write = \"40MB/s\"\n\n[[phase]]\nstart = \"40s\"\nduration = \"20s\"\n\
                       metadata = \"5ops/s\"\n";

    #[test]
    fn a_file_becomes_phases() {
        let phases = parse(TWO, Nanos::from_secs(60)).unwrap();
        let second = 1_000_000_000;
        let first = NewPhase {
            start_ns: 10 * second,
            tolerance_ns: 5 * second,
            duration_ns: 10 * second,
            write: Some(WireRate::Bytes(40_000_000)),
            ..NewPhase::default()
        };
        assert_eq!((phases.len(), &phases[0]), (2, &first));
        assert_eq!(phases[1].metadata, Some(WireRate::Ops(5)));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        let folder = testkit::TestFolder::new();
        let file = folder.path().join("phases.toml");
        let wrong = [
            ("start = \"40s\"", "start = \"24s\"", ":8: start: 24s is before 25s"),
            ("start = \"40s\"", "start = \"41s\"", ":8: start: 41s"),
            ("start = \"40s\"", "start = \"soon\"", ":8: "),
            ("\"20s\"", "\"0s\"", ":9: duration is empty"),
            ("5ops/s", "5MB/s", ":10: metadata: \"5MB/s\" is not a rate of operations"),
            ("write", "writes", ":5: "),
            ("40MB/s", "4ops/s", ":5: write: \"4ops/s\""),
            ("metadata = \"5ops/s\"", "", ":8: no rate"),
            ("[[phase]]\nstart = \"40s\"", "[[phase]]\n", ":7: "),
        ];
        for (right, of, expected) in wrong {
            std::fs::write(&file, TWO.replacen(right, of, 1)).unwrap();
            let error = read(&file, Nanos::from_secs(60)).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        std::fs::write(&file, "").unwrap();
        assert!(read(&file, Nanos::from_secs(60)).unwrap_err().to_string().contains("0 phases"));
        std::fs::write(&file, "#".repeat(BYTES_MAX as usize + 1)).unwrap();
        assert!(read(&file, Nanos::from_secs(60)).unwrap_err().to_string().contains("larger"));
        let none = folder.path().join("none.toml");
        assert!(read(&none, Nanos::from_secs(60)).unwrap_err().to_string().contains("none.toml"));
    }
}
