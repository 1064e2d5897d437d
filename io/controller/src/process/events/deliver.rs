//! Delivery of events: a command that is run for each, and a URL to which each is posted.
//!
//! ```text
//!   event ─┬─ bounded ─► command: JSON on its standard input, killed after 10 s
//!          └─ bounded ─► webhook: POST JSON, again after 1, 2, 4 … s, then dropped
//! ```
//!
//! Each has a thread and a queue of its own, so if one hangs, neither the other nor the controller
//! waits. Events that do not fit or fail are dropped and counted. Events that wait when the
//! controller ends are not delivered.

use std::fmt;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::ControllerEvent;
use http::{ApiClient, Endpoint};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::counts::{Counts, Delivered};

/// The URL to which events are posted: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    at: Endpoint,
    path: String,
}

/// Text that is not such a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a URL such as http://127.0.0.1:8080/events; for https, have --on-event run \
     'curl --json @- https://…'"
)]
pub struct ParseWebhookError {
    text: String,
}

/// The threads; they end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct EventDelivery {
    all: Vec<Delivery>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Delivery {
    queue: Option<SyncSender<ControllerEvent>>,
    delivered: SinkKind,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
enum SinkKind {
    Command,
    Webhook,
}

impl FromStr for Webhook {
    type Err = ParseWebhookError;

    fn from_str(text: &str) -> Result<Webhook, ParseWebhookError> {
        let wrong = || ParseWebhookError { text: text.into() };
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (place, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        let place = match place.rsplit_once(':') {
            Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => place.into(),
            _ => format!("{place}:80"),
        };
        let at = format!("http://{place}").parse::<Endpoint>().map_err(|_| wrong())?;
        plain.then(|| Webhook { at, path: path.into() }).ok_or_else(wrong)
    }
}

impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.at, self.path)
    }
}

impl EventDelivery {
    /// Starts one thread for the command and one for the webhook, if they are configured.
    pub(crate) fn start(
        command: Option<&str>,
        webhook: Option<&Webhook>,
        counts: &Arc<Counts>,
    ) -> std::io::Result<EventDelivery> {
        let mut deliveries = EventDelivery::default();
        if let Some(text) = command {
            let text = text.to_owned();
            deliveries.add(
                "on-event",
                SinkKind::Command,
                counts,
                move |events, counts, stop| {
                    run_commands(&text, events, counts, stop);
                },
            )?;
        }
        if let Some(webhook) = webhook {
            let webhook = webhook.clone();
            deliveries.add("webhook", SinkKind::Webhook, counts, move |events, counts, stop| {
                post_all(&webhook, events, counts, stop);
            })?;
        }
        Ok(deliveries)
    }

    /// Sends an event to each queue that has room.
    pub(crate) fn deliver(&self, event: &ControllerEvent) {
        for delivery in &self.all {
            let Some(queue) = &delivery.queue else { continue };
            if let Err(TrySendError::Full(_)) = queue.try_send(event.clone()) {
                delivery.delivered.of(&delivery.counts).dropped.add(1);
            }
        }
    }

    fn add(
        &mut self,
        name: &str,
        delivered: SinkKind,
        counts: &Arc<Counts>,
        run: impl FnOnce(&Receiver<ControllerEvent>, &Delivered, &AtomicBool) + Send + 'static,
    ) -> std::io::Result<()> {
        let (queue, events) = sync_channel(QUEUE);
        let (stop, of_thread) = (self.stop.clone(), counts.clone());
        let thread = std::thread::Builder::new().name(name.into());
        let thread =
            thread.spawn(api::critical(move || run(&events, delivered.of(&of_thread), &stop)))?;
        let (queue, thread) = (Some(queue), Some(thread));
        self.all.push(Delivery { queue, delivered, counts: counts.clone(), thread });
        Ok(())
    }
}

impl SinkKind {
    fn of(self, counts: &Counts) -> &Delivered {
        match self {
            SinkKind::Command => &counts.commands,
            SinkKind::Webhook => &counts.posts,
        }
    }
}

impl Drop for EventDelivery {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for delivery in &mut self.all {
            drop(delivery.queue.take());
            let thread = delivery.thread.take().expect("it is taken here only");
            if thread.join().is_err() {
                tracing::error!("a thread that delivers events panicked");
            }
        }
    }
}

// ---- the command ----

fn run_commands(
    text: &str,
    events: &Receiver<ControllerEvent>,
    told: &Delivered,
    stop: &AtomicBool,
) {
    for event in events {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match run_command(text, &event, stop) {
            Ok(()) => told.done.add(1),
            Err(why) => {
                told.failed.add(1);
                tracing::warn!(command = text, event = event.sequence, why, "--on-event failed");
            }
        }
    }
}

