//! The gate: the dispatcher of all targets, and the operations that it orders.
//!
//! The dispatcher decides by numbers. The gate keeps the operations of those numbers and reads the
//! clock while it holds the lock, so that time never runs backwards for the dispatcher.

mod donor;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Instant;

use model::{
    Amount, Bytes, Direction, FilePlace, Grants, Identity, Lane, Nanos, OpKind, Share, SharePool,
    TargetId, Time,
};
use rules::{Entitlement, EntitlementId, RuleSet, WriteMode};
use sched::{Arrival, ClassId, Dispatcher, RequestId, SubjectId};
use session::server::IdempotencyKey;
use slab::Slab;
use trace::Access;

use crate::buffers::FrameBuffer;
use crate::connection::ReplyTo;
use crate::fids::{OpenFid, ProxyUser};
use crate::leases::BegunAccesses;
use crate::location::{NumberedRules, WantedFields};
use crate::target::Target;
use crate::times::{CallTimes, ServiceTimes};
use crate::trace::AccessOrder;

pub(crate) use donor::Donor;

/// Size from which a read goes through a pipe, which costs less than the copy. Such a read that was
/// chosen for the device is not tried without waiting first.
pub(crate) const SPLICE_MIN: Bytes = Bytes::kib(32);

/// Size from which the payload decides how long a call takes.
const LARGE: Bytes = Bytes::kib(64);

/// Number of reads that do not wait and are executed together: with one read of the clock and one
/// lock, and the dispatcher's memory is still cached. No request arrives between them that could
/// have gone first: they are done before the leader checks the sockets again.
const AT_ONCE: usize = 16;

/// How many subjects are given back under one lock. Each may drop what is known of an idle one.
const RELEASED_AT_ONCE: usize = 64;

/// Time in which no client fails over to another proxy. The leader checks the sockets more often.
const PROMPT: Nanos = Nanos::from_secs(1);

/// Time since the proxy's start.
#[derive(Clone, Copy)]
pub(crate) struct ProxyClock(Instant);

/// The dispatcher of all targets, its clock, and the rules in force.
pub(crate) struct Gate {
    clock: ProxyClock,
    queue: Mutex<GateQueue>,
    rules: RwLock<NumberedRules>,
    /// Number of the rules, and what is wanted of files (paths, projects, marks): read for each
    /// request.
    number: AtomicU64,
    wanted: [AtomicBool; 3],
}

/// A request in flight.
pub(crate) struct PendingRequest {
    pub(crate) to: ReplyTo,
    pub(crate) file: RequestFile,
    pub(crate) frame: FrameBuffer,
    /// Its reply slot and sequence, if it must be executed only once.
    pub(crate) once: Option<IdempotencyKey>,
    /// Another request that waits for it.
    pub(crate) donor: Option<Box<Donor>>,
    /// Time before it was read, when the leader began to check the sockets.
    pub(crate) read_after: Time,
    /// What it does to files, if that has begun and waited for leases.
    pub(crate) begun: Option<Box<BegunAccesses>>,
}

/// The file of a request, in the form of its message.
pub(crate) enum RequestFile {
    /// By a fid: the identity that created the fid.
    Fid(Arc<OpenFid>),
    /// By a handle, which is resolved when the request is executed.
    Handle(Arc<ProxyUser>),
}

impl PendingRequest {
    /// Returns the user of the request.
    pub(crate) fn user(&self) -> &Arc<ProxyUser> {
        match &self.file {
            RequestFile::Fid(fid) => &fid.user,
            RequestFile::Handle(user) => user,
        }
    }

    /// Returns the target of the request.
    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.user().export.target
    }

    /// Notes that it is not executed: its slot may have another call.
    pub(crate) fn abandon(&self) {
        if let (Some(once), Some(binding)) = (self.once, self.to.path.form.binding()) {
            binding.abandon(once);
        }
    }

    /// Whether its client has gone since it was read. Only the socket of a request that has waited
    /// for longer than [`PROMPT`] is checked.
    pub(crate) fn is_abandoned(&self, now: Time) -> bool {
        now.since(self.read_after) > PROMPT && self.to.path.connection.is_peer_closed()
    }
}

