//! The flags of `sluice reserve move`: another start for a reservation that has not begun.

use api::ReservationMove;

use crate::when::{self, MomentArg};

/// Where a reservation is moved.
#[derive(Debug, clap::Args)]
pub(super) struct MoveArgs {
    /// Start at exactly this time, or not at all
    #[arg(long, value_name = "TIME", value_parser = when::ahead)]
    at: Option<MomentArg>,
    /// First permitted start; it starts as early as it fits [default: now]
    #[arg(long, value_name = "TIME", value_parser = when::ahead, conflicts_with = "at")]
    not_before: Option<MomentArg>,
    /// Time at which it must be over [default: none]
    #[arg(long, value_name = "TIME", value_parser = when::ahead, conflicts_with = "at")]
    by: Option<MomentArg>,
}

impl MoveArgs {
    /// Returns the message for the controller.
    pub(super) fn message(&self) -> ReservationMove {
        let not_before = self.at.as_ref().or(self.not_before.as_ref());
        ReservationMove {
            not_before_ns: not_before.map(MomentArg::nanos),
            exact: self.at.is_some(),
            by_ns: self.by.as_ref().map(MomentArg::nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        to: MoveArgs,
    }

    fn parsed(line: &str) -> Option<ReservationMove> {
        let words = std::iter::once("move").chain(line.split_whitespace());
        Line::try_parse_from(words).ok().map(|line| line.to.message())
    }

    #[test]
    fn an_exact_start_excludes_a_window() {
        assert_eq!(parsed(""), Some(ReservationMove::default()));
        let exact = parsed("--at 1h").unwrap();
        assert!(exact.exact && exact.not_before_ns.is_some() && exact.by_ns.is_none());
        let window = parsed("--not-before 1h --by 2h").unwrap();
        assert!(!window.exact && window.not_before_ns < window.by_ns);
        for wrong in ["--at 1h --not-before 1h", "--at 1h --by 2h", "--at yesterday"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
