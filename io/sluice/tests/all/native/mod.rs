//! Programs of other languages, built with the library as its users build theirs.
//!
//! ```text
//!   cargo ─► deps/libsluice.so ─► DIR/libsluice.so.0, DIR/libsluice.so
//!   sources of native/ ─ cc, g++, gfortran, mpicc, python3 ─► program ─► runs with the environment
//! ```

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::{TestFolder, skip};

/// A folder with the library as it is installed, and what is built with it.
pub(crate) struct Workshop(TestFolder);

/// The compiler of C and its flags.
pub(crate) const C: &[&str] = &["cc", "-std=c99", "-pedantic"];

/// A URL where nobody listens.
pub(crate) fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// The folder `native` of the repository.
pub(crate) fn native() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../native")
}

/// The library as cargo built it, beside the test's own program.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libsluice.so")
}

/// Whether a program is there; says so aloud if not.
pub(crate) fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = status.is_ok_and(|status| status.success());
    if !found {
        skip(&format!("needs {program}"));
    }
    found
}

impl Workshop {
    pub(crate) fn new() -> Workshop {
        let folder = TestFolder::new();
        for name in ["libsluice.so.0", "libsluice.so"] {
            std::os::unix::fs::symlink(library(), folder.path().join(name)).unwrap();
        }
        Workshop(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles files of `native/` into a program; `None`, said aloud, without the compiler.
    pub(crate) fn build(&self, compiler: &[&str], sources: &[&str]) -> Option<PathBuf> {
        if !has(compiler[0]) {
            return None;
        }
        let program = self.path().join("program");
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-O1"]);
        // Modules of Fortran are written where the compiler runs.
        command.current_dir(self.path()).arg("-I").arg(native().join("library/include"));
        command.args(sources.iter().map(|source| native().join(source)));
        command.arg("-L").arg(self.path()).args(["-lsluice", "-o"]).arg(&program);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(program)
    }

    /// A command that finds the library, with a controller and nothing else of Sluice's.
    pub(crate) fn command(&self, program: &Path, controller: &str) -> Command {
        let mut command = Command::new(program);
        for name in ["SLUICE_CA", "SLUICE_TOKEN_FILE", "SLUICE_TOKEN", "SLURM_JOB_ID"] {
            command.env_remove(name);
        }
        command.env("SLUICE_CONTROLLER", controller).env("LD_LIBRARY_PATH", self.path());
        command.env("PYTHONPATH", native().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Runs a command that must succeed; returns what it printed, with the errors after it.
pub(crate) fn run(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    (stdout, stderr)
}
