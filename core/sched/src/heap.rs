//! A 4-ary heap whose items know where they stand, so that any of them can be
//! moved or removed in O(log n).
//!
//! ```text
//!   entries: [ (key, item) ]  keys inline: a sift reads no other memory
//!   places:  item ─► index    one dense table, shared by heaps that never hold an item twice
//! ```
//!
//! Four children, because a sift down then touches half the levels of a binary
//! heap and each group of children lies in two cache lines. Smaller keys come
//! first; callers make keys unique, so the order never depends on the history.
//!
//! Invariant: `places[entries[i].item] == i`, and every other item's place is [`NOWHERE`].

/// The place of an item that stands in no heap.
const NOWHERE: u32 = u32::MAX;
const CHILDREN: usize = 4;

/// Where each item stands in the one heap that holds it.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<u32>);

/// The heap; its places are kept beside it and passed to each call.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    entries: Vec<Entry>,
}

/// The key in two halves: 24 bytes instead of 32, so that a group of children spans fewer
/// cache lines.
#[derive(Clone, Copy, Debug)]
struct Entry {
    high: u64,
    low: u64,
    item: u32,
}

impl Entry {
    fn new(key: u128, item: u32) -> Entry {
        Entry { high: (key >> 64) as u64, low: key as u64, item }
    }

    fn key(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

impl Places {
    /// Makes room for items below `count`.
    pub(crate) fn grow(&mut self, count: usize) {
        if self.0.len() < count {
            self.0.resize(count, NOWHERE);
        }
    }

    /// Whether `item` stands in a heap.
    pub(crate) fn holds(&self, item: u32) -> bool {
        self.0[item as usize] != NOWHERE
    }
}

impl Heap {
    /// Adds `item`, or moves it to `key` if it is already here.
    pub(crate) fn put(&mut self, key: u128, item: u32, places: &mut Places) {
        let place = places.0[item as usize];
        if place == NOWHERE {
            self.entries.push(Entry::new(key, item));
            self.sift_up(self.entries.len() - 1, places);
            return;
        }
        let place = place as usize;
        let before = self.entries[place].key();
        self.entries[place] = Entry::new(key, item);
        if key > before {
            self.sift_down(place, places);
        } else if key < before {
            self.sift_up(place, places);
        }
    }

    /// Takes `item` out; it must be here.
    pub(crate) fn remove(&mut self, item: u32, places: &mut Places) {
        let place = places.0[item as usize] as usize;
        places.0[item as usize] = NOWHERE;
        let last = self.entries.pop().expect("an item with a place is in a heap that is not empty");
        if place == self.entries.len() {
            return;
        }
        let removed = self.entries[place].key();
        self.entries[place] = last;
        if last.key() < removed {
            self.sift_up(place, places);
        } else {
            self.sift_down(place, places);
        }
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self, places: &mut Places) {
        for entry in self.entries.drain(..) {
            places.0[entry.item as usize] = NOWHERE;
        }
    }

    /// The smallest key and its item.
    pub(crate) fn first(&self) -> Option<(u128, u32)> {
        self.entries.first().map(|e| (e.key(), e.item))
    }

    /// The key under which `item`, which must be here, stands.
    pub(crate) fn key_of(&self, item: u32, places: &Places) -> u128 {
        self.entries[places.0[item as usize] as usize].key()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and items in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, u32)> {
        self.entries.iter().map(|e| (e.key(), e.item))
    }

    /// Panics unless order and places hold.
    pub(crate) fn check(&self, places: &Places) {
        for (i, entry) in self.entries.iter().enumerate() {
            assert_eq!(places.0[entry.item as usize] as usize, i, "item {} misplaced", entry.item);
            assert!(
                i == 0 || self.entries[(i - 1) / CHILDREN].key() <= entry.key(),
                "heap out of order"
            );
        }
    }

    fn sift_up(&mut self, mut place: usize, places: &mut Places) {
        let entry = self.entries[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.entries[parent].key() <= entry.key() {
                break;
            }
            self.set(place, self.entries[parent], places);
            place = parent;
        }
        self.set(place, entry, places);
    }

    fn sift_down(&mut self, mut place: usize, places: &mut Places) {
        let entry = self.entries[place];
        let key = entry.key();
        while let Some((least, child)) = self.least_child(place) {
            if child.key() >= key {
                break;
            }
            self.set(place, child, places);
            place = least;
        }
        self.set(place, entry, places);
    }

    /// The child with the smallest key. A full group is compared in two rounds, which the
    /// processor overlaps; all but one group is full.
    fn least_child(&self, place: usize) -> Option<(usize, Entry)> {
        let first = place * CHILDREN + 1;
        let less = |a: (usize, Entry), b: (usize, Entry)| if b.1.key() < a.1.key() { b } else { a };
        if let Some(&[a, b, c, d]) = self.entries.get(first..first + CHILDREN) {
            let left = less((first, a), (first + 1, b));
            return Some(less(left, less((first + 2, c), (first + 3, d))));
        }
        let rest = self.entries.get(first..)?;
        rest.iter().enumerate().map(|(i, e)| (first + i, *e)).reduce(less)
    }

    fn set(&mut self, place: usize, entry: Entry, places: &mut Places) {
        self.entries[place] = entry;
        places.0[entry.item as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_in_order_after_moves_and_removals() {
        let (mut heap, mut places) = (Heap::default(), Places::default());
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
