//! `sluice proxy` as an administrator meets it: what it prints, what signals do, and
//! what the other commands say about it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{P9Client, PATIENCE};
use ninep::{Fid, Request};
use rustix::process::{Pid, Signal, kill_process};

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

/// A proxy in a directory of its own; killed and removed at the end.
struct Proxy {
    dir: PathBuf,
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Proxy {
    /// Starts a proxy with a configuration, where `@` stands for the directory, and a
    /// rule file beside it.
    fn start(name: &str, config: &str, rules: &str) -> Proxy {
        let dir = testkit::place(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("data")).unwrap();
        write_config(&dir, config);
        fs::write(dir.join("rules.toml"), rules).unwrap();
        let mut child = Command::new(SLUICE)
            .args(["proxy", "--listen", "tcp://127.0.0.1:0", "--config"])
            .arg(dir.join("sluice.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Proxy { dir, child, stdout, stderr }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line of stderr that contains `text`.
    fn told(&self, text: &str) -> String {
        loop {
            let line = self.stderr.recv_timeout(PATIENCE).expect("the line comes");
            if line.contains(text) {
                return line;
            }
        }
    }

    fn wait_until_ready(&self) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line = self.stdout.recv_timeout(PATIENCE).expect("the proxy gets ready");
            if line == "ready" {
                return seen;
            }
            seen.push(line);
        }
    }

    fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.wait().unwrap()
    }

    fn api(&self) -> String {
        format!("unix://{}/api", self.dir.display())
    }

    fn ask(&self, command: &[&str]) -> Output {
        Command::new(SLUICE).args(command).args(["--proxy", &self.api()]).output().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The lines of a stream as they come.
fn lines(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Whoever reads may be done; the stream must be drained all the same.
            let _ = to.send(line);
        }
    });
    lines
}