fn run_command(text: &str, event: &ControllerEvent, stop: &AtomicBool) -> Result<(), String> {
    let mut body = serde_json::to_string(event).expect("an event is plain data");
    body.push('\n');
    let child = command(text)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // With its child processes, so that none of them is left.
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It fits into the pipe; a command that does not read it may have ended already.
        let _ = stdin.write_all(body.as_bytes());
    }
    let until = Instant::now() + COMMAND_TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Err(error) => return Err(error.to_string()),
            Ok(None) => {}
        }
        let ends = stop.load(Ordering::Relaxed);
        if ends || Instant::now() >= until {
            end(&mut child);
            let why = if ends {
                "the controller is shutting down"
            } else {
                "not done after 10 s, killed"
            };
            return Err(why.into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs plain words directly; a text with other shell syntax is run by a shell.
fn command(text: &str) -> Command {
    let plain = !text.contains(SHELL_CHARACTERS);
    let mut words = text.split_whitespace();
    match words.next().filter(|_| plain) {
        Some(program) => {
            let mut command = Command::new(program);
            command.args(words);
            command
        }
        None => {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", text]);
            command
        }
    }
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

// ---- the webhook ----

fn post_all(
    webhook: &Webhook,
    events: &Receiver<ControllerEvent>,
    told: &Delivered,
    stop: &AtomicBool,
) {
    let client = match ApiClient::at(&webhook.at) {
        Ok(client) => client.with_time_limit(POST_TIME_MAX),
        Err(error) => return tracing::error!(%error, "cannot start the webhook"),
    };
    for event in events {
        let body = serde_json::to_string(&event).expect("an event is plain data");
        let mut pause = PAUSE_FIRST;
        loop {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let Err(error) = client.post_text(&webhook.path, &body) else {
                told.done.add(1);
                break;
            };
            if pause > PAUSE_LAST {
                told.failed.add(1);
                tracing::warn!(%webhook, event = event.sequence, %error, "--webhook failed");
                break;
            }
            told.retried.add(1);
            wait(pause, stop);
            pause *= 2;
        }
    }
}

/// Waits, unless it is to end.
fn wait(span: Duration, stop: &AtomicBool) {
    let until = Instant::now() + span;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The characters by which git decides that a configured command is a line for a shell.
const SHELL_CHARACTERS: &[char] = &[
    '|', '&', ';', '<', '>', '(', ')', '$', '`', '\\', '"', '\'', '\n', '*', '?', '[', '#', '~',
    '=', '%',
];
/// The most events that wait for each.
const QUEUE: usize = 256;
const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);
const POST_TIME_MAX: Duration = Duration::from_secs(10);
/// The pauses between attempts: 1, 2, 4, 8, 16 s.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(16);
/// The interval of checks whether a command has ended, or the controller is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_program_and_a_line_is_for_the_shell() {
        let name = |text: &str| {
            let command = command(text);
            let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into()).collect();
            (command.get_program().to_string_lossy().into_owned(), args)
        };
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        assert_eq!(
            name("/bin/mail -s hello root"),
            ("/bin/mail".into(), words(&["-s", "hello", "root"]))
        );
        for line in ["cat >> /tmp/x", "a | b", "echo \"x y\""] {
            assert_eq!(name(line), ("/bin/sh".into(), words(&["-c", line])));
        }
    }

    #[test]
    fn a_command_that_fails_or_cannot_be_found_is_told() {
        let stop = AtomicBool::new(false);
        let run = |text: &str| run_command(text, &ControllerEvent::default(), &stop);
        assert_eq!(run("true"), Ok(()));
        assert_eq!(run("grep -q sequence"), Ok(()), "the event is on its standard input");
        assert_eq!(run("exit 3;"), Err("exit status: 3".into()));
        assert!(run("/nonexistent/x").unwrap_err().contains("cannot be started"));
    }

    #[test]
    fn one_that_hangs_ends_with_the_controller_and_takes_its_children_along() {
        let stop = AtomicBool::new(true);
        let began = Instant::now();
        let outcome = run_command("sleep 600 & wait", &ControllerEvent::default(), &stop);
        assert_eq!(outcome, Err("the controller is shutting down".into()));
        assert!(began.elapsed() < testkit::PATIENCE);
    }

    #[test]
    fn a_webhook_is_a_place_and_a_path() {
        let parse = |text: &str| text.parse::<Webhook>().map(|webhook| webhook.to_string());
        assert_eq!(parse("http://127.0.0.1:8080/a?b=c"), Ok("http://127.0.0.1:8080/a?b=c".into()));
        assert_eq!(parse("http://hooks"), Ok("http://hooks:80/".into()));
        for text in ["https://x/y", "http://", "http://x:/", "http://x/a b", "ftp://x"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
