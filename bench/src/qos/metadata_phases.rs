//! Two jobs with weights 2 : 1 at four metadata servers, of which they do not always ask all: what
//! each is entitled to of all service, and what the worse off of them got of it.

/// Which servers each job asks, and the part of all service that its weight gives it.
pub(super) struct MetadataPhase {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) asked: [[bool; SERVERS]; 2],
    parts: [f64; 2],
}

#[rustfmt::skip]
pub(super) const PHASES: [MetadataPhase; 4] = [
    MetadataPhase { name: "both", what: "both ask all", asked: [[true; 4], [true; 4]], parts: BY_WEIGHT },
    MetadataPhase { name: "lighter-two", what: "the lighter asks two", asked: [[true; 4], [true, true, false, false]], parts: BY_WEIGHT },
    MetadataPhase { name: "heavier-three", what: "the heavier asks three", asked: [[true, true, true, false], [true; 4]], parts: BY_WEIGHT },
    // The heavier can have no more than all of its two.
    MetadataPhase { name: "heavier-two", what: "the heavier asks two", asked: [[false, true, true, false], [true; 4]], parts: [0.5, 0.5] },
];

const BY_WEIGHT: [f64; 2] = [2.0 / 3.0, 1.0 / 3.0];
/// The number of servers.
pub(super) const SERVERS: usize = 4;
/// The names of the jobs.
pub(super) const JOBS: [&str; 2] = ["one", "two"];
/// The rules of the jobs.
pub(super) const RULES: &str = "[[rule]]\nname = \"one\"\nmatch = \"jobid={one}\"\nweight = 2\n\n\
     [[rule]]\nname = \"two\"\nmatch = \"jobid={two}\"\n";
/// Threads of each job for each server that it asks.
pub(super) const DEPTH: usize = 4;

impl MetadataPhase {
    /// The servers that a job asks, one for each of its threads.
    pub(super) fn seats(&self, job: usize) -> impl Iterator<Item = usize> {
        let asked = (0..SERVERS).filter(move |at| self.asked[job][*at]);
        asked.flat_map(|server| std::iter::repeat_n(server, DEPTH))
    }

    /// What the job that is worse off was served, in percent of what its weight gives it.
    pub(super) fn least_percent(&self, served: [u64; 2]) -> f64 {
        let all = served.iter().sum::<u64>().max(1) as f64;
        let kept = (0..2).map(|job| served[job] as f64 / all / self.parts[job]);
        kept.fold(f64::INFINITY, f64::min) * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_off_job_counts() {
        assert!((PHASES[0].least_percent([1980, 1020]) - 99.0).abs() < 1e-9);
        assert!((PHASES[3].least_percent([400, 600]) - 80.0).abs() < 1e-9);
    }

    #[test]
    fn the_parts_of_every_phase_are_all_of_it() {
        assert!(PHASES.iter().all(|phase| (phase.parts[0] + phase.parts[1] - 1.0).abs() < 1e-9));
        assert_eq!(PHASES[1].seats(1).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(rules::RuleSet::parse(RULES).unwrap().rules.len(), JOBS.len());
    }
}
