//! `sluice slurm follow`: the service beside slurmctld that plans what waits and cleans up.
//!
//! ```text
//!   squeue ─► waiting jobs ─► a planned reservation each ─► plan.rs: move it, or tell Slurm
//!          ├► tasks of an array that are no jobs yet ─► the next one becomes a job
//!          ├► jobs that are gone ─► end them: their reservations and tokens go, too
//!          └► running jobs whose PrologSlurmctld failed ─► register them, claim their reservations
//!   calendar ─► pool.rs ─► license_only reservations
//! ```
//!
//! It keeps no file: what it forgets at a restart it finds again by the keys of its reservations.
//! While it does not run, jobs start as before, by the hooks alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::{ErrorCode, NewJob, ReservationMove, WireJob, WireReservation, WireReservationState};
use http::ApiClient;
use model::{Nanos, Time};

use super::begin::{begin, has_run_since_before, is_for_ever};
use super::config::SlurmConfig;
use super::plan::{PlanStep, PlannedJob};
use super::pool;
use super::queue::{self, SlurmJob, SlurmState};
use super::request::{self, JobRequest};
use super::{command, set_aside};
use crate::reserve::all_reservations;
use crate::when;

/// What `follow` knows from one look at the queue to the next.
pub(super) struct SlurmFollower {
    config: SlurmConfig,
    client: ApiClient,
    /// What is known of each waiting job, by key.
    plans: BTreeMap<String, SlurmPlan>,
    /// Jobs that were gone at the last look: they are ended if they are gone at this one, too.
    gone: BTreeSet<(String, u32)>,
    /// Running jobs that were not registered at the last look.
    unregistered: BTreeSet<(String, u32)>,
    pool_at: Option<Instant>,
}

/// What is known of a waiting job.
#[derive(Clone, Copy, Debug, Default)]
struct SlurmPlan {
    /// Its reservation, if it has one.
    reservation: Option<u64>,
    /// The earliest start that Slurm was given.
    told: Option<Time>,
    /// When its bandwidth was refused first, if it was the last time.
    refused: Option<Instant>,
    /// Whether it was held for that.
    is_held: bool,
    /// Attempts that failed or lapsed since it was planned last, and when the next one is due.
    failures: u32,
    next: Option<Instant>,
}

impl SlurmPlan {
    /// Whether the pause after the last failure is over.
    fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Counts a failure: the next attempt is later than the one before.
    fn fail(&mut self, interval: Duration) {
        self.failures = (self.failures + 1).min(16);
        let pause = interval.saturating_mul(1 << self.failures).min(PAUSE_MAX);
        (self.reservation, self.next) = (None, Some(Instant::now() + pause));
    }
}

