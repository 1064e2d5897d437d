//! Mounts: they ask, believe, renew, return and change.

use std::collections::BTreeMap;

use model::{Nanos, Time};
use sluice_leases::{
    GroupView, HeldLeases, LeaseKinds, LeaseRecall, LeaseTerms, NameId, ObjectAccess, ObjectId,
};

use super::authority::name;
use super::{KnownBad, World};
use crate::network::{Message, Node, Request};
use crate::truth::Kept;

#[derive(Debug)]
pub(super) struct WorldMount {
    pub(super) held: Vec<HeldLeases>,
    pub(super) kept: Vec<BTreeMap<ObjectId, Kept>>,
    /// When it last asked each proxy to join or to be renewed.
    asked: Vec<Time>,
    view: GroupView,
    pending: Vec<PendingRequest>,
    /// Recalls that it answers later.
    slow: Vec<(Time, usize, LeaseRecall)>,
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    request: Request,
    began: Time,
    sent: Time,
    proxy: usize,
}

impl WorldMount {
    pub(super) fn new(proxies: usize, terms: LeaseTerms) -> WorldMount {
        WorldMount {
            held: (0..proxies).map(|_| HeldLeases::new(terms)).collect(),
            kept: vec![BTreeMap::new(); proxies],
            asked: vec![Time::ZERO; proxies],
            view: GroupView { epoch: 0, names: Vec::new() },
            pending: Vec::new(),
            slow: Vec::new(),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    fn home(&self, object: ObjectId) -> Option<usize> {
        let home = self.view.home_of(object)?;
        (0..self.held.len()).find(|at| name(*at) == home)
    }

    fn changes(&self, object: ObjectId) -> bool {
        let is_change = |one: &PendingRequest| {
            one.request.object == object && super::proxies::is_change(one.request.access)
        };
        self.pending.iter().any(is_change)
    }
}

impl World {
    pub(super) fn tick_mount(&mut self, at: usize) -> Result<(), String> {
        let now = self.net.clock(Node::Mount(at));
        for proxy in 0..self.proxies.len() {
            self.renew(at, proxy, now);
        }
        let late: Vec<_> = self.mounts[at].slow.extract_if(.., |(due, ..)| *due <= now).collect();
        late.into_iter().for_each(|(_, proxy, recall)| self.return_leases(at, proxy, &recall));
        let seen = self.dice.to(0, self.proxies.len() as u64 - 1) as usize;
        if self.proxies[seen].is_running() && !self.net.is_cut(Node::Mount(at), Node::Proxy(seen)) {
            let view = self.proxies[seen].group.view().clone();
            if view.epoch > self.mounts[at].view.epoch {
                self.mounts[at].view = view;
            }
        }
        self.resend(at, now);
        self.read_locally(at, now)?;
        if !self.is_healing && self.mounts[at].pending.len() < 4 && self.dice.once_in(2) {
            self.ask(at, now);
        }
        Ok(())
    }

    /// Joins, renews, or drops everything when the term is over.
    fn renew(&mut self, at: usize, proxy: usize, now: Time) {
        let mount = &mut self.mounts[at];
        let held = &mut mount.held[proxy];
        let is_due = held.next_renewal().is_none_or(|due| due <= now);
        if !is_due || now.since(mount.asked[proxy]) < Nanos::from_secs(1) {
            return;
        }
        mount.asked[proxy] = now;
        let message = match held.rest(now) {
            Some(_) => Message::Renew { life: held.life(), sent: now },
            None => {
                held.lapse();
                mount.kept[proxy].clear();
                mount.slow.retain(|(_, of, _)| *of != proxy);
                Message::Join { life: held.life(), sent: now }
            }
        };
        self.net.send(Node::Mount(at), Node::Proxy(proxy), message, &mut self.dice);
    }

    fn resend(&mut self, at: usize, now: Time) {
        for number in 0..self.mounts[at].pending.len() {
            let one = self.mounts[at].pending[number];
            if now.since(one.sent) < Nanos::from_secs(1) {
                continue;
            }
            let home = self.mounts[at].home(one.request.object);
            // Another proxy instead, after a while: the home may be away.
            let any = self.dice.to(0, self.proxies.len() as u64 - 1) as usize;
            let is_long = now.since(one.began) > Nanos::from_secs(4) && self.dice.once_in(2);
            let to = if is_long { any } else { home.unwrap_or(any) };
            // A lease comes from the proxy that was asked first, or not at all.
            let wanted = if to == one.proxy { one.request.wanted } else { LeaseKinds::NONE };
            let pending = &mut self.mounts[at].pending[number];
            pending.sent = now;
            let message = Message::Ask(Request { wanted, ..one.request });
            self.net.send(Node::Mount(at), Node::Proxy(to), message, &mut self.dice);
        }
    }

    fn ask(&mut self, at: usize, now: Time) {
        let object = self.any_object();
        let mount = &mut self.mounts[at];
        let Some(proxy) = mount.home(object) else { return };
        let access = match self.dice.to(0, 9) {
            0..=3 => ObjectAccess::LookAttributes,
            4..=6 => ObjectAccess::ReadData,
            7 => ObjectAccess::ChangeAttributes,
            8 => ObjectAccess::WriteData,
            _ => ObjectAccess::ChangeName(NameId(self.dice.to(0, 1))),
        };
        let wanted = match (access, self.dice.to(0, 3)) {
            (_, 0) => LeaseKinds::NONE,
            (ObjectAccess::LookAttributes, _) => LeaseKinds::ATTRIBUTES.and(LeaseKinds::NAMES),
            (ObjectAccess::ReadData, _) => LeaseKinds::READ.and(LeaseKinds::ATTRIBUTES),
            (ObjectAccess::WriteData, 1) => LeaseKinds::WRITE.and(LeaseKinds::READ),
            _ => LeaseKinds::ATTRIBUTES,
        };
        let request = mount.held[proxy].begin_request();
        self.last_op += 1;
        let life = mount.held[proxy].life();
        let request =
            Request { op: self.last_op, mount: at, request, life, object, access, wanted };
        mount.pending.push(PendingRequest { request, began: now, sent: now, proxy });
        self.net.send(Node::Mount(at), Node::Proxy(proxy), Message::Ask(request), &mut self.dice);
        let rest = self.mounts[at].held[proxy].len();
        if rest > 1 && self.dice.once_in(10) {
            for (object, kinds, number) in self.mounts[at].held[proxy].least_used(1) {
                self.mounts[at].kept[proxy].remove(&object);
                let message = Message::GiveBack { object, kinds, number };
                self.net.send(Node::Mount(at), Node::Proxy(proxy), message, &mut self.dice);
            }
        }
    }

    /// Reads what it believes of an object, which must be so.
    fn read_locally(&mut self, at: usize, now: Time) -> Result<(), String> {
        let object = self.any_object();
        let (mount, truth) = (&self.mounts[at], self.truth[&object]);
        if mount.changes(object) {
            return Ok(()); // perhaps executed, and not answered
        }
        for (proxy, held) in mount.held.iter().enumerate() {
            let kinds = held.rest(now).map_or(LeaseKinds::NONE, |_| held.held(object));
            let Some(kept) = mount.kept[proxy].get(&object).filter(|_| !kinds.is_empty()) else {
                continue;
            };
            self.report.local_reads += 1;
            if kept.is_wrong(truth, kinds) {
                return Err(format!(
                    "mount {at} believes {kinds:?} from proxy {proxy} of {object:?}: {kept:?}, but it is {truth:?}"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn mount_receives(&mut self, at: usize, from: Node, message: Message) {
        let Node::Proxy(proxy) = from else { return };
        let now = self.net.clock(Node::Mount(at));
        match message {
            Message::Renewed { life, sent, result } => {
                let sent = match self.bad {
                    Some(KnownBad::CountsFromAnswer) => now,
                    _ => sent,
                };
                let mount = &mut self.mounts[at];
                match result {
                    Ok(()) => mount.held[proxy].renewed(life, sent),
                    Err(sluice_leases::LeaseError::NotConfirmed) => {}
                    Err(_) if life == mount.held[proxy].life() => {
                        mount.held[proxy].lapse();
                        mount.kept[proxy].clear();
                    }
                    Err(_) => {}
                }
            }
            Message::Reply { request, found, kinds, number } => {
                self.replied(at, proxy, request, found.map(|found| (found, kinds, number)));
            }
            Message::Recall { recall } => {
                if self.dice.once_in(5) {
                    let due = now + Nanos::from_millis(self.dice.to(1, 15_000));
                    self.mounts[at].slow.push((due, proxy, recall));
                } else {
                    self.return_leases(at, proxy, &recall);
                }
            }
            _ => {}
        }
    }

    fn return_leases(&mut self, at: usize, proxy: usize, recall: &LeaseRecall) {
        let mount = &mut self.mounts[at];
        mount.held[proxy].recalled(recall.object, recall.kinds, recall.name.is_some());
        if let Some(kept) = mount.kept[proxy].get_mut(&recall.object) {
            kept.forget(recall.kinds, recall.name);
        }
        let message = Message::Returned { access: recall.access };
        self.net.send(Node::Mount(at), Node::Proxy(proxy), message, &mut self.dice);
    }

    fn replied(
        &mut self,
        at: usize,
        proxy: usize,
        request: Request,
        found: Option<(crate::truth::Versions, LeaseKinds, u64)>,
    ) {
        let mount = &mut self.mounts[at];
        let Some(number) = mount.pending.iter().position(|one| one.request.op == request.op) else {
            return;
        };
        let asked = mount.pending.remove(number).proxy;
        let object = request.object;
        let mut may_keep = LeaseKinds::NONE;
        if let Some((_, kinds, number)) = found.filter(|_| proxy == asked) {
            may_keep = mount.held[proxy].granted(request.request, object, kinds, number);
            if self.bad == Some(KnownBad::KeepsOlderReplies) {
                may_keep = kinds.and(mount.held[proxy].held(object));
            }
        }
        if super::proxies::is_change(request.access) {
            let changed = request.access.breaks().and(LeaseKinds::ATTRIBUTES);
            for held in &mut mount.held {
                held.changed(object, changed);
            }
            for kept in &mut mount.kept {
                if let Some(kept) = kept.get_mut(&object) {
                    kept.forget(changed, request.access.name());
                }
            }
        }
        if let Some((versions, ..)) = found {
            mount.kept[proxy].entry(object).or_default().keep(versions, may_keep);
        }
        mount.held[asked].end_request(request.request);
    }

    fn any_object(&mut self) -> ObjectId {
        let number = self.dice.to(0, self.truth.len() as u64 - 1) as usize;
        *self.truth.keys().nth(number).expect("there is one")
    }
}
