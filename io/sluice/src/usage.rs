//! `sluice usage`: usage by job, user or class in a span of time.
//!
//! ```text
//!   GET /v1/usage?by=… of a controller ─► its ledger's sums ─► a table, highest cost first | JSON
//! ```

use std::io::Write as _;

use api::UsageTable;
use explain::{amount, span};
use model::{Direction, OpKind};

use crate::credentials::ControllerArgs;
use crate::failure::CommandError;
use crate::top::table;
use crate::when::{self, MomentArg, forms_of_time};

/// Show usage in a span of time, highest cost first
///
/// READS, WRITES and METADATA are operations; METADATA are those that neither read nor write data.
/// COST is the time for which all operations occupied their targets. DELAYED is the total time that
/// requests waited for limits.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Grouping of the rows.
    #[arg(
        long,
        default_value = "job",
        value_parser = ["job", "user", "group", "project", "class", "export", "proxy", "kind"]
    )]
    by: String,
    /// Start of the time span.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = when::since,
          allow_hyphen_values = true)]
    since: MomentArg,
    /// End of the time span.
    #[arg(long, value_name = "TIME", default_value = "now", value_parser = when::until,
          allow_hyphen_values = true)]
    until: MomentArg,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    forms_of_time!(),
    "\n\nExamples:
  sluice usage
  sluice usage --by user --since 30d
  sluice usage --by class --since yesterday --until today --json"
);

/// Runs `sluice usage`: prints the usage in a span of time.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args { by, since, until, .. } = &args;
    if until.is_before(since) {
        let message = format!("--until {:?} is before --since {:?}", until.text(), since.text());
        return Err(CommandError::argument("--until", message).into());
    }
    let query = format!("by={by}&from={}&to={}", since.parameter(), until.parameter());
    let used = args.controller.client()?.usage(&query)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&used)? + "\n",
        false => list(&used),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn list(used: &UsageTable) -> String {
    if used.rows.is_empty() {
        return "no usage in this time span\n".into();
    }
    let rows = used.rows.iter().map(|row| {
        let service = &row.service;
        let ops = |direction: Direction| {
            let kinds = OpKind::ALL.iter().filter(|kind| kind.direction() == direction);
            kinds.map(|kind| service.ops_of(*kind)).sum::<u64>().to_string()
        };
        vec![
            if row.name.is_empty() { "-".into() } else { row.name.clone() },
            amount(service.read_bytes),
            ops(Direction::Read),
            amount(service.written_bytes),
            ops(Direction::Write),
            ops(Direction::Metadata),
            span(service.cost_ns),
            span(service.delayed_ns),
        ]
    });
    let by = used.by.to_uppercase();
    let head = [by.as_str(), "READ", "READS", "WRITTEN", "WRITES", "METADATA", "COST", "DELAYED"];
    let mut text = table::aligned(&head, &[1, 2, 3, 4, 5, 6, 7], rows);
    if used.omitted > 0 {
        text += &format!("({} more rows omitted)\n", used.omitted);
    }
    text
}

#[cfg(test)]
mod tests {
    use api::UsageRow;
    use model::Service;

    use super::*;

    #[test]
    fn operations_are_told_apart_by_what_they_do() {
        let mut ops = [0; OpKind::COUNT];
        for (kind, count) in
            [(OpKind::Read, 3), (OpKind::Write, 5), (OpKind::Open, 7), (OpKind::Clunk, 1)]
        {
            ops[kind as usize] = count;
        }
        let service =
            Service { read_bytes: 3_000_000, cost_ns: 2_500_000, ops, ..Service::default() };
        let rows = vec![UsageRow { name: String::new(), service }];
        let used = UsageTable { by: "job".into(), rows, omitted: 2, ..UsageTable::default() };
        assert_eq!(
            list(&used),
            "JOB     READ  READS  WRITTEN  WRITES  METADATA     COST  DELAYED\n\
             -    3.00 MB      3      0 B       5         8  2.50 ms     0 ns\n\
             (2 more rows omitted)\n"
        );
    }
}
