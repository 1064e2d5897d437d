//! How much of the processors other programs took while the demo ran: figures of a
//! machine that was busy with something else are worth little, and should say so.
//!
//! Others' part is time in user space that is neither the demo's nor idle, and time
//! stolen by a hypervisor. Time in the kernel is left out: its threads work for the
//! demo's writes too, and nothing says for whom.

use std::fs::read_to_string;

/// The processors' clocks at one moment, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NeighbourReading {
    /// All processors, whatever they did.
    all: u64,
    /// In user space or stolen.
    user: u64,
    /// In user space for the demo.
    ours: u64,
}

impl NeighbourReading {
    /// Reads the clocks, those of the demo's processes `pids` too; none where the
    /// kernel does not tell.
    pub(super) fn take(pids: &[u32]) -> Option<NeighbourReading> {
        let (all, user) = machine(&read_to_string("/proc/stat").ok()?)?;
        let of = |pid: &u32| process(&read_to_string(format!("/proc/{pid}/stat")).ok()?);
        let ours = pids.iter().map(of).sum::<Option<u64>>()?;
        Some(NeighbourReading { all, user, ours })
    }

    /// The part of the processors' time that others took since `earlier`, 0 to 1.
    pub(super) fn others_since(&self, earlier: &NeighbourReading) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        let user = self.user.saturating_sub(earlier.user);
        let ours = self.ours.saturating_sub(earlier.ours);
        user.saturating_sub(ours) as f64 / all as f64
    }
}

/// All ticks, and those in user space or stolen, from the text of /proc/stat.
fn machine(text: &str) -> Option<(u64, u64)> {
    let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user nice system idle iowait irq softirq steal; guests are within user.
    let ticks: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((ticks.iter().sum(), ticks.first()? + ticks.get(1)? + ticks.get(7)?))
}

/// Ticks in user space from the text of /proc/PID/stat.
fn process(text: &str) -> Option<u64> {
    // The name before it may hold anything, a parenthesis too.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_what_is_in_user_space_and_not_ours() {
        let earlier = "cpu  100 10 50 800 20 5 5 10 7 0\ncpu0 1 2 3";
        let later = "cpu  300 30 250 1200 120 30 30 40 9 0\n";
        let stat = |user| format!("7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 {user} 99 0 0 20");
        let reading = |text, user| {
            let (all, busy) = machine(text).unwrap();
            NeighbourReading { all, user: busy, ours: process(&stat(user)).unwrap() }
        };
        let (first, second) = (reading(earlier, 30), reading(later, 80));
        assert_eq!((first.all, second.all), (1000, 2000));
        assert_eq!(second.others_since(&first), 0.2);
    }

    #[test]
    fn the_kernel_tells_of_this_process_and_of_none_that_is_gone() {
        assert!(NeighbourReading::take(&[std::process::id()]).is_some());
        assert_eq!(NeighbourReading::take(&[u32::MAX]), None);
    }
}
