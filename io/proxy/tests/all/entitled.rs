//! Rows of entitlements at a running proxy: those of directories hold for the files that were looked
//! up there, and those of jobs come with the job.
//!
//! ```text
//!   test ── rows ─► RowController: a ShareAllocator behind HTTP ─ the wire ─► Server ◄─ 9P ── test
//! ```
//!
//! Nothing public puts rows yet, so the controller is the allocator that a controller runs, behind its
//! own route. A limit is a byte a second: what has read a block of it is held for an
//! hour, so nothing here depends on how fast anything is.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use api::{ALL_TARGETS, ControllerReply, REPLY_TYPE, ReportDecoder};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use http::{ConnectionLimits, Endpoint, HttpListener, HttpServer};
use model::{Direction, Directory, JobId, KindSet, Nanos, Rate, Time};
use ninep::dialect::{HandleList, handle_fid};
use ninep::{Fid, NameList, Request, Tag, getattr, open};
use plan::{Assignment, ShareAllocator};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};
use sluice_proxy::ControllerClient;

use crate::peer::{P9Client, Served, Setup, USER, everybodys, until, write_as_user};

const BLOCK: u32 = 4_096;

/// A controller that has rows and nothing else.
struct RowController {
    address: Endpoint,
    shared: Arc<Shared>,
    _server: HttpServer,
}

struct Shared {
    since: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    allocators: BTreeMap<Arc<str>, ShareAllocator>,
    /// Assignments that were not sent.
    due: Vec<(Arc<str>, Assignment)>,
    reports: u64,
    /// How many rows were sent, by their numbers.
    sent: BTreeMap<EntitlementId, u64>,
}

impl RowController {
    fn start() -> RowController {
        let listener = HttpListener::bind(&"http://127.0.0.1:0".parse().unwrap(), None).unwrap();
        let address = listener.endpoint().clone();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { since: Instant::now(), state, changed });
        let serving = shared.clone();
        let report = post(async move |Path(name): Path<String>, body: Bytes| {
            let reply = move || serving.reply(&name.into(), &body).encode();
            let reply = tokio::task::spawn_blocking(reply).await.unwrap();
            ([(CONTENT_TYPE, REPLY_TYPE)], reply)
        });
        let router = Router::new().route("/v1/proxies/{name}/report", report);
        let limits = ConnectionLimits::admitted(|_| Some(Box::new(())));
        let server = HttpServer::start("rows", [listener], limits, router).unwrap();
        RowController { address, shared, _server: server }
    }

    /// Puts or removes a row, and waits until it is in force.
    fn set(&self, id: u64, row: Option<Entitlement>) {
        let now = self.shared.now();
        let mut state = self.shared.state.lock().unwrap();
        let limits = state.allocators.get_mut(ALL_TARGETS).unwrap();
        assert_eq!(limits.set_rows(vec![(EntitlementId(id), row)], now), 0);
        drop(state);
        self.shared.changed.notify_all();
        self.settle();
    }

    /// Waits until the proxy has all that is to be sent to it and has reported after that.
    fn settle(&self) {
        let state = || self.shared.state.lock().unwrap();
        until("the rows are acknowledged", || {
            let state = state();
            let mut proxies = state.allocators.values().flat_map(ShareAllocator::proxies);
            let known = state.allocators.contains_key(ALL_TARGETS);
            known
                && proxies
                    .all(|proxy| proxy.revisions.0 == proxy.revisions.1 && proxy.revisions.0 > 0)
        });
        // A report after the one that acknowledges is sent when the rows are with the dispatcher.
        let seen = state().reports;
        until("the proxy reports", || state().reports >= seen + 2);
    }

    fn sent(&self, id: u64) -> u64 {
        self.shared.state.lock().unwrap().sent.get(&EntitlementId(id)).copied().unwrap_or(0)
    }
}

impl Shared {
    fn now(&self) -> Time {
        Time::ZERO + Nanos::new(self.since.elapsed().as_nanos() as u64)
    }

