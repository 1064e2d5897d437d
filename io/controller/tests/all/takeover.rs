//! The leader dies: the next one goes on with the accounts of decays, and holds on whom it held.
//!
//! ```text
//!   a proxy of the test ─ report ─► controller 1, killed      its ledger and events are copied,
//!          └──────────── report ─► controller 2               its standings are in etcd
//! ```
//!
//! The controllers are this test's own program, started again.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::etcd::{self, etcd};
use api::{ALL_TARGETS, ControllerEvent, EventKind, ProxyReport};
use controller::store::{Revision, Store};
use controller::{
    ControllerSettings, EtcdClient, ReservationSettings, StandbyController, StorePlace, WallClock,
};
use http::{ApiClient, Endpoints};
use model::{KeyValue, Nanos, OpKind, Rate, Scope, Service, Time};
use plan::SessionSettings;
use rules::{Entitlement, EntitlementId};
use testkit::{Cluster, PATIENCE, TestFolder, account_subject, again, until};
use usage::{UsageLine, UsageReport};

const DIRECTORY: &str = "TAKEOVER_TEST_DIRECTORY";
const ETCD: &str = "TAKEOVER_TEST_ETCD";
const MB: u64 = 1_000_000;
/// 61 MB in six weeks, then a megabyte a second: no period ends while this test runs, but once in
/// some hundred thousand runs.
const RULES: &str = "[[decay]]\nname = \"writers\"\nper = [\"uid\"]\nresource = \"write\"\n\
                     entitlement = \"17B/s\"\nfloor = \"1MB/s\"\nmode = \"period\"\n\
                     period = \"1000h\"\nupdate_interval = \"1s\"\n";

/// Runs as a process of its own until it is killed.
#[test]
#[ignore = "is started by the other test of this file"]
fn controller() {
    let Some(data) = std::env::var_os(DIRECTORY) else { return };
    let endpoints = std::env::var(ETCD).unwrap().split(',').map(str::to_owned).collect();
    let etcd = EtcdClient { endpoints, prefix: "/sluice".into(), user: None };
    let mut settings = ControllerSettings {
        data: data.into(),
        store: StorePlace::Etcd(etcd),
        listen: vec!["http://127.0.0.1:0".parse().unwrap()],
        advertise: None,
        tls: None,
        allowed_hosts: Vec::new(),
        credentials: http::Credentials::default(),
        on_event: None,
        webhook: None,
        reservations: ReservationSettings::default(),
        clock: WallClock::System,
    };
    loop {
        let standing = StandbyController::begin(&settings).unwrap();
        println!("\nlistening on {}", standing.listeners()[0]);
        settings.listen = vec![standing.listeners()[0].parse().unwrap()];
        let controller = standing.lead(&mut || false).unwrap().unwrap();
        while controller.leads_after(Duration::from_secs(1)) {}
    }
}

/// A controller, killed when dropped.
struct Process {
    child: Child,
    _printed: BufReader<ChildStdout>,
    url: String,
}

impl Process {
    fn start(data: &Path, etcd: &EtcdClient) -> Process {
        let mut command = again(module_path!(), "controller");
        command.env(DIRECTORY, data).env(ETCD, etcd.endpoints.join(","));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let url = loop {
            let mut line = String::new();
            assert!(printed.read_line(&mut line).unwrap() > 0, "the controller ended");
            if let Some(url) = line.trim().strip_prefix("listening on ") {
                break url.to_owned();
            }
        };
        Process { child, _printed: printed, url }
    }

    fn client(&self) -> ApiClient {
        client(&self.url)
    }

