//! `sluice events`: the events that a controller has published and publishes.
//!
//! ```text
//!   --since ─► pages up to the last event ─► lines ─┐
//!              └ --follow: then wait for more ◄─────┘
//! ```

use std::io::Write as _;
use std::time::Duration;

use api::ControllerEvent;
use http::{ApiClient, ClientError};

use crate::credentials::ControllerArgs;
use crate::when::{self, MomentArg, forms_of_time, utc};

/// Show events: decay warnings, unreachable proxies, leaders, rule changes
///
/// The kinds are `warned`, `throttled`, `floor` and `released` of a decay's key; `unreachable`,
/// `recovered` and `duplicate` (name) of a proxy; `leader` and `rules`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Start of the time span [default: the last 100 events]
    #[arg(long, value_name = "TIME", value_parser = when::since, allow_hyphen_values = true)]
    since: Option<MomentArg>,
    /// Further events as they come, until interrupted, also when the leader changes.
    #[arg(long)]
    follow: bool,
    /// JSON output, one object per line.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    forms_of_time!(),
    "\n\nExamples:
  sluice events
  sluice events --since 1h --json
  sluice events --follow"
);

/// Runs `sluice events`: prints past events, and follows new ones.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let client = args.controller.client()?;
    let client = client.with_time_limit(WAIT + ApiClient::TIME_LIMIT);
    let first = args.since.as_ref();
    let first = first.map(|since| format!("since={}&limit={PAGE}", since.parameter()));
    let mut page = client.events(&first.unwrap_or_default())?;
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

/// Waits for events after `next`, without a time limit.
fn wait_for(client: &ApiClient, next: u64) -> Result<api::ControllerEvents, ClientError> {
    let wait = WAIT.as_secs();
    loop {
        match client.events(&format!("since={next}&limit={PAGE}&wait={wait}s")) {
            Ok(page) if page.events.is_empty() => {}
            Ok(page) => return Ok(page),
            Err(error @ ClientError::Refused { .. }) if !error.is_standby() => return Err(error),
            // A standby may become the leader soon.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn show(events: &[ControllerEvent], json: bool) -> anyhow::Result<()> {
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

/// Formats an event: time, kind and text.
fn line(event: &ControllerEvent) -> String {
    format!("{}  {:<11}  {}", utc(event.at_ns / 1_000_000_000), event.kind.name(), event.text)
}

/// Time that one call waits for events.
const WAIT: Duration = Duration::from_secs(30);
/// Pause after a call that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of events of one call.
const PAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use api::EventKind;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = ControllerEvent {
            at_ns: 61_000_000_000,
            kind: EventKind::Floor,
            text: "decay writers of uid=1: 100% used".into(),
            ..ControllerEvent::default()
        };
        assert_eq!(
            line(&event),
            "1970-01-01T00:01:01Z  floor        decay writers of uid=1: 100% used"
        );
    }
}
