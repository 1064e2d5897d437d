//! Fields to bytes and back: the two cursors that the message tables drive.
//!
//! Every kind of field has one method of the same name on [`FrameReader`] and on [`FrameWriter`],
//! so a table names a field's coding once and both directions follow it.
//!
//! Invariant: `FrameReader` only ever shrinks the body it was given and returns parts of it, so
//! what it returns lives as long as the frame and nothing is copied.

use crate::attributes::{Attributes, SetAttributes, Statfs, Timestamp};
use crate::error::FrameError;
use crate::header::frame_len;
use crate::lists::{NameList, Qids};
use crate::lock::{LockKind, LockStatus};
use crate::types::{Fid, HEADER_LEN, NOTAG, Qid, Tag, WALK_NAMES_MAX};

/// Takes fields from the front of one message's body.
pub(crate) struct FrameReader<'a> {
    tag: Tag,
    body: &'a [u8],
}

/// Appends one message; [`FrameWriter::finish`] fills in its size.
pub(crate) struct FrameWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

/// A string's length field holds 16 bits.
const STRING_MAX: usize = u16::MAX as usize;

macro_rules! integers {
    ($($name:ident),*) => {
        impl<'a> FrameReader<'a> {
            $(
                #[inline]
                pub(crate) fn $name(&mut self, field: &'static str) -> Result<$name, FrameError> {
                    self.array(field).map($name::from_le_bytes)
                }
            )*
        }
        impl FrameWriter<'_> {
            $(
                #[inline]
                pub(crate) fn $name(&mut self, value: $name) {
                    self.out.extend_from_slice(&value.to_le_bytes());
                }
            )*
        }
    };
}
integers!(u8, u16, u32, u64, u128);

impl<'a> FrameReader<'a> {
    /// Checks a frame's header; gives its type and its body.
    #[inline]
    pub(crate) fn new(frame: &'a [u8]) -> Result<(u8, FrameReader<'a>), FrameError> {
        let short = FrameError::Short { len: frame.len() };
        let (header, body) = frame.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        let size = frame_len(header).ok_or(short)?;
        let tag = Tag(u16::from_le_bytes([header[5], header[6]]));
        if size as usize != frame.len() {
            return Err(FrameError::Size { tag, size, len: frame.len() });
        }
        Ok((header[4], FrameReader { tag, body }))
    }

    /// Creates a reader for a list inside a decoded message: errors name no tag.
    pub(crate) fn part(body: &'a [u8]) -> FrameReader<'a> {
        FrameReader { tag: NOTAG, body }
    }

    /// The bytes that are not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.body
    }

    #[inline]
    pub(crate) fn tag_of_message(&self) -> Tag {
        self.tag
    }

    /// Ends the message: nothing may be left.
    #[inline]
    pub(crate) fn finish(&self) -> Result<(), FrameError> {
        match self.body.len() {
            0 => Ok(()),
            extra => Err(FrameError::Trailing { tag: self.tag, extra }),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FrameError> {
        match self.body.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.body = rest;
                Ok(*array)
            }
            None => Err(self.truncated(field, N)),
        }
    }

