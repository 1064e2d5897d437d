//! Decays, as processes: who used up what he is entitled to is held back, and everybody is told.
//!
//! ```text
//!   readers of users 1000, 1001 ─ 9P ─► proxy ─► controller ─┬─► GET /v1/decays, /v1/events
//!                                                            ├─► --on-event: a file
//!                                                            └─► --webhook: a server of the test
//! ```
//!
//! Periods end with minutes of the wall clock, so a test first waits until enough of one is left.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use api::{Client, DecayAccount, Event, EventKind, RateForm};

use crate::common::{Controller, SLUICE, USER, until};
use crate::controlled::{Folder, Reader, proxy};

const OTHER: u32 = USER + 1;
const MB: u64 = 1_000_000;

/// A decay of what each user reads, and a class for each.
fn rules(decay: &str) -> String {
    format!(
        "[[rule]]\nname = \"users\"\nper = [\"uid\"]\n\n[[decay]]\nname = \"readers\"\n\
         per = [\"uid\"]\nresource = \"read\"\nevery = \"1s\"\n{decay}"
    )
}

/// A period in which 60 MB are read, and then a megabyte a second.
fn hourly() -> String {
    // 60 MB an hour are 16.7 kB/s.
    rules("entitled = \"16667B/s\"\nfloor = \"1MB/s\"\nmode = \"step\"\nperiod = \"60min\"\n")
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Waits until so many seconds are left of the period.
fn wait_for_room(period_s: u64, needed_s: u64) {
    let left = || period_s - now_s() % period_s;
    until_within(Duration::from_secs(needed_s + 2), "a period begins", || left() >= needed_s);
}

fn until_within(patience: Duration, what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A user's account, if there is one.
fn account(client: &Client, uid: u32) -> Option<DecayAccount> {
    let decays = client.decays(Some(&format!("uid={uid}"))).unwrap();
    decays.decays.into_iter().next()?.accounts.into_iter().next()
}

fn level(client: &Client, uid: u32) -> String {
    account(client, uid).map_or("free".into(), |account| account.level)
}

/// The events of a user.
fn events_of(client: &Client, uid: u32) -> Vec<Event> {
    let subject = format!("uid={uid}");
    let events = client.events("since=0&limit=1000").unwrap().events;
    events.into_iter().filter(|event| event.subject == subject).collect()
}

fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

/// What a reader reads a second, over a span.
fn per_sec(reader: &Reader, span: Duration) -> u64 {
    let (began, before) = (Instant::now(), reader.bytes());
    std::thread::sleep(span);
    let micros = u64::try_from(began.elapsed().as_micros()).unwrap();
    (reader.bytes() - before) * 1_000_000 / micros
}

/// Posts that came to a server of the test, by their JSON; the first is answered with an error.
fn webhook() -> (String, Receiver<Event>) {
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
    let data = Folder::new("decay-period");
    let told = data.0.join("told");
    let (url, posted) = webhook();
    // One by a flag, and one by the configuration.
    let command = format!("cat >> {}", told.display());
    let config = data.0.join("controller.toml");
    std::fs::write(&config, format!("on_event = \"false\"\nwebhook = \"{url}\"\n")).unwrap();
    let words = ["--on-event", &command, "--config", config.to_str().unwrap()];
    let controller = Controller::start_with(&data.0.join("c"), "http://127.0.0.1:0", &words);
    let client = controller.client();
    // 120 MB a minute at 10 MB/s: 80 % after 9.6 s, all after 12 s.
    let text = rules(
        "entitled = \"2MB/s\"\nmax = \"10MB/s\"\nfloor = \"1MB/s\"\nmode = \"step\"\n\
         period = \"1min\"\n",
    );
    client.set_rules(&text).unwrap();
    let proxy = proxy("decay-period", "a", &controller.url);
    let api = crate::controlled::api_of(&proxy);
    until("the rules have come", || api.rules().unwrap().decays.len() == 1);
    wait_for_room(60, 32);
    let mut reader = Reader::of(&proxy, USER);
    let began = Instant::now();
    until("he is held back", || level(&client, USER) == "floor");
    let after = began.elapsed();
    assert!((11..18).contains(&after.as_secs()), "120 MB at 10 MB/s take 12 s, not {after:?}");
    std::thread::sleep(Duration::from_millis(300));
    let floor = per_sec(&reader, Duration::from_secs(4));
    assert!((MB * 8 / 10..MB * 12 / 10).contains(&floor), "{floor} B/s at the floor of 1 MB/s");

    // Somebody else loses nothing.
    let mut other = Reader::of(&proxy, OTHER);
    let full = per_sec(&other, Duration::from_secs(3));
    other.stop();
    assert!(full > 9 * MB, "{full} B/s of 10 MB/s");
    assert_eq!(level(&client, OTHER), "free");

    let patience = Duration::from_secs(60);
    until_within(patience, "the period ends", || level(&client, USER) == "free");
    assert!(now_s() % 60 < 3, "he is free when the minute is over, not after {} s", now_s() % 60);
    until("he reads as before", || per_sec(&reader, Duration::from_millis(500)) > 7 * MB);
    reader.stop();

    let events = events_of(&client, USER);
    let wanted = [EventKind::Warned, EventKind::Floor, EventKind::Released];
    assert_eq!(kinds(&events), wanted, "{events:#?}");
    let floor = events[1].decay.as_ref().unwrap();
    assert_eq!((floor.name.as_str(), floor.limit), ("readers", Some(RateForm::Bytes(MB))));
    assert!(floor.used >= floor.entitled && floor.entitled == 120 * MB, "{floor:?}");
    assert_eq!(floor.until_ns.unwrap() % 60_000_000_000, 0);
    assert!(events[1].text.contains("held to the floor of 1MB/s"), "{}", events[1].text);
    assert!(events_of(&client, OTHER).is_empty());

    // Both were told each of them, in order.
    let mut heard = Vec::new();
    until("the webhook heard all", || {
        heard.extend(posted.try_iter().filter(|event| event.subject == events[0].subject));
        heard.len() >= 3
    });
    assert_eq!(heard, events);
    let lines = || std::fs::read_to_string(&told).unwrap_or_default();
    until("the command was run for all", || lines().matches("released").count() == 1);
    let all = lines();
    let of_user = all.lines().map(|line| serde_json::from_str::<Event>(line).unwrap());
    let of_user: Vec<_> = of_user.filter(|event| event.subject == events[0].subject).collect();
    assert_eq!(of_user, events);
    let page = client.metrics().unwrap();
    for line in ["{by=\"command\",outcome=\"failed\"} 0", "{by=\"webhook\",outcome=\"again\"} 1"] {
        assert!(
            page.contains(&format!("sluice_controller_event_deliveries_total{line}")),
            "{page}"
        );
    }
}

#[test]
fn a_controller_that_was_killed_in_mid_period_keeps_the_account_and_holds_on() {
    let data = Folder::new("decay-killed");
    let mut controller = Controller::start(&data.0, "http://127.0.0.1:0");
    let client = controller.client();
    client.set_rules(&hourly()).unwrap();
    let proxy = proxy("decay-killed", "a", &controller.url);
    let api = crate::controlled::api_of(&proxy);
    until("the rules have come", || api.rules().unwrap().decays.len() == 1);
    wait_for_room(3_600, 28);
    let mut reader = Reader::of(&proxy, USER);
    until("he is held back", || level(&client, USER) == "floor");
    let before = account(&client, USER).unwrap();
    assert!(before.used >= 60 * MB, "{before:?}");
    std::thread::sleep(Duration::from_millis(300));
    let (began, bytes) = (Instant::now(), reader.bytes());
    controller.kill();

    let controller = Controller::start(&data.0, &controller.url);
    let client = controller.client();
    assert_eq!(level(&client, USER), "floor", "before anybody has told anything");
    until("the proxy has told what he had", || {
        account(&client, USER).is_some_and(|account| account.used >= before.used)
    });
    // Beyond the time in which nobody is released.
    until_within(Duration::from_secs(12), "some time is over", || {
        assert_eq!(level(&client, USER), "floor");
        began.elapsed() > Duration::from_secs(11)
    });
    let read = reader.bytes() - bytes;
    let most = MB * (began.elapsed().as_secs() + 2);
    assert!(read < most, "{read} bytes in {:?}: he was let go", began.elapsed());
    reader.stop();
    let total = reader.bytes();
    until("every byte is on his account, once", || account(&client, USER).unwrap().used == total);
    let floors = kinds(&events_of(&client, USER));
    let floors = floors.iter().filter(|kind| **kind == EventKind::Floor).count();
    assert_eq!(floors, 1, "it is told once, whoever tells it");
    let leaders = client.events("since=0").unwrap().events;
    let leaders = leaders.iter().filter(|event| event.kind == EventKind::Leader).count();
    assert_eq!(leaders, 2);
}

#[test]
fn under_contention_only_means_that_nobody_is_held_back_who_is_alone() {
    let data = Folder::new("decay-contended");
    let controller = Controller::start(&data.0, "http://127.0.0.1:0");
    let client = controller.client();
    client.set_rules(&(hourly() + "contention = true\n")).unwrap();
    let proxy = proxy("decay-contended", "a", &controller.url);
    let api = crate::controlled::api_of(&proxy);
    until("the rules have come", || api.rules().unwrap().decays.len() == 1);
    // The first seconds of a controller's life count as contended.
    until_within(Duration::from_secs(30), "nothing waits", || {
        !client.decays(None).unwrap().contended
    });
    wait_for_room(3_600, 28);
    let mut alone = Reader::of(&proxy, USER);
    until("he has used more than his part", || {
        account(&client, USER).is_some_and(|account| account.used > 2 * account.entitled)
    });
    assert!(per_sec(&alone, Duration::from_secs(3)) > 20 * MB);
    assert_eq!(level(&client, USER), "near");
    assert_eq!(kinds(&events_of(&client, USER)), [EventKind::Warned]);

    let mut others: Vec<_> = (0..4).map(|nth| Reader::of(&proxy, OTHER + nth)).collect();
    until("requests wait for one another", || client.decays(None).unwrap().contended);
    until("he is held back now", || level(&client, USER) == "floor");
    others.iter_mut().for_each(Reader::stop);
    alone.stop();
}

/// What small reads and large ones make of an entitlement.
#[test]
fn a_pattern_makes_the_entitlement_another_and_is_named() {
    let data = Folder::new("decay-behaviour");
    let controller = Controller::start(&data.0, "http://127.0.0.1:0");
    let client = controller.client();
    let text = hourly() + "behaviour = { small-reads = \"50%\", sequential = \"150%\" }\n";
    client.set_rules(&text).unwrap();
    let proxy = proxy("decay-behaviour", "a", &controller.url);
    let api = crate::controlled::api_of(&proxy);
    until("the rules have come", || api.rules().unwrap().decays.len() == 1);
    wait_for_room(3_600, 40);
    // 120 pieces each, one after the other: below the 60 MB of an hour for either.
    let read = |uid: u32, size: u64| {
        std::fs::write(proxy.data().join("f"), vec![7; (120 * size) as usize]).unwrap();
        let mut reader = proxy.client_of("x?job=dd.1", uid);
        reader.open_name(1, "f", 0).unwrap();
        for nth in 0..120 {
            assert_eq!(reader.read(1, nth * size, size as u32).unwrap().len() as u64, size);
        }
    };
    read(USER, 4 << 10);
    read(OTHER, 128 << 10);
    let judged = |uid: u32| account(&client, uid).and_then(|account| account.pattern);
    until("both are judged", || judged(USER).is_some() && judged(OTHER).is_some());
    for (uid, pattern, factor) in [(USER, "small-reads", 0.5), (OTHER, "sequential", 1.5)] {
        let account = account(&client, uid).unwrap();
        assert_eq!(account.pattern.as_deref(), Some(pattern), "{account:?}");
        // It goes back to 1 by half an hour after hour.
        let now = f64::from(account.behaviour_ppm.unwrap()) / 1e6;
        assert!((now - factor).abs() < 0.02, "{account:?}");
        let entitled = account.entitled as f64 / (60.0 * MB as f64);
        assert!((entitled - factor).abs() < 0.02, "{account:?}");
    }
    let list = Command::new(SLUICE).args(["decay", "--controller", &controller.url]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    assert!(list.contains("readers uid=1000: entitlement × 0.50 for small-reads"), "{list}");

    // Half of 60 MB is soon used, and the event says why so little.
    let mut reader = Reader::of(&proxy, USER);
    until_within(Duration::from_secs(30), "he is held back", || level(&client, USER) == "floor");
    reader.stop();
    let events = events_of(&client, USER);
    let floor = events.iter().find(|event| event.kind == EventKind::Floor).unwrap();
    assert!(floor.text.ends_with("; entitlement × 0.50 for small-reads"), "{}", floor.text);
}

#[test]
fn events_come_as_they_happen_and_go_on_after_the_last_one_that_was_seen() {
    let data = Folder::new("decay-events");
    let controller = Controller::start(&data.0, "http://127.0.0.1:0");
    let client = controller.client();
    let leader = client.events("since=0&wait=10s").unwrap();
    assert_eq!(kinds(&leader.events), [EventKind::Leader]);

    // A stream after the first event, and one call that waits.
    let mut stream = open_stream(&controller, leader.next);
    let waits = std::thread::spawn({
        let client = controller.client().with_time_limit(Duration::from_secs(40));
        move || client.events(&format!("since={}&wait=30s", leader.next)).unwrap()
    });
    let version = client.set_rules(&hourly()).unwrap().version;
    let waited = waits.join().unwrap();
    assert_eq!(kinds(&waited.events), [EventKind::Rules]);
    assert_eq!(waited.events[0].subject, version);
    let streamed = next_event(&mut stream);
    assert_eq!(streamed, waited.events[0]);

    // A proxy that goes away is told as lost, and comes back.
    let node = proxy("decay-events", "a", &controller.url);
    until("the proxy is there", || client.proxies().unwrap().proxies.len() == 1);
    drop(node);
    assert_eq!(next_event(&mut stream).kind, EventKind::Lost);
    let _node = proxy("decay-events", "a", &controller.url);
    let returned = next_event(&mut stream);
    assert_eq!((returned.kind, returned.subject.as_str()), (EventKind::Returned, "a"));
    drop(stream);

    let mut again = open_stream(&controller, returned.sequence - 1);
    assert_eq!(next_event(&mut again), returned, "it goes on where it was");

    let url = controller.url.as_str();
    let run = |words: &[&str]| {
        let output = Command::new(SLUICE).args(words).args(["--controller", url]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = run(&["events", "--since", "1h"]);
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert!(lines.contains("returned   proxy a is heard again"), "{lines}");
    let json = run(&["events", "--json"]);
    let last: Event = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(last, returned);
    let list = run(&["decay"]);
    assert_eq!(list, "nobody has used anything that a decay counts\n");
    let rules = run(&["rule", "list"]);
    assert!(rules.contains("readers") && rules.contains("each 1h"), "{rules}");

    for (query, names) in [
        ("since=x", "since: \"x\""),
        ("limit=0", "limit: 0"),
        ("wait=2min", "wait: \"2min\""),
        ("until=1", "until"),
    ] {
        let error = client.events(query).unwrap_err().to_string();
        assert!(error.contains(names), "{query}: {error}");
    }
}

fn open_stream(controller: &Controller, after: u64) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(controller.at()).unwrap();
    stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    write!(
        stream,
        "GET /v1/events HTTP/1.0\r\nhost: x\r\naccept: text/event-stream\r\nlast-event-id: {after}\r\n\r\n"
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
fn next_event(stream: &mut BufReader<TcpStream>) -> Event {
    let (mut id, mut kind) = (String::new(), String::new());
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream has ended");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.trim().into();
        } else if let Some(text) = line.strip_prefix("event: ") {
            kind = text.trim().into();
        } else if let Some(text) = line.strip_prefix("data: ") {
            let event: Event = serde_json::from_str(text).unwrap();
            assert_eq!((event.sequence.to_string(), event.kind.name()), (id, kind.as_str()));
            return event;
        }
    }
}
