//! The members: who they are, how far each is, and who is silent.
//!
//! ```text
//!   first report ─► unknown ─ tells what it holds ─► present ─ no lease for long ──► silent
//!                      ▲                                ▲  └──────── report ◄──────────┤
//!                      └── a newer epoch: the process is another, it holds nothing     ▼
//!                                                             forgotten: by time, or at once
//! ```
//!
//! Present is who has heard the controller lately, not who is heard: an order that answers a report
//! counts from when that report cannot have been sent earlier, which is when the order was sent that
//! the report had heard of.
//!
//! ```text
//!   order 1 ──►│            report 2 ──►│            report 3 ──► lease: not before order 1 was sent
//!              └─ heard: 1 ─┘  order 2 ─┴─ heard: 2 ─┘
//! ```
//!
//! A member that is not present is given nothing new. It counts for the most that it may be using,
//! which is what it held or what it falls back to, whichever is more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::{Nanos, Scope, Share, Time};

use crate::in_use::InUseBound;
use crate::messages::{Assignment, Membership, ShareReport};
use crate::shares::ScopeIndex;

/// What an administrator sees of a member, and what a later controller is to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySnapshot {
    /// Its name.
    pub name: Arc<str>,
    /// Which of its lives.
    pub epoch: u64,
    /// When it was heard last.
    pub heard: Time,
    /// Whether it is silent for so long that it counts for what it may be using.
    pub silent: bool,
    /// What it may be falling back to.
    pub fallback: Share,
    /// The revision that it was sent last, and that which it acknowledged.
    pub revisions: (u64, u64),
}

/// A member.
#[derive(Debug)]
pub(crate) struct ProxyProgress {
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    pub(crate) term: Membership,
    pub(crate) contact: Liveness,
    /// Whether it said what it holds.
    told: bool,
    origin: ProxyOrigin,
    /// When it was heard last.
    pub(crate) heard: Time,
    /// Orders that it may be hearing: number, when it was sent, and when the report that it answers
    /// was sent at the earliest.
    sent: VecDeque<(u64, Time, Option<Time>)>,
    numbers: u64,
    /// When the last order was sent of which it said that it heard it.
    echoed: Option<Time>,
    /// When it sent, at the earliest, the report that was answered by what it heard last.
    lease: Option<Time>,
    /// When it registered.
    entered: Time,
    /// The number of its last report.
    pub(crate) sequence: u64,
    /// The revision that the next order brings.
    pub(crate) revision: u64,
    /// Whether that revision was sent: a further change needs another one.
    sealed: bool,
    pub(crate) acknowledged: u64,
    /// Scopes whose last change is not acknowledged, with its revision.
    pub(crate) unacknowledged: BTreeMap<Scope, u64>,
    pub(crate) unlisted: InUseBound,
    pub(crate) fallback: InUseBound,
    /// Scopes that it uses, in the order in which it named them last.
    pub(crate) active: Vec<ScopeIndex>,
    /// Whether an order is to be sent.
    pub(crate) due: bool,
}

/// What is known of a member's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// It has not said what it holds.
    Learning,
    Present,
    Unreachable,
}

/// Where a member comes from: what it may hold before it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyOrigin {
    /// An earlier controller knew it: anything.
    Restored,
    /// Nobody knew it: it may have been forgotten, and be at what it fell back to.
    New,
    /// A new life of one that was known: nothing.
    Restarted,
    /// It heard nothing for long: what it held, or its fallback.
    Lapsed,
}

/// All of them, by a number of their own: the smallest that is free, so tables by it are short.
#[derive(Debug, Default)]
pub(crate) struct ProxyTable {
    by_id: BTreeMap<u32, ProxyProgress>,
    by_name: BTreeMap<Arc<str>, u32>,
    joined: u64,
}

/// What a report turned out to be.
pub(crate) enum ProxyEntry {
    /// Of a member that is known.
    Known(u32),
    /// Of a new member, or of a new life of one.
    New(u32),
    /// Older than what is known.
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

    /// A scope's grant changes.
    pub(crate) fn change_scope(&mut self, scope: &Scope) -> u64 {
        let revision = self.change();
        self.unacknowledged.insert(scope.clone(), revision);
        revision
    }

