//! A controller as a process of its own.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use http::{ApiClient, Endpoint};
use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, SLUICE};

/// A running controller, killed at the end; its directory stays until the test ends.
pub struct Controller {
    child: Child,
    pub url: String,
    /// Held open: what is told later has somewhere to go.
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Controller {
    pub fn start(data: &Path, listen: &str) -> Controller {
        Controller::with(data, listen, &[], "ready")
    }

    /// With more words on its command line.
    pub fn start_with(data: &Path, listen: &str, words: &[&str]) -> Controller {
        Controller::with(data, listen, words, "ready")
    }

    /// One of several with an etcd; it may stand by.
    pub fn stand(data: &Path, etcd: &[String]) -> Controller {
        Controller::stand_at(data, "http://127.0.0.1:0", etcd)
    }

    pub fn stand_at(data: &Path, listen: &str, etcd: &[String]) -> Controller {
        let store = format!("etcd:{}", etcd.join(","));
        Controller::with(data, listen, &["--store", &store], "listening on ")
    }

    /// One with other flags as well, until it says a line that begins with `until`.
    pub fn with(data: &Path, listen: &str, flags: &[&str], until: &str) -> Controller {
        testkit::until_free(listen);
        let mut command = Command::new(SLUICE);
        command.args(["controller", "--listen", listen]).args(flags).arg("--data").arg(data);
        Controller::of(command, until)
    }

    /// The one that this command runs.
    pub fn of(mut command: Command, until: &str) -> Controller {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut controller = Controller { child, url: String::new(), stdout: None };
        let mut lines = stdout.lines();
        for line in lines.by_ref().map(Result::unwrap) {
            if let Some(url) = line.strip_prefix("listening on ") {
                controller.url = url.into();
            }
            if line.starts_with(until) {
                break;
            }
        }
        assert!(!controller.url.is_empty(), "the controller did not get ready");
        controller.stdout = Some(lines);
        controller
    }

    /// A client of it, who waits for as long as all tests do: an answer that a person would not
    /// wait for any more is one.
    pub fn client(&self) -> ApiClient {
        let client = ApiClient::at(&self.url.parse::<Endpoint>().unwrap()).unwrap();
        client.with_time_limit(PATIENCE)
    }

    /// `HOST:PORT`, as its metrics are asked for.
    pub fn at(&self) -> &str {
        self.url.strip_prefix("http://").expect("it listens over TCP")
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Where a command that was given one hears more.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("the command was given one")
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
