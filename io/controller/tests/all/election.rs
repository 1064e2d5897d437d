//! Three controllers on a real etcd: one leads, dies, and another goes on; no record is lost.
//!
//! A controller is this test's own program, started a second time. `CONTROLLER_DEATHS=20`
//! makes the loop of deaths longer.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::etcd::{self, etcd};
use controller::EtcdClient;
use controller::election::{Election, FencingToken, Leadership};
use controller::store::{EtcdStore, Revision, Store, StoreError};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Cluster, PATIENCE, again, until};

const ENDPOINTS: &str = "CONTROLLER_TEST_ENDPOINTS";
const NAME: &str = "CONTROLLER_TEST_NAME";
const PREFIX: &str = "/test/election";

/// Runs as a process of its own: stands for election, and appends while it leads.
#[test]
#[ignore = "is started by the other tests of this file"]
fn controller() {
    let (Ok(endpoints), Ok(name)) = (std::env::var(ENDPOINTS), std::env::var(NAME)) else { return };
    let endpoints = endpoints.split(',').map(String::from).collect();
    let etcd = EtcdClient { endpoints, prefix: PREFIX.into(), user: None };
    let election = Election::campaign(&etcd, &name).unwrap();
    println!("\nstands {name}");
    let mut office = election.leadership();
    loop {
        let Leadership::Leader(fence) = &office else {
            office = election.wait_for_change(&office, PATIENCE);
            continue;
        };
        let mut store = EtcdStore::open(&etcd, Some(fence.clone())).unwrap();
        act(&election, &mut store, fence, &name);
        office = election.leadership();
    }
}

/// Appends until the office or etcd says that it is over.
fn act(election: &Election, store: &mut EtcdStore, fence: &FencingToken, name: &str) {
    let Ok(history) = store.load(Revision::ZERO) else { return };
    let mut newest = history.newest().unwrap_or_default();
    while matches!(election.leadership(), Leadership::Leader(now) if now == *fence) {
        let record = format!("{name} {} {}", fence.term(), newest.next());
        match store.append(newest, record.as_bytes()) {
            Ok(revision) => newest = revision,
            Err(error) => return println!("failed {error}"),
        }
        println!("kept {newest} {record}");
        // people decide less often than this
        election.wait_for_change(&Leadership::Leader(fence.clone()), Duration::from_millis(20));
    }
}

#[test]
fn when_the_leader_dies_another_acts_with_a_later_term_and_no_record_is_lost() {
    let Some(cluster) = Cluster::start() else { return };
    let deaths = std::env::var("CONTROLLER_DEATHS").map_or(3, |deaths| deaths.parse().unwrap());
    let mut controllers = Controllers::start(&cluster, 3);
    let Kept { name: mut leader, mut term, .. } = controllers.next_kept();
    let mut longest = Duration::ZERO;
    for death in 0..deaths {
        controllers.kill(&leader);
        let died = Instant::now();
        let next = controllers.next_kept_by_another(&leader);
        assert!(next.term > term, "{next:?} after term {term}");
        longest = longest.max(died.elapsed());
        println!("death {death}: {} after {:?}", next.name, died.elapsed());
        controllers.spawn(&leader);
        (leader, term) = (next.name, next.term);
    }
    println!("{deaths} deaths, the longest time without a leader {longest:?}");
    controllers.kill_all();
    controllers.check_kept(&cluster);
}

#[test]
fn a_leader_that_only_slept_is_refused_when_it_wakes() {
    let Some(cluster) = Cluster::start() else { return };
    let etcd = etcd(&cluster, PREFIX);
    let mut controllers = Controllers::start(&cluster, 2);
    let first = controllers.next_kept();
    controllers.signal(&first.name, Signal::STOP);
    let second = controllers.next_kept_by_another(&first.name);
    assert!(second.term > first.term);

    // the fence of the first is of its term: what it sends when it wakes is refused
    controllers.signal(&first.name, Signal::CONT);
    let deadline = Instant::now() + PATIENCE;
    let mut store = etcd::store(&etcd, None);
    let mut seen = Revision::ZERO;
    while seen.get() < second.revision + 200 {
        assert!(Instant::now() < deadline);
        // an etcd that waits for a processor may answer too late
        seen = store.newest(seen, Duration::from_secs(1)).unwrap_or(seen);
    }
    controllers.kill_all();
    let history = store.load(Revision::ZERO).unwrap();
    let terms: Vec<u64> = history.records.iter().map(|r| term_of(&r.body)).collect();
    assert!(terms.is_sorted(), "a record of an earlier term came after one of a later");
    controllers.check_kept(&cluster);
}

