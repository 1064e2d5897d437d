//! Reads variables of other processes' environments, by threads that may hang.
//!
//! ```text
//!   submit ─► waiting ─► a reader: /proc/TID/environ ─► then(value)
//!                │           └─ hangs ──┐
//!                └──────────────────────┴─► watcher, after 100 ms ─► then(None)
//! ```
//!
//! The kernel reads an environment out of the process's memory and waits for the process's locks on
//! the way. A process that holds these and waits for us, by a page fault or an exec on our own
//! mount, would block the thread that serves that mount for ever. So threads that serve requests do
//! not read environments.
//!
//! Invariants: `then` is called exactly once, by the thread that takes it out of the state. A
//! process whose read hangs is not read again until that read returns, so it holds one reader at
//! most. There are [`READERS_MAX`], and with all of them hanging every answer is `None` at once.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::task::TaskId;
use crate::helpers;

/// The readers and their watcher. They end when this is dropped, those that hang when their
/// read returns.
#[derive(Debug)]
pub(super) struct EnvironReaders(Arc<ReaderPool>);

/// A query for the first of some variables of a thread's process.
pub(super) struct EnvironQuery {
    /// The thread whose process is read.
    pub(super) task: Arc<TaskId>,
    /// The number of its process.
    pub(super) process: u32,
    /// The names of the variables.
    pub(super) variables: Arc<[String]>,
    /// Callback with the value of the first that is set and not empty; `None` if there is none, or it
    /// could not be read in time.
    pub(super) then: OnEnviron,
}

type OnEnviron = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

#[derive(Debug, Default)]
struct ReaderPool {
    state: Mutex<ReaderState>,
    /// Tells a reader that a question waits.
    work: Condvar,
    /// Tells the watcher that there is a deadline again.
    watch: Condvar,
    hang_warned: AtomicBool,
}

#[derive(Debug, Default)]
struct ReaderState {
    waiting: VecDeque<(Instant, EnvironQuery)>,
    reading: Vec<EnvironReading>,
    readers: usize,
    idle: usize,
    next_number: u64,
    /// The watcher sleeps without a deadline.
    watcher_sleeps: bool,
    closed: bool,
}

/// A read in flight.
struct EnvironReading {
    number: u64,
    process: u32,
    deadline: Instant,
    /// `None` after the query has timed out because the read hangs.
    then: Option<OnEnviron>,
}

impl EnvironReaders {
    /// Starts the watcher and a first reader.
    ///
    /// # Errors
    /// If there can be no further threads.
    pub(super) fn start() -> io::Result<EnvironReaders> {
        let readers = EnvironReaders(Arc::default());
        let shared = readers.0.clone();
        helpers::start("environ-watch".into(), move || shared.watch())?;
        readers.0.lock().readers = 1;
        readers.0.add_reader()?;
        Ok(readers)
    }

    /// Has a variable read. Calls `then` at once if that is hopeless, else later from another
    /// thread, after [`PATIENCE`] at the latest.
    pub(super) fn submit(&self, question: EnvironQuery) {
        let mut state = self.0.lock();
        if state.is_hopeless(question.process) {
            drop(state);
            return (question.then)(None);
        }
        state.waiting.push_back((Instant::now() + PATIENCE, question));
        let wants_reader = state.waiting.len() > state.idle && state.readers < READERS_MAX;
        state.readers += usize::from(wants_reader);
        let wakes_watcher = std::mem::take(&mut state.watcher_sleeps);
        drop(state);
        self.0.work.notify_one();
        if wakes_watcher {
            self.0.watch.notify_one();
        }
        if wants_reader && let Err(error) = self.0.add_reader() {
            tracing::debug!(%error, "cannot start another environment reader");
        }
    }
}

impl Drop for EnvironReaders {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
        self.0.watch.notify_all();
    }
}

impl ReaderPool {
    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a reader that is counted already.
    fn add_reader(self: &Arc<ReaderPool>) -> io::Result<()> {
        let shared = self.clone();
        let spawned = helpers::start("environ-read".into(), move || shared.read());
        if spawned.is_err() {
            self.lock().readers -= 1;
        }
        spawned
    }

    /// A reader: one question after another.
    fn read(&self) {
        while let Some((number, question)) = self.begin() {
            let value = value_in(&question.task, &question.variables);
            let ended = self.lock().end(number);
            if let Some(then) = ended.then {
                then(value);
            }
        }
    }

