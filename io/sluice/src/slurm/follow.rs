//! `sluice slurm follow`: the service beside slurmctld that plans what waits and cleans up.
//!
//! ```text
//!   squeue ─► waiting jobs ─► a planned reservation each ─► plan.rs: move it, or tell Slurm
//!          └► jobs that are gone ─► end them: their reservations and tokens go, too
//!   calendar ─► pool.rs ─► license_only reservations
//! ```
//!
//! It keeps no file: what it forgets at a restart it finds again by the keys of its reservations.
//! While it does not run, jobs start as before, by the hooks alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{ErrorCode, ReservationMove, WireReservation, WireReservationState};
use http::{ApiClient, ClientError};
use model::{Nanos, Time};

use super::config::SlurmConfig;
use super::plan::{PlanStep, PlannedJob};
use super::pool::{self, PoolSpan};
use super::queue::{self, SlurmJob, SlurmState};
use super::request::{self, JobRequest};
use super::scontrol;
use crate::reserve::all_reservations;
use crate::when;

/// What `follow` knows from one look at the queue to the next.
pub(super) struct SlurmFollower {
    config: SlurmConfig,
    client: ApiClient,
    /// The reservation of each waiting job, by key.
    plans: BTreeMap<String, u64>,
    /// Jobs that were gone at the last look: they are ended if they are gone at this one, too.
    gone: BTreeSet<(String, u32)>,
    pool_at: Option<Instant>,
}

impl SlurmFollower {
    /// Makes it; nothing is called yet.
    ///
    /// # Errors
    /// If a file of the credentials cannot be used.
    pub(super) fn new(config: SlurmConfig) -> anyhow::Result<SlurmFollower> {
        let client = config.batch_client()?.with_connection_reuse();
        let (plans, gone) = Default::default();
        Ok(SlurmFollower { config, client, plans, gone, pool_at: None })
    }

    /// Looks at the queue again and again, until `ends` says so. An error is logged, and the next
    /// look tries again.
    pub(super) fn run(&mut self, mut ends: impl FnMut(Duration) -> bool) {
        loop {
            if let Err(error) = self.look() {
                tracing::warn!(error = %format!("{error:#}"), "cannot follow the queue");
            }
            if ends(self.config.interval.to_duration()) {
                return;
            }
        }
    }

