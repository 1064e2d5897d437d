//! Reservations of the calendar, live: what their owners get, how soon, and how many are admitted.
//!
//! ```text
//!   live, -wide writer, reader, 32 others over 2 proxies ─► windows of 5 s beside what is reserved
//!   active      request ─► ACTIVE on 8 proxies; an early end ─► the next one
//!   admissions  16 clients ─► a controller on one processor ─► durable, then answered
//! ```

mod active;
mod admissions;
mod beside;

use std::time::{Duration, Instant};

use anyhow::ensure;
use api::{WireReservation, WireReservationState};
use http::ApiClient;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;

/// Reservations of the calendar.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "reserve",
    title: "Reservations",
    what: "A controller and its proxies on this machine. live: raw clients over the slow backend (150 \
           MB/s); live-wide: with more slots than that serves at once; `least of 5s` is the slowest 5 s of a reserved job beside its rate, from the second \
           second on, and the first second after ACTIVE is shown apart. active: from the answer to the \
           request, or to the early end. admissions: each is on disk (SQLite), or with etcd on those of most members, before it is answered; those \
           that wait together are one transaction.",
    sources: &["bench/src/qos/reserved.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Calibrate, FigureProgram::Controller],
    rows: || [beside::rows(), vec![active::row()], admissions::rows()].concat(),
    measure,
};

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    beside::measure(run, sink)?;
    active::measure(run, sink)?;
    admissions::measure(run, sink)
}

/// Waits until a reservation is active.
pub(super) fn wait_until_active(client: &ApiClient, id: u64) -> anyhow::Result<WireReservation> {
    let began = Instant::now();
    loop {
        let is = client.reservation(id, "until=active&wait=5s")?;
        if is.state == WireReservationState::Active {
            return Ok(is);
        }
        ensure!(began.elapsed() < PATIENCE, "not active: {is:?}");
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
const SLUICE: &str = "sluice";