    /// Waits for a question; `None` when there will be none.
    fn begin(&self) -> Option<(u64, AskedProcess)> {
        let mut state = self.lock();
        state.idle += 1;
        while state.waiting.is_empty() && !state.closed {
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle -= 1;
        state.begin()
    }

    /// The watcher: answers for reads that take too long.
    fn watch(&self) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            let late = state.take_timed_out(now);
            if !late.is_empty() {
                drop(state);
                self.warn_of_hang();
                late.into_iter().for_each(|then| then(None));
                state = self.lock();
                continue;
            }
            let deadline = state.deadline();
            state.watcher_sleeps = deadline.is_none();
            state = match deadline {
                Some(deadline) => {
                    let wait = self.watch.wait_timeout(state, deadline.duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.watch.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn warn_of_hang(&self) {
        if !self.hang_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "cannot read a process's environment within {PATIENCE:?}; its requests get no \
                 job from it (logged once)"
            );
        }
    }
}

/// A process to read, for a reader.
struct AskedProcess {
    task: Arc<TaskId>,
    variables: Arc<[String]>,
}

impl ReaderState {
    /// The process hangs already, or everything does.
    fn is_hopeless(&self, process: u32) -> bool {
        let mut hanging = self.reading.iter().filter(|reading| reading.then.is_none());
        hanging.clone().count() == READERS_MAX
            || hanging.any(|reading| reading.process == process)
            || self.waiting.len() == WAITING_MAX
            || self.closed
    }

    fn begin(&mut self) -> Option<(u64, AskedProcess)> {
        let (deadline, question) = self.waiting.pop_front()?;
        let EnvironQuery { task, process, variables, then } = question;
        let number = self.next_number;
        self.next_number += 1;
        self.reading.push(EnvironReading { number, process, deadline, then: Some(then) });
        Some((number, AskedProcess { task, variables }))
    }

    fn end(&mut self, number: u64) -> EnvironReading {
        let place = self.reading.iter().position(|reading| reading.number == number);
        self.reading.swap_remove(place.expect("only its reader ends a reading"))
    }

    /// Removes the queries that have waited too long: their reads count as hung, or are never
    /// begun.
    fn take_timed_out(&mut self, now: Instant) -> Vec<OnEnviron> {
        let late = self.reading.iter_mut().filter(|reading| reading.deadline <= now);
        let mut late: Vec<_> = late.filter_map(|reading| reading.then.take()).collect();
        while self.waiting.front().is_some_and(|(deadline, _)| *deadline <= now) {
            late.extend(self.waiting.pop_front().map(|(_, question)| question.then));
        }
        late
    }

    fn deadline(&self) -> Option<Instant> {
        let reading = self.reading.iter().filter(|reading| reading.then.is_some());
        let first = self.waiting.front().map(|(deadline, _)| *deadline);
        reading.map(|reading| reading.deadline).chain(first).min()
    }
}

impl std::fmt::Debug for EnvironQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of process {}", self.variables, self.process)
    }
}

impl std::fmt::Debug for EnvironReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of process {}", self.number, self.process)
    }
}

