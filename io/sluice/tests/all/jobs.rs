//! Registered jobs at a controller, as processes: their tokens, who gets one, and what it is good for.
//!
//! ```text
//!   batch ─ PUT /v1/jobs/7 ─► controller ◄─ POST …/token ─ node, by its certificate
//!   job 7 ─ its token ─► its own reservations, and nothing else
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use api::{
    ErrorCode, NewJob, NewReservation, NewToken, ReservationMove, Role, WireReservationState,
};
use http::{ApiClient, ClientError, Credentials};

use crate::common::{Controller, SLUICE};
use crate::entrusted::{client, first_token, secret, showing, sluice, text, token};
use crate::reservations::{SECOND, reads};
use crate::site::Site;
use testkit::TestFolder;

fn of(user: u32, attempt: u32) -> NewJob {
    NewJob { user: Some(user), attempt, ..NewJob::default() }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> ErrorCode {
    outcome.unwrap_err().code()
}

/// The token of a job with its last letter changed.
fn forged(token: &str) -> String {
    let last = if token.ends_with('A') { 'B' } else { 'A' };
    format!("{}{last}", &token[..token.len() - 1])
}

/// A user's token.
fn user(admin: &ApiClient, uid: u32) -> String {
    let new =
        NewToken { name: format!("u{uid}"), role: Role::User, user: Some(uid), expires_s: None };
    admin.make_token(&new).unwrap().token
}

/// No file below a folder but the store has this text.
fn nowhere_but_in_the_store(data: &Path, text: &str) {
    for entry in fs::read_dir(data).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            nowhere_but_in_the_store(&entry.path(), text);
        } else if !name.starts_with("decided.db") && entry.file_type().unwrap().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(!found, "a token is in {name}");
        }
    }
}

