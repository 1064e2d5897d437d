//! Reservations are kept whatever fails: the leaders of etcd and of the controllers at once, and the
//! disk of the store.
//!
//! ```text
//!   requests, each with its key ─► controllers 1, 2, 3 ─► etcd, three members
//!                                    └ both leaders are killed while reservations begin and end
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use api::{ErrorCode, NewReservation, WireReservation, WireReservationState};
use http::ApiClient;

use crate::common::{Controller, Proxy, Setup, Tmpfs, until};
use crate::controllers::Controllers;
use crate::reservations::{MB, SECOND, reads};

/// What can be reserved of a target that reads 100 MB/s.
const RESERVABLE: u64 = 85 * MB;

fn proxy(test: &str, url: &str) -> Proxy {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\ncapacity_read = \"100MB/s\"\n\
                  capacity_write = \"50MB/s\"\n";
    let top = format!("controller = \"{url}\"\nproxy_name = \"{test}\"\n");
    Setup::new(&format!("kept-{test}")).top(&top).tables(tables).api().start()
}

/// Waits until a reservation can be made.
fn described(client: &ApiClient) {
    until("the target is described", || {
        let known = client.calendar("").map(|calendar| calendar.resources).unwrap_or_default();
        known.iter().any(|of| of.name == "fs" && of.read_per_sec > 0)
    });
}

/// Requests a reservation until it is accepted, whoever leads.
fn accepted(client: &ApiClient, key: &str, new: NewReservation) -> WireReservation {
    let new = NewReservation { idempotency_key: Some(key.into()), ..new };
    let mut made = None;
    until("the reservation is accepted", || {
        made = client.reserve(&new).ok();
        made.is_some()
    });
    made.unwrap()
}

fn is_gone(client: &ApiClient, id: u64) -> bool {
    match client.reservation(id, "") {
        Ok(shown) => shown.state == WireReservationState::Undefined,
        Err(error) => error.code() == ErrorCode::NotFound,
    }
}

/// The numbers of all that have not ended.
fn listed(client: &ApiClient) -> BTreeSet<u64> {
    let mut found = None;
    until("a leader lists them", || {
        found = client.reservations("").ok();
        found.is_some()
    });
    found.unwrap().reservations.iter().map(|one| one.id).collect()
}

/// Fails if more is promised at any time ahead than can be reserved.
fn check_promised(client: &ApiClient) {
    let Ok(calendar) = client.calendar("") else { return };
    for step in calendar.resources.iter().flat_map(|of| &of.steps) {
        assert!(step.read_per_sec <= RESERVABLE, "{step:?}");
    }
}

#[test]
fn reservations_are_kept_when_both_leaders_die() {
    let Some(mut cluster) = testkit::Cluster::start() else { return };
    let mut controllers = Controllers::start(&cluster.endpoints());
    controllers.wait_for_leader();
    let client = controllers.client();
    let _proxy = proxy("leaders", &controllers.urls());
    described(&client);
    let is_over = Arc::new(AtomicBool::new(false));
    let (watched, over) = (controllers.client(), is_over.clone());
    let watch = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            check_promised(&watched);
        }
    });
    for round in 0..2 {
        let key = |name: &str| format!("{name}-{round}");
        let begun = accepted(&client, &key("begun"), reads(20, 600));
        until("it has begun", || {
            let shown = client.reservation(begun.id, "").ok();
            shown.is_some_and(|one| one.state == WireReservationState::Active)
        });
        let ends = accepted(&client, &key("ends"), reads(5, 2));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let soon = Some(now.as_nanos() as u64 + 3 * SECOND);
        let begins = accepted(
            &client,
            &key("begins"),
            NewReservation { not_before_ns: soon, ..reads(20, 600) },
        );
        let requests = std::thread::spawn({
            let client = controllers.client();
            move || {
                let one = |nth| accepted(&client, &format!("{round}-{nth}"), reads(1, 600));
                (0..20).map(one).collect::<Vec<_>>()
            }
        });
        let (mut member, leader) = (None, controllers.wait_for_leader());
        until("etcd has a leader", || {
            member = cluster.leader();
            member.is_some()
        });
        let member = member.unwrap();
        cluster.kill_member(member);
        controllers.all[leader].kill();
        let mut all = requests.join().unwrap();
        all.extend([begun, begins]);
        until("what was to end has ended", || is_gone(&client, ends.id));
        let ids: BTreeSet<u64> = all.iter().map(|one| one.id).collect();
        assert_eq!(listed(&client), ids, "none is lost, and none is made twice");
        for one in &all {
            let mut shown = None;
            until("it is active", || {
                shown = client.reservation(one.id, "until=active&wait=1s").ok();
                shown.as_ref().is_some_and(|one| one.state == WireReservationState::Active)
            });
            let shown = shown.unwrap();
            assert_eq!(shown.guaranteed_ns, one.guaranteed_ns);
            assert!(shown.start_ns <= one.guaranteed_ns, "{shown:?}, accepted as {one:?}");
        }
        cluster.start_member(member);
        controllers.start_again(leader);
        for id in ids {
            until("it is removed", || {
                let _ = client.remove_reservation(id);
                is_gone(&client, id)
            });
        }
    }
    is_over.store(true, Ordering::Relaxed);
    watch.join().unwrap();
}

#[test]
fn reservations_are_kept_when_the_disk_of_the_store_is_full() {
    let Some(disk) = Tmpfs::mount("reservations-full", "4m") else { return };
    let data = disk.dir.join("data");
    let mut controller = Controller::start(&data, "http://127.0.0.1:0");
    let client = controller.client();
    let _proxy = proxy("full", &controller.url);
    described(&client);
    let mut kept = BTreeSet::from([client.reserve(&reads(20, 600)).unwrap().id]);
    let filler = disk.dir.join("filler");
    let mut file = File::create(&filler).unwrap();
    let mut refused = None;
    for _ in 0..1_000 {
        while file.write_all(&[0; 4096]).is_ok() {}
        match client.reserve(&reads(1, 600)) {
            Ok(made) => _ = kept.insert(made.id),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let error = refused.expect("a full disk");
    assert_eq!(error.code(), ErrorCode::StoreFailed, "{error}");
    assert_eq!(listed(&client), kept);
    drop(file);
    fs::remove_file(&filler).unwrap();
    let made = client.reserve(&reads(1, 600)).unwrap();
    kept.insert(made.id);
    controller.kill();
    let controller = Controller::start(&data, &controller.url);
    assert_eq!(listed(&controller.client()), kept);
    check_promised(&controller.client());
}
