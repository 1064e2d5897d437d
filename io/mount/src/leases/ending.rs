//! What the kernel is being made to forget, and what waits for that.
//!
//! ```text
//!   recall ─┐
//!   lapse  ─┼─► begin ─► notices, perhaps by another thread ─► finish ─► returned, joined, given back
//!   over   ─┘     │                                              ▲
//!                 └─ the kernel believes it no longer anyway ────┘
//! ```

use std::collections::BTreeMap;

use model::{Nanos, Time};
use ninep::dialect::LeaseGrant;

/// Everything that the kernel is being made to forget.
#[derive(Debug, Default)]
pub(super) struct Endings {
    under_way: BTreeMap<u64, EndingBelief>,
    last: u64,
}

/// Something that the kernel is being made to forget.
#[derive(Debug)]
pub(super) struct EndingBelief {
    pub(super) cause: EndingCause,
    /// When it is to be said next that a recall is worked on.
    progress_due: Time,
    /// When the kernel believes it no longer, with or without a notice; `None`: pages, which it keeps.
    over_at: Option<Time>,
}

/// Why the kernel is to forget it.
#[derive(Debug)]
pub(super) enum EndingCause {
    /// A recall of the proxy for an access.
    Recall {
        access: u64,
        /// The path of the file's qid.
        file: u64,
        /// When the recall came here.
        came: Time,
    },
    /// Leases are given back: each file, by the path of its qid, with the grant.
    GiveBack(Vec<(u64, LeaseGrant)>),
    /// All leases are over, or a change of this mount may not be as the kernel believes.
    Doubt,
}

/// The next thing to be done about endings.
#[derive(Debug)]
pub(super) enum EndingStep {
    /// The kernel believes it no longer.
    Over(EndingBelief),
    /// The recall for an access is worked on.
    Progress(u64),
}

impl Endings {
    pub(super) fn begin(
        &mut self,
        cause: EndingCause,
        over_at: Option<Time>,
        now: Time,
        progress: Nanos,
    ) -> u64 {
        self.last += 1;
        let ending = EndingBelief { cause, progress_due: now + progress, over_at };
        self.under_way.insert(self.last, ending);
        self.last
    }

    /// The kernel has forgotten it; `None` if it was over before.
    pub(super) fn finish(&mut self, id: u64) -> Option<EndingBelief> {
        self.under_way.remove(&id)
    }

    pub(super) fn next_step(&mut self, now: Time, progress: Nanos) -> Option<EndingStep> {
        let is_over = |ending: &EndingBelief| ending.over_at.is_some_and(|at| at <= now);
        let over = self.under_way.iter().find(|(_, ending)| is_over(ending)).map(|(id, _)| *id);
        if let Some(ending) = over.and_then(|id| self.finish(id)) {
            return Some(EndingStep::Over(ending));
        }
        let due = self.under_way.values_mut().find_map(|ending| match ending.cause {
            EndingCause::Recall { access, .. } if ending.progress_due <= now => {
                ending.progress_due = now + progress;
                Some(access)
            }
            _ => None,
        });
        due.map(EndingStep::Progress)
    }

    /// When there is something to be done next.
    pub(super) fn next_due(&self) -> Option<Time> {
        let due = |ending: &EndingBelief| match ending.cause {
            EndingCause::Recall { .. } => {
                Some(ending.progress_due.min(ending.over_at.unwrap_or(Time::MAX)))
            }
            _ => ending.over_at,
        };
        self.under_way.values().filter_map(due).min()
    }

    /// Whether the kernel may believe something that is in doubt.
    pub(super) fn has_doubts(&self) -> bool {
        self.under_way.values().any(|ending| matches!(ending.cause, EndingCause::Doubt))
    }

    /// Nobody waits for the answers to recalls any more.
    pub(super) fn forget_recalls(&mut self) {
        self.under_way.retain(|_, ending| !matches!(ending.cause, EndingCause::Recall { .. }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: Nanos = Nanos::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn recall(access: u64) -> EndingCause {
        EndingCause::Recall { access, file: 1, came: at(0) }
    }

    #[test]
    fn recall_is_worked_on_until_the_kernel_has_forgotten() {
        let mut endings = Endings::default();
        let id = endings.begin(recall(7), None, at(0), PROGRESS);
        assert!(endings.next_step(at(2), PROGRESS).is_none());
        assert_eq!(endings.next_due(), Some(at(3)));
        for seconds in [3, 6] {
            let step = endings.next_step(at(seconds), PROGRESS);
            assert!(matches!(step, Some(EndingStep::Progress(7))), "{step:?}");
        }
        assert!(endings.finish(id).is_some() && endings.finish(id).is_none());
        assert_eq!(endings.next_due(), None);
    }

    #[test]
    fn what_the_kernel_believes_no_longer_anyway_is_over_without_a_notice() {
        let mut endings = Endings::default();
        let id = endings.begin(recall(7), Some(at(2)), at(0), PROGRESS);
        assert_eq!(endings.next_due(), Some(at(2)));
        assert!(matches!(endings.next_step(at(2), PROGRESS), Some(EndingStep::Over(_))));
        assert!(endings.finish(id).is_none(), "the notice came through later");
    }

    #[test]
    fn doubts_end_before_the_mount_joins_and_recalls_end_with_the_session() {
        let mut endings = Endings::default();
        endings.begin(recall(7), None, at(0), PROGRESS);
        assert!(!endings.has_doubts());
        let doubt = endings.begin(EndingCause::Doubt, Some(at(9)), at(0), PROGRESS);
        endings.forget_recalls();
        assert!(endings.has_doubts() && endings.next_due() == Some(at(9)));
        endings.finish(doubt);
        assert!(!endings.has_doubts());
    }
}
