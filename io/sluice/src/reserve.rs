//! `sluice reserve`: reservations of bandwidth, the calendar and credits of a controller.
//!
//! ```text
//!   add ─► request.rs: flags ─► NewReservation ─► POST ─┬─► scheduled or active
//!                                                       └─► refused: fits later (3) or never (4)
//!   wait ─► long poll until ACTIVE ─► claim
//!   calendar ─► calendar.rs: blocks on the terminal, picture.rs: an SVG file
//!   qosp ─► qosp.rs: the command line of QoSPlanner ─► the same calls
//! ```

mod calendar;
mod move_args;
mod path;
mod phases;
mod picture;
pub(crate) mod qosp;
mod request;
mod show;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{
    AddedPhase, ErrorCode, ErrorReport, NewReservation, ReservationExtension, WireReservationState,
    WireReservations,
};
use clap::Subcommand;
use http::{ApiClient, ClientError};
use model::Nanos;
use rustix::process::getuid;
use serde::Serialize;

use crate::credentials::ControllerArgs;
use crate::failure::{self, CommandError};
use crate::token;
use crate::when::{self, MomentArg, forms_of_time_ahead};
use move_args::MoveArgs;
use phases::PhaseArgs;
use request::RequestArgs;

pub(crate) use phases::of_text as phases_of;
pub(crate) use request::{ReservedDirection, bandwidth, rates};

/// Reserve bandwidth for a span of time, and show the calendar
///
/// A reservation gives a user, or one job, a rate on a target for a span of time.
/// docs/RESERVATIONS.md introduces it in ten minutes.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: ReserveAction,
}

const AFTER_HELP: &str = "\
Exit status of every action:
  0  done
  3  not now, but later: the message has the next start, and the part that fits now
  4  never: the request does not fit within the horizon, or the reservation has ended
  2  the command line is invalid
  1  another error

Examples:
  sluice reserve add --bandwidth 500MB/s --direction write --for 10min --job 4711
  sluice reserve add --bandwidth 2GB/s --direction read --for 100s --at 14:00 --export scratch
  sluice reserve add --bandwidth 50MB/s --direction write --for 1h --job 4711 --phases phases.toml
  sluice reserve phase 7 --at 10min --tolerance 2min --for 60s --write 400MB/s
  sluice reserve move 7 --not-before 15:00
  sluice reserve wait 7 --timeout 5min && ./checkpoint; sluice reserve finish 7
  sluice reserve calendar --svg calendar.svg

The same program with the name qosp takes the command line of QoSPlanner (qosp --help).";

