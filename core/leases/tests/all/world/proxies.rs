//! Proxies: home of some objects, and asking the homes of others.

use std::collections::{BTreeMap, BTreeSet};

use model::{Nanos, Time};
use sluice_leases::{
    AccessId, HolderId, HomeGroup, LeaseKinds, LeaseTable, LeaseTerms, ObjectAccess, RecordedHolder,
};

use super::authority::{SUSPENDED, name};
use super::{KnownBad, World};
use crate::network::{Message, Node, Request};

pub(super) struct WorldProxy {
    /// None while it does not run.
    table: Option<LeaseTable>,
    pub(super) group: HomeGroup,
    /// On disk: who may have leases.
    recorded: BTreeSet<HolderId>,
    open: BTreeMap<AccessId, OpenRequest>,
    /// What it asks the homes for.
    asks: BTreeMap<u64, HomeAsk>,
    /// Proxies that are not confirmed until then.
    suspended: BTreeMap<usize, Time>,
    asked: Time,
}

/// A request whose access has begun here.
struct OpenRequest {
    request: Request,
    from: Node,
    /// When another proxy asked last, by its clock.
    sent: Time,
    /// Nobody may execute it after that: only for other proxies.
    until: Time,
}

struct HomeAsk {
    request: Request,
    sent: Time,
    began: Time,
}

pub(super) fn is_change(access: ObjectAccess) -> bool {
    !matches!(access, ObjectAccess::LookAttributes | ObjectAccess::ReadData)
}

impl WorldProxy {
    pub(super) fn new(at: usize, terms: LeaseTerms) -> WorldProxy {
        WorldProxy {
            table: Some(LeaseTable::new(terms)),
            group: HomeGroup::new(&name(at)),
            recorded: BTreeSet::new(),
            open: BTreeMap::new(),
            asks: BTreeMap::new(),
            suspended: BTreeMap::new(),
            asked: Time::ZERO,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.table.is_some()
    }
}

impl World {
    pub(super) fn crash(&mut self, at: usize) {
        let proxy = &mut self.proxies[at];
        if proxy.table.take().is_some() {
            self.report.crashes += 1;
            (proxy.open, proxy.asks, proxy.suspended) = Default::default();
            self.net.drop_of(Node::Proxy(at));
        }
    }

    pub(super) fn restart(&mut self, at: usize) {
        let now = self.net.clock(Node::Proxy(at));
        let proxy = &mut self.proxies[at];
        if proxy.table.is_none() {
            let recorded = match self.bad {
                Some(KnownBad::ForgetsHolders) => BTreeSet::new(),
                _ => proxy.recorded.clone(),
            };
            let term = self.terms.term;
            let recorded = recorded.into_iter().map(|holder| RecordedHolder { holder, term });
            proxy.table = Some(LeaseTable::restarted(self.terms, recorded, now));
            // It executes nothing before it has heard of its group.
            proxy.group = HomeGroup::new(&name(at));
        }
    }

    pub(super) fn tick_proxy(&mut self, at: usize) -> Result<(), String> {
        let now = self.net.clock(Node::Proxy(at));
        if !self.proxies[at].is_running() {
            return Ok(());
        }
        let count = self.proxies.len();
        let proxy = &mut self.proxies[at];
        let mut suspend = Vec::new();
        let mut again = Vec::new();
        for ask in proxy.asks.values_mut().filter(|ask| now.since(ask.sent) >= Nanos::from_secs(1))
        {
            let home = proxy.group.home_of(ask.request.object).map(String::from);
            let Some(home) = (0..count).find(|one| Some(name(*one)) == home) else { continue };
            if now.since(ask.began) > Nanos::from_secs(3) {
                suspend.push(home);
            }
            ask.sent = now;
            again.push((home, ask.request));
        }
        let is_due = now.since(proxy.asked) >= Nanos::from_secs(2);
        if is_due {
            proxy.asked = now;
            let message = Message::Confirm { sent: now, epoch: proxy.group.epoch(), suspend };
            self.net.send(Node::Proxy(at), Node::Authority, message, &mut self.dice);
        }
        for (home, request) in again {
            if home == at {
                // It has become the home itself.
                self.proxies[at].asks.remove(&request.op);
                self.begin_for_mount(at, request, now);
            } else {
                self.send_begin(at, home, request, now);
            }
        }
        self.proceed(at, now)
    }

