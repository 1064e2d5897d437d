//! The supplementary groups of an identity: n\[2\] n × gid\[4\].

use std::fmt;

use super::GROUPS_MAX;
use crate::error::FrameError;
use crate::wire::{FrameReader, FrameWriter};

/// Supplementary groups, in their wire form; an iterator over them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupList<'a> {
    /// Creates a list of four bytes for each group.
    bytes: &'a [u8],
}

impl<'a> GroupList<'a> {
    /// A list of `groups`; their wire form is put into `space`, which is emptied first.
    /// Those beyond [`GROUPS_MAX`] are left out.
    pub fn pack(groups: impl IntoIterator<Item = u32>, space: &'a mut Vec<u8>) -> GroupList<'a> {
        space.clear();
        for group in groups.into_iter().take(GROUPS_MAX) {
            space.extend_from_slice(&group.to_le_bytes());
        }
        GroupList { bytes: space }
    }
}

impl Iterator for GroupList<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (group, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*group))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.bytes.len() / 4, Some(self.bytes.len() / 4))
    }
}

impl ExactSizeIterator for GroupList<'_> {}

impl fmt::Debug for GroupList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

impl<'a> FrameReader<'a> {
    pub(crate) fn groups(&mut self, field: &'static str) -> Result<GroupList<'a>, FrameError> {
        let count = self.u16(field)?;
        if usize::from(count) > GROUPS_MAX {
            let (tag, limit) = (self.tag_of_message(), GROUPS_MAX);
            return Err(FrameError::TooMany { tag, field, count, limit });
        }
        Ok(GroupList { bytes: self.bytes(field, usize::from(count) * 4)? })
    }
}

impl FrameWriter<'_> {
    pub(crate) fn groups(&mut self, groups: GroupList<'_>) {
        self.u16(groups.len() as u16);
        groups.for_each(|group| self.u32(group));
    }
}
