//! What a reservation is worth to a job that opens files, in the order in which the backend is
//! asked: by a disk that the test keeps busy until all that is to be chosen from waits.
//!
//! ```text
//!   a write holds the one slot ─► opens and writes of all jobs wait ─► it ends ─► the disk's log
//! ```
//!
//! Nothing here depends on how fast anything is.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ninep::dialect::{ExtRequest, HandleList};
use ninep::{Fid, Tag, open};

use crate::disk::{Disk, Done, HOLD, Times};
use crate::peer::{P9Channel, Served, Setup, USER, open_request, until};

/// What the proxy believes, whatever requests take: a write of 4 KiB costs as much as 125 opens.
pub(crate) const COSTS: &str = "slots_max = 1\n\
    [device]\nread = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    write = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    [cached]\nread = [[\"4KiB\", \"1us\"]]\nwrite = [[\"4KiB\", \"1us\"]]\n";
/// The file that every job has open.
const DATA: u32 = 1;
pub(crate) const NO_TIME: Times = Times { small: Duration::ZERO, large: Duration::ZERO };

/// A proxy in front of a disk, and a job that keeps the disk busy.
pub(crate) struct Bench<'d> {
    disk: &'d Disk,
    pub(crate) holder: Job,
    pub(crate) served: Served,
}

/// A connection of a job that has the file `small` open, and what it has under way.
pub(crate) struct Job {
    pub(crate) client: P9Channel,
    pub(crate) sent: Vec<Tag>,
    pub(crate) fids: u32,
}

impl<'d> Bench<'d> {
    /// The rule of the job `vip` has these keys; every other job is a class of the same weight.
    pub(crate) fn new(disk: &'d Disk, name: &str, keys: &str) -> Bench<'d> {
        let rules = format!(
            "[[rule]]\nname = \"vip\"\nmatch = \"jobid={{vip}}\"\n{keys}\n\
             [[rule]]\nname = \"others\"\nper = [\"jobid\"]\n"
        );
        Bench::with_rules(disk, name, COSTS, &rules)
    }

    pub(crate) fn with_rules(disk: &'d Disk, name: &str, costs: &str, rules: &str) -> Bench<'d> {
        let dir = disk.path().display();
        let export = format!("[[export]]\nname = \"x\"\ndir = \"{dir}\"\ntarget = \"disk\"\n");
        let target = "[[target]]\nname = \"disk\"\ncosts = \"@/costs\"\nwrite_mode = \"cached\"\n";
        let setup = Setup::new(name).tables(&format!("{export}{target}"));
        let served = setup.file("costs", costs).rules(rules).start();
        let holder = Job::new(&served, "holder");
        Bench { disk, holder, served }
    }

    pub(crate) fn job(&self, name: &str) -> Job {
        Job::new(&self.served, name)
    }

    /// What the disk does after a write that held it, while which `jobs` did `send`.
    pub(crate) fn order_of(
        &mut self,
        jobs: &mut [Job],
        send: impl Fn(usize, &mut Job),
    ) -> Vec<Done> {
        self.disk.take_log();
        self.holder.write(HOLD);
        until("the disk is held", || self.disk.is_held());
        for (number, job) in jobs.iter_mut().enumerate() {
            send(number, job);
            job.client.ping();
            assert!(job.sent.iter().all(|tag| !job.client.came(*tag)), "all of it waits");
        }
        self.disk.release();
        self.holder.finish();
        jobs.iter_mut().for_each(Job::finish);
        self.disk.take_log().split_off(1)
    }
}

impl Job {
    fn new(served: &Served, name: &str) -> Job {
        let mut client = served.client_of("x", USER, name);
        client.open_name(DATA, "small", open::WRONLY).unwrap();
        Job { client, sent: Vec::new(), fids: DATA }
    }

    /// Sends a write of 4 KiB that begins with a byte.
    pub(crate) fn write(&mut self, first: u8) {
        let mut data = [b'.'; 4096];
        data[0] = first;
        let write = ExtRequest::Write { fid: Fid(DATA), offset: 0, flags: 0, data: &data };
        self.sent.push(self.client.send(HandleList::NONE, write));
    }

    /// Sends an open of a file that no other has opened.
    pub(crate) fn open(&mut self, name: &str) {
        self.fids += 1;
        let root = self.client.root.clone();
        let request = open_request(self.fids, name, open::WRONLY, 0);
        self.sent.push(self.client.send(HandleList::one(&root), request));
    }

    pub(crate) fn finish(&mut self) {
        for tag in self.sent.drain(..) {
            let frame = self.client.wait(tag);
            assert!(frame.own().is_ok(), "{frame:?}");
        }
    }
}

/// `vip` opens four files and writes each, first beside others and then alone; behind how many of
/// their requests each open went. The rate is more than any machine gives, so the writes are always
/// due.
fn behind_others(disk: &Disk, name: &str, keys: &str) -> Vec<usize> {
    let mut bench = Bench::new(disk, name, &format!("reservation = \"1TB/s\"\n{keys}"));
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "vip"];
    let mut jobs = names.map(|name| bench.job(name));
    let vip = names.len() - 1;
    let file = |_| {
        let order = bench.order_of(&mut jobs, |job, of| match job == vip {
            true => of.open("large"),
            false => (0..4).for_each(|_| of.write(b'o')),
        });
        assert_eq!(order.len(), 33);
        let behind = order.iter().position(|done| *done == Done::Open { large: true });
        let order = bench.order_of(&mut jobs, |job, of| match job == vip {
            true => (0..16).for_each(|_| of.write(b'v')),
            false => (0..4).for_each(|_| of.write(b'o')),
        });
        assert_eq!(order[..16], [Done::Write(b'v'); 16]);
        assert_eq!(order.len(), 48);
        // What it has alone counts as well, and leaves the others where they were.
        let alone = bench.order_of(&mut jobs[vip..], |_, of| (0..16).for_each(|_| of.write(b'v')));
        assert_eq!(alone.len(), 16);
        behind.unwrap()
    };
    (0..4).map(file).collect()
}

#[test]
fn a_reserved_job_opens_file_after_file_before_others_go_on() {
    let Some(disk) = Disk::mount("reserved", NO_TIME) else { return };
    assert_eq!(behind_others(&disk, "reserved", ""), [0; 4]);
    // By share alone, the next open is behind those that had less than the first file's writes.
    let behind = behind_others(&disk, "unreserved", "reservation_metadata = \"0%\"");
    assert!(behind[1..].iter().all(|behind| *behind >= 8), "{behind:?}");
}

#[test]
fn the_smallest_reservation_gives_a_flood_of_opens_its_share_and_no_more() {
    let Some(disk) = Disk::mount("flood", NO_TIME) else { return };
    let mut bench = Bench::new(&disk, "flood", "reservation = \"1B/s\"");
    let mut jobs = ["vip", "other"].map(|name| bench.job(name));
    for _ in 0..3 {
        let order = bench.order_of(&mut jobs, |job, of| {
            let name = ["large", "small"][job];
            (0..32).for_each(|_| of.open(name));
        });
        assert_eq!(order.len(), 64);
        let first = order[..32].iter().filter(|done| **done == Done::Open { large: true });
        let first = first.count();
        assert!((15..=17).contains(&first), "{first} of the first 32: {order:?}");
    }
}