    /// Executes what is ready, sends recalls, and ends what others have not executed in time.
    fn proceed(&mut self, at: usize, now: Time) -> Result<(), String> {
        let over = |open: &OpenRequest| open.until <= now;
        let proxy = &mut self.proxies[at];
        let Some(table) = &mut proxy.table else { return Ok(()) };
        let late: Vec<AccessId> =
            proxy.open.iter().filter(|(_, open)| over(open)).map(|(id, _)| *id).collect();
        for id in late {
            proxy.open.remove(&id);
            table.end(id);
        }
        table.sweep(2, now);
        for recall in table.take_recalls() {
            self.report.recalls += 1;
            let to = Node::Mount(recall.holder.0 as usize);
            self.net.send(Node::Proxy(at), to, Message::Recall { recall }, &mut self.dice);
        }
        let all: Vec<AccessId> = proxy.open.keys().copied().collect();
        for id in all {
            let proxy = &mut self.proxies[at];
            let Some(table) = &mut proxy.table else { break };
            let is_ready = table.is_ready(id, now) || self.bad == Some(KnownBad::DoesNotWait);
            let Some(open) = proxy.open.get(&id).filter(|_| is_ready) else { continue };
            let is_over = proxy.group.not_before(open.request.object) <= now;
            if !is_over && self.bad != Some(KnownBad::GrantsAtOnce) {
                continue;
            }
            let (request, from, sent) = (open.request, open.from, open.sent);
            match from {
                Node::Proxy(_) => {
                    let message = Message::Ready { request, sent };
                    self.net.send(Node::Proxy(at), from, message, &mut self.dice);
                }
                _ => self.execute_here(at, id, request, now)?,
            }
        }
        Ok(())
    }

    fn execute_here(
        &mut self,
        at: usize,
        id: AccessId,
        request: Request,
        now: Time,
    ) -> Result<(), String> {
        let proxy = &mut self.proxies[at];
        proxy.open.remove(&id);
        let holder = World::holder(request.mount);
        let may_grant = proxy.group.may_grant(request.object, now);
        let is_at_once = self.bad == Some(KnownBad::GrantsAtOnce)
            && proxy.group.home_of(request.object) == Some(&name(at)[..]);
        let table = proxy.table.as_mut().expect("it runs");
        let mut number = None;
        if (may_grant || is_at_once)
            && !request.wanted.is_empty()
            && proxy.recorded.contains(&holder)
        {
            number = table.acquire(holder, request.life, request.object, request.wanted, now);
        }
        let is_done = is_change(request.access) && !self.done.insert(request.op);
        let found = match is_done {
            true => None,
            false => Some(self.execute(request.object, request.access, request.mount)?),
        };
        let table = self.proxies[at].table.as_mut().expect("it runs");
        table.end(id);
        let kinds = number.map_or(LeaseKinds::NONE, |_| request.wanted);
        let number = number.unwrap_or(0);
        let message = Message::Reply { request, found, kinds, number };
        self.net.send(Node::Proxy(at), Node::Mount(request.mount), message, &mut self.dice);
        Ok(())
    }

