//! `sluice why`: the causes that throttle a job or a user, and a ranking of delays.
//!
//! ```text
//!   --job, --user, --limit ─► GET /v1/why of a proxy or controller ─► sentences | JSON
//!   --top --since 1h       ─► GET /v1/why/top of a controller ──────► table | JSON
//! ```

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::Context;
use api::{DelayRow, DelayTable, Why, WhyQuery, WhySubject};
use explain::{amount, percent, span};
use model::Nanos;
use nix::unistd::User;

use crate::failure::CommandError;
use crate::server_args::{ApiServer, ServerArgs};
use crate::top::table;
use crate::when::{self, MomentArg, forms_of_time};

/// Explain why a job or a user is throttled: limit, times, amounts
///
/// Shows the limit, since when and until when it throttles, how much was delayed, how much of the
/// limit is in use now, and what would change it. Without --job, --user and --limit it shows all
/// users. A job can read its own answer on its node, without a token: cat MOUNT/.sluice/why.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Name of the job; '' for requests without a job.
    #[arg(long)]
    job: Option<String>,
    /// User, by name or number.
    #[arg(long)]
    user: Option<String>,
    /// Name of a rule, meter or decay: explanation of its delays only.
    #[arg(long, value_name = "NAME", conflicts_with = "top")]
    limit: Option<String>,
    /// Ranking of jobs, or of the rows of --by, by their delay by limits, longest first.
    #[arg(long, conflicts_with_all = ["job", "user"])]
    top: bool,
    /// Grouping of the rows of --top.
    #[arg(long, requires = "top", value_parser = ["job", "user", "group", "project", "class", "export", "proxy"], default_value = "job")]
    by: String,
    /// Start of the time span of --top; needs a controller [default: 1h]
    #[arg(long, requires = "top", value_name = "TIME", value_parser = when::since,
          allow_hyphen_values = true)]
    since: Option<MomentArg>,
    /// JSON output.
    #[arg(long)]
    json: bool,
    /// Repetition every SPAN, 100ms or more; without SPAN, every 2s.
    #[arg(long, value_name = "SPAN", num_args = 0..=1, default_missing_value = "2s", require_equals = true)]
    watch: Option<Nanos>,
}

const AFTER_HELP: &str = concat!(
    forms_of_time!(),
    "\n\nExamples:
  sluice why --job 1234
  sluice why --user alice --watch
  sluice why --top --since 24h --by user --controller http://127.0.0.1:5650
  cat /mnt/scratch/.sluice/why

docs/WHY.md explains each cause."
);

/// Runs `sluice why`: prints the causes of delay of a job or user.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let answerer = args.server.connect()?;
    let query = args.query()?;
    loop {
        let mut text = match args.top {
            true => args.show(&top(&answerer, &args)?, delays)?,
            false => args.show(&answerer.client().why(&query)?, explain::why)?,
        };
        if args.watch.is_some() && !args.json {
            text = format!("{CLEAR}{text}");
        }
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        let Some(interval) = args.watch else { return Ok(()) };
        std::thread::sleep(interval.max(INTERVAL_MIN).to_duration());
    }
}

impl Args {
    fn query(&self) -> anyhow::Result<WhyQuery> {
        let user = self.user.as_deref().map(user_number).transpose()?;
        Ok(WhyQuery { job: self.job.clone(), user, limit: self.limit.clone() })
    }

    /// Formats the answer as text, or as JSON; with --watch on one line.
    fn show<T: serde::Serialize>(
        &self,
        answer: &T,
        text: impl Fn(&T) -> String,
    ) -> anyhow::Result<String> {
        let json = match (self.json, self.watch) {
            (false, _) => return Ok(text(answer)),
            (true, None) => serde_json::to_string_pretty(answer),
            (true, Some(_)) => serde_json::to_string(answer),
        };
        Ok(json.context("cannot write JSON")? + "\n")
    }
}

/// Gets the ranking of delays: of a controller over a time span, of a proxy since its start.
fn top(answerer: &ApiServer, args: &Args) -> anyhow::Result<DelayTable> {
    match answerer {
        ApiServer::Controller(client) => {
            let since = args.since.as_ref().map_or_else(|| "-1h".into(), MomentArg::parameter);
            Ok(client.why_top(&format!("by={}&since={since}", args.by))?)
        }
        ApiServer::Proxy(_) if args.since.is_some() => {
            let message = "a proxy has no history; give --controller URL or omit --since";
            Err(CommandError::argument("--since", message).into())
        }
        ApiServer::Proxy(client) => {
            let why = client.why(&WhyQuery::default())?;
            rank(&why, &args.by)
        }
    }
}

