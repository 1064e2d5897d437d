//! Metrics for those who do not ask as Prometheus does: Debian's own InfluxDB and collectd.
//!
//! ```text
//!   proxy ◄─ page ─ sluice metrics influx ───► influxd ─► SELECT last(value) …
//!   proxy ◄─ page ─ sluice metrics collectd ─► collectd's exec plugin ─► its files of values
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Proxy, SLUICE, Setup, copy_program, root_here, skip, until};
use crate::prometheus::{Page, get};
use http::{ApiClient, Endpoint};

const JOB: &str = "night.7";
const WRITTEN: u64 = 12_288;

/// A proxy whose job has written something since its line began.
fn proxy(name: &str) -> Proxy {
    let proxy = Setup::new(name).top("metrics = \"http://127.0.0.1:0\"").start();
    let mut client = proxy.client_of(&format!("x?job={JOB}"), 1234);
    Page::of(&proxy);
    client.make(1, "file");
    for at in 0..WRITTEN / 4096 {
        client.write(1, at * 4096, &[7; 4096]).unwrap();
    }
    let written = || Page::of(&proxy).value("sluice_job_written_bytes_total", JOB);
    until("it is counted", || written() == WRITTEN as f64);
    proxy
}

/// A process and its directory, both gone when dropped; what it said is told by a test that fails.
struct Helper {
    child: Child,
    dir: PathBuf,
}

impl Helper {
    /// An empty directory that everybody may read.
    fn dir(name: &str) -> PathBuf {
        let dir = testkit::place(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn start(dir: PathBuf, command: &mut Command) -> Helper {
        let log = fs::File::create(dir.join("log")).unwrap();
        let both = log.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(log).stderr(both).spawn().unwrap();
        Helper { child, dir }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Where influxd says in its log that it answers, once it does.
fn address(dir: &Path) -> Option<String> {
    let log = fs::read_to_string(dir.join("log")).unwrap();
    let line = log.lines().find(|line| line.contains("Listening on HTTP"))?;
    let at = line.split(' ').find_map(|word| word.strip_prefix("addr="))?;
    get(at, "/ping").contains(" 204 ").then(|| at.to_owned())
}

#[test]
fn influxdb_has_what_a_job_wrote() {
    let program = Path::new("/usr/bin/influxd");
    if !program.exists() {
        return skip("no influxd here (Debian: influxdb)");
    }
    let dir = Helper::dir("influx");
    let here = dir.display();
    let config = format!(
        "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n[meta]\ndir = \"{here}/meta\"\n\
         [data]\ndir = \"{here}/data\"\nwal-dir = \"{here}/wal\"\n\
         [http]\nbind-address = \"127.0.0.1:0\"\n"
    );
    fs::write(dir.join("influxdb.conf"), config).unwrap();
    let mut command = Command::new(program);
    let _influx = Helper::start(
        dir.clone(),
        command.arg("-config").arg(dir.join("influxdb.conf")).env("HOME", &dir),
    );
    let mut at = None;
    until("influxd is ready", || {
        at = address(&dir);
        at.is_some()
    });
    let at = at.expect("it is ready");

    let proxy = proxy("metrics-influx");
    let push = |once: bool| {
        let mut command = Command::new(SLUICE);
        command.args(["metrics", "influx", &format!("http://{}", proxy.metrics()), "--to"]);
        command.args([&format!("http://{at}"), "--host", "node1", "--every", "200ms"]);
        command.args(once.then_some("--once"));
        command
    };
    // Nobody has made the database yet.
    let refused = push(true).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("database sluice"), "{error}");
    let server = ApiClient::at(&format!("http://{at}").parse::<Endpoint>().unwrap()).unwrap();
    server.post_text("/query?q=CREATE%20DATABASE%20sluice", "").unwrap();
    let _pushing = Helper::start(Helper::dir("influx-push"), &mut push(false));
    let query = "/query?db=sluice&q=SELECT%20last(value)%20FROM%20sluice_job_written_bytes_total\
                 %20WHERE%20jobid%3D%27night.7%27%20AND%20host%3D%27node1%27";
    until("influxdb has it", || {
        let answer = get(&at, query);
        answer.contains(" 200 OK") && answer.contains(&format!(",{WRITTEN}]"))
    });
}

#[test]
fn collectd_has_what_a_job_wrote() {
    let program = Path::new("/usr/sbin/collectd");
    if !program.exists() {
        return skip("no collectd here (Debian: collectd-core)");
    }
    if !root_here() {
        return;
    }
    let proxy = proxy("metrics-collectd");
    let dir = Helper::dir("collectd");
    // Its exec plugin refuses root, and others may not reach where this was built.
    let ours = dir.join("sluice");
    copy_program(Path::new(SLUICE), &ours);
    let (here, from) = (dir.display(), proxy.metrics());
    let config = format!(
        "Hostname \"node1\"\nInterval 1\nBaseDir \"{here}\"\nPIDFile \"{here}/pid\"\n\
         PluginDir \"/usr/lib/collectd\"\nTypesDB \"/usr/share/collectd/types.db\"\n\
         LoadPlugin csv\n<Plugin csv>\n  DataDir \"{here}/csv\"\n</Plugin>\n\
         LoadPlugin exec\n<Plugin exec>\n\
         Exec \"nobody\" \"{here}/sluice\" \"metrics\" \"collectd\" \"http://{from}\"\n</Plugin>\n"
    );
    fs::write(dir.join("collectd.conf"), config).unwrap();
    let mut command = Command::new(program);
    let _collectd =
        Helper::start(dir.clone(), command.arg("-f").arg("-C").arg(dir.join("collectd.conf")));
    let values = dir.join("csv/node1/sluice-proxy");
    let is_ours =
        |name: &str| name.starts_with("derive-job_written_bytes_total.") && name.contains(JOB);
    until("collectd has it", || {
        let files = fs::read_dir(&values).into_iter().flatten().flatten();
        let mut ours = files.filter(|file| is_ours(&file.file_name().to_string_lossy()));
        let row = format!(",{WRITTEN}");
        ours.any(|file| fs::read_to_string(file.path()).unwrap().lines().any(|l| l.ends_with(&row)))
    });
}
