//! Registered jobs: their tokens, and what becomes of their reservations, over failures of the store.

use api::{EndedJob, JobToken, NewJob, WireJob, WireJobs};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use http::Peer;
use model::JobId;

use super::*;

fn batch() -> ApiCaller {
    ApiCaller { name: "slurm".into(), role: Role::Batch, ..by() }
}

fn node(name: &str) -> ApiCaller {
    let node = Some(name.to_owned());
    ApiCaller { name: name.into(), role: Role::Proxy, node, ..by() }
}

fn of(user: u32, attempt: u32) -> NewJob {
    NewJob { user: Some(user), attempt, ..NewJob::default() }
}

impl Room {
    fn ask<T>(&mut self, msg: impl FnOnce(CalendarReply<T>) -> JobMsg) -> Result<T, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::Job(msg(answer)));
        outcome.try_recv().unwrap()
    }

    fn register(&mut self, job: &str, new: NewJob, by: ApiCaller) -> Result<WireJob, Refused> {
        let (job, new) = (job.into(), Box::new(new));
        self.ask(|answer| JobMsg::Register { job, new, by, peer: None, answer })
    }

    fn end(&mut self, job: &str, attempt: Option<u32>) -> Result<EndedJob, Refused> {
        let (job, by, used) = (job.into(), batch(), BTreeMap::new());
        self.ask(|answer| JobMsg::End { job, attempt, used, by, answer })
    }

    fn token(&mut self, job: &str, by: ApiCaller) -> Result<JobToken, Refused> {
        let job = job.into();
        self.ask(|answer| JobMsg::Token { job, by, answer })
    }

    fn jobs(&mut self, after: &str, by: ApiCaller) -> WireJobs {
        let (answer, mut outcome) = oneshot::channel();
        let after = after.into();
        self.say(CalendarMsg::Job(JobMsg::List { after, by, answer }));
        outcome.try_recv().unwrap()
    }

    /// Who shows that token.
    fn shown(&self, token: &JobToken) -> Result<ApiCaller, String> {
        let value = HeaderValue::try_from(format!("Bearer {}", token.token)).unwrap();
        let peer = Peer::tcp("127.0.0.1:1".parse().unwrap(), true);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        self.actor.to.access.identify(&peer, &headers)
    }

    /// A reservation of a job of user 5, with a claim window.
    fn of_job(&mut self, job: &str) -> u64 {
        let job = Some(job.to_owned());
        let new = NewReservation { claim_window_ns: 100_000_000_000, job, ..reads(1) };
        self.request(new).unwrap().id
    }
}

