//! The thread that joins the holders of leases, renews, gives back, and ends what is not held any
//! more; and the answers to recalls.
//!
//! ```text
//!   recall ─► user space forgets ─► attributes: the kernel, at once ─┬─► returned
//!                                   names, pages: another thread ────┘   meanwhile: worked on
//!   term over, new session, OVER ─► the kernel forgets ─► join with the next life
//! ```
//!
//! A notice about attributes takes no lock in the kernel. Replies to questions that the kernel began
//! before it do not count there (its `attr_version`); an inode that the kernel is just making of a reply it does
//! not find, so that one is tried again. A notice about a name takes the lock of its directory, which a look-up
//! holds until its reply counts; a change of this mount holds it as well, perhaps while it waits for the recalls of
//! others. So it is not waited for beyond the time for which the kernel believes the name.

use std::sync::Arc;
use std::time::Duration;

use fuse::{InodeId, Notifier};
use leases::LeaseTerms;
use model::{Nanos, Time};
use ninep::dialect::{HandleList, LeaseGrant, RENEW_JOIN, RENEW_TERM, ReturnedLease};

use super::cache::{BelievedName, Dropped};
use super::ending::{EndingBelief, EndingCause, EndingStep};
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
    /// Something that the kernel was to forget is over, or worked on.
    Ending(EndingStep),
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
            HolderStep::Drop(dropped) => self.end_belief(dropped, EndingCause::Doubt),
            HolderStep::GiveBack(dropped, items) => {
                self.end_belief(dropped, EndingCause::GiveBack(items));
            }
            HolderStep::Renew(control) => {
                if !self.homes.links[0].send_about_leases(control) {
                    leases.not_sent();
                }
            }
            HolderStep::Ending(EndingStep::Over(ending)) => self.ended(ending),
            HolderStep::Ending(EndingStep::Progress(access)) => {
                self.homes.links[0].return_lease(access, false);
            }
            HolderStep::Wait(_) => {}
        }
    }

    fn answer_recall(&self, recall: &MountRecall<'_>) {
        let came = clock::with_suspend();
        let dropped = {
            let mut state = self.shared().leases.lock();
            state.stats.recalls += 1;
            state.cache.recalled(recall.file, recall.kinds, recall.name, came)
        };
        let MountRecall { access, file, .. } = *recall;
        self.end_belief(dropped, EndingCause::Recall { access, file, came });
    }

    /// Has the kernel forget what is not held any more, and closes what is open for nobody; then
    /// goes on, perhaps on another thread.
    fn end_belief(&self, dropped: Dropped, cause: EndingCause) {
        let Dropped { attributes, pages, names, parked } = dropped;
        if matches!(cause, EndingCause::Doubt) && !(names.is_empty() || pages.is_empty()) {
            // Names may wait for a lock; with pages that would not be over with their time.
            self.end_belief(Dropped { names, ..Dropped::default() }, EndingCause::Doubt);
            let rest = Dropped { attributes, pages, parked, ..Dropped::default() };
            return self.end_belief(rest, cause);
        }
        let pages_of = match cause {
            EndingCause::Recall { file, .. } if !pages.is_empty() => Some(file),
            _ => None,
        };
        for file in parked {
            self.close_parked(&file);
        }
        let known = |handle: &Arc<[u8]>| self.nodes.inode_of(handle);
        let unmade = |inode: &InodeId| self.invalidate_attributes(*inode).is_err();
        let unmade: Vec<_> = attributes.iter().filter_map(known).filter(unmade).collect();
        let pages: Vec<_> = pages.iter().filter_map(known).collect();
        let now = clock::with_suspend();
        let (id, term) = {
            let mut state = self.shared().leases.lock();
            // The kernel believes attributes no longer than the term, of which there may be none any more.
            let term = now + state.cache.held.rest(now).unwrap_or(LeaseTerms::default().term);
            let names = names.iter().map(|name| name.until);
            let over_at = names.chain((!unmade.is_empty()).then_some(term)).max();
            let over_at = if pages.is_empty() { over_at } else { None };
            (state.endings.begin(cause, over_at, now, progress_interval()), term)
        };
        let notifier = self.notifier.get().cloned();
        let is_done = unmade.is_empty() && pages.is_empty() && names.is_empty();
        let Some(notifier) = notifier.filter(|_| !is_done) else {
            return self.forgotten(id, &names, pages_of);
        };
        let queue = if names.is_empty() { &self.notices } else { &self.name_notices };
        let export = self.downgrade();
        queue.run(move || {
            let Some(export) = export.upgrade().map(MountFs::new_from) else { return };
            export.end_names(&notifier, &names);
            for inode in unmade {
                export.invalidate_once_made(inode, term);
            }
            for inode in pages {
                if let Err(error) = notifier.inval_inode(inode, 0, 0) {
                    tracing::debug!(inode = inode.0, %error, "cannot drop cached pages");
                }
            }
            export.forgotten(id, &names, pages_of);
        });
    }

    /// The kernel has forgotten it all.
    fn forgotten(&self, id: u64, names: &[BelievedName], pages_of: Option<u64>) {
        {
            let mut state = self.shared().leases.lock();
            state.cache.end_names(names, clock::with_suspend());
            pages_of.into_iter().for_each(|path| state.cache.end_page_drop(path));
        }
        self.finish(id);
    }

    /// Makes the kernel ask for names. A directory is not taken out: what is mounted below would be unmounted, and
    /// who works in it would not find where that is. But the answer to a revalidation, which holds no lock, may count
    /// after the notice: then there is another one.
    fn end_names(&self, notifier: &Notifier, names: &[BelievedName]) {
        let (directories, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|named| named.revalidated.is_some());
        let inode = |named: &BelievedName| self.nodes.inode_of(&named.directory);
        // What the kernel does not know it does not believe.
        for named in others {
            let _ = inode(named).map(|inode| notifier.inval_entry(inode, &named.name));
        }
        for named in directories {
            let _ = inode(named).map(|inode| notifier.expire_entry(inode, &named.name));
            let settled = named.revalidated.unwrap_or(Time::ZERO) + REVALIDATED;
            let rest = settled.since(clock::with_suspend());
            if rest > Nanos::ZERO {
                std::thread::sleep(rest.to_duration());
                let _ = inode(named).map(|inode| notifier.expire_entry(inode, &named.name));
            }
        }
    }

    /// Invalidates the attributes of an inode that the kernel has received, and did not know just now: it is making
    /// it, or has just dropped it.
    fn invalidate_once_made(&self, inode: InodeId, until: Time) {
        let is_counted = || self.nodes.get(inode).is_ok() && clock::with_suspend() < until;
        while self.invalidate_attributes(inode).is_err() && is_counted() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn finish(&self, id: u64) {
        let ending = self.shared().leases.lock().endings.finish(id);
        if let Some(ending) = ending {
            self.ended(ending);
        }
    }

    /// The kernel believes something no longer: does what waited for that.
    fn ended(&self, ending: EndingBelief) {
        let leases = &self.shared().leases;
        match ending.cause {
            EndingCause::Recall { access, came, .. } => {
                let took = clock::with_suspend().since(came);
                leases.count(|stats| stats.recall_max = stats.recall_max.max(took));
                self.homes.links[0].return_lease(access, true);
            }
            EndingCause::GiveBack(items) => {
                leases.lock().cache.given_back(&items, clock::with_suspend());
                let mut data = Vec::new();
                for (file, grant) in items {
                    ReturnedLease { file, grant }.encode(&mut data);
                }
                self.homes.links[0].send_about_leases(SessionControl::GiveBack(data));
            }
            EndingCause::Doubt => leases.wake(),
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
            let (dropped, leases) = self.cache.give_back(now);
            if !leases.is_empty() {
                return Some(HolderStep::GiveBack(dropped, leases));
            }
        }
        if let Some(step) = self.endings.next_step(now, progress_interval()) {
            return Some(HolderStep::Ending(step));
        }
        let life = self.cache.held.life() as u32;
        let is_waiting = self.asked.is_some_and(|asked| now < asked + ASK_AGAIN);
        let (what, due) = match self.phase {
            LeasePhase::Off => return None,
            // Once the kernel has forgotten what it could believe.
            LeasePhase::Joining if self.endings.has_doubts() => (RENEW_JOIN, Time::MAX),
            LeasePhase::Joining => (RENEW_JOIN, self.join_from.unwrap_or(now)),
            LeasePhase::Refused(until) => (RENEW_JOIN, until),
            LeasePhase::Joined => (RENEW_TERM, self.cache.held.next_renewal().unwrap_or(now)),
        };
        if due <= now && !is_waiting {
            self.asked = Some(now);
            return Some(HolderStep::Renew(SessionControl::Renew { life, what, sent: now }));
        }
        let asked = self.asked.map(|asked| asked + ASK_AGAIN);
        let next = self
            .endings
            .next_due()
            .into_iter()
            .chain(asked)
            .chain((due > now).then_some(due))
            .min();
        let span = next.map_or(CHECK, |next| next.since(now).min(CHECK));
        Some(HolderStep::Wait(span.to_duration().max(Duration::from_millis(1))))
    }
}

