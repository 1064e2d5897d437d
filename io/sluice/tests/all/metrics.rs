//! Metrics: what a page says is what was done, and every panel of every dashboard finds it.
//!
//! ```text
//!   clients ─► two proxies, a mount, a controller ─► Prometheus (Debian's), twice a second
//!                                         ▲
//!   dashboard/grafana/*.json ─► each query ─► is there a figure?
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Controller, P9Client, PATIENCE, Proxy, Setup, until};
use crate::mounted::{Mounted, can_mount, setup};
use crate::prometheus::{Page, Panel, Prometheus, panels};

/// Between two rounds of a load: Prometheus needs a processor too.
const PACE: Duration = Duration::from_millis(20);
const SHOWN: &str = "metrics = \"http://127.0.0.1:0\"";
/// A limit that nobody reaches.
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\nlimit = \"100GB/s\"\n";

#[test]
fn every_panel_of_every_dashboard_finds_data_in_prometheus() {
    let Some(program) = Prometheus::program() else { return };
    let data = Setup::new("metrics-controller").dir();
    let controller = Controller::start(&data, "http://127.0.0.1:0");
    controller.client().set_rules(RULES).unwrap();
    let proxies = ["metrics-a", "metrics-b"].map(|name| member(name, name, &controller));
    let mount = can_mount().then(|| Mounted::new(&proxies[0], "metrics=http://127.0.0.1:0"));
    let mut at: Vec<String> = proxies.iter().map(Proxy::metrics).collect();
    at.extend(mount.as_ref().map(|mount| mount.metrics()));
    at.push(controller.at().into());
    let prometheus = Prometheus::start(&program, &at);
    let is_over = AtomicBool::new(false);
    let missing = std::thread::scope(|scope| {
        for (proxy, jobs) in proxies.iter().zip([["a.1", "a.2"], ["b.1", "a.1"]]) {
            for (uid, job) in jobs.into_iter().enumerate() {
                let is_over = &is_over;
                scope.spawn(move || work(proxy, job, 1000 + uid as u32, is_over));
            }
        }
        if let Some(mount) = &mount {
            scope.spawn(|| write_and_list(mount.at(), &is_over));
        }
        // Also when it panics: the scope waits for the threads.
        let _end = End(&is_over);
        find_all(&prometheus, mount.is_some())
    });
    fs::remove_dir_all(&data).unwrap();
    assert!(missing.is_empty(), "without data after {PATIENCE:?}: {missing:#?}");
    let expected = ["a.1", "a.2", "b.1", "none", "other"].map(String::from);
    let expected = expected.into_iter().filter(|job| mount.is_some() || job != "none");
    let expected: BTreeSet<_> = expected.collect();
    let mut jobs = BTreeSet::new();
    until("each job was scraped", || {
        jobs = prometheus.labels("count by (jobid) (sluice_job_requests_total)", "jobid");
        jobs.is_superset(&expected)
    });
    assert_eq!(jobs, expected);
}

/// A controller's proxy with one target.
fn member(name: &str, target: &str, controller: &Controller) -> Proxy {
    let tables = format!(
        "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"{target}\"\n\
         [[target]]\nname = \"{target}\"\n"
    );
    let top = format!("{SHOWN}\ncontroller = \"{}\"\nproxy_name = \"{name}\"", controller.url);
    setup(name).top(&top).tables(&tables).start()
}

/// Ends the load when dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks for every panel until it has data; those that never had.
fn find_all(prometheus: &Prometheus, has_mount: bool) -> Vec<String> {
    let dashboards = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard/grafana");
    let mut missing = panels(&dashboards);
    assert!(missing.len() > 50, "only {} queries in {}", missing.len(), dashboards.display());
    missing.retain(|panel| has_mount || panel.dashboard != "mounts");
    let began = Instant::now();
    while !missing.is_empty() && began.elapsed() < PATIENCE {
        missing.retain(|panel| prometheus.find(&panel.query).is_none());
        std::thread::yield_now();
    }
    missing.iter().map(Panel::to_string).collect()
}

/// Everything that panels show: payload, names, attributes, errors.
fn work(proxy: &Proxy, job: &str, uid: u32, is_over: &AtomicBool) {
    let mut client = proxy.client_of(&format!("x?job={job}"), uid);
    let (file, data) = (format!("{job}.{uid}"), vec![7; 64 << 10]);
    client.make(1, &file);
    while !is_over.load(Ordering::Relaxed) {
        client.write(1, 0, &data).unwrap();
        client.read(1, 0, 64 << 10).unwrap();
        client.stat(1).unwrap();
        client.walk(0, 2, &["no such file"]).unwrap_err();
        client.make(3, &format!("{file}.new"));
        client.clunk(3).unwrap();
        client.unlink(0, &format!("{file}.new"), 0).unwrap();
        client.walk(0, 4, &[]).unwrap();
        client.open(4, 0).unwrap();
        client.list(4, 4096);
        client.clunk(4).unwrap();
        std::thread::sleep(PACE);
    }
}

