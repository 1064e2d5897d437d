//! Reservations at a controller with a proxy, as processes.
//!
//! ```text
//!   reader of a job ─ 9P ─► proxy, capacity configured ─ http ─► controller ◄─ POST /v1/reservations
//! ```

#![allow(clippy::unwrap_used)]

use api::{
    ErrorCode, EventKind, NewReservation, ReservationExtension, Role, WireRate, WireReservation,
    WireReservationState,
};
use http::ApiClient;
use model::Nanos;

use crate::clocked::Clocked;
use crate::common::{Controller, Proxy, Setup, USER, until};
use crate::controlled::Reader;
use crate::entrusted::{client, first_token, secret, showing, sluice, text, token};
use testkit::TestFolder;

pub(crate) const MB: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// A proxy of a target that reads 100 MB/s or writes 50 MB/s, of which 85 MB/s and 42.5 MB/s can be
/// reserved.
fn proxy(test: &str, url: &str, more: &str) -> Proxy {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\ncapacity_read = \"100MB/s\"\n\
                  capacity_write = \"50MB/s\"\ncapacity_metadata = \"1000ops/s\"\n";
    let top = format!("controller = \"{url}\"\nproxy_name = \"{test}\"\n{more}");
    Setup::new(&format!("reserved-{test}")).top(&top).tables(tables).api().start()
}

pub(crate) fn reads(megabytes: u64, seconds: u64) -> NewReservation {
    NewReservation {
        read: Some(WireRate::Bytes(megabytes * MB)),
        duration_ns: seconds * SECOND,
        user: Some(USER),
        ..NewReservation::default()
    }
}

/// Waits until the controller knows the target.
fn described(controller: &ApiClient) {
    until("the target is described", || {
        let resources = controller.calendar("").unwrap().resources;
        resources.iter().filter(|of| of.name == "fs" && of.read_per_sec > 0).count() == 2
    });
}

fn state(controller: &ApiClient, id: u64) -> WireReservation {
    controller.reservation(id, "").unwrap()
}

#[test]
fn a_reservation_is_active_when_its_rows_are_in_force_and_ends_with_its_time() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let api = controller.client();
    let proxy = proxy("life", controller.url(), "");
    described(&api);
    let reader = Reader::start(&proxy);
    until("the job is served", || reader.bytes() > 0);
    let asked = NewReservation {
        write: Some(WireRate::Bytes(MB)),
        metadata: Some(WireRate::Ops(10)),
        job: Some("dd.1".into()),
        directory: Some("out".into()),
        ..reads(60, 10)
    };
    let first = api.reserve(&asked).unwrap();
    assert_eq!((first.user, first.target.as_str()), (USER, "fs"));
    assert_eq!(first.directory.as_deref(), Some("x/out"));
    let active = api.reservation(first.id, "until=active&wait=30s").unwrap();
    assert_eq!(active.state, WireReservationState::Active);
    assert_eq!((active.reduced.clone(), active.claim_by_ns), (None, None));
    assert_eq!(active.end_ns.unwrap() - active.start_ns.unwrap(), 10 * SECOND);

    let extended = api.extend_reservation(first.id, &ReservationExtension { more_ns: 5 * SECOND });
    assert_eq!(extended.unwrap().end_ns.unwrap(), active.end_ns.unwrap() + 5 * SECOND);
    controller.pass(Nanos::from_secs(14));
    assert_eq!(state(&api, first.id).state, WireReservationState::Active);
    controller.pass(Nanos::from_secs(2));
    until("it has ended", || state(&api, first.id).state == WireReservationState::Undefined);
    assert_eq!(state(&api, first.id).ended.as_deref(), Some("expired"));
    assert!(api.reservations("").unwrap().reservations.is_empty());
    assert_eq!(api.reservations("ended=true&job=dd.1").unwrap().reservations.len(), 1);
    let published = || {
        let events = api.events("since=0&limit=100").unwrap().events;
        let own = events.into_iter().filter(|event| event.kind == EventKind::Reservation);
        own.map(|event| event.text).collect::<Vec<_>>()
    };
    until("the end is published", || published().iter().any(|text| text.contains("expired")));
    assert!(published().iter().any(|text| text.contains("is active")), "{:?}", published());
    let metrics = api.metrics().unwrap();
    assert!(metrics.contains("sluice_controller_reservations{state=\"active\"} 0"), "{metrics}");
}