    /// Looks at the queue once.
    ///
    /// # Errors
    /// If Slurm or the controller do not answer.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let jobs = queue::jobs()?;
        let found = all_reservations(&self.client, &[])?;
        let held: BTreeMap<u64, WireReservation> =
            found.reservations.into_iter().map(|held| (held.id, held)).collect();
        let waiting = |job: &&SlurmJob| {
            let waits = job.state == SlurmState::Pending && !job.is_held;
            waits && request::may_have_one(job, &self.config)
        };
        for job in jobs.iter().filter(waiting).cloned().collect::<Vec<_>>().iter().take(JOBS_MAX) {
            let plan = self.plans.get(&request::key(job)).and_then(|id| held.get(id));
            let done = match plan.filter(|held| held.state != WireReservationState::Undefined) {
                Some(held) => self.follow(job, held),
                None => self.plan(job),
            };
            if let Err(error) = done {
                tracing::warn!(job = job.id, error = %format!("{error:#}"), "cannot plan a job");
            }
        }
        self.clean_up(&jobs, &held)?;
        if self.pool_at.is_none_or(|at| at.elapsed() >= POOL_EVERY) {
            self.pool_at = Some(Instant::now());
            self.share_pool(&jobs, &held)?;
        }
        Ok(())
    }

    /// Reserves for a job that has no reservation yet.
    fn plan(&mut self, job: &SlurmJob) -> anyhow::Result<()> {
        let Some(job) = queue::job(&job.id)? else { return Ok(()) };
        let Some(request) = JobRequest::of(&job, &self.config)? else { return Ok(()) };
        let expected = job.start.filter(|at| !job.is_refused && *at > when::now());
        let not_before = expected.map(|expected| expected.as_nanos());
        let new = match request.reservation(&job, &self.config, not_before) {
            Ok(new) => new,
            Err(error) => return hold(&job, &format!("{error:#}")),
        };
        match self.client.reserve(&new) {
            Ok(held) => {
                self.plans.insert(request::key(&job), held.id);
                self.follow(&job, &held)
            }
            Err(error) if is_for_ever(&error) => hold(&job, &error.to_string()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a reservation to where Slurm expects its job, or the job to its reservation.
    fn follow(&self, job: &SlurmJob, held: &WireReservation) -> anyhow::Result<()> {
        let Some(planned) = planned(job, held) else { return Ok(()) };
        match planned.step(when::now(), self.slack()) {
            PlanStep::Keep => Ok(()),
            PlanStep::Tell(at) => tell(job, at),
            PlanStep::Move(at) => {
                let to = ReservationMove {
                    not_before_ns: Some(at.as_nanos()),
                    ..ReservationMove::default()
                };
                let moved = self.client.move_reservation(held.id, &to)?;
                tracing::info!(job = job.id, reservation = held.id, "follows the expected start");
                let moved = self::planned(job, &moved).map(|it| it.step_after_move(self.slack()));
                match moved {
                    Some(PlanStep::Tell(at)) => tell(job, at),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Ends jobs that Slurm does not have any more, and removes the plans of those that left the
    /// queue. What is gone for one look alone may be a moment of slurmctld.
    fn clean_up(
        &mut self,
        jobs: &[SlurmJob],
        held: &BTreeMap<u64, WireReservation>,
    ) -> anyhow::Result<()> {
        let alive: BTreeMap<(&str, u32), SlurmState> =
            jobs.iter().map(|job| ((job.id.as_str(), job.attempt), job.state)).collect();
        let is_alive = |job: &str, attempt: u32| {
            alive.get(&(job, attempt)).is_some_and(|state| *state != SlurmState::Over)
        };
        let mut gone = BTreeSet::new();
        for (job, attempt) in self.registered()? {
            // One that was refused its start is registered, too.
            if !is_alive(&job, attempt) {
                gone.insert((job, attempt));
            }
        }
        for (job, attempt) in gone.intersection(&self.gone) {
            match self.client.end_job(job, Some(*attempt)) {
                Ok(_) => tracing::info!(job, attempt, "ended: Slurm does not run it any more"),
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let planned = held.values().filter_map(|held| {
            let (job, attempt) = parsed_key(held.idempotency_key.as_deref()?)?;
            (held.phase_of.is_none() && !is_alive(&job, attempt)).then_some((held.id, job, attempt))
        });
        for (id, job, attempt) in planned.collect::<Vec<_>>() {
            if self.gone.contains(&(job.clone(), attempt)) {
                match self.client.remove_reservation(id) {
                    Ok(_) => tracing::info!(job, id, "removed the reservation: its job is gone"),
                    Err(error) if error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
            gone.insert((job, attempt));
        }
        let waits = |key: &str| {
            parsed_key(key).is_some_and(|(job, attempt)| {
                alive.get(&(job.as_str(), attempt)) == Some(&SlurmState::Pending)
            })
        };
        self.plans.retain(|key, _| waits(key));
        self.gone = gone;
        Ok(())
    }

    /// Returns the jobs of Slurm that are registered, with their attempts.
    fn registered(&self) -> anyhow::Result<Vec<(String, u32)>> {
        let (mut found, mut query) = (Vec::new(), String::new());
        loop {
            let page = self.client.jobs(&query)?;
            let of_slurm = |job: &api::WireJob| job.job.bytes().all(|byte| byte.is_ascii_digit());
            found.extend(page.jobs.into_iter().filter(of_slurm).map(|job| (job.job, job.attempt)));
            let Some(next) = page.next else { return Ok(found) };
            query = format!("after={}", api::escaped(&next));
        }
    }

    /// Sets the licences aside that others have in the calendar.
    fn share_pool(
        &self,
        jobs: &[SlurmJob],
        held: &BTreeMap<u64, WireReservation>,
    ) -> anyhow::Result<()> {
        let Some(target) = self.config.pool_target(&self.client)? else { return Ok(()) };
        let by_licence: BTreeSet<&str> = jobs
            .iter()
            .filter(|job| request::licences(&job.licences, &self.config.licence) > 0)
            .map(|job| job.id.as_str())
            .collect();
        let own: Vec<_> = held
            .values()
            .filter(|held| held.target == target.name)
            .filter(|held| held.job.as_deref().is_some_and(|job| by_licence.contains(job)))
            .collect();
        let now = when::now();
        let total = self.config.licences_of(&target)?;
        let wanted = pool::others(&target, &own, now, now + POOL_AHEAD, total);
        set_aside(&self.config.licence, &wanted, now)
    }

    /// How far a reservation and the start that Slurm expects may be apart.
    fn slack(&self) -> Nanos {
        Nanos::new(self.config.claim_window.get() / 2)
    }
}

/// Makes Slurm's reservations of licences those that are wanted: others with our names are deleted.
fn set_aside(licence: &str, wanted: &[PoolSpan], now: Time) -> anyhow::Result<()> {
    let shown = scontrol::run(&["show", "reservations", "--oneliner"])?;
    let names = shown.lines().filter_map(|line| scontrol::value(line, "ReservationName"));
    let mut there: BTreeSet<&str> = names.filter(|name| name.starts_with(POOL_PREFIX)).collect();
    let mut missing = Vec::new();
    for span in wanted {
        // One that has begun is the same as long as its end and its number are.
        let name = pool_name(span);
        if !there.remove(name.as_str()) {
            missing.push((name, span));
        }
    }
    for name in there {
        let deleted = scontrol::run(&["delete", &format!("ReservationName={name}")]);
        deleted.with_context(|| format!("cannot delete the reservation {name} of licences"))?;
    }
    for (name, span) in missing {
        let start = if span.from <= now { "now".into() } else { scontrol::moment(span.from) };
        let made = scontrol::run(&[
            "create",
            "reservation",
            &format!("ReservationName={name}"),
            &format!("StartTime={start}"),
            &format!("EndTime={}", scontrol::moment(span.until)),
            "Users=root",
            &format!("Licenses={licence}:{}", span.licences),
            "Flags=LICENSE_ONLY",
        ]);
        // Running jobs may hold them: then there is less to set aside until they end.
        if let Err(error) = made {
            tracing::warn!(name, error = %format!("{error:#}"), "cannot set licences aside");
        }
    }
    Ok(())
}

fn pool_name(span: &PoolSpan) -> String {
    let seconds = span.until.as_nanos().div_ceil(Nanos::from_secs(1).get());
    format!("{POOL_PREFIX}{seconds}_{}", span.licences)
}

fn planned(job: &SlurmJob, held: &WireReservation) -> Option<PlannedJob> {
    let reserved = Time::from_nanos(held.start_ns?);
    let is_active = held.state == WireReservationState::Active;
    Some(PlannedJob {
        expected: job.start,
        eligible: job.eligible,
        reserved,
        is_active,
        is_refused: job.is_refused,
    })
}

/// Holds a job whose bandwidth fits at no time, with the reason behind its request in the admin
/// comment; an operator can release it.
fn hold(job: &SlurmJob, why: &str) -> anyhow::Result<()> {
    tracing::warn!(job = job.id, why, "held: it cannot get its bandwidth");
    let comment = format!("AdminComment={} held: {}", job.comment, why.replace('\n', " "));
    scontrol::run(&["update", &format!("JobId={}", job.id), "Priority=0", &comment]).map(drop)
}

fn tell(job: &SlurmJob, at: Time) -> anyhow::Result<()> {
    // A job that starts again within the second of its end fails: its credential was revoked.
    let at = at.max(when::now() + Nanos::from_secs(2));
    let start = format!("StartTime={}", scontrol::moment(at));
    scontrol::run(&["update", &format!("JobId={}", job.id), &start])?;
    tracing::info!(job = job.id, start, "starts when its bandwidth is free");
    Ok(())
}

/// Whether another attempt would be refused as well.
fn is_for_ever(error: &ClientError) -> bool {
    match error.refusal() {
        Some(refusal) => refusal.next_start_ns.is_none(),
        None => matches!(error.code(), ErrorCode::InvalidArgument | ErrorCode::NotFound),
    }
}

/// The job and attempt of a key that [`request::key`] made.
fn parsed_key(key: &str) -> Option<(String, u32)> {
    let (job, attempt) = key.strip_prefix("slurm-")?.split_once('-')?;
    let is_number = job.bytes().all(|byte| byte.is_ascii_digit());
    Some((job.to_owned(), attempt.parse().ok()?)).filter(|_| is_number)
}

/// The most waiting jobs that are planned: Slurm itself looks at 500 by default.
const JOBS_MAX: usize = 2_000;
/// The time between two looks at the pool, and how far ahead it is shared: Slurm plans a day.
const POOL_EVERY: Duration = Duration::from_secs(30);
const POOL_AHEAD: Nanos = Nanos::from_secs(2 * 86_400);
/// The beginning of the names of reservations of licences.
const POOL_PREFIX: &str = "sluice_";
