//! A real Slurm of four nodes on loopback, for one test.
//!
//! ```text
//!   SlurmCluster::start ─► a PID namespace: munged, slurmctld as slurm, slurmd of cn1 … cn4 ─► all idle
//!   command(user, "srun") ─► as that user    kill_node(i), start_node(i) ─► what a dead node looks like
//!   drop ─► after a failure: jobs, nodes and the last lines of all logs are printed
//!        ─► its shell ends, and with it all processes and mounts of the namespace: steps and hooks, too
//! ```
//!
//! The namespace's first process is a shell that reads commands from a pipe of the test. So it ends
//! with the test, however that one ends.

mod files;

use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{PATIENCE, TestFolder, everybodys, root_here, skip, until};
pub use files::{SlurmFiles, native, write_node_program, write_program};

const NODES: usize = 4;

/// What must be there, and the package that has it.
const PROGRAMS: &[(&str, &str)] =
    &[("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("munged", "munge")];

/// Users for slurmctld, the first that exists.
const SLURM_USERS: &[&str] = &["slurm", "daemon", "bin"];

/// Four nodes and their controller, killed when dropped.
#[derive(Debug)]
pub struct SlurmCluster {
    folder: TestFolder,
    namespace: Child,
    /// Where its shell reads commands from; none once it is to end.
    shell: Option<ChildStdin>,
}

impl SlurmCluster {
    /// Starts a cluster and waits until its nodes are idle; `None`, said aloud, where it cannot run.
    ///
    /// `set_up` gets the cluster's folder, puts files into `etc` below it, and returns further lines for
    /// slurm.conf. It may be called again with another folder.
    pub fn start(set_up: impl Fn(&Path) -> String) -> Option<SlurmCluster> {
        let user = can_run_here()?;
        // another program may take a port between its choice and its use: then choose again
        (0..5)
            .find_map(|_| SlurmCluster::try_start(user, &set_up))
            .or_else(|| panic!("Slurm did not start"))
    }

    fn try_start(user: &str, set_up: &impl Fn(&Path) -> String) -> Option<SlurmCluster> {
        // not in memory: /dev/shm may refuse to execute hooks
        let folder = TestFolder::new();
        let root = folder.path();
        for name in ["etc", "state", "spool", "log", "run", "munge", "work"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        everybodys(&root.join("work"));
        let more = set_up(root);
        fs::write(root.join("etc/slurm.conf"), configuration(root, user) + &more).unwrap();
        let own = |name: &str| {
            let status = Command::new("chown").arg(user).arg(root.join(name)).status().unwrap();
            assert!(status.success(), "chown {user} {name}");
        };
        ["state", "run", "log"].into_iter().for_each(own);
        let (namespace, shell) = new_namespace(root);
        let mut cluster = SlurmCluster { folder, namespace, shell: Some(shell) };
        cluster.spawn_all();
        cluster.becomes_idle().then_some(cluster)
    }

    fn spawn_all(&mut self) {
        let munge = self.path("munge");
        let munge = munge.display();
        self.order(&format!(
            "umask 077; head -c 128 /dev/urandom >{munge}/munge.key; umask 022; \
             munged --key-file={munge}/munge.key --socket={munge}/munge.socket \
             --pid-file={munge}/munged.pid --log-file={munge}/munged.log \
             --seed-file={munge}/munged.seed"
        ));
        self.order("slurmctld");
        (0..NODES).for_each(|at| self.start_node(at));
    }

    /// The path of something in the cluster's folder, such as `etc/slurm.conf`.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// A command of Slurm as a user, by its number, in a directory where everybody may write.
    pub fn command(&self, user: u32, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        // what the shell of this test has of both is not the user's
        for (name, _) in std::env::vars_os() {
            let name = name.as_encoded_bytes();
            let own = ["SLUICE_", "SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_"];
            if own.iter().any(|own| name.starts_with(own.as_bytes())) {
                command.env_remove(std::ffi::OsStr::from_bytes(name));
            }
        }
        command
            .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
            .arg(program)
            .current_dir(self.path("work"))
            .env("SLURM_CONF", self.path("etc/slurm.conf"))
            .stdin(Stdio::null());
        command
    }

    /// What an administrator's command prints, which must succeed.
    pub fn admin(&self, words: &str) -> String {
        let mut words = words.split(' ');
        let output = self.command(0, words.next().unwrap()).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// A field of a job as scontrol shows it, such as `Reason`; empty if it has none.
    pub fn job_field(&self, job: u32, name: &str) -> String {
        let shown = self.admin(&format!("scontrol -o show job {job}"));
        // of an array, that of its first line
        let line = shown.lines().next().unwrap_or_default();
        let key = format!("{name}=");
        let found = line.split(' ').find_map(|word| word.strip_prefix(&key));
        found.unwrap_or_default().to_owned()
    }

    /// Waits until a job is in a state such as `RUNNING`, and fails naming the last one if it never is.
    pub fn until_job(&self, job: u32, state: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.job_field(job, "JobState") != state {
            assert!(
                Instant::now() < deadline,
                "job {job} is {} and not {state} within {PATIENCE:?}",
                self.job_field(job, "JobState")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has Slurm start a pending job at once, and waits until it has begun. A begin time that Slurm sets
    /// while it requeues the job replaces the one that is asked for, so it is asked for repeatedly. Not for a
    /// job that has run before: slurmd refuses it within the second in which its first attempt ended.
    pub fn start_now(&self, job: u32) {
        until(&format!("job {job} starts"), || {
            let state = self.job_field(job, "JobState");
            if state == "PENDING" {
                // refused if it starts in this moment
                let start = [format!("jobid={job}"), "StartTime=now".to_owned()];
                self.command(0, "scontrol").arg("update").args(start).output().unwrap();
            }
            ["RUNNING", "COMPLETING", "COMPLETED"].contains(&state.as_str())
        });
    }

    /// Has the time limit of a job be over now. A second may begin while Slurm is asked, and an end before it
    /// is refused, so it is asked repeatedly.
    pub fn end_time_now(&self, job: u32) {
        until(&format!("the time of job {job} ends"), || {
            let words = ["update", &format!("jobid={job}"), "EndTime=now"];
            self.command(0, "scontrol").args(words).output().unwrap().status.success()
        });
    }

    /// Kills the slurmd of a node, counted from 0; the job's processes on it go on.
    pub fn kill_node(&mut self, at: usize) {
        let file = self.path(&format!("run/slurmd-cn{}.pid", at + 1));
        self.order(&format!("kill -9 $(cat {0}); rm {0}", file.display()));
        until("slurmd is killed", || !file.exists());
    }

    /// Starts the slurmd of a node, counted from 0.
    pub fn start_node(&mut self, at: usize) {
        self.order(&format!("slurmd -N cn{}", at + 1));
    }

    /// Ends slurmctld, and starts it on the state that it had.
    pub fn restart_controller(&mut self) {
        let file = self.path("run/slurmctld.pid");
        let number = || fs::read_to_string(&file).unwrap_or_default();
        let before = number();
        self.order(&format!(
            "kill {0}; while kill -0 {0}; do sleep 0.02; done; slurmctld",
            before.trim()
        ));
        until("slurmctld is started", || !number().is_empty() && number() != before);
        until("slurmctld answers", || {
            self.command(0, "scontrol").arg("ping").output().unwrap().status.success()
        });
    }

    /// What a failed test needs: jobs, nodes, what jobs printed, and the last lines of all logs.
    fn report(&self) -> String {
        let mut text = String::new();
        for words in [&["sinfo", "-N", "-o", "%N %T %E"][..], &["scontrol", "-o", "show", "job"]] {
            // slurmctld may be what does not answer
            let shown = self.command(0, "timeout").arg("10").args(words).output();
            let shown =
                shown.map(|shown| [shown.stdout, shown.stderr].concat()).unwrap_or_default();
            let _ = write!(text, "--- {}\n{}", words[0], String::from_utf8_lossy(&shown));
        }
        for (folder, lines) in [("work", 20), ("log", 40)] {
            let files = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
            let mut paths: Vec<_> = files.map(|file| file.path()).collect();
            paths.sort();
            for path in paths {
                let bytes = fs::read(&path).unwrap_or_default();
                let shown = String::from_utf8_lossy(&bytes);
                let all: Vec<&str> = shown.lines().collect();
                let last = all[all.len().saturating_sub(lines)..].join("\n");
                let _ = writeln!(text, "--- {}\n{last}", path.display());
            }
        }
        text
    }

    /// Has the shell of the namespace run a command.
    fn order(&mut self, command: &str) {
        let shell = self.shell.as_mut().expect("it ends in drop only");
        writeln!(shell, "{{ {command}; }} </dev/null").unwrap();
    }

    /// False if a daemon has failed, or the nodes are not idle in time.
    fn becomes_idle(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown =
                self.command(0, "sinfo").args(["-h", "-t", "idle", "-o", "%D"]).output().unwrap();
            if String::from_utf8_lossy(&shown.stdout).trim() == NODES.to_string() {
                return true;
            }
            // a slurmd whose port is taken goes on without it, and says so as an error
            let has_failed =
                |log: String| log.contains("fatal: ") || log.contains("Unable to bind listen port");
            let failed = fs::read_dir(self.path("log"))
                .unwrap()
                .any(|file| fs::read_to_string(file.unwrap().path()).is_ok_and(has_failed));
            if failed || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
        drop(self.shell.take());
        let deadline = Instant::now() + PATIENCE;
        // unshare waits for the shell, and the kernel ends the shell after all others
        while self.namespace.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _ = self.namespace.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The user for slurmctld, if a cluster can run on this machine.
fn can_run_here() -> Option<&'static str> {
    if !root_here() {
        return None;
    }
    for (program, package) in PROGRAMS {
        let version = Command::new(program).arg("-V").stdout(Stdio::null()).status();
        if let Err(error) = version {
            skip(&format!("{program}: {error}; Debian's {package} has it"));
            return None;
        }
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let exists = |user: &&&str| passwd.lines().any(|line| line.split(':').next() == Some(**user));
    let user = SLURM_USERS.iter().find(exists);
    let namespace = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .stderr(Stdio::null())
        .status();
    match (user, namespace) {
        (Some(user), Ok(status)) if status.success() => Some(user),
        (None, _) => {
            skip(&format!("Slurm: none of the users {} exists", SLURM_USERS.join(", ")));
            None
        }
        _ => {
            skip("Slurm: unshare --pid --mount-proc is not allowed here");
            None
        }
    }
}

/// A shell that is the first process of a PID namespace, and the pipe that it reads.
fn new_namespace(root: &Path) -> (Child, ChildStdin) {
    let log = fs::File::create(root.join("log/daemons")).unwrap();
    let mut child = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh"])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SLURM_CONF", root.join("etc/slurm.conf"))
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let shell = child.stdin.take().unwrap();
    (child, shell)
}

/// The slurm.conf of a cluster, on ports that were free.
fn configuration(root: &Path, user: &str) -> String {
    let free: Vec<TcpListener> = (0..=NODES).map(|_| free_port()).collect();
    let port = |at: usize| free[at].local_addr().unwrap().port();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let mut text = CONFIGURATION
        .replace("@ROOT@", root.to_str().unwrap())
        .replace("@HOST@", host)
        .replace("@USER@", user)
        .replace("@PORT@", &port(NODES).to_string());
    for at in 0..NODES {
        let (node, port) = (at + 1, port(at));
        writeln!(
            text,
            "NodeName=cn{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=32 \
             RealMemory=4000 Gres=qoslustre:1000M State=UNKNOWN"
        )
        .unwrap();
    }
    fs::write(
        root.join("etc/gres.conf"),
        "NodeName=cn[1-4] Name=qoslustre Count=1000M Flags=CountOnly\n",
    )
    .unwrap();
    text + "PartitionName=debug Nodes=cn[1-4] Default=YES MaxTime=INFINITE State=UP\n"
}

/// A port that is free, below those that the system gives to connections and to listeners that name none: a slurmd
/// that is killed and started again would find such a port taken.
fn free_port() -> TcpListener {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    let first = first.filter(|first| *first > LEAST_PORT + 1000).unwrap_or(32_768);
    let chosen = |_| {
        // another number each time, in each process
        let number = RandomState::new().build_hasher().finish();
        let port = u64::from(LEAST_PORT) + number % u64::from(first - LEAST_PORT);
        TcpListener::bind(("127.0.0.1", u16::try_from(port).ok()?)).ok()
    };
    (0..1000).find_map(chosen).expect("one of a thousand ports is free")
}

/// The least port that is used: services have those below.
const LEAST_PORT: u16 = 10_000;

/// Without cgroups and accounting, with short times, and with resources that the machine need not have. A machine
/// with more to do than it can may exceed Slurm's defaults for messages (2 s to connect, 10 s for a reply) and for a
/// batch job that is launched (10 s), after which steps and jobs fail; so these are long.
const CONFIGURATION: &str = "\
ClusterName=sluicetest
SlurmctldHost=@HOST@(127.0.0.1)
SlurmctldPort=@PORT@
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=@USER@
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=@ROOT@/munge/munge.socket
StateSaveLocation=@ROOT@/state
SlurmdSpoolDir=@ROOT@/spool/%n
SlurmctldPidFile=@ROOT@/run/slurmctld.pid
SlurmdPidFile=@ROOT@/run/slurmd-%n.pid
SlurmctldLogFile=@ROOT@/log/slurmctld
SlurmdLogFile=@ROOT@/log/slurmd-%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=300
MessageTimeout=100
TCPTimeout=60
BatchStartTimeout=300
SlurmctldTimeout=30
SlurmdTimeout=300
InactiveLimit=0
SchedulerType=sched/backfill
SchedulerParameters=bf_licenses,bf_interval=1,bf_resolution=1,sched_interval=1,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=qoslustre
Licenses=lustreqos:1000
PrologFlags=Alloc
";
