//! The authority of the group: which proxies there are, and who is confirmed until when.

use model::{Nanos, Time};
use sluice_leases::GroupView;

use super::World;
use crate::network::{Message, Node};

/// How long a proxy may grant after it asked, and how long one is not confirmed for another's sake.
pub(super) const SPAN: Nanos = Nanos::from_secs(60);
pub(super) const SUSPENDED: Nanos = Nanos::from_secs(10);

pub(super) struct Authority {
    view: GroupView,
    /// When each proxy was confirmed last, and until when it is not.
    confirmed: Vec<Option<Time>>,
    suspended: Vec<Time>,
    /// The epoch that each proxy has said it knows.
    knows: Vec<u64>,
    /// Who was there before the present epoch and has to know it before others get what was theirs.
    must_know: Vec<usize>,
    /// When what was granted in earlier epochs is over.
    over_at: Time,
}

pub(super) fn name(proxy: usize) -> String {
    format!("p{proxy}")
}

impl Authority {
    pub(super) fn new(proxies: usize) -> Authority {
        Authority {
            view: GroupView { epoch: 1, names: (0..proxies).map(name).collect() },
            confirmed: vec![None; proxies],
            suspended: vec![Time::ZERO; proxies],
            knows: vec![0; proxies],
            must_know: Vec::new(),
            over_at: Time::ZERO,
        }
    }

    /// After the world has healed, no proxy is waited for that has crashed.
    pub(super) fn all_are_back(&mut self) {
        self.suspended.fill(Time::ZERO);
    }

    /// A change of the group by an operator, who knows whether the proxy runs.
    fn change(&mut self, proxy: usize, runs: bool, over_at: Time) -> bool {
        let has = self.view.names.contains(&name(proxy));
        match (has, runs) {
            (true, false) if self.view.names.len() > 1 => {
                self.view.names.retain(|one| *one != name(proxy));
                self.must_know.retain(|one| *one != proxy);
            }
            (false, true) => {
                let others =
                    (0..self.knows.len()).filter(|at| self.view.names.contains(&name(*at)));
                self.must_know = others.chain(self.must_know.iter().copied()).collect();
                self.must_know.sort_unstable();
                self.must_know.dedup();
                self.view.names.push(name(proxy));
            }
            _ => return false,
        }
        self.view.epoch += 1;
        self.over_at = self.over_at.max(over_at);
        true
    }
}

impl World {
    pub(super) fn change_group(&mut self, proxy: usize) {
        let runs = self.proxies[proxy].is_running();
        let span = self.outlasts(SPAN);
        let last = self.authority.confirmed.iter().flatten().max();
        let over_at = last.map_or(Time::ZERO, |last| *last + span);
        if self.authority.change(proxy, runs, over_at) {
            self.report.epochs += 1;
        }
    }

    pub(super) fn authority_receives(&mut self, from: Node, message: Message) {
        let (Node::Proxy(proxy), Message::Confirm { sent, epoch, suspend }) = (from, message)
        else {
            return;
        };
        let now = self.net.clock(Node::Authority);
        let (span, suspension) = (self.outlasts(SPAN), self.outlasts(SUSPENDED));
        let peers = self.outlasts(self.terms.peer_limit);
        let all = &mut self.authority;
        all.knows[proxy] = epoch;
        let mut suspended = Vec::new();
        for other in suspend.into_iter().filter(|other| *other != proxy) {
            if all.confirmed[other].is_none_or(|last| last + span < now) {
                all.suspended[other] = all.suspended[other].max(now + suspension);
                suspended.push(other);
            }
        }
        let is_member = all.view.names.contains(&name(proxy));
        let is_confirmed = is_member && all.suspended[proxy] <= now;
        if is_confirmed {
            all.confirmed[proxy] = Some(now);
        }
        let is_known = all.must_know.iter().all(|one| all.knows[*one] >= all.view.epoch);
        let over = self.terms.outlasts(all.over_at.since(now).max(peers));
        let reply = Message::Confirmed {
            view: all.view.clone(),
            sent,
            span: if is_confirmed { SPAN } else { Nanos::ZERO },
            others_over: is_known.then_some(over),
            suspended,
        };
        self.net.send(Node::Authority, from, reply, &mut self.dice);
    }
}
