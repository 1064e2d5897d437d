//! The calls about registered jobs: who may register, end and read one, and who gets its token.
//!
//! ```text
//!   PUT ────► may the caller? ─► JobRegistry ─┐
//!   DELETE ─► row, and its reservations ───┴► one decision with the calendar ─► token in force, or not
//!   POST …/token ─► after the record ─► the caller operates, owns the job, or is a node of it
//! ```
//!
//! The table is stored with the calendar, so that a job and its reservations end together, also over a
//! crash (docs/decisions/0023-tokens-of-jobs.md).

use std::collections::BTreeMap;

use api::{
    AuditLine, EndedJob, ErrorCode, ErrorReport, JobToken, NewJob, Role, WireJob, WireJobs, is_name,
};
use model::{Bytes, JobId, Time};
use reserve::{
    JobError, JobRecord, JobRegistration, JobRegistry, RegistrationOutcome, ReservationId,
    ReservationOwner,
};
use tokio::sync::oneshot;

use super::requests::{Refused, at, user_of};
use super::{CalendarActor, CalendarReply};
use crate::process::access::ApiCaller;
use crate::process::job_tokens::{new_secret, token_of};

/// A message about registered jobs.
pub(crate) enum JobMsg {
    Register {
        job: String,
        new: Box<NewJob>,
        by: ApiCaller,
        /// The user at the other end of a Unix socket.
        peer: Option<u32>,
        answer: CalendarReply<WireJob>,
    },
    End {
        job: String,
        /// Only if no later attempt is registered.
        attempt: Option<u32>,
        /// What was moved by the claimed reservations of the job; none counts as nothing.
        used: BTreeMap<u64, Bytes>,
        by: ApiCaller,
        answer: CalendarReply<EndedJob>,
    },
    Token {
        job: String,
        by: ApiCaller,
        answer: CalendarReply<JobToken>,
    },
    Get {
        job: String,
        by: ApiCaller,
        answer: CalendarReply<WireJob>,
    },
    List {
        after: String,
        by: ApiCaller,
        answer: oneshot::Sender<WireJobs>,
    },
}

/// The token of a job for one who may have it, once its line of the audit log is written.
pub(super) struct PendingToken {
    answer: CalendarReply<JobToken>,
    token: JobToken,
    audit: AuditLine,
}

impl CalendarActor {
    /// Does what a message about jobs says, or returns it if it only reads.
    pub(super) fn handle_job(&mut self, msg: JobMsg, now: Time) -> Option<JobMsg> {
        match msg {
            JobMsg::Register { job, new, by, peer, answer } => {
                let outcome = self.register_job(&job, *new, &by, peer, now);
                self.reply_later(outcome, answer);
            }
            JobMsg::End { job, attempt, used, by, answer } => {
                let outcome = self.end_job(&job, attempt, &used, &by, now);
                self.reply_later(outcome, answer);
            }
            read => return Some(read),
        }
        None
    }

    /// Answers what changes no job. Tokens are sent by [`CalendarActor::send_tokens`].
    pub(super) fn answer_job(&mut self, read: JobMsg, now: Time) {
        match read {
            JobMsg::Token { job, by, answer } => match self.token_of_job(&job, &by) {
                Ok((token, audit)) => {
                    self.tokens.push(PendingToken { answer, token, audit });
                }
                Err(refused) => drop(answer.send(Err(refused))),
            },
            JobMsg::Get { job, by, answer } => {
                let found = self.visible_job(&job, &by).map(wire);
                let _ = answer.send(found);
            }
            JobMsg::List { after, by, answer } => drop(answer.send(self.jobs(&after, &by, now))),
            JobMsg::Register { .. } | JobMsg::End { .. } => {}
        }
    }

    /// Sends the tokens that were asked for, once the audit log has all of them: one write for all the
    /// nodes that start a job together.
    pub(super) fn send_tokens(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        let lines: Vec<_> = tokens.iter().map(|pending| pending.audit.clone()).collect();
        self.to.access.audit.write_all(&lines);
        for PendingToken { answer, token, .. } in tokens {
            let _ = answer.send(Ok(token));
        }
    }

    /// Drops the jobs that were over an hour ago. Their reservations end in their own time.
    pub(super) fn expire_jobs(&mut self, now: Time) {
        let expired = self.jobs.expire(EXPIRED_MAX, now);
        if !expired.is_empty() {
            tracing::debug!(count = expired.len(), "dropped jobs that are over");
        }
    }

    /// Puts the tokens of jobs in force, or out of it, as the table is on record now.
    pub(super) fn publish_job_tokens(&self, changed: &[JobId]) {
        for job in changed {
            self.to.access.jobs.set(job, self.jobs.get(job));
        }
    }

