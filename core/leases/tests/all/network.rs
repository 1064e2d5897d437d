//! Messages between nodes: late, lost, in any order; and the clock of each node.

use std::collections::BTreeMap;

use model::{Nanos, Time};
use sluice_leases::{
    AccessId, GroupView, LeaseError, LeaseKinds, LeaseRecall, LeaseRequestId, ObjectAccess,
    ObjectId,
};

use crate::dice::Dice;
use crate::truth::Versions;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Mount(usize),
    Proxy(usize),
    Authority,
}

/// A request of a mount, the same each time it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: u64,
    pub(crate) mount: usize,
    pub(crate) request: LeaseRequestId,
    /// The mount's life for leases when it was made.
    pub(crate) life: u64,
    pub(crate) object: ObjectId,
    pub(crate) access: ObjectAccess,
    pub(crate) wanted: LeaseKinds,
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Join {
        life: u64,
        sent: Time,
    },
    Renew {
        life: u64,
        sent: Time,
    },
    Renewed {
        life: u64,
        sent: Time,
        result: Result<(), LeaseError>,
    },
    Ask(Request),
    /// With what was found, unless it was executed at an earlier attempt.
    Reply {
        request: Request,
        found: Option<Versions>,
        kinds: LeaseKinds,
        number: u64,
    },
    Recall {
        recall: LeaseRecall,
    },
    Returned {
        access: AccessId,
    },
    GiveBack {
        object: ObjectId,
        kinds: LeaseKinds,
        number: u64,
    },
    /// A proxy asks the home: may it execute this?
    Begin {
        request: Request,
        sent: Time,
    },
    Ready {
        request: Request,
        sent: Time,
    },
    End {
        op: u64,
    },
    /// A proxy asks the authority, also that these proxies are not confirmed for a while.
    Confirm {
        sent: Time,
        epoch: u64,
        suspend: Vec<usize>,
    },
    Confirmed {
        view: GroupView,
        sent: Time,
        span: Nanos,
        others_over: Option<Nanos>,
        suspended: Vec<usize>,
    },
}

/// What is under way.
pub(crate) struct Network {
    pub(crate) now: u64,
    number: u64,
    messages: BTreeMap<(u64, u64), (Node, Node, Message)>,
    /// Pairs of nodes that do not reach each other.
    cut: Vec<(Node, Node)>,
    clocks: BTreeMap<Node, (u64, i64)>,
    pub(crate) lost: u64,
}

impl Network {
    pub(crate) fn new(nodes: &[Node], drift_ppm: u64, dice: &mut Dice) -> Network {
        let mut clock = |node: &Node| {
            let rate = dice.to(0, 2 * drift_ppm) as i64 - drift_ppm as i64;
            (*node, (dice.to(0, 1_000_000_000_000), rate))
        };
        let clocks = nodes.iter().map(&mut clock).collect();
        Network { now: 0, number: 0, messages: BTreeMap::new(), cut: Vec::new(), clocks, lost: 0 }
    }

    /// What the clock of a node shows.
    pub(crate) fn clock(&self, node: Node) -> Time {
        let (from, rate) = self.clocks[&node];
        let passed = self.now as i128 + self.now as i128 * i128::from(rate) / 1_000_000;
        Time::from_nanos(from + passed as u64)
    }

    pub(crate) fn send(&mut self, from: Node, to: Node, message: Message, dice: &mut Dice) {
        if self.is_cut(from, to) || dice.once_in(30) {
            self.lost += 1;
            return;
        }
        let delay = match dice.once_in(10) {
            true => dice.to(100_000_000, 4_000_000_000),
            false => dice.to(100_000, 20_000_000),
        };
        self.number += 1;
        self.messages.insert((self.now + delay, self.number), (from, to, message));
    }

    /// The next message up to this time, if its nodes still reach each other.
    pub(crate) fn next(&mut self, until: u64) -> Option<(Node, Node, Message)> {
        while let Some(entry) = self.messages.first_entry().filter(|entry| entry.key().0 <= until) {
            self.now = self.now.max(entry.key().0);
            let (from, to, message) = entry.remove();
            if !self.is_cut(from, to) {
                return Some((from, to, message));
            }
            self.lost += 1;
        }
        self.now = self.now.max(until);
        None
    }

    /// What is under way to or from a node is lost.
    pub(crate) fn drop_of(&mut self, node: Node) {
        self.messages.retain(|_, (from, to, _)| *from != node && *to != node);
    }

    pub(crate) fn cut(&mut self, from: Node, to: Node) {
        self.cut.push((from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn is_cut(&self, from: Node, to: Node) -> bool {
        self.cut.contains(&(from, to)) || self.cut.contains(&(to, from))
    }
}
