//! How much of the processors other programs took during a measurement: figures of a
//! machine that was busy with something else are worth little, and should say so.
//!
//! Others' part is time in user space that is neither the bench's nor idle, and time
//! stolen by a hypervisor. Time in the kernel is left out: its threads work for the
//! bench's writes too, and nothing says for whom.

use std::fs::read_to_string;

/// The processors' clocks at one moment, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NeighbourReading {
    /// All processors, whatever they did.
    all: u64,
    /// In user space or stolen.
    user: u64,
    /// Stolen by a hypervisor.
    stolen: u64,
    /// In user space for the bench.
    ours: u64,
}

impl NeighbourReading {
    /// Reads the clocks, those of the bench's processes `pids` too; none where the
    /// kernel does not tell.
    pub(crate) fn take(pids: &[u32]) -> Option<NeighbourReading> {
        let of = |pid: &u32| Some(process(&read_to_string(format!("/proc/{pid}/stat")).ok()?)?[0]);
        let ours = pids.iter().map(of).sum::<Option<u64>>()?;
        NeighbourReading::of(ours)
    }

    /// The same where every process that can be seen is the bench's: within a process
    /// namespace of its own. Of those that have ended, their parents have the time.
    pub(crate) fn take_all() -> Option<NeighbourReading> {
        let entries = std::fs::read_dir("/proc").ok()?.flatten();
        let stats = entries.filter_map(|entry| read_to_string(entry.path().join("stat")).ok());
        let ours = stats.filter_map(|text| process(&text)).flatten().sum();
        NeighbourReading::of(ours)
    }

    fn of(ours: u64) -> Option<NeighbourReading> {
        let (all, user, stolen) = machine(&read_to_string("/proc/stat").ok()?)?;
        Some(NeighbourReading { all, user, stolen, ours })
    }

    /// The part of the processors' time that others took since `earlier`, 0 to 1.
    pub(crate) fn others_since(&self, earlier: &NeighbourReading) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        let user = self.user.saturating_sub(earlier.user);
        let ours = self.ours.saturating_sub(earlier.ours);
        user.saturating_sub(ours) as f64 / all as f64
    }

    /// The part of it that a hypervisor took, 0 to 1.
    pub(crate) fn steal_since(&self, earlier: &NeighbourReading) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.stolen.saturating_sub(earlier.stolen) as f64 / all as f64
    }
}

/// All ticks, those in user space or stolen, and those stolen, from the text of /proc/stat.
fn machine(text: &str) -> Option<(u64, u64, u64)> {
    let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user nice system idle iowait irq softirq steal; guests are within user.
    let ticks: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let stolen = *ticks.get(7)?;
    Some((ticks.iter().sum(), ticks.first()? + ticks.get(1)? + stolen, stolen))
}

/// Ticks in user space from the text of /proc/PID/stat: its own, and those of children that
/// have ended.
fn process(text: &str) -> Option<[u64; 2]> {
    // The name before it may hold anything, a parenthesis too.
    let (_, rest) = text.rsplit_once(')')?;
    let word = |at| rest.split_whitespace().nth(at)?.parse().ok();
    Some([word(11)?, word(13)?])
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
            let (all, user_or_stolen, stolen) = machine(text).unwrap();
            let ours = process(&stat(user)).unwrap()[0];
            NeighbourReading { all, user: user_or_stolen, stolen, ours }
        };
        let (first, second) = (reading(earlier, 30), reading(later, 80));
        assert_eq!((first.all, second.all), (1000, 2000));
        assert_eq!((second.others_since(&first), second.steal_since(&first)), (0.2, 0.03));
    }

    #[test]
    fn the_kernel_tells_of_this_process_and_of_none_that_is_gone() {
        assert!(NeighbourReading::take(&[std::process::id()]).is_some());
        assert_eq!(NeighbourReading::take(&[u32::MAX]), None);
    }
}
