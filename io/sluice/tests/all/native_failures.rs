//! Programs with the library whose controller fails after it has accepted, and other mishaps: what
//! they write is not lost.
//!
//! ```text
//!   example ─ libsluice.so ─► StubController: accepts, then refuses the claim or the end
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::{TestFolder, root_here, skip};

use crate::entrusted::text;
use crate::native::{C, Workshop, has, library, native, nowhere, run};
use crate::stub::StubController;
use crate::typed::markdown::blocks;

/// A program of a language, with a folder for its compiled form.
struct Example {
    workshop: Workshop,
    /// The interpreter, or the program.
    program: PathBuf,
    script: Option<PathBuf>,
    file: &'static str,
}

impl Example {
    /// The examples of which the machine has the compiler.
    fn all() -> Vec<Example> {
        let compiled: [(&[&str], &[&str], &str); 3] = [
            (C, &["examples/checkpoint.c", "examples/checkpoint_app.c"], "checkpoint.3/rank0.dat"),
            (&["g++", "-std=c++11", "-pedantic"], &["examples/dump.cpp"], "dump"),
            (&["gfortran", "-std=f2018"], &["fortran/sluice.f90", "examples/dump.f90"], "dump"),
        ];
        let compiled = compiled.into_iter().filter_map(|(compiler, sources, file)| {
            let workshop = Workshop::new();
            let program = workshop.build(compiler, sources)?;
            Some(Example { workshop, program, script: None, file })
        });
        let python = has("python3").then(|| Example {
            workshop: Workshop::new(),
            program: "python3".into(),
            script: Some(native().join("examples/dump.py")),
            file: "dump",
        });
        compiled.chain(python).collect()
    }

    /// Runs it; returns what it printed, with the errors after it.
    fn run(&self, url: &str) -> (String, String) {
        let folder = TestFolder::new();
        let mut command = self.workshop.command(&self.program, url);
        let printed = run(command.args(&self.script).arg(folder.path()));
        let written = fs::metadata(folder.path().join(self.file)).unwrap();
        assert_eq!(written.len(), 1 << 20, "{}", self.file);
        printed
    }
}

fn reservation(state: &str) -> (u16, Value) {
    (200, json!({"id": 7, "state": state, "user": 1, "target": "fs"}))
}

fn denied() -> (u16, Value) {
    (403, json!({"code": "permission_denied", "message": "not any more"}))
}

/// A controller that accepts a reservation, and then nothing of its owner.
fn refusing_all_after_the_request() -> StubController {
    StubController::start(|call| match call {
        "POST /v1/reservations" => reservation("SCHEDULED"),
        _ => denied(),
    })
}

/// A controller at which the reservation has ended before it is finished.
fn without_the_reservation_at_its_end() -> StubController {
    StubController::start(|call| match call {
        "POST /v1/reservations" | "POST /v1/reservations/7/claim" => reservation("ACTIVE"),
        _ => (404, json!({"code": "not_found", "message": "none"})),
    })
}

#[test]
fn an_example_writes_best_effort_when_a_reservation_cannot_be_used_or_removed() {
    for example in Example::all() {
        let controller = refusing_all_after_the_request();
        let (out, err) = example.run(&controller.url);
        assert!(out.contains("best effort") && !out.contains("reserved"), "{out}");
        assert_eq!(err.matches("going on without reservations").count(), 1, "{err}");
        let removed = "DELETE /v1/reservations/7".to_owned();
        assert!(controller.lines().contains(&removed), "{}", example.program.display());
    }
}

#[test]
fn an_example_has_written_when_its_reservation_cannot_be_finished() {
    for example in Example::all() {
        let controller = without_the_reservation_at_its_end();
        let (out, err) = example.run(&controller.url);
        assert!(out.contains("reserved") && !out.contains("best effort"), "{out}");
        assert!(!err.contains("going on without reservations"), "{err}");
    }
}

