//! Figures of the process from the kernel.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

use crate::MetricsPage;
use crate::metrics::{CPU, MEMORY, START};

/// Adds this process's start, processor time and memory to a page, under the names that Prometheus'
/// own client libraries give them.
pub fn write_process_metrics(page: &mut MetricsPage) {
    static STARTED_NS: OnceLock<Option<u64>> = OnceLock::new();
    if let Some(start) = STARTED_NS.get_or_init(started_ns) {
        page.single(&START, *start);
    }
    let time = clock_gettime(ClockId::ProcessCPUTime);
    page.single(&CPU, time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
    // A system without this file shows no memory, but the other figures.
    if let Some(bytes) = resident_bytes() {
        page.single(&MEMORY, bytes);
    }
}

/// Nanoseconds from 1970 to the start of this process, see proc(5): `starttime` is counted in
/// ticks from the boot, whose time is `btime`.
fn started_ns() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let kernel = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = kernel.lines().find_map(|line| line.strip_prefix("btime "))?;
    let boot: u64 = boot.trim().parse().ok()?;
    let since_boot = ticks.checked_mul(1_000_000_000)? / rustix::param::clock_ticks_per_second();
    boot.checked_mul(1_000_000_000)?.checked_add(since_boot)
}

/// `VmRSS:     1234 kB`, see proc(5).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_process_has_used_time_and_memory() {
        let mut page = MetricsPage::new();
        write_process_metrics(&mut page);
        let text = page.finish();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap()
        };
        assert!(value("process_cpu_seconds_total ") > 0.0, "{text}");
        assert!(value("process_resident_memory_bytes ") > 100_000.0, "{text}");
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds ");
        assert!((-2.0..86_400.0).contains(&age), "{age} s: {text}");
    }
}