/// Ranks the subjects of a proxy by job or user, longest delay first.
fn rank(why: &Why, by: &str) -> anyhow::Result<DelayTable> {
    let name_of = match by {
        "job" => |subject: &WhySubject| subject.job.clone(),
        "user" => |subject: &WhySubject| subject.uid.to_string(),
        other => {
            let message =
                format!("a proxy ranks by job or user, not by {other:?}; give --controller URL");
            return Err(CommandError::argument("--by", message).into());
        }
    };
    let mut rows: BTreeMap<String, DelayRow> = BTreeMap::new();
    for subject in &why.subjects {
        let name = name_of(subject);
        let row =
            rows.entry(name.clone()).or_insert_with(|| DelayRow { name, ..DelayRow::default() });
        row.delayed += subject.delayed;
        row.delayed_ns += subject.delayed_ns;
        row.delayed_bytes += subject.delayed_bytes;
        row.bytes += subject.bytes;
    }
    let mut rows: Vec<_> = rows.into_values().filter(|row| row.delayed > 0).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.delayed_ns), row.name.clone()));
    Ok(DelayTable { by: by.into(), rows, omitted: why.omitted, ..DelayTable::default() })
}

fn delays(delayed: &DelayTable) -> String {
    if delayed.rows.is_empty() {
        return "no request was delayed by a limit\n".into();
    }
    let rows = delayed.rows.iter().map(|row| {
        vec![
            if row.name.is_empty() { "-".into() } else { row.name.clone() },
            row.delayed.to_string(),
            span(row.delayed_ns),
            span(row.delayed_ns.checked_div(row.delayed).unwrap_or(0)),
            amount(row.delayed_bytes),
            percent(row.delayed_bytes, row.bytes),
        ]
    });
    let by = delayed.by.to_uppercase();
    let head = [by.as_str(), "DELAYED", "WAITED", "EACH", "BYTES", "OF ALL BYTES"];
    let mut text = table::aligned(&head, &[1, 2, 3, 4, 5], rows);
    if delayed.omitted > 0 {
        text += &format!("({} more rows omitted)\n", delayed.omitted);
    }
    text
}

fn user_number(user: &str) -> anyhow::Result<u32> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let found = User::from_name(user).with_context(|| format!("cannot look up user {user:?}"))?;
    Ok(found
        .with_context(|| format!("{user:?} is not a user of this machine; give a number"))?
        .uid
        .as_raw())
}

/// Terminal sequence that clears the screen and moves to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(job: &str, uid: u32, delayed: u64) -> WhySubject {
        let (delayed_ns, delayed_bytes) = (delayed * 1_000_000, delayed * 1000);
        let job = job.into();
        WhySubject {
            job,
            uid,
            delayed,
            delayed_ns,
            delayed_bytes,
            bytes: 10_000,
            ..WhySubject::default()
        }
    }

    #[test]
    fn a_proxys_payers_are_ranked_by_how_long_they_were_delayed() {
        let subjects =
            vec![subject("a", 1, 2), subject("b", 1, 5), subject("a", 2, 4), subject("c", 3, 0)];
        let why = Why { subjects, ..Why::default() };
        assert_eq!(
            delays(&rank(&why, "job").unwrap()),
            "JOB  DELAYED   WAITED     EACH    BYTES  OF ALL BYTES\n\
             a          6  6.00 ms  1.00 ms  6.00 kB          30 %\n\
             b          5  5.00 ms  1.00 ms  5.00 kB          50 %\n"
        );
        let users = rank(&why, "user").unwrap();
        assert_eq!(users.rows.iter().map(|row| row.delayed).collect::<Vec<_>>(), [7, 4]);
        assert!(rank(&why, "group").is_err());
        assert_eq!(delays(&DelayTable::default()), "no request was delayed by a limit\n");
    }

    #[test]
    fn a_user_is_named_or_numbered() {
        assert_eq!((user_number("7").unwrap(), user_number("root").unwrap()), (7, 0));
        assert!(user_number("no such user").unwrap_err().to_string().contains("give a number"));
    }
}