#[test]
fn the_programs_of_the_guide_end_well_when_a_reservation_cannot_be_used_or_finished() {
    let document = fs::read_to_string(native().join("../docs/LIBRARY.md")).unwrap();
    let languages: [(&str, &[&str], &str); 3] = [
        ("C", C, "guide.c"),
        ("C++", &["g++", "-std=c++11"], "guide.cpp"),
        ("Python", &["python3"], "guide.py"),
    ];
    for (section, compiler, file) in languages {
        let workshop = Workshop::new();
        let block = blocks(&document).into_iter().find(|block| block.section == section).unwrap();
        let source = workshop.path().join(file);
        fs::write(&source, block.text).unwrap();
        let program = match section {
            "Python" => has("python3").then(|| "python3".into()),
            _ => workshop.build(compiler, &[text(&source)]),
        };
        let Some(program) = program else { continue };
        let script = (section == "Python").then_some(&source);
        for controller in [refusing_all_after_the_request(), without_the_reservation_at_its_end()] {
            let (out, _) = run(workshop.command(&program, &controller.url).args(script));
            assert_eq!(out, "", "{section}");
            let finished = "POST /v1/reservations/7/finish".to_owned();
            assert!(controller.lines().contains(&finished), "{section}");
        }
    }
}

#[test]
fn checkpoints_count_on_from_those_of_earlier_runs_and_have_no_files_of_these() {
    let workshop = Workshop::new();
    let sources = ["examples/checkpoint.c", "examples/checkpoint_app.c"];
    let Some(program) = workshop.build(C, &sources) else { return };
    let folder = TestFolder::new();
    let at = |name: &str| folder.path().join(name);
    // One that was not completed, and names that are of no checkpoint.
    fs::create_dir(at("checkpoint.1.part")).unwrap();
    fs::write(at("checkpoint.1.part/rank9.dat"), "old").unwrap();
    for name in ["checkpoint.x", "checkpoint.99999999999999999999", "checkpoint.-5"] {
        fs::create_dir(at(name)).unwrap();
    }
    let url = nowhere();
    for last in [3, 6] {
        run(workshop.command(&program, &url).arg(folder.path()));
        for number in 1..=last {
            let written = fs::metadata(at(&format!("checkpoint.{number}/rank0.dat"))).unwrap();
            assert_eq!(written.len(), 1 << 20, "{number}");
        }
        assert!(!at(&format!("checkpoint.{}", last + 1)).exists());
    }
    assert!(!at("checkpoint.1/rank9.dat").exists());
    assert!(!at("checkpoint.1.part").exists());
    let missing = workshop.command(&program, &url).arg(at("none")).output().unwrap();
    let err = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && err.contains("none: "), "{err}");
}

#[test]
fn a_program_with_the_rights_of_another_user_takes_nothing_from_the_environment() {
    if !root_here() {
        return;
    }
    let (owner, caller) = (65_533, 65_534);
    let workshop = Workshop::new();
    // The caller may not be able to reach the folder that cargo builds in.
    let installed = workshop.path().join("libsluice.so.0");
    fs::remove_file(&installed).unwrap();
    fs::copy(library(), &installed).unwrap();
    let rpath = format!("-Wl,-rpath,{}", workshop.path().display());
    let Some(program) = workshop.build(&["cc", &rpath], &["tests/privileged.c"]) else { return };
    chown(&program, Some(owner), Some(owner)).unwrap();
    let opened = |mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        // The kernel does not give the caller the environment of the tests.
        command.env_clear().env("SLUICE_CONTROLLER", "ftp://x").uid(caller).gid(caller);
        run(command.current_dir(Path::new("/"))).0
    };
    assert_eq!(opened(0o755), "0 -2\n", "SLUICE_ERROR_SETTINGS: it is read");
    match opened(0o4755).as_str() {
        "0 -2\n" => skip("needs a temporary folder that is mounted without nosuid"),
        out => assert_eq!(out, "1 0\n"),
    }
}
