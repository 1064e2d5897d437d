//! Logs that cannot be written, and logs that say the same again and again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testkit::TestFolder;

use crate::common::{Controller, P9Client, SLUICE, Setup, USER, until};

/// Ways in which stderr takes nothing, for bash.
const UNWRITABLE: [&str; 2] = ["2>/dev/full", "2> >(exec true)"];

fn without_log(name: &str, how: &str) -> Setup {
    let script = format!("exec \"$0\" \"$@\" {how}");
    Setup::new(name).under(&["bash", "-c", &script])
}

/// Has the proxy log `count` warnings: a client wants more than it may have.
fn provoke(client: &mut P9Client, count: usize) {
    let mut refusals = (1..).filter(|fid| client.walk(0, *fid, &["f"]).is_err());
    assert!(refusals.nth(count - 1).is_some());
}

#[test]
fn a_proxy_whose_log_cannot_be_written_serves_on_and_ends_as_it_should() {
    for (at, how) in UNWRITABLE.iter().enumerate() {
        let setup = without_log(&format!("nolog{at}"), how).top("open_files_max = 9");
        let mut proxy = setup.start();
        fs::write(proxy.data().join("f"), "text").unwrap();
        let mut client = proxy.client();
        provoke(&mut client, 20);
        client.stat(0).unwrap();
        proxy.client_of("x", USER + 1).stat(0).unwrap();
        proxy.signal(Signal::TERM);
        assert!(proxy.wait().success(), "{how}");
    }
}

#[test]
fn a_proxy_that_cannot_say_where_it_listens_listens() {
    let folder = TestFolder::new();
    let socket = folder.path().join("9p");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut proxy = Command::new(SLUICE)
        .args(["proxy", "--api", "off", "--listen", &format!("unix://{}", socket.display())])
        .args(["--export", &format!("x={}", folder.path().display())])
        .stdout(full)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it listens", || UnixStream::connect(&socket).is_ok());
    let mut client = P9Client::unix(&socket);
    client.version(1 << 16);
    client.attach(0, "x", USER).unwrap();
    client.stat(0).unwrap();
    proxy.kill().unwrap();
    proxy.wait().unwrap();
}

#[test]
fn a_controller_whose_log_cannot_be_written_goes_on_with_all_its_threads() {
    for how in UNWRITABLE {
        let folder = TestFolder::new();
        let seen = folder.path().join("seen");
        // Each failure is a warning of the thread that runs the command.
        let on_event = format!("echo >> {}; exit 1", seen.display());
        let script = format!("exec \"$0\" \"$@\" {how}");
        let mut command = Command::new("bash");
        command.args(["-c", &script, SLUICE, "controller", "--listen", "http://127.0.0.1:0"]);
        command.arg("--data").arg(folder.path().join("data")).args(["--on-event", &on_event]);
        let controller = Controller::of(command, "ready");
        let count = || fs::read_to_string(&seen).map_or(0, |text| text.lines().count());
        until("the first event is passed on", || count() == 1);
        for (nth, name) in ["a", "b"].into_iter().enumerate() {
            let url = format!("http://{}", controller.at());
            let edited = Command::new(SLUICE)
                .args(["rule", "start", name, "--controller", &url])
                .args(["--match", "*", "--limit", "1MB/s"])
                .output()
                .unwrap();
            assert!(edited.status.success(), "{edited:?}");
            until("the next event is passed on", || count() == nth + 2);
        }
    }
}

/// The number in a field of a line of the log.
fn field(line: &str, name: &str) -> u64 {
    let (_, text) = line.split_once(&format!("{name}=")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_line_that_repeats_is_limited_and_what_was_left_out_is_counted() {
    const REFUSED: usize = 200;
    let mut proxy = Setup::new("repeats").top("open_files_max = 9").start();
    fs::write(proxy.data().join("f"), "text").unwrap();
    let mut client = proxy.client();
    provoke(&mut client, REFUSED);
    drop(client);
    proxy.signal(Signal::TERM);
    assert!(proxy.wait().success());
    let text = proxy.rest_of_stderr();
    let lines = || text.lines().filter(|line| line.contains("proxy::bounds"));
    let (counts, passed): (Vec<_>, Vec<_>) =
        lines().partition(|line| line.contains("sluice::repeats"));
    assert!(!counts.is_empty(), "{text}");
    let left_out: u64 = counts.iter().map(|line| field(line, "count")).sum();
    assert_eq!(passed.len() as u64 + left_out, REFUSED as u64, "{text}");
    assert!(passed.len() < left_out as usize, "{text}");
}