#[test]
fn the_first_request_of_a_job_claims_its_reservation_and_unclaimed_ones_lapse() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let api = controller.client();
    let proxy = proxy("claims", controller.url(), "");
    described(&api);
    let asked = NewReservation { claim_window_ns: 100 * SECOND, ..reads(10, 10) };
    let [mine, nobody] = [Some("dd.1"), Some("nobody")].map(|job| {
        let asked = NewReservation { job: job.map(str::to_owned), ..asked.clone() };
        let made = api.reserve(&asked).unwrap();
        let active = api.reservation(made.id, "until=active&wait=30s").unwrap();
        assert!(active.claim_by_ns.is_some());
        made.id
    });
    let reader = Reader::start(&proxy);
    until("the job's own is claimed", || state(&api, mine).claim_by_ns.is_none());
    assert!(reader.bytes() > 0);
    assert!(state(&api, nobody).claim_by_ns.is_some());
    controller.pass(Nanos::from_secs(101));
    let ended = |id| state(&api, id).ended;
    until("both have ended", || ended(mine).is_some() && ended(nobody).is_some());
    let reasons = (ended(mine).unwrap(), ended(nobody).unwrap());
    assert_eq!(reasons, ("expired".into(), "lapsed".into()));
    let metrics = api.metrics().unwrap();
    assert!(metrics.contains("sluice_controller_reservations_lapsed_total 1"), "{metrics}");
}

