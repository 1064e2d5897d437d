//! The step function of one resource: what is taken of it at each time, and what it can give.
//!
//! ```text
//!   begins   |                        |                 |          in one array
//!   blocks   ├────── capacity A ──────┤├── capacity B ──┤├─ …      each at most 32 steps
//!   steps    0    2 ───┐
//!            └────┘    └──── 1 ──────── …                          times, and loads from then on
//!   costs    least and most of the block's steps
//! ```
//!
//! A search does not read the loads of a block whose `most` cost leaves room, or whose `least` cost
//! leaves none. Most of its time is waiting for memory while it looks for the step at a time: so the
//! begins of blocks are in one array, and the times of a block in another one than its loads.
//! Invariants: the first step of the first block is at the begin of what is kept; steps
//! are in order of time; neighbours within a block differ; a block has one capacity; `least` and
//! `most` are those of its steps.

use crate::load::{Capacity, Load};

/// A step function; times are nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct StepFunction {
    /// The time of the first step of each block.
    begins: Vec<u64>,
    blocks: Vec<StepBlock>,
    steps: usize,
}

#[derive(Clone, Debug)]
struct StepBlock {
    capacity: Capacity,
    least: u128,
    most: u128,
    /// When each step begins.
    times: Vec<u64>,
    /// The load from then on, until the next step.
    loads: Vec<Load>,
}

/// Where a search is: [from, until) is known to be clear, and `next` is the first step that is not
/// known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FitCursor {
    from: u64,
    until: u64,
    next: StepPlace,
}

/// The place of a step: its block, and its place in the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct StepPlace {
    block: usize,
    step: usize,
}

impl StepFunction {
    pub(crate) fn new(capacity: Capacity, from: u64) -> StepFunction {
        let (times, loads) = (vec![from], vec![Load::NONE]);
        let block = StepBlock { capacity, least: 0, most: 0, times, loads };
        StepFunction { begins: vec![from], blocks: vec![block], steps: 1 }
    }

    /// Adds a load on [from, until). O(log steps + steps in the span).
    pub(crate) fn add(&mut self, from: u64, until: u64, load: Load) {
        self.change(from, until, |used| used.plus(load));
    }

    /// Removes a load that was added on [from, until), except what is forgotten of it.
    pub(crate) fn remove(&mut self, from: u64, until: u64, load: Load) {
        self.change(from.max(self.begin()), until, |used| used.minus(load));
    }

    /// Sets the capacity on [from, until).
    pub(crate) fn set_capacity(&mut self, from: u64, until: u64, capacity: Capacity) {
        let from = from.max(self.begin());
        if from >= until {
            return;
        }
        self.cut_block(from);
        self.cut_block(until);
        let (first, end) = (self.block_at(from), self.block_end(until));
        for block in &mut self.blocks[first..end] {
            block.capacity = capacity;
            block.recount();
        }
        let begins = self.begins[first..end].to_vec();
        begins.into_iter().chain([until]).for_each(|at| self.join(at));
    }

    /// Drops what is before a time. O(blocks).
    pub(crate) fn forget_before(&mut self, time: u64) {
        if time <= self.begin() || time == u64::MAX {
            return;
        }
        let first = self.block_at(time);
        self.begins.drain(..first);
        self.steps -= self.blocks.drain(..first).map(|block| block.times.len()).sum::<usize>();
        let block = &mut self.blocks[0];
        let step = block.step_at(time);
        self.steps -= block.times.drain(..step).count();
        block.loads.drain(..step);
        block.times[0] = time;
        block.recount();
        self.begins[0] = time;
    }

    /// The first start, from `start` to `latest`, of a span in which `load` fits beside what is
    /// taken. Calls with one cursor must not go back in time.
    ///
    /// A window is read from its end: the last step that is blocked tells the next start, and what
    /// is before it is never read (as Boyer and Moore skip in a text, CACM 1977).
    pub(crate) fn next_window(
        &self,
        cursor: &mut FitCursor,
        start: u64,
        latest: u64,
        span: u64,
        load: Load,
    ) -> Option<u64> {
        if start >= cursor.until {
            cursor.next = self.last_before(cursor.next, start.saturating_add(1));
            (cursor.from, cursor.until) = (start, start);
        }
        let mut start = start.max(cursor.from);
        while start <= latest && start < u64::MAX {
            let end = start.saturating_add(span);
            if cursor.until >= end {
                return Some(start);
            }
            let last = self.last_before(cursor.next, end);
            if let Some(blocked) = self.last_blocked(cursor.next, last, load) {
                start = self.end_of(blocked);
                cursor.from = start;
            }
            cursor.until = self.end_of(last);
            cursor.next = self.after(last);
        }
        None
    }

