//! What a job has earned at its end, and what it may see of its delays, by the API, the command and
//! the library.
//!
//! ```text
//!   reader of a job ─ 9P ─► proxy ─ what it used ─► controller ─► credit ◄─ libsluice.so, sluice reserve
//!   token of a job ─► why: its own service and reservations
//! ```

#![allow(clippy::unwrap_used)]

use std::path::Path;

use api::{
    ErrorCode, NewJob, NewReservation, Role, Why, WhyQuery, WireCredit, WireRate, WireReservation,
};
use http::ApiClient;
use model::Nanos;
use serde_json::Value;
use testkit::{TestFolder, until};

use crate::clocked::Clocked;
use crate::controlled::Reader;
use crate::entrusted::{secret, sluice, text, token};
use crate::native::{Workshop, has, run};
use crate::native_library::{described, proxy};
use crate::reservations::{MB, SECOND};
use crate::site::Site;

/// What each reservation of the job reserves, bytes per second.
const RATE: u64 = 100_000;

fn of_job(job: &str, uid: u32, rate: u64) -> NewReservation {
    NewReservation {
        read: Some(WireRate::Bytes(rate)),
        duration_ns: 10_000 * SECOND,
        job: Some(job.into()),
        user: Some(uid),
        ..NewReservation::default()
    }
}

fn claimed(api: &ApiClient, new: &NewReservation) -> u64 {
    let id = api.reserve(new).unwrap().id;
    let is_claimed = || api.reservation(id, "").unwrap().claimed_ns.is_some();
    until("its time runs", is_claimed);
    id
}

#[test]
fn a_job_that_used_its_reservations_has_a_credit_when_they_or_it_end() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let api = controller.client();
    let url = controller.url().to_owned();
    let proxy = proxy("credit", &url, "");
    described(&api);
    let uid = rustix::process::getuid().as_raw();
    api.register_job("dd.1", &NewJob { user: Some(uid), ..NewJob::default() }).unwrap();
    let _reader = Reader::of(&proxy, uid);
    let ids = [(); 3].map(|()| claimed(&api, &of_job("dd.1", uid, RATE)));
    let span = Nanos::from_secs(130);
    controller.pass(span);
    let reserved = span.get() / SECOND * RATE * ids.len() as u64;
    let used = |id: u64| api.reservation(id, "").unwrap().used_bytes.unwrap();
    until("all that was reserved is used", || ids.iter().all(|id| used(*id) >= reserved));

    // of a reservation that its program finishes
    let mut earned = 0;
    let [of_program, of_command, of_end] = ids;
    let workshop = Workshop::new();
    let python = |lines: &str| {
        let program = format!("import sluice\nclient = sluice.Client()\n{lines}");
        let mut command = workshop.command(Path::new("python3"), &url);
        run(command.args(["-c", &program])).0.trim().parse::<u64>().unwrap()
    };
    if has("python3") {
        let finish = format!("print(client.finishReservation({of_program}, limit=120))");
        let credit = python(&finish);
        assert!(credit > 0);
        earned += credit;
        assert_eq!(python("print(client.credit(limit=120)['bytes'])"), earned);
    }
    // by the command
    let reserve = |words: &[&str]| {
        sluice(&[&["reserve"], words, &["--controller", &url, "--json"]].concat()).unwrap()
    };
    let finished: WireReservation =
        serde_json::from_str(&reserve(&["finish", &of_command.to_string()])).unwrap();
    assert_eq!(finished.ended.as_deref(), Some("completed"));
    assert!(finished.credit.unwrap() > 0);
    earned += finished.credit.unwrap();
    let of_user = || api.credit(&format!("user={uid}")).unwrap();
    assert_eq!(of_user().bytes, earned);
    // and of those that end with the job
    let ended = api.end_job("dd.1", None).unwrap();
    assert!(ended.finished.contains(&of_end), "{ended:?}");
    assert!(ended.credit > 0, "{ended:?}");
    assert_eq!(api.reservation(of_end, "").unwrap().ended.as_deref(), Some("completed"));
    earned += ended.credit;
    assert_eq!((of_user().bytes, of_user().outstanding), (earned, 0));
    let credit: WireCredit = serde_json::from_str(&reserve(&["credit"])).unwrap();
    assert_eq!(credit, of_user());
    if has("python3") {
        assert_eq!(python("print(client.credit(limit=120)['bytes'])"), earned);
    }
}

#[test]
fn the_token_of_a_job_shows_what_delays_that_job_and_no_other_one() {
    let uid = 1001;
    let site = Site::start("why-job", ["a"], "");
    let rule = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={ck.*}\"\nper = [\"jobid\"]\n\
                limit = \"20MB/s\"\n";
    site.admin.set_rules(rule).unwrap();
    let batch = site.client_of(&token(&site.admin, "slurm", Role::Batch));
    let new = NewJob { user: Some(uid), ..NewJob::default() };
    for job in ["ck.1", "ck.2"] {
        batch.register_job(job, &new).unwrap();
    }
    let own_token = batch.job_token("ck.1").unwrap().token;
    let own = site.client_of(&own_token);
    let own_id = claimed(&batch, &of_job("ck.1", uid, MB));
    claimed(&batch, &of_job("ck.2", uid, MB));
    let _readers = ["ck.1", "ck.2"].map(|job| Reader::writing(&site.proxies[0], (job, uid), 4));
    let ask = |job: Option<&str>| {
        let job = job.map(str::to_owned);
        own.why(&WhyQuery { job, ..WhyQuery::default() })
    };
    let check = |why: &Why| {
        assert_eq!(why.query.job.as_deref(), Some("ck.1"));
        assert!(why.subjects.iter().all(|of| of.job == "ck.1"), "{:?}", why.subjects);
        let ids = why.calendar.iter().flat_map(|found| &found.reservations).map(|of| of.id);
        assert_eq!(ids.collect::<Vec<_>>(), [own_id]);
    };
    let mut why = Why::default();
    until("the limit delays it", || {
        why = ask(None).unwrap();
        why.subjects.iter().any(|of| of.limits.iter().any(|limit| limit.name == "jobs"))
    });
    check(&why);
    check(&ask(Some("ck.1")).unwrap());
    for of_other in ["ck.2", ""] {
        let error = ask(Some(of_other)).unwrap_err();
        assert_eq!((error.code(), error.at()), (ErrorCode::PermissionDenied, Some("job")));
    }
    let of_another = WhyQuery { user: Some(uid + 1), ..WhyQuery::default() };
    assert_eq!(own.why(&of_another).unwrap_err().code(), ErrorCode::PermissionDenied);

    // by the command and the library
    let file = secret(site.data.path().join("job.token"), &own_token);
    let url = site.controller.url.as_str();
    let to = ["why", "--json", "--controller", url, "--token-file", text(&file)];
    check(&serde_json::from_str(&sluice(&to).unwrap()).unwrap());
    sluice(&[&to[..], &["--job", "ck.2"]].concat()).unwrap_err();
    if has("python3") {
        let workshop = Workshop::new();
        let program = "import sluice\nclient = sluice.Client()\n\
            try: client.why('ck.2', limit=120)\n\
            except sluice.Error as error: assert error.code == sluice.PERMISSION_DENIED, error\n\
            else: raise AssertionError('it is another job')\n\
            client.why('ck.1', limit=120)\n\
            print(client.why(limit=120))";
        let mut command = workshop.command(Path::new("python3"), url);
        let (out, _) = run(command.args(["-c", program]).env("SLUICE_TOKEN_FILE", &file));
        let why: Value = serde_json::from_str(&out).unwrap();
        check(&serde_json::from_value(why).unwrap());
    }
}