#[test]
fn phases_of_a_file_are_in_force_in_their_time_and_survive_a_restart() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let api = controller.client();
    let proxy = proxy("phases", controller.url(), "");
    described(&api);
    let reader = Reader::start(&proxy);
    until("the job is served", || reader.bytes() > 0);
    let file = data.path().join("phases.toml");
    let text = "[[phase]]\nstart = \"100s\"\ntolerance = \"20s\"\nduration = \"50s\"\n\
                read = \"60MB/s\"\n\n[[phase]]\nstart = \"300s\"\nduration = \"50s\"\nread = \"80MB/s\"\n";
    let add = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let line = ["reserve", "add", "--bandwidth", "10MB/s", "--direction", "read", "--for"];
        let user = USER.to_string();
        let more = ["400s", "--job", "dd.1", "--user", &user, "--phases", file.to_str().unwrap()];
        let last = ["--json", "--controller", controller.url()];
        sluice(&[&line[..], &more[..], &last[..]].concat())
    };
    // Somebody else has most of the first phase's time.
    let other = NewReservation { exact: true, ..reads(30, 110) };
    let other = api.reserve(&other).unwrap();
    let error = add(&text.replace("60MB/s", "6MB/s")).unwrap_err();
    assert!(error.contains("phase 1: read: 6000000 is less than 10000000"), "{error}");
    let error = add(&text.replace("300s", "160s")).unwrap_err();
    assert!(error.contains("phases.toml:8: start: 160s is before 170s"), "{error}");
    let made: WireReservation = serde_json::from_str(&add(text).unwrap()).unwrap();
    let phases = &made.phases;
    let offset = phases[0].start_ns - made.start_ns.unwrap();
    assert_eq!(phases.len(), 2);
    assert!((100 * SECOND..=120 * SECOND).contains(&offset), "{offset}");
    assert!(phases[0].start_ns >= other.end_ns.unwrap(), "60 and 30 do not fit in 85");
    assert_eq!(phases[1].start_ns, made.start_ns.unwrap() + 300 * SECOND);
    // The calendar has the difference on top: 80 in all.
    let calendar = api.calendar("target=fs").unwrap();
    let steps = &calendar.resources.iter().find(|of| of.kind == "target").unwrap().steps;
    assert!(steps.iter().any(|step| step.read_per_sec == 80 * MB), "{steps:?}");
    assert!(steps.iter().all(|step| step.read_per_sec <= 85 * MB), "{steps:?}");

    let controller_before = state(&api, made.id);
    controller = controller.killed_and_started(data.path());
    let api = controller.client();
    assert_eq!(state(&api, made.id).phases, controller_before.phases);
    controller.pass(Nanos::new(phases[0].start_ns - made.start_ns.unwrap()));
    let id = phases[0].id;
    until("the phase is active", || state(&api, id).state == WireReservationState::Active);
    assert_eq!(state(&api, id).phase_of, Some(made.id));
    assert_eq!(state(&api, id).read, Some(WireRate::Bytes(60 * MB)));
    controller.pass(Nanos::from_secs(60));
    until("the phase has ended", || state(&api, id).ended.is_some());
    assert_eq!(state(&api, made.id).state, WireReservationState::Active);
    assert_eq!(state(&api, made.id).phases.len(), 1);

    // The job learns that it needs more now.
    let add = |rate: &str| {
        let id = made.id.to_string();
        let line = ["reserve", "phase", &id, "--for", "30s", "--tolerance", "5s", "--read", rate];
        sluice(&[&line[..], &["--json", "--controller", controller.url()]].concat())
    };
    let error = add("99MB/s").unwrap_err();
    assert!(error.contains("does_not_fit"), "{error}");
    let added: WireReservation = serde_json::from_str(&add("70MB/s").unwrap()).unwrap();
    assert_eq!((added.phase_of, added.read), (Some(made.id), Some(WireRate::Bytes(70 * MB))));
    until("it is active", || state(&api, added.id).state == WireReservationState::Active);
    let id = made.id.to_string();
    let shown = sluice(&["reserve", "show", &id, "--controller", controller.url()]).unwrap();
    assert!(shown.contains(&format!("{} from ", added.id)), "{shown}");

    let removed = api.remove_reservation(made.id).unwrap();
    assert_eq!(removed.ended.as_deref(), Some("removed"));
    assert_eq!(state(&api, phases[1].id).ended.as_deref(), Some("parent_ended"));
}

#[test]
fn what_is_used_is_in_the_calendar_and_a_credit_is_for_the_owner_s_use_since_the_claim() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let api = controller.client();
    let proxy = proxy("used", controller.url(), "");
    described(&api);
    let reader = Reader::start(&proxy);
    until("the job is served", || reader.bytes() > 0);
    let asked = NewReservation { job: Some("dd.1".into()), ..reads(1, 10_000) };
    let made = api.reserve(&asked).unwrap();
    until("it is claimed", || state(&api, made.id).claimed_ns.is_some());
    // Another user reserves for a job of the same name, and has no part in its use.
    let foreign = api.reserve(&NewReservation { user: Some(USER + 1), ..asked.clone() }).unwrap();
    until("the other one is claimed", || state(&api, foreign.id).claimed_ns.is_some());
    // Within a minute: what is reported from now on belongs to the time before now.
    controller.pass(Nanos::from_secs(130));
    until("its use is counted", || state(&api, made.id).used_bytes.unwrap() > 0);
    assert_eq!(state(&api, foreign.id).used_bytes, Some(0));
    assert_eq!(api.finish_reservation(foreign.id).unwrap().credit, Some(0));
    let calendar = api.calendar("from=-10min&target=fs").unwrap();
    for resource in &calendar.resources {
        assert!(!resource.used.is_empty(), "{resource:?}");
        assert!(resource.used.iter().all(|step| step.from_ns < calendar.at_ns), "{resource:?}");
    }
    let bytes = calendar.resources.iter().find(|of| of.kind == "target").unwrap();
    assert!(bytes.used.iter().any(|step| step.read_per_sec > 0), "{bytes:?}");
    let past = bytes.steps.iter().filter(|step| step.from_ns < calendar.at_ns);
    assert!(past.into_iter().any(|step| step.read_per_sec > 0), "{:?}", bytes.steps);
}

