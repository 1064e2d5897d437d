//! The demo's processes and files: the proxy, the mount, the jobs, and the directories.
//!
//! ```text
//!   DemoStage ─┬─ jobs   (process groups of their own: Ctrl-C is the parent's to handle)
//!              ├─ mount  ─── TMPDIR/sluice-demo-run-PID/mount  where all of them work
//!              ├─ proxy  ─── DIR/sluice-demo-PID/data        what is exported, on disk
//!              └─ RunDir ─── TMPDIR/sluice-demo-run-PID/…    sockets (short paths) and logs
//! ```
//!
//! When the drop of a [`DemoStage`] returns, nothing of it is left: the jobs end
//! first, then the mount, then the proxy, then the directories go. A demo that is killed
//! takes its processes with it by the parent-death signal; only its directories stay then,
//! with a dead mount.

use std::fs::{DirBuilder, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use model::Bytes;
use rustix::fs::{Advice, AtFlags, StatxFlags};
use rustix::process::{Pid, Signal};

use super::job::{BULLY_WRITERS, DemoJob, Interval, READ_FILE, Sizes};
use crate::files::make_file;
use crate::place::RunDir;

/// The running demo; dropping it stops and removes everything.
pub(super) struct DemoStage {
    // Fields are dropped in this order.
    jobs: Vec<(DemoJob, DemoProcess)>,
    mount: Option<DemoProcess>,
    proxy: DemoProcess,
    read_file: ReadFile,
    place: DemoDirs,
    sluice: PathBuf,
    sizes: Sizes,
}

/// A line that one of the processes has written; none at the end of its output.
pub(super) enum DemoNews {
    /// A line of the proxy's.
    Proxy(Option<String>),
    /// What a job got.
    Job(DemoJob, Option<Interval>),
}

impl DemoStage {
    /// Makes the directories and the file that the victim reads, and starts the proxy,
    /// which tells `news` when it is ready.
    pub(super) fn set_up(
        dir: Option<&Path>,
        sluice: &Path,
        sizes: Sizes,
        news: &Sender<DemoNews>,
    ) -> anyhow::Result<DemoStage> {
        let place = DemoDirs::make(dir)?;
        ensure_room(&place.data, sizes)?;
        let read_file = ReadFile::make(&place.data.join(READ_FILE), sizes.victim)?;
        let arguments = [
            String::from("proxy"),
            format!("--export=data={}", place.data.display()),
            format!("--listen={}", place.server()),
            format!("--api={}", place.api()),
            // Everything here is one user's; its directories are closed to all others.
            String::from("--squash=none"),
        ];
        let mut proxy = DemoProcess::start("proxy", sluice, &arguments, &place, None)?;
        let news = news.clone();
        proxy.tell(move |stdout| {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens once the demo is over.
                let _ = news.send(DemoNews::Proxy(Some(line)));
            }
            let _ = news.send(DemoNews::Proxy(None));
        })?;
        let sluice = sluice.to_owned();
        Ok(DemoStage { jobs: Vec::new(), mount: None, proxy, read_file, place, sluice, sizes })
    }

    /// Mounts the export for all jobs, as on a node that they share: each is known by its environment.
    pub(super) fn mount(&mut self) -> anyhow::Result<()> {
        let at = self.place.mount();
        make_dir(&at)?;
        let arguments = [
            String::from("mount"),
            format!("{}//data", self.place.server()),
            at.display().to_string(),
            String::from("-o"),
            format!("job=env:{JOB_VARIABLE}"),
            String::from("--foreground"),
        ];
        let mut process = DemoProcess::start("mount", &self.sluice, &arguments, &self.place, None)?;
        let deadline = Instant::now() + MOUNT_MAX;
        while !is_mounted(&at, self.place.run.path())? {
            if process.has_ended() || Instant::now() > deadline {
                return Err(self.why_ended("mount"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.mount = Some(process);
        Ok(())
    }

    /// Starts `job` on the mount; it tells `news` what it gets.
    pub(super) fn start(&mut self, job: DemoJob, news: &Sender<DemoNews>) -> anyhow::Result<()> {
        let (program, arguments) = job.command(&self.place.mount(), self.sizes);
        let (program, account) = (Path::new(program), Some(job.account()));
        let mut process =
            DemoProcess::start(job.name(), program, &arguments, &self.place, account)?;
        let news = news.clone();
        process.tell(move |stdout| {
            job.listen(stdout, &mut |interval| {
                let _ = news.send(DemoNews::Job(job, Some(interval)));
            });
            let _ = news.send(DemoNews::Job(job, None));
        })?;
        self.jobs.push((job, process));
        Ok(())
    }

    /// Keeps half of the victim's file out of the page cache, in each phase alike:
    /// otherwise the later phase would find warm what the earlier one has read.
    pub(super) fn cool(&self) {
        self.read_file.cool();
    }

    /// The demo's processes, this one first.
    pub(super) fn processes(&self) -> Vec<u32> {
        let jobs = self.jobs.iter().map(|(_, process)| process);
        let children = jobs.chain(&self.mount).chain([&self.proxy]);
        let children = children.map(|process| process.child.id());
        std::iter::once(std::process::id()).chain(children).collect()
    }

    /// The proxy's control socket.
    pub(super) fn api(&self) -> String {
        self.place.api()
    }

    /// What the process that tells no more has left in its log, as an error.
    pub(super) fn why_ended(&self, name: &str) -> anyhow::Error {
        let log = std::fs::read_to_string(self.place.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(3)..].join(" | ");
        anyhow::anyhow!("the {name} ended before the demo: {last}")
    }
}

/// The two directories of a demo.
struct DemoDirs {
    /// Sockets, logs and the mount: a socket's path has room for 107 bytes, which a
    /// directory of the user's may exceed. Dropped first, or what is mounted would be served
    /// from nothing.
    run: RunDir,
    /// The parent of what is exported.
    _on_disk: RunDir,
    data: PathBuf,
}

impl DemoDirs {
    fn make(dir: Option<&Path>) -> anyhow::Result<DemoDirs> {
        let on_disk = RunDir::make(dir, "demo")?;
        let run = RunDir::make(Some(&std::env::temp_dir()), "demo-run")?;
        let data = on_disk.path().join("data");
        make_dir(&data)?;
        Ok(DemoDirs { run, _on_disk: on_disk, data })
    }

    fn server(&self) -> String {
        format!("unix://{}", self.run.path().join("9p").display())
    }

    fn api(&self) -> String {
        format!("unix://{}", self.run.path().join("api").display())
    }

    /// Where the mount is.
    fn mount(&self) -> PathBuf {
        self.run.path().join("mount")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.run.path().join(format!("{name}.log"))
    }
}

/// A child that does not outlive the demo.
struct DemoProcess {
    child: Child,
    stdout: Option<ChildStdout>,
}

impl DemoProcess {
    fn start(
        name: &str,
        program: &Path,
        arguments: &[String],
        place: &DemoDirs,
        account: Option<&str>,
    ) -> anyhow::Result<DemoProcess> {
        let log = File::create(place.log(name)).context("cannot write a log")?;
        // A demo that is killed runs no guard; its children must end all the same.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .envs(account.map(|account| (JOB_VARIABLE, account)))
            .current_dir(place.run.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let stdout = child.stdout.take();
        Ok(DemoProcess { child, stdout })
    }

    /// Lets a thread listen to its stdout.
    fn tell(&mut self, listen: impl FnOnce(ChildStdout) + Send + 'static) -> anyhow::Result<()> {
        let stdout = self.stdout.take().context("a process has one stdout")?;
        std::thread::spawn(move || listen(stdout));
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        // Signals fail only when the process is gone already. The whole group: a shell waits
        // for the tool that it runs.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + STOP_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The file that the victim reads.
struct ReadFile {
    file: File,
    len: Bytes,
}

impl ReadFile {
    fn make(path: &Path, len: Bytes) -> anyhow::Result<ReadFile> {
        make_file(path, len)?;
        let file = File::open(path).context("cannot open the file to read")?;
        // Only clean pages can leave the page cache.
        file.sync_all().context("cannot write the file to read")?;
        Ok(ReadFile { file, len })
    }

    fn cool(&self) {
        let half = self.len.get() / 2;
        // Where the file system has no say in it (tmpfs) both halves stay warm.
        let _ = rustix::fs::fadvise(
            &self.file,
            half,
            std::num::NonZeroU64::new(self.len.get() - half),
            Advice::DontNeed,
        );
    }
}

/// Refuses a directory whose file system is too full.
fn ensure_room(dir: &Path, sizes: Sizes) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot look at the file system of {}", dir.display()))?;
    let room = Bytes::new(stat.f_bavail.saturating_mul(stat.f_frsize));
    let needed = Bytes::new(sizes.victim.get() + BULLY_WRITERS as u64 * sizes.bully.get());
    let spare = Bytes::mib(64).get();
    ensure!(
        room.get() > needed.get() + spare,
        "{} has {room} free and the demo's files need {needed}: give another --dir",
        dir.display()
    );
    Ok(())
}

fn make_dir(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))
}

/// Whether something is mounted there, below the directory `above`.
fn is_mounted(at: &Path, above: &Path) -> anyhow::Result<bool> {
    let device = |path: &Path| {
        // Of what is mounted the kernel tells the device without asking the file system.
        let flags = AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::empty());
        let stat = stat.with_context(|| format!("cannot look at {}", path.display()))?;
        anyhow::Ok((stat.stx_dev_major, stat.stx_dev_minor))
    };
    Ok(device(at)? != device(above)?)
}

/// The variable that says which job a process belongs to.
const JOB_VARIABLE: &str = "SLUICE_DEMO_JOB";
/// How long a mount may take.
const MOUNT_MAX: Duration = Duration::from_secs(10);
/// How long a process may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(5);