#[test]
fn a_token_of_a_job_is_for_its_own_reservations_and_ends_with_the_job() {
    let site = Site::start("jobs-own", ["a"], "");
    let batch = site.client_of(&token(&site.admin, "slurm", Role::Batch));
    batch.register_job("7", &of(1001, 0)).unwrap();
    batch.register_job("8", &of(1001, 0)).unwrap();
    let made = batch.job_token("7").unwrap();
    assert_eq!((made.user, made.attempt, made.expires_s), (1001, 0, None));
    let job = site.client_of(&made.token);
    let other = batch
        .reserve(&NewReservation { user: Some(1001), job: Some("8".into()), ..reads(1, 100) })
        .unwrap();
    let of_user = batch.reserve(&NewReservation { user: Some(1001), ..reads(1, 100) }).unwrap();

    // for itself
    let later = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let not_before_ns = Some(later.as_nanos() as u64 + 500 * SECOND);
    let mine = NewReservation { user: None, not_before_ns, ..reads(1, 100) };
    let own = job.reserve(&mine).unwrap();
    assert_eq!((own.user, own.job.as_deref()), (1001, Some("7")));
    let seen: Vec<u64> =
        job.reservations("").unwrap().reservations.iter().map(|one| one.id).collect();
    assert_eq!(seen, [own.id]);
    let to = ReservationMove {
        not_before_ns: not_before_ns.map(|at| at + SECOND),
        ..Default::default()
    };
    let moved = job.move_reservation(own.id, &to).unwrap();
    assert_eq!((moved.start_ns, moved.guaranteed_ns), (to.not_before_ns, to.not_before_ns));
    assert_eq!(job.credit("").unwrap().subject, "user 1001");
    assert_eq!(job.job("7").unwrap().user, 1001);
    assert_eq!(job.jobs("").unwrap().jobs.len(), 1);
    job.usage("by=job").unwrap();
    job.calendar("").unwrap();

    // and for nothing else
    for id in [other.id, of_user.id] {
        assert_eq!(code(job.reservation(id, "")), ErrorCode::PermissionDenied);
        assert_eq!(code(job.claim_reservation(id)), ErrorCode::PermissionDenied);
        assert_eq!(code(job.finish_reservation(id)), ErrorCode::PermissionDenied);
        assert_eq!(code(job.remove_reservation(id)), ErrorCode::PermissionDenied);
        assert_eq!(code(job.move_reservation(id, &to)), ErrorCode::PermissionDenied);
    }
    for wanted in [
        NewReservation { user: None, job: Some("8".into()), ..reads(1, 100) },
        NewReservation { user: Some(1002), ..reads(1, 100) },
    ] {
        assert_eq!(code(job.reserve(&wanted)), ErrorCode::PermissionDenied);
    }
    for query in ["job=8", "user=1002"] {
        assert_eq!(code(job.reservations(query)), ErrorCode::PermissionDenied, "{query}");
    }
    assert_eq!(code(job.job("8")), ErrorCode::PermissionDenied);
    assert_eq!(code(job.job_token("7")), ErrorCode::PermissionDenied);
    assert_eq!(code(job.register_job("7", &of(1001, 1))), ErrorCode::PermissionDenied);
    assert_eq!(code(job.end_job("7", None)), ErrorCode::PermissionDenied);
    assert_eq!(code(job.usage("by=user")), ErrorCode::PermissionDenied);
    assert_eq!(code(job.set_rules("")), ErrorCode::PermissionDenied);
    assert_eq!(code(job.tokens()), ErrorCode::PermissionDenied);
    assert_eq!(code(job.proxies()), ErrorCode::PermissionDenied);

    // a forged one, one of an earlier attempt, one of a job that has ended
    let forged = site.client_of(&forged(&made.token));
    assert_eq!(code(forged.reservations("")), ErrorCode::Unauthenticated);
    batch.register_job("7", &of(1001, 1)).unwrap();
    assert_eq!(code(job.reservations("")), ErrorCode::Unauthenticated);
    let again = batch.job_token("7").unwrap();
    let job = site.client_of(&again.token);
    assert_eq!(job.reservations("").unwrap().reservations.len(), 1, "they are the job's");
    assert!(!batch.end_job("7", Some(0)).unwrap().ended);
    assert_eq!(job.reservations("").unwrap().reservations.len(), 1);
    let ended = batch.end_job("7", Some(1)).unwrap();
    assert_eq!((ended.ended, &ended.removed[..]), (true, &[own.id][..]));
    assert_eq!(code(job.reservations("")), ErrorCode::Unauthenticated);
    let state = |id| site.admin.reservation(id, "").unwrap();
    assert_eq!(state(own.id).ended.as_deref(), Some("removed"));
    assert_ne!(state(other.id).state, WireReservationState::Undefined);
    assert_ne!(state(of_user.id).state, WireReservationState::Undefined);
    // nor does it count when its name is registered again
    batch.register_job("7", &of(1001, 1)).unwrap();
    assert_eq!(code(job.reservations("")), ErrorCode::Unauthenticated);

    let lines = site.admin.audit("since=-1h&limit=1000").unwrap().lines;
    let of_job: Vec<_> = lines.iter().filter(|line| line.what == "job 7").collect();
    assert!(of_job.iter().all(|line| line.actor == "slurm" && line.role == Role::Batch));
    let all = serde_json::to_string(&lines).unwrap();
    for word in ["registered, user 1001", "token read", "ended, with", "moved for user 1001"] {
        assert!(all.contains(word), "{word}: {all}");
    }
    let mover =
        lines.iter().find(|line| line.after.as_ref().is_some_and(|to| to.starts_with("moved")));
    assert_eq!(mover.unwrap().actor, "job 7");
    let events = serde_json::to_string(&site.admin.events("since=0&limit=1000").unwrap()).unwrap();
    for secret in [&made.token, &again.token] {
        assert!(!all.contains(&secret[4..]) && !events.contains(&secret[4..]));
        nowhere_but_in_the_store(site.data.path(), &secret[4..]);
    }
}

