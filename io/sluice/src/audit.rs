//! `sluice audit`: the changes that a controller accepted, with their authors.

use std::fmt::Write as _;
use std::io::Write as _;

use api::{AuditLine, AuditLines};

use crate::credentials::ControllerArgs;
use crate::token::{now_s, pretty};
use crate::when::{self, MomentArg, forms_of_time};

/// Show the audit log: changes and their authors, oldest first
///
/// Each entry shows the time, the author, the author's address, what was changed, and the lines
/// that were removed (-) and added (+).
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Start of the time span [default: the first entry]
    #[arg(long, value_name = "TIME", value_parser = when::since, allow_hyphen_values = true)]
    since: Option<MomentArg>,
    /// Maximum number of entries to show, 1 to 1000; older entries are omitted.
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    controller: ControllerArgs,
    /// JSON output, with the whole text before and after each change.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    forms_of_time!(),
    "\n\nExample:\n  sluice audit --since 1h\n\ndocs/ACCESS.md lists what is recorded."
);

/// Runs `sluice audit`: prints the changes that a controller accepted.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let since = args.since.map_or_else(|| "0".into(), |since| since.parameter());
    let lines = args.controller.client()?.audit(&format!("since={since}&limit={}", args.limit))?;
    let text = if args.json { pretty(&lines)? } else { format_lines(&lines, now_s()) };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn format_lines(AuditLines { lines, omitted: left_out }: &AuditLines, now_s: u64) -> String {
    let mut text = String::new();
    if *left_out > 0 {
        let _ = writeln!(text, "({left_out} older entries omitted)");
    }
    for AuditLine { at_s, actor: who, role, from, what, before, after } in lines {
        let ago = now_s.saturating_sub(*at_s);
        let _ = writeln!(text, "{at_s} ({ago} s ago) {who} ({role}, {from}): {what}");
        let (before, after) = (before.as_deref().unwrap_or(""), after.as_deref().unwrap_or(""));
        for (sign, line) in changed_lines(before, after) {
            let _ = writeln!(text, "  {sign} {line}");
        }
    }
    text
}

/// Returns the lines between the common beginning and the common end of two texts.
fn changed_lines<'a>(before: &'a str, after: &'a str) -> Vec<(char, &'a str)> {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[same..], &new[same..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let gone = old[..old.len() - tail].iter().map(|line| ('-', *line));
    gone.chain(new[..new.len() - tail].iter().map(|line| ('+', *line))).collect()
}

#[cfg(test)]
mod tests {
    use api::Role;

    use super::*;

    #[test]
    fn a_change_is_told_with_the_lines_that_went_and_came() {
        let line = AuditLine {
            at_s: 90,
            actor: "ann".into(),
            role: Role::Operate,
            from: "192.0.2.1:4711".into(),
            what: "rules".into(),
            before: Some("a\nb\nc\n".into()),
            after: Some("a\nB\nB2\nc\n".into()),
        };
        let lines = AuditLines { lines: vec![line], omitted: 3 };
        assert_eq!(
            format_lines(&lines, 100),
            "(3 older entries omitted)\n\
             90 (10 s ago) ann (operate, 192.0.2.1:4711): rules\n  - b\n  + B\n  + B2\n"
        );
        assert_eq!(changed_lines("a\na\n", "a\n"), [('-', "a")]);
        assert_eq!(changed_lines("", "x"), [('+', "x")]);
        assert_eq!(changed_lines("x\n", "x\n"), []);
    }
}
