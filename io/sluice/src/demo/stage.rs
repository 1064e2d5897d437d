//! The demo's processes and files: the proxy, the jobs, and the two directories.
//!
//! ```text
//!   Stage ─┬─ jobs   (process group of their own: Ctrl-C is the parent's to handle)
//!          ├─ proxy  ─── DIR/sluice-demo-PID/data        what is exported, on disk
//!          └─ Place  ─── TMPDIR/sluice-demo-PID/…        sockets (short paths) and logs
//! ```
//!
//! Whoever drops a [`Stage`] has nothing left of it when drop returns: the jobs end
//! first, then the proxy, then the directories go. A demo that is killed takes its
//! processes with it by the parent-death signal; only its directories stay then.

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
use rustix::fs::Advice;
use rustix::process::{Pid, Signal};

use super::job::{BULLY_FILES, Job, Message};
use crate::bench::files::make_file;

/// The running demo; dropping it stops and removes everything.
pub(super) struct Stage {
    // Fields are dropped in this order.
    jobs: Vec<(Job, Process)>,
    proxy: Process,
    read_file: ReadFile,
    place: Place,
    sizes: Sizes,
}

/// How large the demo's files are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The file that the victim reads, and the one that it writes.
    pub(super) victim: Bytes,
    /// Each of the bully's files.
    pub(super) bully: Bytes,
}

/// A line that one of the processes has printed; none when it prints no more.
pub(super) enum News {
    /// The proxy's.
    Proxy(Option<String>),
    /// A job's.
    Job(Job, Option<Message>),
}

impl Stage {
    /// Makes the directories and the file that the victim reads, and starts the proxy,
    /// which tells `news` when it is ready.
    pub(super) fn set_up(dir: &Path, sizes: Sizes, news: &Sender<News>) -> anyhow::Result<Stage> {
        ensure_room(dir, sizes)?;
        let place = Place::make(dir)?;
        let read_file = ReadFile::make(&place.data.join(READ_FILE), sizes.victim)?;
        let arguments = [
            String::from("proxy"),
            format!("--export=data={}", place.data.display()),
            format!("--listen={}", place.server()),
            format!("--api={}", place.api()),
            // Everything here is one user's; its directories are closed to all others.
            String::from("--squash=none"),
        ];
        let mut proxy = Process::start("proxy", &arguments, &place)?;
        proxy.tell(news.clone(), News::Proxy)?;
        Ok(Stage { jobs: Vec::new(), proxy, read_file, place, sizes })
    }

    /// Starts `job`, which tells `news` what it is served.
    pub(super) fn start(&mut self, job: Job, news: &Sender<News>) -> anyhow::Result<()> {
        let mut arguments = vec![String::from("demo-job"), job.name().into(), self.place.server()];
        match job {
            Job::Bully => arguments.push(format!("--file-size={}", self.sizes.bully)),
            Job::Victim => {
                arguments.push(format!("--file-size={}", self.sizes.victim));
                arguments.push(format!("--file={READ_FILE}"));
            }
        }
        let mut process = Process::start(job.name(), &arguments, &self.place)?;
        process.tell(news.clone(), move |line| {
            let message = line.and_then(|line| serde_json::from_str(&line).ok());
            News::Job(job, message)
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
        let children = self.jobs.iter().map(|(_, process)| process).chain([&self.proxy]);
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
struct Place {
    /// The parent of what is exported.
    on_disk: PathBuf,
    data: PathBuf,
    /// Sockets and logs: a socket's path has room for 107 bytes, which a
    /// directory of the user's may exceed.
    run: PathBuf,
}

impl Place {
    fn make(dir: &Path) -> anyhow::Result<Place> {
        let name = format!("sluice-demo-{}", std::process::id());
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        let on_disk = dir.join(&name);
        make_dir(&on_disk)?;
        // From here on the guard removes what was made; a name that is taken is not ours.
        let mut place = Place { data: on_disk.join("data"), on_disk, run: PathBuf::new() };
        let run = std::env::temp_dir().join(format!("{name}-run"));
        make_dir(&run)?;
        place.run = run;
        make_dir(&place.data)?;
        Ok(place)
    }

    fn server(&self) -> String {
        format!("unix://{}", self.run.join("9p").display())
    }

    fn api(&self) -> String {
        format!("unix://{}", self.run.join("api").display())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.run.join(format!("{name}.log"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for dir in [&self.on_disk, &self.run] {
            if dir.as_os_str().is_empty() {
                continue;
            }
            if let Err(error) = std::fs::remove_dir_all(dir) {
                tracing::warn!("cannot remove {}: {error}", dir.display());
            }
        }
    }
}

/// A child that does not outlive the demo.
struct Process {
    child: Child,
    stdout: Option<ChildStdout>,
}

impl Process {
    fn start(name: &str, arguments: &[String], place: &Place) -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let log = File::create(place.log(name)).context("cannot write a log")?;
        // A demo that is killed runs no guard; its children must end all the same.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let stdout = child.stdout.take();
        Ok(Process { child, stdout })
    }

    /// Sends each line of its stdout to `news`, and at last the end of it.
    fn tell(
        &mut self,
        news: Sender<News>,
        what: impl Fn(Option<String>) -> News + Send + 'static,
    ) -> anyhow::Result<()> {
        let stdout = self.stdout.take().context("a process has one stdout")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens once the demo is over.
                let _ = news.send(what(Some(line)));
            }
            let _ = news.send(what(None));
        });
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both signals fail only when the process is gone already.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
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
    let needed = Bytes::new(2 * sizes.victim.get() + BULLY_FILES as u64 * sizes.bully.get());
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

const READ_FILE: &str = "read";
/// How long a process may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(5);
