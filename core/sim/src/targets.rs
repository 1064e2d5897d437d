//! The model of a target, apart from the costs that its scheduler uses.
//!
//! ```text
//!   parallel   dispatched ─► p servers, first come first served beyond  ─► served
//!   shared     dispatched ─► all at once, each unit of width at min(1, p / all width) ─► served
//!   cached     dispatched ─► memory: always room                        ─► served, or a miss
//!   dirty      a write ─► room in the dirty budget? ─► served at memory speed
//!                                      └ pieces are written back beside everything else
//! ```
//!
//! A request occupies one server for the curve's time at its size. In the shared discipline that
//! time is cut into units of the smallest request, which run side by side: four units have a width
//! of four. Either way the target serves p / time(size) of them a second.
//!
//! Each target has a random generator of its own. A crash drops running requests; their events are
//! void.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use model::{Amount, Bytes, Nanos, OpKind, Time};
use sched::{CostMode, Costs, Curve, LaneCosts};

use crate::events::{SimEvent, SimEvents};
use crate::network::NicSpec;
use crate::prng::Prng;

/// A `[[target]]` of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct TargetSpec {
    pub(crate) name: String,
    /// The number of proxies.
    pub(crate) count: u32,
    /// Whether they are all in front of one device; otherwise each has its own.
    pub(crate) one_device: bool,
    /// D: the most slots that the scheduler may have in use.
    pub(crate) slots: u32,
    /// Slots of the cached lane.
    pub(crate) threads: u32,
    /// p: the number of requests that it serves at once.
    pub(crate) parallelism: u32,
    pub(crate) discipline: Discipline,
    /// The service time of a request on one of the p servers.
    pub(crate) device: LaneCosts,
    pub(crate) cached: LaneCosts,
    pub(crate) mode: CostMode,
    /// The costs of writes that the scheduler uses, where they differ from the real ones.
    pub(crate) believed_write: Option<Curve>,
    /// Whether it learns costs from requests that run alone.
    pub(crate) recalibrate: bool,
    /// The latency target that its scheduler meets by D.
    pub(crate) latency_target: Option<Nanos>,
    /// The costs that its scheduler uses; the real ones if none.
    pub(crate) assumed_costs: Option<Costs>,
    /// The relative bounds of random service times, shorter and longer.
    pub(crate) jitter_percent: u64,
    /// The additional time of a read or write after another client's.
    pub(crate) seek: Nanos,
    /// The percentage of reads that the page cache answers.
    pub(crate) hit_percent: u64,
    /// Written bytes that the page cache takes before they are on the device.
    pub(crate) dirty: Option<Bytes>,
    pub(crate) nic: NicSpec,
}

/// How requests at a target are served beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discipline {
    Parallel,
    Shared,
}

impl TargetSpec {
    /// The costs that its scheduler uses: a p-th of the time on a server.
    pub(crate) fn scheduled(&self) -> sched::TargetParams {
        let p = u64::from(self.parallelism);
        let part = |curve: &Curve| {
            let points: Vec<_> = curve
                .points()
                .map(|(size, time)| (size, Nanos::new((time.get() / p).max(1))))
                .collect();
            Curve::new(&points).expect("a p-th of times that rise does not fall")
        };
        let device = LaneCosts {
            read: part(&self.device.read),
            write: part(self.believed_write.as_ref().unwrap_or(&self.device.write)),
            ops: self.device.ops.map(|time| Nanos::new((time.get() / p).max(1))),
        };
        sched::TargetParams {
            name: self.name.clone(),
            slots_max: self.slots,
            threads: self.threads,
            costs: self.assumed_costs.clone().unwrap_or(Costs {
                cached: self.cached.clone(),
                device,
                mode: self.mode,
            }),
            latency: self.latency_target,
            recalibrate: self.recalibrate,
        }
    }

    /// How many of its servers a number of requests use that run at once, where each costs as much,
    /// and `unit` is what the smallest one costs.
    pub(crate) fn servers_busy(&self, requests: u32, cost: Nanos, unit: Nanos) -> u32 {
        let width = match self.discipline {
            Discipline::Parallel => 1,
            Discipline::Shared => cost.get().div_ceil(unit.get().max(1)),
        };
        let width = width.min(self.parallelism.into()) as u32;
        requests.saturating_mul(width).min(self.parallelism)
    }

