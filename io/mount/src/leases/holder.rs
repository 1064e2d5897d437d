//! The thread that joins the holders of leases, renews, gives back, and ends what is not held any
//! more; and the answers to recalls.
//!
//! ```text
//!   recall ─► user space forgets ─► attributes: the kernel, at once ─┬─► returned
//!                                   pages: a thread of notices ──────┘   meanwhile: worked on
//!   term over, new session, OVER ─► the kernel forgets ─► join with the next life
//! ```
//!
//! A notice about attributes takes no lock in the kernel. Replies to questions that the kernel began
//! before it do not count there (its `attr_version`), so a reply under way does no harm. Names are
//! not given to the kernel for any time, so nothing about names needs a notice.

use std::sync::Arc;
use std::time::Duration;

use leases::LeaseTerms;
use model::{Nanos, Time};
use ninep::dialect::{HandleList, LeaseGrant, RENEW_JOIN, RENEW_TERM, ReturnedLease};

use super::cache::Dropped;
use super::{LeasePhase, LeaseState, MountLeases, MountRecall};
use crate::filesystem::{MountFs, MountFsState};
use crate::session::{CallSpec, SessionControl};
use crate::{clock, helpers};

/// The next thing that the thread does.
enum HolderStep {
    /// The kernel forgets, and files are closed.
    Drop(Dropped),
    /// The same, and then leases are given back.
    GiveBack(Dropped, Vec<(u64, LeaseGrant)>),
    /// It joins or renews.
    Renew(SessionControl),
    /// A recall is worked on.
    Progress(u64),
    Wait(Duration),
}

impl MountFs {
    /// Has the mount become a holder of leases where the proxy grants some, until it is gone.
    pub(crate) fn hold_leases(&self) {
        if !self.shared().leases.is_holder() {
            return;
        }
        let export = self.downgrade();
        self.homes.on_recall(move |recall| {
            if let Some(export) = export.upgrade() {
                MountFs::new_from(export).answer_recall(recall);
            }
        });
        let (export, leases) = (self.downgrade(), self.shared().leases.clone());
        let hold = move || {
            while let Some(step) = leases.next_step() {
                let Some(export) = export.upgrade().map(MountFs::new_from) else { return };
                if export.homes.is_over() {
                    return;
                }
                match step {
                    HolderStep::Wait(span) => {
                        drop(export);
                        leases.wait(span);
                    }
                    step => export.take_step(step),
                }
            }
        };
        if let Err(error) = helpers::start("leases".into(), hold) {
            tracing::warn!(%error, "cannot start the thread of leases; none is asked for");
            self.shared().leases.turn_off();
        }
    }

    fn take_step(&self, step: HolderStep) {
        let leases = &self.shared().leases;
        match step {
            HolderStep::Drop(dropped) => self.end_belief(dropped, || ()),
            HolderStep::GiveBack(dropped, items) => {
                self.end_belief(dropped, || ());
                leases.lock().cache.given_back(&items);
                let mut data = Vec::new();
                for (file, grant) in items {
                    ReturnedLease { file, grant }.encode(&mut data);
                }
                self.homes.links[0].send_about_leases(SessionControl::GiveBack(data));
            }
            HolderStep::Renew(control) => {
                if !self.homes.links[0].send_about_leases(control) {
                    leases.not_sent();
                }
            }
            HolderStep::Progress(access) => self.homes.links[0].return_lease(access, false),
            HolderStep::Wait(_) => {}
        }
    }

    fn answer_recall(&self, recall: &MountRecall<'_>) {
        let leases = self.shared().leases.clone();
        let dropped = {
            let mut state = leases.lock();
            state.stats.recalls += 1;
            let dropped = state.cache.recalled(recall.file, recall.kinds, recall.name);
            if !dropped.pages.is_empty() {
                state.recalls.insert(recall.access, clock::with_suspend() + progress_interval());
            }
            dropped
        };
        let came = clock::with_suspend();
        let (link, access) = (self.homes.links[0].clone(), recall.access);
        let pages_of = (!dropped.pages.is_empty()).then_some(recall.file);
        self.end_belief(dropped, move || {
            {
                let mut state = leases.lock();
                state.recalls.remove(&access);
                pages_of.into_iter().for_each(|path| state.cache.end_page_drop(path));
                let took = clock::with_suspend().since(came);
                state.stats.recall_max = state.stats.recall_max.max(took);
            }
            link.return_lease(access, true);
        });
    }

