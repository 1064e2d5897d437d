//! The step function of one resource: what is taken of it at each time, and what it can give.
//!
//! ```text
//!   blocks   ├────── capacity A ──────┤├── capacity B ──┤├─ …      each at most 64 steps
//!   steps    0    2 ───┐
//!            └────┘    └──── 1 ──────── …                          (time, load from then on)
//!   costs    least and most of the block's steps
//! ```
//!
//! A search does not read the steps of a block whose `most` cost leaves room, or whose `least` cost
//! leaves none. Invariants: the first step of the first block is at the begin of what is kept; steps
//! are in order of time; neighbours within a block differ; a block has one capacity; `least` and
//! `most` are those of its steps.

use crate::load::{Capacity, Load};

/// A step function; times are nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct StepFunction {
    blocks: Vec<StepBlock>,
    steps: usize,
}

#[derive(Clone, Debug)]
struct StepBlock {
    /// The time of the first step.
    begin: u64,
    capacity: Capacity,
    least: u128,
    most: u128,
    steps: Vec<Step>,
}

/// A load from a time on, until the next step.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: u64,
    used: Load,
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
        let steps = vec![Step { at: from, used: Load::NONE }];
        let block = StepBlock { begin: from, capacity, least: 0, most: 0, steps };
        StepFunction { blocks: vec![block], steps: 1 }
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
        let begins: Vec<u64> = self.blocks[first..end].iter().map(|block| block.begin).collect();
        begins.into_iter().chain([until]).for_each(|at| self.join(at));
    }

    /// Drops what is before a time. O(blocks).
    pub(crate) fn forget_before(&mut self, time: u64) {
        if time <= self.begin() || time == u64::MAX {
            return;
        }
        let first = self.block_at(time);
        self.steps -= self.blocks.drain(..first).map(|block| block.steps.len()).sum::<usize>();
        let block = &mut self.blocks[0];
        let step = block.step_at(time);
        self.steps -= block.steps.drain(..step).count();
        block.steps[0].at = time;
        block.recount();
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
            for step in &block.steps[begin..] {
                if step.at >= until || visit(step.at.max(from), step.used, block.capacity) {
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
        self.blocks[0].begin
    }

    fn change(&mut self, from: u64, until: u64, with: impl Fn(Load) -> Load) {
        if from >= until {
            return;
        }
        self.cut(from);
        self.cut(until);
        let mut at = self.block_at(from);
        while let Some(block) = self.blocks.get_mut(at).filter(|block| block.begin < until) {
            let begin = block.steps.partition_point(|step| step.at < from);
            let end = block.steps.partition_point(|step| step.at < until);
            block.steps[begin..end].iter_mut().for_each(|step| step.used = with(step.used));
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
        if block.steps[step].at == at {
            return;
        }
        let used = block.steps[step].used;
        block.steps.insert(step + 1, Step { at, used });
        self.steps += 1;
        if self.blocks[number].steps.len() > STEPS_OF_BLOCK {
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
        let mut steps = Vec::with_capacity(STEPS_OF_BLOCK + 1);
        steps.extend(block.steps.drain(at..));
        block.recount();
        let capacity = block.capacity;
        let mut second = StepBlock { begin: 0, capacity, least: 0, most: 0, steps };
        second.recount();
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
        if block.steps[step].at != at {
            return;
        }
        let before = match step {
            0 if self.blocks[number - 1].capacity != block.capacity => return,
            0 => self.blocks[number - 1].last(),
            step => block.steps[step - 1].used,
        };
        if before == block.steps[step].used {
            let block = &mut self.blocks[number];
            block.steps.remove(step);
            self.steps -= 1;
            if block.steps.is_empty() {
                self.blocks.remove(number);
                return;
            }
            block.recount();
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
        let is_small = block.steps.len() + next.steps.len() <= STEPS_OF_BLOCK / 2;
        if !is_small || block.capacity != next.capacity {
            return;
        }
        block.steps.append(&mut next.steps);
        block.recount();
        self.blocks.remove(number + 1);
    }

    /// The block that has a time; the first one for times before all.
    fn block_at(&self, time: u64) -> usize {
        self.blocks.partition_point(|block| block.begin <= time).saturating_sub(1)
    }

    /// The first block that begins at a time or later.
    fn block_end(&self, time: u64) -> usize {
        if time == u64::MAX {
            return self.blocks.len();
        }
        self.blocks.partition_point(|block| block.begin < time)
    }

    /// The last step that begins before a time, from a step on.
    fn last_before(&self, from: StepPlace, time: u64) -> StepPlace {
        let ahead = &self.blocks[from.block + 1..];
        // steps that double: the block is mostly near, and each one that is read is a cache miss
        let mut bound = 1;
        while ahead.get(bound - 1).is_some_and(|block| block.begin < time) {
            bound *= 2;
        }
        let near = &ahead[bound / 2..bound.min(ahead.len()).max(bound / 2)];
        let block = from.block + bound / 2 + near.partition_point(|block| block.begin < time);
        let first = if block == from.block { from.step } else { 0 };
        let ahead = &self.blocks[block].steps[first..];
        let count = ahead.partition_point(|step| step.at < time);
        StepPlace { block, step: (first + count).saturating_sub(1).max(first) }
    }

    /// The last step from `first` to `last`, both included, at which a load does not fit.
    fn last_blocked(&self, first: StepPlace, last: StepPlace, load: Load) -> Option<StepPlace> {
        for number in (first.block..=last.block).rev() {
            let block = &self.blocks[number];
            let begin = if number == first.block { first.step } else { 0 };
            let end = if number == last.block { last.step + 1 } else { block.steps.len() };
            if let Some(step) = block.last_blocked(begin, end, load) {
                return Some(StepPlace { block: number, step });
            }
        }
        None
    }

    fn after(&self, place: StepPlace) -> StepPlace {
        let StepPlace { block, step } = place;
        if step + 1 < self.blocks[block].steps.len() {
            StepPlace { block, step: step + 1 }
        } else {
            StepPlace { block: block + 1, step: 0 }
        }
    }

    fn end_of(&self, place: StepPlace) -> u64 {
        let next = self.after(place);
        self.blocks.get(next.block).map_or(u64::MAX, |block| block.steps[next.step].at)
    }
}

impl StepBlock {
    fn last(&self) -> Load {
        self.steps[self.steps.len() - 1].used
    }

    /// The step that has a time; the first one for times before all.
    fn step_at(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.at <= time).saturating_sub(1)
    }

    /// The last of some steps at which a load does not fit.
    fn last_blocked(&self, begin: usize, end: usize, load: Load) -> Option<usize> {
        let room = self.capacity.whole().checked_sub(self.capacity.cost(load));
        match room {
            Some(room) if self.most <= room => None,
            Some(room) if self.least <= room => {
                let steps = &self.steps[begin..end];
                let last = steps.iter().rposition(|step| self.capacity.cost(step.used) > room);
                last.map(|last| begin + last)
            }
            _ => end.checked_sub(1).filter(|last| *last >= begin),
        }
    }

    fn recount(&mut self) {
        let capacity = self.capacity;
        self.begin = self.steps[0].at;
        let costs = self.steps.iter().map(|step| capacity.cost(step.used));
        (self.least, self.most) =
            costs.fold((u128::MAX, 0), |(least, most), cost| (least.min(cost), most.max(cost)));
    }
}

/// The most steps of a block.
const STEPS_OF_BLOCK: usize = 64;
