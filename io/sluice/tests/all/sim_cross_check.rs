//! The same scenario through the simulator and through a real proxy gives the same shares.
//!
//! ```text
//!   rules ─┬─► a proxy, three jobs on one connection, all requests there ─► order of replies
//!          └─► the simulator, three jobs that always have requests ───────► requests of each
//! ```
//!
//! Shares are compared by the order in which requests are served, which no other load on this
//! machine changes: nothing is let go before all requests are there, and only replies count that
//! came while the jobs that are compared had more. How near a limit is reached from below is a
//! matter of speed, which `make figures` measures; here it is not exceeded. So a reservation is
//! one that no machine can reach: it is always due.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::common::{Proxy, Setup, USER, until};
use crate::controlled::api_of;
use ninep::{Fid, Request, Tag};
use sim::{Policy, Scenario, World};

/// A job, the keys of its rule, the size of its requests, and how many are sent at once.
type CrossJob = (&'static str, &'static str, u32, u64);

/// A target with these costs, and what the jobs do.
struct CrossCase {
    name: &'static str,
    jobs: &'static [CrossJob],
    /// `read` or `write`. Reads are answered by the page cache.
    kind: &'static str,
    slots: u32,
    /// The time of each size, in the form of a file of costs.
    costs: &'static str,
}

const WEIGHTS: CrossCase = CrossCase {
    name: "weights",
    jobs: &[
        ("heavy", "weight = 3", 1024, 2400),
        ("light", "", 1024, 2400),
        ("limited", "limit = \"500ops/s\"", 1024, 2400),
    ],
    kind: "read",
    slots: 1,
    costs: "[[\"1KiB\", \"100us\"]]",
};

const RESERVED: CrossCase = CrossCase {
    name: "reserved",
    jobs: &[
        ("reserved", "reservation = \"1TB/s\"", 1024, 2400),
        ("heavy", "weight = 3", 1024, 2400),
        ("light", "", 1024, 2400),
    ],
    ..WEIGHTS
};

/// A large write takes all slots, a small one takes one of them.
const SIZES: CrossCase = CrossCase {
    name: "sizes",
    jobs: &[("small", "", 1024, 2400), ("large", "", 65536, 300)],
    kind: "write",
    slots: 8,
    costs: "[[\"1KiB\", \"1ms\"], [\"64KiB\", \"8ms\"]]",
};

const LIMIT: u64 = 500;
/// What a limit that names no burst makes up for, and the request in hand.
const BURST: u64 = LIMIT / 10 + 1;
/// Requests that may go before all are there, by which the order may differ.
const LAG: u64 = 24;

#[test]
fn the_simulator_and_a_real_proxy_divide_alike() {
    let simulated = WEIGHTS.simulated();
    let (order, span_ns) = WEIGHTS.served();
    // As long as both have more: of the light one's a third is served by then.
    alike(order.iter().filter(|job| **job != "limited").take(3000), &simulated, "heavy", "light");

    // The simulated span is ten seconds.
    let most = |per_ten_s: u64| per_ten_s * span_ns / 10_000_000_000 + BURST;
    assert!(simulated["limited"].abs_diff(10 * LIMIT) <= BURST, "{simulated:?}");
    assert!(2400 <= most(simulated["limited"] + BURST), "2400 in {span_ns} ns");
}

#[test]
fn a_reservation_goes_before_weights_in_both() {
    let simulated = RESERVED.simulated();
    let all: u64 = simulated.values().sum();
    assert!(simulated["reserved"] * 100 >= all * 99, "{simulated:?}");
    let (order, _) = RESERVED.served();
    let first = order[..2400].iter().filter(|job| **job == "reserved").count() as u64;
    assert!(first + LAG >= 2400, "{first} of the first 2400");
    // Then the weights decide, as without it.
    let rest = order.iter().filter(|job| **job != "reserved").take(3000);
    alike(rest, &WEIGHTS.simulated(), "heavy", "light");
}

#[test]
fn small_and_large_requests_share_the_slots_alike() {
    let simulated = SIZES.simulated();
    assert!(simulated["small"] > 6 * simulated["large"], "{simulated:?}");
    let (order, _) = SIZES.served();
    alike(order.iter().take(2000), &simulated, "small", "large");
}

/// Of these requests, of one job or the other, as many are of one as the simulation has.
fn alike<'j>(
    order: impl Iterator<Item = &'j &'static str>,
    simulated: &BTreeMap<&'static str, u64>,
    one: &str,
    other: &str,
) {
    let order: Vec<_> = order.collect();
    let real = order.iter().filter(|job| ***job == one).count() as u64;
    let expected = order.len() as u64 * simulated[one] / (simulated[one] + simulated[other]);
    assert!(real.abs_diff(expected) <= LAG, "{real} of {one}, simulated {expected}: {simulated:?}");
}