/// How often it is said that a recall is worked on.
fn progress_interval() -> Nanos {
    Nanos::new(LeaseTerms::default().recall_limit.get() / 3)
}

/// How long the answer to a revalidation takes at most until it counts.
const REVALIDATED: Nanos = Nanos::from_secs(1);
/// After how long an answer to a renewal is not waited for any more.
const ASK_AGAIN: Nanos = Nanos::from_secs(3);
/// Pause while there is no connection.
const RETRY: Nanos = Nanos::from_millis(200);
/// The longest pause.
const CHECK: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::{DirectoryName, FileKey, KeptName};
    use leases::LeaseKinds;
    use ninep::dialect::{LeaseGrant, RENEW_DONE, RENEW_OVER, RENEW_REFUSED};
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
        assert!(!leases.is_holder());
        let name = DirectoryName { directory: 1, handle: b"d"[..].into(), name: b"n"[..].into() };
        let change = leases.begin_change(Vec::new(), vec![name]).unwrap();
        assert_eq!(renewal(&leases, now + Nanos::from_secs(1)), None);
        let later = now + Nanos::from_secs(60);
        let asked = renewal(&leases, later).unwrap();
        assert!(!leases.is_holder(), "until it is answered");
        answer(&leases, asked, RENEW_DONE, later);
        assert!(leases.is_holder() && leases.request().is_none());
        assert_eq!(renewal(&leases, now), None, "the kernel may believe what it has");
        let joins = renewal(&leases, later).unwrap();
        assert_eq!(joins, (asked.0 + 1, RENEW_JOIN));
        answer(&leases, joins, RENEW_DONE, later);
        let looked_up = || {
            let request = leases.request().unwrap();
            request.keep(|cache, id, _, now| {
                let directory = FileKey { path: 1, handle: b"d" };
                let grant = LeaseGrant { kinds: LeaseKinds::NAMES.bits(), number: 1 };
                let fresh = cache.granted(id, directory, grant);
                cache.keep_name(1, fresh, b"n", KeptName::Absent, 0);
                cache.name(1, b"n", now)
            })
        };
        assert_eq!(looked_up(), None, "a change that began before is not answered");
        drop(change);
        assert_eq!(looked_up(), Some(KeptName::Absent));
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
