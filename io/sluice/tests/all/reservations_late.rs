//! Reservations that a proxy reports as served too little: how the controller says so.
//!
//! ```text
//!   a proxy of the test: owed, served, idle ─┐
//!                                            ├─► controller ─► reserve show, calendar, events, metrics
//!   writers ─► a proxy ─► a slow disk        │
//!                  └─────────────────────────┘
//! ```
//!
//! The proxy of the test is the protocol alone, so what it serves does not depend on the machine. The
//! real one is in front of a disk that no machine makes as fast as is reserved.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use api::{
    DescribedCapacity, EventKind, ExportDescription, LateRate, NewReservation, ProxyDescription,
    ProxyReport, TargetDescription, WireRate, WireReservation, WireReservationState,
};
use http::ApiClient;
use model::{Scope, Time, WaitedService};
use plan::{ControllerSession, SessionSettings};
use rules::EntitlementId;
use testkit::TestFolder;

use crate::common::{Controller, Proxy, Setup, USER, until};
use crate::controlled::Reader;
use crate::entrusted::sluice;
use crate::lossy::Lossy;
use crate::mount_lost_writes::{can_mount, mount_slow};

const MB: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// A proxy that reports what the test says of its reservations.
struct ReportingProxy {
    api: ApiClient,
    session: ControllerSession,
    began: Instant,
    last: Time,
}

impl ReportingProxy {
    /// Reports, of the time since the last report, that writes of a reservation of 40 MB/s waited and
    /// this part of them was served, in tenths; `None`: nothing waited.
    fn report(&mut self, id: u64, tenths: Option<u64>) {
        let now = Time::from_nanos(self.began.elapsed().as_nanos() as u64);
        let span = now.since(self.last);
        self.last = now;
        let owed = (span.get() as u128 * u128::from(40 * MB) / u128::from(SECOND)) as u64;
        let row = Scope::entitlement(EntitlementId::of_reservation(id, 1).0);
        let waited = tenths.map(|tenths| (row, WaitedService { owed, served: owed * tenths / 10 }));
        self.session.add_waited(waited.into_iter().collect());
        let Some(report) = self.session.report(Some(vec![]), now) else { return };
        let of = |per_sec| {
            let (read_per_sec, write_per_sec) = (per_sec, per_sec);
            Some(DescribedCapacity { read_per_sec, write_per_sec, is_configured: true })
        };
        let (name, bytes) = ("fs".to_owned(), of(100 * MB));
        let target = TargetDescription { name, bytes, ..TargetDescription::default() };
        let export = ExportDescription { name: "x".into(), target: "fs".into() };
        let description = ProxyDescription {
            targets: vec![target],
            exports: vec![export],
            ..ProxyDescription::default()
        };
        let report = ProxyReport {
            epoch: 1,
            targets: vec![("fs".into(), report)],
            description: Some(Arc::new(description)),
            ..ProxyReport::default()
        };
        for (_, assignment) in self.api.report("a", &report).unwrap().targets {
            self.session.receive(&assignment, now);
        }
    }
}

/// Whether the metric counts so many reservations that are late.
fn counts(api: &ApiClient, value: &str) -> bool {
    let line = format!("sluice_controller_late_reservations{{target=\"fs\"}} {value}\n");
    api.metrics().unwrap().contains(&line)
}

/// The events of the target.
fn events(api: &ApiClient) -> Vec<(EventKind, String)> {
    let events = api.events("since=0&limit=100").unwrap().events;
    let own = events.into_iter().filter(|event| event.subject == "target=fs");
    own.map(|event| (event.kind, event.text)).collect()
}

