//! A test's own program, started once more for one test alone: for what must be a process of
//! its own, be it that it is killed, or that it changes what a whole process has.

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
}
