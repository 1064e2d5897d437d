//! `sluice events`: what a controller tells, as it was and as it comes.
//!
//! ```text
//!   --since ─► pages until there is no more ─► lines ─┐
//!              └ --follow: then wait for the next ◄───┘
//! ```

use std::io::Write as _;
use std::time::Duration;

use api::{Client, ClientError, Event};
use model::Nanos;

use crate::credentials::ControllerArgs;

/// Shows what happened: warnings of decays, proxies that are lost and come back, leaders, rules.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sluice events\n  sluice events --since 1h --json\n  sluice \
                        events --follow")]
pub(crate) struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// From so long ago on, as 1h or 7d; the last hundred, if nothing is said.
    #[arg(long, value_name = "TIME")]
    since: Option<Nanos>,
    /// Go on with what comes, until it is interrupted; also while another controller takes over.
    #[arg(long)]
    follow: bool,
    /// Print one JSON object for each, one to a line.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice events`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let client = args.controller.client()?;
    let client = client.with_time_limit(WAIT + Client::TIME_LIMIT);
    let first = args.since.map_or(String::new(), |span| format!("since=-{span}&limit={PAGE}"));
    let mut page = client.events(&first)?;
    loop {
        let whole = args.since.is_some() && page.events.len() == PAGE;
        show(&page.events, args.json)?;
        let next = page.next;
        page = match (whole, args.follow) {
            (true, _) => client.events(&format!("since={next}&limit={PAGE}"))?,
            (false, true) => wait_for(&client, next)?,
            (false, false) => return Ok(()),
        };
        if page.events.is_empty() && !args.follow {
            return Ok(());
        }
    }
}

/// What comes after an event, however long that takes.
fn wait_for(client: &Client, next: u64) -> Result<api::Events, ClientError> {
    let wait = WAIT.as_secs();
    loop {
        match client.events(&format!("since={next}&limit={PAGE}&wait={wait}s")) {
            Ok(page) if page.events.is_empty() => {}
            Ok(page) => return Ok(page),
            Err(error @ ClientError::Refused { .. }) if !error.stands_by() => return Err(error),
            // Another one may lead soon.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn show(events: &[Event], json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    for event in events {
        match json {
            true => text += &serde_json::to_string(event)?,
            false => text += &line(event),
        }
        text.push('\n');
    }
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Time, what happened, and the sentence.
fn line(event: &Event) -> String {
    format!("{}  {:<9}  {}", utc(event.at_ns / 1_000_000_000), event.kind.name(), event.text)
}

/// `2026-11-22T23:05:20Z`: the days by the civil calendar of Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms".
pub(crate) fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// How long one call waits for events.
const WAIT: Duration = Duration::from_secs(30);
/// Between calls that fail.
const PAUSE: Duration = Duration::from_secs(1);
/// Events of one call.
const PAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use api::EventKind;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let event = Event {
            at_ns: 61_000_000_000,
            kind: EventKind::Floor,
            text: "decay writers of uid=1: 100% used".into(),
            ..Event::default()
        };
        assert_eq!(
            line(&event),
            "1970-01-01T00:01:01Z  floor      decay writers of uid=1: 100% used"
        );
    }
}
