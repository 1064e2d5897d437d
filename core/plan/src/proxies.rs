//! The proxies of a target: their epochs, their acknowledged revisions, and which are unreachable.
//!
//! ```text
//!   first report ─► learning ─ reports what it holds ─► present ─ no lease for long ─► unreachable
//!                      ▲                                ▲  └────────── report ◄──────────┤
//!                      └── a newer epoch: the process is new, it holds nothing           ▼
//!                                                             forgotten: by time, or at once
//! ```
//!
//! A proxy is present if it has received the controller's messages lately, not if its reports
//! arrive. An assignment that answers a report counts from the earliest time at which that report
//! can have been sent. That is when the assignment was sent that the report acknowledges.
//!
//! ```text
//!   assignment 1 ──►│            report 2 ──►│            report 3 ──► lease: not before 1 was sent
//!                   └─ received: 1 ─┘  assignment 2 ─┴─ received: 2 ─┘
//! ```
//!
//! A proxy that is not present is given nothing new. It counts for the most that it may be using:
//! what it held or what it falls back to, whichever is more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::{Nanos, Scope, Share, SlotsClaim, Time};
use rules::EntitlementId;

use crate::in_use::InUseBound;
use crate::messages::{Assignment, Membership, ShareReport};
use crate::rows::UnacknowledgedRows;
use crate::scopes::ProxyScopes;
use crate::shares::ScopeIndex;

/// A proxy's state in memory, for administrators and for a later controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySnapshot {
    /// The name of the proxy.
    pub name: Arc<str>,
    /// The epoch of its process.
    pub epoch: u64,
    /// When its last report arrived.
    pub last_report: Time,
    /// Whether it is unreachable, so that it counts for what it may be using.
    pub unreachable: bool,
    /// The share that it may be falling back to.
    pub fallback: Share,
    /// The revision that it was sent last, and the one that it acknowledged.
    pub revisions: (u64, u64),
}

/// The controller's view of one proxy.
#[derive(Debug)]
pub(crate) struct ProxyProgress {
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) term: Membership,
    pub(crate) liveness: Liveness,
    /// Whether it has reported what it holds.
    has_reported: bool,
    origin: ProxyOrigin,
    /// When its last report arrived.
    pub(crate) last_report: Time,
    /// Assignments that it may be receiving: number, when it was sent, and when the report that it
    /// answers was sent at the earliest.
    sent: VecDeque<(u64, Time, Option<Time>)>,
    numbers: u64,
    /// When the last assignment was sent that it acknowledged as received.
    last_acked_sent: Option<Time>,
    /// When it sent, at the earliest, the report that its last received assignment answers.
    lease: Option<Time>,
    /// When it registered.
    registered: Time,
    /// The number of its last report.
    pub(crate) sequence: u64,
    /// The revision that the next assignment brings.
    pub(crate) revision: u64,
    /// Whether that revision was sent: a further change needs another one.
    sealed: bool,
    pub(crate) acknowledged: u64,
    /// Scopes whose last change is not acknowledged, with its revision.
    pub(crate) unacknowledged: BTreeMap<Scope, u64>,
    pub(crate) rows: UnacknowledgedRows,
    /// Its scopes: all, until it has reported them.
    pub(crate) scopes: Arc<ProxyScopes>,
    pub(crate) unlisted: InUseBound,
    pub(crate) fallback: InUseBound,
    /// Whether its lease is over for certain, so that no row is in force at it.
    lapsed: bool,
    /// What it claimed of the slots last, rounded.
    pub(crate) slots: SlotsClaim,
    /// What it may be using of the slots until it acknowledges that they are not divided any more.
    pub(crate) former_slots: InUseBound,
    /// Scopes that it uses, in the order of its last report.
    pub(crate) active: Vec<ScopeIndex>,
    /// Whether an assignment is to be sent.
    pub(crate) due: bool,
}

/// Whether a proxy's state is known and its lease is fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// It has not reported what it holds.
    Learning,
    Present,
    Unreachable,
}

/// A proxy's origin: what it may hold before it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyOrigin {
    /// Known to an earlier controller: it may hold anything.
    Restored,
    /// Unknown: it may have been forgotten, and be at its fallback.
    New,
    /// A new epoch of a known proxy: it holds nothing.
    Restarted,
    /// Its lease expired: it holds what it held, or its fallback.
    LeaseExpired,
}

