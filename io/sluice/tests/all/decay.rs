//! Decays, as processes: a key that exceeds its entitlement is throttled, and events are published.
//!
//! ```text
//!   readers of users 1000, 1001 ─ 9P ─► proxy ─► controller ─┬─► GET /v1/decays, /v1/events
//!                                                            ├─► --on-event: a file
//!                                                            └─► --webhook: a server of the test
//! ```
//!
//! The controller's clock stands still until the test moves it, and readers read as many bytes as
//! they are told to: what is said when is exact, however fast the machine is.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use api::{ControllerEvent, ErrorCode, EventKind, WhyQuery, WireDecayAccount, WireRate};
use http::ApiClient;
use model::Nanos;
use ninep::{Fid, Request, open};

use crate::clocked::Clocked;
use crate::common::{Controller, HangingOpens, PATIENCE, Proxy, SLUICE, USER, until};
use crate::controlled::{BLOCK, Reader, api_of, proxy};
use testkit::TestFolder;

const OTHER: u32 = USER + 1;
const MB: u64 = 1_000_000;
const SECOND: Nanos = Nanos::from_secs(1);

/// A decay of what each user reads, and a class for each.
fn rules(decay: &str) -> String {
    format!(
        "[[rule]]\nname = \"users\"\nper = [\"uid\"]\n\n[[decay]]\nname = \"readers\"\n\
         per = [\"uid\"]\nresource = \"read\"\nupdate_interval = \"1s\"\n{decay}"
    )
}

/// A period in which 60 MB are read, and then a megabyte a second.
fn hourly() -> String {
    // 60 MB an hour are 16.7 kB/s.
    rules("entitlement = \"16667B/s\"\nfloor = \"1MB/s\"\nmode = \"period\"\nperiod = \"60min\"\n")
}

/// A proxy that has the rules of its controller.
fn ruled(test: &str, url: &str) -> Proxy {
    let proxy = proxy(test, "a", url);
    std::fs::write(proxy.data().join("f"), vec![7; BLOCK as usize]).unwrap();
    let api = api_of(&proxy);
    until("the rules have come", || api.rules().unwrap().decays.len() == 1);
    proxy
}

/// A user who reads as many bytes as he is told to, at a proxy that has a file `f`.
struct Exact {
    client: crate::common::P9Client,
    uid: u32,
    used: u64,
}

impl Exact {
    fn of(proxy: &Proxy, uid: u32) -> Exact {
        let mut client = proxy.client_of("x?job=dd.1", uid);
        client.open_name(1, "f", 0).unwrap();
        Exact { client, uid, used: 0 }
    }

    /// Reads as fast as he may, and waits until all that he has read is on his account.
    fn read(&mut self, bytes: u64, controller: &ApiClient) {
        let mut left = bytes;
        while left > 0 {
            let count = left.min(u64::from(BLOCK));
            assert_eq!(self.client.read(1, 0, count as u32).unwrap().len() as u64, count);
            left -= count;
        }
        self.used += bytes;
        let used = || account(controller, self.uid).map_or(0, |account| account.used);
        until("it is on his account", || used() == self.used);
    }
}

/// Waits until a proxy holds a user to this.
fn holds(proxy: &Proxy, uid: u32, limit: Option<u64>) {
    until("the proxy has its limit", || limit_at(proxy, uid) == limit);
}

/// What a proxy holds a user to who reads there, in bytes a second; `None` if to nothing.
fn limit_at(proxy: &Proxy, uid: u32) -> Option<u64> {
    let query = WhyQuery { user: Some(uid), ..WhyQuery::default() };
    let why = api_of(proxy).why(&query).unwrap();
    let all = why.subjects.iter().flat_map(|subject| &subject.limits);
    let of_decays = all.filter(|limit| limit.section == "decay").map(|limit| limit.per_s);
    of_decays.filter(|per_s| *per_s < u64::MAX).min()
}