fn write_and_list(at: &Path, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        fs::write(at.join("mounted"), "hello").unwrap();
        fs::read_dir(at).unwrap().for_each(|entry| drop(entry.unwrap()));
        fs::remove_file(at.join("mounted")).unwrap();
        std::thread::sleep(PACE);
    }
}

#[test]
fn a_job_has_the_line_that_says_what_it_did() {
    let proxy = Setup::new("metrics-job").top(SHOWN).start();
    let mut client = proxy.client_of("x?job=night.7", 1234);
    // Its line begins here.
    Page::of(&proxy);
    client.make(1, "file");
    for at in 0..3 {
        client.write(1, at * 4096, &[7; 4096]).unwrap();
    }
    client.read(1, 0, 100).unwrap();
    let requests = |page: &Page| page.value("sluice_job_requests_total", "night.7");
    // The last one is counted once it is over, which is after its answer.
    until("all are counted", || requests(&Page::of(&proxy)) == 6.0);
    let page = Page::of(&proxy);
    for line in ["jobid=\"night.7\"", "uid=\"1234\""] {
        let word = if line.starts_with("uid") { "user" } else { "job" };
        let value = |name: &str| page.value(&format!("sluice_{word}_{name}"), line);
        assert_eq!((value("read_bytes_total"), value("written_bytes_total")), (100.0, 12288.0));
        // The walk and the create; reads and writes are no metadata.
        assert_eq!((value("metadata_operations_total"), value("requests_total")), (2.0, 6.0));
        assert!(value("service_seconds_total") > 0.0 && value("cost_seconds_total") > 0.0);
        // What it did before it had a line is the others'.
        assert_eq!(page.value(&format!("sluice_{word}_written_bytes_total"), "other"), 0.0);
    }
    let written = "kind=\"write\"";
    assert_eq!(page.value("sluice_target_requests_total", written), 3.0);
    assert_eq!(page.value("sluice_target_bytes_total", written), 12288.0);
    assert_eq!(page.value("sluice_target_service_seconds_count", written), 3.0);
    assert_eq!(page.value("sluice_proxy_written_bytes_total", ""), 12288.0);
}

#[test]
fn hundreds_of_jobs_have_fifty_lines_and_together_all_that_was_done() {
    let proxy = Setup::new("metrics-crowd").top(SHOWN).start();
    let mut client = proxy.connect();
    client.version(64 << 10);
    for job in 0..300 {
        client.attach(job, &format!("x?job=crowd.{job}"), 1000 + job).unwrap();
    }
    // The last value of each line: one that is not shown stands still.
    let mut known: BTreeMap<String, f64> = BTreeMap::new();
    Page::of(&proxy);
    for round in 1..4 {
        for job in 0..300 {
            // Each time others are the busiest, by far.
            let is_busy = (job + round * 97) % 300 / 250;
            for _ in 0..1 + is_busy * 10 * 3u32.pow(round) {
                client.stat(job).unwrap();
            }
        }
        // The last one is counted once it is over, which is after its answer.
        until("the lines are together all that was done", || {
            let page = Page::of(&proxy);
            assert_eq!(page.value("sluice_target_jobs", ""), 300.0);
            let all: f64 = page.lines("sluice_target_requests_total").map(|line| line.1).sum();
            ["sluice_job_requests_total", "sluice_user_requests_total"].iter().all(|name| {
                assert_eq!(page.lines(name).count(), 51, "{name} in round {round}");
                let key = |labels: &str| format!("{name}{labels}");
                known.extend(page.lines(name).map(|(labels, value)| (key(labels), value)));
                let ours = known.iter().filter(|(line, _)| line.starts_with(name));
                ours.map(|(_, value)| value).sum::<f64>() == all
            })
        });
    }
    assert!(known.len() > 2 * 51, "nobody ever came to a line or left one");
}