    /// Receives a report, and replies when there is something to say or after a while.
    fn reply(&self, from: &Arc<str>, report: &[u8]) -> ControllerReply {
        let report = ReportDecoder::default().decode(from, report).unwrap();
        let mut state = self.state.lock().unwrap();
        for (target, report) in &report.targets {
            let now = self.now();
            let new = || ShareAllocator::new(Default::default(), 1, &[], Arc::default(), now);
            let allocator = state.allocators.entry(target.clone()).or_insert_with(new);
            allocator.report(report, now);
            state.reports += 1;
        }
        self.changed.notify_all();
        let until = Instant::now() + Duration::from_millis(500);
        loop {
            state.collect(self.now());
            let left = until.saturating_duration_since(Instant::now());
            if !state.due.is_empty() || left.is_zero() {
                let targets = std::mem::take(&mut state.due);
                return ControllerReply { term: 1, targets, ..ControllerReply::default() };
            }
            // A division may be due without a report.
            let tick = left.min(Duration::from_millis(100));
            state = self.changed.wait_timeout(state, tick).unwrap().0;
        }
    }
}

impl State {
    fn collect(&mut self, now: Time) {
        for (name, allocator) in &mut self.allocators {
            while let Some(order) = allocator.poll_assignment(now) {
                for (id, _) in &order.rows {
                    *self.sent.entry(*id).or_default() += 1;
                }
                self.due.push((name.clone(), order));
            }
        }
    }
}

/// A proxy of the directories `a/b` and `ab` with a file `f` in each and in the root, and its
/// controller.
fn start(name: &str) -> (RowController, ControllerClient, Served) {
    let controller = RowController::start();
    let top = format!("controller = \"{}\"\nproxy_name = \"p\"", controller.address);
    // Each job is a class: within one, what is held holds those behind it.
    let rules = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
    let served = Setup::new(name).top(&top).rules(rules).start();
    for dir in ["a", "a/b", "ab", "."] {
        let dir = served.data().join(dir);
        fs::create_dir_all(&dir).unwrap();
        everybodys(&dir);
        write_as_user(&dir.join("f"), &[7; 2 * BLOCK as usize]);
    }
    let client = served.begin_controller();
    controller.settle();
    (controller, client, served)
}

/// A limit of a byte a second for what is in a directory.
fn limit(directory: &str, direction: Direction) -> Option<Entitlement> {
    let directory = Directory::new(directory.as_bytes());
    assert!(directory.is_some());
    let scope = EntitlementScope { directory, ..EntitlementScope::default() };
    Some(limited(scope, direction))
}

fn limited(scope: EntitlementScope, direction: Direction) -> Entitlement {
    let rate = match direction {
        Direction::Metadata => Rate::ops_per_sec(1).unwrap(),
        Direction::Read | Direction::Write => Rate::bytes_per_sec(1).unwrap(),
    };
    let (grants, kinds) = (Grantable::Limit(rate, Some(1)), KindSet::of(direction));
    Entitlement::new(scope, grants, kinds, EntitlementSource::Operator).unwrap()
}

/// A connection of a job, by 9P2000.L.
fn client_of(served: &Served, job: &str) -> P9Client {
    let mut client = P9Client::open_door(&served.tcp());
    client.version(1 << 20);
    client.attach(0, &format!("x?job={job}"), USER).unwrap();
    client
}

/// A connection of a job that has opened a file, by its path below the root, as fid 1.
fn reader(served: &Served, job: &str, path: &[&str]) -> P9Client {
    let mut client = client_of(served, job);
    client.walk(0, 1, path).unwrap();
    client.open(1, open::RDWR).unwrap();
    client
}

fn send_read(client: &mut P9Client) -> Tag {
    client.send(&Request::Read { fid: Fid(1), offset: 0, count: BLOCK })
}

fn is_read(client: &mut P9Client, times: u32) {
    for _ in 0..times {
        assert_eq!(client.read(1, 0, BLOCK).unwrap().len(), BLOCK as usize);
    }
}

#[test]
fn files_in_a_directory_pay_its_limit_and_that_of_those_above_and_others_do_not() {
    let (controller, _client, served) = start("nested");
    controller.set(1, limit("x/a", Direction::Read));
    controller.set(2, limit("x/a/b", Direction::Read));
    controller.set(3, limit("y/ab", Direction::Read));
    let mut inner = reader(&served, "inner", &["a", "b", "f"]);
    let mut outer = reader(&served, "outer", &["a", "f"]);
    let mut others = [&["ab", "f"][..], &["f"]].map(|path| reader(&served, "other", path));
    // Of both limits, which it owes from then on.
    is_read(&mut inner, 1);
    let (of_inner, of_outer) = (send_read(&mut inner), send_read(&mut outer));
    others.iter_mut().for_each(|other| is_read(other, 3));
    assert!(!inner.readable(0) && !outer.readable(0));
    controller.set(1, None);
    assert!(outer.wait(of_outer).is_ok(), "the outer one was all that held it");
    is_read(&mut outer, 3);
    assert!(!inner.readable(0));
    controller.set(2, None);
    assert!(inner.wait(of_inner).is_ok());
    assert_eq!(controller.sent(3), 0, "the proxy has no export of that name");
}

