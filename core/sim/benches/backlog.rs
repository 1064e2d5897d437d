//! What a request costs in the dispatcher, beside dmClock and Lustre's token bucket filter:
//! enqueue, choose and complete, with 100, 1,000 and 10,000 classes that are all backlogged.
//!
//! ```text
//!   cargo bench -p sluice-sim --bench backlog
//! ```
//!
//! All have the same load and the same rules (`sluice_sim::Backlog`), through the same calls.
//! `dmclock` has the three heaps of the published algorithm, `tbf` the one heap by deadline
//! of Lustre, both with the heap that ours has. `ours` has every mechanism on: weights,
//! reservations, a limit and a cap on slots for each class, slots by size, and a meter that
//! all share and that lets twice as much through as there is. `ours, meter short` is the same
//! with a meter of nine tenths: then every class stands in line there.
//!
//! Asked for: `ours` not above `dmclock` and within twice of `tbf`. On a shared machine the
//! times drift; `examples/contenders.rs` counts instructions instead.

use criterion::{Criterion, criterion_group, criterion_main};
use model::Rate;
use sluice_sim::{Backlog, Policy};

/// Requests before measuring: some for each class.
const WARM_UP: u32 = 200_000;

fn backlog(c: &mut Criterion) {
    let (ample, short) = (Rate::ops_per_sec(200_000), Rate::ops_per_sec(90_000));
    for classes in [100, 1_000, 10_000] {
        let mut group = c.benchmark_group(format!("{classes} classes"));
        for (name, policy, meter) in [
            ("ours", Policy::Dispatcher, ample),
            ("ours, meter short", Policy::Dispatcher, short),
            ("dmclock", Policy::Dmclock, None),
            ("tbf", Policy::Tbf, None),
        ] {
            let mut backlog = Backlog::new(policy, classes, meter);
            (0..WARM_UP).for_each(|_| backlog.serve());
            group.bench_function(name, |b| b.iter(|| backlog.serve()));
        }
        group.finish();
    }
}

criterion_group!(benches, backlog);
criterion_main!(benches);