/// Facts of an operation for the dispatcher, and for a trace.
#[derive(Clone, Copy)]
pub(crate) struct RequestMeta {
    pub(crate) subject: SubjectId,
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
    pub(crate) lane: Lane,
    /// Operations of its kind that its subject had at other proxies since the last request; `None`
    /// if its client cannot say.
    pub(crate) remote_ops: Option<u32>,
    /// Time of its arrival at the dispatcher.
    pub(crate) arrived: Time,
    /// Its place among the accesses through its fid, if it has an offset.
    pub(crate) access: Option<AccessOrder>,
}

/// An operation that the dispatcher has chosen.
pub(crate) struct RunningRequest {
    pub(crate) operation: PendingRequest,
    pub(crate) meta: RequestMeta,
    token: usize,
    /// Its id at the dispatcher; `None` without scheduling.
    pub(crate) id: Option<RequestId>,
    pub(crate) class: Option<ClassId>,
    pub(crate) write_mode: Option<WriteMode>,
    pub(crate) queued: Nanos,
    pub(crate) started: Time,
    /// Start of the present call: a read that had to wait is made twice.
    pub(crate) called: Time,
    /// Whether it does not wait for the device: such a read takes only cached bytes. If there are
    /// none, the kernel has begun to fetch them.
    pub(crate) quick: bool,
}

/// State of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueState {
    /// Whether a request could be executed right now.
    pub(crate) work: bool,
    /// Time at which a meter lets the next request go.
    pub(crate) deadline: Option<Time>,
}

/// Result of a running operation.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    target: TargetId,
    token: usize,
    id: Option<RequestId>,
    /// `None` for calls that do not wait.
    call: Option<usize>,
    served: Amount,
    kind: OpKind,
    lane: Lane,
    queued: Nanos,
    started: Time,
    called: Time,
    /// Whether its client reports it to no other server.
    unreported: bool,
    /// Its place among the accesses through its fid, if it has one.
    access: Option<AccessOrder>,
}

/// The dispatcher's choice, or the first that arrived.
struct ChosenRequest {
    token: usize,
    id: Option<RequestId>,
    class: Option<ClassId>,
    write_mode: Option<WriteMode>,
    /// `None`: since it arrived.
    queued: Option<Nanos>,
    lane: Option<Lane>,
}

struct GateQueue {
    order: DispatchOrder,
    /// Pending requests by token; empty while the operation runs.
    waiting: Slab<Option<(PendingRequest, RequestMeta)>>,
    /// Reads that hold their slots and that the kernel is fetching: an idle thread waits for the
    /// first of them.
    fetching: VecDeque<RunningRequest>,
    /// By target.
    times: Vec<(ServiceTimes, Arc<CallTimes>)>,
}

enum DispatchOrder {
    Scheduled(Box<Dispatcher>),
    /// `--no-schedule`: first come, first served.
    Arrival(VecDeque<usize>),
}

impl GateQueue {
    /// Whether a thread that has chosen these is to wait for a read that the kernel is fetching: if
    /// nothing else may go, or only at other targets.
    fn takes_fetched(&self, chosen: &[RunningRequest]) -> bool {
        let (Some(last), Some(fetched)) = (chosen.last(), self.fetching.front()) else {
            return chosen.is_empty();
        };
        let target = fetched.operation.target().id;
        let is_elsewhere = |one: &RunningRequest| one.operation.target().id != target;
        let has_work = match &self.order {
            DispatchOrder::Scheduled(dispatcher) => dispatcher.has_work_at(target),
            DispatchOrder::Arrival(queue) => !queue.is_empty(),
        };
        last.quick && !has_work && chosen.iter().all(is_elsewhere)
    }

