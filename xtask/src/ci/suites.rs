//! What CI consists of: each suite with its commands, its needs and the time it usually takes.
//!
//! The order is from what fails fastest to what takes longest. Everything is built once, for the
//! tests: the suites after "compile" use the binaries that it leaves, which keep their own promises
//! (debug assertions). The release binary is for `make demo`, `make figures` and `make soak`
//! (docs/decisions/0013).

use std::path::Path;

/// One row of CI: a command that proves one thing.
#[derive(Debug)]
pub(crate) struct Suite {
    /// One word, for the table and the command line.
    pub(crate) name: &'static str,
    /// What it proves, for `--list`.
    pub(crate) what: &'static str,
    /// Seconds that it takes on two slow cores with nothing built before and nothing else running. A
    /// machine that is busy may take longer: that fails nothing, but is marked.
    pub(crate) usual_s: u64,
    /// Programs without which it is skipped, each with what it comes with.
    pub(crate) needs: &'static [(&'static str, &'static str)],
    /// The command and its arguments; a program without a folder is found in PATH.
    pub(crate) command: Vec<String>,
}

const GUEST: &[(&str, &str)] =
    &[("qemu-system-x86_64", "qemu-system-x86"), ("gcc", "gcc"), ("apt-get", "apt")];

const MOUNT: &[(&str, &str)] = &[("gcc", "gcc"), ("join", "coreutils")];

/// Seconds that all suites together usually take at most.
#[cfg(test)]
const ALL_S: u64 = 35 * 60;

/// What may differ by the kind of socket: sizes of messages, many at once, cancelled ones.
const SOCKET_TESTS: &str =
    "write_read,sizes,fcntl_lock,many_open,parallel_shared_file,kill_during_io,copy_checksum";

/// Every suite, in the order of running.
pub(crate) fn all(target: &Path) -> Vec<Suite> {
    let sluice = target.join("debug/sluice");
    let mut suites = sources(&target.join("debug").to_string_lossy());
    suites.extend(crates());
    suites.extend(behaviour(&sluice.to_string_lossy()));
    suites.extend(mounts(&sluice.to_string_lossy()));
    suites.push(mirror(&target.join("debug/examples/mirror").to_string_lossy()));
    suites
}

/// What can be said from the sources, and the one build that the rest uses.
fn sources(folder: &str) -> Vec<Suite> {
    vec![
        Suite::new("fmt", 5, "rustfmt has nothing to change", "cargo fmt --all --check")
            .needs(&[("rustfmt", "rustfmt-web, or rustup's component rustfmt")]),
        Suite::new(
            "layers",
            5,
            "crates use lower layers only, core names nothing of the world",
            "cargo xtask layers",
        ),
        Suite::new(
            "tidy",
            10,
            "no leftovers, dead or overlong files, no names of files that are not there",
            "cargo xtask tidy",
        ),
        Suite::new(
            "clippy",
            150,
            "no warning of the compiler or of clippy, in any target",
            "cargo clippy --workspace --all-targets -- -D warnings",
        )
        .needs(&[("cargo-clippy", "rustup's component clippy")]),
        Suite::new(
            "doc",
            90,
            "doc comments link to names that exist",
            "cargo doc --quiet --workspace --no-deps --document-private-items",
        ),
        Suite::new(
            "compile",
            330,
            "the binaries and the tests of every crate, built",
            "cargo test --workspace --no-run",
        ),
        Suite::new(
            "docs",
            5,
            "docs/CONFIG.md, METRICS.md and ACCESS.md say what the code says, FIGURES.md what was measured",
            &format!("cargo xtask docs --check {folder}"),
        ),
    ]
}

/// The tests of the crates.
fn crates() -> Vec<Suite> {
    vec![
        Suite::new(
            "test",
            380,
            "unit, table, property and guarantee tests of every crate",
            "cargo test --workspace --no-fail-fast",
        ),
        Suite::new(
            "unobserved",
            60,
            "the dispatcher chooses the same requests without its observation compiled in",
            "cargo test --package sluice-sched --no-default-features --lib --test all",
        ),
    ]
}