/// A user's account, if there is one.
fn account(client: &ApiClient, uid: u32) -> Option<WireDecayAccount> {
    let decays = client.decays(Some(&format!("uid={uid}"))).unwrap();
    decays.decays.into_iter().next()?.accounts.into_iter().next()
}

fn level(client: &ApiClient, uid: u32) -> String {
    account(client, uid).map_or("free".into(), |account| account.level)
}

/// The events of a user.
fn events_of(client: &ApiClient, uid: u32) -> Vec<ControllerEvent> {
    let subject = format!("uid={uid}");
    let events = client.events("since=0&limit=1000").unwrap().events;
    events.into_iter().filter(|event| event.subject == subject).collect()
}

fn kinds(events: &[ControllerEvent]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

/// Waits until these have been told of a user, and nothing else: an event is shown when it is on
/// disk, which may be later than what it tells.
fn told(client: &ApiClient, uid: u32, wanted: &[EventKind]) -> Vec<ControllerEvent> {
    until(&format!("{wanted:?} are published"), || {
        kinds(&events_of(client, uid)).len() >= wanted.len()
    });
    let events = events_of(client, uid);
    assert_eq!(kinds(&events), wanted, "{events:#?}");
    events
}

/// Posts that came to a server of the test, by their JSON; the first is answered with an error.
fn webhook() -> (String, Receiver<ControllerEvent>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (came, events) = channel();
    std::thread::spawn(move || {
        for (nth, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let (head, body) = request(&stream);
            assert!(head.starts_with("POST /hook HTTP/1.1"), "{head}");
            let status = if nth == 0 { "503 Come Again" } else { "204 Taken" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            (&stream).write_all(answer.as_bytes()).unwrap();
            if nth > 0 && came.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, events)
}

fn request(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(count) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = count.trim().parse().unwrap();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, body)
}

#[test]
fn who_used_up_his_part_is_held_to_the_floor_until_the_period_ends_and_all_is_told_once() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let client = controller.client();
    let mode = "mode = \"period\"\nperiod = \"1min\"\n";
    // 30 MB a minute.
    let rates = "entitlement = \"500kB/s\"\nmax = \"10MB/s\"\nfloor = \"200kB/s\"\n";
    client.set_rules(&rules(&format!("{rates}{mode}"))).unwrap();
    let proxy = ruled("decay-period", controller.url());
    let mut reader = Exact::of(&proxy, USER);
    reader.read(25 * MB, &client);
    controller.pass(SECOND);
    assert_eq!(level(&client, USER), "warned");
    holds(&proxy, USER, Some(10 * MB));
    reader.read(5 * MB, &client);
    controller.pass(SECOND);
    assert_eq!(level(&client, USER), "floor");
    holds(&proxy, USER, Some(MB / 5));
    let began = Instant::now();
    reader.read(MB, &client);
    // A tenth of a second is saved up at most, and a request that began may end.
    let least = Duration::from_secs(4);
    assert!(began.elapsed() > least, "1 MB in {:?} at the floor of 200 kB/s", began.elapsed());

    // Somebody else loses nothing.
    let mut other = Exact::of(&proxy, OTHER);
    other.read(MB, &client);
    holds(&proxy, OTHER, Some(10 * MB));
    assert_eq!(level(&client, OTHER), "free");

    controller.pass(Nanos::from_secs(57));
    assert_eq!(level(&client, USER), "floor");
    holds(&proxy, USER, Some(MB / 5));
    controller.pass(SECOND);
    assert_eq!((level(&client, USER).as_str(), controller.age()), ("free", Nanos::from_secs(60)));
    holds(&proxy, USER, Some(10 * MB));

    let wanted = [EventKind::Warned, EventKind::Floor, EventKind::Released];
    let events = told(&client, USER, &wanted);
    let after = |event: &ControllerEvent| event.at_ns - events[0].at_ns;
    assert_eq!((after(&events[1]), after(&events[2])), (SECOND.get(), 59 * SECOND.get()));
    let floor = events[1].decay.as_ref().unwrap();
    assert_eq!((floor.name.as_str(), floor.limit), ("readers", Some(WireRate::Bytes(MB / 5))));
    assert_eq!((floor.used, floor.entitlement), (30 * MB, 30 * MB));
    assert_eq!(floor.until_ns, Some(events[2].at_ns));
    assert!(events[1].text.contains("limited to the floor of 200kB/s"), "{}", events[1].text);
    assert!(events_of(&client, OTHER).is_empty());
}

#[test]
fn a_controller_that_was_killed_in_mid_period_keeps_the_account_and_holds_on() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let client = controller.client();
    client.set_rules(&hourly()).unwrap();
    let proxy = ruled("decay-killed", controller.url());
    let mut exact = Exact::of(&proxy, USER);
    exact.read(61 * MB, &client);
    controller.pass(SECOND);
    assert_eq!(level(&client, USER), "floor");
    told(&client, USER, &[EventKind::Floor]);
    holds(&proxy, USER, Some(MB));
    let began = Instant::now();
    let mut reader = Reader::of(&proxy, USER);
    let read_on = |what: &str| {
        let bytes = reader.bytes();
        until(what, || reader.bytes() > bytes + MB);
    };
    read_on("he reads at the floor");
    let mut controller = controller.killed_and_started(data.path());
    let client = controller.client();
    assert_eq!(level(&client, USER), "floor", "before any proxy has reported");
    let used = || account(&client, USER).map_or(0, |account| account.used);
    until("the proxy has reported the usage", || used() > 61 * MB);
    // Beyond the time in which nobody is released.
    for _ in 0..12 {
        controller.pass(SECOND);
        assert_eq!(level(&client, USER), "floor");
    }
    read_on("he reads on at the floor");
    holds(&proxy, USER, Some(MB));
    let (total, most) = (reader.bytes(), MB * (began.elapsed().as_secs() + 2));
    assert!(total < most, "{total} bytes in {:?}: he was let go", began.elapsed());
    reader.stop();
    let total = 61 * MB + reader.bytes();
    until("every byte is on his account, once", || used() == total);
    // It is told once, whoever tells it.
    told(&client, USER, &[EventKind::Floor]);
    let leaders = client.events("since=0").unwrap().events;
    let leaders = leaders.iter().filter(|event| event.kind == EventKind::Leader).count();
    assert_eq!(leaders, 2);
}

#[test]
fn under_contention_only_means_that_nobody_is_held_back_who_is_alone() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let client = controller.client();
    client.set_rules(&(hourly() + "contention = true\n")).unwrap();
    let proxy = ruled("decay-contended", controller.url());
    assert!(client.decays(None).unwrap().contended, "the first seconds of its life count as such");
    controller.pass(Nanos::from_secs(16));
    assert!(!client.decays(None).unwrap().contended);
    let mut alone = Exact::of(&proxy, USER);
    alone.read(121 * MB, &client);
    controller.pass(SECOND);
    assert_eq!(level(&client, USER), "warned");
    told(&client, USER, &[EventKind::Warned]);
    assert_eq!(limit_at(&proxy, USER), None);

    // More opens than there are slots, of two users, and none of them comes to its end.
    std::fs::write(proxy.data().join("g"), "").unwrap();
    let Some(opens) = HangingOpens::of(&proxy.data().join("g")) else { return };
    let mut others = [OTHER, OTHER + 1].map(|uid| proxy.client_of("x?job=dd.1", uid));
    for client in &mut others {
        (1..=100).for_each(|fid| drop(client.walk(0, fid, &["g"]).unwrap()));
    }
    for client in &mut others {
        for fid in 1..=100 {
            client.send(&Request::Lopen { fid: Fid(fid), flags: open::RDONLY });
        }
    }
    until("requests wait for one another", || client.decays(None).unwrap().contended);
    until("he is held back now", || level(&client, USER) == "floor");
    drop(opens);
}

