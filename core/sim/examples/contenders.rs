//! The schedulers' work without a clock: requests for a profiler to count.
//!
//! ```text
//!   cargo build --release -p sluice-sim --example contenders
//!   valgrind --tool=callgrind --toggle-collect='*serve_all*' \
//!       target/release/examples/contenders ours|dmclock|tbf CLASSES RATE|none REQUESTS
//! ```
//!
//! Divide the instructions collected by REQUESTS. RATE is that of a meter all classes pay, in
//! operations a second; what precedes `serve_all` is not counted. `benches/backlog.rs` says
//! what is compared.

use model::Rate;
use sluice_sim::{Backlog, Policy};

/// Requests before counting: enough for a tight meter to have used up its burst.
const WARM_UP: u64 = 100_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policy, classes, rate, requests] = &args[..] else {
        panic!("contenders ours|dmclock|tbf CLASSES RATE|none REQUESTS");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let rate = if rate == "none" { None } else { Rate::ops_per_sec(number(rate)) };
    let policy: Policy = policy.parse().expect("a scheduler");
    let mut backlog = Backlog::new(policy, number(classes) as u32, rate);
    serve(&mut backlog, WARM_UP);
    serve_all(&mut backlog, number(requests));
}

#[inline(never)]
fn serve_all(backlog: &mut Backlog, requests: u64) {
    serve(backlog, requests);
}

#[inline(always)]
fn serve(backlog: &mut Backlog, requests: u64) {
    (0..requests).for_each(|_| backlog.serve());
}
