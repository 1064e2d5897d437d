//! Whether the reservation of a job can begin now: asked when Slurm has chosen its nodes.
//!
//! ```text
//!   reserve with the job's key ─► there is one, or a new one ─┬─ SCHEDULED ─► move it to now ─┬─► ACTIVE: begun
//!                                                             └─ ACTIVE: begun                └─► refused: later
//! ```
//!
//! The key makes it one reservation, however often and by whomever it is asked: `follow`, which
//! plans it while the job waits, and the hooks of Slurm.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{ErrorCode, ReservationMove, WireReservation, WireReservationState};
use http::{ApiClient, ClientError};
use model::{Nanos, Time};

use super::config::{OnFailure, SlurmConfig};
use super::queue::{self, SlurmJob};
use super::request::JobRequest;
use crate::log;
use crate::reserve::{LATER, NEVER};
use crate::when;

/// The reservation of a job that is to start now.
#[derive(Debug)]
pub(super) enum BeginOutcome {
    /// The job asks for none.
    NoRequest,
    /// It is in force, and its time runs.
    Active,
    /// It does not fit now; this says when it does.
    Later(String),
    /// It fits at no time, or the controller does not accept it.
    Never(String),
}

/// Begins the reservation of a job, if it fits now, and claims it: its time runs from then on. One with
/// phases that began before `since` without its job is replaced by another one.
///
/// # Errors
/// If the controller does not answer, or Slurm's request is not valid.
pub(super) fn begin(
    client: &ApiClient,
    config: &SlurmConfig,
    job: &SlurmJob,
    since: Option<Time>,
) -> anyhow::Result<BeginOutcome> {
    let Some(request) = JobRequest::of(job, config)? else { return Ok(BeginOutcome::NoRequest) };
    let new = match request.reservation(job, config, None) {
        Ok(new) => new,
        Err(error) => return Ok(BeginOutcome::Never(format!("{error:#}"))),
    };
    let mut held = match client.reserve(&new) {
        Ok(held) => held,
        Err(error) => return refused(error),
    };
    if since.is_some_and(|since| has_run_since_before(&held, since.before(EARLY_MAX))) {
        client.remove_reservation(held.id)?;
        held = match client.reserve(&new) {
            Ok(held) => held,
            Err(error) => return refused(error),
        };
    }
    if held.state == WireReservationState::Scheduled {
        let now = ReservationMove { exact: true, ..ReservationMove::default() };
        let soon = ReservationMove::default();
        match client.move_reservation(held.id, &now) {
            // It is served from the next decision of the controller on.
            Ok(_) => {}
            Err(error) if error.refusal().is_some() => {
                let moved = client.move_reservation(held.id, &soon);
                return Ok(BeginOutcome::Later(starts_at(&moved.unwrap_or(held))));
            }
            // It has begun meanwhile, or is gone: the next call says which.
            Err(ClientError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let wait = Nanos::from_millis(config.time_limit().to_duration().as_millis() as u64 / 2);
    let held = client.reservation(held.id, &format!("until=active&wait={wait}"))?;
    Ok(match held.state {
        WireReservationState::Active => {
            client.claim_reservation(held.id)?;
            BeginOutcome::Active
        }
        _ => BeginOutcome::Later(starts_at(&held)),
    })
}

/// Whether a reservation with phases, which waits for nobody, has run since before this time: they
/// would be over too early for a job that starts later.
pub(super) fn has_run_since_before(held: &WireReservation, at: Time) -> bool {
    let is_fixed = !held.phases.is_empty() && held.state == WireReservationState::Active;
    is_fixed && held.start_ns.is_some_and(|start| Time::from_nanos(start) < at)
}

/// Whether a request that was refused is refused whenever it is repeated: it fits at no time, or is not
/// valid. One with a later start, and a call that failed, may be repeated.
pub(super) fn is_for_ever(error: &ClientError) -> bool {
    match error.refusal() {
        Some(refusal) => refusal.next_start_ns.is_none(),
        None => matches!(error.code(), ErrorCode::InvalidArgument | ErrorCode::NotFound),
    }
}

/// Makes the outcome of a refused request; other errors stay errors.
fn refused(error: ClientError) -> anyhow::Result<BeginOutcome> {
    match error.refusal() {
        _ if is_for_ever(&error) => Ok(BeginOutcome::Never(error.to_string())),
        Some(_) => Ok(BeginOutcome::Later(error.to_string())),
        None => Err(error.into()),
    }
}

/// Runs `sluice slurm start JOB`: whether a job may start, for `slurm_bb_pre_run`.
///
/// # Errors
/// None that stop a job: they are logged, and `on_failure` decides.
pub(super) fn start(config: &SlurmConfig, id: &str) -> anyhow::Result<ExitCode> {
    start_known(config, id, queue::job(id))
}

/// Like [`start`], for a job that Slurm was asked about already.
///
/// # Errors
/// None that stop a job: they are logged, and `on_failure` decides.
pub(super) fn start_known(
    config: &SlurmConfig,
    id: &str,
    known: anyhow::Result<Option<SlurmJob>>,
) -> anyhow::Result<ExitCode> {
    let (deadline, since) = (Instant::now() + config.wait.to_duration(), when::now());
    let mut known = Some(known);
    loop {
        let asked = known.take().unwrap_or_else(|| queue::job(id)).and_then(|job| {
            let job = job.with_context(|| format!("Slurm has no job {id}"))?;
            Ok((begin(&config.batch_client()?, config, &job, Some(since))?, job.is_batch))
        });
        let (later, waits) = match asked {
            Ok((BeginOutcome::NoRequest | BeginOutcome::Active, _)) => {
                return Ok(ExitCode::SUCCESS);
            }
            Ok((BeginOutcome::Never(why), _)) => {
                log::print_line(&format!("sluice: job {id} cannot get its bandwidth: {why}"));
                return Ok(ExitCode::from(NEVER));
            }
            // A batch job gives its nodes back; what waits at a terminal would fail.
            Ok((BeginOutcome::Later(later), is_batch)) => (later, !is_batch),
            Err(error) if config.on_failure == OnFailure::Start => {
                log::print_line(&format!(
                    "sluice: job {id} starts without its bandwidth: {error:#}"
                ));
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => (format!("the controller does not answer: {error:#}"), true),
        };
        if !waits || Instant::now() >= deadline {
            log::print_line(&format!("sluice: bandwidth of job {id}: {later}"));
            return Ok(ExitCode::from(LATER));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Says when a reservation starts.
fn starts_at(held: &WireReservation) -> String {
    match held.start_ns.map(Time::from_nanos) {
        Some(start) => {
            let seconds = start.since(when::now()).get().div_ceil(Nanos::from_secs(1).get());
            format!("reservation {} starts in {}", held.id, Nanos::from_secs(seconds))
        }
        None => format!("reservation {} waits", held.id),
    }
}

/// How long a reservation with phases may have run before its job starts.
const EARLY_MAX: Nanos = Nanos::from_secs(2);
/// The time between two attempts of a job that waits with its nodes.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use api::WireRefusal;

    use super::*;

    fn refusal(code: ErrorCode, refusal: Option<WireRefusal>) -> ClientError {
        let refusal = refusal.map(Box::new);
        ClientError::Refused { status: 409, code, message: "refused".into(), at: None, refusal }
    }

    #[test]
    fn a_refusal_with_a_later_start_is_not_for_ever_for_the_gate_and_for_follow() {
        let with_start =
            |next_start_ns| Some(WireRefusal { next_start_ns, ..WireRefusal::default() });
        for (error, is_forever, outcome) in [
            (refusal(ErrorCode::DoesNotFit, with_start(Some(7))), false, "later"),
            (refusal(ErrorCode::DoesNotFit, with_start(None)), true, "never"),
            (refusal(ErrorCode::InvalidArgument, None), true, "never"),
            (refusal(ErrorCode::NotFound, None), true, "never"),
            (refusal(ErrorCode::NoLeader, None), false, "error"),
            (refusal(ErrorCode::Unauthenticated, None), false, "error"),
        ] {
            assert_eq!(is_for_ever(&error), is_forever, "{error:?}");
            let found = match refused(error) {
                Ok(BeginOutcome::Later(why)) if why == "refused" => "later",
                Ok(BeginOutcome::Never(why)) if why == "refused" => "never",
                Ok(other) => panic!("{other:?}"),
                Err(_) => "error",
            };
            assert_eq!(found, outcome);
        }
    }
}