/// What has to be run to be known.
fn behaviour(sluice: &str) -> Vec<Suite> {
    let guest = |suite: &str| format!("tests/with-proxy.sh {sluice} tests/guest.sh {suite}");
    vec![
        Suite::new(
            "sim",
            10,
            "every scenario comes true: the scheduler under invented time beside what is published",
            &format!("{sluice} sim --quiet scenarios/"),
        ),
        Suite::new(
            "api",
            30,
            "both APIs refuse what their descriptions do not allow, and answer as these say",
            &format!("tests/schemathesis.sh {sluice}"),
        ),
        Suite::new("fuzz", 140, "decoders and rule text, led by coverage", "tests/fuzz.sh")
            .needs(&[("g++", "g++")]),
        Suite::new(
            "programs",
            100,
            "pjdfstest and fsx, built once for all that use them",
            "tests/guest.sh programs",
        )
        .needs(&[("gcc", "gcc")]),
        Suite::new(
            "clients",
            5,
            "diod's own clients list and read what is there",
            &format!("tests/with-proxy.sh {sluice} tests/diod-clients.sh"),
        )
        .needs(&[("diodls", "diod")]),
        Suite::new(
            "v9fs",
            90,
            "file operations through the Linux kernel's own 9P client, and locks beside a mount",
            &guest("fstest"),
        )
        .needs(GUEST),
        Suite::new(
            "v9fs-unix",
            15,
            "the same client through the Unix socket, its main operations",
            &format!("env PROXY_UNIX=1 VM_TESTS={SOCKET_TESTS} {}", guest("fstest")),
        )
        .needs(GUEST),
        Suite::new(
            "pjdfstest",
            75,
            "POSIX: what passes on tmpfs passes through the kernel's client",
            &guest("pjdfstest"),
        )
        .needs(GUEST),
        Suite::new(
            "fsx",
            75,
            "random reads, writes, truncations and maps leave the right bytes",
            &guest("fsx"),
        )
        .needs(GUEST),
        Suite::new(
            "demo",
            15,
            "the demo, shortened, from its start to a clean end",
            &format!("{sluice}-bench demo --quick --out target/demo.svg --dir target"),
        ),
    ]
}

/// The protocol of FUSE alone, without proxy and mount.
fn mirror(mirror: &str) -> Suite {
    Suite::new(
        "mirror",
        15,
        "POSIX: what passes in a directory passes on mirrors of it, over /dev/fuse and io_uring",
        &format!("tests/mirror.sh {mirror} pjdfstest"),
    )
    .needs(MOUNT)
}

/// What programs that try file systems find in a mount.
fn mounts(sluice: &str) -> Vec<Suite> {
    let mount = |suite: &str| format!("tests/mount.sh {sluice} {suite}");
    vec![
        Suite::new(
            "mount-posix",
            20,
            "POSIX: what passes in a directory passes on a mount of it",
            &mount("pjdfstest"),
        )
        .needs(MOUNT),
        Suite::new(
            "mount-fsx",
            50,
            "random reads, writes, holes and maps on a mount leave the right bytes",
            &mount("fsx"),
        )
        .needs(MOUNT),
        Suite::new(
            "mount-stress",
            40,
            "stress-ng's stressors of file systems leave a mount that answers",
            &mount("stress"),
        )
        .needs(&[("stress-ng", "stress-ng")]),
        Suite::new(
            "mount-programs",
            160,
            "databases, git, copies, compilers and MPI on mounts do what they do in a directory",
            &format!("tests/programs.sh {sluice} short"),
        )
        .needs(&[("python3", "python3")]),
    ]
}

impl Suite {
    fn new(name: &'static str, usual_s: u64, what: &'static str, line: &str) -> Suite {
        Suite { name, what, usual_s, needs: &[], command: command(line) }
    }

    fn needs(self, needs: &'static [(&'static str, &'static str)]) -> Suite {
        Suite { needs, ..self }
    }
}

/// A command line without quoting: words are separated by spaces.
fn command(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_usually_take_35_minutes_at_most() {
        let sum: u64 = all(Path::new("target")).iter().map(|suite| suite.usual_s).sum();
        assert!(sum <= ALL_S, "{sum} s");
    }

    #[test]
    fn names_are_unique_words() {
        let suites = all(Path::new("target"));
        let mut names: Vec<_> = suites.iter().map(|suite| suite.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), suites.len());
    }
}
