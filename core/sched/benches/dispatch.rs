//! What the dispatcher costs: one enqueue, dispatch and complete with every class backlogged, and what
//! one user asks of it.
//!
//! On a shared machine the times drift; `examples/count.rs` counts instructions instead.

mod load;

use criterion::{Criterion, criterion_group, criterion_main};
use load::{backlog, branches};
use model::{Lane, Rate};

fn dispatch(c: &mut Criterion) {
    for classes in [1, 100, 10_000] {
        let mut load = backlog(classes, None, Lane::Cached);
        c.bench_function(&format!("cycle/{classes} classes"), |b| b.iter(|| load.cycle()));
    }
    for classes in [100, 10_000] {
        let mut load = backlog(classes, None, Lane::Device);
        c.bench_function(&format!("device/{classes} classes"), |b| b.iter(|| load.cycle()));
    }
    // A rate that never binds: the price of paying a meter.
    let ample = Rate::ops_per_sec(1_000_000_000);
    for classes in [100, 10_000] {
        let mut load = backlog(classes, ample, Lane::Cached);
        let name = format!("cycle/{classes} classes, one ample meter");
        c.bench_function(&name, |b| b.iter(|| load.cycle()));
    }
    // A rate that always binds: each dispatch releases the next waiter.
    let tight = Rate::ops_per_sec(100_000);
    for classes in [100, 10_000] {
        let mut load = backlog(classes, tight, Lane::Cached);
        let name = format!("cycle/{classes} classes, one tight meter");
        c.bench_function(&name, |b| b.iter(|| load.cycle()));
    }
    for count in [1, 64, 4_096] {
        for slots in [None, Some(32)] {
            let mut load = branches(count, slots);
            let cap = if slots.is_some() { ", a cap" } else { "" };
            c.bench_function(&format!("branches/{count}{cap}"), |b| b.iter(|| load.cycle()));
        }
    }
    for jobs in [10, 100_000] {
        let load = backlog(jobs, None, Lane::Cached);
        c.bench_function(&format!("why/{jobs} jobs"), |b| b.iter(|| load.why()));
    }
}

criterion_group!(benches, dispatch);
criterion_main!(benches);