impl SlurmFollower {
    /// Makes it; nothing is called yet.
    ///
    /// # Errors
    /// If a file of the credentials cannot be used.
    pub(super) fn new(config: SlurmConfig) -> anyhow::Result<SlurmFollower> {
        let client = config.batch_client()?.with_connection_reuse();
        let (plans, gone, unregistered) = Default::default();
        Ok(SlurmFollower { config, client, plans, gone, unregistered, pool_at: None })
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
    fn look(&mut self) -> anyhow::Result<()> {
        let queue = queue::queue()?;
        let found = all_reservations(&self.client, &[])?;
        let held: BTreeMap<u64, WireReservation> =
            found.reservations.into_iter().map(|held| (held.id, held)).collect();
        let waiting = |job: &&SlurmJob| {
            let waits = job.state == SlurmState::Pending && !job.is_held;
            waits && request::may_have_one(job, &self.config)
        };
        let waiting: Vec<_> = queue.jobs.iter().filter(waiting).take(JOBS_MAX).cloned().collect();
        for job in &waiting {
            let looked = match job.is_many() {
                true => self.look_at_array(job, &queue.jobs),
                false => self.look_at(job, &held),
            };
            if let Err(error) = looked {
                tracing::warn!(job = job.id, error = %format!("{error:#}"), "cannot plan a job");
                let interval = self.config.interval.to_duration();
                self.plan_of(job).fail(interval);
            }
        }
        if queue.is_complete {
            self.clean_up(&queue.jobs, &held)?;
        }
        if self.pool_at.is_none_or(|at| at.elapsed() >= POOL_EVERY) {
            self.pool_at = Some(Instant::now());
            self.share_pool(&queue.jobs, &held)?;
        }
        Ok(())
    }

    fn plan_of(&mut self, job: &SlurmJob) -> &mut SlurmPlan {
        self.plans.entry(request::key(job)).or_default()
    }

    /// Plans a waiting job, or follows it.
    fn look_at(
        &mut self,
        job: &SlurmJob,
        held: &BTreeMap<u64, WireReservation>,
    ) -> anyhow::Result<()> {
        let interval = self.config.interval.to_duration();
        let plan = self.plan_of(job);
        if let Some(id) = plan.reservation {
            let held = held.get(&id).filter(|held| held.state != WireReservationState::Undefined);
            match held {
                // Its phases are over too early: it is planned again.
                Some(held) if has_run_since_before(held, when::now().before(ALONE_MAX)) => {
                    plan.fail(interval);
                    return self.client.remove_reservation(id).map(drop).map_err(Into::into);
                }
                Some(held) => return self.follow(job, held),
                // It has lapsed: the job did not start when Slurm expected it.
                None => plan.fail(interval),
            }
        }
        match plan.is_due() && may_start(job) {
            true => self.plan(job),
            false => Ok(()),
        }
    }

    /// Makes the next task of an array a job of its own, which is planned at the next look; those behind
    /// it have no reservation until then. If a task was held because it never fits, they are held, too.
    fn look_at_array(&mut self, job: &SlurmJob, jobs: &[SlurmJob]) -> anyhow::Result<()> {
        if !self.plan_of(job).is_due() {
            return Ok(());
        }
        let is_pending = |task: &&SlurmJob| task.state == SlurmState::Pending && !task.is_many();
        let tasks = || jobs.iter().filter(|task| task.is_of_array_of(job)).filter(is_pending);
        let is_held = |task: &&SlurmJob| {
            task.is_held && self.plans.get(&request::key(task)).is_some_and(|plan| plan.is_held)
        };
        if let Some(held) = tasks().find(is_held) {
            let why = format!("so is task {} of this array", held.name());
            let job = queue::job(&job.id)?.filter(SlurmJob::is_many);
            return job.map_or(Ok(()), |job| hold(&job, &why));
        }
        let is_next = |task: &SlurmJob| !task.is_held && may_start(task);
        if tasks().any(is_next) || !may_start(job) {
            return Ok(());
        }
        let Some(task) = job.first_task() else { return Ok(()) };
        // Any change of it does, also one to what it is already.
        let same = format!("Requeue={}", u8::from(job.is_requeued));
        command::scontrol(&["update", &format!("JobId={task}"), &same])?;
        tracing::info!(task, "is planned next of its array");
        Ok(())
    }

    /// Reserves for a job that has no reservation yet.
    fn plan(&mut self, job: &SlurmJob) -> anyhow::Result<()> {
        let Some(job) = queue::job(&job.id)?.filter(|job| !job.is_many()) else { return Ok(()) };
        let Some(request) = JobRequest::of(&job, &self.config)? else { return Ok(()) };
        let expected = job.start.filter(|at| !job.is_refused && *at > when::now());
        let not_before = expected.map(|expected| expected.as_nanos());
        let new = match request.reservation(&job, &self.config, not_before) {
            Ok(new) => new,
            Err(error) => return self.refuse(&job, &format!("{error:#}")),
        };
        match self.client.reserve(&new) {
            Ok(held) => {
                let plan = self.plan_of(&job);
                (plan.reservation, plan.refused, plan.next) = (Some(held.id), None, None);
                self.follow(&job, &held)
            }
            Err(error) if is_for_ever(&error) => self.refuse(&job, &error.to_string()),
            Err(error) => Err(error.into()),
        }
    }

    /// Holds a job whose bandwidth has been refused for long, with the reason behind its request in
    /// the admin comment; an operator can release it.
    fn refuse(&mut self, job: &SlurmJob, why: &str) -> anyhow::Result<()> {
        let (interval, after) = (self.config.interval, self.config.hold_after);
        let plan = self.plan_of(job);
        plan.fail(interval.to_duration());
        let since = *plan.refused.get_or_insert_with(Instant::now);
        if since.elapsed() < after.to_duration() {
            tracing::info!(job = job.id, why, "its bandwidth is refused");
            return Ok(());
        }
        tracing::warn!(job = job.id, why, "held: it cannot get its bandwidth");
        hold(job, why)?;
        self.plan_of(job).is_held = true;
        Ok(())
    }

    /// Moves a reservation to where Slurm expects its job, or the job to its reservation.
    fn follow(&mut self, job: &SlurmJob, held: &WireReservation) -> anyhow::Result<()> {
        let (slack, told) = (self.slack(), self.plan_of(job).told);
        let Some(planned) = planned(job, held, told) else { return Ok(()) };
        let step = match planned.step(when::now(), slack) {
            PlanStep::Move(at) => {
                let to = ReservationMove {
                    not_before_ns: Some(at.as_nanos()),
                    ..ReservationMove::default()
                };
                let moved = self.client.move_reservation(held.id, &to)?;
                tracing::info!(job = job.id, reservation = held.id, "follows the expected start");
                let moved = self::planned(job, &moved, told);
                moved.map_or(PlanStep::Keep, |moved| moved.step_after_move(slack))
            }
            step => step,
        };
        if let PlanStep::Tell(at) = step {
            self.plan_of(job).told = Some(tell(job, at)?);
        }
        Ok(())
    }

    /// Ends jobs that Slurm does not have any more, and removes the plans of those that left the
    /// queue. What is gone for one look alone may be a moment of slurmctld.
    fn clean_up(
        &mut self,
        jobs: &[SlurmJob],
        held: &BTreeMap<u64, WireReservation>,
    ) -> anyhow::Result<()> {
        let alive: BTreeMap<(&str, u32), &SlurmJob> = jobs
            .iter()
            .filter(|job| job.state != SlurmState::Over)
            .map(|job| ((job.id.as_str(), job.attempt), job))
            .collect();
        let is_alive = |job: &str, attempt: u32| alive.contains_key(&(job, attempt));
        let (mut gone, mut found) = (BTreeSet::new(), BTreeSet::new());
        for registered in self.registered()? {
            let (id, attempt) = (registered.job.clone(), registered.attempt);
            // One that was refused its start is registered, too.
            match alive.get(&(id.as_str(), attempt)) {
                Some(job) => self.renew(job, registered),
                None => drop(gone.insert((id.clone(), attempt))),
            }
            found.insert((id, attempt));
        }
        self.register(jobs, &found);
        for (job, attempt) in gone.intersection(&self.gone) {
            match self.client.end_job(job, Some(*attempt)) {
                Ok(_) => tracing::info!(job, attempt, "ended: Slurm does not run it any more"),
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => tracing::warn!(job, %error, "cannot end a job"),
            }
        }
        let planned = held.values().filter_map(|held| {
            let (job, attempt) = request::parsed_key(held.idempotency_key.as_deref()?)?;
            (held.phase_of.is_none() && !is_alive(&job, attempt)).then_some((held.id, job, attempt))
        });
        for (id, job, attempt) in planned.collect::<Vec<_>>() {
            if self.gone.contains(&(job.clone(), attempt)) {
                match self.client.remove_reservation(id) {
                    Ok(_) => tracing::info!(job, id, "removed the reservation: its job is gone"),
                    Err(error) if error.code() == ErrorCode::NotFound => {}
                    Err(error) => tracing::warn!(job, id, %error, "cannot remove a reservation"),
                }
            }
            gone.insert((job, attempt));
        }
        let waits = |key: &str| {
            request::parsed_key(key).is_some_and(|(job, attempt)| {
                let job = alive.get(&(job.as_str(), attempt));
                job.is_some_and(|job| job.state == SlurmState::Pending)
            })
        };
        self.plans.retain(|key, _| waits(key));
        self.gone = gone;
        Ok(())
    }

    /// Registers running jobs whose PrologSlurmctld failed: their reservations become theirs, and their
    /// nodes may get their tokens. What is not registered for one look alone may be about to be.
    fn register(&mut self, jobs: &[SlurmJob], registered: &BTreeSet<(String, u32)>) {
        let of = |job: &SlurmJob| (job.id.clone(), job.attempt);
        let is_missing = |job: &&SlurmJob| {
            job.state == SlurmState::Running
                && request::may_have_one(job, &self.config)
                && !registered.contains(&of(job))
        };
        let missing: Vec<_> = jobs.iter().filter(is_missing).collect();
        for job in missing.iter().filter(|job| self.unregistered.contains(&of(job))) {
            match self.register_late(job) {
                Ok(()) => tracing::info!(job = job.id, "registered: its prolog had failed"),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(job = job.id, error, "cannot register a job");
                }
            }
        }
        self.unregistered = missing.into_iter().map(of).collect();
    }

