//! The time that a reservation adds to the start of a job, in a real Slurm of four nodes.
//!
//! ```text
//!   srun date, in turn ─┬─ a cluster without Sluice ─┬─ without a burst buffer
//!                       │                            └─ with one whose script allows every job
//!                       └─ one with all of Sluice's files: job_submit, gate, prologs ─ TLS ─► controller ◄─ proxy
//!   start: from the call of srun until the job's command runs
//! ```

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use api::{NewToken, Role};
use http::{ApiClient, Credentials, Endpoints};
use testkit::{SlurmCluster, SlurmFiles, everybodys, native, write_node_program};

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::judge::median;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::super::process::BenchProcess;
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::{SLUICE, output};

pub(super) fn row() -> FigureRow {
    let what = "srun of a job that reserves 1 MB/s with `--qos-bw`, beside srun in a cluster without Sluice: \
                from the call until the job's command runs; added_by_slurm_ms: the same of a job with a burst \
                buffer whose script allows all, without Sluice";
    FigureRow::new(ROW, what, &[SLUICE]).rounds(5, 10.0).goal(
        SLUICE,
        "added_ms",
        FigureBound::Most(200.0),
    )
}

pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    if !sink.wants(ROW) {
        return Ok(());
    }
    add_interface()?;
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let site = match StartSite::start(&bed)? {
        Some(site) => site,
        None => {
            return sink.not_applicable(
                ROW,
                "Slurm cannot run here: Debian's slurm-wlm and root are needed",
            );
        }
    };
    let row = row();
    sink.round_of(&row, |_| site.round(run.time(&row)))
}

/// Adds an interface beside loopback to the namespace of the bench: Slurm finds the name of its own machine
/// only where there is one.
fn add_interface() -> anyhow::Result<()> {
    // of an earlier round; sysfs shows those of the namespace in which it was mounted
    if std::fs::read_to_string("/proc/thread-self/net/dev")?.contains("reserved0:") {
        return Ok(());
    }
    let ip = |words: &str| output(Command::new("ip").args(words.split(' '))).map(drop);
    ip("link add reserved0 type veth peer name reserved1")?;
    ip("address add 192.0.2.1/24 dev reserved0")?;
    ip("link set reserved0 up")?;
    ip("link set reserved1 up")
}

/// A cluster without Sluice, and one with all of it. Dropped in this order.
struct StartSite {
    without: SlurmCluster,
    with: SlurmCluster,
    admin: ApiClient,
    _proxy: QosProxy,
    _controller: BenchProcess,
}