    /// Completes what role `job` requests by what is registered of it, and refuses a job that is another
    /// user's.
    pub(super) fn check_job(
        &self,
        by: &ApiCaller,
        user: u32,
        owner: &mut ReservationOwner,
    ) -> Result<(), Refused> {
        if let Some(own) = &by.job {
            if !owner.job.as_str().is_empty() && owner.job != *own {
                let message =
                    format!("{} may reserve for its own job only, not {}", by.name, owner.job);
                return Err(denied("job", message));
            }
            owner.job = own.clone();
            if let Some(JobRecord { registration: of, .. }) = self.jobs.get(own) {
                owner.gid = of.gid.unwrap_or(u32::MAX);
                owner.account = of.account.as_deref().map(Into::into);
            }
        }
        let has = self.jobs.get(&owner.job).map(|record| record.registration.uid);
        match has.filter(|has| *has != user && !by.acts_for_all()) {
            Some(_) => Err(denied("job", format!("job {} is another user's", owner.job))),
            None => Ok(()),
        }
    }

    fn register_job(
        &mut self,
        job: &str,
        new: NewJob,
        by: &ApiCaller,
        peer: Option<u32>,
        now: Time,
    ) -> Result<(WireJob, Option<AuditLine>), Refused> {
        let job = parsed(job)?;
        may_manage(by, &job)?;
        let uid = user_of(by, peer, new.user)?;
        let charged = [("account", new.account.is_some()), ("group", new.group.is_some())];
        if let Some((field, _)) = charged.into_iter().find(|(_, is)| *is && !by.acts_for_all()) {
            let message = format!("{} has role {} and may not name its {field}", by.name, by.role);
            return Err(denied(field, message));
        }
        if let Some(wrong) = new.nodes.iter().find(|name| !is_name(name)) {
            let want = "1 to 63 letters, digits, '_', '-' and '.', the first a letter or digit";
            let name: String = wrong.chars().take(80).collect();
            return Err(at("nodes", format!("{name:?} is not the name of a node: {want}")));
        }
        let NewJob { group: gid, account, attempt, nodes, ends_ns, .. } = new;
        let account = account.filter(|name| !name.is_empty());
        let ends = ends_ns.map(Time::from_nanos);
        let registration =
            JobRegistration { job: job.clone(), uid, gid, account, attempt, nodes, ends };
        let outcome = self.jobs.register(registration, new_secret(), now);
        let outcome = outcome.map_err(|error| report_of(&error, by))?;
        let record = self.jobs.get(&job).expect("it was just registered");
        let audit = (outcome != RegistrationOutcome::Unchanged).then(|| {
            by.audit_line(
                format!("job {job}"),
                None,
                Some(format!("registered, {}", words(record))),
            )
        });
        Ok((wire(record), audit))
    }

    fn end_job(
        &mut self,
        job: &str,
        attempt: Option<u32>,
        used: &BTreeMap<u64, Bytes>,
        by: &ApiCaller,
        now: Time,
    ) -> Result<(EndedJob, Option<AuditLine>), Refused> {
        let job = parsed(job)?;
        may_manage(by, &job)?;
        self.calendar.advance(now);
        self.drain_events();
        let uid = self.visible_job(job.as_str(), by)?.registration.uid;
        let mut ended = EndedJob { job: job.to_string(), ..EndedJob::default() };
        let Some(record) = self.jobs.end(&job, attempt) else { return Ok((ended, None)) };
        ended.ended = true;
        let of_job = self.known.of(Some(uid), Some(job.as_str()), ReservationId(0));
        // phases end with their reservations
        let is_whole =
            |id: &ReservationId| self.known.get(*id).is_some_and(|known| known.phase_of.is_none());
        let of_job: Vec<ReservationId> = of_job.filter(is_whole).collect();
        for id in of_job {
            let Some(progress) = self.calendar.progress(id) else { continue };
            self.changed.insert(id);
            if progress.since.is_none() {
                self.calendar.remove(id, now);
                self.drain_events();
                ended.removed.push(id.0);
                continue;
            }
            let used = used.get(&id.0).copied().unwrap_or(Bytes::ZERO);
            let credit = self.calendar.finish(id, used, now).map(Bytes::get);
            self.drain_events();
            if let Some(shown) = self.ended.get_mut(id.0) {
                shown.credit = credit;
            }
            ended.credit = ended.credit.saturating_add(credit.unwrap_or(0));
            ended.finished.push(id.0);
        }
        let (finished, removed) = (ended.finished.len(), ended.removed.len());
        let what = format!("ended, with {finished} reservations finished and {removed} removed");
        let line = by.audit_line(format!("job {job}"), Some(words(&record)), Some(what));
        Ok((ended, Some(line)))
    }

    fn token_of_job(&self, job: &str, by: &ApiCaller) -> Result<(JobToken, AuditLine), Refused> {
        let job = parsed(job)?;
        let record = self.jobs.get(&job).ok_or_else(|| unknown(&job))?;
        let of = &record.registration;
        let is_node =
            by.role == Role::Proxy && by.node.as_deref().is_some_and(|node| record.has_node(node));
        let is_own = by.role == Role::User && by.user == Some(of.uid);
        if !(by.acts_for_all() || is_own || is_node) {
            let message = format!(
                "the token of job {job} is for its user, for operators and batch systems, and for its \
                 nodes by their certificates; {} is none of these",
                by.name
            );
            return Err(denied("job", message));
        }
        let token = JobToken {
            token: token_of(&record.secret),
            user: of.uid,
            attempt: of.attempt,
            expires_s: record.expires().map(|at| at.as_nanos() / 1_000_000_000),
        };
        let what = format!("token read, {}", words(record));
        Ok((token, by.audit_line(format!("job {job}"), None, Some(what))))
    }

