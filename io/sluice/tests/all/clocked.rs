//! A controller whose clock stands still until its test moves it, as a process that can be killed.
//!
//! ```text
//!   Clocked::start ─► this program again: `controller` ─► controller::Standing, Clock::Moved
//!        pass(span) ─► a line on its standard input ─► GET /v1/decays tells that time
//! ```
//!
//! Minutes, periods and events go by that clock, so nothing of them happens unless the test says
//! so, however fast the machine is. Proxies, leases and time limits go by the system's.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use controller::{ControllerSettings, StandbyController, StorePlace, WallClock};
use http::ApiClient;
use model::Nanos;

use crate::common::{Controller, until};

const DATA: &str = "CLOCKED_TEST_DATA";
const LISTEN: &str = "CLOCKED_TEST_LISTEN";
const NOW: &str = "CLOCKED_TEST_NOW";
/// When each clock begins: the first moment of 2026, at which every period begins too.
const BEGINS_NS: u64 = 1_767_225_600_000_000_000;

/// A running controller and its clock.
pub(crate) struct Clocked {
    controller: Controller,
    stdin: ChildStdin,
    now_ns: u64,
}

impl Clocked {
    pub(crate) fn start(data: &Path) -> Clocked {
        Clocked::start_at(data, "http://127.0.0.1:0", BEGINS_NS)
    }

    fn start_at(data: &Path, listen: &str, now_ns: u64) -> Clocked {
        testkit::until_free(listen);
        let mut command = testkit::again(module_path!(), "controller");
        command.env(DATA, data).env(LISTEN, listen).env(NOW, now_ns.to_string());
        command.stdin(Stdio::piped());
        let mut controller = Controller::of(command, "ready");
        let stdin = controller.stdin();
        Clocked { controller, stdin, now_ns }
    }

    pub(crate) fn url(&self) -> &str {
        &self.controller.url
    }

    pub(crate) fn client(&self) -> ApiClient {
        self.controller.client()
    }

    /// How long it has been there, by its clock.
    pub(crate) fn age(&self) -> Nanos {
        Nanos::new(self.now_ns - BEGINS_NS)
    }

    /// Moves the clock on, and returns when all that was due by then is done.
    pub(crate) fn pass(&mut self, span: Nanos) {
        self.now_ns += span.get();
        writeln!(self.stdin, "{}", self.now_ns).unwrap();
        let client = self.client();
        until("its clock was moved", || client.decays(None).unwrap().at_ns == self.now_ns);
    }

    /// Kills it, and starts another one on what it left, at the same place and time.
    pub(crate) fn killed_and_started(mut self, data: &Path) -> Clocked {
        self.controller.kill();
        Clocked::start_at(data, &self.controller.url, self.now_ns)
    }
}

/// Runs as a process of its own until it is killed, or told nothing more.
#[test]
#[ignore = "is started by tests of decays and reports"]
fn controller() {
    let Some(data) = std::env::var_os(DATA) else { return };
    let value = |name: &str| std::env::var(name).unwrap();
    let now = Arc::new(AtomicU64::new(value(NOW).parse().unwrap()));
    let settings = ControllerSettings {
        data: data.into(),
        store: StorePlace::Data,
        listen: vec![value(LISTEN).parse().unwrap()],
        tls: None,
        allowed_hosts: Vec::new(),
        credentials: http::Credentials::default(),
        advertise: None,
        on_event: None,
        webhook: None,
        reservations: controller::ReservationSettings::default(),
        clock: WallClock::Moved(now.clone()),
    };
    let standing = StandbyController::begin(&settings).unwrap();
    println!("\nlistening on {}", standing.listeners()[0]);
    let _controller = standing.lead(&mut || false).unwrap().unwrap();
    println!("ready");
    for line in std::io::stdin().lines() {
        now.store(line.unwrap().parse().unwrap(), Ordering::Relaxed);
    }
}
