//! How long a search for the earliest fit takes in a full calendar, and what the calendar weighs.
//!
//! ```text
//!   cargo run --release -p sluice-reserve --example fit [RESERVATIONS [TARGETS]]
//! ```
//!
//! Releases are spread over a time that is chosen so that its middle is about 75 % booked, with each
//! reservation at its earliest fit. Then 5,000 demands of each width are searched, none booked. A
//! demand takes 1 to 10 % of a target for 10 to 120 min. In one calendar a third of the reservations
//! has each width; in the others all have the same. Times are processor times.

use model::{Nanos, Time};
use rustix::time::{ClockId, clock_gettime};
use sluice_reserve::{
    Capacity, Demand, FitWindow, Load, ResourceId, ResourceKind, ResourceTable, Span,
};

const CAPACITY: u64 = 10_000_000_000;
const SEARCHES: usize = 5_000;

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (count, targets) = (args.next().unwrap_or(100_000), args.next().unwrap_or(1_000));
    println!("{count} reservations on {targets} targets");
    // wide demands leave gaps that no other wide one fits into, so they need more to book as much
    for (widths, percent) in [(&[1][..], 81), (&[8], 92), (&[1, 8, 48], 115), (&[48], 125)] {
        run(count, targets, widths, percent);
    }
}

/// Measures one calendar, whose releases would book that percentage of all targets.
fn run(count: u64, targets: u64, widths: &[u64], percent: u64) {
    let mut draws = Draws(widths[0]);
    let mean = widths.iter().sum::<u64>() / widths.len() as u64;
    // means: 5.5 % of a target, 65 min
    let horizon = Nanos::from_secs(count * mean * 65 * 60 * 55 / 1_000 * 100 / percent / targets);
    let mut table = ResourceTable::default();
    for number in 0..targets {
        let capacity = Capacity::per_sec(CAPACITY, CAPACITY / 2).expect("in range");
        let name = format!("target{number}").into();
        table.add(name, ResourceKind::Target, capacity, Time::ZERO).expect("a new name");
    }
    let mut kept = Vec::new();
    let begun = processor_nanos();
    for number in 0..count as usize {
        let width = widths[number % widths.len()];
        let (demand, window) = draws.request(horizon, targets, width);
        let start = table.earliest_fit(&demand, window).expect("no latest end");
        let span = Span::new(start, window.length);
        table.book(&demand, span);
        kept.push((demand, span));
    }
    println!(
        "reserved widths {widths:?}: {} % booked, {} MB, {} steps of target 0, placed in {:.1} s",
        booked_percent(&table, targets, horizon),
        memory_mb(),
        table.steps_of(ResourceId::new(0)),
        (processor_nanos() - begun) as f64 / 1e9,
    );
    for width in widths {
        let mut spans: Vec<u64> = Vec::new();
        let mut waited = 0;
        for _ in 0..SEARCHES {
            let (demand, window) = draws.request(horizon, targets, *width);
            let begun = processor_nanos();
            let start = table.earliest_fit(&demand, window).expect("no latest end");
            spans.push(processor_nanos() - begun);
            waited += usize::from(start > window.release);
        }
        spans.sort();
        let micros = |at: usize| spans[at * (SEARCHES - 1) / 100] as f64 / 1e3;
        println!(
            "  search width {width:2}: median {:.1} µs, 99 % {:.1} µs, most {:.1} µs; {} % wait",
            micros(50),
            micros(99),
            micros(100),
            waited * 100 / SEARCHES,
        );
    }
    drop(kept);
}

/// The mean use of all targets at 50 times in the middle half of the horizon.
fn booked_percent(table: &ResourceTable, targets: u64, horizon: Nanos) -> u64 {
    let mut sum = 0;
    for slice in 0..50 {
        let time = Time::from_nanos(horizon.get() / 4 + horizon.get() / 100 * slice);
        for target in 0..targets {
            let (used, capacity) = table.used(ResourceId::new(target as u32), time);
            sum += u64::from(capacity.used_by(used).billionths()) / 1_000;
        }
    }
    sum / 50 / targets / 10_000
}

/// The processor time of this thread: other programs on the machine do not count.
fn processor_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Pseudo-random numbers (SplitMix64), the same in each run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn request(&mut self, horizon: Nanos, targets: u64, width: u64) -> (Demand, FitWindow) {
        let percent = 1 + self.below(10);
        let (read, write) = match self.below(3) {
            0 => (CAPACITY * percent / 100, 0),
            1 => (0, CAPACITY / 2 * percent / 100),
            _ => (CAPACITY * percent / 200, CAPACITY / 2 * percent / 200),
        };
        let load = Load::per_sec(read, write).expect("in range");
        let first = self.below(targets);
        // striped with a random stride, as files of a pool are
        let stride = 1 + self.below(targets / width.max(2));
        let resource = |at| ResourceId::new(((first + at * stride) % targets) as u32);
        let loads: Vec<_> = (0..width).map(|at| (resource(at), load)).collect();
        let window = FitWindow {
            release: Time::from_nanos(self.below(horizon.get() / 1_000_000) * 1_000_000),
            until: Time::from_nanos(u64::MAX / 2),
            length: Nanos::from_secs(60 * (10 + self.below(111))),
        };
        (Demand::new(&loads).expect("a demand"), window)
    }
}
