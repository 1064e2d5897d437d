//! Tables of items at stable indices, reused after removal. A generation each makes an old id
//! recognisable, so that it never reaches a later item.
//!
//! A generation is odd while its item lives. A removed item stays in memory until its place is
//! reused, which costs nothing for plain data.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::index::TableIndex;

/// Items of one kind, which gives out their indices.
#[derive(Debug)]
pub(crate) struct Slab<I, T> {
    items: Vec<T>,
    generations: Vec<u32>,
    free: Vec<u32>,
    by: PhantomData<I>,
}

/// What one owner keeps of items whose indices another one gives out.
#[derive(Debug)]
pub(crate) struct Parts<I, T> {
    items: Vec<T>,
    by: PhantomData<I>,
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Slab<I, T> {
        Slab { items: Vec::new(), generations: Vec::new(), free: Vec::new(), by: PhantomData }
    }
}

impl<I: TableIndex, T> Slab<I, T> {
    /// Stores `item` and returns its index.
    #[inline]
    pub(crate) fn insert(&mut self, item: T) -> I {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = item;
            self.generations[index as usize] += 1;
            return I::new(index);
        }
        let index = u32::try_from(self.items.len()).ok().filter(|index| *index < u32::MAX);
        let index = index.expect("fewer than 2^32 - 1 items are alive");
        self.items.push(item);
        self.generations.push(1);
        I::new(index)
    }

    /// Frees the place of an item.
    pub(crate) fn remove(&mut self, index: I) {
        debug_assert!(self.lives(index));
        let generation = &mut self.generations[index.raw() as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(index.raw());
    }

    /// The number that tells this item from later ones at its place.
    #[inline]
    pub(crate) fn generation(&self, index: I) -> u32 {
        self.generations[index.raw() as usize]
    }

    /// Whether the item of that generation is still here.
    #[inline]
    pub(crate) fn has(&self, index: I, generation: u32) -> bool {
        self.generations.get(index.raw() as usize) == Some(&generation) && generation % 2 == 1
    }

    /// Whether there is an item at that place.
    #[inline]
    pub(crate) fn lives(&self, index: I) -> bool {
        self.generations[index.raw() as usize] % 2 == 1
    }

    /// One more than the greatest index ever used.
    #[inline]
    pub(crate) fn span(&self) -> usize {
        self.items.len()
    }

    /// The index of that number, if its item lives.
    pub(crate) fn at(&self, raw: usize) -> Option<I> {
        let generation = self.generations.get(raw)?;
        (generation % 2 == 1).then(|| I::new(raw as u32))
    }

    /// Indices of the living items, ascending.
    pub(crate) fn indices(&self) -> impl Iterator<Item = I> + use<'_, I, T> {
        (0..self.items.len()).filter_map(|raw| self.at(raw))
    }

    /// The living items, ascending by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.indices().map(|index| (index, &self.items[index.raw() as usize]))
    }
}

impl<I, T> Default for Parts<I, T> {
    fn default() -> Parts<I, T> {
        Parts { items: Vec::new(), by: PhantomData }
    }
}

impl<I: TableIndex, T> Parts<I, T> {
    /// Stores the part of a new item: at the end, or in place of a removed one's.
    #[inline]
    pub(crate) fn put(&mut self, index: I, part: T) {
        match self.items.get_mut(index.raw() as usize) {
            Some(known) => *known = part,
            None => {
                assert!(self.items.len() == index.raw() as usize, "an index was left out");
                self.items.push(part);
            }
        }
    }

    /// One more than the greatest index ever used.
    pub(crate) fn span(&self) -> usize {
        self.items.len()
    }
}

macro_rules! by_index {
    ($table:ident) => {
        impl<I: TableIndex, T> Index<I> for $table<I, T> {
            type Output = T;

            #[inline]
            fn index(&self, index: I) -> &T {
                &self.items[index.raw() as usize]
            }
        }

        impl<I: TableIndex, T> IndexMut<I> for $table<I, T> {
            #[inline]
            fn index_mut(&mut self, index: I) -> &mut T {
                &mut self.items[index.raw() as usize]
            }
        }
    };
}
by_index!(Slab);
by_index!(Parts);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::RequestIndex;

    #[test]
    fn an_old_id_does_not_reach_the_next_item_at_its_place() {
        let mut slab = Slab::<RequestIndex, char>::default();
        let index = slab.insert('a');
        let generation = slab.generation(index);
        slab.remove(index);
        assert!(!slab.has(index, generation));
        assert_eq!(slab.insert('b'), index);
        assert!(!slab.has(index, generation));
        assert!(slab.has(index, slab.generation(index)));
        assert_eq!(slab.span(), 1);
    }
}