/// All proxies, by a number of their own: the smallest that is free, so tables by it are short.
#[derive(Debug, Default)]
pub(crate) struct ProxyTable {
    by_id: BTreeMap<u32, ProxyProgress>,
    by_name: BTreeMap<Arc<str>, u32>,
    joined: u64,
}

/// The result of looking up a report's proxy.
pub(crate) enum ProxyEntry {
    /// The report is of a known proxy.
    Known(u32),
    /// The report is of a new proxy, or of a new epoch of one.
    New(u32),
    /// The report is older than what is known.
    Stale,
}

impl ProxyProgress {
    /// The revision under which a change is sent.
    pub(crate) fn change(&mut self) -> u64 {
        if self.sealed {
            self.revision += 1;
            self.sealed = false;
        }
        self.due = true;
        self.revision
    }

    /// Notes that a scope's grant changes.
    pub(crate) fn change_scope(&mut self, scope: &Scope) -> u64 {
        let revision = self.change();
        self.unacknowledged.insert(scope.clone(), revision);
        revision
    }

    /// Notes that rows of entitlements change; `None`: any may. Before the proxy has reported what it
    /// holds, nothing is to be noted: it gets all rows then.
    pub(crate) fn change_rows(&mut self, rows: Option<impl IntoIterator<Item = EntitlementId>>) {
        if !self.has_reported {
            return;
        }
        let Some(rows) = rows else {
            let revision = self.change();
            return self.rows.note_all(revision);
        };
        for id in rows {
            let revision = self.change();
            self.rows.note(id, revision);
        }
    }

    /// Seals the revision of an assignment: what changes from now on is of a later one.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
        self.due = false;
    }

    /// The assignment for a proxy that has not reported what it holds: to keep it.
    pub(crate) fn learning_assignment(&mut self, members: u32, now: Time) -> Assignment {
        self.due = false;
        Assignment {
            number: self.next_assignment_number(now),
            learning: true,
            to: self.name.clone(),
            epoch: self.epoch,
            in_reply_to: self.sequence,
            term: self.term,
            base: 0,
            revision: 0,
            proxies: members,
            unlisted: Share::ZERO,
            fallback: Share::ZERO,
            grants: Vec::new(),
            all_rows: false,
            rows: Vec::new(),
            remote_service: Vec::new(),
            parents: Vec::new(),
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.liveness == Liveness::Present
    }

    /// The least that it counts for: its fallback, unless it is present and can be lowered.
    pub(crate) fn floor(&self) -> Share {
        if self.is_present() { Share::ZERO } else { self.fallback.most() }
    }

    /// Whether no row is in force at it: its lease is over.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.lapsed
    }

    /// Whether it has no row in force when it reports what it holds, since its lease had expired.
    pub(crate) fn has_lost_rows(&self) -> bool {
        self.origin == ProxyOrigin::LeaseExpired
    }

    /// Handles the number of the assignment that it received last.
    pub(crate) fn acknowledge_assignment(&mut self, number: u64) {
        let Some((_, sent, bound)) = self.sent.iter().find(|(of, ..)| *of == number).copied()
        else {
            return;
        };
        self.sent.retain(|(of, ..)| *of > number);
        self.last_acked_sent = self.last_acked_sent.max(Some(sent));
        self.lease = self.lease.max(bound);
    }

    /// Whether it has received the controller's messages within `span`.
    pub(crate) fn has_received(&self, span: Nanos, now: Time) -> bool {
        self.lease.is_some_and(|lease| now.since(lease) < span)
    }

    /// Makes an unreachable proxy present again. Returns true if that is a change.
    pub(crate) fn mark_reachable(&mut self) -> bool {
        let again = self.liveness == Liveness::Unreachable && self.has_reported;
        if again {
            (self.liveness, self.lapsed) = (Liveness::Present, false);
        }
        again
    }

    /// What it may be using of the slots when they begin to be divided: nothing counts but a share
    /// that it has not yet acknowledged to be over.
    pub(crate) fn begin_slots(&self) -> InUseBound {
        match self.unacknowledged.contains_key(&Scope::slots()) {
            true => self.former_slots.clone(),
            false => InUseBound::new(Share::ZERO),
        }
    }

    /// Whether it is unreachable and its lease over: an assignment renews it from when it sent a report
    /// that came here.
    fn is_over(&self, lease: Nanos, now: Time) -> bool {
        self.liveness == Liveness::Unreachable && now.since(self.last_report) >= lease
    }

    /// Whether a report with what it holds is expected.
    pub(crate) fn must_report(&self) -> bool {
        !self.has_reported
    }

    /// The number of an assignment that is sent now.
    pub(crate) fn next_assignment_number(&mut self, now: Time) -> u64 {
        self.numbers += 1;
        self.sent.push_back((self.numbers, now, self.last_acked_sent));
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
        self.numbers
    }

    /// Restarts it with these shares in force at revision 0. The next one brings all rows, since it
    /// may have others.
    pub(crate) fn adopt(&mut self, unlisted: Share, fallback: Share) {
        (self.liveness, self.has_reported, self.lapsed) = (Liveness::Present, true, false);
        (self.revision, self.acknowledged, self.sealed) = (0, 0, true);
        self.unacknowledged.clear();
        (self.unlisted, self.fallback) = (InUseBound::new(unlisted), InUseBound::new(fallback));
        let revision = self.change();
        self.rows.note_all(revision);
    }

    fn new(name: &Arc<str>, epoch: u64, term: Membership, now: Time) -> ProxyProgress {
        ProxyProgress {
            name: name.clone(),
            epoch,
            term,
            liveness: Liveness::Learning,
            has_reported: false,
            origin: ProxyOrigin::New,
            last_report: now,
            sent: VecDeque::new(),
            numbers: 0,
            last_acked_sent: None,
            lease: None,
            registered: now,
            sequence: 0,
            revision: 0,
            sealed: true,
            acknowledged: 0,
            unacknowledged: BTreeMap::new(),
            rows: UnacknowledgedRows::default(),
            scopes: Arc::default(),
            unlisted: InUseBound::new(Share::ZERO),
            fallback: InUseBound::new(Share::ZERO),
            lapsed: false,
            slots: SlotsClaim::default(),
            former_slots: InUseBound::new(Share::ZERO),
            active: Vec::new(),
            due: false,
        }
    }
}