impl StartSite {
    fn start(bed: &QosTestBed) -> anyhow::Result<Option<StartSite>> {
        let files = build_plugin(bed)?;
        let sluice = PathBuf::from(bed.sluice());
        let Some(with) = SlurmCluster::start(|root| install(root, &files, &sluice)) else {
            return Ok(None);
        };
        let Some(without) = SlurmCluster::start(install_open_gate) else { return Ok(None) };
        let keys = bed.dir().join("keys");
        let authority = StartKeys { sluice: &sluice, dir: &keys };
        authority.issue(&["ca"])?;
        authority.issue(&["c1", "--host", "127.0.0.1"])?;
        let data = bed.dir().join("slurm-data");
        let data = data.to_str().context("a path that is not text")?;
        let root =
            authority.run(&["token", "create", "root", "--role", "admin", "--data", data])?;
        let [cert, key, ca] = ["c1.pem", "c1.key", "ca.pem"].map(|name| authority.file(name));
        let log = bed.dir().join("slurm-controller.log");
        let words = [
            &bed.sluice(),
            "controller",
            "--data",
            data,
            "--listen",
            "https://127.0.0.1:0",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--tls-client-ca",
            &ca,
        ];
        let mut controller = BenchProcess::start("controller", &words.map(String::from), &log)?;
        let address = || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let url = said.lines().find_map(|line| line.strip_prefix("listening on "));
            url.filter(|_| said.lines().any(|line| line.starts_with("ready"))).map(String::from)
        };
        controller.wait_until(|| address().is_some())?;
        let url = address().context("the controller does not say where it listens")?;
        let shown = Credentials {
            token: Some(root.trim().into()),
            ca: Some(PathBuf::from(&ca)),
            ..Credentials::default()
        };
        let admin = ApiClient::at(&url.parse::<Endpoints>()?)?.with(&shown)?;
        let token = |name: &str, role: Role| {
            let new = NewToken { name: name.into(), role, user: None, expires_s: None };
            anyhow::Ok(admin.make_token(&new)?.token)
        };
        let of_proxies = keys.join("proxies.token");
        write_secret(&of_proxies, &token("proxies", Role::Proxy)?)?;
        let top = format!(
            "controller = \"{url}\"\nproxy_name = \"a\"\ncontroller_ca = \"{ca}\"\n\
             controller_token_file = {of_proxies:?}"
        );
        let target = "capacity_read = \"100MB/s\"\ncapacity_write = \"100MB/s\"";
        let proxy = bed.proxy("a", &QosSetup { top: &top, target, ..QosSetup::default() })?;
        configure(&with, &authority, &url, &token("slurm", Role::Batch)?)?;
        let began = Instant::now();
        while !admin
            .calendar("")?
            .resources
            .iter()
            .any(|of| of.name == "disk" && of.write_per_sec > 0)
        {
            ensure!(began.elapsed() < PATIENCE, "the calendar does not get the proxy's target");
            bed.wait(Duration::from_millis(50))?;
        }
        Ok(Some(StartSite { without, with, admin, _proxy: proxy, _controller: controller }))
    }

    /// Starts jobs in turn in both clusters for a while.
    fn round(&self, time: Duration) -> anyhow::Result<FigureSample> {
        let (mut starts, began) = ([const { Vec::new() }; 4], Instant::now());
        while began.elapsed() < time || starts[0].len() < STARTS_MIN {
            starts[0].push(start_of(&self.with, &["--qos-bw=1MB/s:write"])?);
            starts[1].push(start_of(&self.with, &[])?);
            starts[2].push(start_of(&self.without, &[])?);
            starts[3].push(start_of(&self.without, &[BURST_BUFFER])?);
        }
        let all = self.admin.reservations("ended=true")?.reservations;
        let held = all.iter().filter(|one| one.ended.as_deref() == Some("completed")).count();
        let jobs = starts[0].len();
        ensure!(held >= jobs, "{held} of {jobs} jobs had their reservations: {:?}", all.last());
        let medians = starts.map(|starts| median(starts).expect("a round has starts"));
        let [reserved, plain, bare, open_gate] = medians;
        Ok(sample([
            ("added_ms", reserved - bare),
            ("added_without_request_ms", plain - bare),
            ("added_by_slurm_ms", open_gate - bare),
            ("start_ms", reserved),
            ("start_without_sluice_ms", bare),
        ]))
    }
}

/// Milliseconds from the call of srun until the job's command runs.
fn start_of(cluster: &SlurmCluster, options: &[&str]) -> anyhow::Result<f64> {
    let mut srun = cluster.command(USER, "srun");
    srun.args(["-N1", "-t1"]).args(options).args(["date", "+%s%N"]);
    let called = SystemTime::UNIX_EPOCH.elapsed().context("the clock is before 1970")?;
    let said = output(&mut srun)?;
    let ran: u64 = said.trim().parse().with_context(|| format!("srun printed {said:?}"))?;
    Ok((ran as f64 - called.as_nanos() as f64) / 1e6)
}

/// Certificates of the site.
struct StartKeys<'a> {
    sluice: &'a Path,
    dir: &'a Path,
}

impl StartKeys<'_> {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        output(Command::new(self.sluice).args(words))
    }

    /// Issues a certificate, or makes the authority if only `ca` is named.
    fn issue(&self, words: &[&str]) -> anyhow::Result<()> {
        let dir = self.dir.display().to_string();
        match words {
            ["ca"] => self.run(&["cert", "ca", &dir]),
            words => self.run(&[&["cert", "issue", &dir], words].concat()),
        }
        .map(drop)
    }
}