#[test]
fn a_file_keeps_the_mark_of_its_look_up_and_a_new_file_has_that_of_its_directory() {
    let (controller, _client, served) = start("look-up");
    let mut early = reader(&served, "early", &["a", "f"]);
    controller.set(1, limit("x/a", Direction::Read));
    let mut late = reader(&served, "late", &["a", "f"]);
    is_read(&mut late, 1);
    let held = send_read(&mut late);
    is_read(&mut early, 3);
    let mut other = client_of(&served, "other");
    other.walk(0, 3, &["a"]).unwrap();
    other.rename((3, "f"), (0, "g")).unwrap();
    // Under its new name it is elsewhere, but not for those who have it open.
    let mut moved = reader(&served, "moved", &["g"]);
    is_read(&mut moved, 3);
    assert!(!late.readable(0));
    controller.set(1, None);
    assert!(late.wait(held).is_ok());

    controller.set(2, limit("x/a", Direction::Write));
    let mut new = client_of(&served, "new");
    new.walk(0, 1, &["a"]).unwrap();
    new.create(1, "new", open::RDWR, 0o644).unwrap();
    new.write(1, 0, &[7; 64]).unwrap();
    let held = new.send(&Request::Write { fid: Fid(1), offset: 0, data: &[7; 64] });
    for _ in 0..3 {
        moved.write(1, 0, &[7; 64]).unwrap();
    }
    assert!(!new.readable(0));
    controller.set(2, None);
    assert!(new.wait(held).is_ok());
}

#[test]
fn what_names_files_by_handle_pays_for_the_directory_by_which_they_were_looked_up() {
    let (controller, _client, served) = start("handles");
    controller.set(1, limit("x/a", Direction::Metadata));
    let [mut inside, mut outside] = ["in", "out"].map(|job| served.client_of("x", USER, job));
    let (dir, other) = (inside.find("a").unwrap(), outside.find("ab").unwrap());
    // Of a walk of 16 names, each further request owes 16 s.
    let walks: Vec<Tag> = (10..20)
        .map(|newfid| {
            let names = [&b"b"[..], b".."].repeat(8);
            let mut space = Vec::new();
            let names = NameList::pack(names, &mut space).unwrap();
            let (fid, newfid) = (handle_fid(0), Fid(newfid));
            inside.send(HandleList::one(&dir.handle), Request::Walk { fid, newfid, names })
        })
        .collect();
    inside.wait(walks[0]).done().unwrap();
    let getattr = || Request::Getattr { fid: handle_fid(0), mask: getattr::ALL };
    let held = inside.send(HandleList::one(&dir.handle), getattr());
    for _ in 0..3 {
        outside.call(HandleList::one(&other.handle), getattr()).done().unwrap();
    }
    // Answered before what waits.
    inside.ping();
    assert!(!inside.came(held) && !inside.came(walks[9]));
    controller.set(1, None);
    inside.wait(held).done().unwrap();
}

#[test]
fn a_row_of_a_job_comes_with_the_job_and_goes_to_no_proxy_without_it() {
    let (controller, _client, served) = start("jobs");
    let of = |job| EntitlementScope { job: JobId::new(job), ..EntitlementScope::default() };
    controller.set(1, Some(limited(of("late"), Direction::Read)));
    controller.set(2, Some(limited(of("never"), Direction::Read)));
    assert_eq!((controller.sent(1), controller.sent(2)), (0, 0));
    let mut late = reader(&served, "late", &["f"]);
    until("the row is sent", || controller.sent(1) > 0);
    controller.settle();
    is_read(&mut late, 1);
    let held = send_read(&mut late);
    is_read(&mut reader(&served, "other", &["f"]), 3);
    assert!(!late.readable(0));
    controller.set(1, None);
    assert!(late.wait(held).is_ok());
    assert_eq!(controller.sent(2), 0);
}