#[test]
fn a_mount_says_whom_it_asks_and_what_is_open() {
    if !can_mount() {
        return;
    }
    let proxy = setup("metrics-mount").start();
    let mount = Mounted::new(&proxy, "threads=2,metrics=http://127.0.0.1:0");
    let page = || Page::at(&mount.metrics());
    fs::write(mount.join("file"), "hello").unwrap();
    let open = fs::File::open(mount.join("file")).unwrap();
    // The kernel closes the written one in its own time.
    until("one file is open", || page().value("sluice_mount_open_files", "") == 1.0);
    until("both threads are connected", || {
        page().value("sluice_mount_connects_total", "//x") == 2.0
    });
    let then = page();
    assert!(then.value("sluice_mount_calls_total", "ok") > 0.0);
    assert_eq!(then.value("sluice_mount_connections_down", "//x"), 0.0);
    let errors = then.value("sluice_mount_calls_total", "error");
    fs::metadata(mount.join("no such file")).unwrap_err();
    until("the error is counted", || {
        page().value("sluice_mount_calls_total", "error") == errors + 1.0
    });
    drop(open);
    until("the file is closed", || page().value("sluice_mount_open_files", "") == 0.0);
    proxy.crash();
    until("it says so", || page().value("sluice_mount_connections_down", "//x") > 0.0);
}

#[test]
fn a_controller_says_whom_it_knows_and_what_it_counted() {
    let data = Setup::new("metrics-knows").dir();
    let controller = Controller::start(&data, "http://127.0.0.1:0");
    let page = || Page::at(controller.at());
    let empty = page();
    assert_eq!(empty.value("sluice_build_info", "controller"), 1.0);
    assert_eq!(empty.value("sluice_controller_rules_info", "\"none\""), 1.0);
    assert_eq!(empty.lines("sluice_controller_proxies").count(), 0);
    assert_eq!(empty.value("sluice_controller_queue_max", "plan"), 1024.0);
    let client = controller.client();
    let version = client.set_rules(RULES).unwrap().version;
    assert_eq!(page().value("sluice_controller_rules_info", &version), 1.0);
    let term = client.controller_status().unwrap().term;
    assert_eq!(page().value("sluice_controller_term", ""), term as f64);

    let proxies = ["known-a", "known-b"].map(|name| member(name, "fs", &controller));
    let of_fs = |name: &str| page().value(&format!("sluice_controller_{name}"), "\"fs\"");
    until("both are members", || client.proxies().unwrap().proxies.len() == 2);
    until("both have acknowledged", || of_fs("unacked_proxies") == 0.0);
    until("neither is silent", || (of_fs("proxies"), of_fs("unreachable_proxies")) == (2.0, 0.0));
    let mut job = proxies[0].client_of("x?job=night.7", 1234);
    job.make(1, "file");
    // A scope is listed while it is used.
    until("its limit is divided", || {
        job.write(1, 0, &[7; 4096]).unwrap();
        page().value("sluice_controller_scopes", "") >= 1.0
    });
    for (name, label, least) in [
        ("ledger_lines", "", 1.0),
        ("usage_reports_total", "counted", 1.0),
        ("reports_total", "accepted", 4.0),
        ("assignments_total", "", 2.0),
        ("ledger_bytes", "", 1.0),
    ] {
        until(&format!("{name} is counted"), || {
            page().value(&format!("sluice_controller_{name}"), label) >= least
        });
    }

    let [a, b] = proxies;
    drop(b);
    until("it is missed", || of_fs("unreachable_proxies") == 1.0);
    client.forget_proxy("known-b").unwrap();
    until("one is left", || (of_fs("proxies"), of_fs("unreachable_proxies")) == (1.0, 0.0));
    drop((a, controller));
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn what_checks_pages_for_prometheus_finds_nothing() {
    let Some(program) = Prometheus::program() else { return };
    let proxy = Setup::new("metrics-lint").top(SHOWN).start();
    let is_over = AtomicBool::new(true);
    work(&proxy, "any", 1000, &is_over);
    let data = Setup::new("metrics-lint-controller").dir();
    let controller = Controller::start(&data, "http://127.0.0.1:0");
    let member = member("metrics-lint-member", "fs", &controller);
    until("it is known", || controller.client().proxies().unwrap().proxies.len() == 1);
    for page in [Page::of(&proxy), Page::of(&member), Page::at(controller.at())] {
        assert_eq!(crate::prometheus::check(&program, &page), "");
    }
    drop((member, controller));
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn a_port_for_metrics_shows_nothing_else() {
    let proxy = Setup::new("metrics-only").top(SHOWN).start();
    let answer = crate::prometheus::get(&proxy.metrics(), "/v1/rules");
    assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.0 404 "), "{answer}");
    let mut client: P9Client = proxy.client();
    client.stat(0).unwrap();
}