impl ProxyTable {
    /// Registers a proxy that was known before the controller began. It may hold anything until it
    /// reports, and its fallback if it does not.
    pub(crate) fn restore(&mut self, known: &ProxySnapshot, term: u64, now: Time) {
        let id = self.insert(&known.name, known.epoch, term, now);
        let member = self.get_mut(id);
        member.origin = ProxyOrigin::Restored;
        member.unlisted = InUseBound::new(known.fallback);
        member.fallback = InUseBound::new(known.fallback);
    }

    /// Finds the proxy of a report, and registers a new one.
    pub(crate) fn register(&mut self, report: &ShareReport, term: u64, now: Time) -> ProxyEntry {
        let Some(&id) = self.by_name.get(&report.from) else {
            let id = self.insert(&report.from, report.epoch, term, now);
            self.get_mut(id).sequence = report.sequence;
            return ProxyEntry::New(id);
        };
        let member = self.get_mut(id);
        if (report.epoch, report.sequence) <= (member.epoch, member.sequence) {
            return ProxyEntry::Stale;
        }
        if report.epoch > member.epoch {
            let term = self.next_term(term);
            let member = self.get_mut(id);
            *member = ProxyProgress::new(&report.from, report.epoch, term, now);
            member.origin = ProxyOrigin::Restarted;
            member.sequence = report.sequence;
            return ProxyEntry::New(id);
        }
        (member.sequence, member.last_report) = (report.sequence, now);
        ProxyEntry::Known(id)
    }

    fn insert(&mut self, name: &Arc<str>, epoch: u64, term: u64, now: Time) -> u32 {
        let id = (1..).find(|id| !self.by_id.contains_key(id)).expect("fewer proxies than numbers");
        let term = self.next_term(term);
        self.by_id.insert(id, ProxyProgress::new(name, epoch, term, now));
        self.by_name.insert(name.clone(), id);
        id
    }

    fn next_term(&mut self, controller: u64) -> Membership {
        self.joined += 1;
        Membership { controller, joined: self.joined }
    }

