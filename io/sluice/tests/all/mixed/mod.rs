//! A load of everything that a mount can change, by workers that know what they were promised.
//!
//! ```text
//!   test ─ Load, a process of its own ─► Worker: change, and note that it was acknowledged
//!     │                                     │ each calls only what fails, or shows, if it is
//!     │                                     ▼ done twice or not at all
//!     └─ stop, look in a place ──────────► Check: what of it must be there
//! ```
//!
//! The workers are not of the test's process: whoever starts a program closes its copies of all
//! files, and waits for what was written to them; a proxy that is started then would wait for
//! itself.
//!
//! Every worker has a folder of its own, but those that append and those that count: they are
//! on several mounts and share a file, where each must find what the others did.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

mod bytes;
mod names;
mod shared;

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

pub use testkit::Dice;
use testkit::again;

use crate::common::{skip, until};

/// The workers' process, as the test sees it.
pub struct Load(Obeying);

impl Load {
    /// Puts one worker of each kind on each mount. `scratch` is for their programs, and `serving`
    /// the test that calls [`serve`].
    pub fn start(of: &str, serving: &str, mounts: &[&Path], scratch: &Path, seed: u64) -> Load {
        let mounts: Vec<_> = mounts.iter().map(|mount| mount.to_str().unwrap()).collect();
        let seed = seed.to_string();
        let words = [&[scratch.to_str().unwrap(), seed.as_str()], &mounts[..]].concat();
        let mut command = again(of, serving);
        command.env(WORDS, words.join("\n"));
        let mut load = Load(Obeying::start(&mut command));
        load.0.tell("start");
        load
    }

    /// Waits until so many more steps are made, by whomever.
    pub fn goes_on_by(&mut self, steps: u64) {
        self.0.tell(&format!("by {steps}"));
    }

    /// Waits until each worker has made a step that it began from now on.
    pub fn all_go_on(&mut self) {
        self.0.tell("all");
    }

    /// Ends the load.
    pub fn stop(&mut self) {
        self.0.tell("stop");
    }

    /// Fails if something that was acknowledged is missing in a place, or is there twice.
    pub fn look_in(&mut self, place: &Path) {
        self.0.tell(&format!("look {}", place.display()));
    }
}

/// Is the workers' process, if it was started as such.
pub fn serve() -> bool {
    let Ok(words) = std::env::var(WORDS) else { return false };
    let words: Vec<_> = words.lines().collect();
    let [scratch, seed, mounts @ ..] = &words[..] else { panic!("{words:?}") };
    let mut at_work = None;
    let mut promised = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let workers = || at_work.as_ref().expect("they were started");
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("start", _) => {
                let seed = seed.parse().unwrap();
                at_work = Some(Workers::start(mounts, Path::new(scratch), seed));
            }
            ("by", steps) => Workers::go_on_by(workers(), steps.parse().unwrap()),
            ("all", _) => Workers::all_go_on(workers()),
            ("stop", _) => promised = at_work.take().expect("they were started").stop(),
            ("look", place) => {
                for (name, check) in &promised {
                    eprintln!("looking for what {name} did in {place}");
                    check(Path::new(place));
                }
            }
            _ => panic!("nobody knows what {line:?} means"),
        }
        // on a line of its own: the harness may have begun one
        println!("\nok");
    }
    true
}

const WORDS: &str = "SLUICE_LOAD";

/// All workers, at work.
struct Workers {
    all: Vec<Running>,
    stop: Arc<AtomicBool>,
}

/// What one worker was promised, to be looked for in each place.
type Checks = Box<dyn Fn(&Path) + Send>;

struct Running {
    name: String,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Checks>,
}