/// Builds Slurm's plug-in as a site does.
fn build_plugin(bed: &QosTestBed) -> anyhow::Result<PathBuf> {
    let plugin = bed.dir().join("sluice_spank.so");
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-o"]).arg(&plugin);
    output(command.arg(native("spank/sluice_spank.c")))?;
    Ok(plugin)
}

/// Gives a cluster a burst buffer whose script allows every job at once, with no program of Sluice's: what Slurm
/// itself needs to start a job with one.
fn install_open_gate(root: &Path) -> String {
    let allows = "return slurm.SUCCESS";
    let names = ["pre_run", "pools", "job_process", "setup", "data_in", "real_size", "paths"];
    let after = ["post_run", "data_out", "job_teardown", "get_status"];
    let functions = names.iter().chain(&after).map(|name| {
        let value = if matches!(*name, "real_size" | "get_status") { ", \"\"" } else { "" };
        format!("function slurm_bb_{name}() {allows}{value} end\n")
    });
    let script: String = functions.collect();
    fs::write(root.join("etc/burst_buffer.lua"), script).expect("the cluster's folder is new");
    let text =
        fs::read_to_string(native("slurm/burst_buffer.conf")).expect("a file of native/slurm");
    fs::write(root.join("etc/burst_buffer.conf"), text).expect("the cluster's folder is new");
    "BurstBufferType=burst_buffer/lua\n".to_owned()
}

/// Puts Sluice's files into a cluster's folder, and returns its lines of slurm.conf.
fn install(root: &Path, plugin: &Path, sluice: &Path) -> String {
    let program = root.join("program/sluice");
    fs::create_dir(root.join("program")).expect("the cluster's folder is new");
    everybodys(&root.join("program"));
    write_node_program(root, &program, sluice);
    let files = SlurmFiles { program: &program, plugin, options: "", gate: true };
    files.install(root) + &files.install_hooks(root, |text| text)
}

/// Writes slurm.toml for slurmctld, and one for each node with its certificate.
fn configure(
    cluster: &SlurmCluster,
    keys: &StartKeys<'_>,
    url: &str,
    token: &str,
) -> anyhow::Result<()> {
    let place = |name: &str| cluster.path(name);
    let file = place("etc/batch.token");
    write_secret(&file, token)?;
    let owner = fs::metadata(place("state")).context("the cluster's state")?.uid();
    std::os::unix::fs::chown(&file, Some(owner), None).context("a token's owner")?;
    fs::copy(keys.file("ca.pem"), place("etc/ca.pem")).context("a certificate")?;
    let common = format!(
        "controller = \"{url}\"\nca = \"ca.pem\"\nexport = \"x\"\nrun_dir = \"{}\"\n",
        place("jobs").display()
    );
    let write =
        |name: String, text: String| fs::write(place(&name), text).context("settings of Slurm");
    write("etc/slurm.toml".into(), format!("token_file = \"batch.token\"\n{common}"))?;
    for node in ["cn1", "cn2", "cn3", "cn4"] {
        keys.issue(&[node, "--client"])?;
        let [cert, key] = ["pem", "key"].map(|kind| keys.file(&format!("{node}.{kind}")));
        let text = format!("node_cert = \"{cert}\"\nnode_key = \"{key}\"\n{common}");
        write(format!("etc/slurm-{node}.toml"), text)?;
    }
    Ok(())
}

fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).context("cannot write a token")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).context("cannot protect a token")
}

/// Asks for the burst buffer, as job_submit.lua does for a job with a request.
const BURST_BUFFER: &str = "--bb=#BB_LUA";
const ROW: &str = "jobs/start";
/// The user of the jobs: nobody.
const USER: u32 = 65534;
/// Starts of each kind in a round, at least.
const STARTS_MIN: usize = 7;
const PATIENCE: Duration = Duration::from_secs(20);
