//! What the planned reservation of a waiting job needs: it follows the start that Slurm expects.
//!
//! ```text
//!   Slurm expects the job later, or earlier, than its reservation starts ─► move the reservation
//!   the reservation starts later than Slurm expects                    ─► tell Slurm (StartTime)
//! ```
//!
//! It has the time from its caller, and no clock: `follow.rs` asks and does.

use model::{Nanos, Time};

/// What is known of one waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedJob {
    /// When Slurm expects it to start; `None` if it has not said so.
    pub(super) expected: Option<Time>,
    /// When it may start at the earliest, if that is in the future.
    pub(super) eligible: Option<Time>,
    /// What `follow` set as that time; another one is its user's, and stands.
    pub(super) told: Option<Time>,
    /// When its reservation starts.
    pub(super) reserved: Time,
    /// Whether that time has come.
    pub(super) is_active: bool,
    /// Whether its last start was refused: what Slurm expects then is the end of its own waiting.
    pub(super) is_refused: bool,
}

/// What to do for a waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanStep {
    /// Nothing: the reservation and Slurm agree.
    Keep,
    /// Move the reservation to this time or the first one after it at which it fits.
    Move(Time),
    /// Tell Slurm that the job starts at this time.
    Tell(Time),
}

impl PlannedJob {
    /// Decides the next step. `slack` is what the two may differ by: less than the claim window, in
    /// which a reservation waits for its job.
    pub(super) fn step(&self, now: Time, slack: Nanos) -> PlanStep {
        let eligible = self.eligible.filter(|eligible| *eligible > now);
        // Slurm has been told another time than this, and expects nothing before that.
        let is_ours = self.is_refused
            || eligible.zip(self.told).is_some_and(|(at, told)| apart(at, told) <= SECOND);
        // What is active waits for its job until it lapses, and is planned again then. A job that
        // was refused a moment ago, or told to wait, waits for longer than that, unless Slurm is told.
        if self.is_active {
            let is_far = eligible.is_some_and(|at| at.since(now) > SOON);
            return if is_ours && is_far { PlanStep::Tell(now) } else { PlanStep::Keep };
        }
        let expected = self.expected.filter(|_| !self.is_refused).map(|at| at.max(now));
        let is_told = is_ours && expected.is_none_or(|at| Some(at) == eligible);
        if is_told && eligible.is_some_and(|told| apart(told, self.reserved) > SECOND) {
            return PlanStep::Tell(self.reserved);
        }
        match expected {
            Some(expected) if expected > self.reserved && expected.since(self.reserved) > slack => {
                PlanStep::Move(expected)
            }
            Some(expected) if !is_told && self.reserved.since(expected) > slack => {
                PlanStep::Move(expected)
            }
            _ => PlanStep::Keep,
        }
    }

    /// Decides what to do after a move: tell Slurm, if the calendar has no place when it expects
    /// the job.
    pub(super) fn step_after_move(&self, slack: Nanos) -> PlanStep {
        match self.expected {
            Some(expected) if self.reserved.since(expected) > slack => {
                PlanStep::Tell(self.reserved)
            }
            _ => PlanStep::Keep,
        }
    }
}

fn apart(one: Time, other: Time) -> Nanos {
    one.since(other).max(other.since(one))
}

const SECOND: Nanos = Nanos::from_secs(1);
/// A start that is so near is not set once more: each new one is two seconds later.
const SOON: Nanos = Nanos::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const SLACK: Nanos = Nanos::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn job(expected: u64, reserved: u64) -> PlannedJob {
        let expected = Some(expected).filter(|at| *at > 0).map(at);
        PlannedJob {
            expected,
            eligible: None,
            told: None,
            reserved: at(reserved),
            is_active: false,
            is_refused: false,
        }
    }

    fn told(eligible: u64, expected: u64, reserved: u64) -> PlannedJob {
        let eligible = Some(at(eligible));
        PlannedJob { eligible, told: eligible, ..job(expected, reserved) }
    }

    #[test]
    fn a_reservation_follows_the_expected_start_in_both_directions() {
        assert_eq!(job(1000, 900).step(at(100), SLACK), PlanStep::Move(at(1000)));
        assert_eq!(job(500, 900).step(at(100), SLACK), PlanStep::Move(at(500)));
        assert_eq!(job(910, 900).step(at(100), SLACK), PlanStep::Keep);
        // Without an expectation, or with one that is over, the earliest start is the best.
        assert_eq!(job(0, 900).step(at(100), SLACK), PlanStep::Keep);
        assert_eq!(job(50, 900).step(at(100), SLACK), PlanStep::Move(at(100)));
        assert_eq!(job(50, 110).step(at(100), SLACK), PlanStep::Keep);
    }

    #[test]
    fn what_the_calendar_has_later_is_told_to_slurm_and_told_again_when_it_is_earlier() {
        assert_eq!(job(500, 900).step_after_move(SLACK), PlanStep::Tell(at(900)));
        assert_eq!(job(500, 510).step_after_move(SLACK), PlanStep::Keep);
        // Told 900; others ended early, and the calendar has 700 now.
        assert_eq!(told(900, 900, 700).step(at(100), SLACK), PlanStep::Tell(at(700)));
        assert_eq!(told(900, 900, 900).step(at(100), SLACK), PlanStep::Keep);
        // The nodes are busy for longer than was told.
        assert_eq!(told(900, 2000, 900).step(at(100), SLACK), PlanStep::Move(at(2000)));
        // The told time is over: the job is like any other.
        assert_eq!(told(900, 1200, 900).step(at(950), SLACK), PlanStep::Move(at(1200)));
    }

    #[test]
    fn a_later_time_of_its_user_stands_and_the_reservation_follows() {
        let of_its_user = PlannedJob { told: Some(at(500)), ..told(9000, 9000, 500) };
        assert_eq!(of_its_user.step(at(100), SLACK), PlanStep::Move(at(9000)));
        let moved = PlannedJob { reserved: at(9000), ..of_its_user };
        assert_eq!(moved.step(at(100), SLACK), PlanStep::Keep);
    }

    #[test]
    fn an_active_reservation_waits_for_its_job() {
        let active = PlannedJob { is_active: true, ..job(1000, 100) };
        assert_eq!(active.step(at(110), SLACK), PlanStep::Keep);
        let refused = PlannedJob { is_active: true, is_refused: true, ..told(220, 220, 100) };
        assert_eq!(refused.step(at(110), SLACK), PlanStep::Tell(at(110)));
        // Told 900 when others had the bandwidth; they have gone, and it is active already.
        let told_later = PlannedJob { is_active: true, ..told(900, 900, 100) };
        assert_eq!(told_later.step(at(110), SLACK), PlanStep::Tell(at(110)));
        let told_now = PlannedJob { is_active: true, ..told(112, 112, 100) };
        assert_eq!(told_now.step(at(110), SLACK), PlanStep::Keep);
        let of_its_user = PlannedJob { told: None, ..told_later };
        assert_eq!(of_its_user.step(at(110), SLACK), PlanStep::Keep);
    }

    #[test]
    fn a_refused_job_starts_with_its_reservation_and_not_when_slurm_tries_again() {
        let refused = |reserved| PlannedJob { is_refused: true, ..told(220, 220, reserved) };
        assert_eq!(refused(130).step(at(110), SLACK), PlanStep::Tell(at(130)));
        assert_eq!(refused(900).step(at(110), SLACK), PlanStep::Tell(at(900)));
        assert_eq!(refused(220).step(at(110), SLACK), PlanStep::Keep);
    }
}
