//! Jobs and groups of real processes, and of a tree of files that is like /proc.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{ThreadId, current};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;

/// Long enough for a busy machine; only a failure waits for so long.
const PATIENCE: Duration = Duration::from_secs(120);

type Answers = Receiver<(Arc<CallerJob>, ThreadId)>;

fn jobs(sources: &str) -> Arc<JobResolver> {
    JobResolver::new(&sources.parse().unwrap()).unwrap()
}

fn ask(jobs: &Arc<JobResolver>, thread: u32) -> Answers {
    let (to, answers) = channel();
    jobs.find(thread, move |caller| to.send((caller.clone(), current().id())).unwrap());
    answers
}

fn find(jobs: &Arc<JobResolver>, thread: u32) -> Arc<CallerJob> {
    ask(jobs, thread).recv_timeout(PATIENCE).expect("an answer comes").0
}

fn job(jobs: &Arc<JobResolver>, thread: u32) -> String {
    find(jobs, thread).job.as_str().into()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Says aloud that the test of this thread cannot run here.
fn skip(why: &str) {
    // Not by a macro: what a passing test prints by those is shown to nobody.
    let name = current().name().unwrap_or("a test").to_string();
    let _ = writeln!(io::stderr(), "skipped: {name}: {why}");
}

/// A process that does nothing until its stdin says so; killed when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Runs a script of sh in job 7.
    fn script(text: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", text]).env("SLURM_JOB_ID", "7"))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn tell(&mut self, text: &str) {
        self.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tree like /proc.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let dir = std::env::temp_dir().join(format!("sluice-jobs-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Tree(dir)
    }

    /// Task 5, of a program, with groups and an environment.
    fn task(&self, program: &str, groups: &str, environ: &str) {
        let dir = self.0.join("5");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("environ"), environ).unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
        fs::write(dir.join("status"), format!("Tgid:\t5\nGroups:\t{groups}\n")).unwrap();
        let _ = fs::remove_file(dir.join("exe"));
        symlink(program, dir.join("exe")).unwrap();
    }

    fn jobs(&self, sources: &str) -> Arc<JobResolver> {
        JobResolver::with_proc(&self.0, &sources.parse().unwrap()).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_process_is_of_the_job_that_its_environment_names() {
    let (jobs, process) = (jobs("cgroup+env:SLURM_JOB_ID"), Process::script("read x"));
    // Until the exec is done the child is a copy of this process, without that variable.
    until("the job is found", || job(&jobs, process.id()) == "7");
}

#[test]
fn what_is_known_is_told_by_the_thread_that_asks() {
    let (jobs, process) = (jobs("env:SLURM_JOB_ID"), Process::script("read x"));
    until("the job is found", || job(&jobs, process.id()) == "7");
    until("the result comes at once", || {
        let (caller, thread) = ask(&jobs, process.id()).recv_timeout(PATIENCE).unwrap();
        assert_eq!(caller.job.as_str(), "7");
        thread == current().id()
    });
}

#[test]
fn a_process_in_the_control_group_of_a_job_belongs_to_it_whatever_its_environment_says() {
    let name = format!("slurm_sluice{}", std::process::id());
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"];
    let made = roots.map(PathBuf::from).iter().find_map(|root| {
        let group = root.join(&name);
        let job = group.join("uid_0/job_4711/step_0");
        let can = root.join("cgroup.procs").exists() && fs::create_dir_all(&job).is_ok();
        can.then_some((group, job))
    });
    let Some((group, inner)) = made else {
        return skip("no control group can be made here");
    };
    let (jobs, mut process) = (jobs("cgroup+env:SLURM_JOB_ID"), Process::script("read x"));
    fs::write(inner.join("cgroup.procs"), process.id().to_string()).unwrap();
    let found = job(&jobs, process.id());
    process.end();
    for below in ["uid_0/job_4711/step_0", "uid_0/job_4711", "uid_0", ""] {
        until("the group is empty", || fs::remove_dir(group.join(below)).is_ok());
    }
    assert_eq!(found, "4711");
}

#[test]
fn a_process_that_becomes_another_program_of_another_job_is_seen_at_the_next_request() {
    let tree = Tree::new("exec");
    let jobs = tree.jobs("env:JOB");
    tree.task("/bin/slurmstepd", "", "JOB=1\0");
    until("the job is found", || job(&jobs, 5) == "1");
    tree.task("/bin/app", "", "JOB=2\0");
    let (caller, thread) = ask(&jobs, 5).recv_timeout(PATIENCE).unwrap();
    // None, if the machine stood still for 100 ms; never the former job.
    assert!(["2", ""].contains(&caller.job.as_str()), "{caller:?}");
    assert_ne!(thread, current().id());
}

#[test]
fn a_process_that_becomes_the_same_program_of_another_job_is_seen_after_a_second() {
    let again = "read x; SLURM_JOB_ID=8 exec sh -c 'echo changed; read x'";
    let (jobs, mut process) = (jobs("env:SLURM_JOB_ID"), Process::script(again));
    until("the first job is found", || job(&jobs, process.id()) == "7");
    process.tell("\n");
    let mut changed = [0; 8];
    std::io::Read::read_exact(process.0.stdout.as_mut().unwrap(), &mut changed).unwrap();
    until("the second job is found", || job(&jobs, process.id()) == "8");
}

#[test]
fn groups_are_those_of_the_process_and_changes_are_seen_after_a_second() {
    let mut command = Command::new("setpriv");
    command.args(["--groups", "4243,4242", "sh", "-c", "echo started; read x"]);
    let mut process = Process::start(&mut command);
    let mut started = [0; 8];
    std::io::Read::read_exact(process.0.stdout.as_mut().unwrap(), &mut started).unwrap();
    assert_eq!(*find(&jobs("cgroup"), process.id()).groups, [4242, 4243]);

    let tree = Tree::new("groups");
    let jobs = tree.jobs("cgroup");
    tree.task("/bin/app", "1 2", "");
    assert_eq!(*find(&jobs, 5).groups, [1, 2]);
    tree.task("/bin/app", "1 2 3", "");
    until("the third group is seen", || *find(&jobs, 5).groups == [1, 2, 3]);
}

#[test]
fn what_is_still_so_is_not_told_anew() {
    let tree = Tree::new("same");
    let jobs = tree.jobs("fixed:a");
    tree.task("/bin/one", "1 2", "");
    let before = find(&jobs, 5);
    tree.task("/bin/two", "1 2", "");
    assert!(Arc::ptr_eq(&before, &find(&jobs, 5)));
}

#[test]
fn nobody_has_no_job_and_no_groups() {
    let jobs = jobs("fixed:everyone");
    assert_eq!(*find(&jobs, 0), CallerJob::default());
    let mut process = Process::script("read x");
    assert_eq!(job(&jobs, process.id()), "everyone");
    process.end();
    assert_eq!(*find(&jobs, process.id()), CallerJob::default());
    assert_eq!(*find(&jobs, u32::MAX), CallerJob::default());
}

#[test]
fn a_thread_that_is_not_its_processs_first_is_found() {
    let jobs = jobs("cgroup:/{}+fixed:mine");
    let inside = jobs.clone();
    let found = std::thread::spawn(move || {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_ne!(thread, std::process::id());
        let found = find(&inside, thread);
        let known = inside.table().get(thread).cloned().unwrap();
        (known.task.status().unwrap().process, known.program.is_some(), found)
    });
    let (process, has_program, caller) = found.join().unwrap();
    assert_eq!((process, has_program), (std::process::id(), true));
    assert_eq!(caller, find(&jobs, std::process::id()));
}

#[test]
fn a_number_that_another_task_has_by_now_is_that_tasks() {
    let tree = Tree::new("number");
    let jobs = tree.jobs("env:JOB");
    tree.task("/bin/app", "1", "JOB=1\0");
    until("the job is found", || job(&jobs, 5) == "1");
    fs::remove_dir_all(tree.0.join("5")).unwrap();
    tree.task("/bin/app", "2", "JOB=2\0");
    let caller = find(&jobs, 5);
    assert_ne!(caller.job.as_str(), "1");
    assert_eq!(*caller.groups, [2]);
}

/// The same test with real numbers, which the kernel can reuse.
#[test]
fn a_process_number_that_is_used_again_is_another_process() {
    const NEXT: &str = "/proc/sys/kernel/ns_last_pid";
    let jobs = jobs("env:SLURM_JOB_ID");
    let mut first = Process::script("read x");
    until("the first job is found", || job(&jobs, first.id()) == "7");
    let number = first.id();
    first.end();
    // Others may take the number in between; then the next try has it again.
    for _ in 0..1000 {
        if let Err(error) = fs::write(NEXT, (number - 1).to_string()) {
            return skip(&format!("the next process number cannot be chosen: {error}"));
        }
        let mut command = Command::new("sh");
        let second = Process::start(command.args(["-c", "read x"]).env("SLURM_JOB_ID", "8"));
        if second.id() == number {
            assert_ne!(job(&jobs, number), "7");
            return until("the second job is found", || job(&jobs, number) == "8");
        }
    }
    skip("the process number was always taken by others");
}

#[test]
fn an_environment_that_cannot_be_read_delays_nobody_else_and_the_next_source_is_asked() {
    let tree = Tree::new("hangs");
    tree.task("/bin/app", "1", "");
    let environ = tree.0.join("5/environ");
    fs::remove_file(&environ).unwrap();
    mknodat(CWD, &environ, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let jobs = tree.jobs("env:JOB+fixed:rest");
    let answers = ask(&jobs, 5);
    assert_eq!(job(&jobs, 0), "");
    let (caller, thread) = answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!((caller.job.as_str(), &*caller.groups), ("rest", &[1][..]));
    assert_ne!(thread, current().id());
    // Within a second it is known, so nobody waits for the same process again.
    let begun = Instant::now();
    let (caller, thread) = ask(&jobs, 5).recv_timeout(PATIENCE).unwrap();
    assert_eq!(caller.job.as_str(), "rest");
    assert!(thread == current().id() || begun.elapsed() >= Duration::from_millis(100));
    // Lets the reader that hangs go.
    let _ = rustix::fs::open(&environ, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
}

#[test]
fn a_name_that_is_none_leaves_the_word_to_the_next_source() {
    let tree = Tree::new("names");
    let jobs = tree.jobs("env:JOB+fixed:rest");
    for (number, name) in ["two\nlines", "", &"x".repeat(129)].iter().enumerate() {
        tree.task(&format!("/bin/{number}"), "", &format!("JOB={name}\0"));
        assert_eq!(job(&jobs, 5), "rest", "{name:?}");
    }
    tree.task("/bin/good", "", "JOB=good\0");
    until("a good name is taken", || job(&jobs, 5) == "good");
}

#[test]
fn the_first_source_that_has_a_name_wins() {
    let tree = Tree::new("order");
    tree.task("/bin/app", "", "A=a\0B=b\0");
    fs::write(tree.0.join("5/cgroup"), "0::/batch/12/x\n").unwrap();
    for (sources, found) in [
        ("cgroup:/batch/{}+env:A", "12"),
        ("cgroup:/none/{}+cgroup:/batch/{}", "12"),
        ("cgroup+fixed:f", "f"),
        ("cgroup", ""),
    ] {
        assert_eq!(job(&tree.jobs(sources), 5), found, "{sources}");
    }
    for (sources, found) in [("env:A+cgroup:/batch/{}", "a"), ("env:C+env:B+fixed:f", "b")] {
        until(sources, || job(&tree.jobs(sources), 5) == found);
    }
}