#[test]
fn a_batch_system_has_jobs_and_reservations_of_all_users_and_nothing_else() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let url = controller.url.as_str();
    let admin = client(url, &showing(&root));
    let file = secret(data.path().join("root.token"), &root);
    let create = |name: &str, role: &str| {
        let flags = ["--controller", url, "--token-file", text(&file)];
        sluice(&[&["token", "create", name, "--role", role], &flags[..]].concat())
    };
    let batch = client(url, &showing(create("slurm", "batch").unwrap().trim()));
    let error = create("mine", "job").unwrap_err();
    assert!(error.contains("/v1/jobs/JOB/token"), "{error}");
    for outcome in [batch.set_rules("").map(|_| ()), batch.rules().map(|_| ())] {
        assert_eq!(code(outcome), ErrorCode::PermissionDenied);
    }
    assert_eq!(code(batch.tokens()), ErrorCode::PermissionDenied);
    assert_eq!(code(batch.usage("by=user")), ErrorCode::PermissionDenied);
    assert_eq!(code(batch.audit("")), ErrorCode::PermissionDenied);
    assert_eq!(code(batch.proxies()), ErrorCode::PermissionDenied);
    assert_eq!(batch.controller_status().unwrap().role, Some(Role::Batch));
    batch.register_job("7", &of(1001, 0)).unwrap();
    batch.register_job("run.x", &of(1002, 0)).unwrap();
    assert_eq!(batch.credit("account=physics").unwrap().subject, "account \"physics\"");

    // others see theirs
    let [ann, bob] = [1001, 1002].map(|uid| client(url, &showing(&user(&admin, uid))));
    let names = |by: &ApiClient| {
        by.jobs("").unwrap().jobs.into_iter().map(|job| job.job).collect::<Vec<_>>()
    };
    assert_eq!((names(&ann), names(&bob)), (vec!["7".to_owned()], vec!["run.x".to_owned()]));
    assert_eq!(names(&admin), ["7", "run.x"]);
    assert_eq!(code(bob.job("7")), ErrorCode::PermissionDenied);
    assert_eq!(code(bob.job_token("7")), ErrorCode::PermissionDenied);
    assert_eq!(ann.job_token("7").unwrap(), batch.job_token("7").unwrap());
    // and register runs only
    assert_eq!(code(ann.register_job("9", &of(1001, 0))), ErrorCode::PermissionDenied);
    assert_eq!(code(ann.end_job("7", None)), ErrorCode::PermissionDenied);
    assert_eq!(code(ann.register_job("run.x", &of(1001, 1))), ErrorCode::PermissionDenied);
    let own = NewJob { user: None, ..of(0, 0) };
    assert_eq!(ann.register_job("run.y", &own).unwrap().user, 1001);
    assert!(ann.end_job("run.y", Some(0)).unwrap().ended);
    let wanted = NewReservation { user: None, job: Some("run.x".into()), ..reads(1, 10) };
    assert_eq!(code(ann.reserve(&wanted)), ErrorCode::PermissionDenied);
    let read = client(url, &showing(&token(&admin, "read", Role::Read)));
    assert_eq!(names(&read).len(), 2);
    assert_eq!(code(read.job_token("7")), ErrorCode::PermissionDenied);
    // no description has a token in it
    assert!(
        !admin.get::<serde_json::Value>(api::path::OPENAPI).unwrap().to_string().contains("slc_")
    );
}

#[test]
fn jobs_and_their_tokens_outlive_a_controller_that_is_killed() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let mut controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let batch = client(&controller.url, &showing(&root));
    batch.register_job("7", &of(1001, 0)).unwrap();
    batch.register_job("8", &of(1001, 0)).unwrap();
    let [kept, ended] = ["7", "8"].map(|job| batch.job_token(job).unwrap().token);
    batch.end_job("8", None).unwrap();
    controller.kill();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let with = |token: &str| client(&controller.url, &showing(token));
    assert_eq!(with(&kept).job("7").unwrap().user, 1001);
    assert_eq!(code(with(&ended).jobs("")), ErrorCode::Unauthenticated);
    assert_eq!(with(&root).job_token("7").unwrap().token, kept);
}