/// What a worker is given.
pub(crate) struct Work {
    /// The mount that it uses.
    root: PathBuf,
    /// Its own name, and that of its folder.
    name: String,
    dice: Dice,
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Workers {
    fn start(mounts: &[&str], scratch: &Path, seed: u64) -> Workers {
        let mut workers = Workers { all: Vec::new(), stop: Arc::default() };
        let pages = bytes::page_writer(scratch);
        if pages.is_none() {
            skip("no compiler for C here: nothing is written through maps");
        }
        let counted = Arc::new(AtomicU64::new(0));
        shared::prepare(Path::new(mounts[0]));
        for (n, mount) in mounts.iter().enumerate() {
            let mut put = |kind: &str, work: fn(Work) -> Checks| {
                workers.put(mount, format!("{kind}{n}"), seed, work);
            };
            put("names", names::names);
            put("attributes", names::attributes);
            put("writes", bytes::writes);
            put("lengths", bytes::lengths);
            put("appends-a", shared::appends);
            put("appends-b", shared::appends);
            let counted = counted.clone();
            let count = move |work| shared::counts(work, counted);
            workers.put(mount, format!("counts{n}"), seed, count);
            if let Some(program) = pages.clone() {
                let map = move |work| bytes::maps(work, &program);
                workers.put(mount, format!("maps{n}"), seed, map);
            }
        }
        workers
    }

    fn put(
        &mut self,
        mount: &str,
        name: String,
        seed: u64,
        work: impl FnOnce(Work) -> Checks + Send + 'static,
    ) {
        let done: Arc<AtomicU64> = Arc::default();
        let given = Work {
            root: mount.into(),
            name: name.clone(),
            dice: Dice::new(seed.wrapping_add(self.all.len() as u64)),
            done: done.clone(),
            stop: self.stop.clone(),
        };
        fs::create_dir(given.folder()).unwrap();
        let thread = std::thread::Builder::new().name(name.clone());
        let thread = thread.spawn(move || work(given)).unwrap();
        self.all.push(Running { name, done, thread });
    }

    fn go_on_by(&self, steps: u64) {
        let made = || self.all.iter().map(Running::steps).sum::<u64>();
        let goal = made() + steps;
        self.until("the load goes on", || made() >= goal);
    }

    fn all_go_on(&self) {
        for worker in &self.all {
            let goal = worker.steps() + 2;
            self.until(&format!("{} goes on", worker.name), || worker.steps() >= goal);
        }
    }

    fn stop(self) -> Vec<(String, Checks)> {
        self.stop.store(true, Ordering::SeqCst);
        for worker in &self.all {
            until(&format!("{} ends", worker.name), || worker.thread.is_finished());
            println!("{} made {} steps", worker.name, worker.steps());
        }
        let join = |worker: Running| (worker.name, worker.thread.join().unwrap());
        self.all.into_iter().map(join).collect()
    }

    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        until(what, || {
            let failed = self.all.iter().find(|worker| worker.thread.is_finished());
            assert!(failed.is_none(), "{} has failed", failed.unwrap().name);
            is()
        });
    }
}

impl Running {
    fn steps(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }
}

impl Work {
    /// To be asked before each step; what was done before counts.
    fn goes_on(&self) -> bool {
        self.done.fetch_add(1, Ordering::SeqCst);
        !self.stop.load(Ordering::SeqCst)
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }
}

/// A program that does one thing for each line it is given, and says `ok` each time. What else
/// it says is passed on.
pub struct Obeying {
    child: Child,
    lines: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Obeying {
    pub fn start(command: &mut Command) -> Obeying {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Obeying { child, lines, answers }
    }

    /// A shell that runs each line.
    pub fn shell() -> Obeying {
        let script = "while read -r line; do eval \"$line\" || exit 1; echo ok; done";
        Obeying::start(Command::new("sh").args(["-c", script]))
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns once it is done.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.lines.as_ref().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        while answer != "ok\n" {
            print!("{answer}");
            answer.clear();
            assert!(self.answers.read_line(&mut answer).unwrap() > 0, "it ended at {line:?}");
        }
    }

    pub fn end(mut self) {
        drop(self.lines.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Obeying {
    fn drop(&mut self) {
        drop(self.lines.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
