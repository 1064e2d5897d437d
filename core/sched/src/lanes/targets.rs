//! The table of targets. Most proxies have one, whose place the processor can predict without the
//! class that names it.

use std::ops::{Index, IndexMut};
use std::slice::{Iter, IterMut};

use model::TargetId;

use super::TargetLanes;

/// The lanes of each target, by [`TargetId`].
#[derive(Debug, Default)]
pub(super) struct Targets(Vec<TargetLanes>);

impl Targets {
    /// Adds the lanes of the next target.
    ///
    /// # Panics
    /// Beyond [`TargetId::MAX_COUNT`] targets.
    pub(super) fn push(&mut self, target: TargetLanes) -> TargetId {
        let id = TargetId::new(self.0.len());
        self.0.push(target);
        id
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> Iter<'_, TargetLanes> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> IterMut<'_, TargetLanes> {
        self.0.iter_mut()
    }

    #[inline(never)]
    fn further(&self, id: TargetId) -> &TargetLanes {
        &self.0[id.index()]
    }

    #[inline(never)]
    fn further_mut(&mut self, id: TargetId) -> &mut TargetLanes {
        &mut self.0[id.index()]
    }
}

impl Index<TargetId> for Targets {
    type Output = TargetLanes;

    #[inline]
    fn index(&self, id: TargetId) -> &TargetLanes {
        if id == TargetId::FIRST { &self.0[0] } else { self.further(id) }
    }
}

impl IndexMut<TargetId> for Targets {
    #[inline]
    fn index_mut(&mut self, id: TargetId) -> &mut TargetLanes {
        if id == TargetId::FIRST { &mut self.0[0] } else { self.further_mut(id) }
    }
}