impl CrossCase {
    /// A rule for each job. `held`: one request of each goes, and the next one a quarter of an hour
    /// later.
    fn rules(&self, held: bool) -> String {
        let rule = |(name, keys, ..): &CrossJob| {
            let keys = if held { "limit = \"1B/s\"" } else { keys };
            format!("[[rule]]\nname = \"{name}\"\nmatch = \"jobid={{{name}}}\"\n{keys}\n")
        };
        self.jobs.iter().map(rule).collect()
    }

    // ---- the real one ----

    /// The jobs in the order in which their requests were answered, and how long that took by the
    /// proxy's clock.
    fn served(&self) -> (Vec<&'static str>, u64) {
        let setup = Setup::new(&format!("cross-check-{}", self.name));
        let (costs, slots) = (self.costs, self.slots);
        std::fs::create_dir_all(setup.dir()).unwrap();
        let file = setup.dir().with_extension("costs");
        let lanes =
            ["device", "cached"].map(|lane| format!("[{lane}]\nread = {costs}\nwrite = {costs}\n"));
        std::fs::write(&file, format!("slots_max = {slots}\n{}", lanes.concat())).unwrap();
        let tables = format!(
            "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"t\"\n\
             [[target]]\nname = \"t\"\ncosts = \"{}\"\nwrite_mode = \"cached\"\n",
            file.display()
        );
        let proxy = setup
            .top("threads = 1\ntags_max = 8192\nbytes_in_flight_max = \"64MiB\"")
            .tables(&tables)
            .rules(&self.rules(true))
            .api()
            .start();
        proxy.client().make(1, "f");
        let mut owner = proxy.client();
        owner.open_name(1, "f", ninep::open::RDWR).unwrap();
        owner.write(1, 0, &[7; 1024]).unwrap();
        let served = self.order_at(&proxy);
        std::fs::remove_file(file).unwrap();
        served
    }

    fn order_at(&self, proxy: &Proxy) -> (Vec<&'static str>, u64) {
        let mut client = proxy.connect();
        client.version(1 << 20);
        for (fid, (job, ..)) in (1..).zip(self.jobs) {
            client.attach(0, &format!("x?job={job}"), USER).unwrap();
            client.open_name(fid, "f", ninep::open::RDWR).unwrap();
            client.clunk(0).unwrap();
        }
        let data = vec![7; 65536];
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        let most = self.jobs.iter().map(|job| job.3).max().unwrap();
        for nth in 0..most {
            for (fid, (job, _, size, count)) in (1..).zip(self.jobs) {
                if nth >= *count {
                    continue;
                }
                let request = match self.kind {
                    "read" => Request::Read { fid: Fid(fid), offset: 0, count: *size },
                    _ => Request::Write { fid: Fid(fid), offset: 0, data: &data[..*size as usize] },
                };
                let mut one = Vec::new();
                request.encode(Tag(sent.len() as u16), &mut one);
                sent.push(*job);
                bytes.extend(one);
            }
        }
        client.send_bytes(&bytes);
        let api = api_of(proxy);
        let queued = || {
            let classes = api.classes().unwrap().classes;
            classes.iter().map(|class| class.usage.queued).sum::<u64>()
        };
        until("all are there", || queued() + LAG > sent.len() as u64);
        let from = api.classes().unwrap().t_ns;
        api.set_rules(&self.rules(false)).unwrap();
        let tags = (0..sent.len()).map(|_| client.next().tag().0);
        let order = tags.map(|tag| sent[usize::from(tag)]).collect();
        (order, api.classes().unwrap().t_ns - from)
    }

    // ---- the simulated one ----

    /// Requests of each job in ten seconds.
    fn simulated(&self) -> BTreeMap<&'static str, u64> {
        let (kind, costs, slots) = (self.kind, self.costs, self.slots);
        let job = |(name, _, size, count): &CrossJob| {
            format!(
                "[[job]]\nname = \"{name}\"\n\
                 steps = [{{ do = \"{kind} {size}B\", depth = {count} }}]\n"
            )
        };
        let jobs: String = self.jobs.iter().map(job).collect();
        let text = format!(
            "from = \"a real proxy\"\ndescription =  \"Requests without waits for a disk.\"\n\
             duration = \"12s\"\nwarmup = \"2s\"\nrules = '''{}'''\n\
             [[target]]\nname = \"proxy\"\nslots = {slots}\nthreads = 1\nparallelism = {slots}\n\
             hit_percent = 100\nread = {costs}\nwrite = {costs}\ncached = {costs}\n{jobs}",
            self.rules(false)
        );
        let scenario =
            Scenario::parse(&text, "cross-check").unwrap_or_else(|error| panic!("{error}"));
        let report = World::new(&scenario, Policy::Dispatcher, 1).without_checks().run();
        assert_eq!(report.violations, []);
        let requests = |(job, ..): &CrossJob| (*job, report.job(job).unwrap().requests);
        self.jobs.iter().map(requests).collect()
    }
}