    /// Whether the scheduler uses the configured costs, and learns none.
    pub(crate) fn is_settled(&self) -> bool {
        !self.recalibrate && self.latency_target.is_none()
    }
}

/// A request, or a piece that is written back, at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceId {
    /// Its index in the world's table, or [`FLUSH`].
    pub(crate) request: u32,
    /// Its stamp; of a piece that is written back, the life of the device.
    pub(crate) stamp: u32,
}

/// The simulated backend of one proxy at one target.
#[derive(Debug)]
pub(crate) struct SimDevice {
    spec: Arc<TargetSpec>,
    proxy: u32,
    prng: Prng,
    /// The slowdown in thousandths; 1000 without a fault.
    slowness: u64,
    last_stream: u32,
    epoch: u32,
    /// How often it crashed: earlier write-backs are void.
    lives: u32,
    busy: u32,
    waiting: VecDeque<(ServiceId, u64)>,
    shared: SharedService,
    dirty: u64,
    flushing: u32,
    stalled: VecDeque<(ServiceId, u64)>,
}

/// Requests that share the device, and the progress of a unit of width since the beginning.
#[derive(Debug, Default)]
struct SharedService {
    /// In 1024ths of a nanosecond.
    progress: u64,
    updated: Time,
    width: u64,
    running: BinaryHeap<Reverse<(u64, u64, ServiceId, u64)>>,
    count: u64,
}

/// A device whose write-back is one of these reads and writes at once.
const FLUSHERS: u32 = 4;
const FLUSH_PIECE: u64 = 1 << 20;
/// The id of a piece that is written back.
pub(crate) const FLUSH: u32 = u32::MAX;
const FINE: u64 = 1024;

impl SimDevice {
    pub(crate) fn new(spec: Arc<TargetSpec>, proxy: u32, seed: u64) -> SimDevice {
        SimDevice {
            spec,
            proxy,
            prng: Prng::of(seed, 0x7a67_0000_0000 + u64::from(proxy)),
            slowness: 1000,
            last_stream: u32::MAX,
            epoch: 0,
            lives: 0,
            busy: 0,
            waiting: VecDeque::new(),
            shared: SharedService::default(),
            dirty: 0,
            flushing: 0,
            stalled: VecDeque::new(),
        }
    }

    /// Whether the page cache answers the next request that tries it.
    pub(crate) fn hits(&mut self) -> bool {
        self.prng.below(100) < self.spec.hit_percent
    }

    /// Serves a request from memory.
    pub(crate) fn serve_cached(
        &mut self,
        ticket: ServiceId,
        kind: OpKind,
        amount: Amount,
        now: Time,
        events: &mut SimEvents,
    ) {
        let time = time_of(&self.spec.cached, kind, amount);
        events.push(now + Nanos::new(time), self.served(ticket));
    }

    /// Begins to serve; true if the request occupies the device, and then `ended` is due.
    pub(crate) fn serve(
        &mut self,
        ticket: ServiceId,
        kind: OpKind,
        amount: Amount,
        stream: u32,
        now: Time,
        events: &mut SimEvents,
    ) -> bool {
        if kind == OpKind::Write && self.spec.dirty.is_some() {
            self.stalled.push_back((ticket, amount.bytes.get()));
            self.admit_writes(now, events);
            return false;
        }
        let mut time = time_of(&self.spec.device, kind, amount);
        let width = self.width(time);
        if matches!(kind, OpKind::Read | OpKind::Write) && stream != self.last_stream {
            time += self.spec.seek.get();
            self.last_stream = stream;
        }
        self.occupy(ticket, time, width, now, events);
        true
    }

    /// Handles that one of the servers is free.
    pub(crate) fn ended(&mut self, now: Time, events: &mut SimEvents) {
        if self.spec.discipline == Discipline::Shared {
            return;
        }
        match self.waiting.pop_front() {
            Some((ticket, time)) => events.push(now + Nanos::new(time), self.served(ticket)),
            None => self.busy -= 1,
        }
    }

    /// Requests of the shared discipline that are served by now, one each call.
    pub(crate) fn next_served(&mut self, now: Time) -> Option<ServiceId> {
        self.progress(now);
        let Reverse((end, _, ticket, width)) = *self.shared.running.peek()?;
        if end > self.shared.progress + FINE {
            return None;
        }
        self.shared.running.pop();
        self.shared.width -= width;
        Some(ticket)
    }

