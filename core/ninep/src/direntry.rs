//! The entries in a readdir's reply: qid offset\[8\] type\[1\] name\[s\], one after another.

use crate::types::Qid;
use crate::wire::{qid_from, qid_to, string_len};

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The identity of the file.
    pub qid: Qid,
    /// The offset of the next Treaddir after this entry. All 64 bits are the file system's own, so
    /// it is neither an index nor ordered.
    pub offset: u64,
    /// The file's type, a `DT_` value as in `getdents`; 0 when unknown.
    pub kind: u8,
    /// The name in its directory.
    pub name: &'a [u8],
}

/// The entries of a readdir's `data`, in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    data: &'a [u8],
    at: usize,
}

/// The error of data that is not a list of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirEntryError {
    /// An entry that does not end within the data.
    #[error("the directory entry at byte {at} is cut short")]
    Truncated {
        /// Where it begins, in bytes from the start of the data.
        at: usize,
    },
    /// A name with NUL or `/` in it.
    #[error("the directory entry at byte {at} has the byte {byte:#04x} in its name")]
    BadByte {
        /// Where it begins, in bytes from the start of the data.
        at: usize,
        /// The byte that is not allowed.
        byte: u8,
    },
}

impl<'a> DirEntry<'a> {
    /// Bytes of an entry besides its name.
    pub const FIXED_LEN: usize = Qid::ENCODED_LEN + 8 + 1 + 2;

    /// Bytes of this entry on the wire: 24 and the name.
    pub const fn encoded_len(&self) -> usize {
        DirEntry::FIXED_LEN + self.name.len()
    }

    /// Appends the entry to a readdir's data. Whether it still fits the request's
    /// count is the caller's to check: an entry is never cut.
    ///
    /// # Panics
    /// If the name is longer than 65,535 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut fixed = [0; DirEntry::FIXED_LEN];
        fixed[..13].copy_from_slice(&qid_to(self.qid));
        fixed[13..21].copy_from_slice(&self.offset.to_le_bytes());
        fixed[21] = self.kind;
        fixed[22..].copy_from_slice(&string_len(self.name).to_le_bytes());
        out.extend_from_slice(&fixed);
        out.extend_from_slice(self.name);
    }
}

impl<'a> DirEntries<'a> {
    /// The entries in `data`, the whole payload of one Rreaddir.
    pub fn new(data: &'a [u8]) -> DirEntries<'a> {
        DirEntries { data, at: 0 }
    }

    fn read_entry(&mut self) -> Result<DirEntry<'a>, DirEntryError> {
        let at = self.at;
        let short = DirEntryError::Truncated { at };
        let (fixed, rest) =
            self.data[at..].split_first_chunk::<{ DirEntry::FIXED_LEN }>().ok_or(short)?;
        let [qid @ .., o0, o1, o2, o3, o4, o5, o6, o7, kind, l0, l1] = *fixed;
        let name = rest.get(..u16::from_le_bytes([l0, l1]).into()).ok_or(short)?;
        if let Some(byte) = name.iter().copied().find(|byte| matches!(byte, 0 | b'/')) {
            return Err(DirEntryError::BadByte { at, byte });
        }
        let offset = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let entry = DirEntry { qid: qid_from(&qid), offset, kind, name };
        self.at += entry.encoded_len();
        Ok(entry)
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, DirEntryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.data.len() {
            return None;
        }
        let entry = self.read_entry();
        if entry.is_err() {
            self.at = self.data.len();
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{QTDIR, QTFILE};

    const ENTRIES: [DirEntry<'static>; 3] = [
        DirEntry { qid: qid(QTDIR, 1), offset: 0x8000_0000_0000_0001, kind: 4, name: b".." },
        DirEntry { qid: qid(QTFILE, u64::MAX), offset: 3, kind: 8, name: &[0xff; 255] },
        DirEntry { qid: qid(QTFILE, 0), offset: u64::MAX, kind: 0, name: b"" },
    ];

    const fn qid(kind: u8, path: u64) -> Qid {
        Qid { kind, version: 0x0102_0304, path }
    }

    fn encoded() -> Vec<u8> {
        let mut data = Vec::new();
        for entry in &ENTRIES {
            let before = data.len();
            entry.encode(&mut data);
            assert_eq!(data.len() - before, entry.encoded_len());
        }
        data
    }

    #[test]
    fn entries_come_back_as_they_went() {
        let back: Vec<_> = DirEntries::new(&encoded()).map(|e| e.unwrap().offset).collect();
        assert_eq!(back, ENTRIES.map(|e| e.offset));
        assert!(DirEntries::new(&encoded()).map(Result::unwrap).eq(ENTRIES));
    }

    #[test]
    fn a_cut_entry_is_an_error_and_the_end() {
        let data = encoded();
        let second = ENTRIES[0].encoded_len();
        for len in second + 1..second + ENTRIES[1].encoded_len() {
            let mut entries = DirEntries::new(&data[..len]);
            assert_eq!(entries.next(), Some(Ok(ENTRIES[0])));
            assert_eq!(entries.next(), Some(Err(DirEntryError::Truncated { at: second })));
            assert_eq!(entries.next(), None);
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let mut data = Vec::new();
        DirEntry { name: b"a/b", ..ENTRIES[0] }.encode(&mut data);
        let error = DirEntryError::BadByte { at: 0, byte: b'/' };
        assert_eq!(DirEntries::new(&data).collect::<Vec<_>>(), [Err(error)]);
    }
}
