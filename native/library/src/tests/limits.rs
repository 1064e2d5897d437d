//! What ends a call, and with which code: lost replies, silent controllers, elections, strangers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

use super::*;

const NO_LEADER: &str = r#"{"code":"no_leader","message":"nobody leads"}"#;

/// An address where nobody listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A socket whose queue of connections is full: who connects waits for as long as this is kept.
struct FullSocket {
    folder: TestFolder,
    _listener: OwnedFd,
    _waiting: Vec<UnixStream>,
}

impl FullSocket {
    fn new() -> FullSocket {
        let folder = TestFolder::new();
        let path = folder.path().join("socket");
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        // unix(7): with a queue of 0 one may wait.
        let waiting = vec![UnixStream::connect(&path).unwrap()];
        FullSocket { folder, _listener: listener, _waiting: waiting }
    }

    fn url(&self) -> String {
        format!("unix://{}/socket", self.folder.path().display())
    }
}

#[test]
fn interim_replies_without_end_are_no_reply() {
    let (url, _requests) =
        server(|_, stream| while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {});
    let asking = client(&url);
    let error = within(&asking, LONG_MS, |at| asking.details(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::Protocol, "{error:?}");
    let (url, _requests) = server(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n");
        reply(stream, 200, ACTIVE);
    });
    let asking = client(&url);
    assert_eq!(within(&asking, LONG_MS, |at| asking.details(7, at)).unwrap().id, 7);
}

#[test]
fn after_a_lost_reply_a_controller_that_has_gone_is_no_promise_that_nothing_was_requested() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let asking = client(&format!("http://{}", listener.local_addr().unwrap()));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| within(&asking, 500, |at| asking.add(request(), at)));
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream);
        drop((stream, listener));
        assert_eq!(call.join().unwrap().unwrap_err().code, CallErrorCode::TimedOut);
    });
}

#[test]
fn a_call_that_the_controller_gave_up_may_have_been_executed() {
    let given_up = r#"{"code":"timeout","message":"not complete within 10 s"}"#;
    let (url, requests) = server(move |number, stream| match number {
        0 => reply(stream, 408, given_up),
        _ => reply(stream, 200, ACTIVE),
    });
    let asking = client(&url);
    within(&asking, LONG_MS, |at| asking.add(request(), at)).unwrap();
    let keys: Vec<_> = requests.try_iter().map(|text| key_of(&text)).collect();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    let (url, requests) = server(move |_, stream| reply(stream, 408, given_up));
    let asking = client(&url);
    let error = within(&asking, LONG_MS, |at| asking.extend(7, 1, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::InDoubt);
    assert_eq!(requests.try_iter().count(), 1);
}

#[test]
fn a_controller_that_accepts_no_connection_takes_its_part_of_the_time_only() {
    let silent = FullSocket::new();
    let (url, _requests) = server(|_, stream| reply(stream, 200, ACTIVE));
    // In a part that is too short for this machine it is the time limit that ends the call.
    until("an extension reaches the second controller", || {
        let asking = client(&format!("{},{url}", silent.url()));
        match within(&asking, 1_000, |at| asking.extend(7, 1, at)) {
            Ok(end_ns) => end_ns == 0,
            Err(error) => {
                let codes = [CallErrorCode::TimedOut, CallErrorCode::InDoubt];
                assert!(codes.contains(&error.code), "{error:?}");
                false
            }
        }
    });
    let asking = client(&format!("{},{}", silent.url(), closed()));
    until("nobody can be reached, before the time limit", || {
        let limit = Instant::now() + Duration::from_millis(500);
        let error = within(&asking, 500, |at| asking.details(7, at)).unwrap_err();
        assert!(error.code == CallErrorCode::Unreachable || Instant::now() >= limit, "{error:?}");
        error.code == CallErrorCode::Unreachable
    });
}

#[test]
fn a_wait_outlasts_an_election_and_from_the_start_a_restart_if_the_reservation_is_known() {
    let (url, _requests) = server(|_, stream| reply(stream, 421, NO_LEADER));
    let waiting = client(&url);
    within(&waiting, 300, |at| waiting.poll(7, at)).unwrap();
    let waiting = client(&closed());
    let end = within(&waiting, 100, |at| waiting.wait(7, true, at)).unwrap();
    assert_eq!(end, WaitEnd::TimedOut);
    let error = within(&waiting, LONG_MS, |at| waiting.wait(7, false, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::Unreachable);
}

#[test]
fn a_web_server_is_no_controller_without_the_reservation() {
    let (url, _requests) = server(|_, stream| reply(stream, 404, "<html>not found</html>"));
    let asking = client(&url);
    let error = within(&asking, LONG_MS, |at| asking.test(7, at)).unwrap_err();
    assert_eq!(error.code, CallErrorCode::Protocol);
}

#[test]
fn a_token_goes_to_a_controller_that_was_named() {
    let folder = TestFolder::new();
    let path = folder.path().join("token");
    std::fs::write(&path, "slc_a").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let credentials = Credentials { token_file: Some(path), ..Credentials::default() };
    let error = ControllerClient::open(LibrarySettings { controller: None, credentials });
    let error = error.err().expect("it is refused");
    assert_eq!(error.code, CallErrorCode::Settings);
    assert!(error.text.contains("SLUICE_CONTROLLER"), "{}", error.text);
    let none = LibrarySettings::default();
    assert_eq!(ControllerClient::open(none).ok().map(|opened| opened.controllers()), Some(1));
}

#[test]
fn a_controller_whose_name_is_unknown_is_not_left_out() {
    // No resolver takes a name with an empty part.
    let error = ControllerClient::open(settings("http://127.0.0.1:1,http://a..b:1"));
    let error = error.err().expect("it is refused");
    assert_eq!(error.code, CallErrorCode::Unreachable);
    assert!(error.text.contains("a..b"), "{}", error.text);
}

#[test]
fn usage_is_that_of_this_user_or_of_the_one_whose_token_it_is() {
    let own = rustix::process::getuid().as_raw();
    let rows = |name: &str, read: u64| {
        let row = format!(r#"{{"name":"{name}","read_bytes":{read},"written_bytes":0}}"#);
        format!(r#"{{"rows":[{row}]}}"#)
    };
    let (url, requests) = server(move |_, stream| reply(stream, 200, &rows(&own.to_string(), 5)));
    let asking = client(&url);
    let usage = within(&asking, LONG_MS, |at| asking.usage(None, 60, at)).unwrap();
    assert_eq!(usage.read_bytes, 5);
    assert!(requests.recv().unwrap().contains(&format!("&user={own} ")));

    let (url, _requests) = server(move |_, stream| reply(stream, 200, &rows("4242", 5)));
    let asking = client(&url);
    let usage = within(&asking, LONG_MS, |at| asking.usage(None, 60, at)).unwrap();
    assert_eq!(usage.read_bytes, 0, "it is another user's");

    let folder = TestFolder::new();
    let path = folder.path().join("token");
    std::fs::write(&path, "slc_a").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let credentials = Credentials { token_file: Some(path), ..Credentials::default() };
    let denied = r#"{"code":"permission_denied","message":"not this user","at":"user"}"#;
    let (url, _requests) = server(move |number, stream| match number {
        0 => reply(stream, 403, denied),
        _ => reply(stream, 200, &rows("4242", 5)),
    });
    let asking = ControllerClient::open(LibrarySettings { credentials, ..settings(&url) }).unwrap();
    let usage = within(&asking, LONG_MS, |at| asking.usage(None, 60, at)).unwrap();
    assert_eq!(usage.read_bytes, 5);
}
