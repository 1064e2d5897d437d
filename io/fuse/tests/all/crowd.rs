//! An inode with a thousand processes, all of which wait for the file system at once.
//!
//! None is answered before the last one has asked. That is what a lock looks like that a
//! thousand want, and it must not end in a standstill: a file system that keeps its
//! replies has to receive whatever comes after them, the answer's cause above all.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::fs;
use std::process::Command;

use crate::support::stage::Stage;
use crate::support::{Mounted, PATIENCE, Process, TempDir, on_each_transport};
use fuse::{Capabilities, Options};

const CROWD: usize = 1000;
/// A request that waits keeps an entry of its processor's ring, and all may be on one.
const ENOUGH: u16 = 1100;

#[test]
fn a_thousand_processes_wait_at_once_and_all_get_their_answer() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        let out = TempDir::new();
        let options = Options { transport, ring_depth: ENOUGH, ..Options::default() };
        let mount = Mounted::new(stage.clone(), &options);
        let script = "i=0; while [ $i -lt $3 ]; do \
                          { read -r word < \"$1\"; echo \"$word\" > \"$2/$i\"; } & i=$((i + 1)); \
                      done; wait";
        let mut command = Command::new("bash");
        command.args(["-c", script, "crowd"]).arg(mount.join("wait")).arg(out.folder("out"));
        let mut crowd = Process::spawn(command.arg(CROWD.to_string()));
        let mut state = stage.until(|state| state.waiting.len() == CROWD);
        for reply in state.waiting.drain(..) {
            reply.bytes(b"answer\n");
        }
        drop(state);
        assert!(crowd.ends_within(PATIENCE).0.success());
        for number in 0..CROWD {
            let written = fs::read(out.folder("out").join(number.to_string())).unwrap();
            assert_eq!(written, b"answer\n", "process {number}");
        }
    });
}

/// Everybody waits for the lock while its holder still has to ask for more before it unlocks.
#[test]
fn a_lock_that_a_thousand_want_goes_round() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        let capabilities = Capabilities::DEFAULT | Capabilities::FLOCK_LOCKS;
        let options = Options { transport, capabilities, ring_depth: ENOUGH, ..Options::default() };
        let mount = Mounted::new(stage.clone(), &options);
        let (lock, wait) = (mount.join("lock"), mount.join("wait"));
        let mut command = Command::new("flock");
        let read = format!("cat {} > /dev/null", wait.display());
        let mut holder = Process::spawn(command.arg(&lock).args(["-c", &read]));
        drop(stage.until(|state| state.waiting.len() == 1));

        let script = "i=0; while [ $i -lt $2 ]; do \
                          { flock 9; } 9> \"$1\" & i=$((i + 1)); \
                      done; wait";
        let mut command = Command::new("bash");
        command.args(["-c", script, "crowd"]).arg(&lock).arg(CROWD.to_string());
        let mut crowd = Process::spawn(&mut command);
        drop(stage.until(|state| state.flocks == 1 + CROWD));
        assert_eq!(stage.lockers(), CROWD);
        // From another thread than those that received the requests.
        stage.state().waiting.remove(0).bytes(b"");
        assert!(holder.ends_within(PATIENCE).0.success());
        assert!(crowd.ends_within(3 * PATIENCE).0.success());
    });
}
