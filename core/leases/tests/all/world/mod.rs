//! The world: it moves time and messages, breaks what can break, and checks after each step.

mod authority;
mod mounts;
mod proxies;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;

use model::Nanos;
use sluice_leases::{HolderId, LeaseKinds, LeaseTerms, NameId, ObjectAccess, ObjectId};

use crate::dice::Dice;
use crate::network::{Message, Network, Node};
use crate::truth::Versions;

use authority::Authority;
use mounts::WorldMount;
use proxies::WorldProxy;

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldSize {
    pub(crate) proxies: u64,
    pub(crate) mounts: u64,
    pub(crate) objects: u64,
}

/// Mistakes that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownBad {
    /// An access is executed although a lease was not returned.
    DoesNotWait,
    /// A mount counts its term from the answer to its renewal.
    CountsFromAnswer,
    /// A mount keeps what a reply says that was under way when a recall came.
    KeepsOlderReplies,
    /// A restarted proxy does not know that there are holders.
    ForgetsHolders,
    /// A proxy grants what has come to it at once.
    GrantsAtOnce,
    /// A proxy executes an access to another's object without asking.
    DoesNotAsk,
}

impl KnownBad {
    pub(crate) const ALL: [KnownBad; 6] = [
        KnownBad::DoesNotWait,
        KnownBad::CountsFromAnswer,
        KnownBad::KeepsOlderReplies,
        KnownBad::ForgetsHolders,
        KnownBad::GrantsAtOnce,
        KnownBad::DoesNotAsk,
    ];
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorldReport {
    pub(crate) local_reads: u64,
    pub(crate) executed: u64,
    pub(crate) recalls: u64,
    pub(crate) lost: u64,
    pub(crate) crashes: u64,
    pub(crate) epochs: u64,
}

pub(crate) struct World {
    dice: Dice,
    bad: Option<KnownBad>,
    terms: LeaseTerms,
    net: Network,
    truth: BTreeMap<ObjectId, Versions>,
    mounts: Vec<WorldMount>,
    proxies: Vec<WorldProxy>,
    authority: Authority,
    /// Changes that were executed, by the number of their requests.
    done: BTreeSet<u64>,
    last_op: u64,
    report: WorldReport,
    /// Nothing breaks any more, and nothing new is asked.
    is_healing: bool,
    /// The last messages and executions.
    events: VecDeque<String>,
}

const EVENTS: usize = 60;
const TICK: u64 = 250_000_000;
/// After so long without anything broken, every request has been answered.
const HEALED: u64 = 400 * 1_000_000_000;

impl World {
    pub(crate) fn new(size: WorldSize, mut dice: Dice, bad: Option<KnownBad>) -> World {
        let terms = LeaseTerms { drift_ppm: 20_000, holder_max: 3, ..LeaseTerms::default() };
        let proxies = size.proxies as usize;
        let mounts = size.mounts as usize;
        let nodes: Vec<Node> = (0..proxies)
            .map(Node::Proxy)
            .chain((0..mounts).map(Node::Mount))
            .chain([Node::Authority])
            .collect();
        let net = Network::new(&nodes, terms.drift_ppm, &mut dice);
        let object = |number| (ObjectId([number, number * 31]), Versions::default());
        World {
            net,
            truth: (0..size.objects).map(object).collect(),
            mounts: (0..mounts).map(|_| WorldMount::new(proxies, terms)).collect(),
            proxies: (0..proxies).map(|at| WorldProxy::new(at, terms)).collect(),
            authority: Authority::new(proxies),
            done: BTreeSet::new(),
            last_op: 0,
            report: WorldReport::default(),
            is_healing: false,
            events: VecDeque::new(),
            dice,
            bad,
            terms,
        }
    }

    /// Runs so many steps, heals, and sees to the end of what is under way. An error has the last events.
    pub(crate) fn run(&mut self, steps: u64) -> Result<WorldReport, String> {
        self.run_all(steps).map_err(|error| {
            let events: Vec<String> = self.events.drain(..).collect();
            format!("{error}\n{}", events.join("\n"))
        })
    }

    fn note(&mut self, event: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(format!("{:>9.3} s  {event}", self.net.now as f64 / 1e9));
    }