fn write_config(dir: &Path, text: &str) {
    let text = text.replace('@', &dir.display().to_string());
    fs::write(dir.join("sluice.toml"), text).unwrap();
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

const CONFIG: &str = "api = \"unix://@/api\"\nrules = \"rules.toml\"\n\
                      [[export]]\nname = \"x\"\ndir = \"data\"\n";

/// A proxy that is ready, with these rules.
fn proxy(name: &str, rules: &str) -> Proxy {
    let proxy = Proxy::start(name, CONFIG, rules);
    proxy.wait_until_ready();
    proxy
}

#[test]
fn it_says_where_it_listens_then_ready_and_ends_with_sigterm() {
    let mut proxy =
        Proxy::start("ready", "api = \"off\"\n[[export]]\nname = \"x\"\ndir = \"data\"\n", "");
    let seen = proxy.wait_until_ready();
    let port = seen[0].strip_prefix("listening on tcp://127.0.0.1:").unwrap();
    assert_ne!(port.parse::<u16>().unwrap(), 0);
    assert_eq!(seen.len(), 1);
    assert_eq!(proxy.end().code(), Some(0));
}

#[test]
fn a_configuration_with_an_error_starts_nothing_and_names_the_line() {
    let mut proxy = Proxy::start("wrong", "threads = 1\nmsize_max = \"64\"\n", "");
    let first = proxy.told("sluice: ");
    let place = format!("sluice: {}/sluice.toml:2:13: \"64\" is not", proxy.dir.display());
    assert!(first.starts_with(&place), "{first}");
    assert_eq!(proxy.told("|"), "  2 | msize_max = \"64\"");
    assert_eq!(proxy.child.wait().unwrap().code(), Some(1));
}

#[test]
fn what_the_system_refuses_is_told_once() {
    let config = CONFIG.replace("rules.toml", "none.toml");
    let mut proxy = Proxy::start("refused", &config, "");
    let expected = format!(
        "sluice: cannot read the rules {}/none.toml: No such file or directory (os error 2)",
        proxy.dir.display()
    );
    assert_eq!(proxy.told("sluice: "), expected);
    assert_eq!(proxy.child.wait().unwrap().code(), Some(1));
}

#[test]
fn sighup_reads_the_rules_again() {
    let proxy = proxy("reload", "[[rule]]\nname = \"old\"\n");
    assert!(stdout(&proxy.ask(&["rule", "list"])).contains("\nold "));
    fs::write(proxy.dir.join("rules.toml"), "[[rule]]\nname = \"new\"\nweight = 7\n").unwrap();
    proxy.signal(Signal::HUP);
    proxy.told("reloaded configuration and rules");
    let rules: serde_json::Value =
        serde_json::from_str(&stdout(&proxy.ask(&["rule", "list", "--json"]))).unwrap();
    assert_eq!(
        (&rules["rules"][0]["name"], &rules["rules"][0]["weight"]),
        (&"new".into(), &7.into())
    );
    let text = stdout(&proxy.ask(&["rule", "export"]));
    assert_eq!(text, "[[rule]]\nname = \"new\"\nweight = 7\n");
}

#[test]
fn sighup_with_a_bad_file_names_the_line_and_leaves_the_old_in_force() {
    let mut proxy = proxy("bad", "[[rule]]\nname = \"old\"\n");
    fs::write(proxy.dir.join("rules.toml"), "[[rule]]\nname = \"new\"\nweight = 0\n").unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.told("stay in force");
    assert!(line.contains("/rules.toml:3:10: "), "{line}");
    assert!(stdout(&proxy.ask(&["rule", "list"])).contains("\nold "));
    fs::remove_file(proxy.dir.join("rules.toml")).unwrap();
    write_config(&proxy.dir, "thread = 1\n");
    proxy.signal(Signal::HUP);
    let line = proxy.told("stay in force");
    assert!(line.contains("/sluice.toml:1:1: unknown field \"thread\""), "{line}");
    assert!(stdout(&proxy.ask(&["rule", "list"])).contains("\nold "));
    assert_eq!(proxy.end().code(), Some(0));
}

#[test]
fn rules_are_imported_at_once_and_a_bad_file_leaves_the_old_in_force() {
    let proxy = proxy("import", "[[rule]]\nname = \"old\"\n");
    let file = proxy.dir.join("other.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "[[rule]]\nname = \"new\"\nweight = 0\n").unwrap();
    let refused = proxy.ask(&["rule", "import", path]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("other.toml:3:10: "), "{why}");
    assert!(stdout(&proxy.ask(&["rule", "list"])).contains("\nold "));
    fs::write(&file, "[[rule]]\nname = \"new\"\n").unwrap();
    assert!(stdout(&proxy.ask(&["rule", "import", path])).contains("\nnew "));
    assert!(stdout(&proxy.ask(&["rule", "list"])).contains("\nnew "));
}

#[test]
fn top_shows_a_table_and_json_of_a_proxy_without_clients() {
    let proxy = proxy("top", "");
    let once = ["top", "--once", "--interval", "50ms"];
    let table = stdout(&proxy.ask(&once));
    assert!(table.starts_with("JOB  READ MB/s  WRITTEN MB/s  OPS/s"), "{table}");
    let json = stdout(&proxy.ask(&[&once[..], &["--json", "--by", "class"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["by"], "class");
    assert_eq!(report["status"]["pid"], proxy.child.id());
    assert_eq!(report["status"]["exports"][0]["name"], "x");
}

#[test]
fn top_of_a_proxy_that_does_not_schedule_says_so_and_shows_connections() {
    let config = format!("schedule = false\n{CONFIG}");
    let proxy = Proxy::start("unscheduled", &config, "");
    let seen = proxy.wait_until_ready();
    let port = seen[0].strip_prefix("listening on tcp://127.0.0.1:").unwrap();
    let mut client = P9Client::tcp(([127, 0, 0, 1], port.parse().unwrap()).into());
    client.version(1 << 16);
    client.attach_as(0, "x?job=a", "ann", 1000).unwrap();
    let once = ["top", "--once", "--interval", "50ms", "--by"];
    let table = stdout(&proxy.ask(&[&once[..], &["job"]].concat()));
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("JOB ") && lines[1].starts_with("a "), "{table}");
    assert!(lines[2].starts_with("not scheduling (--no-schedule)"), "{table}");
    let json = stdout(&proxy.ask(&[&once[..], &["class", "--json"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["rows"], serde_json::json!([]));
    assert!(report["note"].as_str().unwrap().starts_with("not scheduling"));
}

#[test]
fn the_api_counts_what_was_done_and_names_who_attached() {
    // A read puts the next one off for 40 s.
    let rules = "[[rule]]\nname = \"slow\"\nlimit = { kinds = [\"read\"], rate = \"100B/s\" }\n";
    let proxy = Proxy::start("totals", CONFIG, rules);
    let seen = proxy.wait_until_ready();
    let port = seen[0].strip_prefix("listening on tcp://127.0.0.1:").unwrap();
    fs::set_permissions(proxy.dir.join("data"), fs::Permissions::from_mode(0o777)).unwrap();
    let connect = || {
        let mut client = P9Client::tcp(([127, 0, 0, 1], port.parse().unwrap()).into());
        client.version(1 << 16);
        client
    };
    let mut client = connect();
    client.attach_as(0, "x?job=a", "ann", 1000).unwrap();
    client.attach_named(9, "x", "").unwrap();
    client.make(1, "f");
    client.write(1, 0, &[7; 5000]).unwrap();
    assert_eq!(client.read(1, 1000, 8000).unwrap().len(), 4000);
    client.walk(0, 2, &["none"]).unwrap_err();
    client.read(7, 0, 100).unwrap_err();
    client.stat(0).unwrap();
    let waits = Request::Read { fid: Fid(1), offset: 0, count: 100 };
    let oldtag = client.send(&waits);
    client.done(&Request::Flush { oldtag }).unwrap();

    let api = http::ApiClient::new(&proxy.api().parse().unwrap()).unwrap();
    let all = api.connections().unwrap().connections;
    assert_eq!(all.len(), 1);
    let names: Vec<_> = all[0].attaches.iter().map(|a| (a.uname.as_deref(), &*a.job)).collect();
    assert_eq!(names, [(Some("ann"), "a"), (None, "")]);
    assert_eq!((all[0].attaches[0].uid, &*all[0].attaches[0].export), (1000, "x"));
    // Two attaches, walk and create, write, read, the two errors, getattr.
    let expected = api::ProxyTotals {
        requests: 9,
        read_bytes: 4000,
        written_bytes: 5000,
        ops: 8,
        errors: 2,
        cancelled: 1,
    };
    assert_eq!(all[0].totals, expected);
    assert_eq!(api.status().unwrap().totals, expected);
    // What was done stays done when the connection is gone, its waiting request cancelled.
    client.send(&waits);
    client.walk(0, 3, &[]).unwrap();
    drop(client);
    testkit::until("the connection is closed", || api.status().unwrap().connections == 0);
    let left = api::ProxyTotals { requests: 10, ops: 9, cancelled: 2, ..expected };
    assert_eq!(api.status().unwrap().totals, left);
}

#[test]
fn without_a_proxy_the_commands_say_where_they_looked() {
    let command = ["top", "--once", "--proxy", "unix:///nonexistent/api"];
    let output = Command::new(SLUICE).args(command).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "sluice: cannot connect to /nonexistent/api (nothing listens there): No such file or \
         directory (os error 2)\n"
    );
}