    pub(super) fn proxy_receives(
        &mut self,
        at: usize,
        from: Node,
        message: Message,
    ) -> Result<(), String> {
        let now = self.net.clock(Node::Proxy(at));
        let proxy = &mut self.proxies[at];
        let Some(table) = &mut proxy.table else { return Ok(()) };
        let holder = match from {
            Node::Mount(mount) => World::holder(mount),
            _ => HolderId(u32::MAX),
        };
        match message {
            Message::Join { life, sent } | Message::Renew { life, sent } => {
                let is_join = matches!(message, Message::Join { .. });
                let result = match is_join {
                    true => table.join(holder, life, &[], now),
                    false => table.renew(holder, life, now),
                };
                if is_join && result.is_ok() {
                    proxy.recorded.insert(holder);
                }
                let reply = Message::Renewed { life, sent, result };
                self.net.send(Node::Proxy(at), from, reply, &mut self.dice);
            }
            Message::Returned { access } => table.returned(holder, access),
            Message::GiveBack { object, kinds, number } => {
                table.give_back(holder, object, kinds, number);
            }
            Message::Ask(request) => return self.asked(at, request, now),
            Message::Begin { request, sent } => self.asked_by_proxy(at, from, request, sent, now),
            Message::Ready { request, sent } => return self.ready(at, from, request, sent, now),
            Message::End { op } => {
                let is = |open: &OpenRequest| open.request.op == op && open.from == from;
                let found = proxy.open.iter().filter(|(_, open)| is(open)).map(|(id, _)| *id);
                let found: Vec<AccessId> = found.collect();
                for id in found {
                    proxy.open.remove(&id);
                    table.end(id);
                }
            }
            Message::Confirmed { view, sent, span, others_over, suspended } => {
                let is_new = proxy.group.confirmed(view, sent, span, others_over, now);
                if is_new {
                    let group = &proxy.group;
                    table.keep_only(|object| group.home_of(object) == Some(&name(at)[..]));
                }
                table.confirm(proxy.group.confirmed_until());
                for other in suspended {
                    proxy.suspended.insert(other, sent + SUSPENDED);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A mount asks: it is executed here, or after the home has let it.
    fn asked(&mut self, at: usize, request: Request, now: Time) -> Result<(), String> {
        let count = self.proxies.len();
        let proxy = &mut self.proxies[at];
        let Some(home) = proxy.group.home_of(request.object).map(String::from) else {
            return Ok(());
        };
        let home = (0..count).find(|one| name(*one) == home).expect("it has a number");
        let is_open = proxy
            .open
            .values()
            .any(|open| open.request.op == request.op && matches!(open.from, Node::Mount(_)));
        if is_open || proxy.asks.contains_key(&request.op) {
            return Ok(());
        }
        let is_suspended = proxy.suspended.get(&home).is_some_and(|until| *until > now);
        if home == at {
            self.begin_for_mount(at, request, now);
        } else if is_suspended || self.bad == Some(KnownBad::DoesNotAsk) {
            return self.execute_for(at, request);
        } else {
            let ask = HomeAsk { request, sent: now, began: now };
            self.proxies[at].asks.insert(request.op, ask);
            self.send_begin(at, home, request, now);
        }
        Ok(())
    }

    fn begin_for_mount(&mut self, at: usize, request: Request, now: Time) {
        let from = Node::Mount(request.mount);
        self.begin_here(at, OpenRequest { request, from, sent: now, until: Time::MAX }, now);
    }

    fn begin_here(&mut self, at: usize, open: OpenRequest, now: Time) {
        let proxy = &mut self.proxies[at];
        let table = proxy.table.as_mut().expect("it runs");
        let by = Some(World::holder(open.request.mount));
        let id = table.begin(open.request.object, open.request.access, by, now);
        proxy.open.insert(id, open);
    }

    fn asked_by_proxy(&mut self, at: usize, from: Node, request: Request, sent: Time, now: Time) {
        if self.proxies[at].group.home_of(request.object) != Some(&name(at)[..]) {
            return;
        }
        let until = now + self.terms.outlasts(self.terms.peer_limit);
        let mut open = self.proxies[at].open.values_mut();
        match open.find(|open| open.request.op == request.op && open.from == from) {
            Some(open) => (open.sent, open.until) = (open.sent.max(sent), until),
            None => self.begin_here(at, OpenRequest { request, from, sent, until }, now),
        }
    }

    fn send_begin(&mut self, at: usize, home: usize, request: Request, now: Time) {
        let message = Message::Begin { request, sent: now };
        self.net.send(Node::Proxy(at), Node::Proxy(home), message, &mut self.dice);
    }

    /// The home has let it execute this, if that is not too long ago.
    fn ready(
        &mut self,
        at: usize,
        from: Node,
        request: Request,
        sent: Time,
        now: Time,
    ) -> Result<(), String> {
        let is_asked = self.proxies[at].asks.contains_key(&request.op);
        if !is_asked || now >= sent + self.terms.peer_limit {
            return Ok(());
        }
        self.proxies[at].asks.remove(&request.op);
        self.execute_for(at, request)?;
        let message = Message::End { op: request.op };
        self.net.send(Node::Proxy(at), from, message, &mut self.dice);
        Ok(())
    }

    /// Executes what another proxy is home of, and grants nothing.
    fn execute_for(&mut self, at: usize, request: Request) -> Result<(), String> {
        let is_done = is_change(request.access) && !self.done.insert(request.op);
        let found = match is_done {
            true => None,
            false => Some(self.execute(request.object, request.access, request.mount)?),
        };
        let message = Message::Reply { request, found, kinds: LeaseKinds::NONE, number: 0 };
        self.net.send(Node::Proxy(at), Node::Mount(request.mount), message, &mut self.dice);
        Ok(())
    }
}
