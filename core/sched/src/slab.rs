//! Items at stable indices, reused after removal. A generation each makes an old id recognisable,
//! so that it never reaches a later item.
//!
//! A generation is odd while its item lives. A removed item stays in memory until its place is
//! reused, which costs nothing for plain data.

/// The index that means no item.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { items: Vec::new(), generations: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores `item` and returns its index.
    #[inline]
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = item;
            self.generations[index as usize] += 1;
            return index;
        }
        let index = u32::try_from(self.items.len()).expect("fewer than 2^32 items are alive");
        self.items.push(item);
        self.generations.push(1);
        index
    }

    /// Frees the place of an item.
    pub(crate) fn remove(&mut self, index: u32) {
        debug_assert!(self.lives(index));
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(index);
    }

    /// The number that tells this item from later ones at its place.
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.generations[index as usize]
    }

    /// Whether the item of that generation is still here.
    pub(crate) fn has(&self, index: u32, generation: u32) -> bool {
        self.generations.get(index as usize) == Some(&generation) && generation % 2 == 1
    }

    /// Whether there is an item at that place.
    pub(crate) fn lives(&self, index: u32) -> bool {
        self.generations[index as usize] % 2 == 1
    }

    /// One more than the greatest index ever used.
    pub(crate) fn span(&self) -> usize {
        self.items.len()
    }

    /// Indices of the living items, ascending.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + use<'_, T> {
        (0..self.items.len() as u32).filter(|index| self.lives(*index))
    }

    /// The living items, ascending by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.indices().map(|index| (index, &self.items[index as usize]))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_does_not_reach_the_next_item_at_its_place() {
        let mut slab = Slab::default();
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
