//! The same scenario through the simulator and through a real proxy gives the same shares.
//!
//! ```text
//!   rules ─┬─► a proxy, three jobs on one connection, all requests there ─► order of replies
//!          └─► the simulator, three jobs that always have requests ───────► requests of each
//! ```
//!
//! Weights are compared by the order in which requests are served, which no other load on this
//! machine changes: nothing is let go before all requests are there, and only replies count that
//! came while both jobs with weights had more. How near a limit is reached from below is a matter
//! of speed, which `sluice-bench qos` measures; here it is not exceeded.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::common::{Proxy, Setup, USER, until};
use crate::controlled::api_of;
use ninep::{Fid, Request, Tag};
use sim::{Policy, Scenario, World};

const RULES: &str = r#"
[[rule]]
name = "heavy"
match = "jobid={heavy}"
weight = 3

[[rule]]
name = "light"
match = "jobid={light}"

[[rule]]
name = "limited"
match = "jobid={limited}"
limit = "500ops/s"
"#;

/// The same, but for what holds everybody until all requests are there: a read of each goes, and
/// the next one a quarter of an hour later.
const HELD: &str = r#"
[[rule]]
name = "heavy"
match = "jobid={heavy}"
weight = 3
limit = "1B/s"

[[rule]]
name = "light"
match = "jobid={light}"
limit = "1B/s"

[[rule]]
name = "limited"
match = "jobid={limited}"
limit = "1B/s"
"#;

const JOBS: [&str; 3] = ["heavy", "light", "limited"];
/// Requests of each job, all sent at once.
const SENT: u64 = 2400;
const COUNT: u32 = 1024;
const LIMIT: u64 = 500;
/// What a limit that names no burst makes up for, and the request in hand.
const BURST: u64 = LIMIT / 10 + 1;
/// Requests that may go before all are there, by which the order may differ.
const LAG: u64 = SENT / 100;

#[test]
fn the_simulator_and_a_real_proxy_divide_alike() {
    let simulated = simulated();
    let proxy = Setup::new("cross-check")
        .top("threads = 1\ntags_max = 8192\nbytes_in_flight_max = \"64MiB\"")
        .rules(HELD)
        .api()
        .start();
    proxy.client().make(1, "f");
    let mut owner = proxy.client();
    owner.open_name(1, "f", ninep::open::RDWR).unwrap();
    owner.write(1, 0, &[7; COUNT as usize]).unwrap();
    let (order, span_ns) = served(&proxy);

    // As long as both have more: of the light one's a third is served by then.
    let both = order.iter().filter(|job| **job != "limited").take(SENT as usize * 5 / 4);
    let real = both.clone().filter(|job| **job == "heavy").count() as u64;
    let (heavy, light) = (simulated["heavy"], simulated["light"]);
    let alike = both.count() as u64 * heavy / (heavy + light);
    assert!(real.abs_diff(alike) <= LAG, "{real} of the heavy one's, simulated {alike}");

    // The simulated span is ten seconds.
    let most = |per_ten_s: u64| per_ten_s * span_ns / 10_000_000_000 + BURST;
    assert!(simulated["limited"].abs_diff(10 * LIMIT) <= BURST, "{simulated:?}");
    assert!(SENT <= most(simulated["limited"] + BURST), "{SENT} in {span_ns} ns");
}

// ---- the real one ----

/// The jobs in the order in which their requests were answered, and how long that took by the
/// proxy's clock.
fn served(proxy: &Proxy) -> (Vec<&'static str>, u64) {
    let mut client = proxy.connect();
    client.version(1 << 20);
    for (fid, job) in (1..).zip(JOBS) {
        client.attach(0, &format!("x?job={job}"), USER).unwrap();
        client.open_name(fid, "f", ninep::open::RDONLY).unwrap();
        client.clunk(0).unwrap();
    }
    let mut bytes = Vec::new();
    for nth in 0..SENT * 3 {
        let fid = Fid(1 + (nth % 3) as u32);
        let mut one = Vec::new();
        Request::Read { fid, offset: 0, count: COUNT }.encode(Tag(nth as u16), &mut one);
        bytes.extend(one);
    }
    client.send_bytes(&bytes);
    let api = api_of(proxy);
    let queued = || {
        let classes = api.classes().unwrap().classes;
        classes.iter().map(|class| class.usage.queued).sum::<u64>()
    };
    until("all are there", || queued() > SENT * 3 - LAG);
    let from = api.classes().unwrap().t_ns;
    api.set_rules(RULES).unwrap();
    let tags = (0..SENT * 3).map(|_| client.next().tag().0);
    let order = tags.map(|tag| JOBS[usize::from(tag % 3)]).collect();
    (order, api.classes().unwrap().t_ns - from)
}

// ---- the simulated one ----

/// Requests of each job in ten seconds.
fn simulated() -> BTreeMap<&'static str, u64> {
    let job = |name: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\n\
             steps = [{{ do = \"read {COUNT}B\", depth = {SENT} }}]\n"
        )
    };
    let text = format!(
        "from = \"a real proxy\"\ndescription =  \"Reads that the page cache answers.\"\n\
         duration = \"12s\"\nwarmup = \"2s\"\nrules = '''{RULES}'''\n\
         [[target]]\nname = \"proxy\"\nslots = 1\nthreads = 1\nparallelism = 1\n\
         hit_percent = 100\nread = [[\"1KiB\", \"1ms\"]]\ncached = [[\"1KiB\", \"100us\"]]\n{}",
        JOBS.map(job).concat()
    );
    let scenario = Scenario::parse(&text, "cross-check").unwrap_or_else(|error| panic!("{error}"));
    let report = World::new(&scenario, Policy::Dispatcher, 1).without_checks().run();
    assert_eq!(report.violations, []);
    JOBS.map(|job| (job, report.job(job).unwrap().requests)).into()
}