    /// Registers a proxy again whose lease expired. It counts for what it held or falls back to
    /// until it has reported what it holds.
    pub(crate) fn register_expired(&mut self, id: u32, controller: u64, now: Time) {
        let term = self.next_term(controller);
        let member = self.get_mut(id);
        (member.term, member.liveness, member.has_reported) = (term, Liveness::Learning, false);
        (member.origin, member.registered) = (ProxyOrigin::LeaseExpired, now);
        (member.lease, member.last_acked_sent) = (None, None);
        member.lapsed = true;
        member.sent.clear();
        member.unacknowledged.clear();
        member.rows = UnacknowledgedRows::default();
    }

    /// Forgets a proxy; returns its number, if it was known.
    pub(crate) fn forget(&mut self, name: &str) -> Option<u32> {
        let id = self.by_name.remove(name)?;
        self.by_id.remove(&id);
        Some(id)
    }

    /// Marks proxies as unreachable that have not received the controller's messages for `span`, or
    /// have not reported what they hold for so long that they are at their fallback. True if any is
    /// new, or its lease is over now.
    pub(crate) fn mark_unreachable(&mut self, span: Nanos, hold: Nanos, now: Time) -> bool {
        let mut found = false;
        for member in self.by_id.values_mut() {
            let silent = match member.liveness {
                Liveness::Learning => now.since(member.registered) >= hold + span,
                Liveness::Present => !member.has_received(span, now),
                Liveness::Unreachable => false,
            };
            if silent {
                member.liveness = Liveness::Unreachable;
                found = true;
            }
            if member.is_over(hold, now) && !member.lapsed {
                member.lapsed = true;
                found = true;
            }
        }
        found
    }

    /// When a proxy may become unreachable or is to be forgotten.
    pub(crate) fn next_liveness_check(
        &self,
        span: Nanos,
        hold: Nanos,
        forget: Nanos,
        now: Time,
    ) -> Option<Time> {
        let when = |member: &ProxyProgress| {
            let forgotten = member.last_report + forget;
            match member.liveness {
                Liveness::Learning => forgotten.min(member.registered + hold + span),
                Liveness::Present => forgotten.min(member.lease.unwrap_or(now) + span),
                Liveness::Unreachable if !member.lapsed => forgotten.min(member.last_report + hold),
                Liveness::Unreachable => forgotten,
            }
        };
        self.by_id.values().map(when).min()
    }

    /// The names of proxies without a report for `span`.
    pub(crate) fn without_report(&self, span: Nanos, now: Time) -> Vec<Arc<str>> {
        let gone = self.by_id.values().filter(|member| now.since(member.last_report) >= span);
        gone.map(|member| member.name.clone()).collect()
    }

    /// Whether no share may be raised, since a proxy has not reported yet what it holds.
    pub(crate) fn is_learning(&self) -> bool {
        let bars = |m: &ProxyProgress| {
            m.liveness == Liveness::Learning
                && matches!(m.origin, ProxyOrigin::New | ProxyOrigin::Restored)
        };
        self.by_id.values().any(bars)
    }

    /// Until when shares stay as they are. An earlier controller divided them, and proxies need
    /// this time to report how.
    pub(crate) fn division_barred_until(&self, span: Nanos, now: Time) -> Option<Time> {
        let bars = |m: &&ProxyProgress| {
            m.liveness == Liveness::Learning && m.origin == ProxyOrigin::Restored
        };
        let until = self.by_id.values().filter(bars).map(|m| m.registered + span).max();
        until.filter(|until| *until > now)
    }

    pub(crate) fn count(&self) -> u32 {
        self.by_id.len() as u32
    }

    pub(crate) fn get(&self, id: u32) -> &ProxyProgress {
        &self.by_id[&id]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut ProxyProgress {
        self.by_id.get_mut(&id).expect("a proxy's number comes from the table")
    }

    /// The proxies in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &ProxyProgress)> {
        self.by_id.iter().map(|(id, member)| (*id, member))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut ProxyProgress)> {
        self.by_id.iter_mut().map(|(id, member)| (*id, member))
    }

    pub(crate) fn reports(&self) -> impl Iterator<Item = ProxySnapshot> {
        self.by_id.values().map(|member| ProxySnapshot {
            name: member.name.clone(),
            epoch: member.epoch,
            last_report: member.last_report,
            unreachable: member.liveness == Liveness::Unreachable,
            fallback: member.fallback.most(),
            revisions: (member.revision, member.acknowledged),
        })
    }
}

/// How many assignments may be in transit; of an older one the sending time is unknown.
const SENT_MAX: usize = 64;
