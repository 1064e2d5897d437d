//! The flags of `sluice reserve add`: one request for a reservation.

use std::path::PathBuf;

use api::NewReservation;
use clap::ValueEnum;
use model::{Nanos, Rate};

use super::path::ExportPath;
use super::phases;
use crate::token;
use crate::when::{self, MomentArg};

/// What is reserved, when, where and for whom.
#[derive(Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// Rate of data, such as 500MB/s.
    #[arg(long, value_name = "RATE", requires = "direction", value_parser = bandwidth)]
    bandwidth: Option<Rate>,
    /// What the bandwidth is for: reads, writes, or as much for each of both.
    #[arg(long, value_enum, requires = "bandwidth")]
    direction: Option<ReservedDirection>,
    /// Rate of metadata operations, such as 1000ops/s.
    #[arg(long, value_name = "RATE", required_unless_present = "bandwidth", value_parser = operations)]
    metadata: Option<Rate>,
    /// Length, from its start or its claim.
    #[arg(long = "for", value_name = "SPAN", value_parser = duration)]
    duration: Nanos,
    /// Start at exactly this time, or not at all [default: the first start at which it fits]
    #[arg(long, value_name = "TIME", value_parser = when::ahead, conflicts_with_all = ["by", "after"])]
    at: Option<MomentArg>,
    /// Time by which it is to have ended.
    #[arg(long, value_name = "TIME", value_parser = when::ahead)]
    by: Option<MomentArg>,
    /// Start after the end of this reservation.
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
    /// Job whose requests it serves [default: all of the user]
    #[arg(long)]
    job: Option<String>,
    /// User who owns it, by name or number; needs role operate [default: the caller]
    #[arg(long, value_name = "USER", value_parser = token::user)]
    user: Option<u32>,
    /// Export on whose target it is [default: the only target]
    #[arg(long, value_name = "NAME")]
    export: Option<String>,
    /// Directory to whose files it is limited: EXPORT/DIR, or an absolute path below a mount of
    /// this machine; of a file its directory.
    #[arg(long, value_name = "DIR", conflicts_with = "export")]
    path: Option<String>,
    /// Time after ACTIVE within which the owner begins; its length counts from then on.
    #[arg(long, value_name = "SPAN", default_value = "0s")]
    claim_within: Nanos,
    /// Queued without a guaranteed start; it starts when it fits, beside guaranteed ones.
    #[arg(long)]
    spontaneous: bool,
    /// Paid with a credit, and queued before those that are not.
    #[arg(long, requires = "spontaneous")]
    spend_credit: bool,
    /// Number of nodes of the job: no more is reserved than they can move.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nodes: Option<u32>,
    /// Account of the batch system; needs role operate.
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// File of parts of its time with higher rates, `[[phase]]` of start, duration, tolerance and rates.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spontaneous", "claim_within"])]
    phases: Option<PathBuf>,
}

/// The directions of a bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReservedDirection {
    /// Requests that read data
    Read,
    /// Requests that write data
    Write,
    /// Reads and writes, the whole rate for each
    Both,
}

impl RequestArgs {
    /// Returns the request.
    ///
    /// # Errors
    /// If `--path` names no directory of an export, or the file of `--phases` is not valid.
    pub(super) fn request(&self) -> anyhow::Result<NewReservation> {
        let place = match &self.path {
            Some(path) => ExportPath::find(path)?,
            None => ExportPath { export: self.export.clone(), directory: None },
        };
        let nanos = |moment: &Option<MomentArg>| moment.as_ref().map(MomentArg::nanos);
        let [read, write] = rates(self.direction, self.bandwidth);
        let phases = self.phases.as_ref().map(|file| phases::read(file, self.duration));
        Ok(NewReservation {
            read,
            write,
            metadata: self.metadata.map(Into::into),
            duration_ns: self.duration.get(),
            not_before_ns: nanos(&self.at),
            exact: self.at.is_some(),
            by_ns: nanos(&self.by),
            after: self.after,
            spontaneous: self.spontaneous,
            claim_window_ns: self.claim_within.get(),
            spend_credit: self.spend_credit,
            job: self.job.clone(),
            nodes: self.nodes,
            user: self.user,
            account: self.account.clone(),
            export: place.export,
            directory: place.directory,
            phases: phases.transpose()?.unwrap_or_default(),
            ..NewReservation::default()
        })
    }
}

