//! Exactly-once: the call table of a client and the reply cache of a server, over a connection that
//! breaks anywhere and a server that dies anywhere.

use std::collections::{BTreeMap, BTreeSet};

use ninep::dialect::NOSLOT;
use ninep::{Reply, Tag, error_reply};
use proptest::collection::vec;
use proptest::prelude::*;
use session::client::{CallId, CallTable, Lost};
use session::server::{ReplyCache, ReplyLookup};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The client and the server halves over a link that loses everything at any moment.
    #[test]
    fn a_call_with_a_slot_is_executed_once(steps in vec((0u8..16, any::<prop::sample::Index>()), 0..400)) {
        let mut world = World::new();
        for (what, which) in steps {
            match what {
                0..4 => world.call(which),
                4..8 => world.arrive(),
                8..11 => world.execute(which),
                11..14 => world.answer(),
                14 => world.lose_connection(),
                _ => world.kill_server(which),
            }
        }
        world.finish();
    }
}

/// What a call does, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Op {
    number: u32,
    once: bool,
}

/// One channel between the two halves; its server may die and begin anew.
struct World {
    calls: CallTable<Op>,
    slots: ReplyCache,
    next: u32,
    to_server: Vec<(CallId, Op)>,
    executing: Vec<(CallId, Op)>,
    to_client: Vec<(Tag, Vec<u8>)>,
    /// Executions of each operation, over all lives of the server.
    executed: BTreeMap<u32, u32>,
    /// Operations that must not be executed twice.
    once: BTreeSet<u32>,
    learnt: BTreeSet<u32>,
    unsettled: BTreeSet<u32>,
}

const SLOTS: u16 = 3;
const KIND: u8 = 72;

impl World {
    fn new() -> World {
        World {
            calls: CallTable::new(6, SLOTS),
            slots: ReplyCache::new(SLOTS),
            next: 0,
            to_server: Vec::new(),
            executing: Vec::new(),
            to_client: Vec::new(),
            executed: BTreeMap::new(),
            once: BTreeSet::new(),
            learnt: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    fn call(&mut self, which: prop::sample::Index) {
        let op = Op { number: self.next, once: which.index(3) > 0 };
        if let Ok(ticket) = self.calls.begin(op.once, op) {
            self.next += 1;
            self.once.extend(op.once.then_some(op.number));
            self.to_server.push((ticket, op));
        }
    }

    /// The server reads the next message: in order, as connections are.
    fn arrive(&mut self) {
        if self.to_server.is_empty() {
            return;
        }
        let (ticket, op) = self.to_server.remove(0);
        assert_eq!(op.once, ticket.slot != NOSLOT);
        if !op.once {
            return self.executing.push((ticket, op));
        }
        match self.slots.begin(ticket.slot, ticket.sequence, KIND).expect("a client of ours") {
            ReplyLookup::New => self.executing.push((ticket, op)),
            ReplyLookup::Replay(reply) => {
                let mut again = Vec::new();
                ReplyCache::replay(reply, ticket.tag, &mut again);
                self.to_client.push((ticket.tag, again));
            }
            ReplyLookup::Executing => {
                unreachable!("a new connection waits for the old one's calls")
            }
        }
    }

    /// Something that was read is executed, in any order.
    fn execute(&mut self, which: prop::sample::Index) {
        if !self.executing.is_empty() {
            self.execute_at(which.index(self.executing.len()));
        }
    }

    fn execute_at(&mut self, at: usize) {
        let (ticket, op) = self.executing.remove(at);
        *self.executed.entry(op.number).or_default() += 1;
        // The result says which operation it belongs to.
        let reply = error_reply(ticket.tag, op.number).to_vec();
        if op.once {
            self.slots.end(ticket.slot, ticket.sequence, &reply);
        }
        self.to_client.push((ticket.tag, reply));
    }

    fn answer(&mut self) {
        if self.to_client.is_empty() {
            return;
        }
        let (tag, frame) = self.to_client.remove(0);
        let Ok((of, Reply::Error { ecode })) = Reply::decode(&frame) else { panic!("{frame:?}") };
        let op = self.calls.end(tag).expect("an answer to a call");
        assert_eq!((of, ecode), (tag, op.number), "the answer of its own execution");
        assert!(self.learnt.insert(op.number), "answered twice");
    }

    /// The server takes back what it has not begun to execute, finishes the rest, and
    /// only then answers the client's new connection.
    fn lose_connection(&mut self) {
        self.to_server.clear();
        while !self.executing.is_empty() {
            if self.executing.len().is_multiple_of(2) {
                let (ticket, _) = self.executing.remove(0);
                self.slots.abandon(ticket.slot, ticket.sequence);
            } else {
                self.execute_at(0);
            }
        }
        self.to_client.clear();
        self.to_server = self.calls.calls_to_replay().into_iter().map(|(t, op)| (t, *op)).collect();
    }

    /// Some of what was being executed is done, nothing of it is remembered.
    fn kill_server(&mut self, which: prop::sample::Index) {
        let done = which.index(self.executing.len() + 1);
        for (_, op) in self.executing.drain(..).take(done) {
            *self.executed.entry(op.number).or_default() += 1;
        }
        self.to_server.clear();
        self.to_client.clear();
        self.slots = ReplyCache::new(SLOTS);
        for lost in self.calls.restart(SLOTS) {
            match lost {
                Lost::Repeatable(op) => {
                    let ticket = self.calls.begin(op.once, op).expect("its tag is free");
                    self.to_server.push((ticket, op));
                }
                Lost::InDoubt(op) => assert!(self.unsettled.insert(op.number)),
            }
        }
    }

    fn finish(mut self) {
        while !self.calls.is_empty() {
            self.arrive();
            if !self.executing.is_empty() {
                self.execute_at(0);
            }
            while !self.to_client.is_empty() {
                self.answer();
            }
        }
        for number in 0..self.next {
            let (learnt, unsettled) =
                (self.learnt.contains(&number), self.unsettled.contains(&number));
            assert!(learnt != unsettled, "operation {number} is answered or unsettled");
            let executed = self.executed.get(&number).copied().unwrap_or(0);
            assert!(executed <= 1 || !self.once.contains(&number), "{number}: {executed} times");
            assert!(executed >= 1 || unsettled, "operation {number} was answered, not executed");
        }
    }
}