#[test]
fn an_append_of_a_deposed_leader_fails_and_names_who_leads() {
    let Some(cluster) = Cluster::start() else { return };
    let etcd = etcd(&cluster, PREFIX);
    let first = Election::campaign(&etcd, "first").unwrap();
    // A machine that stops for longer than a lease deposes it before.
    let (mut fence, mut kept) = (leading(&first), None);
    until("it leads for long enough", || {
        fence = leading(&first);
        let mut store = etcd::store(&etcd, Some(fence.clone()));
        kept = store.append(Revision::ZERO, b"while it leads").ok().map(|newest| (store, newest));
        kept.is_some()
    });
    let (mut store, newest) = kept.expect("it was kept");
    let second = Election::campaign(&etcd, "second").unwrap();
    // The first may have lost its lease by now, as below.
    if let Some(leader) = leader_known_to(&second) {
        assert_eq!(leader, "first");
    }
    drop(first);
    let later = leading(&second);
    assert!(later.term() > fence.term());

    let error = store.append(newest, b"too late").unwrap_err();
    let StoreError::Deposed { leader, .. } = &error else { panic!("{error}") };
    // The second may have lost its lease by now, too.
    assert!(["second", "nobody"].contains(&leader.as_str()), "{error}");
    let error = store.snapshot(newest, b"too late").unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    let mut store = etcd::store(&etcd, None);
    assert_eq!(store.load(Revision::ZERO).unwrap().records.len(), 1);
    until("what the leader of now sends is kept", || {
        let mut store = etcd::store(&etcd, Some(leading(&second)));
        store.snapshot(newest, b"in time").is_ok() && store.append(newest, b"in time").is_ok()
    });
}

#[test]
fn a_leader_stays_the_leader_while_members_of_etcd_die_in_turn() {
    let Some(mut cluster) = Cluster::start() else { return };
    let etcd = etcd(&cluster, PREFIX);
    let election = Election::campaign(&etcd, "steady").unwrap();
    leading(&election);
    let mut store = EtcdStore::open(&etcd, None).unwrap();
    for at in 0..3 {
        cluster.kill_member(at);
        let deadline = Instant::now() + PATIENCE;
        // an election among the members may outlast a lease: then there is a new term
        while store.newest(Revision::ZERO, Duration::ZERO).is_err() {
            assert!(Instant::now() < deadline);
        }
        leading(&election);
        cluster.start_member(at);
    }
}

#[test]
fn a_leader_whom_nothing_disturbs_has_one_term_for_many_leases() {
    let Some(cluster) = Cluster::start() else { return };
    let election = Election::campaign(&etcd(&cluster, PREFIX), "alone").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let office = Leadership::Leader(leading(&election));
        // A lease is 3 s: without renewals it would end three times, whenever one looks. Where the
        // whole machine stops for so long, it is somebody who was disturbed.
        if election.wait_for_change(&office, Duration::from_secs(10)) == office {
            return;
        }
        assert!(Instant::now() < deadline, "no term lasts for more than a lease");
    }
}

fn leading(election: &Election) -> FencingToken {
    let deadline = Instant::now() + PATIENCE;
    let mut office = election.leadership();
    loop {
        match &office {
            Leadership::Leader(fence) => return fence.clone(),
            Leadership::Standby { .. } => assert!(Instant::now() < deadline, "{office:?}"),
        }
        office = election.wait_for_change(&office, PATIENCE);
    }
}