    /// Schedules the next completion of the requests that share the device.
    pub(crate) fn arm(&mut self, now: Time, events: &mut SimEvents) {
        self.epoch += 1;
        let Some(Reverse((end, ..))) = self.shared.running.peek() else { return };
        let left = u128::from(end.saturating_sub(self.shared.progress));
        let p = u64::from(self.spec.parallelism);
        let span = match self.shared.width <= p {
            true => left.div_ceil(u128::from(FINE)),
            false => {
                (left * u128::from(self.shared.width)).div_ceil(u128::from(p) * u128::from(FINE))
            }
        };
        let event = SimEvent::Tick { proxy: self.proxy, epoch: self.epoch };
        events.push(now + Nanos::new(span as u64), event);
    }

    pub(crate) fn is_current(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    /// Handles that a piece is on the device: its bytes are clean.
    pub(crate) fn flushed(&mut self, life: u32, now: Time, events: &mut SimEvents) {
        if life != self.lives {
            return;
        }
        self.ended(now, events);
        self.flushing = self.flushing.saturating_sub(1);
        self.dirty = self.dirty.saturating_sub(FLUSH_PIECE);
        self.admit_writes(now, events);
    }

    /// Sets the slowdown of every request, in thousandths of its time.
    pub(crate) fn set_slowness(&mut self, thousandths: u64) {
        self.slowness = thousandths;
    }

    /// Drops all running and waiting requests.
    pub(crate) fn crash(&mut self) {
        self.epoch += 1;
        self.lives += 1;
        self.busy = 0;
        self.waiting.clear();
        self.shared = SharedService::default();
        (self.dirty, self.flushing) = (0, 0);
        self.stalled.clear();
    }

    fn occupy(
        &mut self,
        ticket: ServiceId,
        time: u64,
        width: u64,
        now: Time,
        events: &mut SimEvents,
    ) {
        let spread = self.spec.jitter_percent;
        let percent = match spread {
            0 => 10_000,
            _ => 10_000 - spread * 100 + self.prng.below(200 * spread + 1),
        };
        let time = u128::from(time) * u128::from(percent) * u128::from(self.slowness) / 10_000_000;
        let time = (time as u64).max(1);
        match self.spec.discipline {
            Discipline::Parallel if self.busy < self.spec.parallelism => {
                self.busy += 1;
                events.push(now + Nanos::new(time), self.served(ticket));
            }
            Discipline::Parallel => self.waiting.push_back((ticket, time)),
            Discipline::Shared => {
                self.progress(now);
                let shared = &mut self.shared;
                shared.count += 1;
                shared.width += width;
                let end = shared.progress + time * FINE / width;
                shared.running.push(Reverse((end, shared.count, ticket, width)));
                self.arm(now, events);
            }
        }
    }

    /// Units of the smallest read that a request of the shared discipline is cut into.
    fn width(&self, time: u64) -> u64 {
        match self.spec.discipline {
            Discipline::Parallel => 1,
            Discipline::Shared => {
                let unit = self.spec.device.read.at(Bytes::ZERO).get();
                time.div_ceil(unit).clamp(1, u64::from(self.spec.parallelism))
            }
        }
    }

    fn served(&self, ticket: ServiceId) -> SimEvent {
        match ticket {
            ServiceId { request: FLUSH, stamp } => {
                SimEvent::Flushed { proxy: self.proxy, life: stamp }
            }
            ServiceId { request, stamp } => SimEvent::Served { request, stamp },
        }
    }

    fn progress(&mut self, now: Time) {
        let shared = &mut self.shared;
        let span = u128::from(now.since(shared.updated).get()) * u128::from(FINE);
        shared.updated = now;
        let p = u64::from(self.spec.parallelism);
        let span = match shared.width <= p {
            true => span,
            false => span * u128::from(p) / u128::from(shared.width),
        };
        shared.progress += span as u64;
    }

    /// Lets writes into the page cache while there is room, and starts write-backs.
    fn admit_writes(&mut self, now: Time, events: &mut SimEvents) {
        let budget = self.spec.dirty.map_or(0, Bytes::get);
        while let Some((ticket, bytes)) = self.stalled.front().copied() {
            // A write larger than the whole budget goes when nothing is dirty.
            if self.dirty > 0 && self.dirty + bytes > budget {
                break;
            }
            self.stalled.pop_front();
            self.dirty += bytes;
            let time = self.spec.cached.write.at(Bytes::new(bytes));
            events.push(now + time, self.served(ticket));
        }
        while self.flushing < FLUSHERS && u64::from(self.flushing) * FLUSH_PIECE < self.dirty {
            self.flushing += 1;
            let time = self.spec.device.write.at(Bytes::new(FLUSH_PIECE)).get();
            let width = self.width(time);
            let ticket = ServiceId { request: FLUSH, stamp: self.lives };
            self.occupy(ticket, time, width, now, events);
        }
    }
}

fn time_of(costs: &LaneCosts, kind: OpKind, amount: Amount) -> u64 {
    match kind {
        OpKind::Read => costs.read.at(amount.bytes).get(),
        OpKind::Write => costs.write.at(amount.bytes).get(),
        _ => costs.ops[kind as usize].get().max(1).saturating_mul(amount.ops.get().max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(discipline: Discipline, parallelism: u32) -> SimDevice {
        let points = [(4, 1000), (8, 2000)].map(|(b, n)| (Bytes::kib(b), Nanos::new(n)));
        let curve = Curve::new(&points).unwrap();
        let costs =
            LaneCosts { read: curve.clone(), write: curve, ops: [Nanos::new(1000); OpKind::COUNT] };
        let spec = TargetSpec {
            name: "t".into(),
            count: 1,
            one_device: false,
            slots: 10,
            threads: 10,
            parallelism,
            discipline,
            device: costs,
            cached: Costs::default().cached,
            mode: CostMode::Calibrated,
            believed_write: None,
            recalibrate: false,
            latency_target: None,
            assumed_costs: None,
            jitter_percent: 0,
            seek: Nanos::ZERO,
            hit_percent: 0,
            dirty: None,
            nic: NicSpec::default(),
        };
        SimDevice::new(Arc::new(spec), 0, 1)
    }

    /// When each of these requests, in units of 4 KiB, is served if all begin at zero.
    fn ends(device: &mut SimDevice, units: &[u64]) -> Vec<(u32, u64)> {
        let mut events = SimEvents::default();
        for (request, units) in units.iter().enumerate() {
            let amount = Amount::new(units * 4096, 1);
            let ticket = ServiceId { request: request as u32, stamp: 0 };
            device.serve(ticket, OpKind::Read, amount, 0, Time::ZERO, &mut events);
        }
        let mut ends = Vec::new();
        while let Some((now, event)) = events.pop(Time::MAX) {
            match event {
                SimEvent::Served { request, .. } => {
                    ends.push((request, now.as_nanos()));
                    device.ended(now, &mut events);
                }
                SimEvent::Tick { epoch, .. } if device.is_current(epoch) => {
                    while let Some(ServiceId { request, .. }) = device.next_served(now) {
                        ends.push((request, now.as_nanos()));
                    }
                    device.arm(now, &mut events);
                }
                _ => {}
            }
        }
        ends
    }

    #[test]
    fn parallel_servers_take_requests_as_they_come() {
        let mut two = device(Discipline::Parallel, 2);
        let got = ends(&mut two, &[1, 4, 1, 1]);
        assert_eq!(got, [(0, 1000), (2, 2000), (3, 3000), (1, 4000)]);
    }

    #[test]
    fn what_shares_a_device_slows_down_by_its_width() {
        // The table of SFQ(D): two of one unit and eight of four at ten servers take 3.4 units.
        let mut ten = device(Discipline::Shared, 10);
        let got = ends(&mut ten, &[1, 1, 4, 4, 4, 4, 4, 4, 4, 4]);
        assert!(got.iter().all(|(_, end)| end.abs_diff(3400) <= 1), "{got:?}");
        // Ten units side by side are as fast as one alone.
        let mut ten = device(Discipline::Shared, 10);
        let got = ends(&mut ten, &[1, 1, 4, 4]);
        assert!(got.iter().all(|(_, end)| *end == 1000), "{got:?}");
        // One that is wider than the device has all of it.
        let mut ten = device(Discipline::Shared, 10);
        assert_eq!(ends(&mut ten, &[20]), [(0, 2000)]);
    }

    #[test]
    fn a_slow_device_takes_longer_for_what_begins() {
        let mut one = device(Discipline::Parallel, 1);
        one.set_slowness(2500);
        assert_eq!(ends(&mut one, &[1, 2]), [(0, 2500), (1, 7500)]);
    }
}