    /// Calls `visit` with the begin, load and capacity of each step in [from, until), until it
    /// returns true. The begin of the first is not before `from`.
    pub(crate) fn each_step(
        &self,
        from: u64,
        until: u64,
        mut visit: impl FnMut(u64, Load, Capacity) -> bool,
    ) {
        let first = self.block_at(from);
        for block in &self.blocks[first..] {
            let begin = block.step_at(from);
            for (at, used) in block.times[begin..].iter().zip(&block.loads[begin..]) {
                if *at >= until || visit(from.max(*at), *used, block.capacity) {
                    return;
                }
            }
        }
    }

    /// How many steps it has.
    pub(crate) fn len(&self) -> usize {
        self.steps
    }

    /// The time before which nothing is kept.
    pub(crate) fn begin(&self) -> u64 {
        self.begins[0]
    }

    fn change(&mut self, from: u64, until: u64, with: impl Fn(Load) -> Load) {
        if from >= until {
            return;
        }
        self.cut(from);
        self.cut(until);
        let mut at = self.block_at(from);
        while self.begins.get(at).is_some_and(|begin| *begin < until) {
            let block = &mut self.blocks[at];
            let (begin, end) = (block.steps_before(from), block.steps_before(until));
            block.loads[begin..end].iter_mut().for_each(|used| *used = with(*used));
            block.recount();
            at += 1;
        }
        self.join(until);
        self.join(from);
    }

    /// Makes `at` the begin of a step.
    fn cut(&mut self, at: u64) {
        if at <= self.begin() || at == u64::MAX {
            return;
        }
        let number = self.block_at(at);
        let block = &mut self.blocks[number];
        let step = block.step_at(at);
        if block.times[step] == at {
            return;
        }
        block.times.insert(step + 1, at);
        block.loads.insert(step + 1, block.loads[step]);
        self.steps += 1;
        if block.times.len() > STEPS_OF_BLOCK {
            self.split(number, STEPS_OF_BLOCK / 2);
        }
    }

    /// Makes `at` the begin of a block.
    fn cut_block(&mut self, at: u64) {
        self.cut(at);
        let number = self.block_at(at);
        let step = self.blocks[number].step_at(at);
        if step > 0 && at != u64::MAX {
            self.split(number, step);
        }
    }

    fn split(&mut self, number: usize, at: usize) {
        let block = &mut self.blocks[number];
        let mut times = Vec::with_capacity(STEPS_OF_BLOCK + 1);
        let mut loads = Vec::with_capacity(STEPS_OF_BLOCK + 1);
        times.extend(block.times.drain(at..));
        loads.extend(block.loads.drain(at..));
        block.recount();
        let capacity = block.capacity;
        let mut second = StepBlock { capacity, least: 0, most: 0, times, loads };
        second.recount();
        self.begins.insert(number + 1, second.times[0]);
        self.blocks.insert(number + 1, second);
    }

    /// Removes the boundary at a time if it is none, and joins small blocks there.
    fn join(&mut self, at: u64) {
        if at <= self.begin() || at == u64::MAX {
            return;
        }
        let number = self.block_at(at);
        let block = &self.blocks[number];
        let step = block.step_at(at);
        if block.times[step] != at {
            return;
        }
        let before = match step {
            0 if self.blocks[number - 1].capacity != block.capacity => return,
            0 => self.blocks[number - 1].last(),
            step => block.loads[step - 1],
        };
        if before == block.loads[step] {
            let block = &mut self.blocks[number];
            block.times.remove(step);
            block.loads.remove(step);
            self.steps -= 1;
            if block.times.is_empty() {
                self.blocks.remove(number);
                self.begins.remove(number);
                return;
            }
            block.recount();
            self.begins[number] = block.times[0];
        }
        self.join_blocks(number);
        if number > 0 {
            self.join_blocks(number - 1);
        }
    }

