//! Queries that are answered beside the dispatcher: some at once, then at a limited rate for each
//! caller.
//!
//! ```text
//!   submit(caller, query) ─► due: now, or when the caller's allowance permits ─► next(now): earliest first
//!                         └─► refused: too many wait
//! ```
//!
//! The allowance is what a meter charges to ([`Pacer`], the generic cell rate algorithm of ITU-T
//! I.371). Each query moves a caller's due time on by the interval, and may be answered `burst` - 1
//! intervals before it. What that algorithm refuses in other uses waits here.

use std::collections::BTreeMap;

use model::{Nanos, Rate, Share, Time};

use crate::pacer::Pacer;

/// Queries of callers `K` that wait for their turn.
#[derive(Debug)]
pub struct Turns<K, Q> {
    rate: Rate,
    /// The interval between two queries of a caller in the long run, and how far ahead of that a
    /// caller may be.
    interval: Nanos,
    ahead: Nanos,
    /// Callers with queries here, or with one so recent that it still counts.
    callers: BTreeMap<K, Allowance>,
    /// By due time, then by arrival.
    waiting: BTreeMap<(Time, u64), (K, Q)>,
    queries: u64,
    /// When callers were forgotten last.
    last_sweep: Time,
}

#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// When the next query would be due if they came evenly.
    pacer: Pacer,
    waiting: usize,
}

impl<K: Ord + Clone, Q> Turns<K, Q> {
    /// Creates a queue: a caller may send `burst` queries at once (1 at least), and in the long run
    /// as many as the rate allows.
    pub fn new(rate: Rate, burst: u32) -> Turns<K, Q> {
        let pacer = Pacer::new(rate, Share::WHOLE);
        let span = |count: u32| Nanos::new(pacer.time_of(count.into()).0);
        let (interval, ahead) = (span(1), span(burst.saturating_sub(1)));
        let (callers, waiting) = (BTreeMap::new(), BTreeMap::new());
        Turns { rate, interval, ahead, callers, waiting, queries: 0, last_sweep: Time::ZERO }
    }

    /// Adds a query. It is returned if 16 of this caller or 1,024 of all wait, or if 4,096 callers
    /// have sent one recently.
    pub fn submit(&mut self, caller: K, question: Q, now: Time) -> Result<(), Q> {
        self.sweep(now);
        let known = self.callers.get(&caller).copied();
        let room = self.waiting.len() < ALL_MAX
            && match known {
                Some(allowance) => allowance.waiting < WAITING_MAX,
                None => self.callers.len() < CALLERS_MAX,
            };
        if !room {
            return Err(question);
        }
        let fresh = || Allowance { pacer: Pacer::new(self.rate, Share::WHOLE), waiting: 0 };
        let mut allowance = known.unwrap_or_else(fresh);
        let due = now.max(allowance.pacer.due().before(self.ahead));
        allowance.pacer.charge(1, Some(0), due);
        allowance.waiting += 1;
        self.callers.insert(caller.clone(), allowance);
        self.queries += 1;
        self.waiting.insert((due, self.queries), (caller, question));
        Ok(())
    }

    /// The query that is due next, if it is due.
    pub fn next(&mut self, now: Time) -> Option<Q> {
        if self.next_due()? > now {
            return None;
        }
        let (_, (caller, question)) = self.waiting.pop_first()?;
        if let Some(allowance) = self.callers.get_mut(&caller) {
            allowance.waiting -= 1;
        }
        Some(question)
    }

    /// When the next query is due.
    pub fn next_due(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// Forgets callers without queries and with a full allowance, once an interval at most.
    fn sweep(&mut self, now: Time) {
        if self.callers.len() < CALLERS_MAX / 2 || now.since(self.last_sweep) < self.interval {
            return;
        }
        self.last_sweep = now;
        self.callers.retain(|_, allowance| allowance.waiting > 0 || allowance.pacer.due() > now);
    }
}

/// The most queries of one caller that wait.
const WAITING_MAX: usize = 16;
/// The most queries of all callers that wait.
const ALL_MAX: usize = 1_024;
/// The most callers that are remembered.
const CALLERS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn turns() -> Turns<u32, u32> {
        Turns::new(Rate::ops_per_sec(10).unwrap(), 4)
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn a_burst_is_answered_at_once_and_the_rest_evenly() {
        let mut turns = turns();
        (0..6).for_each(|question| turns.submit(1, question, at(1_000)).unwrap());
        let mut answered = Vec::new();
        for ms in 1_000..2_000 {
            answered
                .extend(std::iter::from_fn(|| turns.next(at(ms))).map(|question| (question, ms)));
        }
        let at_once = (0..4).map(|question| (question, 1_000));
        assert_eq!(answered, at_once.chain([(4, 1_100), (5, 1_200)]).collect::<Vec<_>>());
        assert_eq!(turns.next_due(), None);
    }

    #[test]
    fn whoever_asks_much_keeps_nobody_else_waiting() {
        let mut turns = turns();
        (0..16).for_each(|question| turns.submit(1, question, at(0)).unwrap());
        turns.submit(2, 100, at(0)).unwrap();
        let now: Vec<_> = std::iter::from_fn(|| turns.next(at(0))).collect();
        assert_eq!(now, [0, 1, 2, 3, 100]);
    }

    #[test]
    fn what_is_too_much_comes_back_and_later_there_is_room() {
        let mut turns = turns();
        (0..WAITING_MAX as u32).for_each(|question| turns.submit(1, question, at(0)).unwrap());
        assert_eq!(turns.submit(1, 99, at(0)), Err(99));
        assert_eq!(turns.next(at(0)), Some(0));
        turns.submit(1, 99, at(0)).unwrap();
        let callers = (ALL_MAX - WAITING_MAX) as u32;
        (0..callers).for_each(|caller| turns.submit(10 + caller, 0, at(0)).unwrap());
        assert_eq!(turns.submit(9, 7, at(0)), Err(7), "all together");
    }

    #[test]
    fn callers_are_bounded_and_forgotten_once_they_have_their_allowance() {
        let mut turns = turns();
        for caller in 0..CALLERS_MAX as u32 {
            turns.submit(caller, 0, at(0)).unwrap();
            turns.next(at(0)).unwrap();
        }
        assert_eq!(turns.submit(u32::MAX, 7, at(50)), Err(7), "no caller has a full allowance yet");
        turns.submit(u32::MAX, 7, at(100)).unwrap();
        assert_eq!(turns.callers.len(), 1);
    }
}
