//! Figures of the process from the kernel.

use rustix::time::{ClockId, clock_gettime};

use crate::MetricsPage;
use crate::metrics::{CPU, MEMORY};

/// Adds this process's processor time and memory to a page.
pub fn tell_process(page: &mut MetricsPage) {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    page.single(&CPU, time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
    // A system without this file shows no memory, but the other figures.
    if let Some(bytes) = resident_bytes() {
        page.single(&MEMORY, bytes);
    }
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
    use super::*;

    #[test]
    fn a_process_has_used_time_and_memory() {
        let mut page = MetricsPage::new();
        tell_process(&mut page);
        let text = page.finish();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap()
        };
        assert!(value("sluice_cpu_seconds_total ") > 0.0, "{text}");
        assert!(value("sluice_memory_bytes ") > 100_000.0, "{text}");
    }
}
