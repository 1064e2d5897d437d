//! A test's own program, started once more for one test alone: for what must be a process of
//! its own, be it that it is killed, or that it changes what a whole process has.

use std::io::Write;
use std::process::Command;

/// The command that runs the test `name` of module `of` (as `module_path!()` names it) alone, in
/// a process of its own; whether it is ignored otherwise makes no difference.
pub fn again(of: &str, name: &str) -> Command {
    let test = match of.split_once("::") {
        Some((_, module)) => format!("{module}::{name}"),
        None => name.to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().expect("a test has a program"));
    command.args([test.as_str(), "--exact", "--include-ignored", "--nocapture"]);
    command
}

/// Does `body`, which changes or uses up what a whole process has, in a process of its own: the
/// test `name` of module `of` is started once more, and that does it.
///
/// What is skipped there is said here.
pub fn alone(of: &str, name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let output = again(of, name).env(ALONE, "").output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for skipped in out.lines().chain(err.lines()).filter(|line| line.starts_with("skipped: ")) {
        // Not by a macro: what a passing test prints by those is shown to nobody.
        let _ = std::io::stderr().write_all(format!("\n{skipped}\n").as_bytes());
    }
    assert!(output.status.success(), "{name} in a process of its own:\n{out}{err}");
    assert!(out.contains("1 passed"), "{name} was not run:\n{out}");
    print!("{out}");
}

/// Says to a process that it is the test's own.
const ALONE: &str = "SLUICE_TEST_ALONE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_is_that_test_alone() {
        if std::env::var_os("SLUICE_AGAIN").is_some() {
            return;
        }
        let mut command = again(module_path!(), "what_is_started_is_that_test_alone");
        let output = command.env("SLUICE_AGAIN", "").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("running 1 test"), "{text}");
    }

    #[test]
    fn what_is_done_alone_is_done_in_another_process() {
        let here = std::process::id();
        let name = "what_is_done_alone_is_done_in_another_process";
        alone(module_path!(), name, || {
            // only the child has the test itself above it
            let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
            assert_eq!(of(std::os::unix::process::parent_id()), of(here));
        });
    }
}