#[test]
fn a_node_gets_the_tokens_of_its_jobs_by_its_certificate() {
    let folder = TestFolder::new();
    let dir = folder.path().join("tls");
    let dir = text(&dir);
    sluice(&["cert", "ca", dir]).unwrap();
    sluice(&["cert", "issue", dir, "c1", "--host", "127.0.0.1"]).unwrap();
    for node in ["n1", "n2"] {
        sluice(&["cert", "issue", dir, node, "--client"]).unwrap();
    }
    let root = first_token(folder.path());
    let file = |name: &str| format!("{dir}/{name}");
    let (cert, key, ca) = (file("c1.pem"), file("c1.key"), file("ca.pem"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let controller = Controller::with(folder.path(), "https://127.0.0.1:0", &flags, "ready");
    let ca = Some(ca.into());
    let with_token =
        |token: &str| client(&controller.url, &Credentials { ca: ca.clone(), ..showing(token) });
    let with_certificate = |name: &str| {
        let of = |kind: &str| Some(file(&format!("{name}.{kind}")).into());
        let credentials = Credentials {
            ca: ca.clone(),
            cert: of("pem"),
            key: of("key"),
            ..Credentials::default()
        };
        client(&controller.url, &credentials)
    };
    let admin = with_token(&root);
    let batch = with_token(&token(&admin, "slurm", Role::Batch));
    let nodes = vec!["n1".into()];
    batch.register_job("7", &NewJob { nodes, ..of(1001, 0) }).unwrap();
    let (n1, n2) = (with_certificate("n1"), with_certificate("n2"));
    let made = n1.job_token("7").unwrap();
    assert_eq!(made, batch.job_token("7").unwrap());
    assert_eq!(code(n2.job_token("7")), ErrorCode::PermissionDenied);
    assert_eq!(code(n1.job_token("8")), ErrorCode::NotFound);
    // a token of role proxy is anybody's who has it
    let of_proxies = with_token(&token(&admin, "n1", Role::Proxy));
    assert_eq!(code(of_proxies.job_token("7")), ErrorCode::PermissionDenied);
    // and a node does no more than that
    assert_eq!(code(n1.job("7")), ErrorCode::PermissionDenied);
    assert_eq!(code(n1.end_job("7", None)), ErrorCode::PermissionDenied);
    assert_eq!(code(n1.register_job("7", &of(1001, 0))), ErrorCode::PermissionDenied);
    // with the next attempt on another node it has no more
    let nodes = vec!["n2".into()];
    batch.register_job("7", &NewJob { nodes, ..of(1001, 1) }).unwrap();
    assert_eq!(code(n1.job_token("7")), ErrorCode::PermissionDenied);
    assert_ne!(n2.job_token("7").unwrap().token, made.token);
    let lines = admin.audit("since=-1h&limit=1000").unwrap().lines;
    let read = |node: &str| {
        let of = |line: &&api::AuditLine| line.actor == node && line.role == Role::Proxy;
        lines.iter().filter(of).map(|line| line.what.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((read("n1"), read("n2")), (vec!["job 7"], vec!["job 7"]));
}

#[test]
fn a_command_of_sluice_run_is_a_job_whose_token_ends_with_it() {
    let site = Site::start("jobs-run", ["a"], "");
    let bob = user(&site.admin, 1002);
    let script = format!(
        "echo $SLUICE_JOB_ID; cat $SLUICE_TOKEN_FILE; stat -c %a $SLUICE_TOKEN_FILE; \
         {SLUICE} reserve add --metadata 1ops/s --for 100s --export x >&2 && exit 7"
    );
    let mut command = std::process::Command::new(SLUICE);
    command.args(["run", "--name", "t", "--", "sh", "-c", &script]);
    command.env("SLUICE_CONTROLLER", &site.controller.url).env("SLUICE_TOKEN", &bob);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{said}{errors}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((lines[0], lines[2]), ("run.t", "400"));
    assert!(lines[1].starts_with("slc_") && lines[1] != bob);
    let held = site.admin.reservations("job=run.t&ended=true").unwrap().reservations;
    assert_eq!((held[0].user, held[0].state), (1002, WireReservationState::Undefined));
    assert_eq!(code(site.client_of(lines[1]).jobs("")), ErrorCode::Unauthenticated);
    assert_eq!(code(site.admin.job("run.t")), ErrorCode::NotFound);
    assert!(!errors.contains("slc_"), "{errors}");
}
