//! How many events a second the simulator works through, without its checks.
//!
//! ```text
//!   cargo bench -p sluice-sim                 the small worlds
//!   cargo bench -p sluice-sim -- spider       18,640 clients and 192 servers as well
//! ```
//!
//! An event is an arrival, a dispatch or a completion of a request: three for each.

#![allow(clippy::disallowed_types, reason = "a bench looks at the clock")]

use std::time::Instant;

use sluice_sim::{Policy, Scenario, World};

/// 64 jobs in a closed loop at one server.
const SMALL: &str = r#"
from = "a bench"
description = "Jobs with classes of their own at one server."
duration = "20s"
rules = """
[[rule]]
name = "jobs"
per = ["jobid"]
"""

[[target]]
name = "server"
slots = 64
parallelism = 64
read = [["4KiB", "640us"]]
jitter_percent = 20

[[job]]
name = "job"
copies = 64
steps = [{ do = "read 4KiB", depth = 16 }]
"#;

/// Clients and servers of Spider, each server with 1,000 requests a second.
const SPIDER: &str = r#"
from = "Spider, Oak Ridge: 18,640 clients and 192 servers"
description = "Every client asks every server in turn, by chance, a thousand requests a second each."
duration = "60s"
rules = """
[[rule]]
name = "jobs"
per = ["jobid"]
"""

[[target]]
name = "oss"
count = 192
slots = 32
parallelism = 32
read = [["4KiB", "2ms"], ["1MiB", "25ms"]]
jitter_percent = 20

[[job]]
name = "job"
nid = "10.0.0.1"
nodes = 932
copies = 20
steps = [{ do = "read 64KiB, write 256KiB", rate = "1687552B/s", spacing = "poisson" }]
"#;

fn measure(name: &str, text: &str, policy: Policy) {
    let scenario = Scenario::parse(text, name).expect("a scenario that is right");
    let started = Instant::now();
    let mut world = World::new(&scenario, policy, 1).without_checks();
    world.run_until(world.end());
    let took = started.elapsed();
    let events = world.request_events();
    let rate = events as f64 / took.as_secs_f64();
    println!(
        "{name:<8} {policy:<8} {events:>11} events in {:>7.2} s: {:>10.0} events/s",
        took.as_secs_f64(),
        rate
    );
}

fn main() {
    for policy in [Policy::Dispatcher, Policy::Fifo, Policy::Sfqd] {
        measure("small", SMALL, policy);
    }
    if std::env::args().any(|argument| argument == "spider") {
        measure("spider", SPIDER, Policy::Dispatcher);
    }
}
