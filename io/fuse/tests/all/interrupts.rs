//! Signals to processes that wait for the file system: told as interrupts, and obeyed as far
//! as the file system obeys them.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::time::Duration;

use crate::support::stage::Stage;
use crate::support::{Mounted, PATIENCE, Process, on_each_transport};
use fuse::{Options, Transport};
use rustix::process::Signal;

fn mounted(stage: &Stage, transport: Transport) -> Mounted {
    // A request that waits keeps an entry of its processor's ring.
    Mounted::new(stage.clone(), &Options { transport, ring_depth: 256, ..Options::default() })
}

#[test]
fn a_signal_ends_the_wait_of_a_process() {
    on_each_transport(|transport| {
        // Not INT: who starts tests in the background has it ignored in all of them.
        for signal in [Signal::TERM, Signal::USR1, Signal::KILL] {
            let stage = Stage::default();
            let mount = mounted(&stage, transport);
            let mut process = Process::reading(&mount.join("wait"));
            drop(stage.until(|state| state.waiting.len() == 1));
            process.signal(signal);
            let (status, took) = process.ends_within(PATIENCE);
            println!("{transport:?} {signal:?}: {status} after {took:?}");
            assert_ne!(stage.state().interrupted, []);
        }
    });
}

#[test]
fn an_interrupt_that_is_not_obeyed_waits_for_the_answer() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        stage.state().stubborn = true;
        let mount = mounted(&stage, transport);
        let mut process = Process::reading(&mount.join("wait"));
        drop(stage.until(|state| state.waiting.len() == 1));
        process.signal(Signal::KILL);
        let mut state = stage.until(|state| !state.interrupted.is_empty());
        assert!(process.0.try_wait().unwrap().is_none());
        state.waiting.remove(0).bytes(b"after all");
        drop(state);
        process.ends_within(PATIENCE);
    });
}

#[test]
fn a_method_that_blocks_its_thread_is_told_while_it_runs() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        stage.state().blocking = true;
        let mount = mounted(&stage, transport);
        let mut process = Process::reading(&mount.join("wait"));
        drop(stage.until(|state| state.reads.len() == 1));
        process.signal(Signal::TERM);
        process.ends_within(PATIENCE);
    });
}

#[test]
fn two_hundred_processes_are_killed_at_once() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        let mount = mounted(&stage, transport);
        let mut crowd: Vec<_> = (0..200).map(|_| Process::reading(&mount.join("wait"))).collect();
        drop(stage.until(|state| state.waiting.len() == crowd.len()));
        for process in &crowd {
            process.signal(Signal::KILL);
        }
        for process in &mut crowd {
            process.ends_within(PATIENCE);
        }
        assert_eq!(stage.state().waiting.len(), 0);
    });
}

/// Killed at any moment: before the request is made, while the kernel has it, while it is on
/// its way between threads, when it waits.
#[test]
fn a_process_that_is_killed_at_any_moment_ends() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        let mount = mounted(&stage, transport);
        let mut longest = Duration::ZERO;
        for round in 0..300u32 {
            let mut process = Process::reading(&mount.join("wait"));
            // The moment is what varies; nothing is waited for.
            std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 3000)));
            process.signal(Signal::KILL);
            longest = longest.max(process.ends_within(PATIENCE).1);
        }
        println!("{transport:?}: the longest took {longest:?}");
    });
}

#[test]
fn a_wait_for_a_lock_can_be_interrupted_and_the_lock_goes_on() {
    on_each_transport(|transport| {
        let stage = Stage::default();
        let options = Options { transport, ..Options::default() };
        let capabilities = options.capabilities | fuse::Capabilities::FLOCK_LOCKS;
        let mount = Mounted::new(stage.clone(), &Options { capabilities, ..options });
        let path = mount.join("lock");
        let flock = |command: &str| {
            let mut flock = std::process::Command::new("flock");
            Process::spawn(flock.arg(&path).args(["-c", command]))
        };
        // The holder waits for the release of `wait`; by then two more want the lock.
        let wait = mount.join("wait");
        let mut holder = flock(&format!("cat {} > /dev/null", wait.display()));
        drop(stage.until(|state| state.waiting.len() == 1));
        let mut impatient = flock("true");
        drop(stage.until(|state| state.flocks == 2));
        let mut patient = flock("true");
        drop(stage.until(|state| state.flocks == 3));
        assert_eq!(stage.lockers(), 2);
        impatient.signal(Signal::TERM);
        impatient.ends_within(PATIENCE);
        assert_eq!(stage.lockers(), 1);
        stage.state().waiting.remove(0).bytes(b"");
        assert!(holder.ends_within(PATIENCE).0.success());
        assert!(patient.ends_within(PATIENCE).0.success());
    });
}
