//! Threads that a process cannot run without.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Wraps the body of a thread whose panic ends the process: its locks, its messages and its work
/// would be missing for ever, while a process that has ended is started again.
pub fn critical(body: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
    move || {
        // The panic itself has been logged by then.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            let thread = std::thread::current();
            tracing::error!(thread = thread.name(), "a thread panicked; the process ends");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_thread_that_panics_ends_its_process() {
        const DIES: &str = "SLUICE_TEST_DIES";
        if std::env::var_os(DIES).is_some() {
            let thread = std::thread::spawn(critical(|| panic!("as it should")));
            // Not reached: a test process that lives on passes, and ends without a signal.
            let _ = thread.join();
            return;
        }
        let name = "a_thread_that_panics_ends_its_process";
        let output = testkit::again(module_path!(), name).env(DIES, "").output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
    }
}