    fn run_all(&mut self, steps: u64) -> Result<WorldReport, String> {
        for _ in 0..steps {
            self.step()?;
        }
        self.is_healing = true;
        self.net.heal();
        (0..self.proxies.len()).for_each(|at| self.restart(at));
        self.authority.all_are_back();
        let end = self.net.now + HEALED;
        while self.net.now < end && self.mounts.iter().any(WorldMount::is_busy) {
            self.step()?;
        }
        match self.mounts.iter().position(WorldMount::is_busy) {
            Some(mount) => Err(format!("mount {mount} waits: {:?}", self.mounts[mount])),
            None => {
                self.report.lost = self.net.lost;
                Ok(self.report)
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let until = self.net.now + self.dice.to(1, TICK);
        while let Some((from, to, message)) = self.net.next(until) {
            self.receive(from, to, message)?;
        }
        (0..self.proxies.len()).try_for_each(|at| self.tick_proxy(at))?;
        (0..self.mounts.len()).try_for_each(|at| self.tick_mount(at))?;
        if !self.is_healing {
            self.break_something();
        }
        Ok(())
    }

    fn receive(&mut self, from: Node, to: Node, message: Message) -> Result<(), String> {
        self.note(format!("{from:?} -> {to:?}: {message:?}"));
        match to {
            Node::Mount(at) => {
                self.mount_receives(at, from, message);
                Ok(())
            }
            Node::Proxy(at) => self.proxy_receives(at, from, message),
            Node::Authority => {
                self.authority_receives(from, message);
                Ok(())
            }
        }
    }

    fn break_something(&mut self) {
        let proxy = self.dice.to(0, self.proxies.len() as u64 - 1) as usize;
        match self.dice.to(0, 119) {
            0 => self.crash(proxy),
            1..=6 => self.restart(proxy),
            7 | 8 => {
                let other = match self.dice.to(0, 2) {
                    0 => Node::Authority,
                    1 => Node::Mount(self.dice.to(0, self.mounts.len() as u64 - 1) as usize),
                    _ => Node::Proxy(self.dice.to(0, self.proxies.len() as u64 - 1) as usize),
                };
                if other != Node::Proxy(proxy) {
                    self.net.cut(Node::Proxy(proxy), other);
                }
            }
            9 | 10 => self.net.heal(),
            11 => self.change_group(proxy),
            _ => {}
        }
    }

    /// What is executed at this instant: nobody else may believe what it breaks.
    fn execute(
        &mut self,
        object: ObjectId,
        access: ObjectAccess,
        by: usize,
    ) -> Result<Versions, String> {
        let names = access.name().is_some();
        for (mount, other) in self.mounts.iter().enumerate().filter(|(mount, _)| *mount != by) {
            let now = self.net.clock(Node::Mount(mount));
            for (proxy, held) in other.held.iter().enumerate() {
                let held = held.rest(now).map_or(LeaseKinds::NONE, |_| held.held(object));
                let believed = held.common(access.breaks());
                let kept = other.kept[proxy].get(&object).copied().unwrap_or_default();
                let is_kept =
                    access.name().is_some_and(|NameId(name)| kept.names[name as usize].is_some());
                let others = believed.without(LeaseKinds::NAMES);
                if !others.is_empty()
                    || (believed.contains(LeaseKinds::NAMES) && (!names || is_kept))
                {
                    return Err(format!(
                        "mount {mount} believes {believed:?} of {object:?} from proxy {proxy} while {access:?} of \
                         mount {by} is executed"
                    ));
                }
            }
        }
        self.report.executed += 1;
        self.note(format!("executed: {access:?} of {object:?} by mount {by}"));
        let truth = self.truth.get_mut(&object).expect("it is an object of the world");
        truth.change(access);
        Ok(*truth)
    }

    fn holder(mount: usize) -> HolderId {
        HolderId(mount as u32)
    }

    /// A span of the terms that is over by every clock.
    fn outlasts(&self, span: Nanos) -> Nanos {
        self.terms.outlasts(span)
    }
}

impl AddAssign for WorldReport {
    fn add_assign(&mut self, other: WorldReport) {
        self.local_reads += other.local_reads;
        self.executed += other.executed;
        self.recalls += other.recalls;
        self.lost += other.lost;
        self.crashes += other.crashes;
        self.epochs += other.epochs;
    }
}