/// Who leads by what one knows that stands; `None` if it leads itself.
fn leader_known_to(election: &Election) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut office = election.leadership();
    loop {
        match &office {
            Leadership::Leader(_) => return None,
            Leadership::Standby { leader: Some(leader) } => return Some(leader.clone()),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        office = election.wait_for_change(&office, PATIENCE);
    }
}

fn term_of(record: &[u8]) -> u64 {
    let text = std::str::from_utf8(record).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// An append that a controller printed as acknowledged.
#[derive(Debug)]
struct Kept {
    name: String,
    term: u64,
    revision: u64,
}

/// Processes that stand for election, and what they printed.
struct Controllers {
    endpoints: String,
    /// They pass on what was printed, to its end.
    passing_on: Vec<JoinHandle<()>>,
    children: BTreeMap<String, Child>,
    printed: Receiver<(String, String)>,
    printer: Sender<(String, String)>,
    /// Every acknowledged record.
    kept: BTreeMap<u64, String>,
}

impl Controllers {
    fn start(cluster: &Cluster, count: usize) -> Controllers {
        let (printer, printed) = channel();
        let endpoints = etcd(cluster, PREFIX).endpoints.join(",");
        let (children, kept) = (BTreeMap::new(), BTreeMap::new());
        let passing_on = Vec::new();
        let mut controllers =
            Controllers { endpoints, passing_on, children, printed, printer, kept };
        (0..count).for_each(|i| controllers.spawn(&format!("c{i}")));
        controllers
    }

    fn spawn(&mut self, name: &str) {
        let mut command = again(module_path!(), "controller");
        command.env(ENDPOINTS, &self.endpoints).env(NAME, name).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (printer, of) = (self.printer.clone(), name.to_string());
        self.passing_on.push(std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if printer.send((of.clone(), line)).is_err() {
                    return;
                }
            }
        }));
        self.children.insert(name.to_string(), child);
    }

    fn kill(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn kill_all(&mut self) {
        while let Some(name) = self.children.keys().next().cloned() {
            self.kill(&name);
        }
    }

    fn signal(&self, name: &str, signal: Signal) {
        kill_process(Pid::from_child(&self.children[name]), signal).unwrap();
    }

    /// The next append that anybody acknowledges.
    fn next_kept(&mut self) -> Kept {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok((_, line)) => {
                    if let Some(kept) = self.note(&line) {
                        return kept;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("nobody acted for {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            }
        }
    }

    fn next_kept_by_another(&mut self, name: &str) -> Kept {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let kept = self.next_kept();
            if kept.name != name {
                return kept;
            }
            assert!(Instant::now() < deadline, "{name} still leads");
        }
    }

    fn note(&mut self, line: &str) -> Option<Kept> {
        let mut words = line.strip_prefix("kept ")?.splitn(2, ' ');
        let revision: u64 = words.next()?.parse().ok()?;
        let record = words.next()?;
        if record.split(' ').count() != 3 {
            return None; // cut off by a death
        }
        self.kept.insert(revision, record.to_string());
        let name = record.split(' ').next()?.to_string();
        Some(Kept { name, term: term_of(record.as_bytes()), revision })
    }

    /// Every record that was acknowledged is there, as it was. All were killed before.
    fn check_kept(&mut self, cluster: &Cluster) {
        self.passing_on.drain(..).for_each(|passes_on| passes_on.join().unwrap());
        while let Ok((_, line)) = self.printed.try_recv() {
            self.note(&line);
        }
        let mut store = etcd::store(&etcd(cluster, PREFIX), None);
        let history = store.load(Revision::ZERO).unwrap();
        let there: BTreeMap<u64, String> = history
            .records
            .into_iter()
            .map(|record| (record.revision.get(), String::from_utf8(record.body).unwrap()))
            .collect();
        assert!(!self.kept.is_empty());
        for (revision, record) in &self.kept {
            assert_eq!(there.get(revision), Some(record), "revision {revision}");
        }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.kill_all();
    }
}