#[test]
fn what_does_not_fit_is_refused_with_the_next_start_and_what_is_kept_survives_a_restart() {
    let data = TestFolder::new();
    let controller = Clocked::start(data.path());
    let api = controller.client();
    let _proxy = proxy("kept", controller.url(), "");
    described(&api);
    let early = api.reserve(&reads(60, 100)).unwrap();
    let queued = api.reserve(&NewReservation { spontaneous: true, ..reads(75, 50) }).unwrap();
    let end_ns = state(&api, early.id).end_ns.unwrap();
    let exact = NewReservation { exact: true, ..reads(30, 10) };
    let refused = api.reserve(&exact).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::DoesNotFit);
    let refusal = refused.refusal().unwrap();
    assert_eq!((refusal.kind.as_str(), refusal.bottleneck.as_str()), ("target", "fs"));
    assert!(refusal.next_start_ns.unwrap() >= end_ns);
    assert_eq!(refusal.fits_now_ppm, 25 * 1_000_000 / 30);
    assert_eq!(refusal.taken_by, ["best effort: 15%"]);
    let follows = NewReservation { after: Some(early.id), ..reads(5, 10) };
    let follows = api.reserve(&follows).unwrap();
    assert_eq!(follows.start_ns, Some(end_ns));
    until("it is active", || state(&api, early.id).state == WireReservationState::Active);

    // What rules reserve and what is promised are one capacity.
    let rule = |rate: &str| format!("[[rule]]\nname = \"all\"\nreservation = \"{rate}\"\n");
    let error = api.set_rules(&rule("30MB/s")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DoesNotFit, "{error}");
    assert!(api.rules().unwrap().text.is_empty());
    // Rules count as the costlier of reads and writes.
    api.set_rules(&rule("1MB/s")).unwrap();
    let named =
        |api: &ApiClient| api.reserve(&exact).unwrap_err().refusal().unwrap().taken_by[0].clone();
    assert_eq!(named(&api), "rule all: 1MB/s");

    let before: Vec<_> = [early.id, queued.id, follows.id].map(|id| state(&api, id)).into();
    let controller = controller.killed_and_started(data.path());
    let api = controller.client();
    let after: Vec<_> = [early.id, queued.id, follows.id].map(|id| state(&api, id)).into();
    assert_eq!(after, before);
    assert_eq!(named(&api), "rule all: 1MB/s");
    let later = api.reserve(&reads(1, 10)).unwrap();
    assert!(later.id > follows.id, "no number is given twice");
    assert_eq!(api.remove_reservation(early.id).unwrap().ended.as_deref(), Some("removed"));
    until("the queue moves up", || state(&api, queued.id).state == WireReservationState::Active);
}

