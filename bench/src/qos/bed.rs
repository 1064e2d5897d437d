//! The test bed of one guarantee: a directory on a real disk and a proxy of its own.
//!
//!   QosTestBed: DIR ─┬─ x/            the export, with a directory for each job
//!                    ├─ NAME.toml     the configuration of proxy NAME
//!                    ├─ NAME.rules
//!                    └─ NAME.sock, NAME.api, NAME.log
//!
//! Files are made beside the proxy and not through it, or a job's limit would apply to
//! the filling of its file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::{TargetReport, WireClass};
use model::Bytes;
use rustix::fs::Advice;

use super::super::files::make_file;
use super::super::place::RunDir;
use super::super::plan::PeerPlan;
use super::super::process::BenchProcess;
use super::super::socket::BenchAddress;
use super::super::work::WorkOp;

/// A directory that is removed with all in it when dropped.
pub(crate) struct QosTestBed {
    dir: RunDir,
    sluice: PathBuf,
    stop: Arc<AtomicBool>,
}

/// A proxy over the bed's export.
pub(crate) struct QosProxy {
    /// Asks it what it did.
    pub(crate) api: http::ApiClient,
    /// Its time and memory.
    pub(crate) process: BenchProcess,
    /// The address that clients connect to.
    pub(crate) address: BenchAddress,
}

/// What a proxy is started with.
#[derive(Clone, Debug, Default)]
pub(crate) struct QosSetup<'a> {
    /// Keys at the top of the file, as TOML lines.
    pub(crate) top: &'a str,
    /// Keys of the `[[target]]`, as TOML lines.
    pub(crate) target: &'a str,
    /// The text of the rule file.
    pub(crate) rules: &'a str,
    /// Serve requests as they come.
    pub(crate) no_schedule: bool,
    /// The directory that is exported as `x` instead of the bed's.
    pub(crate) dir: Option<PathBuf>,
    /// Another directory, exported as `y` with a target of its own.
    pub(crate) second: Option<PathBuf>,
    /// The TCP port on loopback to listen on, instead of a Unix socket.
    pub(crate) port: Option<u16>,
    /// It stands for another machine, and runs before everything else.
    pub(crate) is_elsewhere: bool,
}

