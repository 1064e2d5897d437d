//! A program with the library over the death of the controller that leads.
//!
//! ```text
//!   program: waits, tests, adds ─ libsluice.so ─► controllers 1, 2, 3 ─► etcd, three members
//!                                                    └ the leader is killed
//! ```

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use api::{NewReservation, WireRate, WireReservation, WireReservationState};
use testkit::{Cluster, PATIENCE, until};

use crate::controllers::Controllers;
use crate::native::{Workshop, has};
use crate::native_library::{described, proxy};
use crate::reservations::{MB, SECOND};

/// One thread waits for a reservation; the other tests one and adds small ones meanwhile, and one
/// more when it is active. It says when it has added some, and at the end the numbers of all.
const PROGRAM: &str = "
import sluice, threading
client = sluice.Client()
more = dict(seconds=3600, limit=600)
waited, added = [], []
def wait():
    waited.append(client.addReservationSync(write=15e6, job='waits', **more))
def add():
    added.append(client.addReservationAsync(write=1e3, job=f'adds.{len(added)}', **more))
thread = threading.Thread(target=wait)
thread.start()
tested = client.addReservationAsync(write=15e6, job='tests', **more)
state = sluice.SCHEDULED
while state == sluice.SCHEDULED:
    if len(added) < 60:
        add()
    if len(added) == 5:
        print('adds', flush=True)
    state = client.testReservation(tested, limit=600)
assert state == sluice.ACTIVE, state
add()
thread.join()
print(waited[0], tested, *added)
";

/// Killed at the end, also if the test fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn calls_go_on_when_the_leader_dies_and_nothing_is_reserved_twice() {
    if !has("python3") {
        return;
    }
    let Some(cluster) = Cluster::start() else { return };
    let mut controllers = Controllers::start(&cluster.endpoints());
    controllers.wait_for_leader();
    let api = controllers.client().with_time_limit(PATIENCE);
    let _proxy = proxy("takeover", &controllers.urls(), "");
    described(&api);
    let most = NewReservation {
        write: Some(WireRate::Bytes(42 * MB)),
        duration_ns: 3_600 * SECOND,
        user: Some(0),
        ..NewReservation::default()
    };
    let most = api.reserve(&most).unwrap().id;

    let workshop = Workshop::new();
    let mut command = workshop.command(Path::new("python3"), &controllers.urls());
    let mut program =
        Program(command.args(["-c", PROGRAM]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("adds"));
    let of_job = |job: &str| -> Option<Vec<WireReservation>> {
        Some(api.reservations(&format!("ended=true&job={job}")).ok()?.reservations)
    };
    until("it waits for one and tests another", || {
        ["waits", "tests"].iter().all(|job| {
            let found = of_job(job).unwrap_or_default();
            found.iter().any(|of| of.state == WireReservationState::Scheduled)
        })
    });
    let leader = controllers.wait_for_leader();
    controllers.all[leader].kill();
    assert_ne!(controllers.wait_for_leader(), leader);
    until("there is room for both", || {
        let _ = api.remove_reservation(most);
        api.reservation(most, "").is_ok_and(|of| of.state == WireReservationState::Undefined)
    });

    let numbers = lines.find(|line| line != "adds").expect("the program has ended well");
    let ids: Vec<u64> = numbers.split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(program.0.wait().unwrap().success());
    let adds = (0..ids.len() - 2).map(|number| format!("adds.{number}"));
    let jobs = ["waits".to_owned(), "tests".to_owned()].into_iter().chain(adds);
    for (job, id) in jobs.zip(ids) {
        let mut found = None;
        until("a leader has them", || {
            found = of_job(&job);
            found.is_some()
        });
        let found: Vec<_> = found.unwrap().iter().map(|of| of.id).collect();
        assert_eq!(found, [id], "{job}");
    }
}