    /// Has the kernel forget what is not held any more, and closes what is open for nobody; then
    /// goes on, perhaps on another thread.
    fn end_belief(&self, dropped: Dropped, then: impl FnOnce() + Send + 'static) {
        let Dropped { attributes, pages, parked } = dropped;
        for handle in &attributes {
            if let Some(inode) = self.nodes.inode_of(handle) {
                self.invalidate_attributes(inode);
            }
        }
        for file in parked {
            self.close_parked(&file);
        }
        let inodes: Vec<_> =
            pages.iter().filter_map(|handle| self.nodes.inode_of(handle)).collect();
        match self.notifier.get().filter(|_| !inodes.is_empty()) {
            Some(notifier) => self.notices.drop_pages_of(notifier, inodes, then),
            None => then(),
        }
    }

    /// Makes the proxy forget a file that is open for nobody.
    pub(crate) fn close_parked(&self, file: &Arc<crate::files::OpenFile>) {
        let fid = file.fid;
        let ask = CallSpec::new(HandleList::NONE, ninep::Request::Clunk { fid }).freely();
        self.call_without_waiter(&file.payer, ask, move |export, answer| {
            if !matches!(answer, Err(fuse::Errno::TIMEDOUT | fuse::Errno::NOTCONN)) {
                export.files().release(fid);
            }
        });
    }

    fn new_from(state: Arc<MountFsState>) -> MountFs {
        MountFs::from_state(state)
    }
}

impl MountLeases {
    fn next_step(&self) -> Option<HolderStep> {
        let mut state = self.lock();
        let step = state.next_step(clock::with_suspend());
        self.note_phase(&state);
        step
    }

    /// Waits until there may be something to do.
    fn wait(&self, span: Duration) {
        let state = self.lock();
        let is_idle = state.dropped.is_empty() && !state.cache.is_over_full();
        if is_idle {
            let waited = self.changed.wait_timeout(state, span);
            drop(waited);
        }
    }

    fn not_sent(&self) {
        self.lock().asked = None;
        // A connection that is made wakes it.
        let state = self.lock();
        drop(self.changed.wait_timeout(state, RETRY.to_duration()));
    }

    fn turn_off(&self) {
        let mut state = self.lock();
        self.set_phase(&mut state, LeasePhase::Off);
    }
}

impl LeaseState {
    /// What is to be done now; none once the mount asks for no leases any more.
    fn next_step(&mut self, now: Time) -> Option<HolderStep> {
        if self.phase == LeasePhase::Joined && self.cache.held.rest(now).is_none() {
            tracing::warn!("the term of the leases is over: the proxy was not heard");
            self.lapse();
            self.phase = LeasePhase::Joining;
        }
        if !self.dropped.is_empty() {
            return Some(HolderStep::Drop(std::mem::take(&mut self.dropped)));
        }
        if self.cache.is_over_full() {
            let (dropped, leases) = self.cache.give_back();
            if !leases.is_empty() {
                return Some(HolderStep::GiveBack(dropped, leases));
            }
        }
        if let Some((access, due)) = self.recalls.iter_mut().find(|(_, due)| **due <= now) {
            *due = now + progress_interval();
            return Some(HolderStep::Progress(*access));
        }
        let life = self.cache.held.life() as u32;
        let is_waiting = self.asked.is_some_and(|asked| now < asked + ASK_AGAIN);
        let (what, due) = match self.phase {
            LeasePhase::Off => return None,
            LeasePhase::Joining => (RENEW_JOIN, self.join_from.unwrap_or(now)),
            LeasePhase::Refused(until) => (RENEW_JOIN, until),
            LeasePhase::Joined => (RENEW_TERM, self.cache.held.next_renewal().unwrap_or(now)),
        };
        if due <= now && !is_waiting {
            self.asked = Some(now);
            return Some(HolderStep::Renew(SessionControl::Renew { life, what, sent: now }));
        }
        let recalls = self.recalls.values().copied().min();
        let asked = self.asked.map(|asked| asked + ASK_AGAIN);
        let next = recalls.into_iter().chain(asked).chain((due > now).then_some(due)).min();
        let span = next.map_or(CHECK, |next| next.since(now).min(CHECK));
        Some(HolderStep::Wait(span.to_duration().max(Duration::from_millis(1))))
    }
}