    #[inline]
    pub(crate) fn bytes(
        &mut self,
        field: &'static str,
        len: usize,
    ) -> Result<&'a [u8], FrameError> {
        match self.body.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.body = rest;
                Ok(bytes)
            }
            None => Err(self.truncated(field, len)),
        }
    }

    #[cold]
    fn truncated(&self, field: &'static str, need: usize) -> FrameError {
        FrameError::Truncated { tag: self.tag, field, need, available: self.body.len() }
    }

    #[inline]
    pub(crate) fn tag(&mut self, field: &'static str) -> Result<Tag, FrameError> {
        self.u16(field).map(Tag)
    }

    #[inline]
    pub(crate) fn fid(&mut self, field: &'static str) -> Result<Fid, FrameError> {
        self.u32(field).map(Fid)
    }

    /// len\[2\] bytes, of any value.
    #[inline]
    pub(crate) fn raw(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let len = self.u16(field)?;
        self.bytes(field, len.into())
    }

    /// A string that may become a path or a C string: no NUL.
    #[inline]
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let text = self.raw(field)?;
        self.without(field, text, |byte| byte == 0)
    }

    /// The name of one file in its directory: neither NUL nor `/`.
    #[inline]
    pub(crate) fn name(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let name = self.raw(field)?;
        self.without(field, name, |byte| byte == 0 || byte == b'/')
    }

    #[inline]
    fn without(
        &self,
        field: &'static str,
        bytes: &'a [u8],
        bad: impl Fn(u8) -> bool,
    ) -> Result<&'a [u8], FrameError> {
        match bytes.iter().position(|byte| bad(*byte)) {
            None => Ok(bytes),
            Some(at) => Err(FrameError::BadByte { tag: self.tag, field, byte: bytes[at], at }),
        }
    }

    /// count\[4\] and that many bytes of payload.
    #[inline]
    pub(crate) fn data(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let count = self.u32(field)?;
        self.bytes(field, count as usize)
    }

    /// n\[2\] and that many names.
    pub(crate) fn names(&mut self, field: &'static str) -> Result<NameList<'a>, FrameError> {
        let count = self.walk_count(field)?;
        let all = self.body;
        for _ in 0..count {
            self.name(field)?;
        }
        Ok(NameList::checked(count, &all[..all.len() - self.body.len()]))
    }

    /// m\[2\] and that many qids.
    pub(crate) fn qids(&mut self, field: &'static str) -> Result<Qids, FrameError> {
        let mut qids = Qids::new();
        for _ in 0..self.walk_count(field)? {
            qids.push(self.qid(field)?);
        }
        Ok(qids)
    }

    #[inline]
    fn walk_count(&mut self, field: &'static str) -> Result<u16, FrameError> {
        let count = self.u16(field)?;
        if count as usize > WALK_NAMES_MAX {
            let limit = WALK_NAMES_MAX;
            return Err(FrameError::TooMany { tag: self.tag, field, count, limit });
        }
        Ok(count)
    }

    #[inline]
    pub(crate) fn qid(&mut self, field: &'static str) -> Result<Qid, FrameError> {
        let bytes = self.array::<{ Qid::ENCODED_LEN }>(field)?;
        Ok(qid_from(&bytes))
    }

    #[cold]
    pub(crate) fn bad_value(&self, field: &'static str, value: u8) -> FrameError {
        FrameError::BadValue { tag: self.tag, field, value }
    }

    pub(crate) fn lock_kind(&mut self, field: &'static str) -> Result<LockKind, FrameError> {
        let value = self.u8(field)?;
        LockKind::new(value).ok_or(self.bad_value(field, value))
    }

    pub(crate) fn lock_status(&mut self, field: &'static str) -> Result<LockStatus, FrameError> {
        let value = self.u8(field)?;
        LockStatus::new(value).ok_or(self.bad_value(field, value))
    }

    fn timestamp(&mut self, field: &'static str) -> Result<Timestamp, FrameError> {
        Ok(Timestamp { sec: self.u64(field)?, nsec: self.u64(field)? })
    }

    pub(crate) fn attributes(&mut self, field: &'static str) -> Result<Attributes, FrameError> {
        Ok(Attributes {
            valid: self.u64(field)?,
            qid: self.qid(field)?,
            mode: self.u32(field)?,
            uid: self.u32(field)?,
            gid: self.u32(field)?,
            nlink: self.u64(field)?,
            rdev: self.u64(field)?,
            size: self.u64(field)?,
            blksize: self.u64(field)?,
            blocks: self.u64(field)?,
            atime: self.timestamp(field)?,
            mtime: self.timestamp(field)?,
            ctime: self.timestamp(field)?,
            btime: self.timestamp(field)?,
            generation: self.u64(field)?,
            data_version: self.u64(field)?,
        })
    }

    pub(crate) fn set_attributes(
        &mut self,
        field: &'static str,
    ) -> Result<SetAttributes, FrameError> {
        Ok(SetAttributes {
            valid: self.u32(field)?,
            mode: self.u32(field)?,
            uid: self.u32(field)?,
            gid: self.u32(field)?,
            size: self.u64(field)?,
            atime: self.timestamp(field)?,
            mtime: self.timestamp(field)?,
        })
    }

    pub(crate) fn statfs(&mut self, field: &'static str) -> Result<Statfs, FrameError> {
        Ok(Statfs {
            kind: self.u32(field)?,
            bsize: self.u32(field)?,
            blocks: self.u64(field)?,
            bfree: self.u64(field)?,
            bavail: self.u64(field)?,
            files: self.u64(field)?,
            ffree: self.u64(field)?,
            fsid: self.u64(field)?,
            namelen: self.u32(field)?,
        })
    }
}

/// The qid in its 13 bytes.
pub(crate) fn qid_from(bytes: &[u8; Qid::ENCODED_LEN]) -> Qid {
    let [kind, v0, v1, v2, v3, path @ ..] = *bytes;
    Qid { kind, version: u32::from_le_bytes([v0, v1, v2, v3]), path: u64::from_le_bytes(path) }
}

