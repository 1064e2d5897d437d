//! One directory, mounted twice by `sluice mount`, as two nodes of a cluster have it.
//!
//! ```text
//!   test, its workers ─┬─► a ─► sluice mount ─┐
//!                      └─► b ─► sluice mount ─┴─► Proxy ─► the directory beside it
//! ```
//!
//! At the end of a test that has passed both are unmounted as an administrator would do it,
//! which fails the test if something stays in use or a mount has died. Workers are
//! processes of the test's own program, told by their environment what to do.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use testkit::again;

use crate::common::{PATIENCE, Proxy, SLUICE, Setup, root_here, skip, umount};

/// Two mounts of one proxy's export, which lets root be root and believes mounts about groups.
pub struct Pair {
    pub a: Mounted,
    pub b: Mounted,
    pub proxy: Proxy,
}

/// A directory where the export is mounted.
pub struct Mounted(PathBuf);

impl Pair {
    /// None, said aloud, where nothing can be mounted.
    pub fn new(name: &str, options: &str) -> Option<Pair> {
        if !root_here() {
            return None;
        }
        if !Path::new("/dev/fuse").exists() {
            skip("no /dev/fuse here");
            return None;
        }
        let proxy = Setup::new(name).top("squash = \"none\"\ngroups = \"client\"").start();
        let a = Mounted::new(&proxy, "a", options);
        let b = Mounted::new(&proxy, "b", options);
        Some(Pair { a, b, proxy })
    }

    /// Both mounts, for what must hold in both directions.
    pub fn both(&self) -> [&Mounted; 2] {
        [&self.a, &self.b]
    }

    /// Where a file of the mounts is beside them.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.proxy.data().join(name)
    }
}

impl Mounted {
    pub fn new(proxy: &Proxy, name: &str, options: &str) -> Mounted {
        Mounted::by(Command::new(SLUICE), &source(proxy), proxy.dir.join(name), options)
    }

    /// Of what several proxies serve, at a directory that is made.
    pub fn of(proxies: &[&Proxy], at: PathBuf, options: &str) -> Mounted {
        let sources: Vec<_> = proxies.iter().map(|proxy| source(proxy)).collect();
        Mounted::by(Command::new(SLUICE), &sources.join(","), at, options)
    }

    /// Served by a process that may have so many descriptors.
    pub fn with_descriptors(proxy: &Proxy, name: &str, options: &str, most: usize) -> Mounted {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={most}:{most}")).arg(SLUICE);
        Mounted::by(command, &source(proxy), proxy.dir.join(name), options)
    }

    fn by(mut command: Command, source: &str, at: PathBuf, options: &str) -> Mounted {
        fs::create_dir(&at).unwrap();
        let words = ["mount", source, at.to_str().unwrap()];
        command.args(words);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Mounted(at)
    }

    /// The process behind the mount.
    pub fn process(&self) -> u32 {
        let text = fs::read_to_string(self.record("json")).unwrap();
        let number = text.split("\"pid\":").nth(1).unwrap().trim_start();
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        number.parse().unwrap()
    }

    pub fn at(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn record(&self, ending: &str) -> PathBuf {
        let name = self.0.to_str().unwrap()[1..].replace('-', "\\x2d").replace('/', "-");
        PathBuf::from(format!("/run/sluice/mount-{name}.{ending}"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let told = (!failed).then(|| umount(&self.0, &[]));
        let ended_well = told.as_ref().is_some_and(|output| output.status.success());
        let log = fs::read_to_string(self.record("log")).unwrap_or_default();
        if !ended_well {
            eprintln!("the mount at {} said: {log}", self.0.display());
            umount(&self.0, &["--force"]);
        }
        let _ = fs::remove_file(self.record("log"));
        assert!(failed || ended_well, "{told:?}");
    }
}

/// Where a proxy serves its export, the same when it is started again.
fn source(proxy: &Proxy) -> String {
    format!("unix://{}//x", proxy.socket().display())
}

/// Starts this program once more, for its test `name` of module `of` alone, with `words` to work on.
pub fn worker(of: &str, name: &str, words: &[&str]) -> Child {
    again(of, name).env(WORDS, words.join("\n")).stdout(Stdio::null()).spawn().unwrap()
}

/// What a worker is told to work on; none in the test itself.
pub fn words() -> Option<Vec<String>> {
    let words = std::env::var(WORDS).ok()?;
    Some(words.lines().map(String::from).collect())
}

/// Waits until every worker has ended well. Those that take too long are killed.
pub fn finish(mut workers: Vec<Child>) {
    let began = Instant::now();
    let mut ended = vec![None; workers.len()];
    while ended.contains(&None) && began.elapsed() < 2 * PATIENCE {
        for (worker, ended) in workers.iter_mut().zip(&mut ended) {
            *ended = worker.try_wait().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for worker in &mut workers {
        let _ = worker.kill();
    }
    assert!(ended.iter().all(|ended| ended.is_some_and(|status| status.success())), "{ended:?}");
}

/// Bytes that differ by seed and place.
pub fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096 + seed * 7) as u8).collect()
}

const WORDS: &str = "SLUICE_TEST_WORDS";