/// How often it is said that a recall is worked on.
fn progress_interval() -> Nanos {
    Nanos::new(LeaseTerms::default().recall_limit.get() / 3)
}

/// After how long an answer to a renewal is not waited for any more.
const ASK_AGAIN: Nanos = Nanos::from_secs(3);
/// Pause while there is no connection.
const RETRY: Nanos = Nanos::from_millis(200);
/// The longest pause.
const CHECK: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use ninep::dialect::{RENEW_DONE, RENEW_OVER, RENEW_REFUSED};
    use session::client::RenewReply;

    const TERM: Nanos = Nanos::from_secs(20);
    const BELIEVED: Nanos = Nanos::from_secs(1);

    fn leases() -> Arc<MountLeases> {
        Arc::new(MountLeases::new(true, BELIEVED))
    }

    /// The life and what it asks for, if the next step is to join or to renew.
    fn renewal(leases: &MountLeases, now: Time) -> Option<(u32, u8)> {
        match leases.lock().next_step(now) {
            Some(HolderStep::Renew(SessionControl::Renew { life, what, .. })) => Some((life, what)),
            _ => None,
        }
    }

    fn answer(leases: &MountLeases, asked: (u32, u8), outcome: u8, sent: Time) {
        let (life, what) = asked;
        leases.renewed(&RenewReply { life, what, sent, outcome, term: TERM.get() });
    }

    #[test]
    fn mount_joins_renews_in_time_and_joins_again_once_its_term_is_over() {
        let (leases, now) = (leases(), clock::with_suspend());
        assert_eq!(renewal(&leases, now), Some((1, RENEW_JOIN)));
        assert_eq!(renewal(&leases, now), None, "it is being answered");
        assert!(leases.is_holder() && leases.request().is_none(), "it has not joined");
        answer(&leases, (1, RENEW_JOIN), RENEW_DONE, now);
        assert!(leases.request().is_some());
        assert_eq!(renewal(&leases, now + Nanos::from_secs(4)), None);
        assert_eq!(renewal(&leases, now + Nanos::from_secs(5)), Some((1, RENEW_TERM)));
        assert_eq!(renewal(&leases, now + Nanos::from_secs(9)), Some((1, RENEW_TERM)));
        assert_eq!(renewal(&leases, now + TERM), Some((2, RENEW_JOIN)));
        answer(&leases, (1, RENEW_TERM), RENEW_DONE, now);
        assert!(leases.request().is_none(), "that was of the life before");
        answer(&leases, (2, RENEW_JOIN), RENEW_DONE, now);
        let asked = renewal(&leases, now + Nanos::from_secs(5)).unwrap();
        answer(&leases, asked, RENEW_OVER, now);
        assert_eq!(renewal(&leases, now + Nanos::from_secs(5)), Some((3, RENEW_JOIN)));
    }

    #[test]
    fn refused_mount_asks_again_and_joins_once_the_kernel_believes_nothing_of_before() {
        let (leases, now) = (leases(), clock::with_suspend());
        answer(&leases, renewal(&leases, now).unwrap(), RENEW_REFUSED, now);
        assert!(!leases.is_holder() && leases.begin_change(Vec::new(), Vec::new()).is_none());
        assert_eq!(renewal(&leases, now + Nanos::from_secs(1)), None);
        let later = now + Nanos::from_secs(60);
        let asked = renewal(&leases, later).unwrap();
        assert!(!leases.is_holder(), "until it is answered");
        answer(&leases, asked, RENEW_DONE, later);
        assert!(leases.is_holder() && leases.request().is_none());
        assert_eq!(renewal(&leases, now), None, "the kernel may believe what it has");
        assert_eq!(renewal(&leases, later), Some((asked.0 + 1, RENEW_JOIN)));
    }

    #[test]
    fn new_session_begins_another_life() {
        let (leases, now) = (leases(), clock::with_suspend());
        answer(&leases, renewal(&leases, now).unwrap(), RENEW_DONE, now);
        leases.session_replaced();
        assert!(leases.request().is_none());
        assert_eq!(renewal(&leases, now), Some((2, RENEW_JOIN)));
    }
}