/// The first of some variables, each as getenv(3) would find it, that is set and not empty. An
/// environment that cannot be read has none.
fn value_in(task: &TaskId, variables: &[String]) -> Option<Vec<u8>> {
    const ENVIRON: &CStr = c"environ";
    let environment = task.read(ENVIRON).ok()?;
    let getenv = |name: &String| {
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    variables.iter().filter_map(getenv).find(|value| !value.is_empty()).map(<[u8]>::to_vec)
}

/// How long a process's environment may take to be read: thousands of times what it does take.
const PATIENCE: Duration = Duration::from_millis(100);
/// Readers, and so reads that hang at a time.
const READERS_MAX: usize = 4;
/// Questions that wait for a reader; one more is answered `None` at once.
const WAITING_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, channel};

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

    use super::*;

    /// Long enough for a busy machine; only a failure waits for so long.
    const TEST_PATIENCE: Duration = Duration::from_secs(120);

    /// A tree like /proc, whose environments are files, or pipes that hang until something is
    /// written to them.
    struct ProcessTree(PathBuf);

    impl ProcessTree {
        fn new(name: &str) -> ProcessTree {
            let dir = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            ProcessTree(dir)
        }

        fn environ(&self, process: u32) -> PathBuf {
            let dir = self.0.join(process.to_string());
            fs::create_dir_all(&dir).unwrap();
            dir.join("environ")
        }

        fn file(&self, process: u32, text: &str) {
            fs::write(self.environ(process), text).unwrap();
        }

        fn pipe(&self, process: u32) {
            mknodat(CWD, self.environ(process), FileType::Fifo, Mode::RWXU, 0).unwrap();
        }

        /// Makes a process's read hang: its queries have timed out.
        fn hang(&self, readers: &EnvironReaders, process: u32) {
            self.pipe(process);
            until("the read is begun in time", || {
                assert_eq!(answer(&self.ask(readers, process)), None);
                readers.0.lock().reading.iter().any(|reading| reading.process == process)
            });
        }

        /// Lets a read that hangs return; does nothing if there is none.
        fn release(&self, process: u32) {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            let _ = rustix::fs::open(self.environ(process), flags, Mode::empty());
        }

        fn task(&self, process: u32) -> TaskId {
            TaskId::open(File::open(&self.0).unwrap(), process).unwrap()
        }

        fn ask(&self, readers: &EnvironReaders, process: u32) -> Receiver<Option<Vec<u8>>> {
            let (to, answer) = channel();
            readers.submit(EnvironQuery {
                task: self.task(process).into(),
                process,
                variables: ["JOB".to_owned()].into(),
                then: Box::new(move |value| to.send(value).unwrap()),
            });
            answer
        }
    }

    impl Drop for ProcessTree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn answer(from: &Receiver<Option<Vec<u8>>>) -> Option<String> {
        let value = from.recv_timeout(TEST_PATIENCE).expect("an answer comes");
        value.map(|value| String::from_utf8(value).unwrap())
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + TEST_PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_variable_is_found_as_the_process_itself_would() {
        let tree = ProcessTree::new("variable");
        for (text, value) in [
            ("A=1\0JOB=7\0B=2\0", Some("7")),
            ("XJOB=7\0JOBX=8\0JOB\0", None),
            ("JOB=\0", None),
            ("JOB=\0JOB=8\0", None),
            ("JOB=7\0JOB=8\0", Some("7")),
            ("OTHER=9\0JOB=7\0", Some("7")),
            ("OTHER=9\0JOB=\0", Some("9")),
            ("", None),
        ] {
            tree.file(1, text);
            let found = value_in(&tree.task(1), &["JOB".into(), "OTHER".into()]);
            assert_eq!(found, value.map(|value| value.as_bytes().to_vec()), "{text:?}");
        }
    }

    #[test]
    fn a_read_that_hangs_is_given_up_and_others_go_on() {
        let (tree, readers) = (ProcessTree::new("hangs"), EnvironReaders::start().unwrap());
        tree.pipe(1);
        tree.file(2, "JOB=2\0");
        let begun = Instant::now();
        let hangs = tree.ask(&readers, 1);
        until("others go on", || answer(&tree.ask(&readers, 2)).as_deref() == Some("2"));
        assert_eq!(answer(&hangs), None);
        assert!(begun.elapsed() >= PATIENCE);
        tree.release(1);
    }

    #[test]
    fn a_process_that_hangs_is_read_again_only_once_its_read_returned() {
        let (tree, readers) = (ProcessTree::new("again"), EnvironReaders::start().unwrap());
        tree.hang(&readers, 1);
        let at_once = tree.ask(&readers, 1);
        assert_eq!(at_once.try_recv(), Ok(None), "it is answered before ask returns");
        tree.release(1);
        fs::remove_file(tree.environ(1)).unwrap();
        tree.file(1, "JOB=1\0");
        until("it is read", || answer(&tree.ask(&readers, 1)).as_deref() == Some("1"));
    }

    #[test]
    fn with_all_readers_hanging_answers_are_none_at_once_until_one_returns() {
        let (tree, readers) = (ProcessTree::new("all"), EnvironReaders::start().unwrap());
        (1..=4).for_each(|process| tree.hang(&readers, process));
        tree.file(9, "JOB=9\0");
        assert_eq!(tree.ask(&readers, 9).try_recv(), Ok(None));
        tree.release(3);
        until("one is enough", || answer(&tree.ask(&readers, 9)).as_deref() == Some("9"));
        (1..=4).for_each(|process| tree.release(process));
    }

    #[test]
    fn questions_behind_hanging_readers_are_not_kept_longer_than_those() {
        let (tree, readers) = (ProcessTree::new("behind"), EnvironReaders::start().unwrap());
        let ask = |process| {
            tree.pipe(process);
            tree.ask(&readers, process)
        };
        let asked: Vec<_> = (1..=7).map(ask).collect();
        assert!(asked.iter().all(|asked| answer(asked).is_none()));
        let state = readers.0.lock();
        assert!(state.reading.len() <= READERS_MAX && state.waiting.is_empty(), "{state:?}");
        drop(state);
        (1..=7).for_each(|process| tree.release(process));
    }

    #[test]
    fn readers_end_with_whom_they_serve() {
        let readers = EnvironReaders::start().unwrap();
        let shared = Arc::downgrade(&readers.0);
        drop(readers);
        until("all threads end", || shared.strong_count() == 0);
    }
}