/// The 13 bytes of a qid.
pub(crate) fn qid_to(qid: Qid) -> [u8; Qid::ENCODED_LEN] {
    let mut bytes = [qid.kind; Qid::ENCODED_LEN];
    bytes[1..5].copy_from_slice(&qid.version.to_le_bytes());
    bytes[5..].copy_from_slice(&qid.path.to_le_bytes());
    bytes
}

/// The length field of a string.
///
/// # Panics
/// If the string is longer than 65,535 bytes: no file system returns such a name, so it is a
/// mistake of this program.
pub(crate) fn string_len(bytes: &[u8]) -> u16 {
    assert!(bytes.len() <= STRING_MAX, "a string of {} bytes has no 9P form", bytes.len());
    bytes.len() as u16
}

impl<'o> FrameWriter<'o> {
    /// Begins a message at the end of `out`.
    #[inline]
    pub(crate) fn new(kind: u8, tag: Tag, out: &'o mut Vec<u8>) -> FrameWriter<'o> {
        let start = out.len();
        let [t0, t1] = tag.0.to_le_bytes();
        out.extend_from_slice(&[0, 0, 0, 0, kind, t0, t1]);
        FrameWriter { out, start }
    }

    /// Continues with fields of a list: there is nothing to finish.
    pub(crate) fn part(out: &'o mut Vec<u8>) -> FrameWriter<'o> {
        let start = out.len();
        FrameWriter { out, start }
    }

    /// Ends the message: writes its size.
    ///
    /// # Panics
    /// If it is longer than 4 GiB, far beyond any msize.
    #[inline]
    pub(crate) fn finish(self) {
        let size = u32::try_from(self.out.len() - self.start).expect("a message fits its msize");
        self.out[self.start..self.start + 4].copy_from_slice(&size.to_le_bytes());
    }

    #[inline]
    pub(crate) fn tag(&mut self, tag: Tag) {
        self.u16(tag.0);
    }

    #[inline]
    pub(crate) fn fid(&mut self, fid: Fid) {
        self.u32(fid.0);
    }

    #[inline]
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.u16(string_len(bytes));
        self.out.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn text(&mut self, text: &[u8]) {
        self.raw(text);
    }

    #[inline]
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.raw(name);
    }

    #[inline]
    pub(crate) fn data(&mut self, data: &[u8]) {
        self.u32(u32::try_from(data.len()).expect("payload fits its msize"));
        self.out.extend_from_slice(data);
    }

    pub(crate) fn names(&mut self, names: NameList<'_>) {
        self.u16(names.len() as u16);
        self.wired(names.as_bytes());
    }

    /// What is in its wire form already.
    pub(crate) fn wired(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn qids(&mut self, qids: Qids) {
        self.u16(qids.len() as u16);
        for qid in qids.iter() {
            self.qid(*qid);
        }
    }

    #[inline]
    pub(crate) fn qid(&mut self, qid: Qid) {
        self.out.extend_from_slice(&qid_to(qid));
    }

    pub(crate) fn lock_kind(&mut self, kind: LockKind) {
        self.u8(kind as u8);
    }

    pub(crate) fn lock_status(&mut self, status: LockStatus) {
        self.u8(status as u8);
    }

    fn timestamp(&mut self, time: Timestamp) {
        self.u64(time.sec);
        self.u64(time.nsec);
    }

    pub(crate) fn attributes(&mut self, a: Attributes) {
        self.u64(a.valid);
        self.qid(a.qid);
        self.u32(a.mode);
        self.u32(a.uid);
        self.u32(a.gid);
        self.u64(a.nlink);
        self.u64(a.rdev);
        self.u64(a.size);
        self.u64(a.blksize);
        self.u64(a.blocks);
        self.timestamp(a.atime);
        self.timestamp(a.mtime);
        self.timestamp(a.ctime);
        self.timestamp(a.btime);
        self.u64(a.generation);
        self.u64(a.data_version);
    }

    pub(crate) fn set_attributes(&mut self, set: SetAttributes) {
        self.u32(set.valid);
        self.u32(set.mode);
        self.u32(set.uid);
        self.u32(set.gid);
        self.u64(set.size);
        self.timestamp(set.atime);
        self.timestamp(set.mtime);
    }

    pub(crate) fn statfs(&mut self, figures: Statfs) {
        self.u32(figures.kind);
        self.u32(figures.bsize);
        self.u64(figures.blocks);
        self.u64(figures.bfree);
        self.u64(figures.bavail);
        self.u64(figures.files);
        self.u64(figures.ffree);
        self.u64(figures.fsid);
        self.u32(figures.namelen);
    }
}