impl QosTestBed {
    /// Makes a directory in `parent`, whose file system is what is measured, or in the default's.
    pub(crate) fn make(
        parent: Option<&Path>,
        sluice: &Path,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<QosTestBed> {
        let dir = RunDir::make(parent, "qos")?;
        let bed = QosTestBed { dir, sluice: sluice.into(), stop: Arc::clone(stop) };
        std::fs::create_dir(bed.export()).context("cannot make the directory to serve")?;
        Ok(bed)
    }

    /// The directory that every proxy exports as `x`.
    pub(crate) fn export(&self) -> PathBuf {
        self.dir.path().join("x")
    }

    /// Returns the path of the `sluice` program.
    pub(crate) fn sluice(&self) -> String {
        self.sluice.display().to_string()
    }

    /// A place for files that no proxy exports.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a proxy and waits until it answers.
    pub(crate) fn proxy(&self, name: &str, setup: &QosSetup<'_>) -> anyhow::Result<QosProxy> {
        let file = |end: &str| self.dir.path().join(format!("{name}.{end}"));
        let [config, rules] = ["toml", "rules"].map(file);
        std::fs::write(&config, self.config(setup)).context("cannot write a configuration")?;
        std::fs::write(&rules, setup.rules).context("cannot write rules")?;
        let address = match setup.port {
            Some(port) => BenchAddress::Tcp(format!("127.0.0.1:{port}")),
            None => BenchAddress::Unix(file("sock")),
        };
        let api = format!("unix://{}", file("api").display());
        let mut arguments = if setup.is_elsewhere { elsewhere() } else { Vec::new() };
        arguments.extend([self.sluice(), "proxy".into()]);
        let listen = address.to_string();
        let [config, rules] = [config, rules].map(|path| path.display().to_string());
        let words = ["--config", &config, "--listen", &listen, "--api", &api, "--squash", "none"];
        arguments.extend(words.map(String::from));
        arguments.extend(["--rules".into(), rules]);
        if setup.no_schedule {
            arguments.push("--no-schedule".into());
        }
        let mut process = BenchProcess::start(name, &arguments, &file("log"))?;
        let api = http::ApiClient::new(&api.parse()?)?;
        process.wait_until(|| address.connect().is_ok() && api.status().is_ok())?;
        Ok(QosProxy { api, process, address })
    }

    fn config(&self, setup: &QosSetup<'_>) -> String {
        let mut text = format!(
            "tags_max = 8192\nbytes_in_flight_max = \"512MiB\"\n{}\n\
             [[export]]\nname = \"x\"\ndir = {:?}\ntarget = \"disk\"\n",
            setup.top,
            setup.dir.clone().unwrap_or_else(|| self.export())
        );
        if let Some(second) = &setup.second {
            let table =
                format!("\n[[export]]\nname = \"y\"\ndir = {second:?}\ntarget = \"second\"\n");
            text.push_str(&table);
            text.push_str(&format!("\n[[target]]\nname = \"second\"\n{}\n", setup.target));
        }
        text.push_str(&format!("\n[[target]]\nname = \"disk\"\n{}\n", setup.target));
        text
    }

    /// Makes a file of the export, with what loads expect in it, on disk and in the page cache.
    pub(crate) fn file(&self, name: &str, len: Bytes) -> anyhow::Result<File> {
        let path = self.export().join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).context("cannot make a job's directory")?;
        }
        make_file(&path, len)?;
        let file = File::options().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.sync_all().context("cannot flush a file")?;
        Ok(file)
    }

    /// Waits, and is an error once somebody has pressed Ctrl-C.
    pub(crate) fn wait(&self, span: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + span;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

impl QosProxy {
    /// A load of `job` on the export `export`: everything else is the plan's default.
    pub(crate) fn plan(&self, export: &str, job: &str, op: WorkOp, size: Bytes) -> PeerPlan {
        PeerPlan {
            aname: format!("{export}?job={job}"),
            op,
            size: Some(size),
            msize: Bytes::new(size.get() + 4096),
            ..PeerPlan::new(self.address.clone())
        }
    }

    /// When the counters were read, in seconds since the proxy's start, and the class of `job`.
    pub(crate) fn class(&self, job: &str) -> anyhow::Result<(f64, WireClass)> {
        let answer = self.api.classes()?;
        let key = format!("jobid={job}");
        let class = answer.classes.into_iter().find(|class| class.key == key);
        let class = class.with_context(|| format!("the proxy has no class of job {job}"))?;
        Ok((answer.t_ns as f64 / 1e9, class))
    }

    /// Returns the state of the target `disk`.
    pub(crate) fn target(&self) -> anyhow::Result<TargetReport> {
        let status = self.api.status()?;
        let target = status.targets.into_iter().find(|target| target.name == "disk");
        target.context("the proxy has no target disk")
    }

    /// Payload that it has moved so far, in bytes.
    pub(crate) fn payload(&self) -> anyhow::Result<u64> {
        let totals = self.api.status()?.totals;
        Ok(totals.read_bytes + totals.written_bytes)
    }
}

/// Words before a program's that let it run before everything else.
pub(crate) fn elsewhere() -> Vec<String> {
    ["nice", "-n", "-15"].map(String::from).into()
}

/// Drops a file's clean pages from the page cache, so that the device must be asked.
pub(crate) fn drop_cache(file: &File) -> anyhow::Result<()> {
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).context("cannot drop cached pages")
}

/// Keeps a file out of the page cache for as long as it lives.
pub(crate) struct KeepCold {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KeepCold {
    pub(crate) fn start(file: &File) -> anyhow::Result<KeepCold> {
        KeepCold::every(file, COLD_EVERY)
    }

    /// The same at an interval of one's own: what is read twice within it may be cached.
    pub(crate) fn every(file: &File, interval: Duration) -> anyhow::Result<KeepCold> {
        let file = file.try_clone().context("cannot share a file")?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // What stays cached only makes a few reads faster.
                let _ = drop_cache(&file);
                std::thread::park_timeout(interval);
            }
        });
        Ok(KeepCold { stop, thread: Some(thread) })
    }
}

impl Drop for KeepCold {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// At 500 MB/s 10 MB are read in between: of a file of 2 GiB one read in 200 finds its page.
const COLD_EVERY: Duration = Duration::from_millis(20);
