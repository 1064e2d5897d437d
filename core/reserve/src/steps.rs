//! The step function of one resource: what is taken of it at each time, and what it can give.
//!
//! ```text
//!   blocks   ├────── capacity A ──────┤├── capacity B ──┤├─ …      each at most 64 steps
//!   steps    0    2 ───┐
//!            └────┘    └──── 1 ──────── …                          (time, load from then on)
//!   costs    least and most of the block's steps
//! ```
//!
//! A search skips a block whose `most` cost leaves room, or whose `least` cost leaves none, and scans
//! the others. Invariants: the first step of the first block is at the begin of what is kept; steps
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

/// Where a search is: the clear run found last, and the place of its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FitCursor {
    from: u64,
    until: u64,
    block: usize,
    step: usize,
}

impl StepFunction {
    pub(crate) fn new(capacity: Capacity, from: u64) -> StepFunction {
        let steps = vec![Step { at: from, used: Load::NONE }];
        let block = StepBlock { capacity, least: 0, most: 0, steps };
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
        let begins: Vec<u64> = self.blocks[first..end].iter().map(StepBlock::begin).collect();
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
    pub(crate) fn next_window(
        &self,
        cursor: &mut FitCursor,
        start: u64,
        latest: u64,
        span: u64,
        load: Load,
    ) -> Option<u64> {
        if start > cursor.until || cursor.until == 0 {
            self.seek(cursor, start);
        }
        let mut found = start.max(cursor.from);
        while cursor.until < found.saturating_add(span) {
            if found > latest {
                return None;
            }
            let Some(block) = self.blocks.get(cursor.block) else {
                break;
            };
            let next = self.blocks.get(cursor.block + 1).map_or(u64::MAX, StepBlock::begin);
            block.advance(cursor, found.saturating_add(span), load, next);
            found = start.max(cursor.from);
        }
        // at the end of time there is no window
        (found <= latest && found < u64::MAX).then_some(found)
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
        self.blocks[0].begin()
    }

    fn change(&mut self, from: u64, until: u64, with: impl Fn(Load) -> Load) {
        if from >= until {
            return;
        }
        self.cut(from);
        self.cut(until);
        let mut at = self.block_at(from);
        while let Some(block) = self.blocks.get_mut(at).filter(|block| block.begin() < until) {
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
        let mut second = StepBlock { capacity: block.capacity, least: 0, most: 0, steps };
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
        self.blocks.partition_point(|block| block.begin() <= time).saturating_sub(1)
    }

    /// The first block that begins at a time or later.
    fn block_end(&self, time: u64) -> usize {
        if time == u64::MAX {
            return self.blocks.len();
        }
        self.blocks.partition_point(|block| block.begin() < time)
    }

    fn seek(&self, cursor: &mut FitCursor, time: u64) {
        let ahead = &self.blocks[cursor.block.min(self.blocks.len())..];
        let ahead = ahead.partition_point(|block| block.begin() <= time);
        cursor.block = (cursor.block + ahead).saturating_sub(1);
        cursor.step = self.blocks[cursor.block].step_at(time);
        (cursor.from, cursor.until) = (time, time);
    }
}

impl StepBlock {
    fn begin(&self) -> u64 {
        self.steps[0].at
    }

    fn last(&self) -> Load {
        self.steps[self.steps.len() - 1].used
    }

    /// The step that has a time; the first one for times before all.
    fn step_at(&self, time: u64) -> usize {
        self.steps.partition_point(|step| step.at <= time).saturating_sub(1)
    }

    /// Moves a cursor within the block, which ends at `next`, until the clear run ends at `enough` or
    /// later, a blocked step was passed, or the block ends.
    fn advance(&self, cursor: &mut FitCursor, enough: u64, load: Load, next: u64) {
        let room = self.capacity.whole().checked_sub(self.capacity.cost(load));
        let clear = room.is_some_and(|room| self.most <= room);
        if clear || room.is_none_or(|room| self.least > room) {
            (cursor.block, cursor.step, cursor.until) = (cursor.block + 1, 0, next);
        } else if let Some(room) = room {
            let fits = |step: &Step| self.capacity.cost(step.used) <= room;
            let ahead = &self.steps[cursor.step..];
            let was_clear = fits(&ahead[0]);
            let passed =
                |step: &&Step| fits(step) == was_clear && !(was_clear && step.at >= enough);
            cursor.step += ahead.iter().take_while(passed).count();
            cursor.until = self.steps.get(cursor.step).map_or(next, |step| step.at);
            if cursor.step == self.steps.len() {
                (cursor.block, cursor.step) = (cursor.block + 1, 0);
            }
            if was_clear {
                return;
            }
        }
        if !clear {
            cursor.from = cursor.until;
        }
    }

    fn recount(&mut self) {
        let capacity = self.capacity;
        let costs = self.steps.iter().map(|step| capacity.cost(step.used));
        (self.least, self.most) =
            costs.fold((u128::MAX, 0), |(least, most), cost| (least.min(cost), most.max(cost)));
    }
}

/// The most steps of a block.
const STEPS_OF_BLOCK: usize = 64;
