//! How a connection begins: with whoever waits for it already.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod support;

use std::process::Command;

use fuse::Options;
use support::stage::Stage;
use support::{Mounted, PATIENCE, Process, TempDir, on_each_transport};

/// The kernel lets a process see the mount before it is served; its request comes while the
/// threads are still beginning.
#[test]
fn a_process_that_waits_for_the_mount_is_served_when_it_begins() {
    on_each_transport(|transport| {
        for _ in 0..60 {
            let place = TempDir::new();
            let name = place.folder("mount").join("data");
            let mut early: Vec<_> = (0..3)
                .map(|_| {
                    let script = "until [ -e \"$1\" ]; do :; done";
                    let mut command = Command::new("sh");
                    Process::spawn(command.args(["-c", script, "early"]).arg(&name))
                })
                .collect();
            let options = Options { transport, ring_depth: 128, ..Options::default() };
            let _mount = Mounted::at(place, Stage::default(), &options);
            for process in &mut early {
                assert!(process.ends_within(PATIENCE).0.success());
            }
        }
    });
}