    fn choose(&mut self, now: Time) -> Option<RunningRequest> {
        let chosen = match &mut self.order {
            DispatchOrder::Scheduled(dispatcher) => {
                dispatcher.poll_dispatch(now).map(ChosenRequest::from)
            }
            DispatchOrder::Arrival(queue) => queue.pop_front().map(ChosenRequest::first),
        }?;
        let content = self.waiting[chosen.token].take();
        let (operation, mut asked) = content.expect("a queued token has its operation");
        asked.lane = chosen.lane.unwrap_or(asked.lane);
        let ChosenRequest { token, id, class, write_mode, .. } = chosen;
        let queued = chosen.queued.unwrap_or(now.since(asked.arrived));
        let is_short = || operation.target().nowait && asked.amount.bytes < SPLICE_MIN;
        let short = asked.lane == Lane::Cached || is_short();
        let quick = asked.kind == OpKind::Read && short;
        let (started, called) = (now, now);
        Some(RunningRequest {
            operation,
            meta: asked,
            token,
            id,
            class,
            write_mode,
            queued,
            started,
            called,
            quick,
        })
    }

    fn end(&mut self, finished: Completion, now: Time) {
        let Completion { kind, lane, served, queued, started, .. } = finished;
        let (times, calls) = &mut self.times[finished.target.index()];
        if let Some(call) = finished.call {
            calls.note(call, now.since(finished.called));
        }
        self.waiting.remove(finished.token);
        times.count(kind, lane, served, queued, now.since(started));
        if let (DispatchOrder::Scheduled(dispatcher), Some(id)) = (&mut self.order, finished.id) {
            if finished.unreported {
                dispatcher.count_unreported(id);
            }
            let random = finished.access.is_some_and(|order| order.access != Access::Sequential);
            let joined = finished.access.map_or(0, |order| order.joined);
            dispatcher.count_access(id, served.bytes, random, joined);
            dispatcher.complete(id, served, now);
        }
    }
}

impl ChosenRequest {
    fn first(token: usize) -> ChosenRequest {
        ChosenRequest { token, id: None, class: None, write_mode: None, queued: None, lane: None }
    }
}

impl From<sched::Dispatched> for ChosenRequest {
    fn from(chosen: sched::Dispatched) -> ChosenRequest {
        ChosenRequest {
            token: chosen.token as usize,
            id: Some(chosen.id),
            class: Some(chosen.class),
            write_mode: chosen.write_mode,
            queued: Some(chosen.queued),
            lane: Some(chosen.lane),
        }
    }
}

impl RunningRequest {
    /// Notes that it begins only now: others that were chosen with it went before.
    pub(crate) fn begin(&mut self, now: Time) {
        self.queued += now.since(self.started);
        (self.started, self.called) = (now, now);
    }

    /// Makes the completion record of a request that has ended.
    pub(crate) fn finished(&self, served: Amount) -> Completion {
        let call = (!self.quick).then(|| self.meta.call());
        let RunningRequest { meta: asked, queued, started, called, token, id, .. } = *self;
        let RequestMeta { kind, lane, remote_ops: elsewhere, access, .. } = asked;
        let untold = elsewhere.is_none() && kind.direction() == Direction::Metadata;
        Completion {
            target: self.operation.target().id,
            token,
            id,
            call,
            served,
            kind,
            lane,
            queued,
            started,
            called,
            unreported: untold,
            access,
        }
    }

    /// Notes an end without execution, as it has to wait for leases: it is enqueued once more, and charged then.
    pub(crate) fn postponed(&self) -> Completion {
        Completion { unreported: false, access: None, ..self.dropped() }
    }

    /// Notes an end without execution: its duration says nothing about others.
    pub(crate) fn dropped(&self) -> Completion {
        Completion { call: None, ..self.finished(Amount::default()) }
    }
}