#[test]
fn role_user_acts_for_itself_only_and_changes_are_in_the_audit_log() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let of_proxy = token(&admin, "proxies", Role::Proxy);
    let file = secret(data.path().join("proxy.token"), &of_proxy);
    let more = format!("controller_token_file = \"{}\"\n", text(&file));
    let _proxy = proxy("roles", &controller.url, &more);
    described(&admin);
    // Its token is of user 1001.
    let user = client(&controller.url, &showing(&token(&admin, "user", Role::User)));
    let read = client(&controller.url, &showing(&token(&admin, "reader", Role::Read)));
    let others = admin.reserve(&reads(1, 100)).unwrap();
    let own = user.reserve(&NewReservation { user: None, ..reads(1, 100) }).unwrap();
    assert_eq!(own.user, 1001);
    let denied = |error: http::ClientError| {
        assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
    };
    denied(user.reserve(&reads(1, 100)).unwrap_err());
    denied(user.reservation(others.id, "").unwrap_err());
    denied(user.claim_reservation(others.id).unwrap_err());
    denied(user.remove_reservation(others.id).unwrap_err());
    denied(user.finish_reservation(others.id).unwrap_err());
    let follows = NewReservation { user: None, after: Some(others.id), ..reads(1, 100) };
    denied(user.reserve(&follows).unwrap_err());
    denied(read.reserve(&reads(1, 100)).unwrap_err());
    denied(read.remove_reservation(own.id).unwrap_err());
    assert_eq!(user.reservations("").unwrap().reservations.len(), 1);
    assert_eq!(read.reservations("").unwrap().reservations.len(), 2);
    assert_eq!(user.credit("").unwrap().outstanding, 1);
    denied(user.credit("user=5").unwrap_err());
    user.remove_reservation(own.id).unwrap();
    admin.remove_reservation(others.id).unwrap();
    let lines = admin.audit("").unwrap().lines;
    let of_own: Vec<_> =
        lines.iter().filter(|line| line.what == format!("reservation {}", own.id)).collect();
    assert_eq!(of_own.iter().map(|line| &*line.actor).collect::<Vec<_>>(), ["user", "user"]);
}

#[test]
fn wrong_values_are_named_and_sixteen_clients_are_admitted_at_once() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let api = controller.client();
    let none = api.reserve(&reads(1, 1)).unwrap_err();
    assert_eq!(none.at(), Some("export"));
    let _proxy = proxy("crowd", &controller.url, "");
    described(&api);
    type Change = fn(&mut NewReservation);
    let wrong: [(Change, &str); 10] = [
        (|of| of.read = Some(WireRate::Ops(1)), "read"),
        (|of| of.read = None, "read"),
        (|of| of.write = Some(WireRate::Bytes(0)), "write"),
        (|of| of.metadata = Some(WireRate::Bytes(1)), "metadata"),
        (|of| of.duration_ns = 0, "duration_ns"),
        (|of| of.user = None, "user"),
        (|of| of.export = Some("y".into()), "export"),
        (|of| of.directory = Some("../a".into()), "directory"),
        (|of| of.spend_credit = true, "spend_credit"),
        (|of| of.job = Some("a\nb".into()), "job"),
    ];
    for (change, field) in wrong {
        let mut asked = reads(1, 1);
        change(&mut asked);
        let error = api.reserve(&asked).unwrap_err();
        assert_eq!(
            (error.code(), error.at()),
            (ErrorCode::InvalidArgument, Some(field)),
            "{error}"
        );
    }
    assert_eq!(state_code(&api, 999), ErrorCode::NotFound);

    let made: Vec<u64> = std::thread::scope(|threads| {
        let clients = (0..16).map(|_| {
            threads.spawn(|| {
                let api = controller.client();
                (0..10).map(|_| api.reserve(&reads(20, 60)).unwrap().id).collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let listed = api.reservations("").unwrap();
    assert_eq!((made.len(), listed.reservations.len(), listed.omitted), (160, 160, 0));
    // At most four fit at a time.
    let calendar = api.calendar("target=fs").unwrap();
    let bytes = calendar.resources.iter().find(|of| of.kind == "target").unwrap();
    assert!(bytes.steps.iter().all(|step| step.read_per_sec <= 80 * MB), "{:?}", bytes.steps);
    let end = bytes.steps.last().unwrap().from_ns;
    assert!(end >= calendar.at_ns + 39 * 60 * SECOND, "{:?}", bytes.steps);
}

fn state_code(api: &ApiClient, id: u64) -> ErrorCode {
    api.reservation(id, "").unwrap_err().code()
}