    fn register_late(&self, job: &SlurmJob) -> anyhow::Result<()> {
        let is_same =
            |now: &SlurmJob| now.state == SlurmState::Running && now.attempt == job.attempt;
        let Some(job) = queue::job(&job.id)?.filter(is_same) else { return Ok(()) };
        let new = request::registration(&job, queue::nodes_of(&job)?);
        self.client.register_job(&job.id, &new)?;
        begin(&self.client, &self.config, &job, None).map(drop)
    }

    /// Registers the later end of a job whose time limit was extended: its token is valid for longer.
    fn renew(&self, job: &SlurmJob, registered: WireJob) {
        let ends_ns = job.ends.map(|ends| ends.as_nanos());
        if job.state != SlurmState::Running || ends_ns <= registered.ends_ns {
            return;
        }
        let new = NewJob {
            user: Some(registered.user),
            group: registered.group,
            account: registered.account,
            attempt: registered.attempt,
            nodes: registered.nodes,
            ends_ns,
        };
        if let Err(error) = self.client.register_job(&job.id, &new) {
            tracing::warn!(job = job.id, %error, "cannot extend the time of a job");
        }
    }

    /// Returns the jobs of Slurm that are registered.
    fn registered(&self) -> anyhow::Result<Vec<WireJob>> {
        let (mut found, mut query) = (Vec::new(), String::new());
        loop {
            let page = self.client.jobs(&query)?;
            let of_slurm = |job: &WireJob| job.job.bytes().all(|byte| byte.is_ascii_digit());
            found.extend(page.jobs.into_iter().filter(of_slurm));
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
        // What a job reserves besides with its token has no licences.
        let is_of_slurm = |held: &&WireReservation| {
            let key = held.idempotency_key.as_deref().and_then(request::parsed_key);
            held.target == target.name
                && key.is_some_and(|(job, _)| by_licence.contains(job.as_str()))
        };
        let own: Vec<_> = held.values().filter(is_of_slurm).collect();
        let now = when::now();
        let total = self.config.licences_of(&target)?;
        // The end is that of an hour, so that what reaches it is not another one each time.
        let ahead = (now + POOL_AHEAD).as_nanos().next_multiple_of(HOUR.get());
        let wanted = pool::others(&target, &own, now, Time::from_nanos(ahead), total);
        set_aside::set_aside(&self.config.licence, &wanted, now)
    }

    /// How far a reservation and the start that Slurm expects may be apart.
    fn slack(&self) -> Nanos {
        Nanos::new(self.config.claim_window.get() / 2)
    }
}

fn planned(job: &SlurmJob, held: &WireReservation, told: Option<Time>) -> Option<PlannedJob> {
    Some(PlannedJob {
        expected: job.start,
        eligible: job.eligible,
        told,
        reserved: Time::from_nanos(held.start_ns?),
        is_active: held.state == WireReservationState::Active,
        is_refused: job.is_refused,
    })
}

/// Whether a waiting job may start before something else than resources has changed. What waits for
/// another job or a limit has no start, and would hold bandwidth for nothing.
fn may_start(job: &SlurmJob) -> bool {
    job.waits_for_resources || job.start.is_some()
}

/// Holds a job, with the reason behind its request in the admin comment.
fn hold(job: &SlurmJob, why: &str) -> anyhow::Result<()> {
    // The text may repeat what the user wrote.
    let why = why.replace('\n', " ").replace(request::WORD, "sluice ");
    let comment = format!("AdminComment={} held: {why}", job.comment);
    let id = format!("JobId={}", job.name());
    command::scontrol(&["update", &id, "Priority=0", &comment]).map(drop)
}

/// Sets the earliest start of a job in Slurm, and returns it.
fn tell(job: &SlurmJob, at: Time) -> anyhow::Result<Time> {
    // A job that starts again within the second of its end fails: its credential was revoked.
    let at = at.max(when::now() + Nanos::from_secs(2));
    let start = format!("StartTime={}", command::moment(at));
    command::scontrol(&["update", &format!("JobId={}", job.name()), &start])?;
    tracing::info!(job = job.id, start, "starts when its bandwidth is free");
    Ok(at)
}

/// The most waiting jobs that are planned: Slurm itself looks at 500 by default.
const JOBS_MAX: usize = 2_000;
/// The time between two looks at the pool, and how far ahead it is shared: Slurm plans a day.
const POOL_EVERY: Duration = Duration::from_secs(30);
const POOL_AHEAD: Nanos = Nanos::from_secs(2 * 86_400);
/// The longest pause between two attempts to plan a job.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// How long a reservation with phases may run before it is planned again.
const ALONE_MAX: Nanos = Nanos::from_secs(5);
const HOUR: Nanos = Nanos::from_secs(3600);