    /// Joins a block with the next one if they are small and alike.
    fn join_blocks(&mut self, number: usize) {
        let Some([block, next]) = self.blocks.get_mut(number..number + 2) else {
            return;
        };
        let is_small = block.times.len() + next.times.len() <= STEPS_OF_BLOCK / 2;
        if !is_small || block.capacity != next.capacity {
            return;
        }
        block.times.append(&mut next.times);
        block.loads.append(&mut next.loads);
        block.recount();
        self.blocks.remove(number + 1);
        self.begins.remove(number + 1);
    }

    /// The block that has a time; the first one for times before all.
    fn block_at(&self, time: u64) -> usize {
        self.begins.partition_point(|begin| *begin <= time).saturating_sub(1)
    }

    /// The first block that begins at a time or later.
    fn block_end(&self, time: u64) -> usize {
        if time == u64::MAX {
            return self.blocks.len();
        }
        self.begins.partition_point(|begin| *begin < time)
    }

    /// The last step that begins before a time, from a step on.
    fn last_before(&self, from: StepPlace, time: u64) -> StepPlace {
        let ahead = &self.begins[from.block + 1..];
        // the block is mostly one of the next ones
        let near = ahead.iter().take(NEAR).take_while(|begin| **begin < time).count();
        let far = || ahead.partition_point(|begin| *begin < time);
        let block = from.block + if near < NEAR { near } else { far() };
        let first = if block == from.block { from.step } else { 0 };
        let count = self.blocks[block].steps_before(time);
        StepPlace { block, step: count.saturating_sub(1).max(first) }
    }

    /// The last step from `first` to `last`, both included, at which a load does not fit.
    fn last_blocked(&self, first: StepPlace, last: StepPlace, load: Load) -> Option<StepPlace> {
        for number in (first.block..=last.block).rev() {
            let block = &self.blocks[number];
            let begin = if number == first.block { first.step } else { 0 };
            let end = if number == last.block { last.step + 1 } else { block.times.len() };
            if let Some(step) = block.last_blocked(begin, end, load) {
                return Some(StepPlace { block: number, step });
            }
        }
        None
    }

    fn after(&self, place: StepPlace) -> StepPlace {
        let StepPlace { block, step } = place;
        if step + 1 < self.blocks[block].times.len() {
            StepPlace { block, step: step + 1 }
        } else {
            StepPlace { block: block + 1, step: 0 }
        }
    }

    fn end_of(&self, place: StepPlace) -> u64 {
        let next = self.after(place);
        self.blocks.get(next.block).map_or(u64::MAX, |block| block.times[next.step])
    }
}

impl StepBlock {
    fn last(&self) -> Load {
        self.loads[self.loads.len() - 1]
    }

    /// The step that has a time; the first one for times before all.
    fn step_at(&self, time: u64) -> usize {
        self.times.partition_point(|at| *at <= time).saturating_sub(1)
    }

    /// How many steps begin before a time. All are compared: a search that halves them waits for each
    /// answer before it knows what to read next.
    fn steps_before(&self, time: u64) -> usize {
        self.times.iter().map(|at| usize::from(*at < time)).sum()
    }

    /// The last of some steps at which a load does not fit.
    fn last_blocked(&self, begin: usize, end: usize, load: Load) -> Option<usize> {
        let room = self.capacity.whole().checked_sub(self.capacity.cost(load));
        match room {
            Some(room) if self.most <= room => None,
            Some(room) if self.least <= room => {
                let loads = &self.loads[begin..end];
                let last = loads.iter().rposition(|used| self.capacity.cost(*used) > room);
                last.map(|last| begin + last)
            }
            _ => end.checked_sub(1).filter(|last| *last >= begin),
        }
    }

    fn recount(&mut self) {
        let capacity = self.capacity;
        let costs = self.loads.iter().map(|used| capacity.cost(*used));
        (self.least, self.most) =
            costs.fold((u128::MAX, 0), |(least, most), cost| (least.min(cost), most.max(cost)));
    }
}

/// The most steps of a block.
const STEPS_OF_BLOCK: usize = 32;
/// How many begins of blocks are read in turn before the others are searched by halves.
const NEAR: usize = 16;