#[derive(Debug, Subcommand)]
enum ReserveAction {
    /// Reserve a rate, and print when it starts
    #[command(after_help = forms_of_time_ahead!())]
    Add {
        #[command(flatten)]
        request: Box<RequestArgs>,
        /// Waiting until it is active, as `sluice reserve wait` does.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        call: CallArgs,
    },
    /// List reservations by start
    List {
        /// User, by name or number [default: all that the caller may see]
        #[arg(long, value_name = "USER", value_parser = token::user)]
        user: Option<u32>,
        /// Name of the job.
        #[arg(long)]
        job: Option<String>,
        /// Also reservations that have ended recently.
        #[arg(long)]
        ended: bool,
        /// Every row instead of the first 100.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a reservation
    Show {
        /// Number of the reservation.
        id: u64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Wait until a reservation is active, and claim it
    ///
    /// The status is 3 if the time is over first, and 4 if the reservation has ended.
    Wait {
        /// Number of the reservation.
        id: u64,
        /// Time limit [default: none]
        #[arg(long, value_name = "SPAN")]
        timeout: Option<Nanos>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Add a phase to a reservation: higher rates for a part of its time
    ///
    /// For a program that learns as it runs when it needs more. The reservation is active and claimed,
    /// or has a start and no claim window. The phase has a number of its own and ends with it.
    #[command(after_help = forms_of_time_ahead!())]
    Phase {
        /// Number of the reservation.
        id: u64,
        #[command(flatten)]
        phase: PhaseArgs,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Move a reservation that has not begun to another start
    ///
    /// If it does not fit there it keeps its place. Its phases move with it.
    #[command(after_help = forms_of_time_ahead!())]
    Move {
        /// Number of the reservation.
        id: u64,
        #[command(flatten)]
        to: MoveArgs,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Extend an active reservation, if that fits
    Extend {
        /// Number of the reservation.
        id: u64,
        /// Additional time.
        #[arg(long, value_name = "SPAN", value_parser = request::duration)]
        by: Nanos,
        #[command(flatten)]
        call: CallArgs,
    },
    /// End a reservation early, for a credit
    Finish {
        /// Number of the reservation.
        id: u64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Remove a reservation, without a credit
    Remove {
        /// Number of the reservation.
        id: u64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show what is promised of each resource over time
    ///
    /// Each column of a line shows the greatest part of the capacity that is promised in its time,
    /// from a space for nothing to a full block. A second line shows what was used until now.
    #[command(after_help = forms_of_time_ahead!())]
    Calendar {
        /// Target to show [default: every resource]
        #[arg(long, value_name = "NAME")]
        target: Option<String>,
        /// Start of the time span; a span such as 1h counts back [default: now]
        #[arg(long, value_name = "TIME", value_parser = when::until, allow_hyphen_values = true)]
        from: Option<MomentArg>,
        /// End of the time span [default: the end of the last reservation, at most 24 h ahead]
        #[arg(long, value_name = "TIME", value_parser = when::ahead)]
        to: Option<MomentArg>,
        /// SVG file for a picture instead of text.
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        svg: Option<PathBuf>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show the credit of a user or an account
    Credit {
        /// User, by name or number [default: the caller]
        #[arg(long, value_name = "USER", value_parser = token::user)]
        user: Option<u32>,
        /// Account of the batch system.
        #[arg(long, value_name = "NAME", conflicts_with = "user")]
        account: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// The controller to call, and the form of the output.
#[derive(Clone, Debug, clap::Args)]
struct CallArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

/// Runs `sluice reserve`; the exit status is that of [`AFTER_HELP`].
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        ReserveAction::Add { request, wait, call } => call.add(&request.request()?, wait),
        ReserveAction::List { user, job, ended, all, call } => {
            let ended = ended.then(|| "true".to_owned());
            call.list(
                &[("user", user.map(|uid| uid.to_string())), ("job", job), ("ended", ended)],
                all,
            )
        }
        ReserveAction::Show { id, call } => {
            let held = call.controller.client()?.reservation(id, "")?;
            call.print(&held, show::lines)
        }
        ReserveAction::Wait { id, timeout, call } => {
            let deadline = timeout.map(|timeout| Instant::now() + timeout.to_duration());
            call.wait(id, deadline)
        }
        ReserveAction::Phase { id, phase, call } => call.add_phase(id, phase.phase()),
        ReserveAction::Extend { id, by, call } => {
            let extension = ReservationExtension { more_ns: by.get() };
            let held = call.controller.client()?.extend_reservation(id, &extension);
            call.print(&held.map_err(explained)?, show::sentence)
        }
        ReserveAction::Move { id, to, call } => {
            let held = call.controller.client()?.move_reservation(id, &to.message());
            call.print(&held.map_err(explained)?, show::sentence)
        }
        ReserveAction::Finish { id, call } => {
            let held = call.controller.client()?.finish_reservation(id)?;
            call.print(&held, show::sentence)
        }
        ReserveAction::Remove { id, call } => {
            let held = call.controller.client()?.remove_reservation(id)?;
            call.print(&held, show::sentence)
        }
        ReserveAction::Calendar { target, from, to, svg, call } => {
            call.calendar(target, from.as_ref(), to.as_ref(), svg)
        }
        ReserveAction::Credit { user, account, call } => {
            let client = call.controller.client()?;
            let credit = |user: Option<u32>| {
                let user = user.map(|uid| uid.to_string());
                client.credit(&query(&[("user", user), ("account", account.clone())]))
            };
            call.print(&for_caller(user, credit)?, show::credit)
        }
    }
}

impl CallArgs {
    fn add(&self, new: &NewReservation, wait: bool) -> anyhow::Result<ExitCode> {
        let client = self.controller.client()?;
        let idempotency_key = Some(random_key()?);
        let new = NewReservation { idempotency_key, ..new.clone() };
        let reserve = |user| client.reserve(&NewReservation { user, ..new.clone() });
        let held = again_if_uncertain(|| for_caller(new.user, reserve)).map_err(explained)?;
        match wait {
            true => self.wait(held.id, None),
            false => self.print(&held, show::sentence),
        }
    }

    fn add_phase(&self, id: u64, phase: AddedPhase) -> anyhow::Result<ExitCode> {
        let client = self.controller.client()?;
        let phase = AddedPhase { idempotency_key: Some(random_key()?), ..phase };
        let made = again_if_uncertain(|| client.add_phase(id, &phase));
        self.print(&made.map_err(explained)?, show::sentence)
    }

    fn list(&self, parameters: &[(&str, Option<String>)], all: bool) -> anyhow::Result<ExitCode> {
        let found = all_reservations(&self.controller.client()?, parameters)?;
        let rows = if all { usize::MAX } else { ROWS_SHOWN };
        self.print(&found, |found| show::list(found, rows))
    }

    /// Waits until a reservation is active and claims it, also when the leader changes.
    fn wait(&self, id: u64, deadline: Option<Instant>) -> anyhow::Result<ExitCode> {
        let client = self.controller.client()?.with_time_limit(WAIT + ApiClient::TIME_LIMIT);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let wait =
                Nanos::from_millis(left.map_or(WAIT, |left| left.min(WAIT)).as_millis() as u64);
            let is_over = left.is_some_and(|left| left.is_zero());
            let held = match client.reservation(id, &format!("until=active&wait={wait}")) {
                Ok(held) => held,
                Err(error @ ClientError::Refused { .. }) if !error.is_standby() => {
                    return Err(error.into());
                }
                Err(error) if is_over => return Err(error.into()),
                // A standby may become the leader soon.
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let status = match held.state {
                WireReservationState::Active => {
                    return self.print(&client.claim_reservation(id)?, show::sentence);
                }
                WireReservationState::Undefined => NEVER,
                WireReservationState::Scheduled if is_over => LATER,
                WireReservationState::Scheduled => continue,
            };
            self.print(&held, show::sentence)?;
            return Ok(ExitCode::from(status));
        }
    }

    fn calendar(
        &self,
        target: Option<String>,
        from: Option<&MomentArg>,
        to: Option<&MomentArg>,
        svg: Option<PathBuf>,
    ) -> anyhow::Result<ExitCode> {
        if let (Some(from), Some(to)) = (from, to)
            && !from.is_before(to)
        {
            let message = format!("--to {:?} is not after --from {:?}", to.text(), from.text());
            return Err(CommandError::argument("--to", message).into());
        }
        let from = from.map(MomentArg::seconds);
        let end = match to {
            Some(to) => to.seconds(),
            None => from.unwrap_or(0).max(token::now_s()) + SHOWN_MAX_S,
        };
        let from = from.map(|from| from.to_string());
        let parameters = [("target", target), ("from", from), ("to", Some(end.to_string()))];
        let mut found = self.controller.client()?.calendar(&query(&parameters))?;
        if to.is_none() {
            calendar::trim(&mut found);
        }
        match svg {
            Some(file) => {
                picture::draw(&file, &found)?;
                Ok(ExitCode::SUCCESS)
            }
            None => self.print(&found, calendar::text),
        }
    }

    /// Prints a reply as JSON or as the text that `text` makes of it.
    fn print<T: Serialize>(
        &self,
        reply: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<ExitCode> {
        let text = match self.json {
            true => serde_json::to_string_pretty(reply).context("cannot write JSON")? + "\n",
            false => text(reply),
        };
        std::io::stdout().write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the reservations of all pages.
pub(crate) fn all_reservations(
    client: &ApiClient,
    parameters: &[(&str, Option<String>)],
) -> Result<WireReservations, ClientError> {
    let mut found = client.reservations(&query(parameters))?;
    while let Some(next) = found.next.take() {
        let parameters: Vec<_> =
            parameters.iter().cloned().chain([("after", Some(next.to_string()))]).collect();
        let page = client.reservations(&query(&parameters))?;
        found.reservations.extend(page.reservations);
        (found.omitted, found.next) = (page.omitted, page.next.filter(|of| *of > next));
    }
    Ok(found)
}

/// Makes a call for the caller, or, if the controller does not know who calls, as without tokens,
/// for the user of this process.
pub(crate) fn for_caller<T>(
    user: Option<u32>,
    call: impl Fn(Option<u32>) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    match call(user) {
        Err(error)
            if user.is_none()
                && (error.code(), error.at()) == (ErrorCode::InvalidArgument, Some("user")) =>
        {
            call(Some(getuid().as_raw()))
        }
        reply => reply,
    }
}

/// Sends a request, which has a key, once more if its reply was lost: there is one reservation.
fn again_if_uncertain<T>(send: impl Fn() -> Result<T, ClientError>) -> Result<T, ClientError> {
    match send() {
        Err(error) if is_uncertain(&error) => {
            std::thread::sleep(PAUSE);
            send()
        }
        reply => reply,
    }
}

/// Whether a request may have been executed, and is sent again.
fn is_uncertain(error: &ClientError) -> bool {
    let code = error.code();
    matches!(code, ErrorCode::StoreFailed | ErrorCode::Timeout | ErrorCode::ShuttingDown)
        || matches!(error, ClientError::Exchange { .. })
}

/// Makes a key that no other request has: 16 random bytes.
pub(crate) fn random_key() -> anyhow::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Makes the error of a refused call; of a reservation that does not fit it says what would.
fn explained(error: ClientError) -> anyhow::Error {
    let Some(refusal) = error.refusal() else { return error.into() };
    let message = show::refusal(&error.to_string(), refusal, token::now_s());
    CommandError::of_report(ErrorReport { message, ..failure::of_client(&error) }).into()
}

/// Formats the parameters that are given.
fn query(parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| {
        let value = value.as_ref()?;
        Some(format!("{name}={}", api::escaped(value)))
    });
    given.collect::<Vec<_>>().join("&")
}

/// Exit status if a reservation fits, or becomes active, later.
pub(crate) const LATER: u8 = 3;
/// Exit status if it never does.
pub(crate) const NEVER: u8 = 4;
/// Rows of a list without --all.
const ROWS_SHOWN: usize = 100;
/// Span of the calendar without --to.
const SHOWN_MAX_S: u64 = 86_400;
/// Time that one call waits for the state ACTIVE.
const WAIT: Duration = Duration::from_secs(30);
/// Pause after a call that failed.
const PAUSE: Duration = Duration::from_secs(1);