/// Returns the rates of reads and of writes.
pub(crate) fn rates(
    direction: Option<ReservedDirection>,
    rate: Option<Rate>,
) -> [Option<api::WireRate>; 2] {
    let of = |without| rate.filter(|_| direction != Some(without)).map(Into::into);
    [of(ReservedDirection::Write), of(ReservedDirection::Read)]
}

/// Parses the length of a reservation: any span but an empty one.
pub(super) fn duration(text: &str) -> Result<Nanos, String> {
    match text.parse() {
        Ok(Nanos::ZERO) => Err("it is empty; give a span such as 100s".into()),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a rate of data.
pub(crate) fn bandwidth(text: &str) -> Result<Rate, String> {
    rate(text, true, "a rate of data such as 500MB/s")
}

/// Parses a rate of operations.
pub(super) fn operations(text: &str) -> Result<Rate, String> {
    rate(text, false, "a rate of operations such as 1000ops/s")
}

fn rate(text: &str, in_bytes: bool, want: &str) -> Result<Rate, String> {
    let rate: Option<Rate> = text.parse().ok();
    rate.filter(|rate| rate.is_bytes() == in_bytes).ok_or_else(|| format!("not {want}"))
}

#[cfg(test)]
mod tests {
    use api::WireRate;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn parsed(words: &str) -> Result<NewReservation, clap::Error> {
        let line = Line::try_parse_from(["add"].into_iter().chain(words.split(' ')))?;
        Ok(line.request.request().unwrap())
    }

    #[test]
    fn flags_become_a_request() {
        let words = "--bandwidth 500MB/s --direction both --metadata 1kops/s --for 100s --by 1h \
                     --after 7 --job j --user 5 --path scratch/run7/out --claim-within 30s \
                     --spontaneous --spend-credit --account a";
        let new = parsed(words).unwrap();
        assert!(new.by_ns.is_some());
        let expected = NewReservation {
            read: Some(WireRate::Bytes(500_000_000)),
            write: Some(WireRate::Bytes(500_000_000)),
            metadata: Some(WireRate::Ops(1_000)),
            duration_ns: 100_000_000_000,
            by_ns: new.by_ns,
            after: Some(7),
            spontaneous: true,
            claim_window_ns: 30_000_000_000,
            spend_credit: true,
            job: Some("j".into()),
            user: Some(5),
            account: Some("a".into()),
            export: Some("scratch".into()),
            directory: Some("run7/out".into()),
            ..NewReservation::default()
        };
        assert_eq!(new, expected);
        let new = parsed("--bandwidth 1MB/s --direction write --for 1s --at 1h").unwrap();
        assert!(new.exact && new.not_before_ns.is_some() && new.read.is_none());
        assert_eq!(new.write, Some(WireRate::Bytes(1_000_000)));
        let new = parsed("--metadata 5ops/s --for 1s").unwrap();
        assert_eq!((new.read, new.write), (None, None));
    }

    #[test]
    fn what_cannot_be_requested_is_refused_on_the_command_line() {
        for words in [
            "--for 1s",
            "--bandwidth 1MB/s --for 1s",
            "--direction read --metadata 1ops/s --for 1s",
            "--bandwidth 1ops/s --direction read --for 1s",
            "--metadata 1MB/s --for 1s",
            "--bandwidth 0MB/s --direction read --for 1s",
            "--bandwidth 1MB/s --direction read",
            "--bandwidth 1MB/s --direction read --for 0s",
            "--bandwidth 1MB/s --direction read --for much",
            "--metadata 1ops/s --for 1s --at 1h --by 2h",
            "--metadata 1ops/s --for 1s --at 2020-01-01",
            "--metadata 1ops/s --for 1s --spend-credit",
            "--metadata 1ops/s --for 1s --export a --path a/b",
            "--metadata 1ops/s --for 1s --phases f --spontaneous",
            "--metadata 1ops/s --for 1s --phases f --claim-within 1s",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
    }
}
