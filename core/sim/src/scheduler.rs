//! The interface of a scheduler in the world, and the one of production.
//!
//! ```text
//!   world ─ enqueue ─► ┌ Dispatcher, the very struct of the proxy      (ours, ours-local)
//!         ─ poll ────► ├ Fifo: no scheduler at all                     (fifo)
//!         ─ complete ► ├ SfqD: by count of requests, or by slots       (sfqd, sfqd-slots)
//!         ─ deadline ► ├ LustreTbf                                     (tbf)
//!                      └ DmClock                                       (dmclock)
//! ```
//!
//! The dispatcher is not copied: its calls are passed on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use model::{
    Amount, Grants, Identity, Lane, Nanos, OpKind, PathSet, RuleActivity, Scope, ScopeUsage,
    Service, SharePool, SlotsClaim, TargetId, Time,
};
use plan::ScopeName;
use rules::{Entitlement, EntitlementId, RuleSet};
use sched::{AccountReport, Arrival, Dispatcher, RequestId, SubjectId, TargetParams, Usage};
use usage::AccountTotals;

use crate::baselines::{DmClock, Fifo, LustreTbf, SfqD};

/// The scheduler that a world runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The dispatcher of the proxy.
    Dispatcher,
    /// The dispatcher of each proxy by itself: no remote service, and no controller.
    LocalDispatcher,
    /// No scheduler: everything goes to the device at once.
    Fifo,
    /// Start-time fair queueing with D requests in flight.
    Sfqd,
    /// Start-time fair queueing with slots by size, and no backfill.
    SfqdSlots,
    /// Lustre's token bucket filter.
    Tbf,
    /// dmClock as Ceph has it.
    Dmclock,
}

impl Policy {
    /// Every scheduler, in order.
    pub const ALL: [Policy; 7] = [
        Policy::Dispatcher,
        Policy::LocalDispatcher,
        Policy::Fifo,
        Policy::Sfqd,
        Policy::SfqdSlots,
        Policy::Tbf,
        Policy::Dmclock,
    ];

    /// The name in scenarios and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Dispatcher => "ours",
            Policy::LocalDispatcher => "ours-local",
            Policy::Fifo => "fifo",
            Policy::Sfqd => "sfqd",
            Policy::SfqdSlots => "sfqd-slots",
            Policy::Tbf => "tbf",
            Policy::Dmclock => "dmclock",
        }
    }

    /// Whether the scheduler is that of the proxy, whose invariants are checked.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Policy::Dispatcher | Policy::LocalDispatcher)
    }

    pub(crate) fn scheduler(self, target: TargetParams, rules: Arc<RuleSet>) -> Box<dyn Scheduler> {
        match self {
            Policy::Dispatcher | Policy::LocalDispatcher => {
                Box::new(Dispatcher::new([target], rules))
            }
            Policy::Fifo => Box::new(Fifo::default()),
            Policy::Sfqd => Box::new(SfqD::by_count(target, rules)),
            Policy::SfqdSlots => Box::new(SfqD::by_slots(target, rules)),
            Policy::Tbf => Box::new(LustreTbf::new(target, rules)),
            Policy::Dmclock => Box::new(DmClock::new(target, rules)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of a word that is not a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a scheduler; use one of {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct ParsePolicyError {
    name: String,
}

impl FromStr for Policy {
    type Err = ParsePolicyError;
    fn from_str(name: &str) -> Result<Policy, ParsePolicyError> {
        let found = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| ParsePolicyError { name: name.into() })
    }
}

/// A request that is passed to a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimArrival {
    pub(crate) subject: u64,
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
    pub(crate) lane: Lane,
    pub(crate) token: u32,
}

/// A request that the scheduler has dispatched, with its lane and slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimDispatch {
    pub(crate) id: u64,
    pub(crate) token: u32,
    pub(crate) lane: Lane,
    pub(crate) slots: u32,
    /// Whether it was dispatched by a reservation.
    pub(crate) reserved: bool,
}

/// Service of a subject at other proxies since its last request at this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SimRemoteService {
    pub(crate) cost: Nanos,
    /// All requests, and those that were dispatched by a reservation: δ and ρ of dmClock.
    pub(crate) requests: u64,
    pub(crate) reserved: u64,
}

