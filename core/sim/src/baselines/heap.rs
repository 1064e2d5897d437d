//! The heap of the published schedulers: it contains a class at most once, and a class can be
//! moved.
//!
//! ```text
//!   entries:   [ (key, class) ]   four children each, the least on top
//!   positions: class ─► index     so that a class is moved or removed in O(log n)
//! ```
//!
//! Ceph's intrusive heap and Lustre's binary one do the same with two children. Our own dispatcher
//! has four, with keys beside the classes, so no difference comes from the heap.

/// Classes by key; equal keys go by class.
#[derive(Debug)]
pub(super) struct TagHeap<K> {
    entries: Vec<(K, u32)>,
    positions: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;
const CHILDREN: usize = 4;

impl<K> Default for TagHeap<K> {
    fn default() -> TagHeap<K> {
        TagHeap { entries: Vec::new(), positions: Vec::new() }
    }
}

impl<K: Ord + Copy> TagHeap<K> {
    /// Adds a class, or moves it.
    pub(super) fn put(&mut self, key: K, class: usize) {
        if self.positions.len() <= class {
            self.positions.resize(class + 1, NOWHERE);
        }
        let entry = (key, class as u32);
        match self.positions[class] {
            NOWHERE => {
                self.entries.push(entry);
                self.sift_up(self.entries.len() - 1, entry);
            }
            place => self.replace(place as usize, entry),
        }
    }

    /// Takes a class out, if it is in.
    pub(super) fn remove(&mut self, class: usize) {
        let Some(place) = self.positions.get(class).copied().filter(|place| *place != NOWHERE)
        else {
            return;
        };
        self.positions[class] = NOWHERE;
        let last = self.entries.pop().expect("a class with a place is in it");
        if (place as usize) < self.entries.len() {
            self.replace(place as usize, last);
        }
    }

    /// The least key and its class.
    pub(super) fn first(&self) -> Option<(K, usize)> {
        self.entries.first().map(|(key, class)| (*key, *class as usize))
    }

    /// The classes in it, in no particular order.
    pub(super) fn classes(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().map(|(_, class)| *class as usize)
    }

    fn replace(&mut self, place: usize, entry: (K, u32)) {
        match entry < self.entries[place] {
            true => self.sift_up(place, entry),
            false => self.sift_down(place, entry),
        }
    }

    fn sift_up(&mut self, mut place: usize, entry: (K, u32)) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.entries[parent] <= entry {
                break;
            }
            self.set(place, self.entries[parent]);
            place = parent;
        }
        self.set(place, entry);
    }

    fn sift_down(&mut self, mut place: usize, entry: (K, u32)) {
        loop {
            let first = place * CHILDREN + 1;
            let group = first..self.entries.len().min(first + CHILDREN);
            let Some(least) = group.min_by_key(|child| self.entries[*child]) else { break };
            if self.entries[least] >= entry {
                break;
            }
            self.set(place, self.entries[least]);
            place = least;
        }
        self.set(place, entry);
    }

    fn set(&mut self, place: usize, entry: (K, u32)) {
        self.entries[place] = entry;
        self.positions[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_out_in_order_after_moves_and_removals() {
        let mut heap = TagHeap::default();
        (0..100).for_each(|class| heap.put(class * 37 % 101, class));
        (0..100).step_by(3).for_each(|class| heap.remove(class));
        (1..100).step_by(3).for_each(|class| heap.put(1000 - class / 10 * 10, class));
        heap.remove(0);
        assert_eq!(heap.classes().count(), 66);
        let mut got = Vec::new();
        while let Some((key, class)) = heap.first() {
            got.push((key, class));
            heap.remove(class);
        }
        let mut wanted: Vec<_> =
            (2..100).step_by(3).map(|class| (class * 37 % 101, class)).collect();
        wanted.extend((1..100).step_by(3).map(|class| (1000 - class / 10 * 10, class)));
        wanted.sort_unstable();
        assert_eq!(got, wanted);
    }
}
