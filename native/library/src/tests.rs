//! Calls against servers that fail in every way: each ends with its code, within its limit.
//!
//! ```text
//!   server(script) ─► one thread, one connection after the other ─► what the script writes
//! ```

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use api::{Credentials, NewReservation, WireReservationState};
use testkit::{PATIENCE, TestFolder, until};

use crate::client::{ControllerClient, LibrarySettings};
use crate::deadline::Deadline;
use crate::error::{CallError, CallErrorCode};
use crate::reservations::WaitEnd;

mod limits;

const ACTIVE: &str = r#"{"id":7,"state":"ACTIVE","user":1,"target":"fs"}"#;
const SCHEDULED: &str = r#"{"id":7,"state":"SCHEDULED","user":1,"target":"fs"}"#;
/// Longer than any test waits: what ends earlier ends for another reason.
const LONG_MS: u32 = 600_000;

fn settings(controller: &str) -> LibrarySettings {
    LibrarySettings { controller: Some(controller.into()), credentials: Credentials::default() }
}

fn client(controller: &str) -> ControllerClient {
    ControllerClient::open(settings(controller)).unwrap()
}

fn within<T>(
    client: &ControllerClient,
    limit_ms: u32,
    call: impl FnOnce(Deadline<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    let under_way = client.calls.begin()?;
    call(Deadline::new(limit_ms, &under_way))
}

fn request() -> NewReservation {
    NewReservation { duration_ns: 1, ..NewReservation::default() }
}

/// A server whose connections are given to `script` with their number; returns its URL and what it
/// was sent.
fn server(script: impl Fn(usize, &mut TcpStream) + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (to, requests) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let text = read_request(&mut stream);
            if to.send(text).is_err() {
                return;
            }
            script(number, &mut stream);
        }
    });
    (url, requests)
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    let length = |head: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        line.and_then(|length| length.parse::<usize>().ok()).unwrap_or(0)
    };
    loop {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            break;
        }
        bytes.push(byte[0]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.split_once("\r\n\r\n").is_some_and(|(head, body)| body.len() >= length(head)) {
            break;
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn reply(stream: &mut TcpStream, status: u16, body: &str) {
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice());
}

fn key_of(request: &str) -> String {
    let body = request.split_once("\r\n\r\n").unwrap().1;
    let new: NewReservation = serde_json::from_str(body).unwrap();
    new.idempotency_key.unwrap()
}

#[test]
fn a_lost_reply_is_asked_for_again_with_the_same_key() {
    let (url, requests) = server(|number, stream| {
        // The first connection is closed after the request was read.
        if number > 0 {
            reply(stream, 200, SCHEDULED);
        }
    });
    let client = client(&url);
    let made = within(&client, LONG_MS, |at| client.add(request(), at)).unwrap();
    assert_eq!((made.id, made.state), (7, WireReservationState::Scheduled));
    let keys: Vec<_> = requests.try_iter().map(|text| key_of(&text)).collect();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    within(&client, LONG_MS, |at| client.add(request(), at)).unwrap();
    assert_ne!(key_of(&requests.recv().unwrap()), keys[0]);
}

#[test]
fn an_extension_is_not_repeated_when_its_reply_is_lost() {
    let (url, requests) = server(|_, _| {});
    let client = client(&url);
    let error = within(&client, LONG_MS, |at| client.extend(7, 1, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::InDoubt);
    assert_eq!(requests.try_iter().count(), 1);
}

#[test]
fn a_removal_whose_reply_was_lost_has_removed() {
    let ended = r#"{"id":7,"state":"UNDEFINED","ended":"removed","user":1,"target":"fs"}"#;
    let (url, _requests) = server(move |number, stream| match number {
        0 => {}
        1 => reply(stream, 404, r#"{"code":"not_found","message":"none"}"#),
        _ => reply(stream, 200, ended),
    });
    let client = client(&url);
    assert!(within(&client, LONG_MS, |at| client.remove(7, at)).unwrap());
}

#[test]
fn a_removal_of_what_has_ended_says_so() {
    let (url, _requests) =
        server(|_, stream| reply(stream, 404, r#"{"code":"not_found","message":"none"}"#));
    let client = client(&url);
    assert!(!within(&client, LONG_MS, |at| client.remove(7, at)).unwrap());
    let state = within(&client, LONG_MS, |at| client.test(7, at)).unwrap();
    assert_eq!(state, WireReservationState::Undefined);
    let error = within(&client, LONG_MS, |at| client.finish(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::NotFound);
}

#[test]
fn a_server_that_says_nothing_or_ever_more_is_given_up_at_the_time_limit() {
    let scripts: [fn(usize, &mut TcpStream); 3] = [
        |_, stream| drop(stream.read(&mut [0])),
        |_, stream| while stream.write_all(b"H").is_ok() {},
        |_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        },
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let (url, _requests) = server(script);
        let client = client(&url);
        let error = within(&client, 100, |at| client.details(7, at)).unwrap_err();
        // A head without an end is too long before the time is over.
        let codes = [CallErrorCode::TimedOut, CallErrorCode::Protocol];
        assert!(codes.contains(&error.code), "{number}: {error:?}");
        assert!(number == 1 || error.code == CallErrorCode::TimedOut, "{number}: {error:?}");
    }
}

#[test]
fn a_listener_that_accepts_nothing_and_a_dead_address_end_with_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let silent = client(&format!("http://{at}"));
    let error = within(&silent, 100, |at| silent.details(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::TimedOut);
    // TEST-NET-1: no route, or nobody who replies
    let dead = client("http://192.0.2.1:5650");
    let error = within(&dead, 100, |at| dead.details(7, at)).unwrap_err();
    assert!([CallErrorCode::TimedOut, CallErrorCode::Unreachable].contains(&error.code));
    drop(listener);
    let closed = client(&format!("http://{at}"));
    let error = within(&closed, LONG_MS, |at| closed.details(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::Unreachable);
    let socket = client("unix:///nonexistent/socket");
    let error = within(&socket, LONG_MS, |at| socket.details(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::Unreachable);
}

#[test]
fn replies_that_are_too_long_or_malformed_are_refused() {
    let scripts: [fn(&mut TcpStream); 6] = [
        |stream| reply(stream, 200, "{\"id\":"),
        |stream| reply(stream, 200, "[1,2]"),
        |stream| drop(stream.write_all(b"SSH-2.0-x\r\n\r\n")),
        |stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n");
        },
        |stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b' '; 65_536]).is_ok() {}
        },
        |stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            while stream.write_all(b"a: b\r\n").is_ok() {}
        },
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let (url, _requests) = server(move |_, stream| script(stream));
        let client = client(&url);
        let error = within(&client, LONG_MS, |at| client.details(7, at)).unwrap_err();
        assert_eq!(error.code, CallErrorCode::Protocol, "{number}: {error:?}");
    }
}

#[test]
fn the_leader_is_found_behind_standbys_and_dead_controllers_and_kept() {
    let standby = r#"{"code":"not_leader","message":"a standby","leader":"http://other:1"}"#;
    let (first, asked) = server(move |_, stream| reply(stream, 421, standby));
    let (second, _requests) = server(|_, stream| reply(stream, 200, ACTIVE));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = client(&format!("http://{gone},{first},{second}"));
    for _ in 0..3 {
        let state = within(&client, LONG_MS, |at| client.test(7, at)).unwrap();
        assert_eq!(state, WireReservationState::Active);
    }
    assert_eq!(asked.try_iter().count(), 1);
}

#[test]
fn an_election_is_waited_for_within_the_time_limit() {
    let none = r#"{"code":"no_leader","message":"nobody leads"}"#;
    let (url, _requests) = server(move |number, stream| match number {
        0 | 1 => reply(stream, 421, none),
        _ => reply(stream, 200, ACTIVE),
    });
    let client = client(&url);
    let state = within(&client, LONG_MS, |at| client.test(7, at)).unwrap();
    assert_eq!(state, WireReservationState::Active);
    let (url, _requests) = server(move |_, stream| reply(stream, 421, none));
    let client = self::client(&url);
    // Within a limit that is too short for one reply it is not known why.
    until("a controller is heard", || {
        let error = within(&client, 200, |at| client.test(7, at)).unwrap_err();
        assert!([CallErrorCode::Unavailable, CallErrorCode::TimedOut].contains(&error.code));
        error.code == CallErrorCode::Unavailable && error.text == "nobody leads"
    });
}

#[test]
fn a_refusal_says_what_would_fit() {
    let refusal = r#"{"code":"does_not_fit","message":"too much","refusal":{"kind":"target",
        "bottleneck":"fs","taken_by":["rule jobs"],"next_start_ns":9,"fits_now_ppm":500000}}"#;
    let (url, requests) = server(move |_, stream| reply(stream, 409, refusal));
    let client = client(&url);
    let error = within(&client, LONG_MS, |at| client.add(request(), at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::DoesNotFit);
    assert_eq!(error.refusal.unwrap().next_start_ns, Some(9));
    assert_eq!(requests.try_iter().count(), 1);
}

#[test]
fn a_wait_ends_when_it_is_active_when_it_has_ended_and_when_it_is_cancelled() {
    let (url, _requests) = server(|number, stream| match number {
        0..4 => reply(stream, 200, SCHEDULED),
        _ => reply(stream, 200, ACTIVE),
    });
    let waiting = client(&url);
    let end = within(&waiting, LONG_MS, |at| waiting.wait(7, false, at)).unwrap();
    assert_eq!(end, WaitEnd::Active);

    let (url, _requests) = server(|number, stream| match number {
        0 | 1 => reply(stream, 200, SCHEDULED),
        _ => reply(stream, 404, r#"{"code":"not_found","message":"none"}"#),
    });
    let waiting = client(&url);
    let end = within(&waiting, LONG_MS, |at| waiting.wait(7, false, at)).unwrap();
    assert_eq!(end, WaitEnd::Ended);

    let (url, _requests) = server(|_, stream| reply(stream, 200, SCHEDULED));
    let waiting = client(&url);
    let end = within(&waiting, 100, |at| waiting.wait(7, false, at)).unwrap();
    assert_eq!(end, WaitEnd::TimedOut);

    std::thread::scope(|scope| {
        let call = scope.spawn(|| within(&waiting, LONG_MS, |at| waiting.wait(7, false, at)));
        until("the wait is under way", || waiting.calls.cancel() > 0);
        assert_eq!(call.join().unwrap().unwrap_err().code, CallErrorCode::Cancelled);
    });
    assert_eq!(waiting.calls.cancel(), 0);
}

#[test]
fn a_wait_outlasts_a_controller_that_is_restarted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let waiting = client(&format!("http://{at}"));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| within(&waiting, LONG_MS, |at| waiting.wait(7, false, at)));
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream);
        reply(&mut stream, 200, SCHEDULED);
        drop((stream, listener));
        testkit::until_free(&at.to_string());
        let listener = TcpListener::bind(at).unwrap();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            read_request(&mut stream);
            reply(&mut stream, 200, ACTIVE);
            if call.is_finished() {
                break;
            }
            listener.set_nonblocking(true).unwrap();
            let mut next = None;
            until("another request, or the end", || {
                next = listener.accept().ok();
                next.is_some() || call.is_finished()
            });
            if let Some((mut stream, _)) = next {
                stream.set_nonblocking(false).unwrap();
                read_request(&mut stream);
                reply(&mut stream, 200, ACTIVE);
                break;
            }
        }
        assert_eq!(call.join().unwrap().unwrap(), WaitEnd::Active);
    });
}