#[test]
fn what_is_served_too_little_is_late_until_it_is_served_or_nothing_waits() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let api = controller.client();
    let mut proxy = ReportingProxy {
        api: controller.client(),
        session: ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO),
        began: Instant::now(),
        last: Time::ZERO,
    };
    until("the target is described", || {
        proxy.report(0, None);
        !api.calendar("").unwrap().resources.is_empty()
    });
    let [id, idle] = ["late.1", "idle.1"].map(|job| {
        let new = NewReservation {
            write: Some(WireRate::Bytes(40 * MB)),
            duration_ns: 600 * SECOND,
            job: Some(job.into()),
            user: Some(1001),
            ..NewReservation::default()
        };
        let id = api.reserve(&new).unwrap().id;
        until("it is active", || {
            proxy.report(id, None);
            api.reservation(id, "").unwrap().state == WireReservationState::Active
        });
        id
    });
    let late_of = |id| api.reservation(id, "").unwrap().late;
    let (metric, events) = (|value| counts(&api, value), || events(&api));
    assert!(metric("0"));

    // A proxy that reports no more is late no more, so each of these reports on.
    let mut late = Vec::new();
    until("the reservation is late", || {
        proxy.report(id, Some(3));
        late = late_of(id);
        !late.is_empty()
    });
    let LateRate { direction, served, reserved, .. } = late.remove(0);
    let expected = [WireRate::Bytes(12 * MB), WireRate::Bytes(40 * MB)];
    assert_eq!((&*direction, reserved), ("write", expected[1]));
    assert!(matches!(served, WireRate::Bytes(bytes) if bytes.abs_diff(12 * MB) < MB), "{served:?}");
    assert_eq!(late_of(idle), [], "its job asks for nothing");
    until("a metric counts it, and an event names it", || {
        proxy.report(id, Some(3));
        metric("1") && !events().is_empty()
    });
    let (kind, text) = events().remove(0);
    assert_eq!(kind, EventKind::Reservation);
    assert!(text.contains("MB/s of 40.0 MB/s of writes were served"), "{text}");
    assert!(text.contains(&format!("(reservation {id})")), "{text}");
    let (to, number) = (["--controller", controller.url.as_str()], id.to_string());
    for words in [&["reserve", "show", &number][..], &["reserve", "calendar"]] {
        until("it is printed", || {
            proxy.report(id, Some(3));
            let text = sluice(&[words, &to].concat()).unwrap();
            text.contains("MB/s of 40.0 MB/s of writes were served in the last")
        });
    }

    until("it is late no more as it is served", || {
        proxy.report(id, Some(10));
        late_of(id).is_empty()
    });
    until("an event says so", || events().len() == 2);
    assert!(metric("0"));
}

/// A proxy of a target that writes at most 3.3 MB/s, and whose configuration says 1 GB/s.
fn slow_proxy(url: &str) -> (Lossy, Proxy) {
    let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\ncapacity_read = \"1GB/s\"\n\
                  capacity_write = \"1GB/s\"\n";
    let top = format!("controller = \"{url}\"\nproxy_name = \"slow\"\nlock_grace = \"0s\"\n");
    // Its directory is there before it: the disk is mounted in it.
    let setup = Setup::new("late").top(&top).tables(tables).again();
    let dir = setup.dir();
    let disk = mount_slow(&dir.join("data"), &dir.join("lose"), 20);
    (disk, setup.start())
}

#[test]
fn a_proxy_whose_disk_is_slower_than_what_is_reserved_is_late_until_the_reservation_ends() {
    if !can_mount() {
        return;
    }
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let api = controller.client();
    let (_disk, proxy) = slow_proxy(&controller.url);
    until("the target is described", || !api.calendar("").unwrap().resources.is_empty());
    // More than the proxy has slots, so that some always wait.
    let mut writers = [(); 4].map(|()| Reader::writing(&proxy, ("late.1", USER), 64));
    until("the job writes", || writers.iter().all(|writer| writer.bytes() > 0));
    let to = ["--controller", controller.url.as_str()];
    let reserve = |words: &[&str]| sluice(&[&["reserve"], words, &to].concat()).unwrap();
    let user = USER.to_string();
    let words = ["add", "--bandwidth", "100MB/s", "--direction", "write", "--for", "10min"];
    let more = ["--job", "late.1", "--user", &user, "--wait", "--json"];
    let made: WireReservation =
        serde_json::from_str(&reserve(&[&words[..], &more].concat())).unwrap();
    let id = made.id.to_string();
    let shown = || {
        let text = reserve(&["show", &id, "--json"]);
        serde_json::from_str::<WireReservation>(&text).unwrap().late
    };

    until("the reservation is late", || !shown().is_empty());
    let LateRate { direction, served, reserved, .. } = shown().remove(0);
    assert_eq!((&*direction, reserved), ("write", WireRate::Bytes(100 * MB)));
    assert!(matches!(served, WireRate::Bytes(bytes) if bytes < 50 * MB), "{served:?}");
    until("the metric counts it", || counts(&api, "1"));
    until("an event names it", || !events(&api).is_empty());
    let (kind, text) = events(&api).remove(0);
    assert_eq!(kind, EventKind::Reservation);
    assert!(text.contains(&format!("(reservation {id})")), "{text}");

    reserve(&["remove", &id]);
    until("nothing is late any more", || counts(&api, "0"));
    assert_eq!(shown(), []);
    until("an event says so", || events(&api).len() == 2);
    writers.iter_mut().for_each(Reader::stop);
}
