//! The two lists of a walk: the names that it takes, the qids that it gives.

use std::fmt;
use std::ops::Deref;

use crate::types::{Qid, WALK_NAMES_MAX};
use crate::wire::string_len;

/// The names of a walk, at most 16, in their wire form; an iterator over them.
///
/// A decoded list holds neither NUL nor `/`. Empty names, `.` and `..` are passed on: their meaning
/// is the server's to decide.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct NameList<'a> {
    count: u16,
    /// `count` times len\[2\] bytes, and nothing after.
    bytes: &'a [u8],
}

/// The qids that a walk found, at most 16; a slice of them.
#[derive(Clone, Copy)]
pub struct Qids {
    len: u8,
    qids: [Qid; WALK_NAMES_MAX],
}

/// The error of more names than a walk takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a walk takes at most 16 names")]
pub struct TooManyNames;

impl<'a> NameList<'a> {
    /// The list of a walk that only clones.
    pub const EMPTY: NameList<'static> = NameList { count: 0, bytes: &[] };

    /// A list of `names` for a client's walk; their wire form is put into `space`,
    /// which is emptied first and can be used again after the walk is encoded.
    ///
    /// # Errors
    /// If there are more than 16.
    ///
    /// # Panics
    /// If a name is longer than 65,535 bytes.
    pub fn pack<'n>(
        names: impl IntoIterator<Item = &'n [u8]>,
        space: &'a mut Vec<u8>,
    ) -> Result<NameList<'a>, TooManyNames> {
        space.clear();
        let mut count = 0;
        for name in names {
            if count as usize == WALK_NAMES_MAX {
                return Err(TooManyNames);
            }
            count += 1;
            space.extend_from_slice(&string_len(name).to_le_bytes());
            space.extend_from_slice(name);
        }
        Ok(NameList { count, bytes: space })
    }

    /// Creates a list whose every length was checked.
    pub(crate) fn checked(count: u16, bytes: &'a [u8]) -> NameList<'a> {
        NameList { count, bytes }
    }

    pub(crate) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many names are left.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether no name is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Iterator for NameList<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.bytes.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        *self = NameList { count: self.count - 1, bytes: rest };
        Some(name)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count.into(), Some(self.count.into()))
    }
}

impl ExactSizeIterator for NameList<'_> {}

impl fmt::Debug for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.map(|name| name.escape_ascii().to_string())).finish()
    }
}

impl Qids {
    /// A list without qids.
    pub const fn new() -> Qids {
        Qids { len: 0, qids: [Qid { kind: 0, version: 0, path: 0 }; WALK_NAMES_MAX] }
    }

    /// Adds the qid of the next name.
    ///
    /// # Panics
    /// If there are 16 already: a walk has no more names.
    pub fn push(&mut self, qid: Qid) {
        self.qids[usize::from(self.len)] = qid;
        self.len += 1;
    }
}

impl Default for Qids {
    fn default() -> Qids {
        Qids::new()
    }
}

impl Deref for Qids {
    type Target = [Qid];
    fn deref(&self) -> &[Qid] {
        &self.qids[..self.len.into()]
    }
}

/// # Panics
/// If there are more than 16.
impl FromIterator<Qid> for Qids {
    fn from_iter<I: IntoIterator<Item = Qid>>(all: I) -> Qids {
        let mut qids = Qids::new();
        all.into_iter().for_each(|qid| qids.push(qid));
        qids
    }
}

impl PartialEq for Qids {
    fn eq(&self, other: &Qids) -> bool {
        **self == **other
    }
}

impl Eq for Qids {}

impl fmt::Debug for Qids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_names_come_out_in_order() {
        let mut space = Vec::new();
        let names = NameList::pack([&b"a"[..], b"", b"..", b"long name"], &mut space).unwrap();
        assert_eq!(names.len(), 4);
        assert_eq!(names.collect::<Vec<_>>(), [&b"a"[..], b"", b"..", b"long name"]);
    }

    #[test]
    fn seventeen_names_are_too_many_to_pack() {
        let mut space = Vec::new();
        assert!(NameList::pack([&b"x"[..]; 16], &mut space).is_ok());
        assert_eq!(NameList::pack([&b"x"[..]; 17], &mut space), Err(TooManyNames));
    }
}
