//! Accounts: what each subject was served in each of its classes.
//!
//! ```text
//!   completion, access, active time ─► account (subject, class) ─┬─► sums of the subject
//!                                                                └─► AccountReport ─► controller
//!   subject forgotten ─► its accounts wait to be taken once
//! ```
//!
//! A subject has few classes: one, or one for each kind of request. Beyond [`ACCOUNTS_MAX`] the rest
//! goes to one account, `(other)`. A class that is made again has its account again.

use std::sync::Arc;

use model::{AccountSubject, Bytes, Direction, OpKind, Ops, Service, TargetId};

use super::activity::Activity;
use super::pattern::{self, SubjectPattern};
use super::usage::{CompletedRequest, Usage};
use super::{IS_COUNTED, Observation};
use crate::ids::{ClassId, SubjectId};
use crate::keys::ClassKey;

/// The service of one subject in one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountReport {
    /// The id of the subject, which is never used twice.
    pub id: SubjectId,
    /// The target of its requests.
    pub target: TargetId,
    /// The subject and its class.
    pub subject: AccountSubject,
    /// Its service since the dispatcher first saw it.
    pub service: Service,
}

/// The service of accounts whose subjects are forgotten, since it was taken last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedAccounts {
    /// The accounts, as they were at last.
    pub accounts: Vec<AccountReport>,
    /// Further ones, which are not kept apart.
    pub rest: Service,
}

/// What is counted of a subject in one class. What a read changes is in the first two cache lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Account {
    usage: Usage,
    /// `None` before the first completion.
    class: Option<ClassId>,
    /// Its part of the time of its job.
    pub(super) activity: Activity,
    /// In the order of [`OpKind::ALL`]: reads and writes first.
    ops: [Ops; OpKind::COUNT],
    /// `None` of [`OTHER`], and before the first completion.
    key: Option<Arc<ClassKey>>,
    /// None before its first read or write.
    pattern: SubjectPattern,
}

/// All accounts of a subject.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// The one that was used last.
    pub(super) current: Account,
    others: Vec<Account>,
}

/// The accounts of a subject, the one of the rest among them.
const ACCOUNTS_MAX: usize = 32;
/// Closed accounts that are kept apart until they are taken.
const CLOSED_MAX: usize = 4_096;
/// The name of all further classes.
const OTHER: &str = "(other)";

impl Accounts {
    /// The account of a class; `key` is called if there is none of this class yet.
    #[inline]
    pub(super) fn of_class(
        &mut self,
        class: ClassId,
        key: impl FnOnce() -> Arc<ClassKey>,
    ) -> &mut Account {
        if self.current.class != Some(class) {
            self.switch_to(class, key);
        }
        &mut self.current
    }

    #[inline(never)]
    fn switch_to(&mut self, class: ClassId, key: impl FnOnce() -> Arc<ClassKey>) {
        if self.make_current(|account| account.class == Some(class)) {
            return;
        }
        let key = key();
        // Of a class that was forgotten and made again.
        let is_same = |account: &Account| account.key.as_deref() == Some(&*key);
        if self.make_current(is_same) {
            self.current.class = Some(class);
            return;
        }
        let is_full = self.others.len() + 2 >= ACCOUNTS_MAX;
        let is_other = |account: &Account| account.class.is_some() && account.key.is_none();
        if !(is_full && self.make_current(is_other)) && self.current.class.is_some() {
            self.others.push(std::mem::take(&mut self.current));
        }
        self.current.class = Some(class);
        self.current.key = (!is_full).then_some(key);
    }

    /// Makes the first such account the current one; false if there is none.
    fn make_current(&mut self, is_it: impl Fn(&Account) -> bool) -> bool {
        let other = self.others.iter_mut().find(|account| is_it(account));
        if let Some(other) = other.filter(|_| !is_it(&self.current)) {
            std::mem::swap(&mut self.current, other);
        }
        is_it(&self.current)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Account> {
        std::iter::once(&self.current).chain(&self.others)
    }

    /// The sums of all.
    pub(super) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        self.iter().for_each(|account| sum += account.usage);
        sum
    }

    /// The service of all.
    pub(super) fn service(&self) -> Service {
        let mut sum = Service::default();
        self.iter().for_each(|account| sum.add(&account.service()));
        sum
    }

    /// The operations that neither read nor wrote a file.
    pub(super) fn metadata(&self) -> Ops {
        self.iter().fold(Ops::default(), |sum, account| sum + account.metadata())
    }

    /// Adds service that another proxy gave.
    pub(super) fn add_remote(&mut self, cost: model::Nanos) {
        self.current.usage.remote += cost;
    }
}