    /// The record of a job that a caller may see.
    fn visible_job(&self, job: &str, by: &ApiCaller) -> Result<&JobRecord, Refused> {
        let job = parsed(job)?;
        if by.job.as_ref().is_some_and(|own| *own != job) {
            return Err(denied("job", format!("{} may see its own job only", by.name)));
        }
        let record = self.jobs.get(&job).ok_or_else(|| unknown(&job))?;
        match by.may_see_job(Some(record.registration.uid), job.as_str()) {
            true => Ok(record),
            false => {
                let message = format!("{} has role {} and may not see job {job}", by.name, by.role);
                Err(denied("job", message))
            }
        }
    }

    fn jobs(&self, after: &str, by: &ApiCaller, now: Time) -> WireJobs {
        let mut page = WireJobs { at_ns: now.as_nanos(), ..WireJobs::default() };
        let after = JobId::new(after).unwrap_or_default();
        let is_visible = |record: &&JobRecord| {
            let of = &record.registration;
            by.may_see_job(Some(of.uid), of.job.as_str())
        };
        let mut nodes = 0;
        for record in self.jobs.after(&after).filter(is_visible) {
            let of = &record.registration;
            nodes += of.nodes.len();
            let is_full = page.jobs.len() >= LISTED_MAX || nodes > JobRegistry::NODES_MAX;
            if let Some(last) = page.jobs.last().filter(|_| is_full) {
                page.next = Some(last.job.clone());
                break;
            }
            page.jobs.push(wire(record));
        }
        page
    }
}

/// Whether a caller may register and end a job of this name.
fn may_manage(by: &ApiCaller, job: &JobId) -> Result<(), Refused> {
    let prefix = JobRegistry::RUN_PREFIX;
    if by.acts_for_all() || by.role == Role::User && job.as_str().starts_with(prefix) {
        return Ok(());
    }
    let message = format!(
        "{} has role {}, which registers and ends jobs only whose names begin with {prefix}; job {job} \
         needs role batch",
        by.name, by.role
    );
    Err(denied("job", message))
}

fn parsed(job: &str) -> Result<JobId, Refused> {
    JobId::new(job).filter(|job| !job.as_str().is_empty()).ok_or_else(|| {
        let job: String = job.chars().take(80).collect();
        at("job", format!("{job:?} is not a job: 1 to 128 bytes, no control characters"))
    })
}

fn unknown(job: &JobId) -> Refused {
    let message = format!("job {job} is not registered");
    Box::new(ErrorReport::new(ErrorCode::NotFound, message).at("job"))
}

fn denied(field: &str, message: String) -> Refused {
    Box::new(ErrorReport::new(ErrorCode::PermissionDenied, message).at(field))
}

fn report_of(error: &JobError, by: &ApiCaller) -> Refused {
    let (code, field) = match error {
        JobError::OfAnother { job, .. } if !by.acts_for_all() => {
            return denied("job", format!("job {job} is another user's"));
        }
        JobError::OfAnother { .. } => (ErrorCode::JobRegistered, Some("user")),
        JobError::Superseded { .. } => (ErrorCode::JobRegistered, Some("attempt")),
        JobError::NoName => (ErrorCode::InvalidArgument, Some("job")),
        JobError::AccountName(_) => (ErrorCode::InvalidArgument, Some("account")),
        JobError::Nodes(_) | JobError::RunNodes(_) => (ErrorCode::InvalidArgument, Some("nodes")),
        JobError::HasEnded => (ErrorCode::InvalidArgument, Some("ends_ns")),
        JobError::Full | JobError::NodeBytes(_) | JobError::Runs { .. } => {
            (ErrorCode::LimitReached, None)
        }
    };
    let at = field.map(str::to_owned);
    Box::new(ErrorReport { at, ..ErrorReport::new(code, error.to_string()) })
}

/// Describes a job for the audit log.
fn words(record: &JobRecord) -> String {
    let of = &record.registration;
    format!("user {}, attempt {}, {} nodes", of.uid, of.attempt, of.nodes.len())
}

fn wire(record: &JobRecord) -> WireJob {
    let JobRegistration { job, uid, gid, account, attempt, nodes, ends } = &record.registration;
    WireJob {
        job: job.to_string(),
        user: *uid,
        group: *gid,
        account: account.clone(),
        attempt: *attempt,
        nodes: nodes.clone(),
        registered_ns: record.registered.as_nanos(),
        ends_ns: ends.map(Time::as_nanos),
    }
}

/// The most jobs of one page of a list.
const LISTED_MAX: usize = 1_000;
/// The most jobs that are dropped in one decision.
const EXPIRED_MAX: usize = 1_024;