    /// An order of the revision is made: what changes now is of a later one.
    pub(crate) fn seal(&mut self) {
        self.sealed = true;
        self.due = false;
    }

    /// The order for one that has not told what it holds: to keep it.
    pub(crate) fn stay(&mut self, members: u32, now: Time) -> Assignment {
        self.due = false;
        Assignment {
            number: self.number_order(now),
            stay: true,
            to: self.name.clone(),
            epoch: self.epoch,
            answers: self.sequence,
            term: self.term,
            base: 0,
            revision: 0,
            members,
            unlisted: Share::ZERO,
            fallback: Share::ZERO,
            grants: Vec::new(),
            elsewhere: Vec::new(),
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.contact == Liveness::Present
    }

    /// What it counts for at least: what it falls back to, unless it is there to be told.
    pub(crate) fn floor(&self) -> Share {
        if self.is_present() { Share::ZERO } else { self.fallback.most() }
    }

    /// It says which order it heard last.
    pub(crate) fn echo(&mut self, number: u64) {
        let Some((_, sent, bound)) = self.sent.iter().find(|(of, ..)| *of == number).copied()
        else {
            return;
        };
        self.sent.retain(|(of, ..)| *of > number);
        self.echoed = self.echoed.max(Some(sent));
        self.lease = self.lease.max(bound);
    }

    /// Whether it has heard the controller within `span`.
    pub(crate) fn has_heard(&self, span: Nanos, now: Time) -> bool {
        self.lease.is_some_and(|lease| now.since(lease) < span)
    }

    /// It has heard the controller again. True if that makes a difference.
    pub(crate) fn come_back(&mut self) -> bool {
        let again = self.contact == Liveness::Unreachable && self.told;
        if again {
            self.contact = Liveness::Present;
        }
        again
    }

    /// Whether a report with what it holds is waited for.
    pub(crate) fn is_to_tell(&self) -> bool {
        !self.told
    }

    /// The number of an order that is sent now.
    pub(crate) fn number_order(&mut self, now: Time) -> u64 {
        self.numbers += 1;
        self.sent.push_back((self.numbers, now, self.echoed));
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
        self.numbers
    }

    /// It begins anew at revision 0 with this in force.
    pub(crate) fn adopt(&mut self, unlisted: Share, fallback: Share) {
        (self.contact, self.told) = (Liveness::Present, true);
        (self.revision, self.acknowledged, self.sealed) = (0, 0, true);
        self.unacknowledged.clear();
        (self.unlisted, self.fallback) = (InUseBound::new(unlisted), InUseBound::new(fallback));
    }

    fn new(report: (&Arc<str>, u64), term: Membership, now: Time) -> ProxyProgress {
        ProxyProgress {
            name: report.0.clone(),
            epoch: report.1,
            term,
            contact: Liveness::Learning,
            told: false,
            origin: ProxyOrigin::New,
            heard: now,
            sent: VecDeque::new(),
            numbers: 0,
            echoed: None,
            lease: None,
            entered: now,
            sequence: 0,
            revision: 0,
            sealed: true,
            acknowledged: 0,
            unacknowledged: BTreeMap::new(),
            unlisted: InUseBound::new(Share::ZERO),
            fallback: InUseBound::new(Share::ZERO),
            active: Vec::new(),
            due: false,
        }
    }
}

impl ProxyTable {
    /// Registers a member that is known from before the controller began: it may hold anything
    /// until it tells, and what it falls back to when it does not.
    pub(crate) fn restore(&mut self, known: &ProxySnapshot, term: u64, now: Time) {
        let id = self.insert(&known.name, known.epoch, term, now);
        let member = self.get_mut(id);
        member.origin = ProxyOrigin::Restored;
        member.unlisted = InUseBound::new(known.fallback);
        member.fallback = InUseBound::new(known.fallback);
    }

    /// Whose report it is.
    pub(crate) fn enter(&mut self, report: &ShareReport, term: u64, now: Time) -> ProxyEntry {
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
            *member = ProxyProgress::new((&report.from, report.epoch), term, now);
            member.origin = ProxyOrigin::Restarted;
            member.sequence = report.sequence;
            return ProxyEntry::New(id);
        }
        (member.sequence, member.heard) = (report.sequence, now);
        ProxyEntry::Known(id)
    }