#[test]
fn eight_threads_share_a_handle() {
    let (url, _requests) = server(|_, stream| reply(stream, 200, ACTIVE));
    let client = Arc::new(client(&url));
    let count = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (client, count) = (client.clone(), count.clone());
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let state =
                        within(&client, PATIENCE.as_millis() as u32, |at| client.test(7, at));
                    assert_eq!(state.unwrap(), WireReservationState::Active);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(count.load(Ordering::Relaxed), 160);
}

#[test]
fn a_token_is_sent_and_only_one_that_nobody_else_can_read() {
    let folder = TestFolder::new();
    let path = folder.path().join("token");
    let open = |text: &str, mode: u32, controller: &str| {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let credentials = Credentials { token_file: Some(path.clone()), ..Credentials::default() };
        ControllerClient::open(LibrarySettings { credentials, ..settings(controller) })
    };
    let (url, requests) = server(|_, stream| reply(stream, 200, ACTIVE));
    for mode in [0o400, 0o600] {
        let client = open("slc_abc-_9\n", mode, &url).unwrap();
        within(&client, LONG_MS, |at| client.test(7, at)).unwrap();
        assert!(requests.recv().unwrap().contains("authorization: Bearer slc_abc-_9\r\n"));
    }
    let refused = |text: &str, mode: u32, controller: &str| {
        let error = open(text, mode, controller).err().expect("it is refused");
        assert_eq!(error.code, CallErrorCode::Settings);
        error.text
    };
    for mode in [0o640, 0o604, 0o660] {
        assert!(refused("slc_a", mode, &url).contains(&format!("mode {mode:04o}")));
    }
    for text in ["", "abc", "slc_", "slc_a b", "slc_a\r\nx: y"] {
        assert!(refused(text, 0o600, &url).contains("is not a token"));
    }
    assert!(refused("slc_a", 0o600, "http://192.0.2.1:1").contains("https://192.0.2.1:1"));
    if testkit::root_here() {
        std::fs::write(&path, "slc_a").unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let credentials = Credentials { token_file: Some(path.clone()), ..Credentials::default() };
        let error = ControllerClient::open(LibrarySettings { credentials, ..settings(&url) });
        assert!(error.err().expect("it is refused").text.contains("65534"));
    }
    let https = ControllerClient::open(settings("https://127.0.0.1:1")).err().unwrap();
    assert!(https.text.contains("without a CA"), "{}", https.text);
}