/// What small reads and large ones make of an entitlement.
#[test]
fn a_pattern_makes_the_entitlement_another_and_is_named() {
    let data = TestFolder::new();
    let mut controller = Clocked::start(data.path());
    let client = controller.client();
    let text = hourly() + "pattern_factors = { small-reads = \"50%\", sequential = \"150%\" }\n";
    client.set_rules(&text).unwrap();
    let proxy = ruled("decay-behaviour", controller.url());
    // 120 pieces each, one after the other: below the 60 MB of an hour for either.
    let read_pieces = |uid: u32, size: u64| {
        std::fs::write(proxy.data().join("g"), vec![7; (120 * size) as usize]).unwrap();
        let mut reader = proxy.client_of("x?job=dd.1", uid);
        reader.open_name(1, "g", 0).unwrap();
        for nth in 0..120 {
            assert_eq!(reader.read(1, nth * size, size as u32).unwrap().len() as u64, size);
        }
    };
    read_pieces(USER, 4 << 10);
    read_pieces(OTHER, 128 << 10);
    let judged = |uid: u32| account(&client, uid).and_then(|account| account.pattern);
    until("both are judged", || judged(USER).is_some() && judged(OTHER).is_some());
    for (uid, pattern, percent) in [(USER, "small-reads", 50), (OTHER, "sequential", 150)] {
        let account = account(&client, uid).unwrap();
        assert_eq!(account.pattern.as_deref(), Some(pattern), "{account:?}");
        assert_eq!(account.pattern_factor_ppm, Some(percent * 10_000), "{account:?}");
        assert_eq!(account.entitlement, 16_667 * 3_600 * u64::from(percent) / 100, "{account:?}");
    }
    let list = Command::new(SLUICE).args(["decay", "--controller", controller.url()]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    assert!(list.contains("readers uid=1000: entitlement × 0.50 for small-reads"), "{list}");

    // Half of 60 MB is soon used, and the event says why so little.
    let used = 120 * (4 << 10);
    until("all is on his account", || account(&client, USER).unwrap().used == used);
    let mut reader = Exact { used, ..Exact::of(&proxy, USER) };
    reader.read(31 * MB, &client);
    controller.pass(SECOND);
    assert_eq!(level(&client, USER), "floor");
    let floor = told(&client, USER, &[EventKind::Floor]).remove(0);
    assert!(floor.text.ends_with("; entitlement × 0.50 for small-reads"), "{}", floor.text);
}

#[test]
fn events_come_as_they_happen_and_go_on_after_the_last_one_that_was_seen() {
    let data = TestFolder::new();
    let told = data.path().join("told");
    let (url, posted) = webhook();
    // One by a flag, and one by the configuration.
    let command = format!("cat >> {}", told.display());
    let config = data.path().join("controller.toml");
    std::fs::write(&config, format!("on_event = \"false\"\nwebhook = \"{url}\"\n")).unwrap();
    let words = ["--on-event", &command, "--config", config.to_str().unwrap()];
    let controller = Controller::start_with(&data.path().join("c"), "http://127.0.0.1:0", &words);
    let client = controller.client();
    let mut leader = client.events("since=0").unwrap();
    until("the first event is on disk", || {
        leader = client.events("since=0&wait=10s").unwrap();
        !leader.events.is_empty()
    });
    assert_eq!(kinds(&leader.events), [EventKind::Leader]);

    // A stream after the first event, and one call that waits.
    let mut stream = open_stream(&controller, leader.next);
    let waits = std::thread::spawn({
        let client = controller.client().with_time_limit(PATIENCE);
        move || client.events(&format!("since={}&wait=60s", leader.next)).unwrap()
    });
    let version = client.set_rules(&hourly()).unwrap().version;
    let waited = waits.join().unwrap();
    assert_eq!(kinds(&waited.events), [EventKind::Rules]);
    assert_eq!(waited.events[0].subject, version);
    let streamed = next_event(&mut stream);
    assert_eq!(streamed, waited.events[0]);

    // A proxy that goes away is told as lost, and comes back. A busy machine may make that one
    // be lost for a while that only waits for its turn.
    let mut all = vec![leader.events[0].clone(), streamed];
    let node = proxy("decay-events", "a", &controller.url);
    until("the proxy is there", || client.proxies().unwrap().proxies.len() == 1);
    drop(node);
    let newest = || client.events("limit=1").unwrap().events.pop().unwrap();
    until("the proxy is lost", || newest().kind == EventKind::Unreachable);
    let _node = proxy("decay-events", "a", &controller.url);
    until("the proxy is back", || newest().kind == EventKind::Recovered);
    let newest = newest();
    while all.last() != Some(&newest) {
        all.push(next_event(&mut stream));
    }
    for (nth, event) in all[2..].iter().enumerate() {
        let wanted = [EventKind::Unreachable, EventKind::Recovered][nth % 2];
        assert_eq!((event.kind, event.subject.as_str()), (wanted, "a"));
    }
    drop(stream);
    let returned = all[3].clone();

    let mut again = open_stream(&controller, returned.sequence - 1);
    assert_eq!(next_event(&mut again), returned, "it goes on where it was");
    delivered(&all, &posted, &told, &client);

    let url = controller.url.as_str();
    let run = |words: &[&str]| {
        let output = Command::new(SLUICE).args(words).args(["--controller", url]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = run(&["events", "--since", "1h"]);
    assert!(lines.lines().count() >= all.len(), "{lines}");
    assert!(lines.contains("recovered    proxy a has recovered"), "{lines}");
    let json = run(&["events", "--json"]);
    let shown: Vec<ControllerEvent> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(shown[..all.len()], all);
    let list = run(&["decay"]);
    assert_eq!(list, "no accounts: no decay has counted usage yet\n");
    let rules = run(&["rule", "list"]);
    assert!(rules.contains("readers") && rules.contains("each 1h"), "{rules}");

    for (query, at) in
        [("since=x", "since"), ("limit=0", "limit"), ("wait=2min", "wait"), ("until=1", "until")]
    {
        let error = client.events(query).unwrap_err();
        let expected = (ErrorCode::InvalidArgument, Some(at));
        assert_eq!((error.code(), error.at()), expected, "{query}: {error}");
    }
}

/// Both the command and the webhook were told each of these, in order.
fn delivered(
    all: &[ControllerEvent],
    posted: &Receiver<ControllerEvent>,
    told: &Path,
    client: &ApiClient,
) {
    let mut heard = Vec::new();
    until("the webhook heard all", || {
        heard.extend(posted.try_iter());
        heard.len() >= all.len()
    });
    assert_eq!(heard[..all.len()], *all);
    let lines = || std::fs::read_to_string(told).unwrap_or_default();
    until("the command was run for all", || lines().matches('\n').count() >= all.len());
    let lines = lines();
    let lines = lines.lines().map(|line| serde_json::from_str::<ControllerEvent>(line).unwrap());
    assert_eq!(lines.take(all.len()).collect::<Vec<_>>(), all);
    let page = client.metrics().unwrap();
    let deliveries = "sluice_controller_event_deliveries_total";
    let line = format!("{deliveries}{{by=\"command\",outcome=\"failed\"}} 0");
    assert!(page.contains(&line), "{page}");
    let line = format!("{deliveries}{{by=\"webhook\",outcome=\"again\"}} 0");
    assert!(!page.contains(&line), "the first was answered with an error: {page}");
}

fn open_stream(controller: &Controller, after: u64) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(controller.at()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /v1/events HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\nlast-event-id: {after}\r\n\r\n"
    )
    .unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.contains("text/event-stream"), "{head}");
    stream
}

/// The next one; comments that say that the stream lives are passed over.
fn next_event(stream: &mut BufReader<TcpStream>) -> ControllerEvent {
    let (mut id, mut kind) = (String::new(), String::new());
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream has ended");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.trim().into();
        } else if let Some(text) = line.strip_prefix("event: ") {
            kind = text.trim().into();
        } else if let Some(text) = line.strip_prefix("data: ") {
            let event: ControllerEvent = serde_json::from_str(text).unwrap();
            assert_eq!((event.sequence.to_string(), event.kind.name()), (id, kind.as_str()));
            return event;
        }
    }
}