/// Requests of a subject that wait for their dispatch.
#[derive(Clone, Debug)]
pub(crate) struct SimBacklog {
    pub(crate) identity: Identity,
    pub(crate) requests: u32,
    /// Whether some wait behind one that waits for a limit or a meter.
    pub(crate) for_meter: bool,
}

/// The service of a scheduler's accounts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimAccounts {
    pub(crate) open: Vec<AccountTotals>,
    /// Those of subjects that were forgotten since the last call.
    pub(crate) closed: Vec<AccountTotals>,
    /// Further ones of these, as one sum.
    pub(crate) rest: Service,
}

/// Rows of entitlements by their numbers; `None` removes one.
pub(crate) type EntitlementChanges = Vec<(EntitlementId, Option<Entitlement>)>;

/// The scheduler of one proxy, which has one target. `now` never needs to be later than the last one.
pub(crate) trait Scheduler: fmt::Debug + Send {
    /// Takes an id for an identity, to be given back by `release`.
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64;
    fn release(&mut self, _subject: u64) {}
    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64;
    fn poll(&mut self, now: Time) -> Option<SimDispatch>;
    fn complete(&mut self, id: u64, served: Amount, now: Time);
    /// Moves a request of the cached lane to the device; true if it waits for that now, false if it
    /// simply goes on.
    fn miss(&mut self, _id: u64, _now: Time) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Time>;
    fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time);
    /// Whether some requests still wait as rules before the last change had it.
    fn is_spreading(&self) -> bool {
        false
    }
    /// The jobs and users of its subjects.
    fn scopes(&self) -> Vec<ScopeName> {
        Vec::new()
    }
    /// While it is the same, so are the scopes.
    fn scope_changes(&self) -> u64 {
        0
    }
    /// Puts, replaces or (`None`) removes rows of entitlements, whose spans count from `since`.
    fn set_entitlements(&mut self, _rows: EntitlementChanges, _since: Time, _now: Time) {}
    fn charge_remote_service(
        &mut self,
        _subject: u64,
        _kind: OpKind,
        _what: SimRemoteService,
        _now: Time,
    ) {
    }
    /// Applies a controller's grants of a pool.
    fn set_grants(&mut self, _pool: SharePool, _grants: &Grants, _now: Time) {}
    /// The activity here of each rule on which others depend.
    fn parent_activity(&mut self, _now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        Vec::new()
    }
    /// Replaces the activity of those rules at all other proxies.
    fn set_remote_activity(&mut self, _remote: &[(Arc<str>, RuleActivity)], _now: Time) {}
    /// The usage of each scope of a pool since the last call.
    fn take_usage(&mut self, _pool: SharePool, _now: Time) -> Vec<(Scope, ScopeUsage)> {
        Vec::new()
    }
    /// What is needed of the target's slots, as of the last usage of the target.
    fn slots_claim(&self) -> Option<SlotsClaim> {
        None
    }
    /// Whether a controller divides the target's slots.
    fn are_slots_divided(&self) -> bool {
        false
    }
    /// The service of each account, for a controller, and that of accounts that were closed.
    fn accounts(&mut self, _now: Time) -> SimAccounts {
        SimAccounts::default()
    }
    /// Whether requests of several classes wait for one another.
    fn is_contended(&self) -> bool {
        false
    }
    fn queued(&self) -> usize;
    fn reservation_shortfall_ppm(&self, _now: Time) -> u64 {
        0
    }
    /// The subjects of waiting requests, where the reason of waiting is known.
    fn waiting(&self) -> Vec<SimBacklog> {
        Vec::new()
    }
    /// Sums by rule, where the scheduler has them.
    fn usage(&self) -> Vec<(String, Usage)> {
        Vec::new()
    }
    /// Panics if it contradicts itself.
    fn check(&self) {}
}

