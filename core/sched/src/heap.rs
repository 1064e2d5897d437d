//! A 4-ary heap with the position of each item, so that any item can be moved or removed in O(log
//! n).
//!
//! ```text
//!   entries:   [ (key, item) ]  keys inline: a sift reads no other memory
//!   positions: item ─► index    one dense table, shared by heaps that never hold an item twice
//! ```
//!
//! Four children, because a sift down then touches half the levels of a binary
//! heap and each group of children lies in two cache lines. Smaller keys come
//! first; callers make keys unique, so the order never depends on the history.
//!
//! Invariant: `places[entries[i].item] == i`, and every other item's place is [`NOWHERE`].

use std::hint::select_unpredictable;

/// The position of an item that is in no heap.
const NOWHERE: u32 = u32::MAX;
const CHILDREN: usize = 4;

/// The position of each item in the one heap that contains it.
#[derive(Debug, Default)]
pub(crate) struct HeapPositions(Vec<u32>);

/// The heap; its positions are kept beside it and passed to each call.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    entries: Vec<HeapEntry>,
}

/// The key in two halves: 24 bytes instead of 32, so that a group of children spans fewer
/// cache lines.
#[derive(Clone, Copy, Debug)]
struct HeapEntry {
    high: u64,
    low: u64,
    item: u32,
}

impl HeapEntry {
    fn key(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

impl HeapPositions {
    /// Makes room for items below `count`.
    pub(crate) fn grow(&mut self, count: usize) {
        if self.0.len() < count {
            self.0.resize(count, NOWHERE);
        }
    }

    /// Whether `item` is in a heap.
    pub(crate) fn holds(&self, item: u32) -> bool {
        self.0[item as usize] != NOWHERE
    }
}

impl Heap {
    /// Adds `item`, or moves it to `key` if it is already here.
    #[inline]
    pub(crate) fn put(&mut self, key: u128, item: u32, places: &mut HeapPositions) {
        let place = places.0[item as usize];
        if place == NOWHERE {
            self.entries.push(HeapEntry { high: 0, low: 0, item });
            self.sift_up(self.entries.len() - 1, key, item, places);
        } else {
            self.replace(place as usize, key, item, places);
        }
    }

    /// Takes `item` out; it must be here.
    pub(crate) fn remove(&mut self, item: u32, places: &mut HeapPositions) {
        let place = places.0[item as usize] as usize;
        places.0[item as usize] = NOWHERE;
        let last = self.entries.pop().expect("an item with a place is in a heap that is not empty");
        if place < self.entries.len() {
            self.replace(place, last.key(), last.item, places);
        }
    }

    /// Removes all items and their positions.
    pub(crate) fn clear(&mut self, places: &mut HeapPositions) {
        for entry in self.entries.drain(..) {
            places.0[entry.item as usize] = NOWHERE;
        }
    }

    /// The smallest key and its item.
    pub(crate) fn first(&self) -> Option<(u128, u32)> {
        self.entries.first().map(|e| (e.key(), e.item))
    }

    /// The key of `item`, which must be here.
    pub(crate) fn key_of(&self, item: u32, places: &HeapPositions) -> u128 {
        self.entries[places.0[item as usize] as usize].key()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and items in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, u32)> {
        self.entries.iter().map(|e| (e.key(), e.item))
    }

    /// Panics unless order and positions hold.
    pub(crate) fn check(&self, places: &HeapPositions) {
        for (i, entry) in self.entries.iter().enumerate() {
            assert_eq!(places.0[entry.item as usize] as usize, i, "item {} misplaced", entry.item);
            assert!(
                i == 0 || self.entries[(i - 1) / CHILDREN].key() <= entry.key(),
                "heap out of order"
            );
        }
    }

    /// Replaces an item by another and moves that to its position. Most items keep their key when
    /// only a cap on slots is checked; then the children are not read.
    fn replace(&mut self, place: usize, key: u128, item: u32, places: &mut HeapPositions) {
        let HeapEntry { high, low, item: before } = self.entries[place];
        if (high, low) == ((key >> 64) as u64, key as u64) && before == item {
            return;
        }
        if key < self.entries[place].key() {
            self.sift_up(place, key, item, places);
        } else {
            self.sift_down(place, key, item, places);
        }
    }

    fn sift_up(&mut self, mut place: usize, key: u128, item: u32, places: &mut HeapPositions) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            let above = self.entries[parent];
            if above.key() <= key {
                break;
            }
            self.set(place, above.key(), above.item, places);
            place = parent;
        }
        self.set(place, key, item, places);
    }

    fn sift_down(&mut self, mut place: usize, key: u128, item: u32, places: &mut HeapPositions) {
        while let Some(least) = self.least_child(place) {
            let child = self.entries[least];
            if child.key() >= key {
                break;
            }
            self.set(place, child.key(), child.item, places);
            place = least;
        }
        self.set(place, key, item, places);
    }

    /// The child with the smallest key. All groups but one are full. A full group is compared in
    /// two rounds without branches, as the smallest of four is unpredictable.
    fn least_child(&self, place: usize) -> Option<usize> {
        let first = place * CHILDREN + 1;
        let group = self.entries.get(first..)?;
        let less = |a: usize, b: usize| select_unpredictable(group[b].key() < group[a].key(), b, a);
        let least = match group.len() {
            0 => return None,
            1..CHILDREN => (1..group.len()).fold(0, less),
            _ => less(less(0, 1), less(2, 3)),
        };
        Some(first + least)
    }

    fn set(&mut self, place: usize, key: u128, item: u32, places: &mut HeapPositions) {
        self.entries[place] = HeapEntry { high: (key >> 64) as u64, low: key as u64, item };
        places.0[item as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_in_order_after_moves_and_removals() {
        let (mut heap, mut places) = (Heap::default(), HeapPositions::default());
        places.grow(100);
        for item in 0..100u32 {
            heap.put(u128::from(item * 37 % 101), item, &mut places);
        }
        for item in (0..100).step_by(3) {
            heap.remove(item, &mut places);
        }
        for item in (1..100).step_by(3) {
            heap.put(1000 - u128::from(item), item, &mut places);
        }
        heap.check(&places);
        let mut keys = Vec::new();
        while let Some((key, item)) = heap.first() {
            keys.push(key);
            heap.remove(item, &mut places);
        }
        let mut want: Vec<u128> = (2..100).step_by(3).map(|i: u128| i * 37 % 101).collect();
        want.extend((1..100).step_by(3).map(|i: u128| 1000 - i));
        want.sort_unstable();
        assert_eq!(keys, want);
        assert!(!places.holds(5));
    }
}