#[test]
fn a_token_counts_until_its_job_ends_or_a_later_attempt_is_registered() {
    let mut room = Room::new();
    let made = room.register("7", of(5, 0), batch()).unwrap();
    assert_eq!((made.user, made.attempt, made.nodes.len()), (5, 0, 0));
    let first = room.token("7", batch()).unwrap();
    assert_eq!(room.token("7", user(5)).unwrap(), first, "it is the same for all who may have it");
    let caller = room.shown(&first).unwrap();
    assert_eq!((caller.name.as_str(), caller.role, caller.user), ("job 7", Role::Job, Some(5)));
    assert_eq!(caller.job.as_ref().map(JobId::as_str), Some("7"));
    assert_eq!(room.register("7", of(5, 0), batch()).unwrap(), made);
    assert!(room.shown(&first).is_ok());
    room.register("7", of(5, 1), batch()).unwrap();
    assert!(room.shown(&first).unwrap_err().contains("not known"));
    let second = room.token("7", batch()).unwrap();
    assert!(room.shown(&second).is_ok() && second.token != first.token);
    // a late end of the first attempt
    assert!(!room.end("7", Some(0)).unwrap().ended);
    assert!(room.shown(&second).is_ok());
    assert!(room.end("7", Some(1)).unwrap().ended);
    assert!(room.shown(&second).is_err());
    // the name is used again, with the same numbers
    room.register("7", of(5, 1), batch()).unwrap();
    assert!(room.shown(&second).is_err() && room.shown(&first).is_err());
    assert_eq!(room.end("8", None).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn the_end_of_a_job_finishes_what_is_claimed_and_removes_what_is_not() {
    let mut room = Room::new();
    room.register("7", of(5, 0), batch()).unwrap();
    let [claimed, active, other] = ["7", "7", "8"].map(|job| room.of_job(job));
    room.in_force(claimed);
    room.in_force(active);
    room.change(claimed, ReservationChange::Claim, by()).unwrap();
    let ended = room.end("7", Some(0)).unwrap();
    assert_eq!((&ended.finished[..], &ended.removed[..]), (&[claimed][..], &[active][..]));
    assert_eq!(room.get(claimed).unwrap().ended.as_deref(), Some("completed"));
    assert_eq!(room.get(active).unwrap().ended.as_deref(), Some("removed"));
    assert_eq!(room.get(other).unwrap().ended, None, "it is another job's");
    let mut next = room.followed(Duration::from_secs(1));
    assert!(next.get(active).is_err() && next.get(other).is_ok());
    assert!(next.jobs("", batch()).jobs.is_empty());
    // a job without a row has none of its reservations touched
    assert_eq!(next.end("8", None).unwrap_err().code, ErrorCode::NotFound);
    assert!(next.get(other).is_ok());
}

#[test]
fn a_job_and_its_reservations_end_together_or_not_at_all() {
    let mut room = Room::new();
    room.register("7", of(5, 0), batch()).unwrap();
    let token = room.token("7", batch()).unwrap();
    let id = room.of_job("7");
    room.fails.store(true, Ordering::Relaxed);
    assert_eq!(room.end("7", None).unwrap_err().code, ErrorCode::StoreFailed);
    assert!(room.shown(&token).is_ok());
    assert_eq!(room.register("9", of(5, 0), batch()).unwrap_err().code, ErrorCode::StoreFailed);
    assert_eq!(room.token("9", batch()).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(
        room.register("7", of(5, 1), batch()).unwrap_err().code,
        ErrorCode::StoreFailed,
        "a later attempt"
    );
    assert!(room.shown(&token).is_ok(), "that of the first attempt counts still");
    room.fails.store(false, Ordering::Relaxed);
    assert!(room.get(id).is_ok());
    // the store has it and says that it failed
    room.is_uncertain.store(true, Ordering::Relaxed);
    assert_eq!(room.end("7", None).unwrap_err().code, ErrorCode::StoreFailed);
    room.is_uncertain.store(false, Ordering::Relaxed);
    assert!(room.shown(&token).is_err() && room.get(id).is_err());
}

#[test]
fn jobs_and_their_tokens_are_there_after_a_restart() {
    let mut room = Room::new();
    let nodes: Vec<String> = (0..3_000).map(|number| format!("n{number:04}")).collect();
    let wide = NewJob { nodes: nodes.clone(), group: Some(9), ..of(5, 3) };
    let made = room.register("7", wide, batch()).unwrap();
    let token = room.token("7", batch()).unwrap();
    let mut next = room.followed(Duration::from_secs(1));
    assert_eq!(next.jobs("", batch()).jobs, [made]);
    assert!(next.shown(&token).is_ok());
    assert_eq!(next.token("7", node("n2999")).unwrap(), token);
}

#[test]
fn only_nodes_of_a_job_get_its_token_and_only_by_certificate() {
    let mut room = Room::new();
    let nodes = vec!["b".into(), "a".into()];
    room.register("7", NewJob { nodes, ..of(5, 0) }, batch()).unwrap();
    let before = room.audit_lines();
    let denied = |found: Result<JobToken, Refused>| {
        assert_eq!(found.unwrap_err().code, ErrorCode::PermissionDenied);
    };
    denied(room.token("7", node("c")));
    let by_token = ApiCaller { name: "a".into(), role: Role::Proxy, ..by() };
    denied(room.token("7", by_token));
    denied(room.token("7", user(6)));
    denied(room.token("7", ApiCaller { role: Role::Read, ..by() }));
    assert_eq!(room.audit_lines(), before);
    let token = room.token("7", node("a")).unwrap();
    assert_eq!(room.token("7", node("b")).unwrap(), token);
    let lines = room.actor.to.access.audit.read(0, 100).unwrap().lines;
    let last = lines.last().unwrap();
    assert_eq!((last.actor.as_str(), last.what.as_str()), ("b", "job 7"));
    let all = serde_json::to_string(&lines).unwrap();
    assert!(!all.contains("slc_") && !all.contains(&token.token[4..]), "{all}");
}

#[test]
fn a_token_acts_for_its_job_only() {
    let mut room = Room::new();
    let account = Some("physics".to_owned());
    room.register("7", NewJob { account, group: Some(9), ..of(5, 0) }, batch()).unwrap();
    let token = room.token("7", batch()).unwrap();
    let job = room.shown(&token).unwrap();
    let key = Some("k".to_owned());
    let other = NewReservation { job: Some("8".into()), idempotency_key: key.clone(), ..reads(1) };
    let other = room.request(other).unwrap().id;
    let own = room.request_by(job.clone(), reads(1)).unwrap();
    assert_eq!((own.job.as_deref(), own.user), (Some("7"), 5));
    assert_eq!(own.account.as_deref(), Some("physics"), "as it is registered");
    let denied = |refused: Box<ErrorReport>, at: &str| {
        let found = (refused.code, refused.at.as_deref());
        assert_eq!(found, (ErrorCode::PermissionDenied, Some(at)), "{}", refused.message);
    };
    let of_another = |job: &str| NewReservation { job: Some(job.into()), ..reads(1) };
    denied(room.request_by(job.clone(), of_another("8")).unwrap_err(), "job");
    let of_user = NewReservation { user: Some(6), ..reads(1) };
    denied(room.request_by(job.clone(), of_user).unwrap_err(), "user");
    let charged = NewReservation { account: Some("a".into()), ..reads(1) };
    denied(room.request_by(job.clone(), charged).unwrap_err(), "account");
    // the key of a request of another job of its user
    let same = NewReservation { idempotency_key: key, ..reads(1) };
    denied(room.request_by(job.clone(), same).unwrap_err(), "id");
    let to = reserve::MoveRequest { not_before: Time::ZERO, is_exact: false, deadline: None };
    for change in [
        ReservationChange::Claim,
        ReservationChange::Extend(Nanos::new(1)),
        ReservationChange::Finish(Bytes::ZERO),
        ReservationChange::Move(to),
        ReservationChange::Remove,
    ] {
        denied(room.change(other, change, job.clone()).unwrap_err(), "id");
    }
    let follows = NewReservation { after: Some(other), ..reads(1) };
    denied(room.request_by(job.clone(), follows).unwrap_err(), "after");
    // its own may be ended
    room.change(own.id, ReservationChange::Remove, job).unwrap();
}

#[test]
fn users_register_runs_for_themselves_and_reserve_for_no_job_of_others() {
    let mut room = Room::new();
    let code = |found: Result<WireJob, Refused>| {
        let refused = found.unwrap_err();
        (refused.code, refused.at.clone().unwrap_or_default())
    };
    let denied = |at: &str| (ErrorCode::PermissionDenied, at.to_owned());
    assert_eq!(code(room.register("7", of(5, 0), user(5))), denied("job"));
    assert_eq!(code(room.register("run.a", of(6, 0), user(5))), denied("user"));
    let charged = NewJob { account: Some("a".into()), ..of(5, 0) };
    assert_eq!(code(room.register("run.a", charged, user(5))), denied("account"));
    let charged = NewJob { group: Some(0), ..of(5, 0) };
    assert_eq!(code(room.register("run.a", charged, user(5))), denied("group"));
    let own = NewJob { user: None, ..of(5, 0) };
    assert_eq!(room.register("run.a", own.clone(), user(5)).unwrap().user, 5);
    assert_eq!(code(room.register("run.a", NewJob::default(), user(6))), denied("job"));
    let (job, by, used) = ("run.a".into(), user(6), BTreeMap::new());
    let ended = room.ask(|answer| JobMsg::End { job, attempt: None, used, by, answer });
    assert_eq!(ended.unwrap_err().code, ErrorCode::PermissionDenied);
    for number in 1..64 {
        room.register(&format!("run.{number}"), own.clone(), user(5)).unwrap();
    }
    let (limit, at) = code(room.register("run.x", own, user(5)));
    assert_eq!((limit, at.as_str()), (ErrorCode::LimitReached, ""));
    // its own jobs only, in a list, too
    room.register("7", of(6, 0), batch()).unwrap();
    assert_eq!(room.jobs("", user(5)).jobs.len(), 64);
    assert_eq!(room.jobs("", user(6)).jobs.len(), 1);
    assert_eq!(room.jobs("", batch()).jobs.len(), 65);
    let of_another = NewReservation { job: Some("7".into()), ..reads(1) };
    let refused = room.request_by(user(5), of_another.clone()).unwrap_err();
    assert_eq!((refused.code, refused.at.as_deref()), (ErrorCode::PermissionDenied, Some("job")));
    room.request_by(user(6), of_another).unwrap();
}

#[test]
fn conflicts_and_wrong_values_of_a_registration_are_named() {
    let mut room = Room::new();
    room.register("7", of(5, 2), batch()).unwrap();
    let cases = [
        ("7", of(5, 1), ErrorCode::JobRegistered, "attempt"),
        ("7", of(6, 3), ErrorCode::JobRegistered, "user"),
        ("8", NewJob { user: None, ..of(5, 0) }, ErrorCode::InvalidArgument, "user"),
        (
            "8",
            NewJob { nodes: vec!["a b".into()], ..of(5, 0) },
            ErrorCode::InvalidArgument,
            "nodes",
        ),
        ("a\n", of(5, 0), ErrorCode::InvalidArgument, "job"),
    ];
    for (job, new, code, at) in cases {
        let refused = room.register(job, new, batch()).unwrap_err();
        assert_eq!((refused.code, refused.at.as_deref()), (code, Some(at)), "{}", refused.message);
    }
}

#[test]
fn jobs_are_forgotten_an_hour_after_their_end_and_their_reservations_are_not() {
    let mut room = Room::new();
    let now = room.actor.now().as_nanos();
    let ends_ns = Some(now + 60_000_000_000);
    room.register("7", NewJob { ends_ns, ..of(5, 0) }, batch()).unwrap();
    let token = room.token("7", batch()).unwrap();
    assert_eq!(token.expires_s, Some(now / 1_000_000_000 + 3_660));
    // its time is long over by the clock of the system, which tokens expire by
    assert!(room.shown(&token).unwrap_err().contains("job 7 has expired"));
    let job = Some("7".to_owned());
    let id = room.request(NewReservation { job, ..reads(1) }).unwrap().id;
    room.pass(Duration::from_secs(3_659));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert!(room.token("7", batch()).is_ok());
    room.pass(Duration::from_secs(2));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert_eq!(room.token("7", batch()).unwrap_err().code, ErrorCode::NotFound);
    assert!(room.shown(&token).unwrap_err().contains("not known"));
    assert!(room.stored.lock().unwrap().jobs.is_empty(), "it is on record");
    assert!(room.get(id).is_ok());
}

#[test]
fn lists_of_jobs_have_pages_by_jobs_and_by_nodes() {
    let mut room = Room::new();
    for number in 0..1_500 {
        room.register(&format!("{number:04}"), of(5, 0), batch()).unwrap();
    }
    let page = room.jobs("", batch());
    assert_eq!((page.jobs.len(), page.next.as_deref()), (1_000, Some("0999")));
    let page = room.jobs("0999", batch());
    assert_eq!((page.jobs.len(), page.next), (500, None));
    let nodes: Vec<String> = (0..40_000).map(|number| format!("n{number:05}")).collect();
    for job in ["a", "b"] {
        room.register(job, NewJob { nodes: nodes.clone(), ..of(5, 0) }, batch()).unwrap();
    }
    let page = room.jobs("1499", batch());
    assert_eq!((page.jobs.len(), page.next.as_deref()), (1, Some("a")));
    assert_eq!(room.jobs("a", batch()).jobs.len(), 1);
}

#[test]
fn moves_are_in_the_audit_log_and_keep_the_place_if_refused() {
    let mut room = Room::new();
    let first = room.request(reads(80)).unwrap();
    room.request(reads(80)).unwrap();
    let not_before = Time::from_nanos(first.start_ns.unwrap());
    let to = |not_before, is_exact| {
        ReservationChange::Move(reserve::MoveRequest { not_before, is_exact, deadline: None })
    };
    room.in_force(first.id);
    let active = room.change(first.id, to(not_before, false), by()).unwrap_err();
    assert_eq!((active.code, active.at.as_deref()), (ErrorCode::InvalidArgument, Some("id")));
    let third = room.request(reads(80)).unwrap();
    let before = room.audit_lines();
    let soon = room.actor.now() + Nanos::from_secs(10);
    let refused = room.change(third.id, to(soon, true), by()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::DoesNotFit);
    assert!(refused.refusal.as_ref().is_some_and(|refusal| refusal.next_start_ns.is_some()));
    assert_eq!((room.get(third.id).unwrap(), room.audit_lines()), (third.clone(), before));
    let later = Time::from_nanos(third.start_ns.unwrap()) + Nanos::from_secs(5_000);
    let moved = room.change(third.id, to(later, true), by()).unwrap();
    assert_eq!(moved.start_ns, Some(later.as_nanos()));
    assert_eq!(moved.guaranteed_ns, moved.start_ns);
    let lines = room.actor.to.access.audit.read(0, 100).unwrap().lines;
    assert!(lines.last().unwrap().after.as_ref().unwrap().starts_with("moved"), "{lines:?}");
}