impl Account {
    /// Counts a completed request.
    #[inline]
    pub(super) fn count(&mut self, kind: OpKind, usage: Usage) {
        self.usage += usage;
        self.ops[kind as usize] += usage.ops;
    }

    /// Counts what a read or write moved.
    pub(super) fn count_access(&mut self, kind: OpKind, moved: Bytes, random: bool, joined: u8) {
        pattern::count(&mut self.pattern, kind, moved, random, joined);
    }

    fn service(&self) -> Service {
        let (reads, writes) = pattern::of(&self.pattern);
        Service {
            read_bytes: self.usage.read.get(),
            written_bytes: self.usage.written.get(),
            cost_ns: self.usage.cost.get(),
            delayed: self.usage.delayed,
            delayed_ns: self.usage.delayed_time.get(),
            delayed_bytes: self.usage.delayed_bytes.get(),
            active_ns: self.activity.active.get(),
            delayed_span_ns: self.activity.delayed.get(),
            ops: self.ops.map(Ops::get),
            reads,
            writes,
        }
    }

    fn metadata(&self) -> Ops {
        let kinds = OpKind::ALL.iter().zip(&self.ops);
        let of_metadata = kinds.filter(|(kind, _)| kind.direction() == Direction::Metadata);
        of_metadata.fold(Ops::default(), |sum, (_, ops)| sum + *ops)
    }
}

impl Observation {
    /// Counts a completed request in its class and in the account of its subject. `key` is called
    /// if the subject has no account of the class yet.
    #[inline]
    pub(crate) fn count_completed(
        &mut self,
        at: AccountPlace,
        key: impl FnOnce() -> Arc<ClassKey>,
        done: CompletedRequest,
    ) {
        if !IS_COUNTED {
            return;
        }
        let usage = Usage::of(done);
        self.classes[at.class].usage += usage;
        let accounts = &mut self.subjects[at.subject].accounts;
        accounts.of_class(at.id, key).count(done.kind, usage);
    }

    /// Counts what a read or write moved, and in which order.
    pub(crate) fn count_access(
        &mut self,
        at: AccountPlace,
        key: impl FnOnce() -> Arc<ClassKey>,
        access: AccessedBytes,
    ) {
        if !IS_COUNTED {
            return;
        }
        let AccessedBytes { kind, moved, random, joined } = access;
        if kind.direction() != Direction::Metadata && moved > Bytes::ZERO {
            let accounts = &mut self.subjects[at.subject].accounts;
            accounts.of_class(at.id, key).count_access(kind, moved, random, joined);
        }
    }

    /// The accounts of a subject that were served.
    pub(crate) fn accounts_of(
        &self,
        subject: crate::index::SubjectIndex,
    ) -> impl Iterator<Item = (Arc<str>, Service)> {
        let served = self.subjects[subject].accounts.iter();
        served.filter(|account| account.class.is_some()).map(|account| {
            let name = account.key.as_ref().map_or_else(|| OTHER.into(), |key| key.name());
            (name, account.service())
        })
    }

    /// Keeps the accounts of a subject that is forgotten, if somebody takes them.
    pub(super) fn close_accounts(&mut self, accounts: &Accounts, of: &ClosedSubject) {
        let Some(closed) = &mut self.closed else { return };
        for account in accounts.iter().filter(|account| account.class.is_some()) {
            if closed.accounts.len() >= CLOSED_MAX {
                closed.rest.add(&account.service());
                continue;
            }
            let class = account.key.as_ref().map_or_else(|| OTHER.into(), |key| key.name());
            closed.accounts.push(AccountReport {
                id: of.id,
                target: of.target,
                subject: AccountSubject { class, ..of.subject.clone() },
                service: account.service(),
            });
        }
    }

    /// Takes the accounts of forgotten subjects since the last call; before the first call nothing
    /// is kept.
    pub(crate) fn take_closed(&mut self) -> ClosedAccounts {
        self.closed.replace(ClosedAccounts::default()).unwrap_or_default()
    }
}

/// The account of a request: its subject, and its class with the id of that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountPlace {
    pub(crate) subject: crate::index::SubjectIndex,
    pub(crate) class: crate::index::ClassIndex,
    pub(crate) id: ClassId,
}

/// What a read or write moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessedBytes {
    pub(crate) kind: OpKind,
    pub(crate) moved: Bytes,
    /// Whether it began where no recent one had ended.
    pub(crate) random: bool,
    /// How many that were counted as random have turned out to follow it.
    pub(crate) joined: u8,
}

/// A subject that is forgotten, without a class.
#[derive(Debug)]
pub(crate) struct ClosedSubject {
    pub(crate) id: SubjectId,
    pub(crate) target: TargetId,
    pub(crate) subject: AccountSubject,
}