    fn insert(&mut self, name: &Arc<str>, epoch: u64, term: u64, now: Time) -> u32 {
        let id = (1..).find(|id| !self.by_id.contains_key(id)).expect("fewer members than numbers");
        let term = self.next_term(term);
        self.by_id.insert(id, ProxyProgress::new((name, epoch), term, now));
        self.by_name.insert(name.clone(), id);
        id
    }

    fn next_term(&mut self, controller: u64) -> Membership {
        self.joined += 1;
        Membership { controller, joined: self.joined }
    }

    /// A member's orders are not in force any more: it is registered anew, and counts for what it
    /// held or falls back to until it has told what it holds.
    pub(crate) fn lapse(&mut self, id: u32, controller: u64, now: Time) {
        let term = self.next_term(controller);
        let member = self.get_mut(id);
        (member.term, member.contact, member.told) = (term, Liveness::Learning, false);
        (member.origin, member.entered) = (ProxyOrigin::Lapsed, now);
        (member.lease, member.echoed) = (None, None);
        member.sent.clear();
        member.unacknowledged.clear();
    }

    /// Forgets a member; its number, if it was there.
    pub(crate) fn forget(&mut self, name: &str) -> Option<u32> {
        let id = self.by_name.remove(name)?;
        self.by_id.remove(&id);
        Some(id)
    }

    /// Marks those as silent that have not heard the controller for `span`, and those that have not
    /// told what they hold for so long that they are at their fallback. True if there are new ones.
    pub(crate) fn mark_silent(&mut self, span: Nanos, hold: Nanos, now: Time) -> bool {
        let mut found = false;
        for member in self.by_id.values_mut() {
            let silent = match member.contact {
                Liveness::Learning => now.since(member.entered) >= hold + span,
                Liveness::Present => !member.has_heard(span, now),
                Liveness::Unreachable => false,
            };
            if silent {
                member.contact = Liveness::Unreachable;
                found = true;
            }
        }
        found
    }

    /// When somebody may become silent or is to be forgotten.
    pub(crate) fn next_look(
        &self,
        (span, hold, forget): (Nanos, Nanos, Nanos),
        now: Time,
    ) -> Option<Time> {
        let when = |member: &ProxyProgress| {
            let forgotten = member.heard + forget;
            match member.contact {
                Liveness::Learning => forgotten.min(member.entered + hold + span),
                Liveness::Present => forgotten.min(member.lease.unwrap_or(now) + span),
                Liveness::Unreachable => forgotten,
            }
        };
        self.by_id.values().map(when).min()
    }

    /// The names of those that were not heard for `span`.
    pub(crate) fn unheard(&self, span: Nanos, now: Time) -> Vec<Arc<str>> {
        let gone = self.by_id.values().filter(|member| now.since(member.heard) >= span);
        gone.map(|member| member.name.clone()).collect()
    }

    /// Whether nobody may be given more, since somebody has not said yet what he holds.
    pub(crate) fn bars_raising(&self) -> bool {
        let bars = |m: &ProxyProgress| {
            m.contact == Liveness::Learning
                && matches!(m.origin, ProxyOrigin::New | ProxyOrigin::Restored)
        };
        self.by_id.values().any(bars)
    }

    /// Until when parts stay as they are, since they were divided by an earlier controller and it is
    /// not known yet how: so long as whoever is there needs to tell it.
    pub(crate) fn bars_division(&self, span: Nanos, now: Time) -> Option<Time> {
        let bars = |m: &&ProxyProgress| {
            m.contact == Liveness::Learning && m.origin == ProxyOrigin::Restored
        };
        let until = self.by_id.values().filter(bars).map(|m| m.entered + span).max();
        until.filter(|until| *until > now)
    }

    pub(crate) fn count(&self) -> u32 {
        self.by_id.len() as u32
    }

    pub(crate) fn get(&self, id: u32) -> &ProxyProgress {
        &self.by_id[&id]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut ProxyProgress {
        self.by_id.get_mut(&id).expect("a member's number comes from the table")
    }

    /// In the order of their numbers.
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
            heard: member.heard,
            silent: member.contact == Liveness::Unreachable,
            fallback: member.fallback.most(),
            revisions: (member.revision, member.acknowledged),
        })
    }
}

/// How many orders may be on their way; of an older one it is not known when it was sent.
const SENT_MAX: usize = 64;
