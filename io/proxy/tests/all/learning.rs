//! What a running proxy learns of its device: slots that hold a latency, and costs that
//! follow what requests take. On a disk whose times the test decides.
//!
//! That slots come back needs requests that take less than the latency, which no machine
//! promises: core/sched is told such times, in published.rs.
//!
//! ```text
//!   Load: a job that keeps writes under way ─► Server ─► Disk: one at a time
//!                                                │
//!   test ◄─ control API: slots, costs, service ──┘    waits until they are as they shall be
//! ```
//!
//! No assertion is about how fast anything is: the disk's times are far apart, and what is
//! compared was measured on the same disk.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::{TargetReport, WireUsage};
use http::ServerAddress;
use ninep::dialect::{ExtReply, ExtRequest, HandleList};
use ninep::{Fid, open};
use sluice_proxy::control::ControlServer;

use crate::disk::{Disk, Times};
use crate::peer::{P9Channel, PATIENCE, Served, Setup, USER, until};

const SLOTS: u32 = 32;
/// What the proxy believes: a large write holds two slots.
const COSTS: &str = "slots_max = 32\n\
    [device]\nread = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    write = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    [cached]\nread = [[\"4KiB\", \"1us\"]]\nwrite = [[\"4KiB\", \"1us\"]]\n";
const MS: u64 = 1_000_000;

/// A proxy in front of a disk, and its control API.
struct Bench {
    api: http::ApiClient,
    _control: ControlServer,
    served: Served,
}

impl Bench {
    /// `keys` are the target's.
    fn new(disk: &Disk, name: &str, keys: &str) -> Bench {
        let dir = disk.path().display();
        let export = format!("[[export]]\nname = \"x\"\ndir = \"{dir}\"\ntarget = \"disk\"\n");
        let target = "[[target]]\nname = \"disk\"\ncosts = \"@/costs\"\nwrite_mode = \"cached\"\n";
        let rule = |job| format!("[[rule]]\nname = \"{job}\"\nmatch = \"jobid={{{job}}}\"\n");
        let served = Setup::new(name)
            .tables(&format!("{export}{target}{keys}\n"))
            .file("costs", COSTS)
            .rules(&(rule("small") + &rule("large")))
            .start();
        let socket = served.dir.join("api");
        let _control = ControlServer::start(&socket, served.control()).unwrap();
        let api =
            http::ApiClient::new(&ServerAddress::Unix(socket)).unwrap().with_time_limit(PATIENCE);
        Bench { api, _control, served }
    }

    /// A connection of a job that has the file of its name open as fid 1.
    fn client(&self, job: &str) -> P9Channel {
        let mut client = self.served.client_of("x", USER, job);
        client.open_name(1, job, open::WRONLY).unwrap();
        client
    }

    fn target(&self) -> TargetReport {
        self.api.status().unwrap().targets.remove(0)
    }

    /// What a job has had.
    fn usage(&self, job: &str) -> WireUsage {
        let classes = self.api.classes().unwrap().classes;
        let own = classes.iter().find(|class| class.rule == job);
        own.map_or(WireUsage::default(), |class| class.usage)
    }

    /// The mean service time of so many more requests of a job.
    fn service_ns(&self, job: &str, requests: u64) -> u64 {
        let before = self.usage(job);
        let mut after = before;
        until("requests complete", || {
            after = self.usage(job);
            after.requests >= before.requests + requests
        });
        (after.service_ns - before.service_ns) / (after.requests - before.requests)
    }
}

/// A job that keeps so many writes under way, until this is dropped.
struct Load {
    going: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(bench: &Bench, job: &str, bytes: usize, depth: usize) -> Load {
        let going = Arc::new(AtomicBool::new(true));
        let (mut client, goes_on) = (bench.client(job), going.clone());
        let thread = std::thread::spawn(move || {
            let data = vec![7; bytes];
            let mut sent = VecDeque::new();
            loop {
                while goes_on.load(Ordering::Relaxed) && sent.len() < depth {
                    let (fid, data) = (Fid(1), &data[..]);
                    let write = ExtRequest::Write { fid, offset: 0, flags: 0, data };
                    sent.push_back(client.send(HandleList::NONE, write));
                }
                let Some(tag) = sent.pop_front() else { return };
                let frame = client.wait(tag);
                let written = matches!(
                    frame.own(),
                    Ok(ExtReply::Write { count, .. }) if count as usize == bytes
                );
                assert!(written, "{frame:?}");
            }
        });
        Load { going, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.going.store(false, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the load failed");
    }
}

#[test]
fn a_latency_lowers_the_slots_under_large_requests() {
    let times = Times { small: Duration::ZERO, large: Duration::from_millis(10) };
    let Some(disk) = Disk::mount("latency", times) else { return };
    let loads = |bench: &Bench| {
        let loads = (Load::start(bench, "large", 16_384, 32), Load::start(bench, "small", 4096, 4));
        until("the slots are taken", || bench.usage("large").requests >= 40);
        loads
    };
    // Some fourteen large ones are before each small one, as many as fit the slots.
    let usual = {
        let bench = Bench::new(&disk, "usual", "");
        let _loads = loads(&bench);
        let mut service = 0;
        until("small ones have most of those before them", || {
            service = bench.service_ns("small", 30);
            service > 100 * MS
        });
        assert_eq!(bench.target().slots_max, SLOTS, "nothing was asked for");
        // The disk sleeps for so long in any case; what is more is this machine's.
        service.min(140 * MS)
    };
    let bench = Bench::new(&disk, "held", "latency_target = \"20ms\"");
    assert_eq!(bench.target().slots_max, SLOTS);
    let _loads = loads(&bench);
    until("the slots go down", || bench.target().slots_max <= SLOTS / 3);
    until("small ones have less before them", || bench.service_ns("small", 30) * 3 < usual * 2);
}

#[test]
fn costs_follow_what_requests_take_while_the_proxy_serves() {
    let times = Times { small: Duration::from_millis(10), large: Duration::ZERO };
    let Some(disk) = Disk::mount("recalibrate", times) else { return };
    let data = [7; 4096];
    let cost = |target: &TargetReport| target.write_costs[0].cost_ns;
    // Of more samples than it takes, where nothing is to be learnt.
    let bench = Bench::new(&disk, "known", "");
    let mut client = bench.client("small");
    (0..70).for_each(|_| assert_eq!(client.write(1, 0, &data).unwrap().0, 4096));
    assert_eq!(cost(&bench.target()), MS);
    drop((client, bench));

    let bench = Bench::new(&disk, "learnt", "recalibrate = true");
    let mut client = bench.client("small");
    let before = bench.target();
    assert_eq!((cost(&before), before.write_costs[0].bytes), (MS, 4096));
    // Each one alone, and ten times what is known.
    until("the cost is known to be higher", || {
        client.write(1, 0, &data).unwrap();
        cost(&bench.target()) >= 5 * MS
    });
    let charged = bench.usage("small");
    (0..5).for_each(|_| assert_eq!(client.write(1, 0, &data).unwrap().0, 4096));
    // The last one is counted once it is over, which is after its answer.
    let mut after = charged;
    until("they are counted", || {
        after = bench.usage("small");
        after.requests >= charged.requests + 5
    });
    assert!(after.cost_ns - charged.cost_ns >= 5 * 5 * MS, "what is known is charged");
    assert_eq!(bench.target().read_costs, before.read_costs, "nothing was read");
}
