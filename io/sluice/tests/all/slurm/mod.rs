//! Slurm with Sluice's files of `native/`: options, checks, the gate, and hooks, in a real cluster.
//!
//! ```text
//!   native/spank/sluice_spank.c ─ gcc ─► sluice_spank.so ─► plugstack.conf
//!   native/slurm/*.lua, *.sh ─ with the path of a program instead of /usr/bin/sluice ─► etc, hooks
//!   fake program: notes each call in `calls`, and does what the test says of a command
//! ```

mod arrays;
mod ends;
mod gate;
mod hooks;
mod mounts;
mod reserved;
mod submission;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::{
    PATIENCE, SlurmCluster, SlurmFiles, TestFolder, everybodys, native, write_node_program,
    write_program,
};

use crate::common::skip;

/// The user that submits jobs: nobody.
const USER: u32 = 65534;
/// Another unprivileged user: bin.
const STRANGER: u32 = 2;

/// A cluster with Sluice's files.
struct SlurmSite {
    cluster: SlurmCluster,
}

/// How a site sets Slurm up.
#[derive(Clone, Copy, Default)]
struct SlurmSetUp<'a> {
    /// Jobs pass the gate before they start.
    gate: bool,
    /// The prologs and epilogs run.
    hooks: bool,
    /// The program that all of them run; none: one that notes what it is called with.
    program: Option<&'a Path>,
}

/// What a command of a user printed, and whether it succeeded.
struct Said {
    ok: bool,
    text: String,
    errors: String,
}

impl SlurmSite {
    /// Starts it; none, said aloud, where it cannot run.
    fn start(set_up: SlurmSetUp<'_>) -> Option<SlurmSite> {
        let library = spank_library()?;
        let library = library.path().join("sluice_spank.so");
        let cluster = SlurmCluster::start(|root| install(root, &library, set_up))?;
        Some(SlurmSite { cluster })
    }

    /// Runs a command of a user to its end.
    fn run(&self, user: u32, words: &[&str]) -> Said {
        let output = self.cluster.command(user, words[0]).args(&words[1..]).output().unwrap();
        Said::of(&output)
    }

    /// Submits a batch job of the user, which must be accepted.
    fn sbatch(&self, options: &[&str], script: &str) -> u32 {
        let words = [&["sbatch", "--parsable"], options, &["--wrap", script]].concat();
        let said = self.run(USER, &words);
        assert!(said.ok, "{words:?}: {}", said.errors);
        said.text.trim().parse().unwrap()
    }

    /// What the fake program was called with so far, a line each: user, arguments, job of the hook.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.cluster.path("fake/calls")).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    /// Waits for a call that ends with these words.
    fn until_called(&self, words: &str) {
        until(&format!("a call of {words}"), || self.was_called(words));
    }

    fn was_called(&self, words: &str) -> bool {
        self.calls().iter().any(|call| call.ends_with(words))
    }

    /// Has `sluice slurm COMMAND` of the fake program run a shell script, from the next call on.
    fn does(&self, command: &str, script: &str) {
        let place = self.cluster.path("fake");
        fs::write(place.join("new"), script).unwrap();
        fs::rename(place.join("new"), place.join(format!("do.{command}"))).unwrap();
    }

    /// Changes a setting of an installed file.
    fn set(&self, file: &str, from: &str, to: &str) {
        let path = self.cluster.path(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        let (new, mode) = (path.with_extension("new"), fs::metadata(&path).unwrap().permissions());
        // as a program is written: it may be one
        write_program(&new, &text.replacen(from, to, 1));
        fs::set_permissions(&new, mode).unwrap();
        fs::rename(new, &path).unwrap();
    }

    /// What a job wrote, once it has ended in this state.
    fn output_of(&self, job: u32, state: &str) -> String {
        self.cluster.until_job(job, state);
        fs::read_to_string(self.cluster.path(&format!("work/slurm-{job}.out"))).unwrap_or_default()
    }
}

impl Drop for SlurmSite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- calls of the fake program\n{}", self.calls().join("\n"));
        }
    }
}

/// Waits until `is` holds, and fails naming `what`; the cluster then prints the rest when it is dropped. Most
/// looks start a command of Slurm, so they are further apart than in other tests.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Said {
    fn of(output: &Output) -> Said {
        Said {
            ok: output.status.success(),
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that it was refused, with each of these in the message.
    fn refused_with(&self, all: &[&str]) {
        assert!(!self.ok, "accepted: {}{}", self.text, self.errors);
        for part in all {
            assert!(self.errors.contains(part), "no {part} in: {}", self.errors);
        }
    }
}

/// Builds the plug-in as its first lines say; none, said aloud, without Slurm's headers.
fn spank_library() -> Option<TestFolder> {
    if !Path::new("/usr/include/slurm/spank.h").exists() {
        skip("slurm/spank.h: Debian's libslurm-dev has it");
        return None;
    }
    let folder = TestFolder::new();
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", "-o"])
        .arg(folder.path().join("sluice_spank.so"))
        .arg(native("spank/sluice_spank.c"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(folder)
}

/// Puts the files into a cluster's folder, and returns its lines of slurm.conf.
fn install(root: &Path, library: &Path, set_up: SlurmSetUp<'_>) -> String {
    fs::create_dir(root.join("fake")).unwrap();
    everybodys(&root.join("fake"));
    let program = root.join("fake/sluice");
    match set_up.program {
        Some(real) => write_node_program(root, &program, real),
        None => write_program(&program, &FAKE.replace("@ROOT@", root.to_str().unwrap())),
    }
    let files = SlurmFiles {
        program: &program,
        plugin: library,
        options: "controller=http://192.0.2.1:5650",
        gate: set_up.gate,
    };
    let mut lines = files.install(root);
    if set_up.hooks {
        // a loaded machine may need more than the two seconds of a site
        lines += &files.install_hooks(root, |text| text.replace("LIMIT=2s", "LIMIT=60s"));
    }
    lines
}

/// One write for each call: a line is whole, whichever node's hook makes it.
const FAKE: &str = "\
#!/bin/sh
cd @ROOT@/fake
printf '%s\\n' \"$(id -u) ${SLURMD_NODENAME:--} restart=${SLURM_JOB_RESTART_COUNT:-0} $* $SLURM_JOB_ID\" >>calls
[ ! -e do.$2 ] || . ./do.$2
exit 0
";