    fn leads(&self) -> bool {
        self.client().controller_status().is_ok_and(|status| status.is_leader)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy that says what its user 7 wrote, and hears what he is held to. Its clock is moved by
/// what it hears, a second each time: nothing lapses because the test waits for a processor.
struct Proxy {
    standing: plan::ControllerSession,
    now: Time,
    epoch: u64,
    sequence: u64,
    held: BTreeMap<EntitlementId, Entitlement>,
}

impl Proxy {
    fn new() -> Proxy {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let epoch = u64::try_from(since.as_nanos()).unwrap();
        let standing =
            plan::ControllerSession::new("p", epoch, SessionSettings::default(), Time::ZERO);
        Proxy { standing, now: Time::ZERO, epoch, sequence: 0, held: BTreeMap::new() }
    }

    /// Reports; what cannot be told just now is told again by whoever waits for its effect.
    fn report(&mut self, client: &ApiClient, wrote: u64) {
        let service =
            Service { written_bytes: wrote, ops: writes(wrote / MB), ..Service::default() };
        self.sequence += 1;
        let subject = account_subject("dd.1", 7).into();
        let lines = vec![UsageLine { id: 1, subject, service }];
        let (sequence, gone) = (self.sequence, Vec::new());
        let usage = Some(UsageReport { sequence, total: service, lines, dropped_lines: gone });
        let report = self.standing.report(Some(Vec::new()), self.now);
        let targets = report.map(|report| (ALL_TARGETS.into(), report)).into_iter().collect();
        let epoch = self.epoch;
        let said = ProxyReport { epoch, targets, usage, ..ProxyReport::default() };
        let Ok(order) = client.report("p", &said) else { return };
        self.now = self.now + Nanos::from_secs(1);
        for (_, assignment) in &order.targets {
            self.standing.receive(assignment, self.now);
        }
        for (id, row) in self.standing.poll_rows(self.now).into_iter().flatten() {
            match row {
                Some(row) => self.held.insert(id, row),
                None => self.held.remove(&id),
            };
        }
    }

    /// The rate to which a key of a decay is limited.
    fn rate_of(&self, key: &Scope) -> Option<Rate> {
        let row = self.held.values().find(|row| row.scope().class.as_ref() == Some(key))?;
        row.limit().map(|limit| limit.rate)
    }
}

fn client(urls: &str) -> ApiClient {
    ApiClient::at(urls.parse::<Endpoints>().unwrap()).unwrap().with_time_limit(PATIENCE)
}

/// What the user's account has, and its level.
fn account(client: &ApiClient) -> Option<(u64, String)> {
    let decays = client.decays(Some("uid=7")).ok()?;
    let account = decays.decays.first()?.accounts.first()?;
    Some((account.used, account.level.clone()))
}

/// What was told of rules and users: who leads, and whether the proxy is heard, may change where
/// one of them waits for a processor.
fn events(client: &ApiClient) -> Vec<ControllerEvent> {
    let others = [EventKind::Leader, EventKind::Unreachable, EventKind::Recovered];
    let mut events = None;
    until("a leader tells the events", || {
        events = client.events("since=0&limit=1000").ok();
        events.is_some()
    });
    let events = events.expect("a leader told them").events;
    events.into_iter().filter(|event| !others.contains(&event.kind)).collect()
}

#[test]
fn the_next_leader_goes_on_with_the_accounts_and_tells_nobody_twice() {
    let Some(cluster) = Cluster::start() else { return };
    let etcd = etcd(&cluster, "/sluice");
    let folder = TestFolder::new();
    let first = Process::start(&folder.path().join("1"), &etcd);
    until("the first leads", || first.leads());
    until("it has the rules", || first.client().set_rules(RULES).is_ok());
    let second = Process::start(&folder.path().join("2"), &etcd);
    let both = client(&format!("{},{}", first.url, second.url));

    let mut proxy = Proxy::new();
    until("he is warned", || {
        proxy.report(&both, 50 * MB);
        account(&both) == Some((50 * MB, "warned".into()))
    });
    until("he is held back", || {
        proxy.report(&both, 70 * MB);
        account(&both) == Some((70 * MB, "floor".into()))
    });
    let scope = Scope::decay("writers", &[KeyValue::Uid(7)]);
    let floor = Rate::bytes_per_sec(MB).unwrap();
    until("the proxy is told", || {
        proxy.report(&both, 70 * MB);
        proxy.rate_of(&scope) == Some(floor)
    });
    // An event is shown when it is on disk.
    let mut told = Vec::new();
    until("all is told", || {
        told = events(&both);
        told.len() >= 3
    });
    let kinds: Vec<_> = told.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Rules, EventKind::Warned, EventKind::Floor]);
    // A busy machine may have made the second one lead meanwhile.
    let (first, second) = if first.leads() { (first, second) } else { (second, first) };
    let known = Instant::now();
    until("the second has copied it", || {
        let ago = second.client().controller_status().ok().and_then(|s| s.replication_lag_ns);
        ago.is_some_and(|ago| u128::from(ago) < known.elapsed().as_nanos())
    });
    let mut store = etcd::store(&etcd, None);
    until("his standing is on record", || {
        let records = store.load(Revision::ZERO).unwrap().records;
        let last = records.iter().rfind(|record| record.body.starts_with(b"{\"decays\""));
        last.is_some_and(|record| String::from_utf8_lossy(&record.body).contains("{\"uid\":7}"))
    });

    drop(first);
    until("the second leads", || second.leads());
    let mut used = None;
    until("it tells the account", || {
        used = account(&second.client());
        used.is_some()
    });
    assert_eq!(used, Some((70 * MB, "floor".into())), "before the proxy has told anything");
    until("the proxy is found", || {
        proxy.report(&both, 80 * MB);
        proxy.standing.is_assigned() && account(&both) == Some((80 * MB, "floor".into()))
    });
    assert_eq!(proxy.rate_of(&scope), Some(floor), "he was never let go");
    let mut last = Vec::new();
    until("the second tells who leads", || {
        last = both.events("limit=1").map(|page| page.events).unwrap_or_default();
        !last.is_empty()
    });
    assert!(last[0].sequence > told[2].sequence + 1_000, "{last:?}");
    assert_eq!(events(&both), told, "what the first told is there, and nobody is told twice");
}

fn writes(count: u64) -> [u64; OpKind::COUNT] {
    let mut ops = [0; OpKind::COUNT];
    ops[OpKind::Write as usize] = count;
    ops
}
