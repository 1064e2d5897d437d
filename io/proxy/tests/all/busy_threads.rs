//! Requests that arrive while every thread of the proxy is in a call of the backend.
//!
//! ```text
//!   reads of a job ─► threads_max of them wait in the backend, the others in the proxy
//!   read of another job ─► in its socket ── one call returns ─► the sockets are read ─► its turn
//! ```
//!
//! The file system of the test answers one read after the other, so nothing depends on time.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fuse::{DataReply, OpenFlags, Reply};
use ninep::{Fid, Request, open};
use testkit::TestFolder;

use crate::one_file;
use crate::peer::{P9Client, PATIENCE, Setup, USER, until};

const SIZE: u32 = 4096;
/// Reads of the first job.
const READS: u64 = 20;
/// Calls of which the first that returns is to read the sockets; a machine that is busy with other
/// things may let another one go on before.
const SOON: usize = 4;
/// Where the other job reads.
const OTHER: u64 = 8 << 20;
/// Reads after which calls are known to take as long as they do, and how long that is at least.
const LONG_READS: usize = 60;
const LONG: Duration = Duration::from_millis(1);

/// A read that waits for the test.
struct GatedRead {
    offset: u64,
    size: u32,
    reply: Reply<DataReply>,
}

impl GatedRead {
    fn answer(self) {
        self.reply.bytes(&vec![0; self.size as usize]);
    }
}

#[test]
fn a_request_that_arrives_while_all_threads_are_in_calls_is_read_when_one_of_them_returns() {
    // With two slots the others wait in the dispatcher; with 64 they have theirs, and wait for a
    // thread.
    for slots in [2, 64] {
        let Some(order) = order_of_reads(slots) else { return };
        let at = order.iter().position(|offset| *offset == OTHER).unwrap();
        assert!(
            slots > 2 || at < 2 * SOON,
            "{at} reads of the first job went before it: {order:?}"
        );
    }
}

/// The places of what is read, in the order in which that arrives at the file system.
fn order_of_reads(slots: u32) -> Option<Vec<u64>> {
    let folder = TestFolder::new();
    let (arrived, reads) = channel();
    let _session = one_file::serve(&folder, OpenFlags::DIRECT_IO, move |read, reply| {
        let read = GatedRead { offset: read.offset, size: read.size, reply };
        // The test may be over.
        if let Err(unheard) = arrived.send(read) {
            unheard.0.answer();
        }
    })?;
    let dir = folder.path().display();
    let export = format!("[[export]]\nname = \"x\"\ndir = \"{dir}\"\ntarget = \"disk\"\n");
    let target = format!("[[target]]\nname = \"disk\"\nslots_max = {slots}\n");
    let rules = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
    let setup = Setup::new("busy").top("threads_max = 2").rules(rules);
    let served = setup.tables(&format!("{export}{target}")).start();
    let client_of = |job: &str| {
        let mut client = P9Client::open_door(&served.unix(USER));
        client.version(1 << 20);
        client.attach(0, &format!("x?job={job}"), USER).unwrap();
        client.open_name(1, "file", open::RDONLY).unwrap();
        client
    };
    let [mut first, mut other] = ["first", "other"].map(client_of);
    let read = |offset| Request::Read { fid: Fid(1), offset, count: SIZE };
    let next = || reads.recv_timeout(PATIENCE).expect("a read arrives at the backend");

    // Reads are known to take long, so that whoever leads gives the lead away before it reads.
    for _ in 0..LONG_READS {
        let tag = first.send(&read(0));
        let (read, began) = (next(), Instant::now());
        until("a read has taken its time", || began.elapsed() >= LONG);
        read.answer();
        assert!(first.wait(tag).is_ok());
    }
    let tags = (0..READS).map(|n| first.send(&read(n * u64::from(SIZE)))).collect::<Vec<_>>();
    // Both threads are in calls now.
    let mut waiting: VecDeque<GatedRead> = (0..2).map(|_| next()).collect();
    let tag = other.send(&read(OTHER));
    let mut order = Vec::new();
    for _ in 2..=READS {
        waiting.pop_front().unwrap().answer();
        waiting.push_back(next());
        order.push(waiting.back().unwrap().offset);
        let classes = served.control().classes().classes;
        let class = classes.iter().find(|class| class.key == "jobid=other").unwrap();
        let is_known = class.usage.queued + class.usage.running > 0;
        let is_due = order.len() >= SOON && !order.contains(&OTHER);
        assert!(is_known || !is_due, "it is still in its socket: {order:?}");
    }
    waiting.into_iter().for_each(GatedRead::answer);
    assert!(tags.into_iter().all(|tag| first.wait(tag).is_ok()) && other.wait(tag).is_ok());
    Some(order)
}