impl RequestMeta {
    /// Returns the group of calls with a similar duration: of its kind, lane and size.
    fn call(&self) -> usize {
        let large = self.amount.bytes >= LARGE;
        self.kind as usize * 4 + self.lane as usize * 2 + usize::from(large)
    }

    /// Returns the recent duration of calls like this one, at its target.
    pub(crate) fn usual(&self, target: &Target) -> Nanos {
        target.calls.usual(self.call())
    }
}

impl ProxyClock {
    pub(crate) fn start() -> ProxyClock {
        ProxyClock(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        Time::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

impl Gate {
    /// A gate without targets.
    pub(crate) fn new(rules: Arc<RuleSet>, clock: ProxyClock, scheduled: bool) -> Gate {
        let order = if scheduled {
            DispatchOrder::Scheduled(Box::new(Dispatcher::new([], rules.clone())))
        } else {
            DispatchOrder::Arrival(VecDeque::new())
        };
        let (waiting, fetching, times) = (Slab::new(), VecDeque::new(), Vec::new());
        let queue = Mutex::new(GateQueue { order, waiting, fetching, times });
        let wanted = WantedFields::of(&rules);
        let wanted = [wanted.paths, wanted.projects, wanted.marks].map(AtomicBool::new);
        let rules = RwLock::new(NumberedRules { number: 0, set: rules });
        Gate { clock, queue, rules, number: AtomicU64::new(0), wanted }
    }

    fn queue(&self) -> MutexGuard<'_, GateQueue> {
        self.queue.lock().expect("a panic in the dispatcher ends the process")
    }

    /// Adds a target, whose calls are timed in `calls`.
    pub(crate) fn add_target(
        &self,
        params: sched::TargetParams,
        calls: Arc<CallTimes>,
    ) -> TargetId {
        let queue = &mut *self.queue();
        queue.times.push((ServiceTimes::new(), calls));
        match &mut queue.order {
            DispatchOrder::Scheduled(dispatcher) => dispatcher.add_target(params),
            DispatchOrder::Arrival(_) => TargetId::new(queue.times.len() - 1),
        }
    }

    /// Returns the active rules.
    pub(crate) fn rules(&self) -> NumberedRules {
        self.rules.read().expect("not poisoned").clone()
    }

    /// Returns their number, which no other rules have.
    pub(crate) fn rules_number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Returns the fields of files that rules and entitlements need.
    pub(crate) fn wanted(&self) -> WantedFields {
        let [paths, projects, marks] =
            std::array::from_fn(|field| self.wanted[field].load(Ordering::Relaxed));
        WantedFields { paths, projects, marks }
    }

    /// Activates other rules, for queued requests too.
    pub(crate) fn set_rules(&self, rules: Arc<RuleSet>) {
        let mut in_force = self.rules.write().expect("not poisoned");
        *in_force = NumberedRules { number: in_force.number + 1, set: rules.clone() };
        let wanted = WantedFields::of(&rules);
        self.wanted[0].store(wanted.paths, Ordering::Relaxed);
        self.wanted[1].store(wanted.projects, Ordering::Relaxed);
        self.number.store(in_force.number, Ordering::Release);
        drop(in_force);
        self.with_dispatcher(|dispatcher, now| dispatcher.set_rules(rules, now));
    }

    /// Calls a function with the dispatcher, if there is one.
    pub(crate) fn with_dispatcher<R>(
        &self,
        f: impl FnOnce(&mut Dispatcher, Time) -> R,
    ) -> Option<R> {
        match &mut self.queue().order {
            DispatchOrder::Scheduled(dispatcher) => Some(f(dispatcher, self.clock.now())),
            DispatchOrder::Arrival(_) => None,
        }
    }

    /// Changes rows of entitlements, whose spans count from the start of the clock here. A directory
    /// that one of them names first marks the files that are looked up from then on.
    pub(crate) fn set_entitlements(&self, rows: Vec<(EntitlementId, Option<Entitlement>)>) {
        let refused = self.with_dispatcher(|d, now| {
            let refused = d.set_entitlements(rows, Time::ZERO, now);
            self.wanted[2].store(d.has_marks(), Ordering::Relaxed);
            refused
        });
        if let Some(refused) = refused.filter(|count| *count > 0) {
            tracing::warn!(refused, "dropped entitlements: the table of the dispatcher is full");
        }
    }

    /// Lets nothing of a pool go until a controller has been heard: others may be giving all of it.
    pub(crate) fn grant_nothing(&self, pool: SharePool) {
        let nothing = Grants { proxies: 1, unlisted: Share::ZERO, listed: Vec::new() };
        self.with_dispatcher(|dispatcher, now| dispatcher.set_grants(pool, &nothing, now));
    }

    /// Returns the subject of an identity's requests to a target through an export.
    pub(crate) fn intern(
        &self,
        target: TargetId,
        who: &Identity,
        place: FilePlace,
        export: &Arc<str>,
    ) -> SubjectId {
        let subject = self.with_dispatcher(|d, _| d.subject_through(target, who, place, export));
        subject.unwrap_or(SubjectId::from_bits(0))
    }

    /// Gives subjects back, a few at a time: requests of others go between.
    pub(crate) fn release(&self, subjects: impl Iterator<Item = SubjectId>) {
        let mut rest = subjects.peekable();
        while rest.peek().is_some() {
            let portion = rest.by_ref().take(RELEASED_AT_ONCE);
            let released =
                self.with_dispatcher(|d, _| portion.for_each(|subject| d.release_subject(subject)));
            if released.is_none() {
                return;
            }
        }
    }

    /// Enqueues operations, in their order; `each` gets the number of each one.
    pub(crate) fn enqueue(
        &self,
        operations: impl Iterator<Item = (PendingRequest, RequestMeta)>,
        mut each: impl FnMut(ninep::Tag, Option<RequestId>),
    ) {
        let gate = &mut *self.queue();
        let now = self.clock.now();
        for (operation, mut asked) in operations {
            let tag = operation.to.tag;
            asked.arrived = now;
            let token = gate.waiting.insert(Some((operation, asked)));
            let (operation, _) = gate.waiting[token].as_ref().expect("it was put there");
            let donor = operation.donor.as_ref();
            let id = match &mut gate.order {
                DispatchOrder::Scheduled(dispatcher) => {
                    let RequestMeta { subject, kind, amount, lane, remote_ops: elsewhere, .. } =
                        asked;
                    if let Some(elsewhere) = elsewhere.filter(|count| *count > 0) {
                        let ops = Amount::new(0, elsewhere.into());
                        let costs = &dispatcher.target(operation.target().id).costs;
                        let cost = costs.charge(Lane::Device, kind, ops);
                        dispatcher.charge_remote_service(subject, kind, cost, now);
                    }
                    let subject = match donor {
                        Some(donor) => {
                            let waiter = donor.subject;
                            dispatcher.subject_for_donation(
                                subject,
                                waiter,
                                kind,
                                amount,
                                &donor.file,
                                now,
                            )
                        }
                        None => subject,
                    };
                    let arrival = Arrival { subject, kind, amount, lane, token: token as u64 };
                    Some(dispatcher.enqueue(arrival, now))
                }
                DispatchOrder::Arrival(queue) => {
                    queue.push_back(token);
                    None
                }
            };
            each(tag, id);
        }
    }

    /// Reports operations that ended and returns the next: one, or several as long as they are
    /// quick. Before a thread waits for a read, all that may be begun is begun. None is chosen if
    /// nothing may go.
    pub(crate) fn next(&self, finished: &mut Vec<Completion>, chosen: &mut Vec<RunningRequest>) {
        let gate = &mut *self.queue();
        let now = self.clock.now();
        finished.drain(..).for_each(|finished| gate.end(finished, now));
        while chosen.len() < AT_ONCE && chosen.last().is_none_or(|last| last.quick) {
            let Some(running) = gate.choose(now) else { break };
            chosen.push(running);
        }
        if gate.takes_fetched(chosen)
            && let Some(mut running) = gate.fetching.pop_front()
        {
            running.called = now;
            chosen.push(running);
        }
    }

    /// Reports operations that ended, without choosing the next.
    pub(crate) fn finish(&self, finished: &mut Vec<Completion>) {
        if finished.is_empty() {
            return;
        }
        let gate = &mut *self.queue();
        let now = self.clock.now();
        finished.drain(..).for_each(|finished| gate.end(finished, now));
    }

    /// Notes that the page cache did not have it. Unless it holds slots of the device already, the
    /// request waits again, for the device.
    pub(crate) fn miss(&self, mut running: RunningRequest) {
        let gate = &mut *self.queue();
        if running.meta.lane == Lane::Device {
            running.quick = false;
            return gate.fetching.push_back(running);
        }
        let now = self.clock.now();
        let mut asked = running.meta;
        asked.lane = Lane::Device;
        gate.waiting[running.token] = Some((running.operation, asked));
        match (&mut gate.order, running.id) {
            (DispatchOrder::Scheduled(dispatcher), Some(id)) => dispatcher.miss(id, now),
            (DispatchOrder::Arrival(queue), _) => queue.push_front(running.token),
            (DispatchOrder::Scheduled(_), None) => unreachable!("a scheduled request has a number"),
        }
    }

    /// Removes a request if it has not been chosen yet.
    pub(crate) fn cancel(&self, id: RequestId) -> Option<(PendingRequest, RequestMeta)> {
        let gate = &mut *self.queue();
        let DispatchOrder::Scheduled(dispatcher) = &mut gate.order else { return None };
        let token = dispatcher.cancel(id, self.clock.now())?;
        gate.waiting.remove(token as usize)
    }

    /// Moves a request that has not been chosen yet to the lane of a waiter, if it is chosen sooner
    /// there; returns its new number.
    pub(crate) fn donate(&self, id: RequestId, donor: Box<Donor>) -> Option<RequestId> {
        let mut guard = self.queue();
        let gate = &mut *guard;
        let DispatchOrder::Scheduled(dispatcher) = &mut gate.order else { return None };
        let now = self.clock.now();
        let donated = dispatcher.donate(id, donor.subject, &donor.file, now)?;
        let (operation, _) = gate.waiting[donated.token as usize].as_mut()?;
        let before = operation.donor.replace(donor);
        drop(guard);
        // It may be what a user waits for, and the gate is notified of its end.
        drop(before);
        Some(donated.id)
    }

    /// Returns the number of requests that wait or are being executed.
    pub(crate) fn len(&self) -> usize {
        self.queue().waiting.len()
    }

    /// Whether a request could be executed right now.
    pub(crate) fn has_work(&self) -> bool {
        self.queue_state().work
    }

    /// Returns how long a target's requests waited and took until now, by kind and lane.
    pub(crate) fn times(&self, target: TargetId) -> ServiceTimes {
        self.queue().times[target.index()].0.clone()
    }

    /// Returns the number of waiting requests, and when the next may start.
    pub(crate) fn queue_state(&self) -> QueueState {
        let gate = self.queue();
        let fetching = !gate.fetching.is_empty();
        match &gate.order {
            DispatchOrder::Scheduled(dispatcher) => QueueState {
                work: fetching || dispatcher.has_work(),
                deadline: dispatcher.next_deadline(),
            },
            DispatchOrder::Arrival(queue) => {
                QueueState { work: fetching || !queue.is_empty(), deadline: None }
            }
        }
    }
}

#[cfg(test)]
mod tests;
