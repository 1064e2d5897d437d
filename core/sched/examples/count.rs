//! The dispatcher's work without a clock: cycles for a profiler to count.
//!
//! ```text
//!   cargo build --release -p sluice-sched --example count
//!   valgrind --tool=callgrind --toggle-collect='*run_cycles*' \
//!       target/release/examples/count CLASSES cached|device|branches RATE|none CYCLES
//! ```
//!
//! Divide the instructions collected by CYCLES. RATE is that of a meter all classes pay, in
//! operations a second; with `branches` one class has so many branches. What precedes `run_cycles` is not counted.

#[path = "../benches/load/mod.rs"]
mod load;

use load::{Load, backlog, branches};
use model::{Lane, Rate};

/// Cycles before counting: enough for a tight meter to have used up its burst.
const WARM_UP: usize = 30_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [classes, lane, rate, cycles] = &args[..] else {
        panic!("count CLASSES cached|device|branches RATE|none CYCLES");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let rate = if rate == "none" { None } else { Rate::ops_per_sec(number(rate)) };
    let count = number(classes) as usize;
    let mut load = match lane.as_str() {
        "branches" => branches(count, None),
        "device" => backlog(count, rate, Lane::Device),
        _ => backlog(count, rate, Lane::Cached),
    };
    (0..WARM_UP).for_each(|_| load.cycle());
    run_cycles(&mut load, number(cycles));
    assert!(load.why() > 0, "the job is known");
}

#[inline(never)]
fn run_cycles(load: &mut Load, cycles: u64) {
    (0..cycles).for_each(|_| load.cycle());
}
