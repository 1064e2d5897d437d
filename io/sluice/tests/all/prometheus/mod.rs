//! Debian's Prometheus, pages as it reads them, and the queries of dashboards.
//!
//! ```text
//!   GET /metrics ─► Page: name, labels, value
//!   prometheus.yml ─► Prometheus, killed when dropped ─► /api/v1/query
//!   *.json ─► Panel: dashboard, title, query without Grafana's variables
//! ```

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{PATIENCE, Proxy, skip, until};

/// A page of metrics.
pub struct Page(pub String);

/// A Prometheus that scrapes twice a second.
pub struct Prometheus {
    child: Child,
    dir: PathBuf,
    at: String,
}

/// One query of a dashboard.
pub struct Panel {
    pub dashboard: String,
    pub title: String,
    pub query: String,
}

impl Page {
    /// A proxy's page of now.
    pub fn of(proxy: &Proxy) -> Page {
        Page::at(&proxy.metrics())
    }

    /// The page that is shown at `HOST:PORT`.
    pub fn at(at: &str) -> Page {
        let answer = get(at, "/metrics");
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 OK"), "{head}");
        Page(text.into())
    }

    /// The lines of a name: labels and value.
    pub fn lines(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        let lines = self.0.lines().filter_map(move |line| line.strip_prefix(name));
        let lines = lines.filter(|rest| rest.starts_with(['{', ' ']));
        lines.map(|rest| {
            let (labels, value) = rest.rsplit_once(' ').unwrap();
            (labels, value.parse().unwrap())
        })
    }

    /// The sum of the lines of a name with this text among their labels; there is one.
    pub fn value(&self, name: &str, label: &str) -> f64 {
        let mut values = self.lines(name).filter(|(labels, _)| labels.contains(label)).peekable();
        assert!(values.peek().is_some(), "no {name} with {label} in {}", self.0);
        values.map(|(_, value)| value).sum()
    }
}

impl Prometheus {
    /// Where the program is; says so aloud if it is not.
    pub fn program() -> Option<PathBuf> {
        let found = Path::new("/usr/bin/prometheus");
        if !found.exists() {
            skip("no prometheus here (Debian: prometheus)");
            return None;
        }
        Some(found.into())
    }

    /// Starts one that scrapes what listens at each `HOST:PORT`, and waits until it answers.
    pub fn start(program: &Path, targets: &[String]) -> Prometheus {
        // Another program may take a port between its choice and its use: then it chooses again.
        let mut started = None;
        until("prometheus is ready", || {
            started = Prometheus::try_start(program, targets);
            started.is_some()
        });
        started.expect("it is ready")
    }

    /// `None` if it ended before it was ready.
    fn try_start(program: &Path, targets: &[String]) -> Option<Prometheus> {
        let dir = testkit::place("prometheus");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n\
             - job_name: sluice\n  static_configs: [{{targets: {targets:?}}}]\n"
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        // It takes no port 0: one that was free a moment ago.
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let log = fs::File::create(dir.join("log")).unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={at}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Prometheus { child, dir, at };
        let mut ended = false;
        until("prometheus answers or ends", || {
            ended = prometheus.child.try_wait().unwrap().is_some();
            let is_there = !ended && TcpStream::connect(&prometheus.at).is_ok();
            ended || is_there && get(&prometheus.at, "/-/ready").contains(" 200 OK")
        });
        (!ended).then_some(prometheus)
    }

    /// The largest figure that a query finds; `None` if there is none.
    pub fn find(&self, query: &str) -> Option<f64> {
        let values = self.ask(query).into_iter().filter_map(|one| {
            let value: f64 = one["value"][1].as_str()?.parse().ok()?;
            value.is_finite().then_some(value)
        });
        values.max_by(f64::total_cmp)
    }

    /// All values of a label in what a query finds.
    pub fn labels(&self, query: &str, label: &str) -> BTreeSet<String> {
        let found = self.ask(query);
        found.iter().filter_map(|one| Some(one["metric"][label].as_str()?.to_owned())).collect()
    }

    fn ask(&self, query: &str) -> Vec<Value> {
        let answer = get(&self.at, &format!("/api/v1/query?query={}", escaped(query)));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], "success", "{query}: {body}");
        body["data"]["result"].as_array().unwrap().clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("prometheus said: {log}");
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl fmt::Display for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.dashboard, self.title, self.query)
    }
}

/// Every query of every dashboard in a directory.
pub fn panels(dir: &Path) -> Vec<Panel> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{}: {}", path.display(), panel["title"]);
            all.extend(targets.iter().map(|target| Panel {
                dashboard: path.file_stem().unwrap().to_str().unwrap().into(),
                title: panel["title"].as_str().unwrap().into(),
                query: without_variables(target["expr"].as_str().unwrap()),
            }));
        }
    }
    all
}

/// As Grafana asks with everything chosen.
fn without_variables(query: &str) -> String {
    // Long enough for two scrapes, however late they come.
    let query = query.replace("$__rate_interval", "1m");
    let query = query.replace("$target", ".*").replace("$jobid", ".*");
    assert!(!query.contains('$'), "an unknown variable: {query}");
    query
}

/// What promtool says to a page.
pub fn check(prometheus: &Path, page: &Page) -> String {
    let mut child = Command::new(prometheus.with_file_name("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.0.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().into()
}

/// The whole answer to a GET of what listens at `HOST:PORT`.
pub fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn escaped(query: &str) -> String {
    query.bytes().fold(String::new(), |text, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => text + &(byte as char).to_string(),
        other => text + &format!("%{other:02X}"),
    })
}