impl Scheduler for Dispatcher {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        Dispatcher::subject(self, TargetId::FIRST, who, paths).to_bits()
    }

    fn release(&mut self, subject: u64) {
        self.release_subject(SubjectId::from_bits(subject));
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        let SimArrival { subject, kind, amount, lane, token } = incoming;
        let subject = SubjectId::from_bits(subject);
        let arrival = Arrival { subject, kind, amount, lane, token: token.into() };
        Dispatcher::enqueue(self, arrival, now).to_bits()
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        self.poll_dispatch(now).map(|next| SimDispatch {
            id: next.id.to_bits(),
            token: next.token as u32,
            lane: next.lane,
            slots: next.slots,
            reserved: false,
        })
    }

    fn complete(&mut self, id: u64, served: Amount, now: Time) {
        Dispatcher::complete(self, RequestId::from_bits(id), served, now);
    }

    fn miss(&mut self, id: u64, now: Time) -> bool {
        Dispatcher::miss(self, RequestId::from_bits(id), now);
        true
    }

    fn next_deadline(&self) -> Option<Time> {
        Dispatcher::next_deadline(self)
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        Dispatcher::set_rules(self, rules, now);
    }

    fn is_spreading(&self) -> bool {
        Dispatcher::is_spreading(self)
    }

    fn scopes(&self) -> Vec<ScopeName> {
        let jobs = self.jobs().cloned().map(ScopeName::Job);
        jobs.chain(self.users().map(ScopeName::User)).collect()
    }

    fn scope_changes(&self) -> u64 {
        self.identity_changes()
    }

    fn charge_remote_service(
        &mut self,
        subject: u64,
        kind: OpKind,
        what: SimRemoteService,
        now: Time,
    ) {
        Dispatcher::charge_remote_service(
            self,
            SubjectId::from_bits(subject),
            kind,
            what.cost,
            now,
        );
    }

    fn set_entitlements(&mut self, rows: EntitlementChanges, since: Time, now: Time) {
        Dispatcher::set_entitlements(self, rows, since, now);
    }

    fn set_grants(&mut self, pool: SharePool, grants: &Grants, now: Time) {
        Dispatcher::set_grants(self, pool, grants, now);
    }

    fn parent_activity(&mut self, now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        Dispatcher::parent_activity(self, now)
    }

    fn set_remote_activity(&mut self, remote: &[(Arc<str>, RuleActivity)], now: Time) {
        Dispatcher::set_remote_activity(self, remote, now);
    }

    fn take_usage(&mut self, pool: SharePool, now: Time) -> Vec<(Scope, ScopeUsage)> {
        match pool {
            SharePool::Limits => self.take_limit_usage(now),
            SharePool::Target(target) => self.take_class_usage(target, now),
        }
    }

    fn slots_claim(&self) -> Option<SlotsClaim> {
        Dispatcher::slots_claim(self, TargetId::FIRST)
    }

    fn are_slots_divided(&self) -> bool {
        Dispatcher::are_slots_divided(self, TargetId::FIRST)
    }

    fn accounts(&mut self, now: Time) -> SimAccounts {
        self.count_activity(now);
        let closed = self.take_closed_accounts();
        let totals = |AccountReport { id, subject, service, .. }| AccountTotals {
            id: id.to_bits(),
            subject,
            service,
        };
        SimAccounts {
            open: Dispatcher::accounts(self).map(totals).collect(),
            closed: closed.accounts.into_iter().map(totals).collect(),
            rest: closed.rest,
        }
    }

    fn is_contended(&self) -> bool {
        Dispatcher::is_contended(self)
    }

    fn queued(&self) -> usize {
        Dispatcher::queued(self)
    }

    fn reservation_shortfall_ppm(&self, now: Time) -> u64 {
        Dispatcher::reservation_shortfall_ppm(self, TargetId::FIRST, now)
    }

    fn waiting(&self) -> Vec<SimBacklog> {
        self.subjects()
            .filter(|subject| subject.queued > 0)
            .map(|subject| SimBacklog {
                identity: subject.identity,
                requests: subject.queued,
                for_meter: subject.throttled,
            })
            .collect()
    }

    fn usage(&self) -> Vec<(String, Usage)> {
        self.classes().map(|class| (class.rule, class.usage)).collect()
    }

    fn check(&self) {
        self.check_invariants();
    }
}
